//! SVG picture of a page: the attempts over time.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::page::escaped;
use super::{Bar, RunHistory};
use crate::commands::graph::{clipped, sign};
use crate::format::time;

/// Most drawn attempts: a page of a few hundred KiB. The rest is counted.
const BARS_MAX: usize = 1_000;

const LABEL_WIDTH: usize = 260;
const BAR_WIDTH: usize = 620;
const ROW: usize = 20;
/// Characters that fit in a name.
const LABEL_CHARACTERS: usize = 34;

/// Draws each attempt from its begin to its end.
pub(super) fn timeline(told: &RunHistory, until: Timestamp) -> String {
    let mut bars: Vec<&Bar> = told.bars.iter().collect();
    // For display only.
    bars.sort_by_key(|bar| bar.begin);
    let left_out = bars.len().saturating_sub(BARS_MAX);
    bars.truncate(BARS_MAX);
    let Some(first) = bars.first().map(|bar| bar.begin) else { return String::new() };
    let end_of = |bar: &Bar| bar.end.unwrap_or(until).max(bar.begin);
    let last = bars.iter().map(|bar| end_of(bar)).max().unwrap_or(until);
    let millis = |from: Timestamp, to: Timestamp| to.duration_since(from).as_millis().max(0) as f64;
    let scale = BAR_WIDTH as f64 / millis(first, last).max(1.0);
    let (width, height) = (LABEL_WIDTH + BAR_WIDTH + 90, bars.len() * ROW + ROW);
    let mut svg = format!(
        "<svg role=\"img\" aria-label=\"Each attempt in time\" viewBox=\"0 0 {width} {height}\" style=\"max-width:{width}px\">\n\
         <text class=\"small\" x=\"{LABEL_WIDTH}\" y=\"13\">{}</text>\
         <text class=\"small end\" x=\"{}\" y=\"13\">{}</text>\n",
        time::utc(first),
        LABEL_WIDTH + BAR_WIDTH,
        time::utc(last),
    );
    for (row, bar) in bars.into_iter().enumerate() {
        let y = ROW + row * ROW;
        let x = LABEL_WIDTH as f64 + millis(first, bar.begin) * scale;
        let length = (millis(bar.begin, end_of(bar)) * scale).max(2.0);
        let branch = if bar.branch.is_main() { String::new() } else { format!("{}/", bar.branch) };
        let pass: String = bar.at.iteration.iter().map(|count| format!(" [{count}]")).collect();
        let attempt =
            if bar.at.attempt > 1 { format!(", attempt {}", bar.at.attempt) } else { String::new() };
        let name = format!("{branch}{}{pass}{attempt}", bar.step);
        let took = bar.end.map_or_else(|| "…".to_owned(), |end| time::between(bar.begin, end));
        let _ = writeln!(
            svg,
            "<g class=\"{0}\"><title>{1}: {0}, {2}</title><text class=\"small\" x=\"0\" y=\"{3}\">{4} {5}</text>\
             <rect x=\"{x:.1}\" y=\"{6}\" width=\"{length:.1}\" height=\"13\" rx=\"2\"/>\
             <text class=\"small\" x=\"{7:.1}\" y=\"{3}\">{2}</text></g>",
            bar.outcome,
            escaped(&name),
            took,
            y + 12,
            sign(bar.outcome),
            escaped(&clipped(&name, LABEL_CHARACTERS)),
            y + 2,
            x + length + 4.0,
        );
    }
    svg.push_str("</svg>\n");
    if left_out > 0 {
        let _ = writeln!(svg, "<p>{left_out} later attempts are not drawn.</p>");
    }
    svg
}
