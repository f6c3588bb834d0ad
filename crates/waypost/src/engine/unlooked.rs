//! What of the evidence of finished steps is still to be looked at in a session.

use crate::id::{BranchPath, StepId};
use crate::plan::{Bound, LeftOut};
use crate::record::Pack;

/// What is to be looked at once more, of the evidence of what is finished.
#[derive(Debug, Default)]
pub(super) struct Unlooked {
    /// All of it, before the run ends: steps have been done again since it was last looked at.
    pub(super) is_redone: bool,
    /// Claims that were not checked then, by the steps under way that may have been about to rewrite what they are about.
    pub(super) left: LeftOut,
    /// One of those steps has ended, and has not claimed the same: nothing more is started before a look at all of it.
    pub(super) is_due: bool,
}

impl Unlooked {
    /// Says whether the evidence of what is finished is to be looked at once more before the run ends.
    pub(super) fn is_any(&self) -> bool {
        self.is_redone || self.is_due || !self.left.is_empty()
    }

    /// Takes in that a step has completed with evidence; says whether that makes another look due.
    pub(super) fn note_end(&mut self, branch: &BranchPath, step: &StepId, evidence: Option<&Pack>) -> bool {
        if self.left.is_empty() {
            return false;
        }
        let Some(left) = self.left.remove(&(branch.clone(), step.clone())) else { return false };
        // What it claims itself from now on, nobody else is asked about.
        let claims = evidence.into_iter().flat_map(|pack| &pack.claims);
        let own: Vec<Bound> = claims.map(Bound::of).collect();
        let is_due = left.iter().any(|left| !own.iter().any(|own| left.gives_way_to(own)));
        self.is_due |= is_due;
        is_due
    }
}
