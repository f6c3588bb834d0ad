//! Converts workflow files of other programs to Waypost workflow files. Today:
//! [Prodigy](https://github.com/iepathos/prodigy).
//!
//! Input: the text of a file. Output: the text of a workflow file that passes `waypost check`, and a [`Note`] for each
//! difference between the two. Every key without an equivalent, and every unknown key, is a note, and also a comment at
//! its place in the made file.
//!
//! ```text
//!   text -- Document --> top --> steps --> texts --> variables
//!                         \________\________\_____ import (notes, ids) --> yaml --> text
//! ```
//!
//! This crate owns the translation, and does not know runs, stores or terminals. The crate reads no file and
//! starts no process.
//!
//! ```
//! use std::path::Path;
//!
//! let text = b"- shell: make\n- claude: /review\n  retry: { attempts: 3, backoff: fixed }\n";
//! let imported = waypost_import::prodigy(text, Path::new("build.yml"))?;
//!
//! assert!(imported.text.contains("run: make"));
//! assert_eq!(imported.workflow.steps().len(), 2);
//! # Ok::<(), waypost_import::Error>(())
//! ```
//!
//! # Source
//! The format: Prodigy 0.4.4, `src/config`, `src/cook/workflow`, and its book.

mod fields;
mod import;
mod state;
mod steps;
mod texts;
mod top;
mod variables;
mod yaml;

use std::path::Path;

use waypost_workflow::file::{Document, FileError, Workflow};

pub use state::{State, prodigy_state};

/// A difference between the source file and the converted workflow file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The line in the source file, from 1. If several places share the difference, the first line.
    pub line: usize,
    /// The lines of the other places.
    pub also: Vec<usize>,
    /// The key of the source file.
    pub key: String,
    /// The difference.
    pub message: String,
    /// The recommended fix.
    pub help: String,
}

/// A converted workflow file.
#[derive(Debug)]
#[non_exhaustive]
pub struct Imported {
    /// The text of the workflow file.
    pub text: String,
    /// The parsed and checked workflow.
    pub workflow: Workflow,
    /// The differences, by line.
    pub notes: Vec<Note>,
}

/// The reason why the import failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a workflow of Prodigy, or is too large; the error names the place. Correct the file.
    #[error("cannot import {}: not a Prodigy workflow", .0.path().display())]
    Source(#[source] Box<FileError>),
    /// The converted file does not pass the check: a bug of this crate. Report the bug.
    #[error("cannot import {}: the made file does not pass the check", .0.path().display())]
    Made(#[source] Box<FileError>),
    /// The file is a session or a checkpoint; [`State::hint`] names the alternative.
    #[error("cannot import {0}")]
    State(State),
}

/// Converts a workflow of Prodigy. `path` names the source in messages and in the converted file.
///
/// # Errors
/// - [`Error::Source`]: `text` is not YAML, not a workflow of Prodigy, or would exceed a limit of a workflow file.
/// - [`Error::State`]: `text` is a session or a checkpoint of Prodigy.
/// - [`Error::Made`]: the converted file is not a valid workflow file.
pub fn prodigy(text: &[u8], path: &Path) -> Result<Imported, Error> {
    if let Some(state) = prodigy_state(text) {
        return Err(Error::State(state));
    }
    let document = Document::parse(text, path).map_err(|error| Error::Source(Box::new(error)))?;
    let stem = path.file_stem().map_or_else(|| "workflow".into(), |stem| stem.to_string_lossy());
    let (text, notes) = top::import(&document, &path.display().to_string(), &stem)
        .map_err(|error| Error::Source(Box::new(error)))?;
    let workflow = Workflow::parse(&text, path).map_err(|error| Error::Made(Box::new(error)))?;
    Ok(Imported { text, workflow, notes })
}
