//! The reaper of one step: it starts the step's program, and owns everything that comes from it.
//!
//! A reaper is a fork of the supervisor. It is a child sub-reaper and the leader of a session without a terminal, so
//! all that a step starts stays below it, whatever that does with forks, sessions and signals, and nothing else is
//! there: so it can end exactly this step's tree. When the tree is empty it serves the next step, which
//! saves the fork.
//!
//! ```text
//!            start               main process ends, nothing left
//!   idle ------------> running ---------------------------------> idle
//!                        |   \                                     ^
//!          engine or     |    `-- main process ends --> background |  the last one ends
//!          supervisor    |                                  |      |
//!          is gone       v            cancel                v      |
//!   ends <---------- kill all <----------------- TERM, grace, KILL-+
//! ```
//!
//! It talks to the engine directly. It deliberately does not know why a step is started or ended.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitStatus};

use super::channel;
use super::exec::{Failure, Launcher};
use super::signals::ChildEnds;
use super::tree::{self, Reaped};
use super::wire::{Event, MESSAGE_BYTES_MAX, Order, REQUEST_BYTES_MAX, Request, Stage, StartFlags};

/// Why a reaper ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The engine closed its end, or was killed.
    EngineGone,
    /// The supervisor closed its end, or was killed.
    SupervisorGone,
}

/// Serves one step after the other until the engine closes `channel` or the supervisor closes `alive`; then kills
/// all that is left and returns.
///
/// The caller is a fresh fork of the supervisor with all signals blocked, these two descriptors, and the run's lock,
/// which is thereby kept until the last process is dead.
pub(super) fn serve(channel: OwnedFd, alive: OwnedFd) -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // The name is for people who look at processes; without it all else works.
    let _ = std::fs::write("/proc/self/comm", super::REAPER_NAME);
    let mut reaper = Reaper {
        channel,
        alive,
        child_ends: ChildEnds::new()?,
        launcher: Launcher::new(),
        buffer: vec![0; MESSAGE_BYTES_MAX],
        main: None,
        occupied: false,
        deadline: None,
    };
    let end = reaper.serve_until_end();
    tree::kill_all(|_, _| ());
    if end == End::SupervisorGone {
        reaper.tell(Event::Abandoned);
    }
    Ok(())
}

struct Reaper {
    channel: OwnedFd,
    alive: OwnedFd,
    child_ends: ChildEnds,
    launcher: Launcher,
    buffer: Vec<u8>,
    /// The step's main process, until its end was told.
    main: Option<Pid>,
    /// Some process of a step may be alive.
    occupied: bool,
    /// When the tree is to be killed, if it was told to end.
    deadline: Option<Instant>,
}

impl Reaper {
    fn serve_until_end(&mut self) -> End {
        loop {
            let [message, alive, child] = self.wait();
            // First: what the engine hears about a step is in the order in which it happened.
            let mut is_heard = true;
            if child {
                self.child_ends.clear();
                is_heard = self.reap();
            }
            if alive {
                return End::SupervisorGone;
            }
            // An engine that did not hear of an end would wait for it for ever; it sees the end of the channel instead.
            if !is_heard || message && !self.take_order() {
                return End::EngineGone;
            }
            if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) && !self.kill() {
                return End::EngineGone;
            }
        }
    }

    /// Waits until there is a message, the supervisor is gone, a child ended, or the grace is over.
    fn wait(&self) -> [bool; 3] {
        let mut sources = [
            PollFd::new(&self.channel, PollFlags::IN),
            PollFd::new(&self.alive, PollFlags::IN),
            PollFd::new(&self.child_ends, PollFlags::IN),
        ];
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A grace too long for the kernel's clock is no limit.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut sources, left.as_ref()) {
            Ok(_) => sources.map(|source| !source.revents().is_empty()),
            // No handler is installed, so this is a lack of memory: look at everything.
            Err(_) => [false, false, true],
        }
    }

    /// Obeys one order; `false` when the engine is gone, or talks nonsense, which is no better.
    fn take_order(&mut self) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let known = match channel::receive(&self.channel, &mut buffer) {
            Ok(Some((bytes, descriptors))) => match Order::decode(bytes) {
                Ok(Order::Start { flags, body }) => self.start(flags, body, &descriptors),
                Ok(Order::Cancel { grace_ms }) => self.cancel(Duration::from_millis(grace_ms)),
                Err(_) => false,
            },
            Ok(None) => false,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        self.buffer = buffer;
        known
    }

    fn start(&mut self, flags: StartFlags, body: &[u8], descriptors: &[OwnedFd]) -> bool {
        if self.occupied {
            return false;
        }
        let event = match self.launch(flags, body, descriptors) {
            Ok(pid) => {
                self.main = Some(pid);
                self.occupied = true;
                Event::Started { pid: pid.as_raw_nonzero().get() }
            }
            Err(Failure { stage, errno }) => Event::Refused { stage, errno },
        };
        self.tell(event)
    }

    fn launch(&mut self, flags: StartFlags, body: &[u8], descriptors: &[OwnedFd]) -> Result<Pid, Failure> {
        let failed =
            |errno: rustix::io::Errno| Failure { stage: Stage::Prepare, errno: errno.raw_os_error() };
        // Fewer than announced: this process may have no more descriptors, and the kernel dropped them.
        let mut next = descriptors.iter();
        let mut take = || next.next().ok_or(failed(rustix::io::Errno::MFILE));
        let stdout = take()?.as_raw_fd();
        let stderr = if flags.stderr { take()?.as_raw_fd() } else { stdout };
        let stdin: RawFd = if flags.stdin { take()?.as_raw_fd() } else { 0 };
        let stored;
        let body = if flags.memory {
            stored = read_memory(take()?).map_err(failed)?;
            &stored
        } else {
            body
        };
        let request = Request::decode(body).map_err(|_| failed(rustix::io::Errno::PROTO))?;
        self.launcher.launch(&request, [stdin, stdout, stderr])
    }

    /// Ends the step's tree: at once without a grace, else with TERM first.
    fn cancel(&mut self, grace: Duration) -> bool {
        if !self.occupied {
            return true;
        }
        if grace.is_zero() {
            return self.kill();
        }
        // A stopped process gets its TERM only when it goes on. Unreadable `/proc`: the deadline's KILL makes up.
        let _ = tree::signal_below(&HashSet::new(), Signal::TERM);
        let _ = tree::signal_below(&HashSet::new(), Signal::CONT);
        let deadline = Instant::now().checked_add(grace);
        // A second order may only bring the end nearer.
        self.deadline = [self.deadline, deadline].into_iter().flatten().min();
        true
    }

    /// Kills the step's tree and tells the engine when it is dead; `false` if that did not hear it.
    fn kill(&mut self) -> bool {
        let mut status = None;
        let main = self.main;
        tree::kill_all(|pid, ended| status = if Some(pid) == main { Some(ended) } else { status });
        self.report(status, true)
    }

    /// Reaps all that ended, and tells the engine what it wants to know of it; `false` if that did not hear it.
    fn reap(&mut self) -> bool {
        let mut status = None;
        loop {
            match tree::reap() {
                Reaped::Process(pid, ended) if Some(pid) == self.main => status = Some(ended),
                Reaped::Process(..) => {}
                Reaped::NoneEnded => return self.report(status, false),
                Reaped::NoChildren => return self.report(status, true),
            }
        }
    }

    fn report(&mut self, status: Option<WaitStatus>, empty: bool) -> bool {
        let event = match status {
            Some(status) => Some(Event::Ended { status: status.as_raw(), empty }),
            None => (empty && self.occupied).then_some(Event::Empty),
        };
        if status.is_some() {
            self.main = None;
        }
        if empty {
            self.occupied = false;
            self.deadline = None;
        }
        event.is_none_or(|event| self.tell(event))
    }

    /// Tells the engine; `false` if it is gone. The socket holds far more than the few messages of a step.
    fn tell(&self, event: Event) -> bool {
        channel::send(&self.channel, &event.encode(), &[]).is_ok()
    }
}

/// Reads a request that was too long for a message.
fn read_memory(file: impl AsFd) -> rustix::io::Result<Vec<u8>> {
    let length = rustix::fs::fstat(&file)?.st_size;
    let length = usize::try_from(length).ok().filter(|length| *length <= REQUEST_BYTES_MAX);
    let mut bytes = vec![0; length.ok_or(rustix::io::Errno::TOOBIG)?];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(&file, &mut bytes[filled..], filled as u64)? {
            0 => return Err(rustix::io::Errno::IO),
            count => filled += count,
        }
    }
    Ok(bytes)
}
