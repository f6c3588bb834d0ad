//! Finds the names read by an expression, for checks before a run.

use std::ops::Range;

use super::SyntaxError;
use super::lex::{Token, TokenKind};
use crate::suggest::{listed, nearest};

/// Root names of expressions.
pub(crate) const ROOTS: [&str; 4] = ["params", "env", "steps", "run"];
/// Members of `run`.
const RUN_NAMES: [&str; 1] = ["id"];
/// Member of `run` in failure hooks, a local name.
pub(crate) const FAILED_STEP: &str = "run.failed_step";
/// The id of the waiting step, in `on_waiting`.
pub(crate) const WAITING_STEP: &str = "run.waiting";
/// Names of `run` that exist only in some hooks, each with the hook.
const OF_HOOKS: [(&str, &str, &str); 2] =
    [("failed_step", FAILED_STEP, "on_failure"), ("waiting", WAITING_STEP, "on_waiting")];
/// Members of a step.
const STEP_NAMES: [&str; 9] =
    ["outputs", "exit_code", "stdout", "status", "items", "items_file", "total", "succeeded", "failed"];
/// Local name of the pass in a step with `repeat`.
const OF_PASSES: &str = "iteration";
/// Default local names in the steps of a `foreach`.
const OF_ITEMS: [&str; 2] = ["item", "item_index"];
/// Words of the expression language.
const WORDS: [&str; 13] =
    ["and", "or", "not", "in", "is", "if", "else", "true", "false", "none", "null", "True", "False"];
/// Functions.
const FUNCTIONS: [&str; 10] = [
    "always",
    "failure",
    "success",
    "skipped",
    "range",
    "dict",
    FROM_JSON,
    FROM_JSON_OF_GITHUB,
    TO_JSON,
    TO_JSON_OF_GITHUB,
];
/// Function and filter from JSON text to a value, also as GitHub spells it.
pub(crate) const FROM_JSON: &str = "fromjson";
pub(crate) const FROM_JSON_OF_GITHUB: &str = "fromJSON";
/// Function and filter from a value to JSON text, also as GitHub spells it.
pub(crate) const TO_JSON: &str = "tojson";
pub(crate) const TO_JSON_OF_GITHUB: &str = "toJSON";
/// GitHub's function for stopped runs. In a stopped run no step starts, so the result would always be false.
const CANCELLED: &str = "cancelled";
/// Reason, and the replacements.
const AFTER_A_STOP: &str = "no step runs after Ctrl-C, a stop, a timeout or an exceeded budget, whatever \
                            its `if`: use `failure()` for failures, `always()` for any end of a step";
/// minijinja filters that are useful for one value.
pub(crate) const FILTERS: [&str; 40] = [
    "abs",
    "attr",
    "bool",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "first",
    "float",
    FROM_JSON,
    FROM_JSON_OF_GITHUB,
    "int",
    "items",
    "join",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "select",
    "selectattr",
    "sort",
    "split",
    "string",
    "sum",
    "title",
    TO_JSON,
    TO_JSON_OF_GITHUB,
    "trim",
    "unique",
    "upper",
];
/// minijinja tests that are useful for one value.
pub(crate) const TESTS: [&str; 21] = [
    "boolean",
    "defined",
    "divisibleby",
    "endingwith",
    "even",
    "false",
    "float",
    "in",
    "integer",
    "iterable",
    "lower",
    "mapping",
    "none",
    "number",
    "odd",
    "sequence",
    "startingwith",
    "string",
    "true",
    "undefined",
    "upper",
];
/// GitHub functions, with the replacement.
const FROM_GITHUB: [(&str, &str); 5] = [
    ("contains", "write `'x' in list`, or `'x' in text`"),
    ("startsWith", "write `text is startingwith('x')`"),
    ("endsWith", "write `text is endingwith('x')`"),
    ("join", "write `list | join(',')`"),
    ("format", "put several `${{ }}` in the text"),
];

/// Returns the replacement of a GitHub function, in any case of letters.
fn from_github(name: &str) -> Option<&'static str> {
    FROM_GITHUB.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, help)| *help)
}

/// Returns whether a name has a meaning in every expression.
pub(crate) fn is_taken(name: &str) -> bool {
    ROOTS.contains(&name)
        || name == OF_PASSES
        || WORDS.contains(&name)
        || FUNCTIONS.contains(&name)
        || name == CANCELLED
}

/// Stands for a list element or a computed key in a path.
pub const ELEMENT: &str = "[]";

/// Name read by an expression, with the fixed part of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Parts: `steps.fetch.outputs.rows` has four.
    pub path: Vec<String>,
    /// All parts, unnamed elements included: `steps.each.items[0].status` has five, the fourth is
    /// [`ELEMENT`].
    pub reach: Vec<String>,
    /// Place in the parsed text, in bytes.
    pub range: Range<usize>,
}

/// Call about the ends of other steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Always,
    /// True after a failure upstream.
    Failure {
        range: Range<usize>,
    },
    /// True unless a step upstream failed.
    Success {
        range: Range<usize>,
    },
    Skipped {
        step: String,
        range: Range<usize>,
    },
}

/// Names and calls of an expression.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) references: Vec<Reference>,
    pub(crate) calls: Vec<Call>,
}

/// Collects the names and calls of `tokens`.
///
/// # Errors
/// Every unknown name, function, filter or test.
pub(crate) fn collect(tokens: &[Token<'_>], locals: &[String]) -> Result<Uses, Vec<SyntaxError>> {
    let (mut uses, mut errors) = (Uses::default(), Vec::new());
    for (index, token) in tokens.iter().enumerate() {
        let checked = match token.kind {
            TokenKind::Name => name(tokens, index, locals, &mut uses),
            TokenKind::Mark if token.text == "=" => check_assignment(tokens, index),
            _ => Ok(()),
        };
        errors.extend(checked.err());
    }
    match errors.is_empty() {
        true => Ok(uses),
        false => Err(errors),
    }
}

/// Accepts `name=value` in a call; any other `=` was probably meant as `==`.
fn check_assignment(tokens: &[Token<'_>], index: usize) -> Result<(), SyntaxError> {
    let named = index >= 2
        && tokens[index - 1].kind == TokenKind::Name
        && (tokens[index - 2].is("(") || tokens[index - 2].is(","));
    if named {
        return Ok(());
    }
    let behind = tokens.get(index + 1).filter(|next| next.range.start == tokens[index].range.end);
    let help = match behind.map(|next| next.text) {
        Some(">") => "write `>=`",
        Some("<") => "write `<=`",
        Some("!") => "write `!=`",
        _ => "write `==`",
    };
    Err(SyntaxError::new(tokens[index].range.clone(), "`=` is not a comparison").help(help))
}

fn name(tokens: &[Token<'_>], index: usize, locals: &[String], uses: &mut Uses) -> Result<(), SyntaxError> {
    let token = &tokens[index];
    let before = index.checked_sub(1).map(|before| &tokens[before]);
    let next = tokens.get(index + 1);
    let follows = |mark: &str| before.is_some_and(|before| before.is(mark));
    if follows(".") {
        return Ok(());
    }
    if follows("|") {
        return known("filter", token, &FILTERS);
    }
    if (follows("is") && !token.is("not")) || (follows("not") && index >= 2 && tokens[index - 2].is("is")) {
        return known("test", token, &TESTS);
    }
    if next.is_some_and(|next| next.is("=")) || WORDS.contains(&token.text) {
        return Ok(());
    }
    if next.is_some_and(|next| next.is("(")) {
        return call(tokens, index, uses);
    }
    // The argument of `skipped` was read with the call.
    if index >= 2 && follows("(") && tokens[index - 2].is("skipped") {
        return Ok(());
    }
    reference(tokens, index, locals, uses)
}

fn known(what: &str, token: &Token<'_>, names: &[&str]) -> Result<(), SyntaxError> {
    if names.contains(&token.text) {
        return Ok(());
    }
    let error = SyntaxError::new(token.range.clone(), format!("there is no {what} `{}`", token.text));
    Err(match from_github(token.text) {
        Some(help) => error.help(help),
        None => error.hint(nearest(token.text, names.iter().copied())),
    })
}

fn call(tokens: &[Token<'_>], index: usize, uses: &mut Uses) -> Result<(), SyntaxError> {
    let token = &tokens[index];
    if token.text == CANCELLED {
        let message = "`cancelled()` is never true".to_owned();
        return Err(SyntaxError::new(token.range.clone(), message).help(AFTER_A_STOP));
    }
    if !FUNCTIONS.contains(&token.text) && from_github(token.text).is_none() {
        return Err(unknown_function(token));
    }
    known("function", token, &FUNCTIONS)?;
    let empty = tokens.get(index + 2).is_some_and(|close| close.is(")"));
    let call = match token.text {
        "skipped" => Some(skipped(tokens, index)?),
        "always" => Some(Call::Always),
        "failure" => Some(Call::Failure { range: token.range.clone() }),
        "success" => Some(Call::Success { range: token.range.clone() }),
        _ => return Ok(()),
    };
    if !empty && token.text != "skipped" {
        let error = SyntaxError::new(token.range.clone(), format!("`{}()` takes nothing", token.text));
        return Err(error.help(format!("write `{}()`", token.text)));
    }
    uses.calls.extend(call);
    Ok(())
}

fn unknown_function(token: &Token<'_>) -> SyntaxError {
    let error = SyntaxError::new(token.range.clone(), format!("there is no function `{}`", token.text));
    let near = nearest(token.text, FUNCTIONS);
    let own = FUNCTIONS.into_iter().filter(|name| ![FROM_JSON_OF_GITHUB, TO_JSON_OF_GITHUB].contains(name));
    error.hint(near).help(format!("the functions are {}", listed(own)))
}

fn skipped(tokens: &[Token<'_>], index: usize) -> Result<Call, SyntaxError> {
    let argument = tokens.get(index + 2).zip(tokens.get(index + 3));
    if let Some((step, close)) = argument
        && close.is(")")
    {
        let id = match step.kind {
            TokenKind::Name => Some(step.text),
            _ => step.plain_text(),
        };
        if let Some(id) = id {
            return Ok(Call::Skipped { step: id.to_owned(), range: step.range.clone() });
        }
    }
    Err(SyntaxError::new(tokens[index].range.clone(), "`skipped` takes the id of one step")
        .help("write the id: `skipped(fetch)`"))
}

fn reference(
    tokens: &[Token<'_>],
    index: usize,
    locals: &[String],
    uses: &mut Uses,
) -> Result<(), SyntaxError> {
    let token = &tokens[index];
    let is_local = locals.iter().any(|local| local == token.text);
    if OF_ITEMS.contains(&token.text) && !is_local {
        let message = format!("`{}` exists only in a `foreach`", token.text);
        let error = SyntaxError::new(token.range.clone(), message);
        return Err(match locals.iter().rev().find(|local| !OF_ITEMS.contains(&local.as_str())) {
            Some(name) => error.hint(Some(name.clone())),
            None => error.help("move the expression into the `steps` of a `foreach`"),
        });
    }
    if token.text == OF_PASSES && !is_local {
        let message = format!("`{OF_PASSES}` exists only in a step with `repeat`");
        let help = "add `repeat: { until: ..., max: N }` to the step";
        return Err(SyntaxError::new(token.range.clone(), message).help(help));
    }
    if !ROOTS.contains(&token.text) && !is_local {
        let locals = || locals.iter().map(String::as_str).filter(|local| !local.starts_with("run."));
        let known = ROOTS.into_iter().chain(locals());
        let here: Vec<&str> = locals().collect();
        let last = match here.is_empty() {
            true => String::new(),
            false => format!(", here also {}", listed(here)),
        };
        return Err(SyntaxError::new(token.range.clone(), format!("there is no `{}`", token.text))
            .hint(nearest(token.text, known))
            .help(format!("expressions read `params`, `env`, `steps` and `run`{last}; quote text")));
    }
    let (path, end) = path(tokens, index);
    let range = token.range.start..end;
    check_path(&path, &range, locals)?;
    let reach = reach(tokens, index);
    uses.references.push(Reference { path, reach, range });
    Ok(())
}

/// Returns the fixed parts of the path at `index`, and the end of the path.
fn path(tokens: &[Token<'_>], index: usize) -> (Vec<String>, usize) {
    let mut path = vec![tokens[index].text.to_owned()];
    let mut end = tokens[index].range.end;
    let mut at = index + 1;
    loop {
        let window = (tokens.get(at), tokens.get(at + 1), tokens.get(at + 2));
        match window {
            (Some(dot), Some(name), after) if dot.is(".") && name.kind == TokenKind::Name => {
                // Method of the value, not a part of the path.
                if after.is_some_and(|after| after.is("(")) {
                    break;
                }
                path.push(name.text.to_owned());
                end = name.range.end;
                at += 2;
            }
            (Some(open), Some(key), Some(close)) if open.is("[") && close.is("]") => {
                let Some(key) = key.plain_text() else { break };
                path.push(key.to_owned());
                end = close.range.end;
                at += 3;
            }
            _ => break,
        }
    }
    (path, end)
}

/// Returns all parts of the path at `index`, computed parts as [`ELEMENT`].
fn reach(tokens: &[Token<'_>], index: usize) -> Vec<String> {
    let mut reach = vec![tokens[index].text.to_owned()];
    let mut at = index + 1;
    loop {
        let is_call = tokens.get(at + 2).is_some_and(|after| after.is("("));
        match (tokens.get(at), tokens.get(at + 1)) {
            (Some(dot), Some(name)) if dot.is(".") && name.kind == TokenKind::Name && !is_call => {
                reach.push(name.text.to_owned());
                at += 2;
            }
            (Some(open), Some(key)) if open.is("[") => {
                let Some(close) = closed_at(&tokens[at..]) else { return reach };
                let plain = key.plain_text().filter(|_| close == 2);
                reach.push(plain.unwrap_or(ELEMENT).to_owned());
                at += close + 1;
            }
            _ => return reach,
        }
    }
}

/// Returns the position of the bracket that closes the first token.
fn closed_at(tokens: &[Token<'_>]) -> Option<usize> {
    let mut depth = 0_usize;
    tokens.iter().position(|token| {
        depth += usize::from(token.is("["));
        depth -= usize::from(token.is("]"));
        depth == 0
    })
}

/// Checks the part of a path that is valid or invalid in every workflow.
fn check_path(path: &[String], range: &Range<usize>, locals: &[String]) -> Result<(), SyntaxError> {
    let part = |index: usize| path.get(index).map(String::as_str);
    match (path[0].as_str(), part(1), part(2)) {
        ("steps", None, _) => Err(SyntaxError::new(range.clone(), "`steps` needs the id of a step")
            .help("write the whole path: `steps.fetch.outputs.rows`")),
        ("steps", Some(id), None) => {
            Err(SyntaxError::new(range.clone(), format!("`steps.{id}` is not a value"))
                .help("read `.outputs.NAME`, `.exit_code`, `.stdout` or `.status` of the step"))
        }
        ("steps", Some(_), Some(what)) if !STEP_NAMES.contains(&what) => {
            Err(SyntaxError::new(range.clone(), format!("a step has no `{what}`"))
                .hint(nearest(what, STEP_NAMES))
                .help(
                    "a step has `outputs`, `exit_code`, `stdout` and `status`; a `foreach` has `items`, \
                     `total`, `succeeded` and `failed`",
                ))
        }
        ("run", Some(what), _) if OF_HOOKS.iter().any(|(name, ..)| *name == what) => {
            let (_, local, hook) =
                OF_HOOKS.iter().find(|(name, ..)| *name == what).expect("the guard has found the name");
            if locals.iter().any(|known| known == local) {
                return Ok(());
            }
            let message = format!("`{local}` exists only in the steps of `{hook}`");
            let help = format!("move the expression to `{hook}`, or write the id of the step");
            Err(SyntaxError::new(range.clone(), message).help(help))
        }
        ("run", what, _) if !what.is_some_and(|what| RUN_NAMES.contains(&what)) => {
            let message = match what {
                Some(what) => format!("`run` has no `{what}`"),
                None => "`run` is not a value".to_owned(),
            };
            Err(SyntaxError::new(range.clone(), message)
                .hint(what.and_then(|what| nearest(what, RUN_NAMES)))
                .help("read `run.id`"))
        }
        _ => Ok(()),
    }
}
