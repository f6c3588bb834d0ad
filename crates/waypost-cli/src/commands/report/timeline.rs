//! The timeline of a page: a row for each attempt, over the time of work. Idle times between sessions take no space.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::history::{Bar, LastSession, RunHistory};
use crate::commands::graph::sign;
use crate::format::html::{escaped, folded};
use crate::format::time;

/// Most drawn attempts: a page of a few hundred KiB. The rest is counted.
const BARS_MAX: usize = 1_000;

/// Draws each attempt from its start to its end.
pub(super) fn timeline(history: &RunHistory, session: LastSession) -> String {
    let mut bars: Vec<&Bar> = history.bars.iter().collect();
    // For display only.
    bars.sort_by_key(|bar| bar.begin);
    let left_out = bars.len().saturating_sub(BARS_MAX);
    bars.truncate(BARS_MAX);
    let Some(first) = bars.first().map(|bar| bar.begin) else { return String::new() };
    let ends: Vec<(&'static str, Timestamp)> = bars.iter().map(|bar| history.end_of(bar, session)).collect();
    let last = ends.iter().map(|(_, end)| *end).max().unwrap_or(session.end);
    let millis = |from: Timestamp, to: Timestamp| history.idle.work(from, to).as_millis() as f64;
    let whole = millis(first, last).max(1.0);
    let percent = |from: Timestamp, to: Timestamp| 100.0 * millis(from, to) / whole;
    let mut text = String::new();
    folded(&mut text, bars.len(), "attempts");
    let _ = write!(
        text,
        "<div class=\"timeline\">\n<div class=\"row dim\"><span></span><span class=\"scale\"><span>{}</span>\
         <span>{}</span></span><span></span></div>\n",
        time::utc(first),
        time::utc(last),
    );
    for (bar, (outcome, end)) in bars.into_iter().zip(ends) {
        let pass: String = bar.at.iteration.iter().map(|count| format!(" [{count}]")).collect();
        let attempt =
            if bar.at.attempt > 1 { format!(", attempt {}", bar.at.attempt) } else { String::new() };
        let title = bar.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        let name = escaped(&format!("{}{pass}{attempt}{title}", bar.called));
        let took = time::lasted(history.idle.work(bar.begin, end));
        let _ = writeln!(
            text,
            "<div class=\"row {0}\" title=\"{name}: {0}, {took}\"><span class=\"name\">{1} {name}</span>\
             <span class=\"track\"><span class=\"bar\" style=\"left:{2:.2}%;width:{3:.2}%\"></span></span>\
             <span class=\"took\">{took}</span></div>",
            outcome,
            sign(outcome),
            percent(first, bar.begin),
            percent(bar.begin, end),
        );
    }
    text.push_str("</div>\n</details>\n");
    let idle: Vec<String> = history
        .idle
        .within(first, last)
        .map(|(since, until)| format!("{} from {}", time::between(since, until), time::utc(since)))
        .collect();
    if !idle.is_empty() {
        let _ = writeln!(
            text,
            "<p class=\"dim\">Not drawn: {} between the sessions of the run.</p>",
            escaped(&idle.join(", "))
        );
    }
    if left_out > 0 {
        let _ = writeln!(text, "<p>{left_out} later attempts are not drawn.</p>");
    }
    text
}
