//! Documents of commands for scripts, and of commands that show something to a person.

use serde::Serialize;
use waypost::record::RunStatus;

/// The answer of `once`.
#[derive(Debug, Serialize)]
pub(crate) struct OnceView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) key: String,
    /// The step of the run with these records.
    pub(crate) step: String,
    /// The command did not run: these are its recorded results.
    pub(crate) replayed: bool,
    /// The command will not run again.
    pub(crate) remembered: bool,
    pub(crate) exit_code: Option<u8>,
    /// Truncated, if large.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The full size.
    pub(crate) stdout_bytes: u64,
    pub(crate) stderr_bytes: u64,
}

/// The answer of `once --finish`.
#[derive(Debug, Serialize)]
pub(crate) struct FinishedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    /// This call finished the run.
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
    /// The written file; `None` if `text` has the workflow.
    pub(crate) file: Option<String>,
    pub(crate) workflow: String,
    /// The source workflow.
    pub(crate) from: String,
    pub(crate) steps: Vec<String>,
    pub(crate) notes: Vec<NoteView>,
    pub(crate) text: Option<String>,
}

/// A part of an imported workflow that changed.
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
    /// Finished steps were not repeated.
    pub(crate) ok: bool,
    pub(crate) commands: Vec<DemoCommandView>,
    pub(crate) steps: Vec<DemoStepView>,
    /// The folder, if it was kept.
    pub(crate) kept: Option<String>,
}

/// A command of the demo; the killed command has no exit code.
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
    /// The output file, if requested.
    pub(crate) file: Option<String>,
    /// The report text, without an output file.
    pub(crate) text: Option<String>,
}

/// The answer of `graph`.
#[derive(Debug, Serialize)]
pub(crate) struct GraphView {
    pub(crate) v: u32,
    /// The run, unless a file was drawn.
    pub(crate) run: Option<String>,
    /// The workflow file, unless a run was drawn.
    pub(crate) file: Option<String>,
    /// `svg` or `mermaid`.
    pub(crate) format: &'static str,
    pub(crate) text: String,
}
