//! Steps as processes: started for the engine, ended as whole trees, and never left behind.
//!
//! One supervisor process serves one run. The engine starts it with [`Supervisor::start`], which runs a program that
//! calls [`main`]; every step then gets a *reaper* from it (see `reaper.rs`), and all processes that come from the
//! step stay below that reaper. This promises:
//!
//! - **A step's tree dies as a whole**: [`Child::cancel`] and dropping a [`Child`] end every process that the step
//!   started, double-forked, in a session of its own, or deaf to TERM, and none of another step.
//! - **Nothing outlives the run**: when the engine ends, even by `kill -9`, every process of every step is
//!   killed, and only then is the run's lock let go. The same holds when the supervisor or a reaper is killed. When all
//!   of them are killed in the same moment, the next holder of the lock finds the rest with [`kill_leftovers`].
//! - **A step gets exactly what it was given**: arguments, environment, folder, streams; no other descriptor, no
//!   terminal, no signal ignored or blocked.
//!
//! What a step left in the background when its main process ended lives on until the step is cancelled or the run
//! ends. What leaves the machine's process tree altogether, by asking another service to start it (`docker run -d`,
//! `systemd-run`, `at`), is beyond all this. So is what may not be killed by this user (`sudo`): it is waited for.
//!
//! It deliberately does not know workflows, stores, logs or timeouts.
//!
//! On systems other than Linux there is no child sub-reaper: there a step is its process group, what leaves the
//! group is not found, and what `kill -9` of the engine leaves is found by [`kill_leftovers`] at best.

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
    leftovers::{LeftoversError, kill_leftovers, leftovers},
    serve::main,
};

#[cfg(not(target_os = "linux"))]
pub use self::portable::{Child, LeftoversError, Supervisor, kill_leftovers, leftovers, main};

/// The name that a supervisor process shows. Without "waypost", so that `pkill waypost` ends engines, whose
/// supervisors then clean up, and not the supervisors themselves.
#[cfg(target_os = "linux")]
const SUPERVISOR_NAME: &str = "wp-supervisor";

/// The name that a reaper process shows.
#[cfg(target_os = "linux")]
const REAPER_NAME: &str = "wp-reaper";

/// The program that is run as the supervisor: it must call [`main`] before it starts a thread.
#[derive(Debug, Clone)]
pub struct SupervisorProgram {
    /// The file to run; looked for in `PATH` if it has no slash.
    pub path: PathBuf,
    /// Its name as it sees it itself, if not the path.
    pub arg0: Option<OsString>,
    /// Its arguments.
    pub args: Vec<OsString>,
}

impl SupervisorProgram {
    /// Names the running program itself, with those arguments.
    ///
    /// On Linux this is the very file that runs now, even if another one has been installed in its place meanwhile.
    ///
    /// # Errors
    /// The system does not tell where the running program is.
    pub fn this_program(args: impl IntoIterator<Item = impl Into<OsString>>) -> io::Result<Self> {
        let path = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
        Ok(Self { path, arg0: std::env::args_os().next(), args: args.into_iter().map(Into::into).collect() })
    }
}

/// A step's process, as it is to be started.
#[derive(Debug)]
pub struct StepProcess {
    /// The command and its arguments. A command without a slash is looked for in the `PATH` of `env`.
    pub argv: Vec<OsString>,
    /// The whole environment: nothing else is added.
    pub env: Vec<(OsString, OsString)>,
    /// The folder it runs in; a relative one is relative to the engine's own.
    pub dir: PathBuf,
    /// What it reads.
    pub stdin: Stdin,
    /// Where it writes.
    pub output: Output,
}

/// What a step reads from its standard input.
#[derive(Debug, Default)]
pub enum Stdin {
    /// Nothing.
    #[default]
    Empty,
    /// These bytes. They are kept in memory until the step has ended, and never block the engine.
    Bytes(Vec<u8>),
    /// An open file, pipe or socket.
    File(OwnedFd),
}

/// How a step's standard output and error reach the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// Each through a pipe of its own; their order to each other is only about right.
    #[default]
    Separate,
    /// Both through one pipe, in the exact order in which they were written, as [`Child::stdout`].
    Merged,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By a signal, with this number.
    Signal(i32),
}

impl Exit {
    /// Says whether the process ended by itself with code 0.
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

    /// Returns the signal of an end by a signal, of the process or of the last command of its shell.
    #[must_use]
    pub fn signal(self) -> Option<i32> {
        Some(self.code() - SIGNAL_BASE).filter(|signal| (1..=SIGNAL_MAX).contains(signal))
    }
}

/// The exit code of a shell whose last command a signal N ended is this much more than N (POSIX, "Exit Status for Commands").
const SIGNAL_BASE: i32 = 128;
/// The largest number of a signal on Linux, real-time signals included.
const SIGNAL_MAX: i32 = 64;

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// The environment variable with the soft limit of descriptors of steps, for the supervisor.
const STEP_DESCRIPTORS: &str = "WAYPOST_STEP_DESCRIPTORS";
/// The soft limit of descriptors of steps; 0 for that of the supervisor.
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
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The program was started but does not serve: it ended, did not answer in time, or is of another version. It
    /// has been killed. Check that it calls [`main`].
    #[error("the supervisor `{}` does not serve: {reason}", program.display())]
    NotServing {
        /// The program.
        program: PathBuf,
        /// What it did.
        reason: &'static str,
    },
    /// The supervisor is gone, killed or shut down. Its reapers have killed or are killing the processes of all steps;
    /// to go on, start another one.
    #[error("the supervisor of the run has ended")]
    Ended,
    /// The reaper of this step was killed. All processes of the step have been killed. Other steps are not touched.
    #[error("the process that supervised the step was killed")]
    ReaperKilled,
    /// The engine has no descriptors or memory left for a message. Nothing was started.
    #[error("cannot talk to the supervisor")]
    Channel(#[source] io::Error),
}

/// Why a step's process was not started. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// There is no such command, neither as a file nor, without a slash, in the `PATH` that the step would have.
    #[error("command `{}` not found", command.display())]
    CommandNotFound {
        /// The command as given.
        command: OsString,
    },
    /// The command is there but cannot be run: it is not executable, a folder, or on a file system without programs.
    #[error("command `{}` is not executable", command.display())]
    CommandNotExecutable {
        /// The command as given.
        command: OsString,
        /// What the system said.
        source: io::Error,
    },
    /// The command is there, but the interpreter that its first line names is not.
    #[error("command `{}` needs an interpreter that is not there", command.display())]
    InterpreterNotFound {
        /// The command as given.
        command: OsString,
    },
    /// The folder is not there.
    #[error("folder `{}` not found", dir.display())]
    DirNotFound {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder cannot be entered: not a folder, or no permission.
    #[error("cannot enter folder `{}`", dir.display())]
    DirNotUsable {
        /// The folder.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Arguments and environment are longer than the system takes.
    #[error("command `{}` has {bytes} bytes of arguments and environment, more than the system takes: pass a long value by `stdin:`, and the items of a step by `items_file`", command.display())]
    TooLong {
        /// The command as given.
        command: OsString,
        /// Their length.
        bytes: usize,
    },
    /// A string that no process can be given: with a zero byte in it, or a variable's name that is empty or has an
    /// equals sign. It is named up to the first zero byte; a variable by its name only.
    #[error("`{}` cannot be passed to a process", what.display())]
    InvalidString {
        /// The argument, variable name or folder.
        what: OsString,
    },
    /// There was no command at all.
    #[error("a step's process needs a command")]
    NoCommand,
    /// The system could not make the process: too many processes or descriptors, or no memory. Try again later.
    #[error("cannot start command `{}`", command.display())]
    System {
        /// The command as given.
        command: OsString,
        /// What the system said.
        source: io::Error,
    },
    /// The supervisor cannot serve.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
}
