//! The limits of the system on descriptors and processes, and how many steps fit.

use std::fs;
use std::num::NonZeroUsize;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of a step in flight: output, log and scratch file in this process, a socket in the supervisor.
const DESCRIPTORS_PER_STEP: u64 = 4;
/// Descriptors left for the store, evidence and files shared by steps.
const DESCRIPTORS_SPARE: u64 = 40;
/// Processes of a step in flight: the reaper, a shell and a command.
const PROCESSES_PER_STEP: u64 = 3;
/// Processes left for the supervisor, threads and evidence.
const PROCESSES_SPARE: u64 = 8;

/// Raises the soft limit of descriptors to the hard one; returns the soft limit before, for the steps.
pub(crate) fn raise_descriptors() -> Option<u64> {
    let before = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    raised.ok().and(before.current)
}

/// Returns how many steps may be in flight: as many as were asked for, and as descriptors and processes are left for.
pub(crate) fn parallel_max(asked: Option<NonZeroUsize>) -> Option<NonZeroUsize> {
    let descriptors = getrlimit(Resource::Nofile).current.map(|limit| {
        let used = fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64);
        limit.saturating_sub(used + DESCRIPTORS_SPARE) / DESCRIPTORS_PER_STEP
    });
    // The system does not limit root.
    let limited = getrlimit(Resource::Nproc).current.filter(|_| !rustix::process::geteuid().is_root());
    let processes =
        limited.map(|limit| limit.saturating_sub(processes_of_user() + PROCESSES_SPARE) / PROCESSES_PER_STEP);
    let fit = descriptors.into_iter().chain(processes).min();
    let fit = fit.map(|fit| NonZeroUsize::new(fit as usize).unwrap_or(NonZeroUsize::MIN));
    asked.into_iter().chain(fit).min()
}

/// Counts the threads of all processes of this user, as the limit does.
fn processes_of_user() -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let own = rustix::process::getuid().as_raw();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = processes.filter(|entry| {
        let is_process = entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        is_process && entry.metadata().is_ok_and(|found| found.uid() == own)
    });
    let threads =
        |entry: fs::DirEntry| fs::read_dir(entry.path().join("task")).map_or(1, |tasks| tasks.count() as u64);
    ours.map(threads).sum()
}
