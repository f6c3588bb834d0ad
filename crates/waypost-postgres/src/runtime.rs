//! The runtime of the database work: a thread for all stores of the process.
//!
//! A connection is driven by the runtime that opened it. The runtime of a caller may end before the connection, pause
//! between two calls, or have neither network nor timers.

use std::future::pending;
use std::io;
use std::sync::Mutex;
use std::thread;

use tokio::runtime::{Builder, Handle};

use crate::lock;

/// Returns the runtime; starts its thread at the first call.
///
/// # Errors
/// The system refuses a thread or a descriptor. The next call tries again.
pub(crate) fn handle() -> io::Result<Handle> {
    static HANDLE: Mutex<Option<Handle>> = Mutex::new(None);
    let mut handle = lock(&HANDLE);
    if let Some(handle) = &*handle {
        return Ok(handle.clone());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let started = runtime.handle().clone();
    let drive = move || runtime.block_on(pending::<()>());
    thread::Builder::new().name("waypost-database".to_owned()).spawn(drive)?;
    *handle = Some(started.clone());
    Ok(started)
}
