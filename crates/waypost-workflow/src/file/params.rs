//! Params: declarations of a workflow, and given values.

use std::fmt;

use regex_lite::Regex;
use serde_json::{Map, Value};

use super::workflow::Workflow;
use crate::expr::parse_json;
use crate::expr::{NumberError, described, exact_number};
use crate::suggest::{listed, nearest};

/// Largest param; every checkpoint has it.
pub const PARAM_BYTES_MAX: usize = 1024 * 1024;

/// Type of a param.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// Text.
    String,
    /// Number.
    Number,
    /// Whole number of 64 bits.
    Integer,
    /// `true` or `false`.
    Bool,
    /// Any JSON value.
    Json,
}

impl ParamKind {
    /// All types.
    pub const ALL: [Self; 5] = [Self::String, Self::Number, Self::Integer, Self::Bool, Self::Json];

    /// Returns the word in the workflow file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Number => "number",
            Self::Integer => "integer",
            Self::Bool => "bool",
            Self::Json => "json",
        }
    }

    /// Returns whether a text of this type could be interpreted as part of a command.
    pub(super) fn can_hold_code(self) -> bool {
        matches!(self, Self::String | Self::Json)
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::String => "text",
            Self::Number => "a number",
            Self::Integer => "a whole number",
            Self::Bool => "`true` or `false`",
            Self::Json => "JSON",
        }
    }
}

/// Declared param.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Param {
    /// Name.
    pub name: String,
    /// Type.
    pub kind: ParamKind,
    /// Default value, of the declared type.
    pub default: Option<Value>,
    /// Whether a value must be given: true without a default, unless the file says `required: false`.
    pub required: bool,
    /// Pattern that must match somewhere in a text.
    pub pattern: Option<Pattern>,
    /// Description.
    pub description: Option<String>,
}

/// Regular expression.
#[derive(Debug, Clone)]
pub struct Pattern(pub(super) Regex);

impl Pattern {
    /// Returns the pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// Given values of params.
#[derive(Debug, Clone, Default)]
pub struct GivenParams {
    /// From `--params-file`, already typed.
    pub file: Map<String, Value>,
    /// From `-p name=value`, as text; overrides the file, and later values override earlier values.
    pub text: Vec<(String, String)>,
}

/// Given params that do not match the declarations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamsError {
    problems: Vec<ParamProblem>,
}

impl ParamsError {
    /// Returns all errors.
    #[must_use]
    pub fn problems(&self) -> &[ParamProblem] {
        &self.problems
    }
}

/// Error about one param.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamProblem {
    /// Name of the param.
    pub name: String,
    /// Error text: lower case, no full stop.
    pub message: String,
    /// Correction.
    pub hint: Option<String>,
}

impl fmt::Display for ParamsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{}", problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for ParamsError {}

impl Param {
    /// Converts a given text to the type of the param.
    ///
    /// # Errors
    /// The expected form of the text.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        let wrong = || {
            format!(
                "param `{}` must be {}, not `{}`",
                self.name,
                self.kind.wanted(),
                crate::expr::shown(text)
            )
        };
        let value = match self.kind {
            ParamKind::String => Value::String(text.to_owned()),
            ParamKind::Number | ParamKind::Integer => match exact_number(text) {
                Ok(number) if self.kind == ParamKind::Number || !number.is_f64() => {
                    if !is_json_number(text) {
                        let wanted = self.kind.wanted();
                        return Err(format!(
                            "param `{}` must be {wanted} in JSON notation: `{number}`, not `{}`",
                            self.name,
                            crate::expr::shown(text)
                        ));
                    }
                    Value::Number(number)
                }
                Err(NumberError::Changes) => {
                    return Err(format!("{}, which cannot be kept exactly", wrong()));
                }
                Ok(_) | Err(NumberError::NotANumber) => return Err(wrong()),
            },
            ParamKind::Bool => text.parse::<bool>().map(Value::Bool).map_err(|_| wrong())?,
            ParamKind::Json => {
                parse_json(text.as_bytes()).map_err(|error| format!("{}: {error}", wrong()))?
            }
        };
        self.check(&value)?;
        Ok(value)
    }

    /// Checks a typed value.
    ///
    /// # Errors
    /// The expected form of the value.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let fits = match (self.kind, value) {
            (ParamKind::String, Value::String(_)) | (ParamKind::Bool, Value::Bool(_)) => true,
            (ParamKind::Number, Value::Number(_)) | (ParamKind::Json, _) => true,
            (ParamKind::Integer, Value::Number(number)) => !number.is_f64(),
            _ => false,
        };
        if !fits {
            return Err(format!(
                "param `{}` must be {}, not {}",
                self.name,
                self.kind.wanted(),
                described(value)
            ));
        }
        if value.as_str().map_or_else(|| value.to_string().len(), str::len) > PARAM_BYTES_MAX {
            return Err(format!("param `{}` is larger than {PARAM_BYTES_MAX} bytes", self.name));
        }
        if value.as_str().is_some_and(|text| text.contains('\0')) {
            return Err(format!("param `{}` contains a NUL, which commands cannot hold", self.name));
        }
        match (&self.pattern, value.as_str()) {
            (Some(Pattern(pattern)), Some(text)) if !pattern.is_match(text) => Err(format!(
                "param `{}` must match `{}`, but `{}` does not",
                self.name,
                pattern.as_str(),
                crate::expr::shown(text)
            )),
            _ => Ok(()),
        }
    }

    fn resolve(&self, given: &GivenParams) -> Result<Value, (String, Option<String>)> {
        let text = given.text.iter().rev().find(|(name, _)| *name == self.name);
        if let Some((_, text)) = text {
            return self.parse(text).map_err(|message| (message, None));
        }
        if let Some(value) = given.file.get(&self.name) {
            return self.check(value).map(|()| value.clone()).map_err(|message| (message, None));
        }
        match (&self.default, self.required) {
            (Some(default), _) => Ok(default.clone()),
            (None, false) => Ok(Value::Null),
            (None, true) => {
                let what = self.description.as_ref().map(|what| format!(" ({what})")).unwrap_or_default();
                let hint = format!("give the param with `-p {}=...`", self.name);
                Err((format!("param `{}` is missing{what}", self.name), Some(hint)))
            }
        }
    }
}

/// Returns whether a text is a number in JSON: `007` and `1.` are not.
///
/// # SourceText
/// RFC 8259, section 6.
fn is_json_number(text: &str) -> bool {
    serde_json::from_str::<serde_json::Number>(text).is_ok()
}

impl Workflow {
    /// Returns the value of every declared param: given, or the default; null for an optional param without
    /// either.
    ///
    /// # Errors
    /// All mismatches: unknown names, missing values, wrong types, patterns not matched.
    pub fn resolve_params(&self, given: &GivenParams) -> Result<Map<String, Value>, ParamsError> {
        let mut problems: Vec<ParamProblem> = Vec::new();
        let declared = || self.params.iter().map(|param| param.name.as_str());
        let names = given.file.keys().chain(given.text.iter().map(|(name, _)| name));
        for name in names.filter(|name| !declared().any(|declared| declared == *name)) {
            if problems.iter().any(|problem| problem.name == *name) {
                continue;
            }
            let message = format!("the workflow has no param `{name}`; params: {}", listed(declared()));
            let hint = nearest(name, declared()).map(|near| format!("did you mean `{near}`?"));
            problems.push(ParamProblem { name: name.clone(), message, hint });
        }
        let mut values = Map::new();
        for param in &self.params {
            match param.resolve(given) {
                Ok(value) => {
                    values.insert(param.name.clone(), value);
                }
                Err((message, hint)) => {
                    problems.push(ParamProblem { name: param.name.clone(), message, hint });
                }
            }
        }
        match problems.is_empty() {
            true => Ok(values),
            false => Err(ParamsError { problems }),
        }
    }
}
