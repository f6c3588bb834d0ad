//! SVG of a graph: layers from top to bottom, steps of steps in boxes.

use std::fmt::Write as _;

use super::node::Node;
use crate::format::html::escaped;
use crate::output::cut;

/// Most steps of a picture within a page: larger pictures are not readable there, and the list has the same content.
const EMBEDDED_MAX: usize = 300;
/// Most steps side by side; a wider layer continues below. Eight fit on a wide screen.
const ROW_MAX: usize = 8;

const NODE_WIDTH: usize = 180;
const NODE_HEIGHT: usize = 44;
const GAP_X: usize = 24;
const GAP_Y: usize = 34;
/// Space between the rows of one layer.
const GAP_ROW: usize = 14;
/// Space around the steps in a box, and for the title of a box.
const PAD: usize = 14;
const TITLE: usize = 44;
/// Characters that fit in a line of a step.
const NODE_CHARACTERS: usize = 20;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:11px;fill:#59636e}\
                     rect{fill:#fff;stroke:#818b98}.box>rect{fill:#f6f8fa}.edge{fill:none;stroke:#818b98}\
                     .completed>rect{stroke:#1a7f37}.failed>rect,.cut>rect,.in_doubt>rect,.interrupted>rect\
                     {stroke:#cf222e;stroke-width:2}.tolerated>rect,.waiting>rect{stroke:#9a6700}\
                     .skipped>rect,.pending>rect{stroke-dasharray:4 3}.running>rect{stroke:#0969da;stroke-width:2}";

/// Returns the symbol of a status, so that colour is never the only signal.
pub(in crate::commands) fn sign(status: &str) -> &'static str {
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

/// Draws a graph as a file.
pub(super) fn standalone(title: &str, nodes: &[Node]) -> String {
    let layout = Layout::of(nodes);
    let (width, height) = (layout.width + 2 * GAP_X, layout.height + 2 * GAP_X);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 \
         {width} {height}\">\n<title>{}</title>\n<style>{STYLE}</style>\n<rect width=\"{width}\" height=\"{height}\" \
         stroke=\"none\"/>\n",
        escaped(title)
    );
    draw(&mut svg, nodes, &layout, Point { x: GAP_X, y: GAP_X });
    svg + "</svg>\n"
}

/// Draws a graph for a page; empty for an empty or too large graph.
pub(in crate::commands) fn embedded(nodes: &[Node]) -> String {
    fn count(nodes: &[Node]) -> usize {
        nodes.iter().map(|node| 1 + count(&node.within)).sum()
    }
    if nodes.is_empty() || count(nodes) > EMBEDDED_MAX {
        return String::new();
    }
    let layout = Layout::of(nodes);
    let (width, height) = (layout.width + 2, layout.height + 2);
    // Narrow screens: shrink to the smallest legible width, then scroll.
    let narrow = width * 6 / 10;
    let mut svg = format!(
        "<svg role=\"img\" aria-label=\"Steps and their dependencies\" viewBox=\"0 0 {width} {height}\" \
         style=\"width:{width}px;max-width:100%;min-width:{narrow}px\">\n"
    );
    draw(&mut svg, nodes, &layout, Point { x: 1, y: 1 });
    svg + "</svg>\n"
}

/// Sizes and places of the steps of a list.
struct Layout {
    width: usize,
    height: usize,
    /// By the place of a step.
    boxes: Vec<Placed>,
}

struct Placed {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    within: Option<Layout>,
}

impl Layout {
    fn of(nodes: &[Node]) -> Self {
        let mut boxes: Vec<Placed> = nodes.iter().map(Placed::of).collect();
        let rows = rows(nodes);
        let width_of = |row: &[usize], boxes: &[Placed]| {
            row.iter().map(|place| boxes[*place].width + GAP_X).sum::<usize>().saturating_sub(GAP_X)
        };
        let width = rows.iter().map(|(row, _)| width_of(row, &boxes)).max().unwrap_or_default();
        let mut top = 0;
        let mut bottom = 0;
        for (row, begins) in &rows {
            if top > 0 {
                top = bottom + if *begins { GAP_Y } else { GAP_ROW };
            }
            let mut left = (width - width_of(row, &boxes)) / 2;
            // Steps stand in the order of their needs, so that fewer lines cross.
            let mut row = row.clone();
            let middle = |place: &usize| {
                let needs = &nodes[*place].needs;
                let sum: usize = needs.iter().map(|need| boxes[*need].left + boxes[*need].width / 2).sum();
                sum / needs.len().max(1)
            };
            row.sort_by_cached_key(middle);
            for place in row {
                (boxes[place].left, boxes[place].top) = (left, top);
                left += boxes[place].width + GAP_X;
                bottom = bottom.max(top + boxes[place].height);
            }
            top = bottom;
        }
        Self { width, height: bottom, boxes }
    }
}

impl Placed {
    fn of(node: &Node) -> Self {
        if node.within.is_empty() {
            return Self { left: 0, top: 0, width: NODE_WIDTH, height: NODE_HEIGHT, within: None };
        }
        let inner = Layout::of(&node.within);
        let (width, height) = (inner.width + 2 * PAD, TITLE + inner.height + PAD);
        Self { left: 0, top: 0, width: width.max(NODE_WIDTH), height, within: Some(inner) }
    }
}

/// Returns the rows from top to bottom, each with whether a layer begins: a step is in a layer below all its needs.
fn rows(nodes: &[Node]) -> Vec<(Vec<usize>, bool)> {
    let needs: Vec<Vec<usize>> = nodes.iter().map(|node| node.needs.clone()).collect();
    let mut layer = vec![0_usize; nodes.len()];
    let mut layers: Vec<Vec<usize>> = Vec::new();
    for place in super::sorted(&needs) {
        layer[place] = needs[place].iter().map(|need| layer[*need] + 1).max().unwrap_or(0);
        if layers.len() <= layer[place] {
            layers.resize_with(layer[place] + 1, Vec::new);
        }
        layers[layer[place]].push(place);
    }
    layers
        .iter_mut()
        .flat_map(|layer| {
            layer.sort_unstable();
            let rows = layer.chunks(ROW_MAX).enumerate();
            rows.map(|(index, row)| (row.to_vec(), index == 0)).collect::<Vec<_>>()
        })
        .collect()
}

/// The top left corner of a drawing, in pixels.
#[derive(Clone, Copy)]
struct Point {
    x: usize,
    y: usize,
}

fn draw(svg: &mut String, nodes: &[Node], layout: &Layout, Point { x, y }: Point) {
    for (node, own) in nodes.iter().zip(&layout.boxes) {
        for need in node.needs.iter().map(|need| &layout.boxes[*need]) {
            let (x1, y1) = (x + need.left + need.width / 2, y + need.top + need.height);
            let (x2, y2) = (x + own.left + own.width / 2, y + own.top);
            let middle = y1.midpoint(y2);
            let _ = writeln!(
                svg,
                "<path class=\"edge\" d=\"M{x1} {y1} C{x1} {middle} {x2} {middle} {x2} {y2}\"/>"
            );
        }
    }
    for (node, own) in nodes.iter().zip(&layout.boxes) {
        draw_node(svg, node, own, Point { x: x + own.left, y: y + own.top });
    }
}

fn draw_node(svg: &mut String, node: &Node, own: &Placed, Point { x, y }: Point) {
    let status = node.status.as_ref();
    let mut classes: Vec<&str> = status.map(|status| status.worst).into_iter().collect();
    classes.extend(own.within.as_ref().map(|_| "box"));
    let told = status.map(|status| status.text.as_str());
    let title = [Some(node.id.as_str()), node.name.as_deref(), told.or(node.kind)];
    let title = title.into_iter().flatten().collect::<Vec<_>>().join(": ");
    let fits = NODE_CHARACTERS * own.width / NODE_WIDTH;
    let named = clipped(node.name.as_deref().unwrap_or(&node.id), fits);
    let first = status.map_or(named.clone(), |status| format!("{} {named}", sign(status.worst)));
    let below = node.name.as_ref().map(|_| node.id.as_str());
    let second = told.or(below).or(node.kind).unwrap_or_default();
    let _ = writeln!(
        svg,
        "<g class=\"{}\"><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"6\"/><text x=\"{}\" \
         y=\"{}\">{}</text>",
        classes.join(" "),
        escaped(&title),
        own.width,
        own.height,
        x + 10,
        y + 19,
        escaped(&first),
    );
    if !second.is_empty() {
        let _ = writeln!(
            svg,
            "<text class=\"small\" x=\"{}\" y=\"{}\">{}</text>",
            x + 10,
            y + 35,
            escaped(&clipped(second, fits * 5 / 4)),
        );
    }
    if let Some(inner) = &own.within {
        let left = x + (own.width - inner.width) / 2;
        draw(svg, &node.within, inner, Point { x: left, y: y + TITLE });
    }
    svg.push_str("</g>\n");
}

/// Returns the beginning of a text; a wide character counts as two.
pub(in crate::commands) fn clipped(text: &str, characters: usize) -> String {
    match cut(text, characters) {
        whole if whole.len() == text.len() => text.to_owned(),
        beginning => format!("{beginning}…"),
    }
}
