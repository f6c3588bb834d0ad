//! Processes of a run that survived the loss of engine, supervisor and reapers at once.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::io;

use waypost::store::Store;
use waypost::{Digest, RunId};

use super::MARK;
use crate::supervisor::{LeftoversError, kill_leftovers};

/// Returns the mark in the environment of every process of a run.
///
/// The mark is made of the store's real path: a store has different names in different folders. A store without a
/// folder has one name.
pub(super) fn mark_of(store: &dyn Store, run: &RunId) -> String {
    let home = store.home().map(|home| home.canonicalize().unwrap_or_else(|_| home.to_owned()));
    let place = home.map_or_else(|| store.to_string().into(), std::path::PathBuf::into_os_string);
    let parts = [place.as_encoded_bytes(), run.as_str().as_bytes()];
    Digest::of_parts(parts).to_string()[..32].to_owned()
}

/// Returns the mark of the processes that a worker starts for the session of a run. A takeover of the run ends the
/// processes of the former session, and adopts these.
pub(super) fn task_mark_of(store: &dyn Store, run: &RunId) -> String {
    Digest::of_parts([mark_of(store, run).as_bytes(), b"task"]).to_string()[..32].to_owned()
}

/// The variables that mark the processes of a session.
#[derive(Debug, Clone)]
pub(super) struct ProcessMark {
    /// The mark of the run.
    pub(super) run: String,
    /// Unique among the sessions on this machine: a session that lost its lease must not end the processes of the next.
    pub(super) session: String,
}

impl ProcessMark {
    /// Makes the mark of a new session.
    pub(super) fn new(run: String) -> Self {
        let random = RandomState::new().hash_one(0);
        Self { run, session: format!("{}-{random:x}", std::process::id()) }
    }
}

/// Returns whether runs of a store outlive the process, and with them processes of their steps. The name of a store
/// begins with its kind.
pub(super) fn outlives_process(store: &dyn Store) -> bool {
    store.to_string() != "memory:"
}

/// Returns name and value of the variable that marks the processes of a run.
///
/// For callers that start processes of the run without a workflow: [`kill_processes_of`] finds marked
/// processes.
pub fn run_mark(store: &dyn Store, run: &RunId) -> (&'static str, String) {
    (MARK, mark_of(store, run))
}

/// Returns the living processes that steps of these runs have started, supervised or not.
///
/// Reads every process of this machine once, however many runs are given. Processes of other users are not
/// visible. A store in memory has no processes of before. Empty on systems other than Linux.
///
/// # Errors
/// The processes of this machine cannot be listed.
pub fn processes_of(store: &dyn Store, runs: &[RunId]) -> io::Result<BTreeMap<RunId, Vec<u32>>> {
    let mut found: BTreeMap<RunId, Vec<u32>> = BTreeMap::new();
    if !outlives_process(store) || !cfg!(target_os = "linux") {
        return Ok(found);
    }
    let mut marks: HashMap<Vec<u8>, &RunId> = HashMap::with_capacity(runs.len());
    for run in runs {
        marks.insert(format!("{MARK}={}", mark_of(store, run)).into_bytes(), run);
    }
    for process in std::fs::read_dir("/proc")? {
        let process = process?;
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // The process may have ended, or may belong to another user.
        let Ok(environment) = std::fs::read(process.path().join("environ")) else { continue };
        let run = environment.split(|byte| *byte == 0).find_map(|entry| marks.get(entry));
        if let Some(run) = run {
            found.entry((*run).clone()).or_default().push(pid);
        }
    }
    found.values_mut().for_each(|pids| pids.sort_unstable());
    Ok(found)
}

/// Kills the processes left by steps of a run, and returns how many were found. For the holder of the run's
/// lease, when no supervisor is running.
///
/// # Errors
/// As [`kill_leftovers`].
pub fn kill_processes_of(store: &dyn Store, run: &RunId) -> Result<usize, LeftoversError> {
    match outlives_process(store) {
        false => Ok(0),
        true => kill_leftovers(&[(MARK, &mark_of(store, run))]),
    }
}
