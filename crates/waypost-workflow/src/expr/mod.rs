//! Expressions: `${{ }}` in a workflow file, and `if:`.
//!
//! Text is scanned for `${{` only. Syntax of a shell or another template language (`${X}`, `$1`, `${#a[@]}`,
//! `{{ x }}`, `{% if %}`, `{# x #}`) is never interpreted. The content is one expression, compiled by
//! minijinja in an environment without templates and statements.
//!
//! Owns the language, its names, and the error for a missing name. Does not know the origin of a text, nor
//! when a step runs. The caller passes a [`Scope`], and decides about the readable names at a place.

mod convert;
mod json;
mod lex;
mod machine;
mod names;
mod rewrite;
mod scope;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

pub(crate) use self::json::parse_json;
pub(crate) use self::names::{Call, FAILED_STEP, WAITING_STEP, is_taken};
pub use self::names::{ELEMENT, Reference};
pub use self::scope::{ItemsView, Scope, StepView};

pub(crate) use self::convert::{NumberError, described, exact_number, shown};

use self::lex::Until;
use self::names::Uses;

/// Opens an expression in a text.
const OPEN: &str = "${{";
/// Closes an expression.
const CLOSE: &str = "}}";

/// Syntax error in an expression, with its place in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    /// Place in the text, in bytes.
    pub range: Range<usize>,
    /// Error text: lower case, no full stop.
    pub message: String,
    /// Known name similar to an unknown name.
    pub hint: Option<String>,
    /// Correction.
    pub help: Option<String>,
}

impl SyntaxError {
    pub(crate) fn new(range: Range<usize>, message: impl Into<String>) -> Self {
        Self { range, message: message.into(), hint: None, help: None }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SyntaxError {}

/// Expression that cannot be evaluated with the values in scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}cannot evaluate `{expression}`: {message}", step.as_ref().map(|id| format!("step `{id}`: ")).unwrap_or_default())]
pub struct ExprError {
    /// Step of the scope.
    pub step: Option<String>,
    /// Expression as written, without `${{ }}`.
    pub expression: String,
    /// Missing or unsuitable value, with the existing names.
    pub message: String,
    /// Known name similar to a missing name, or a correction.
    pub hint: Option<String>,
}

/// Compiled expression.
#[derive(Clone)]
struct Expression {
    text: Arc<str>,
    compiled: Arc<machine::Compiled>,
    uses: Arc<Uses>,
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.text).finish()
    }
}

impl Expression {
    /// Reads the expression of `source` from byte `start` on; returns the expression and the offset of its
    /// end.
    fn read(
        source: &str,
        start: usize,
        until: Until,
        locals: &[String],
    ) -> Result<(Self, usize), Vec<SyntaxError>> {
        let (tokens, end) = lex::lex(source, start, until).map_err(|error| vec![error])?;
        let text = source[start..end].trim();
        if tokens.is_empty() {
            let open = start.saturating_sub(OPEN.len());
            let range = open..(end + CLOSE.len()).min(source.len());
            let help = "write a name, a value or a comparison, such as `params.x`";
            return Err(vec![SyntaxError::new(range, "the expression is empty").help(help)]);
        }
        let whole = tokens[0].range.start..tokens[tokens.len() - 1].range.end;
        if tokens.len() > machine::TOKENS_MAX {
            let message = format!("the expression has more than {} tokens", machine::TOKENS_MAX);
            return Err(vec![
                SyntaxError::new(whole, message).help("compute the value in a step, and read its output"),
            ]);
        }
        let rewritten = rewrite::rewrite(&tokens, locals)?;
        let compiled = machine::compile(&rewritten, whole).map_err(|error| vec![error])?;
        let expression =
            Self { text: text.into(), compiled: Arc::new(compiled), uses: Arc::new(rewritten.uses) };
        Ok((expression, end))
    }

    fn evaluate(&self, scope: &Scope) -> Result<Value, ExprError> {
        self.compiled.evaluate(scope).map_err(|failure| self.explain(scope, failure))
    }

    /// Returns the value of an expression without references and calls: the same in every run.
    fn constant(&self) -> Option<Result<Value, ExprError>> {
        let Uses { references, calls } = &*self.uses;
        let reads_nothing = references.is_empty() && calls.is_empty();
        reads_nothing.then(|| self.evaluate(&Scope::new("", &serde_json::Map::new())))
    }

    fn explain(&self, scope: &Scope, failure: machine::Failure) -> ExprError {
        let missing = match failure.is_missing {
            true => self.uses.references.iter().find_map(|reference| scope.missing(&reference.path)),
            false => None,
        };
        // minijinja's error for the sum of a text and a number.
        let mixes_text =
            failure.message.contains("operator on unsupported types") && failure.message.contains("string");
        let as_number = mixes_text.then(|| {
            "convert text to a number: `(steps.ID.outputs.NAME | int) + 1`, or `| float`".to_owned()
        });
        let (message, hint) = missing.unwrap_or((failure.message, as_number));
        self.error(scope, message, hint)
    }

    fn error(&self, scope: &Scope, message: String, hint: Option<String>) -> ExprError {
        ExprError { step: scope.step().map(str::to_owned), expression: self.text.to_string(), message, hint }
    }
}

/// Text with expressions, compiled.
#[derive(Debug, Clone)]
pub struct Template {
    text: Arc<str>,
    parts: Arc<[Part]>,
}

#[derive(Debug, Clone)]
enum Part {
    Text(Range<usize>),
    Hole(Range<usize>, Expression),
}

impl Template {
    /// Compiles every `${{ }}` of `text`; the rest stays unchanged, byte for byte.
    ///
    /// # Errors
    /// Every invalid expression; reading stops at an unclosed `${{`.
    pub fn parse(text: &str) -> Result<Self, Vec<SyntaxError>> {
        match Self::parse_in_part(text, &[]) {
            (template, errors) if errors.is_empty() => Ok(template),
            (_, errors) => Err(errors),
        }
    }

    /// Compiles the valid expressions of `text`, so that their references can be checked even if others have
    /// errors.
    ///
    /// Expressions may read `locals` in addition to the global names.
    pub(crate) fn parse_in_part(text: &str, locals: &[String]) -> (Self, Vec<SyntaxError>) {
        let (mut parts, mut errors) = (Vec::new(), Vec::new());
        let whole = |parts: Vec<Part>| Self { text: text.into(), parts: parts.into() };
        let mut at = 0;
        while let Some(found) = text[at..].find(OPEN) {
            let open = at + found;
            if open > at {
                parts.push(Part::Text(at..open));
            }
            let start = open + OPEN.len();
            match Expression::read(text, start, Until::Close, locals) {
                Ok((expression, end)) => {
                    at = end + CLOSE.len();
                    parts.push(Part::Hole(open..at, expression));
                }
                Err(more) => {
                    errors.extend(more);
                    let Some(close) = text[start..].find(CLOSE) else { return (whole(parts), errors) };
                    at = start + close + CLOSE.len();
                }
            }
        }
        if at < text.len() {
            parts.push(Part::Text(at..text.len()));
        }
        (whole(parts), errors)
    }

    /// Returns the text as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the text before the first expression.
    #[must_use]
    pub fn before_expressions(&self) -> &str {
        match self.parts.first() {
            Some(Part::Text(range)) => &self.text[range.clone()],
            Some(Part::Hole(..)) | None => "",
        }
    }

    /// Returns the texts around the expressions.
    pub(crate) fn written(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(range) => Some(&self.text[range.clone()]),
            Part::Hole(..) => None,
        })
    }

    /// Renders the text: texts unchanged, numbers and booleans in plain form, lists and maps as JSON.
    ///
    /// # Errors
    /// A missing name, an unsuitable value, or null, which has no text form.
    pub fn render(&self, scope: &Scope) -> Result<String, ExprError> {
        self.filled(scope, true, |text| text.into())
    }

    /// As [`Template::render`], with results escaped by `literal`, so that a result has no operators of the
    /// text's language.
    ///
    /// # Errors
    /// As [`Template::render`].
    pub(crate) fn render_literal(
        &self,
        scope: &Scope,
        literal: impl Fn(&str) -> Cow<'_, str>,
    ) -> Result<String, ExprError> {
        self.filled(scope, true, literal)
    }

    /// As [`Template::render`], for a variable or an argument of a process, which cannot contain a NUL.
    ///
    /// # Errors
    /// As [`Template::render`], and a value with a NUL.
    pub(crate) fn render_word(&self, scope: &Scope) -> Result<String, ExprError> {
        self.filled(scope, false, |text| text.into())
    }

    fn filled(
        &self,
        scope: &Scope,
        takes_nul: bool,
        written: impl Fn(&str) -> Cow<'_, str>,
    ) -> Result<String, ExprError> {
        let mut out = String::with_capacity(self.text.len());
        for part in self.parts.iter() {
            match part {
                Part::Text(range) => out.push_str(&self.text[range.clone()]),
                Part::Hole(_, expression) => match expression.evaluate(scope)? {
                    Value::Null => {
                        let help = "give a default: `... | default('text', true)`, or run the step only \
                                    `if` the value exists";
                        return Err(expression.error(
                            scope,
                            "the value is null".to_owned(),
                            Some(help.to_owned()),
                        ));
                    }
                    Value::String(text) if !takes_nul && text.contains('\0') => {
                        let why =
                            "the value contains a NUL, which variables and commands cannot hold".to_owned();
                        let help =
                            "encode the value in its step, or write the value to a file and pass the path";
                        return Err(expression.error(scope, why, Some(help.to_owned())));
                    }
                    Value::String(text) => out.push_str(&written(&text)),
                    value => out.push_str(&written(&value.to_string())),
                },
            }
        }
        Ok(out)
    }

    /// Returns the typed value of a text that is exactly one `${{ }}`; for any other text, the rendered text.
    ///
    /// # Errors
    /// As [`Template::render`], but null is a value here.
    pub fn evaluate(&self, scope: &Scope) -> Result<Value, ExprError> {
        match &*self.parts {
            [Part::Hole(_, expression)] => expression.evaluate(scope),
            _ => self.render(scope).map(Value::String),
        }
    }

    /// Returns whether the text has no expression.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text(_)))
    }

    /// Returns the names read by the expressions.
    pub fn references(&self) -> impl Iterator<Item = &Reference> {
        self.holes().flat_map(|(_, expression)| &expression.uses.references)
    }

    /// Returns the calls about the ends of other steps, with the place of the expression.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&Range<usize>, &Call)> {
        self.holes()
            .flat_map(|(range, expression)| expression.uses.calls.iter().map(move |call| (range, call)))
    }

    fn holes(&self) -> impl Iterator<Item = (&Range<usize>, &Expression)> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Hole(range, expression) => Some((range, expression)),
        })
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// Compiles a text that is one expression, bare or as one `${{ }}`; `what` names its purpose in messages.
fn bare(text: &str, locals: &[String], what: &str) -> Result<Expression, Vec<SyntaxError>> {
    let Some(open) = text.find(OPEN) else {
        return Expression::read(text, 0, Until::End, locals).map(|(expression, _)| expression);
    };
    let (template, errors) = Template::parse_in_part(text, locals);
    if !errors.is_empty() {
        return Err(errors);
    }
    let around = |part: &Part| match part {
        Part::Text(range) => (!text[range.clone()].trim().is_empty()).then(|| range.clone()),
        Part::Hole(..) => None,
    };
    if let Some(range) = template.parts.iter().find_map(around) {
        let message = format!("{what} is a single expression, without `${{{{ }}}}`");
        return Err(vec![SyntaxError::new(range, message).help("remove `${{` and `}}`")]);
    }
    let mut holes = template.holes();
    match (holes.next(), holes.next()) {
        (Some((_, expression)), None) => Ok(expression.clone()),
        _ => {
            let error =
                SyntaxError::new(open..text.len(), format!("{what} is a single expression, not several"));
            Err(vec![error.help("concatenate texts with `~`, and combine conditions with `&&` or `||`")])
        }
    }
}

/// Expression for a value.
#[derive(Debug, Clone)]
pub struct Formula(Expression);

impl Formula {
    /// Compiles `text`, with `locals` in scope; `what` names its purpose in messages.
    pub(crate) fn parse_with(text: &str, locals: &[String], what: &str) -> Result<Self, Vec<SyntaxError>> {
        bare(text, locals, what).map(Self)
    }

    /// Returns the expression as written, without `${{ }}`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Evaluates the expression.
    ///
    /// # Errors
    /// A missing name, or an unsuitable value.
    pub fn evaluate(&self, scope: &Scope) -> Result<Value, ExprError> {
        self.0.evaluate(scope)
    }

    /// Returns the names read by the expression.
    pub fn references(&self) -> impl Iterator<Item = &Reference> {
        self.0.uses.references.iter()
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.0.uses.calls.iter()
    }
}

/// Condition of a step.
#[derive(Debug, Clone)]
pub struct Condition(Expression);

impl Condition {
    /// Compiles `text`: an expression, bare or as one `${{ }}`.
    ///
    /// # Errors
    /// Syntax errors, and text around a `${{ }}`.
    pub fn parse(text: &str) -> Result<Self, Vec<SyntaxError>> {
        Self::parse_with(text, &[])
    }

    /// As [`Condition::parse`], with `locals` in scope.
    pub(crate) fn parse_with(text: &str, locals: &[String]) -> Result<Self, Vec<SyntaxError>> {
        let condition = Self(bare(text, locals, "a condition")?);
        match condition.0.constant() {
            None | Some(Ok(Value::Bool(_))) => Ok(condition),
            Some(Ok(other)) => {
                let message = format!(
                    "a condition must be true or false, but this one is always {}",
                    described(&other)
                );
                Err(vec![
                    SyntaxError::new(0..text.len(), message).help("compare a value: `params.mode == 'yes'`"),
                ])
            }
            Some(Err(error)) => Err(vec![SyntaxError::new(0..text.len(), error.message)]),
        }
    }

    /// Returns whether the condition is false in every run: it reads nothing.
    pub(crate) fn is_never(&self) -> bool {
        matches!(self.0.constant(), Some(Ok(Value::Bool(false))))
    }

    /// Returns the condition as written, without `${{ }}`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Evaluates the condition.
    ///
    /// # Errors
    /// A missing name, an unsuitable value, or a result other than true or false.
    pub fn holds(&self, scope: &Scope) -> Result<bool, ExprError> {
        match self.0.evaluate(scope)? {
            Value::Bool(answer) => Ok(answer),
            other => {
                let message = format!("a condition must be true or false, not {}", described(&other));
                let hint = matches!(other, Value::String(_))
                    .then(|| "compare the value: `... == 'true'`".to_owned());
                Err(self.0.error(scope, message, hint))
            }
        }
    }

    /// Returns the names read by the condition.
    pub fn references(&self) -> impl Iterator<Item = &Reference> {
        self.0.uses.references.iter()
    }

    /// Returns whether the condition reads no result of a step, also not through `env`.
    #[must_use]
    pub(crate) fn reads_no_result(&self) -> bool {
        let is_result = |name: &str| matches!(name, "steps" | "env");
        let reads_any =
            self.references().any(|reference| reference.path.first().is_none_or(|name| is_result(name)));
        !reads_any
    }

    /// Returns whether the condition is evaluated although the needed `step` was skipped: with a call of
    /// `always()` or `skipped(step)`.
    #[must_use]
    pub fn considers_skipped(&self, step: &str) -> bool {
        self.0.uses.calls.iter().any(|call| match call {
            Call::Always => true,
            Call::Skipped { step: named, .. } => named == step,
            Call::Failure { .. } | Call::Success { .. } => false,
        })
    }

    /// Returns whether the condition is evaluated after a failure too: with a call of `always()`, `failure()`
    /// or `success()`. Any other condition implies `success() &&`.
    #[must_use]
    pub fn asks_for_failures(&self) -> bool {
        let mut calls = self.0.uses.calls.iter();
        calls.any(|call| matches!(call, Call::Always | Call::Failure { .. } | Call::Success { .. }))
    }

    /// Returns whether the condition calls `failure()`.
    #[must_use]
    pub fn calls_failure(&self) -> bool {
        self.0.uses.calls.iter().any(|call| matches!(call, Call::Failure { .. }))
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.0.uses.calls.iter()
    }
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}
