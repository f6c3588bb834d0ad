//! The supervisor process: it forks reapers, keeps the run's lock, and sees to it that nothing outlives the engine.
//!
//! ```text
//!   engine ===== control ===== supervisor          holds the lock, and the write end of `alive`
//!      \                        |     |
//!       \=== channel ===== reaper   reaper         hold the lock, and the read end of `alive`
//!                            |        |
//!                          step     step           hold neither
//! ```
//!
//! - The engine dies: its ends close. Each reaper kills its tree and ends; the supervisor waits for that and ends;
//!   the last of them lets the lock go.
//! - The supervisor dies: `alive` closes. Each reaper kills its tree and tells the engine.
//! - A reaper dies: its step's tree is adopted by the supervisor, a child sub-reaper too, and killed.
//!
//! It has one thread, so that forking is sound. It deliberately does not know what steps are: the engine and its
//! reapers talk past it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};

use super::channel;
use super::reaper;
use super::signals::{self, ChildEnds};
use super::tree::{self, Reaped, Rounds};
use super::wire::{Control, Event, MESSAGE_BYTES_MAX, PROTOCOL, Stage};

/// How long a reaper may take to end its tree when the run ends. It takes milliseconds, unless a process is stuck in
/// the kernel or the reaper itself was stopped; then the supervisor kills it and takes over its tree.
const REAPER_END_MAX: Duration = Duration::from_secs(5);

/// How many scans in a row must find no orphan. One alone can miss a process that forks and ends during it, and the
/// kernel's own answer, "no child at all", is not to be had while other reapers live.
const EMPTY_SCANS: u32 = 3;

/// The exit code of a supervisor that could not serve (`EX_SOFTWARE` of sysexits.h).
const EXIT_FAILED: u8 = 70;

/// Serves as the supervisor of one run, until the engine that started this program is gone and all processes of the
/// run are dead.
///
/// The program that [`SupervisorProgram`](super::SupervisorProgram) names calls this first thing in its `main`,
/// before it starts any thread, with standard input as the engine set it.
///
/// Returns 0 when everything is dead, 70 when it could not serve at all.
#[must_use]
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody to tell but the engine, which sees the end of the channel before any answer.
        Err(_) => ExitCode::from(EXIT_FAILED),
    }
}

fn serve() -> io::Result<()> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a program with threads cannot fork safely"));
    }
    signals::block_all()?;
    let control = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    let nothing = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    drop(nothing);
    close_all_but(&[control.as_raw_fd()]);
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // A folder kept as current could not be unmounted or removed.
    rustix::process::chdir("/")?;
    // The name is for people who look at processes; without it all else works.
    let _ = std::fs::write("/proc/self/comm", super::SUPERVISOR_NAME);
    let (alive_read, alive_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut supervisor = Supervisor {
        control,
        child_ends: ChildEnds::new()?,
        alive_read,
        buffer: vec![0; MESSAGE_BYTES_MAX],
        lock: None,
        reapers: HashMap::new(),
        awaited: Vec::new(),
        orphans: None,
    };
    channel::send(&supervisor.control, &[PROTOCOL], &[])?;
    supervisor.serve_engine();
    drop(alive_write);
    supervisor.end_all();
    supervisor.forget_dead_engine();
    Ok(())
}

struct Supervisor {
    control: OwnedFd,
    child_ends: ChildEnds,
    /// What reapers inherit, to see this process end.
    alive_read: OwnedFd,
    buffer: Vec<u8>,
    lock: Option<OwnedFd>,
    /// The reapers that live, by process number, with the engine's name for them.
    reapers: HashMap<Pid, u32>,
    /// Descriptors to close when that reaper is dead and no orphan is left.
    awaited: Vec<(u32, OwnedFd)>,
    /// A reaper died without having ended its tree, which this process now kills.
    orphans: Option<Orphans>,
}

/// The killing of what dead reapers left, while other reapers live.
struct Orphans {
    rounds: Rounds,
    empty_scans: u32,
}

impl Supervisor {
    /// Serves until the engine is gone.
    fn serve_engine(&mut self) {
        loop {
            let pause = self.orphans.as_mut().map(|orphans| orphans.rounds.pause());
            let [message, child] = self.wait(pause);
            if child || self.orphans.is_some() {
                self.reap();
            }
            if message && !self.take_control() {
                return;
            }
        }
    }

    fn wait(&self, pause: Option<Duration>) -> [bool; 2] {
        let mut sources =
            [PollFd::new(&self.control, PollFlags::IN), PollFd::new(&self.child_ends, PollFlags::IN)];
        let pause = pause.map(|pause| Timespec::try_from(pause).expect("pauses are short"));
        match poll(&mut sources, pause.as_ref()) {
            Ok(_) => sources.map(|source| !source.revents().is_empty()),
            // No handler is installed, so this is a lack of memory: look at everything.
            Err(_) => [true, true],
        }
    }

    /// Obeys one message; `false` when the engine is gone, or talks nonsense, which is no better.
    fn take_control(&mut self) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = channel::receive(&self.control, &mut buffer);
        let known = match received {
            Ok(Some((bytes, mut descriptors))) => match Control::decode(bytes) {
                Ok(Control::Hello) => {
                    self.lock = descriptors.pop();
                    true
                }
                Ok(Control::Reaper { id }) => {
                    // Without a descriptor (this process has none left) the engine's other end closes: it sees that
                    // this reaper is lost.
                    if let Some(channel) = descriptors.pop() {
                        self.fork_reaper(id, channel);
                    }
                    true
                }
                Ok(Control::Await { id }) => {
                    self.awaited.extend(descriptors.pop().map(|descriptor| (id, descriptor)));
                    self.answer_awaited();
                    true
                }
                Ok(Control::Kill { id }) => {
                    self.kill_reaper(id);
                    true
                }
                Err(_) => false,
            },
            Ok(None) => false,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        self.buffer = buffer;
        known
    }

    fn kill_reaper(&self, id: u32) {
        let named = self.reapers.iter().find(|(_, of)| **of == id);
        if let Some((pid, _)) = named {
            // Not reaped yet, so the number is still its own.
            let _ = rustix::process::kill_process(*pid, Signal::KILL);
        }
    }

    fn fork_reaper(&mut self, id: u32, channel: OwnedFd) {
        #[expect(unsafe_code, reason = "a reaper is this program going on in a second process")]
        // SAFETY: this process has one thread (checked at its start), so the child finds memory and locks in order.
        let pid = unsafe { libc::fork() };
        match pid {
            0 => {
                let code = run_reaper(channel, &self.alive_read, self.lock.as_ref());
                #[expect(unsafe_code, reason = "the child must not go on in the code of the supervisor")]
                // SAFETY: ends the process at once; there is nothing to clean up.
                unsafe {
                    libc::_exit(code)
                }
            }
            ..0 => {
                let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN);
                // The answer to the start order that the engine sends there; the end of the channel says the same.
                let _ =
                    channel::send(&channel, &Event::Refused { stage: Stage::Prepare, errno }.encode(), &[]);
            }
            _ => {
                let pid = Pid::from_raw(pid).expect("it is positive");
                self.reapers.insert(pid, id);
            }
        }
    }

    /// Reaps what ended; kills what a dead reaper left behind.
    fn reap(&mut self) {
        self.child_ends.clear();
        loop {
            match tree::reap() {
                Reaped::Process(pid, status) => {
                    let was_reaper = self.reapers.remove(&pid).is_some();
                    // A reaper that ends with 0 has seen that it has no child left.
                    if was_reaper && status.exit_status() != Some(0) && self.orphans.is_none() {
                        self.orphans = Some(Orphans { rounds: Rounds::new(), empty_scans: 0 });
                    }
                }
                Reaped::NoneEnded => break,
                Reaped::NoChildren => {
                    self.orphans = None;
                    break;
                }
            }
        }
        self.kill_orphans();
        self.answer_awaited();
    }

    /// Kills what is below this process but not below a living reaper, if there can be something.
    fn kill_orphans(&mut self) {
        let Some(orphans) = &mut self.orphans else { return };
        let spared: HashSet<Pid> = self.reapers.keys().copied().collect();
        match tree::signal_below(&spared, Signal::KILL) {
            Ok(0) => orphans.empty_scans += 1,
            // An unreadable `/proc` is a passing lack of descriptors or memory: it shows nothing.
            Ok(_) | Err(_) => orphans.empty_scans = 0,
        }
        if orphans.empty_scans >= EMPTY_SCANS {
            self.orphans = None;
        }
    }

    /// Lets go those who wait for a reaper that is dead, with all it left.
    fn answer_awaited(&mut self) {
        if self.orphans.is_some() {
            return;
        }
        let alive: HashSet<u32> = self.reapers.values().copied().collect();
        self.awaited.retain(|(id, _)| alive.contains(id));
    }

    /// Waits until the reapers, which see that the run ends, have killed their trees and ended; takes over from those
    /// that do not. Returns when no process is left.
    fn end_all(&mut self) {
        let deadline = Instant::now() + REAPER_END_MAX;
        loop {
            self.reap();
            if self.reapers.is_empty() {
                tree::kill_all(|_, _| ());
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.reapers.clear();
                continue;
            }
            let pause = self.orphans.as_mut().map_or(left, |orphans| orphans.rounds.pause().min(left));
            let mut sources = [PollFd::new(&self.child_ends, PollFlags::IN)];
            // Whatever it says, the loop looks for itself.
            let _ = poll(&mut sources, Timespec::try_from(pause).ok().as_ref());
        }
    }

    /// Forgets the note of an engine that is gone: nothing is left of its run. One that is still there, and only ended
    /// this supervisor, keeps its note.
    fn forget_dead_engine(&self) {
        let mut source = [PollFd::new(&self.control, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = poll(&mut source, Some(&at_once)).is_ok() && source[0].revents().contains(PollFlags::HUP);
        if let Some(lock) = self.lock.as_ref().filter(|_| gone) {
            // It only spares the next holder a search.
            let _ = waypost::lock::forget_note(lock);
        }
    }
}

/// Serves as a reaper, in the fork; returns its exit code.
fn run_reaper(channel: OwnedFd, alive: &OwnedFd, lock: Option<&OwnedFd>) -> i32 {
    let mut kept = vec![channel.as_raw_fd(), alive.as_raw_fd()];
    kept.extend(lock.map(AsRawFd::as_raw_fd));
    // The supervisor's end of `alive`, its control and its other descriptors must not live on here.
    close_all_but(&kept);
    let Ok(alive) = alive.try_clone() else { return i32::from(EXIT_FAILED) };
    // A panic must not unwind into the code of the supervisor. The supervisor kills what this reaper leaves.
    let served = std::panic::catch_unwind(|| reaper::serve(channel, alive));
    match served {
        Ok(Ok(())) => 0,
        Ok(Err(_)) | Err(_) => i32::from(EXIT_FAILED),
    }
}

/// Closes every descriptor from 3 on, but those. What is open there and not ours was leaked by our own parent, or
/// belongs to the supervisor whose fork this is.
fn close_all_but(kept: &[RawFd]) {
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    let mut first = 3;
    for descriptor in kept.into_iter().chain([RawFd::MAX]) {
        if descriptor > first {
            close_range(first, descriptor - 1);
        }
        first = descriptor.saturating_add(1);
    }
}

#[expect(unsafe_code, reason = "closing by number what no Rust value of this process uses any more")]
fn close_range(first: RawFd, last: RawFd) {
    // SAFETY: at the start of the program nothing but the kept descriptors is owned by a value; in a fork the values
    // of the supervisor are never used nor dropped, as the fork ends without returning.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, last, 0) == 0 {
            return;
        }
        // Kernels before 5.9 do not have the call, and some containers forbid it.
        let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
        let open: Vec<RawFd> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        for descriptor in open.into_iter().filter(|descriptor| (first..=last).contains(descriptor)) {
            libc::close(descriptor);
        }
    }
}
