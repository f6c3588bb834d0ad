//! How a session ends, or why it could not be held.

use crate::id::{BranchPath, InvalidName, RunId, StepId};
use crate::plan::Decision;
use crate::record::{Failure, Flaw, Position, RunStatus, Status, Wait, WaitKind};
use crate::store::{Damage, Progress, StoreError};

use super::program::{BeginError, Program};
use super::scope::{Line, MAIN};
use super::session::Session;

/// How a session ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome<S> {
    /// The run.
    pub run: RunId,
    /// How it stands now.
    pub status: RunStatus,
    /// The state of the main branch.
    pub state: S,
    /// The newest checkpoint of the main branch.
    pub at: u64,
    /// What it waits for, branch by branch.
    pub waiting: Vec<Waiting>,
    /// The step that failed, with its failure.
    pub failed: Option<(StepId, Failure)>,
    /// The branch of that step.
    pub failed_on: Option<BranchPath>,
    /// All failures of the run, in the order in which they happened; the first is that of `failed`.
    pub failures: Vec<StepFailure>,
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

impl<S> Outcome<S> {
    /// Makes another state of the state.
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
    /// Returns how the session ended.
    pub(super) fn outcome(mut self, status: RunStatus) -> Outcome<P::State> {
        let waiting = self.lines.iter().flat_map(|(_, line)| Waiting::of_line(line)).collect();
        let progress = self.progress();
        let main = self.lines.remove(MAIN).expect("the main branch is always there");
        let stopped_by = self.stopped_by();
        let failures: Vec<StepFailure> = self.failed.into_iter().chain(main.failures).collect();
        let first = failures.first().cloned();
        let (failed_on, failed) =
            first.map(|StepFailure { branch, step, failure }| (branch, (step, failure))).unzip();
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

/// A step that failed for good, and its failure.
#[derive(Debug, Clone, PartialEq)]
pub struct StepFailure {
    /// The branch.
    pub branch: BranchPath,
    /// The step.
    pub step: StepId,
    /// Why.
    pub failure: Failure,
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
    pub(super) fn of_line<S>(line: &Line<'_, S>) -> Vec<Self> {
        Self::of_position(line.branch(), &line.position)
    }

    /// Lists what a branch waits for, but for its own children.
    pub fn of_position(branch: &BranchPath, position: &Position) -> Vec<Self> {
        let waits = |status: Status| matches!(status, Status::Waiting | Status::Started);
        let waiting = position.frontier.iter().filter(|entry| waits(entry.status));
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
    /// The resume verified evidence again and again without a step to run: a defect of the engine. The run is resumable.
    #[error("cannot finish run {run}: evidence was verified {rounds} times, and no step started")]
    Unsettled {
        /// The run.
        run: RunId,
        /// How often.
        rounds: u32,
    },
    /// A checkpoint could not be written. What was acknowledged before stands; the work since was stopped.
    #[error("cannot write checkpoint {at}; the run was stopped there")]
    Checkpoint {
        /// The checkpoint.
        at: String,
        /// Why.
        source: StoreError,
    },
    /// The state cannot be written as it is.
    #[error("cannot write the state of run {run}{}", step.as_ref().map_or(String::new(), |step| format!(" at step `{step}`")))]
    Serialize {
        /// The run.
        run: RunId,
        /// The step that gave it, or is the first to be given it.
        step: Option<StepId>,
        /// Why.
        source: Flaw,
    },
    /// What happened cannot be written down: not the state, but what is said beside it. What was committed before stands.
    #[error("cannot write what happened in run {run}{}", step.as_ref().map_or(String::new(), |step| format!(" at step `{step}`")))]
    Record {
        /// The run.
        run: RunId,
        /// The step that it is about, if it is about one.
        step: Option<StepId>,
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
    /// The record with the end and the evidence of a finished step cannot be read. Nothing changed.
    /// Resume from the step to run it again.
    #[error("cannot check the evidence of {} of run {run}", place_of(branch, step))]
    EvidenceLost {
        /// The run.
        run: RunId,
        /// The branch.
        branch: BranchPath,
        /// The step.
        step: StepId,
        /// What is wrong with the record.
        source: StoreError,
    },
    /// A step in doubt cannot be settled as done. Nothing changed.
    #[error("{} of run {run} cannot be settled as done: {why}", place_of(branch, step))]
    NotSettled {
        /// The run.
        run: RunId,
        /// The branch.
        branch: BranchPath,
        /// The step.
        step: StepId,
        /// Why.
        why: String,
    },
    /// The state of a branch cannot be changed by hand: no step waits for it. Nothing changed.
    #[error("the state of branch `{branch}` of run {run} cannot be changed: {why}")]
    NotEdited {
        /// The run.
        run: RunId,
        /// The branch.
        branch: BranchPath,
        /// Why.
        why: String,
    },
    /// What steps of the run did is being undone. Nothing changed; going back to there with that finishes it.
    #[error("run {run} is being undone{}, and not all of it is", if *to == 0 { String::new() } else { format!(" to @{to}") })]
    Undoing {
        /// The run.
        run: RunId,
        /// The record of the main branch that it goes back to; 0 if it is to be cancelled.
        to: u64,
    },
    /// A step could not be undone. Those that finished after it are; the same call goes on with it.
    #[error("step `{step}` of run {run} is not undone{}: {}", if branch.is_main() { String::new() } else { format!(" on branch `{branch}`") }, failure.error.join(": "))]
    NotUndone {
        /// The run.
        run: RunId,
        /// The branch.
        branch: BranchPath,
        /// The step.
        step: StepId,
        /// The record of the main branch that the run was to go back to; 0 if it is to be cancelled.
        to: u64,
        /// Why.
        failure: Box<Failure>,
        /// Who stopped it, if somebody did.
        stopped_by: Option<String>,
    },
    /// A checkpoint cannot be written under this label. Nothing changed.
    #[error("a checkpoint of run {run} cannot be labelled `{label}`: {why}")]
    NotMarked {
        /// The run.
        run: RunId,
        /// The label.
        label: String,
        /// Why.
        why: String,
    },
    /// Evidence cannot be accepted as it is found. Nothing changed.
    #[error("the evidence of step `{step}` of run {run} cannot be accepted: {why}")]
    NotAccepted {
        /// The run.
        run: RunId,
        /// The step.
        step: StepId,
        /// What does not hold, or could not be checked.
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
    #[error("run {run} needs a decision: {}", questions.iter().map(|d| format!("{}: {}", place_of(&d.branch, &d.step), d.cause)).collect::<Vec<_>>().join("; "))]
    InDoubt {
        /// The run.
        run: RunId,
        /// The questions.
        questions: Vec<Decision>,
    },
    /// The resume was told to stop while it looked at what is finished. Nothing changed, nothing was run: resume it again.
    #[error("run {run} was not gone on with: {by} came while its evidence was looked at")]
    NotBegun {
        /// The run.
        run: RunId,
        /// Who asked for it: `SIGINT`, or a person.
        by: String,
    },
    /// It waits for no such answer. Nothing changed.
    #[error("run {run} does not wait for an answer `{id}`{}", waits_of(waiting))]
    NoSuchWait {
        /// The run.
        run: RunId,
        /// What was answered.
        id: String,
        /// What it waits for.
        waiting: Vec<Waiting>,
    },
    /// It was answered before. That answer stays.
    #[error("run {run} has an answer to `{id}` already")]
    Answered {
        /// The run.
        run: RunId,
        /// The wait.
        id: String,
    },
    /// The run has ended: no step will take the signal. Nothing changed.
    #[error("cannot send signal `{signal}` to run {run}: it is {}", status.name())]
    Ended {
        /// The run.
        run: RunId,
        /// The name of the signal.
        signal: String,
        /// How the run has ended.
        status: RunStatus,
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
    /// There is no such step, and none could be called so.
    #[error("the graph has no step `{0}`")]
    UnknownStep(String),
    /// A run or a step cannot be called so. Nothing was done.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// No step can run.
    #[error(transparent)]
    Begin(#[from] BeginError),
}

/// Names a step, and its branch where that is not the main one.
fn place_of(branch: &BranchPath, step: &StepId) -> String {
    match branch.is_main() {
        true => format!("step `{step}`"),
        false => format!("step `{step}` of branch `{branch}`"),
    }
}

/// Lists waits at the end of a sentence.
fn waits_of(waiting: &[Waiting]) -> String {
    let told =
        |waiting: &Waiting| format!("`{}` ({} on {})", waiting.wait.id, waiting.wait.key, waiting.branch);
    match waiting {
        [] => "; it waits for nothing".to_owned(),
        waiting => format!("; it waits for {}", waiting.iter().map(told).collect::<Vec<_>>().join(", ")),
    }
}
