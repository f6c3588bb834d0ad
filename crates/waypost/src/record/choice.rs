//! Choices and requests of a person, which the position keeps until they are applied.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::id::{ScopePath, StepId};

/// A requested rerun of a step in a scope that is not entered yet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RerunRequest {
    /// The scope of the step.
    pub scope: ScopePath,
    /// The step.
    pub step: StepId,
    /// The effect on the scope.
    #[serde(default, skip_serializing_if = "RerunKind::is_rerun")]
    pub kind: RerunKind,
    /// The cause of the rerun.
    #[serde(default)]
    pub cause: RequestCause,
}

/// The effect of a request on the scope of its step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RerunKind {
    /// The step reruns, with all downstream steps.
    #[default]
    Rerun,
    /// The step is new and runs, with all downstream steps.
    Add,
    /// The step is new and runs; downstream results are kept.
    Insert,
    /// The step has another list of items, or was removed: its children or its siblings continue in another fan-out.
    Relist,
    /// The step failed, or steps of its children: the failed steps run again, and downstream results are compared.
    Retry,
    /// The step is not idempotent, and has begun in the run before the fork: a person is asked at its turn.
    Confirm,
}

impl RerunRequest {
    /// Creates the request of a rerun because of a changed definition.
    pub fn new(scope: ScopePath, step: StepId) -> Self {
        Self { scope, step, kind: RerunKind::Rerun, cause: RequestCause::default() }
    }
}

impl RerunKind {
    /// Returns whether downstream steps rerun.
    pub(crate) fn reruns(self) -> bool {
        matches!(self, Self::Rerun | Self::Add)
    }

    fn is_rerun(&self) -> bool {
        *self == Self::Rerun
    }
}

/// The cause of a requested rerun.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestCause {
    /// The definition of the step changed.
    #[default]
    DefinitionChanged,
    /// A person named the step.
    Requested {
        /// The person, if known.
        by: Option<String>,
    },
}

/// A choice of a person about an unfinished step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// The settlement at the step's turn.
    pub settle: SettleBy,
    /// The person.
    pub by: String,
    /// The time of the choice.
    pub at: Timestamp,
}

/// How a person settles a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettleBy {
    /// The step is skipped: the outputs are null.
    Skip,
    /// The step counts as completed with these outputs.
    Done(Map<String, Value>),
}
