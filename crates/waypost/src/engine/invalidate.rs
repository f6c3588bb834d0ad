//! Invalidation: the one way in which finished work of a graph by needs is open again.
//!
//! ```text
//!   a --> b --> d            a's evidence fails: a is in the frontier, the ends of b and d are reusable, e is untouched
//!    \--> c                  a gives the same: b and d count again, in the next record
//!   e                        a gives something else: b runs; d is compared when its turn comes
//! ```
//!
//! In go a position and the steps that are invalid, each with the entry that stands for it in the frontier; out comes the
//! new position. Pure.

use std::collections::BTreeSet;

use crate::id::StepId;
use crate::record::{Fan, FrontierEntry, Position, Reusable, Settled, Status};
use crate::shape::{Shape, Unfinished};

use super::anew::after;

/// A step that is invalid.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) place: usize,
    /// What stands for it in the frontier.
    pub(super) entry: FrontierEntry,
}

/// Opens steps again. Of all that is downstream of them, ends and unfinished work leave force and stay reusable.
pub(super) fn invalidate(shape: &Shape, position: &Position, cuts: Vec<Cut>) -> Position {
    let unfinished = Unfinished::of(shape, position);
    let named: Vec<usize> = cuts.iter().map(|cut| cut.place).collect();
    let mut position = position.clone();
    for place in after(shape, &named).into_iter().filter(|place| !named.contains(place)) {
        let step = &shape.steps()[place];
        if let Some(entry) = take_entry(&mut position, &step.id) {
            if entry.is_unsettled() && entry.fan.is_none() && !step.idempotent {
                position.ask_about(&step.id, Some(entry));
            } else if is_worth_keeping(&entry) {
                uncount(&mut position, entry.fan.as_ref());
                position.reusable.insert(step.id.clone(), Reusable::Begun(Box::new(entry)));
            }
        } else if !unfinished.has(place) {
            let fan = position.joined.remove(&step.id);
            uncount(&mut position, fan.as_ref());
            match position.ledger.remove(&step.id) {
                Some(Settled::Skipped(_)) | None => {}
                Some(settled) => {
                    position.reusable.insert(step.id.clone(), Reusable::Ended { settled, fan });
                }
            }
        }
    }
    for Cut { place, entry } in cuts {
        let step = &shape.steps()[place].id;
        let before = take_entry(&mut position, step);
        if entry.fan.is_none() {
            let left = position.joined.remove(step).or_else(|| before.and_then(|entry| entry.fan));
            uncount(&mut position, left.as_ref());
        }
        position.ledger.remove(step);
        position.reusable.remove(step);
        position.epoch = position.epoch.max(entry.at.epoch);
        position.frontier.push(entry);
    }
    position.revisited = true;
    position
}

/// Returns the steps downstream of some.
pub(super) fn downstream(shape: &Shape, cuts: &[Cut]) -> BTreeSet<StepId> {
    let named: Vec<usize> = cuts.iter().map(|cut| cut.place).collect();
    after(shape, &named).into_iter().map(|place| shape.steps()[place].id.clone()).collect()
}

fn take_entry(position: &mut Position, step: &StepId) -> Option<FrontierEntry> {
    let at = position.frontier.iter().position(|entry| entry.step == *step)?;
    Some(position.frontier.remove(at))
}

/// How its branches ended is not counted twice.
fn uncount(position: &mut Position, fan: Option<&Fan>) {
    position.dead = position.dead.saturating_sub(fan.map_or(0, Fan::dead_in_all));
}

/// Says whether an unfinished step has something that a start from its top would lose.
fn is_worth_keeping(entry: &FrontierEntry) -> bool {
    let has_begun = entry.fan.is_some()
        || entry.memos > 0
        || entry.status == Status::Waiting
        || (entry.status == Status::Ready && entry.at.attempt > 0);
    entry.input.is_some() && has_begun
}
