//! Compiles and evaluates expressions with minijinja.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, filters};
use serde_json::Value;

use super::names::{FROM_JSON, FROM_JSON_OF_GITHUB, TO_JSON, TO_JSON_OF_GITHUB};
use super::rewrite::{APPEND, COMPARE, FACTOR, MEASURED, Rewritten};
use super::{Scope, SyntaxError, convert};

/// Most instructions of one expression.
///
/// An expression has no loops except in filters. A hundred thousand instructions exceed any real use and
/// still take less than a second.
const FUEL: u64 = 100_000;
/// Deepest nesting of calls in one expression; the parser has a separate limit of 150 levels.
const RECURSION_MAX: usize = 100;
/// Most tokens of one expression.
///
/// minijinja's parser, compiler and destructors are recursive: a chain of a few thousand operators overflows
/// the 2 MiB stack of a runtime's thread. A thousand operators needed less than 512 KiB without optimisation.
pub(crate) const TOKENS_MAX: usize = 1_000;

/// Largest result of `join` and `replace`: two outputs of 1 MiB could multiply to a terabyte without a limit.
pub(super) const RESULT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest text to split: each part takes about 24 bytes in addition to its text.
const PARTED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Most bytes that one evaluation reads by filters, comparisons, `+` and `~`, counted as by [`convert::size`]: eight
/// times the largest result, for several filters in a row.
const READ_BYTES_MAX: usize = 8 * RESULT_BYTES_MAX;

thread_local! {
    /// Bytes that the evaluation on this thread may still read.
    static READABLE: Cell<usize> = const { Cell::new(READ_BYTES_MAX) };
    /// Bytes of all operands of `+` and `~` so far.
    static APPENDED: Cell<usize> = const { Cell::new(0) };
}

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_debug(true);
    environment.add_function(COMPARE, compare);
    environment.add_filter(MEASURED, measured);
    environment.add_filter(APPEND, appended);
    environment.add_filter(FACTOR, factor);
    for name in [FROM_JSON, FROM_JSON_OF_GITHUB] {
        environment.add_filter(name, from_json);
        environment.add_function(name, from_json);
    }
    for name in [TO_JSON, TO_JSON_OF_GITHUB] {
        environment.add_filter(name, to_json);
        environment.add_function(name, to_json);
    }
    environment.add_filter("join", join);
    environment.add_filter("replace", replace);
    environment.add_filter("split", split);
    environment.add_filter("lines", lines);
    environment.add_filter("list", list);
    environment.add_filter("sum", sum);
    environment
});

/// Counts the size of a value, and returns the value.
fn measured(value: minijinja::Value) -> Result<minijinja::Value, Error> {
    read(convert::size(&value, READABLE.get()))?;
    Ok(value)
}

/// Counts an operand of `+` or `~`. Each of these operators copies the operands before it again.
fn appended(value: minijinja::Value) -> Result<minijinja::Value, Error> {
    let bytes = APPENDED.get().saturating_add(convert::size(&value, READABLE.get()));
    APPENDED.set(bytes);
    read(bytes)?;
    Ok(value)
}

fn read(bytes: usize) -> Result<(), Error> {
    let left = READABLE.get().checked_sub(bytes);
    READABLE.set(left.unwrap_or(0));
    left.map(drop).ok_or_else(|| invalid(format!("it reads more than {READ_BYTES_MAX} bytes")))
}

/// Refuses to repeat a text or a list: a product of a short expression could take all memory.
fn factor(value: minijinja::Value) -> Result<minijinja::Value, Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            let found = convert::described_or_kind(&value);
            Err(invalid(format!("`*` multiplies numbers, and does not repeat {found}")))
        }
        _ => Ok(value),
    }
}

/// Filter and function `fromjson`: the value of a JSON text.
fn from_json(text: minijinja::Value) -> Result<minijinja::Value, Error> {
    let text = measured(text)?;
    if text.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    let Some(json) = text.as_str() else {
        return Err(invalid(format!(
            "`fromjson` reads a text, and not {}",
            convert::described_or_kind(&text)
        )));
    };
    let value = super::json::parse_json(json.as_bytes());
    let value = value.map_err(|error| invalid(format!("`{}` is not JSON: {error}", convert::shown(json))))?;
    Ok(convert::from_json(&value))
}

/// Filter and function `tojson`; minijinja's filter would escape for HTML.
fn to_json(value: minijinja::Value) -> Result<String, Error> {
    let value = measured(value)?;
    convert::to_json(&value).map(|value| value.to_string()).map_err(invalid)
}

/// Filter `join`, with a size limit: texts unchanged, other values as JSON.
fn join(list: minijinja::Value, separator: Option<&str>) -> Result<String, Error> {
    let Value::Array(items) = convert::to_json(&list).map_err(invalid)? else {
        return Err(invalid(format!("`join` joins a list, not {}", convert::described_or_kind(&list))));
    };
    let mut joined = String::new();
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            joined.push_str(separator.unwrap_or_default());
        }
        match item {
            Value::String(text) => joined.push_str(text),
            other => joined.push_str(&other.to_string()),
        }
        check_size(joined.len())?;
    }
    read(joined.len())?;
    Ok(joined)
}

/// Filter `replace`, with a size limit.
fn replace(text: &str, from: &str, to: &str) -> Result<String, Error> {
    let count = text.matches(from).count();
    let bytes = text.len().saturating_add(count.saturating_mul(to.len()));
    check_size(bytes)?;
    read(bytes)?;
    Ok(text.replace(from, to))
}

/// Filter `split`, with a size limit.
fn split(
    text: &minijinja::Value,
    separator: Option<Arc<str>>,
    splits_max: Option<i64>,
) -> Result<minijinja::Value, Error> {
    check_parted("split", text)?;
    filters::split(text, separator, splits_max)
}

/// Filter `lines`, with a size limit.
fn lines(text: &minijinja::Value) -> Result<minijinja::Value, Error> {
    check_parted("lines", text)?;
    filters::lines(text)
}

/// Filter `list`, with a size limit.
fn list(state: &State<'_, '_>, value: minijinja::Value) -> Result<minijinja::Value, Error> {
    check_parted("list", &value)?;
    filters::list(state, value)
}

/// Filter `sum`, of numbers: a sum of lists copies each list once for every list after.
fn sum(
    state: &State<'_, '_>,
    values: minijinja::Value,
    attribute: Option<&str>,
    start: Option<minijinja::Value>,
    options: Kwargs,
) -> Result<minijinja::Value, Error> {
    let start = match start {
        Some(start) => Some(start),
        None => options.get("start")?,
    };
    let start = start.unwrap_or_else(|| minijinja::Value::from(0));
    if !start.is_number() {
        return Err(invalid(format!("`sum` adds numbers, and not {}", convert::described_or_kind(&start))));
    }
    filters::sum(state, values, attribute, Some(start), options)
}

fn check_parted(filter: &str, value: &minijinja::Value) -> Result<(), Error> {
    match value.as_str().is_some_and(|text| text.len() > PARTED_BYTES_MAX) {
        true => Err(invalid(format!("`{filter}` accepts texts of at most {PARTED_BYTES_MAX} bytes"))),
        false => Ok(()),
    }
}

fn check_size(bytes: usize) -> Result<(), Error> {
    match bytes > RESULT_BYTES_MAX {
        true => Err(invalid(format!("the result is larger than {RESULT_BYTES_MAX} bytes"))),
        false => Ok(()),
    }
}

fn invalid(message: String) -> Error {
    match message == convert::PART_IS_MISSING {
        true => Error::from(ErrorKind::UndefinedError),
        false => Error::new(ErrorKind::InvalidOperation, message),
    }
}

/// Compiled expression.
pub(crate) struct Compiled(minijinja::Expression<'static, 'static>);

/// Why an expression has no value.
pub(crate) struct Failure {
    /// A name was missing; the scope can find the name.
    pub(crate) is_missing: bool,
    pub(crate) message: String,
}

/// Compiles `rewritten`; `whole` is the range of its tokens in the original text.
///
/// # Errors
/// A syntax error of minijinja, with the place of the token.
pub(crate) fn compile(rewritten: &Rewritten, whole: Range<usize>) -> Result<Compiled, SyntaxError> {
    ENVIRONMENT.compile_expression_owned(rewritten.source.clone()).map(Compiled).map_err(|error| {
        let place = error.range().and_then(|range| rewritten.original(range.start));
        let detail = error.detail().unwrap_or("not a valid expression");
        // minijinja's messages mention blocks and templates, which a reader does not know.
        let is_inserted = error.range().is_some_and(|range| !rewritten.is_token(range.start));
        let ends = detail.contains("unexpected end of") || is_inserted && detail.starts_with("unexpected");
        let detail = match ends {
            true => "the expression ends too early".to_owned(),
            false => detail.replace("template exceeds", "the expression exceeds"),
        };
        SyntaxError::new(place.unwrap_or(whole), detail)
    })
}

impl Compiled {
    pub(crate) fn evaluate(&self, scope: &Scope) -> Result<Value, Failure> {
        READABLE.set(READ_BYTES_MAX);
        APPENDED.set(0);
        let value = self.0.eval(scope.context()).map_err(|error| Failure {
            is_missing: error.kind() == ErrorKind::UndefinedError,
            message: match error.kind() {
                ErrorKind::OutOfFuel => "the evaluation exceeds the step limit".to_owned(),
                ErrorKind::UndefinedError => "the expression reads a missing value".to_owned(),
                kind => error.detail().map_or_else(|| kind.to_string(), str::to_owned),
            },
        })?;
        if value.is_undefined() {
            return Err(Failure {
                is_missing: true,
                message: "the expression reads a missing value".to_owned(),
            });
        }
        convert::to_json(&value)
            .map_err(|message| Failure { is_missing: message == convert::PART_IS_MISSING, message })
    }
}

/// Compares two values of one type; a number in text counts as that number, `true` in text as true.
///
/// Values of different types are not equal; ordering different types is an error.
fn compare(operator: &str, left: minijinja::Value, right: minijinja::Value) -> Result<bool, Error> {
    if left.is_undefined() || right.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    let (left, right) = alike(measured(left)?, measured(right)?);
    let same_kind = left.kind() == right.kind();
    match operator {
        "==" => return Ok(same_kind && left == right),
        "!=" => return Ok(!same_kind || left != right),
        _ => {}
    }
    let ordered = matches!(left.kind(), ValueKind::Number | ValueKind::String);
    if !same_kind || !ordered {
        let message = format!(
            "`{operator}` cannot compare {} with {}",
            convert::described_or_kind(&left),
            convert::described_or_kind(&right)
        );
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let order = left.cmp(&right);
    Ok(match operator {
        "<" => order == Ordering::Less,
        "<=" => order != Ordering::Greater,
        ">" => order == Ordering::Greater,
        _ => order != Ordering::Less,
    })
}

/// Converts a text next to a number or boolean to the same type, if possible.
///
/// Outputs that a step writes are text, so `steps.count.outputs.rows > 0` needs the conversion.
fn alike(left: minijinja::Value, right: minijinja::Value) -> (minijinja::Value, minijinja::Value) {
    let (left_kind, right_kind) = (left.kind(), right.kind());
    match (left_kind, right_kind) {
        (ValueKind::String, ValueKind::Number | ValueKind::Bool) => (typed(&left, right_kind), right),
        (ValueKind::Number | ValueKind::Bool, ValueKind::String) => {
            let right = typed(&right, left_kind);
            (left, right)
        }
        _ => (left, right),
    }
}

fn typed(value: &minijinja::Value, kind: ValueKind) -> minijinja::Value {
    let text = value.as_str().unwrap_or_default().trim();
    let typed = match kind {
        ValueKind::Bool => text.parse::<bool>().ok().map(minijinja::Value::from),
        _ => convert::number(text).map(|number| convert::from_number(&number)),
    };
    typed.unwrap_or_else(|| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::names::{FILTERS, TESTS};

    fn kind_of(source: &str) -> Option<ErrorKind> {
        let compiled = ENVIRONMENT.compile_expression(source).map_err(|error| error.kind());
        compiled.and_then(|compiled| compiled.eval(()).map_err(|error| error.kind())).err()
    }

    #[test]
    fn every_filter_and_test_that_is_allowed_exists() {
        assert_eq!(kind_of("1 | nope"), Some(ErrorKind::UnknownFilter));
        assert_eq!(kind_of("1 is nope"), Some(ErrorKind::UnknownTest));

        for filter in FILTERS {
            assert_ne!(kind_of(&format!("1 | {filter}")), Some(ErrorKind::UnknownFilter), "{filter}");
        }
        for test in TESTS {
            assert_ne!(kind_of(&format!("1 is {test}")), Some(ErrorKind::UnknownTest), "{test}");
        }
    }
}
