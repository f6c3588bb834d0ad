//! The graph of a page, as an SVG picture.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::page::escaped;

/// Most steps in a picture of the graph: larger pictures are not readable, and the list has the same content.
const NODES_MAX: usize = 300;

const NODE_WIDTH: usize = 180;
const NODE_HEIGHT: usize = 36;
const GAP_X: usize = 24;
const GAP_Y: usize = 34;
/// Characters that fit in a name.
const NODE_CHARACTERS: usize = 20;

/// Returns the symbol of a status, so that colour is never the only signal.
pub(super) fn sign(status: &str) -> &'static str {
    match status {
        "completed" => "✓",
        "failed" => "✗",
        "tolerated" => "!",
        "running" | "unfinished" => "…",
        "skipped" => "–",
        "waiting" => "‖",
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
         {total_height}\" style=\"width:{total_width}px\">\n"
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

fn clipped(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
