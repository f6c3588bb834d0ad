//! Each snapshot file belongs to a test.

use super::Finding;
use super::tree::{File, Tree};

/// The extension of a snapshot file.
const EXTENSION: &str = "snap";

/// Finds the snapshots that no test of their crate names: files left after a renamed or deleted test.
pub(super) fn unreferenced(tree: &Tree) -> Vec<Finding> {
    let snapshots = tree.with_extension(&[EXTENSION]).filter(|file| !is_named(tree, file));
    snapshots
        .map(|file| Finding::new(&file.path, 0, "no test names this snapshot: delete the file"))
        .collect()
}

/// Returns whether a Rust file of the crate has the name in quotes, a format string with the name, or a test
/// function with the name.
fn is_named(tree: &Tree, snapshot: &File) -> bool {
    let Some((package, name)) = snapshot.path.split_once("/tests/") else { return false };
    let name = name.rsplit('/').next().unwrap_or(name).trim_end_matches(".snap");
    let own = format!("{package}/");
    let sources: Vec<&File> =
        tree.with_extension(&["rs"]).filter(|file| file.path.starts_with(&own)).collect();
    let has = |text: &str| sources.iter().any(|file| file.text.contains(text));
    // `insta` names a snapshot without a name after its test: CRATE__MODULE__TEST, or CRATE__MODULE__TEST-2.
    let test = name.rsplit("__").next().unwrap_or(name);
    let test = test.split('-').next().unwrap_or(test);
    has(&format!("\"{name}\""))
        || has(&format!("fn {test}("))
        || name.match_indices('_').any(|(at, _)| {
            let (prefix, value) = name.split_at(at + 1);
            has(&format!("\"{prefix}{{")) && has(&format!("\"{value}\""))
        })
}
