//! Times and durations: parsing and display.

use std::time::Duration;
use waypost::{Clock as _, SystemClock};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{RoundMode, Timestamp, TimestampRound, Unit};

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// The shortest poll interval.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Parses a duration as in a workflow file: `500ms`, `90s`, `2h` or `1h30m`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    waypost_workflow::file::parse_duration(text).map_err(|error| error.help)
}

/// Parses a poll interval: at least a tenth of a second, to keep the polling cheap.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if interval < INTERVAL_MIN {
        return Err(format!("the minimum is {}", written(INTERVAL_MIN)));
    }
    Ok(interval)
}

/// Parses an age, a time, or a date; a date is its first moment in UTC, the displayed time zone.
pub(crate) fn parse_since(text: &str) -> Result<Since, String> {
    if let Ok(age) = parse_duration(text) {
        return Ok(Since::Ago(age));
    }
    // A time without a zone is not taken for a date.
    let date = || text.parse::<Date>().ok().filter(|_| !text.contains([':', 'T', 't', ' ']));
    let midnight = || date()?.to_zoned(TimeZone::UTC).ok().map(|midnight| midnight.timestamp());
    text.parse().ok().or_else(midnight).map(Since::At).ok_or_else(|| {
        "expected an age such as `2h` or `7d`, a date such as `2026-11-20`, or a time with a zone such as \
         `2026-11-20T08:00:00Z`"
            .to_owned()
    })
}

impl Since {
    /// Returns the moment in time.
    pub(crate) fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(age) => now.checked_sub(age).unwrap_or(Timestamp::MIN),
        }
    }
}

/// Formats a time in UTC, rounded down to the second: never in the future.
pub(crate) fn utc(at: Timestamp) -> String {
    let second = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Floor);
    at.round(second).unwrap_or(at).to_string()
}

/// Formats an age in a single unit; a future time is `now`.
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> String {
    let seconds = u64::try_from(now.duration_since(at).as_secs()).unwrap_or(0);
    match seconds {
        0 => "now".to_owned(),
        1..60 => format!("{seconds}s ago"),
        60..3_600 => format!("{}m ago", seconds / 60),
        3_600..86_400 => format!("{}h ago", seconds / 3_600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

/// Formats a duration in its two most significant units.
pub(crate) fn lasted(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.as_millis() < 100 => format!("{}ms", duration.as_millis()),
        0..60 => format!("{:.1}s", duration.as_secs_f64()),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Formats a duration exactly, in the syntax of options and files.
pub(crate) fn written(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, millis) in UNITS.iter().rev() {
        if rest >= *millis {
            text.push_str(&format!("{}{unit}", rest / millis));
            rest %= millis;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Formats the time between two moments; negative time, after a clock change, counts as zero.
pub(crate) fn between(start: Timestamp, end: Timestamp) -> String {
    lasted(Duration::try_from(end.duration_since(start)).unwrap_or_default())
}

/// A moment: given as such, or as an age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// So long ago.
    Ago(Duration),
    /// At this time.
    At(Timestamp),
}

/// Returns the current time.
pub(crate) fn now() -> Timestamp {
    SystemClock.now()
}

#[cfg(test)]
mod tests {
    use super::Since;
    use std::time::Duration;

    use super::{lasted, parse_duration, parse_since, utc};

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        let wrong = parse_duration("5").unwrap_err();
        assert_eq!(wrong, "a duration needs a unit: `5s`, `5m`, `5h`");
    }

    #[test]
    fn a_moment_is_an_age_a_date_or_a_time_with_its_zone() {
        assert_eq!(parse_since("2h"), Ok(Since::Ago(Duration::from_secs(7_200))));
        assert!(matches!(parse_since("2026-11-20T08:00:00Z"), Ok(Since::At(_))));
        assert_eq!(parse_since("2026-11-20"), parse_since("2026-11-20T00:00:00Z"));
        for wrong in ["2026-11-20T08:00:00", "2026-11-20 08:00", "2026-11-31", "yesterday"] {
            assert!(parse_since(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_is_never_shown_later_than_it_is() {
        let shown = ["2026-11-20T08:00:45.693Z", "2026-12-31T23:59:59.999999999Z", "1969-12-31T23:59:58.7Z"]
            .map(|at| utc(at.parse().unwrap()));

        assert_eq!(shown, ["2026-11-20T08:00:45Z", "2026-12-31T23:59:59Z", "1969-12-31T23:59:58Z"]);
    }

    #[test]
    fn durations_are_shown_with_the_units_that_matter() {
        let shown =
            [30, 1_500, 61_000, 3_720_000, 90_000_000].map(|millis| lasted(Duration::from_millis(millis)));

        assert_eq!(shown, ["30ms", "1.5s", "1m01s", "1h02m", "1d01h"]);
    }
}
