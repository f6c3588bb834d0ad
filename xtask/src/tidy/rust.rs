//! Rules for Rust sources beyond clippy.

use super::Finding;
use super::tree::Tree;

/// Words without meaning in a type name.
const BANNED_WORDS: &[&str] = &["Manager", "Handler", "Helper", "Helpers", "Util", "Utils", "Data", "Info"];

/// Longest name of a test, in characters.
const TEST_NAME_MAX: usize = 60;

/// Keywords that declare a type or trait.
const DECLARATIONS: &[&str] = &["struct", "enum", "trait", "type", "union"];

/// Type names avoid banned words such as `Manager`, and modules are not called `utils`.
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

/// A lint is silenced by `expect`, which reports when it is no longer needed.
///
/// An `allow` in a macro may be needed in another crate; it is written over several lines, with its reason.
pub(super) fn bare_allows(tree: &Tree) -> Vec<Finding> {
    starting(tree, &["#[allow(", "#![allow("], |line| {
        let over_several_lines = line.trim_end() == "#[allow(";
        let message = "silence a lint by `#[expect(lint, reason = \"...\")]`";
        (!over_several_lines).then(|| message.to_owned())
    })
}

/// An ignored test states the required program.
pub(super) fn unexplained_ignores(tree: &Tree) -> Vec<Finding> {
    starting(tree, &["#[ignore"], |line| {
        let explained = line.starts_with("#[ignore = \"needs ");
        (!explained).then(|| "say what the test needs: `#[ignore = \"needs ...\"]`".to_owned())
    })
}

/// The name of a test is a claim of at most [`TEST_NAME_MAX`] characters.
pub(super) fn long_test_names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with_extension(&["rs"]) {
        let mut is_test = false;
        for (number, line) in file.lines() {
            let line = line.trim_start();
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
            let Some((name, _)) = function.and_then(|rest| rest.split_once('(')) else { continue };
            if is_test && name.len() > TEST_NAME_MAX {
                let message =
                    format!("the name of a test has {} characters, the limit is {TEST_NAME_MAX}", name.len());
                findings.push(Finding::new(&file.path, number, message));
            }
            is_test = false;
        }
    }
    findings
}

/// Returns findings in Rust lines that start with any of `starts`.
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

/// Returns the name of the type or trait that a line declares.
fn declared(line: &str) -> Option<&str> {
    let mut line = line.trim_start();
    if let Some(rest) = line.strip_prefix("pub") {
        line = match rest.strip_prefix('(') {
            Some(rest) => rest.split_once(')')?.1.trim_start(),
            None => rest.strip_prefix(' ')?,
        };
    }
    line = line.strip_prefix("unsafe ").unwrap_or(line);
    let rest = DECLARATIONS.iter().find_map(|word| line.strip_prefix(word)?.strip_prefix(' '))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end])
}

/// Splits a camel-case name into words: `RunId` is `Run`, `Id`.
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
