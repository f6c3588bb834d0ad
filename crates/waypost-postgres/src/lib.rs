//! Keeps the runs of [`waypost`] in a PostgreSQL database: a run outlives its machine, and continues on another one.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use waypost::{Engine, Graph, StepError};
//! use waypost_postgres::{PostgresOptions, PostgresStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let graph = Graph::<u32>::builder("count").step("add", |n, _| async move { Ok::<_, StepError>(n + 1) }).build()?;
//! let store = PostgresStore::open("postgres://me@db.example/jobs", PostgresOptions::default())?;
//! store.init().await?; // Once, by a role that may make tables.
//!
//! let outcome = Engine::new(Arc::new(store)).run(&graph, "monday", 0).or_resume().await?;
//! # drop(outcome);
//! # Ok(())
//! # }
//! ```
//!
//! | topic | rule |
//! |---|---|
//! | address | a URL; passwords from `PGPASSWORD` or `~/.pgpass` are never shown; TLS to other machines by default |
//! | who holds a run | the process with its lease, 60 s without a renewal; every write compares the token of the lease |
//! | a lost answer | the write is repeated with the same id, and takes effect once |
//! | queue | the store is a [`waypost::store::Queue`], for workers on many machines |
//!
//! `docs/how-to/postgres.md` and `docs/how-to/workers.md` in the repository explain the use, and
//! `docs/concepts/format-postgres.md` has the tables.

// Rooms, each of which uses only the rooms before:
//
// - `database`: settings, connections, statements, schema and errors.
// - `tables`: verified reads, summaries and leases.
// - `queue`: submitted runs, claims, hints, and the worker that holds the leases of the process.
// - `write`: new runs, appends, pruning and removal.
// - `store`: the operations of the trait, each in a separate task.
//
// `waypost-codec` has the compact stored form of records. The crate knows SQL, makes no decisions about runs, and never
// reads a state.

mod database;
mod queue;
mod runtime;
mod store;
mod tables;
mod write;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use database::settings::PostgresOptions;
pub use queue::statistics::{Connections, HolderStatistics, Statistics, TableStatistics};
pub use store::PostgresStore;

/// The schema version of this crate.
pub const SCHEMA_VERSION: u32 = database::schema::VERSION;

/// Locks a mutex, even after a panic: the guarded data is consistent between statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
