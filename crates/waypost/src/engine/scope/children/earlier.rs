//! The records of a child before the opening: of this fan-out, or of an earlier fan-out.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::id::{ScopePath, StepId};
use crate::plan::shape::{Shape, Step, Unfinished};
use crate::plan::steps_in_lost;
use crate::record::{FrontierEntry, Position, Record, RerunKind, RerunRequest, Try};
use crate::store::{Head, Scan, ScanOrder, StoreError};

use super::{ChildStart, Earlier, position_before};
use crate::engine::chain::Chain;
use crate::engine::inspect::position_of;
use crate::engine::resume::begin::decode_state;
use crate::engine::resume::definition::{begun_before, ends_of};
use crate::engine::resume::requested::ContinuedChild;
use crate::engine::resume::requested::begun_before_fork;
use crate::engine::scope::ScopeId;
use crate::engine::scope::fan_out::Item;
use crate::engine::scope::open_scopes::is_fresh;
use crate::engine::session::Session;
use crate::engine::time_travel::undo::{still_undone, undone_ends, undone_on};
use crate::engine::walk::failure::position_for_retry;
use crate::engine::walk::invalidate::{Invalidated, ReusePolicy};
use crate::engine::walk::scheduler::children_of;
use crate::engine::{Program, RunError, StepRef};

impl<'a, P: Program> Session<'a, P> {
    /// Returns the earlier records of a child: of this fan-out, if damage or a rollback removed the record of the
    /// opening; else of an earlier fan-out, to continue the chain.
    pub(super) async fn earlier(
        &mut self,
        id: ScopeId,
        place: usize,
        item: &Item,
    ) -> Result<Earlier, RunError> {
        let scope = self.scopes.get(id);
        let path = children_of(scope, place).path(scope.path(), &item.key);
        let path = path.map_err(|error| StoreError::Invalid(error.to_string()))?;
        let mut chain = Chain::child(&scope.chain, path);
        let epoch = scope.entry(place).at.epoch;
        let fan = scope.fans.iter().find(|fan| fan.place == place).expect("the fan-out is under way");
        let after_failure = fan.after_failure;
        if !fan.revisited {
            return Ok(Earlier::none(chain, epoch));
        }
        let scan = Scan {
            scope: Some(chain.scope.clone()),
            order: ScanOrder::NewestFirst,
            limit: 1,
            ..Scan::of(&chain.run)
        };
        let found = self.engine.store.scan(&scan).await?;
        let newest = found.records.first().map(|record| (record.header().seq, record.header().end));
        let damaged = found.damaged.iter().map(|damage| damage.seq).max().unwrap_or(0);
        let (seq, end) = newest.unwrap_or_default();
        chain.next = seq.max(damaged) + 1;
        if end.is_none() && seq > 0 {
            // Only the store knows which records were quarantined.
            chain.next = chain.next.max(self.next_seq(id, place, &chain.scope).await?);
        }
        let fan = self.scopes.get(id).entry(place).open_fan();
        let since = fan.map_or(0, |fan| fan.since);
        let relisted = fan.filter(|_| !self.keeps_traces).map_or_else(Vec::new, |fan| fan.relisted.clone());
        if seq > 0 && (since > 0 || !relisted.is_empty()) {
            let record = match self.engine.store.load(&chain.run, &chain.scope, seq).await {
                // The next sound record below continues, as in `heads`.
                Err(StoreError::Damaged { older, .. }) => {
                    return self.child_after_damage(id, place, chain, (since, older)).await;
                }
                record => record?,
            };
            let shape: &'a Shape = &children_of(self.scopes.get(id), place).shape;
            let position = match record.body_bytes() {
                Some(_) => position_for_retry(shape, &record, false)?.0,
                None => Position::default(),
            };
            match position.origin {
                Some(origin) if since > 0 && origin == since => {
                    let head = || Head { record, next: chain.next, damaged: found.damaged };
                    return Ok(if end.is_some() { Earlier::Ended } else { Earlier::Open(Box::new(head())) });
                }
                Some(origin)
                    if !is_fresh(&position)
                        && relisted.contains(&origin)
                        && self.is_same_item(shape, &position, (item, &record))? =>
                {
                    let epoch = self.next_child_epoch(id, place, &chain.scope).await?;
                    let iteration = self.scopes.get(id).entry(place).at.iteration.clone();
                    let at = Try { attempt: 0, epoch, iteration };
                    let mut after = self.continued(shape, position, (item, &record), &at).await?;
                    let done_before = self.done_before(id, place, &chain.scope).await?;
                    done_before.iter().for_each(|step| after.position.note_effect(step));
                    if !after.position.open_entries().any(FrontierEntry::has_children) {
                        let head = Head { record, next: chain.next, damaged: found.damaged };
                        return Ok(Earlier::Relisted(Box::new(head), Box::new(after)));
                    }
                }
                _ => {}
            }
        }
        let before = match seq > 0 {
            true => {
                let shape = &children_of(self.scopes.get(id), place).shape;
                position_before(self.engine.store.as_ref(), shape, &chain, seq).await?
            }
            false => None,
        };
        let replaced = before.as_ref().and_then(|position| position.item.clone());
        // A new execution and not a rerun: a later pass, or the hooks of another failure.
        let around = &self.scopes.get(id).entry(place).at.iteration;
        let is_new = after_failure || found.records.first().is_some_and(|record| is_passed(record, around));
        let finished = match is_new {
            true => Vec::new(),
            false => self.finished_in_pass(id, place, item, (found.records.first(), before.as_ref())),
        };
        // Without traces, no result is reused, and effects are asked about.
        let (scope, children) = (self.scopes.get(id), children_of(self.scopes.get(id), place));
        let asks = !scope.shape.is_routed() && children.shape.is_careful();
        let before = before.filter(|_| !is_new && (self.keeps_traces || asks));
        if chain.next > 1 {
            chain.prev = found.records.first().map(Record::digest);
            chain.basis = Some(0);
            chain.repair = chain.next != seq + 1;
        }
        let epoch = self.next_child_epoch(id, place, &chain.scope).await?;
        let undone = match &before {
            Some(_) if asks => self.undone_in(&chain.scope).await?,
            _ => BTreeSet::new(),
        };
        let done_before = self.done_before(id, place, &chain.scope).await?;
        Ok(Earlier::None(Box::new(ChildStart {
            chain,
            epoch,
            before,
            finished,
            replaced,
            undone,
            done_before,
        })))
    }

    /// Returns the steps of a child with an earlier effect: the new steps with `idempotent: false` that an earlier definition
    /// had and that have begun, and the steps that have begun in the run before the fork.
    async fn done_before(
        &mut self,
        id: ScopeId,
        place: usize,
        child: &ScopePath,
    ) -> Result<BTreeSet<StepId>, RunError> {
        let shape: &Shape = &children_of(self.scopes.get(id), place).shape;
        let is_new = |kind| matches!(kind, RerunKind::Add | RerunKind::Insert);
        let requests = self.main().position.requests.iter();
        let new = requests.filter(|request| request.scope == *child && is_new(request.kind));
        let careful = |step: &&StepId| shape.step(step.as_str()).is_some_and(|step| !step.idempotent);
        let new: BTreeSet<StepId> = new.map(|request| &request.step).filter(careful).cloned().collect();
        if self.answers.retries_all() {
            return Ok(BTreeSet::new());
        }
        let run = self.main().chain.run.clone();
        let begun = begun_before(self.engine.store.as_ref(), (&run, child), &new).await?;
        let undone = if begun.is_empty() { BTreeSet::new() } else { self.undone_in(child).await? };
        Ok(&(&begun - &undone) | &begun_before_fork(&self.main().position.requests, child))
    }

    /// Returns the steps of a child without an effect after an undo.
    async fn undone_in(&mut self, child: &ScopePath) -> Result<BTreeSet<StepId>, RunError> {
        let run = self.main().chain.run.clone();
        if self.undone_ends.is_none() {
            self.undone_ends = Some(undone_ends(self.engine, &run).await?);
        }
        let ends = self.undone_ends.as_ref().expect("the ends were just read");
        let undone = still_undone(self.engine, &run, ends, child).await?;
        Ok(undone_on(self.program.shape(), &undone, child))
    }

    /// Returns whether the value of a child's item is unchanged, or replaced by a person.
    fn is_same_item(
        &self,
        shape: &Shape,
        position: &Position,
        (item, before): (&Item, &Record),
    ) -> Result<bool, RunError> {
        let state = decode_state(self.program, shape.level(), before)?;
        Ok(position.item.is_some() || self.program.is_of_item(&state, item))
    }

    /// Returns the position of a child that continues in another fan-out.
    async fn continued(
        &mut self,
        shape: &Shape,
        position: Position,
        (item, before): (&Item, &Record),
        at: &Try,
    ) -> Result<Invalidated, RunError> {
        let header = before.header();
        let scope = &header.scope;
        let mut requests = self.main().position.requests.clone();
        requests.extend(self.index_readers(scope, shape, (item, before))?);
        let ends = match requests.iter().any(|request| request.kind == RerunKind::Insert) {
            true => ends_of(self.engine.store.as_ref(), header).await?,
            false => BTreeMap::new(),
        };
        let root = self.program.shape();
        let policy = ReusePolicy::excluded(!self.answers.retries_all());
        let child = ContinuedChild { root, scope, requests: &requests, ends: &ends, at, policy };
        Ok(child.invalidate_requested(position))
    }

    /// Returns the steps of a child that read the index of the item, if the item had another index before.
    fn index_readers(
        &self,
        scope: &ScopePath,
        shape: &Shape,
        (item, before): (&Item, &Record),
    ) -> Result<Vec<RerunRequest>, RunError> {
        let mut state = decode_state(self.program, shape.level(), before)?;
        if !self.program.set_index(&mut state, item.index) {
            return Ok(Vec::new());
        }
        let steps = shape.steps().iter().enumerate();
        let readers = steps.filter(|(place, step)| {
            self.program.reads_index(StepRef { scope, level: shape.level(), place: *place, step })
        });
        let request = |step: &Step| RerunRequest::new(scope.clone(), step.id.clone());
        Ok(readers.map(|(_, step)| request(step)).collect())
    }

    /// Returns the finished steps of a child that was opened before in the same pass.
    fn finished_in_pass(
        &self,
        id: ScopeId,
        place: usize,
        item: &Item,
        (newest, before): (Option<&Record>, Option<&Position>),
    ) -> Vec<StepId> {
        let scope = self.scopes.get(id);
        let around = &scope.entry(place).at.iteration;
        let newest = newest.filter(|record| record.header().at.iteration.starts_with(around));
        let Some((_, before)) = newest.zip(before) else { return Vec::new() };
        let shape = &children_of(scope, place).shape;
        let unfinished = Unfinished::of(shape, before);
        // All hooks of a run share a graph. A child executes the steps downstream of its first step.
        let begins = item.start.as_ref().and_then(|step| shape.place(step.as_str()));
        let is_from = |begins: usize, place| place == begins || shape.downstream(&[begins]).contains(&place);
        let steps = shape.steps().iter().enumerate().filter(|(place, step)| {
            !unfinished.has(*place)
                && before.did(&step.id)
                && begins.is_none_or(|begins| is_from(begins, *place))
        });
        steps.map(|(_, step)| step.id.clone()).collect()
    }

    /// Returns whether a person requested a rerun of a step with all its children, or of a step in an earlier pass.
    pub(super) fn reruns_whole(&self, id: ScopeId, place: usize, child: &ScopePath) -> bool {
        let scope = self.scopes.get(id);
        let mut requests = self.main().position.requests.iter();
        let hooks = child.opened_by().map(|(name, _)| name);
        scope.position.rerun_whole.contains(scope.step_id(place))
            || hooks.is_some_and(|name| scope.position.rerun_whole.contains(&name))
            || requests
                .any(|request| request.kind != RerunKind::Confirm && is_later_pass(child, &request.scope))
    }

    /// Enters a child again whose newest record is damaged: sound results are reusable, and steps with `idempotent:
    /// false` that the lost records may have started are in doubt. A child of this fan-out keeps its epoch: a rerun of
    /// lost work is not a requested rerun.
    async fn child_after_damage(
        &mut self,
        id: ScopeId,
        place: usize,
        mut chain: Chain,
        (since, older): (u64, Option<u64>),
    ) -> Result<Earlier, RunError> {
        (chain.prev, chain.basis, chain.repair) = (None, Some(0), true);
        let (mut before, mut epoch) = (None, self.scopes.get(id).entry(place).at.epoch);
        if let Some(older) = older {
            let older = self.engine.store.load(&chain.run, &chain.scope, older).await?;
            chain.prev = Some(older.digest());
            let position = if older.body_bytes().is_some() { Some(position_of(&older)?) } else { None };
            epoch = match position.as_ref().is_some_and(|position| position.origin == Some(since)) {
                true => older.header().at.epoch,
                false => self.next_child_epoch(id, place, &chain.scope).await?,
            };
            before = position.map(|position| (position, chain.next - 1 - older.header().seq));
        }
        let shape = &children_of(self.scopes.get(id), place).shape;
        let (mut before, in_lost) = match before {
            Some((position, lost)) => {
                let in_lost = steps_in_lost(shape, &position, lost);
                (position, in_lost)
            }
            // Nothing is known: any step may have run.
            None => (Position::default(), (0..shape.steps().len()).collect()),
        };
        for step in in_lost.into_iter().map(|place| &shape.steps()[place]).filter(|step| !step.idempotent) {
            before.ask_about(&step.id, None);
        }
        let replaced = before.item.clone();
        let begin = ChildStart { before: Some(before), replaced, ..ChildStart::new(chain, epoch) };
        Ok(Earlier::None(Box::new(begin)))
    }
}

/// Returns whether the newest record of a child belongs to an earlier pass than its opener.
fn is_passed(newest: &Record, around: &[u32]) -> bool {
    let passes = newest.header().at.iteration.iter().zip(around);
    passes.map(|(before, now)| before.cmp(now)).find(|order| order.is_ne()) == Some(Ordering::Less)
}

/// Returns whether a child is a later pass than the pass that contains a requested scope.
fn is_later_pass(child: &ScopePath, requested: &ScopePath) -> bool {
    let Some(((step, _), pass)) = child.opened_by().zip(child.pass_number()) else { return false };
    let mut around = std::iter::successors(Some(requested.clone()), ScopePath::parent);
    around.any(|around| {
        let is_same_step = around.opened_by().is_some_and(|(opener, _)| opener == step);
        let is_earlier = around.pass_number().is_some_and(|earlier| earlier < pass);
        is_same_step && is_earlier && around.parent() == child.parent()
    })
}
