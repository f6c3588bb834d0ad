//! Which of two finished steps is the newer: whose claim about a thing counts.
//!
//! What comes after a step is newer than it, whichever of the two was done last: where an early step is done again, what a later
//! one made of the same file is asked for as before, and that one runs again if it is not so any more.
//!
//! ```text
//!   @2 a (writes f)  @3 d (writes f)          d's claim about f counts
//!   @2 a  @3 d  @6 a again                    still d's, as it comes after a: it does not hold, and d runs again
//! ```

use std::collections::HashMap;

use crate::id::{BranchPath, StepId};
use crate::shape::Shape;

use super::Effective;

/// Where an end stands among those of all branches: a child's come after the record of its parent with which it was opened,
/// and before the end of the step that opened it.
pub(super) type Rank<'a> = (Vec<Place>, &'a BranchPath);

/// Where a record stands among those of its branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// When it was made, or the newest of what its step comes after.
    time: u64,
    /// Where its step stands in an order in which each comes after what it needs.
    order: usize,
    /// It is the end of the step, and not the beginning of branches.
    is_end: bool,
    seq: u64,
}

/// The steps of a branch.
#[derive(Debug)]
struct Steps<'a> {
    shape: &'a Shape,
    /// By place: where each stands in the order.
    order: Vec<usize>,
    /// By place: the newest end of those that each comes after.
    before: Vec<u64>,
}

impl<'a> Steps<'a> {
    fn of(shape: &'a Shape, branch: &Effective) -> Self {
        let count = shape.steps().len();
        let (mut order, mut before) = (vec![0; count], vec![0; count]);
        for (at, place) in shape.order().into_iter().enumerate() {
            order[place] = at;
            let ended = |need: usize| {
                let settled = branch.position.ledger.get(&shape.steps()[need].id);
                before[need].max(settled.map_or(0, |settled| settled.seq))
            };
            before[place] = shape.needs(place).iter().map(|need| ended(*need)).max().unwrap_or_default();
        }
        Self { shape, order, before }
    }

    /// Places an end of a step, or the beginning of its branches. What it made in an earlier pass stands where it was made.
    fn place(&self, step: &StepId, seq: u64, (is_end, is_newest): (bool, bool)) -> Place {
        let place = self.shape.place(step.as_str());
        let (order, before) = place.map_or((0, 0), |place| (self.order[place], self.before[place]));
        let time = if is_newest { seq.max(before) } else { seq };
        Place { time, order, is_end, seq }
    }
}

/// Ranks what was finished on branches.
#[derive(Debug)]
pub(super) struct Ranks<'a> {
    steps: HashMap<&'a BranchPath, Steps<'a>>,
    /// Of each branch, where it and those above it were opened.
    origins: HashMap<&'a BranchPath, Vec<Place>>,
}

impl<'a> Ranks<'a> {
    pub(super) fn of(root: &'a Shape, effective: &'a [Effective]) -> Self {
        let mut steps = HashMap::new();
        for branch in effective {
            if let Some(shape) = root.of_branch(&branch.branch) {
                steps.insert(&branch.branch, Steps::of(shape, branch));
            }
        }
        let own: HashMap<&BranchPath, Option<u64>> =
            effective.iter().map(|branch| (&branch.branch, branch.position.origin)).collect();
        // Of each step that opens branches, when it opened the newest of them.
        let mut newest: HashMap<(BranchPath, StepId), u64> = HashMap::new();
        for (branch, seq) in own.iter().filter_map(|(branch, seq)| Some((*branch, (*seq)?))) {
            let Some((parent, (name, _))) = branch.parent().zip(branch.opened_by()) else { continue };
            let known = newest.entry((parent, name)).or_default();
            *known = seq.max(*known);
        }
        let opened = |branch: &BranchPath| {
            let seq = (*own.get(branch)?)?;
            let (parent, (name, _)) = (branch.parent()?, branch.opened_by()?);
            let Some(steps) = steps.get(&parent) else {
                return Some(Place { time: seq, order: 0, is_end: false, seq });
            };
            let opener = &steps.shape.steps()[steps.shape.opener(&name)?].id;
            let is_newest = newest.get(&(parent, name)) == Some(&seq);
            Some(steps.place(opener, seq, (false, is_newest)))
        };
        let origins = effective.iter().map(|branch| {
            let up = std::iter::successors(Some(branch.branch.clone()), BranchPath::parent);
            let mut walk: Vec<Place> = up.filter_map(|branch| opened(&branch)).collect();
            walk.reverse();
            (&branch.branch, walk)
        });
        let origins = origins.collect();
        Self { steps, origins }
    }

    /// Ranks the end of a step.
    pub(super) fn of_end(&self, branch: &'a Effective, step: &StepId, seq: u64) -> Rank<'a> {
        let above = self.origins.get(&branch.branch).map(Vec::as_slice).unwrap_or_default();
        let own = match self.steps.get(&branch.branch) {
            Some(steps) => {
                let settled = branch.position.ledger.get(step).map(|settled| settled.seq);
                steps.place(step, seq, (true, settled == Some(seq)))
            }
            None => Place { time: seq, order: 0, is_end: true, seq },
        };
        (above.iter().copied().chain([own]).collect(), &branch.branch)
    }
}
