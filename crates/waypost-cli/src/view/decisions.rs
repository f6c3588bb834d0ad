//! Decisions about steps: the answers of `plan` and `why`.

use jiff::Timestamp;
use serde::Serialize;
use waypost::plan::{Cause, Decision};

use super::CheckpointView;

/// The decision about a step.
#[derive(Debug, Serialize)]
pub(crate) struct DecisionView {
    pub(crate) step: String,
    #[serde(rename = "scope")]
    pub(crate) branch: String,
    pub(crate) action: &'static str,
    pub(crate) cause: CauseView,
}

/// The cause of a decision.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CauseView {
    pub(crate) code: &'static str,
    pub(crate) text: String,
    /// The upstream step.
    pub(crate) step: Option<String>,
    /// The failed or unknown claims.
    pub(crate) claims: Vec<String>,
}

/// The answer of `why`.
#[derive(Debug, Serialize)]
pub(crate) struct WhyView {
    pub(crate) v: u32,
    pub(crate) run: String,
    #[serde(flatten)]
    pub(crate) decision: DecisionView,
    /// Every execution, reuse and skip of the step, oldest first.
    pub(crate) executions: Vec<ExecutionView>,
    /// Every effective record of the step, oldest first.
    pub(crate) history: Vec<CheckpointView>,
    /// Obstacles to a resume.
    pub(crate) stops: Vec<String>,
}

/// An execution of a step, or a decision against one.
#[derive(Debug, Serialize)]
pub(crate) struct ExecutionView {
    #[serde(rename = "ref")]
    pub(crate) reference: String,
    pub(crate) action: &'static str,
    pub(crate) cause: CauseView,
    /// The deciding person, if any.
    pub(crate) by: Option<String>,
    pub(crate) at: Timestamp,
}

impl From<&Decision> for DecisionView {
    fn from(decision: &Decision) -> Self {
        Self {
            step: decision.step.to_string(),
            branch: decision.branch.to_string(),
            action: decision.action_name(),
            cause: CauseView::from(&decision.cause),
        }
    }
}

impl From<&Cause> for CauseView {
    fn from(cause: &Cause) -> Self {
        Self {
            code: cause.code(),
            text: cause.to_string(),
            step: cause.upstream().map(ToString::to_string),
            claims: cause.claims().to_vec(),
        }
    }
}
