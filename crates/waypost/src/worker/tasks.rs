//! The tasks of a worker: steps of runs that other workers hold.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::watch;

use crate::engine::{StopHandle, StopLevel};
use crate::store::{ClaimedTask, Queue, StoreError, TaskStop, TasksOf};
use crate::system::lock::Holder;

use super::{Executor, PAUSE_AFTER_ERROR, Served, TaskEnd, Worker, beside, jittered, with_causes};

/// Longest pause between two questions whether running tasks are cancelled.
const CANCEL_POLL: Duration = Duration::from_millis(500);

/// The running tasks: number of losses and stop of each, by id.
#[derive(Debug, Default)]
struct Running(Mutex<HashMap<u64, (u32, StopHandle)>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (u32, StopHandle)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Executor> Worker<E> {
    /// Claims and executes tasks until a stop is requested. A worker that drains executes the tasks of its own runs until
    /// `runs_ended`.
    pub(super) async fn serve_tasks(
        &self,
        queue: &dyn Queue,
        holder: &Holder,
        poll: Duration,
        mut runs_ended: watch::Receiver<bool>,
    ) -> Result<(), StoreError> {
        let (running, mut performed, mut served) =
            (Running::default(), FuturesUnordered::new(), Served::default());
        let mut fatal = None;
        loop {
            let is_draining = self.stop.is_asked();
            let is_last = is_draining && *runs_ended.borrow_and_update();
            if is_last && performed.is_empty() {
                return fatal.map_or(Ok(()), Err);
            }
            let free = if is_last { 0 } else { self.slots.get().saturating_sub(performed.len()) };
            let of = if is_draining { TasksOf::OwnRuns } else { TasksOf::AllRuns };
            let mut pause = jittered(poll);
            let claim = self.claim_tasks(queue, holder, &mut served, (of, free));
            match beside(&mut performed, claim).await {
                Ok(claimed) => {
                    for task in claimed {
                        // A repeated claim returns the running tasks too.
                        let stop = StopHandle::default();
                        if running.lock().contains_key(&task.id) {
                            continue;
                        }
                        running.lock().insert(task.id, (task.losses, stop.clone()));
                        performed.push(self.perform(queue, task, stop, &running));
                    }
                }
                Err(error) => {
                    self.note_error(error, &mut fatal);
                    pause = PAUSE_AFTER_ERROR;
                }
            }
            if !performed.is_empty() {
                pause = pause.min(CANCEL_POLL);
                if let Err(error) = beside(&mut performed, stop_cancelled(queue, &running)).await {
                    self.executor.warn(&with_causes(&error));
                }
            }
            tokio::select! {
                _ = performed.next(), if !performed.is_empty() => {}
                () = queue.wait(pause) => {}
                _ = self.stop.stopped(), if !is_draining => {}
                Ok(()) = runs_ended.changed() => {}
            }
        }
    }

    async fn claim_tasks(
        &self,
        queue: &dyn Queue,
        holder: &Holder,
        served: &mut Served,
        (of, free): (TasksOf, usize),
    ) -> Result<Vec<ClaimedTask>, StoreError> {
        queue.register(holder).await?;
        if free == 0 {
            return Ok(Vec::new());
        }
        served.forget_old();
        for needs in queue.tasks().task_needs(&served.known).await? {
            match self.executor.lacks(&needs) {
                Some(missing) => queue.tasks().report_missing_for_tasks(&needs, &missing).await?,
                None => drop(served.sets.insert(needs.clone())),
            }
            served.known.insert(needs);
        }
        match served.sets.is_empty() {
            true => Ok(Vec::new()),
            false => queue.tasks().claim_tasks(holder, &served.sets, of, free).await,
        }
    }

    /// Executes a task, and records its result.
    async fn perform(&self, queue: &dyn Queue, task: ClaimedTask, stop: StopHandle, running: &Running) {
        let mut performed = pin!(self.executor.perform(&task, stop.clone()));
        let TaskEnd { result, is_lacking } = tokio::select! {
            end = &mut performed => end,
            () = self.stop.killed() => {
                let by = self.stop.asked().map(|asked| asked.by).unwrap_or_default();
                stop.stop(StopLevel::Graceful, &by);
                performed.await
            }
        };
        // Without the result the holder of the run would wait for ever.
        while let Err(error) = queue.tasks().finish_task(&task, &result).await {
            self.executor.warn(&with_causes(&error));
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
        }
        running.lock().remove(&task.id);
        if is_lacking {
            self.keep_slot().await;
        }
    }
}

/// Stops the cancelled tasks.
async fn stop_cancelled(queue: &dyn Queue, running: &Running) -> Result<(), StoreError> {
    let tasks: Vec<(u64, u32)> = running.lock().iter().map(|(id, (losses, _))| (*id, *losses)).collect();
    let cancelled: BTreeSet<(u64, TaskStop)> =
        queue.tasks().cancelled_tasks(&tasks).await?.into_iter().collect();
    for (id, stop) in cancelled {
        let level = match stop {
            TaskStop::Graceful => StopLevel::Graceful,
            TaskStop::Kill => StopLevel::Kill,
        };
        if let Some((_, handle)) = running.lock().get(&id) {
            handle.stop(level, "the holder of the run");
        }
    }
    Ok(())
}
