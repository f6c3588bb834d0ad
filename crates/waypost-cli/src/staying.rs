//! Processes that stay for a run that waits: nobody has its lease, and one of them goes on with it once what it waits for
//! has come. Who stops, cancels or deletes the run learns of such a process by a lock beside that of the run, which the
//! system takes away when the process ends, however it does.

use std::path::PathBuf;

use waypost::RunId;
use waypost::lock::{Holder, RunLock};
use waypost::store::Store;

use crate::commands::now;

/// Says to others that this process stays for a run, until it is dropped.
#[derive(Debug)]
pub(crate) struct Staying(Option<RunLock>);

impl Staying {
    /// Begins to stay. Where that cannot be said, or another process says it already, nothing is said.
    pub(crate) fn begin(store: &dyn Store, run: &RunId) -> Self {
        let lock = || {
            let (path, holder) = (lock_of(store, run)?, Holder::here(now()).ok()?);
            RunLock::take(&path, &holder, true).ok()
        };
        Self(lock())
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        if let Some(lock) = self.0.take() {
            // The file alone says nothing.
            let _ = lock.remove_file();
        }
    }
}

/// Returns the process that stays for a run.
pub(crate) fn who_stays(store: &dyn Store, run: &RunId) -> Option<Holder> {
    RunLock::probe(&lock_of(store, run)?).ok().flatten()
}

/// Its lock, beside that of the run (`docs/format-sqlite.md`).
fn lock_of(store: &dyn Store, run: &RunId) -> Option<PathBuf> {
    let folder = store.folder(run)?;
    Some(folder.parent()?.parent()?.join("locks").join(format!("{run}.waits")))
}
