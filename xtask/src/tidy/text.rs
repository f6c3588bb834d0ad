//! Rules for any text: file length and forbidden content.

use super::Finding;
use super::tree::{File, Tree};

/// Most lines of a file: a longer file covers two topics.
const LINES_MAX: usize = 1_000;

/// Most lines of the architecture page, so that newcomers read it whole.
const ARCHITECTURE_LINES_MAX: usize = 150;

/// Folders of a person or build machine, split so that this file does not contain them.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/"), concat!("/wo", "rk/")];

/// The user folder that examples may name.
const INVENTED_USER: &str = "me/";

/// Words for later work, split likewise.
const LATER_WORDS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Sources and pages stay short; tests may be longer.
pub(super) fn lengths(tree: &Tree) -> Vec<Finding> {
    let limit = |file: &File| match file.path.as_str() {
        "ARCHITECTURE.md" => Some(ARCHITECTURE_LINES_MAX),
        _ if file.is_test() => None,
        _ => matches!(file.extension(), "rs" | "sh" | "awk" | "py" | "sql" | "md").then_some(LINES_MAX),
    };
    let mut findings = Vec::new();
    for file in tree.files() {
        let count = file.text.lines().count();
        if let Some(limit) = limit(file)
            && count > limit
        {
            findings.push(Finding::new(
                &file.path,
                0,
                format!("{count} lines, the limit is {limit}: split it by topic"),
            ));
        }
    }
    findings
}

/// Files do not name folders of a single machine.
pub(super) fn machine_paths(tree: &Tree) -> Vec<Finding> {
    each_line(tree, |line| {
        let folder = MACHINE_FOLDERS.iter().find(|folder| {
            line.match_indices(*folder).any(|(at, _)| {
                let invented = line[at + folder.len()..].starts_with(INVENTED_USER);
                !line[..at].ends_with(is_path_character) && !invented
            })
        })?;
        Some(format!("names the folder `{folder}` of one machine"))
    })
}

/// The files and folders of the root.
const ROOT_ENTRIES: [&str; 21] = [
    ".cargo",
    ".ci",
    ".github",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "SECURITY.md",
    "clippy.toml",
    "crates",
    "docs",
    "examples",
    "fuzz",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "xtask",
];

/// Mentions of later work have an issue number.
pub(super) fn unnumbered_work(tree: &Tree) -> Vec<Finding> {
    each_line(tree, |line| {
        let word = LATER_WORDS.iter().find(|word| {
            line.match_indices(*word).any(|(at, _)| {
                let rest = &line[at + word.len()..];
                let whole = !line[..at].ends_with(is_word_character) && !rest.starts_with(is_word_character);
                whole && !is_numbered(rest)
            })
        })?;
        Some(format!("`{word}` without the number of an issue, as in `{word}(#12)`"))
    })
}

/// The root of the repository has only known files and folders: the traces of a trial run do not belong there.
pub(super) fn root_entries(tree: &Tree) -> Vec<Finding> {
    let is_repository = tree.file("Cargo.lock").is_some();
    let strays = tree.files().iter().filter(|file| {
        let entry = file.path.split('/').next().unwrap_or(&file.path);
        is_repository && !ROOT_ENTRIES.contains(&entry)
    });
    strays.map(|file| Finding::new(&file.path, 0, "is no known entry of the root")).collect()
}

fn each_line(tree: &Tree, finding: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files() {
        for (number, line) in file.lines() {
            if let Some(message) = finding(line) {
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// Returns whether the text continues with `(#12)`.
fn is_numbered(rest: &str) -> bool {
    let Some((number, _)) = rest.strip_prefix("(#").and_then(|rest| rest.split_once(')')) else {
        return false;
    };
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_word_character(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_path_character(c: char) -> bool {
    is_word_character(c) || matches!(c, '.' | '-' | '/' | '~' | '}')
}
