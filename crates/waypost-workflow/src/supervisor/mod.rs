//! Steps as processes: started for the engine, ended as whole trees, and never left running.
//!
//! One supervisor process serves one run. [`Supervisor::start`] runs a program that calls [`main`]. The
//! supervisor gives every step a *reaper* (see `reaper.rs`), and all processes of the step stay below that
//! reaper. Guarantees:
//!
//! - **A step's tree dies as a whole**: [`Child::cancel`] and dropping a [`Child`] end every process that the
//!   step started. This includes double forks, new sessions and processes that ignore TERM, and excludes
//!   other steps.
//! - **Nothing outlives the run**: when the engine ends, even by `kill -9`, every process of every step is
//!   killed. Only then is the run's lock released. The same holds when the supervisor or a reaper is killed.
//!   If all of them are killed at once, the next holder of the lock finds the rest with [`kill_leftovers`].
//! - **A step gets exactly the given environment**: arguments, variables, folder, streams. It has no other
//!   descriptor, no terminal, and no ignored or blocked signal.
//!
//! Background processes of a step stay alive after the main process ended, until the step is cancelled or the
//! run ends.
//!
//! Not covered: processes started through another service, outside the process tree (`docker run -d`,
//! `systemd-run`, `at`). Processes that this user may not kill (`sudo`) are waited for.
//!
//! Deliberately does not know workflows, stores, logs or timeouts.
//!
//! Other systems than Linux have no child sub-reaper. There a step is a process group, and processes outside
//! the group are not found. After `kill -9` of the engine only [`kill_leftovers`] may find the rest.

#[cfg(target_os = "linux")]
mod channel;
#[cfg(target_os = "linux")]
mod child;
#[cfg(target_os = "linux")]
mod engine;
#[cfg(target_os = "linux")]
mod exec;
#[cfg(target_os = "linux")]
mod leftovers;
#[cfg(not(target_os = "linux"))]
mod portable;
#[cfg(target_os = "linux")]
mod reaper;
#[cfg(target_os = "linux")]
mod serve;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod tree;
#[cfg(target_os = "linux")]
mod wire;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(target_os = "linux")]
pub use self::{
    child::Child,
    engine::Supervisor,
    leftovers::{kill_leftovers, leftovers},
    serve::main,
};

#[cfg(not(target_os = "linux"))]
pub use self::portable::{
    GroupChild as Child, GroupSupervisor as Supervisor, kill_leftovers, leftovers, main,
};

/// Name of a supervisor process. Without "waypost": `pkill waypost` must end engines only, so that
/// supervisors can clean up.
#[cfg(target_os = "linux")]
const SUPERVISOR_NAME: &str = "wp-supervisor";

/// Name of a reaper process.
#[cfg(target_os = "linux")]
const REAPER_NAME: &str = "wp-reaper";

/// Program that runs as the supervisor: it must call [`main`] before it starts a thread.
#[derive(Debug, Clone)]
pub struct SupervisorProgram {
    /// File to run; searched in `PATH` if it has no slash.
    pub path: PathBuf,
    /// First argument of the program, if not the path.
    pub arg0: Option<OsString>,
    /// Arguments.
    pub args: Vec<OsString>,
}

impl SupervisorProgram {
    /// Returns the running program itself, with `args`.
    ///
    /// On Linux this is the running file, even if replaced on disk.
    ///
    /// # Errors
    /// The system does not report the path of the running program.
    pub fn this_program(args: impl IntoIterator<Item = impl Into<OsString>>) -> io::Result<Self> {
        let path = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
        Ok(Self { path, arg0: std::env::args_os().next(), args: args.into_iter().map(Into::into).collect() })
    }
}

/// Process of a step, before its start.
#[derive(Debug)]
pub struct StepProcess {
    /// Command and arguments. A command without a slash is searched in the `PATH` of `env`.
    pub argv: Vec<OsString>,
    /// Complete environment: nothing is added.
    pub env: Vec<(OsString, OsString)>,
    /// Working folder; a relative path starts at the engine's working folder.
    pub dir: PathBuf,
    /// Standard input.
    pub stdin: Stdin,
    /// Standard output and error.
    pub output: Output,
}

/// Standard input of a step.
#[derive(Debug, Default)]
pub enum Stdin {
    /// Empty.
    #[default]
    Empty,
    /// Bytes, kept in memory until the step has ended; never blocks the engine.
    Bytes(Vec<u8>),
    /// Open file, pipe or socket.
    File(OwnedFd),
}

/// How a step's standard output and error reach the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// Two pipes; the order between the streams is approximate.
    #[default]
    Separate,
    /// One pipe, in the exact order of the writes, as [`Child::stdout`].
    Merged,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Exit with this code.
    Code(i32),
    /// Signal with this number.
    Signal(i32),
}

impl Exit {
    /// Returns whether the process exited with code 0.
    #[must_use]
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    /// Returns the exit code: after signal N, 128 + N, as a shell reports it.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => SIGNAL_BASE + signal,
        }
    }

    /// Returns the signal that ended the process or the shell's last command.
    #[must_use]
    pub fn signal(self) -> Option<i32> {
        Some(self.code() - SIGNAL_BASE).filter(|signal| (1..=SIGNAL_MAX).contains(signal))
    }
}

/// Offset of the exit code of a shell whose last command ended by a signal (POSIX, "Exit Status for
/// Commands").
const SIGNAL_BASE: i32 = 128;
/// Largest signal number on Linux, real-time signals included.
const SIGNAL_MAX: i32 = 64;

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Environment variable with the soft limit of descriptors of steps, for the supervisor.
const STEP_DESCRIPTORS: &str = "WAYPOST_STEP_DESCRIPTORS";
/// Soft limit of descriptors of steps; 0 for that of the supervisor.
static DESCRIPTORS: AtomicU64 = AtomicU64::new(0);

/// Sets the soft limit of descriptors of steps, after this process raised its own limit.
pub fn give_steps_descriptors(soft_limit: Option<u64>) {
    DESCRIPTORS.store(soft_limit.unwrap_or(0), Ordering::Relaxed);
}

/// Why the supervisor cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// The program could not be started. Nothing was started.
    #[error("cannot start the supervisor `{}`", program.display())]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// System error.
        source: io::Error,
    },
    /// The program was started but does not serve: it ended, did not answer in time, or has another version.
    /// It has been killed. Check that it calls [`main`].
    #[error("cannot use the supervisor `{}`: {reason}", program.display())]
    NotServing {
        /// Path of the program.
        program: PathBuf,
        /// Observed behaviour.
        reason: &'static str,
    },
    /// The supervisor is gone, killed or shut down. The reapers have killed or are killing the processes of
    /// all steps. Start another supervisor to continue.
    #[error("the supervisor of the run has exited")]
    Ended,
    /// The reaper of this step was killed. All processes of the step have been killed. Other steps are not
    /// affected.
    #[error("the process that supervised the step was killed")]
    ReaperKilled,
    /// The engine has no descriptors or memory left for a message. Nothing was started.
    #[error("cannot reach the supervisor")]
    Channel(#[source] io::Error),
}

/// Why a step's process was not started. No process is left.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The command does not exist, neither as a file nor, without a slash, in the `PATH` of the step.
    #[error("command `{}` not found", command.display())]
    CommandNotFound {
        /// Command as given.
        command: OsString,
    },
    /// The command exists but cannot be run: not executable, a folder, or on a file system without programs.
    #[error("command `{}` is not executable", command.display())]
    CommandNotExecutable {
        /// Command as given.
        command: OsString,
        /// System error.
        source: io::Error,
    },
    /// The command exists, but the interpreter in its first line does not.
    #[error("command `{}` needs a missing interpreter", command.display())]
    InterpreterNotFound {
        /// Command as given.
        command: OsString,
    },
    /// The folder does not exist.
    #[error("folder `{}` not found", dir.display())]
    DirNotFound {
        /// Folder.
        dir: PathBuf,
    },
    /// The folder cannot be entered: not a folder, or no permission.
    #[error("cannot enter folder `{}`", dir.display())]
    DirNotUsable {
        /// Folder.
        dir: PathBuf,
        /// System error.
        source: io::Error,
    },
    /// Arguments and environment are longer than the system accepts.
    #[error("cannot start command `{}`: arguments and environment have {bytes} bytes, over the limit of \
             the system: pass long values by `stdin:`, and items by `items_file`", command.display())]
    TooLong {
        /// Command as given.
        command: OsString,
        /// Length in bytes.
        bytes: usize,
    },
    /// A string cannot be passed to a process. It has a zero byte, or is an invalid variable name: empty, or
    /// with an equals sign. Shown up to the first zero byte; a variable by its name only.
    #[error("cannot pass `{}` to a process", what.display())]
    InvalidString {
        /// Argument, variable name or folder.
        what: OsString,
    },
    /// The command is missing.
    #[error("a process of a step needs a command")]
    NoCommand,
    /// The system could not make the process: too many processes or descriptors, or no memory. Try again
    /// later.
    #[error("cannot start command `{}`", command.display())]
    System {
        /// Command as given.
        command: OsString,
        /// System error.
        source: io::Error,
    },
    /// The supervisor cannot serve.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
}

/// Why leftovers could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum LeftoversError {
    /// Some processes do not die. Do not start the run's steps again while these live.
    #[error("processes {pids:?} of the run do not end after SIGKILL")]
    Stuck {
        /// Process ids.
        pids: Vec<u32>,
    },
    /// The list of processes cannot be read.
    #[error("cannot list the processes of this machine")]
    List(#[source] io::Error),
}
