//! The scopes opened by a step.

use super::Shape;
use crate::id::{InvalidName, ScopePath, StepId};

/// The child scopes opened and joined by a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Children {
    /// The naming step of the scopes: the opener, or the step before the opener. Unique within a shape.
    pub name: StepId,
    /// The graph of each child.
    pub shape: Box<Shape>,
    /// For scopes named by the shape and not by items: each key, in order, with its first step if different
    /// from the shape's start.
    pub named: Vec<(String, Option<StepId>)>,
    /// The limit of concurrent children.
    pub parallel_max: usize,
    /// The effect of a child's failure on the others.
    pub on_failure: OnChildFailure,
    /// The step computes its items: it runs first to list the items, and again to join the ended children.
    pub by_work: bool,
    /// Limits on collected failures.
    pub limits: FailureLimits,
    /// Each child is a pass of the step, in a scope named by the number of the pass.
    pub passes: bool,
    /// The children share a definition: if the step changes while children are running, all children restart.
    pub whole: bool,
}

/// Limits on failed scopes: beyond a limit, the opening step fails. Only failures of the current session
/// count, as earlier failures were known at the resume.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FailureLimits {
    /// More failures than this number.
    pub count: Option<u64>,
    /// More failures than this part of all children, between 0 and 1.
    pub rate: Option<f64>,
    /// This number of consecutive failures with the same error: the remaining children would likely fail too.
    pub alike: Option<u32>,
}

impl FailureLimits {
    /// Returns a message about the passed limit, if `failed` of `total` scopes pass `count` or `rate`.
    pub fn passed_by(&self, failed: u64, total: u64) -> Option<String> {
        if let Some(max) = self.count.filter(|max| failed > *max) {
            return Some(format!("{failed} of {total} items failed, the maximum is {max}"));
        }
        let rate = self.rate.filter(|rate| failed as f64 > *rate * total as f64)?;
        Some(format!("{failed} of {total} items failed, over the maximum rate of {rate}"))
    }
}

impl Children {
    /// Returns the scope path of a child.
    ///
    /// # Errors
    /// [`InvalidName`]: the key is too long, or the path nests too deep.
    pub fn path(&self, above: &ScopePath, key: &str) -> Result<ScopePath, InvalidName> {
        match key.parse().ok().filter(|_| self.passes) {
            Some(pass) => above.pass(&self.name, pass),
            None => above.child(&self.name, key),
        }
    }

    /// Returns whether the children are named by the items of a list.
    pub(crate) fn are_items(&self) -> bool {
        self.named.is_empty() && !self.passes
    }

    /// Returns whether the children start after the step before the join, unlike items, opened by the join.
    pub fn is_fork(&self) -> bool {
        self.named.iter().any(|(_, start)| start.is_some())
    }
}

/// The effect of a failed child scope.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnChildFailure {
    /// The run fails and siblings are cancelled; a resume continues all of them.
    #[default]
    Stop,
    /// The child ends as failed, its siblings continue, and the join receives the failure.
    Collect,
}
