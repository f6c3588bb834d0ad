//! Processes of a run that survived the kill of engine, supervisor and reapers at once.
//!
//! The marker is the environment: every step gets variables with its run and store, and child processes
//! inherit these. A process with a replaced environment is found only as a descendant of a marked process.
//! This is a safety net below the supervisor, not a way to end steps.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::{LeftoversError, tree};

/// Time without change until killed processes count as stuck in the kernel; a person must act then.
const STUCK_AFTER: Duration = Duration::from_secs(10);
/// Longest wait for a process in exec, before the process counts as without an environment; and the polling
/// interval.
const LOADING_MAX: Duration = Duration::from_secs(1);
const LOADING_PAUSE: Duration = Duration::from_millis(1);

/// Returns the living processes with all `markers` in the environment, and all descendants.
///
/// Leaves out this process and its ancestors. Processes of other users are not visible. Without a marker the
/// result is empty.
///
/// # Errors
/// `/proc` cannot be read.
pub fn leftovers(markers: &[(&str, &str)]) -> io::Result<Vec<u32>> {
    Ok(numbers(find(&wanted(markers))?))
}

/// Kills the result of [`leftovers`] until it is empty; returns the number of killed processes.
///
/// Call as the holder of the run's lock, before the first step starts.
///
/// # Errors
/// - [`LeftoversError::Stuck`]: some processes are still alive 10 s after the kill.
/// - [`LeftoversError::List`]: `/proc` cannot be read; some processes may be left.
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
            // Already gone, or not permitted: the next round finds out.
            let _ = kill(pid);
        }
        std::thread::sleep(rounds.pause());
    }
}

/// Kills the process with this id, safe against reuse of the id.
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
        if !spared.contains(&pid) && settled_has_all(pid, wanted) {
            found.insert(pid);
        }
    }
    let below = tree::descendants(&found)?;
    found.extend(below.into_iter().filter(|pid| !spared.contains(pid)));
    Ok(found)
}

/// Returns whether the initial environment of a process has all the entries. A zombie has no environment.
///
/// During exec a process has no environment until the kernel has loaded the program. Reads are repeated until
/// the process has an environment, or certainly has none.
fn settled_has_all(pid: Pid, wanted: &[Vec<u8>]) -> bool {
    let begun = Instant::now();
    loop {
        let before = environment_of(pid);
        let environment = match std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())) {
            // Process of another user; the address of its environment is hidden too.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return false,
            environment => environment.unwrap_or_default(),
        };
        // Each program has its environment at another address.
        let is_settled = match (before, environment_of(pid)) {
            (Environment::At(before), Environment::At(after)) => before == after,
            (Environment::Coming, _) | (_, Environment::Coming) => false,
            _ => true,
        };
        let has = |entry: &Vec<u8>| environment.split(|byte| *byte == 0).any(|found| found == entry);
        let has_all = wanted.iter().all(has);
        // A read during a change may be partial: found entries are certain, missing entries are not.
        if has_all || is_settled || begun.elapsed() > LOADING_MAX {
            return has_all;
        }
        std::thread::sleep(LOADING_PAUSE);
    }
}

/// Environment of a process.
enum Environment {
    /// Ends at this address; may be empty.
    At(u64),
    /// Not yet placed by the kernel.
    Coming,
    /// Never present: a kernel thread, a zombie, or no process.
    Never,
}

fn environment_of(pid: Pid) -> Environment {
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    // Fields after the name, which may contain any characters (proc(5)): state 0, flags 6, env_end 48, set
    // last.
    let fields: Vec<&str> =
        stat.rsplit_once(") ").map_or_else(Vec::new, |(_, rest)| rest.split_whitespace().collect());
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    match (fields.first(), number(6), number(48)) {
        (Some(&("Z" | "X" | "x")), ..) | (_, None, _) | (_, _, None) => Environment::Never,
        (_, Some(flags), _) if flags & KERNEL_THREAD != 0 => Environment::Never,
        (_, _, Some(0)) => Environment::Coming,
        (_, _, Some(end)) => Environment::At(end),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use rustix::process::Pid;

    use super::{LOADING_MAX, settled_has_all};

    fn pid_of(child: &std::process::Child) -> Pid {
        Pid::from_child(child)
    }

    #[test]
    fn who_has_no_environment_is_not_waited_for() {
        let mut bare = Command::new("/bin/sleep").arg("60").env_clear().stdin(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        assert!(!settled_has_all(pid_of(&bare), &[b"A=b".to_vec()]));
        assert!(!settled_has_all(rustix::process::getpid(), &[b"A=b".to_vec()]));
        bare.kill().unwrap();
        assert!(!settled_has_all(pid_of(&bare), &[b"A=b".to_vec()]), "nor who is dead");
        assert!(begun.elapsed() < LOADING_MAX);
        bare.wait().unwrap();
    }

    #[test]
    fn a_process_that_execs_repeatedly_is_found_at_any_moment() {
        // What happened: rarely, a process of a step survived the kill of its supervisor. Why: during exec
        // the process had no environment, and therefore no mark. What stops it now: a process in exec is read
        // again.
        let script = r#"[ "$1" -gt 0 ] || exit 0; exec sh -c "$0" "$0" $(($1 - 1))"#;
        let mut child = Command::new("sh")
            .args(["-c", script, script, "400"])
            .env("MARKED_BY", "this test")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let (pid, is_over) = (pid_of(&child), AtomicBool::new(false));
        let wanted = [b"MARKED_BY=this test".to_vec()];
        let (mut seen, mut missed) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                child.wait().unwrap();
                is_over.store(true, Ordering::SeqCst);
            });
            while !is_over.load(Ordering::SeqCst) {
                let found = settled_has_all(pid, &wanted);
                seen += usize::from(found);
                let lives = std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
                missed += usize::from(!found && lives.is_ok_and(|environment| !environment.is_empty()));
            }
        });
        assert!(seen > 10, "it was looked at {seen} times");
        assert_eq!(missed, 0, "of {seen}");
    }
}
