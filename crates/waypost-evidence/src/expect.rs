//! The language of expectations: a scalar means equals, `"> 5"` compares, `"~ regex"` matches, a list means one of them.

use std::borrow::Cow;

use regex_lite::Regex;
use serde_json::Value;
use waypost::evidence::parse_size;

/// Comparisons, the longer first, so that `>=` is not taken for `>`.
const COMPARISONS: [(&str, Comparison); 7] = [
    (">=", |order| order.is_ge()),
    ("<=", |order| order.is_le()),
    ("!=", |order| order.is_ne()),
    ("==", |order| order.is_eq()),
    (">", |order| order.is_gt()),
    ("<", |order| order.is_lt()),
    ("=", |order| order.is_eq()),
];

type Comparison = fn(std::cmp::Ordering) -> bool;

/// An expectation that nothing can be compared with. It is never taken to hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidExpectation(String);

impl InvalidExpectation {
    pub(crate) fn new(why: String) -> Self {
        Self(why)
    }
}

/// Sees that something can be compared with an expectation.
///
/// # Errors
/// [`InvalidExpectation`] says why nothing can.
pub fn check(expect: &Value) -> Result<(), InvalidExpectation> {
    fits(expect, &Value::Null).map(drop)
}

/// Returns the sign with which an expectation begins that is no plain value: `~`, or that of a comparison.
pub fn sign_of(text: &str) -> Option<&'static str> {
    let matches = text.starts_with('~').then_some("~");
    matches.or_else(|| COMPARISONS.iter().map(|(sign, _)| *sign).find(|sign| text.starts_with(sign)))
}

/// Writes a text as an expectation that means just that text, whatever it begins with.
pub fn literal_text(text: &str) -> Cow<'_, str> {
    if sign_of(text).is_some() { Cow::Owned(format!("= {text}")) } else { Cow::Borrowed(text) }
}

/// Sees that something is expected of how many there are: a number, a comparison with one, or a list of them.
///
/// # Errors
/// [`InvalidExpectation`]: no number is so.
pub fn check_count(expect: &Value) -> Result<(), InvalidExpectation> {
    let is_number = |text: &str| Number::read(text).is_some() || parse_size(text).is_ok();
    let is_one = match expect {
        Value::Array(list) if !list.is_empty() => return list.iter().try_for_each(check_count),
        Value::Number(number) => number.is_u64(),
        Value::String(text) => match sign_of(text) {
            Some("~") => return check(expect),
            Some(sign) => is_number(text[sign.len()..].trim()),
            None => text.parse::<u64>().is_ok(),
        },
        Value::Array(_) | Value::Object(_) | Value::Bool(_) | Value::Null => false,
    };
    let wrong = || InvalidExpectation(format!("`{expect}` is no number, such as 3 or \"> 0\""));
    if is_one { Ok(()) } else { Err(wrong()) }
}

/// Says whether what was found is as expected. A number and its text are the same; null is only null.
///
/// # Errors
/// [`InvalidExpectation`]: nothing can be compared with the expectation.
pub fn fits(expect: &Value, found: &Value) -> Result<bool, InvalidExpectation> {
    match expect {
        Value::Array(list) if list.is_empty() => {
            Err(InvalidExpectation("an empty list, of which nothing is one, is expected".to_owned()))
        }
        Value::Array(list) => {
            let fits = list.iter().map(|one| fits(one, found)).collect::<Result<Vec<_>, _>>()?;
            Ok(fits.contains(&true))
        }
        Value::Object(_) => Err(InvalidExpectation("a map is no expectation of a value".to_owned())),
        Value::String(text) => text_fits(text, found),
        Value::Number(number) => {
            let order = number_of(found).and_then(|found| found.compare(&Number::of(number)));
            Ok(order.is_some_and(|order| order.is_eq()))
        }
        Value::Bool(_) | Value::Null => Ok(expect == found),
    }
}

fn text_fits(text: &str, found: &Value) -> Result<bool, InvalidExpectation> {
    if let Some(pattern) = text.strip_prefix('~') {
        let regex = Regex::new(pattern.trim_start());
        let regex = regex.map_err(|error| {
            InvalidExpectation(format!("`{}` is no regular expression: {error}", pattern.trim_start()))
        })?;
        return Ok(plain(found).is_some_and(|found| regex.is_match(&found)));
    }
    let compared =
        COMPARISONS.iter().find_map(|(sign, holds)| Some((*sign, *holds, text.strip_prefix(sign)?)));
    let Some((sign, holds, bound)) = compared else {
        return Ok(plain(found).is_some_and(|found| found == text));
    };
    let bound = bound.trim();
    let number =
        Number::read(bound).or_else(|| parse_size(bound).ok().map(|bytes| Number::Whole(bytes.into())));
    match number {
        Some(number) => {
            let order = number_of(found).and_then(|found| found.compare(&number));
            Ok(order.is_some_and(holds))
        }
        None if matches!(sign, "==" | "=") => Ok(plain(found).is_some_and(|found| found == bound)),
        None if sign == "!=" => Ok(plain(found).is_some_and(|found| found != bound)),
        None => Err(InvalidExpectation(format!("`{text}`: `{bound}` is neither a number nor a size"))),
    }
}

/// Writes a scalar as it is spelled; nothing for null, lists and maps.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A number, exact where it is whole.
#[derive(Debug, Clone, Copy)]
enum Number {
    Whole(i128),
    Real(f64),
}

impl Number {
    fn of(number: &serde_json::Number) -> Self {
        let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
        whole.map_or_else(|| Self::Real(number.as_f64().unwrap_or(f64::NAN)), Self::Whole)
    }

    fn read(text: &str) -> Option<Self> {
        let is_number = text.bytes().any(|byte| byte.is_ascii_digit())
            && text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
        if !is_number {
            return None;
        }
        text.parse().map(Self::Whole).ok().or_else(|| text.parse().ok().map(Self::Real))
    }

    fn compare(self, other: &Self) -> Option<std::cmp::Ordering> {
        match (self, *other) {
            (Self::Whole(one), Self::Whole(other)) => Some(one.cmp(&other)),
            (one, other) => one.real().partial_cmp(&other.real()),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "compared with a fraction, the last digits do not count")]
    fn real(self) -> f64 {
        match self {
            Self::Whole(whole) => whole as f64,
            Self::Real(real) => real,
        }
    }
}

fn number_of(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => Some(Number::of(number)),
        Value::String(text) => Number::read(text.trim()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}
