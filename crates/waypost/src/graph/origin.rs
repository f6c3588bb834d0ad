//! Runs that begin at a checkpoint of another run, and reads of checkpoints.

use std::collections::BTreeMap;
use std::future::IntoFuture;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};

use super::Graph;
use super::level::State;
use super::run::{RunStream, SessionSettings, held_edit, known, record_of, session_settings};
use crate::engine::{
    AcceptAs, Acceptance, Edit, Engine, OnChange, OnLostCheckpoint, OriginEvidence, Outcome, RunError,
    StartOptions, StopHandle,
};
use crate::id::{CheckpointRef, RunId, StepId};
use crate::record::{Durability, Position, Record, RunRecord};
use crate::store::portable::Portable;

/// A checkpoint of a run, decoded by its graph.
#[derive(Debug, Clone)]
pub struct Inspected<S> {
    /// The record.
    pub record: Record,
    /// The position: the unfinished work.
    pub position: Position,
    /// The state at the checkpoint.
    pub state: S,
}

impl Engine {
    /// Forks a run: makes a new run `id` from a checkpoint of another run, `RUN@SEQ`.
    ///
    /// The new run does not depend on its parent, and the parent may be deleted. Session settings are not
    /// inherited.
    ///
    /// At a checkpoint inside a fork or a fan-out, the scopes are copied with their positions, and only
    /// unfinished work runs. [`fork_program`](Self::fork_program) describes the scopes that restart instead.
    ///
    /// # Errors
    /// Of the awaited run: as for [`run`](Self::run), and [`RunError::NoState`] for a checkpoint without a state.
    pub fn fork<'a, S: State>(
        &'a self,
        graph: &'a Graph<S>,
        from: &CheckpointRef,
        id: impl AsRef<str>,
    ) -> Forked<'a, S> {
        Forked::of(self, graph, Origin::Run(from.clone()), id.as_ref())
    }

    /// Makes a new run `id` from a checkpoint in a file, with the open scopes of the checkpoint.
    ///
    /// # Errors
    /// Of the awaited run: as for [`run`](Self::run), and [`RunError::Changed`] for a checkpoint of another graph.
    pub fn import<'a, S: State>(
        &'a self,
        graph: &'a Graph<S>,
        from: &Portable,
        id: impl AsRef<str>,
    ) -> Forked<'a, S> {
        Forked::of(self, graph, Origin::File(Box::new(from.clone())), id.as_ref())
    }

    /// Accepts the current evidence of a finished step, by decision of a person: see
    /// [`accept_program`](Self::accept_program). Returns the number of accepted packs; 0 if all packs hold.
    ///
    /// # Errors
    /// As there, and [`RunError::InvalidName`] or [`RunError::UnknownStep`] for an invalid run id or step id.
    pub async fn accept<S: State>(
        &self,
        graph: &Graph<S>,
        run: impl AsRef<str>,
        step: impl AsRef<str>,
    ) -> Result<usize, RunError> {
        let (run, step) = (RunId::new(run.as_ref())?, step.as_ref());
        let step = StepId::new(step).map_err(|_| RunError::UnknownStep(step.to_owned()))?;
        let acceptance = Acceptance { scope: None, step: &step, accept_as: AcceptAs::Pinned, by: None };
        self.accept_program(&graph.erased(), &run, acceptance).await
    }

    /// Reads a checkpoint of the main scope, or of a scope of a fork, with its state. Runs nothing and changes nothing.
    ///
    /// # Errors
    /// As for [`inspect_as`](Self::inspect_as).
    pub async fn inspect<S: State>(
        &self,
        graph: &Graph<S>,
        at: &CheckpointRef,
    ) -> Result<Inspected<S>, RunError> {
        self.inspect_as(graph, at).await
    }

    /// As [`inspect`](Self::inspect), for a scope with a state of type `T`: the state of a sub-graph, or
    /// [`Child`](super::Child) for an item.
    ///
    /// # Errors
    /// [`RunError::NoState`]: retention dropped it, or the scope has a state of another type. [`RunError::Deserialize`], [`RunError::Version`]: the graph cannot
    /// read it.
    pub async fn inspect_as<T: State>(
        &self,
        graph: &Graph<impl State>,
        at: &CheckpointRef,
    ) -> Result<Inspected<T>, RunError> {
        let (record, position, held) = self.inspect_program(&graph.erased(), at).await?;
        let of_type = std::any::type_name::<T>();
        let state = held.downcast().map_err(|_| RunError::NoState {
            at: at.to_string(),
            why: format!("the state is not a `{of_type}`"),
        })?;
        Ok(Inspected { record, position, state: *state })
    }
}

/// A new run from an existing checkpoint, not yet begun.
#[derive(Debug)]
#[must_use = "a run begins when it is awaited"]
pub struct Forked<'a, S> {
    engine: &'a Engine,
    graph: &'a Graph<S>,
    from: Origin,
    id: String,
    session: SessionSettings,
    durability: Durability,
    labels: BTreeMap<String, String>,
    config: Option<Map<String, Value>>,
    edit: Option<Edit<S>>,
    on_change: OnChange,
    evidence: OriginEvidence,
}

impl<'a, S: State> Forked<'a, S> {
    fn of(engine: &'a Engine, graph: &'a Graph<S>, from: Origin, id: &str) -> Self {
        Self {
            engine,
            graph,
            from,
            id: id.to_owned(),
            session: SessionSettings::default(),
            durability: Durability::Sync,
            labels: BTreeMap::new(),
            config: None,
            edit: None,
            on_change: OnChange::Stop,
            evidence: OriginEvidence::Checked,
        }
    }
}

/// The source of the first checkpoint.
#[derive(Debug)]
enum Origin {
    Run(CheckpointRef),
    File(Box<Portable>),
}

impl<'a, S: State> Forked<'a, S> {
    session_settings!();

    /// Edits the state before anything runs. Scopes not yet joined restart with the edited state.
    pub fn edit_state(mut self, edit: impl FnOnce(&mut S) + Send + 'static) -> Self {
        self.edit = Some(Edit(Box::new(edit)));
        self
    }

    /// Adds a label to the run, for lookups.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Sets the reaction to a graph that differs from the graph of the checkpoint.
    pub fn on_change(mut self, on_change: OnChange) -> Self {
        self.on_change = on_change;
        self
    }

    /// Drops the evidence of the finished steps, by decision of the caller: for example on a host without the
    /// files. Without this call, evidence that does not hold refuses the fork.
    pub fn without_evidence(mut self) -> Self {
        self.evidence = OriginEvidence::Left;
        self
    }

    /// Sets whether a checkpoint is acknowledged before or after the write to disk.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the configuration of the run. The default is the configuration in force at the checkpoint.
    pub fn config(mut self, config: Map<String, Value>) -> Self {
        self.config = Some(config);
        self
    }

    /// Runs, and returns a stream of the committed events, followed by the outcome.
    #[must_use]
    pub fn stream(mut self) -> RunStream<'a, S> {
        let events = self.session.events();
        RunStream::of(self.into_future(), events)
    }

    async fn go(self) -> Result<Outcome<S>, RunError> {
        let Self { engine, graph, from, id, session, durability, labels, config, edit, on_change, evidence } =
            self;
        let id = RunId::new(&id)?;
        let config = match (config, &from) {
            (Some(config), _) => config,
            (None, Origin::Run(from)) => engine.config_at(from).await?,
            (None, Origin::File(from)) => from.config().clone(),
        };
        let record = RunRecord { durability, labels, config, ..record_of(engine, graph, id, &session) };
        let edit = edit.map(held_edit);
        let options = session.options()?;
        let start = StartOptions { session: options, edit, on_change, evidence, ..StartOptions::default() };
        let (engine, program) = (session.engine(engine), graph.erased());
        let outcome = match &from {
            Origin::Run(from) => engine.fork_program(&program, from, record, start).await,
            Origin::File(from) => engine.import_program(&program, from, record, start).await,
        };
        outcome.map(known)
    }
}

impl<'a, S: State> IntoFuture for Forked<'a, S> {
    type Output = Result<Outcome<S>, RunError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.go())
    }
}
