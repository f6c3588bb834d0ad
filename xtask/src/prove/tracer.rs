//! Runs a command, counts the calls with effects, and kills it before or after a chosen call.
//!
//! The count covers all threads and descendants, in the order reported by the kernel, so a number names a
//! moment of the whole system. The count may vary slightly between runs, because concurrent processes may
//! swap. This yields other moments, but still valid moments.
//!
//! ```text
//! xtask --- starts --> xtask trace-me --- becomes --> command --- starts --> supervisor, steps, ...
//!   attaches               waits for it, asks for reports       every call that counts stops here
//! ```

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::calls::{self, Seen};
use super::sys::{self, Idle, Pid, Stop};
use crate::repo;

/// Timeout of a command without a kill. Its steps take milliseconds.
const RUN_SECONDS_MAX: u64 = 60;

/// Timeout of the remaining processes after the kill. A supervisor needs tens of milliseconds; a longer time
/// means left-over processes.
const LEFT_SECONDS_MAX: u64 = 5;

/// The side of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum When {
    /// The call is not made.
    Before,
    /// The call was made, but its result not yet seen.
    After,
}

/// The processes to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Victim {
    /// Only the engine, as by `kill -9`: its supervisor must clean up.
    Engine,
    /// Everything at once, like a killed container.
    All,
}

/// The `PATH` of traced programs: few folders, for fewer irrelevant calls and equal counts on every machine.
pub(super) const SEARCHED: &str = "/usr/bin:/bin";

/// The moment and victim of a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kill {
    /// The number of the call, from 1.
    pub(crate) at: u64,
    pub(crate) when: When,
    pub(crate) victim: Victim,
}

/// The result of a traced command.
#[derive(Debug)]
pub(crate) struct Traced {
    /// The exit code; `None` if a signal ended the command.
    pub(crate) code: Option<i32>,
    /// All counted calls.
    pub(crate) calls: Vec<Seen>,
    /// The call at which the command was killed, if reached.
    pub(crate) killed_at: Option<Seen>,
    /// Processes that survived the timeout and were killed.
    pub(crate) left: Vec<String>,
}

/// A command to trace.
#[derive(Debug)]
pub(crate) struct Traceable<'a> {
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
    /// The working folder, also for temporary files.
    pub(crate) folder: &'a Path,
    /// The targets of stdout and stderr.
    pub(crate) stdout: File,
    pub(crate) stderr: File,
}

/// Runs the command to its end, or kills it and waits for the end of all its processes.
pub(crate) fn trace(traceable: Traceable<'_>, kill: Option<Kill>) -> anyhow::Result<Traced> {
    sys::hold_child_signals();
    let this = repo::this_program()?;
    let mut command = Command::new(this);
    command.arg("trace-me").args(&traceable.command).current_dir(traceable.folder);
    command.env("PATH", SEARCHED).env("TMPDIR", traceable.folder);
    command.stdin(Stdio::null()).stdout(traceable.stdout).stderr(traceable.stderr);
    let child = command.spawn().context("cannot start the command")?;
    let root = Pid::try_from(child.id()).context("process numbers are positive")?;
    sys::attach(root).context("cannot trace the command: is ptrace forbidden here?")?;
    Tracer::new(root, kill).run()
}

/// Implements `xtask trace-me`: waits for the tracer and executes the command. Returns only on an error.
pub(crate) fn trace_me(command: &[OsString]) -> anyhow::Result<()> {
    while !sys::is_traced() {
        std::thread::sleep(Duration::from_micros(100));
    }
    sys::report_calls().context("cannot have calls reported")?;
    let (program, arguments) = command.split_first().context("no command was given")?;
    Err(Command::new(program).args(arguments).exec()).context("cannot become the command")
}

struct Tracer {
    root: Pid,
    kill: Option<Kill>,
    threads: BTreeSet<Pid>,
    calls: Vec<Seen>,
    /// The thread whose pending call is followed by the kill.
    due: Option<Pid>,
    killed_at: Option<Seen>,
    code: Option<i32>,
    /// The time by which everything must have ended.
    deadline: Instant,
}

impl Tracer {
    fn new(root: Pid, kill: Option<Kill>) -> Self {
        let deadline = Instant::now() + Duration::from_secs(RUN_SECONDS_MAX);
        let threads = BTreeSet::from([root]);
        Self { root, kill, threads, calls: Vec::new(), due: None, killed_at: None, code: None, deadline }
    }

    fn run(mut self) -> anyhow::Result<Traced> {
        let mut left = Vec::new();
        loop {
            let now = Instant::now();
            if now >= self.deadline {
                if !left.is_empty() {
                    bail!("processes {left:?} cannot be killed");
                }
                left = self.threads.iter().map(|thread| describe(*thread)).collect();
                self.kill_all();
                self.prolong();
            }
            match sys::wait(self.deadline.saturating_duration_since(now).min(Duration::from_millis(50)))? {
                Ok((thread, stop)) => self.stopped(thread, stop)?,
                Err(Idle::TimeIsUp) => {}
                Err(Idle::NoneLeft) => break,
            }
        }
        Ok(Traced { code: self.code, calls: self.calls, killed_at: self.killed_at, left })
    }

    fn stopped(&mut self, thread: Pid, stop: Stop) -> anyhow::Result<()> {
        self.threads.insert(thread);
        match stop {
            Stop::Exited(_) | Stop::Killed(_) => {
                self.threads.remove(&thread);
                if thread == self.root {
                    self.code = if let Stop::Exited(code) = stop { Some(code) } else { None };
                    self.prolong();
                }
            }
            Stop::Call => self.call(thread)?,
            Stop::CallEnded => {
                if self.due == Some(thread) {
                    self.strike();
                }
                sys::go_on(thread, 0);
            }
            // A call that starts a process, or executes another program, also stops in the middle.
            Stop::Event if self.due == Some(thread) => sys::go_on_to_end_of_call(thread),
            Stop::Event => sys::go_on(thread, 0),
            Stop::Group => sys::stay_stopped(thread),
            Stop::Signal(signal) => sys::go_on(thread, signal),
        }
        // Processes started during the kill are killed too.
        if self.killed_at.is_some() && self.kill.is_some_and(|kill| kill.victim == Victim::All) {
            self.kill_all();
        }
        Ok(())
    }

    fn call(&mut self, thread: Pid) -> anyhow::Result<()> {
        let Ok((number, arguments)) = sys::call(thread) else {
            // The thread was killed meanwhile; its end is yet to be reported.
            return Ok(());
        };
        let Some(seen) = calls::counted(thread, self.root, number, arguments) else {
            sys::go_on(thread, 0);
            return Ok(());
        };
        self.calls.push(seen);
        match self.kill {
            Some(kill) if kill.at == self.calls.len() as u64 => match kill.when {
                When::Before => {
                    self.strike();
                    sys::go_on(thread, 0);
                }
                When::After => {
                    self.due = Some(thread);
                    sys::go_on_to_end_of_call(thread);
                }
            },
            _ => sys::go_on(thread, 0),
        }
        Ok(())
    }

    /// Kills, once.
    fn strike(&mut self) {
        let Some(kill) = self.kill else { return };
        let at = usize::try_from(kill.at - 1).ok().and_then(|index| self.calls.get(index));
        self.killed_at = at.cloned();
        self.due = None;
        match kill.victim {
            Victim::Engine if self.threads.contains(&self.root) => sys::kill(self.root),
            Victim::Engine => {}
            Victim::All => self.kill_all(),
        }
        self.prolong();
    }

    fn kill_all(&self) {
        self.threads.iter().for_each(|thread| sys::kill(*thread));
    }

    fn prolong(&mut self) {
        self.deadline = Instant::now() + Duration::from_secs(LEFT_SECONDS_MAX);
    }
}

fn describe(thread: Pid) -> String {
    let command = std::fs::read(format!("/proc/{thread}/cmdline")).unwrap_or_default();
    let words: Vec<_> = command.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    format!("{thread} ({})", words.join(" ").trim_end())
}
