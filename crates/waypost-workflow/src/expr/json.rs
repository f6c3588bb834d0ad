//! JSON of steps and callers, read without silent loss.
//!
//! Two cases accepted by most JSON readers are errors here. A number must keep its value, and a map must not
//! have duplicate keys, where one value would be lost.

use std::fmt;

use serde_json::Value;
use waypost::unique_keys::UniqueKeys;

use super::convert::{NumberError, exact_number, shown};

/// Error in a JSON document, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JsonError {
    pub(crate) problem: String,
    /// Line, from 1.
    pub(crate) line: usize,
    /// Column in bytes, from 1.
    pub(crate) column: usize,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at line {}, column {}", self.problem, self.line, self.column)
    }
}

/// Reads one JSON document.
///
/// # Errors
/// Not JSON, nested deeper than 128 levels, a duplicate key, or the first number that would change.
pub(crate) fn parse_json(bytes: &[u8]) -> Result<Value, JsonError> {
    let UniqueKeys(value) = serde_json::from_slice(bytes).map_err(|error| JsonError {
        problem: json_problem(&error),
        line: error.line(),
        column: error.column(),
    })?;
    match first_changed_number(bytes) {
        Some((at, number)) => {
            let before = &bytes[..at];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
            let problem =
                format!("cannot keep the number `{}` exactly; write the number as text", shown(number));
            Err(JsonError { problem, line, column: at - start + 1 })
        }
        None => Ok(value),
    }
}

/// Returns the first number of a valid document with a changed value after a round trip, and its offset.
fn first_changed_number(bytes: &[u8]) -> Option<(usize, &str)> {
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = end_of_text(bytes, at),
            b'-' | b'0'..=b'9' => {
                let len = bytes[at..].iter().take_while(|byte| b"+-.eE0123456789".contains(byte)).count();
                let number = std::str::from_utf8(&bytes[at..at + len]).expect("a number is ASCII");
                if exact_number(number) == Err(NumberError::Changes) {
                    return Some((at, number));
                }
                at += len;
            }
            _ => at += 1,
        }
    }
    None
}

/// Returns the end of the string that begins at `start`.
fn end_of_text(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Returns the parser's message without the place, which the error has in separate fields.
fn json_problem(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split(" at line ").next().unwrap_or_default().to_owned()
}
