//! The Waypost store in a PostgreSQL database.
//!
//! [`PostgresStore`] keeps all runs in the schema `waypost` of a database. A process holds a run by a lease, which
//! is a row with a token, a holder and an end; every write locks the row and compares the token.
//!
//! Rooms, each of which uses only the rooms before it:
//!
//! - `database`: settings, connections, statements, schema and errors.
//! - `tables`: verified reads, summaries and leases.
//! - `write`: new runs, appends, pruning and removal.
//! - `store`: the operations of the trait, each in a task that the caller cannot cut short.
//!
//! The compact stored form of records is that of `waypost-codec`. The crate knows SQL. It makes no decisions about
//! runs and never reads a state.

mod database;
mod store;
mod tables;
mod write;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use database::settings::PostgresOptions;
pub use store::PostgresStore;

/// The schema version that this crate reads and writes.
pub const SCHEMA_VERSION: u32 = database::schema::VERSION;

/// Locks a mutex, even after a panic: the guarded data is consistent between statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
