//! `cargo xtask tidy`: checks the mechanical rules of the repository, so that reviews need not.
//!
//! Each check is a pure function over the [`Tree`] of text files. Rules that clippy or rustdoc can check are
//! left to them.

mod figures;
mod limits;
mod links;
mod manifests;
mod pure_core;
mod report;
mod rooms;
mod rust;
mod snapshots;
mod source;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod words;

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::output;
use tree::Tree;

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    path: String,
    /// 1-based; 0 for the whole file.
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// A rule: returns its violations in the files.
type Check = fn(&Tree) -> Vec<Finding>;

/// All rules.
const CHECKS: &[Check] = &[
    text::lengths,
    text::machine_paths,
    text::unnumbered_work,
    text::root_entries,
    rust::banned_names,
    rust::bare_allows,
    rust::unexplained_ignores,
    rust::long_test_names,
    snapshots::unreferenced,
    manifests::workspace_lints,
    manifests::workspace_dependencies,
    manifests::reasons,
    manifests::oldest_rust,
    links::markdown_links,
    links::named_pages,
    links::site,
    links::decision_pages,
    figures::above_limits,
    pure_core::check,
];

/// Checks the files below `root` and prints each finding as `path:line: message`.
///
/// # Errors
/// If a rule is broken, or the files cannot be read.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let tree = Tree::read(root).with_context(|| format!("cannot read {}", root.display()))?;
    let findings = findings(&tree);
    for finding in &findings {
        output::say(finding);
    }
    match findings.len() {
        0 => output::note(format!("{} files are tidy", tree.files().len())),
        count => bail!("{count} places break the rules of the repository"),
    }
    Ok(())
}

/// Prints the figures of each crate beside their limits, and the `worst` places of each kind.
///
/// # Errors
/// If the files cannot be read.
pub(crate) fn report(root: &Path, worst: usize) -> anyhow::Result<()> {
    let tree = Tree::read(root).with_context(|| format!("cannot read {}", root.display()))?;
    output::say(report::of(&tree, worst));
    Ok(())
}

fn findings(tree: &Tree) -> Vec<Finding> {
    CHECKS.iter().flat_map(|check| check(tree)).collect()
}
