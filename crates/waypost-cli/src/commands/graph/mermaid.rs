//! Mermaid text of a graph.

use std::fmt::Write as _;

use super::node::Node;
use super::svg::sign;

/// Returns the flowchart, with steps of steps as subgraphs.
pub(super) fn text(nodes: &[Node]) -> String {
    let mut text = "flowchart TD\n".to_owned();
    add(&mut text, nodes, &mut 0, "  ");
    for (class, colour) in [("failed", "#cf222e"), ("completed", "#1a7f37"), ("waiting", "#9a6700")] {
        if text.contains(&format!(":::{class}")) {
            let _ = writeln!(text, "  classDef {class} stroke:{colour}");
        }
    }
    text
}

fn add(text: &mut String, nodes: &[Node], count: &mut usize, indent: &str) {
    let mut names = Vec::with_capacity(nodes.len());
    for node in nodes {
        *count += 1;
        let name = format!("n{count}");
        let status = node.status.as_ref().map(|status| format!("{} {}", sign(status.worst), status.text));
        let lines = [Some(node.id.clone()), node.name.clone(), node.kind.map(str::to_owned), status];
        let label = lines.into_iter().flatten().map(|line| escaped(&line)).collect::<Vec<_>>().join("<br/>");
        let class = node.status.as_ref().map(|status| format!(":::{}", status.worst)).unwrap_or_default();
        if node.within.is_empty() {
            let _ = writeln!(text, "{indent}{name}[\"{label}\"]{class}");
        } else {
            let _ = writeln!(text, "{indent}subgraph {name}[\"{label}\"]");
            add(text, &node.within, count, &format!("{indent}  "));
            let _ = writeln!(text, "{indent}end");
        }
        names.push(name);
    }
    for (node, name) in nodes.iter().zip(&names) {
        for need in &node.needs {
            let _ = writeln!(text, "{indent}{} --> {name}", names[*need]);
        }
    }
}

/// Writes all but letters, digits and common marks as entities: no text ends a label or is markup.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_alphanumeric() || " _-.,:/()✓✗–…‖!?·".contains(c) => escaped.push(c),
            c if c.is_control() => escaped.push(' '),
            c => {
                let _ = write!(escaped, "#{};", u32::from(c));
            }
        }
    }
    escaped
}
