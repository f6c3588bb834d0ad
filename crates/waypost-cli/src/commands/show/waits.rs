//! Open waits of a run, with the commands to fulfil them.

use jiff::Timestamp;
use serde_json::Value;
use waypost::record::{RunStatus, WaitKind};
use waypost::store::{Signal, SignalKind};
use waypost_workflow::file::AnswerKind;

use super::Shown;
use crate::output::{shown, shown_lines};
use crate::store_location::quoted;
use crate::time;
use crate::view::WaitView;

/// Formats a wait of a step, with the command to fulfil it.
pub(crate) fn told(run: &str, wait: &WaitView, is_given: bool, words: &str) -> String {
    let step = match wait.branch.as_str() {
        "main" => wait.step.clone(),
        branch => format!("{branch}/{}", wait.step),
    };
    let question = wait.question.as_ref().and_then(Value::as_str).unwrap_or_default();
    match &wait.on {
        WaitKind::Answer if is_given => {
            format!("  step {step} asks, and has its answer: {}", shown_lines(question))
        }
        WaitKind::Answer => format!(
            "  step {step} asks: {}\n    waypost answer {run} {} ANSWER{words}{}",
            shown_lines(question),
            quoted(&step),
            wait.wanted.as_ref().map(wanted).unwrap_or_default()
        ),
        WaitKind::Signal(_) if is_given => format!("  step {step} waits for a signal, which has come"),
        WaitKind::Signal(name) => format!(
            "  step {step} waits for a signal\n    waypost signal {run} {}{words}",
            quoted(&shown(name))
        ),
        WaitKind::Until(due) => format!("  step {step} waits until {}", time::utc(*due)),
        WaitKind::Resume => format!("  step {step} waits for a resume"),
        WaitKind::Children => format!("  step {step} waits for its branches"),
    }
}

/// Returns a separate line with the allowed answers.
fn wanted(answer: &AnswerKind) -> String {
    format!("\n    where ANSWER is {}", shown(&answer.told()))
}

/// Returns whether a signal fulfils the wait with this id.
pub(crate) fn gives(signal: &Signal, id: &str, on: &WaitKind) -> bool {
    match (&signal.kind, on) {
        (SignalKind::Answer { wait, .. }, WaitKind::Answer) => wait == id,
        (SignalKind::Named { name, .. }, WaitKind::Signal(wanted)) => name == wanted,
        _ => false,
    }
}

impl Shown {
    /// Returns whether a pending signal already fulfils the wait.
    pub(super) fn is_given(&self, wait: &WaitView) -> bool {
        self.given.iter().any(|signal| gives(signal, &wait.id, &wait.on))
    }

    /// Returns whether a resume would do work: for a waiting run, whether a wait is fulfilled.
    pub(super) fn has_something_to_do(&self, waiting: &[WaitView], now: Timestamp) -> bool {
        let has_come = |wait: &WaitView| match &wait.on {
            WaitKind::Until(due) => *due <= now,
            WaitKind::Resume => true,
            _ => self.is_given(wait),
        };
        self.status() != RunStatus::Waiting || waiting.is_empty() || waiting.iter().any(has_come)
    }
}
