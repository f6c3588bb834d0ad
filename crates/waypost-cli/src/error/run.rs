//! Messages, exit codes and next commands for errors of the engine.

use waypost::engine::RunError;
use waypost::plan::{Cause, Decision};
use waypost::record::Flaw;
use waypost::{RunId, ScopePath, StepId};

use super::causes::{are_of_evidence, is_full, is_supervisor_lost, is_without_scratch, lacking_resource};
use super::store::of_store;
use super::words::{choices_of_doubt, other_states};
use super::words::{undo_choices, undo_command};
use crate::exit::Exit;
use crate::format::text::quoted;
use crate::view::doubt::Doubt;

/// The engine's part of the one `match`.
pub(super) fn of_run(error: &RunError) -> (&'static str, Exit, Option<String>) {
    let hint = |text: &str| Some(text.to_owned());
    match error {
        RunError::Store(error) => of_store(error),
        RunError::Checkpoint { source, .. } => match of_store(source) {
            (code, exit @ (Exit::CannotCreate | Exit::Locked | Exit::Damaged), hint) => (code, exit, hint),
            (code, _, hint) => (code, Exit::CannotWrite, hint),
        },
        RunError::Serialize { source: Flaw::Limit(_), .. }
        | RunError::Record { source: Flaw::Limit(_), .. } => ("too_large", Exit::CannotWrite, None),
        RunError::Serialize { .. } | RunError::Record { .. } => ("internal", Exit::Internal, None),
        RunError::Deserialize { .. } => ("unreadable_state", Exit::Damaged, hint("`--restart` starts over")),
        RunError::Version { .. } => {
            ("newer_state", Exit::Newer, hint("resume with the version that wrote the state, or a newer one"))
        }
        RunError::Rejected { .. } => ("rejected", Exit::Usage, None),
        RunError::NotFinished { run, .. } => {
            let help = format!("`waypost resume {run}` runs the step when its needs are finished");
            ("not_finished", Exit::NotFound, Some(help))
        }
        RunError::NoState { at, .. } => ("no_state", Exit::NotFound, Some(other_states(at))),
        RunError::InDoubt { run, questions } if are_of_evidence(questions) => {
            ("evidence", Exit::Evidence, Some(choices_of_evidence(run, questions)))
        }
        RunError::InDoubt { run, questions } => {
            let doubts: Vec<Doubt> = questions.iter().map(Doubt::plain).collect();
            let hint = choices_of_doubt(&format!("waypost resume {run}"), &doubts);
            ("in_doubt", Exit::InDoubt, Some(hint))
        }
        RunError::NotAccepted { .. } => ("not_accepted", Exit::Usage, None),
        RunError::Undoing { run, to } => {
            ("undoing", Exit::InDoubt, Some(format!("finish that: `{}`", undo_command(run, *to))))
        }
        RunError::NotUndone { run, to, stopped_by, .. } => {
            let exit = stopped_by.as_deref().map_or(Exit::StepFailed, crate::exit::exit_of);
            ("not_undone", exit, Some(undo_choices(run, *to)))
        }
        RunError::NotBegun { run, by } => {
            ("not_begun", crate::exit::exit_of(by), Some(format!("`waypost resume {run}`")))
        }
        RunError::NotMarked { .. } => ("not_marked", Exit::Usage, None),
        RunError::NotEdited { .. } => ("not_edited", Exit::Usage, None),
        RunError::EvidenceLost { run, scope, step, .. } => {
            ("damaged", Exit::Damaged, Some(run_again(run, scope, step)))
        }
        RunError::NotSettled { .. } => (
            "not_settled",
            Exit::Usage,
            hint("`--output STEP.NAME=VALUE` gives an output; `--treat-as retry` reruns the step"),
        ),
        RunError::Cancelled(run) => {
            ("cancelled", Exit::Usage, Some(format!("`waypost resume {run} --restart` starts over")))
        }
        RunError::Changed { run, .. } => (
            "changed",
            Exit::Changed,
            Some(format!(
                "`waypost resume {run} --keep-definition` continues with the run's own copy, `--with FILE` adopts \
                 another file, `--restart` starts over"
            )),
        ),
        RunError::NoSuchWait { run, .. } | RunError::SeveralWaits { run, .. } => {
            ("not_found", Exit::NotFound, Some(format!("`waypost show {run}` lists the waits of the run")))
        }
        RunError::Answered { run, .. } => {
            ("answered", Exit::Usage, Some(format!("`waypost resume {run}` continues with that answer")))
        }
        RunError::Ended { .. } => {
            ("ended", Exit::Usage, hint("`waypost list --resumable` lists the runs that accept signals"))
        }
        RunError::InvalidName(_) => ("usage", Exit::Usage, None),
        RunError::Unsettled { .. } => ("internal", Exit::Internal, None),
        RunError::InvalidStep(_) | RunError::UnknownStep(_) => {
            let text = "`waypost show` lists the steps; a step within another is named `PATH/STEP`";
            ("not_found", Exit::NotFound, hint(text))
        }
        RunError::Begin(error) if lacking_resource(error).is_some() => (
            "no_resources",
            Exit::NoResources,
            lacking_resource(error).map(|lack| {
                format!("{lack}: raise that limit; no step was started, and `waypost resume` resumes the run")
            }),
        ),
        RunError::Begin(error) if is_full(error) => (
            "disk_full",
            Exit::CannotWrite,
            hint("free disk space and resume; acknowledged records are safe"),
        ),
        RunError::Begin(error) if is_supervisor_lost(error) => {
            ("interrupted", Exit::StepFailed, hint("no step was started; `waypost resume` resumes the run"))
        }
        RunError::Begin(error) if is_without_scratch(error) => {
            ("cannot_write", Exit::CannotWrite, hint("no step was started; `waypost resume` resumes the run"))
        }
        RunError::Begin(_) => ("cannot_begin", Exit::Internal, None),
    }
}

/// Returns the choices about evidence that cannot be checked, or that two steps invalidate in turn.
fn choices_of_evidence(run: &RunId, questions: &[Decision]) -> String {
    let Some(Decision { scope, step, cause, .. }) = questions.first() else {
        return format!("`waypost plan {run}` shows the evidence");
    };
    let step = if scope.is_main() { step.to_string() } else { format!("{}/{step}", scope.readable()) };
    let step = quoted(&step);
    match cause {
        Cause::EvidenceUndone { .. } => format!(
            "change the workflow so that only one step writes the claimed file, then: `waypost resume {run}`; or \
             accept the current evidence: `waypost evidence accept {run} {step}`"
        ),
        // Unchecked evidence cannot be accepted.
        _ => format!(
            "restore access to the files or services of the evidence, then: `waypost resume {run}`; or rerun the \
             step: `waypost resume {run} --from {step}`"
        ),
    }
}

/// Returns the command to rerun a step.
fn run_again(run: &RunId, scope: &ScopePath, step: &StepId) -> String {
    let path = match scope.is_main() {
        true => step.to_string(),
        false => format!("{}/{step}", scope.readable()),
    };
    format!("`waypost resume {run} --from {path}` reruns step `{path}` and all steps downstream")
}

/// Returns the run of an error about steps.
pub(super) fn run_of(error: &RunError) -> Option<&RunId> {
    match error {
        RunError::InDoubt { run, .. }
        | RunError::EvidenceLost { run, .. }
        | RunError::NotFinished { run, .. }
        | RunError::NotSettled { run, .. }
        | RunError::NotUndone { run, .. }
        | RunError::NoSuchWait { run, .. }
        | RunError::SeveralWaits { run, .. } => Some(run),
        _ => None,
    }
}
