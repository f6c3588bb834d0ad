//! Adoption of a definition: whether the program can resume the run, and which finished results a changed definition
//! invalidates.
//!
//! An opener with an unchanged definition keeps its children: only the changed steps of the children are invalid.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{RunId, ScopePath, StepId};
use crate::plan::change::{self, PositionTransfer, StepChange, TransferredPosition};
use crate::plan::shape::{Shape, Step, Unfinished};
use crate::projection::events::RerunCause;
use crate::record::{
    Definition, Fan, FrontierEntry, Header, Note, Phase, Position, Record, Reusable, Settled, SettledAs,
    SkipCause,
};
use crate::store::{Lease, Scan, Store, StoreError, StoreExt as _};

use super::begin::{Base, decode_state};
use crate::engine::inspect::{Snapshot, position_of};
use crate::engine::walk::choice::{KEPT, settled_by_person};
use crate::engine::walk::invalidate::invalidated;
use crate::engine::{Adoption, Engine, OnChange, Program, RunError, StepRef};

/// The input for carrying a position over to an adopted definition.
#[derive(Debug)]
pub(crate) struct Adopting<'a> {
    pub(crate) adoption: &'a Adoption,
    /// The newest ends of the steps of the main scope.
    pub(crate) ends: &'a BTreeMap<StepId, Settled>,
    /// True if a person is asked about reruns of steps with `idempotent: false`.
    pub(crate) asks: bool,
}

/// Carries a position over from its definition to a shape.
pub(crate) fn carried(
    position: &Position,
    definition: &Definition,
    shape: &Shape,
    adopting: &Adopting<'_>,
) -> Result<TransferredPosition, String> {
    let Adopting { adoption: Adoption { before, within, entered, kept, redo, .. }, ends, asks } = *adopting;
    let changes = change::changes(before, position, definition, (shape, within));
    let touching = changes.iter().filter(|change| change.touches_finished && !redo);
    let steps: Vec<_> = touching
        .filter(|change| !kept.contains(&change.step))
        .map(|change| format!("`{}`", change.step))
        .collect();
    if !steps.is_empty() {
        return Err(format!("finished steps changed: {}", steps.join(", ")));
    }
    for step in kept.iter().filter(|step| !within.contains(*step)) {
        let changed = before.step(step.as_str()).zip(shape.step(step.as_str()));
        if let Some(inner) = changed.and_then(|(old, new)| added_within(old, new)) {
            return Err(format!(
                "the result of `{step}` cannot be kept: step `{inner}` within is new or has another list of items"
            ));
        }
    }
    let inputs =
        PositionTransfer { before, position, definition, after: shape, within, entered, kept, ends, asks };
    let transferred = change::transfer_position(&inputs);
    match transferred.misfit {
        Some(misfit) => Err(misfit),
        None => Ok(transferred),
    }
}

/// Returns the causes of an adoption, as notes: reruns of changed steps and of steps downstream, openers entered
/// again for a change within, and kept results.
pub(crate) fn causes_of(adoption: &Adoption, carried: &TransferredPosition, by: Option<&str>) -> Vec<Note> {
    let rerun = carried.redone.iter().map(|(step, reason)| {
        let upstream = Some(reason.clone()).filter(|reason| reason != step);
        let cause = match upstream {
            Some(_) => RerunCause::UpstreamChanged { step: upstream },
            None => RerunCause::DefinitionChanged,
        };
        invalidated(step, &cause)
    });
    let is_redone = |opener: &StepId| carried.redone.iter().any(|(step, _)| step == opener);
    let entered = carried.entered.iter().filter(|opener| !is_redone(opener));
    let entered = entered.map(|opener| invalidated(opener, &RerunCause::DefinitionChanged));
    let kept = adoption.kept.iter().map(|step| settled_by_person(step, KEPT, by));
    rerun.chain(entered).chain(kept).collect()
}

/// Returns the newest ends of the steps of a scope, up to a record.
pub(crate) async fn ends_of(
    store: &dyn Store,
    header: &Header,
) -> Result<BTreeMap<StepId, Settled>, StoreError> {
    let mut ends = BTreeMap::new();
    for record in store.history(&header.run, &header.scope, header.seq).await? {
        let header = record.header();
        let how = match &header.phase {
            Phase::Completed(_) => SettledAs::Completed,
            Phase::Failed(failure) if failure.tolerated => SettledAs::Tolerated,
            Phase::Skipped(SkipCause::ByHand(_)) => SettledAs::SkippedByHand,
            Phase::Skipped(_) => SettledAs::Skipped,
            _ => continue,
        };
        if let Some(step) = &header.step {
            ends.entry(step.clone()).or_insert(Settled::new(how, header.seq));
        }
    }
    Ok(ends)
}

/// Returns the begun steps among new steps of a scope: an earlier definition had the steps, with possible effects.
pub(crate) async fn begun_before(
    store: &dyn Store,
    (run, scope): (&RunId, &ScopePath),
    steps: &BTreeSet<StepId>,
) -> Result<BTreeSet<StepId>, StoreError> {
    if steps.is_empty() {
        return Ok(BTreeSet::new());
    }
    let starts = |record: &Record| record.header().started.iter().any(|start| steps.contains(&start.step));
    let scan = Scan { scope: Some(scope.clone()), ..Scan::of(run) };
    let found = store.scan_where(scan, &starts).await?;
    let started = found.iter().flat_map(|record| &record.header().started).map(|start| &start.step);
    Ok(started.filter(|step| steps.contains(*step)).cloned().collect())
}

/// A part to remove from a state.
#[derive(Debug, Clone)]
pub(crate) enum Forget {
    /// Everything that a step left in the state.
    Step(StepId),
    /// The failure of a step.
    Failure(StepId),
    /// The last join of a step; its scopes are joined again.
    Join(StepId),
    /// Changes of steps since the state of an earlier record of the scope.
    Since(Vec<StepId>, Box<Record>),
}

/// Removes the parts of steps that rerun from a state of a scope.
///
/// # Errors
/// An earlier state cannot be decoded.
pub(crate) fn forget<P: Program>(
    program: &P,
    scope: &ScopePath,
    redone: &[Forget],
    state: &mut P::State,
) -> Result<(), RunError> {
    let Some(shape) = program.shape().of_scope(scope) else { return Ok(()) };
    let step_ref = |step: &StepId| {
        let place = shape.place(step.as_str())?;
        Some(StepRef { scope, level: shape.level(), place, step: &shape.steps()[place] })
    };
    for forget in redone {
        match forget {
            Forget::Step(step) => {
                step_ref(step).into_iter().for_each(|step_ref| program.forget(step_ref, state))
            }
            Forget::Failure(step) => {
                step_ref(step).into_iter().for_each(|step_ref| program.forget_failure(step_ref, state));
            }
            Forget::Join(step) => {
                step_ref(step).into_iter().for_each(|step_ref| program.forget_join(step_ref, state))
            }
            Forget::Since(steps, then) => {
                let then = decode_state(program, shape.level(), then)?;
                steps
                    .iter()
                    .filter_map(step_ref)
                    .for_each(|step_ref| program.restore(step_ref, state, &then));
            }
        }
    }
    Ok(())
}

/// Returns the newest ends of the steps of the main scope: of all steps if the adoption keeps results, else of the added steps
/// with `idempotent: false`. Such a step may have been removed before, and had its effect.
pub(crate) async fn ends_to_adopt(
    engine: &Engine,
    base: &Base,
    shape: &Shape,
    adoption: &Adoption,
) -> Result<BTreeMap<StepId, Settled>, StoreError> {
    let is_added = |step: &Step| !step.idempotent && adoption.before.step(step.id.as_str()).is_none();
    let keeps = !adoption.kept.is_empty();
    if !keeps && !shape.steps().iter().any(is_added) {
        return Ok(BTreeMap::new());
    }
    let mut ends = ends_of(engine.store.as_ref(), base.record.header()).await?;
    ends.retain(|step, _| keeps || shape.step(step.as_str()).is_some_and(is_added));
    Ok(ends)
}

/// Adds the new steps of a graph to the position: [`with_added`]. The inner error says why the graph does not fit.
pub(crate) async fn add_steps(
    engine: &Engine,
    base: &mut Base,
    shape: &Shape,
    before: &Definition,
) -> Result<Result<(), String>, StoreError> {
    let ends = ends_of(engine.store.as_ref(), base.record.header()).await?;
    let position = std::mem::take(&mut base.position);
    let with_added = with_added(shape, position, before, &ends);
    Ok(with_added.map(|position| base.position = position))
}

/// Returns the position with the added steps of a graph in the frontier. A finished step downstream of an added
/// step keeps its result for reuse at its turn.
///
/// `ends`: the newest ends of the steps.
///
/// # Errors
/// A step downstream of an added step has open scopes.
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
            && entry.has_children()
        {
            return Err(format!("step `{step}` has open scopes, and follows a new step"));
        }
        let end = ends.get(step).filter(|end| !unfinished.has(*place) && end.has_result());
        let known = position.ledger.remove(step);
        if let Some(end) = end {
            let fan = known.and_then(|known| known.fan);
            let result = Reusable::kept(Settled { fan, ..end.clone() });
            position.reusable.entry(step.clone()).or_default().insert(1, result);
        }
    }
    let first = added.iter().filter(|place| !downstream.contains(place));
    position.frontier.extend(first.map(|place| FrontierEntry::ready(shape.steps()[*place].id.clone())));
    Ok(position)
}

/// As [`with_added`], for a graph with routes, if the path through the added steps has no choice.
///
/// # Errors
/// A finished step comes after an added step: the state is already the state after that step.
fn with_added_on_route(shape: &Shape, mut position: Position, added: &[usize]) -> Result<Position, String> {
    let only_before = |place: usize| {
        let mut before = (0..shape.steps().len()).filter(|at| shape.routes(*at).contains(&place));
        before.next().filter(|at| before.next().is_none() && shape.routes(*at).len() == 1)
    };
    let mut inserted = Vec::new();
    for entry in position.frontier.iter_mut().filter(|entry| !entry.has_children()) {
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
            Err(format!("step `{step}` is new, and precedes the finished step `{next}`"))
        }
    }
}

/// Checks that a run with a position can continue in a shape: the definition is unchanged, or the change is
/// adopted and the shape has the steps of the frontier.
pub(crate) fn check_fit(
    shape: &Shape,
    position: &Position,
    definition: &Definition,
    on_change: OnChange,
) -> Result<(), String> {
    if change::is_of(definition, shape) {
        return Ok(());
    }
    if on_change == OnChange::Adopt {
        return check_frontier(shape, position);
    }
    let changes = change::changes(shape, position, definition, (shape, &BTreeSet::new()));
    let listed: Vec<_> = changes.iter().map(StepChange::to_string).collect();
    Err(format!("{}, and no choice was given", listed.join(", ")))
}

/// Checks that a shape has the steps of a frontier.
pub(crate) fn check_frontier(shape: &Shape, position: &Position) -> Result<(), String> {
    let gone = position.frontier.iter().find(|entry| shape.place(entry.step.as_str()).is_none());
    match gone {
        None => Ok(()),
        Some(entry) => Err(format!("the run is at step `{}`, which the graph does not have", entry.step)),
    }
}

/// Returns the definition for a restart, if different from the definition of the run record.
///
/// # Errors
/// [`RunError::Changed`]: the run has another graph, and the change is not adopted.
pub(crate) async fn definition_of_restart(
    engine: &Engine,
    lease: &Lease,
    shape: &Shape,
    (adoption, on_change): (Option<&Adoption>, OnChange),
) -> Result<Option<Definition>, RunError> {
    if let Some(adoption) = adoption {
        return Ok(Some(adoption.definition.clone()));
    }
    // An unreadable record cannot be compared; the definition is written again.
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
    /// The position of the main scope in the graph before.
    pub position: &'a Position,
    /// The other graph.
    pub after: &'a Shape,
}

/// A change below an opener of the main scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InnerChange {
    /// The scope of the step.
    pub scope: ScopePath,
    /// The step.
    pub step: StepId,
    /// The kind of the change.
    pub kind: InnerChangeKind,
}

/// The kind of a change below an opener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InnerChangeKind {
    /// The definition of a finished step changed.
    Altered,
    /// The step is new, on a finished scope or upstream of finished steps.
    Added,
    /// A finished step was removed.
    Removed,
    /// A finished opener has another list of items.
    Relisted,
    /// An opener with open scopes has another list of items: no finished result is affected.
    RelistedOpen,
}

/// Returns the openers of the main scope with changed or added inner steps, each with the changes of its scopes. The list
/// of items may have changed, too.
///
/// Reads the newest record of each scope of these openers.
///
/// # Errors
/// Those of reading the run.
pub async fn changed_within(
    store: &dyn Store,
    run: &RunId,
    compared: Compared<'_>,
) -> Result<BTreeMap<StepId, Vec<InnerChange>>, RunError> {
    let Compared { before, position, after } = compared;
    let mut found = BTreeMap::new();
    let open_fans =
        position.frontier.iter().filter_map(|entry| Some((&entry.step, entry.fan.as_ref()?, true)));
    let joined = position.ledger.iter().filter_map(|(step, end)| Some((step, end.fan.as_deref()?, false)));
    for (step, fan, is_open) in open_fans.chain(joined) {
        let Some((old, new)) = before.step(step.as_str()).zip(after.step(step.as_str())) else { continue };
        let has_children_as_before = change::has_same_steps(old, new) && new.has_frame_of(old, false);
        let is_changed = old.fingerprint != new.fingerprint && !has_children_as_before;
        if !is_changed || !is_same_but_list(old, new, is_open) || found.contains_key(step) {
            continue;
        }
        if let Some(changed) = changed_below(store, run, &compared, (step, fan)).await? {
            found.insert(step.clone(), changed);
        }
    }
    Ok(found)
}

/// Returns whether two openers differ at most in the list of items, in the definitions of inner steps, and by added and
/// removed inner steps; with open children also in keys that apply after these.
fn is_same_but_list(old: &Step, new: &Step, is_open: bool) -> bool {
    let children = old.children.as_ref().zip(new.children.as_ref());
    new.has_frame_of(old, is_open)
        && children.is_some_and(|(old, new)| old.name == new.name && is_form_same(&old.shape, &new.shape))
}

/// Returns whether the steps of both graphs are in the same places. A position of the old graph is then valid in the new
/// graph if the added steps come after the open steps.
fn is_form_same(old: &Shape, new: &Shape) -> bool {
    let mut of_both = old.steps().iter().filter_map(|before| Some((before, new.step(before.id.as_str())?)));
    of_both.all(|(before, step)| {
        // A changed step without children runs again, with its hooks.
        let opens = before.children.is_some() || step.children.is_some();
        let same = before.fingerprint == step.fingerprint || !opens || is_same_but_list(before, step, true);
        same && needs_in(new, old, step) == needs_in(old, new, before) && before.routes == step.routes
    })
}

/// Returns the needs of a step among the steps of both graphs. A need of one graph only is replaced by its own needs.
fn needs_in(shape: &Shape, other: &Shape, step: &Step) -> BTreeSet<StepId> {
    let mut known = BTreeSet::new();
    let mut open: Vec<&StepId> = step.needs.iter().collect();
    while let Some(need) = open.pop() {
        match shape.step(need.as_str()).filter(|_| other.place(need.as_str()).is_none()) {
            Some(only_here) => open.extend(&only_here.needs),
            None => drop(known.insert(need.clone())),
        }
    }
    known
}

/// Transfers the position of an open scope to a changed graph: removed steps leave the position, and added steps join it.
///
/// # Errors
/// Why the position does not fit: a removed step is in doubt, or a step downstream of an added step is finished or has open
/// scopes.
pub(crate) fn transfer_scope(
    old: &Shape,
    new: &Shape,
    position: &mut Position,
    around: &[u32],
) -> Result<(), String> {
    let is_careful = |step: &StepId| old.step(step.as_str()).is_some_and(|step| !step.idempotent);
    let is_lost_doubt = |entry: &&FrontierEntry| {
        let has_effect = entry.is_unsettled() || entry.hooks.is_some();
        has_effect && is_careful(&entry.step) && new.place(entry.step.as_str()).is_none()
    };
    if let Some(entry) = position.frontier.iter().find(is_lost_doubt) {
        let state = if entry.hooks.is_some() { "has open hooks" } else { "is in doubt" };
        return Err(format!("step `{}` {state}, and the changed definition lacks the step", entry.step));
    }
    let unfinished = Unfinished::of(old, position);
    let open = old.steps().iter().enumerate().filter(|(place, _)| unfinished.has(*place));
    let open: BTreeSet<&StepId> = open.map(|(_, step)| &step.id).collect();
    drop_removed_steps(old, new, position, around);
    let mut amid_hooks = Vec::new();
    let print = |shape: &Shape, step: &StepId| shape.step(step.as_str()).map(|step| step.fingerprint);
    let is_changed = |entry: &&mut FrontierEntry| print(old, &entry.step) != print(new, &entry.step);
    for entry in position.frontier.iter_mut().filter(is_changed) {
        change::wait_anew(entry);
        amid_hooks.extend(change::leave_hooks(entry).then(|| entry.step.clone()));
    }
    for step in amid_hooks.iter().filter_map(|step| new.step(step.as_str())) {
        step.note_effect(position, true, None);
    }
    add_new_steps((old, new), &open, position, around)
        .map_err(|step| format!("step `{step}` is new, and precedes a finished step"))
}

/// Removes from a position the steps that the new graph lacks. A step becomes ready if its other needs are finished.
///
/// In a graph with routes, the order of steps is not known from needs: the position keeps all steps.
fn drop_removed_steps(old: &Shape, new: &Shape, position: &mut Position, around: &[u32]) {
    let is_there = |step: &StepId| new.place(step.as_str()).is_some();
    if old.is_routed() || new.is_routed() || old.steps().iter().all(|step| is_there(&step.id)) {
        return;
    }
    let unfinished = Unfinished::of(old, position);
    let is_finished = |id: &StepId| old.place(id.as_str()).is_some_and(|place| !unfinished.has(place));
    change::drop_steps((old, &position.clone()), position, is_there);
    for (place, step) in new.steps().iter().enumerate() {
        let is_known = old.place(step.id.as_str()).is_some() && !is_finished(&step.id);
        let is_ready = is_known && step.needs.iter().all(is_finished);
        if is_ready && !position.frontier.iter().any(|entry| entry.step == step.id) {
            let mut entry = FrontierEntry::ready(step.id.clone());
            entry.at.iteration = new.first_iteration(place, around);
            entry.at.epoch = position.epoch;
            position.frontier.push(entry);
        }
    }
}

/// Adds the new steps of a changed graph to the position of an open scope. An added step may delay a step that
/// was ready.
///
/// `open`: the unfinished steps before the change, also those that have left the position with a removed step.
///
/// # Errors
/// The added step, if a downstream step is finished or has open scopes.
fn add_new_steps(
    (old, new): (&Shape, &Shape),
    open: &BTreeSet<&StepId>,
    position: &mut Position,
    around: &[u32],
) -> Result<(), StepId> {
    let Some(added) = new_steps(old, new, position) else { return Ok(()) };
    let downstream = new.downstream(&added);
    let unfinished = Unfinished::of(new, position);
    let is_fixed = |place: &usize| {
        let step = &new.steps()[*place].id;
        let entry = position.frontier.iter().find(|entry| entry.step == *step);
        let is_finished = !unfinished.has(*place) && !open.contains(step);
        !added.contains(place) && (is_finished || entry.is_some_and(FrontierEntry::has_children))
    };
    if downstream.iter().any(is_fixed) {
        return Err(new.steps()[added[0]].id.clone());
    }
    let is_delayed =
        |entry: &mut FrontierEntry| new.place(entry.step.as_str()).is_some_and(|at| downstream.contains(&at));
    let delayed: Vec<FrontierEntry> = position.frontier.extract_if(.., is_delayed).collect();
    for entry in delayed {
        let is_careful = new.step(entry.step.as_str()).is_some_and(|step| !step.idempotent);
        if is_careful && entry.is_unsettled() {
            // The step is in doubt, and a person is asked at its turn.
            position.ask_about(&entry.step.clone(), Some(entry));
        }
    }
    for step in added.iter().map(|place| &new.steps()[*place]) {
        if !step.idempotent && position.had_effect(&step.id) {
            position.ask_about(&step.id, None);
        }
    }
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

/// Returns an added step, or a step with another list of items, inside an opener at any depth.
fn added_within(old: &Step, new: &Step) -> Option<StepId> {
    let (old, new) = old.children.as_ref().zip(new.children.as_ref())?;
    new.shape.steps().iter().find_map(|step| match old.shape.step(step.id.as_str()) {
        Some(before) if before.list == step.list => added_within(before, step),
        _ => Some(step.id.clone()),
    })
}

/// Returns the changes of the scopes of an opener; `None` if a scope is not readable, or if the scopes of passes open
/// again.
async fn changed_below(
    store: &dyn Store,
    run: &RunId,
    compared: &Compared<'_>,
    (step, fan): (&StepId, &Fan),
) -> Result<Option<Vec<InnerChange>>, RunError> {
    let Compared { before, after, .. } = *compared;
    let (mut found, mut current) = (Vec::new(), BTreeSet::new());
    let mut scopes: Vec<ScopePath> = store.scopes(run).await?.into_iter().collect();
    scopes.sort_by_key(ScopePath::depth);
    for scope in scopes {
        let outermost =
            std::iter::successors(Some(scope.clone()), ScopePath::parent).find(|around| around.depth() == 1);
        let Some((name, key)) = outermost.and_then(|outermost| outermost.opened_by()) else { continue };
        if before.opener(&name).is_none_or(|place| before.steps()[place].id != *step) {
            continue;
        }
        // Below a removed step.
        let Some((old, new)) = before.of_scope(&scope).zip(after.of_scope(&scope)) else { continue };
        let newest = match store.newest(run, &scope).await {
            Err(StoreError::Damaged { .. }) => return Ok(None),
            newest => newest?,
        };
        let position = position_of(&newest)?.with_failures_open();
        let pass = key.parse().ok().filter(|_| fan.pass > 0);
        let fan = pass.map_or_else(|| Some(fan.clone()), |pass| fan.of_pass(pass));
        let is_current = fan.is_some_and(|fan| position.origin == Some(fan.since));
        let is_in_force = match scope.parent().filter(|parent| !parent.is_main()) {
            Some(parent) => current.contains(&parent),
            None => is_current,
        };
        if !is_in_force {
            continue;
        }
        current.insert(scope.clone());
        let Some(changed) = changed_on(old, new, &position) else { return Ok(None) };
        // Without traces, a step with several passes is entered again as a whole.
        let opens_again = changed.iter().any(|(_, kind)| *kind != InnerChangeKind::Altered);
        if opens_again && !before.has_evidence() && is_in_loop(before, &scope) {
            return Ok(None);
        }
        let change = |(step, kind)| InnerChange { scope: scope.clone(), step, kind };
        found.extend(changed.into_iter().map(change));
    }
    Ok(Some(found))
}

/// Returns whether a scope is in a pass of a step with several passes.
fn is_in_loop(shape: &Shape, scope: &ScopePath) -> bool {
    let mut around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
    around.any(|below| {
        let above = below.parent().zip(below.opened_by());
        let opener = above.and_then(|(above, (name, _))| {
            let shape = shape.of_scope(&above)?;
            Some((shape, shape.opener(&name)?))
        });
        opener.is_some_and(|(shape, place)| shape.share_loop(place, place))
    })
}

/// Returns the changes of a scope: its added steps only if the scope has ended or downstream steps are finished; `None`
/// if an opener changed.
fn changed_on(old: &Shape, new: &Shape, position: &Position) -> Option<Vec<(StepId, InnerChangeKind)>> {
    let unfinished = Unfinished::of(old, position);
    let has_ended = position.frontier.is_empty();
    let mut transferred = position.clone();
    let is_too_late = transfer_scope(old, new, &mut transferred, &[]).is_err() || has_ended;
    let added = new_steps(old, new, position).filter(|_| is_too_late).unwrap_or_default();
    let added = added.into_iter().map(|place| new.steps()[place].id.clone());
    let mut changed: Vec<_> = added.map(|step| (step, InnerChangeKind::Added)).collect();
    for (place, step) in old.steps().iter().enumerate() {
        let has_open_work =
            position.frontier.iter().any(|entry| entry.step == step.id && entry.has_children());
        let Some(other) = new.step(step.id.as_str()) else {
            // A person is asked about an effect under way.
            let is_started =
                position.frontier.iter().any(|entry| entry.step == step.id && entry.is_unsettled())
                    || position.started_before(&step.id).is_some();
            let inner = step.children.as_ref().map(|children| &children.shape);
            let is_careful_within = has_open_work && inner.is_some_and(|shape| shape.is_careful());
            if is_started && !step.idempotent || is_careful_within {
                return None;
            }
            changed.extend((!unfinished.has(place)).then(|| (step.id.clone(), InnerChangeKind::Removed)));
            continue;
        };
        if step.fingerprint == other.fingerprint {
            continue;
        }
        // The scopes of a copied end are in another run.
        let is_copied =
            position.ledger.get(&step.id).is_some_and(|end| end.fan.is_none() && end.did()) && !has_open_work;
        if is_same_but_list(step, other, has_open_work) && !is_copied {
            let kind = if has_open_work { InnerChangeKind::RelistedOpen } else { InnerChangeKind::Relisted };
            let has_children = has_open_work || position.joined(&step.id).is_some();
            changed.extend((has_children && step.list != other.list).then(|| (step.id.clone(), kind)));
            continue;
        }
        // A step without children whose hooks are open counts as unfinished: it runs again with its hooks.
        if has_open_work && (step.children.is_some() || other.children.is_some()) {
            return None;
        }
        if !unfinished.has(place) && !change::stays_skipped(old, position, other) {
            changed.push((step.id.clone(), InnerChangeKind::Altered));
        }
    }
    Some(changed)
}
