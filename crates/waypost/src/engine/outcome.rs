//! The end of a session, and the errors of a session.

use crate::id::{CheckpointRef, InvalidName, RunId, ScopePath, StepId};
use crate::plan::Decision;
use crate::record::{Failure, Flaw, Position, RunStatus, Status, Wait, WaitKind};
use crate::store::{Damage, Progress, StoreError};

use crate::engine::program::{BeginError, Program};
use crate::engine::scope::{MAIN, Scope};
use crate::engine::session::Session;

/// The end of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome<S> {
    /// The run.
    pub run: RunId,
    /// The current status.
    pub status: RunStatus,
    /// The state of the main scope.
    pub state: S,
    /// The newest checkpoint of the main scope.
    pub at: u64,
    /// The external waits, scope by scope.
    pub waiting: Vec<Waiting>,
    /// The failed step, with its failure.
    pub failed: Option<(StepId, Failure)>,
    /// The scope of the failed step.
    pub failed_on: Option<ScopePath>,
    /// All failures of the run, in order of occurrence. The first belongs to `failed`.
    pub failures: Vec<StepFailure>,
    /// The cause of a stop, if the session was stopped.
    pub stopped_by: Option<String>,
    /// True if there was nothing to do.
    pub idle: bool,
    /// The progress of the run.
    pub progress: Progress,
    /// Damaged records quarantined by the session.
    pub repaired: Vec<Damage>,
    /// Checkpoints that could not be written and were tolerated.
    pub lost: u64,
}

impl<S> Outcome<S> {
    /// Returns the newest checkpoint of the main scope.
    pub fn checkpoint(&self) -> CheckpointRef {
        CheckpointRef { run: self.run.clone(), scope: ScopePath::main(), seq: self.at }
    }

    /// Returns the final state of a completed run: a run that failed or waits is an error.
    ///
    /// # Errors
    /// [`NotCompleted`]: the run has another status. The run is unchanged, and resumable as the status says.
    pub fn into_result(self) -> Result<S, NotCompleted> {
        if self.status == RunStatus::Completed {
            return Ok(self.state);
        }
        let Self { run, status, failures, waiting, .. } = self;
        Err(NotCompleted { run, status, failures, waiting })
    }

    /// Maps the state.
    pub fn map_state<T>(self, map: impl FnOnce(S) -> T) -> Outcome<T> {
        Outcome {
            run: self.run,
            status: self.status,
            state: map(self.state),
            at: self.at,
            waiting: self.waiting,
            failed: self.failed,
            failed_on: self.failed_on,
            failures: self.failures,
            stopped_by: self.stopped_by,
            idle: self.idle,
            progress: self.progress,
            repaired: self.repaired,
            lost: self.lost,
        }
    }
}

impl<P: Program> Session<'_, P> {
    /// Returns the outcome of the session.
    pub(super) fn outcome(mut self, status: RunStatus) -> Outcome<P::State> {
        let waiting = self.scopes.iter().flat_map(|(_, scope)| Waiting::of_scope(scope)).collect();
        let progress = self.progress();
        let main = self.scopes.remove(MAIN).expect("every outcome has a main scope");
        let stopped_by = self.stopped_by();
        let failures: Vec<StepFailure> = self.failed.into_iter().chain(main.failures).collect();
        let first = failures.first().cloned();
        let (failed_on, failed) =
            first.map(|StepFailure { scope: path, step, failure }| (path, (step, failure))).unzip();
        Outcome {
            run: main.chain.run,
            status,
            state: main.state,
            at: main.chain.next - 1,
            progress,
            failed,
            failed_on,
            failures,
            waiting,
            stopped_by,
            idle: false,
            repaired: self.repaired,
            lost: self.lost,
        }
    }
}

/// A step with a final failure.
#[derive(Debug, Clone, PartialEq)]
pub struct StepFailure {
    /// The scope.
    pub scope: ScopePath,
    /// The step.
    pub step: StepId,
    /// The failure.
    pub failure: Failure,
}

/// The reason why a run has no result: see [`Outcome::into_result`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("run {run} is {}{}", status.name(), reason_of(failures, waiting))]
pub struct NotCompleted {
    /// The run.
    pub run: RunId,
    /// The status.
    pub status: RunStatus,
    /// All failures of the run, in order of occurrence.
    pub failures: Vec<StepFailure>,
    /// The external waits.
    pub waiting: Vec<Waiting>,
}

/// Names the first failed step, or else the waiting steps, at the end of a sentence.
fn reason_of(failures: &[StepFailure], waiting: &[Waiting]) -> String {
    match failures.first() {
        Some(StepFailure { scope, step, failure }) => {
            format!(": {} failed: {}", place_of(scope, step), failure.error.join(": "))
        }
        None if waiting.is_empty() => String::new(),
        None => waits_of(waiting),
    }
}

/// A step that waits for an external event.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// The scope.
    pub scope: ScopePath,
    /// The step.
    pub step: StepId,
    /// The wait.
    pub wait: Wait,
}

impl Waiting {
    pub(super) fn of_scope<S>(scope: &Scope<'_, S>) -> Vec<Self> {
        Self::of_position(scope.path(), &scope.position)
    }

    /// Lists the waits of a scope, except for waits for its children.
    pub fn of_position(scope: &ScopePath, position: &Position) -> Vec<Self> {
        let waits = |status: Status| matches!(status, Status::Waiting | Status::Started);
        let waiting = position.frontier.iter().filter(|entry| waits(entry.status));
        let each = waiting.flat_map(|entry| entry.waits.iter().map(|wait| (entry.step.clone(), wait)));
        each.filter(|(_, wait)| wait.on != WaitKind::Children)
            .map(|(step, wait)| Self { scope: scope.clone(), step, wait: wait.clone() })
            .collect()
    }
}

/// The reason why a session could not begin, or was given up.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The resume verified evidence again and again without a step to run: a defect of the engine. The run is resumable.
    #[error("cannot finish run {run}: evidence was verified {rounds} times, and no step started")]
    Unsettled {
        /// The run.
        run: RunId,
        /// The number of verifications.
        rounds: u32,
    },
    /// A checkpoint could not be written. Earlier acknowledged checkpoints are intact; later work was stopped.
    #[error("cannot write checkpoint {at}; the run was interrupted")]
    Checkpoint {
        /// The checkpoint.
        at: String,
        /// The error of the store.
        source: StoreError,
    },
    /// The state cannot be encoded.
    #[error("cannot write the state of run {run}{}", step.as_ref().map_or(String::new(), |step| format!(" at step `{step}`")))]
    Serialize {
        /// The run.
        run: RunId,
        /// The step that returned the state, or is the first to get the state.
        step: Option<StepId>,
        /// The flaw.
        source: Flaw,
    },
    /// A record cannot be encoded, because of a part other than the state. Earlier commits are intact.
    #[error("cannot write a record of run {run}{}", step.as_ref().map_or(String::new(), |step| format!(" at step `{step}`")))]
    Record {
        /// The run.
        run: RunId,
        /// The step of the record, if there is a step.
        step: Option<StepId>,
        /// The flaw.
        source: Flaw,
    },
    /// This program cannot decode the state.
    #[error("cannot read the state of {at}: {why}")]
    Deserialize {
        /// The checkpoint.
        at: String,
        /// The error of the decoder.
        why: String,
    },
    /// A newer program wrote the state.
    #[error("the state of {at} has schema version {found}, this program reads up to {supported}")]
    Version {
        /// The checkpoint.
        at: String,
        /// The schema version of the state.
        found: u32,
        /// The newest supported version.
        supported: u32,
    },
    /// The caller's validation refused the state. Nothing changed.
    #[error("rejected the state of {at}: {why}")]
    Rejected {
        /// The checkpoint.
        at: String,
        /// The reason.
        why: String,
    },
    /// The record with the end and the evidence of a finished step cannot be read. Nothing changed. Resume from
    /// the step to rerun it.
    #[error("cannot check the evidence of {} of run {run}", place_of(scope, step))]
    EvidenceLost {
        /// The run.
        run: RunId,
        /// The scope.
        scope: ScopePath,
        /// The step.
        step: StepId,
        /// The error of the record.
        source: StoreError,
    },
    /// A step in doubt cannot be settled as done. Nothing changed.
    #[error("cannot settle {} of run {run}: {why}", place_of(scope, step))]
    NotSettled {
        /// The run.
        run: RunId,
        /// The scope.
        scope: ScopePath,
        /// The step.
        step: StepId,
        /// The reason.
        why: String,
    },
    /// The state of a scope cannot be edited: no step waits for the scope. Nothing changed.
    #[error("cannot edit the state of scope `{scope}` of run {run}: {why}")]
    NotEdited {
        /// The run.
        run: RunId,
        /// The scope.
        scope: ScopePath,
        /// The reason.
        why: String,
    },
    /// An undo of the run's steps is unfinished. Nothing changed. The same rollback or cancel completes the undo.
    #[error("the undo of run {run}{} is not finished", if *to == 0 { String::new() } else { format!(" to @{to}") })]
    Undoing {
        /// The run.
        run: RunId,
        /// The target record in the main scope; 0 for a cancel.
        to: u64,
    },
    /// A step could not be undone. Later steps are undone; the same call continues.
    #[error("cannot undo {} of run {run}: {}", place_of(scope, step), failure.error.join(": "))]
    NotUndone {
        /// The run.
        run: RunId,
        /// The scope.
        scope: ScopePath,
        /// The step.
        step: StepId,
        /// The target record in the main scope; 0 for a cancel.
        to: u64,
        /// The failure of the undo.
        failure: Box<Failure>,
        /// The cause of a stop, if the undo was stopped.
        stopped_by: Option<String>,
    },
    /// The label is not valid for a checkpoint. Nothing changed.
    #[error("cannot label a checkpoint of run {run} as `{label}`: {why}")]
    NotMarked {
        /// The run.
        run: RunId,
        /// The label.
        label: String,
        /// The reason.
        why: String,
    },
    /// The current evidence cannot be accepted. Nothing changed.
    #[error("cannot accept the evidence of step `{step}` of run {run}: {why}")]
    NotAccepted {
        /// The run.
        run: RunId,
        /// The step.
        step: StepId,
        /// The failed or unchecked claims.
        why: String,
    },
    /// The checkpoint to continue from is not available. Nothing changed.
    #[error("cannot continue from {at}: {why}")]
    NoState {
        /// The checkpoint.
        at: String,
        /// The reason.
        why: String,
    },
    /// A rerun of a step was requested, but the step or an upstream step has not finished there.
    /// Nothing changed: resume without the request.
    #[error(
        "cannot rerun {} of run {run}: the step has not finished, or a step upstream has not",
        place_of(scope, step)
    )]
    NotFinished {
        /// The run.
        run: RunId,
        /// The scope.
        scope: ScopePath,
        /// The step.
        step: StepId,
    },
    /// A person must decide before the run continues.
    #[error("run {run} needs a decision: {}", questions.iter().map(|d| format!("{}: {}", place_of(&d.scope, &d.step), d.cause)).collect::<Vec<_>>().join("; "))]
    InDoubt {
        /// The run.
        run: RunId,
        /// The questions.
        questions: Vec<Decision>,
    },
    /// The resume was stopped during the check of evidence. Nothing changed and nothing ran: resume again.
    #[error("run {run} was not resumed: {by} arrived during the check of its evidence")]
    NotBegun {
        /// The run.
        run: RunId,
        /// The source of the stop: `SIGINT`, or a person.
        by: String,
    },
    /// The run has no such open wait. Nothing changed.
    #[error("run {run} has no open question `{id}`{}", waits_of(waiting))]
    NoSuchWait {
        /// The run.
        run: RunId,
        /// The id in the answer.
        id: String,
        /// The open waits.
        waiting: Vec<Waiting>,
    },
    /// The step asks several questions. Nothing changed. Answer one by its id.
    #[error("step `{step}` of run {run} asks several questions{}", waits_of(waiting))]
    SeveralWaits {
        /// The run.
        run: RunId,
        /// The step.
        step: String,
        /// The open questions of the step.
        waiting: Vec<Waiting>,
    },
    /// The wait already has an answer, and the answer stays.
    #[error("run {run} already has an answer to `{id}`")]
    Answered {
        /// The run.
        run: RunId,
        /// The wait.
        id: String,
    },
    /// The run has ended, so no step will consume the signal. Nothing changed.
    #[error("cannot send signal `{signal}` to run {run}: it is {}", status.name())]
    Ended {
        /// The run.
        run: RunId,
        /// The name of the signal.
        signal: String,
        /// The status of the ended run.
        status: RunStatus,
    },
    /// The run was cancelled for good.
    #[error("run {0} was cancelled and cannot be resumed")]
    Cancelled(RunId),
    /// The definition does not fit the finished steps.
    #[error("the definition does not fit run {run}: {why}")]
    Changed {
        /// The run.
        run: RunId,
        /// The mismatch.
        why: String,
    },
    /// The graph has no such step.
    #[error("the graph has no step `{0}`")]
    InvalidStep(StepId),
    /// The graph has no such step; the id is invalid.
    #[error("the graph has no step `{0}`")]
    UnknownStep(String),
    /// The id of a run or a step is invalid. Nothing was done.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// No step can run.
    #[error(transparent)]
    Begin(#[from] BeginError),
}

/// Names a step by its path.
pub(super) fn place_of(scope: &ScopePath, step: &StepId) -> String {
    match scope.is_main() {
        true => format!("step `{step}`"),
        false => format!("step `{}/{step}`", scope.readable()),
    }
}

/// Lists waits at the end of a sentence.
fn waits_of(waiting: &[Waiting]) -> String {
    let report =
        |Waiting { scope, step, wait }: &Waiting| format!("`{}` of {}", wait.key, place_of(scope, step));
    match waiting {
        [] => "; it waits for nothing".to_owned(),
        waiting => format!("; it waits for {}", waiting.iter().map(report).collect::<Vec<_>>().join(", ")),
    }
}
