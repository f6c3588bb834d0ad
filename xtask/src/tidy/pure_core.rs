//! The rule for the core of re-execution: pure functions in few files.

use super::Finding;
use super::tree::Tree;

/// The files that decide what runs again. They read no store and await nothing.
const FILES: &[&str] = &[
    "crates/waypost/src/engine/walk/trace.rs",
    "crates/waypost/src/engine/walk/reuse.rs",
    "crates/waypost/src/engine/walk/invalidate.rs",
    "crates/waypost/src/engine/walk/scheduler.rs",
];

/// Most lines of [`FILES`] together, so that a reader holds the core in mind.
const LINES_MAX: usize = 1_200;

/// Words of code that a pure function does not have.
const IMPURE: &[&str] = &["async", "await", "store", "Store", "StoreExt"];

/// Finds impure code in the core files, and their sum of lines if it is above the limit.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut lines = 0;
    for file in FILES.iter().filter_map(|path| tree.file(path)) {
        lines += file.text.lines().count();
        for (number, line) in file.lines() {
            let code = line.split("//").next().unwrap_or(line).replace("store::", "");
            let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            if let Some(word) = words.find(|word| IMPURE.contains(word)) {
                let message = format!("`{word}` in the pure core of the engine");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    if lines > LINES_MAX {
        let message = format!("the core files have {lines} lines together, the limit is {LINES_MAX}");
        findings.push(Finding::new("crates/waypost/src/engine", 0, message));
    }
    findings
}
