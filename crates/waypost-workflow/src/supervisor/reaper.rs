//! Reaper of one step: starts the step's program, and owns all processes of the step.
//!
//! A reaper is a fork of the supervisor. The reaper is a child sub-reaper, and the leader of a session
//! without a terminal. All processes of the step stay below the reaper, regardless of forks, sessions and
//! signals. No other process is below the reaper, so the reaper can end exactly this step's tree. When the
//! tree is empty the reaper serves the next step, to save a fork.
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
//! The reaper talks to the engine directly. Deliberately does not know why a step is started or ended.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitStatus};

use super::channel;
use super::exec::{ExecFailure, Launcher};
use super::signals::ChildEnds;
use super::tree::{self, Reaped};
use super::wire::{Event, MESSAGE_BYTES_MAX, Order, REQUEST_BYTES_MAX, Request, Stage, StartFlags};

/// Why a reaper ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The engine closed the channel, or was killed.
    EngineGone,
    /// The supervisor closed the `alive` pipe, or was killed.
    SupervisorGone,
}

/// Serves one step after the other until the engine closes `channel` or the supervisor closes `alive`. Then
/// kills all remaining processes and returns.
///
/// The caller is a fresh fork of the supervisor with all signals blocked. The fork has these two descriptors
/// and the run's lock, and so keeps the lock until the last process is dead.
pub(super) fn serve(channel: OwnedFd, alive: OwnedFd) -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // The name is for display only.
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
    /// Main process of the step, until its end was reported.
    main: Option<Pid>,
    /// Whether a process of a step may be alive.
    occupied: bool,
    /// Time of the KILL, after a cancel order.
    deadline: Option<Instant>,
}

impl Reaper {
    fn serve_until_end(&mut self) -> End {
        loop {
            let [message, alive, child] = self.wait();
            // Children first: the engine gets the events of a step in order.
            let mut is_heard = true;
            if child {
                self.child_ends.clear();
                is_heard = self.reap();
            }
            if alive {
                return End::SupervisorGone;
            }
            // An engine without the event would wait for ever; it sees the closed channel instead.
            if !is_heard || message && !self.take_order() {
                return End::EngineGone;
            }
            if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) && !self.kill() {
                return End::EngineGone;
            }
        }
    }

    /// Waits for a message, the loss of the supervisor, the end of a child, or the end of the grace period.
    fn wait(&self) -> [bool; 3] {
        let mut sources = [
            PollFd::new(&self.channel, PollFlags::IN),
            PollFd::new(&self.alive, PollFlags::IN),
            PollFd::new(&self.child_ends, PollFlags::IN),
        ];
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A grace too long for the kernel's clock means no limit.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut sources, left.as_ref()) {
            Ok(_) => sources.map(|source| !source.revents().is_empty()),
            // No handler is installed, so the cause is a lack of memory: check for ended children.
            Err(_) => [false, false, true],
        }
    }

    /// Handles one order; `false` when the engine is gone or sends an invalid message.
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
            Err(ExecFailure { stage, errno }) => Event::Refused { stage, errno },
        };
        self.tell(event)
    }

    fn launch(
        &mut self,
        flags: StartFlags,
        body: &[u8],
        descriptors: &[OwnedFd],
    ) -> Result<Pid, ExecFailure> {
        let failed =
            |errno: rustix::io::Errno| ExecFailure { stage: Stage::Prepare, errno: errno.raw_os_error() };
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
        // A stopped process gets the TERM only after CONT. If `/proc` is unreadable, the KILL at the deadline
        // compensates.
        let _ = tree::signal_below(&HashSet::new(), Signal::TERM);
        let _ = tree::signal_below(&HashSet::new(), Signal::CONT);
        let deadline = Instant::now().checked_add(grace);
        // A second order can only move the deadline forward.
        self.deadline = [self.deadline, deadline].into_iter().flatten().min();
        true
    }

    /// Kills the step's tree and reports its end to the engine; `false` if the engine is gone.
    fn kill(&mut self) -> bool {
        let mut status = None;
        let main = self.main;
        tree::kill_all(|pid, ended| status = if Some(pid) == main { Some(ended) } else { status });
        self.report(status, true)
    }

    /// Reaps all ended processes, and reports the end of the main process and of the tree. Returns `false` if
    /// the engine is gone.
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

    /// Sends an event to the engine; `false` if the engine is gone. The socket buffer has room for all
    /// messages of a step.
    fn tell(&self, event: Event) -> bool {
        channel::send(&self.channel, &event.encode(), &[]).is_ok()
    }
}

/// Reads a request from a memory file, used for requests too long for a message.
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
