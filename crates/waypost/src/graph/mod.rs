//! Graphs of Rust functions over a typed state.
//!
//! ```
//! use std::sync::Arc;
//! use serde::{Deserialize, Serialize};
//! use waypost::memory::MemoryStore;
//! use waypost::{Context, END, Engine, Graph, StepError};
//!
//! #[derive(Debug, Default, Clone, Serialize, Deserialize)]
//! struct Research { question: String, notes: Vec<String> }
//!
//! async fn search(mut state: Research, _: Context) -> Result<Research, StepError> {
//!     state.notes.push(format!("note {}", state.notes.len() + 1));
//!     Ok(state)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let graph = Graph::<Research>::builder("research")
//!     .step("search", search)
//!     .route("search", ["search", END], |state| if state.notes.len() < 3 { "search" } else { END })
//!     .build()?;
//! let engine = Engine::new(Arc::new(MemoryStore::new()));
//! let outcome = engine.run(&graph, "run-1", Research::default()).await?;
//! assert_eq!(outcome.state.notes.len(), 3);
//! # Ok(())
//! # }
//! ```
//!
//! A scope has one state and runs its steps in sequence. Forks and [`each`](Builder::each) run in parallel; each
//! scope has its own state. This module does not know the store: the result is a [`Program`] for the engine.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use crate::engine::{
    Admission, Attempt, BeginError, Exited, Follow, Item, Joined, OnFailure, Performed, Program, Recovered,
    RunError, Settlement, StateError, StepRef, Unjoined, Upstream, unpanicked,
};
use crate::id::StepId;
use crate::json::path::FieldPath;
use crate::plan::shape::Shape;
use crate::record::{Claim, Failure, FailureKind, Flaw, Phase, RunRecord, Try};
use crate::store::Lease;

mod builder;
mod context;
mod decode_check;
mod draw;
mod edges;
mod error;
mod evidence;
mod fork;
mod graphs;
mod history;
mod join;
mod level;
mod manual;
mod origin;
mod pending;
mod perform;
mod run;
mod step_scopes;
mod waits;

pub use builder::{Builder, ITEM_STEP, PARALLEL_DEFAULT, SUBGRAPH_KEY, UsingResources};
pub use context::{Context, SAID_BYTES_MAX};
pub use error::{GraphError, StepError, ToStepError};
pub use fork::{Each, Fork};
pub use graphs::{GRAPH_NEED, Graphs};
pub use history::HistoryEntry;
pub use join::{BranchEnd, Branches, Child, ItemEnd, ItemEnds};
pub use level::State;
pub use origin::{Forked, Inspected};
pub use run::{Resume, Run, RunStream, Update};
pub use waits::SLEEP_IN_MEMORY_MAX;

pub use crate::plan::shape::END;

use decode_check::{DecodeChecks, Reading};
use level::{Held, Level};
use perform::{AttemptOutput, GraphJob, Work};

/// How long a step that observes [`Context::cancelled`] may take to end before its future is dropped.
pub const STOP_GRACE: Duration = Duration::from_secs(10);

/// A checked graph of functions over states of type `S`.
pub struct Graph<S> {
    name: String,
    shape: Arc<Shape>,
    levels: Arc<[Arc<dyn Level>]>,
    reading: Reading,
    state: PhantomData<fn() -> S>,
}

impl<S> Clone for Graph<S> {
    fn clone(&self) -> Self {
        let (shape, levels) = (Arc::clone(&self.shape), Arc::clone(&self.levels));
        Self { name: self.name.clone(), shape, levels, reading: self.reading, state: PhantomData }
    }
}

impl<S> fmt::Debug for Graph<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("name", &self.name).field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl<S: State> Graph<S> {
    /// Starts a builder for a graph called `name`.
    pub fn builder(name: &str) -> Builder<S> {
        Builder::new(name, ())
    }

    /// Starts a builder for a graph whose steps borrow `resources`: clients, connections, settings. Resources are not
    /// stored; a resume uses those of the new process.
    ///
    /// ```
    /// # use waypost::{Context, Graph, StepError};
    /// struct Clients { name: String }
    ///
    /// async fn greet(text: String, _: Context, clients: &Clients) -> Result<String, StepError> {
    ///     Ok(format!("{text} {}", clients.name))
    /// }
    ///
    /// let clients = Clients { name: "Ada".to_owned() };
    /// let graph = Graph::<String>::with_resources("greeting", clients).step_using("greet", greet).build();
    /// # graph.unwrap();
    /// ```
    pub fn with_resources<Resources: Send + Sync + 'static>(
        name: &str,
        resources: Resources,
    ) -> Builder<S, Resources> {
        Builder::new(name, resources)
    }

    /// Returns the name of the graph.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the steps and edges.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Decodes each state right after its encoding, also in release builds, and passes the decoded state to the
    /// next step.
    ///
    /// Each step then sees the state as after a crash: a field with `#[serde(skip)]` has its default from the
    /// next step on, not only after a resume. A state that decodes with other fields is refused, with the names
    /// of the step and the field. Builds with debug assertions always do this. A release build checks only the
    /// first states of a session, by comparison. The check costs about four times as much as encoding the state.
    #[must_use]
    pub fn strict_states(self) -> Self {
        Self { reading: Reading::All, ..self }
    }

    /// Refuses a run of another graph, for calls that name the run only by id.
    fn check_name(&self, other: &RunRecord) -> Result<(), RunError> {
        if other.workflow == self.name {
            return Ok(());
        }
        let why = format!("the run belongs to graph `{}`, not to `{}`", other.workflow, self.name);
        Err(RunError::Changed { run: other.run.clone(), why })
    }

    /// Draws the graph as a Mermaid flowchart.
    pub fn mermaid(&self) -> String {
        draw::mermaid(&self.shape)
    }

    /// Draws the graph in the language of Graphviz.
    pub fn dot(&self) -> String {
        draw::dot(&self.name, &self.shape)
    }
}

/// A graph with its state type erased, for a session of the engine.
pub(crate) struct Erased {
    shape: Arc<Shape>,
    levels: Arc<[Arc<dyn Level>]>,
    reading: Reading,
    decode_checks: DecodeChecks,
}

impl<S> Graph<S> {
    pub(crate) fn erased(&self) -> Erased {
        let (shape, levels) = (Arc::clone(&self.shape), Arc::clone(&self.levels));
        let decode_checks = DecodeChecks::of(levels.len());
        Erased { shape, levels, reading: self.reading, decode_checks }
    }
}

impl Erased {
    /// Returns the way on from a step, by the state after it.
    fn route(&self, step_ref: StepRef<'_>, state: &Held) -> Result<Follow, Failure> {
        perform::route(self.levels[step_ref.level].as_ref(), step_ref.place, &step_ref.step.id, state)
    }
}

#[async_trait]
impl Program for Erased {
    type State = Held;
    type Job = GraphJob;
    type Output = AttemptOutput;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn schema(&self, level: usize) -> u32 {
        self.levels[level].schema()
    }

    fn encode(&self, level: usize, state: &Held, bytes: &mut Vec<u8>) -> Result<(), Flaw> {
        let begin = bytes.len();
        let written = unpanicked(|| {
            self.levels[level].encode(state, bytes)?;
            if self.reading == Reading::All || self.decode_checks.is_due(level, bytes.len() - begin) {
                self.levels[level].check(&bytes[begin..])?;
            }
            Ok(())
        });
        let written = written.unwrap_or_else(|panic| {
            let why = format!("writing or reading the state panicked: {panic}");
            Err(Flaw::Unkept { path: FieldPath::default(), why })
        });
        written.inspect_err(|_| bytes.truncate(begin))
    }

    fn decode(&self, level: usize, bytes: &[u8], schema: u32) -> Result<Held, StateError> {
        let read = unpanicked(|| self.levels[level].decode(bytes, schema));
        let panicked = |panic| StateError::Malformed(format!("reading the state panicked: {panic}"));
        read.unwrap_or_else(|panic| Err(panicked(panic)))
    }

    fn admit(&self, _: StepRef<'_>, _: &Held, upstream: Upstream<'_>) -> Result<Admission, Failure> {
        Ok(upstream.admission())
    }

    fn open(&self, step_ref: StepRef<'_>, state: &Held) -> Result<Vec<Item>, Failure> {
        let called = format_args!("the items or the keys of step `{}`", step_ref.step.id);
        perform::unpanicked(called, || self.levels[step_ref.level].open(step_ref.place, state))
    }

    fn child(&self, step_ref: StepRef<'_>, state: &Held, item: &Item) -> Result<Held, Failure> {
        let called = format_args!("the state of scope `{}` of step `{}`", item.key, step_ref.step.id);
        perform::unpanicked(called, || self.levels[step_ref.level].child(step_ref.place, state, item))
    }

    fn attach(&self, _: StepRef<'_>, _: &Held, _: &mut Held) {}

    fn prepare(
        &self,
        step_ref: StepRef<'_>,
        state: &Held,
        joined: Option<Joined>,
    ) -> Result<GraphJob, Failure> {
        let called = format_args!("the copy of the state for step `{}`", step_ref.step.id);
        let level = self.levels[step_ref.level].as_ref();
        let state = perform::unpanicked(called, || Ok(self.reading.back(level, level.copy(state))))?;
        let (level, place, idempotent) = (step_ref.level, step_ref.place, step_ref.step.idempotent);
        Ok(GraphJob { level, place, state, joined, idempotent })
    }

    async fn perform(&self, job: GraphJob, attempt: Attempt) -> Performed<AttemptOutput> {
        let GraphJob { level, place, state, joined, idempotent } = job;
        let level = self.levels[level].as_ref();
        let context = Context::new(attempt.clone());
        let work = Work { level, attempt: &attempt, context, place, idempotent, reading: self.reading };
        work.perform(state, joined).await
    }

    fn subjects(&self, step_ref: StepRef<'_>, state: &Held) -> Vec<String> {
        let level = &self.levels[step_ref.level];
        let pack = unpanicked(|| level.evidence(step_ref.place, state));
        // The evidence function may panic on an input state. The step then has no known subjects.
        let claims = pack.ok().flatten().map(|pack| pack.claims).unwrap_or_default();
        claims.into_iter().map(|claim| claim.subject).collect()
    }

    /// The state is one value, of which no part belongs to a step: a step that runs again is given the state of then.
    fn forget(&self, _: StepRef<'_>, _: &mut Held) {}

    fn apply_unjoined(&self, _: StepRef<'_>, _: &mut Held, _: Unjoined<'_, Held>) {}

    fn forget_failure(&self, _: StepRef<'_>, _: &mut Held) {}

    fn forget_join(&self, _: StepRef<'_>, _: &mut Held) {}

    fn restore(&self, _: StepRef<'_>, _: &mut Held, _: &Held) {}

    /// The engine knows no secrets of a graph.
    fn redact(&self, _: &mut Claim) {}

    fn redact_answer(&self, _: &mut Value) {}

    fn keeps_apart(&self) -> bool {
        false
    }

    /// Whole states are compared instead.
    fn output_of(&self, _: StepRef<'_>, _: &Held) -> Option<Value> {
        None
    }

    /// Each function is given the whole state.
    fn reads_index(&self, _: StepRef<'_>) -> bool {
        false
    }

    fn is_of_item(&self, _: &Held, _: &Item) -> bool {
        true
    }

    fn set_index(&self, _: &mut Held, _: u64) -> bool {
        false
    }

    fn reads(&self, _: StepRef<'_>) -> Vec<StepId> {
        Vec::new()
    }

    /// A graph declares no compensation.
    fn undo(&self, _: StepRef<'_>, _: &Try, _: &Held) -> Result<Option<GraphJob>, Failure> {
        Ok(None)
    }

    /// Only the function of a step makes its state, so that evidence alone cannot settle a cut step.
    async fn recover(
        &self,
        _: StepRef<'_>,
        _: &Held,
        _: Option<&Exited>,
    ) -> Option<Recovered<AttemptOutput>> {
        None
    }

    /// Only the caller can provide the output state of the step, with [`Resume::settle_doubtful`].
    fn settle_as_done(
        &self,
        _: StepRef<'_>,
        _: &mut Held,
        _: crate::engine::KnownOutputs<'_>,
    ) -> Result<(Follow, Phase), String> {
        Err("the caller describes the result".to_owned())
    }

    fn follow(&self, step_ref: StepRef<'_>, state: &Held) -> Result<Follow, String> {
        self.route(step_ref, state).map_err(|failure| failure.error.join(": "))
    }

    fn on_failure(&self, step_ref: StepRef<'_>, failure: &Failure) -> OnFailure {
        let may_have_effect = failure.kind == FailureKind::Evidence && !step_ref.step.idempotent;
        let retry = failure.kind != FailureKind::Fatal && !may_have_effect;
        OnFailure { retry, tolerate: false, ..OnFailure::default() }
    }

    fn apply(
        &self,
        state: &mut Held,
        step_ref: StepRef<'_>,
        settled: Settlement<'_, AttemptOutput>,
    ) -> Result<Follow, Failure> {
        let Settlement::Completed(output, _) = settled else {
            // A graph never skips or tolerates a step; the state would stay unchanged.
            return self.route(step_ref, state);
        };
        *state = output.state;
        Ok(output.follow)
    }

    async fn begin(&self, _: &Lease) -> Result<(), BeginError> {
        Ok(())
    }

    async fn end(&self) {}
}
