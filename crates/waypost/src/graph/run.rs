//! Builders of runs and resumes of a graph, and their event streams.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Waker, Poll};
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::Graph;
use super::graphs::GRAPH_NEED;
use super::level::{Held, State};
use super::manual::{ScopeEdits, Settles, held_edits, held_settle};
use crate::engine::{
    Edit, Engine, Interrupts, Observer, OnChange, OnDamage, OnDoubt, OnLostCheckpoint, OnUnknown, Outcome,
    ResumeFrom, ResumeOptions, RunError, SessionOptions, StopHandle, Then, Validate,
};
use crate::id::{RunId, ScopePath, StepId};
use crate::projection::events::{self, Event};
use crate::record::{Durability, Position, Record, RunRecord};
use crate::store::{Job, Lease, Progress, StoreError};

/// The key of the session settings in the run record. Later resumes use these as defaults.
pub(super) const SETTINGS: &str = "session";

/// Session settings of a run or a resume.
#[derive(Debug, Clone, Default)]
pub(super) struct SessionSettings {
    pub(super) stop: StopHandle,
    pub(super) on_lost_checkpoint: Option<OnLostCheckpoint>,
    pub(super) interrupt_before: Option<Vec<String>>,
    pub(super) interrupt_after: Option<Vec<String>>,
    pub(super) step_limit: Option<u64>,
    pub(super) retention: Option<u32>,
    pub(super) interval: Option<Duration>,
    pub(super) sink: Option<mpsc::UnboundedSender<Event>>,
}

impl SessionSettings {
    /// Sends the events of the session to the returned stream.
    pub(super) fn events(&mut self) -> mpsc::UnboundedReceiver<Event> {
        let (sink, events) = mpsc::unbounded_channel();
        self.sink = Some(sink);
        events
    }

    /// Returns the settings to store in the run record.
    fn kept(&self) -> Map<String, Value> {
        let mut kept = Map::new();
        if let Some(steps) = &self.interrupt_before {
            kept.insert("interrupt_before".to_owned(), json!(steps));
        }
        if let Some(steps) = &self.interrupt_after {
            kept.insert("interrupt_after".to_owned(), json!(steps));
        }
        if let Some(limit) = self.step_limit {
            kept.insert("step_limit".to_owned(), json!(limit));
        }
        if let Some(interval) = self.interval {
            let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
            kept.insert("interval_ms".to_owned(), json!(interval_ms));
        }
        if self.on_lost_checkpoint == Some(OnLostCheckpoint::Tolerate) {
            kept.insert("tolerate_lost_checkpoints".to_owned(), json!(true));
        }
        kept
    }

    /// Fills unset settings from the run record. Ignores steps that the graph no longer has; the check of the
    /// changed graph reports these elsewhere.
    fn or_kept(mut self, kept: &Value, has: impl Fn(&StepId) -> bool) -> Self {
        let names = |key: &str| -> Option<Vec<String>> {
            let mut names: Vec<String> = serde_json::from_value(kept.get(key)?.clone()).ok()?;
            names.retain(|name| StepId::new(name).is_ok_and(|step| has(&step)));
            Some(names)
        };
        self.interrupt_before = self.interrupt_before.or_else(|| names("interrupt_before"));
        self.interrupt_after = self.interrupt_after.or_else(|| names("interrupt_after"));
        self.step_limit = self.step_limit.or_else(|| kept.get("step_limit")?.as_u64());
        let interval = || kept.get("interval_ms")?.as_u64().map(Duration::from_millis);
        self.interval = self.interval.or_else(interval);
        if kept.get("tolerate_lost_checkpoints") == Some(&Value::Bool(true)) {
            self.on_lost_checkpoint.get_or_insert(OnLostCheckpoint::Tolerate);
        }
        self
    }

    pub(super) fn options(&self) -> Result<SessionOptions, RunError> {
        let ids = |names: &Option<Vec<String>>| -> Result<Vec<StepId>, RunError> {
            let names = names.as_deref().unwrap_or_default();
            names.iter().map(|name| StepId::new(name).map_err(RunError::InvalidName)).collect()
        };
        Ok(SessionOptions {
            parallel_max: None,
            stop: self.stop.clone(),
            on_lost_checkpoint: self.on_lost_checkpoint.unwrap_or_default(),
            until: None,
            retention: self.retention,
            interrupts: Interrupts {
                before: ids(&self.interrupt_before)?,
                after: ids(&self.interrupt_after)?,
            },
            step_limit: self.step_limit,
            fail_fast: false,
            interval: self.interval,
        })
    }

    pub(super) fn engine(&self, engine: &Engine) -> Engine {
        match &self.sink {
            Some(sink) => engine.clone().also_observed_by(Arc::new(Sink(sink.clone()))),
            None => engine.clone(),
        }
    }
}

/// Forwards events to a stream.
#[derive(Debug)]
struct Sink(mpsc::UnboundedSender<Event>);

impl Observer for Sink {
    fn committed(&self, records: &[Record], _: &Position, _: Progress) {
        for event in records.iter().flat_map(events::of) {
            // The receiver may be gone; the run continues.
            let _ = self.0.send(event);
        }
    }

    fn warned(&self, _: &str) {}
}

macro_rules! session_settings {
    () => {
        /// Stops the run through `stop`.
        pub fn stop_handle(mut self, stop: &StopHandle) -> Self {
            self.session.stop = stop.clone();
            self
        }

        /// Pauses the run before the first attempt of each of these steps, in any scope. A resume continues.
        pub fn interrupt_before<T: AsRef<str>>(mut self, steps: impl IntoIterator<Item = T>) -> Self {
            self.session.interrupt_before =
                Some(steps.into_iter().map(|step| step.as_ref().to_owned()).collect());
            self
        }

        /// Pauses the run after each of these steps. A resume continues with the next step.
        pub fn interrupt_after<T: AsRef<str>>(mut self, steps: impl IntoIterator<Item = T>) -> Self {
            self.session.interrupt_after =
                Some(steps.into_iter().map(|step| step.as_ref().to_owned()).collect());
            self
        }

        /// Limits the steps started in a scope, crashes and resumes included. A step above the limit fails.
        pub fn step_limit(mut self, limit: u64) -> Self {
            self.session.step_limit = Some(limit);
            self
        }

        /// Writes a checkpoint whenever a step, in any scope, has run for `interval`. This makes
        /// [usage](super::Context::usage) and events durable and shows that the step is alive, as
        /// [`Context::checkpoint`](super::Context::checkpoint) does. At least
        /// [`INTERVAL_MIN`](crate::engine::INTERVAL_MIN).
        pub fn checkpoint_interval(mut self, interval: std::time::Duration) -> Self {
            self.session.interval = Some(interval);
            self
        }

        /// Continues if a checkpoint cannot be written. The run is marked, and the next write includes the
        /// checkpoint. A crash before that write loses the steps since.
        pub fn tolerate_lost_checkpoints(mut self) -> Self {
            self.session.on_lost_checkpoint = Some(OnLostCheckpoint::Tolerate);
            self
        }
    };
}

pub(super) use session_settings;

/// A run of a graph, not yet begun: await the run, or read its events as a [`stream`](Run::stream).
#[derive(Debug)]
#[must_use = "a run begins when it is awaited"]
pub struct Run<'a, S> {
    engine: &'a Engine,
    graph: &'a Graph<S>,
    id: Option<String>,
    state: S,
    or_resume: bool,
    session: SessionSettings,
    durability: Durability,
    labels: BTreeMap<String, String>,
    config: Map<String, Value>,
}

impl Engine {
    /// Runs a graph from its start with `state`, under the id `id`.
    ///
    /// # Errors
    /// Of the awaited run: those of [`run_program`](Self::run_program), and [`RunError::InvalidName`] for an
    /// invalid run id; then nothing ran.
    pub fn run<'a, S: State>(&'a self, graph: &'a Graph<S>, id: impl AsRef<str>, state: S) -> Run<'a, S> {
        Run { id: Some(id.as_ref().to_owned()), ..self.run_unnamed(graph, state) }
    }

    /// Runs a graph under a generated id: the name of the graph and a random suffix. [`Outcome::run`] has the id.
    pub fn run_unnamed<'a, S: State>(&'a self, graph: &'a Graph<S>, state: S) -> Run<'a, S> {
        Run {
            engine: self,
            graph,
            id: None,
            state,
            or_resume: false,
            session: SessionSettings::default(),
            durability: Durability::Sync,
            labels: BTreeMap::new(),
            config: Map::new(),
        }
    }

    /// Resumes a run of a graph. The steps must match; the name of the graph does not matter.
    ///
    /// # Errors
    /// Of the awaited resume: those of [`resume_program`](Self::resume_program).
    pub fn resume<'a, S: State>(&'a self, graph: &'a Graph<S>, id: impl AsRef<str>) -> Resume<'a, S> {
        let (id, session, options) =
            (id.as_ref().to_owned(), SessionSettings::default(), ResumeOptions::default());
        Resume { engine: self, graph, id, session, options, settles: Vec::new(), edits: Vec::new() }
    }
}

/// Makes the run record of a run of a graph.
pub(super) fn record_of<S: State>(
    engine: &Engine,
    graph: &Graph<S>,
    run: RunId,
    session: &SessionSettings,
) -> RunRecord {
    let kept = session.kept();
    let mut settings = Map::new();
    if !kept.is_empty() {
        settings.insert(SETTINGS.to_owned(), Value::Object(kept));
    }
    let mut record = RunRecord {
        definition: graph.shape().definition(None),
        settings,
        retention: session.retention,
        ..RunRecord::new(run, graph.name(), engine.clock().now())
    };
    record.name_program();
    record
}

pub(super) fn held_edit<S: State>(edit: Edit<S>) -> Edit<Held> {
    Edit(Box::new(move |held: &mut Held| (edit.0)(of_held(held))))
}

impl<'a, S: State> Run<'a, S> {
    session_settings!();

    /// Resumes the run if the id exists, for programs that simply start again. The settings for state,
    /// durability, retention, labels and configuration are then ignored. An existing run of a graph with another
    /// name or other steps is refused with [`RunError::Changed`]. [`Engine::resume`] ignores the name.
    pub fn or_resume(mut self) -> Self {
        self.or_resume = true;
        self
    }

    /// Sets whether a checkpoint is acknowledged before or after the write to disk.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Keeps only the newest `checkpoints` states; the history of older checkpoints stays. Values below two are
    /// refused before the run is made: the second state is a fallback for a damaged newest state.
    pub fn retention(mut self, checkpoints: u32) -> Self {
        self.session.retention = Some(checkpoints);
        self
    }

    /// Adds a label to the run, for lookups.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Sets the configuration that steps read with [`Context::config`](super::Context::config).
    pub fn config(mut self, config: Map<String, Value>) -> Self {
        self.config = config;
        self
    }

    /// Runs, and returns a stream of the committed events, followed by the outcome.
    #[must_use]
    pub fn stream(mut self) -> RunStream<'a, S> {
        let events = self.session.events();
        RunStream::of(self.into_future(), events)
    }

    async fn go(self) -> Result<Outcome<S>, RunError> {
        let Self { engine, graph, id, state, or_resume, session, durability, labels, config } = self;
        let id = match &id {
            Some(id) => RunId::new(id)?,
            None => RunId::random(graph.name()),
        };
        let resume = async |session: SessionSettings| {
            let there = engine.store().run(&id).await;
            there.map_or(Ok(()), |entry| graph.check_name(entry.record.record()))?;
            Resume { session, ..engine.resume(graph, id.as_str()) }.go().await
        };
        if or_resume && !matches!(engine.store().run(&id).await, Err(StoreError::NotFound { .. })) {
            return resume(session).await;
        }
        let record =
            RunRecord { durability, labels, config, ..record_of(engine, graph, id.clone(), &session) };
        let options = session.options()?;
        let observed = session.engine(engine);
        let program = graph.erased();
        let state: Held = Box::new(state);
        match observed.run_program(&program, record, state, options).await {
            // Another program has made the run in the meantime.
            Err(RunError::Store(StoreError::Exists { .. })) if or_resume => resume(session).await,
            outcome => outcome.map(known),
        }
    }
}

impl<S: State> Run<'_, S> {
    /// Creates the run in the queue of the store, for [`Worker`](crate::worker::Worker)s with this graph, and starts
    /// nothing. Returns the id.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`]: the store has no queue. Those of a run.
    pub async fn submit(self, mut job: Job) -> Result<RunId, RunError> {
        let Self { engine, graph, id, state, session, durability, labels, config, .. } = self;
        let id = match &id {
            Some(id) => RunId::new(id)?,
            None => RunId::random(graph.name()),
        };
        let record =
            RunRecord { durability, labels, config, ..record_of(engine, graph, id.clone(), &session) };
        let state: Held = Box::new(state);
        job.needs.insert(format!("{GRAPH_NEED}{}", graph.name()));
        engine.queue_program(&graph.erased(), record, state, &job).await?;
        Ok(id)
    }
}

impl<'a, S: State> IntoFuture for Run<'a, S> {
    type Output = Result<Outcome<S>, RunError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.go())
    }
}

/// A resume, not yet begun: await the resume, or read its events as a [`stream`](Resume::stream).
#[must_use = "a resume begins when it is awaited"]
pub struct Resume<'a, S> {
    engine: &'a Engine,
    graph: &'a Graph<S>,
    id: String,
    session: SessionSettings,
    pub(super) options: ResumeOptions<S>,
    pub(super) settles: Settles,
    pub(super) edits: ScopeEdits,
}

impl<S> std::fmt::Debug for Resume<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resume").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<'a, S: State> Resume<'a, S> {
    session_settings!();

    /// Resumes from an older checkpoint of the main scope. Later checkpoints stay visible as abandoned. Unjoined
    /// scopes are abandoned and restart, unless no later checkpoint exists and the state is not edited.
    pub fn from_checkpoint(mut self, seq: u64) -> Self {
        self.options.from = Some(ResumeFrom::Checkpoint(seq));
        self
    }

    /// Reruns an already started step with its original input state, and continues from there.
    /// [`END`](super::END) ends the run with the current state. A step over items runs its items again; the join
    /// of a fork gets the same scopes again.
    pub fn from_step(mut self, step: impl AsRef<str>) -> Self {
        let step = step.as_ref();
        // The start of the resume rejects an invalid step id as an unknown step.
        self.options.from = Some(if step == super::END {
            ResumeFrom::End
        } else {
            StepId::new(step).map_or_else(|_| ResumeFrom::Unknown(step.to_owned()), ResumeFrom::Step)
        });
        self
    }

    /// Reruns a step in a scope of a fork or an item, with its original input state. The later steps of the
    /// scope, the join, and the steps downstream of the join run again. The other scopes keep their ends.
    pub fn from_step_on(mut self, scope: &ScopePath, step: impl AsRef<str>) -> Self {
        let step = step.as_ref();
        self.options.from = Some(StepId::new(step).map_or_else(
            |_| ResumeFrom::Unknown(step.to_owned()),
            |step| match scope.is_main() {
                true => ResumeFrom::Step(step),
                false => ResumeFrom::StepOn(scope.clone(), step),
            },
        ));
        self
    }

    /// Resumes the scopes edited by [`edit_scope`](Self::edit_scope), even if these are already joined. The
    /// join and its downstream steps run again. If edited scopes belong to several joins in sequence, only
    /// those of the first join resume; all downstream work reruns.
    pub fn from_scopes(mut self) -> Self {
        self.options.from = Some(ResumeFrom::Scopes);
        self
    }

    /// Edits the state of the main scope before anything runs. Open scopes keep their own states: see
    /// [`edit_scope`](Self::edit_scope).
    pub fn edit_state(mut self, edit: impl FnOnce(&mut S) + Send + 'static) -> Self {
        self.options.edit = Some(Edit(Box::new(edit)));
        self
    }

    /// Validates the state before anything runs, after [`edit_state`](Self::edit_state). An error leaves the run
    /// unchanged.
    pub fn validate_state(
        mut self,
        validate: impl FnOnce(&S) -> Result<(), String> + Send + 'static,
    ) -> Self {
        self.options.validate = Some(Validate(Box::new(validate)));
        self
    }

    /// Merges `over` into the configuration of the run, map by map, also for later resumes. A change is recorded
    /// even if the run is completed and no step will read the value.
    pub fn config(mut self, over: Map<String, Value>) -> Self {
        self.options.config = over;
        self
    }

    /// Sets the reaction to damaged records.
    pub fn on_damage(mut self, on_damage: OnDamage<S>) -> Self {
        self.options.on_damage = on_damage;
        self
    }

    /// Sets the reaction to a graph that differs from the graph of the run: the original graph, or the last
    /// adopted graph.
    pub fn on_change(mut self, on_change: OnChange) -> Self {
        self.options.on_change = on_change;
        self
    }

    /// Reruns all steps in doubt, in any scope: interrupted steps, and steps that lost records may have started.
    /// For a caller who knows that these steps had no effect, or that a second effect is harmless. The rerun has
    /// a new [idempotency key](super::Context::idempotency_key).
    pub fn retry_doubtful(mut self) -> Self {
        self.options.on_doubt = OnDoubt::Retry;
        self
    }

    /// Sets the reaction to evidence of a finished step that cannot be checked. By default the resume stops
    /// there.
    pub fn on_unknown(mut self, on_unknown: OnUnknown) -> Self {
        self.options.on_unknown = on_unknown;
        self
    }

    /// Restarts the run with `state`, after [`edit_state`](Self::edit_state) and
    /// [`validate_state`](Self::validate_state). Old records stay visible. The current configuration stays in
    /// force, merged with [`config`](Self::config). A start point or a scope edit is refused together with this.
    pub fn restart(mut self, state: S) -> Self {
        self.options.restart = Some(state);
        self
    }

    /// Writes the requested changes and runs nothing: a rollback with [`from_checkpoint`](Self::from_checkpoint),
    /// a manual update with [`edit_state`](Self::edit_state).
    pub fn without_running(mut self) -> Self {
        self.options.then = Then::Stop;
        self
    }

    /// Continues under the lease of a claim: see [`ResumeOptions::claimed`].
    pub fn claimed(mut self, lease: Lease) -> Self {
        self.options.claimed = Some(lease);
        self
    }

    /// Resumes, and returns a stream of the committed events, followed by the outcome.
    #[must_use]
    pub fn stream(mut self) -> RunStream<'a, S> {
        let events = self.session.events();
        RunStream::of(self.into_future(), events)
    }

    async fn go(self) -> Result<Outcome<S>, RunError> {
        let Self { engine, graph, id, mut session, options, settles, edits } = self;
        let id = RunId::new(&id)?;
        let edit_scopes = held_edits(edits)?;
        if let Some(ResumeFrom::Unknown(name)) = &options.from {
            return Err(RunError::UnknownStep(name.clone()));
        }
        // The run record holds the settings. If the record is damaged, the settings of this call must suffice.
        match engine.store().run(&id).await {
            Ok(entry) => {
                let record = entry.record.record();
                session.retention = record.retention;
                let kept = record.settings.get(SETTINGS).unwrap_or(&Value::Null);
                session = session.or_kept(kept, |step| graph.shape().has_anywhere(step));
            }
            Err(StoreError::Damaged { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let held = ResumeOptions {
            session: session.options()?,
            claimed: options.claimed,
            adopt: options.adopt,
            restart: options.restart.map(|state| Box::new(state) as Held),
            from: options.from,
            edit: options.edit.map(held_edit),
            edit_scopes,
            validate: options.validate.map(|validate| {
                Validate(Box::new(move |held: &Held| {
                    (validate.0)(held.downcast_ref().expect("a graph has one type of state"))
                }) as crate::engine::ValidateFn<Held>)
            }),
            config: options.config,
            on_damage: match options.on_damage {
                OnDamage::FallBack => OnDamage::FallBack,
                OnDamage::Stop => OnDamage::Stop,
                OnDamage::Restart(state) => OnDamage::Restart(Box::new(state) as Held),
            },
            choices: options.choices,
            retry_tolerated: options.retry_tolerated,
            by: options.by,
            on_doubt: match options.on_doubt {
                OnDoubt::Retry => OnDoubt::Retry,
                _ if !settles.is_empty() => OnDoubt::Settle(held_settle(settles)),
                _ => OnDoubt::Ask,
            },
            on_change: options.on_change,
            on_unknown: options.on_unknown,
            then: options.then,
        };
        let engine = session.engine(engine);
        let program = graph.erased();
        engine.resume_program(&program, &id, held).await.map(known)
    }
}

impl<'a, S: State> IntoFuture for Resume<'a, S> {
    type Output = Result<Outcome<S>, RunError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.go())
    }
}

fn of_held<S: State>(held: &mut Held) -> &mut S {
    held.downcast_mut().expect("a graph has one type of state")
}

/// Restores the type of the state in an outcome.
pub(super) fn known<S: State>(outcome: Outcome<Held>) -> Outcome<S> {
    outcome.map_state(|held| *held.downcast().expect("a graph has one type of state"))
}

/// An element of a [`RunStream`].
#[derive(Debug)]
pub enum Update<S> {
    /// A committed event.
    Event(Box<Event>),
    /// The end of the session; the last element.
    Ended(Box<Outcome<S>>),
}

/// A stream of the events of a run, followed by the outcome. Dropping the stream stops the run like a crash; a
/// resume continues.
pub struct RunStream<'a, S> {
    work: Option<BoxFuture<'a, Result<Outcome<S>, RunError>>>,
    events: mpsc::UnboundedReceiver<Event>,
    end: Option<Result<Outcome<S>, RunError>>,
}

impl<S> std::fmt::Debug for RunStream<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunStream").field("running", &self.work.is_some()).finish_non_exhaustive()
    }
}

impl<'a, S> RunStream<'a, S> {
    pub(super) fn of(
        work: BoxFuture<'a, Result<Outcome<S>, RunError>>,
        events: mpsc::UnboundedReceiver<Event>,
    ) -> Self {
        Self { work: Some(work), events, end: None }
    }
}

impl<S: Unpin> RunStream<'_, S> {
    /// Returns the next element, or `None` after the outcome.
    ///
    /// # Errors
    /// Those of the run; the stream then ends.
    pub async fn next(&mut self) -> Option<Result<Update<S>, RunError>> {
        std::future::poll_fn(|waker| Pin::new(&mut *self).poll_next(waker)).await
    }
}

impl<S: Unpin> Stream for RunStream<'_, S> {
    type Item = Result<Update<S>, RunError>;

    fn poll_next(mut self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Ok(event) = this.events.try_recv() {
            return Poll::Ready(Some(Ok(Update::Event(Box::new(event)))));
        }
        if let Some(work) = &mut this.work
            && let Poll::Ready(end) = work.as_mut().poll(waker)
        {
            this.work = None;
            this.end = Some(end);
        }
        match this.events.poll_recv(waker) {
            Poll::Ready(Some(event)) => Poll::Ready(Some(Ok(Update::Event(Box::new(event))))),
            _ if this.work.is_some() => Poll::Pending,
            _ => Poll::Ready(this.end.take().map(|end| end.map(|outcome| Update::Ended(Box::new(outcome))))),
        }
    }
}
