//! Conversion of counts, times and names to column values and back.

use jiff::Timestamp;
use waypost::Digest;
use waypost::id::ScopePath;

/// Bytes of the key of a scope: half a SHA-256 is unique in a run, and keeps the index small. A path may be longer
/// than an index entry.
const KEY_BYTES: usize = 16;

/// Converts a count to PostgreSQL's signed integer; real counts are far below the limit.
pub(crate) fn int(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Converts a stored count back; a negative count is damage of a statistic.
pub(crate) fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

/// Formats a time; text order equals time order.
pub(crate) fn time_text(time: Timestamp) -> String {
    format!("{time:.9}")
}

/// Parses a stored time.
pub(crate) fn time_of(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|error| format!("`{text}` is not a time: {error}"))
}

/// Returns the key of a scope in a run.
pub(crate) fn key_of(scope: &ScopePath) -> Vec<u8> {
    Digest::of(scope.as_str().as_bytes()).as_bytes()[..KEY_BYTES].to_vec()
}

/// Returns the key of the main scope.
pub(crate) fn main_key() -> Vec<u8> {
    key_of(&ScopePath::main())
}
