//! Runs a command, counts the calls that change something, and kills it before or after one of them.
//!
//! The count goes over all threads and over all processes that the command starts, in the order in which the kernel
//! reports them, so that one number names one moment of the whole. It is not the same to the last digit each time: two
//! processes that run side by side may swap. That makes other moments, not wrong ones.
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

/// How long a command may take that is not killed. Its steps take milliseconds.
const RUN_SECONDS_MAX: u64 = 60;

/// How long the rest may go on after the kill. A supervisor needs some tens of milliseconds; more than this means
/// that something was left behind.
const LEFT_SECONDS_MAX: u64 = 5;

/// Which side of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum When {
    /// The call is not made.
    Before,
    /// The call was made, and its answer not yet seen.
    After,
}

/// Who dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Victim {
    /// The engine alone, as by `kill -9`: its supervisor must clean up.
    Engine,
    /// Everything at once, as when a container is killed.
    All,
}

/// Where programs are looked for: the fewer folders, the fewer calls that show nothing, and the same on every machine.
pub(super) const SEARCHED: &str = "/usr/bin:/bin";

/// When to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kill {
    /// The number of the call, from 1.
    pub(crate) at: u64,
    pub(crate) when: When,
    pub(crate) victim: Victim,
}

/// What became of the command.
#[derive(Debug)]
pub(crate) struct Traced {
    /// Its exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// All calls that counted.
    pub(crate) calls: Vec<Seen>,
    /// The call that it was killed at, if it came so far.
    pub(crate) killed_at: Option<Seen>,
    /// The processes that were still there long after its end, and had to be killed.
    pub(crate) left: Vec<String>,
}

/// A command to trace.
#[derive(Debug)]
pub(crate) struct Traceable<'a> {
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
    /// The folder that it runs in, and puts its temporary files into.
    pub(crate) folder: &'a Path,
    /// Where its stdout and stderr go.
    pub(crate) stdout: File,
    pub(crate) stderr: File,
}

/// Runs the command to its end, or to its death and the end of all that it started.
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

/// What `xtask trace-me` does: waits for the tracer, and becomes the command. It returns only if it cannot.
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
    /// The thread whose call is to be followed by the kill.
    due: Option<Pid>,
    killed_at: Option<Seen>,
    code: Option<i32>,
    /// When everything must have ended.
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
            // A call that makes a process, or turns this one into another program, stops in its middle too.
            Stop::Event if self.due == Some(thread) => sys::go_on_to_end_of_call(thread),
            Stop::Event => sys::go_on(thread, 0),
            Stop::Group => sys::stay_stopped(thread),
            Stop::Signal(signal) => sys::go_on(thread, signal),
        }
        // What is started while everything is being killed is killed as well.
        if self.killed_at.is_some() && self.kill.is_some_and(|kill| kill.victim == Victim::All) {
            self.kill_all();
        }
        Ok(())
    }

    fn call(&mut self, thread: Pid) -> anyhow::Result<()> {
        let Ok((number, arguments)) = sys::call(thread) else {
            // It was killed since; its end is yet to be reported.
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
