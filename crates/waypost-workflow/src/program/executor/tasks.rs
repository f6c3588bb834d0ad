//! Executor over the workers of a shared store: each step is a task of the store's queue.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::{Notify, oneshot};
use waypost::RunId;
use waypost::engine::{AttemptIdentity, StepReport, StopLevel};
use waypost::store::{
    Lease, Queue, STEP_NEED, Store, StoreError, Submitted, Task, TaskEntry, TaskState, TaskStop,
};

use super::{EndedStep, ExecutorError, StepEnd, StepExecutor, StepRequest};

/// Pause between two looks at the tasks of a run. A look is one statement for all of them, and a hint shortens the pause.
const POLL: Duration = Duration::from_millis(250);

/// Pause between two searches for dead workers of this machine. Workers search too, unless all their slots are in use.
const EXPIRY_POLL: Duration = Duration::from_secs(2);

/// Longest wait for another worker, if this one lacks the needs of all steps under way: a free worker claims in seconds.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The source of a stop because all steps need another worker: the run returns to the queue.
pub const ELSEWHERE: &str = "the need of another worker";

/// What the worker of a run has.
pub trait StepOffer: fmt::Debug + Send + Sync {
    /// Returns what this worker lacks of the needs of a step, for display; `None` if nothing is missing.
    fn lacks(&self, needs: &BTreeSet<String>) -> Option<String>;
}

/// How the session of a run passes steps to workers.
#[derive(Debug, Clone, Default)]
pub struct DispatchOptions {
    /// What every worker must have for the steps of the run. Those of a step are added: `tag:TAG`, `program:PROGRAM`.
    pub needs: BTreeSet<String>,
    /// The offer of this worker; without an offer, the run waits here for the workers of the steps.
    pub offer: Option<Arc<dyn StepOffer>>,
    /// The number of steps of the run in this process.
    pub(in super::super) steps_here: Arc<AtomicUsize>,
}

impl DispatchOptions {
    /// Makes options for a worker with `offer`.
    #[must_use]
    pub fn new(needs: BTreeSet<String>, offer: Arc<dyn StepOffer>) -> Self {
        Self { needs, offer: Some(offer), ..Self::default() }
    }
}

/// Passes steps to the workers of a store.
#[derive(Debug)]
pub struct TaskExecutor {
    shared: Arc<ObservedTasks>,
    lease: Lease,
}

/// The part shared with the task that looks for ends.
struct ObservedTasks {
    store: Arc<dyn Store>,
    run: RunId,
    options: DispatchOptions,
    /// The needs of each submitted step.
    needs: Mutex<BTreeMap<String, BTreeSet<String>>>,
    observed: Mutex<HashMap<String, oneshot::Sender<EndedStep>>>,
    /// The keys of the ends that the session records now: their tasks are removed afterwards.
    delivered: Mutex<Vec<String>>,
    lease: Lease,
    /// Notified by a new observer, and at the end of the executor.
    changed: Arc<Notify>,
}

impl TaskExecutor {
    /// Makes an executor for a run; `None` for a store without a queue.
    ///
    /// Steps of earlier sessions continue on their workers until they are ended, and an unchanged one is adopted.
    #[must_use]
    pub fn start(store: &Arc<dyn Store>, lease: &Lease, options: DispatchOptions) -> Option<Self> {
        store.queue()?;
        let changed = Arc::new(Notify::new());
        let (store, run) = (Arc::clone(store), lease.run().clone());
        let (needs, observed, delivered) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (changed_here, lease_here) = (Arc::clone(&changed), lease.clone());
        let shared = ObservedTasks {
            store,
            run,
            options,
            needs,
            observed,
            delivered,
            lease: lease_here,
            changed: changed_here,
        };
        let shared = Arc::new(shared);
        tokio::spawn(look_for_ends(Arc::downgrade(&shared), changed));
        Some(Self { shared, lease: lease.clone() })
    }
}

/// Ends the steps of earlier sessions of a run on all workers.
///
/// Waits for the end of each step on a living worker. A step that must not be repeated is not stopped.
///
/// # Errors
/// Those of the store.
pub(in super::super) async fn end_earlier(store: &dyn Store, lease: &Lease) -> Result<(), StoreError> {
    if let Some(queue) = store.queue() {
        while queue.tasks().clear(lease).await? > 0 {
            queue.wait(POLL).await;
        }
    }
    Ok(())
}

impl TaskExecutor {
    /// Ends and removes an earlier task with the same key.
    async fn end_other(&self, key: &str) -> Result<(), StoreError> {
        let (queue, run) = (self.shared.queue(), &self.shared.run);
        queue.tasks().cancel_task(run, key, TaskStop::Kill).await?;
        loop {
            let states = queue.tasks().task_states(run).await?;
            let task = states.iter().find(|task| task.key == key);
            if !matches!(task, Some(TaskEntry { state: TaskState::Claimed(_), .. })) {
                return queue.tasks().remove_tasks(run, self.lease.token(), &[key.to_owned()]).await;
            }
            queue.wait(POLL).await;
        }
    }
}

impl ObservedTasks {
    fn queue(&self) -> &dyn Queue {
        self.store.queue().expect("the executor was made for a store with a queue")
    }

    fn observed(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<EndedStep>>> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn delivered(&self) -> MutexGuard<'_, Vec<String>> {
        self.delivered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn needs(&self) -> MutexGuard<'_, BTreeMap<String, BTreeSet<String>>> {
        self.needs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver(&self, key: &str, end: EndedStep) {
        self.needs().remove(key);
        if let Some(sender) = self.observed().remove(key) {
            // The observer may have been dropped.
            let _ = sender.send(end);
        }
    }

    /// Returns the observed steps and what this worker lacks for the first one, if each of them waits for another worker,
    /// and this process executes none.
    fn waiting_elsewhere(&self, states: &HashMap<String, TaskState>) -> Option<(Vec<String>, String)> {
        let offer = self.options.offer.as_ref()?;
        let keys: Vec<String> = self.observed().keys().cloned().collect();
        let needs = self.needs();
        let lacks = |key: &String| {
            let is_waiting = matches!(states.get(key), Some(TaskState::Waiting(_)));
            needs.get(key).filter(|_| is_waiting).and_then(|needs| offer.lacks(needs))
        };
        let mut lacking = keys.iter().map(lacks).collect::<Option<Vec<String>>>()?;
        let is_idle = self.options.steps_here.load(Ordering::Acquire) == 0;
        (is_idle && !keys.is_empty()).then(|| (keys, lacking.swap_remove(0)))
    }

    /// Returns the run to the queue, for a worker with the needs of the first waiting step.
    async fn withdraw(&self, (keys, missing): (Vec<String>, String)) -> Result<(), StoreError> {
        let run_needs = &self.options.needs;
        let step_needs = self.needs().get(&keys[0]).cloned().unwrap_or_default();
        let added = step_needs.difference(run_needs).map(|need| format!("{STEP_NEED}{need}"));
        let needs = run_needs.iter().cloned().chain(added).collect();
        if self.queue().tasks().withdraw_tasks(&self.run, &keys, &needs, &missing).await? {
            for key in keys {
                let lack = Some(format!("{ELSEWHERE}: {missing}"));
                self.deliver(&key, EndedStep::unbegun(StepEnd::Stopped { in_progress: false, lack }));
            }
        }
        Ok(())
    }

    /// Removes the tasks whose ends were delivered before the last look: the session has recorded these ends. Under a lease
    /// that has run out, the tasks stay for the next holder.
    async fn remove_delivered(&self) -> Result<(), StoreError> {
        let keys = std::mem::take(&mut *self.delivered());
        match keys.is_empty() || self.lease.is_over() {
            true => Ok(()),
            false => self.queue().tasks().remove_tasks(&self.run, self.lease.token(), &keys).await,
        }
    }

    /// Delivers the ends of observed steps. Returns the steps that wait for another worker, as
    /// [`waiting_elsewhere`](Self::waiting_elsewhere) does.
    async fn look(&self) -> Result<Option<(Vec<String>, String)>, StoreError> {
        self.remove_delivered().await?;
        // Before the question: a later submission is not part of the answer, and would count as cancelled.
        let keys: Vec<String> = self.observed().keys().cloned().collect();
        let tasks = self.queue().tasks().task_states(&self.run).await?;
        let states: HashMap<String, TaskState> =
            tasks.into_iter().map(|task| (task.key, task.state)).collect();
        let ended = |key: String| Some((end_of(states.get(&key))?, key));
        let ended: Vec<(EndedStep, String)> = keys.into_iter().filter_map(ended).collect();
        if ended.is_empty() {
            return Ok(self.waiting_elsewhere(&states));
        }
        for (end, key) in ended {
            self.deliver(&key, end);
            self.delivered().push(key);
        }
        Ok(None)
    }
}

impl Drop for ObservedTasks {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

impl fmt::Debug for ObservedTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObservedTasks").field("run", &self.run).finish_non_exhaustive()
    }
}

/// Looks at the tasks of a run while a step is observed, until the drop of the executor.
async fn look_for_ends(shared: Weak<ObservedTasks>, changed: Arc<Notify>) {
    let (mut searched, mut waits_since) = (Instant::now(), None);
    loop {
        let Some(looking) = shared.upgrade() else { return };
        if looking.observed().is_empty() {
            drop(looking);
            changed.notified().await;
            continue;
        }
        // After an error the next look may succeed; the session of the run ends with its lease.
        let waiting = looking.look().await.ok().flatten();
        waits_since = waiting.as_ref().and(waits_since.or(Some(Instant::now())));
        if let Some(waiting) = waiting.filter(|_| waits_since.is_some_and(|since| since.elapsed() > WAIT_MAX))
        {
            let _ = looking.withdraw(waiting).await;
        }
        if searched.elapsed() > EXPIRY_POLL {
            let _ = looking.queue().expire().await;
            searched = Instant::now();
        }
        tokio::select! {
            () = looking.queue().wait(POLL) => {}
            () = changed.notified() => {}
        }
    }
}

/// Returns the end of a step by the state of its task; `None` for a task under way.
fn end_of(state: Option<&TaskState>) -> Option<EndedStep> {
    let end = match state {
        Some(TaskState::Waiting(_) | TaskState::Claimed(_)) => return None,
        Some(TaskState::Ended(text)) => match serde_json::from_str(text) {
            Ok(ended) => return Some(ended),
            Err(error) => StepEnd::Cut {
                why: format!("the result of another version of waypost: {error}"),
                was_killed: false,
                report: StepReport::default(),
            },
        },
        Some(TaskState::Lost) => StepEnd::Lost,
        // Cancelled before a claim.
        None => StepEnd::Stopped { in_progress: false, lack: None },
    };
    Some(EndedStep::unbegun(end))
}

#[async_trait]
impl StepExecutor for TaskExecutor {
    async fn submit(&self, key: &str, request: StepRequest) -> Result<(), ExecutorError> {
        let mut needs = self.shared.options.needs.clone();
        let tags = request.runs_on.iter().flat_map(|runs_on| &runs_on.tags);
        needs.extend(tags.map(|tag| format!("tag:{tag}")));
        let program = request.command.argv.first().filter(|program| !program.contains('/'));
        needs.extend(program.map(|program| format!("program:{program}")));
        let text = serde_json::to_string(&request).map_err(|error| ExecutorError(error.into()))?;
        // Without a repetition the effect of a lost step is unknown.
        let losses_max = match (&request.runs_on, request.command.idempotent) {
            (Some(runs_on), true) => runs_on.losses_max,
            _ => 0,
        };
        let definition = request.definition().map_err(|error| ExecutorError(error.into()))?;
        let AttemptIdentity { scope, step, .. } = &request.attempt;
        let step = if scope.is_main() { step.to_string() } else { format!("{}/{step}", scope.readable()) };
        self.shared.needs().insert(key.to_owned(), needs.clone());
        let task =
            Task { key: key.to_owned(), step: step.clone(), definition, needs, losses_max, request: text };
        let submitted = async {
            // The same attempt begins again, and its earlier end must not count.
            if self.shared.delivered().iter().any(|delivered| delivered == key) {
                self.shared.remove_delivered().await?;
            }
            while self.shared.queue().tasks().submit_task(&self.lease, &task).await? == Submitted::Other {
                if !request.command.idempotent {
                    return Err(StoreError::Invalid(format!("another task has the key of step {step}")));
                }
                self.end_other(key).await?;
            }
            Ok(())
        };
        submitted.await.map_err(|error: StoreError| ExecutorError(error.into()))
    }

    async fn observe(&self, key: &str) -> EndedStep {
        let (sender, end) = oneshot::channel();
        self.shared.observed().insert(key.to_owned(), sender);
        self.shared.changed.notify_one();
        end.await.unwrap_or_else(|_| EndedStep::unbegun(StepEnd::Stopped { in_progress: true, lack: None }))
    }

    async fn cancel(&self, key: &str, level: StopLevel) -> Result<(), ExecutorError> {
        let stop = match level {
            StopLevel::Graceful => TaskStop::Graceful,
            StopLevel::Kill => TaskStop::Kill,
        };
        let cancelled = self.shared.queue().tasks().cancel_task(&self.shared.run, key, stop).await;
        cancelled.map_err(|error| ExecutorError(error.into()))
    }
}
