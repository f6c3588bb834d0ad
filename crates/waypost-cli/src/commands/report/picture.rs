//! SVG pictures of a page: the graph, and the attempts over time.

use std::collections::HashMap;
use std::fmt::Write as _;

use jiff::Timestamp;

use super::page::escaped;
use super::{Bar, RunHistory};
use crate::format::time;

/// Most steps in a picture of the graph: larger pictures are not readable, and the list has the same content.
const NODES_MAX: usize = 300;
/// Most drawn attempts: a page of a few hundred KiB. The rest is counted.
const BARS_MAX: usize = 1_000;

const NODE_WIDTH: usize = 180;
const NODE_HEIGHT: usize = 36;
const GAP_X: usize = 24;
const GAP_Y: usize = 34;
const LABEL_WIDTH: usize = 260;
const BAR_WIDTH: usize = 620;
const ROW: usize = 20;
/// Characters that fit in a name.
const NODE_CHARACTERS: usize = 20;
const LABEL_CHARACTERS: usize = 34;

/// Returns the symbol of a status, so that colour is never the only signal.
pub(super) fn sign(status: &str) -> &'static str {
    match status {
        "completed" => "✓",
        "failed" => "✗",
        "tolerated" => "!",
        "running" | "unfinished" => "…",
        "skipped" => "–",
        "waiting" => "⏸",
        "cut" | "interrupted" | "in_doubt" => "?",
        _ => "·",
    }
}

/// Draws the graph from top to bottom; empty for an empty or too large graph.
pub(super) fn graph(edges: &[(String, Vec<String>)], status: impl Fn(&str) -> &'static str) -> String {
    if edges.is_empty() || edges.len() > NODES_MAX {
        return String::new();
    }
    let place: HashMap<&str, usize> =
        edges.iter().enumerate().map(|(at, (id, _))| (id.as_str(), at)).collect();
    // A step is drawn below all its needs. The file may list a step before its needs.
    let mut layer = vec![0_usize; edges.len()];
    for _ in 0..edges.len() {
        let mut moved = false;
        for (at, (_, before)) in edges.iter().enumerate() {
            let below =
                before.iter().filter_map(|id| place.get(id.as_str())).map(|need| layer[*need] + 1).max();
            if below.is_some_and(|below| below > layer[at]) {
                layer[at] = below.unwrap_or_default();
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let mut width: HashMap<usize, usize> = HashMap::new();
    let column: Vec<usize> = layer
        .iter()
        .map(|layer| {
            let next = width.entry(*layer).or_default();
            *next += 1;
            *next - 1
        })
        .collect();
    let most = width.values().copied().max().unwrap_or(1);
    let total_width = most * (NODE_WIDTH + GAP_X) + GAP_X;
    let total_height = (layer.iter().max().copied().unwrap_or(0) + 1) * (NODE_HEIGHT + GAP_Y);
    let left = |at: usize| {
        let row = width[&layer[at]] * (NODE_WIDTH + GAP_X) - GAP_X;
        (total_width - row) / 2 + column[at] * (NODE_WIDTH + GAP_X)
    };
    let top = |at: usize| GAP_Y / 2 + layer[at] * (NODE_HEIGHT + GAP_Y);
    let mut svg = format!(
        "<svg role=\"img\" aria-label=\"Steps and their dependencies\" viewBox=\"0 0 {total_width} \
         {total_height}\" style=\"max-width:{total_width}px\">\n"
    );
    for (at, (_, before)) in edges.iter().enumerate() {
        for need in before.iter().filter_map(|id| place.get(id.as_str())) {
            let (x1, y1) = (left(*need) + NODE_WIDTH / 2, top(*need) + NODE_HEIGHT);
            let (x2, y2) = (left(at) + NODE_WIDTH / 2, top(at));
            let middle = (y1 + y2) / 2;
            let _ = writeln!(
                svg,
                "<path class=\"edge\" d=\"M{x1} {y1} C{x1} {middle} {x2} {middle} {x2} {y2}\"/>"
            );
        }
    }
    for (at, (id, _)) in edges.iter().enumerate() {
        let (x, y, status) = (left(at), top(at), status(id));
        let _ = writeln!(
            svg,
            "<g class=\"{status}\"><title>{0}: {status}</title><rect x=\"{x}\" y=\"{y}\" width=\"{NODE_WIDTH}\" \
             height=\"{NODE_HEIGHT}\" rx=\"6\"/><text x=\"{1}\" y=\"{2}\">{3} {4}</text></g>",
            escaped(id),
            x + 10,
            y + NODE_HEIGHT / 2 + 5,
            sign(status),
            escaped(&clipped(id, NODE_CHARACTERS)),
        );
    }
    svg + "</svg>\n"
}

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

fn clipped(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
