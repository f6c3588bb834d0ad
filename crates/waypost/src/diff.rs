//! What differs between two states, value by value.
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
//! Objects are compared by key, whatever the order of their members. In arrays, elements that stayed the same are
//! found wherever they moved to together, so that an insertion is one difference; between them, elements with the same
//! `id`, `key` or `name` belong together, and otherwise those at the same place.
//!
//! The work is bounded. Finding what stayed the same in an array gives up after [`EDITS_MAX`] insertions and removals,
//! and in all arrays together after [`COMPARISONS_MAX`] comparisons; such arrays are compared place by place. All the
//! rest takes time in proportion to the size of the two states, times the depth of arrays in arrays. The answer
//! borrows from the states and copies nothing but paths.

use std::fmt;
use std::io;

use serde::Serialize;
use serde_json::Value;

use crate::path::{FieldPath, Segment};

mod array;
mod same;

pub use array::{COMPARISONS_MAX, EDITS_MAX};

/// Longest text of a value that is shown to people; programs get values whole.
const VALUE_BYTES_SHOWN_MAX: usize = 160;

/// One place at which two states differ.
///
/// `Display` is a line for people, with long values clipped. Serialised it is `{"path": …, "change": "added" |
/// "removed" | "changed", "before": …, "after": …}`, the path a JSON pointer, the values whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference<'a> {
    /// Where. Indices are those of the second state; only an element that was removed has that of the first.
    pub path: FieldPath,
    /// What became of it.
    #[serde(flatten)]
    pub change: Change<'a>,
}

/// What became of a value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change<'a> {
    /// Only the second state has it.
    Added {
        /// The value.
        after: &'a Value,
    },
    /// Only the first state has it.
    Removed {
        /// The value.
        before: &'a Value,
    },
    /// Both have something there, and it is not the same; objects and arrays are looked into, so at least one of the
    /// two is neither, or they are not of one kind.
    Changed {
        /// The value in the first state.
        before: &'a Value,
        /// The value in the second state.
        after: &'a Value,
    },
}

/// Compares two states; nothing differs if and only if they are equal.
///
/// The differences come in the order of the first state's members, those that were added last.
pub fn diff<'a>(before: &'a Value, after: &'a Value) -> Vec<Difference<'a>> {
    let mut walk = Walk { path: FieldPath::default(), found: Vec::new(), comparisons_left: COMPARISONS_MAX };
    walk.compare(before, after);
    walk.found
}

/// A comparison under way.
struct Walk<'a> {
    path: FieldPath,
    found: Vec<Difference<'a>>,
    comparisons_left: usize,
}

impl<'a> Walk<'a> {
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
        // An error means that the rest of it is not wanted.
        let whole = serde_json::to_writer(&mut text, self.0).is_ok();
        f.write_str(&String::from_utf8_lossy(&text.0))?;
        if whole { Ok(()) } else { f.write_str("…") }
    }
}

/// Takes the begin of a text, up to the end of a character.
struct Clipped(Vec<u8>);

impl io::Write for Clipped {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let room = VALUE_BYTES_SHOWN_MAX - self.0.len();
        if piece.len() <= room {
            self.0.extend_from_slice(piece);
            return Ok(piece.len());
        }
        let begins = |at: &usize| piece[*at] & 0xC0 != 0x80;
        let end = (0..=room).rev().find(begins).unwrap_or(0);
        self.0.extend_from_slice(&piece[..end]);
        Err(io::ErrorKind::FileTooLarge.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
