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
/// How long a process may take to become another program before it counts as one without an environment, and how often is
/// looked meanwhile.
const LOADING_MAX: Duration = Duration::from_secs(1);
const LOADING_PAUSE: Duration = Duration::from_millis(1);

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
        if !spared.contains(&pid) && settled_has_all(pid, wanted) {
            found.insert(pid);
        }
    }
    let below = tree::descendants(&found)?;
    found.extend(below.into_iter().filter(|pid| !spared.contains(pid)));
    Ok(found)
}

/// Says whether the environment that a process was started with has all the entries. A zombie has none.
///
/// One that is just becoming another program has none either, for as long as the kernel takes to load that: it is looked
/// at until it has one, or surely has none.
fn settled_has_all(pid: Pid, wanted: &[Vec<u8>]) -> bool {
    let begun = Instant::now();
    loop {
        let before = environment_of(pid);
        let environment = match std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())) {
            // Of somebody else; where its environment stands is not told either.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return false,
            environment => environment.unwrap_or_default(),
        };
        // It stands elsewhere in each program.
        let is_settled = match (before, environment_of(pid)) {
            (Environment::At(before), Environment::At(after)) => before == after,
            (Environment::Coming, _) | (_, Environment::Coming) => false,
            _ => true,
        };
        let has = |entry: &Vec<u8>| environment.split(|byte| *byte == 0).any(|found| found == entry);
        let has_all = wanted.iter().all(has);
        // Torn where it changed meanwhile: what it has, it has, and only what it lacks is not sure.
        if has_all || is_settled || begun.elapsed() > LOADING_MAX {
            return has_all;
        }
        std::thread::sleep(LOADING_PAUSE);
    }
}

/// The environment of a process.
enum Environment {
    /// It ends at this address; it may be empty.
    At(u64),
    /// The kernel has not yet put it anywhere.
    Coming,
    /// There is none, nor will be: a thread of the kernel, a zombie, nobody.
    Never,
}

fn environment_of(pid: Pid) -> Environment {
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    // Counted from behind the name, which may hold anything (proc(5)): state 0, flags 6, env_end 48, which is set last.
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
    fn who_becomes_one_program_after_the_other_is_found_at_any_moment() {
        // What happened: of a supervisor that was killed, a process of its step lived on, rarely.
        // Why: looked at while it became another program it had no environment, and so no mark.
        // What stops it now: who is in the middle of that is looked at again.
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
