//! What may be expected in a claim of evidence, as far as that is known before anything runs.

use serde_json::Value;
use waypost::evidence::check_size;
use waypost_evidence::{check_header, check_path, check_query};

use super::checker::Checker;
use super::evidence::{Expected, KindOfEvidence};
use super::node::Node;
use super::remote::incomplete;

/// What an expectation may be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    /// One of these.
    Word(&'static [&'static str]),
    /// A size, or a comparison with one.
    Size,
    /// A SHA-256 in hex.
    Digest,
    /// What a value can be compared with.
    Fit,
    /// A text.
    Text,
    /// A text or a list of them.
    Texts,
    /// A regular expression.
    Pattern,
    /// The way to a value in JSON.
    Path,
    /// `true` or `false`.
    Truth,
    /// `true`: it says what would be without it.
    True,
    /// A query of PostgreSQL that only reads.
    Query,
    /// Columns and their values.
    Columns,
    /// Names of headers, and what they are compared with.
    Headers,
    /// Ways to values in JSON, and what those are compared with.
    Paths,
}

/// Sees that a claim says enough for something to be compared.
pub(super) fn complete(
    checker: &mut Checker<'_>,
    kind: &KindOfEvidence,
    node: &Node,
    found: &[(String, Expected)],
) {
    let has = |name: &str| found.iter().any(|(known, _)| known == name);
    let wrong = match kind.key {
        "json" if !has("path") || !has("value") => Some((
            "`json` evidence says where in the file which value stands",
            "add `path: $.count` and `value: 3`",
        )),
        "sqlite" | "postgres" if has("table") == has("query") => {
            Some(("a row is told by a `table`, or by a `query`", "write one of the two"))
        }
        "sqlite" | "postgres" if has("query") != has("equals") => {
            Some(("a `query` says what it `equals`, and a `table` does not", "write `query:` and `equals:`"))
        }
        "sqlite" | "postgres" if has("query") && found.len() > 2 => {
            Some(("a `query` says all by itself", "keep only `query:` and `equals:`"))
        }
        "file" if has("absent") && found.len() > 1 => {
            Some(("of a file that is absent nothing else can be expected", "keep only `absent: true`"))
        }
        _ => incomplete(kind, found),
    };
    if let Some((message, help)) = wrong {
        checker.wrong(node, message, help);
    }
}

/// Sees whether a plain value can be what is expected.
pub(super) fn check(checker: &mut Checker<'_>, (name, wanted): (&str, Wanted), node: &Node, plain: &Value) {
    let text = |checker: &mut Checker<'_>| {
        if plain.as_str().is_none_or(|text| text.is_empty()) {
            checker.mismatch(node, name, "text", "write a text, in quotes");
        }
    };
    match wanted {
        Wanted::Fit => {
            if let Err(error) = waypost_evidence::check(plain) {
                let help = "write a value, `\"> 5\"`, `\"~ regex\"`, or a list of which one fits";
                checker.wrong(node, format!("`{name}`: {error}"), help);
            }
        }
        Wanted::Text => text(checker),
        Wanted::Query => {
            text(checker);
            if let Some(Err(why)) = plain.as_str().filter(|text| !text.is_empty()).map(check_query) {
                checker.wrong(node, format!("`{name}`: {why}"), "a check changes nothing");
            }
        }
        Wanted::Texts => match plain {
            Value::Array(items)
                if items.iter().all(|item| item.as_str().is_some_and(|text| !text.is_empty())) => {}
            _ => text(checker),
        },
        Wanted::Pattern => match plain.as_str().map(regex_lite::Regex::new) {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                let message = format!("`{name}` is not a regular expression: {error}");
                checker.wrong(node, message, "in single quotes YAML leaves `\\` alone");
            }
            None => checker.mismatch(node, name, "a regular expression", "write it in single quotes"),
        },
        Wanted::Path => {
            if let Err(why) = check_path(plain.as_str().unwrap_or_default()) {
                checker.wrong(node, why, "a name may have no dot and no bracket");
            }
        }
        Wanted::Truth => drop(checker.truth(node, name)),
        Wanted::True => {
            if checker.truth(node, name) == Some(false) {
                checker.wrong(node, format!("`{name}: false` says nothing"), "remove it");
            }
        }
        Wanted::Columns => columns(checker, name, node, plain),
        Wanted::Headers | Wanted::Paths => fits_by_name(checker, (name, wanted), node, plain),
        Wanted::Word(words) => drop(checker.word(node, name, words)),
        Wanted::Size => {
            if let Err(error) = check_size(plain) {
                checker.wrong(node, format!("`{name}`: {error}"), "write `12`, `\"> 0\"` or `\">= 2 KiB\"`");
            }
        }
        Wanted::Digest => {
            let is_digest =
                |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !plain.as_str().is_some_and(is_digest) {
                let help = "write the 64 hexadecimal digits in quotes, as `sha256sum` prints them";
                checker.wrong(node, format!("`{name}` must be a SHA-256, not {}", node.described()), help);
            }
        }
    }
}

/// Sees that rows can be found by columns, or compared with what is expected in them.
fn columns(checker: &mut Checker<'_>, name: &str, node: &Node, plain: &Value) {
    let help = format!("write `{name}: {{ id: 7 }}`");
    let Some(map) = plain.as_object().filter(|map| !map.is_empty() && !map.values().any(Value::is_object))
    else {
        checker.mismatch(node, name, "a map of columns and values", &help);
        return;
    };
    for (column, value) in map {
        let wrong = match name {
            "where" => value.is_array().then(|| "it is compared with one value".to_owned()),
            _ => waypost_evidence::check(value).err().map(|error| error.to_string()),
        };
        if let Some(why) = wrong {
            checker.wrong(node, format!("`{name}`: column `{column}`: {why}"), &help);
        }
    }
}

/// Sees that something can be compared with every value of a map, and that its keys name places in an answer.
fn fits_by_name(checker: &mut Checker<'_>, (name, wanted): (&str, Wanted), node: &Node, plain: &Value) {
    let example = if matches!(wanted, Wanted::Paths) { "$.status: ok" } else { "content-type: \"~ json\"" };
    let Some(map) = plain.as_object().filter(|map| !map.is_empty()) else {
        checker.mismatch(
            node,
            name,
            "a map of names and values",
            &format!("write `{name}: {{ {example} }}`"),
        );
        return;
    };
    for (key, expect) in map {
        let key_is_wrong = match wanted {
            Wanted::Paths => check_path(key).err(),
            _ => check_header(key).err(),
        };
        let wrong =
            key_is_wrong.or_else(|| waypost_evidence::check(expect).err().map(|error| error.to_string()));
        if let Some(why) = wrong {
            checker.wrong(node, format!("`{name}`: {why}"), &format!("write `{name}: {{ {example} }}`"));
        }
    }
}
