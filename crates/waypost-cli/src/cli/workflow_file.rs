//! The FILE of a command: a workflow file, or `-` for a workflow on stdin.

use std::path::{Path, PathBuf};

/// Default FILE, and the name used if only that file exists.
const DEFAULTS: [&str; 2] = ["waypost.yaml", "waypost.yml"];

/// Returns the default FILE.
pub(crate) fn default_file() -> PathBuf {
    let [first, other] = DEFAULTS.map(Path::new);
    if !first.exists() && other.is_file() { other.to_owned() } else { first.to_owned() }
}

/// Returns whether FILE is `-`, the workflow on stdin.
pub(crate) fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}
