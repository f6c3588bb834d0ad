//! Executor over the local supervisor: the steps of one run that a worker executes for the session of the run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::oneshot;
use waypost::engine::{Attempt, BeginError, Engine, StopHandle, StopLevel};
use waypost::record::Try;
use waypost::store::{ClaimedTask, Lease};

use super::super::WorkflowProgram;
use super::super::command::Command;
use super::{EndedStep, ExecutorError, StepEnd, StepExecutor, StepRequest};

/// The source of a stop by [`StepExecutor::cancel`]; any other source is the lack of a resource.
const CANCELLED: &str = "the executor";

/// Runs steps below a supervisor of this process.
#[derive(Debug)]
pub struct LocalExecutor {
    program: Arc<WorkflowProgram>,
    engine: Engine,
    /// For the logs of the steps.
    lease: Lease,
    /// As of the task: an earlier worker may have left processes.
    losses: u32,
    steps: Mutex<HashMap<String, SubmittedStep>>,
}

/// A submitted step.
#[derive(Debug)]
struct SubmittedStep {
    stop: StopHandle,
    at: Try,
    /// Taken by the observer.
    end: Option<oneshot::Receiver<StepEnd>>,
}

impl LocalExecutor {
    /// Starts a supervisor for the step of a task. All processes end at the deadline of the lease.
    ///
    /// # Errors
    /// [`BeginError`]: the supervisor cannot be started.
    pub async fn start(
        program: WorkflowProgram,
        engine: Engine,
        task: &ClaimedTask,
    ) -> Result<Self, BeginError> {
        let lease = task.lease.clone();
        program.begin_apart(&lease).await?;
        let (program, steps) = (Arc::new(program), Mutex::default());
        Ok(Self { program, engine, lease, losses: task.losses, steps })
    }

    /// Ends the supervisor with all processes.
    pub async fn shutdown(self) {
        waypost::engine::Program::end(self.program.as_ref()).await;
    }

    fn steps(&self) -> MutexGuard<'_, HashMap<String, SubmittedStep>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl StepExecutor for LocalExecutor {
    async fn submit(&self, key: &str, request: StepRequest) -> Result<(), ExecutorError> {
        let (stop, (sender, end)) = (StopHandle::default(), oneshot::channel());
        let at = request.attempt.at.clone();
        let running = SubmittedStep { stop: stop.clone(), at, end: Some(end) };
        if self.steps().contains_key(key) {
            return Ok(());
        }
        self.steps().insert(key.to_owned(), running);
        let identity = request.attempt.clone();
        let attempt = Attempt::without_session(&self.engine, &self.lease, identity, stop.clone());
        if self.losses > 0 || attempt.at.attempt > 1 {
            let (_, _, mark) = self.program.tools();
            self.program.kill_leftovers_of(&attempt, &mark).map_err(|error| ExecutorError(error.into()))?;
        }
        let program = Arc::clone(&self.program);
        let command = Command { losses: self.losses, ..request.command_in(program.base()) };
        tokio::spawn(async move {
            let performed = program.run_here(command, &attempt).await;
            // The lack of a resource stops the session of a step: here, the step alone.
            let lack = stop.asked().map(|asked| asked.by).filter(|by| by != CANCELLED);
            let _ = sender.send(StepEnd::new(performed, lack));
        });
        Ok(())
    }

    async fn observe(&self, key: &str) -> EndedStep {
        let observed = self.steps().get_mut(key).map(|step| (step.at.clone(), step.end.take()));
        let (at, end) = observed.unzip();
        let ended = match end.flatten() {
            Some(end) => end.await.ok(),
            None => None,
        };
        self.steps().remove(key);
        // A panic of the step's task, or a step that was never submitted.
        let end = ended.unwrap_or(StepEnd::Stopped { in_progress: true, lack: None });
        EndedStep { at, losses: self.losses, end }
    }

    async fn cancel(&self, key: &str, level: StopLevel) -> Result<(), ExecutorError> {
        if let Some(running) = self.steps().get(key) {
            running.stop.stop(level, CANCELLED);
        }
        Ok(())
    }
}
