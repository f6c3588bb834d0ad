//! The effect of a changed definition on a run in progress. Pure.
//!
//! Steps are compared by id and fingerprint, not by place. Comments, order, names, timeouts and retries are
//! not in a fingerprint, so changes of these have no effect. A step is affected after a change of its
//! definition, an addition or a removal. A step that now comes after an unfinished step is affected, too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use crate::id::{Digest, StepId};
use crate::plan::shape::{END, Shape, Step, Unfinished};
use crate::plan::{Action, Cause, Plan};
use crate::record::{
    Definition, FrontierEntry, Position, Reusable, Settled, SettledAs, Status, StepPrint, Wait, WaitKind,
};

/// The change of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepChange {
    /// The step.
    pub step: StepId,
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The step is finished in this run, or has open scopes of a shared definition, so that results would
    /// be discarded.
    pub touches_finished: bool,
    /// The reason is the step's open scopes.
    pub half_done: bool,
}

/// The kind of a change between two definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeKind {
    /// The step is new.
    Added,
    /// The step was removed.
    Removed,
    /// The definition of the step changed.
    Altered,
    /// Only nested steps changed, none of them finished: the scopes continue from their positions.
    Within,
    /// The list of items changed, and perhaps nested steps: items on both lists keep the results of the other steps.
    Relisted,
    /// The routes changed: to other steps, or to the end. The rest of the definition may have changed, too.
    Rerouted {
        /// The old targets, sorted.
        before: Vec<StepId>,
        /// The new targets, sorted.
        now: Vec<StepId>,
    },
    /// The step did not change, but comes after this unfinished step now.
    Reordered(StepId),
}

impl fmt::Display for StepChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = &self.step;
        match &self.kind {
            ChangeKind::Added => write!(f, "step `{step}` is new"),
            ChangeKind::Removed => write!(f, "step `{step}` is gone"),
            ChangeKind::Altered => write!(f, "the definition of step `{step}` changed"),
            ChangeKind::Within => write!(f, "the definition inside step `{step}` changed"),
            ChangeKind::Relisted => write!(f, "step `{step}` has another list of items"),
            ChangeKind::Rerouted { before, now } => {
                write!(f, "step `{step}` now leads to {}, before to {}", listed(now), listed(before))
            }
            ChangeKind::Reordered(before) => write!(f, "step `{step}` now comes after `{before}`"),
        }
    }
}

/// Returns the names of the route targets; `end` without routes.
fn listed(targets: &[StepId]) -> String {
    if targets.is_empty() {
        return format!("`{END}`");
    }
    targets.iter().map(|step| format!("`{step}`")).collect::<Vec<_>>().join(" or ")
}

/// Returns whether a definition matches a graph: the same steps with the same fingerprints, in any order.
pub fn is_of(definition: &Definition, shape: &Shape) -> bool {
    definition.steps.len() == shape.steps().len()
        && definition.steps.iter().all(|print| {
            shape.step(print.id.as_str()).is_some_and(|step| step.fingerprint == print.fingerprint)
        })
}

/// Compares the definition of a run with another graph.
///
/// `before` is the graph of the run's own definition, `position` the run's position; `within` as for
/// [`transfer_position`].
pub fn changes(
    before: &Shape,
    position: &Position,
    definition: &Definition,
    (after, within): (&Shape, &BTreeSet<StepId>),
) -> Vec<StepChange> {
    let unfinished = Unfinished::of(before, position);
    let finished = |id: &StepId| before.place(id.as_str()).is_some_and(|place| !unfinished.has(place));
    let has_result = |id: &StepId| {
        let stays = after.step(id.as_str()).is_some_and(|step| stays_skipped(before, position, step));
        finished(id) && !stays
    };
    let touching = |id: &StepId, kind| {
        let half_done = is_under_way(before, position, id);
        StepChange { step: id.clone(), kind, touches_finished: half_done || has_result(id), half_done }
    };
    let old: HashMap<&StepId, &StepPrint> = definition.steps.iter().map(|step| (&step.id, step)).collect();
    let mut changes = Vec::new();
    for step in after.steps() {
        match old.get(&step.id) {
            None => changes.push(StepChange {
                step: step.id.clone(),
                kind: ChangeKind::Added,
                touches_finished: false,
                half_done: false,
            }),
            Some(print)
                if print.fingerprint != step.fingerprint
                    && before.step(step.id.as_str()).is_some_and(|old| {
                        let is_open = !finished(&step.id);
                        has_other_list(old, step, is_open)
                            && (has_same_steps(old, step) || within.contains(&step.id))
                    }) =>
            {
                let (kind, touches_finished) = (ChangeKind::Relisted, has_result(&step.id));
                changes.push(StepChange { step: step.id.clone(), kind, touches_finished, half_done: false });
            }
            Some(print) if print.fingerprint != step.fingerprint && within.contains(&step.id) => {
                let kind = ChangeKind::Within;
                changes.push(StepChange {
                    step: step.id.clone(),
                    kind,
                    touches_finished: false,
                    half_done: false,
                });
            }
            Some(print) if print.fingerprint != step.fingerprint => {
                let (before, now) = (print.leads_to.clone(), step.leads_to());
                let kind =
                    if before == now { ChangeKind::Altered } else { ChangeKind::Rerouted { before, now } };
                changes.push(touching(&step.id, kind));
            }
            Some(_) => {}
        }
    }
    for step in &definition.steps {
        if after.place(step.id.as_str()).is_none() {
            changes.push(touching(&step.id, ChangeKind::Removed));
        }
    }
    for place in after.order() {
        let step = &after.steps()[place];
        let mut open =
            after.needs(place).iter().map(|need| &after.steps()[*need].id).filter(|need| !finished(need));
        let change = open.next().map(|need| touching(&step.id, ChangeKind::Reordered(need.clone())));
        changes.extend(change.filter(|change| change.touches_finished));
    }
    changes
}

/// Returns whether a step is skipped, and a changed definition of the step decides so again.
pub(crate) fn stays_skipped(before: &Shape, position: &Position, step: &Step) -> bool {
    let is_skipped = position.ledger.get(&step.id).is_some_and(|end| end.how == SettledAs::Skipped);
    let old = before.step(step.id.as_str()).filter(|old| old.admission.is_some());
    is_skipped && old.is_some_and(|old| old.admission == step.admission)
}

/// Returns whether two openers have different lists of items; their inner steps may differ, too.
fn has_other_list(old: &Step, new: &Step, is_open: bool) -> bool {
    new.has_frame_of(old, is_open) && old.list.is_some() && new.list.is_some() && old.list != new.list
}

/// Returns whether two openers have the same inner steps.
pub(crate) fn has_same_steps(old: &Step, new: &Step) -> bool {
    let prints = |step: &Step| {
        let steps = step.children.iter().flat_map(|children| children.shape.steps());
        steps.map(|step| (step.id.clone(), step.fingerprint)).collect::<Vec<_>>()
    };
    prints(old) == prints(new)
}

/// Returns whether a step has open scopes of a shared definition.
fn is_under_way(before: &Shape, position: &Position, id: &StepId) -> bool {
    let is_whole = |step: &Step| step.children.as_ref().is_some_and(|children| children.whole);
    let mut entries = position.frontier.iter().filter(|entry| entry.step == *id);
    entries.any(FrontierEntry::has_children) && before.step(id.as_str()).is_some_and(is_whole)
}

/// A position transferred to another graph.
#[derive(Debug, Clone, PartialEq)]
pub struct TransferredPosition {
    /// The new position.
    pub position: Position,
    /// Finished or half-done steps that rerun, in the order of the new graph, each with the reason: the
    /// changed step, or the newly unfinished upstream step.
    pub redone: Vec<(StepId, StepId)>,
    /// Openers whose scopes are entered again.
    pub entered: Vec<StepId>,
    /// Why a choice to keep results cannot be followed.
    pub misfit: Option<String>,
}

/// The input of [`transfer_position`]: a position, and the graphs before and after.
#[derive(Debug, Clone, Copy)]
pub struct PositionTransfer<'a> {
    /// The graph of the definition so far.
    pub before: &'a Shape,
    /// The position in the graph before.
    pub position: &'a Position,
    /// The definition so far.
    pub definition: &'a Definition,
    /// The new graph.
    pub after: &'a Shape,
    /// Openers whose scopes stay, although nested steps changed.
    pub within: &'a BTreeSet<StepId>,
    /// Openers whose scopes are entered again: the list of items changed, or finished scopes have new steps.
    pub entered: &'a BTreeSet<StepId>,
    /// Finished steps with results to keep: changed steps, and steps downstream of unfinished steps.
    pub kept: &'a BTreeSet<StepId>,
    /// The newest ends of finished steps outside the ledger.
    pub ends: &'a BTreeMap<StepId, Settled>,
    /// A person must confirm reruns of steps with `idempotent: false`.
    pub asks: bool,
}

/// Transfers a position to another graph: a finished step stays finished if all upstream steps are
/// finished.
///
/// A changed finished step becomes unfinished, and each finished step downstream of an unfinished step. This
/// is a deliberate rerun: steps begin in a new epoch, with new keys and with attempts counted from 1. A kept
/// step stays finished. Downstream of an unfinished step, a kept result is reusable with any input.
pub fn transfer_position(inputs: &PositionTransfer<'_>) -> TransferredPosition {
    let PositionTransfer { before, position, definition, after, within, entered, kept, ends, asks } = *inputs;
    let unfinished = Unfinished::of(before, position);
    let old: HashMap<&StepId, Digest> =
        definition.steps.iter().map(|step| (&step.id, step.fingerprint)).collect();
    let mut finished = vec![false; after.steps().len()];
    // The steps downstream of an added step with kept results.
    let mut keeps = vec![false; after.steps().len()];
    let (mut redone, mut asked, mut reusable, mut effects) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut relisted: HashMap<StepId, Vec<u64>> = HashMap::new();
    // Steps that were removed after their effect.
    let (mut added_again, mut misfit) = (Vec::new(), None);
    for place in after.order() {
        let step = &after.steps()[place];
        let was_finished = before.place(step.id.as_str()).is_some_and(|place| !unfinished.has(place));
        let known = position.frontier.iter().find(|entry| entry.step == step.id);
        let open = after.needs(place).iter().find(|need| !finished[**need]);
        let needs = || after.needs(place).iter().map(|need| &after.steps()[*need].id);
        let reruns = |need: &StepId| {
            redone.iter().any(|(step, _)| step == need) || asked.iter().any(|(step, _)| step == need)
        };
        // `--keep-finished` accepts the definition of a result. Another input is a rerun, as for any result.
        let follows_rerun = needs().any(reruns);
        let fan = known.and_then(|entry| entry.fan.as_ref()).or_else(|| position.joined(&step.id));
        if let Some(fan) = fan.filter(|_| entered.contains(&step.id) && open.is_none()) {
            let fan_outs = fan.relisted.iter().copied().chain([fan.since]);
            relisted.insert(step.id.clone(), fan_outs.collect());
            continue;
        }
        // The passes of a changed step with `repeat` count: it continues with the next pass.
        let is_amid_passes = open.is_some() && known.is_some_and(|entry| step.is_later_pass(entry));
        // Also if the step is idempotent or has children now.
        let was_careful = before.step(step.id.as_str()).is_some_and(|step| !step.idempotent);
        let is_unsettled =
            (was_careful || !step.idempotent) && known.is_some_and(FrontierEntry::is_unsettled);
        let is_in_hooks = known.is_some_and(|entry| entry.hooks.is_some());
        let is_half_done = is_under_way(before, position, &step.id) || is_amid_passes || is_in_hooks;
        let is_added = before.place(step.id.as_str()).is_none();
        let is_repeated = || ends.get(&step.id).is_some_and(Settled::did) || position.had_effect(&step.id);
        if asks && is_added && !step.idempotent && is_repeated() {
            added_again.push(step.id.clone());
            continue;
        }
        if !was_finished && !is_half_done && !is_unsettled {
            continue;
        }
        let is_same = kept.contains(&step.id)
            || old.get(&step.id) == Some(&step.fingerprint)
            || within.contains(&step.id)
            || stays_skipped(before, position, step);
        // Unchanged steps downstream of a kept result are kept too; downstream of another list, traces are
        // compared.
        let need = open.map(|need| &after.steps()[*need].id).filter(|_| is_same && was_finished);
        let above = need.and_then(|need| reusable.iter().find(|(step, _)| step == need));
        let compares = |result: &Reusable| !matches!(result, Reusable::Ended { kept: true, .. });
        let is_compared = needs().any(|need| {
            let is_listed_anew = relisted.contains_key(need) && !kept.contains(need);
            is_listed_anew || reusable.iter().any(|(step, result)| step == need && compares(result))
        });
        let is_kept = kept.contains(&step.id)
            || above.is_some()
            || need.is_some_and(|need| relisted.contains_key(need));
        let follows_kept = after.needs(place).iter().any(|need| keeps[*need]);
        keeps[place] =
            open.is_some() && !follows_rerun && (kept.contains(&step.id) || is_same && follows_kept);
        let end = position.ledger.get(&step.id).or_else(|| ends.get(&step.id));
        let end = end
            .filter(|end| need.is_some() && !follows_rerun && (is_kept || is_compared) && end.has_result());
        if let Some(end) = end {
            let fan = position.joined(&step.id).cloned().map(Box::new);
            let end = Settled { fan, ..end.clone() };
            if entered.contains(&step.id) && !is_compared {
                misfit.get_or_insert_with(|| {
                    format!(
                        "step `{}` has an added step within and a kept result, and follows another added step: adopt \
                         one after the other",
                        step.id
                    )
                });
            }
            let result = if is_compared { Reusable::ended(end, false) } else { Reusable::kept(end) };
            reusable.push((step.id.clone(), result));
            continue;
        }
        if keeps[place] && is_half_done && !was_finished {
            misfit.get_or_insert_with(|| {
                format!(
                    "step `{}` is not finished, and follows an added step: finish the step before, or give up its results",
                    step.id
                )
            });
        }
        let reason = match (is_same, open) {
            (false, _) => Some(step.id.clone()),
            (true, Some(need)) => Some(after.steps()[*need].id.clone()),
            (true, None) => None,
        };
        finished[place] = was_finished && reason.is_none();
        let Some(reason) = reason else { continue };
        // A skipped step may have had its effect before.
        let had_effect = was_finished && position.did(&step.id)
            || position.had_effect(&step.id)
            || known.is_some_and(|entry| step.has_begun(entry));
        if asks && had_effect && !after.is_routed() {
            effects.push(step.id.clone());
        }
        if asks && had_effect && (step.is_careful() || is_unsettled) {
            asked.push((step.id.clone(), known.filter(|entry| step.has_begun(entry)).cloned()));
        } else {
            redone.push((step.id.clone(), reason));
        }
    }
    let is_lost = |entry: &&FrontierEntry| {
        entry.hooks.is_some()
            && after.place(entry.step.as_str()).is_none()
            && before.step(entry.step.as_str()).is_some_and(|step| !step.idempotent)
    };
    if let Some(entry) = position.frontier.iter().find(is_lost) {
        let step = &entry.step;
        misfit.get_or_insert_with(|| {
            format!(
                "step `{step}` must not be repeated, and leaves the definition before its hooks have ended"
            )
        });
    }
    let newest = position
        .frontier
        .iter()
        .map(|entry| entry.at.epoch)
        .chain([position.epoch, position.epoch_max])
        .max();
    let epoch = newest.unwrap_or_default() + 1;
    let is_redone = |id: &StepId| redone.iter().any(|(step, _)| step == id);
    let is_asked = |id: &StepId| asked.iter().any(|(step, _)| step == id);
    let is_anew = |id: &StepId| is_redone(id) || is_asked(id);
    let around = before.passes_around(position);
    let entry = |place: usize| {
        let step = &after.steps()[place].id;
        let known = position.frontier.iter().find(|entry| entry.step == *step).cloned();
        let known = known.filter(|_| !is_anew(step));
        let begin = || {
            let mut entry = FrontierEntry::ready(step.clone());
            entry.at.iteration = after.first_iteration(place, around);
            entry
        };
        let mut entry = known.unwrap_or_else(begin);
        if old.get(step) != Some(&after.steps()[place].fingerprint) {
            wait_anew(&mut entry);
        }
        if let Some(fan_outs) = relisted.get(step) {
            entry = FrontierEntry { relisted: fan_outs.clone(), ..begin() };
        }
        if is_anew(&entry.step) {
            entry.at.epoch = epoch;
        }
        entry
    };
    let minimal = |place: &usize| !finished[*place] && after.needs(*place).iter().all(|need| finished[*need]);
    let frontier = (0..after.steps().len()).filter(minimal).map(entry).collect();
    let counts =
        |id: &StepId| after.place(id.as_str()).is_some() && !is_anew(id) && !relisted.contains_key(id);
    let ledger = position.ledger.iter().filter(|(id, _)| counts(id));
    let is_new = redone.is_empty() && asked.is_empty();
    let mut position = Position {
        frontier,
        ledger: ledger.map(|(id, at)| (id.clone(), at.clone())).collect(),
        epoch: if is_new { position.epoch } else { epoch },
        ..position.clone()
    };
    for (step, entry) in asked.into_iter().chain(added_again.into_iter().map(|step| (step, None))) {
        position.ask_about(&step, entry);
    }
    for (step, result) in reusable {
        position.ledger.remove(&step);
        position.reusable.entry(step).or_default().insert(1, result);
    }
    // Scopes of another definition cannot continue.
    let is_same = |step: &Step| old.get(&step.id) == Some(&step.fingerprint) || within.contains(&step.id);
    position.drop_children_of_started(|entry| after.step(entry.step.as_str()).is_some_and(is_same));
    drop_steps((before, inputs.position), &mut position, |step| after.place(step.as_str()).is_some());
    for (step, _) in &redone {
        position.drop_results(step);
        position.ask_no_more(step);
        if effects.contains(step) {
            position.note_effect(step);
        }
        if after.step(step.as_str()).is_some_and(Step::opens) && !after.is_routed() {
            position.rerun_whole.insert(step.clone());
        }
    }
    TransferredPosition { position, redone, entered: relisted.into_keys().collect(), misfit }
}

/// Removes the steps missing in a graph from a position. Effects are noted, since a later graph may have the steps again.
///
/// `before`: the graph and the position with the steps.
pub(crate) fn drop_steps(
    (before, then): (&Shape, &Position),
    position: &mut Position,
    has_step: impl Fn(&StepId) -> bool,
) {
    let unfinished = Unfinished::of(before, then);
    let had_effect = |(place, step): &(usize, &Step)| {
        let begun = then.frontier.iter().find(|entry| entry.step == step.id);
        let was_done = !unfinished.has(*place) && then.did(&step.id);
        !step.idempotent && (was_done || begun.is_some_and(|entry| step.has_begun(entry)))
    };
    let gone = before.steps().iter().enumerate().filter(had_effect).map(|(_, step)| &step.id);
    let noted = then.reusable.keys().filter(|step| then.had_effect(step));
    let effects: BTreeSet<StepId> = gone.chain(noted).filter(|step| !has_step(step)).cloned().collect();
    position.keep_steps(has_step);
    effects.iter().for_each(|step| position.note_effect(step));
}

/// Ends the own wait of a step with a changed definition: the step begins another wait.
pub(crate) fn wait_anew(entry: &mut FrontierEntry) {
    let is_own = |wait: &Wait| matches!(wait.on, WaitKind::Answer | WaitKind::Signal(_) | WaitKind::Until(_));
    if entry.waits.iter().any(is_own) {
        (entry.status, entry.since, entry.wake_at, entry.memos) = (Status::Ready, 0, None, 0);
        entry.waits.clear();
    }
}

/// Moves a step without children out of its open hooks: with a changed definition, the step runs again with its hooks.
/// Returns whether its hooks were open.
pub(crate) fn leave_hooks(entry: &mut FrontierEntry) -> bool {
    if entry.fan.is_some() || entry.hooks.take().is_none() {
        return false;
    }
    (entry.status, entry.since, entry.failures) = (Status::Ready, 0, 0);
    entry.waits.clear();
    true
}

/// Sets action and cause of rerun steps in a plan for a transferred position.
pub fn explain(plan: &mut Plan, redone: &[(StepId, StepId)]) {
    for decision in plan.decisions.iter_mut().filter(|decision| decision.scope.is_main()) {
        let Some((step, reason)) = redone.iter().find(|(step, _)| *step == decision.step) else { continue };
        decision.action = Action::Run;
        decision.cause = match step == reason {
            true => Cause::Redefined,
            false => Cause::UpstreamChanged(reason.clone()),
        };
    }
}
