//! Workers: processes that claim submitted runs of a shared store and execute them.
//!
//! ```text
//!   submit --> ready --claim--> execute --> end, wait, or ready again after the loss of the worker
//! ```
//!
//! A worker also executes tasks: steps of runs that other workers hold. The slots for runs and for tasks are counted apart,
//! so that runs that wait for tasks never keep the workers from executing these.
//!
//! The [`Queue`] of a store keeps ready runs. A [`Worker`] claims the runs whose needs are met, up to the number of free
//! slots, and passes each to the [`Executor`]. Polling finds every ready run; hints of the store only shorten the wait.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::watch;

use crate::engine::{StopHandle, StopLevel};
use crate::id::RunId;
use crate::store::{ClaimedTask, Lease, Queue, Store, StoreError};
use crate::system::clock::{Clock as _, SystemClock};
use crate::system::lock::Holder;

mod graphs;
mod tasks;

pub use graphs::GraphExecutor;

/// Pause between polls without hints. Each poll is a few statements.
const POLL: Duration = Duration::from_secs(1);
/// Pause between polls while hints arrive: a lost hint delays a run this long.
const POLL_WITH_HINTS: Duration = Duration::from_secs(5);
/// How long a decision about a set of needs holds: a missing file may appear.
const NEEDS_KNOWN: Duration = Duration::from_secs(30);
/// Pause after an error of the store, before the next poll.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(3);

/// Pause before the next claim of a run that a worker could not begin: a full disk may have room again.
const PAUSE_AFTER_LACK: Duration = Duration::from_secs(30);

/// How a claimed run left its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// The run ended, waits, or needs a person.
    AtRest,
    /// The worker stopped the run, or lost its lease: another worker continues.
    Unfinished,
    /// The worker could not begin, for lack of this: any worker tries again later.
    Lacking(String),
}

impl Left {
    /// Returns how a run leaves its worker after an error of the store. Without a lease or a store, another worker continues.
    /// After a refused write (a full disk, a missing right), any worker tries again later.
    #[must_use]
    pub fn after(error: &StoreError) -> Self {
        match error {
            StoreError::Fenced { .. } | StoreError::Unreachable { .. } | StoreError::Unknown { .. } => {
                Self::Unfinished
            }
            StoreError::Full { .. }
            | StoreError::Io { .. }
            | StoreError::Database { .. }
            | StoreError::Denied { .. } => {
                Self::Lacking(format!("a store that takes its records ({})", with_causes(error)))
            }
            _ => Self::AtRest,
        }
    }
}

/// How a task ended on its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEnd {
    /// The result for the holder of the run.
    pub result: String,
    /// The worker could not begin, for lack of a resource.
    pub is_lacking: bool,
}

/// Executes claimed runs.
#[async_trait]
pub trait Executor: Send + Sync {
    /// Returns what this worker lacks of a run's needs, for display; `None` if nothing is missing.
    fn lacks(&self, needs: &BTreeSet<String>) -> Option<String>;

    /// Executes a run under its lease, until the run is at rest or stopped. Reports errors itself.
    async fn execute(&self, lease: Lease, stop: StopHandle) -> Left;

    /// Executes a step of a run that another worker holds, until its end or a stop.
    async fn perform(&self, task: &ClaimedTask, stop: StopHandle) -> TaskEnd;

    /// Reports an error of the queue, or the lack of hints; the worker continues.
    fn warn(&self, warning: &str);
}

/// A process that claims and executes runs.
#[derive(Debug)]
pub struct Worker<E> {
    store: Arc<dyn Store>,
    executor: E,
    slots: NonZeroUsize,
    stop: StopHandle,
}

impl<E: Executor> Worker<E> {
    /// Makes a worker that executes one run at a time.
    pub fn with_executor(store: Arc<dyn Store>, executor: E) -> Self {
        Self { store, executor, slots: NonZeroUsize::MIN, stop: StopHandle::default() }
    }

    /// Executes up to `slots` runs, and as many tasks, at once.
    #[must_use]
    pub fn with_slots(self, slots: NonZeroUsize) -> Self {
        Self { slots, ..self }
    }

    /// Ends the worker by a stop request: at the first level after its current runs, at the next level at once.
    #[must_use]
    pub fn with_stop(self, stop: StopHandle) -> Self {
        Self { stop, ..self }
    }

    /// Claims and executes runs until a stop is requested. A drop of the future cuts the running steps, and leaves the
    /// runs to other workers.
    ///
    /// # Errors
    /// - [`StoreError::Unsupported`]: the store has no queue.
    /// - [`StoreError::Denied`], [`StoreError::Version`]: a person must act; all current runs have ended.
    /// - Errors of the first access to the store.
    pub async fn run(self) -> Result<(), StoreError> {
        let holder = Holder::here(SystemClock.now()).map_err(|source| StoreError::Io {
            action: "read",
            place: "the process table".into(),
            source,
        })?;
        let Some(queue) = self.store.queue() else {
            let why = "only a store on a server has a queue for workers".to_owned();
            return Err(StoreError::Unsupported { store: self.store.to_string(), why });
        };
        queue.depth().await?;
        let poll = match queue.listen().await {
            None => POLL_WITH_HINTS,
            Some(why) => {
                self.executor.warn(&why);
                POLL
            }
        };
        let (ended, runs) = watch::channel(false);
        let serve_runs = async {
            let served = self.serve_runs(queue, &holder, poll).await;
            ended.send_replace(true);
            served
        };
        let (runs, tasks) = tokio::join!(serve_runs, self.serve_tasks(queue, &holder, poll, runs));
        runs.and(tasks)
    }

    /// Reports an error of the queue. Missing rights and another version end the worker after its current runs.
    fn note_error(&self, error: StoreError, fatal: &mut Option<StoreError>) {
        if matches!(error, StoreError::Denied { .. } | StoreError::Version { .. }) {
            self.stop.stop(StopLevel::Graceful, &error.to_string());
            fatal.get_or_insert(error);
        } else {
            self.executor.warn(&with_causes(&error));
        }
    }

    /// Claims and executes runs until a stop is requested.
    async fn serve_runs(&self, queue: &dyn Queue, holder: &Holder, poll: Duration) -> Result<(), StoreError> {
        let (mut running, mut served, mut fatal) = (FuturesUnordered::new(), Served::default(), None);
        loop {
            let is_draining = self.stop.is_asked();
            if is_draining && running.is_empty() {
                return fatal.map_or(Ok(()), Err);
            }
            let free = self.slots.get().saturating_sub(running.len());
            let mut pause = jittered(poll);
            if free > 0 && !is_draining {
                let claim = self.claim(queue, holder, &mut served, free);
                match beside(&mut running, claim).await {
                    Ok(leases) => running.extend(leases.into_iter().map(|lease| self.execute(queue, lease))),
                    Err(error) => {
                        self.note_error(error, &mut fatal);
                        pause = PAUSE_AFTER_ERROR;
                    }
                }
            }
            tokio::select! {
                _ = running.next(), if !running.is_empty() => {}
                () = queue.wait(pause), if !is_draining => {}
                _ = self.stop.stopped(), if !is_draining => {}
            }
        }
    }

    async fn claim(
        &self,
        queue: &dyn Queue,
        holder: &Holder,
        served: &mut Served,
        free: usize,
    ) -> Result<Vec<Lease>, StoreError> {
        queue.expire().await?;
        served.forget_old();
        for needs in queue.needs(&served.known).await? {
            match self.executor.lacks(&needs) {
                Some(missing) => queue.report_missing(&needs, &missing).await?,
                None => drop(served.sets.insert(needs.clone())),
            }
            served.known.insert(needs);
        }
        match served.sets.is_empty() {
            true => Ok(Vec::new()),
            false => queue.claim(holder, &served.sets, free).await,
        }
    }

    /// Executes a claimed run, and makes an unfinished run ready for other workers.
    async fn execute(&self, queue: &dyn Queue, lease: Lease) {
        let (run, stop): (RunId, _) = (lease.run().clone(), StopHandle::default());
        let mut executed = pin!(self.executor.execute(lease.clone(), stop.clone()));
        let left = tokio::select! {
            left = &mut executed => left,
            () = self.stop.killed() => {
                let by = self.stop.asked().map(|asked| asked.by).unwrap_or_default();
                stop.stop_and_return(StopLevel::Graceful, &by);
                executed.await
            }
        };
        // The executor has released the lease, or lost it, or could not execute the run.
        let _ = self.store.release(lease, None).await;
        let is_lacking = matches!(left, Left::Lacking(_));
        let returned = match left {
            Left::AtRest => Ok(()),
            Left::Unfinished => queue.requeue(&run, None).await,
            Left::Lacking(missing) => queue.defer(&run, &missing, PAUSE_AFTER_LACK).await,
        };
        if let Err(error) = returned {
            self.executor.warn(&with_causes(&error));
        }
        if is_lacking {
            self.keep_slot().await;
        }
    }

    /// Keeps a slot after a lack of this worker, which would be the quickest to claim, and to fail, all runs of the queue.
    async fn keep_slot(&self) {
        tokio::select! {
            () = tokio::time::sleep(PAUSE_AFTER_LACK) => {}
            _ = self.stop.stopped() => {}
        }
    }
}

/// Formats an error of the queue with its causes.
fn with_causes(error: &StoreError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| match cause.to_string() {
        cause if text.ends_with(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}

/// Does some work to its end, while runs proceed.
async fn beside<T>(
    running: &mut FuturesUnordered<impl Future<Output = ()>>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = running.next(), if !running.is_empty() => {}
        }
    }
}

/// The sets of needs that a worker has judged.
#[derive(Debug, Default)]
struct Served {
    since: Option<Instant>,
    known: BTreeSet<BTreeSet<String>>,
    sets: BTreeSet<BTreeSet<String>>,
}

impl Served {
    /// Forgets old decisions.
    fn forget_old(&mut self) {
        if self.since.is_none_or(|since| since.elapsed() > NEEDS_KNOWN) {
            *self = Self { since: Some(Instant::now()), ..Self::default() };
        }
    }
}

/// Returns a random time around a pause: workers that started together do not poll together.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1_000;
    pause / 2 + pause.mul_f64(random as f64 / 1_000.0)
}
