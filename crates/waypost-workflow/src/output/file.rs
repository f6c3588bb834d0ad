//! Output file `$WAYPOST_OUTPUT`: `name=value` lines, and GitHub's form for values of several lines.

use serde_json::{Map, Value};
use waypost::record::Usage;

use crate::expr::shown;

/// Largest output file.
///
/// Every checkpoint after the step has the outputs. Large results belong in files, with an `outputs` entry or
/// evidence for the file. GitHub has the same limit of 1 MiB.
pub const OUTPUT_BYTES_MAX: usize = 1024 * 1024;
/// Most outputs of one step; a longer list is better as one JSON value.
pub const OUTPUT_COUNT_MAX: usize = 1_000;
/// Longest name.
pub const OUTPUT_NAME_BYTES_MAX: usize = 100;
/// Prefix of names for usage.
const USAGE_PREFIX: &str = "usage.";

/// Why an output file cannot be used; no output is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// Larger than [`OUTPUT_BYTES_MAX`]: keep large results in files.
    #[error("the output file has {bytes} bytes, the maximum is {OUTPUT_BYTES_MAX}")]
    TooLarge {
        /// Size in bytes.
        bytes: usize,
    },
    /// More than [`OUTPUT_COUNT_MAX`] outputs: write one JSON value.
    #[error("line {line}: more than {OUTPUT_COUNT_MAX} outputs")]
    TooMany {
        /// Line of the first excess output, from 1.
        line: usize,
    },
    /// The line is not text.
    #[error("line {line}: not valid UTF-8 after byte {column} of the line")]
    NotText {
        /// Line, from 1.
        line: usize,
        /// Number of valid bytes in the line.
        column: usize,
    },
    /// The line is neither `name=value` nor `name<<END`.
    #[error("line {line}: expected `name=value` or `name<<END`, found `{found}`")]
    NotAnOutput {
        /// Line, from 1.
        line: usize,
        /// Beginning of the line.
        found: String,
    },
    /// Expressions could not read the name.
    #[error(
        "line {line}: `{name}` is not a valid output name: use a letter or `_`, followed by letters, \
         digits, `_` or `-`"
    )]
    BadName {
        /// Line, from 1.
        line: usize,
        /// Name as written.
        name: String,
    },
    /// Unknown usage field, or invalid value.
    #[error("line {line}: `{name}`: {why}")]
    Usage {
        /// Line, from 1.
        line: usize,
        /// Name as written.
        name: String,
        /// Error and correction.
        why: String,
    },
    /// The end of a value is missing.
    #[error("line {line}: the value of `{name}` has no end: no line equals `{delimiter}`")]
    NeverEnds {
        /// First line of the value, from 1.
        line: usize,
        /// Name of the output.
        name: String,
        /// Missing last line.
        delimiter: String,
    },
}

/// Returns whether `name` is a valid output name.
#[must_use]
pub fn is_output_name(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-')
        && name.len() <= OUTPUT_NAME_BYTES_MAX
}

/// Content of an output file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Written {
    /// Outputs.
    pub outputs: Map<String, Value>,
    /// Sum of the reported tokens and cost.
    pub usage: Option<Usage>,
}

/// Reads an output file; of two outputs with the same name the later counts.
///
/// All values are text. Lines may end in CRLF; empty lines are ignored.
///
/// # Errors
/// The first invalid line, with its number.
pub fn parse_output_file(bytes: &[u8]) -> Result<Written, OutputError> {
    if bytes.len() > OUTPUT_BYTES_MAX {
        return Err(OutputError::TooLarge { bytes: bytes.len() });
    }
    let text = std::str::from_utf8(bytes).map_err(|error| not_text(bytes, error.valid_up_to()))?;
    let Written { mut outputs, mut usage } = Written::default();
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((number, line)) = lines.next() {
        if line.trim().is_empty() {
            continue;
        }
        let (name, value) = match split(line) {
            Some((name, Form::Inline(value))) => (name, value.to_owned()),
            Some((name, Form::Until(delimiter))) => {
                let value = block(&mut lines, delimiter).ok_or_else(|| OutputError::NeverEnds {
                    line: number,
                    name: shown(name),
                    delimiter: shown(delimiter),
                })?;
                (name, value)
            }
            None => return Err(OutputError::NotAnOutput { line: number, found: shown(line) }),
        };
        if let Some(what) = name.strip_prefix(USAGE_PREFIX) {
            add(usage.get_or_insert_with(Usage::default), what, &value)
                .map_err(|why| OutputError::Usage { line: number, name: shown(name), why })?;
            continue;
        }
        check_name(name, number)?;
        if outputs.len() == OUTPUT_COUNT_MAX && !outputs.contains_key(name) {
            return Err(OutputError::TooMany { line: number });
        }
        outputs.insert(name.to_owned(), Value::String(value));
    }
    Ok(Written { outputs, usage })
}

/// Adds a reported value to `usage`.
fn add(usage: &mut Usage, what: &str, value: &str) -> Result<(), String> {
    let value = value.trim();
    let count =
        || value.parse::<u64>().map_err(|_| format!("`{}` is not a whole number of tokens", shown(value)));
    match what {
        "tokens_in" => usage.tokens_in = usage.tokens_in.saturating_add(count()?),
        "tokens_out" => usage.tokens_out = usage.tokens_out.saturating_add(count()?),
        "cost" => {
            let cost = value.parse::<f64>().ok().filter(|cost| cost.is_finite() && *cost >= 0.0);
            usage.cost += cost.ok_or_else(|| format!("`{}` is not a number for the cost", shown(value)))?;
        }
        "model" => usage.model = Some(value.to_owned()),
        _ => return Err("usage names: `tokens_in`, `tokens_out`, `cost` and `model`".to_owned()),
    }
    Ok(())
}

fn not_text(bytes: &[u8], valid: usize) -> OutputError {
    let before = &bytes[..valid];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    OutputError::NotText { line, column: valid - start }
}

enum Form<'a> {
    Inline(&'a str),
    Until(&'a str),
}

/// Splits a line at `=` or `<<`, the first of the two.
fn split(line: &str) -> Option<(&str, Form<'_>)> {
    let (equals, heredoc) = (line.find('='), line.find("<<"));
    match (equals, heredoc) {
        (Some(at), other) if other.is_none_or(|other| at < other) => {
            Some((&line[..at], Form::Inline(&line[at + 1..])))
        }
        (_, Some(at)) => {
            let delimiter = &line[at + 2..];
            (!delimiter.trim().is_empty()).then_some((&line[..at], Form::Until(delimiter)))
        }
        _ => None,
    }
}

fn block<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>, delimiter: &str) -> Option<String> {
    let mut value: Option<String> = None;
    for (_, line) in lines {
        if line == delimiter {
            return Some(value.unwrap_or_default());
        }
        match &mut value {
            None => value = Some(line.to_owned()),
            Some(value) => {
                value.push('\n');
                value.push_str(line);
            }
        }
    }
    None
}

fn check_name(name: &str, line: usize) -> Result<(), OutputError> {
    match is_output_name(name) {
        true => Ok(()),
        false => Err(OutputError::BadName { line, name: shown(name) }),
    }
}
