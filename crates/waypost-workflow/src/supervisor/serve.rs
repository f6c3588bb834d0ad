//! SupervisorProcess process: forks reapers, keeps the run's lock, and ensures that no process outlives the engine.
//!
//! ```text
//!   engine ===== control ===== supervisor          holds the lock, and the write end of `alive`
//!      \                        |     |
//!       \=== channel ===== reaper   reaper         hold the lock, and the read end of `alive`
//!                            |        |
//!                          step     step           hold neither
//! ```
//!
//! - The lease of the engine ends, or the engine dies: its ends close. Each reaper kills its tree and ends; the supervisor waits for the
//!   reapers and ends. The last of these processes releases the lock.
//! - The supervisor dies: `alive` closes. Each reaper kills its tree and reports to the engine.
//! - A reaper dies: the supervisor, also a child sub-reaper, adopts the step's tree and kills it.
//!
//! The process has one thread, so that forking is sound. Deliberately does not know steps: the engine and its
//! reapers communicate directly.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};
use waypost::deadline::Deadline;

use super::channel;
use super::reaper;
use super::signals::{self, ChildEnds, REAPER_END};
use super::tree::{self, Reaped, Rounds};
use super::wire::{Control, Event, MESSAGE_BYTES_MAX, PROTOCOL, Stage};

/// Limit for a reaper to end its tree when the run ends; then the supervisor kills the reaper and takes over.
///
/// Milliseconds are normal. Longer delays come from a process stuck in the kernel, or from a stopped reaper.
const REAPER_END_MAX: Duration = Duration::from_secs(5);

/// Stack of a reaper. A scan of `/proc` takes a few pages; the rest is never touched.
const REAPER_STACK_BYTES: usize = 1024 * 1024;

/// Longest wait without a look at the deadline: a wait does not count suspends of the machine, a lease does.
const LOOK_AT_DEADLINE: Duration = Duration::from_secs(1);

/// Exit code of a supervisor that could not serve (`EX_SOFTWARE` of sysexits.h).
const EXIT_FAILED: u8 = 70;

/// Serves as the supervisor of one run, until the starting engine is gone and all processes of the run are
/// dead.
///
/// The program of [`SupervisorProgram`](super::SupervisorProgram) must call this first in `main`, before any
/// thread starts. Standard input must be as set by the engine.
///
/// Returns 0 when all processes are dead, 70 when it could not serve at all.
#[must_use]
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        // No report is possible: the engine sees the closed channel before any answer.
        Err(_) => ExitCode::from(EXIT_FAILED),
    }
}

fn serve() -> io::Result<()> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a program with threads cannot fork safely"));
    }
    signals::block_all()?;
    let descriptors = std::env::var(super::STEP_DESCRIPTORS).ok().and_then(|limit| limit.parse().ok());
    super::give_steps_descriptors(descriptors);
    let control = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    let nothing = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    drop(nothing);
    close_all_but(&[control.as_raw_fd()]);
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // A working folder could not be unmounted or removed.
    rustix::process::chdir("/")?;
    // The name is for display only.
    let _ = std::fs::write("/proc/self/comm", super::SUPERVISOR_NAME);
    let (alive_read, alive_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut supervisor = SupervisorProcess {
        control,
        child_ends: ChildEnds::new()?,
        alive_read,
        buffer: vec![0; MESSAGE_BYTES_MAX],
        lock: None,
        deadline: None,
        reapers: HashMap::new(),
        awaited: Vec::new(),
        orphans: None,
        reaper_stack: vec![0; REAPER_STACK_BYTES],
    };
    channel::send(&supervisor.control, &[PROTOCOL], &[])?;
    supervisor.serve_engine();
    drop(alive_write);
    supervisor.end_all();
    supervisor.forget_dead_engine();
    // The kernel releases the lock when this process is gone: the next holder finds no living process of the
    // run.
    std::mem::forget(supervisor);
    Ok(())
}

struct SupervisorProcess {
    control: OwnedFd,
    child_ends: ChildEnds,
    /// Inherited by reapers, to detect the end of this process.
    alive_read: OwnedFd,
    buffer: Vec<u8>,
    lock: Option<OwnedFd>,
    /// When the steps must have ended; the engine moves the deadline.
    deadline: Option<Deadline>,
    /// Living reapers: process id to the engine's id.
    reapers: HashMap<Pid, u32>,
    /// Descriptors to close when the reaper is dead and no orphan is left.
    awaited: Vec<(u32, OwnedFd)>,
    /// Rounds of killing the orphans of a dead reaper.
    orphans: Option<Rounds>,
    reaper_stack: Vec<u8>,
}

impl SupervisorProcess {
    /// Serves until the engine is gone or its lease ends.
    fn serve_engine(&mut self) {
        loop {
            let left = self.left();
            if left == Some(Duration::ZERO) {
                return;
            }
            let left = left.map(|left| left.min(LOOK_AT_DEADLINE));
            let pause = [self.orphans.as_mut().map(Rounds::pause), left].into_iter().flatten().min();
            let [message, child] = self.wait(pause);
            if child || self.orphans.is_some() {
                self.reap();
            }
            if message && !self.take_control() {
                return;
            }
        }
    }

    /// Returns the time to the deadline, if there is one. An unreadable deadline has passed.
    fn left(&self) -> Option<Duration> {
        self.deadline.as_ref().map(|deadline| deadline.get().map_or(Duration::ZERO, |at| at.left()))
    }

    fn wait(&self, pause: Option<Duration>) -> [bool; 2] {
        let mut sources =
            [PollFd::new(&self.control, PollFlags::IN), PollFd::new(&self.child_ends, PollFlags::IN)];
        let pause = pause.map(|pause| Timespec::try_from(pause).expect("pauses are short"));
        match poll(&mut sources, pause.as_ref()) {
            Ok(_) => sources.map(|source| !source.revents().is_empty()),
            // No handler is installed, so the cause is a lack of memory: check everything.
            Err(_) => [true, true],
        }
    }

    /// Handles one message; `false` when the engine is gone or sends an invalid message.
    fn take_control(&mut self) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = channel::receive(&self.control, &mut buffer);
        let known = match received {
            Ok(Some((bytes, descriptors))) => {
                let mut descriptors = descriptors.into_iter();
                match Control::decode(bytes) {
                    Ok(Control::Hello { has_lock, has_deadline }) => {
                        self.lock = if has_lock { descriptors.next() } else { None };
                        let deadline = if has_deadline { descriptors.next() } else { None };
                        self.deadline = deadline.map(Deadline::from_descriptor);
                        true
                    }
                    Ok(Control::Reaper { id }) => {
                        // Without a descriptor (this process has none left) the engine's other end closes: this
                        // reaper counts as lost.
                        if let Some(channel) = descriptors.next() {
                            self.fork_reaper(id, channel);
                        }
                        true
                    }
                    Ok(Control::Await { id }) => {
                        self.awaited.extend(descriptors.next().map(|descriptor| (id, descriptor)));
                        self.answer_awaited();
                        true
                    }
                    Ok(Control::Kill { id }) => {
                        self.kill_reaper(id);
                        true
                    }
                    Err(_) => false,
                }
            }
            Ok(None) => false,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        self.buffer = buffer;
        known
    }

    fn kill_reaper(&self, id: u32) {
        let named = self.reapers.iter().find(|(_, of)| **of == id);
        if let Some((pid, _)) = named {
            // Not yet reaped, so the process id is not reused.
            let _ = rustix::process::kill_process(*pid, Signal::KILL);
        }
    }

    /// Forks a reaper. A reaper has a separate exit signal, so that waiting for other children finds orphans
    /// only.
    fn fork_reaper(&mut self, id: u32, channel: OwnedFd) {
        let mut birth = Birth {
            channel: channel.as_raw_fd(),
            alive: self.alive_read.as_raw_fd(),
            lock: self.lock.as_ref().map(AsRawFd::as_raw_fd),
        };
        #[expect(unsafe_code, reason = "a reaper is a second process of this program")]
        // SAFETY: this process has one thread, checked at its start. So the child, a copy of all memory, has
        // a consistent state of locks. The top of the stack is within `reaper_stack`, aligned to 16 bytes,
        // and has no other user in this process. `birth` is copied with the rest.
        let pid = unsafe {
            let top = self.reaper_stack.as_mut_ptr().add(REAPER_STACK_BYTES);
            let top = top.sub(top.addr() % 16);
            libc::clone(run_reaper, top.cast(), REAPER_END, (&raw mut birth).cast())
        };
        match Pid::from_raw(pid.max(0)) {
            Some(pid) => {
                self.reapers.insert(pid, id);
            }
            None => {
                let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN);
                // Answer to the engine's start order on this channel; the close of the channel has the same
                // meaning.
                let _ =
                    channel::send(&channel, &Event::Refused { stage: Stage::Prepare, errno }.encode(), &[]);
            }
        }
    }

    /// Reaps ended processes; kills the processes left by a dead reaper.
    fn reap(&mut self) {
        self.child_ends.clear();
        // Reapers first: orphans are adopted before the reaper's end is reported, so the loop below sees
        // them.
        while let Some(pid) = tree::reap_cloned() {
            self.reapers.remove(&pid);
        }
        loop {
            match tree::reap() {
                Reaped::Process(..) => {}
                Reaped::NoneEnded => {
                    self.orphans.get_or_insert_with(Rounds::new);
                    break;
                }
                Reaped::NoChildren => {
                    self.orphans = None;
                    break;
                }
            }
        }
        if self.orphans.is_some() {
            let spared: HashSet<Pid> = self.reapers.keys().copied().collect();
            // An unreadable `/proc` is a temporary lack of descriptors or memory; the next round tries again.
            let _ = tree::signal_below(&spared, Signal::KILL);
        }
        self.answer_awaited();
    }

    /// Closes the awaited descriptors of dead reapers, once no orphan is left.
    fn answer_awaited(&mut self) {
        if self.orphans.is_some() {
            return;
        }
        let alive: HashSet<u32> = self.reapers.values().copied().collect();
        self.awaited.retain(|(id, _)| alive.contains(id));
    }

    /// Waits until the reapers, which detect the end of the run, have killed their trees and ended. After
    /// [`REAPER_END_MAX`] kills the rest and their trees. Returns when no process is left.
    fn end_all(&mut self) {
        let deadline = Instant::now() + REAPER_END_MAX;
        loop {
            self.reap();
            if self.reapers.is_empty() && self.orphans.is_none() {
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                for pid in self.reapers.keys() {
                    // Not yet reaped, so the process id is not reused.
                    let _ = rustix::process::kill_process(*pid, Signal::KILL);
                }
            }
            let left = if left.is_zero() { None } else { Some(left) };
            let pause = [self.orphans.as_mut().map(Rounds::pause), left].into_iter().flatten().min();
            let pause = pause.map(|pause| Timespec::try_from(pause).expect("pauses are short"));
            // The loop checks everything, whatever the result.
            let _ = poll(&mut [PollFd::new(&self.child_ends, PollFlags::IN)], pause.as_ref());
        }
    }

    /// Removes the note of a dead engine in the lock file: no process of its run is left. A living engine
    /// that only ended this supervisor keeps its note.
    fn forget_dead_engine(&self) {
        let mut source = [PollFd::new(&self.control, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = poll(&mut source, Some(&at_once)).is_ok() && source[0].revents().contains(PollFlags::HUP);
        if let Some(lock) = self.lock.as_ref().filter(|_| gone) {
            // The note only spares the next holder a search.
            let _ = waypost::lock::forget_note(lock);
        }
    }
}

/// Descriptors for a reaper, in its copy of the table.
struct Birth {
    channel: RawFd,
    alive: RawFd,
    lock: Option<RawFd>,
}

/// Main function of a reaper process: serves and exits.
extern "C" fn run_reaper(birth: *mut c_void) -> c_int {
    #[expect(unsafe_code, reason = "the argument of clone's function is a plain pointer")]
    // SAFETY: points to this process's copy of the `Birth` in `fork_reaper`.
    let birth = unsafe { &*birth.cast::<Birth>() };
    let mut kept = vec![birth.channel, birth.alive];
    kept.extend(birth.lock);
    // The supervisor's descriptors, among them `alive` and the control socket, must close here.
    close_all_but(&kept);
    #[expect(unsafe_code, reason = "the values of the supervisor that own these are out of reach here")]
    // SAFETY: both are open, kept by the line above. The supervisor's values with the same numbers are never
    // used or dropped: this process exits without returning.
    let (channel, alive) =
        unsafe { (OwnedFd::from_raw_fd(birth.channel), OwnedFd::from_raw_fd(birth.alive)) };
    // A panic must not unwind past this frame. The supervisor kills the remaining processes of this reaper.
    let served = std::panic::catch_unwind(|| reaper::serve(channel, alive));
    let code = if matches!(served, Ok(Ok(()))) { 0 } else { i32::from(EXIT_FAILED) };
    #[expect(unsafe_code, reason = "the exit handlers of the program are the supervisor's")]
    // SAFETY: ends the process at once; there is nothing to clean up.
    unsafe {
        libc::_exit(code)
    }
}

/// Closes every descriptor from 3 on, except `kept`. Other open descriptors were leaked by the parent, or
/// belong to the supervisor that forked this process.
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

#[expect(unsafe_code, reason = "the descriptors have no owner in this process")]
fn close_range(first: RawFd, last: RawFd) {
    // SAFETY: at the start of the program values own kept descriptors only. In a fork the values of the
    // supervisor are never used or dropped, as the fork exits without returning.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, last, 0) == 0 {
            return;
        }
        // Not available before Linux 5.9, and forbidden in some containers.
        let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
        let open: Vec<RawFd> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        for descriptor in open.into_iter().filter(|descriptor| (first..=last).contains(descriptor)) {
            libc::close(descriptor);
        }
    }
}
