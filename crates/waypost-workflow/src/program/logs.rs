//! Blob names of the logs of steps.

use waypost::id::{BranchPath, StepId};
use waypost::record::Try;

/// Returns the blob name of the log of one attempt.
pub fn log_name(branch: &BranchPath, step: &StepId, at: &Try) -> String {
    log_name_of(branch, step, at, "")
}

/// Returns the blob name of the log of the undo of an attempt.
pub fn undo_log_name(branch: &BranchPath, step: &StepId, at: &Try) -> String {
    log_name_of(branch, step, at, ".undo")
}

fn log_name_of(branch: &BranchPath, step: &StepId, at: &Try, what: &str) -> String {
    let folder = if branch.is_main() { String::new() } else { format!("{}/", branch.file_name()) };
    let iteration: String = at.iteration.iter().map(|count| format!(".i{count}")).collect();
    let epoch = if at.epoch == 0 { String::new() } else { format!(".e{}", at.epoch) };
    format!("logs/{folder}{step}{iteration}{epoch}{what}.{}.log", at.attempt)
}
