//! Where what steps print is kept.

use waypost::id::{BranchPath, StepId};
use waypost::record::Try;

/// Names the log of one try of a step among the run's blobs.
pub fn log_name(branch: &BranchPath, step: &StepId, at: &Try) -> String {
    log_name_of(branch, step, at, "")
}

/// The blob that holds what was printed when a step was undone, for the so manieth time.
pub fn undo_log_name(branch: &BranchPath, step: &StepId, at: &Try) -> String {
    log_name_of(branch, step, at, ".undo")
}

fn log_name_of(branch: &BranchPath, step: &StepId, at: &Try, what: &str) -> String {
    let folder = if branch.is_main() { String::new() } else { format!("{}/", branch.file_name()) };
    let iteration: String = at.iteration.iter().map(|count| format!(".i{count}")).collect();
    let epoch = if at.epoch == 0 { String::new() } else { format!(".e{}", at.epoch) };
    format!("logs/{folder}{step}{iteration}{epoch}{what}.{}.log", at.attempt)
}
