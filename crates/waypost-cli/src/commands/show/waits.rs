//! Open waits of a run, with the commands to fulfil them.

use jiff::Timestamp;
use waypost::record::{RunStatus, WaitKind};

use super::Shown;
use crate::view::WaitView;
use crate::view::gives;

impl Shown {
    /// Returns whether a pending signal already fulfils the wait.
    pub(super) fn is_given(&self, wait: &WaitView) -> bool {
        self.given.iter().any(|signal| gives(signal, &wait.id, &wait.on))
    }

    /// Returns whether a resume would do work: for a waiting run, whether a wait is fulfilled.
    pub(super) fn has_something_to_do(&self, waiting: &[WaitView], now: Timestamp) -> bool {
        let has_come = |wait: &WaitView| match &wait.on {
            WaitKind::Until(due) => *due <= now,
            WaitKind::Resume => true,
            _ => self.is_given(wait),
        };
        self.status() != RunStatus::Waiting || waiting.is_empty() || waiting.iter().any(has_come)
    }
}
