//! What a remembered command cannot do.

use waypost::RunId;
use waypost::lock::{Holder, LockError};
use waypost::recorder;
use waypost_workflow::supervisor::{SpawnError, SupervisorError};

use crate::exit::Exit;

/// Why `once` did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OnceError {
    /// Neither the option nor the variable is there.
    #[error("no run is named: a key belongs to a run of a script, and nobody said which")]
    NoRun,
    /// The run is none of a script.
    #[error("run {0} is not one of a script: another program made it")]
    OfAnother(RunId),
    /// The run has ended, and has no result for the key.
    #[error("run {run} has ended, and has no result of `{key}`")]
    Finished {
        /// The run.
        run: RunId,
        /// The key.
        key: String,
    },
    /// A command that is remembered calls for another one.
    #[error("`{outer}` of run {run} is under way around it, and waits for its end")]
    Nested {
        /// The run.
        run: RunId,
        /// The step that is under way.
        outer: String,
    },
    /// The store keeps nothing beside its records.
    #[error("the store cannot keep what a command prints: it has no folder")]
    NoFolder,
    /// Another process does the command of the same key.
    #[error("`{key}` of run {run} is under way, by {holder}")]
    UnderWay {
        /// The run.
        run: RunId,
        /// The key.
        key: String,
        /// Who does it.
        holder: Box<Holder>,
    },
    /// The lock of the key cannot be made.
    #[error("cannot lock `{key}`")]
    Lock {
        /// The key.
        key: String,
        /// Why.
        source: LockError,
    },
    /// The key stands for another command.
    #[error("`{key}` of run {run} is done, by another command than this one")]
    Changed {
        /// The run.
        run: RunId,
        /// The key.
        key: String,
    },
    /// What was printed is not there any more as it was.
    #[error("what was printed, `{blob}` of run {run}, is not there any more as it was recorded")]
    Damaged {
        /// The run.
        run: RunId,
        /// Where it was.
        blob: String,
    },
    /// The state cannot be read.
    #[error("cannot read the state of {at}: {why}")]
    Unreadable {
        /// The checkpoint.
        at: String,
        /// Why.
        why: String,
    },
    /// There are too many keys.
    #[error("run {run} remembers {count} commands, and cannot remember more")]
    TooMany {
        /// The run.
        run: RunId,
        /// How many.
        count: usize,
    },
    /// The command printed more than is kept.
    #[error("`{key}` printed more than {max_mib} MiB to one stream, and was ended")]
    TooLarge {
        /// The key.
        key: String,
        /// How much is kept.
        max_mib: u64,
    },
    /// The supervisor cannot be started, or was killed.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The command cannot be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// What an earlier process of the run left cannot be ended.
    #[error("cannot end what an earlier command of run {run} left behind")]
    Leftovers {
        /// The run.
        run: RunId,
        /// Why.
        source: waypost_workflow::supervisor::LeftoversError,
    },
    /// The records.
    #[error(transparent)]
    Recorder(recorder::Error),
}

impl OnceError {
    /// Returns its code word, how the command ends, and what to do next.
    pub(crate) fn kind(&self) -> (&'static str, Exit, Option<String>) {
        let hint = |text: &str| Some(text.to_owned());
        match self {
            Self::NoRun => (
                "usage",
                Exit::Usage,
                hint(
                    "put `export WAYPOST_SCRIPT_RUN=name` at the top of the script, or say `--id name`; another name begins anew",
                ),
            ),
            Self::OfAnother(_) => ("usage", Exit::Usage, hint("name another run")),
            Self::Finished { run, .. } => (
                "finished",
                Exit::Usage,
                Some(format!("name another run to begin anew, or remove this one: `waypost delete {run}`")),
            ),
            Self::Nested { .. } => (
                "locked",
                Exit::Locked,
                hint("give the inner one a run of its own with `--id`, or leave the outer one away"),
            ),
            Self::NoFolder => {
                ("usage", Exit::Usage, hint("name one that lasts: `sqlite:PATH` or `file:DIR`"))
            }
            Self::UnderWay { .. } => {
                ("locked", Exit::Locked, hint("wait for its end: call it without `--wait`"))
            }
            Self::Lock { .. } => ("cannot_write", Exit::CannotWrite, None),
            Self::Changed { .. } => (
                "changed",
                Exit::Changed,
                hint(
                    "`--keep` gives what is remembered all the same, `--redo` runs this command and remembers that; or choose another key",
                ),
            ),
            Self::Damaged { .. } => {
                ("damaged", Exit::Damaged, hint("`--redo` runs the command again and remembers that"))
            }
            Self::Unreadable { .. } => ("damaged", Exit::Damaged, None),
            Self::TooMany { .. } => (
                "too_many",
                Exit::Usage,
                hint("one command may do more: a loop within it, or a workflow file"),
            ),
            Self::TooLarge { .. } => {
                ("too_large", Exit::StepFailed, hint("let the command write to a file, and print little"))
            }
            Self::Supervisor(_) => {
                ("interrupted", Exit::StepFailed, hint("nothing was remembered; call it again"))
            }
            // As a shell says it.
            Self::Spawn(SpawnError::CommandNotFound { command }) => {
                let name = command.to_string_lossy();
                let help = format!(
                    "a shell function is no program: `export -f {name}`, then `waypost once KEY -- bash -c {name}`"
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
                ("unfinished", Exit::Usage, hint("call the script again until all of it is done"))
            }
            Self::Recorder(recorder::Error::Write { .. }) => ("cannot_write", Exit::CannotWrite, None),
            Self::Recorder(recorder::Error::Driven(_)) => ("usage", Exit::Usage, hint("name another run")),
            Self::Recorder(_) => ("internal", Exit::Internal, None),
        }
    }
}
