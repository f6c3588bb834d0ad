//! Rules for Rust sources that clippy does not know.

use super::Finding;
use super::tree::Tree;

/// Words that say nothing about what a type is.
const BANNED_WORDS: &[&str] = &["Manager", "Handler", "Helper", "Helpers", "Util", "Utils", "Data", "Info"];

/// What declares a type or a trait.
const DECLARATIONS: &[&str] = &["struct ", "enum ", "trait ", "type ", "union "];

/// A type is named after what it is: no `FooManager`, and no module `utils`.
pub(super) fn banned_names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with_extension(&["rs"]) {
        for (number, line) in file.lines() {
            let Some(name) = declared(line) else { continue };
            if let Some(word) = camel_words(name).find(|word| BANNED_WORDS.contains(word)) {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    format!("`{name}`: `{word}` does not say what it is"),
                ));
            }
        }
        let stem = file.path.rsplit('/').find(|part| *part != "mod.rs").unwrap_or("").trim_end_matches(".rs");
        if BANNED_WORDS.iter().any(|word| word.eq_ignore_ascii_case(stem)) {
            findings.push(Finding::new(&file.path, 0, format!("a module `{stem}` has no topic")));
        }
    }
    findings
}

/// A lint is silenced by `expect`, which says when it is no longer needed.
///
/// What a macro leaves in another crate may or may not be needed there: that one is written over several lines, with
/// its reason.
pub(super) fn bare_allows(tree: &Tree) -> Vec<Finding> {
    starting(tree, &["#[allow(", "#![allow("], |line| {
        let over_several_lines = line.trim_end() == "#[allow(";
        let message = "silence a lint by `#[expect(lint, reason = \"...\")]`";
        (!over_several_lines).then(|| message.to_owned())
    })
}

/// A test is ignored only because it needs something of the machine, and says what.
pub(super) fn unexplained_ignores(tree: &Tree) -> Vec<Finding> {
    starting(tree, &["#[ignore"], |line| {
        let explained = line.starts_with("#[ignore = \"needs ");
        (!explained).then(|| "say what the test needs: `#[ignore = \"needs ...\"]`".to_owned())
    })
}

/// Findings in lines of Rust that start with one of `starts`.
fn starting(tree: &Tree, starts: &[&str], finding: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with_extension(&["rs"]) {
        for (number, line) in file.lines() {
            let line = line.trim_start();
            if starts.iter().any(|start| line.starts_with(start))
                && let Some(message) = finding(line)
            {
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// The name of the type or trait that the line declares.
fn declared(line: &str) -> Option<&str> {
    let mut line = line.trim_start();
    if let Some(rest) = line.strip_prefix("pub") {
        line = match rest.strip_prefix('(') {
            Some(rest) => rest.split_once(')')?.1.trim_start(),
            None => rest.strip_prefix(' ')?,
        };
    }
    line = line.strip_prefix("unsafe ").unwrap_or(line);
    let rest = DECLARATIONS.iter().find_map(|word| line.strip_prefix(word))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end])
}

/// The words of a name in camel case: `RunId` is `Run`, `Id`.
fn camel_words(name: &str) -> impl Iterator<Item = &str> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end =
            rest[first.len_utf8()..].find(char::is_uppercase).map_or(rest.len(), |at| at + first.len_utf8());
        let (word, left) = rest.split_at(end);
        rest = left;
        Some(word)
    })
}
