//! Processes below this process: finds, signals and kills all of them.
//!
//! The caller must be a child sub-reaper. Double-forked descendants and new sessions are then adopted by the
//! caller when the parent dies, and stay findable.
//!
//! A scan of `/proc` is never exact, as processes fork and are re-parented during the scan. Killing repeats
//! rounds of scan, kill and reap until the kernel reports `ECHILD`: no child left. That report cannot race.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

/// Pause after the first round of killing: a killed process is usually gone by then (0.3 ms was measured).
const ROUND_PAUSE_MIN: Duration = Duration::from_micros(300);

/// Longest pause, for processes held by a device or a debugger: waiting helps, scanning does not.
const ROUND_PAUSE_MAX: Duration = Duration::from_millis(20);

/// Fields of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy)]
struct Entry {
    pid: Pid,
    parent: i32,
    group: i32,
}

/// Result of reaping one child.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reaped {
    /// A process ended: a child, or an adopted process.
    Process(Pid, WaitStatus),
    /// There are children, and all of them live.
    NoneEnded,
    /// There is no child.
    NoChildren,
}

/// Reaps one child without waiting.
pub(super) fn reap() -> Reaped {
    match rustix::io::retry_on_intr(|| rustix::process::wait(WaitOptions::NOHANG)) {
        Ok(Some((pid, status))) => Reaped::Process(pid, status),
        Ok(None) => Reaped::NoneEnded,
        // `ECHILD` is the only error of waiting for any child with these options.
        Err(_) => Reaped::NoChildren,
    }
}

/// Reaps one child with an exit signal other than SIGCHLD, without waiting; `None` if none ended.
///
/// [`reap`] does not see such children, as long as the parent is the process that cloned them (`__WCLONE`,
/// wait(2)).
pub(super) fn reap_cloned() -> Option<Pid> {
    #[expect(unsafe_code, reason = "rustix cannot wait for these children")]
    // SAFETY: a plain system call that writes no status.
    let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WCLONE) };
    Pid::from_raw(pid.max(0))
}

/// Sends `signal` to all processes below this process, except the children in `spared` and their descendants.
/// Returns the number of processes seen.
///
/// A process group is signalled as a group, which the kernel does at once for all members. So a group that
/// forks faster than a scan is hit completely.
pub(super) fn signal_below(spared: &HashSet<Pid>, signal: Signal) -> io::Result<usize> {
    let own = rustix::process::getpid();
    let mut senders = Senders { own_group: rustix::process::getpgrp(), groups: HashSet::new(), signal };
    let mut children: HashMap<i32, Vec<Entry>> = HashMap::new();
    for pid in pids()? {
        // The process ended during the scan.
        let Some(entry) = read_entry(pid?) else { continue };
        // At once, not after the scan. A chain of processes that each start the next and exit is adopted
        // here. The newest has the highest id, and the scan reads it last. By the end of the scan the chain
        // would have moved on.
        if signal == Signal::KILL
            && entry.parent == own.as_raw_nonzero().get()
            && !spared.contains(&entry.pid)
        {
            senders.send(entry);
        }
        children.entry(entry.parent).or_default().push(entry);
    }
    let below = below(vec![own], children, spared);
    below.iter().for_each(|entry| senders.send(*entry));
    Ok(below.len())
}

/// Sends one signal to each group, and to each process in the caller's own group.
struct Senders {
    own_group: Pid,
    groups: HashSet<Pid>,
    signal: Signal,
}

impl Senders {
    fn send(&mut self, entry: Entry) {
        // A process that is gone needs no signal. A process that may not be signalled (another user's, by
        // setuid) is found again in the next round.
        match Pid::from_raw(entry.group) {
            Some(group) if group != self.own_group => {
                if self.groups.insert(group) {
                    let _ = rustix::process::kill_process_group(group, self.signal);
                }
            }
            _ => {
                let _ = rustix::process::kill_process(entry.pid, self.signal);
            }
        }
    }
}

/// Pauses between the rounds of killing a tree.
#[derive(Debug)]
pub(super) struct Rounds(Duration);

impl Rounds {
    pub(super) fn new() -> Self {
        Self(ROUND_PAUSE_MIN)
    }

    /// Returns the pause until the next round, longer each time.
    pub(super) fn pause(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (self.0 * 2).min(ROUND_PAUSE_MAX);
        pause
    }
}

/// Kills and reaps all processes below this process; returns when there is no child left.
///
/// Calls `ended` for each reaped process. Waits as long as the kernel needs: a process in an uninterruptible
/// system call dies only when the call returns.
pub(super) fn kill_all(mut ended: impl FnMut(Pid, WaitStatus)) {
    let mut rounds = Rounds::new();
    loop {
        // An unreadable `/proc` is a temporary lack of descriptors or memory; the next round tries again.
        let _ = signal_below(&HashSet::new(), Signal::KILL);
        std::thread::sleep(rounds.pause());
        loop {
            match reap() {
                Reaped::Process(pid, status) => ended(pid, status),
                Reaped::NoneEnded => break,
                Reaped::NoChildren => return,
            }
        }
    }
}

/// Returns the processes below any of `roots`.
pub(super) fn descendants(roots: &HashSet<Pid>) -> io::Result<Vec<Pid>> {
    if roots.is_empty() {
        return Ok(Vec::new());
    }
    let mut children: HashMap<i32, Vec<Entry>> = HashMap::new();
    for pid in pids()? {
        if let Some(entry) = read_entry(pid?) {
            children.entry(entry.parent).or_default().push(entry);
        }
    }
    let roots = roots.iter().copied().collect();
    Ok(below(roots, children, &HashSet::new()).iter().map(|entry| entry.pid).collect())
}

/// Returns the entries below `parents`, without the `spared` processes and their descendants.
fn below(mut parents: Vec<Pid>, mut children: HashMap<i32, Vec<Entry>>, spared: &HashSet<Pid>) -> Vec<Entry> {
    let mut below = Vec::new();
    while let Some(parent) = parents.pop() {
        // Removed, not looked up: a parent is visited once, even if its id was reused during the scan.
        for entry in children.remove(&parent.as_raw_nonzero().get()).unwrap_or_default() {
            if !spared.contains(&entry.pid) {
                parents.push(entry.pid);
                below.push(entry);
            }
        }
    }
    below
}

/// Lists the processes of this machine, as far as `/proc` shows them, by ascending id.
pub(super) fn pids() -> io::Result<impl Iterator<Item = io::Result<Pid>>> {
    let entries = std::fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| match entry {
        Ok(entry) => entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw).map(Ok),
        Err(error) => Some(Err(error)),
    }))
}

/// Reads a process's parent and group; `None` if the process does not exist.
///
/// Zombies count. A zombie may be the first thread of a process with living threads. A kill of a real zombie
/// has no effect.
fn read_entry(pid: Pid) -> Option<Entry> {
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name, in parentheses, may contain any characters, parentheses too (proc(5)).
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Entry { pid, parent, group })
}

/// Returns the ancestors of this process, as far as `/proc` shows them.
pub(super) fn ancestors() -> HashSet<Pid> {
    let mut found = HashSet::new();
    let mut next = rustix::process::getppid();
    while let Some(pid) = next {
        if !found.insert(pid) {
            break;
        }
        next = read_entry(pid).and_then(|entry| Pid::from_raw(entry.parent));
    }
    found
}
