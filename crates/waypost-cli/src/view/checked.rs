//! The document of `check`, and problems of files in all documents.

use std::path::Path;

use serde::Serialize;
use waypost_workflow::file::Problem;

/// The answer of `check`.
#[derive(Debug, Serialize)]
pub(crate) struct CheckView {
    pub(crate) v: u32,
    pub(crate) file: String,
    pub(crate) workflow: String,
    /// `sequence` or `graph`.
    pub(crate) mode: &'static str,
    pub(crate) steps: Vec<CheckedStepView>,
    pub(crate) warnings: Vec<ProblemView>,
}

/// A step of a workflow file.
#[derive(Debug, Serialize)]
pub(crate) struct CheckedStepView {
    pub(crate) id: String,
    pub(crate) line: usize,
    pub(crate) needs: Vec<String>,
    /// The steps that a worker may execute in place of the worker of the run: this step, or steps within.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) on_workers: Vec<OnWorkersView>,
}

/// A step that a worker with tags may execute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct OnWorkersView {
    pub(crate) step: String,
    /// Empty for any worker.
    pub(crate) tags: Vec<String>,
}

/// A problem in a file, with its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ProblemView {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) end_column: usize,
    /// The line; for a very long line, the part around the problem.
    pub(crate) snippet: String,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) help: Option<String>,
}

impl ProblemView {
    /// Converts a problem of a file.
    pub(crate) fn of(file: &Path, problem: &Problem) -> Self {
        Self {
            file: file.display().to_string(),
            line: problem.line,
            column: problem.column,
            end_column: problem.end_column,
            snippet: problem.snippet.clone(),
            message: problem.message.clone(),
            hint: problem.hint.clone(),
            help: problem.help.clone(),
        }
    }
}
