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
//! - `open`, `schema`: open, create, check and upgrade the file; `folder` names its folder.
//! - `commit`: the write path with group commit; `file_identity` checks that the files still exist.
//! - `append`, `lease`, `trim`, `removal`: the write operations, each a single transaction. `shrink` returns
//!   pages to the file system, and `free_space` frees space on a full disk.
//! - `encode`, `frame`, `delta`, `header`: the compact stored form of a record. `compression` has the compression,
//!   `delta_cache` caches delta bases, and `decode` decodes bodies.
//! - `rows`, `branch`, `read`, `runs`: verified reads.
//! - `tail_check`, `counters`, `inspect`: detection of lost or contradictory data.
//! - `projector`: writes events and report off the commit path.
//! - `error`: maps SQLite errors to store errors.
//!
//! The crate knows SQL and the file system. It makes no decisions about runs and never reads a state.

mod ack_journal;
mod append;
mod branch;
mod commit;
mod commit_order;
mod compression;
mod counters;
mod decode;
mod delta;
mod delta_cache;
mod encode;
mod error;
mod file_identity;
mod folder;
mod frame;
mod free_space;
mod group_commit;
mod header;
mod heads;
mod inspect;
mod lease;
mod open;
mod projector;
mod read;
mod removal;
mod rows;
mod run_copies;
mod runs;
mod schema;
mod shrink;
mod store;
mod tail_check;
mod trim;
mod wal_prealloc;

pub use folder::{folder_of, ignored_by_git};
pub use free_space::clear_files;
pub use open::SqliteOptions;
pub use schema::schema_of;
pub use store::SqliteStore;

/// The schema version that this crate writes; older versions are readable.
pub const SCHEMA_VERSION: u32 = schema::VERSION;
