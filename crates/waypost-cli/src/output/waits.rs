//! An open wait as text, with the command to fulfil it.

use serde_json::Value;
use waypost::record::WaitKind;
use waypost_workflow::file::AnswerKind;

use super::{shown, shown_lines};
use crate::format::text::quoted;
use crate::format::time;
use crate::view::WaitView;

/// Formats a wait of a step, with the command to fulfil it.
pub(crate) fn wait_text(run: &str, wait: &WaitView, is_given: bool, words: &str) -> String {
    let step = match wait.branch.as_str() {
        "main" => wait.step.clone(),
        branch => format!("{branch}/{}", wait.step),
    };
    let question = wait.question.as_ref().and_then(Value::as_str).unwrap_or_default();
    match &wait.on {
        WaitKind::Answer if is_given => {
            format!("  step {step} asks, already answered: {}", shown_lines(question))
        }
        WaitKind::Answer => format!(
            "  step {step} asks: {}\n    waypost answer {run} {} ANSWER{words}{}",
            shown_lines(question),
            quoted(&step),
            wait.wanted.as_ref().map(wanted).unwrap_or_default()
        ),
        WaitKind::Signal(_) if is_given => format!("  step {step} waits for a signal, already sent"),
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
    format!("\n    where ANSWER is {}", shown(&answer.describe()))
}
