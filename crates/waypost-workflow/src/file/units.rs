//! Durations and counts in text form: `500ms`, `1h30m`, `200k`.

use std::time::Duration;

use crate::expr::shown;

/// Longest duration: ten years.
///
/// Far beyond any run, and far below a duration that would overflow a timestamp.
pub const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Units of time, longest first: the required order in a combined duration.
const TIME_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Error in a duration or a count, with the correction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct UnitError {
    /// Error text.
    pub message: String,
    /// Correction.
    pub help: String,
}

fn fail<T>(message: impl Into<String>, help: impl Into<String>) -> Result<T, UnitError> {
    Err(UnitError { message: message.into(), help: help.into() })
}

/// Reads a duration: `500ms`, `2s`, `1.5h`, or several units, the longer first: `1h30m`.
///
/// # Errors
/// A number without a unit, an unknown unit, units in the wrong order, more than [`DURATION_MAX`].
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let help = "write a number and a unit: `500ms`, `30s`, `10m`, `6h`, `1d`, `1h30m`";
    let text = text.trim();
    let (mut rest, mut total_ms, mut last) = (text, 0f64, f64::INFINITY);
    if rest.is_empty() {
        return fail("the duration is empty", help);
    }
    while !rest.is_empty() {
        let (number, after) = split_number(rest);
        let Ok(count) = number.parse::<f64>() else {
            return fail(format!("`{}` is not a duration", shown(text)), help);
        };
        let after = after.trim_start();
        let unit_len = after.find(|letter: char| !letter.is_alphabetic()).unwrap_or(after.len());
        let unit = &after[..unit_len];
        if unit.is_empty() {
            return fail(
                format!("{} what?", shown(number)),
                format!("a duration needs a unit: `{}s`, `{0}m`, `{0}h`", shown(number)),
            );
        }
        let Some((_, unit_ms)) = TIME_UNITS.iter().find(|(name, _)| *name == unit) else {
            return fail(format!("`{}` is not a unit of time", shown(unit)), unit_help(unit).unwrap_or(help));
        };
        let unit_ms = *unit_ms as f64;
        if unit_ms >= last {
            return fail(
                format!("the units of `{}` are in the wrong order", shown(text)),
                "write each unit once, the longest first: `1h30m`",
            );
        }
        total_ms += count * unit_ms;
        last = unit_ms;
        rest = after[unit_len..].trim_start();
    }
    if total_ms > DURATION_MAX.as_millis() as f64 {
        return fail(
            format!("`{}` is longer than ten years", shown(text)),
            "the longest duration is `3650d`",
        );
    }
    // Nanoseconds keep a fraction of a millisecond; shorter times cannot be measured.
    Ok(Duration::from_nanos((total_ms * 1e6).round() as u64))
}

/// Reads a count: `50000`, `200k`, `2M`, `1.5M`.
///
/// # Errors
/// Not a number, an unknown unit, a fraction, or more than 2^53.
pub(super) fn parse_count(text: &str) -> Result<u64, UnitError> {
    let help = "write a number: `50000`, `200k`, `2M`";
    let text = text.trim();
    let (number, unit) = split_number(text);
    let factor = match unit.trim_start() {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        _ => return fail(format!("`{}` is not a count", shown(text)), help),
    };
    let Ok(count) = number.parse::<f64>() else {
        return fail(format!("`{}` is not a count", shown(text)), help);
    };
    let count = count * factor;
    // 2^53: larger whole numbers are not exact as `f64`.
    if count > 9_007_199_254_740_992.0 {
        return fail(format!("`{}` is too large", shown(text)), help);
    }
    if count.fract() != 0.0 {
        return fail(format!("`{}` is not a whole number", shown(text)), help);
    }
    Ok(count as u64)
}

/// Returns the digits at the start of `text`, with points, and the rest.
fn split_number(text: &str) -> (&str, &str) {
    let len = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    text.split_at(len)
}

fn unit_help(unit: &str) -> Option<&'static str> {
    match unit.to_lowercase().as_str() {
        "sec" | "secs" | "second" | "seconds" => Some("write `s`"),
        "min" | "mins" | "minute" | "minutes" => Some("write `m`"),
        "hr" | "hrs" | "hour" | "hours" => Some("write `h`"),
        "day" | "days" => Some("write `d`"),
        "msec" | "millis" | "milliseconds" => Some("write `ms`"),
        "w" | "week" | "weeks" => Some("the longest unit is `d`"),
        "us" | "ns" => Some("the shortest unit is `ms`"),
        _ => None,
    }
}
