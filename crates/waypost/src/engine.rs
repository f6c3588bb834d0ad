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

use crate::clock::{Clock, SystemClock};
use crate::id::{BranchPath, RunId, StepId};
use crate::lock::Holder;
use crate::plan::Decision;
use crate::record::{
    Definition, Ending, Failure, Flaw, Note, Pack, Position, Record, RunRecord, RunStatus, SealedRun,
    SkipCause, Status, Usage, Wait, WaitKind,
};
use crate::shape::{Shape, Step};
use crate::store::{Damage, Lease, Progress, RunEntry, Store, StoreError};

mod advance;
mod attempt;
mod begin;
mod branches;
mod chain;
mod commit;
mod fan;
mod line;
mod request;
mod schedule;
mod session;
mod snapshot;
mod stop;

pub use attempt::{Attempt, Ended, MEMO_BYTES_MAX, MEMOS_MAX, MemoError};
pub use fan::{CHILD_PAGE, Item, Joined, Outcomes};
pub use snapshot::Snapshot;
pub use stop::{Stop, StopHandle, StopLevel};

/// How often the engine asks its store whether somebody wants the run to stop.
pub const RENEW_INTERVAL: Duration = Duration::from_millis(500);

/// A step, and where it stands: what a program is asked about.
#[derive(Debug, Clone, Copy)]
pub struct Spot<'a> {
    /// The branch it runs on.
    pub branch: &'a BranchPath,
    /// The number of its shape, [`Shape::level`].
    pub level: usize,
    /// Its place in the shape.
    pub place: usize,
    /// The step.
    pub step: &'a Step,
}

/// What the engine runs: the meaning of the steps of a shape over a state.
///
/// All but `perform` are quick and touch nothing outside the state; `perform` does the work. Between `prepare` and
/// `apply` the state may change by other steps in flight. A branch has a state of its own, and states of branches of
/// different shapes may differ in kind.
#[async_trait]
pub trait Program: Send + Sync {
    /// The state of a branch.
    type State: Send + Sync;
    /// What a step needs of the state to run.
    type Job: Send;
    /// What a step gives to the state.
    type Output: Send;

    /// Returns the shape of the main branch.
    fn shape(&self) -> &Shape;

    /// Returns the schema version of the states of a shape.
    fn schema(&self, level: usize) -> u32;

    /// Writes a state as JSON behind what is in `bytes`.
    ///
    /// # Errors
    /// [`Flaw`] names the field that JSON would change or cannot hold.
    fn encode(&self, level: usize, state: &Self::State, bytes: &mut Vec<u8>) -> Result<(), Flaw>;

    /// Reads a state that was written with that schema version. Runs nothing of the state's own.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn decode(&self, level: usize, bytes: &[u8], schema: u32) -> Result<Self::State, StateError>;

    /// Decides whether a step whose needs are finished runs or is skipped. Asked once; the answer is recorded.
    ///
    /// # Errors
    /// A failure of the step.
    fn admit(&self, spot: Spot<'_>, state: &Self::State) -> Result<Admission, Failure>;

    /// Names the children that a step opens, in order, with what each is about. Asked once; the answer is frozen.
    /// Not asked where the shape names them.
    ///
    /// # Errors
    /// A failure of the step.
    fn open(&self, spot: Spot<'_>, state: &Self::State) -> Result<Vec<Item>, Failure>;

    /// Makes the state that a child begins with from that of the branch that opens it.
    ///
    /// # Errors
    /// A failure of the step that opens it.
    fn child(&self, spot: Spot<'_>, state: &Self::State, item: &Item) -> Result<Self::State, Failure>;

    /// Takes from the state what the step needs. A step that has opened children is given what became of them.
    ///
    /// # Errors
    /// A failure of the step, such as an expression that cannot be evaluated.
    fn prepare(
        &self,
        spot: Spot<'_>,
        state: &Self::State,
        joined: Option<Joined>,
    ) -> Result<Self::Job, Failure>;

    /// Does the work. Its start is recorded before; it must heed [`Attempt::stopped`]. Dropping it must end all that
    /// it started.
    async fn perform(&self, job: Self::Job, attempt: Attempt) -> Performed<Self::Output>;

    /// Says what is to be done about a failure.
    fn on_failure(&self, spot: Spot<'_>, failure: &Failure) -> OnFailure;

    /// Changes the state by what became of a step, and says which of its routes is taken. Asked once; the answer is
    /// recorded.
    ///
    /// # Errors
    /// A failure of the step; the state is as it was.
    fn apply(
        &self,
        state: &mut Self::State,
        spot: Spot<'_>,
        settled: Settlement<'_, Self::Output>,
    ) -> Result<Follow, Failure>;

    /// Prepares for the steps of one session, before the first of them: the lease is held.
    ///
    /// # Errors
    /// Why no step can run; nothing was started.
    async fn begin(&self, lease: &Lease) -> Result<(), BeginError>;

    /// Ends everything that steps left behind; afterwards the lease is given up.
    async fn end(&self);
}

/// What comes after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Every step that needs it, as far as nothing else holds it back.
    Needs,
    /// The step at this place, one of its routes.
    To(usize),
    /// Nothing: the branch ends.
    End,
}

/// Why a state cannot be read by this program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A newer program wrote it.
    #[error("it has schema version {found}, this program reads up to {supported}")]
    Newer {
        /// Its version.
        found: u32,
        /// The newest version that this program knows.
        supported: u32,
    },
    /// It is not such a state.
    #[error("{0}")]
    Malformed(String),
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
    /// Where to hold the run, for a resume to go on.
    pub interrupts: Interrupts,
    /// How many steps a branch may start in all, crashes and resumes included; the step beyond fails. A guard against
    /// loops that do not end.
    pub step_limit: Option<u64>,
}

/// Steps before or after which a run is held: it is checkpointed, its session ends, and a resume goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// Before the first attempt of these, on whatever branch.
    pub before: Vec<StepId>,
    /// After these have completed.
    pub after: Vec<StepId>,
}

/// How a resume goes on.
#[derive(Debug)]
pub struct ResumeOptions<S> {
    /// As for a first session.
    pub session: SessionOptions,
    /// Goes on with the program's own graph although the run was made with another, whose shape is known.
    pub adopt: Option<Adoption>,
    /// Starts over with this state, the user having said so.
    pub restart: Option<S>,
    /// Goes on from there and not from where it stood. What came after stays visible, abandoned.
    pub from: Option<ResumeFrom>,
    /// Changes the state of the main branch before anything runs.
    pub edit: Option<Edit<S>>,
    /// Looks at that state, edited or not; a refusal leaves the run as it is.
    pub validate: Option<Validate<S>>,
    /// Laid over the configuration of the run, map by map.
    pub config: serde_json::Map<String, serde_json::Value>,
    /// What to do about damaged records.
    pub on_damage: OnDamage<S>,
    /// What to do where the graph is not that of the run.
    pub on_change: OnChange,
    /// Whether steps run.
    pub then: Then,
}

impl<S> Default for ResumeOptions<S> {
    fn default() -> Self {
        Self {
            session: SessionOptions::default(),
            adopt: None,
            restart: None,
            from: None,
            edit: None,
            validate: None,
            config: serde_json::Map::new(),
            on_damage: OnDamage::FallBack,
            on_change: OnChange::Stop,
            then: Then::GoOn,
        }
    }
}

/// Where a resume goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeFrom {
    /// This checkpoint of the main branch.
    Checkpoint(u64),
    /// Where this step was last about to run: it runs again, with the state of then.
    Step(StepId),
    /// The end: no step runs, and the run counts as completed.
    End,
}

/// What to do about damaged records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnDamage<S> {
    /// Move them to quarantine and go on from the newest sound one; where none is sound, stop.
    #[default]
    FallBack,
    /// Stop, and change nothing.
    Stop,
    /// As [`FallBack`](Self::FallBack), but where none is sound, start over with this state.
    Restart(S),
}

/// What to do where the program's graph is not that of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnChange {
    /// Stop, and say what changed.
    #[default]
    Stop,
    /// Go on with the program's graph, as long as it has the steps that the run stands at.
    Adopt,
}

/// Whether steps run after a resume has written its record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Then {
    /// They do.
    #[default]
    GoOn,
    /// Only the record is written, and the lease given back.
    Stop,
}

/// Changes a state.
pub struct Edit<S>(pub Box<dyn FnOnce(&mut S) + Send>);

impl<S> Debug for Edit<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Edit")
    }
}

/// Looks at a state, and refuses it with a reason.
pub struct Validate<S>(pub ValidateFn<S>);

/// What is in a [`Validate`].
pub type ValidateFn<S> = Box<dyn FnOnce(&S) -> Result<(), String> + Send>;

impl<S> Debug for Validate<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Validate")
    }
}

/// A changed definition to go on with.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// The shape of the definition in force so far.
    pub before: Shape,
    /// The new definition; it must be that of the program's shape.
    pub definition: Definition,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome<S> {
    /// How the run stands now.
    pub status: RunStatus,
    /// The state of the main branch.
    pub state: S,
    /// The newest checkpoint of the main branch.
    pub at: u64,
    /// What it waits for, branch by branch.
    pub waiting: Vec<Waiting>,
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

/// A step that waits for something outside the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// The branch.
    pub branch: BranchPath,
    /// The step.
    pub step: StepId,
    /// What for.
    pub wait: Wait,
}

impl Waiting {
    fn of_line<S>(line: &line::Line<'_, S>) -> Vec<Self> {
        Self::of_position(line.branch(), &line.position)
    }

    /// Lists what a branch waits for, but for its own children.
    pub fn of_position(branch: &BranchPath, position: &Position) -> Vec<Self> {
        let waiting = position.frontier.iter().filter(|entry| entry.status == Status::Waiting);
        let each = waiting.flat_map(|entry| entry.waits.iter().map(|wait| (entry.step.clone(), wait)));
        each.filter(|(_, wait)| wait.on != WaitKind::Children)
            .map(|(step, wait)| Self { branch: branch.clone(), step, wait: wait.clone() })
            .collect()
    }
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
    /// A newer program wrote the state.
    #[error("the state of {at} has schema version {found}, this program reads up to {supported}")]
    Version {
        /// The checkpoint.
        at: String,
        /// Its version.
        found: u32,
        /// The newest version that this program knows.
        supported: u32,
    },
    /// The state was refused by the caller's own check. Nothing changed.
    #[error("the state of {at} was refused: {why}")]
    Rejected {
        /// The checkpoint.
        at: String,
        /// What the check says.
        why: String,
    },
    /// The checkpoint to go on from is not there any more. Nothing changed.
    #[error("cannot go on from {at}: {why}")]
    NoState {
        /// The checkpoint.
        at: String,
        /// Why.
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
    pub async fn run_program<P: Program>(
        &self,
        program: &P,
        run: RunRecord,
        state: P::State,
        options: SessionOptions,
    ) -> Result<Outcome<P::State>, RunError> {
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
    /// - [`RunError::Checkpoint`]: as for [`run_program`](Self::run_program).
    pub async fn resume_program<P: Program>(
        &self,
        program: &P,
        run: &RunId,
        options: ResumeOptions<P::State>,
    ) -> Result<Outcome<P::State>, RunError> {
        let holder = self.holder()?;
        begin::resumed(self, program, run, options, &holder).await
    }

    /// Returns the configuration that is in force at a position.
    async fn config_of(
        &self,
        entry: &RunEntry,
        position: &Position,
    ) -> Result<serde_json::Map<String, serde_json::Value>, StoreError> {
        let frozen = entry.record.record();
        let Some(seq) = position.config else { return Ok(frozen.config.clone()) };
        let record = self.store.load(&frozen.run, &BranchPath::main(), seq).await?;
        Ok(record.header().config.clone().unwrap_or_default())
    }

    fn holder(&self) -> Result<Holder, StoreError> {
        Holder::here(self.clock.now()).map_err(|source| StoreError::Io {
            action: "read",
            place: "the process table".into(),
            source,
        })
    }
}
