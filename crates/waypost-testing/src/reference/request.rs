//! Requests of a person, applied at the start of a resume.

use std::fmt;

use super::definition::{Name, StepPath, Steps};

/// A request for a resume.
#[derive(Debug, Clone, Default)]
pub enum Request {
    /// Nothing.
    #[default]
    None,
    /// Another definition.
    Adopt(Adoption),
    /// Failed and tolerated steps at any depth run again.
    RetryFailed,
    /// A step and all steps downstream run again.
    From(StepPath),
    /// A step ends as skipped at its turn.
    Skip(StepPath),
    /// Returns to the position after this commit.
    Rollback(usize),
}

/// A new definition, with a choice for each changed step.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// The steps.
    pub steps: Steps,
    /// Changed steps that run again.
    pub rerun_changed: Vec<Name>,
    /// Changed steps whose results are accepted.
    pub keep_finished: Vec<Name>,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "no request"),
            Self::Adopt(adoption) => {
                let Adoption { rerun_changed, keep_finished, .. } = adoption;
                write!(f, "--rerun-changed {rerun_changed:?} --keep-finished {keep_finished:?}")
            }
            Self::RetryFailed => write!(f, "--retry-failed"),
            Self::From(path) => write!(f, "--from {path:?}"),
            Self::Skip(path) => write!(f, "--skip {path:?}"),
            Self::Rollback(commit) => write!(f, "rollback to commit {commit}"),
        }
    }
}
