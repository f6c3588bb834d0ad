//! Draws a graph as Mermaid or Graphviz text.

use std::fmt::Write as _;

use crate::plan::shape::{Children, Shape, Step};

/// Draws a Mermaid flowchart; child scopes are nested boxes.
pub(super) fn mermaid(shape: &Shape) -> String {
    let mut text = String::from("flowchart TD\n");
    draw(shape, "", 1, &mut Mermaid(&mut text));
    text
}

/// Draws a graph for Graphviz.
pub(super) fn dot(name: &str, shape: &Shape) -> String {
    let mut text =
        format!("digraph {} {{\n  rankdir=TB;\n  node [shape=box, style=rounded];\n", quoted(name));
    draw(shape, "", 1, &mut Dot(&mut text));
    text.push_str("}\n");
    text
}

/// An output language. Node names consist of step ids and need no escaping.
trait Language {
    fn node(&mut self, depth: usize, name: &str, label: &str);
    fn end(&mut self, depth: usize, name: &str);
    fn edge(&mut self, depth: usize, from: &str, to: &str, label: &str);
    fn open_box(&mut self, depth: usize, name: &str, label: &str);
    fn close_box(&mut self, depth: usize);
}

/// Draws a shape. `prefix` makes its node names unique among scopes.
fn draw(shape: &Shape, prefix: &str, depth: usize, language: &mut dyn Language) {
    let joins_fork = |step: &Step| step.children.as_ref().is_some_and(Children::is_fork);
    let name = |step: &Step| format!("{prefix}{}", step.id);
    for step in shape.steps() {
        language.node(depth, &name(step), step.id.as_str());
    }
    let end = format!("{prefix}end_");
    language.end(depth, &end);
    for (place, step) in shape.steps().iter().enumerate() {
        for next in shape.followers(place).iter().chain(shape.routes(place)) {
            // The path to a join leads through the branches.
            let next = &shape.steps()[*next];
            if !joins_fork(next) {
                language.edge(depth, &name(step), &name(next), "");
            }
        }
        let leads_on = !shape.followers(place).is_empty() || !shape.routes(place).is_empty();
        if step.may_end || !leads_on {
            language.edge(depth, &name(step), &end, "");
        }
        let Some(children) = &step.children else { continue };
        let inner = format!("{}__", name(step));
        language.open_box(depth, &format!("{inner}box"), children.name.as_str());
        draw(&children.shape, &inner, depth + 1, language);
        language.close_box(depth);
        let starts = children.named.iter().filter_map(|(_, start)| start.as_ref());
        let starts: Vec<String> = match starts.map(|id| format!("{inner}{id}")).collect::<Vec<_>>() {
            named if named.is_empty() => children
                .shape
                .roots()
                .iter()
                .map(|at| format!("{inner}{}", children.shape.steps()[*at].id))
                .collect(),
            named => named,
        };
        for start in starts {
            let leads_here = |from: &usize| joins_fork(step) && shape.routes(*from).contains(&place);
            let from = (0..shape.steps().len()).find(leads_here).unwrap_or(place);
            let from = name(&shape.steps()[from]);
            language.edge(depth, &from, &start, if children.named.is_empty() { "each" } else { "" });
        }
        language.edge(depth, &format!("{inner}end_"), &name(step), "join");
    }
}

struct Mermaid<'a>(&'a mut String);

impl Language for Mermaid<'_> {
    fn node(&mut self, depth: usize, name: &str, label: &str) {
        let _ = writeln!(self.0, "{:1$}{name}[\"{label}\"]", "", depth * 4);
    }
    fn end(&mut self, depth: usize, name: &str) {
        let _ = writeln!(self.0, "{:1$}{name}(((\" \")))", "", depth * 4);
    }
    fn edge(&mut self, depth: usize, from: &str, to: &str, label: &str) {
        let label = if label.is_empty() { String::new() } else { format!("|{label}|") };
        let _ = writeln!(self.0, "{:1$}{from} -->{label} {to}", "", depth * 4);
    }
    fn open_box(&mut self, depth: usize, name: &str, label: &str) {
        let _ = writeln!(self.0, "{:1$}subgraph {name}[\"scopes of {label}\"]", "", depth * 4);
    }
    fn close_box(&mut self, depth: usize) {
        let _ = writeln!(self.0, "{:1$}end", "", depth * 4);
    }
}

struct Dot<'a>(&'a mut String);

impl Language for Dot<'_> {
    fn node(&mut self, depth: usize, name: &str, label: &str) {
        let _ = writeln!(self.0, "{:3$}{} [label={}];", "", quoted(name), quoted(label), depth * 2);
    }
    fn end(&mut self, depth: usize, name: &str) {
        let _ = writeln!(self.0, "{:2$}{} [label=\"\", shape=doublecircle];", "", quoted(name), depth * 2);
    }
    fn edge(&mut self, depth: usize, from: &str, to: &str, label: &str) {
        let label = if label.is_empty() { String::new() } else { format!(" [label={}]", quoted(label)) };
        let _ = writeln!(self.0, "{:4$}{} -> {}{};", "", quoted(from), quoted(to), label, depth * 2);
    }
    fn open_box(&mut self, depth: usize, name: &str, label: &str) {
        let (name, label) = (quoted(&format!("cluster_{name}")), quoted(&format!("scopes of {label}")));
        let indent = " ".repeat(depth * 2);
        let _ = writeln!(self.0, "{indent}subgraph {name} {{\n{indent}  label={label};");
    }
    fn close_box(&mut self, depth: usize) {
        let _ = writeln!(self.0, "{:1$}}}", "", depth * 2);
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
