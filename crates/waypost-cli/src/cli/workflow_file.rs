//! The FILE of a command: a workflow file, or `-` for a workflow on stdin.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};

/// Default FILE.
const DEFAULT: &str = "waypost.yaml";

/// Returns the default FILE.
pub(crate) fn default_file() -> PathBuf {
    existing(PathBuf::from(DEFAULT))
}

/// Returns the parser of FILE.
pub(crate) fn file_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(existing)
}

/// Returns `NAME.yml` for a missing `NAME.yaml`, if that file exists.
fn existing(file: PathBuf) -> PathBuf {
    let other = file.with_extension("yml");
    let is_other = file.extension().is_some_and(|end| end == "yaml") && !file.exists() && other.is_file();
    if is_other { other } else { file }
}

/// Returns whether FILE is `-`, the workflow on stdin.
pub(crate) fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}
