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
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};

use super::channel;
use super::reaper;
use super::signals::{self, ChildEnds, REAPER_END};
use super::tree::{self, Reaped, Rounds};
use super::wire::{Control, Event, MESSAGE_BYTES_MAX, PROTOCOL, Stage};

/// How long a reaper may take to end its tree when the run ends. It takes milliseconds, unless a process is stuck in
/// the kernel or the reaper itself was stopped; then the supervisor kills it and takes over its tree.
const REAPER_END_MAX: Duration = Duration::from_secs(5);

/// The stack on which a reaper lives. It scans `/proc` on it, which takes a few pages; the rest is never touched.
const REAPER_STACK_BYTES: usize = 1024 * 1024;

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
    let descriptors = std::env::var(super::STEP_DESCRIPTORS).ok().and_then(|limit| limit.parse().ok());
    super::give_steps_descriptors(descriptors);
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
        reaper_stack: vec![0; REAPER_STACK_BYTES],
    };
    channel::send(&supervisor.control, &[PROTOCOL], &[])?;
    supervisor.serve_engine();
    drop(alive_write);
    supervisor.end_all();
    supervisor.forget_dead_engine();
    // The lock is let go by the kernel, when this process is no more: whoever gets it finds nobody of the run alive.
    std::mem::forget(supervisor);
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
    /// A reaper died without having ended its tree: the rounds in which this process kills that.
    orphans: Option<Rounds>,
    reaper_stack: Vec<u8>,
}

impl Supervisor {
    /// Serves until the engine is gone.
    fn serve_engine(&mut self) {
        loop {
            let pause = self.orphans.as_mut().map(Rounds::pause);
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

    /// Forks a reaper. Its end is told by a signal of its own, so that the kernel can be asked for all other children
    /// alone: those are orphans.
    fn fork_reaper(&mut self, id: u32, channel: OwnedFd) {
        let mut birth = Birth {
            channel: channel.as_raw_fd(),
            alive: self.alive_read.as_raw_fd(),
            lock: self.lock.as_ref().map(AsRawFd::as_raw_fd),
        };
        #[expect(unsafe_code, reason = "a reaper is this program going on in a second process")]
        // SAFETY: this process has one thread (checked at its start), so the child, which has a copy of all memory,
        // finds it and its locks in order. The top of the stack is within `reaper_stack`, aligned to 16 bytes, and used
        // by nobody in this process; `birth` is copied with the rest.
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
                // The answer to the start order that the engine sends there; the end of the channel says the same.
                let _ =
                    channel::send(&channel, &Event::Refused { stage: Stage::Prepare, errno }.encode(), &[]);
            }
        }
    }

    /// Reaps what ended; kills what a dead reaper left behind.
    fn reap(&mut self) {
        self.child_ends.clear();
        // Reapers first: what one left is adopted before its own end is told, so it is seen next.
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
            // An unreadable `/proc` is a passing lack of descriptors or memory; the next round tries again.
            let _ = tree::signal_below(&spared, Signal::KILL);
        }
        self.answer_awaited();
    }

    /// Lets go those who wait for a reaper that is dead, with all it left.
    fn answer_awaited(&mut self) {
        if self.orphans.is_some() {
            return;
        }
        let alive: HashSet<u32> = self.reapers.values().copied().collect();
        self.awaited.retain(|(id, _)| alive.contains(id));
    }

    /// Waits until the reapers, which see that the run ends, have killed their trees and ended; kills those that do not,
    /// and takes over their trees. Returns when no process is left.
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
                    // Not reaped yet, so the number is still its own.
                    let _ = rustix::process::kill_process(*pid, Signal::KILL);
                }
            }
            let left = if left.is_zero() { None } else { Some(left) };
            let pause = [self.orphans.as_mut().map(Rounds::pause), left].into_iter().flatten().min();
            let pause = pause.map(|pause| Timespec::try_from(pause).expect("pauses are short"));
            // Whatever it says, the loop looks for itself.
            let _ = poll(&mut [PollFd::new(&self.child_ends, PollFlags::IN)], pause.as_ref());
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

/// What a reaper inherits: descriptors of its own copy of the table.
struct Birth {
    channel: RawFd,
    alive: RawFd,
    lock: Option<RawFd>,
}

/// The reaper's process: serves and ends.
extern "C" fn run_reaper(birth: *mut c_void) -> c_int {
    #[expect(unsafe_code, reason = "the argument of clone's function is a plain pointer")]
    // SAFETY: it points to this process's copy of the `Birth` that `fork_reaper` made.
    let birth = unsafe { &*birth.cast::<Birth>() };
    let mut kept = vec![birth.channel, birth.alive];
    kept.extend(birth.lock);
    // The supervisor's end of `alive`, its control and its other descriptors must not live on here.
    close_all_but(&kept);
    #[expect(unsafe_code, reason = "the values of the supervisor that own these are out of reach here")]
    // SAFETY: both are open, kept by the line above. The supervisor's values that own the same numbers are never used
    // nor dropped in this process, which ends without returning to them.
    let (channel, alive) =
        unsafe { (OwnedFd::from_raw_fd(birth.channel), OwnedFd::from_raw_fd(birth.alive)) };
    // A panic must not unwind into nowhere. The supervisor kills what this reaper leaves.
    let served = std::panic::catch_unwind(|| reaper::serve(channel, alive));
    let code = if matches!(served, Ok(Ok(()))) { 0 } else { i32::from(EXIT_FAILED) };
    #[expect(unsafe_code, reason = "the exit handlers of the program are the supervisor's")]
    // SAFETY: ends the process at once; there is nothing to clean up.
    unsafe {
        libc::_exit(code)
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
