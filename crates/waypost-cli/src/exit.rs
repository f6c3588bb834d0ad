//! Exit codes: their numbers, and the table of `--help`.

use std::fmt::Write as _;
use std::process::ExitCode;
use waypost_workflow::program::{BUDGET, LOSS, NO_RESOURCES, NO_ROOM};

/// The outcome of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Exit {
    /// The request is fulfilled, or was before.
    Done,
    /// A step failed; the run can be resumed.
    StepFailed,
    /// The command line, a parameter or a secret is wrong.
    Usage,
    /// Finished, with dead letters or tolerated failures.
    WithFailures,
    /// Evidence failed or could not be checked.
    Evidence,
    /// The object does not exist.
    NotFound,
    /// A live process holds the run.
    Locked,
    /// The store is damaged.
    Damaged,
    /// A non-idempotent step was interrupted.
    InDoubt,
    /// The workflow changed.
    Changed,
    /// The store cannot be reached.
    Unreachable,
    /// A bug.
    Internal,
    /// The system lacks descriptors, processes or memory.
    NoResources,
    /// A file or folder cannot be created.
    CannotCreate,
    /// A checkpoint cannot be written.
    CannotWrite,
    /// The run waits.
    Waiting,
    /// Written by a newer version.
    Newer,
    /// Not trusted or not permitted.
    NotTrusted,
    /// The workflow file or a configuration file is wrong.
    InvalidWorkflow,
    /// The run exceeded its time limit.
    Timeout,
    /// Stopped by SIGHUP, after the checkpoint.
    Hangup,
    /// Stopped by SIGINT, after the checkpoint.
    Interrupt,
    /// Stopped by SIGTERM, after the checkpoint.
    Terminate,
    /// The exit code of a command run by `once`.
    Command(u8),
}

impl Exit {
    /// All codes with a fixed meaning, by ascending number.
    pub(crate) const ALL: [Self; 23] = [
        Self::Done,
        Self::StepFailed,
        Self::Usage,
        Self::WithFailures,
        Self::Evidence,
        Self::NotFound,
        Self::Locked,
        Self::Damaged,
        Self::InDoubt,
        Self::Changed,
        Self::Unreachable,
        Self::Internal,
        Self::NoResources,
        Self::CannotCreate,
        Self::CannotWrite,
        Self::Waiting,
        Self::Newer,
        Self::NotTrusted,
        Self::InvalidWorkflow,
        Self::Timeout,
        Self::Hangup,
        Self::Interrupt,
        Self::Terminate,
    ];

    /// Returns the number and its meaning to a caller.
    pub(crate) const fn entry(self) -> (u8, &'static str) {
        match self {
            Self::Done => (0, "done, evidence ok; `plan`, `why`: answered"),
            Self::StepFailed => (1, "a step failed; resumable"),
            Self::Usage => (2, "usage; a missing secret or param"),
            Self::WithFailures => (3, "finished, with dead letters or tolerated failures"),
            Self::Evidence => (4, "evidence failed or unknown"),
            Self::NotFound => (5, "no such run, step, checkpoint, item"),
            Self::Locked => (6, "locked by a live process"),
            Self::Damaged => (7, "store damaged: `verify` found it, or nothing sound is left"),
            Self::InDoubt => {
                (8, "in doubt: a non-idempotent step was cut, also by a signal; needs a decision")
            }
            Self::Changed => (9, "the workflow changed, needs a choice"),
            Self::Unreachable => (69, "store not reachable"),
            Self::Internal => (70, "internal error"),
            Self::NoResources => {
                (71, "the system lacks descriptors, processes or memory: interrupted, resumable")
            }
            Self::CannotCreate => (73, "cannot create a file or folder"),
            Self::CannotWrite => (74, "cannot write a checkpoint, or the answer to stdout (disk full)"),
            Self::Waiting => (75, "waiting (approval, signal, sleep): resume later"),
            Self::Newer => (76, "newer format or schema"),
            Self::NotTrusted => (77, "not trusted, not permitted"),
            Self::InvalidWorkflow => (78, "invalid workflow or configuration file"),
            Self::Timeout => (124, "a timeout or budget of the run"),
            Self::Hangup => (129, "SIGHUP, after the checkpoint"),
            Self::Interrupt => (130, "SIGINT or `waypost stop`, after the checkpoint"),
            Self::Terminate => (143, "SIGTERM, after the checkpoint"),
            Self::Command(code) => (code, "exit code of the command, from `once`"),
        }
    }

    /// Returns the number.
    pub(crate) const fn code(self) -> u8 {
        self.entry().0
    }

    /// Returns the table for `--help`.
    pub(crate) fn table() -> String {
        let mut text = String::from("Exit codes:\n");
        for exit in Self::ALL {
            let (code, meaning) = exit.entry();
            let _ = writeln!(text, "{code:>5}  {meaning}");
        }
        text
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The requester name for a stop by timeout.
pub(crate) const TIMEOUT: &str = "the timeout of the run";

/// Returns the exit code of a run stopped by this requester. Possible requesters are a signal, the timeout,
/// the budget, a remote request, a lost supervisor and a full disk.
pub(crate) fn exit_of(by: &str) -> Exit {
    match by {
        by if by.starts_with(LOSS) => Exit::StepFailed,
        by if by.starts_with(NO_ROOM) => Exit::CannotWrite,
        by if by.starts_with(NO_RESOURCES) => Exit::NoResources,
        "SIGTERM" => Exit::Terminate,
        "SIGHUP" => Exit::Hangup,
        TIMEOUT => Exit::Timeout,
        by if by.starts_with(BUDGET) => Exit::Timeout,
        _ => Exit::Interrupt,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Exit;

    #[test]
    fn every_exit_code_stands_once_in_the_table() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();

        let distinct: BTreeSet<u8> = codes.iter().copied().collect();

        assert_eq!(distinct.into_iter().collect::<Vec<_>>(), codes, "rising and without a double");
        for exit in Exit::ALL {
            let (code, meaning) = exit.entry();
            assert!(Exit::table().contains(&format!("{code:>5}  {meaning}\n")));
        }
    }
}
