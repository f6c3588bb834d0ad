//! Conversion of counts and times to column values and back.

use jiff::Timestamp;

use crate::database::error::SqliteError;

/// Converts a count to SQLite's signed integer; real counts are far below the limit.
pub(crate) fn int(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Converts a stored count back.
pub(crate) fn count(value: i64) -> Result<u64, SqliteError> {
    u64::try_from(value).map_err(|_| SqliteError::corrupt(format!("the count {value} is out of range")))
}

/// Formats a time so that text order equals time order.
pub(crate) fn time_text(time: Timestamp) -> String {
    format!("{time:.9}")
}

/// Parses a stored time.
pub(crate) fn time_of(text: &str) -> Result<Timestamp, SqliteError> {
    text.parse().map_err(|error| SqliteError::corrupt(format!("`{text}` is not a time: {error}")))
}
