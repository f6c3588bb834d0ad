//! The queue of submitted runs, the worker that holds the leases of this process, and hints about ready runs.
//!
//! ```text
//!   jobs     a row for each submitted run: priority, needs
//!   ready    a row for each run that waits for a worker; a claim deletes the row
//!   tasks    a row for each step that a worker executes for the holder of its run
//!   workers  a row for each process with leases: a single end for all of them
//! ```

pub(crate) mod hints;
pub(crate) mod jobs;
pub(crate) mod statistics;
pub(crate) mod tasks;
pub(crate) mod worker;
