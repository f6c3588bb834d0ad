//! Decimal numbers compared digit by digit, without rounding.

use std::cmp::Ordering;

use serde_json::Number;

/// 2^53: every integer up to here has an exact `f64`.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// A decimal number.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Decimal {
    /// A number with all of its digits.
    Exact {
        is_negative: bool,
        /// Digits without leading and trailing zeros; empty for zero.
        digits: Vec<u8>,
        /// Number of digits before the decimal point; negative for a fraction below 0.1.
        point: i64,
    },
    /// A number that was rounded to this value when parsed.
    Rounded(f64),
}

impl Decimal {
    pub(crate) fn of(number: &Number) -> Self {
        match number.as_f64() {
            Some(real) if number.is_f64() && real.abs() >= EXACT_MAX => Self::Rounded(real),
            real => {
                let text =
                    if number.is_f64() { real.unwrap_or(f64::NAN).to_string() } else { number.to_string() };
                Self::read(&text).unwrap_or(Self::Rounded(f64::NAN))
            }
        }
    }

    /// Parses a decimal number: `7`, `-0.5`, `+1e6`.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (is_negative, rest) = match text.strip_prefix(['-', '+']) {
            Some(rest) => (text.starts_with('-'), rest),
            None => (false, text),
        };
        let (rest, exponent) = match rest.split_once(['e', 'E']) {
            Some((rest, exponent)) => (rest, i64::from(exponent.parse::<i32>().ok()?)),
            None => (rest, 0),
        };
        let (whole, fraction) = rest.split_once('.').unwrap_or((rest, ""));
        let is_number = whole.len() + fraction.len() > 0
            && [whole, fraction].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        if !is_number {
            return None;
        }
        let all = [whole, fraction].concat();
        let zeros = all.len() - all.trim_start_matches('0').len();
        let digits = all.trim_matches('0').as_bytes().to_vec();
        let point = i64::try_from(whole.len()).ok()? - i64::try_from(zeros).ok()? + exponent;
        match digits.is_empty() {
            true => Some(Self::Exact { is_negative: false, digits, point: 0 }),
            false => Some(Self::Exact { is_negative, digits, point }),
        }
    }

    /// Compares two numbers; returns `None` if rounding makes them indistinguishable.
    pub(crate) fn compare(&self, other: &Self) -> Option<Ordering> {
        let (
            Self::Exact { is_negative, digits, point },
            Self::Exact { is_negative: other_negative, digits: other_digits, point: other_point },
        ) = (self, other)
        else {
            return self.real().partial_cmp(&other.real()).filter(|order| order.is_ne());
        };
        let sign = |digits: &[u8], is_negative: bool| match (digits.is_empty(), is_negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        let (one, two) = (sign(digits, *is_negative), sign(other_digits, *other_negative));
        if one != two || one == 0 {
            return Some(one.cmp(&two));
        }
        let order = point.cmp(other_point).then_with(|| digits.cmp(other_digits));
        Some(if *is_negative { order.reverse() } else { order })
    }

    fn real(&self) -> f64 {
        match self {
            Self::Rounded(real) => *real,
            Self::Exact { is_negative, digits, point } => {
                let digits = std::str::from_utf8(digits).unwrap_or_default();
                let real: f64 = format!("0.{digits}e{point}").parse().unwrap_or(f64::NAN);
                if *is_negative { -real } else { real }
            }
        }
    }
}

/// Returns whether a text is a number without exponent and without leading zeros: `7`, `-0.50`.
pub(crate) fn is_plain(text: &str) -> bool {
    let rest = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = rest.split_once('.').unwrap_or((rest, "0"));
    let are_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    are_digits(whole) && are_digits(fraction) && (whole == "0" || !whole.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_to_their_last_digit() {
        let rising = [
            "-1e400",
            "-10",
            "-9.5",
            "-0.01",
            "-0.001",
            "0",
            "1e-400",
            "0.5",
            "1",
            "1.0000000000000000001",
            "9007199254740992",
            "9007199254740992.5",
            "9007199254740993",
            "1e20",
            "1e400",
        ];
        let read = |text| Decimal::read(text).unwrap();
        for (place, one) in rising.iter().enumerate() {
            for (other_place, other) in rising.iter().enumerate() {
                let order = read(one).compare(&read(other));
                assert_eq!(order, Some(place.cmp(&other_place)), "{one} and {other}");
            }
        }
        for (one, other) in [("5.50", "5.5"), ("005", "5"), ("1e3", "1000"), ("-0", "0"), ("+7", "7.")] {
            assert_eq!(read(one).compare(&read(other)), Some(Ordering::Equal), "{one} and {other}");
        }
        for none in ["", ".", "-", "e5", "1e", "1.2.3", "--1", "0x1", "1e99999999999", "inf", "1 "] {
            assert_eq!(Decimal::read(none), None, "{none}");
        }
    }

    #[test]
    fn what_was_rounded_is_like_no_number_near_it() {
        let of = |text: &str| Decimal::of(&serde_json::from_str(text).unwrap());
        let read = |text| Decimal::read(text).unwrap();
        assert_eq!(of("9007199254740993.5").compare(&read("9007199254740994")), None);
        assert_eq!(of("6.02e23").compare(&read("5")), Some(Ordering::Greater));
        assert_eq!(of("9007199254740993").compare(&read("9007199254740992")), Some(Ordering::Greater));
    }

    #[test]
    fn a_plain_number_is_written_in_one_way_but_for_its_end() {
        assert!(["0", "7", "-7", "5.50", "-0.5", "10"].into_iter().all(is_plain));
        assert!(!["", "007", "-", "1e5", "+7", "7.", ".5", "1.2.3", " 7", "00.5"].into_iter().any(is_plain));
    }
}
