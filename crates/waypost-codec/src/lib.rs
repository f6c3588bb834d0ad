//! The stored form of records in the database stores: headers by a dictionary, bodies as full frames or deltas.
//!
//! Bytes in, bytes out: the crate has no connection, no SQL and no path. `docs/concepts/format-sqlite.md` specifies
//! the bytes, which are the same in every database. `encode` makes the stored form, `row` and `decode` read it,
//! and `delta_cache` keeps the bases of deltas in memory.

pub mod compression;
pub mod decode;
mod delta;
pub mod delta_cache;
pub mod encode;
pub mod frame;
pub mod header;
pub mod row;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even after a panic: the guarded data is consistent between statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
