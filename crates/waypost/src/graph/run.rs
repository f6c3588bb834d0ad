//! Runs and resumes of a graph: what can be said before they begin, and their events as a stream.

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
use super::by_hand::{BranchEdits, Settles, held_edits, held_settle};
use super::level::{Held, State};
use crate::engine::{
    Edit, Engine, Interrupts, Observer, OnChange, OnDamage, OnDoubt, OnLostCheckpoint, OnUnknown, Outcome,
    ResumeFrom, ResumeOptions, RunError, SessionOptions, StopHandle, Then, Validate,
};
use crate::events::{self, Event};
use crate::id::{BranchPath, RunId, StepId};
use crate::record::{Durability, FORMAT, Position, Record, RunRecord};
use crate::store::{Progress, StoreError};

/// The key under which a run record keeps the settings of its sessions, for resumes that say nothing else.
pub(super) const SETTINGS: &str = "session";

/// What a run or a resume says about its session.
#[derive(Debug, Clone, Default)]
pub(super) struct Session {
    pub(super) stop: StopHandle,
    pub(super) on_lost_checkpoint: Option<OnLostCheckpoint>,
    pub(super) interrupt_before: Option<Vec<String>>,
    pub(super) interrupt_after: Option<Vec<String>>,
    pub(super) step_limit: Option<u64>,
    pub(super) retention: Option<u32>,
    pub(super) interval: Option<Duration>,
    pub(super) sink: Option<mpsc::UnboundedSender<Event>>,
}

impl Session {
    /// What is kept of it with the run.
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

    /// Takes from what was kept with the run what is not said anew. Steps that the graph does not have any more need no
    /// hold: whether the run may go on without them is asked elsewhere.
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

/// Hands events on.
#[derive(Debug)]
struct Sink(mpsc::UnboundedSender<Event>);

impl Observer for Sink {
    fn committed(&self, records: &[Record], _: &Position, _: Progress) {
        for event in records.iter().flat_map(events::of) {
            // Nobody may be listening any more; the run goes on.
            let _ = self.0.send(event);
        }
    }

    fn warned(&self, _: &str) {}
}

macro_rules! session_settings {
    () => {
        /// Is stopped through `stop`.
        pub fn stop_handle(mut self, stop: &StopHandle) -> Self {
            self.session.stop = stop.clone();
            self
        }

        /// Holds the run before the first attempt of each of these steps, on whatever branch; a resume goes on.
        pub fn interrupt_before<T: AsRef<str>>(mut self, steps: impl IntoIterator<Item = T>) -> Self {
            self.session.interrupt_before =
                Some(steps.into_iter().map(|step| step.as_ref().to_owned()).collect());
            self
        }

        /// Holds the run after each of these steps; a resume goes on with what comes next.
        pub fn interrupt_after<T: AsRef<str>>(mut self, steps: impl IntoIterator<Item = T>) -> Self {
            self.session.interrupt_after =
                Some(steps.into_iter().map(|step| step.as_ref().to_owned()).collect());
            self
        }

        /// Fails the step beyond so many started on one branch, crashes and resumes included.
        pub fn step_limit(mut self, limit: u64) -> Self {
            self.session.step_limit = Some(limit);
            self
        }

        /// Writes a checkpoint each time that a step, on whatever branch, has run for so long: what it
        /// [said](super::Context::usage) by then is durable, and others see that it is alive. It is what
        /// [`Context::checkpoint`](super::Context::checkpoint) does, unasked. No less than
        /// [`INTERVAL_MIN`](crate::engine::INTERVAL_MIN).
        pub fn checkpoint_interval(mut self, interval: std::time::Duration) -> Self {
            self.session.interval = Some(interval);
            self
        }

        /// Goes on although a checkpoint cannot be written: the run is marked, and the checkpoint is written with the
        /// next one. A crash before that costs the steps since.
        pub fn tolerate_lost_checkpoints(mut self) -> Self {
            self.session.on_lost_checkpoint = Some(OnLostCheckpoint::Tolerate);
            self
        }
    };
}

pub(super) use session_settings;

/// A run of a graph that is about to begin: await it, or take its events as a [`stream`](Run::stream).
#[derive(Debug)]
#[must_use = "a run begins when it is awaited"]
pub struct Run<'a, S> {
    engine: &'a Engine,
    graph: &'a Graph<S>,
    id: Option<String>,
    state: S,
    or_resume: bool,
    session: Session,
    durability: Durability,
    labels: BTreeMap<String, String>,
    config: Map<String, Value>,
}

impl Engine {
    /// Runs a graph from its start with `state`, as run `id`.
    ///
    /// # Errors
    /// Of the awaited run: those of [`run_program`](Self::run_program), and [`RunError::InvalidName`] for an id that no
    /// run can have; then nothing ran.
    pub fn run<'a, S: State>(&'a self, graph: &'a Graph<S>, id: &str, state: S) -> Run<'a, S> {
        Run { id: Some(id.to_owned()), ..self.run_unnamed(graph, state) }
    }

    /// Runs a graph as a run whose id is made of the graph's name and a random end; [`Outcome::run`] has it.
    pub fn run_unnamed<'a, S: State>(&'a self, graph: &'a Graph<S>, state: S) -> Run<'a, S> {
        Run {
            engine: self,
            graph,
            id: None,
            state,
            or_resume: false,
            session: Session::default(),
            durability: Durability::Sync,
            labels: BTreeMap::new(),
            config: Map::new(),
        }
    }

    /// Takes a run of a graph up where it stood. The name of the graph does not count, its steps do.
    ///
    /// # Errors
    /// Of the awaited resume: those of [`resume_program`](Self::resume_program).
    pub fn resume<'a, S: State>(&'a self, graph: &'a Graph<S>, id: &str) -> Resume<'a, S> {
        let (id, session, options) = (id.to_owned(), Session::default(), ResumeOptions::default());
        Resume { engine: self, graph, id, session, options, settles: Vec::new(), edits: Vec::new() }
    }
}

/// Makes the frozen record of a run of a graph.
pub(super) fn record_of<S: State>(
    engine: &Engine,
    graph: &Graph<S>,
    run: RunId,
    (session, durability, labels, config): (
        &Session,
        Durability,
        BTreeMap<String, String>,
        Map<String, Value>,
    ),
) -> RunRecord {
    let kept = session.kept();
    let mut settings = Map::new();
    if !kept.is_empty() {
        settings.insert(SETTINGS.to_owned(), Value::Object(kept));
    }
    RunRecord {
        v: FORMAT,
        run,
        workflow: graph.name().to_owned(),
        definition: graph.shape().definition(None),
        path: None,
        base: None,
        params: Map::new(),
        env: BTreeMap::new(),
        labels,
        settings,
        config,
        durability,
        retention: session.retention,
        parent: None,
        tool: concat!("waypost ", env!("CARGO_PKG_VERSION")).to_owned(),
        actor: String::new(),
        created_at: engine.clock().now(),
    }
}

pub(super) fn held_edit<S: State>(edit: Edit<S>) -> Edit<Held> {
    Edit(Box::new(move |held: &mut Held| (edit.0)(of_held(held))))
}

impl<'a, S: State> Run<'a, S> {
    session_settings!();

    /// Takes the run up where it stood if there is one of this id: for programs that are simply started again. What is
    /// said of state, durability, retention, labels and configuration is then passed over: the run has its own.
    ///
    /// A run of that id which was made by a graph of another name, or of other steps, is refused with
    /// [`RunError::Changed`]: it is somebody else's. [`Engine::resume`] goes by the steps alone.
    pub fn or_resume(mut self) -> Self {
        self.or_resume = true;
        self
    }

    /// Acknowledges checkpoints before they are on disk, or after.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Keeps the states of the newest `checkpoints` only; of older ones what happened stays. With less than two the run is
    /// refused before it is made: one is kept in case that the newest is damaged.
    pub fn retention(mut self, checkpoints: u32) -> Self {
        self.session.retention = Some(checkpoints);
        self
    }

    /// Labels the run, so that it can be found.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets what steps read with [`Context::config`](super::Context::config).
    pub fn config(mut self, config: Map<String, Value>) -> Self {
        self.config = config;
        self
    }

    /// Runs, and gives the events as they are committed, and at last how it ended.
    #[must_use]
    pub fn stream(mut self) -> RunStream<'a, S> {
        let (sink, events) = mpsc::unbounded_channel();
        self.session.sink = Some(sink);
        RunStream { work: Some(self.into_future()), events, end: None }
    }

    async fn go(self) -> Result<Outcome<S>, RunError> {
        let Self { engine, graph, id, state, or_resume, session, durability, labels, config } = self;
        let id = match &id {
            Some(id) => RunId::new(id)?,
            None => RunId::random(graph.name()),
        };
        let resume = async |session: Session| {
            let there = engine.store().run(&id).await;
            there.map_or(Ok(()), |entry| graph.check_name(entry.record.record()))?;
            Resume { session, ..engine.resume(graph, id.as_str()) }.go().await
        };
        if or_resume && !matches!(engine.store().run(&id).await, Err(StoreError::NotFound { .. })) {
            return resume(session).await;
        }
        let record = record_of(engine, graph, id.clone(), (&session, durability, labels, config));
        let options = session.options()?;
        let observed = session.engine(engine);
        let program = graph.erased();
        let state: Held = Box::new(state);
        match observed.run_program(&program, record, state, options).await {
            // Another program has made the run since.
            Err(RunError::Store(StoreError::Exists { .. })) if or_resume => resume(session).await,
            outcome => outcome.map(known),
        }
    }
}

impl<'a, S: State> IntoFuture for Run<'a, S> {
    type Output = Result<Outcome<S>, RunError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.go())
    }
}

/// A resume that is about to begin: await it, or take its events as a [`stream`](Resume::stream).
#[must_use = "a resume begins when it is awaited"]
pub struct Resume<'a, S> {
    engine: &'a Engine,
    graph: &'a Graph<S>,
    id: String,
    session: Session,
    pub(super) options: ResumeOptions<S>,
    pub(super) settles: Settles,
    pub(super) edits: BranchEdits,
}

impl<S> std::fmt::Debug for Resume<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resume").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<'a, S: State> Resume<'a, S> {
    session_settings!();

    /// Goes on from an older checkpoint of the main branch. What came after it stays visible, abandoned; so does what
    /// branches have done that were not joined by then: they are opened anew, unless the run has come no further than
    /// them and its state is not edited.
    pub fn from_checkpoint(mut self, seq: u64) -> Self {
        self.options.from = Some(ResumeFrom::Checkpoint(seq));
        self
    }

    /// Runs a step again that was started before, with the state of then, and goes on from there; [`END`](super::END)
    /// ends the run with the state it has. A step over items works on its items again; a join of a fork is given the
    /// same branches again.
    pub fn from_step(mut self, step: &str) -> Self {
        // A name that no step can have is told when the resume begins, as one that no step has.
        self.options.from = Some(if step == super::END {
            ResumeFrom::End
        } else {
            StepId::new(step).map_or_else(|_| ResumeFrom::Unknown(step.to_owned()), ResumeFrom::Step)
        });
        self
    }

    /// Runs a step of another branch again, one of a fork or of an item, with the state of then, and goes on from there:
    /// with what comes after it on that branch, with the join, and with what comes after that. The other branches stay as
    /// they ended.
    pub fn from_step_on(mut self, branch: &BranchPath, step: &str) -> Self {
        self.options.from = Some(StepId::new(step).map_or_else(
            |_| ResumeFrom::Unknown(step.to_owned()),
            |step| match branch.is_main() {
                true => ResumeFrom::Step(step),
                false => ResumeFrom::StepOn(branch.clone(), step),
            },
        ));
        self
    }

    /// Goes on with the branches that are changed by [`edit_branch`](Self::edit_branch), also where the steps that waited for
    /// them have joined them: those join again what comes of it, and what comes after that runs again. Of branches that
    /// were joined one behind the other only those of the first are gone on with: it is done again what comes after it.
    pub fn from_branches(mut self) -> Self {
        self.options.from = Some(ResumeFrom::Branches);
        self
    }

    /// Changes the state of the main branch before anything runs. Branches under way keep their own: see
    /// [`edit_branch`](Self::edit_branch).
    pub fn edit_state(mut self, edit: impl FnOnce(&mut S) + Send + 'static) -> Self {
        self.options.edit = Some(Edit(Box::new(edit)));
        self
    }

    /// Looks at the state before anything runs, after [`edit_state`](Self::edit_state); a refusal leaves the run as it is.
    pub fn validate_state(
        mut self,
        validate: impl FnOnce(&S) -> Result<(), String> + Send + 'static,
    ) -> Self {
        self.options.validate = Some(Validate(Box::new(validate)));
        self
    }

    /// Lays this over the configuration of the run, map by map; it stays for later resumes. What changes is written down
    /// also where the run is completed, and no step is left to read it.
    pub fn config(mut self, over: Map<String, Value>) -> Self {
        self.options.config = over;
        self
    }

    /// Says what to do about damaged records.
    pub fn on_damage(mut self, on_damage: OnDamage<S>) -> Self {
        self.options.on_damage = on_damage;
        self
    }

    /// Says what to do where the graph is not the one that the run goes by: that it was made with, or adopted since.
    pub fn on_change(mut self, on_change: OnChange) -> Self {
        self.options.on_change = on_change;
        self
    }

    /// Runs steps again that are in doubt, on whatever branch: those that were cut, or that lost records may have started,
    /// and that must not be repeated blindly. For who has seen that they took no effect, or may take it twice. They have
    /// another [idempotency key](super::Context::idempotency_key) then.
    pub fn retry_doubtful(mut self) -> Self {
        self.options.on_doubt = OnDoubt::Retry;
        self
    }

    /// Says what to do where the evidence of a finished step cannot be checked; a resume stops there if nothing is said.
    pub fn on_unknown(mut self, on_unknown: OnUnknown) -> Self {
        self.options.on_unknown = on_unknown;
        self
    }

    /// Starts over with this state, [edited](Self::edit_state) and [looked at](Self::validate_state) like any other. What was
    /// recorded stays visible, and the configuration in force stays that, with [what is laid over it](Self::config). There is
    /// no other place to go on from, and no branch to edit: both are refused.
    pub fn restart(mut self, state: S) -> Self {
        self.options.restart = Some(state);
        self
    }

    /// Writes what was asked for, and runs nothing: with [`from_checkpoint`](Self::from_checkpoint) a rollback, with
    /// [`edit_state`](Self::edit_state) an update by hand.
    pub fn without_running(mut self) -> Self {
        self.options.then = Then::Stop;
        self
    }

    /// Resumes, and gives the events as they are committed, and at last how it ended.
    #[must_use]
    pub fn stream(mut self) -> RunStream<'a, S> {
        let (sink, events) = mpsc::unbounded_channel();
        self.session.sink = Some(sink);
        RunStream { work: Some(self.into_future()), events, end: None }
    }

    async fn go(self) -> Result<Outcome<S>, RunError> {
        let Self { engine, graph, id, mut session, options, settles, edits } = self;
        let id = RunId::new(&id)?;
        let edit_branches = held_edits(edits)?;
        if let Some(ResumeFrom::Unknown(name)) = &options.from {
            return Err(RunError::UnknownStep(name.clone()));
        }
        // The settings of the run are kept in its record; where that cannot be read, what is said here must do.
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
            adopt: options.adopt,
            restart: options.restart.map(|state| Box::new(state) as Held),
            from: options.from,
            edit: options.edit.map(held_edit),
            edit_branches,
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
            by: options.by,
            on_doubt: match options.on_doubt {
                OnDoubt::Retry => OnDoubt::Retry,
                _ if !settles.is_empty() => OnDoubt::Settle(held_settle(settles)),
                OnDoubt::Ask | OnDoubt::Done | OnDoubt::Settle(_) => OnDoubt::Ask,
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

/// Tells the type of the state again.
pub(super) fn known<S: State>(outcome: Outcome<Held>) -> Outcome<S> {
    outcome.map_state(|held| *held.downcast().expect("a graph has one type of state"))
}

/// What a [`RunStream`] gives.
#[derive(Debug)]
pub enum Update<S> {
    /// Something was committed.
    Event(Box<Event>),
    /// The session has ended; nothing follows.
    Ended(Box<Outcome<S>>),
}

/// The events of a run under way, and at last how it ended. Dropping it stops the run as a crash would: resume it.
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
