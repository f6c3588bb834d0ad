//! The engine: carries a plan out and appends what happened.
//!
//! One record a step boundary, one code path that appends (`engine/chain.rs`), one loop (`engine/session.rs`). The engine knows steps
//! only through a [`Program`]: a workflow file's processes and a Rust graph's functions run through the same loop.
//!
//! ```text
//!   create / acquire --> plan --> [ start steps --> wait for an end --> record it, and what starts next ]* --> release
//!                                        ^                 a crash here: the start is recorded, the end is not
//! ```

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock::{Clock, SystemClock};
use crate::id::{BranchPath, Digest, RunId, StepId};
use crate::lock::Holder;
use crate::plan::Decision;
use crate::record::{
    Definition, Ending, Failure, Flaw, Note, Pack, Position, Record, RunRecord, RunStatus, SealedRun,
    SkipCause, Try, Usage,
};
use crate::shape::{Shape, Step};
use crate::store::{Damage, Lease, Progress, Store, StoreError};

mod advance;
mod begin;
pub(crate) mod chain;
mod commit;
mod session;
mod snapshot;
mod stop;

pub use snapshot::Snapshot;
pub use stop::{Stop, StopHandle, StopLevel};

/// How often the engine asks its store whether somebody wants the run to stop.
pub const RENEW_INTERVAL: Duration = Duration::from_millis(500);

/// What the engine runs: the meaning of the steps of a graph over a state.
///
/// `admit`, `prepare` and `apply` are quick and touch nothing outside the state; `perform` does the work. Between
/// `prepare` and `apply` the state may change by other steps in flight.
#[async_trait]
pub trait Program: Send + Sync {
    /// The state, kept as JSON.
    type State: Serialize + DeserializeOwned + Send + Sync;
    /// What a step needs of the state to run.
    type Job: Send;
    /// What a step gives to the state.
    type Output: Send;

    /// Returns the shape.
    fn shape(&self) -> &Shape;

    /// Returns the schema version of the state.
    fn schema(&self) -> u32;

    /// Decides whether a step whose needs are finished runs or is skipped. Asked once; the answer is recorded.
    ///
    /// # Errors
    /// A failure of the step.
    fn admit(&self, step: &Step, state: &Self::State) -> Result<Admission, Failure>;

    /// Takes from the state what the step needs.
    ///
    /// # Errors
    /// A failure of the step, such as an expression that cannot be evaluated.
    fn prepare(&self, step: &Step, state: &Self::State) -> Result<Self::Job, Failure>;

    /// Does the work. Its start is recorded before; it must heed [`Attempt::stopped`]. Dropping it must end all that
    /// it started.
    async fn perform(&self, job: Self::Job, attempt: Attempt) -> Performed<Self::Output>;

    /// Says what is to be done about a failure.
    fn on_failure(&self, step: &Step, failure: &Failure) -> OnFailure;

    /// Changes the state by what became of a step.
    fn apply(&self, state: &mut Self::State, step: &Step, settled: Settlement<'_, Self::Output>);

    /// Prepares for the steps of one session, before the first of them: the lease is held.
    ///
    /// # Errors
    /// Why no step can run; nothing was started.
    async fn begin(&self, lease: &Lease) -> Result<(), BeginError>;

    /// Ends everything that steps left behind; afterwards the lease is given up.
    async fn end(&self);
}

/// Why a program cannot begin.
#[derive(Debug, thiserror::Error)]
#[error("cannot prepare to run steps")]
pub struct BeginError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// Whether a step runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It runs.
    Run,
    /// It is passed over.
    Skip(SkipCause),
}

/// What became of a step.
#[derive(Debug)]
pub enum Settlement<'a, O> {
    /// It completed.
    Completed(O, &'a Ending),
    /// It failed, and the workflow goes on.
    Tolerated(&'a Failure),
    /// It was passed over.
    Skipped,
}

/// What is to be done about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnFailure {
    /// It may be tried again, as far as the budget goes.
    pub retry: bool,
    /// Once the budget is used up, the workflow goes on all the same.
    pub tolerate: bool,
}

/// How a try ended.
#[derive(Debug)]
pub enum Performed<O> {
    /// It completed.
    Completed {
        /// For the state.
        output: O,
        /// For the record.
        ending: Ending,
        /// What it said.
        told: Told,
    },
    /// It failed.
    Failed {
        /// Why.
        failure: Failure,
        /// What it said.
        told: Told,
    },
    /// It was stopped, as [`Attempt::stopped`] asked.
    Stopped {
        /// Something had run: it counts as cut. Otherwise it is as if it had not been started.
        in_progress: bool,
    },
    /// What ran it is gone, and how it ended is not known: it counts as cut, and the session ends.
    Cut {
        /// What happened, for people.
        why: String,
    },
}

/// What a step said beside its result.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Told {
    /// Events and report text.
    pub notes: Vec<Note>,
    /// Tokens and cost.
    pub usage: Option<Usage>,
    /// Claims and verdicts.
    pub evidence: Option<Pack>,
}

/// One try of a step.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The run.
    pub run: RunId,
    /// The branch.
    pub branch: BranchPath,
    /// The step.
    pub step: StepId,
    /// Which try.
    pub at: Try,
    /// The lease under which it runs; blobs are written with it.
    pub lease: Lease,
    timeout: Option<Duration>,
    stop: StopHandle,
}

impl Attempt {
    /// Returns a key that is the same over retries and crashes, and new after a deliberate redo.
    pub fn idempotency_key(&self) -> String {
        let iteration: Vec<u8> = self.at.iteration.iter().flat_map(|count| count.to_le_bytes()).collect();
        let epoch = self.at.epoch.to_le_bytes();
        let names = [self.run.as_str(), self.branch.as_str(), self.step.as_str()].map(str::as_bytes);
        let digest = Digest::of_parts(names.into_iter().chain([iteration.as_slice(), &epoch]));
        digest.to_string()[..32].to_owned()
    }

    /// Resolves when the step must end: asked to stop, or out of time.
    ///
    /// Counts the time from this call; call it once, when the work begins.
    pub async fn stopped(&self) -> Ended {
        let stop = self.stop.stopped();
        match self.timeout {
            None => Ended::Stop(stop.await),
            Some(limit) => match tokio::time::timeout(limit, stop).await {
                Ok(stop) => Ended::Stop(stop),
                Err(_) => Ended::Timeout(limit),
            },
        }
    }

    /// Resolves when the step must end at once, without grace.
    pub async fn killed(&self) {
        self.stop.killed().await;
    }
}

/// Why a step must end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Somebody wants the run to stop.
    Stop(Stop),
    /// It took longer than this.
    Timeout(Duration),
}

/// Is told what was committed, right after it was; for screens and streams.
pub trait Observer: Debug + Send + Sync {
    /// A batch was committed.
    fn committed(&self, records: &[Record], position: &Position, progress: Progress);
    /// Something a person should know.
    fn warned(&self, text: &str);
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn committed(&self, _: &[Record], _: &Position, _: Progress) {}
    fn warned(&self, _: &str) {}
}

/// What to do when a checkpoint cannot be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnLostCheckpoint {
    /// Stop at once: no work is done that could be lost.
    #[default]
    Fail,
    /// Warn, mark the run, and write it together with the next one.
    Tolerate,
}

/// Settings of one session of a run.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// Through which a stop is asked for.
    pub stop: StopHandle,
    /// What to do when a checkpoint cannot be written.
    pub on_lost_checkpoint: OnLostCheckpoint,
    /// Start nothing that this step does not need, and stop after it.
    pub until: Option<StepId>,
    /// Trim states after each batch to this many.
    pub retention: Option<u32>,
}

/// How a resume goes on.
#[derive(Debug, Clone)]
pub struct ResumeOptions<S> {
    /// As for a first session.
    pub session: SessionOptions,
    /// Goes on with the program's own graph although the run was made with another.
    pub adopt: Option<Adoption>,
    /// Starts over with this state, the user having said so.
    pub restart: Option<S>,
}

/// A changed definition to go on with.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// The graph of the definition in force so far.
    pub before: Shape,
    /// The new definition; it must be that of the program's graph.
    pub definition: Definition,
}

impl<S> Default for ResumeOptions<S> {
    fn default() -> Self {
        Self { session: SessionOptions::default(), adopt: None, restart: None }
    }
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// How the run stands now.
    pub status: RunStatus,
    /// The step that failed, with its failure.
    pub failed: Option<(StepId, Failure)>,
    /// Who stopped it, if somebody did.
    pub stopped_by: Option<String>,
    /// There was nothing to do.
    pub idle: bool,
    /// How far it is.
    pub progress: Progress,
    /// Damaged records that were moved to quarantine before it went on.
    pub repaired: Vec<Damage>,
    /// Checkpoints that could not be written and were tolerated.
    pub lost: u64,
}

/// Why a session could not be held, or had to be given up.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A checkpoint could not be written. What was acknowledged before stands; the work since was stopped.
    #[error("cannot write checkpoint {at}; the run was stopped there")]
    Checkpoint {
        /// The checkpoint.
        at: String,
        /// Why.
        source: StoreError,
    },
    /// The state cannot be written as it is.
    #[error("cannot write the state of run {run}")]
    Serialize {
        /// The run.
        run: RunId,
        /// Why.
        source: Flaw,
    },
    /// The state cannot be read by this program.
    #[error("cannot read the state of {at}: {why}")]
    Deserialize {
        /// The checkpoint.
        at: String,
        /// What the decoder says.
        why: String,
    },
    /// A person must decide before anything goes on.
    #[error("run {run} needs a decision: {}", questions.iter().map(|d| format!("step `{}`: {}", d.step, d.cause)).collect::<Vec<_>>().join("; "))]
    InDoubt {
        /// The run.
        run: RunId,
        /// The questions.
        questions: Vec<Decision>,
    },
    /// It was cancelled for good.
    #[error("run {0} was cancelled and cannot be resumed")]
    Cancelled(RunId),
    /// The definition does not fit what is finished.
    #[error("the definition does not fit run {run}: {why}")]
    Changed {
        /// The run.
        run: RunId,
        /// What does not fit.
        why: String,
    },
    /// There is no such step.
    #[error("the graph has no step `{0}`")]
    InvalidStep(StepId),
    /// No step can run.
    #[error(transparent)]
    Begin(#[from] BeginError),
}

/// Runs programs over a store.
#[derive(Debug, Clone)]
pub struct Engine {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
}

impl Engine {
    /// Makes an engine over a store, with the system's clock and no observer.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, clock: Arc::new(SystemClock), observer: Arc::new(Silent) }
    }

    /// Uses another clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Tells `observer` of every commit.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// Makes a run and works on it until it is done, fails, waits or is stopped.
    ///
    /// # Errors
    /// - [`RunError::Store`] with [`StoreError::Exists`]: nothing was done.
    /// - [`RunError::Checkpoint`]: the run is there up to its last acknowledged checkpoint; resume it.
    pub async fn run<P: Program>(
        &self,
        program: &P,
        run: RunRecord,
        state: P::State,
        options: SessionOptions,
    ) -> Result<Outcome, RunError> {
        let sealed = SealedRun::seal(run).map_err(|source| StoreError::Invalid(source.to_string()))?;
        let holder = self.holder()?;
        begin::first(self, program, &sealed, state, options, &holder).await
    }

    /// Takes a run up where it stood.
    ///
    /// # Errors
    /// - [`RunError::Store`] with [`StoreError::Held`]: somebody is at it. Nothing changed.
    /// - [`RunError::Store`] with [`StoreError::Damaged`]: nothing sound is left. Nothing changed; only
    ///   [`ResumeOptions::restart`] starts over.
    /// - [`RunError::InDoubt`]: nothing was started.
    /// - [`RunError::Checkpoint`]: as for [`run`](Self::run).
    pub async fn resume<P: Program>(
        &self,
        program: &P,
        run: &RunId,
        options: ResumeOptions<P::State>,
    ) -> Result<Outcome, RunError> {
        let holder = self.holder()?;
        begin::resumed(self, program, run, options, &holder).await
    }

    fn holder(&self) -> Result<Holder, StoreError> {
        Holder::here(self.clock.now()).map_err(|source| StoreError::Io {
            action: "read",
            place: "the process table".into(),
            source,
        })
    }
}
