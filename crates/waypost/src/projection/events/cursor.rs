//! The cursor of an event: the place in a run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::ScopePath;

/// The name of an event within a run.
///
/// The text form is `SCOPE@SEQ.INDEX`; clients keep and return the text unparsed. The same record always has
/// the same cursors. Within a scope, cursors are in the order of the events; across scopes, the order is
/// not in time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cursor {
    /// The scope.
    pub scope: ScopePath,
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
        write!(f, "{}@{}.{}", self.scope, self.seq, self.index)
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;
    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let parse = || {
            let (scope, place) = text.split_once('@')?;
            let (seq, index) = place.split_once('.')?;
            let scope = ScopePath::new(scope).ok()?;
            let cursor = Self { scope, seq: seq.parse().ok()?, index: index.parse().ok()? };
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
