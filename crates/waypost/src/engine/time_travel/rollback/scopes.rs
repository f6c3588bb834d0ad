//! Rollback of the scopes below the main scope, to their positions at a checkpoint of the main scope.
//!
//! ```text
//!   main   @1 ------ @5 (target) -------- @9         a: no record since the target, stays at its end
//!   each:a    @1..@3                                 b: from @3, its position then; steps begun since are invalid
//!   each:b    @1..@3      @4..@6                     each: waits for its children again
//! ```
//!
//! Input: the target and its position. Output: for each scope with records since, and for the openers above, the position to
//! continue from. A scope below an opener that is not open then is *closed*: the next opening continues from the position.
//! Reads only.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use crate::id::{CheckpointRef, ScopePath, StepId};
use crate::plan::Broken;
use crate::plan::shape::{Shape, Step, Unfinished};
use crate::projection::events::RerunCause;
use crate::record::{
    End, FrontierEntry, Header, Note, Phase, Position, Reason, Record, Status, Try, WaitKind,
};
use crate::store::portable::begun_since;
use crate::store::{Scan, ScanOrder, StoreError, StoreExt as _};

use super::{ask_about_effects, load_with_state, next_epoch};
use crate::engine::chain::Draft;
use crate::engine::resume::definition::Forget;
use crate::engine::resume::requested::Requested;
use crate::engine::resume::reruns::{Transition, opener_of};
use crate::engine::resume::resume_point::reopened_at;
use crate::engine::resume::trust::{ScopeInForce, ScopesInForce, child_in_force, ended_on, joined_on};
use crate::engine::time_travel::undo::{undone_on, undone_within};
use crate::engine::walk::failure::position_for_retry;
use crate::engine::walk::invalidate::{InvalidStep, ReusePolicy, invalidate, invalidated};
use crate::engine::{Engine, Program, RunError};

/// A time in the history of a run. The lease token orders sessions, and the clock orders the records of a session: records
/// of different scopes have no common number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PointInTime {
    token: u64,
    at: Timestamp,
}

impl PointInTime {
    pub(crate) fn of(header: &Header) -> Self {
        Self { token: header.token, at: header.created_at }
    }
}

/// The handling of closed scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// In a run that continues: the position of then.
    Continue,
    /// In a fork, without closed scopes: an opener runs as a whole if it has opened since.
    Leave,
}

/// The transitions of a rollback.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Of the main scope, and of scopes whose opener is open.
    pub(crate) open: BTreeMap<ScopePath, Transition>,
    pub(crate) closed: BTreeMap<ScopePath, Transition>,
}

/// The scopes of a run at a point in time.
pub(crate) struct ScopesThen {
    scopes: ScopesInForce,
    /// By scope: the steps that have begun since. Without openers whose work is their children.
    begun: BTreeMap<ScopePath, BTreeSet<StepId>>,
    /// Scopes in force with records since.
    changed: BTreeSet<ScopePath>,
    /// Scopes with records since that were not in force: later passes, and children of openers that were not open. With the
    /// record and the position of then, if the state is kept.
    later: BTreeMap<ScopePath, Option<(Record, Position)>>,
    closed: Closed,
}

impl ScopesThen {
    /// Reads the scopes in force at a record of the main scope, which has this position.
    pub(crate) async fn read<P: Program>(
        engine: &Engine,
        program: &P,
        (record, position): (&Record, &Position),
        closed: Closed,
    ) -> Result<Self, RunError> {
        let (shape, store, header) = (program.shape(), engine.store.as_ref(), record.header());
        let point = PointInTime::of(header);
        let (mut changed, mut needed) = (BTreeSet::new(), BTreeSet::new());
        for name in store.scopes(&header.run).await?.into_iter().filter(|name| !name.is_main()) {
            let newest = Scan { scope: Some(name.clone()), limit: 1, ..newest_first(header) };
            let newest = store.scan(&newest).await?;
            if newest.records.first().is_some_and(|newest| PointInTime::of(newest.header()) > point) {
                let above = std::iter::successors(name.parent(), ScopePath::parent);
                needed.extend(above.map(|above| (above.depth(), above)));
                needed.insert((name.depth(), name.clone()));
                changed.insert(name);
            }
        }
        let (scopes, begun, later) = (ScopesInForce::new(), BTreeMap::new(), BTreeMap::new());
        let mut then = Self { scopes, begun, changed, later, closed };
        then.add(engine, shape, (record.clone(), position.clone())).await?;
        let mut whole = BTreeSet::new();
        for (_, name) in needed.into_iter().filter(|(_, name)| !name.is_main()) {
            let in_force = child_in_force(shape, &then.scopes, &name, true);
            let own = shape.of_scope(&name).filter(|own| !own.is_routed());
            let record = record_at(engine, header, &name, point).await?;
            // An item that a later list added.
            let in_force = in_force.filter(|in_force| record.is_some() || !in_force.is_joined);
            let kept = match record.filter(|record| record.state_bytes().is_some()).zip(own) {
                Some((record, own)) => {
                    let (position, _) = position_for_retry(own, &record, false)?;
                    Some((record, position))
                }
                None => None,
            };
            match (kept, in_force) {
                (Some(kept), Some(in_force)) if kept.1.origin == Some(in_force.origin) => {
                    then.add(engine, shape, kept).await?;
                }
                (None, Some(_)) => drop(whole.insert(name)),
                (kept, _) if then.changed.contains(&name) => drop(then.later.insert(name, kept)),
                _ => {}
            }
        }
        let scopes = &then.scopes;
        then.changed.retain(|name| scopes.contains_key(&(name.depth(), name.clone())));
        // The opener of a scope without a state of then, or opened since, runs as a whole.
        for name in whole {
            if let Some((above, opener)) = name.parent().zip(opener_of(shape, &name)) {
                then.begun.entry(above).or_default().insert(opener);
            }
        }
        Ok(then)
    }

    async fn add(
        &mut self,
        engine: &Engine,
        root: &Shape,
        (record, position): (Record, Position),
    ) -> Result<(), RunError> {
        let (store, header) = (engine.store.as_ref(), record.header());
        let scope = header.scope.clone();
        let Some(shape) = root.of_scope(&scope) else { return Ok(()) };
        let openers: BTreeSet<&StepId> =
            shape.steps().iter().filter(|step| step.opens()).map(|step| &step.id).collect();
        let joined = joined_on(store, root, (header, &position), &openers).await?;
        if scope.is_main() || self.changed.contains(&scope) {
            let mut begun = begun_since(store, &header.reference()).await?;
            for step in shape.steps() {
                let Some(children) = step.children.as_ref().filter(|_| begun.contains(&step.id)) else {
                    continue;
                };
                // In a run that continues, the closed scopes list the steps begun since.
                let is_own = children.by_work && self.closed == Closed::Leave;
                if !is_own || !is_opened_since(engine, header, step).await? {
                    begun.remove(&step.id);
                }
            }
            self.begun.insert(scope.clone(), begun);
        }
        self.scopes.insert((scope.depth(), scope), ScopeInForce { record, position, joined });
        Ok(())
    }

    /// Returns the changed scopes: each with its record then, and the record of the opening.
    pub(crate) fn changed(&self) -> impl Iterator<Item = (&ScopePath, u64, Option<u64>)> {
        let known = self.scopes.values().map(|known| (known.record.header(), &known.position));
        let changed = known.filter(|(header, _)| self.changed.contains(&header.scope));
        changed.map(|(header, position)| (&header.scope, header.seq, position.origin))
    }

    /// Returns the openers that run again as a whole: each with the record of its opening then.
    pub(crate) fn whole(&self) -> impl Iterator<Item = (&ScopePath, &StepId, u64)> {
        self.scopes.values().flat_map(|known| {
            let scope = &known.record.header().scope;
            let begun = self.begun.get(scope).into_iter().flatten();
            begun.filter_map(move |step| Some((scope, step, known.position.fan_of(step)?.since)))
        })
    }

    /// Returns the position of each changed scope, and of the openers above: the steps begun since are invalid.
    pub(crate) async fn moves<P: Program>(mut self, engine: &Engine, program: &P) -> Result<Moves, RunError> {
        let (root, store) = (program.shape(), engine.store.as_ref());
        let mut broken = Vec::new();
        for known in self.scopes.values() {
            let scope = known.record.header().scope.clone();
            for step in self.begun.get(&scope).into_iter().flatten() {
                let newest = (known.record.header(), &known.position);
                if let Some(ended) = ended_on(store, root, newest, step).await? {
                    let (scope, step, seq) = (scope.clone(), step.clone(), ended.header().seq);
                    broken.push(Broken { scope, step, seq, claims: Vec::new() });
                }
            }
        }
        let resumed = self.changed.iter().filter(|scope| !self.stays_ended(scope)).cloned().collect();
        let requested = Requested::scopes(&resumed, root);
        let mut moves = reopened_at(engine, program, (&mut self.scopes, &broken), &requested).await?;
        let mut closed = BTreeMap::new();
        let undone = match self.scopes.values().next() {
            Some(main) => undone_within(engine, &main.record.header().run).await?,
            None => BTreeSet::new(),
        };
        // The open fan-outs of each scope.
        let mut open: BTreeMap<ScopePath, BTreeSet<u64>> = BTreeMap::new();
        for known in self.scopes.values() {
            let scope = &known.record.header().scope;
            let Some(shape) = root.of_scope(scope) else { continue };
            let origin = known.position.origin;
            let is_open =
                |above: &ScopePath| open.get(above).zip(origin).is_some_and(|(fans, at)| fans.contains(&at));
            let mut begun = self.begun.get(scope).cloned().unwrap_or_default();
            let undone = undone_on(root, &undone, scope);
            if scope.parent().is_some_and(|above| !is_open(&above)) {
                moves.remove(scope);
                if !begun.is_empty() {
                    let moved = closed_at(engine, shape, known, (&begun, undone)).await?;
                    closed.insert(scope.clone(), moved);
                } else if self.changed.contains(scope) && self.stays_ended(scope) {
                    closed.insert(scope.clone(), ended_at(known));
                }
                continue;
            }
            let moved = match moves.entry(scope.clone()) {
                Entry::Vacant(_) if !self.begun.contains_key(scope) => {
                    open.insert(scope.clone(), fans_of(&known.position));
                    continue;
                }
                moved => moved.or_insert_with(|| Transition::in_place(known)),
            };
            if self.closed == Closed::Leave {
                self.leave_closed(root, (scope, shape), moved, &mut begun);
            }
            restart(engine, shape, (&known.record, moved), (&begun, undone)).await?;
            open.insert(scope.clone(), fans_of(&moved.position));
        }
        if self.closed == Closed::Leave {
            return Ok(Moves { open: moves, closed: BTreeMap::new() });
        }
        drop_results_above(root, &mut moves, &mut closed);
        let main = self.scopes.values().next().map(|main| main.record.header().clone());
        for (scope, then) in self.later {
            let (Some(shape), Some(main)) = (root.of_scope(&scope), &main) else { continue };
            let undone = undone_on(root, &undone, &scope);
            let (record, position, since) = match then {
                Some((record, position)) => {
                    let since = record.header().reference();
                    (record, position, since)
                }
                None => {
                    let newest = store.newest(&main.run, &scope).await?;
                    let since = CheckpointRef { seq: 0, ..newest.header().reference() };
                    let position = unstarted(shape, &newest.header().at.iteration);
                    (newest, position, since)
                }
            };
            let mut begun = begun_since(store, &since).await?;
            begun.retain(|step| shape.step(step.as_str()).is_none_or(|step| step.children.is_none()));
            let known = ScopeInForce { record, position, joined: HashMap::new() };
            closed.insert(scope, closed_at(engine, shape, &known, (&begun, undone)).await?);
        }
        Ok(Moves { open: moves, closed })
    }

    /// Returns whether a scope that had ended then returns to its end: nothing has begun in the scope since. In a fork, the
    /// scope is entered again.
    fn stays_ended(&self, scope: &ScopePath) -> bool {
        let known = self.scopes.get(&(scope.depth(), scope.clone()));
        let has_ended = known.is_some_and(|known| known.record.header().end == Some(End::Completed));
        let is_quiet = self.begun.get(scope).is_none_or(BTreeSet::is_empty);
        self.closed == Closed::Continue && has_ended && is_quiet
    }

    /// Lets the openers of closed scopes run as a whole.
    fn leave_closed(
        &self,
        root: &Shape,
        (scope, shape): (&ScopePath, &Shape),
        moved: &mut Transition,
        begun: &mut BTreeSet<StepId>,
    ) {
        let unfinished = Unfinished::of(shape, &moved.position);
        let fans = fans_of(&moved.position);
        let below = self.changed.iter().chain(self.later.keys());
        for below in below.filter(|below| below.parent().as_ref() == Some(scope)) {
            let opener = opener_of(root, below).and_then(|opener| shape.place(opener.as_str()));
            let Some(place) = opener.filter(|place| unfinished.has(*place)) else { continue };
            let then = self.scopes.get(&(below.depth(), below.clone()));
            if then.and_then(|then| then.position.origin).is_some_and(|origin| fans.contains(&origin)) {
                continue;
            }
            let opener = &shape.steps()[place].id;
            if moved.position.frontier.iter().any(|entry| entry.step == *opener && entry.has_children()) {
                moved.position.drop_results(opener);
                moved.position.rerun_whole.insert(opener.clone());
            } else {
                begun.insert(opener.clone());
            }
        }
    }
}

/// Drops the results of openers and passes whose scopes run again: the results are those of the later work.
fn drop_results_above(
    root: &Shape,
    open: &mut BTreeMap<ScopePath, Transition>,
    closed: &mut BTreeMap<ScopePath, Transition>,
) {
    let runs_again = |moved: &Transition| moved.drafts.last().is_none_or(|draft| draft.end.is_none());
    let again: Vec<ScopePath> =
        closed.iter().filter(|(_, moved)| runs_again(moved)).map(|(scope, _)| scope.clone()).collect();
    for scope in again {
        let Some((above, opener)) = scope.parent().zip(opener_of(root, &scope)) else { continue };
        let Some(moved) = open.get_mut(&above).or_else(|| closed.get_mut(&above)) else { continue };
        let Some(results) = moved.position.reusable.get_mut(&opener) else { continue };
        results.remove(&scope.pass_number().unwrap_or(1));
        if results.is_empty() {
            moved.position.reusable.remove(&opener);
            let is_amid_passes = moved.position.frontier.iter().any(|entry| entry.step == opener);
            moved.forgotten.extend((!is_amid_passes).then(|| Forget::Step(opener)));
        }
    }
}

/// Returns the transition of a scope to its end then.
fn ended_at(known: &ScopeInForce) -> Transition {
    let header = known.record.header();
    let at = Try { attempt: 0, ..header.at.clone() };
    let mut draft = Draft::new(Phase::Restored, Reason::Rollback, None, at);
    (draft.end, draft.failures) = (header.end, header.failures);
    draft.scope_digests.clone_from(&header.scope_digests);
    Transition { drafts: vec![draft], ..Transition::in_place(known) }
}

/// Returns the transition of a closed scope to its position then.
async fn closed_at(
    engine: &Engine,
    shape: &Shape,
    known: &ScopeInForce,
    (begun, undone): (&BTreeSet<StepId>, BTreeSet<StepId>),
) -> Result<Transition, RunError> {
    let mut moved = Transition::in_place(known);
    let epoch = next_epoch(engine, known.record.header(), &known.position).await?;
    let unfinished = Unfinished::of(shape, &known.position);
    let places = begun.iter().filter_map(|step| shape.place(step.as_str()));
    let finished: Vec<usize> = places.filter(|place| !unfinished.has(*place)).collect();
    let downstream = shape.downstream(&finished);
    let invalid_step = |place: &usize| {
        let at = Try { attempt: 0, epoch, iteration: known.record.header().at.iteration.clone() };
        let entry = FrontierEntry { at, ..FrontierEntry::ready(shape.steps()[*place].id.clone()) };
        InvalidStep { place: *place, entry, is_named: false }
    };
    let invalid: Vec<InvalidStep> =
        finished.iter().filter(|place| !downstream.contains(place)).map(invalid_step).collect();
    if !invalid.is_empty() {
        moved.position = invalidate(shape, &known.position, invalid, ReusePolicy::Keep).position;
    }
    restart(engine, shape, (&known.record, &mut moved), (begun, undone)).await?;
    Ok(moved)
}

/// Returns the position of a scope before its first step.
fn unstarted(shape: &Shape, around: &[u32]) -> Position {
    let ready = |place: usize| {
        let at = Try { iteration: shape.first_iteration(place, around), ..Try::default() };
        FrontierEntry { at, ..FrontierEntry::ready(shape.steps()[place].id.clone()) }
    };
    Position { frontier: shape.roots().into_iter().map(ready).collect(), ..Position::default() }
}

/// Returns the records of the open fan-outs of a position.
fn fans_of(position: &Position) -> BTreeSet<u64> {
    position.frontier.iter().flat_map(FrontierEntry::fans).map(|fan| fan.since).collect()
}

/// Opens the steps of a scope that have begun since, with no reuse of their results.
async fn restart(
    engine: &Engine,
    shape: &Shape,
    (record, moved): (&Record, &mut Transition),
    (begun, undone): (&BTreeSet<StepId>, BTreeSet<StepId>),
) -> Result<(), RunError> {
    let header = record.header();
    let epoch = next_epoch(engine, header, &moved.position).await?;
    let position = &mut moved.position;
    let Position { frontier, .. } = &mut *position;
    let mut in_doubt = Vec::new();
    for entry in frontier.iter_mut().filter(|entry| !entry.has_children() || begun.contains(&entry.step)) {
        if entry.is_unsettled() && !entry.has_children() {
            in_doubt.push(entry.clone());
        }
        let asks = entry.waits.iter().any(|wait| {
            // The answer to an old question may have been consumed since: ask again.
            matches!(wait.on, WaitKind::Answer | WaitKind::Signal(_) | WaitKind::Until(_))
        });
        if entry.status == Status::Started || asks || begun.contains(&entry.step) {
            let at = Try { attempt: 0, epoch, iteration: entry.at.iteration.clone() };
            *entry = FrontierEntry { at, ..FrontierEntry::ready(entry.step.clone()) };
        }
    }
    for entry in in_doubt {
        if let Some(step) = shape.step(entry.step.as_str()).filter(|step| step.has_own_effect()) {
            step.note_effect(position, false, Some(entry));
        }
    }
    let is_open = Unfinished::of(shape, position);
    let is_begun = |note: &Note| matches!(note, Note::Event { data, .. } if begun.iter().any(|step| data["step"] == step.as_str()));
    let mut causes: Vec<Note> = moved.drafts.drain(..).flat_map(|draft| draft.report.notes).collect();
    causes.retain(|note| !is_begun(note));
    for (place, step) in shape.steps().iter().enumerate().filter(|(_, step)| begun.contains(&step.id)) {
        position.drop_results(&step.id);
        if step.opens() {
            position.rerun_whole.insert(step.id.clone());
        }
        if !is_open.has(place) {
            continue;
        }
        moved.forgotten.push(Forget::Step(step.id.clone()));
        let cause = RerunCause::Requested { by: None, by_rollback: true };
        causes.push(invalidated(&step.id, &cause));
    }
    ask_about_effects(shape, position, |_, step| begun.contains(&step.id).then_some(None));
    // Steps of a later definition, which a resume may adopt again.
    let is_later = |step: &StepId| shape.place(step.as_str()).is_none_or(|place| !is_open.has(place));
    let later = begun.iter().filter(|step| is_later(step) && !undone.contains(*step));
    later.for_each(|step| position.note_effect(step));
    for step in undone {
        position.ask_no_more(&step);
    }
    let about = position.frontier.first().map(|entry| (entry.step.clone(), entry.at.clone())).unzip();
    let mut draft = Draft::new(Phase::Restored, Reason::Rollback, about.0, about.1.unwrap_or_default());
    draft.report.notes = causes;
    position.note_rerun();
    moved.drafts = vec![draft];
    Ok(())
}

/// Returns the newest record of a scope up to a point in time, with the state of then; without a state if it is not kept.
/// `None` if the scope has no record up to that point.
async fn record_at(
    engine: &Engine,
    main: &Header,
    scope: &ScopePath,
    point: PointInTime,
) -> Result<Option<Record>, RunError> {
    let store = engine.store.as_ref();
    let is_then = |record: &Record| PointInTime::of(record.header()) <= point;
    let mut scan = Scan { scope: Some(scope.clone()), ..newest_first(main) };
    loop {
        let page = store.scan(&scan).await?;
        if let Some(found) = page.records.into_iter().find(is_then) {
            return match load_with_state(engine, &main.run, scope, found.header().seq).await {
                Err(RunError::NoState { .. } | RunError::Store(StoreError::Damaged { .. })) => {
                    Ok(Some(found))
                }
                found => found.map(Some),
            };
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(None),
        }
    }
}

fn newest_first(main: &Header) -> Scan {
    Scan { order: ScanOrder::NewestFirst, ..Scan::of(&main.run) }
}

/// Returns whether a step has opened other children since a record.
async fn is_opened_since(engine: &Engine, then: &Header, step: &Step) -> Result<bool, RunError> {
    let scan = Scan {
        scope: Some(then.scope.clone()),
        seq_min: Some(then.seq + 1),
        step: Some(step.id.to_string()),
        ..Scan::of(&then.run)
    };
    let opens =
        |record: &Record| record.header().reason == Reason::Fork && record.header().phase.opens_work();
    Ok(!engine.store.scan_where(scan, &opens).await?.is_empty())
}
