//! The branches that a step opens.

use super::Shape;
use crate::id::{BranchPath, InvalidName, StepId};

/// The child branches that a step opens and joins.
#[derive(Debug, Clone, PartialEq)]
pub struct Children {
    /// The step after which they are named: the one that opens them, or the one before it. No other step of a shape names
    /// its branches after the same one.
    pub name: StepId,
    /// The steps of each.
    pub shape: Box<Shape>,
    /// Where they are named by the shape and not by items: the key of each, in order, and its first step, where that is
    /// not the one of the shape.
    pub named: Vec<(String, Option<StepId>)>,
    /// How many may be at work at once.
    pub parallel_max: usize,
    /// What the failure of one means for the others.
    pub on_failure: OnChildFailure,
    /// The step finds out by its own work what they are about: it runs to say so, and again when all of them have ended.
    pub by_work: bool,
    /// How many failures are too many, where they are collected.
    pub limits: FailureLimits,
    /// They come after the step's own work, whatever became of that: what it came to counts once they have ended. Of a step
    /// that is done again, so are they.
    pub afterwards: bool,
    /// Each is a pass of the step, on a branch that is named by the number of the pass.
    pub passes: bool,
    /// They belong to one definition: if the step changes while they are under way, all of them begin anew.
    pub whole: bool,
}

/// How many failed branches are so many that the step which opened them fails. Counted from when a session began: who
/// resumes has looked at them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FailureLimits {
    /// One more than so many.
    pub count: Option<u64>,
    /// More than this part of all, between 0 and 1.
    pub rate: Option<f64>,
    /// So many one after the other with the same error: the rest would hardly fare better.
    pub alike: Option<u32>,
}

impl FailureLimits {
    /// Says which limit of numbers is passed where so many branches of all have failed, if one is.
    pub fn passed_by(&self, failed: u64, total: u64) -> Option<String> {
        if let Some(max) = self.count.filter(|max| failed > *max) {
            return Some(format!("{failed} of {total} branches failed, and no more than {max} may"));
        }
        let rate = self.rate.filter(|rate| failed as f64 > *rate * total as f64)?;
        Some(format!("{failed} of {total} branches failed, which is more than the part of {rate} that may"))
    }
}

impl Children {
    /// Names the branch of a child.
    ///
    /// # Errors
    /// [`InvalidName`]: its key is too long, or it nests too deep.
    pub fn path(&self, above: &BranchPath, key: &str) -> Result<BranchPath, InvalidName> {
        match key.parse().ok().filter(|_| self.passes) {
            Some(pass) => above.pass(&self.name, pass),
            None => above.child(&self.name, key),
        }
    }

    /// Says whether they begin behind the step before the one that joins them, and not by its own work, as items do.
    pub fn is_fork(&self) -> bool {
        self.named.iter().any(|(_, start)| start.is_some())
    }
}

/// What the failure of a child branch means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnChildFailure {
    /// The run fails, and its siblings are cancelled; a resume takes all of them up again.
    #[default]
    Stop,
    /// It ends as failed, the others go on, and the join sees it.
    Collect,
}
