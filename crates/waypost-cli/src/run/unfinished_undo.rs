//! An undo of steps that was cut: the warning, and the command that finishes the undo.

use waypost::engine::Snapshot;
use waypost::record::End;

use crate::error::undo_command;

/// Returns the target record of a begun undo, 0 for a cancel; `None` if no undo is in progress.
pub(crate) fn target(snapshot: &Snapshot) -> Option<u64> {
    let newest = snapshot.newest();
    let is_cancelled = newest.header().end == Some(End::Cancelled);
    newest.position().ok().filter(|_| !is_cancelled)?.undoing
}

/// Returns the command that finishes a begun undo; `None` if no undo is in progress.
pub(crate) fn command(snapshot: &Snapshot) -> Option<String> {
    Some(undo_command(&snapshot.entry.summary.run, target(snapshot)?))
}

/// Returns a message about an undo in progress, with the command to finish it; `None` without one.
pub(crate) fn warning(snapshot: &Snapshot) -> Option<String> {
    let line = command(snapshot)?;
    Some(format!("the undo of its steps is not finished; a resume stops until then: `{line}`"))
}
