//! Differences between two states, value by value.
//!
//! ```
//! use serde_json::json;
//! use waypost::diff::diff;
//!
//! let before = json!({"plan": ["read", "write"], "cost": 1.5, "draft": true});
//! let after = json!({"plan": ["search", "read", "write"], "cost": 1.75});
//!
//! let lines: Vec<String> = diff(&before, &after).iter().map(ToString::to_string).collect();
//! assert_eq!(lines, [r#"+ plan[0]: "search""#, "~ cost: 1.5 -> 1.75", "- draft: true"]);
//! ```
//!
//! Objects are compared by key, whatever the order of their members. In arrays, unchanged elements are
//! matched even after a common move, so that an insertion is a single difference. Between matches, elements
//! with the same `id`, `key` or `name` are paired, others by index.
//!
//! The work takes time nearly proportional to the size of both states, times the nesting depth of arrays:
//! in arrays with many differences, heuristics end the search for the fewest differences. The result borrows
//! from the states and copies only paths.
//!
//! # Source
//! Matching in arrays: Myers, "An O(ND) Difference Algorithm and Its Variations" (1986), with the heuristics of
//! git, from the crate `imara-diff`.

use std::fmt;
use std::io;

use serde::Serialize;
use serde_json::Value;

use crate::json::path::{FieldPath, Segment};

mod array;

/// Longest displayed text of a value; programs get full values.
const VALUE_BYTES_SHOWN_MAX: usize = 160;

/// A place where two states differ.
///
/// `Display` is a line for people, with long values clipped. The serialised form is `{"path": ..., "change":
/// "added" | "removed" | "changed", "before": ..., "after": ...}`, with a JSON pointer as the path, and full
/// values.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference<'a> {
    /// The path. Indices refer to the second state; for a removed element, to the first.
    pub path: FieldPath,
    /// The change of the value.
    #[serde(flatten)]
    pub change: Change<'a>,
}

/// The change of a value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change<'a> {
    /// Only the second state has the value.
    Added {
        /// The value.
        after: &'a Value,
    },
    /// Only the first state has the value.
    Removed {
        /// The value.
        before: &'a Value,
    },
    /// Both states have a value, and the values differ. Objects and arrays are compared by content, so at
    /// least one value is a scalar, or the kinds differ.
    Changed {
        /// The value in the first state.
        before: &'a Value,
        /// The value in the second state.
        after: &'a Value,
    },
}

/// Compares two states; the result is empty exactly if the states are equal.
///
/// The differences are in the order of the first state's members; added members come last.
pub fn diff<'a>(before: &'a Value, after: &'a Value) -> Vec<Difference<'a>> {
    let mut walk = ValueDiff { path: FieldPath::default(), found: Vec::new() };
    walk.compare(before, after);
    walk.found
}

/// A comparison in progress.
struct ValueDiff<'a> {
    path: FieldPath,
    found: Vec<Difference<'a>>,
}

impl<'a> ValueDiff<'a> {
    fn compare(&mut self, before: &'a Value, after: &'a Value) {
        match (before, after) {
            (Value::Object(before), Value::Object(after)) => {
                for (key, value) in before {
                    match after.get(key) {
                        Some(other) => self.within(key.as_str(), |walk| walk.compare(value, other)),
                        None => self.note(key.as_str(), Change::Removed { before: value }),
                    }
                }
                for (key, after) in after.iter().filter(|(key, _)| !before.contains_key(*key)) {
                    self.note(key.as_str(), Change::Added { after });
                }
            }
            (Value::Array(before), Value::Array(after)) => self.arrays(before, after),
            _ if before == after => {}
            _ => self
                .found
                .push(Difference { path: self.path.clone(), change: Change::Changed { before, after } }),
        }
    }

    fn within(&mut self, segment: impl Into<Segment>, work: impl FnOnce(&mut Self)) {
        self.path.push(segment);
        work(self);
        self.path.pop();
    }

    fn note(&mut self, segment: impl Into<Segment>, change: Change<'a>) {
        self.within(segment, |walk| walk.found.push(Difference { path: walk.path.clone(), change }));
    }
}

impl fmt::Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        match self.change {
            Change::Added { after } => write!(f, "+ {path}: {}", Shown(after)),
            Change::Removed { before } => write!(f, "- {path}: {}", Shown(before)),
            Change::Changed { before, after } => write!(f, "~ {path}: {} -> {}", Shown(before), Shown(after)),
        }
    }
}

/// A value on one line, clipped.
struct Shown<'a>(&'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Clipped(Vec::new());
        // An error here means that the text is full.
        let whole = serde_json::to_writer(&mut text, self.0).is_ok();
        f.write_str(&String::from_utf8_lossy(&text.0))?;
        if whole { Ok(()) } else { f.write_str("…") }
    }
}

/// Keeps the beginning of a text, up to a character boundary.
struct Clipped(Vec<u8>);

impl io::Write for Clipped {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let remaining = VALUE_BYTES_SHOWN_MAX - self.0.len();
        if piece.len() <= remaining {
            self.0.extend_from_slice(piece);
            return Ok(piece.len());
        }
        let begins = |at: &usize| piece[*at] & 0xC0 != 0x80;
        let end = (0..=remaining).rev().find(begins).unwrap_or(0);
        self.0.extend_from_slice(&piece[..end]);
        Err(io::ErrorKind::FileTooLarge.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
