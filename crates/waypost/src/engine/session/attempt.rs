//! An attempt of a step, for the step: identity, deadline, stop, and memoized results.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};

use crate::evidence::{Site, Verifier};
use crate::id::{Digest, RunId, ScopePath, StepId};
use crate::record::{Pack, Phase, Reason, Try, Wait, WaitKind};
use crate::store::{Lease, Scan, ScanOrder, Store, StoreError};
use crate::system::clock::{Clock, SteadyClock};

use super::pending_wait::PendingWait;
use super::request::{Request, RequestKind};
use super::signals::{Stop, StopHandle, StopLevel};
use crate::engine::scope::{MAIN, ScopeId};
use crate::engine::{Engine, StepRef, StepReport};

/// Limit of memoized results of a step per iteration. A restarted step reads all of these. A step that needs more
/// should be a loop of steps.
pub const MEMOS_MAX: u32 = 1_000;
/// Size limit of a memoized result as JSON, since a header holds the result. Larger values belong in the state or
/// in a file.
pub const MEMO_BYTES_MAX: usize = 1 << 20;

/// The minimum interval of checkpoints within a step. Each checkpoint is a commit, and a disk does a few thousand
/// commits per second for all runs.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The key of interval checkpoints.
pub const RUNNING_KEY: &str = "running";

/// The reason why a result could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum MemoError {
    /// The result is too large.
    #[error("the result kept as `{key}` has {bytes} bytes, the maximum is {MEMO_BYTES_MAX}")]
    Large {
        /// The key of the result.
        key: String,
        /// The size of the result.
        bytes: usize,
    },
    /// The step has too many results.
    #[error("step `{0}` has {MEMOS_MAX} kept results, the maximum")]
    Many(StepId),
    /// The session is ending; the step will be dropped.
    #[error("the run is ending, and result `{0}` was not kept")]
    Ending(String),
    /// The stored results cannot be read.
    #[error("cannot read the kept results of step `{step}`")]
    Read {
        /// The step.
        step: StepId,
        /// The error of the store.
        source: StoreError,
    },
}

/// The key of the progress record for the end of a step's work: [`Attempt::exited`].
pub const EXITED_KEY: &str = "exited";

/// An attempt of a step.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The run.
    pub run: RunId,
    /// The scope.
    pub scope: ScopePath,
    /// The step.
    pub step: StepId,
    /// The attempt, iteration and epoch.
    pub at: Try,
    /// The lease of the run; writes of blobs need the lease.
    pub lease: Lease,
    pub(crate) timeout: Option<Duration>,
    pub(crate) interval: Option<Duration>,
    pub(crate) stop: StopHandle,
    pub(crate) cancel: StopHandle,
    pub(crate) scope_id: ScopeId,
    pub(crate) job: u64,
    pub(crate) requests: mpsc::Sender<Request>,
    pub(crate) memos: Arc<Memos>,
    pub(crate) clock: Arc<SteadyClock>,
    pub(crate) config: Arc<Map<String, Value>>,
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) site: Arc<Site>,
}

/// The identity of an attempt within a run, and its time limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptIdentity {
    /// The scope.
    pub scope: ScopePath,
    /// The step.
    pub step: StepId,
    /// The attempt, iteration and epoch.
    pub at: Try,
    /// How long the attempt may take.
    pub timeout: Option<Duration>,
}

impl Attempt {
    /// Creates the attempt of an undo command.
    pub(crate) fn of_undo(
        engine: &Engine,
        (lease, stop): (&Lease, &StopHandle),
        step_ref: StepRef<'_>,
        at: Try,
    ) -> Self {
        let (scope, step) = (step_ref.scope.clone(), step_ref.step.id.clone());
        let identity = AttemptIdentity { scope, step, at, timeout: step_ref.step.timeout };
        Self::without_session(engine, lease, identity, stop.clone())
    }

    /// Returns the identity of the attempt, for the execution in another process.
    #[must_use]
    pub fn identity(&self) -> AttemptIdentity {
        let Self { scope, step, at, timeout, .. } = self;
        AttemptIdentity { scope: scope.clone(), step: step.clone(), at: at.clone(), timeout: *timeout }
    }

    /// Creates an attempt apart from the session of its run. Results are not memoized, and waits never end.
    #[must_use]
    pub fn without_session(
        engine: &Engine,
        lease: &Lease,
        identity: AttemptIdentity,
        stop: StopHandle,
    ) -> Self {
        let AttemptIdentity { scope, step, at, timeout } = identity;
        Self {
            run: lease.run().clone(),
            scope,
            step,
            at,
            lease: lease.clone(),
            timeout,
            interval: None,
            stop,
            cancel: StopHandle::default(),
            scope_id: MAIN,
            job: 0,
            requests: mpsc::channel(1).0,
            memos: Arc::new(Memos::new(Arc::clone(&engine.store), 0)),
            clock: Arc::new(SteadyClock::new(Arc::clone(&engine.clock))),
            config: Arc::default(),
            verifier: Arc::clone(&engine.verifier),
            site: Arc::default(),
        }
    }

    /// Returns an idempotency key: stable over retries and crashes, new for each rerun of the finished step.
    pub fn idempotency_key(&self) -> String {
        self.key_of(&[])
    }

    /// Returns the id of a wait for `key` in this step: stable until a rerun of the step, or until the step asks
    /// another question. An answer has the id of its question, and counts for no other question.
    pub fn wait_id(&self, key: &str, question: Option<&Value>) -> String {
        let question = question.map(Value::to_string).unwrap_or_default();
        self.key_of(&[key.as_bytes(), question.as_bytes()])
    }

    /// Returns an idempotency key for the undo command of the step: stable over repeated undos, and different
    /// from the keys of all attempts.
    pub fn undo_key(&self) -> String {
        self.key_of(&[b"undo", &[0]])
    }

    fn key_of(&self, more: &[&[u8]]) -> String {
        key_of(&self.run, (&self.scope, &self.step), &self.at, more)
    }

    /// Returns the configuration of the run.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// Takes the pins and checks all claims of a step's evidence, as at a commit, within the limits of the
    /// engine's verifier. Returns the pack with its verdicts.
    pub async fn check_evidence(&self, pack: &Pack, exit_code: Option<i32>) -> Pack {
        let site = Site::clone(&self.site).with_exit_code(exit_code);
        self.verifier.commit(pack, &site).await
    }

    /// Returns the clock of the engine.
    pub fn clock(&self) -> &dyn Clock {
        self.clock.inner()
    }

    /// Returns the time for waits: setting the clock back during the session does not extend a wait.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Resolves when the step must end: on a stop request or on the timeout.
    ///
    /// The timeout counts from this call; call once, at the start of the work.
    pub async fn stopped(&self) -> CancelCause {
        let limit = async {
            match self.timeout {
                Some(limit) => {
                    tokio::time::sleep(limit).await;
                    limit
                }
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            stop = self.stop.stopped() => CancelCause::Stop(stop),
            stop = self.cancel.stopped() => CancelCause::Stop(stop),
            limit = limit => CancelCause::Timeout(limit),
        }
    }

    /// Writes a checkpoint at every interval of the session, with the progress and side outputs from `said`.
    /// Never returns; the caller drops the future at the end of the step.
    ///
    /// The phase is `progress` with the key [`RUNNING_KEY`]; `elapsed_ms` is added to the value from `said`.
    pub async fn report_progress(&self, said: impl Fn() -> (Map<String, Value>, StepReport)) -> Infallible {
        let Some(interval) = self.interval else { return pending().await };
        let interval = interval.max(INTERVAL_MIN);
        let begun = Instant::now();
        let mut ticks = tokio::time::interval_at(begun + interval, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (mut value, report) = said();
            let elapsed_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            value.insert("elapsed_ms".to_owned(), elapsed_ms.into());
            if self.ask(RequestKind::Progress { value: Value::Object(value), report }).await.is_err() {
                return pending().await;
            }
        }
    }

    /// Resolves when the step must end at once, without grace.
    pub async fn killed(&self) {
        tokio::select! {
            () = self.stop.killed() => {}
            () = self.cancel.killed() => {}
        }
    }

    /// Resolves when the run or this scope of the run is stopped.
    pub async fn stop_asked(&self) -> Stop {
        tokio::select! {
            biased;
            stop = self.stop.stopped() => stop,
            stop = self.cancel.stopped() => stop,
        }
    }

    /// Requests a graceful stop of the session, this step included. `by` is recorded as the cause.
    pub fn stop_session(&self, by: &str) {
        self.stop.stop(StopLevel::Graceful, by);
    }

    /// Stops the session, and returns the run to the queue of the store.
    pub fn return_run(&self, by: &str) {
        self.stop.stop_and_return(StopLevel::Graceful, by);
    }

    /// Returns whether a stop was requested.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_asked() || self.cancel.is_asked()
    }

    /// Returns the result stored under `key` in an earlier attempt of this iteration, or before a suspension.
    ///
    /// # Errors
    /// [`MemoError::Read`]: the store cannot be read.
    pub async fn kept(&self, key: &str) -> Result<Option<Value>, MemoError> {
        self.read(Memo::Kept, key).await
    }

    /// Returns the answer or signal consumed by the wait `id`: see [`wait_id`](Self::wait_id).
    ///
    /// # Errors
    /// [`MemoError::Read`]: the store cannot be read.
    pub async fn answered(&self, id: &str) -> Result<Option<Value>, MemoError> {
        self.read(Memo::Answered, id).await
    }

    async fn read(&self, kind: Memo, key: &str) -> Result<Option<Value>, MemoError> {
        let read = self.memos.read(self).await;
        let memos = read.map_err(|source| MemoError::Read { step: self.step.clone(), source })?;
        Ok(memos.get(&(kind, key.to_owned())).cloned())
    }

    /// Stores a result under `key`, with the side outputs so far. Returns once the result is as durable as the
    /// run requires.
    ///
    /// # Errors
    /// [`MemoError`]: nothing was kept.
    pub async fn keep(&self, key: &str, value: Value, report: StepReport) -> Result<(), MemoError> {
        let bytes = serde_json::to_vec(&value).map_or(0, |bytes| bytes.len());
        if bytes > MEMO_BYTES_MAX {
            return Err(MemoError::Large { key: key.to_owned(), bytes });
        }
        if !self.memos.take_slot() {
            return Err(MemoError::Many(self.step.clone()));
        }
        let (stored, answer) = oneshot::channel();
        let ending = || MemoError::Ending(key.to_owned());
        let kind = RequestKind::Memo { key: key.to_owned(), value, report, stored };
        self.ask(kind).await.map_err(|()| ending())?;
        answer.await.map_err(|_| ending())
    }

    /// Records the end of the step's work with its exit code and outputs, before the check of the evidence. After
    /// a crash during that check, a resume then knows that the work was not interrupted. Oversized outputs are
    /// left out, and at the end of a session the record may be skipped. For non-idempotent steps.
    pub async fn exited(&self, code: i32, outputs: &Map<String, Value>) {
        let whole = json!({ "exit_code": code, "outputs": outputs });
        if let Err(MemoError::Large { .. }) = self.keep(EXITED_KEY, whole, StepReport::default()).await {
            // An error of this call ends the session too.
            let _ = self.keep(EXITED_KEY, json!({ "exit_code": code }), StepReport::default()).await;
        }
    }

    /// Creates a wait of this step.
    pub fn make_wait(&self, key: &str, on: WaitKind, question: Option<Value>) -> Wait {
        let id = self.wait_id(key, question.as_ref());
        Wait { id, key: key.to_owned(), on, question, until: None }
    }

    /// Suspends the step until a wait of `waits` ends; never returns. The step then restarts from the top, and
    /// [`answered`](Self::answered) returns the answer or signal.
    pub async fn suspend(&self, waits: Vec<Wait>) -> Infallible {
        let _ = self.ask(RequestKind::Suspend(waits)).await;
        pending().await
    }

    /// Asks the session to deliver a message to a wait while the step continues other work.
    pub(crate) async fn listen(&self, wait: Arc<PendingWait>) {
        // An ended session delivers nothing.
        let _ = self.ask(RequestKind::Wait(wait)).await;
    }

    async fn ask(&self, kind: RequestKind) -> Result<(), ()> {
        let request = Request { scope: self.scope_id, job: self.job, kind };
        self.requests.send(request).await.map_err(drop)
    }
}

/// The reason why a step must end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelCause {
    /// The run, or this scope of the run, is stopped.
    Stop(Stop),
    /// The attempt took longer than this timeout.
    Timeout(Duration),
}

/// The source of a result: stored under a key, or consumed by a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Memo {
    Kept,
    Answered,
}

/// The memoized results of a step, read on first use.
#[derive(Debug)]
pub(crate) struct Memos {
    store: Arc<dyn Store>,
    /// The number of results in the store.
    count: u32,
    added: std::sync::atomic::AtomicU32,
    values: OnceCell<HashMap<(Memo, String), Value>>,
}

impl Memos {
    pub(crate) fn new(store: Arc<dyn Store>, count: u32) -> Self {
        Self { store, count, added: std::sync::atomic::AtomicU32::new(0), values: OnceCell::new() }
    }

    fn take_slot(&self) -> bool {
        let added = self.added.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.count.saturating_add(added) < MEMOS_MAX
    }

    async fn read(&self, attempt: &Attempt) -> Result<&HashMap<(Memo, String), Value>, StoreError> {
        self.values.get_or_try_init(|| self.load(attempt)).await
    }

    async fn load(&self, attempt: &Attempt) -> Result<HashMap<(Memo, String), Value>, StoreError> {
        let mut values = HashMap::with_capacity(self.count as usize);
        if self.count == 0 {
            return Ok(values);
        }
        let mut scan = Scan {
            scope: Some(attempt.scope.clone()),
            step: Some(attempt.step.to_string()),
            phase: Some("progress"),
            order: ScanOrder::NewestFirst,
            ..Scan::of(&attempt.run)
        };
        let mut found = 0;
        loop {
            let page = self.store.scan(&scan).await?;
            for record in &page.records {
                let header = record.header();
                let is_kept = !matches!(header.reason, Reason::Interval | Reason::Fork | Reason::Accept);
                let pass = (&header.at.iteration, header.at.epoch);
                let ours = is_kept && pass == (&attempt.at.iteration, attempt.at.epoch);
                if let (true, Phase::Progress { key, value }) = (ours, &header.phase) {
                    found += 1;
                    let memo = match &header.taken {
                        Some(taken) => (Memo::Answered, taken.wait.clone()),
                        None => (Memo::Kept, key.clone()),
                    };
                    values.entry(memo).or_insert_with(|| value.clone());
                }
                if found == self.count {
                    return Ok(values);
                }
            }
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => return Ok(values),
            }
        }
    }
}

/// Returns [`Attempt::idempotency_key`] of an attempt on record.
pub fn idempotency_key(run: &RunId, (scope, step): (&ScopePath, &StepId), at: &Try) -> String {
    key_of(run, (scope, step), at, &[])
}

fn key_of(run: &RunId, (scope, step): (&ScopePath, &StepId), at: &Try, more: &[&[u8]]) -> String {
    let iteration: Vec<u8> = at.iteration.iter().flat_map(|count| count.to_le_bytes()).collect();
    let epoch = at.epoch.to_le_bytes();
    let names = [run.as_str(), scope.as_str(), step.as_str()].map(str::as_bytes);
    let parts = names.into_iter().chain([iteration.as_slice(), &epoch]).chain(more.iter().copied());
    Digest::of_parts(parts).to_string()[..32].to_owned()
}
