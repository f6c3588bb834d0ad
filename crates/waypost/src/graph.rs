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
//! A branch has one state and runs one step at a time; parallel work is in forks and in [`each`](Builder::each), where
//! every branch has a state of its own. This module knows no store: what it makes is a [`Program`], and the engine does
//! the rest.

use std::fmt;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use serde_json::Map;

use crate::engine::{
    Admission, Attempt, BeginError, Ended, Follow, Item, Joined, OnFailure, Performed, Program, RunError,
    Settlement, Spot, StateError, Upstream,
};
use crate::record::{Failure, FailureKind, Flaw, RunRecord};
use crate::shape::Shape;
use crate::store::Lease;

mod builder;
mod by_hand;
mod context;
mod draw;
mod error;
mod evidence;
mod fork;
mod history;
mod homes;
mod join;
mod level;
mod origin;
mod run;
mod trial;
mod way;

pub use builder::{Builder, ITEM_STEP, PARALLEL_DEFAULT};
pub use context::{Context, SAID_BYTES_MAX, SLEEP_IN_MEMORY_MAX};
pub use error::{GraphError, StepError};
pub use fork::{Each, Fork};
pub use history::HistoryEntry;
pub use join::{BranchEnd, Branches, Child, ItemEnd, ItemEnds};
pub use level::State;
pub use origin::{Forked, Inspected};
pub use run::{Resume, Run, RunStream, Update};

pub use crate::shape::END;

use level::{Held, Level};
use trial::Trials;

/// How long a step that heeds [`Context::cancelled`] may take to end by itself, before its future is dropped.
pub const STOP_GRACE: Duration = Duration::from_secs(10);

/// A checked graph of functions over states of type `S`.
pub struct Graph<S> {
    name: String,
    shape: Arc<Shape>,
    levels: Arc<[Arc<dyn Level>]>,
    state: PhantomData<fn() -> S>,
}

impl<S> Clone for Graph<S> {
    fn clone(&self) -> Self {
        let (shape, levels) = (Arc::clone(&self.shape), Arc::clone(&self.levels));
        Self { name: self.name.clone(), shape, levels, state: PhantomData }
    }
}

impl<S> fmt::Debug for Graph<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("name", &self.name).field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl<S: State> Graph<S> {
    /// Begins a graph of that name.
    pub fn builder(name: &str) -> Builder<S> {
        Builder::new(name)
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its steps and edges.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Makes sure that a run that nobody named but by its id is one of this graph.
    fn check_name(&self, other: &RunRecord) -> Result<(), RunError> {
        if other.workflow == self.name {
            return Ok(());
        }
        let why =
            format!("it is a run of graph `{}`, and this one is called `{}`", other.workflow, self.name);
        Err(RunError::Changed { run: other.run.clone(), why })
    }

    /// Draws it as a Mermaid flowchart.
    pub fn mermaid(&self) -> String {
        draw::mermaid(&self.shape)
    }

    /// Draws it in the language of Graphviz.
    pub fn dot(&self) -> String {
        draw::dot(&self.name, &self.shape)
    }
}

/// A graph whose type of state is forgotten, as the engine runs it in one session.
pub(crate) struct Erased {
    shape: Arc<Shape>,
    levels: Arc<[Arc<dyn Level>]>,
    trials: Trials,
}

impl<S> Graph<S> {
    pub(crate) fn erased(&self) -> Erased {
        let (shape, levels) = (Arc::clone(&self.shape), Arc::clone(&self.levels));
        let trials = Trials::of(levels.len());
        Erased { shape, levels, trials }
    }
}

/// What a step of a graph needs to run.
pub(crate) struct GraphJob {
    level: usize,
    place: usize,
    state: Held,
    joined: Option<Joined>,
}

#[async_trait]
impl Program for Erased {
    type State = Held;
    type Job = GraphJob;
    type Output = Held;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn schema(&self, level: usize) -> u32 {
        self.levels[level].schema()
    }

    fn encode(&self, level: usize, state: &Held, bytes: &mut Vec<u8>) -> Result<(), Flaw> {
        let begin = bytes.len();
        self.levels[level].encode(state, bytes)?;
        if self.trials.is_due(level, bytes.len() - begin) {
            self.levels[level].check(&bytes[begin..]).inspect_err(|_| bytes.truncate(begin))?;
        }
        Ok(())
    }

    fn decode(&self, level: usize, bytes: &[u8], schema: u32) -> Result<Held, StateError> {
        self.levels[level].decode(bytes, schema)
    }

    fn admit(&self, _: Spot<'_>, _: &Held, upstream: Upstream<'_>) -> Result<Admission, Failure> {
        Ok(upstream.admission())
    }

    fn open(&self, spot: Spot<'_>, state: &Held) -> Result<Vec<Item>, Failure> {
        unpanicked(|| self.levels[spot.level].open(spot.place, state))
    }

    fn child(&self, spot: Spot<'_>, state: &Held, item: &Item) -> Result<Held, Failure> {
        unpanicked(|| self.levels[spot.level].child(spot.place, state, item))
    }

    fn attach(&self, _: Spot<'_>, _: &Held, _: &mut Held) {}

    fn prepare(&self, spot: Spot<'_>, state: &Held, joined: Option<Joined>) -> Result<GraphJob, Failure> {
        let state = self.levels[spot.level].copy(state);
        Ok(GraphJob { level: spot.level, place: spot.place, state, joined })
    }

    async fn perform(&self, job: GraphJob, attempt: Attempt) -> Performed<Held> {
        let level = self.levels[job.level].as_ref();
        let context = Context::new(attempt.clone());
        // Also what the function does before it gives its future may panic.
        let work = async { level.perform(job.place, job.state, job.joined, context.clone()).await };
        let work = AssertUnwindSafe(work).catch_unwind();
        tokio::pin!(work);
        let ended = tokio::select! {
            biased;
            end = &mut work => Ok(end),
            ended = attempt.stopped() => Err(ended),
            never = attempt.told_meanwhile(|| (Map::new(), context.take_said_now())) => match never {},
        };
        let ended = match ended {
            Err(Ended::Stop(_)) if context.heeds_stop() => tokio::select! {
                biased;
                end = &mut work => Ok(end),
                () = attempt.killed() => Err(None),
                () = tokio::time::sleep(STOP_GRACE) => Err(None),
            },
            Err(Ended::Timeout(limit)) => Err(Some(limit)),
            Err(Ended::Stop(_)) => Err(None),
            Ok(end) => Ok(end),
        };
        let ended = match (ended, context.refused()) {
            (Ok(Ok(Ok(_))), Some(why)) => Ok(Ok(Err(StepError::fatal(why)))),
            (ended, _) => ended,
        };
        let failed = |failure| Performed::Failed { failure, told: context.take_told() };
        match ended {
            Ok(Ok(Ok(output))) => evidence::vouched((level, job.place), output, &attempt, &context).await,
            Ok(Ok(Err(error))) => {
                let retryable = level.is_retryable(job.place, &error);
                let kind = if retryable { FailureKind::Error } else { FailureKind::Fatal };
                failed(Failure::new(kind, error.chain()))
            }
            Ok(Err(panic)) => failed(Failure::new(FailureKind::Fatal, vec![said_by(panic.as_ref())])),
            Err(Some(limit)) => {
                let text = format!("it took longer than {limit:?}");
                failed(Failure::new(FailureKind::Timeout, vec![text]))
            }
            Err(None) => Performed::Stopped { in_progress: true },
        }
    }

    fn subjects(&self, spot: Spot<'_>, state: &Held) -> Vec<String> {
        let pack = unpanicked(|| Ok(self.levels[spot.level].evidence(spot.place, state)));
        // A state that the step has not worked on may lack what its evidence looks for: then it tells nothing.
        let claims = pack.ok().flatten().map(|pack| pack.claims).unwrap_or_default();
        claims.into_iter().map(|claim| claim.subject).collect()
    }

    fn on_failure(&self, _: Spot<'_>, failure: &Failure) -> OnFailure {
        OnFailure { retry: failure.kind != FailureKind::Fatal, tolerate: false, ..OnFailure::default() }
    }

    fn apply(
        &self,
        state: &mut Held,
        spot: Spot<'_>,
        settled: Settlement<'_, Held>,
    ) -> Result<Follow, Failure> {
        let Settlement::Completed(output, _) = settled else {
            // No step of a graph is skipped or tolerated; were one, its state would stay.
            return unpanicked(|| self.levels[spot.level].follow(spot.place, state));
        };
        let follow = unpanicked(|| self.levels[spot.level].follow(spot.place, &output))?;
        *state = output;
        Ok(follow)
    }

    async fn begin(&self, _: &Lease) -> Result<(), BeginError> {
        Ok(())
    }

    async fn end(&self) {}
}

/// Asks a function of the user's own, and takes its panic as a failure of the step that it belongs to.
fn unpanicked<T>(ask: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    std::panic::catch_unwind(AssertUnwindSafe(ask))
        .unwrap_or_else(|panic| Err(Failure::new(FailureKind::Fatal, vec![said_by(panic.as_ref())])))
}

/// What a panic says.
fn said_by(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the step panicked: {}", text.unwrap_or("it did not say why"))
}
