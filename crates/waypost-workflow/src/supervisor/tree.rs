//! Everything alive below a process: finding it, signalling it, and killing it to the last.
//!
//! The caller must be a child sub-reaper: then whatever its descendants start, double-forked or with a session of
//! its own, is adopted by the caller when its parent dies, and so stays findable. A scan of `/proc` is never exact,
//! as processes fork and are re-parented during it. So nothing is proven by a scan: killing goes on in rounds of
//! scan, kill and reap until the kernel says that the caller has no child left (`ECHILD`), which cannot be raced.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

/// The pause after the first round of killing: a killed process is usually gone by then (0.3 ms was measured).
const ROUND_PAUSE_MIN: Duration = Duration::from_micros(300);

/// The longest pause, for processes that a device or a debugger holds: they need waiting, not scanning.
const ROUND_PAUSE_MAX: Duration = Duration::from_millis(20);

/// What `/proc/PID/stat` says of one process.
#[derive(Debug, Clone, Copy)]
struct Entry {
    pid: Pid,
    parent: i32,
    group: i32,
}

/// A child that ended, or the news that there is none at all.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reaped {
    /// A process ended: one that was started here, or one that was adopted.
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
        // `ECHILD` is the only error that waiting for any child with these options has.
        Err(_) => Reaped::NoChildren,
    }
}

/// Reaps one child that was cloned with another signal than SIGCHLD for its end, without waiting: `None` if none ended.
///
/// [`reap`] does not see such children at all, as long as their parent is the one that cloned them (`__WCLONE`, wait(2)).
pub(super) fn reap_cloned() -> Option<Pid> {
    #[expect(unsafe_code, reason = "rustix cannot wait for such children")]
    // SAFETY: a plain system call that writes no status.
    let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WCLONE) };
    Pid::from_raw(pid.max(0))
}

/// Sends `signal` to all that is below this process, except below (and to) the children in `spared`.
///
/// Groups are signalled as groups, which the kernel does at once for all members: so a group that forks faster than
/// it can be scanned is hit whole. Returns how many processes were seen.
pub(super) fn signal_below(spared: &HashSet<Pid>, signal: Signal) -> io::Result<usize> {
    let own = rustix::process::getpid();
    let mut senders = Senders { own_group: rustix::process::getpgrp(), groups: HashSet::new(), signal };
    let mut children: HashMap<i32, Vec<Entry>> = HashMap::new();
    for pid in pids()? {
        // A process that ended during the scan is not there any more.
        let Some(entry) = read_entry(pid?) else { continue };
        // At once, not after the scan: one that starts the next and ends, again and again, is adopted here and has the
        // highest number, which the scan comes to last; it would have hopped on by the end.
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

/// Sends one signal to each group, and to each process that is in this process's own.
struct Senders {
    own_group: Pid,
    groups: HashSet<Pid>,
    signal: Signal,
}

impl Senders {
    fn send(&mut self, entry: Entry) {
        // A process that is gone by now is as good as signalled; one that may not be signalled (another user's, by
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

/// The rounds in which a tree is killed: what to wait between them.
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

/// Kills everything below this process and reaps it; returns when there is no child left.
///
/// `ended` is told of each process that was reaped. Waits as long as the kernel needs: a process in an
/// uninterruptible system call dies only when that returns.
pub(super) fn kill_all(mut ended: impl FnMut(Pid, WaitStatus)) {
    let mut rounds = Rounds::new();
    loop {
        // An unreadable `/proc` is a passing lack of descriptors or memory; the next round tries again.
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

/// Lists what is below any of `roots`.
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

/// Walks down from the `parents`, leaving out the `spared` processes and what is below them.
fn below(mut parents: Vec<Pid>, mut children: HashMap<i32, Vec<Entry>>, spared: &HashSet<Pid>) -> Vec<Entry> {
    let mut below = Vec::new();
    while let Some(parent) = parents.pop() {
        // Removed, not looked up: a parent is visited once even if the scan caught two uses of one number.
        for entry in children.remove(&parent.as_raw_nonzero().get()).unwrap_or_default() {
            if !spared.contains(&entry.pid) {
                parents.push(entry.pid);
                below.push(entry);
            }
        }
    }
    below
}

/// Lists the processes of this machine, as far as `/proc` shows them, in the order of their numbers.
pub(super) fn pids() -> io::Result<impl Iterator<Item = io::Result<Pid>>> {
    let entries = std::fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| match entry {
        Ok(entry) => entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw).map(Ok),
        Err(error) => Some(Err(error)),
    }))
}

/// Reads a process's parent and group; `None` if there is none with that number.
///
/// Zombies count: one may be the first thread of a process whose other threads live on, and killing a real one does
/// nothing.
fn read_entry(pid: Pid) -> Option<Entry> {
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name, in parentheses, may hold anything, parentheses too (proc(5)).
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Entry { pid, parent, group })
}

/// Returns the parents of this process up to the first, as far as `/proc` shows them.
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
