//! The documents of commands that are about scripts, and of those that show something to a person.

use serde::Serialize;
use waypost::record::RunStatus;

/// The answer of `once`.
#[derive(Debug, Serialize)]
pub(crate) struct OnceView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) key: String,
    /// The step of the run that has its records.
    pub(crate) step: String,
    /// Nothing was done: this is what is remembered.
    pub(crate) replayed: bool,
    /// It will not be done again.
    pub(crate) remembered: bool,
    pub(crate) exit_code: Option<u8>,
    /// Its beginning, if it is large.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// All of it.
    pub(crate) stdout_bytes: u64,
    pub(crate) stderr_bytes: u64,
}

/// The answer of `once --finish`.
#[derive(Debug, Serialize)]
pub(crate) struct FinishedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    /// This call did it.
    pub(crate) finished: bool,
}

/// The answer of `new`.
#[derive(Debug, Serialize)]
pub(crate) struct NewView {
    pub(crate) v: u32,
    pub(crate) file: String,
    pub(crate) workflow: String,
    pub(crate) steps: Vec<String>,
}

/// The answer of `import workflow`.
#[derive(Debug, Serialize)]
pub(crate) struct ImportedView {
    pub(crate) v: u32,
    /// The file that was written; none where the workflow is in `text`.
    pub(crate) file: Option<String>,
    pub(crate) workflow: String,
    /// The workflow that it was made of.
    pub(crate) from: String,
    pub(crate) steps: Vec<String>,
    pub(crate) notes: Vec<NoteView>,
    pub(crate) text: Option<String>,
}

/// Something of an imported workflow that is not as it was.
#[derive(Debug, Serialize)]
pub(crate) struct NoteView {
    pub(crate) line: usize,
    pub(crate) also: Vec<usize>,
    pub(crate) key: String,
    pub(crate) message: String,
    pub(crate) help: String,
}

/// The answer of `demo`.
#[derive(Debug, Serialize)]
pub(crate) struct DemoView {
    pub(crate) v: u32,
    /// What was finished was not done again.
    pub(crate) ok: bool,
    pub(crate) commands: Vec<DemoCommandView>,
    pub(crate) steps: Vec<DemoStepView>,
    /// The folder, where it was to be kept.
    pub(crate) kept: Option<String>,
}

/// A command that the demo ran; none as the exit code of the one that it killed.
#[derive(Debug, Serialize)]
pub(crate) struct DemoCommandView {
    pub(crate) command: String,
    pub(crate) exit_code: Option<i32>,
}

/// How often a step of the demo began.
#[derive(Debug, Serialize)]
pub(crate) struct DemoStepView {
    pub(crate) step: String,
    pub(crate) begun: usize,
    pub(crate) cut: bool,
}

/// The answer of `report`.
#[derive(Debug, Serialize)]
pub(crate) struct ReportView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) status: RunStatus,
    /// `markdown` or `html`.
    pub(crate) format: &'static str,
    /// Where it was written, if it was to be.
    pub(crate) file: Option<String>,
    /// The report itself, where it was not.
    pub(crate) text: Option<String>,
}
