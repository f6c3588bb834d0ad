//! Graphs with routes: rewind to the input state of a step, and rejoin.
//!
//! ```text
//!   @1 started a   @2 completed a   @3 completed b, started c       a's evidence fails
//!   @4 restored (basis 1), reusable chain: head 3
//!   @5 completed a: same state, same pins  -->  @6 restored (basis 3): b is reused, c starts
//!   @5 completed a: another state          -->  b runs; after each end, state and pins are compared again
//! ```
//!
//! The state is opaque: it has no separate outputs, so each step depends on all steps before. A scope executes one step
//! at a time, and its results after a rewind are a reusable chain. Input: a scope and its position. Output: the record
//! and the position from which the scope continues. Reasons: docs/decisions/0007-evidence-in-a-chain.md.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::id::StepId;
use crate::plan::shape::{Shape, Step};
use crate::projection::events::STEP_REUSED;
use crate::record::{
    FrontierEntry, Header, Note, Phase, Position, Reason, Record, ReusableChain, Status, Try,
};
use crate::store::{Store, StoreError, StoreExt as _};

use super::trace::pass_in;
use crate::engine::chain::Draft;
use crate::engine::inspect::position_of;
use crate::engine::resume::reruns::{Target, Transition, is_joined, redo_draft};
use crate::engine::resume::trust::{Judgement, ScopeInForce, ScopesInForce};
use crate::engine::scope::child_ends::is_end;
use crate::engine::scope::fan_out::{ChildEnds, Items, Joined, named_items};
use crate::engine::time_travel::rollback::{epochs, fanned_out_since, is_copied, load_with_state};
use crate::engine::{Engine, RunError};

/// A step in an iteration.
type Visit = (StepId, Vec<u32>);

/// The newest record before the rewind: the scope continues from this record.
#[derive(Debug, Clone)]
pub(crate) struct Rejoined {
    pub(crate) record: Record,
    pub(crate) position: Position,
    /// The reused ends, for the event `step_reused`.
    pub(crate) reused: Vec<Value>,
}

/// Returns the newest record before the rewind, if the scope may continue from it. The scope has an end with the same
/// state and the same pins in force, or is before a join of children with the same outcomes. `None` also if a step with
/// a reusable result has begun after the rewind.
pub(crate) async fn rejoin(
    store: &Arc<dyn Store>,
    shape: &Shape,
    record: &Record,
    position: &Position,
) -> Result<Option<Rejoined>, RunError> {
    let Some(chain) = position.chain.as_deref() else { return Ok(None) };
    let Some(head) = chain.head.filter(|_| shape.is_routed()) else { return Ok(None) };
    let ended = before_acceptance(store.as_ref(), record).await?;
    let header = ended.header();
    let (run, scope) = (&header.run, &header.scope);
    let history = store.history(run, scope, head).await?;
    let kept = |step: &StepId, iteration: &[u32]| {
        history.iter().position(|record| {
            let found = record.header();
            let is_it = found.step.as_ref() == Some(step) && found.at.iteration == iteration;
            is_it && matches!(found.phase, Phase::Completed(_))
        })
    };
    let behind = match (&header.phase, &header.step, header.digests) {
        (Phase::Completed(_), Some(step), Some(digests)) => {
            let kept = kept(step, &header.at.iteration);
            kept.filter(|at| history[*at].header().digests == Some(digests)).map(|at| &history[..at])
        }
        _ => match position.frontier.first().filter(|entry| entry.has_children() && entry.at.attempt == 0) {
            Some(entry) => match kept(&entry.step, &entry.at.iteration) {
                Some(at) if joins_the_same(store, shape, header, entry, history[at].header()).await? => {
                    Some(&history[..=at])
                }
                _ => None,
            },
            None => None,
        },
    };
    let Some(behind) = behind else { return Ok(None) };
    // Accepted evidence replaces pins, but the digests cover the old pins.
    let joined = history.get(behind.len()).map_or(0, |joined| joined.header().seq);
    let mut accepted = history.iter().map(Record::header).filter(|header| header.reason == Reason::Accept);
    if accepted.any(|accepted| accepted.about.is_some_and(|about| about <= joined)) {
        return Ok(None);
    }
    let Some((record, earlier)) = head_of_chain(store.as_ref(), shape, header, head).await? else {
        return Ok(None);
    };
    // Oldest first: the next step of the rerun must be the oldest.
    let ends: Vec<&Header> = behind.iter().rev().map(Record::header).filter(|end| is_end(end)).collect();
    let visits = ends.iter().filter_map(|end| Some((end.step.clone()?, end.at.iteration.clone())));
    let visits: Vec<Visit> = visits.chain(earlier.frontier.iter().map(visit_of)).collect();
    let next = position.frontier.first().map(visit_of);
    let was_begun = visits.iter().any(|visit| chain.started.contains(visit));
    if next.as_ref() != visits.first() || was_begun {
        return Ok(None);
    }
    let reused = ends.iter().map(|end| json!({ "step": end.step, "of": end.reference().to_string() }));
    Ok(Some(Rejoined { reused: reused.collect(), record, position: earlier }))
}

/// Returns whether all children of a waiting step have ended, with the outcomes of the reusable join `then`.
async fn joins_the_same(
    store: &Arc<dyn Store>,
    shape: &Shape,
    header: &Header,
    entry: &FrontierEntry,
    then: &Header,
) -> Result<bool, RunError> {
    let Some((place, fan)) = shape.place(entry.step.as_str()).zip(entry.fan.as_ref()) else {
        return Ok(false);
    };
    let children = shape.steps()[place].children.as_ref();
    let (Some(children), Some(trace)) = (children.filter(|_| then.about == Some(fan.since)), &then.trace)
    else {
        return Ok(false);
    };
    let named = || named_items(children, pass_in(shape, place, &entry.at.iteration)).map(Items::Named);
    let frozen =
        fan.items.as_ref().map(|at| Items::Stored { run: header.run.clone(), at: Arc::new(at.clone()) });
    let Some(source) = frozen.or_else(named) else { return Ok(false) };
    let joined = Joined {
        store: Arc::clone(store),
        run: header.run.clone(),
        scope: header.scope.clone(),
        name: children.name.clone(),
        source,
        total: fan.total,
        ends: Arc::new(ChildEnds::new(fan.total)),
        is_after: false,
        passes: children.passes,
    };
    match joined.digests().await {
        Ok(digests) => Ok(digests.outcomes == trace.input),
        Err(StoreError::NotFound { .. } | StoreError::Damaged { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn visit_of(entry: &FrontierEntry) -> Visit {
    (entry.step.clone(), entry.at.iteration.clone())
}

/// Returns the newest record, without records of accepted evidence.
async fn before_acceptance(store: &dyn Store, newest: &Record) -> Result<Record, RunError> {
    let mut record = newest.clone();
    while let (Reason::Accept, Some(before)) = (record.header().reason, record.header().basis()) {
        record = store.load(&record.header().run, &record.header().scope, before).await?;
    }
    Ok(record)
}

/// Reads the head of a reusable chain; `None` if the state was pruned, or the graph lacks a step.
async fn head_of_chain(
    store: &dyn Store,
    shape: &Shape,
    header: &Header,
    head: u64,
) -> Result<Option<(Record, Position)>, RunError> {
    let record = match store.load(&header.run, &header.scope, head).await {
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => return Ok(None),
        record => record?,
    };
    if record.state_bytes().is_none() {
        return Ok(None);
    }
    let position = position_of(&record)?;
    let fits = position.frontier.iter().all(|entry| shape.place(entry.step.as_str()).is_some());
    Ok(fits.then_some((record, position)))
}

/// A rewind of a scope.
#[derive(Clone, Copy)]
pub(crate) struct Rewind<'a> {
    pub(crate) engine: &'a Engine,
    /// The graph of the run.
    pub(crate) root: &'a Shape,
    pub(crate) scopes: &'a ScopesInForce,
    pub(crate) known: &'a ScopeInForce,
    /// The step to run again.
    pub(crate) target: &'a Target,
    /// The verdicts, for the record.
    pub(crate) judgement: &'a Judgement,
}

impl Rewind<'_> {
    /// Returns the position before the start of the step, in a new epoch. The downstream results become a
    /// reusable chain.
    ///
    /// # Errors
    /// [`RunError::NoState`]: retention dropped the input state of the step, or the state is in another run.
    pub(crate) async fn to_start(self) -> Result<Transition, RunError> {
        let Self { engine, root, known, target, judgement, .. } = self;
        let header = known.record.header();
        let (run, scope, store) = (&header.run, &header.scope, engine.store.as_ref());
        let ended = store.load(run, scope, target.seq).await?;
        let ended = ended.header();
        let starts = |record: &Record| starts(record.header(), ended);
        let no_state = |why: &str| {
            let step = &target.step;
            let is_broken = target.claims.as_ref().is_some_and(|claims| !claims.is_empty());
            let why = match is_broken {
                true => format!(
                    "step `{step}` must rerun, but {why}; fix its evidence and accept it, or start the run \
                     over"
                ),
                false => format!(
                    "step `{step}` must rerun, but {why}; start the run over, with a larger retention if \
                     the run is long"
                ),
            };
            RunError::NoState { at: ended.reference().to_string(), why }
        };
        let Some(start) = store.find_back(run, scope, header.seq, &starts).await? else {
            return Err(no_state(&where_started(store, ended).await?));
        };
        let record = match load_with_state(engine, run, scope, start.header().seq).await {
            Err(RunError::NoState { .. }) => {
                return Err(no_state("retention dropped its input state"));
            }
            record => record?,
        };
        let mut position = position_of(&record)?;
        if !position.frontier.iter().any(|entry| entry.step == target.step) {
            return Err(no_state("its input state was not kept"));
        }
        let epoch = epochs(engine, run, scope).await? + 1;
        for entry in &mut position.frontier {
            target.begin(entry);
            let is_target = entry.step == target.step && target.opens_new_scopes(root, scope);
            if is_target || fanned_out_since(engine, (run, scope), entry).await? {
                entry.drop_children();
            }
            (entry.status, entry.failures, entry.memos, entry.wake_at) = (Status::Ready, 0, 0, None);
            entry.passed = false;
            entry.at = Try { attempt: 0, epoch, iteration: entry.at.iteration.clone() };
            entry.waits.clear();
        }
        copy_unrewound(&mut position, &known.position);
        position.chain = Some(Box::new(self.reusable_chain(ended).await?));
        let draft = redo_draft(
            ended,
            Try { attempt: 0, epoch, iteration: ended.at.iteration.clone() },
            (target, judgement),
        );
        Ok(Transition { record, position, drafts: vec![draft], basis: None, forgotten: Vec::new() })
    }

    /// Returns the results downstream of a step as a reusable chain. A second rewind keeps the first chain: steps
    /// begun after the first rewind run again.
    async fn reusable_chain(self, ended: &Header) -> Result<ReusableChain, RunError> {
        let Self { engine, root, scopes, known, target, .. } = self;
        let (store, own) = (engine.store.as_ref(), root.of_scope(&ended.scope).unwrap_or(root));
        let is_careful = |step: &StepId| own.step(step.as_str()).is_some_and(Step::is_careful);
        let before = known.position.chain.as_deref().cloned().unwrap_or_default();
        let mut chain = match before.head.filter(|_| !is_joined(root, scopes, known)) {
            Some(_) => {
                // A step with open children has begun after the first rewind: the children may have other results.
                let frontier = &known.position.frontier;
                let begun = frontier.iter().filter(|entry| {
                    entry.has_children()
                        || own.step(entry.step.as_str()).is_some_and(|step| step.has_begun(entry))
                });
                let started = before.started.iter().cloned().chain(begun.map(visit_of)).collect();
                ReusableChain { since: 0, started, ..before }
            }
            None => ReusableChain { head: Some(known.record.header().seq), since: 0, ..before },
        };
        if own.steps().iter().any(Step::is_careful) {
            let header = known.record.header();
            let history = store.history(&header.run, &header.scope, header.seq).await?;
            let since = history.iter().map(Record::header).filter(|end| end.seq >= ended.seq);
            let ends = since.filter(|end| matches!(end.phase, Phase::Completed(_)));
            let done = ends.filter_map(|end| Some((end.step.clone()?, end.at.iteration.clone())));
            let begun = known.position.frontier.iter().filter(|entry| entry.is_unsettled()).map(visit_of);
            chain.careful.extend(done.chain(begun).filter(|(step, _)| is_careful(step)));
        }
        // The named step is invalid: no reuse begins there, and no question is asked.
        if let Some(step) = ended.step.clone().filter(|_| target.claims.is_some()) {
            let visit = (step, ended.at.iteration.clone());
            chain.careful.remove(&visit);
            if !is_careful(&visit.0) {
                chain.started.insert(visit);
            }
        }
        Ok(chain)
    }
}

/// Returns the reason why the start of a step is missing, for a message.
async fn where_started(store: &dyn Store, ended: &Header) -> Result<String, StoreError> {
    let parent = store.run(&ended.run).await?.record.record().parent.clone();
    Ok(match parent {
        Some(parent) if is_copied(store, ended).await? => {
            format!("it started in the parent run {}: resume that run", parent.run)
        }
        _ => "its start is not recorded".to_owned(),
    })
}

/// Drops the reusable chain of a position. Questions about non-idempotent steps stay.
pub(crate) fn drop_chain(position: &mut Position, shape: &Shape) {
    let Some(chain) = &mut position.chain else { return };
    let is_careful = |visit: &Visit| shape.step(visit.0.as_str()).is_some_and(Step::is_careful);
    let started: BTreeSet<Visit> = std::mem::take(&mut chain.started);
    chain.careful.extend(started.into_iter().filter(is_careful));
    (chain.head, chain.since) = (None, 0);
    if chain.careful.is_empty() {
        position.chain = None;
    }
}

/// Returns whether a record contains the start of the attempt that ended with `end`.
pub(crate) fn starts(header: &Header, end: &Header) -> bool {
    let (iteration, epoch) = (&end.at.iteration, end.at.epoch);
    let is_it = |at: &Try| (&at.iteration, at.epoch) == (iteration, epoch);
    header.seq <= end.seq
        && header.started.iter().any(|start| Some(&start.step) == end.step.as_ref() && is_it(&start.at))
}

impl Rejoined {
    /// Returns the transition of a scope to the newest record before the rewind.
    ///
    /// `header` and `newest`: the header and position of the current newest record.
    pub(crate) fn into_transition(self, shape: &Shape, header: &Header, newest: &Position) -> Transition {
        let Self { record, mut position, reused } = self;
        let mut before = newest.clone();
        drop_chain(&mut before, shape);
        drop_chain(&mut position, shape);
        let careful = before.chain.into_iter().chain(position.chain.take()).flat_map(|chain| chain.careful);
        let careful: BTreeSet<Visit> = careful.collect();
        if !careful.is_empty() {
            position.chain = Some(Box::new(ReusableChain { careful, ..ReusableChain::default() }));
        }
        copy_unrewound(&mut position, newest);
        let at = Try { attempt: 0, ..header.at.clone() };
        let mut draft = Draft::new(Phase::Restored, Reason::Redo, header.step.clone(), at);
        draft.about = Some(record.header().seq);
        // The record may be the end of a child.
        draft.digests = record.header().digests;
        draft
            .report
            .notes
            .push(Note::Event { name: STEP_REUSED.to_owned(), data: json!({ "steps": reused }) });
        Transition { record, position, drafts: vec![draft], basis: None, forgotten: Vec::new() }
    }
}

/// Copies the parts of a position that a rewind does not change.
fn copy_unrewound(position: &mut Position, newest: &Position) {
    position.definition = newest.definition;
    position.config = newest.config;
    position.steps_started = position.steps_started.max(newest.steps_started);
    position.epoch = position.epoch.max(newest.epoch);
    position.note_rerun();
}
