//! Reads typed values from nodes, and collects problems.

use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use super::align::Walk;
use super::child::Family;
use super::node::{Kind, Node};
use super::problem::{Problems, SourceText};
use super::units::parse_duration;
use crate::expr::{Condition, Formula, SyntaxError, Template};
use crate::suggest::{listed, nearest};

/// Words of other tools, with the word used here.
const SYNONYMS: [(&str, &str); 12] = [
    ("array", "json"),
    ("boolean", "bool"),
    ("constant", "fixed"),
    ("float", "number"),
    ("int", "integer"),
    ("list", "json"),
    ("map", "json"),
    ("object", "json"),
    ("str", "string"),
    ("stop", "fail"),
    ("text", "string"),
    ("warn", "tolerate"),
];

/// Collects problems while a file is read: one problem never hides another.
#[derive(Debug)]
pub(crate) struct Checker<'s> {
    pub(crate) source: &'s SourceText,
    pub(crate) problems: Problems,
    pub(crate) warnings: Problems,
    /// Names that expressions may read here, in addition to the global names.
    pub(crate) locals: Vec<String>,
    /// Folders for absolute paths of evidence.
    pub(crate) allow_paths: Vec<PathBuf>,
    /// Parent files, and files named in this file.
    pub(crate) family: Family,
    /// Position of the last match inside a value: the next match is usually further on in the same value.
    aligned: Option<(usize, Walk)>,
}

impl<'s> Checker<'s> {
    pub(crate) fn new(source: &'s SourceText, problems: Problems) -> Self {
        Self {
            source,
            problems,
            warnings: Problems::default(),
            locals: Vec::new(),
            allow_paths: Vec::new(),
            family: Family::default(),
            aligned: None,
        }
    }

    /// Returns the name in `known` nearest to `name`, or `None` if enough problems were collected already.
    pub(crate) fn nearest<'k>(&self, name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<String> {
        if self.problems.is_full() { None } else { nearest(name, known) }
    }

    /// Adds a problem at `node`.
    pub(crate) fn wrong(&mut self, node: &Node, message: impl Into<String>, help: &str) {
        let problem = self.source.problem(&node.span, message).help(help);
        self.problems.push(problem);
    }

    /// Adds a warning at `node`.
    pub(crate) fn warn(&mut self, node: &Node, message: impl Into<String>, help: &str) {
        if !self.warnings.is_full() {
            let problem = self.source.problem(&node.span, message).help(help);
            self.warnings.push(problem);
        }
    }

    /// Adds a problem: `node` has another type than `wanted`.
    pub(crate) fn mismatch(&mut self, node: &Node, what: &str, wanted: &str, help: &str) {
        self.wrong(node, format!("`{what}` must be {wanted}, not {}", node.described()), help);
    }

    /// Reads plain text: not a number, without an expression.
    pub(crate) fn text(&mut self, node: &Node, what: &str) -> Option<String> {
        match &node.kind {
            Kind::Text(text) if text.contains("${{") => {
                let message = format!("`{what}` does not support expressions");
                self.wrong(
                    node,
                    message,
                    "expressions are allowed in `run`, `approve`, `wait`, `if`, `env`, `dir`, `stdin`, \
                     `undo`, `report`, `evidence` and `outputs`",
                );
                None
            }
            Kind::Text(text) => Some(text.clone()),
            Kind::Bool(_) | Kind::Number(_) => {
                self.mismatch(node, what, "text", "put the value in quotes");
                None
            }
            _ => {
                self.mismatch(node, what, "text", "write text");
                None
            }
        }
    }

    /// Reads plain text that is not empty.
    pub(crate) fn filled_text(&mut self, node: &Node, what: &str) -> Option<String> {
        let text = self.text(node, what)?;
        if text.trim().is_empty() {
            self.wrong(node, format!("`{what}` is empty"), "write a value, or remove the key");
            return None;
        }
        Some(text)
    }

    /// Reads `true` or `false`, in exactly these spellings.
    pub(crate) fn truth(&mut self, node: &Node, what: &str) -> Option<bool> {
        match &node.kind {
            Kind::Bool(truth) => Some(*truth),
            Kind::Text(text) if node.own_text.as_ref().is_some_and(|own| own.len() == text.len()) => {
                let hint = match text.to_lowercase().as_str() {
                    "yes" | "on" | "y" => Some("true".to_owned()),
                    "no" | "off" | "n" => Some("false".to_owned()),
                    _ => nearest(text, ["true", "false"]),
                };
                let message = format!("`{what}` must be `true` or `false`, not {}", node.described());
                self.problems.push(self.source.problem(&node.span, message).hint(hint));
                None
            }
            _ => {
                self.mismatch(node, what, "`true` or `false`", "write `true` or `false`, without quotes");
                None
            }
        }
    }

    /// Reads a whole number in `range`.
    pub(crate) fn integer(&mut self, node: &Node, what: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let number = match &node.kind {
            Kind::Number(number) => number.as_u64(),
            _ => None,
        };
        if let Some(number) = number.filter(|number| range.contains(number)) {
            return Some(number);
        }
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        let help = match &node.kind {
            Kind::Text(text) if text.trim().parse::<u64>().is_ok() => {
                "write a number without quotes".to_owned()
            }
            _ => format!("write {wanted}"),
        };
        self.mismatch(node, what, &wanted, &help);
        None
    }

    /// Reads a duration greater than zero.
    pub(crate) fn duration(&mut self, node: &Node, what: &str) -> Option<Duration> {
        let read = match &node.kind {
            Kind::Text(text) if text.contains("${{") => return self.text(node, what).and(None),
            Kind::Text(_) | Kind::Number(_) => parse_duration(node.spelled().unwrap_or_default()),
            _ => {
                self.mismatch(node, what, "a duration", "write a number and a unit: `30s`, `10m`, `1h30m`");
                return None;
            }
        };
        match read {
            Ok(duration) if duration.is_zero() => {
                self.wrong(node, format!("`{what}` must be positive"), "omit the key for no limit");
                None
            }
            Ok(duration) => Some(duration),
            Err(error) => {
                self.wrong(node, format!("`{what}`: {}", error.message), &error.help);
                None
            }
        }
    }

    /// Reads one of `words`.
    pub(crate) fn word<'w>(&mut self, node: &Node, what: &str, words: &[&'w str]) -> Option<&'w str> {
        let found = node.spelled().unwrap_or_default();
        if let Some(word) = words.iter().find(|word| **word == found) {
            return Some(word);
        }
        let message =
            format!("`{what}` must be one of {}, not {}", listed(words.iter().copied()), node.described());
        let synonym = SYNONYMS.iter().find(|(other, word)| *other == found && words.contains(word));
        let hint = match synonym {
            Some((_, word)) => Some((*word).to_owned()),
            None => nearest(found, words.iter().copied()),
        };
        self.problems.push(self.source.problem(&node.span, message).hint(hint));
        None
    }

    /// Reads a list of texts; a single text is a list of one.
    pub(crate) fn texts<'n>(&mut self, node: &'n Node, what: &str) -> Vec<(String, &'n Node)> {
        let items = match &node.kind {
            Kind::List(items) => items.iter().collect(),
            Kind::Text(_) => vec![node],
            _ => {
                self.mismatch(node, what, "a list", "write a list: `[a, b]`");
                Vec::new()
            }
        };
        items.into_iter().filter_map(|item| self.filled_text(item, what).map(|text| (text, item))).collect()
    }

    /// Reads text with expressions.
    pub(crate) fn template(&mut self, node: &Node, what: &str) -> Option<Template> {
        let Some(text) = node.spelled() else {
            let help = match node.kind {
                Kind::Null => "write text, or remove the key",
                _ => "write text; quote a value that begins with `[` or `{`",
            };
            self.mismatch(node, what, "text", help);
            return None;
        };
        if text.contains('\0') && what != "stdin" && what != "report" {
            self.wrong(node, format!("{what} contains a NUL, which commands cannot hold"), "remove it");
            return None;
        }
        // Valid expressions are checked further even if others have errors: one problem never hides another.
        let (template, errors) = Template::parse_in_part(text, &self.locals);
        self.syntax(node, text, errors);
        Some(template)
    }

    /// Reads a condition: an expression, or a plain `true` or `false`.
    pub(crate) fn condition(&mut self, node: &Node, what: &str) -> Option<Condition> {
        let text = match &node.kind {
            Kind::Text(text) => text.as_str(),
            Kind::Bool(truth) if *truth => "true",
            Kind::Bool(_) => "false",
            _ => {
                self.mismatch(
                    node,
                    what,
                    "an expression",
                    "write an expression: `steps.fetch.outputs.rows > 0`",
                );
                return None;
            }
        };
        match Condition::parse_with(text, &self.locals) {
            Ok(condition) => {
                if what == "if" && condition.is_never() {
                    self.warn(
                        node,
                        "the condition is never true: the step never runs",
                        "remove `if`, or the step",
                    );
                }
                Some(condition)
            }
            Err(errors) => {
                self.syntax(node, text, errors);
                None
            }
        }
    }

    /// Reads one expression for its value.
    pub(crate) fn formula(&mut self, node: &Node, what: &str) -> Option<Formula> {
        let Kind::Text(text) = &node.kind else {
            self.mismatch(node, what, "an expression", "write an expression: `item.size`");
            return None;
        };
        match Formula::parse_with(text, &self.locals, &format!("`{what}`")) {
            Ok(formula) => Some(formula),
            Err(errors) => {
                self.syntax(node, text, errors);
                None
            }
        }
    }

    fn syntax(&mut self, node: &Node, text: &str, errors: Vec<SyntaxError>) {
        for error in errors {
            if self.problems.is_full() {
                return;
            }
            let span = self.inside(node, text, &error.range);
            let mut problem = self.source.problem(&span, error.message).hint(error.hint);
            problem.help = error.help;
            self.problems.push(problem);
        }
    }

    /// Returns the place in the file of bytes `range` of `text`, the value of `node`.
    pub(crate) fn inside(&mut self, node: &Node, text: &str, range: &Range<usize>) -> Range<usize> {
        let Some(own) = &node.own_text else { return node.span.clone() };
        let raw = &self.source.text[own.clone()];
        let known =
            self.aligned.as_ref().filter(|(start, walk)| *start == own.start && walk.text_at <= range.start);
        let mut walk = known.map_or_else(|| Walk::new(raw), |(_, walk)| walk.clone());
        let found = walk.find(raw, text, range);
        self.aligned = Some((own.start, walk));
        found.map_or_else(|| node.span.clone(), |found| own.start + found.start..own.start + found.end)
    }
}
