//! Forks and imports: new runs that begin with a checkpoint of another run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::id::{CheckpointRef, RunId, ScopePath, StepId};
use crate::plan::shape::Shape;
use crate::projection::events::{RerunCause, SIGNAL_KEY};
use crate::record::{
    FORMAT, Parent, Phase, Position, Reason, Record, RunRecord, SealedRun, Taken, TakenSignal, Try,
};
use crate::store::portable::{ExportError, OnDamagedChild, Portable, history_of};
use crate::store::{Signal, SignalKind, StoreError, StoreExt as _};

use super::rollback::{
    Closed, ScopesThen, ask_about_done, ask_about_effects, check_left, has_continued, invalidate_begun,
    is_abandoned, joins, load_with_state,
};
use super::source_scopes::{SourceScope, SourceScopes};
use super::undo::{
    refuse_undone, refuse_unfinished_undo, still_undone, undone_ends, undone_on, undone_steps,
};
use crate::engine::chain::{Chain, Draft};
use crate::engine::inspect::position_of;
use crate::engine::resume::begin::decode_state;
use crate::engine::resume::definition::{Adopting, Forget, begun_before, carried, check_fit, forget};
use crate::engine::resume::invalidation::{RequestedRerun, invalidate_named};
use crate::engine::resume::resume_point::{reopen_for, scopes_in_force};
use crate::engine::resume::trust;
use crate::engine::scope::MAIN;
use crate::engine::session::Session;
use crate::engine::session::free_signals::{RunSignals, message, signals_at};
use crate::engine::walk::failure::{failures_of, position_for_retry};
use crate::engine::walk::invalidate::{ReusePolicy, invalidated};
use crate::engine::{Engine, OriginEvidence, Outcome, Program, ResumeFrom, RunError, StartOptions};

impl Engine {
    /// Forks a run: creates a new run from a checkpoint, and executes the new run. The new run has its own copy
    /// of the state and of the records in force, so the other run may be deleted.
    ///
    /// In a graph by needs, the scopes below go back to the time of the checkpoint; steps begun since run again. From the
    /// newest checkpoint, the scopes are copied at their newest sound records. Interrupted or waiting steps restart from the
    /// top. A non-idempotent step that has begun is in doubt.
    ///
    /// In other graphs, and with a step to rerun below the main scope, scopes that were open at the checkpoint and still
    /// are open or ready to be joined are copied at their newest sound record, and scopes joined since the checkpoint
    /// restart. With an edited state all unjoined scopes restart, unless the program [keeps outputs
    /// apart](Program::keeps_apart): these scopes see the edit.
    ///
    /// The evidence of scopes joined before the checkpoint is checked, and not copied.
    ///
    /// The items of scopes are copied right after the new run is created. A crash in between leaves a run that
    /// a resume refuses; delete that run.
    ///
    /// # Errors
    /// - [`RunError::NoState`]: the checkpoint has no state, or its scopes exceed the size limit of a new run.
    /// - [`RunError::InDoubt`]: evidence of a finished step does not hold, or could not be checked.
    /// - [`RunError::Undoing`]: an undo of the other run is unfinished, and may have undone steps of the checkpoint.
    /// - [`RunError::Changed`]: the checkpoint has another program, and `start` does not adopt the change.
    /// - Others as for [`run_program`](Self::run_program) and [`resume_program`](Self::resume_program).
    pub async fn fork_program<P: Program>(
        &self,
        program: &P,
        from: &CheckpointRef,
        run: RunRecord,
        start: StartOptions<P::State>,
    ) -> Result<Outcome<P::State>, RunError> {
        check_forkable(from)?;
        refuse_undone(self, &from.run, from.seq).await?;
        let store = self.store.as_ref();
        let checkpoint = load_with_state(self, &from.run, &from.scope, from.seq).await?;
        let newest = position_of(&store.newest(&from.run, &from.scope).await?)?;
        refuse_unfinished_undo(&from.run, &newest, Some(&ResumeFrom::Checkpoint(from.seq)))?;
        let (position, mut redone) = position_for_retry(program.shape(), &checkpoint, false)?;
        let (mut position, mut reopened) = (position.back_at_work(), BTreeMap::new());
        let edited = blinds(program, &start);
        let below = start.from.as_ref().filter(|(scope, _)| !scope.is_main());
        let is_newest = store.newest(&from.run, &from.scope).await?.header().seq == from.seq;
        if !is_newest && !edited && below.is_none() && !program.shape().is_routed() {
            let then = ScopesThen::read(self, program, (&checkpoint, &position), Closed::Leave).await?;
            reopened = then.moves(self, program).await?.open;
        } else {
            redone.extend(restart_begun(self, program.shape(), (&checkpoint, &mut position)).await?);
            for entry in position.frontier.iter_mut().filter(|entry| entry.has_children()) {
                if is_abandoned(self, &from.run, (entry, None), &newest, !edited).await? {
                    if !edited {
                        check_left(program.shape(), entry, &checkpoint)?;
                    }
                    entry.drop_children();
                }
            }
            let before = start.adoption.as_ref().map_or(program.shape(), |adoption| &adoption.before);
            ask_about_done(before, &mut position, &newest, &undone_steps(self, &from.run).await?);
        }
        if let Some(named) = below {
            reopened = reopen_for(self, program, (&checkpoint, &position), named).await?;
        }
        if let Some(main) = reopened.remove(&from.scope) {
            position = main.position;
            redone.extend(main.forgotten);
        }
        let children = reopened
            .iter()
            .map(|(scope, child)| (scope.clone(), (child.record.clone(), child.position.clone())));
        let children = (OnDamagedChild::TakeOlder, &children.collect());
        let taken = Portable::at(store, checkpoint, position.clone(), children).await;
        let taken = taken.map_err(|error| match error {
            ExportError::Store(error) => error.into(),
            error => RunError::NoState { at: from.to_string(), why: error.to_string() },
        })?;
        let signals = signals_at(store, &from.run, from.seq, &position).await?;
        let mut scopes = SourceScopes::of(program.shape(), &taken, position, reopened)?;
        // The session may take days.
        drop(taken);
        if start.evidence == OriginEvidence::Checked {
            self.read_joined(program, &mut scopes).await?;
        }
        let scopes_there = store.scopes(&from.run).await?;
        let origin = ForkOrigin { scopes, signals, redone, scopes_there };
        self.start_from(program, origin, run, start).await
    }

    /// Reads the joined scopes with evidence that are in force at a checkpoint.
    async fn read_joined<P: Program>(&self, program: &P, scopes: &mut SourceScopes) -> Result<(), RunError> {
        let main = &scopes.main;
        let position = Position { chain: None, ..main.position.clone() };
        for known in scopes_in_force(self, program, (&main.record, &position)).await?.into_values() {
            if !scopes.carries(&known.record.header().scope) {
                let history = history_of(self.store.as_ref(), &known.record, &known.position).await?;
                scopes.joined.push(SourceScope::of(&known.record, known.position, history.iter())?);
            }
        }
        Ok(())
    }

    /// Returns the configuration in force at a checkpoint: the default for a fork.
    pub(crate) async fn config_at(&self, at: &CheckpointRef) -> Result<Map<String, Value>, RunError> {
        check_forkable(at)?;
        let entry = self.store.run(&at.run).await?;
        let position = position_of(&load_with_state(self, &at.run, &at.scope, at.seq).await?)?;
        Ok(self.config_of(&entry, &position).await?)
    }

    /// Returns the signals that no step finished at a checkpoint of the main scope has taken. A fork begins with these
    /// signals, and a portable checkpoint has none.
    ///
    /// # Errors
    /// [`RunError::NoState`]: the state of the checkpoint is gone. Others of the store.
    pub async fn signals_at(&self, at: &CheckpointRef) -> Result<Vec<Signal>, RunError> {
        let record = load_with_state(self, &at.run, &at.scope, at.seq).await?;
        let position = position_of(&record)?.back_at_work();
        Ok(signals_at(self.store.as_ref(), &at.run, at.seq, &position).await?.free)
    }

    /// Makes a new run that begins with a portable checkpoint, and works on it.
    ///
    /// Open scopes are copied at their exported positions; with an edited state, only scopes about to be joined.
    /// A non-idempotent step that started between the checkpoint and the export is in doubt. Everything else as for [`fork_program`](Self::fork_program).
    ///
    /// # Errors
    /// [`RunError::NoState`]: the checkpoint is not in the main scope. Others as for
    /// [`fork_program`](Self::fork_program).
    pub async fn import_program<P: Program>(
        &self,
        program: &P,
        from: &Portable,
        run: RunRecord,
        start: StartOptions<P::State>,
    ) -> Result<Outcome<P::State>, RunError> {
        check_forkable(&from.reference())?;
        let mut position = from.position().clone().back_at_work();
        let edited = blinds(program, &start);
        for entry in position.frontier.iter_mut().filter(|entry| edited && !joins(entry)) {
            entry.drop_children();
        }
        let before = start.adoption.as_ref().map_or(program.shape(), |adoption| &adoption.before);
        ask_about_effects(before, &mut position, |_, step| {
            from.begun_since().contains(&step.id).then_some(None)
        });
        let scopes = SourceScopes::of(program.shape(), from, position, BTreeMap::new())?;
        let scopes_there = BTreeSet::new();
        let origin = ForkOrigin { scopes, signals: RunSignals::default(), redone: Vec::new(), scopes_there };
        self.start_from(program, origin, run, start).await
    }

    /// Returns the non-idempotent steps of child scopes that have begun, without those that an undo took back.
    async fn careful_begun(
        &self,
        (root, before): (&Shape, Option<&Shape>),
        run: &RunId,
        scopes: &BTreeSet<ScopePath>,
    ) -> Result<BTreeMap<ScopePath, BTreeSet<StepId>>, RunError> {
        // The run before an import may be in another store.
        if scopes.is_empty() {
            return Ok(BTreeMap::new());
        }
        let (mut found, ends) = (BTreeMap::new(), undone_ends(self, run).await?);
        for scope in scopes.iter().filter(|scope| !scope.is_main()) {
            let graphs = std::iter::once(root).chain(before);
            let steps = graphs.filter_map(|graph| graph.of_scope(scope)).flat_map(Shape::steps);
            let careful = steps.filter(|step| !step.idempotent).map(|step| step.id.clone()).collect();
            let begun = begun_before(self.store.as_ref(), (run, scope), &careful).await?;
            if !begun.is_empty() {
                let undone = still_undone(self, run, &ends, scope).await?;
                let begun = &begun - &undone_on(root, &undone, scope);
                found.extend((!begun.is_empty()).then(|| (scope.clone(), begun)));
            }
        }
        Ok(found)
    }

    async fn start_from<P: Program>(
        &self,
        program: &P,
        origin: ForkOrigin,
        run: RunRecord,
        start: StartOptions<P::State>,
    ) -> Result<Outcome<P::State>, RunError> {
        let ForkOrigin { mut scopes, signals, mut redone, scopes_there } = origin;
        let RunSignals { mut free, taken } = signals;
        let checkpoint = scopes.main.record.clone();
        let header = checkpoint.header();
        let before = start.adoption.as_ref().map(|adoption| &adoption.before);
        let mut cut = scopes.main.cut(program.shape(), before);
        redone.extend(reposition(program, &mut scopes, &start, &cut)?);
        let begun = self.careful_begun((program.shape(), before), &header.run, &scopes_there).await?;
        scopes.ask_within((program.shape(), before), begun);
        cut.retain(|step| scopes.main.position.frontier.iter().any(|entry| entry.step == *step));
        redone.extend(failures_of(program.shape(), &checkpoint)?);
        let mut state = decode_state(program, program.shape().level(), &checkpoint)?;
        forget(program, &ScopePath::main(), &redone, &mut state)?;
        if start.evidence == OriginEvidence::Checked {
            let checked: Vec<&SourceScope> = scopes.carried().chain(&scopes.joined).collect();
            let questions = trust::doubted(self, program.shape(), &run, &checked).await;
            if !questions.is_empty() {
                return Err(RunError::InDoubt { run: header.run.clone(), questions });
            }
        }
        if let Some(edit) = start.edit {
            edit.apply(&mut state, || header.reference().to_string())?;
        }
        let CheckpointRef { run: from, scope, seq } = header.reference();
        let parent = Parent { run: from, scope, seq, digest: checkpoint.digest() };
        let record = RunRecord { v: FORMAT, parent: Some(parent), ..run };
        let sealed = SealedRun::seal(record).map_err(|source| StoreError::Invalid(source.to_string()))?;
        let holder = self.holder()?;
        let begin = (Chain::first(&sealed), state);
        for record in &taken {
            match scopes.taker_of(program.shape(), record) {
                None => free.extend(message(record)),
                Some(taker) => {
                    let copy = message(record).and_then(|signal| copy_of_signal(program, signal));
                    scopes.note_taken(&taker, copy);
                }
            }
        }
        free.sort_by_key(|signal| signal.created_at);
        let mut main = scopes.main.to_scope(begin, program.shape(), &cut, start.evidence);
        if let Some((_, step)) = start.from.as_ref().filter(|(scope, _)| scope.is_main()) {
            let cause = RerunCause::Requested { by: None, by_rollback: false };
            let draft = main.drafts.last_mut().expect("a fork begins with its own record");
            draft.report.notes.push(invalidated(step, &cause));
        }
        main.drafts.extend(free.into_iter().filter_map(|signal| copy_of_signal(program, signal)));
        let is_checked = start.evidence == OriginEvidence::Checked;
        let left = scopes.evidence_left(program.shape()).filter(|_| is_checked);
        let mut session = Session::new(self, program, main, start.session)?;
        session.config = Arc::new(sealed.record().config.clone());
        session.site = Arc::new(self.site(sealed.record()));
        session.shape_before = start.adoption.map(|adoption| adoption.before);
        session.mark_dirty(MAIN);
        scopes.add_scopes(&mut session, MAIN, start.evidence)?;
        let status = session.create(&sealed, &holder).await?;
        left.iter().for_each(|warning| self.observer.warned(warning));
        let lease = session.lease().clone();
        if let Err(error) = scopes.keep_items(self.store.as_ref(), &lease).await {
            let _ = self.store.release(lease, None).await;
            return Err(error.into());
        }
        session.work(status).await
    }
}

/// Returns whether open scopes would miss the state edit, because each has a separate state.
fn blinds<P: Program>(program: &P, start: &StartOptions<P::State>) -> bool {
    start.edit.is_some() && !program.keeps_apart()
}

fn check_forkable(at: &CheckpointRef) -> Result<(), RunError> {
    if at.scope.is_main() {
        return Ok(());
    }
    let why = "a run can be forked from its main scope only".to_owned();
    Err(RunError::NoState { at: at.to_string(), why })
}

/// Restarts the work of a checkpoint that has begun again since: finished steps, and openers whose ended scopes have
/// continued. Returns the results to remove from the state.
async fn restart_begun(
    engine: &Engine,
    shape: &Shape,
    (checkpoint, position): (&Record, &mut Position),
) -> Result<Vec<Forget>, RunError> {
    for entry in &mut position.frontier {
        if has_continued(engine, shape, checkpoint.header(), entry).await? {
            entry.drop_children();
        }
    }
    let epoch = position.epoch + 1;
    invalidate_begun(engine, shape, (checkpoint, position), (epoch, ReusePolicy::Drop)).await
}

/// The parts of the other run for a new run.
struct ForkOrigin {
    scopes: SourceScopes,
    /// The free signals, and the signals of finished steps.
    signals: RunSignals,
    /// The results to remove from the state.
    redone: Vec<Forget>,
    /// The scopes of the other run.
    scopes_there: BTreeSet<ScopePath>,
}

/// Applies the adopted definition and the step to rerun to the position of the main scope. Returns the parts to
/// remove from the state.
fn reposition<P: Program>(
    program: &P,
    scopes: &mut SourceScopes,
    start: &StartOptions<P::State>,
    cut: &[StepId],
) -> Result<Vec<Forget>, RunError> {
    let (shape, main, definition) = (program.shape(), &mut scopes.main, &scopes.definition);
    let header = main.record.header();
    let refused = |why| RunError::Changed { run: header.run.clone(), why };
    let mut redone = Vec::new();
    if let Some(adoption) = &start.adoption {
        let adopting = Adopting { adoption, ends: &BTreeMap::new(), asks: true };
        let carried = carried(&main.position, definition, shape, &adopting).map_err(refused)?;
        if let Some(gone) = cut.iter().find(|step| shape.place(step.as_str()).is_none()) {
            let why = format!(
                "step `{gone}` is in doubt, and the current definition lacks it: decide in run {} first",
                header.run
            );
            return Err(refused(why));
        }
        main.position = carried.position;
        redone = carried.redone.into_iter().map(|(step, _)| Forget::Step(step)).collect();
    }
    if let Some((_, step)) = start.from.as_ref().filter(|(scope, _)| scope.is_main()) {
        let requested = RequestedRerun { step, policy: ReusePolicy::Drop, by: None };
        let after = invalidate_named(shape, &main.position, requested, main.position.epoch, &header.run)?;
        main.position = after.position;
        redone.extend(after.forgotten);
    }
    main.position.drop_children_of_started(|_| false);
    check_fit(shape, &main.position, definition, start.on_change).map_err(refused)?;
    Ok(redone)
}

/// Makes the record that passes a signal of another run to this run.
fn copy_of_signal<P: Program>(program: &P, signal: Signal) -> Option<Draft> {
    let SignalKind::Named { name, mut value } = signal.kind else { return None };
    program.redact_answer(&mut value);
    let phase = Phase::Progress { key: SIGNAL_KEY.to_owned(), value };
    let mut draft = Draft::new(phase, Reason::Fork, None, Try::default());
    let signal = TakenSignal { id: signal.id, name, sent_at: signal.created_at };
    draft.taken = Some(Box::new(Taken { wait: String::new(), signal: Some(signal) }));
    Some(draft)
}
