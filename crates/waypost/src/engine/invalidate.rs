//! Invalidation: the only way to rerun finished work of a graph by needs.
//!
//! ```text
//!   a --> b --> d            a's evidence fails: a is in the frontier, the ends of b and d are reusable, e is untouched
//!    \--> c                  a gives the same: b and d are reused, in the next record
//!   e                        a gives something else: b runs; d is compared when its turn comes
//! ```
//!
//! Input: a position and the invalid steps, each with the new frontier entry. Output: the new position. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::StepId;
use crate::record::{Fan, FrontierEntry, Position, Reusable, Status};
use crate::shape::{Shape, Step, Unfinished};

use super::anew::after;
use super::trace::pass_in;

/// An invalid step.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) place: usize,
    /// The frontier entry of the step.
    pub(super) entry: FrontierEntry,
}

/// Invalidates steps. The ends and the unfinished work downstream become reusable.
pub(super) fn invalidate(shape: &Shape, position: &Position, cuts: Vec<Cut>) -> Position {
    let unfinished = Unfinished::of(shape, position);
    let named: Vec<usize> = cuts.iter().map(|cut| cut.place).collect();
    let mut position = position.clone();
    for place in after(shape, &named).into_iter().filter(|place| !named.contains(place)) {
        set_aside(&mut position, (shape, place), !unfinished.has(place), 0);
    }
    for Cut { place, entry } in cuts {
        let step = &shape.steps()[place];
        let passes_before = pass_in(shape, place, &entry.at.iteration) - 1;
        set_aside(&mut position, (shape, place), !unfinished.has(place), passes_before);
        // The invalid end itself is not reused.
        if let Some(results) = position.reusable.get_mut(&step.id) {
            results.remove(&(passes_before + 1));
        }
        position.reusable.retain(|_, results| !results.is_empty());
        if let Some(fan) = &entry.fan {
            // The same children are joined again.
            position.dead += fan.dead;
            position.joined.insert(step.id.clone(), fan.clone());
        }
        position.epoch = position.epoch.max(entry.at.epoch);
        position.frontier.push(entry);
    }
    position.revisited = true;
    position
}

/// Whether reusable results may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Results {
    /// Yes, if the input of the step is equal.
    Keep,
    /// No: a person asked for a full rerun. Steps with `idempotent: false` are in doubt.
    Drop,
    /// No, and nothing is in doubt.
    Retry,
}

/// Returns the position of a re-entered child scope: all results are reusable, none is current.
///
/// `before`: the previous position. Begun steps with `idempotent: false` are in doubt.
pub(super) fn reenter(shape: &Shape, mut before: Position, results: Results) -> Position {
    let unfinished = Unfinished::of(shape, &before);
    for place in 0..shape.steps().len() {
        set_aside(&mut before, (shape, place), !unfinished.has(place), 0);
    }
    let dropped = match results {
        Results::Keep => BTreeMap::new(),
        Results::Drop | Results::Retry => std::mem::take(&mut before.reusable),
    };
    if results == Results::Retry {
        return Position::default();
    }
    for (step, results) in dropped {
        let is_careful = shape.step(step.as_str()).is_some_and(|step| !step.idempotent);
        match results.into_values().next_back().filter(|_| is_careful) {
            Some(Reusable::Ended { .. }) => before.ask_about(&step, None),
            Some(Reusable::Begun { entry, .. }) => before.ask_about(&step, Some(*entry)),
            None => {}
        }
    }
    let Position { reusable, undone, aside, .. } = before;
    Position { reusable, undone, aside, ..Position::default() }
}

/// Makes the ends and the begun work of a step reusable, except for the first passes to keep.
fn set_aside(position: &mut Position, (shape, place): (&Shape, usize), is_finished: bool, passes_kept: u32) {
    let step = &shape.steps()[place];
    let entry = take_entry(position, &step.id);
    let last = position.ledger.remove(&step.id);
    let fan = position.joined.remove(&step.id);
    let counted = fan.as_ref().or(entry.as_ref().and_then(|entry| entry.fan.as_ref()));
    position.dead = position.dead.saturating_sub(counted.map_or(0, Fan::dead_in_all));
    if let (Some(settled), Some(fan)) = (last, fan.as_ref().filter(|fan| fan.pass > 0)) {
        let ends = fan.passes.iter().map(|pass| pass.settled).chain([settled]);
        for (pass, settled) in (1..).zip(ends) {
            let of_pass = fan.of_pass(pass);
            if pass <= passes_kept {
                position.ledger.insert(step.id.clone(), settled);
                position.dead += of_pass.as_ref().map_or(0, |fan| fan.dead);
                position.joined.extend(of_pass.map(|fan| (step.id.clone(), fan)));
            } else if settled.gave_result() {
                let follows = pass < fan.pass || !is_finished;
                keep(position, &step.id, pass, Reusable::ended(settled, of_pass, follows));
            }
        }
    } else if let Some(settled) = last.filter(|settled| is_finished && settled.gave_result()) {
        keep(position, &step.id, 1, Reusable::ended(settled, fan, false));
    }
    let Some(entry) = entry else { return };
    if entry.is_unsettled() && entry.fan.is_none() && !step.idempotent {
        position.ask_about(&step.id, Some(entry));
    } else if is_worth_keeping(step, &entry) {
        let pass = pass_in(shape, place, &entry.at.iteration);
        let before = last.filter(|_| pass == 1 && step.is_later_pass(&entry));
        keep(position, &step.id, pass, Reusable::Begun { entry: Box::new(entry), before });
    }
}

fn keep(position: &mut Position, step: &StepId, pass: u32, result: Reusable) {
    position.reusable.entry(step.clone()).or_default().insert(pass, result);
}

/// Returns the steps downstream of the cuts.
pub(super) fn downstream(shape: &Shape, cuts: &[Cut]) -> BTreeSet<StepId> {
    let named: Vec<usize> = cuts.iter().map(|cut| cut.place).collect();
    after(shape, &named).into_iter().map(|place| shape.steps()[place].id.clone()).collect()
}

fn take_entry(position: &mut Position, step: &StepId) -> Option<FrontierEntry> {
    let Position { frontier, failed, .. } = position;
    [frontier, failed].into_iter().find_map(|entries| {
        let at = entries.iter().position(|entry| entry.step == *step)?;
        Some(entries.remove(at))
    })
}

/// Says whether a fresh start of an unfinished step would lose work.
fn is_worth_keeping(step: &Step, entry: &FrontierEntry) -> bool {
    let has_begun = entry.fan.is_some()
        || step.is_later_pass(entry)
        || entry.memos > 0
        || entry.status == Status::Waiting
        || (entry.status == Status::Ready && entry.at.attempt > 0);
    entry.input.is_some() && has_begun
}
