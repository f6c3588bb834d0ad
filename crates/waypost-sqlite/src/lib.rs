//! The Waypost store over an SQLite file.
//!
//! [`SqliteStore`] keeps all runs of a folder in one database, and beside it what is for people and for the kernel:
//!
//! ```text
//!   .waypost/waypost.db       records, summaries, signals, quarantine      (0600)
//!   .waypost/locks/RUN.lock   the kernel lock of each run's writer
//!   .waypost/runs/RUN/        events.jsonl, report.md, logs/               derived, or not synced
//! ```
//!
//! Where to look:
//!
//! - `open`, `schema`: how the file is opened, made, checked and upgraded; `beside` names the folder that goes with it.
//! - `commit`: the one path by which anything is written, and how tasks share a sync; `present` sees whether the files
//!   are still there.
//! - `append`, `lease`, `trim`, `tidy`: what is written, each in one transaction; `shrink` gives pages back, and `clear` makes room
//!   where nothing can be written.
//! - `pack`, `frame`, `hunks`, `header`: what is kept of a record, as little as that can be; `squeeze` has the compression,
//!   `tips` the bodies that the next ones are compared with, `unpack` makes bodies again.
//! - `rows`, `branch`, `read`, `runs`: how it is read back, verified.
//! - `witness`, `counters`, `inspect`: what tells that the database has lost something, or contradicts itself.
//! - `teller`: has what was committed put into the report, without anyone waiting for it.
//! - `fault`: what SQLite's errors mean to a caller.
//!
//! Knows SQL and the file system; decides nothing about a run, and never looks into a state.

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

/// The version of the tables that this crate writes; it reads all before.
pub const SCHEMA_VERSION: u32 = schema::VERSION;
