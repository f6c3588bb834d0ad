//! Invalidation: the only way to rerun finished work in a graph with `needs`. Graphs with routes
//! [rewind](super::rewind).
//!
//! ```text
//!   a --> b --> d            a's evidence fails: a is in the frontier, b, c and d are reusable, e is untouched
//!    \--> c                  a ends with the same output: b and c are reused in the next record, then d
//!   e                        a ends with another output: b and c run; d is compared at its turn
//! ```
//!
//! Input: a position and the invalid steps, each with the new frontier entry. Output: the new position, and the results to
//! remove from the state. Pure.

use std::collections::BTreeSet;

use serde_json::json;

use crate::id::StepId;
use crate::plan::shape::{Shape, Step, Unfinished};
use crate::projection::events::{RerunCause, STEP_INVALIDATED};
use crate::record::{FrontierEntry, Note, Position, Reusable, Settled, Status};

use super::trace::pass_in;
use crate::engine::resume::definition::Forget;

/// An invalid step, with its entry in the frontier of the new position.
#[derive(Debug)]
pub(crate) struct InvalidStep {
    pub(crate) place: usize,
    /// With a fan-out, the step joins the same children again. The children of the fan-outs in `relisted` continue.
    pub(crate) entry: FrontierEntry,
    /// A person named the step: the rerun is not in doubt.
    pub(crate) is_named: bool,
}

/// Whether the results that an invalidation takes out of force may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReusePolicy {
    /// Yes, if the input of the step is equal.
    Keep,
    /// No: a person requested a rerun of all downstream steps. Of these, steps with `idempotent: false` are in doubt.
    Drop,
    /// No, and nothing is in doubt.
    Retry,
}

impl ReusePolicy {
    /// Returns a policy without reuse. `asks`: a person is asked before a rerun of a step with `idempotent: false`.
    pub(crate) fn excluded(asks: bool) -> Self {
        if asks { Self::Drop } else { Self::Retry }
    }
}

/// A position after an invalidation.
#[derive(Debug)]
pub(crate) struct Invalidated {
    pub(crate) position: Position,
    /// The results to remove from the state. None with [`ReusePolicy::Keep`]: reuse may need the results.
    pub(crate) forgotten: Vec<Forget>,
}

/// Takes the ends and the unfinished work of invalid steps and of all downstream steps out of force.
///
/// `invalid`: none is downstream of another.
pub(crate) fn invalidate(
    shape: &Shape,
    position: &Position,
    invalid: Vec<InvalidStep>,
    policy: ReusePolicy,
) -> Invalidated {
    let unfinished = Unfinished::of(shape, position);
    let mut after = Invalidated { position: position.clone(), forgotten: Vec::new() };
    for place in downstream(shape, &invalid) {
        let (step, is_finished) = (&shape.steps()[place], !unfinished.has(place));
        if policy == ReusePolicy::Keep {
            make_reusable(&mut after.position, (shape, place), is_finished, 0);
        } else {
            after.drop_all(step, is_finished, policy);
        }
    }
    for InvalidStep { place, entry, is_named } in invalid {
        let (step, is_finished) = (&shape.steps()[place], !unfinished.has(place));
        let passes_before = pass_in(shape, place, &entry.at.iteration) - 1;
        let continues = entry.fan.is_some() || !entry.relisted.is_empty();
        if policy == ReusePolicy::Keep {
            make_reusable(&mut after.position, (shape, place), is_finished, passes_before);
            // The invalid end itself is not reused.
            if let Some(results) = after.position.reusable.get_mut(&step.id) {
                results.remove(&(passes_before + 1));
            }
        } else {
            let before =
                after.position.ledger.get(&step.id).and_then(|last| end_of_pass(last, passes_before));
            let is_decided = is_named || continues;
            after.drop_all(step, is_finished, if is_decided { ReusePolicy::Retry } else { policy });
            after.position.ledger.extend(before.map(|before| (step.id.clone(), before)));
        }
        let position = &mut after.position;
        position.reusable.retain(|_, results| !results.is_empty());
        if continues {
            // Later passes follow the requested rerun.
            if !shape.share_loop(place, place) {
                position.rerun_whole.remove(&step.id);
            }
            let of_step = |forget: &Forget| matches!(forget, Forget::Step(id) if *id == step.id);
            let forgets = after.forgotten.iter().any(of_step);
            after.forgotten.retain(|forget| !of_step(forget));
            // An open pass has not joined.
            if forgets && is_finished {
                after.forgotten.push(Forget::Join(step.id.clone()));
            }
        }
        position.epoch = position.epoch.max(entry.at.epoch);
        position.epoch_max = position.epoch_max.max(entry.at.epoch);
        position.frontier.push(entry);
    }
    after.position.chain = None;
    after.position.note_rerun();
    after
}

impl Invalidated {
    /// Drops the end, the unfinished work and the results out of force of a step, as [`Self::drop_end`].
    fn drop_all(&mut self, step: &Step, is_finished: bool, policy: ReusePolicy) {
        let (was_done, begun) = self.position.effect_of_results(&step.id);
        step.note_effect(&mut self.position, was_done, begun);
        self.drop_end(step, is_finished, policy);
        self.exclude_reuse(step);
    }

    /// Excludes reuse in a step: of results already out of force, and in the scopes of its children.
    pub(crate) fn exclude_reuse(&mut self, step: &Step) {
        self.position.drop_results(&step.id);
        if step.opens() {
            self.position.rerun_whole.insert(step.id.clone());
        }
    }

    /// Drops the end and the unfinished work of a step. With [`ReusePolicy::Drop`], a step with `idempotent: false` is in
    /// doubt, and the result stays in the state, since a person may keep the result.
    pub(crate) fn drop_end(&mut self, step: &Step, is_finished: bool, policy: ReusePolicy) {
        let position = &mut self.position;
        let id = &step.id;
        let was_done = is_finished && position.did(id) || position.had_effect(id);
        let entry = take_entry(position, id);
        position.ledger.remove(id);
        if policy != ReusePolicy::Drop {
            position.ask_no_more(id);
        } else if step.note_effect(position, was_done, entry) {
            return;
        }
        self.forgotten.push(Forget::Step(id.clone()));
    }
}

/// Returns the position of a re-entered child scope: all results are reusable, none is current.
///
/// `before`: the position in the previous fan-out. Begun steps with `idempotent: false` are in doubt.
pub(crate) fn reenter(shape: &Shape, mut before: Position, policy: ReusePolicy) -> Position {
    let unfinished = Unfinished::of(shape, &before);
    for place in 0..shape.steps().len() {
        make_reusable(&mut before, (shape, place), !unfinished.has(place), 0);
    }
    if policy == ReusePolicy::Retry {
        return Position::default();
    }
    let reusable = std::mem::take(&mut before.reusable);
    let mut after = Position { reusable: reusable.clone(), choices: before.choices, ..Position::default() };
    if policy == ReusePolicy::Drop {
        for (step, results) in reusable {
            after.drop_results(&step);
            let Some((step, result)) = shape.step(step.as_str()).zip(results.into_values().next_back())
            else {
                continue;
            };
            let (has_effect, begun) = match result {
                Reusable::Ended { settled, .. } => {
                    (step.has_own_effect() || step.repeats_effect_of(&settled), None)
                }
                Reusable::Begun { entry, .. } => (step.has_own_effect(), Some(*entry)),
                _ => continue,
            };
            if has_effect {
                step.note_effect(&mut after, true, begun);
            }
        }
    }
    after
}

/// Returns the end of an earlier pass of a step, from the last end.
fn end_of_pass(last: &Settled, pass: u32) -> Option<Settled> {
    let fan = last.fan.as_ref()?;
    let before = fan.passes.get(pass.checked_sub(1)? as usize)?;
    Some(Settled { fan: fan.of_pass(pass).map(Box::new), ..before.settled.clone() })
}

/// Moves the ends and the begun work of a step from the ledger and the frontier to the reusable results. The first
/// `passes_kept` passes stay in force.
fn make_reusable(
    position: &mut Position,
    (shape, place): (&Shape, usize),
    is_finished: bool,
    passes_kept: u32,
) {
    let step = &shape.steps()[place];
    let entry = take_entry(position, &step.id);
    let last = position.ledger.remove(&step.id);
    let passes = last.as_ref().and_then(|settled| Some((settled, settled.fan.as_ref()?)));
    if let Some((settled, fan)) = passes.filter(|(_, fan)| fan.pass > 0) {
        let ends = fan.passes.iter().map(|pass| &pass.settled).chain([settled]);
        for (pass, settled) in (1..).zip(ends) {
            let settled = Settled { fan: fan.of_pass(pass).map(Box::new), ..settled.clone() };
            if pass <= passes_kept {
                position.ledger.insert(step.id.clone(), settled);
            } else if settled.is_reusable() {
                let follows = pass < fan.pass || !is_finished;
                insert_reusable(position, &step.id, pass, Reusable::ended(settled, follows));
            }
        }
    } else if let Some(settled) = last.clone().filter(|settled| is_finished && settled.is_reusable()) {
        insert_reusable(position, &step.id, 1, Reusable::ended(settled, false));
    } else if is_finished && last.is_none() && step.has_own_effect() {
        // Without traces, the ledger lacks the end of a completed step.
        step.note_effect(position, true, None);
    }
    let Some(entry) = entry else { return };
    let has_own_effect = !step.idempotent && entry.fan.is_none();
    if has_own_effect && entry.is_unsettled() {
        position.ask_about(&step.id, Some(entry));
    } else if is_worth_keeping(step, &entry) {
        let pass = pass_in(shape, place, &entry.at.iteration);
        let before = last.filter(|_| pass == 1 && step.is_later_pass(&entry));
        insert_reusable(position, &step.id, pass, Reusable::Begun { entry: Box::new(entry), before });
    } else if has_own_effect && step.has_begun(&entry) {
        position.ask_about(&step.id, Some(entry));
    }
}

fn insert_reusable(position: &mut Position, step: &StepId, pass: u32, result: Reusable) {
    position.reusable.entry(step.clone()).or_default().insert(pass, result);
}

/// Returns the places of the steps downstream of invalid steps.
pub(crate) fn downstream(shape: &Shape, invalid: &[InvalidStep]) -> BTreeSet<usize> {
    let named: Vec<usize> = invalid.iter().map(|step| step.place).collect();
    let mut downstream = shape.downstream(&named);
    downstream.retain(|place| !named.contains(place));
    downstream
}

/// Returns the first step of `causes` that is upstream of a step.
pub(crate) fn upstream_of<'a>(
    shape: &Shape,
    step: &StepId,
    mut causes: impl Iterator<Item = &'a StepId>,
) -> Option<&'a StepId> {
    let place = shape.place(step.as_str())?;
    causes.find(|cause| {
        let cause = shape.place(cause.as_str());
        cause.is_some_and(|cause| cause != place && shape.downstream(&[cause]).contains(&place))
    })
}

/// Returns the note of the cause of a rerun.
pub(crate) fn invalidated(step: &StepId, cause: &RerunCause) -> Note {
    Note::Event { name: STEP_INVALIDATED.to_owned(), data: json!({ "step": step, "cause": cause }) }
}

fn take_entry(position: &mut Position, step: &StepId) -> Option<FrontierEntry> {
    let Position { frontier, failed, .. } = position;
    [frontier, failed].into_iter().find_map(|entries| {
        let at = entries.iter().position(|entry| entry.step == *step)?;
        Some(entries.remove(at))
    })
}

/// Returns whether a start from the top would lose work of an unfinished step.
fn is_worth_keeping(step: &Step, entry: &FrontierEntry) -> bool {
    // A failed step enters its children again, and their ends are reused.
    if entry.status == Status::Failed && entry.has_children() {
        return false;
    }
    let has_begun = entry.has_children()
        || step.is_later_pass(entry)
        || entry.memos > 0
        || entry.status == Status::Waiting
        || entry.at.attempt > 0;
    entry.input.is_some() && has_begun
}
