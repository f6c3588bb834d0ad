//! Ranks finished steps: of two steps with claims about one thing, the newer step's claim counts.
//!
//! A step is newer than the steps upstream, in any order of execution. After a rerun of an early step, the
//! later step's claim about a shared file is still checked, and the later step reruns if the claim fails.
//!
//! ```text
//!   @2 a (writes f)  @3 d (writes f)          d's claim about f counts
//!   @2 a  @3 d  @6 a again                    still d's, as it comes after a: it does not hold, and d runs again
//! ```

use std::collections::HashMap;

use crate::id::{ScopePath, StepId};
use crate::plan::shape::Shape;

use super::Effective;

/// The rank of an end among all scopes. A child's ends rank after the parent record that opened the child,
/// and before the end of the opening step.
pub(super) type Rank<'a> = (Vec<Place>, &'a ScopePath);

/// The place of a record among the records of its scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The seq of the record, or the newest seq among the step's needs if that is larger.
    time: u64,
    /// The index of the step in topological order.
    order: usize,
    /// The record is the end of the step, not the opening of scopes.
    is_end: bool,
    seq: u64,
}

/// The steps of a scope.
#[derive(Debug)]
struct Steps<'a> {
    shape: &'a Shape,
    /// By place: the index in topological order.
    order: Vec<usize>,
    /// By place: the newest end among the step's needs.
    before: Vec<u64>,
}

impl<'a> Steps<'a> {
    fn of(shape: &'a Shape, scope: &Effective) -> Self {
        let count = shape.steps().len();
        let (mut order, mut before) = (vec![0; count], vec![0; count]);
        for (at, place) in shape.order().into_iter().enumerate() {
            order[place] = at;
            let ended = |need: usize| {
                let settled = scope.position.ledger.get(&shape.steps()[need].id);
                before[need].max(settled.map_or(0, |settled| settled.seq))
            };
            before[place] = shape.needs(place).iter().map(|need| ended(*need)).max().unwrap_or_default();
        }
        Self { shape, order, before }
    }

    /// Places an end of a step, or the opening of its scopes. Records of earlier passes keep their own seq
    /// as time.
    fn place(&self, step: &StepId, seq: u64, (is_end, is_newest): (bool, bool)) -> Place {
        let place = self.shape.place(step.as_str());
        let (order, before) = place.map_or((0, 0), |place| (self.order[place], self.before[place]));
        let time = if is_newest { seq.max(before) } else { seq };
        Place { time, order, is_end, seq }
    }
}

/// Ranks the ends of steps in all scopes.
#[derive(Debug)]
pub(super) struct Ranks<'a> {
    steps: HashMap<&'a ScopePath, Steps<'a>>,
    /// By scope: the opening records of the scope and its ancestors, outermost first.
    origins: HashMap<&'a ScopePath, Vec<Place>>,
}

impl<'a> Ranks<'a> {
    pub(super) fn of(root: &'a Shape, effective: &'a [Effective]) -> Self {
        let mut steps = HashMap::new();
        for scope in effective {
            if let Some(shape) = root.of_scope(&scope.scope) {
                steps.insert(&scope.scope, Steps::of(shape, scope));
            }
        }
        let own: HashMap<&ScopePath, Option<u64>> =
            effective.iter().map(|scope| (&scope.scope, scope.position.origin)).collect();
        // By opening step: the newest record that opened scopes.
        let mut newest: HashMap<(ScopePath, StepId), u64> = HashMap::new();
        for (scope, seq) in own.iter().filter_map(|(scope, seq)| Some((*scope, (*seq)?))) {
            let Some((parent, (name, _))) = scope.parent().zip(scope.opened_by()) else { continue };
            let known = newest.entry((parent, name)).or_default();
            *known = seq.max(*known);
        }
        let opened = |scope: &ScopePath| {
            let seq = (*own.get(scope)?)?;
            let (parent, (name, _)) = (scope.parent()?, scope.opened_by()?);
            let Some(steps) = steps.get(&parent) else {
                return Some(Place { time: seq, order: 0, is_end: false, seq });
            };
            let opener = &steps.shape.steps()[steps.shape.opener(&name)?].id;
            let is_newest = newest.get(&(parent, name)) == Some(&seq);
            Some(steps.place(opener, seq, (false, is_newest)))
        };
        let origins = effective.iter().map(|scope| {
            let up = std::iter::successors(Some(scope.scope.clone()), ScopePath::parent);
            let mut walk: Vec<Place> = up.filter_map(|scope| opened(&scope)).collect();
            walk.reverse();
            (&scope.scope, walk)
        });
        let origins = origins.collect();
        Self { steps, origins }
    }

    /// Returns the rank of a step's end.
    pub(super) fn of_end(&self, scope: &'a Effective, step: &StepId, seq: u64) -> Rank<'a> {
        let above = self.origins.get(&scope.scope).map(Vec::as_slice).unwrap_or_default();
        let own = match self.steps.get(&scope.scope) {
            Some(steps) => {
                let settled = scope.position.ledger.get(step).map(|settled| settled.seq);
                steps.place(step, seq, (true, settled == Some(seq)))
            }
            None => Place { time: seq, order: 0, is_end: true, seq },
        };
        (above.iter().copied().chain([own]).collect(), &scope.scope)
    }
}
