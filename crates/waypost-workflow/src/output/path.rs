//! Values at a JSON path of an output, with the reasons for a missing value.

use serde_json::Value;
use waypost::json_path::{JsonPath, MissingPart, PathPart};

use super::capture::without_last_newline;
use crate::expr::parse_json;
use crate::expr::{described, shown};
use crate::suggest::{listed, nearest};

/// Most names listed in an error.
const LISTED_MAX: usize = 12;

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

/// Returns the value at a path.
///
/// # Errors
/// [`PathError::Missing`]: the first part that does not exist.
pub fn value_at(path: &JsonPath, document: &Value) -> Result<Value, PathError> {
    path.find(document).map_err(|missing| {
        let (message, hint) = reason(&missing);
        let message = format!("at `{}` {message}", missing.above);
        PathError::Missing { path: path.to_string(), message, hint }
    })
}

/// As [`value_at`], in the bytes of a JSON document.
///
/// # Errors
/// Also [`PathError::NotJson`].
pub fn value_in(path: &JsonPath, bytes: &[u8]) -> Result<Value, PathError> {
    let document = parse_json(bytes).map_err(|error| PathError::NotJson {
        problem: error.problem,
        line: error.line,
        column: error.column,
    })?;
    value_at(path, &document)
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

/// Returns the reason why a value does not have a part, and a hint.
fn reason(missing: &MissingPart<'_>) -> (String, Option<String>) {
    match (missing.part, missing.value) {
        (PathPart::Name(name), Value::Object(map)) => {
            let names = map.keys().map(String::as_str);
            let has = listed(names.clone().take(LISTED_MAX));
            let hint = nearest(name, names).map(|name| format!("did you mean `{name}`?"));
            (format!("there is no `{}`; names: {has}", shown(name)), hint)
        }
        (PathPart::Index(index), Value::Array(items)) => {
            (format!("there is no item {index}; the list has {}", items.len()), None)
        }
        (PathPart::Name(name), other) => {
            (format!("there is no `{}`: the value is {}", shown(name), described(other)), None)
        }
        (PathPart::Index(_) | PathPart::Every, other) => {
            (format!("there are no items: the value is {}", described(other)), None)
        }
    }
}
