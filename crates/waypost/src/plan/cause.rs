//! The cause of each decision, with its display text.

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

use crate::id::StepId;
use crate::record::{FrontierEntry, Position, Try, WAIT_HOOKS, Wait, WaitKind};

/// Longest excerpt of a question, in characters: about a line of a table.
const QUESTION_CHARACTERS_MAX: usize = 60;

/// The cause of a decision.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// The step completed, and all checkable claims hold; with the seq of its record, if the ledger has the
    /// step.
    Finished(Option<u64>),
    /// The step was skipped at this seq.
    Skipped(u64),
    /// The step needs this step, which is skipped.
    NeedSkipped(StepId),
    /// The step failed at this seq, and the workflow tolerates the failure.
    Tolerated(u64),
    /// All needs are met, and the step was not started.
    Ready,
    /// A person asked for the rerun.
    Requested,
    /// The step had begun, and the run was rolled back.
    RolledBack,
    /// This person settled the step.
    Settled(String),
    /// The step's condition is false.
    ConditionFalse(String),
    /// This upstream step failed.
    UpstreamFailed(StepId),
    /// The step waits for these steps.
    After(Vec<StepId>),
    /// The step's start is recorded and its end is not: the process was interrupted.
    Cut(Try),
    /// The step was stopped before its end, by this requester.
    Stopped(String),
    /// This attempt failed.
    Failed(Try),
    /// Too many scopes of the step failed.
    ScopesFailed,
    /// The next attempt is due at this time.
    Delayed(Timestamp),
    /// The step has these open waits.
    Waits(Vec<Wait>),
    /// The step had these waits, and a wait is fulfilled.
    Come(Vec<Wait>),
    /// These claims failed.
    EvidenceFailed(Vec<String>),
    /// These claims failed although the step just reran to repair them. Other steps reran since, for their
    /// own claims: the steps overwrite each other's results.
    EvidenceUndone {
        /// The step's failed claims.
        claims: Vec<String>,
        /// The other steps, with their failed claims.
        others: Vec<(StepId, Vec<String>)>,
    },
    /// These claims could not be checked.
    EvidenceUnknown(Vec<String>),
    /// This upstream step reruns.
    UpstreamChanged(StepId),
    /// The step is finished, and its definition changed since.
    Redefined,
    /// The step was interrupted and is not idempotent.
    InDoubt(Try),
    /// The step ended, its evidence does not confirm the effect, and the step is not idempotent.
    Unbelieved(Try),
    /// The step completed before an upstream rerun, and is not idempotent.
    Undone,
    /// The step had started before an upstream rerun; the step or a child is not idempotent.
    Begun,
    /// As [`Undone`](Self::Undone) and [`Begun`](Self::Begun), but other steps come first. The question does
    /// not stop the run yet.
    AskedInTurn,
    /// This number of newer records is lost. The step may have started in these records, and is not
    /// idempotent.
    InLost(u64),
    /// The step was interrupted, and its evidence confirms completion.
    EvidenceSettles,
    /// The service ended with the last session, and a step downstream runs.
    ServiceEnded,
    /// The scope has ended; it continues only on request.
    ScopeEnded,
    /// The scope is abandoned: its opener reran or was rolled back, and has not opened the scope since.
    LeftBehind,
}

impl Cause {
    /// Returns the word for the cause in JSON.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Finished(_) | Self::ScopeEnded => "finished",
            Self::Skipped(_) | Self::NeedSkipped(_) | Self::ConditionFalse(_) => "condition_false",
            Self::UpstreamFailed(_) => "upstream_failed",
            Self::Tolerated(_) => "tolerated",
            Self::Ready | Self::After(_) => "first",
            Self::Cut(_) | Self::Stopped(_) | Self::InDoubt(_) | Self::Unbelieved(_) | Self::ServiceEnded => {
                "cut"
            }
            Self::Failed(_) | Self::Delayed(_) => "retry",
            Self::ScopesFailed => "dead_letter",
            Self::Waits(_) => "waiting",
            Self::Come(_) | Self::Requested | Self::RolledBack => "requested",
            Self::EvidenceFailed(_) | Self::EvidenceUndone { .. } => "evidence_failed",
            Self::EvidenceUnknown(_) => "evidence_unknown",
            Self::UpstreamChanged(_) | Self::Undone | Self::Begun | Self::AskedInTurn | Self::LeftBehind => {
                "upstream_changed"
            }
            Self::Redefined => "definition_changed",
            Self::InLost(_) => "lost_record",
            Self::EvidenceSettles | Self::Settled(_) => "settled",
        }
    }

    /// Returns the upstream step of the cause, if the cause has one.
    pub fn upstream(&self) -> Option<&StepId> {
        match self {
            Self::NeedSkipped(step) | Self::UpstreamChanged(step) | Self::UpstreamFailed(step) => Some(step),
            _ => None,
        }
    }

    /// Returns the claims of the cause.
    pub fn claims(&self) -> &[String] {
        match self {
            Self::EvidenceFailed(claims)
            | Self::EvidenceUnknown(claims)
            | Self::EvidenceUndone { claims, .. } => claims,
            _ => &[],
        }
    }

    /// Returns whether a run for this cause is a rerun of a finished step.
    pub(super) fn is_of_rerun(&self) -> bool {
        matches!(self, Self::EvidenceFailed(_) | Self::UpstreamChanged(_) | Self::Redefined | Self::Requested)
    }

    /// Returns the cause for a step in doubt in a scope.
    pub(crate) fn of_doubt(position: &Position, entry: &FrontierEntry) -> Self {
        match position.asks_about(&entry.step) {
            true if position.started_before(&entry.step).is_some() => Self::Begun,
            true => Self::Undone,
            false if entry.exited.is_some() => Self::Unbelieved(entry.at.clone()),
            false => Self::InDoubt(entry.at.clone()),
        }
    }

    /// Returns whether the doubt is about the effect of a single attempt.
    pub(crate) fn is_of_one_try(&self) -> bool {
        matches!(self, Self::InDoubt(_) | Self::Unbelieved(_))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServiceEnded => f.write_str("the service ended with the last session"),
            Self::ScopeEnded => write!(f, "its scope has ended"),
            Self::LeftBehind => {
                f.write_str("its scope was abandoned by a rerun or a rollback of its opener")
            }
            Self::Finished(Some(seq)) => write!(f, "completed at @{seq}"),
            Self::Finished(None) => f.write_str("completed"),
            Self::Skipped(seq) => write!(f, "skipped at @{seq}"),
            Self::NeedSkipped(need) => write!(f, "upstream `{need}` is skipped"),
            Self::Tolerated(seq) => write!(f, "failed at @{seq}, tolerated by the workflow"),
            Self::Ready => f.write_str("every need is finished"),
            Self::Settled(by) => write!(f, "settled by {by}"),
            Self::ConditionFalse(condition) => write!(f, "`{condition}` is false"),
            Self::UpstreamFailed(step) => write!(f, "upstream `{step}` failed"),
            Self::Requested => f.write_str("a person requested the rerun"),
            Self::RolledBack => f.write_str("the run was rolled back"),
            Self::After(steps) => write!(f, "after {}", join(steps)),
            Self::Cut(at) => {
                write!(f, "attempt {} was cut: it started and its end is not recorded", at.attempt)
            }
            Self::Stopped(by) => write!(f, "stopped before its end ({by})"),
            Self::Failed(Try { attempt: 0, .. }) => f.write_str("the failure of another step cancelled the step"),
            Self::Failed(at) => write!(f, "attempt {} failed", at.attempt),
            Self::ScopesFailed => f.write_str("steps within it failed"),
            Self::Delayed(until) => write!(f, "the next attempt is due at {until}"),
            Self::Waits(waits) => {
                write!(f, "waiting for {}", waits.iter().map(wait_text).collect::<Vec<_>>().join(", "))
            }
            Self::Come(waits) => {
                let come = |wait: &Wait| match wait.on {
                    WaitKind::Until(time) => format!("due since {time:.0}"),
                    _ => format!("received {}", wait_text(wait)),
                };
                f.write_str(&waits.iter().map(come).collect::<Vec<_>>().join(", "))
            }
            Self::EvidenceFailed(claims) => write!(f, "evidence no longer holds: {}", claims.join(", ")),
            Self::EvidenceUndone { claims, others } => {
                let claims = claims.join(", ");
                write!(f, "evidence failed again after a rerun: {claims}")?;
                let described =
                    |(step, claims): &(StepId, Vec<String>)| format!("`{step}` for {}", claims.join(", "));
                let others: Vec<_> = others.iter().map(described).collect();
                if others.is_empty() {
                    return Ok(());
                }
                write!(f, "; its rerun was overwritten by {}", others.join(" and "))
            }
            Self::EvidenceUnknown(claims) => {
                write!(f, "evidence could not be checked: {}", claims.join(", "))
            }
            Self::UpstreamChanged(step) => write!(f, "upstream `{step}` reruns"),
            Self::Redefined => f.write_str("the definition of the step changed"),
            Self::InDoubt(at) => {
                write!(
                    f,
                    "attempt {} was cut and the step is not idempotent: whether it took effect is unknown",
                    at.attempt
                )
            }
            Self::Unbelieved(at) => {
                write!(
                    f,
                    "attempt {} ended without accepted evidence and the step is not idempotent: whether it \
                     took effect is unknown",
                    at.attempt
                )
            }
            Self::Undone => f.write_str(
                "not idempotent, and an upstream step reran, or the run was rolled back, forked or restarted, after it \
                 completed",
            ),
            Self::Begun => f.write_str(
                "not idempotent, and an upstream step reran, or the run was rolled back, forked or restarted, after it \
                 started",
            ),
            Self::AskedInTurn => f.write_str(
                "not idempotent, and an upstream step reran, or the run was rolled back, forked or restarted, after it \
                 ran: the question comes at its turn",
            ),
            Self::InLost(lost) => {
                write!(
                    f,
                    "{lost} newer record{} lost and the step is not idempotent: whether it started is \
                     unknown",
                    if *lost == 1 { " is" } else { "s are" }
                )
            }
            Self::EvidenceSettles => f.write_str("its end was unknown, and its evidence holds"),
        }
    }
}

fn join(steps: &[StepId]) -> String {
    steps.iter().map(|step| format!("`{step}`")).collect::<Vec<_>>().join(", ")
}

/// Returns the beginning of a question on one line; for a question that is not text, the wait's key.
fn asked(wait: &Wait) -> String {
    let question = wait.question.as_ref().and_then(Value::as_str).map(str::trim);
    let line = question.and_then(|text| text.lines().next()).unwrap_or(&wait.key);
    match line.char_indices().nth(QUESTION_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

fn wait_text(wait: &Wait) -> String {
    match &wait.on {
        WaitKind::Answer => format!("an answer to `{}`", asked(wait)),
        WaitKind::Signal(name) => format!("signal `{name}`"),
        WaitKind::Until(time) => format!("{time:.0}"),
        WaitKind::Children if wait.key == WAIT_HOOKS => "the hooks after it".to_owned(),
        WaitKind::Children => "the steps within it".to_owned(),
        WaitKind::Resume => format!("a resume (held {})", wait.key),
    }
}
