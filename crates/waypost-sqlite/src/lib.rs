//! The Waypost store in an SQLite file.
//!
//! [`SqliteStore`] keeps all runs of a folder in a database. Files for people and kernel locks are next to
//! it:
//!
//! ```text
//!   .waypost/waypost.db       records, summaries, signals, quarantine      (0600)
//!   .waypost/locks/RUN.lock   the kernel lock of each run's writer
//!   .waypost/runs/RUN/        events.jsonl, report.md, logs/               derived, or not synced
//! ```
//!
//! Module map:
//!
//! - `open`, `schema`: open, create, check and upgrade the file; `beside` names its folder.
//! - `commit`: the write path with group commit; `present` checks that the files still exist.
//! - `append`, `lease`, `trim`, `tidy`: the write operations, each a single transaction. `shrink` returns
//!   pages to the file system, and `clear` frees space on a full disk.
//! - `pack`, `frame`, `hunks`, `header`: the compact stored form of a record. `squeeze` has the compression,
//!   `tips` caches delta bases, and `unpack` decodes bodies.
//! - `rows`, `branch`, `read`, `runs`: verified reads.
//! - `witness`, `counters`, `inspect`: detection of lost or contradictory data.
//! - `teller`: writes events and report off the commit path.
//! - `fault`: maps SQLite errors to store errors.
//!
//! The crate knows SQL and the file system. It makes no decisions about runs and never reads a state.

mod append;
mod beside;
mod branch;
mod clear;
mod commit;
mod counters;
mod crowd;
mod ends;
mod fault;
mod frame;
mod frozen;
mod header;
mod heal;
mod hunks;
mod inspect;
mod lease;
mod open;
mod pack;
mod present;
mod read;
mod recent;
mod room;
mod rows;
mod runs;
mod schema;
mod shrink;
mod squeeze;
mod store;
mod teller;
mod tidy;
mod tips;
mod trim;
mod unpack;
mod witness;

pub use beside::{folder_of, ignored_by_git};
pub use clear::clear_files;
pub use open::SqliteOptions;
pub use schema::schema_of;
pub use store::SqliteStore;

/// The schema version that this crate writes; older versions are readable.
pub const SCHEMA_VERSION: u32 = schema::VERSION;
