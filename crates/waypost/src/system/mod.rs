//! The machine: files with synchronous writes, kernel locks, clocks, and text with its own hash.
//!
//! The only module of the crate that knows operating-system details.

pub mod clock;
pub mod deadline;
pub mod disk;
pub mod in_use;
pub mod lock;
pub(crate) mod sealed;
