//! `capture`: standard output as a value.

use serde_json::Value;

use crate::expr::parse_json;
use crate::expr::{NumberError, exact_number, shown};

/// Largest captured output; every checkpoint after the step has it.
pub const CAPTURE_BYTES_MAX: usize = 1024 * 1024;

/// Type of a captured standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Capture {
    /// Text without the last newline.
    Text,
    /// JSON document.
    Json,
    /// List of lines, without line ends.
    Lines,
    /// Number.
    Number,
}

/// Why standard output does not match `capture`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// Larger than [`CAPTURE_BYTES_MAX`]: write the output to a file.
    #[error("stdout has {bytes} bytes, the maximum for `capture` is {CAPTURE_BYTES_MAX}")]
    TooLarge {
        /// Size in bytes.
        bytes: usize,
    },
    /// Not text.
    #[error("stdout is not valid UTF-8 after byte {valid_bytes}")]
    NotText {
        /// Number of valid bytes.
        valid_bytes: usize,
    },
    /// Not JSON.
    #[error("stdout is not valid JSON: {problem} at line {line}, column {column}")]
    NotJson {
        /// Message of the parser.
        problem: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// Not a number.
    #[error("stdout is not a number: `{found}`")]
    NotANumber {
        /// Beginning of the text.
        found: String,
    },
    /// A number that would change its value or spelling.
    #[error("cannot keep the number `{found}` on stdout exactly; use `capture: text`")]
    Changes {
        /// Beginning of the text.
        found: String,
    },
}

impl Capture {
    /// Returns the word in the workflow file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Lines => "lines",
            Self::Number => "number",
        }
    }

    /// All types.
    pub const ALL: [Self; 4] = [Self::Text, Self::Json, Self::Lines, Self::Number];

    /// Converts a step's standard output.
    ///
    /// # Errors
    /// Too large, not UTF-8, or of another type; the step then has no output.
    pub fn convert(self, stdout: &[u8]) -> Result<Value, CaptureError> {
        if stdout.len() > CAPTURE_BYTES_MAX {
            return Err(CaptureError::TooLarge { bytes: stdout.len() });
        }
        let text = std::str::from_utf8(stdout)
            .map_err(|error| CaptureError::NotText { valid_bytes: error.valid_up_to() })?;
        match self {
            Self::Text => Ok(Value::String(without_last_newline(text).to_owned())),
            Self::Lines => Ok(text.lines().map(|line| Value::String(line.to_owned())).collect()),
            Self::Json => parse_json(stdout).map_err(|error| CaptureError::NotJson {
                problem: error.problem,
                line: error.line,
                column: error.column,
            }),
            Self::Number => number_of(text.trim()),
        }
    }
}

/// Returns the number in a text, unless the number would have another spelling.
fn number_of(text: &str) -> Result<Value, CaptureError> {
    let changes = || CaptureError::Changes { found: shown(text) };
    let number = exact_number(text).map_err(|error| match error {
        NumberError::NotANumber => CaptureError::NotANumber { found: shown(text) },
        NumberError::Changes => changes(),
    })?;
    // `007` is probably a name, not a number, and `1e3` would become `1000.0`.
    let mut digits = text.trim_start_matches('-').chars();
    let has_zeros = digits.next() == Some('0') && digits.next().is_some_and(|next| next.is_ascii_digit());
    let alike = |text: &str| text.to_ascii_lowercase().replace("e+", "e");
    let (given, kept) = (alike(text), alike(&number.to_string()));
    let has_exponent = given.contains('e') || kept.contains('e');
    if has_zeros || (has_exponent && kept != given) { Err(changes()) } else { Ok(Value::Number(number)) }
}

/// Returns `text` without one newline at its end, CRLF included.
pub(super) fn without_last_newline(text: &str) -> &str {
    text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line))
}
