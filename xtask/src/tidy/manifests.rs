//! Rules for `Cargo.toml`: lints, versions and reasons are only in the workspace manifest.

use super::Finding;
use super::tree::{File, Tree};

/// Every crate inherits the lints of the workspace.
pub(super) fn workspace_lints(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in crates(tree) {
        if !entries(file).any(|(table, _, entry)| table == "[lints]" && entry == "workspace = true") {
            findings.push(Finding::new(&file.path, 0, "lacks `[lints]` with `workspace = true`"));
        }
    }
    findings
}

/// Crates inherit dependency versions from the workspace.
pub(super) fn workspace_dependencies(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in crates(tree) {
        for (table, number, entry) in entries(file) {
            let depends = table.ends_with("dependencies]") && table != "[workspace.dependencies]";
            if depends && !entry.contains(".workspace = true") && !entry.contains("workspace = true") {
                let message = "take the dependency from the workspace: `name.workspace = true`";
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// Every dependency of the workspace has a comment with its reason.
pub(super) fn reasons(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(root) = tree.file("Cargo.toml") else { return findings };
    for (table, number, entry) in entries(root) {
        let ours = entry.contains("path = \"crates/");
        if table == "[workspace.dependencies]" && !ours && !entry.contains(" # ") {
            findings.push(Finding::new(&root.path, number, "say why in a comment at the end of the line"));
        }
    }
    findings
}

/// Checks that each page names the oldest Rust of the workspace manifest, the version of the tests.
pub(super) fn oldest_rust(tree: &Tree) -> Vec<Finding> {
    const WORD: &str = "Rust 1.";
    let Some(root) = tree.file("Cargo.toml") else { return Vec::new() };
    let version =
        entries(root).find_map(|(_, _, entry)| entry.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let Some(minor) = version.and_then(|version| version.strip_prefix("1.")) else { return Vec::new() };
    let mut findings = Vec::new();
    for page in tree.files().iter().filter(|file| file.path.ends_with(".md")) {
        for (number, line) in page.lines() {
            let named = line.split_once(WORD).and_then(|(_, rest)| rest.split([' ', ',', '.']).next());
            if named.is_some_and(|named| named != minor) {
                let message = format!("names another Rust than `rust-version`: {WORD}{minor}");
                findings.push(Finding::new(&page.path, number, message));
            }
        }
    }
    findings
}

/// Returns the manifests of crates, without the workspace manifest.
fn crates(tree: &Tree) -> impl Iterator<Item = &File> {
    tree.files().iter().filter(|file| file.path.ends_with("/Cargo.toml"))
}

/// Returns the lines `key = value` of a manifest, each with its table and line number.
fn entries(file: &File) -> impl Iterator<Item = (&str, usize, &str)> {
    let mut table = "";
    file.lines().filter_map(move |(number, line)| {
        let line = line.trim();
        if line.starts_with('[') && !line.contains('=') {
            table = line;
            return None;
        }
        (line.contains('=') && !line.starts_with('#')).then_some((table, number, line))
    })
}
