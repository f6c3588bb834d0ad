//! What a run left running whose engine, supervisor and reapers were all killed in one moment.

use std::io;

use waypost::store::Store;
use waypost::{Digest, RunId};

use super::MARK;
use crate::supervisor::{LeftoversError, kill_leftovers, leftovers};

/// Returns the mark that every process of a run has in its environment.
///
/// It is made of the store's real path: the same store is named differently from different folders.
pub(super) fn mark_of(store: &dyn Store, run: &RunId) -> String {
    let home = store.home().map(|home| home.canonicalize().unwrap_or_else(|_| home.to_owned()));
    let place = home.as_ref().map(|home| home.as_os_str().as_encoded_bytes()).unwrap_or_default();
    let parts = [place, run.as_str().as_bytes()];
    Digest::of_parts(parts).to_string()[..32].to_owned()
}

/// Finds the processes that steps of a run have started and that are still there, whoever watches over them.
///
/// # Errors
/// The processes of this machine cannot be listed.
pub fn processes_of(store: &dyn Store, run: &RunId) -> io::Result<Vec<u32>> {
    match store.home() {
        // A store without a home dies with its process.
        None => Ok(Vec::new()),
        Some(_) => leftovers(&[(MARK, &mark_of(store, run))]),
    }
}

/// Kills the processes that steps of a run have left behind, and returns how many there were. For the holder of its
/// lease, beside whom no supervisor is at work.
///
/// # Errors
/// As [`kill_leftovers`].
pub fn kill_processes_of(store: &dyn Store, run: &RunId) -> Result<usize, LeftoversError> {
    match store.home() {
        None => Ok(0),
        Some(_) => kill_leftovers(&[(MARK, &mark_of(store, run))]),
    }
}
