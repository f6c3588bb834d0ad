//! Converts values between JSON and minijinja, without silent loss.

use minijinja::value::ValueKind;
use serde_json::{Map, Number, Value};

/// Deepest nesting of a result; readers of JSON text reject deeper nesting.
const DEPTH_MAX: usize = 128;
/// Largest result: a short expression can produce a list of lists of gigabytes.
const BYTES_MAX: usize = super::machine::RESULT_BYTES_MAX;
/// Size of a value without its text.
const VALUE_BYTES: usize = 16;
/// Most characters of a value in an error message.
const SHOWN_CHARS_MAX: usize = 40;

/// Error text of [`to_json`] for a list or a map with a missing value.
pub(crate) const PART_IS_MISSING: &str = "part of the expression reads a missing value";

/// Returns `value` as a minijinja value, without loss.
pub(crate) fn from_json(value: &Value) -> minijinja::Value {
    match value {
        Value::Null => minijinja::Value::from(()),
        Value::Bool(truth) => minijinja::Value::from(*truth),
        Value::Number(number) => from_number(number),
        Value::String(text) => minijinja::Value::from(text.as_str()),
        Value::Array(items) => items.iter().map(from_json).collect(),
        Value::Object(map) => {
            minijinja::Value::from_pairs(map.iter().map(|(name, value)| (name.as_str(), from_json(value))))
        }
    }
}

/// Returns `number` as a minijinja value.
pub(crate) fn from_number(number: &Number) -> minijinja::Value {
    match (number.as_i64(), number.as_u64()) {
        (Some(signed), _) => minijinja::Value::from(signed),
        (None, Some(unsigned)) => minijinja::Value::from(unsigned),
        (None, None) => minijinja::Value::from(number.as_f64().expect("a JSON number is one of three kinds")),
    }
}

/// Returns `value` as JSON.
///
/// # Errors
/// A value without a JSON form (undefined, NaN, a function, a number beyond 64 bits), too deep, or too large.
pub(crate) fn to_json(value: &minijinja::Value) -> Result<Value, String> {
    convert(value, DEPTH_MAX, &mut BYTES_MAX.clone())
}

/// Returns the size of a value: its texts, and [`VALUE_BYTES`] for each value in it. Counts to just above `most`.
///
/// Values deeper than [`DEPTH_MAX`] count as above `most`.
pub(crate) fn size(value: &minijinja::Value, most: usize) -> usize {
    let mut left = most;
    match take_size(value, DEPTH_MAX, &mut left) {
        Some(()) => most - left,
        None => most.saturating_add(1),
    }
}

fn take_size(value: &minijinja::Value, depth: usize, left: &mut usize) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    *left = left.checked_sub(VALUE_BYTES + value.as_str().map_or(0, str::len))?;
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        return Some(());
    }
    for item in value.try_iter().ok()? {
        match value.kind() {
            ValueKind::Map => take_size(&value.get_item(&item).ok()?, depth, left)?,
            _ => take_size(&item, depth, left)?,
        }
    }
    Some(())
}

fn convert(value: &minijinja::Value, depth: usize, left: &mut usize) -> Result<Value, String> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(format!("the value is nested deeper than {DEPTH_MAX} levels"));
    };
    let bytes = VALUE_BYTES + value.as_str().map_or(0, str::len);
    *left = left.checked_sub(bytes).ok_or_else(|| format!("the result is larger than {BYTES_MAX} bytes"))?;
    match value.kind() {
        ValueKind::Undefined => Err(PART_IS_MISSING.to_owned()),
        ValueKind::None => Ok(Value::Null),
        ValueKind::Bool => Ok(Value::Bool(value.is_true())),
        ValueKind::Number => to_number(value).map(Value::Number),
        ValueKind::String => Ok(Value::String(value.as_str().unwrap_or_default().to_owned())),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter().map_err(|error| error.to_string())?;
            items.map(|item| convert(&item, depth, left)).collect::<Result<_, _>>().map(Value::Array)
        }
        ValueKind::Map => {
            let mut map = Map::new();
            for key in value.try_iter().map_err(|error| error.to_string())? {
                let item = value.get_item(&key).map_err(|error| error.to_string())?;
                let name = match key.as_str() {
                    Some(name) => name.to_owned(),
                    None if matches!(key.kind(), ValueKind::Number | ValueKind::Bool) => key.to_string(),
                    None => return Err("a map key is not text".to_owned()),
                };
                map.insert(name, convert(&item, depth, left)?);
            }
            Ok(Value::Object(map))
        }
        kind => Err(format!("the result is not a value but {kind}")),
    }
}

fn to_number(value: &minijinja::Value) -> Result<Number, String> {
    if value.is_integer() {
        let signed = i64::try_from(value.clone()).map(Number::from);
        let number = signed.or_else(|_| u64::try_from(value.clone()).map(Number::from));
        return number.map_err(|_| format!("the number {value} is too large"));
    }
    let float = f64::try_from(value.clone()).map_err(|_| format!("the number {value} is too large"))?;
    Number::from_f64(float).ok_or_else(|| "the result is not a number".to_owned())
}

/// Returns the number in `text`, as an integer if possible.
pub(crate) fn number(text: &str) -> Option<Number> {
    let starts = text.strip_prefix('-').unwrap_or(text);
    // "inf", "nan" and "+1" parse as floats, but are not meant as numbers.
    if !starts.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let is_whole = starts.bytes().all(|byte| byte.is_ascii_digit());
    let integer = text.parse::<i64>().ok().map(Number::from);
    let unsigned = || text.parse::<u64>().ok().map(Number::from);
    let float = || text.parse::<f64>().ok().and_then(Number::from_f64);
    // A whole number beyond 64 bits would change its digits.
    integer.or_else(unsigned).or_else(|| if is_whole { None } else { float() })
}

/// Why a text cannot be kept as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberError {
    /// Not a number.
    NotANumber,
    /// The value would change: more digits or a larger exponent than 64 bits hold, or `-0`.
    Changes,
}

/// Returns the number in `text`, as [`number`], if the value does not change.
pub(crate) fn exact_number(text: &str) -> Result<Number, NumberError> {
    let starts = text.strip_prefix('-').unwrap_or(text);
    if !starts.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(NumberError::NotANumber);
    }
    if starts.bytes().all(|byte| byte.is_ascii_digit()) {
        let is_minus_zero = text.starts_with('-') && starts.bytes().all(|byte| byte == b'0');
        return number(text).filter(|_| !is_minus_zero).ok_or(NumberError::Changes);
    }
    let float = text.parse::<f64>().map_err(|_| NumberError::NotANumber)?;
    let number = Number::from_f64(float).ok_or(NumberError::Changes)?;
    match decimal(starts) == decimal(&format!("{:e}", float.abs())) {
        true => Ok(number),
        false => Err(NumberError::Changes),
    }
}

/// Returns the digits of a decimal number without surrounding zeros, and the power of ten of the first digit.
/// `None` if the exponent is out of range.
fn decimal(text: &str) -> Option<(String, i64)> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = [whole, part].concat();
    let kept = digits.trim_start_matches('0');
    if kept.is_empty() {
        return Some((String::new(), 0));
    }
    let before = whole.len() as i64 - (digits.len() - kept.len()) as i64;
    let exponent = exponent.parse::<i64>().ok()?.checked_add(before)?;
    Some((kept.trim_end_matches('0').to_owned(), exponent))
}

/// Returns `value` for a sentence: the type, and short values in full.
pub(crate) fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(truth) => format!("{truth}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text `{}`", shown(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    }
}

/// As [`described`], also for values without a JSON form.
pub(crate) fn described_or_kind(value: &minijinja::Value) -> String {
    to_json(value).map_or_else(|_| value.kind().to_string(), |value| described(&value))
}

/// Returns the beginning of `text`, on one line.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}
