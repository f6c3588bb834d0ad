//! Requests of a person, which a resume applies before it looks at evidence.

use super::definition::{Name, StepPath, Steps};

/// What a person asks of a resume.
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
    /// Back to the position after that commit.
    Rollback(usize),
}

/// Another definition, with a choice for each changed step.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// The steps.
    pub steps: Steps,
    /// Changed steps that run again.
    pub rerun_changed: Vec<Name>,
    /// Changed steps whose results are accepted.
    pub keep_finished: Vec<Name>,
}
