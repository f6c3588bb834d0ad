//! Translates errors of the YAML parser for authors of workflow files.

use serde_saphyr::Error;
use serde_saphyr::budget::BudgetBreach;

use super::node::span_of;
use super::problem::{Problem, SourceText};

/// Help for values nested too deep.
const FLATTER: &str = "reduce the nesting of lists and maps";

/// Turns a parser error into a problem with its place, and a help text if the usual cause is known.
pub(super) fn explain(source: &SourceText, error: &Error) -> Problem {
    let error = error.without_snippet();
    let mut span = error.location().map_or(0..0, |location| span_of(source, &location));
    let error = match error {
        Error::AliasError { error, .. } => error,
        other => other,
    };
    let line = line_text(source, span.start);
    let before =
        &source.text[source.text.len().min(span.start) - column_bytes(source, span.start)..span.start];
    let (message, help) = match error {
        Error::MultipleDocuments { .. } => {
            if let Some(marker) = source.text[..span.start].rfind("\n---") {
                span = marker + 1..marker + 4;
            }
            ("the file holds more than one YAML document".to_owned(), Some("remove the `---`"))
        }
        Error::MergeKeyNotAllowed { .. } => (
            "merge keys (`<<`) are not supported".to_owned(),
            Some("write the keys out, or put shared settings in `defaults`"),
        ),
        Error::UnknownAnchor { .. } => (
            "this alias has no anchor".to_owned(),
            Some("`*` begins an alias: quote text that begins with `*`"),
        ),
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            ("alias inside the value of its own anchor".to_owned(), Some("write the value out"))
        }
        Error::AliasReplayLimitExceeded { .. } | Error::AliasExpansionLimitExceeded { .. } => {
            ("aliases expand too often".to_owned(), Some("write the values out"))
        }
        Error::Budget { breach: BudgetBreach::Depth { depth }, .. } => {
            (format!("lists and maps are nested {depth} deep, over the limit"), Some(FLATTER))
        }
        Error::Budget { breach, .. } => {
            let help = "move large data into separate files, and reference their paths";
            (format!("the file is beyond a limit: {}", words(&format!("{breach:?}"))), Some(help))
        }
        Error::NonFiniteFloat { value, .. } => {
            (format!("cannot keep the number `{value}`"), Some("quote the value if it is text"))
        }
        other if other.to_string().contains("recursion limit") => {
            ("lists and maps are nested too deep".to_owned(), Some(FLATTER))
        }
        other => {
            let message = plain_message(other);
            if message.contains("tab")
                && let Some(tab) = tab_that_indents(source, span.start)
            {
                return source.problem(&(tab..tab + 1), "a tab indents this line").help("indent with spaces");
            }
            let help = usual_cause(&message, line, before);
            if message.contains("tag")
                && let Some(mark) = before.rfind('!')
            {
                span = span.start - before.len() + mark..span.start;
            }
            (message, help)
        }
    };
    let problem = source.problem(&span, message);
    match help {
        Some(help) => problem.help(help),
        None => problem,
    }
}

/// Returns the parser's message without the place at its end.
fn plain_message(error: &Error) -> String {
    let message = error.to_string();
    let end = message.rfind(" at line ").unwrap_or(message.len());
    message[..end]
        .trim()
        .replace("while parsing a ", "in a ")
        .replace(", did not find expected", ": expected")
}

/// Returns `Depth { depth: 65 }` as `depth: 65`.
fn words(debug: &str) -> String {
    debug.split_once('{').map_or(debug, |(_, fields)| fields).trim_matches([' ', '}']).replace('_', " ")
}

fn line_text(source: &SourceText, at: usize) -> &str {
    let start = source.text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let end = source.text[at..].find('\n').map_or(source.text.len(), |newline| at + newline);
    &source.text[start..end]
}

/// Returns the first tab in an indentation, from the line of `at` on. The parser names the value before the
/// tab.
fn tab_that_indents(source: &SourceText, at: usize) -> Option<usize> {
    let mut start = source.text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    for line in source.text[start..].split_inclusive('\n') {
        let indent = line.len() - line.trim_start_matches([' ', '\t', '-']).len();
        if let Some(tab) = line[..indent].find('\t') {
            return Some(start + tab);
        }
        start += line.len();
    }
    None
}

fn column_bytes(source: &SourceText, at: usize) -> usize {
    at - source.text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

/// Returns a help text for the usual cause of the parser's `message`.
fn usual_cause(message: &str, line: &str, before: &str) -> Option<&'static str> {
    if message.contains("tab") || before.contains('\t') {
        return Some("indent with spaces");
    }
    if message.contains("tag") {
        return Some("`!` begins a YAML tag: quote the whole value");
    }
    if line.contains("${{") {
        return Some("quote the value: `{`, `}` and `: ` are YAML syntax");
    }
    if message.contains("mapping values are not allowed") {
        return Some("quote a value with `: `, and check the indentation");
    }
    if message.contains("simple key") {
        return Some("missing `:`, or missing space after `-`");
    }
    if message.contains("unexpected character") {
        return Some("quote the value: it begins with a reserved character");
    }
    if message.contains("indentation in multiline quoted") || message.contains("end of stream") {
        return Some("unclosed quote");
    }
    if message.contains("block collection") || message.contains("block mapping") {
        return Some("the indentation matches no line above");
    }
    if message.contains("escape") {
        return Some("in double quotes `\\\\` begins an escape: use single quotes, or `\\\\\\\\`");
    }
    None
}
