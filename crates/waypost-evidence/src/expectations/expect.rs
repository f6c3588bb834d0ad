//! The language of expectations: a scalar means equality, `"> 5"` compares, `"~ regex"` matches, a list means
//! any of its entries.

use std::borrow::Cow;
use std::cmp::Ordering;

use regex_lite::Regex;
use serde_json::Value;
use waypost::evidence::{InvalidExpectation, parse_size};

use crate::expectations::decimal::{Decimal, is_plain};

type Comparison = fn(Ordering) -> bool;

/// Comparison signs, longer signs first: `>=` must not parse as `>`.
const COMPARISONS: [(&str, Comparison); 7] = [
    (">=", Ordering::is_ge),
    ("<=", Ordering::is_le),
    ("!=", Ordering::is_ne),
    ("==", Ordering::is_eq),
    (">", Ordering::is_gt),
    ("<", Ordering::is_lt),
    ("=", Ordering::is_eq),
];

/// Checks that `expect` is a valid expectation.
///
/// # Errors
/// [`InvalidExpectation`] with the reason.
pub fn check(expect: &Value) -> Result<(), InvalidExpectation> {
    fits(expect, &Value::Null).map(drop)
}

/// Returns the sign at the start of an expectation, `~` or a comparison, or `None` for a plain value.
pub fn sign_of(text: &str) -> Option<&'static str> {
    let matches = text.starts_with('~').then_some("~");
    matches.or_else(|| COMPARISONS.iter().map(|(sign, _)| *sign).find(|sign| text.starts_with(sign)))
}

/// Returns an expectation that equals exactly `text`, even if it starts with a sign.
pub fn literal_text(text: &str) -> Cow<'_, str> {
    if sign_of(text).is_some() { Cow::Owned(format!("= {text}")) } else { Cow::Borrowed(text) }
}

/// Checks that `expect` is a valid expectation of a count: a number, a comparison with a number, or a list of
/// these.
///
/// # Errors
/// [`InvalidExpectation`] if `expect` is not a count, or if every count fits, as for `>= 0`.
pub fn check_count(expect: &Value) -> Result<(), InvalidExpectation> {
    let is_number = |text: &str| number_or_size(text).is_some();
    let is_one = match expect {
        Value::Array(list) if !list.is_empty() => return list.iter().try_for_each(check_count),
        Value::Number(number) => number.is_u64(),
        Value::String(text) => match sign_of(text) {
            Some("~") => return check(expect),
            Some(">" | ">=") if fits(expect, &0.into()) == Ok(true) => {
                return Err(InvalidExpectation::new(format!("`{text}` always holds")));
            }
            Some(sign) => is_number(text[sign.len()..].trim()),
            None => text.parse::<u64>().is_ok(),
        },
        Value::Array(_) | Value::Object(_) | Value::Bool(_) | Value::Null => false,
    };
    let wrong = || InvalidExpectation::new(format!("`{expect}` is not a number, such as 3 or \"> 0\""));
    if is_one { Ok(()) } else { Err(wrong()) }
}

/// Returns whether `observed` fits `expect`. A number equals its text form, and a text in plain number form
/// equals the number. Null equals only null.
///
/// # Errors
/// [`InvalidExpectation`] if `expect` is malformed, or if `observed` is a number that was rounded when parsed.
pub fn fits(expect: &Value, found: &Value) -> Result<bool, InvalidExpectation> {
    match expect {
        Value::Array(list) if list.is_empty() => {
            Err(InvalidExpectation::new("the expected list is empty, and can never match".to_owned()))
        }
        Value::Array(list) => {
            let fits = list.iter().map(|one| fits(one, found)).collect::<Result<Vec<_>, _>>()?;
            Ok(fits.contains(&true))
        }
        Value::Object(_) => Err(InvalidExpectation::new("a map is not an expected value".to_owned())),
        Value::String(text) => text_fits(text, found),
        Value::Number(number) => match found {
            Value::Number(found) => Ok(ordered(&Decimal::of(found), &Decimal::of(number))?.is_eq()),
            Value::String(found) => Ok(*found == number.to_string()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => Ok(false),
        },
        Value::Bool(_) | Value::Null => Ok(expect == found),
    }
}

fn text_fits(text: &str, found: &Value) -> Result<bool, InvalidExpectation> {
    if let Some(pattern) = text.strip_prefix('~') {
        let pattern = pattern.trim_start();
        if pattern.is_empty() {
            return Err(InvalidExpectation::new(format!(
                "`{text}` is an empty regular expression, and matches any text"
            )));
        }
        let regex = Regex::new(pattern).map_err(|error| {
            InvalidExpectation::new(format!("`{pattern}` is not a regular expression: {error}"))
        })?;
        return Ok(plain(found).is_some_and(|found| regex.is_match(&found)));
    }
    let Some(sign) = sign_of(text) else { return equals(text, found) };
    let bound = text[sign.len()..].trim();
    match sign {
        "==" | "=" => equals_or_size(bound, found),
        // An absent value fits neither `=` nor `!=`.
        "!=" => Ok(plain(found).is_some() && !equals_or_size(bound, found)?),
        _ => {
            let bound = number_or_size(bound).ok_or_else(|| {
                InvalidExpectation::new(format!("`{text}`: `{bound}` is neither a number nor a size"))
            })?;
            let holds = COMPARISONS.iter().find_map(|(own, holds)| (*own == sign).then_some(*holds));
            let Some((found, holds)) = number_of(found).zip(holds) else { return Ok(false) };
            Ok(holds(ordered(&found, &bound)?))
        }
    }
}

/// Returns whether `observed` equals a text, or the number that it spells.
fn equals(text: &str, found: &Value) -> Result<bool, InvalidExpectation> {
    let Value::Number(number) = found else { return Ok(plain(found).is_some_and(|found| found == text)) };
    if number.to_string() == text {
        return Ok(true);
    }
    let written = Decimal::read(text).filter(|_| is_plain(text));
    written.map_or(Ok(false), |written| Ok(ordered(&Decimal::of(number), &written)?.is_eq()))
}

/// Returns whether `observed` equals a text, which may be a size with a unit.
fn equals_or_size(text: &str, found: &Value) -> Result<bool, InvalidExpectation> {
    match (size_of(text), found) {
        (Some(size), Value::Number(number)) => Ok(ordered(&Decimal::of(number), &size)?.is_eq()),
        _ => equals(text, found),
    }
}

fn number_or_size(text: &str) -> Option<Decimal> {
    Decimal::read(text).or_else(|| size_of(text))
}

/// Parses a size with a unit, such as `2 KiB`.
fn size_of(text: &str) -> Option<Decimal> {
    let has_unit = text.ends_with(|last: char| last.is_ascii_alphabetic());
    let bytes = parse_size(text).ok().filter(|_| has_unit)?;
    Decimal::read(&bytes.to_string())
}

/// Compares two numbers, or returns an error if rounding makes the order unknown.
fn ordered(found: &Decimal, bound: &Decimal) -> Result<Ordering, InvalidExpectation> {
    found.compare(bound).ok_or_else(|| {
        let why = "cannot compare: numbers with a fraction or exponent are rounded from 2^53 on";
        InvalidExpectation::new(why.to_owned())
    })
}

/// Formats a scalar; returns `None` for null, lists and maps.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn number_of(value: &Value) -> Option<Decimal> {
    match value {
        Value::Number(number) => Some(Decimal::of(number)),
        Value::String(text) => Decimal::read(text.trim()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}
