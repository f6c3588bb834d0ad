//! An open wait as text, with the command to fulfil it.

use serde_json::Value;
use waypost::record::WaitKind;

use super::{shown, shown_lines};
use crate::format::text::quoted;
use crate::format::time;
use crate::view::WaitView;

/// Formats a wait of a step, with the command to fulfil it.
pub(crate) fn wait_text(run: &str, wait: &WaitView, is_given: bool, words: &str) -> String {
    let step = &wait.called;
    match &wait.on {
        WaitKind::Answer if is_given => {
            format!("  step {step} asks, already answered: {}", shown_lines(question(wait)))
        }
        WaitKind::Answer => {
            let text = format!("  step {step} asks: {}", shown_lines(question(wait)));
            format!("{text}\n    {}{}", answer_command(run, wait, words), wanted(wait))
        }
        WaitKind::Signal(_) if is_given => format!("  step {step} waits for a signal, already sent"),
        WaitKind::Signal(name) => format!(
            "  step {step} waits for a signal\n    waypost signal {run} {}{words}",
            quoted(&shown(name))
        ),
        WaitKind::Until(due) => format!("  step {step} waits until {}", time::utc(*due)),
        WaitKind::Resume => format!("  step {step} waits for a resume"),
        WaitKind::Children => format!("  step {step} waits for the steps within it"),
    }
}

/// Formats a question of a step, with the allowed answers.
pub(crate) fn question_text(wait: &WaitView) -> String {
    let wanted = wait.wanted.as_ref().map(|answer| format!(" ({})", shown(&answer.describe())));
    format!("  step {} asks: {}{}", wait.called, shown_lines(question(wait)), wanted.unwrap_or_default())
}

/// Returns the command that answers a question.
pub(crate) fn answer_command(run: &str, wait: &WaitView, words: &str) -> String {
    format!("waypost answer {run} {} ANSWER{words}", quoted(&wait.called))
}

fn question(wait: &WaitView) -> &str {
    wait.question.as_ref().and_then(Value::as_str).unwrap_or_default()
}

/// Returns a separate line with the allowed answers.
fn wanted(wait: &WaitView) -> String {
    let wanted = wait.wanted.as_ref();
    wanted.map(|answer| format!("\n    where ANSWER is {}", shown(&answer.describe()))).unwrap_or_default()
}
