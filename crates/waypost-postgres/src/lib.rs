//! The Waypost store in a PostgreSQL database.
//!
//! [`PostgresStore`] keeps all runs in the schema `waypost` of a database. A process holds a run by a lease: a
//! row with a token and a holder, which ends with the row of the process. Every write locks the row and compares the token.
//!
//! Rooms, each of which uses only the rooms before:
//!
//! - `database`: settings, connections, statements, schema and errors.
//! - `tables`: verified reads, summaries and leases.
//! - `queue`: submitted runs, claims, hints, and the worker that holds the leases of the process.
//! - `write`: new runs, appends, pruning and removal.
//! - `store`: the operations of the trait, each in a separate task.
//!
//! `waypost-codec` has the compact stored form of records. The crate knows SQL, makes no decisions about runs, and never
//! reads a state.

mod database;
mod queue;
mod store;
mod tables;
mod write;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use database::settings::PostgresOptions;
pub use store::PostgresStore;

/// The schema version of this crate.
pub const SCHEMA_VERSION: u32 = database::schema::VERSION;

/// Locks a mutex, even after a panic: the guarded data is consistent between statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
