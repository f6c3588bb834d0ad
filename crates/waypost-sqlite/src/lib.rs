//! Keeps the runs of [`waypost`] in an SQLite file. SQLite is built in.
//!
//! ```
//! use std::sync::Arc;
//!
//! use waypost::{Engine, Graph, StepError};
//! use waypost_sqlite::{SqliteOptions, SqliteStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let graph = Graph::<u32>::builder("count").step("add", |n, _| async move { Ok::<_, StepError>(n + 1) }).build()?;
//! let store = SqliteStore::open(&folder.join("waypost.db"), SqliteOptions::default())?;
//!
//! let outcome = Engine::new(Arc::new(store)).run(&graph, "monday", 0).or_resume().await?;
//!
//! assert_eq!(outcome.into_result()?, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Every commit is on disk before the next step starts. Runs of one process share commits. A state is stored as a
//! delta of the state before. Files for people and kernel locks are next to the database:
//!
//! ```text
//!   .waypost/waypost.db       records, summaries, signals, quarantine      (0600)
//!   .waypost/locks/RUN.lock   the kernel lock of each run's writer
//!   .waypost/runs/RUN/        events.jsonl, report.md, logs/               derived, or not synced
//! ```
//!
//! `docs/concepts/format-sqlite.md` in the repository has the bytes.

// Rooms, each of which uses only the rooms before it:
//
// - `database`: the file, its connections, schema and errors.
// - `tables`: verified reads, leases, and the detection of lost or contradictory rows.
// - `write`: group commit, appends, pruning and removal.
// - `projector`: writes events and report off the commit path.
// - `store`: the operations of the trait. `free_space` removes files of a run on a full disk.
//
// `waypost-codec` has the compact stored form of records. The crate knows SQL and the file system. It makes no decisions
// about runs and never reads a state.

mod database;
mod free_space;
mod projector;
mod store;
mod tables;
mod write;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use database::folder::{folder_of, ignored_by_git};
pub use database::open::SqliteOptions;
pub use database::schema::schema_of;
pub use free_space::clear_files;
pub use store::SqliteStore;

/// The schema version that this crate writes; older versions are readable.
pub const SCHEMA_VERSION: u32 = database::schema::VERSION;

/// Locks a mutex, even after a panic: the guarded data is consistent between statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
