//! What a run left running whose engine, supervisor and reapers were all killed in one moment.

use std::collections::{BTreeMap, HashMap};
use std::io;

use waypost::store::Store;
use waypost::{Digest, RunId};

use super::MARK;
use crate::supervisor::{LeftoversError, kill_leftovers};

/// Returns the mark that every process of a run has in its environment.
///
/// It is made of the store's real path: the same store is named differently from different folders.
pub(super) fn mark_of(store: &dyn Store, run: &RunId) -> String {
    let home = store.home().map(|home| home.canonicalize().unwrap_or_else(|_| home.to_owned()));
    let place = home.as_ref().map(|home| home.as_os_str().as_encoded_bytes()).unwrap_or_default();
    let parts = [place, run.as_str().as_bytes()];
    Digest::of_parts(parts).to_string()[..32].to_owned()
}

/// Returns the variable, with its value, that marks a process as one of a run, for who starts processes of it by other
/// means than a workflow: [`kill_processes_of`] finds them by it.
pub fn run_mark(store: &dyn Store, run: &RunId) -> (&'static str, String) {
    (MARK, mark_of(store, run))
}

/// Finds the processes that steps of these runs have started and that are still there, whoever watches over them.
///
/// Every process of this machine is looked at once, however many runs are asked for. Processes of other users are not
/// seen, nor those of a store that dies with its process. Where the system does not tell, there are none.
///
/// # Errors
/// The processes of this machine cannot be listed.
pub fn processes_of(store: &dyn Store, runs: &[RunId]) -> io::Result<BTreeMap<RunId, Vec<u32>>> {
    let mut found: BTreeMap<RunId, Vec<u32>> = BTreeMap::new();
    if store.home().is_none() || !cfg!(target_os = "linux") {
        return Ok(found);
    }
    let mut marks: HashMap<Vec<u8>, &RunId> = HashMap::with_capacity(runs.len());
    for run in runs {
        marks.insert(format!("{MARK}={}", mark_of(store, run)).into_bytes(), run);
    }
    for process in std::fs::read_dir("/proc")? {
        let process = process?;
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may end at any moment, or be somebody else's.
        let Ok(environment) = std::fs::read(process.path().join("environ")) else { continue };
        let run = environment.split(|byte| *byte == 0).find_map(|entry| marks.get(entry));
        if let Some(run) = run {
            found.entry((*run).clone()).or_default().push(pid);
        }
    }
    found.values_mut().for_each(|pids| pids.sort_unstable());
    Ok(found)
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
