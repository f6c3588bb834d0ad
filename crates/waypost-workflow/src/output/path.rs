//! JSON paths for one value, or for every item of a list or map.
//!
//! `$`, `.name`, `['name']`, `[0]`, `[-1]`, `[*]` and `.*`. Without filters, slices and `..`: an output
//! should have a clear source, and a step can compute the rest.

use std::fmt;
use std::ops::Range;

use serde_json::Value;

use super::capture::without_last_newline;
use super::json::parse_json;
use crate::expr::{described, shown};
use crate::suggest::{listed, nearest};

/// Most parts of a path; documents are parsed to a depth of 128.
const PARTS_MAX: usize = 128;
/// Most names listed in an error.
const LISTED_MAX: usize = 12;

/// Valid JSON path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPath {
    text: String,
    parts: Vec<PathPart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PathPart {
    Name(String),
    /// From 0; negative from the end.
    Index(i64),
    Every,
}

/// Syntax error in a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PathSyntaxError {
    /// Place in the path, in bytes.
    pub range: Range<usize>,
    /// Error text.
    pub message: String,
}

/// Why a path has no value in a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The document is not JSON.
    #[error("not valid JSON: {problem} at line {line}, column {column}")]
    NotJson {
        /// Message of the parser.
        problem: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// The document is not text.
    #[error("not valid UTF-8 after byte {valid_bytes}")]
    NotText {
        /// Number of valid bytes.
        valid_bytes: usize,
    },
    /// A part of the path does not exist.
    #[error("`{path}`: {message}")]
    Missing {
        /// Path.
        path: String,
        /// Missing part, with the existing names.
        message: String,
        /// Name similar to the missing name.
        hint: Option<String>,
    },
}

impl JsonPath {
    /// Reads a path.
    ///
    /// # Errors
    /// The place of the syntax error.
    pub fn parse(text: &str) -> Result<Self, PathSyntaxError> {
        let fail =
            |range: Range<usize>, message: &str| PathSyntaxError { range, message: message.to_owned() };
        if !text.starts_with('$') {
            return Err(fail(0..text.len(), "a JSON path begins with `$`"));
        }
        let mut parts = Vec::new();
        let mut at = 1;
        while at < text.len() {
            let rest = &text[at..];
            let (part, len) = if rest.starts_with("..") {
                return Err(fail(at..at + 2, "`..` is not supported; write every part of the path"));
            } else if let Some(rest) = rest.strip_prefix('.') {
                dotted(rest).map(|(part, len)| (part, len + 1))
            } else if let Some(rest) = rest.strip_prefix('[') {
                bracketed(rest).map(|(part, len)| (part, len + 1))
            } else {
                Err("expected `.name` or `[...]`")
            }
            .map_err(|message| fail(at..text.len(), message))?;
            if parts.len() == PARTS_MAX {
                return Err(fail(at..text.len(), "the path has too many parts"));
            }
            parts.push(part);
            at += len;
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// Returns the value at the path; with `[*]` or `.*`, the list of all values there.
    ///
    /// # Errors
    /// [`PathError::Missing`]: the first part that does not exist.
    pub fn find(&self, document: &Value) -> Result<Value, PathError> {
        let mut found = vec![document];
        let mut is_list = false;
        for (index, part) in self.parts.iter().enumerate() {
            let mut next = Vec::new();
            for value in found {
                step(part, value, &mut next).map_err(|(message, hint)| PathError::Missing {
                    path: self.text.clone(),
                    message: format!("at `{}` {message}", self.prefix(index)),
                    hint,
                })?;
            }
            is_list |= *part == PathPart::Every;
            found = next;
        }
        match (is_list, found.as_slice()) {
            (false, [value]) => Ok((*value).clone()),
            _ => Ok(found.into_iter().cloned().collect()),
        }
    }

    /// As [`JsonPath::find`], in the bytes of a JSON document.
    ///
    /// # Errors
    /// Also [`PathError::NotJson`].
    pub fn find_in(&self, bytes: &[u8]) -> Result<Value, PathError> {
        let document = parse_json(bytes).map_err(|error| PathError::NotJson {
            problem: error.problem,
            line: error.line,
            column: error.column,
        })?;
        self.find(&document)
    }

    fn prefix(&self, parts: usize) -> String {
        let mut prefix = "$".to_owned();
        for part in &self.parts[..parts] {
            match part {
                PathPart::Name(name) => prefix.push_str(&format!(".{name}")),
                PathPart::Index(index) => prefix.push_str(&format!("[{index}]")),
                PathPart::Every => prefix.push_str("[*]"),
            }
        }
        prefix
    }
}

/// Returns the text of a file as an output: without the last newline.
///
/// # Errors
/// [`PathError::NotText`].
pub(crate) fn file_text(bytes: &[u8]) -> Result<Value, PathError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| PathError::NotText { valid_bytes: error.valid_up_to() })?;
    Ok(Value::String(without_last_newline(text).to_owned()))
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn dotted(rest: &str) -> Result<(PathPart, usize), &'static str> {
    if rest.starts_with('*') {
        return Ok((PathPart::Every, 1));
    }
    let len = rest.find(['.', '[', ']', '\'', '"', ' ', '*', '?', '(']).unwrap_or(rest.len());
    match len {
        0 => Err("a name is missing after `.`; write names with special characters as `['name']`"),
        _ => Ok((PathPart::Name(rest[..len].to_owned()), len)),
    }
}

fn bracketed(rest: &str) -> Result<(PathPart, usize), &'static str> {
    if let Some(quote @ ('\'' | '"')) = rest.chars().next() {
        let end = rest[1..].find(quote).ok_or("the quoted name in brackets is not closed")?;
        let name = &rest[1..1 + end];
        if name.contains('\\') {
            return Err("names in brackets have no escapes; use the other kind of quotes");
        }
        return match rest[end + 2..].starts_with(']') {
            true => Ok((PathPart::Name(name.to_owned()), end + 3)),
            false => Err("`]` is missing after the name"),
        };
    }
    let end = rest.find(']').ok_or("`[` is not closed")?;
    match &rest[..end] {
        "*" => Ok((PathPart::Every, end + 1)),
        index => {
            let index = index.parse().map_err(|_| "brackets contain a number, `*` or a quoted name")?;
            Ok((PathPart::Index(index), end + 1))
        }
    }
}

fn step<'a>(
    part: &PathPart,
    value: &'a Value,
    found: &mut Vec<&'a Value>,
) -> Result<(), (String, Option<String>)> {
    match (part, value) {
        (PathPart::Name(name), Value::Object(map)) => match map.get(name) {
            Some(value) => found.push(value),
            None => {
                let names = map.keys().map(String::as_str);
                let has = listed(names.clone().take(LISTED_MAX));
                let message = format!("there is no `{}`; names: {has}", shown(name));
                return Err((message, nearest(name, names).map(|name| format!("did you mean `{name}`?"))));
            }
        },
        (PathPart::Index(index), Value::Array(items)) => {
            let count = items.len() as i64;
            let position = if *index < 0 { index.saturating_add(count) } else { *index };
            let item = usize::try_from(position).ok().and_then(|position| items.get(position));
            found
                .push(item.ok_or_else(|| (format!("there is no item {index}; the list has {count}"), None))?);
        }
        (PathPart::Every, Value::Array(items)) => found.extend(items),
        (PathPart::Every, Value::Object(map)) => found.extend(map.values()),
        (PathPart::Name(name), other) => {
            return Err((format!("there is no `{}`: the value is {}", shown(name), described(other)), None));
        }
        (PathPart::Index(_) | PathPart::Every, other) => {
            return Err((format!("there are no items: the value is {}", described(other)), None));
        }
    }
    Ok(())
}
