//! Why a step is decided about as it is, in the words that people read.

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

use crate::id::StepId;
use crate::record::{FrontierEntry, Position, Try, WAIT_AFTER, Wait, WaitKind};

/// How much of a question is said: about a line of a table.
const QUESTION_CHARACTERS_MAX: usize = 60;

/// Why.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// It completed, and what can be checked holds. With the seq of its record, where the ledger has it.
    Finished(Option<u64>),
    /// It was skipped at this seq.
    Skipped(u64),
    /// It needs this step, which is skipped.
    NeedSkipped(StepId),
    /// It failed at this seq, and that was tolerated.
    Tolerated(u64),
    /// Its needs are met and it was not started.
    Ready,
    /// A person asked for the rerun.
    Requested,
    /// This person settles the step.
    Settled(String),
    /// The condition of the step is false.
    ConditionFalse(String),
    /// This step upstream failed.
    UpstreamFailed(StepId),
    /// It comes after these.
    After(Vec<StepId>),
    /// Its start is recorded and nothing after: its process was cut.
    Cut(Try),
    /// It was stopped before its end.
    Stopped(String),
    /// It failed.
    Failed(Try),
    /// Too many of its branches failed.
    BranchesFailed,
    /// The next try is due at this time.
    Delayed(Timestamp),
    /// It waits for these.
    Waits(Vec<Wait>),
    /// It waited for these, and one of them has come.
    Come(Vec<Wait>),
    /// These claims do not hold.
    EvidenceFailed(Vec<String>),
    /// These claims do not hold, although the step was done again for that a moment ago. Then others were done again, for
    /// claims of theirs: whoever runs last undoes what the other needs.
    EvidenceUndone {
        /// What does not hold.
        claims: Vec<String>,
        /// The other steps, and what did not hold of theirs.
        others: Vec<(StepId, Vec<String>)>,
    },
    /// These claims could not be checked.
    EvidenceUnknown(Vec<String>),
    /// This step before it runs again.
    UpstreamChanged(StepId),
    /// It is finished, but does something else by now.
    Redefined,
    /// It was cut and must not be repeated blindly.
    InDoubt(Try),
    /// It ended, its evidence did not show that it took effect, and it must not be repeated blindly.
    Unbelieved(Try),
    /// It was done, or cut, before something that it needs was done again, and must not be repeated blindly.
    Undone,
    /// It was begun, or cut, before something that it needs was done again, and must not be repeated blindly, or what it opens.
    Begun,
    /// As [`Undone`](Self::Undone) and [`Begun`](Self::Begun), but its turn has not come: it is asked about then, and stops nothing until then.
    AskedInTurn,
    /// So many newer records are lost, in which it may have been started, and it must not be repeated blindly.
    InLost(u64),
    /// It was cut, and its evidence says that it is done.
    EvidenceSettles,
    /// Its branch has ended, and goes on only when somebody asks for that.
    BranchEnded,
    /// Its branch was left behind: what opened it was done again, or gone back from, and has not opened it since.
    LeftBehind,
}

impl Cause {
    /// Returns the word for the cause in JSON.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Finished(_) | Self::BranchEnded => "finished",
            Self::Skipped(_) | Self::NeedSkipped(_) | Self::ConditionFalse(_) => "condition_false",
            Self::UpstreamFailed(_) => "upstream_failed",
            Self::Tolerated(_) => "tolerated",
            Self::Ready | Self::After(_) => "first",
            Self::Cut(_) | Self::Stopped(_) | Self::InDoubt(_) | Self::Unbelieved(_) => "cut",
            Self::Failed(_) | Self::Delayed(_) => "retry",
            Self::BranchesFailed => "dead_letter",
            Self::Waits(_) => "waiting",
            Self::Come(_) | Self::Requested => "requested",
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

    /// Returns the upstream step that is the cause.
    pub fn upstream(&self) -> Option<&StepId> {
        match self {
            Self::NeedSkipped(step) | Self::UpstreamChanged(step) | Self::UpstreamFailed(step) => Some(step),
            _ => None,
        }
    }

    /// Returns the claims that are the cause.
    pub fn claims(&self) -> &[String] {
        match self {
            Self::EvidenceFailed(claims)
            | Self::EvidenceUnknown(claims)
            | Self::EvidenceUndone { claims, .. } => claims,
            _ => &[],
        }
    }

    /// Says whether a run for this cause is a rerun of a finished step.
    pub(super) fn is_of_rerun(&self) -> bool {
        matches!(self, Self::EvidenceFailed(_) | Self::UpstreamChanged(_) | Self::Redefined | Self::Requested)
    }

    /// Says why a step stands in doubt on a branch.
    pub(crate) fn of_doubt(position: &Position, entry: &FrontierEntry) -> Self {
        match position.asks_about(&entry.step) {
            true if position.started_before(&entry.step).is_some() => Self::Begun,
            true => Self::Undone,
            false if entry.exited.is_some() => Self::Unbelieved(entry.at.clone()),
            false => Self::InDoubt(entry.at.clone()),
        }
    }

    /// Says whether it is not known of one try of a step whether it took effect.
    pub(crate) fn is_of_one_try(&self) -> bool {
        matches!(self, Self::InDoubt(_) | Self::Unbelieved(_))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BranchEnded => write!(f, "its branch has ended"),
            Self::LeftBehind => f.write_str("its branch was left behind by what was done again since"),
            Self::Finished(Some(seq)) => write!(f, "completed at @{seq}"),
            Self::Finished(None) => f.write_str("completed"),
            Self::Skipped(seq) => write!(f, "skipped at @{seq}"),
            Self::NeedSkipped(need) => write!(f, "it needs `{need}`, which is skipped"),
            Self::Tolerated(seq) => write!(f, "failed at @{seq}, which the workflow tolerates"),
            Self::Ready => f.write_str("all it needs is finished"),
            Self::Settled(by) => write!(f, "settled by {by}"),
            Self::ConditionFalse(condition) => write!(f, "`{condition}` is false"),
            Self::UpstreamFailed(step) => write!(f, "`{step}` upstream of it failed"),
            Self::Requested => f.write_str("a person asked to run it again"),
            Self::After(steps) => write!(f, "after {}", join(steps)),
            Self::Cut(at) => {
                write!(f, "attempt {} was cut: it started and its end is not recorded", at.attempt)
            }
            Self::Stopped(by) => write!(f, "it was stopped before its end ({by})"),
            Self::Failed(at) => write!(f, "attempt {} failed", at.attempt),
            Self::BranchesFailed => f.write_str("too many of its branches failed"),
            Self::Delayed(until) => write!(f, "the next attempt is due at {until}"),
            Self::Waits(waits) => {
                write!(f, "it waits for {}", waits.iter().map(wait_text).collect::<Vec<_>>().join(", "))
            }
            Self::Come(waits) => {
                let waits = waits.iter().map(wait_text).collect::<Vec<_>>().join(", ");
                write!(f, "it waited for {waits}, which has come")
            }
            Self::EvidenceFailed(claims) => write!(f, "evidence no longer holds: {}", claims.join(", ")),
            Self::EvidenceUndone { claims, others } => {
                let claims = claims.join(", ");
                write!(f, "evidence does not hold although it was done again for that: {claims}")?;
                let told =
                    |(step, claims): &(StepId, Vec<String>)| format!("`{step}` for {}", claims.join(", "));
                let others: Vec<_> = others.iter().map(told).collect();
                if others.is_empty() {
                    return Ok(());
                }
                write!(f, "; since then {} was done again, which undoes it", others.join(" and "))
            }
            Self::EvidenceUnknown(claims) => {
                write!(f, "evidence could not be checked: {}", claims.join(", "))
            }
            Self::UpstreamChanged(step) => write!(f, "upstream changed: `{step}` runs again"),
            Self::Redefined => f.write_str("it does something else than what was finished"),
            Self::InDoubt(at) => {
                write!(
                    f,
                    "attempt {} was cut and the step is not idempotent: whether it took effect is not known",
                    at.attempt
                )
            }
            Self::Unbelieved(at) => {
                write!(
                    f,
                    "attempt {} ended and was not believed, and the step is not idempotent: whether it took effect is not known",
                    at.attempt
                )
            }
            Self::Undone => f.write_str(
                "it was done before, what it needs has been done again since, and it must not be repeated blindly",
            ),
            Self::Begun => f.write_str(
                "it was begun before, whether all that it did still holds is not known, and it must not be repeated blindly",
            ),
            Self::AskedInTurn => f.write_str(
                "it was done or begun before, what it needs is done again, and it must not be repeated blindly: it is asked about when its turn comes",
            ),
            Self::InLost(lost) => {
                write!(
                    f,
                    "{lost} newer record{} lost and the step is not idempotent: whether it was started is not known",
                    if *lost == 1 { " is" } else { "s are" }
                )
            }
            Self::EvidenceSettles => f.write_str("its end was not known, and its evidence shows that it is done"),
        }
    }
}

fn join(steps: &[StepId]) -> String {
    steps.iter().map(|step| format!("`{step}`")).collect::<Vec<_>>().join(", ")
}

/// Returns the begin of a question, on one line; of one that is no text, the key that the step gave it.
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
        WaitKind::Until(time) => format!("{time}"),
        WaitKind::Children if wait.key == WAIT_AFTER => "what is done after it".to_owned(),
        WaitKind::Children => "its branches".to_owned(),
        WaitKind::Resume => format!("a resume (held {})", wait.key),
    }
}
