//! Adoption of a definition: whether the program can resume the run, and which finished results a changed definition
//! invalidates.
//!
//! An opener with an unchanged definition keeps its children: only the changed steps of the children are invalid.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::change::{self, CarriedOver, Carry, Change};
use crate::events::{RerunCause, STEP_SETTLED};
use crate::id::{BranchPath, RunId, StepId};
use crate::record::{
    Definition, Fan, FrontierEntry, Note, Phase, Position, Record, Reusable, Settled, SettledAs,
};
use crate::shape::{Shape, Step, Unfinished};
use crate::store::{Lease, Store, StoreError, StoreExt as _};

use super::begin::{Base, decode_state};
use super::inspect::{Snapshot, position_of};
use super::invalidate::invalidated;
use super::{Adoption, Engine, OnChange, Program, RunError, StepRef};

/// How a position is carried over to an adopted definition.
#[derive(Debug)]
pub(super) struct Adopting<'a> {
    pub(super) adoption: &'a Adoption,
    /// The newest ends of the steps of the main branch.
    pub(super) ends: &'a BTreeMap<StepId, Settled>,
    /// A person is asked about reruns of steps with `idempotent: false`.
    pub(super) asks: bool,
}

/// Carries a position of one definition over to a shape.
pub(super) fn carried(
    position: &Position,
    definition: &Definition,
    shape: &Shape,
    adopting: &Adopting<'_>,
) -> Result<CarriedOver, String> {
    let Adopting { adoption: Adoption { before, within, kept, redo, .. }, ends, asks } = *adopting;
    let changes = change::changes(before, position, definition, (shape, within));
    let touching = changes.iter().filter(|change| change.touches_finished && !redo);
    let steps: Vec<_> = touching
        .filter(|change| !kept.contains(&change.step))
        .map(|change| format!("`{}`", change.step))
        .collect();
    if !steps.is_empty() {
        return Err(format!("it touches finished steps: {}", steps.join(", ")));
    }
    for step in kept.iter().filter(|step| !within.contains(*step)) {
        let added = before.step(step.as_str()).zip(shape.step(step.as_str()));
        if let Some(added) = added.and_then(|(before, step)| added_within(before, step)) {
            return Err(format!(
                "step `{added}` is new within `{step}`, and a kept result cannot have it: rerun `{step}`"
            ));
        }
    }
    let carry = Carry { before, position, definition, after: shape, within, kept, ends, asks };
    Ok(change::carry_over(&carry))
}

/// Returns the causes of an adoption, as notes: reruns of changed steps and of steps downstream, and kept results.
pub(super) fn causes_of(adoption: &Adoption, carried: &CarriedOver, by: Option<&str>) -> Vec<Note> {
    let rerun = carried.redone.iter().map(|(step, reason)| {
        let upstream = Some(reason.clone()).filter(|reason| reason != step);
        let cause = match upstream {
            Some(_) => RerunCause::UpstreamChanged { step: upstream },
            None => RerunCause::DefinitionChanged,
        };
        invalidated(step, &cause)
    });
    let kept = adoption.kept.iter().map(|step| {
        let cause = json!({ "code": "settled", "by": by });
        let data = json!({ "step": step, "how": "kept", "cause": cause });
        Note::Event { name: STEP_SETTLED.to_owned(), data }
    });
    rerun.chain(kept).collect()
}

/// Returns the newest ends of the steps of the main branch.
async fn ends_of(engine: &Engine, base: &Base) -> Result<BTreeMap<StepId, Settled>, StoreError> {
    let mut ends = BTreeMap::new();
    let header = base.record.header();
    for record in engine.store.history(&header.run, &header.branch, header.seq).await? {
        let header = record.header();
        let how = match &header.phase {
            Phase::Completed(_) => SettledAs::Completed,
            Phase::Failed(failure) if failure.tolerated => SettledAs::Tolerated,
            Phase::Skipped(_) => SettledAs::Skipped,
            _ => continue,
        };
        if let Some(step) = &header.step {
            ends.entry(step.clone()).or_insert(Settled::new(how, header.seq));
        }
    }
    Ok(ends)
}

/// What is taken out of a state.
#[derive(Debug, Clone)]
pub(super) enum Forget {
    /// All that a step left there.
    Step(StepId),
    /// The failure of a step.
    Failure(StepId),
    /// What its last join of branches did, which are joined again.
    Join(StepId),
    /// What they left there since the state of a record of the branch.
    Since(Vec<StepId>, Box<Record>),
}

/// Takes out of a state of a branch what finished steps left there that run again.
///
/// # Errors
/// A state to go by cannot be read.
pub(super) fn forget<P: Program>(
    program: &P,
    branch: &BranchPath,
    redone: &[Forget],
    state: &mut P::State,
) -> Result<(), RunError> {
    let Some(shape) = program.shape().of_branch(branch) else { return Ok(()) };
    let spot = |step: &StepId| {
        let place = shape.place(step.as_str())?;
        Some(StepRef { branch, level: shape.level(), place, step: &shape.steps()[place] })
    };
    for forget in redone {
        match forget {
            Forget::Step(step) => spot(step).into_iter().for_each(|spot| program.forget(spot, state)),
            Forget::Failure(step) => {
                spot(step).into_iter().for_each(|spot| program.forget_failure(spot, state));
            }
            Forget::Join(step) => spot(step).into_iter().for_each(|spot| program.forget_join(spot, state)),
            Forget::Since(steps, then) => {
                let then = decode_state(program, shape.level(), then)?;
                steps.iter().filter_map(spot).for_each(|spot| program.restore(spot, state, &then));
            }
        }
    }
    Ok(())
}

/// Returns the newest ends of the steps of the main branch, if the adoption keeps results.
pub(super) async fn ends_to_keep(
    engine: &Engine,
    base: &Base,
    adoption: &Adoption,
) -> Result<BTreeMap<StepId, Settled>, StoreError> {
    if adoption.kept.is_empty() { Ok(BTreeMap::new()) } else { ends_of(engine, base).await }
}

/// Adds the new steps of a graph to the position: [`with_added`]. The inner error says why the graph does not fit.
pub(super) async fn add_steps(
    engine: &Engine,
    base: &mut Base,
    shape: &Shape,
) -> Result<Result<(), String>, StoreError> {
    let ends = ends_of(engine, base).await?;
    let position = std::mem::take(&mut base.position);
    let with_added = with_added(shape, position, &base.snapshot.definition, &ends);
    Ok(with_added.map(|position| base.position = position))
}

/// Returns the position with the added steps of a graph in the frontier. A finished step downstream of an added step keeps the
/// result: the result is reused at the step's turn.
///
/// `ends`: the newest ends of the steps.
///
/// # Errors
/// A step downstream of an added step has open branches.
fn with_added(
    shape: &Shape,
    mut position: Position,
    definition: &Definition,
    ends: &BTreeMap<StepId, Settled>,
) -> Result<Position, String> {
    let unfinished = Unfinished::of(shape, &position);
    let is_known = |step: &StepId| definition.steps.iter().any(|print| print.id == *step);
    let steps = shape.steps().iter().enumerate();
    let added = steps.filter(|(place, step)| !is_known(&step.id) && !unfinished.has(*place));
    let added: Vec<usize> = added.map(|(place, _)| place).collect();
    if shape.is_routed() {
        return with_added_on_route(shape, position, &added);
    }
    let downstream = shape.downstream(&added);
    for place in downstream.iter().filter(|place| !added.contains(place)) {
        let step = &shape.steps()[*place].id;
        let at = position.frontier.iter().position(|entry| entry.step == *step);
        if let Some(entry) = at.map(|at| position.frontier.remove(at))
            && entry.fan.is_some()
        {
            return Err(format!("step `{step}` has open branches, and comes after a new step"));
        }
        let end = ends.get(step).filter(|end| !unfinished.has(*place) && end.gave_result());
        if let Some(end) = end {
            let result = Reusable::kept(*end, position.joined.remove(step));
            position.reusable.entry(step.clone()).or_default().insert(1, result);
        }
        position.ledger.remove(step);
    }
    let first = added.iter().filter(|place| !downstream.contains(place));
    position.frontier.extend(first.map(|place| FrontierEntry::ready(shape.steps()[*place].id.clone())));
    Ok(position)
}

/// The same of a graph with routes, as far as the way through the added steps has no choice.
///
/// # Errors
/// A finished step comes after an added step: the state is already the state after that step.
fn with_added_on_route(shape: &Shape, mut position: Position, added: &[usize]) -> Result<Position, String> {
    let only_before = |place: usize| {
        let mut before = (0..shape.steps().len()).filter(|at| shape.routes(*at).contains(&place));
        before.next().filter(|at| before.next().is_none() && shape.routes(*at).len() == 1)
    };
    let mut inserted = Vec::new();
    for entry in position.frontier.iter_mut().filter(|entry| entry.fan.is_none()) {
        let Some(mut first) = shape.place(entry.step.as_str()) else { continue };
        while let Some(before) = only_before(first).filter(|before| added.contains(before)) {
            inserted.push(before);
            first = before;
        }
        if entry.step != shape.steps()[first].id {
            *entry = FrontierEntry::ready(shape.steps()[first].id.clone());
        }
    }
    let is_certain = |place: &usize| {
        !inserted.contains(place)
            && shape.routes(*place).len() == 1
            && (only_before(*place).is_some() || shape.roots().contains(place))
    };
    match added.iter().find(|place| is_certain(place)) {
        None => Ok(position),
        Some(place) => {
            let (step, next) = (&shape.steps()[*place].id, &shape.steps()[shape.routes(*place)[0]].id);
            Err(format!("step `{step}` is new and comes before `{next}`, which is finished"))
        }
    }
}

/// Makes sure that a position of one definition can be gone on with in a shape: they are the same, or that is wanted and
/// the shape has the steps that the position stands at.
pub(super) fn check_fit(
    shape: &Shape,
    position: &Position,
    definition: &Definition,
    on_change: OnChange,
) -> Result<(), String> {
    if change::is_of(definition, shape) {
        return Ok(());
    }
    if on_change == OnChange::Adopt {
        return check_stand(shape, position);
    }
    let changes = change::changes(shape, position, definition, (shape, &BTreeSet::new()));
    let listed: Vec<_> = changes.iter().map(Change::to_string).collect();
    Err(format!("{}, and nobody said to go on with that", listed.join(", ")))
}

/// Makes sure that a shape has the steps that a position stands at.
pub(super) fn check_stand(shape: &Shape, position: &Position) -> Result<(), String> {
    let gone = position.frontier.iter().find(|entry| shape.place(entry.step.as_str()).is_none());
    match gone {
        None => Ok(()),
        Some(entry) => Err(format!("it stands at step `{}`, which the graph does not have", entry.step)),
    }
}

/// Returns the definition that a run is started over with, where that is not the one that it was made with.
///
/// # Errors
/// [`RunError::Changed`]: it was made with another graph, and nobody said to go on with this one.
pub(super) async fn definition_of_restart(
    engine: &Engine,
    lease: &Lease,
    shape: &Shape,
    (adoption, on_change): (Option<&Adoption>, OnChange),
) -> Result<Option<Definition>, RunError> {
    if let Some(adoption) = adoption {
        return Ok(Some(adoption.definition.clone()));
    }
    // What cannot be read cannot be compared: it is said anew then.
    let entry = engine.store.run(lease.run()).await.ok();
    let Some(frozen) = entry.map(|entry| entry.record.record().definition.clone()) else {
        return Ok(Some(shape.definition(None)));
    };
    let in_force = Snapshot::main(engine.store.as_ref(), lease.run()).await;
    let in_force = in_force.map_or_else(|_| frozen.clone(), |snapshot| snapshot.definition);
    let nothing = Position::default();
    check_fit(shape, &nothing, &in_force, on_change)
        .map_err(|why| RunError::Changed { run: lease.run().clone(), why })?;
    Ok(match change::is_of(&in_force, shape) {
        _ if change::is_of(&frozen, shape) => None,
        true => Some(in_force),
        false => Some(shape.definition(None)),
    })
}

/// The definition of a run in comparison with another definition.
#[derive(Debug, Clone, Copy)]
pub struct Compared<'a> {
    /// The graph of the definition so far.
    pub before: &'a Shape,
    /// The position of the main branch in the graph before.
    pub position: &'a Position,
    /// The other graph.
    pub after: &'a Shape,
}

/// Returns the openers of the main branch with changes only in inner steps, each with the changed finished steps of the
/// branches.
///
/// Reads the newest record of each branch of these openers.
///
/// # Errors
/// Those of reading the run.
pub async fn changed_within(
    store: &dyn Store,
    run: &RunId,
    compared: Compared<'_>,
) -> Result<BTreeMap<StepId, Vec<(BranchPath, StepId)>>, RunError> {
    let Compared { before, position, after } = compared;
    let mut found = BTreeMap::new();
    let amid = position.frontier.iter().filter_map(|entry| Some((&entry.step, entry.fan.as_ref()?)));
    for (step, fan) in amid.chain(&position.joined) {
        let Some((old, new)) = before.step(step.as_str()).zip(after.step(step.as_str())) else { continue };
        if old.fingerprint == new.fingerprint || !is_frame_same(old, new) || found.contains_key(step) {
            continue;
        }
        if let Some(changed) = changed_below(store, run, &compared, (step, fan)).await? {
            found.insert(step.clone(), changed);
        }
    }
    Ok(found)
}

/// Says whether steps differ at most by what steps within them do, which are the same ones.
fn is_frame_same(old: &Step, new: &Step) -> bool {
    let children = old.children.as_ref().zip(new.children.as_ref());
    let is_same = old.frame.is_some() && (old.frame, old.list) == (new.frame, new.list);
    let same_after = old.after.is_some() == new.after.is_some();
    is_same
        && same_after
        && children.is_some_and(|(old, new)| old.name == new.name && is_form_same(&old.shape, &new.shape))
}

/// Says whether the one graph has the steps of the other in the same places, and at most others beside them: a position of
/// the old one is one of the new one, as far as those others come after what is open there.
fn is_form_same(old: &Shape, new: &Shape) -> bool {
    old.steps().iter().all(|before| {
        new.step(before.id.as_str()).is_some_and(|step| {
            let opens = before.children.is_some() || step.children.is_some();
            let same = before.fingerprint == step.fingerprint || !opens || is_frame_same(before, step);
            let needs = before.needs.iter().cloned().collect::<BTreeSet<_>>();
            same && needs_known(new, old, step) == needs && before.routes == step.routes
        })
    })
}

/// Returns the needs of a step, with the needs of an added step in place of that step.
fn needs_known(new: &Shape, old: &Shape, step: &Step) -> BTreeSet<StepId> {
    let mut known = BTreeSet::new();
    let mut open: Vec<&StepId> = step.needs.iter().collect();
    while let Some(need) = open.pop() {
        match new.step(need.as_str()).filter(|_| old.place(need.as_str()).is_none()) {
            Some(added) => open.extend(&added.needs),
            None => drop(known.insert(need.clone())),
        }
    }
    known
}

/// Adds the new steps of a changed graph to the position of an open scope. A step that waited for nothing else waits for the
/// added step.
///
/// # Errors
/// The added step with a finished step downstream, or with open branches downstream.
pub(super) fn add_new_steps(
    (old, new): (&Shape, &Shape),
    position: &mut Position,
    around: &[u32],
) -> Result<(), StepId> {
    let Some(added) = new_steps(old, new, position) else { return Ok(()) };
    let downstream = new.downstream(&added);
    let unfinished = Unfinished::of(new, position);
    let is_fixed = |place: &usize| {
        let step = &new.steps()[*place].id;
        let entry = position.frontier.iter().find(|entry| entry.step == *step);
        !added.contains(place) && (!unfinished.has(*place) || entry.is_some_and(|entry| entry.fan.is_some()))
    };
    if downstream.iter().any(is_fixed) {
        return Err(new.steps()[added[0]].id.clone());
    }
    position
        .frontier
        .retain(|entry| new.place(entry.step.as_str()).is_none_or(|place| !downstream.contains(&place)));
    for place in added.iter().filter(|place| !downstream.contains(place)) {
        let mut entry = FrontierEntry::ready(new.steps()[*place].id.clone());
        entry.at.iteration = new.first_iteration(*place, around);
        entry.at.epoch = position.epoch;
        position.frontier.push(entry);
    }
    Ok(())
}

/// Returns the places of the steps that a graph adds and that are not downstream of an unfinished step; `None` if there are
/// none.
fn new_steps(old: &Shape, new: &Shape, position: &Position) -> Option<Vec<usize>> {
    let open = Unfinished::of(new, position);
    let is_added =
        |(place, step): &(usize, &Step)| old.place(step.id.as_str()).is_none() && !open.has(*place);
    let added: Vec<usize> = new.steps().iter().enumerate().filter(is_added).map(|(place, _)| place).collect();
    (!added.is_empty()).then_some(added)
}

/// Returns a step that a graph adds within an opener, at any depth.
fn added_within(old: &Step, new: &Step) -> Option<StepId> {
    let (old, new) = old.children.as_ref().zip(new.children.as_ref())?;
    new.shape.steps().iter().find_map(|step| match old.shape.step(step.id.as_str()) {
        None => Some(step.id.clone()),
        Some(before) => added_within(before, step),
    })
}

/// Returns the changed finished steps of the branches of an opener; `None` if a branch has to run added steps, or is not
/// readable.
async fn changed_below(
    store: &dyn Store,
    run: &RunId,
    compared: &Compared<'_>,
    (step, fan): (&StepId, &Fan),
) -> Result<Option<Vec<(BranchPath, StepId)>>, RunError> {
    let Compared { before, after, .. } = *compared;
    let mut found = Vec::new();
    for branch in store.branches(run).await? {
        let outermost = std::iter::successors(Some(branch.clone()), BranchPath::parent)
            .find(|around| around.depth() == 1);
        let Some((name, key)) = outermost.and_then(|outermost| outermost.opened_by()) else { continue };
        if before.opener(&name).is_none_or(|place| before.steps()[place].id != *step) {
            continue;
        }
        let Some((old, new)) = before.of_branch(&branch).zip(after.of_branch(&branch)) else {
            return Ok(None);
        };
        let newest = match store.newest(run, &branch).await {
            Err(StoreError::Damaged { .. }) => return Ok(None),
            newest => newest?,
        };
        let position = position_of(&newest)?;
        let pass = key.parse().ok().filter(|_| fan.pass > 0);
        let fan = pass.map_or_else(|| Some(fan.clone()), |pass| fan.of_pass(pass));
        let is_current = fan.is_some_and(|fan| position.origin == Some(fan.since));
        if branch.depth() == 1 && !is_current {
            continue;
        }
        let Some(changed) = changed_on(old, new, &position) else { return Ok(None) };
        found.extend(changed.into_iter().map(|step| (branch.clone(), step)));
    }
    Ok(Some(found))
}

/// Returns the changed finished steps of a branch; `None` if the branch has to run added steps or an opener changed.
fn changed_on(old: &Shape, new: &Shape, position: &Position) -> Option<Vec<StepId>> {
    let unfinished = Unfinished::of(old, position);
    let has_ended = position.frontier.is_empty() && position.failed.is_empty();
    if has_ended && new_steps(old, new, position).is_some()
        || add_new_steps((old, new), &mut position.clone(), &[]).is_err()
    {
        return None;
    }
    let mut changed = Vec::new();
    for (place, step) in old.steps().iter().enumerate() {
        let other = new.step(step.id.as_str())?;
        if step.fingerprint == other.fingerprint || is_frame_same(step, other) {
            continue;
        }
        let is_amid = position.frontier.iter().any(|entry| entry.step == step.id && entry.fan.is_some());
        if is_amid {
            return None;
        }
        if !unfinished.has(place) {
            changed.push(step.id.clone());
        }
    }
    Some(changed)
}
