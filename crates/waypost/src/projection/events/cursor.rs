//! The cursor of an event: the place in a run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::BranchPath;

/// The name of an event within a run.
///
/// The text form is `BRANCH@SEQ.INDEX`; clients keep and return the text unparsed. The same record always has
/// the same cursors. Within a branch, cursors are in the order of the events; across branches, the order is
/// not in time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cursor {
    /// The branch.
    pub branch: BranchPath,
    /// The record.
    pub seq: u64,
    /// The 0-based index among the events of the record.
    pub index: u32,
}

/// An invalid cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a cursor, such as `main@12.0`")]
pub struct InvalidCursor(pub String);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}.{}", self.branch, self.seq, self.index)
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;
    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let parse = || {
            let (branch, place) = text.split_once('@')?;
            let (seq, index) = place.split_once('.')?;
            let branch = BranchPath::new(branch).ok()?;
            let cursor = Self { branch, seq: seq.parse().ok()?, index: index.parse().ok()? };
            // Each cursor has a single spelling, for comparisons as text.
            Some(cursor).filter(|cursor| cursor.to_string() == text)
        };
        // Clipped, as the text is arbitrary.
        parse().ok_or_else(|| InvalidCursor(text.chars().take(80).collect()))
    }
}

impl TryFrom<String> for Cursor {
    type Error = InvalidCursor;
    fn try_from(text: String) -> Result<Self, InvalidCursor> {
        text.parse()
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> String {
        cursor.to_string()
    }
}
