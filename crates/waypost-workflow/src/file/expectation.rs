//! Checks of expectations in evidence claims, as far as known before a run.

use std::fmt::Display;
use std::path::{Component, Path};

use serde_json::Value;
use waypost::evidence::{check_mode, check_pattern, check_size};
use waypost_evidence::{check_count, check_header, check_path, check_query, check_status, sign_of};

use super::about::About;
use super::body::holds_expression;
use super::checker::Checker;
use super::evidence::{Expected, KindOfEvidence, Language};
use super::fields::Fields;
use super::node::{Kind, Node};
use super::remote::incomplete;
use super::settings;
use crate::expr::Template;

/// Type of an expectation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    /// One of these words.
    Word(&'static [&'static str]),
    /// Size, or a comparison with a size.
    Size,
    /// SHA-256 in hex.
    Digest,
    /// Value for a comparison.
    Fit,
    /// Text.
    Text,
    /// Text or list of texts.
    Texts,
    /// Regular expression.
    Pattern,
    /// Path of a value in JSON.
    Path,
    /// `true` or `false`.
    Truth,
    /// `true` only: `false` would have no meaning.
    True,
    /// Read-only query of PostgreSQL.
    Query,
    /// Columns and values.
    Columns,
    /// Exit code, or a comparison with an exit code.
    Code,
    /// Count, or a comparison with a count.
    Count,
    /// Status of a response, or a comparison with a status.
    Status,
    /// Comparison with a value that is never null.
    Compared,
    /// User, by name or id.
    User,
    /// Mode of a file.
    Mode,
    /// Path.
    File,
    /// Path or time, or a list of these.
    Older,
    /// Names of variables.
    Variables,
    /// Map of any values.
    Map,
    /// Names of headers, with comparisons.
    Headers,
    /// Paths in JSON, with comparisons.
    Paths,
}

impl Wanted {
    /// Returns the language of the expectation's texts.
    fn language(self) -> Language {
        match self {
            Self::Size => Language::Size,
            Self::Fit
            | Self::Compared
            | Self::Count
            | Self::Status
            | Self::Code
            | Self::Columns
            | Self::Headers
            | Self::Paths => Language::Comparison,
            Self::Pattern => Language::Pattern,
            Self::File | Self::Older => Language::Path,
            Self::Word(_)
            | Self::Digest
            | Self::Text
            | Self::Texts
            | Self::Path
            | Self::Truth
            | Self::True
            | Self::Query
            | Self::User
            | Self::Mode
            | Self::Variables
            | Self::Map => Language::Text,
        }
    }
}

/// Reads the expected exit codes of the step.
pub(super) fn codes<'n>(
    checker: &mut Checker<'_>,
    node: &'n Node,
    texts: &mut Vec<(Template, &'n Node)>,
) -> Option<Expected> {
    let items: Vec<&Node> = match &node.kind {
        Kind::Null => return Some(Expected::Plain(Value::from(0))),
        Kind::List(items) => items.iter().collect(),
        _ => vec![node],
    };
    let mut codes = Vec::new();
    for item in items {
        if matches!(&item.kind, Kind::Text(text) if text.contains("${{")) {
            let template = checker.template(item, "exit")?;
            texts.push((template.clone(), item));
            codes.push(Expected::Filled(template, Language::Text));
            continue;
        }
        let code = checker.integer(item, "exit", 0..=255)?;
        codes.push(Expected::Plain(Value::from(code)));
    }
    if codes.is_empty() {
        checker.wrong(node, "`exit` has no code", "write `exit: 0` or `exit: [0, 3]`");
        return None;
    }
    Some(Expected::List(codes))
}

/// Reads the expectations of a claim.
pub(super) fn expectations<'n>(
    checker: &mut Checker<'_>,
    (kind, node): (&KindOfEvidence, &Node),
    fields: &Fields<'n>,
    texts: &mut Vec<(Template, &'n Node)>,
) -> Option<Expected> {
    let mut found = Vec::new();
    for (name, wanted) in kind.expectations {
        let Some(node) = fields.get(name) else { continue };
        // Null can be an expected value.
        let value = match (&node.kind, wanted) {
            (Kind::Null, Wanted::Fit) => Some(Expected::Plain(Value::Null)),
            // The variables of a program are known before the run.
            (_, Wanted::Variables) => Some(Expected::Plain(node.to_json())),
            _ => value(checker, (name, wanted.language()), node, texts),
        };
        let Some(value) = value else { continue };
        if let Expected::Plain(plain) = &value {
            check(checker, (name, *wanted), node, plain);
            if matches!(wanted.language(), Language::Comparison | Language::Size) {
                unclear_signs(checker, name, node, plain);
            }
        }
        found.push(((*name).to_owned(), value));
    }
    complete(checker, kind, node, &found);
    match kind.key {
        "sha256" => found.pop().map(|(_, digest)| digest),
        "git" => (!found.is_empty()).then_some(Expected::Map(found)),
        _ => Some(match found.is_empty() {
            true => Expected::Plain(Value::Null),
            false => Expected::Map(found),
        }),
    }
}

/// Reads a value with expressions.
fn value<'n>(
    checker: &mut Checker<'_>,
    (what, language): (&str, Language),
    node: &'n Node,
    texts: &mut Vec<(Template, &'n Node)>,
) -> Option<Expected> {
    match &node.kind {
        Kind::Null => {
            checker.wrong(
                node,
                format!("`{what}` has no expected value"),
                "write the expected value, or remove the key",
            );
            None
        }
        Kind::Text(text) if text.contains("${{") => {
            let template = checker.template(node, what)?;
            if matches!(language, Language::Comparison | Language::Size) {
                unclear_sign(checker, what, node, template.as_str());
            }
            texts.push((template.clone(), node));
            Some(Expected::Filled(template, language))
        }
        Kind::List(items) if items.is_empty() => {
            checker.wrong(node, format!("`{what}` is an empty list, and can never match"), "remove it");
            None
        }
        Kind::List(items) if holds_expression(&node.to_json()) => {
            let items = items.iter().map(|item| value(checker, (what, language), item, texts));
            Some(Expected::List(items.collect::<Option<_>>()?))
        }
        Kind::Map(entries) if holds_expression(&node.to_json()) => {
            let entry = |(key, node): &'n (Node, Node)| {
                Some((key.key_text().to_owned(), value(checker, (what, language), node, texts)?))
            };
            Some(Expected::Map(entries.iter().map(entry).collect::<Option<_>>()?))
        }
        _ => Some(Expected::Plain(node.to_json())),
    }
}

/// Checks a literal subject of a claim.
pub(super) fn literal(checker: &mut Checker<'_>, kind: &KindOfEvidence, node: &Node, subject: &str) {
    if subject.trim().is_empty() {
        checker.wrong(node, format!("`{}` is empty", kind.key), "write the subject of the claim");
        return;
    }
    if let Some((why, help)) = kind.about.wrong(&kind.about.recorded(subject)) {
        checker.wrong(node, format!("`{}`: {why}", kind.key), help);
        return;
    }
    match kind.key {
        _ if kind.about == About::Path => {
            if let Err(why) = check_pattern(subject) {
                checker.wrong(node, format!("`{}`: {why}", kind.key), "use a pattern with fewer folders");
            }
            inside(checker, node, subject);
        }
        "process" if subject.contains('/') => {
            let help = "write the name of the program without its folder, or a process id";
            checker.wrong(node, format!("`{subject}` is a path, not a process name"), help);
        }
        "exec" if subject.starts_with('-') => {
            checker.wrong(node, format!("`{subject}` is not a program"), "write a program name, or a path");
        }
        _ => {}
    }
}

/// Checks that a path is below the folder of the workflow file, or below an allowed folder.
fn inside(checker: &mut Checker<'_>, node: &Node, path: &str) {
    let is_allowed = |path: &Path| checker.allow_paths.iter().any(|folder| path.starts_with(folder));
    let path = Path::new(path);
    let why = if path.components().any(|part| part == Component::ParentDir) {
        "leaves the workflow folder through `..`"
    } else if path.is_absolute() && !is_allowed(path) {
        "is absolute, and not beneath a folder of `allow_paths`"
    } else {
        return;
    };
    let help = "write a path relative to the workflow folder; or add the folder to `allow_paths` beside \
                `steps`, and write an absolute path";
    checker.wrong(node, format!("`{}` {why}", path.display()), help);
}

/// Checks the paths and times of `newer_than`.
fn older(checker: &mut Checker<'_>, name: &str, node: &Node) {
    for (text, node) in checker.texts(node, name) {
        if text.parse::<jiff::Timestamp>().is_err() {
            inside(checker, node, &text);
        }
    }
}

/// Checks that a claim has a complete and consistent set of expectations.
fn complete(checker: &mut Checker<'_>, kind: &KindOfEvidence, node: &Node, found: &[(String, Expected)]) {
    let has = |name: &str| found.iter().any(|(known, _)| known == name);
    let wrong = match kind.key {
        "json" if !has("path") || !has("value") => {
            Some(("`json` evidence needs `path` and `value`", "add `path: $.count` and `value: 3`"))
        }
        "sqlite" | "postgres" if has("table") == has("query") => {
            Some(("the rows need a `table` or a `query`", "add one of the two"))
        }
        "sqlite" | "postgres" if has("query") != has("equals") => Some((
            "a `query` needs `equals`, and a `table` does not support it",
            "write `query:` and `equals:`",
        )),
        "sqlite" | "postgres" if has("query") && found.len() > 2 => {
            Some(("`query` excludes other keys", "keep only `query:` and `equals:`"))
        }
        "file" if has("absent") && found.len() > 1 => {
            Some(("`absent: true` excludes other expectations", "keep only `absent: true`"))
        }
        "process" if has("pid_file") && has("count") => {
            Some(("a `pid_file` names a single process", "remove `count`"))
        }
        _ => incomplete(kind, found),
    };
    if let Some((message, help)) = wrong {
        checker.wrong(node, message, help);
    }
}

/// Checks that every text in a value is plain or an unambiguous comparison.
fn unclear_signs(checker: &mut Checker<'_>, name: &str, node: &Node, plain: &Value) {
    match plain {
        Value::String(text) => unclear_sign(checker, name, node, text),
        Value::Array(items) => items.iter().for_each(|item| unclear_signs(checker, name, node, item)),
        Value::Object(map) => map.values().for_each(|value| unclear_signs(checker, name, node, value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Checks that a blank follows an operator: a plain text may also begin with an operator character.
fn unclear_sign(checker: &mut Checker<'_>, name: &str, node: &Node, text: &str) {
    let Some(sign) = sign_of(text) else { return };
    let rest = &text[sign.len()..];
    if !rest.starts_with(char::is_whitespace) {
        let message = format!("`{name}`: missing space after `{sign}` in `{text}`");
        let help = format!("write `\"{sign} {rest}\"`; for the literal text, `\"= {text}\"`");
        checker.wrong(node, message, &help);
    }
}

/// Returns whether a value can be an expected exit code.
fn is_code(expect: &Value) -> bool {
    match expect {
        Value::Number(number) => number.as_u64().is_some_and(|code| code <= 255),
        Value::String(text) => text.starts_with(['<', '>', '=', '!', '~']) || text.parse::<u8>().is_ok(),
        Value::Array(items) => !items.is_empty() && items.iter().all(is_code),
        Value::Null | Value::Bool(_) | Value::Object(_) => false,
    }
}

fn holds_null(expect: &Value) -> bool {
    match expect {
        Value::Array(items) => items.iter().any(holds_null),
        other => other.is_null(),
    }
}

/// Checks a literal expectation.
fn check(checker: &mut Checker<'_>, (name, wanted): (&str, Wanted), node: &Node, plain: &Value) {
    let text = |checker: &mut Checker<'_>| match plain.as_str() {
        Some("") => checker.wrong(node, format!("`{name}` is empty"), "write text in quotes"),
        Some(_) => {}
        None => checker.mismatch(node, name, "text", "write text in quotes"),
    };
    match wanted {
        Wanted::Code if !is_code(plain) => {
            let help = "write `exit: 0`, `exit: [0, 1]` or `exit: \"> 0\"`";
            checker.wrong(node, format!("`{name}` must be an exit code, 0 to 255"), help);
        }
        Wanted::Count => {
            let help = "write `3`, `\"> 0\"`, or a list of accepted values";
            refuse(checker, (name, node), check_count(plain), help);
        }
        Wanted::Status => {
            let help = "write 100 to 599, `\"< 400\"`, or a list of accepted values";
            refuse(checker, (name, node), check_status(plain), help);
        }
        Wanted::Compared if holds_null(plain) => {
            checker.wrong(node, format!("`{name}` is never null"), "write `''` for no text");
        }
        Wanted::Mode => {
            refuse(checker, (name, node), check_mode(plain), "write the octal digits in quotes: `\"0644\"`");
        }
        Wanted::File => match plain.as_str() {
            Some(path) if !path.is_empty() => inside(checker, node, path),
            _ => text(checker),
        },
        Wanted::Older => older(checker, name, node),
        Wanted::User if plain.is_u64() => {}
        Wanted::User => text(checker),
        Wanted::Map if !plain.is_object() => {
            checker.mismatch(node, name, "a map", &format!("write `{name}: {{ min: 3 }}`"));
        }
        Wanted::Map => {}
        Wanted::Variables => {
            for (name, node) in checker.texts(node, name) {
                settings::variable_name(checker, node, &name);
            }
        }
        Wanted::Fit | Wanted::Code | Wanted::Compared => {
            let help = "write a value, `\"> 5\"`, `\"~ regex\"`, or a list of accepted values";
            refuse(checker, (name, node), waypost_evidence::check(plain), help);
        }
        Wanted::Text => text(checker),
        Wanted::Query => {
            text(checker);
            if let Some(Err(why)) = plain.as_str().filter(|text| !text.is_empty()).map(check_query) {
                checker.wrong(node, format!("`{name}`: {why}"), "evidence checks must not modify data");
            }
        }
        Wanted::Texts => match plain {
            Value::Array(items)
                if items.iter().all(|item| item.as_str().is_some_and(|text| !text.is_empty())) => {}
            _ => text(checker),
        },
        Wanted::Pattern if plain == "" => {
            checker.wrong(
                node,
                format!("`{name}` is empty, and matches any text"),
                "write the expected text",
            );
        }
        Wanted::Pattern => match plain.as_str().map(regex_lite::Regex::new) {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                let message = format!("`{name}` is not a regular expression: {error}");
                checker.wrong(node, message, "use single quotes: YAML then keeps `\\\\`");
            }
            None => {
                checker.mismatch(node, name, "a regular expression", "write the pattern in single quotes")
            }
        },
        Wanted::Path => {
            if let Err(why) = check_path(plain.as_str().unwrap_or_default()) {
                checker.wrong(node, why, "a name here cannot contain dots or brackets");
            }
        }
        Wanted::Truth => drop(checker.truth(node, name)),
        Wanted::True => {
            if checker.truth(node, name) == Some(false) {
                checker.wrong(node, format!("`{name}: false` has no effect"), "remove it");
            }
        }
        Wanted::Columns => columns(checker, name, node, plain),
        Wanted::Headers | Wanted::Paths => fits_by_name(checker, (name, wanted), node, plain),
        Wanted::Word(words) => drop(checker.word(node, name, words)),
        Wanted::Size => {
            let help = "write `12`, `\"> 0\"` or `\">= 2 KiB\"`";
            refuse(checker, (name, node), check_size(plain), help);
        }
        Wanted::Digest => {
            let is_digest = |text: &str| {
                // Digest of a folder or a pattern.
                let text = text.strip_prefix("tree:").unwrap_or(text);
                text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
            };
            if !plain.as_str().is_some_and(is_digest) {
                let help = "write the 64 hexadecimal digits in quotes, as `sha256sum` prints them";
                checker.wrong(node, format!("`{name}` must be a SHA-256, not {}", node.described()), help);
            }
        }
    }
}

/// Reports a failed check of an expectation.
fn refuse<E: Display>(
    checker: &mut Checker<'_>,
    (name, node): (&str, &Node),
    checked: Result<(), E>,
    help: &str,
) {
    if let Err(error) = checked {
        checker.wrong(node, format!("`{name}`: {error}"), help);
    }
}

/// Checks columns with values to find or compare.
fn columns(checker: &mut Checker<'_>, name: &str, node: &Node, plain: &Value) {
    let help = format!("write `{name}: {{ id: 7 }}`");
    if plain.as_object().is_some_and(|map| map.is_empty()) {
        checker.wrong(node, format!("`{name}` has no column"), &help);
        return;
    }
    let Some(map) = plain.as_object().filter(|map| !map.values().any(Value::is_object)) else {
        checker.mismatch(node, name, "a map of columns and values", &help);
        return;
    };
    for (column, value) in map {
        let wrong = waypost_evidence::check(value).err();
        if let Some(why) = wrong {
            checker.wrong(node, format!("`{name}`: column `{column}`: {why}"), &help);
        }
    }
}

/// Checks a map of comparisons by name: headers, or paths in JSON.
fn fits_by_name(checker: &mut Checker<'_>, (name, wanted): (&str, Wanted), node: &Node, plain: &Value) {
    let example = if matches!(wanted, Wanted::Paths) { "$.status: ok" } else { "content-type: \"~ json\"" };
    let help = format!("write `{name}: {{ {example} }}`");
    let Some(map) = plain.as_object() else {
        checker.mismatch(node, name, "a map of names and values", &help);
        return;
    };
    if map.is_empty() {
        checker.wrong(node, format!("`{name}` has no value"), &help);
    }
    for (key, expect) in map {
        let key_is_wrong = match wanted {
            Wanted::Paths => check_path(key).err(),
            _ => check_header(key).err(),
        };
        let wrong =
            key_is_wrong.or_else(|| waypost_evidence::check(expect).err().map(|error| error.to_string()));
        if let Some(why) = wrong {
            checker.wrong(node, format!("`{name}`: {why}"), &help);
        }
    }
}
