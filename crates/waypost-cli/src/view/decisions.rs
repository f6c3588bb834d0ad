//! Decisions about steps: the answers of `plan` and `why`.

use jiff::Timestamp;
use serde::Serialize;
use waypost::events::RerunCause;
use waypost::plan::{Cause, Decision};
use waypost::record::{Claim, Pack, SkipCause, Verdict};
use waypost_workflow::file::{FAILED, SUCCEEDED};
use waypost_workflow::program::WAITS;

use super::{CheckpointView, ClaimView};

/// The decision about a step.
#[derive(Debug, Serialize)]
pub(crate) struct DecisionView {
    pub(crate) step: String,
    pub(crate) scope: String,
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
    /// The failed claims with expectation and finding, as recorded at the decision.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) evidence: Vec<ClaimView>,
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

/// The answer of `why` for the run of a program, which alone plans a resume.
#[derive(Debug, Serialize)]
pub(crate) struct ExecutedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) step: String,
    pub(crate) scope: String,
    pub(crate) executions: Vec<ExecutionView>,
    pub(crate) history: Vec<CheckpointView>,
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
            scope: decision.scope.to_string(),
            action: decision.action_name(),
            cause: CauseView::from(&decision.cause),
        }
    }
}

impl From<&Cause> for CauseView {
    fn from(cause: &Cause) -> Self {
        if let Cause::ConditionFalse(condition) = cause {
            return Self::from(&SkipCause::Condition(condition.clone()));
        }
        Self {
            code: cause.code(),
            text: cause.to_string(),
            step: cause.upstream().map(ToString::to_string),
            claims: cause.claims().to_vec(),
            evidence: Vec::new(),
        }
    }
}

impl CauseView {
    /// Returns the cause of a rerun for failed evidence. `checked`: the claims of the step as verified at the decision.
    pub(crate) fn of_evidence(titles: Vec<String>, checked: Option<&Pack>) -> Self {
        let failed = checked.into_iter().flat_map(|pack| &pack.claims);
        let failed: Vec<&Claim> = failed.filter(|claim| claim.verdict == Verdict::Failed).collect();
        let cause = Self::from(&Cause::EvidenceFailed(titles));
        if failed.is_empty() {
            return cause;
        }
        let findings = failed.iter().map(|claim| claim.describe()).collect::<Vec<_>>().join("; ");
        let evidence = failed.into_iter().map(ClaimView::of).collect();
        Self { text: format!("evidence no longer holds: {findings}"), evidence, ..cause }
    }

    /// Returns the cause of reruns after a rollback.
    pub(crate) fn of_rollback() -> Self {
        Self { text: "the run was rolled back".to_owned(), ..Self::named("requested", None) }
    }

    /// Creates a cause from a code and an upstream step.
    pub(crate) fn named(code: &'static str, step: Option<String>) -> Self {
        let text = match (code, &step) {
            ("first", _) => "first execution".to_owned(),
            ("cut", _) => "the previous attempt was cut: its end is not recorded".to_owned(),
            ("retry", _) => "the previous attempt failed".to_owned(),
            ("requested", _) => "requested by a person".to_owned(),
            ("definition_changed", _) => "the definition of the step changed".to_owned(),
            ("condition_false", Some(step)) => format!("upstream `{step}` is skipped"),
            ("upstream_failed", Some(step)) => format!("upstream `{step}` failed"),
            ("upstream_changed", Some(step)) => format!("upstream changed: `{step}`"),
            ("upstream_changed", None) => "the input of its scope changed".to_owned(),
            (code, _) => code.replace('_', " "),
        };
        Self { code, text, step, claims: Vec::new(), evidence: Vec::new() }
    }
}

impl From<&SkipCause> for CauseView {
    fn from(cause: &SkipCause) -> Self {
        match cause {
            SkipCause::Condition(condition) => {
                let text = match condition.as_str() {
                    SUCCEEDED => "runs only after success".to_owned(),
                    FAILED => "runs only after a failure".to_owned(),
                    WAITS => "the step no longer waits".to_owned(),
                    condition => format!("`{condition}` is false"),
                };
                Self { text, ..Self::named("condition_false", None) }
            }
            SkipCause::Need(need) => Self::named("condition_false", Some(need.to_string())),
            SkipCause::ByHand(by) => {
                Self { text: format!("skipped by {by}"), ..Self::named("settled", None) }
            }
            SkipCause::UpstreamFailed(failed) => Self::named("upstream_failed", Some(failed.to_string())),
        }
    }
}

impl From<&RerunCause> for CauseView {
    fn from(cause: &RerunCause) -> Self {
        match cause {
            RerunCause::EvidenceFailed { claims } => Self::from(&Cause::EvidenceFailed(claims.clone())),
            RerunCause::UpstreamChanged { step } => {
                Self::named("upstream_changed", step.as_ref().map(ToString::to_string))
            }
            RerunCause::DefinitionChanged => Self::named("definition_changed", None),
            RerunCause::Requested { by_rollback: true, .. } => Self::of_rollback(),
            RerunCause::Requested { by, .. } => {
                let by = by.as_deref().unwrap_or("a person");
                Self { text: format!("rerun requested by {by}"), ..Self::named("requested", None) }
            }
        }
    }
}
