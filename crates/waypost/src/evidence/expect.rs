//! Expectations of sizes: a number, a comparison as in `">= 2 KiB"`, or a list of alternatives.

use serde_json::Value;

/// Units of size; a single letter is the binary unit, as in `ls -h`.
const UNITS: [(&str, u64); 13] = [
    ("", 1),
    ("B", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];
/// Comparisons, the longer first, so that `>=` is not parsed as `>`.
const COMPARISONS: [(&str, Comparison); 7] = [
    (">=", |found, bound| found >= bound),
    ("<=", |found, bound| found <= bound),
    ("!=", |found, bound| found != bound),
    ("==", |found, bound| found == bound),
    (">", |found, bound| found > bound),
    ("<", |found, bound| found < bound),
    ("=", |found, bound| found == bound),
];

type Comparison = fn(u64, u64) -> bool;

/// An invalid expectation. It never holds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidExpectation(String);

impl InvalidExpectation {
    /// Creates the error with its reason.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// Checks that an expectation of a size is valid: a number, a comparison, or a list of these.
///
/// # Errors
/// [`InvalidExpectation`] has the reason.
pub fn check_size(expect: &Value) -> Result<(), InvalidExpectation> {
    size_fits(expect, 0).map(drop)
}

/// Returns whether a size in bytes meets the expectation.
pub(super) fn size_fits(expect: &Value, bytes: u64) -> Result<bool, InvalidExpectation> {
    match expect {
        Value::Number(number) => match number.as_u64() {
            Some(expect) => Ok(bytes == expect),
            None => Err(InvalidExpectation(format!("`{number}` is not a size"))),
        },
        Value::String(text) => compare(text, bytes),
        Value::Array(list) if !list.is_empty() => {
            let fits = list.iter().map(|one| size_fits(one, bytes)).collect::<Result<Vec<_>, _>>()?;
            Ok(fits.contains(&true))
        }
        other => Err(InvalidExpectation(format!("`{other}` is not a size, such as 12 or \">= 2 KiB\""))),
    }
}

fn compare(text: &str, bytes: u64) -> Result<bool, InvalidExpectation> {
    let text = text.trim();
    let (holds, bound) = COMPARISONS
        .iter()
        .find_map(|(sign, holds)| Some((*holds, text.strip_prefix(sign)?)))
        .unwrap_or((|found, bound| found == bound, text));
    Ok(holds(bytes, size(bound.trim())?))
}

/// Parses a size in bytes as people write it: `12`, `2B`, `2 KiB`, `1 GB`.
///
/// # Errors
/// [`InvalidExpectation`]: the text is not a size.
pub fn parse_size(text: &str) -> Result<u64, InvalidExpectation> {
    size(text)
}

fn size(text: &str) -> Result<u64, InvalidExpectation> {
    let wrong = || InvalidExpectation(format!("`{text}` is not a size, such as 12 or 2 KiB"));
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = unit.trim_start();
    let (_, factor) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(wrong)?;
    number.checked_mul(*factor).ok_or_else(wrong)
}
