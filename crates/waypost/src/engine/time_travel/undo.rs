//! Undo (compensation) of the effects of finished steps, before a rollback or a cancel.
//!
//! ```text
//!   @9 completed pay   @10 completed publish        rollback to @8, steps undone
//!   @11 undo begun: to @8
//!   @12 publish @10: started   @13 publish @10: done
//!   @14 pay @9: started        @15 pay @9: done
//!   @16 restored (basis 8)                          written by the rollback itself
//! ```
//!
//! Later effects are undone first, whatever their scope. Each undo is recorded in the main scope
//! before its start and after its end. From the first record on, the position marks the run as being undone: only
//! the call that completes the undo can continue. After a crash, that call skips finished undos and repeats
//! interrupted undos. So an undo command may run more than once, and must be idempotent.
//!
//! A step is undone once per pass of its loops, however often it ran, with the newest state of its scope in that
//! pass. A failed or interrupted step is not undone: its effect is unknown.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;

use crate::id::{CheckpointRef, RunId, ScopePath, StepId};
use crate::plan::shape::Shape;
use crate::record::{End, Failure, FailureKind, Header, Phase, Position, Reason, Record, RunStatus, Try};
use crate::store::{
    Batch, BatchId, Lease, Renewal, Scan, ScanOrder, SignalKind, StoreError, StoreExt as _, Summary,
};

use super::rollback::{
    Closed, PointInTime, ScopesThen, check_left, has_continued, is_abandoned, is_copied, load_with_state,
    with_state,
};
use crate::engine::chain::{Chain, Draft, unchanged_body};
use crate::engine::inspect::{Snapshot, position_of};
use crate::engine::resume::begin::decode_state;
use crate::engine::scope::child_ends::record_in_fan_out;
use crate::engine::session::attempt::Attempt;
use crate::engine::{Engine, Performed, Program, RENEW_INTERVAL, RunError, StepRef, StopHandle, StopLevel};

mod history;

use history::{Before, UndoRecord, undo_records};
pub(crate) use history::{
    UndoneEnds, refuse_undone, refuse_unfinished_undo, still_undone, undone_ends, undone_on, undone_steps,
    undone_within,
};

/// The key of the progress records of an undo.
pub const UNDO: &str = "undo";

/// A step that was undone, or has no undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// The step.
    pub step: StepId,
    /// The scope of the step.
    pub scope: ScopePath,
    /// The record of its end.
    pub seq: u64,
    /// The iterations of the loops around the step, the innermost last; empty outside loops.
    pub iteration: Vec<u32>,
    /// True if the step was undone; false if the step has no undo command.
    pub is_undone: bool,
}

/// The scope, the step, and the record of its end.
type EffectKey = (ScopePath, StepId, u64);

/// A finished step.
#[derive(Debug, Clone)]
struct Effect {
    scope: ScopePath,
    step: StepId,
    seq: u64,
    at: Try,
    ended_at: PointInTime,
    /// True if the effect belongs to the newest pass of the step.
    is_newest: bool,
}

impl Effect {
    fn key(&self) -> EffectKey {
        (self.scope.clone(), self.step.clone(), self.seq)
    }
}

impl Engine {
    /// Undoes the steps that finished after record `to` of the main scope, newest first. Afterwards only a
    /// rollback to `to` or an earlier record can continue the run, or a cancel. `on_undone` is called for each step,
    /// undone or without an undo command.
    ///
    /// Steps undone by an earlier call are skipped.
    ///
    /// # Errors
    /// - [`RunError::NotUndone`]: a step could not be undone. Later steps are undone; the same call continues.
    /// - [`RunError::Undoing`]: an undo to an earlier record is unfinished.
    /// - Those of a resume, as in [`resume`](Self::resume_program).
    pub async fn undo_program<P: Program>(
        &self,
        program: &P,
        run: &RunId,
        (to, stop): (u64, &StopHandle),
        on_undone: impl FnMut(&Undone),
    ) -> Result<(), RunError> {
        self.store.wait_for_release(run).await?;
        let lease = self.store.acquire(run, &ScopePath::main(), &self.holder()?).await?;
        let undone = self.undo_under(program, &lease, (to, stop), on_undone).await;
        let released = self.store.release(lease, None).await;
        undone?;
        Ok(released?)
    }

    /// As [`undo_program`](Self::undo_program), for the holder of the lease; keeps the lease.
    ///
    /// # Errors
    /// As [`undo_program`](Self::undo_program).
    pub async fn undo_under<P: Program>(
        &self,
        program: &P,
        lease: &Lease,
        (to, stop): (u64, &StopHandle),
        mut on_undone: impl FnMut(&Undone),
    ) -> Result<(), RunError> {
        let mut undoer = Undoer::of(self, program, lease).await?;
        if let Some(begun) = undoer.position.undoing.filter(|begun| *begun < to) {
            return Err(RunError::Undoing { run: lease.run().clone(), to: begun });
        }
        if to > 0 {
            refuse_undone(self, lease.run(), to).await?;
        }
        let effects = undoer.effects_after(to).await?;
        let before = Before::of(undo_records(self, lease.run()).await?);
        let due: Vec<Effect> =
            effects.into_iter().filter(|effect| !before.done.contains(&effect.key())).collect();
        if due.is_empty() {
            return Ok(());
        }
        if undoer.position.undoing != Some(to) {
            undoer.position.undoing = Some(to);
            // A resume stops until the undo is finished.
            undoer.summary.status = RunStatus::InDoubt;
            undoer.append_progress(&UndoRecord::Begun { to }).await?;
        }
        program.begin(lease).await?;
        let undone = undoer.undo_all(due, &before, (stop, &mut on_undone)).await;
        program.end().await;
        undone
    }
}

/// Appends to the main scope, and caches the states of the scopes.
struct Undoer<'a, P: Program> {
    engine: &'a Engine,
    program: &'a P,
    lease: &'a Lease,
    newest: Record,
    position: Position,
    summary: Summary,
    batches: u64,
    /// True if the run is a fork, with copied ends of its parent.
    is_of_another: bool,
    /// The newest records of other scopes.
    scopes: HashMap<ScopePath, Record>,
    /// Cached states of scopes with their records, each nested in the scope before.
    around: Vec<((ScopePath, u64), P::State)>,
}

/// A fan-out of a step: the record that opened the scopes, and the iteration of the step.
#[derive(Clone, Copy)]
struct FanOutRef<'a> {
    scope: &'a ScopePath,
    step: &'a StepId,
    since: u64,
    pass: &'a [u32],
}

impl<'a, P: Program> Undoer<'a, P> {
    async fn of(engine: &'a Engine, program: &'a P, lease: &'a Lease) -> Result<Self, RunError> {
        let store = engine.store.as_ref();
        let snapshot = Snapshot::read(store, lease.run()).await?;
        if let Some(damage) = snapshot.damaged().next() {
            return Err(StoreError::of_damage(damage.clone(), None).into());
        }
        if snapshot.ended.as_ref().is_some_and(|ended| ended.header().end == Some(End::Cancelled)) {
            return Err(RunError::Cancelled(lease.run().clone()));
        }
        let newest = store.newest(lease.run(), &ScopePath::main()).await?;
        let mut scopes = HashMap::new();
        for name in store.scopes(lease.run()).await?.into_iter().filter(|name| !name.is_main()) {
            let record = store.newest(lease.run(), &name).await?;
            scopes.insert(name, record);
        }
        let position = position_of(&newest)?;
        let summary = snapshot.entry.summary.summary.clone();
        Ok(Self {
            engine,
            program,
            lease,
            newest,
            position,
            summary,
            batches: 0,
            is_of_another: snapshot.entry.record.record().parent.is_some(),
            scopes,
            around: Vec::new(),
        })
    }

    fn shape(&self) -> &'a Shape {
        self.program.shape()
    }

    /// Lists the steps that finished after a record of the main scope, newest first, without duplicates.
    async fn effects_after(&self, to: u64) -> Result<Vec<Effect>, RunError> {
        let (run, main) = (self.lease.run(), ScopePath::main());
        let mut effects = Vec::new();
        self.effects_of(&self.newest, (to, None), &mut effects).await?;
        if to > 0 {
            let target = load_with_state(self.engine, run, &main, to).await?;
            let position = position_of(&target)?;
            if !self.shape().is_routed() {
                let then =
                    ScopesThen::read(self.engine, self.program, (&target, &position), Closed::Leave).await?;
                self.effects_since(&then, &mut effects).await?;
            } else {
                self.effects_of_restarted((&target, &position), &mut effects).await?;
            }
        }
        // Steps of one commit keep the order of the scopes.
        effects.sort_by_key(|effect| std::cmp::Reverse(effect.ended_at));
        let mut seen = HashSet::new();
        let pass = |effect: &Effect| (effect.scope.clone(), effect.step.clone(), effect.at.iteration.clone());
        effects.retain(|effect: &Effect| seen.insert(pass(effect)));
        let mut newer = HashSet::new();
        for effect in &mut effects {
            effect.is_newest = newer.insert((effect.scope.clone(), effect.step.clone()));
        }
        Ok(effects)
    }

    /// Adds the effects of the scopes below the main scope since a target.
    async fn effects_since(&self, then: &ScopesThen, effects: &mut Vec<Effect>) -> Result<(), RunError> {
        for (scope, seq, origin) in then.changed().collect::<Vec<_>>().into_iter().rev() {
            let (store, newest) = (self.engine.store.as_ref(), &self.scopes[scope]);
            let since = origin.unwrap_or_default();
            if let Some(record) = record_in_fan_out(store, newest, since, &[]).await? {
                self.effects_of(&record, (seq, origin), effects).await?;
            }
        }
        for (scope, step, since) in then.whole() {
            self.effects_of_fan(FanOutRef { scope, step, since, pass: &[] }, effects).await?;
        }
        Ok(())
    }

    /// Adds the effects of the children of the target that restart.
    async fn effects_of_restarted(
        &self,
        (target, position): (&Record, &Position),
        effects: &mut Vec<Effect>,
    ) -> Result<(), RunError> {
        let (run, main) = (self.lease.run(), ScopePath::main());
        for entry in &position.frontier {
            let Some(fan) = entry.open_fan() else { continue };
            let (engine, shape) = (self.engine, self.shape());
            if has_continued(engine, shape, target.header(), entry).await?
                || is_abandoned(engine, run, (entry, None), &self.position, false).await?
            {
                check_left(shape, entry, target)?;
                let (since, pass) = (fan.since, entry.at.iteration.as_slice());
                let fan = FanOutRef { scope: &main, step: &entry.step, since, pass };
                self.effects_of_fan(fan, effects).await?;
            }
        }
        Ok(())
    }

    /// Adds the effects of a scope from a record back, and of its children. For a child, only while it belongs
    /// to the same fan-out.
    async fn effects_of(
        &self,
        newest: &Record,
        (to, origin): (u64, Option<u64>),
        effects: &mut Vec<Effect>,
    ) -> Result<(), RunError> {
        let (store, head) = (self.engine.store.as_ref(), newest.header());
        let history = store.history(&head.run, &head.scope, head.seq).await?;
        for (place, record) in history.iter().enumerate() {
            let header = record.header();
            if header.seq <= to || (header.end.is_some() && !self.is_of(record, newest, origin).await?) {
                break;
            }
            let Some(step) = &header.step else { continue };
            if let Phase::Completed(_) = &header.phase {
                let mut ended_at = PointInTime::of(header);
                if let Some(after) = self.opened_after(&history[place..], step) {
                    // The effect precedes those of the hooks.
                    ended_at = PointInTime::of(after);
                    self.effects_of_opening(after, effects).await?;
                }
                if self.is_of_another && is_copied(store, header).await? {
                    // The parent run did this step.
                    continue;
                }
                let (scope, step, at) = (header.scope.clone(), step.clone(), header.at.clone());
                effects.push(Effect { scope, step, seq: header.seq, at, ended_at, is_newest: false });
            } else if opens(header) && !header.phase.opens_hooks() {
                self.effects_of_opening(header, effects).await?;
            }
        }
        Ok(())
    }

    /// Returns the record that opened the hooks of a step. `history` begins with the end of the step, newest
    /// first.
    fn opened_after<'r>(&self, history: &'r [Record], step: &StepId) -> Option<&'r Header> {
        let ours =
            history[1..].iter().map(Record::header).filter(|header| header.step.as_ref() == Some(step));
        let mut before = ours.take_while(|header| !matches!(header.phase, Phase::Completed(_)));
        before.find(|header| opens(header) && header.phase.opens_hooks())
    }

    async fn effects_of_opening(&self, header: &Header, effects: &mut Vec<Effect>) -> Result<(), RunError> {
        let Some(step) = &header.step else { return Ok(()) };
        let since = self.engine.store.carrier(header).await?;
        let fan = FanOutRef { scope: &header.scope, step, since, pass: &header.at.iteration };
        self.effects_of_fan(fan, effects).await
    }

    /// Returns whether an older end of a scope belongs to the same fan-out, continued later.
    async fn is_of(&self, ended: &Record, newest: &Record, origin: Option<u64>) -> Result<bool, RunError> {
        let (header, head) = (ended.header(), newest.header());
        if origin.is_none() || header.seq == head.seq {
            return Ok(true);
        }
        let record = self.engine.store.load(&header.run, &header.scope, header.seq).await?;
        Ok(record.state_bytes().is_some() && position_of(&record)?.origin == origin)
    }

    async fn effects_of_fan(&self, fan: FanOutRef<'_>, effects: &mut Vec<Effect>) -> Result<(), RunError> {
        let Some(shape) = self.shape().of_scope(fan.scope) else { return Ok(()) };
        let place = shape.place(fan.step.as_str());
        let is_ours = |name: &ScopePath| {
            name.parent().as_ref() == Some(fan.scope)
                && name.opened_by().and_then(|(opener, _)| shape.opener(&opener)) == place
        };
        let mut names: Vec<&ScopePath> = self.scopes.keys().filter(|name| is_ours(name)).collect();
        names.sort_unstable_by(|one, other| other.cmp(one));
        for name in names {
            let store = self.engine.store.as_ref();
            if let Some(record) = record_in_fan_out(store, &self.scopes[name], fan.since, fan.pass).await? {
                Box::pin(self.effects_of(&record, (0, Some(fan.since)), effects)).await?;
            }
        }
        Ok(())
    }

    async fn undo_all(
        &mut self,
        due: Vec<Effect>,
        before: &Before,
        (stop, on_undone): (&StopHandle, &mut impl FnMut(&Undone)),
    ) -> Result<(), RunError> {
        for effect in due {
            let tries = before.started.get(&effect.key()).copied().unwrap_or(0);
            let (scope, step, seq) = effect.key();
            if let Some(asked) = stop.asked() {
                return Err(self.not_undone(&effect, stopped(), Some(asked.by)));
            }
            let is_undone = self.undo(&effect, tries, stop).await?;
            // For an opener, the steps in its scopes are undone instead.
            let step_of = |shape: &'a Shape| shape.step(step.as_str())?.children.as_ref();
            let children = self.shape().of_scope(&scope).and_then(step_of);
            if is_undone || children.is_none() {
                let iteration = effect.at.iteration.clone();
                on_undone(&Undone { step, scope, seq, iteration, is_undone });
            }
        }
        Ok(())
    }

    /// Undoes a step. Returns whether there was an undo command.
    async fn undo(&mut self, effect: &Effect, tries: usize, stop: &StopHandle) -> Result<bool, RunError> {
        let Some(shape) = self.shape().of_scope(&effect.scope) else { return Ok(false) };
        let Some(place) = shape.place(effect.step.as_str()) else { return Ok(false) };
        let program = self.program;
        let step_ref =
            StepRef { scope: &effect.scope, level: shape.level(), place, step: &shape.steps()[place] };
        let (path, is_kept) = match self.path_in_pass(effect).await? {
            Some(path) => (path, true),
            None => (self.newest_path(&effect.scope)?, false),
        };
        let made = program.undo(step_ref, &effect.at, self.state_along(&effect.scope, path)?);
        let job = match made {
            Ok(Some(_)) | Err(_) if !is_kept => {
                let why = "its outputs in that iteration are no longer kept; undo the step by hand, and \
                           roll back without undo";
                let failure = Failure::new(FailureKind::Error, vec![why.to_owned()]);
                return Err(self.not_undone(effect, failure, None));
            }
            Ok(Some(job)) => job,
            Ok(None) => return Ok(false),
            Err(failure) => return Err(self.not_undone(effect, failure, None)),
        };
        let (scope, step, seq) = effect.key();
        self.append_progress(&UndoRecord::Started { scope: scope.clone(), step: step.clone(), seq }).await?;
        let attempt = u32::try_from(tries).unwrap_or(u32::MAX).saturating_add(1);
        let at = Try { attempt, ..effect.at.clone() };
        let attempt = Attempt::of_undo(self.engine, (self.lease, stop), step_ref, at);
        let performed = tokio::select! {
            performed = program.perform(job, attempt) => performed,
            never = self.listen(stop) => match never? {},
        };
        let failure = match performed {
            Performed::Completed { .. } => {
                self.append_progress(&UndoRecord::Done { scope, step, seq }).await?;
                return Ok(true);
            }
            Performed::Failed { failure, .. } => failure,
            Performed::Cut { why, .. } => Failure::new(FailureKind::Error, vec![why]),
            _ => stopped(),
        };
        self.append_progress(&UndoRecord::Failed { scope, step, seq, error: failure.error.clone() }).await?;
        Err(self.not_undone(effect, failure, stop.asked().map(|asked| asked.by)))
    }

    /// Polls stop requests for the run, like a session.
    async fn listen(&self, stop: &StopHandle) -> Result<Infallible, RunError> {
        loop {
            tokio::time::sleep(RENEW_INTERVAL).await;
            let answers = match self.engine.store.renew(&[self.lease]).await {
                Err(error) if error.retry() => continue,
                answers => answers?,
            };
            for answer in answers {
                let Renewal::Held(signals) = answer else { continue };
                if let Some(signal) = signals.iter().find(|signal| signal.kind == SignalKind::Stop) {
                    let by = if signal.sender.is_empty() { "waypost stop" } else { &signal.sender };
                    stop.stop(StopLevel::Graceful, by);
                }
            }
        }
    }

    fn not_undone(&self, effect: &Effect, failure: Failure, stopped_by: Option<String>) -> RunError {
        let (scope, step, _) = effect.key();
        let run = self.lease.run().clone();
        let to = self.position.undoing.unwrap_or_default();
        RunError::NotUndone { run, scope, step, to, failure: Box::new(failure), stopped_by }
    }

    /// Returns the newest records of a scope and its ancestors, the main scope first.
    fn newest_path(&self, scope: &ScopePath) -> Result<Vec<Record>, RunError> {
        let path = std::iter::successors(Some(scope.clone()), ScopePath::parent);
        let newest = |name: ScopePath| {
            let record = if name.is_main() { Some(&self.newest) } else { self.scopes.get(&name) };
            record.cloned().ok_or_else(|| StoreError::no_scope(self.lease.run(), &name).into())
        };
        let mut records = path.map(newest).collect::<Result<Vec<_>, RunError>>()?;
        records.reverse();
        Ok(records)
    }

    /// As `newest_path`, in the pass of an effect; `None` if a state was pruned.
    async fn path_in_pass(&self, effect: &Effect) -> Result<Option<Vec<Record>>, RunError> {
        let mut path = self.newest_path(&effect.scope)?;
        let depth = path.len();
        for (place, record) in path.iter_mut().enumerate() {
            let scope = record.header().scope.clone();
            let around = self.shape().loops_around(&scope);
            let pass = effect.at.iteration.get(..around).unwrap_or_default();
            let is_of_pass = |header: &Header| header.at.iteration.get(..around) == Some(pass);
            // For a step in its own loop, each pass is an end of the step.
            let by_itself = place + 1 == depth && effect.at.iteration.len() > around;
            if is_of_pass(record.header()) && (effect.is_newest || !by_itself) {
                continue;
            }
            let made = match by_itself {
                true => Some(self.engine.store.load(self.lease.run(), &scope, effect.seq).await?),
                false => self.end_of_pass(&scope, &is_of_pass).await?,
            };
            let Some(kept) = (match made {
                Some(made) => with_state(self.engine, made).await?,
                None => None,
            }) else {
                return Ok(None);
            };
            *record = kept;
        }
        Ok(Some(path))
    }

    /// Returns the newest end of a scope in a pass.
    async fn end_of_pass(
        &self,
        scope: &ScopePath,
        is_of_pass: &(dyn Fn(&Header) -> bool + Sync),
    ) -> Result<Option<Record>, RunError> {
        let (run, order) = (self.lease.run(), ScanOrder::NewestFirst);
        let mut scan = Scan { scope: Some(scope.clone()), order, ..Scan::of(run) };
        loop {
            let page = self.engine.store.scan(&scan).await?;
            let mut headers = page.records.iter().map(Record::header);
            if let Some(end) = headers.find(|header| header.end.is_some() && is_of_pass(header)) {
                return Ok(Some(self.engine.store.load(run, scope, end.seq).await?));
            }
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => return Ok(None),
            }
        }
    }

    /// Returns the state of a scope by the last record, with the parts from its ancestors by the other records.
    fn state_along(&mut self, scope: &ScopePath, path: Vec<Record>) -> Result<&P::State, RunError> {
        let key = |record: &Record| (record.header().scope.clone(), record.header().seq);
        let same =
            self.around.iter().zip(&path).take_while(|((known, _), wanted)| *known == key(wanted)).count();
        self.around.truncate(same);
        for record in &path[same..] {
            let name = &record.header().scope;
            let level = self.program.shape().of_scope(name).map_or(0, Shape::level);
            let mut state = decode_state(self.program, level, record)?;
            if let Some(((parent, _), around)) = self.around.last()
                && let Some(shape) = self.program.shape().of_scope(parent)
                && let Some(place) = name.opened_by().and_then(|(opener, _)| shape.opener(&opener))
            {
                let step_ref =
                    StepRef { scope: parent, level: shape.level(), place, step: &shape.steps()[place] };
                self.program.attach(step_ref, around, &mut state);
            }
            self.around.push((key(record), state));
        }
        debug_assert_eq!(
            self.around.last().map(|((name, _), _)| name),
            Some(scope),
            "a scope is on its own path"
        );
        Ok(&self.around.last().expect("a scope is on its own path").1)
    }

    /// Writes a progress record; the position of the run is unchanged.
    async fn append_progress(&mut self, record: &UndoRecord) -> Result<(), RunError> {
        let value = serde_json::to_value(record).expect("names and numbers are plain JSON");
        let phase = Phase::Progress { key: UNDO.to_owned(), value };
        let mut draft = Draft::new(phase, Reason::Manual, None, Try::default());
        draft.keep_status(&self.newest);
        let header = self.newest.header();
        let at = CheckpointRef { seq: header.seq + 1, ..header.reference() };
        let body = unchanged_body(&self.newest, &self.position)?;
        let chain = Chain { token: self.lease.token(), ..Chain::after(&self.newest) };
        let mut records = Vec::new();
        let run = || self.lease.run().clone();
        chain
            .seal(&[draft], body, self.engine.clock.now(), &mut records)
            .map_err(|source| RunError::Record { run: run(), step: None, source })?;
        self.batches += 1;
        let id = BatchId { token: self.lease.token(), count: self.batches };
        let newest = records.last().expect("one draft makes one record").clone();
        let (consumed, summary) = (Vec::new(), Some(self.summary.clone()));
        let batch = Batch { id, records, consumed, summary, updated_at: None, release: false };
        let lost = |source| RunError::Checkpoint { at: at.to_string(), source };
        self.engine.store.append(&[self.lease], batch).await.map_err(lost)?;
        self.newest = newest;
        Ok(())
    }
}

fn stopped() -> Failure {
    Failure::new(FailureKind::Error, vec!["stopped before its end".to_owned()])
}

/// Returns whether a record opens scopes.
fn opens(header: &Header) -> bool {
    header.reason == Reason::Fork && (header.phase.opens_work() || header.phase.opens_hooks())
}
