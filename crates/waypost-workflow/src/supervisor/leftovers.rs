//! The processes of a run whose engine, supervisor and reapers were all killed in one moment.
//!
//! They are known by their environment: every step is given variables that name its run and store, and what it starts
//! inherits them. A process that was started with another environment is found only as a descendant of one that was
//! not. This is the net below the supervisor, not a way to end steps.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::tree;

/// How long killed processes may stay the same before they count as stuck in the kernel, which a person must know.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Why leftovers could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum LeftoversError {
    /// Some do not die. Do not start the run's steps again while they live.
    #[error("processes {pids:?} of the run were killed but do not end")]
    Stuck {
        /// Their numbers.
        pids: Vec<u32>,
    },
    /// The list of processes cannot be read.
    #[error("cannot list the processes of this machine")]
    List(#[source] io::Error),
}

/// Finds the living processes whose environment has every one of the `markers`, and all that is below them.
///
/// Leaves out this process and its ancestors. Processes of other users are not seen. Without a marker it finds nothing.
///
/// # Errors
/// `/proc` cannot be read.
pub fn leftovers(markers: &[(&str, &str)]) -> io::Result<Vec<u32>> {
    Ok(numbers(find(&wanted(markers))?))
}

/// Kills what [`leftovers`] finds until it finds nothing; returns how many there were.
///
/// Call it as the holder of the run's lock, before the first step is started.
///
/// # Errors
/// - [`LeftoversError::Stuck`]: some are still there 10 s after they were killed.
/// - [`LeftoversError::List`]: `/proc` cannot be read; some may be left.
pub fn kill_leftovers(markers: &[(&str, &str)]) -> Result<usize, LeftoversError> {
    let wanted = wanted(markers);
    let mut rounds = tree::Rounds::new();
    let mut killed = HashSet::new();
    let mut last = (HashSet::new(), Instant::now());
    loop {
        let found = find(&wanted).map_err(LeftoversError::List)?;
        if found.is_empty() {
            return Ok(killed.len());
        }
        if found != last.0 {
            last = (found.clone(), Instant::now());
        } else if last.1.elapsed() > STUCK_AFTER {
            return Err(LeftoversError::Stuck { pids: numbers(found) });
        }
        for pid in found {
            killed.insert(pid);
            // Not there any more, or not ours to kill: the next round sees.
            let _ = kill(pid);
        }
        std::thread::sleep(rounds.pause());
    }
}

/// Kills exactly the process that has the number now.
fn kill(pid: Pid) -> rustix::io::Result<()> {
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    rustix::process::pidfd_send_signal(process, Signal::KILL)
}

fn numbers(pids: HashSet<Pid>) -> Vec<u32> {
    let mut numbers: Vec<u32> =
        pids.into_iter().map(|pid| pid.as_raw_nonzero().get().cast_unsigned()).collect();
    numbers.sort_unstable();
    numbers
}

fn wanted(markers: &[(&str, &str)]) -> Vec<Vec<u8>> {
    markers.iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect()
}

fn find(wanted: &[Vec<u8>]) -> io::Result<HashSet<Pid>> {
    if wanted.is_empty() {
        return Ok(HashSet::new());
    }
    let mut spared = tree::ancestors();
    spared.insert(rustix::process::getpid());
    let mut found = HashSet::new();
    for pid in tree::pids()? {
        let pid = pid?;
        if !spared.contains(&pid) && has_all(pid, wanted) {
            found.insert(pid);
        }
    }
    let below = tree::descendants(&found)?;
    found.extend(below.into_iter().filter(|pid| !spared.contains(pid)));
    Ok(found)
}

/// Says whether the environment that a process was started with has all the entries. A zombie has none.
fn has_all(pid: Pid, wanted: &[Vec<u8>]) -> bool {
    let Ok(environment) = std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())) else {
        return false;
    };
    wanted.iter().all(|entry| environment.split(|byte| *byte == 0).any(|found| found == entry))
}
