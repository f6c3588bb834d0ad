//! Runs that begin where another stood, and what stood there.

use std::collections::BTreeMap;
use std::future::IntoFuture;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};

use super::Graph;
use super::level::State;
use super::run::{Session, held_edit, known, record_of, session_settings};
use crate::engine::{
    Edit, Engine, OnChange, OnLostCheckpoint, OriginEvidence, Outcome, RunError, StartOptions, StopHandle,
};
use crate::id::{CheckpointRef, RunId, StepId};
use crate::portable::Portable;
use crate::record::{Durability, Position, Record};

/// A checkpoint of a run, as its graph understands it.
#[derive(Debug, Clone)]
pub struct Inspected<S> {
    /// What happened there.
    pub record: Record,
    /// What was unfinished then.
    pub position: Position,
    /// The state of then.
    pub state: S,
}

impl Engine {
    /// Makes a new run `id` that begins at a checkpoint of another: `RUN@SEQ`.
    ///
    /// It never depends on the other run, which may be deleted. Settings of the run are to be given anew.
    ///
    /// Amid a fork or items, the branches come along as they stand, and only what they have not finished runs; see
    /// [`fork_program`](Self::fork_program) for those that are opened anew.
    ///
    /// # Errors
    /// Of the awaited run: as for [`run`](Self::run), and [`RunError::NoState`] for a checkpoint whose state is gone.
    pub fn fork<'a, S: State>(
        &'a self,
        graph: &'a Graph<S>,
        from: &CheckpointRef,
        id: &str,
    ) -> Forked<'a, S> {
        let (session, durability, config) = (Session::default(), Durability::Sync, None);
        let (id, from, labels) = (id.to_owned(), from.clone(), BTreeMap::new());
        let (from, edit, on_change) = (Origin::Run(from), None, OnChange::Stop);
        let evidence = OriginEvidence::Checked;
        Forked {
            engine: self,
            graph,
            from,
            id,
            session,
            durability,
            labels,
            config,
            edit,
            on_change,
            evidence,
        }
    }

    /// Makes a new run `id` that begins with a checkpoint from a file, and with the branches that it is in the middle of.
    ///
    /// # Errors
    /// Of the awaited run: as for [`run`](Self::run), and [`RunError::Changed`] for a checkpoint of another graph.
    pub fn import<'a, S: State>(&'a self, graph: &'a Graph<S>, from: &Portable, id: &str) -> Forked<'a, S> {
        let (session, durability, config) = (Session::default(), Durability::Sync, None);
        let (id, labels, edit) = (id.to_owned(), BTreeMap::new(), None);
        let (from, on_change) = (Origin::File(Box::new(from.clone())), OnChange::Stop);
        let evidence = OriginEvidence::Checked;
        Forked {
            engine: self,
            graph,
            from,
            id,
            session,
            durability,
            labels,
            config,
            edit,
            on_change,
            evidence,
        }
    }

    /// Takes the evidence of a finished step as it is found now, on a person's word: see
    /// [`accept_program`](Self::accept_program). Returns how many packs were accepted; 0 if all of them hold.
    ///
    /// # Errors
    /// As there, and [`RunError::InvalidName`] or [`RunError::UnknownStep`] for names that no run or step can have.
    pub async fn accept<S: State>(&self, graph: &Graph<S>, run: &str, step: &str) -> Result<usize, RunError> {
        let run = RunId::new(run)?;
        let step = StepId::new(step).map_err(|_| RunError::UnknownStep(step.to_owned()))?;
        self.accept_program(&graph.erased(), &run, &step).await
    }

    /// Reads a checkpoint of the main branch with its state; nothing runs and nothing changes.
    ///
    /// # Errors
    /// [`RunError::NoState`]: retention dropped it. [`RunError::Deserialize`], [`RunError::Version`]: the graph cannot
    /// read it.
    pub async fn inspect<S: State>(
        &self,
        graph: &Graph<S>,
        at: &CheckpointRef,
    ) -> Result<Inspected<S>, RunError> {
        let (record, position, held) = self.inspect_program(&graph.erased(), at).await?;
        Ok(Inspected { record, position, state: *held.downcast().expect("a graph has one type of state") })
    }
}

/// A run that is about to begin where another stood.
#[derive(Debug)]
#[must_use = "a run begins when it is awaited"]
pub struct Forked<'a, S> {
    engine: &'a Engine,
    graph: &'a Graph<S>,
    from: Origin,
    id: String,
    session: Session,
    durability: Durability,
    labels: BTreeMap<String, String>,
    config: Option<Map<String, Value>>,
    edit: Option<Edit<S>>,
    on_change: OnChange,
    evidence: OriginEvidence,
}

/// Where a new run takes its begin from.
#[derive(Debug)]
enum Origin {
    Run(CheckpointRef),
    File(Box<Portable>),
}

impl<'a, S: State> Forked<'a, S> {
    session_settings!();

    /// Changes the state before anything runs. Branches that were not joined by then are opened anew with it.
    pub fn edit_state(mut self, edit: impl FnOnce(&mut S) + Send + 'static) -> Self {
        self.edit = Some(Edit(Box::new(edit)));
        self
    }

    /// Labels the run, so that it can be found.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Says what to do where the graph is not the one of the checkpoint.
    pub fn on_change(mut self, on_change: OnChange) -> Self {
        self.on_change = on_change;
        self
    }

    /// Leaves the evidence of what is finished there behind, on your word: where its files are not, for instance. The new
    /// run does not begin with evidence that does not hold, unless this is said.
    pub fn without_evidence(mut self) -> Self {
        self.evidence = OriginEvidence::Left;
        self
    }

    /// Acknowledges checkpoints before they are on disk, or after.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets what steps read as configuration; the one in force at the checkpoint if nothing is said.
    pub fn config(mut self, config: Map<String, Value>) -> Self {
        self.config = Some(config);
        self
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
        let record = record_of(engine, graph, id, (&session, durability, labels, config));
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
