//! Writes YAML with comments.

use super::scalar::{fits_block, plain, scalar};

/// A value.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// YAML text.
    Raw(String),
    Text(String),
    List(Vec<Item>),
    Map(Map),
}

/// A list item, after its comments.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) comments: Vec<String>,
    /// Empty if the item has only comments.
    pub(crate) map: Map,
}

/// Entries in order; comments precede each entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Map(Vec<(Vec<String>, String, Value)>);

impl Map {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(_, known, _)| known == key)
    }

    /// Returns the id of a step.
    pub(crate) fn id(&self) -> Option<&str> {
        self.0.iter().find_map(|(_, key, value)| match value {
            Value::Text(id) if key == "id" => Some(id.as_str()),
            _ => None,
        })
    }

    /// Returns true if the value contains an agent or a git command, at any depth.
    pub(crate) fn changes_files_together(&self) -> bool {
        self.0.iter().any(|(_, key, value)| match value {
            Value::Text(_) if key == "agent" => true,
            Value::Text(text) => matches!(key.as_str(), "run" | "command") && is_git(text),
            Value::List(items) => items.iter().any(|item| item.map.changes_files_together()),
            Value::Map(map) => map.changes_files_together(),
            Value::Raw(_) => false,
        })
    }

    pub(crate) fn raw(&mut self, key: &str, value: impl Into<String>) {
        self.put(key, Value::Raw(value.into()));
    }

    pub(crate) fn text(&mut self, key: &str, value: impl Into<String>) {
        self.put(key, Value::Text(value.into()));
    }

    pub(crate) fn put(&mut self, key: &str, value: Value) {
        self.commented(Vec::new(), key, value);
    }

    pub(crate) fn commented(&mut self, comments: Vec<String>, key: &str, value: Value) {
        self.0.push((comments, key.to_owned(), value));
    }

    /// Adds a map of texts, unless empty.
    pub(crate) fn texts(&mut self, key: &str, values: &[(String, String)]) {
        let mut map = Self::default();
        values.iter().for_each(|(name, value)| map.text(name, value.clone()));
        if !map.is_empty() {
            self.put(key, Value::Map(map));
        }
    }

    /// Adds a list of steps, unless empty.
    pub(crate) fn steps(&mut self, key: &str, items: Vec<Item>) {
        if !items.is_empty() {
            self.put(key, Value::List(items));
        }
    }

    /// Adds a condition to the `if` of a step.
    pub(crate) fn guard(&mut self, condition: &str) {
        match self.0.iter_mut().find(|(_, key, _)| key == "if") {
            Some((_, _, Value::Text(own))) => *own = format!("({own}) && {condition}"),
            _ => self.0.insert(1, (Vec::new(), "if".to_owned(), Value::Text(condition.to_owned()))),
        }
    }

    /// Tolerates the failure of a step, if the step is a process.
    pub(crate) fn tolerate(&mut self) {
        self.of_process("continue_on_error", "true");
    }

    /// Captures the output of a step, if the step is a process.
    pub(crate) fn capture(&mut self, format: &str) {
        self.of_process("capture", format);
    }

    /// Limits the time of a step, if the step is a process.
    pub(crate) fn limit(&mut self, timeout: &str) {
        self.of_process("timeout", timeout);
    }

    /// Adds a key of process steps, unless the key exists.
    fn of_process(&mut self, key: &str, value: &str) {
        if (self.has("run") || self.has("agent")) && !self.has(key) {
            self.raw(key, value);
        }
    }

    /// Returns the number of steps in the longest list.
    pub(crate) fn steps_max(&self) -> usize {
        let of_value = |value: &Value| match value {
            Value::List(items) => {
                let steps = items.iter().filter(|item| !item.map.is_empty()).count();
                items.iter().map(|item| item.map.steps_max()).fold(steps, usize::max)
            }
            Value::Map(map) => map.steps_max(),
            Value::Raw(_) | Value::Text(_) => 0,
        };
        self.0.iter().map(|(_, _, value)| of_value(value)).max().unwrap_or(0)
    }

    /// Returns the text, with an empty line before each outermost entry with several lines.
    pub(crate) fn written(&self) -> String {
        let mut text = String::new();
        for (comments, key, value) in &self.0 {
            if matches!(value, Value::List(_) | Value::Map(_)) {
                text.push('\n');
            }
            entry(&mut text, 0, comments, key, value);
        }
        text
    }
}

fn entry(text: &mut String, indent: usize, comments: &[String], key: &str, value: &Value) {
    remarks(text, indent, comments);
    push_spaces(text, indent);
    text.push_str(&if is_simple(key) { key.to_owned() } else { scalar(key) });
    text.push(':');
    match value {
        Value::Raw(raw) => {
            text.push(' ');
            text.push_str(raw);
            text.push('\n');
        }
        Value::Text(value) => words(text, indent, value),
        Value::Map(map) => {
            text.push('\n');
            for (comments, key, value) in &map.0 {
                entry(text, indent + 2, comments, key, value);
            }
        }
        Value::List(items) => {
            text.push('\n');
            for (index, item) in items.iter().enumerate() {
                if index > 0 && indent == 0 {
                    text.push('\n');
                }
                list_item(text, indent + 2, item);
            }
        }
    }
}

fn list_item(text: &mut String, indent: usize, item: &Item) {
    remarks(text, indent, &item.comments);
    let begin = text.len();
    for (comments, key, value) in &item.map.0 {
        entry(text, indent + 2, comments, key, value);
    }
    // `- ` replaces two spaces before the first key.
    let first = text[begin..].find(|c| c != ' ').map_or(begin, |at| begin + at);
    if first >= begin + 2 {
        text.replace_range(first - 2..first, "- ");
    }
}

fn remarks(text: &mut String, indent: usize, comments: &[String]) {
    for comment in comments {
        push_spaces(text, indent);
        text.push_str("# ");
        text.push_str(&plain(comment));
        text.push('\n');
    }
}

fn push_spaces(text: &mut String, count: usize) {
    text.extend(std::iter::repeat_n(' ', count));
}

/// Writes a text plain, quoted or as a block, so that YAML reads the same text.
fn words(text: &mut String, indent: usize, value: &str) {
    let is_line = !value.contains('\n');
    let can_block = fits_block(value) && !value.ends_with("\n\n");
    if is_simple(value) {
        text.push(' ');
        text.push_str(value);
        text.push('\n');
        return;
    }
    if is_line && fits_block(value) && value.contains(['"', '\\']) && !value.contains('\'') {
        text.push_str(&format!(" '{value}'\n"));
        return;
    }
    if !can_block || (is_line && !value.contains(['"', '\\'])) {
        text.push_str(&format!(" {}\n", scalar(value)));
        return;
    }
    // A block with an indented first line needs an indentation indicator.
    let indicator = if value.starts_with([' ', '\t', '\n']) { "2" } else { "" };
    let end = if value.ends_with('\n') { "" } else { "-" };
    text.push_str(&format!(" |{indicator}{end}\n"));
    for line in value.strip_suffix('\n').unwrap_or(value).split('\n') {
        if !line.is_empty() {
            push_spaces(text, indent + 2);
            text.push_str(line);
        }
        text.push('\n');
    }
}

/// Returns true if YAML reads an unquoted text unchanged.
fn is_simple(text: &str) -> bool {
    let is_word = matches!(
        text.to_ascii_lowercase().as_str(),
        "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
    );
    !is_word
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && !text.ends_with(' ')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ' ' | '_' | '-' | '.' | '/'))
}

/// Returns true if a command contains the word git.
pub(crate) fn is_git(command: &str) -> bool {
    command.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| word == "git")
}
