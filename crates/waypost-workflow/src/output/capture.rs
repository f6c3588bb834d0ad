//! `capture`: standard output as a value.

use serde_json::Value;

use super::json::parse_json;
use crate::expr::{NumberError, exact_number, shown};

/// Size of a captured output; it is kept in every checkpoint after the step.
pub const CAPTURE_BYTES_MAX: usize = 1024 * 1024;

/// What a captured standard output becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Capture {
    /// The text without its last newline.
    Text,
    /// The JSON document that it is.
    Json,
    /// A list of its lines, without their ends.
    Lines,
    /// The number that it is.
    Number,
}

/// Why standard output is not what `capture` says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// Larger than [`CAPTURE_BYTES_MAX`]: write it to a file.
    #[error("stdout has {bytes} bytes, `capture` takes at most {CAPTURE_BYTES_MAX}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Not text.
    #[error("stdout is not valid UTF-8 after byte {valid_bytes}")]
    NotText {
        /// Sound bytes before.
        valid_bytes: usize,
    },
    /// Not JSON.
    #[error("stdout cannot be read as JSON: {problem} at line {line}, column {column}")]
    NotJson {
        /// What the parser says.
        problem: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// Not a number.
    #[error("stdout is not a number: `{found}`")]
    NotANumber {
        /// The beginning of the text.
        found: String,
    },
    /// A number that would come back as another one.
    #[error("stdout is a number that would not be kept as it is, `{found}`; capture it as `text`")]
    Changes {
        /// The beginning of the text.
        found: String,
    },
}

impl Capture {
    /// The word in the workflow file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Lines => "lines",
            Self::Number => "number",
        }
    }

    /// All words and what they stand for.
    pub const ALL: [Self; 4] = [Self::Text, Self::Json, Self::Lines, Self::Number];

    /// Converts what a step wrote to its standard output.
    ///
    /// # Errors
    /// Too large, not UTF-8, or not what was promised; the step then has no output.
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

/// The number that a text is, unless it would be read as another text.
fn number_of(text: &str) -> Result<Value, CaptureError> {
    let changes = || CaptureError::Changes { found: shown(text) };
    let number = exact_number(text).map_err(|error| match error {
        NumberError::NotANumber => CaptureError::NotANumber { found: shown(text) },
        NumberError::Changes => changes(),
    })?;
    // `007` is rather a name than a number, and `1e3` would come back as `1000.0`.
    let mut digits = text.trim_start_matches('-').chars();
    let has_zeros = digits.next() == Some('0') && digits.next().is_some_and(|next| next.is_ascii_digit());
    let alike = |text: &str| text.to_ascii_lowercase().replace("e+", "e");
    let (given, kept) = (alike(text), alike(&number.to_string()));
    let has_exponent = given.contains('e') || kept.contains('e');
    if has_zeros || (has_exponent && kept != given) { Err(changes()) } else { Ok(Value::Number(number)) }
}

/// `text` without one newline at its end, CRLF included.
pub(super) fn without_last_newline(text: &str) -> &str {
    text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line))
}

/// The parser's message without its place, which the error says apart.
pub(super) fn json_problem(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split(" at line ").next().unwrap_or_default().to_owned()
}
