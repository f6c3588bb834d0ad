//! Processes that work for a run without its lease, known by a kernel lock beside that of the run: one that stays for a run
//! that waits, and the commands of a script. `stop`, `cancel` and `delete` ask for them.

use std::fs;
use std::path::PathBuf;

use waypost::lock::{Holder, RunLock};
use waypost::record::RunStatus;
use waypost::store::{RunSummary, Store};
use waypost::{RunId, StepId};

use crate::format::time::now;

/// The workflow name of the runs of scripts.
pub(crate) const SCRIPT_WORKFLOW: &str = "script";

/// The end of the name of the folder with the locks of the keys of a script.
const KEYS: &str = ".once";

/// Says to others that this process stays for a run, until it is dropped.
#[derive(Debug)]
pub(crate) struct Keepalive(Option<RunLock>);

impl Keepalive {
    /// Begins to stay. Where that cannot be said, or another process says it already, nothing is said.
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
            // The file alone says nothing.
            let _ = lock.remove_file();
        }
    }
}

/// Returns the process that stays for a run, or that does a command of a script.
pub(crate) fn keepalive_holder(store: &dyn Store, run: &RunId) -> Option<Holder> {
    let probe = |path: PathBuf| RunLock::probe(&path).ok().flatten();
    lock_of(store, run).and_then(probe).or_else(|| {
        let locks = fs::read_dir(locks(store, run)?.join(format!("{run}{KEYS}"))).ok()?;
        locks.flatten().find_map(|lock| probe(lock.path()))
    })
}

/// Makes the summary of a run of a script say that a command of it is under way.
pub(crate) fn report_commands(store: &dyn Store, summary: &mut RunSummary) {
    if summary.workflow == SCRIPT_WORKFLOW && summary.holder.is_none() && summary.status.is_resumable() {
        summary.holder = keepalive_holder(store, &summary.run);
        if summary.holder.is_some() {
            summary.status = RunStatus::Running;
        }
    }
}

/// Returns the lock of a key of a script; none of a store without a folder.
pub(crate) fn lock_of_key(store: &dyn Store, run: &RunId, key: &StepId) -> Option<PathBuf> {
    Some(locks(store, run)?.join(format!("{run}{KEYS}")).join(format!("{key}.lock")))
}

/// Its lock, beside that of the run (`docs/concepts/format-sqlite.md`).
fn lock_of(store: &dyn Store, run: &RunId) -> Option<PathBuf> {
    Some(locks(store, run)?.join(format!("{run}.waits")))
}

fn locks(store: &dyn Store, run: &RunId) -> Option<PathBuf> {
    Some(store.folder(run)?.parent()?.parent()?.join("locks"))
}
