//! Executors: where the commands of steps run, apart from the session of their run.
//!
//! ```text
//!   session --- StepRequest ---> executor --- supervisor, queue, ... ---> process
//!   session <---- StepEnd ------ executor
//! ```
//!
//! An executor knows steps by key. The key is known before the submission, so a submission whose answer was lost is
//! repeated. [`TaskExecutor`] passes steps to the workers of a shared store, and [`LocalExecutor`] runs them on a worker.

use std::fmt;
use std::path::Path;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use waypost::Digest;
use waypost::engine::{Attempt, AttemptIdentity, Performed, StepReport, StopLevel};
use waypost::record::{Ending, Failure, Try};

use super::LOSS;
use super::command::{Command, RunsOn};
use super::state::StepOutput;

mod local;
mod tasks;

pub(super) use tasks::end_earlier;

pub use local::LocalExecutor;
pub use tasks::{DispatchOptions, ELSEWHERE, StepOffer, TaskExecutor};

/// Runs the commands of steps.
#[async_trait]
pub trait StepExecutor: fmt::Debug + Send + Sync {
    /// Starts a step. A repetition with the same key starts nothing.
    ///
    /// # Errors
    /// [`ExecutorError`]: it is unknown whether the step has started. Cancel, or submit again.
    async fn submit(&self, key: &str, request: StepRequest) -> Result<(), ExecutorError>;

    /// Waits for the end of a submitted step. Called once for each step.
    async fn observe(&self, key: &str) -> EndedStep;

    /// Requests the end of a step; [`observe`](Self::observe) returns after the end of its processes.
    ///
    /// # Errors
    /// [`ExecutorError`]: the step may still run. Cancel again.
    async fn cancel(&self, key: &str, level: StopLevel) -> Result<(), ExecutorError>;
}

/// The reason why an executor cannot be reached.
#[derive(Debug, thiserror::Error)]
#[error("cannot reach the executor of the step")]
pub struct ExecutorError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// A step for an executor: the attempt, and the command with all expressions evaluated.
///
/// Paths below the base folder are relative. The environment of the caller is not part of a request: a step has that of
/// its executor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StepRequest {
    pub(super) attempt: AttemptIdentity,
    pub(super) command: Command,
    /// The workers that may execute the step.
    #[serde(skip)]
    pub(super) runs_on: Option<RunsOn>,
}

impl StepRequest {
    pub(super) fn new(attempt: &Attempt, command: &Command, base: &Path) -> Self {
        let mut command = command.clone();
        for path in
            std::iter::once(&mut command.dir).chain(command.outputs.iter_mut().map(|file| &mut file.path))
        {
            if let Ok(below) = path.strip_prefix(base) {
                *path = below.to_owned();
            }
        }
        Self { attempt: attempt.identity(), runs_on: command.runs_on.take(), command }
    }

    /// Reads a request of a task.
    ///
    /// # Errors
    /// Another version of waypost made the request.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns the command for a base folder.
    fn command_in(self, base: &Path) -> Command {
        let mut command = self.command;
        command.dir = base.join(command.dir);
        for file in &mut command.outputs {
            file.path = base.join(&file.path);
        }
        command
    }

    /// Returns a digest of the work, whatever the number of the attempt and the size of the state.
    fn definition(&self) -> Result<String, serde_json::Error> {
        let mut whole = self.clone();
        (whole.attempt.at.attempt, whole.command.state_bytes) = (0, 0);
        Ok(Digest::of(&serde_json::to_vec(&whole)?).to_string())
    }
}

/// A step that has ended on an executor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndedStep {
    /// The attempt that ended: an earlier one for an adopted step. `None` if no attempt began.
    pub at: Option<Try>,
    /// The number of workers lost with the step.
    #[serde(default)]
    pub losses: u32,
    /// The end.
    pub end: StepEnd,
}

impl EndedStep {
    /// Makes the end of a step of which no attempt began.
    pub fn unbegun(end: StepEnd) -> Self {
        Self { at: None, losses: 0, end }
    }
}

/// The end of a step on an executor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepEnd {
    /// The step completed.
    Completed {
        /// The outputs.
        output: StepOutput,
        /// The ending for the record.
        ending: Box<Ending>,
        /// Notes and usage.
        report: StepReport,
    },
    /// The step failed.
    Failed {
        /// The failure.
        failure: Box<Failure>,
        /// Notes and usage.
        report: StepReport,
    },
    /// The step was stopped.
    Stopped {
        /// Whether the work had begun.
        in_progress: bool,
        /// Why the executor stopped the step by itself: the lack of a resource.
        lack: Option<String>,
    },
    /// The executor has lost the step, too often for another try.
    Lost,
    /// The effect of the step is unknown.
    Cut {
        /// The cause, for people.
        why: String,
        /// The processes of the step were killed.
        #[serde(default)]
        was_killed: bool,
        /// Notes and usage.
        report: StepReport,
    },
}

impl StepEnd {
    fn new(performed: Performed<StepOutput>, lack: Option<String>) -> Self {
        match performed {
            Performed::Completed { output, ending, report } => {
                Self::Completed { output, ending: Box::new(ending), report }
            }
            Performed::Failed { failure, report } => Self::Failed { failure: Box::new(failure), report },
            Performed::Stopped { in_progress } => Self::Stopped { in_progress, lack },
            Performed::Cut { why, was_killed, report } => Self::Cut { why, was_killed, report },
            Performed::Opened { .. } => unreachable!("a command opens no scopes"),
        }
    }

    /// Returns the end of the attempt for the session.
    pub(super) fn performed(self) -> Performed<StepOutput> {
        match self {
            Self::Completed { output, ending, report } => {
                Performed::Completed { output, ending: *ending, report }
            }
            Self::Failed { failure, report } => Performed::Failed { failure: *failure, report },
            Self::Stopped { in_progress, .. } => Performed::Stopped { in_progress },
            Self::Cut { why, was_killed, report } => Performed::Cut { why, was_killed, report },
            Self::Lost => {
                let why = format!("{LOSS}a worker");
                Performed::Cut { why, was_killed: true, report: StepReport::default() }
            }
        }
    }
}
