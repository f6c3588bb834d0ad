//! The errors of `waypost once`.

use waypost::RunId;
use waypost::lock::{Holder, LockError};
use waypost::recorder;
use waypost_workflow::supervisor::{SpawnError, SupervisorError};

use crate::exit::Exit;

/// Why `once` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OnceError {
    /// Neither the option nor the variable names a run.
    #[error("cannot find the run of the key: no run is named")]
    NoRun,
    /// The run does not belong to a script.
    #[error("cannot use run {0}: it was not created by `waypost once`")]
    OfAnother(RunId),
    /// The run has ended, and has no result for the key.
    #[error("run {run} is finished, and has no result of `{key}`")]
    Finished {
        /// The run.
        run: RunId,
        /// The key.
        key: String,
    },
    /// A command of `once` calls `once` for the same run.
    #[error("cannot start inside `{outer}` of run {run}: `{outer}` holds the lock until its end")]
    Nested {
        /// The run.
        run: RunId,
        /// The running step.
        outer: String,
    },
    /// The store has no folder for output and locks.
    #[error("cannot keep the output of a command: the store has no folder")]
    NoFolder,
    /// Another process runs the command of the same key.
    #[error("`{key}` of run {run} is running, held by {holder}")]
    UnderWay {
        /// The run.
        run: RunId,
        /// The key.
        key: String,
        /// The other process.
        holder: Box<Holder>,
    },
    /// The lock of the key cannot be taken.
    #[error("cannot lock `{key}`")]
    Lock {
        /// The key.
        key: String,
        /// The cause.
        source: LockError,
    },
    /// The recorded result of the key belongs to another command.
    #[error("`{key}` of run {run} was finished by another command")]
    Changed {
        /// The run.
        run: RunId,
        /// The key.
        key: String,
    },
    /// The stored output is missing or changed.
    #[error("cannot replay the output: `{blob}` of run {run} is missing or changed")]
    Damaged {
        /// The run.
        run: RunId,
        /// The blob with the output.
        blob: String,
    },
    /// The state cannot be read.
    #[error("cannot read the state of {at}: {why}")]
    Unreadable {
        /// The checkpoint.
        at: String,
        /// The cause.
        why: String,
    },
    /// The run has too many keys.
    #[error("run {run} has results of {count} commands, the maximum")]
    TooMany {
        /// The run.
        run: RunId,
        /// The number of keys.
        count: usize,
    },
    /// The output of the command exceeds the limit.
    #[error("stopped `{key}`: it printed more than {max_mib} MiB to one stream")]
    TooLarge {
        /// The key.
        key: String,
        /// The limit.
        max_mib: u64,
    },
    /// The supervisor cannot be started, or was killed.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The command cannot be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The remaining processes of an earlier command of the run cannot be ended.
    #[error("cannot end the remaining processes of an earlier command of run {run}")]
    Leftovers {
        /// The run.
        run: RunId,
        /// The cause.
        source: waypost_workflow::supervisor::LeftoversError,
    },
    /// An error of the recorder.
    #[error(transparent)]
    Recorder(recorder::Error),
}

impl OnceError {
    /// Returns the code word, the exit code and a hint.
    pub(crate) fn kind(&self) -> (&'static str, Exit, Option<String>) {
        let hint = |text: &str| Some(text.to_owned());
        match self {
            Self::NoRun => (
                "usage",
                Exit::Usage,
                hint("put `export WAYPOST_SCRIPT_RUN=name` at the top of the script, or give `--id name`"),
            ),
            Self::OfAnother(_) => ("usage", Exit::Usage, hint("name another run")),
            Self::Finished { run, .. } => (
                "finished",
                Exit::Usage,
                Some(format!("name another run to start over, or delete this one: `waypost delete {run}`")),
            ),
            Self::Nested { .. } => (
                "locked",
                Exit::Locked,
                hint(
                    "name another run for the inner command with `--id`, or remove the outer `waypost once`",
                ),
            ),
            Self::NoFolder => {
                ("usage", Exit::Usage, hint("name a store on disk: `sqlite:PATH` or `file:DIR`"))
            }
            Self::UnderWay { .. } => {
                ("locked", Exit::Locked, hint("repeat without `--wait` to wait for its end"))
            }
            Self::Lock { .. } => ("cannot_write", Exit::CannotWrite, None),
            Self::Changed { .. } => (
                "changed",
                Exit::Changed,
                hint(
                    "`--keep` replays the recorded result, `--redo` runs this command and records its \
                     result; or choose another key",
                ),
            ),
            Self::Damaged { .. } => {
                ("damaged", Exit::Damaged, hint("`--redo` reruns the command and records its result"))
            }
            Self::Unreadable { .. } => ("damaged", Exit::Damaged, None),
            Self::TooMany { .. } => (
                "too_many",
                Exit::Usage,
                hint("combine commands: use a loop inside one command, or a workflow file"),
            ),
            Self::TooLarge { .. } => {
                ("too_large", Exit::StepFailed, hint("redirect the output of the command to a file"))
            }
            Self::Supervisor(_) => {
                ("interrupted", Exit::StepFailed, hint("nothing was recorded; repeat the command"))
            }
            // The exit codes of a shell.
            Self::Spawn(SpawnError::CommandNotFound { command }) => {
                let name = command.to_string_lossy();
                let help = format!(
                    "a shell function is not a program: `export -f {name}`, then `waypost once KEY -- bash \
                     -c {name}`"
                );
                let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                    && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
                ("command_not_found", Exit::Command(127), is_name.then_some(help))
            }
            Self::Spawn(SpawnError::InterpreterNotFound { .. }) => {
                ("command_not_found", Exit::Command(127), None)
            }
            Self::Spawn(SpawnError::CommandNotExecutable { .. }) => {
                ("command_not_executable", Exit::Command(126), None)
            }
            Self::Spawn(_) => ("cannot_start", Exit::StepFailed, None),
            Self::Leftovers { .. } => ("cannot_begin", Exit::Internal, None),
            Self::Recorder(recorder::Error::Unfinished { .. }) => {
                ("unfinished", Exit::Usage, hint("call the script again until every key is finished"))
            }
            Self::Recorder(recorder::Error::Write { .. }) => ("cannot_write", Exit::CannotWrite, None),
            Self::Recorder(recorder::Error::Driven(_)) => ("usage", Exit::Usage, hint("name another run")),
            Self::Recorder(_) => ("internal", Exit::Internal, None),
        }
    }
}
