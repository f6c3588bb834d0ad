//! Processes that work for a run without its lease: the process that waits for a waiting run, and the commands of a script.
//! Each process holds a separate kernel lock beside the lock of the run. `stop`, `cancel` and `delete` check these locks.

use std::fs;
use std::path::PathBuf;

use waypost::lock::{Holder, RunLock};
use waypost::record::RunStatus;
use waypost::store::{RunSummary, Store};
use waypost::{RunId, StepId};

use crate::format::time::now;

/// The workflow name of the runs of scripts.
pub(crate) const SCRIPT_WORKFLOW: &str = "script";

/// The suffix of the folder with the locks of a script's keys.
const KEYS: &str = ".once";

/// The lock of a process that waits for a run; released on drop. `None`: this process has no such lock.
#[derive(Debug)]
pub(crate) struct Keepalive(Option<RunLock>);

impl Keepalive {
    /// Takes the lock, if the store has a folder and no other process holds the lock.
    pub(crate) fn begin(store: &dyn Store, run: &RunId) -> Self {
        let lock = || {
            let (path, holder) = (lock_of(store, run)?, Holder::here(now()).ok()?);
            RunLock::take(&path, &holder, true).ok()
        };
        Self(lock())
    }
}

impl Drop for Keepalive {
    fn drop(&mut self) {
        if let Some(lock) = self.0.take() {
            // A remaining file is harmless: only the lock on it counts.
            let _ = lock.remove_file();
        }
    }
}

/// Returns the process that waits for a run, or that runs a command of a script.
pub(crate) fn keepalive_holder(store: &dyn Store, run: &RunId) -> Option<Holder> {
    let probe = |path: PathBuf| RunLock::probe(&path).ok().flatten();
    lock_of(store, run).and_then(probe).or_else(|| {
        let locks = fs::read_dir(locks(store, run)?.join(format!("{run}{KEYS}"))).ok()?;
        locks.flatten().find_map(|lock| probe(lock.path()))
    })
}

/// Sets the holder and the status in the summary of a script's run, if one of its commands is running.
pub(crate) fn report_commands(store: &dyn Store, summary: &mut RunSummary) {
    if summary.workflow == SCRIPT_WORKFLOW && summary.holder.is_none() && summary.status.is_resumable() {
        summary.holder = keepalive_holder(store, &summary.run);
        if summary.holder.is_some() {
            summary.status = RunStatus::Running;
        }
    }
}

/// Returns the path of the lock of a script's key; `None` for a store without a folder.
pub(crate) fn lock_of_key(store: &dyn Store, run: &RunId, key: &StepId) -> Option<PathBuf> {
    Some(locks(store, run)?.join(format!("{run}{KEYS}")).join(format!("{key}.lock")))
}

/// Returns the path of the lock of the waiting process (`docs/concepts/format-sqlite.md`).
fn lock_of(store: &dyn Store, run: &RunId) -> Option<PathBuf> {
    Some(locks(store, run)?.join(format!("{run}.waits")))
}

fn locks(store: &dyn Store, run: &RunId) -> Option<PathBuf> {
    Some(store.folder(run)?.parent()?.parent()?.join("locks"))
}
