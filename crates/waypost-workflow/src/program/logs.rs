//! Blob names of the logs of steps.

use waypost::id::{ScopePath, StepId};
use waypost::record::Try;

/// Returns the blob name of the log of one attempt.
pub fn log_name(scope: &ScopePath, step: &StepId, at: &Try) -> String {
    log_name_of(scope, step, at, "")
}

/// Returns the blob name of the log of the undo of an attempt.
pub fn undo_log_name(scope: &ScopePath, step: &StepId, at: &Try) -> String {
    log_name_of(scope, step, at, ".undo")
}

fn log_name_of(scope: &ScopePath, step: &StepId, at: &Try, what: &str) -> String {
    let folder = if scope.is_main() { String::new() } else { format!("{}/", scope.file_name()) };
    let iteration: String = at.iteration.iter().map(|count| format!(".i{count}")).collect();
    let epoch = if at.epoch == 0 { String::new() } else { format!(".e{}", at.epoch) };
    format!("logs/{folder}{step}{iteration}{epoch}{what}.{}.log", at.attempt)
}
