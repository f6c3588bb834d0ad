//! One try of a step, as the step sees it: who it is, when it must end, what it kept before.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};

use crate::clock::{Clock, SteadyClock};
use crate::evidence::{Site, Verifier};
use crate::id::{BranchPath, Digest, RunId, StepId};
use crate::record::{Pack, Phase, Reason, Try, Wait, WaitKind};
use crate::store::{Lease, Scan, ScanOrder, Store, StoreError};

use super::pending_wait::PendingWait;
use super::request::{Asked, Request};
use super::scope::{LineId, MAIN};
use super::signals::{Stop, StopHandle, StopLevel};
use super::{Engine, StepRef, StepReport};

/// Most results that a step may keep in one iteration: they are all read when it starts again. A step that needs more
/// is a loop of steps.
pub const MEMOS_MAX: u32 = 1_000;
/// Largest of them, as JSON: it stands in a header. What is larger belongs in the state, or in a file.
pub const MEMO_BYTES_MAX: usize = 1 << 20;

/// Shortest interval of checkpoints within a step: each is a commit like any other, and a disk does a few thousand of
/// them in a second, for all steps of all runs.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The key of such checkpoints.
pub const RUNNING_KEY: &str = "running";

/// Why a result could not be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum MemoError {
    /// It is too large.
    #[error("the result kept as `{key}` has {bytes} bytes, {MEMO_BYTES_MAX} are allowed")]
    Large {
        /// Its key.
        key: String,
        /// Its size.
        bytes: usize,
    },
    /// There are too many.
    #[error("step `{0}` has kept {MEMOS_MAX} results, no more are allowed")]
    Many(StepId),
    /// The session is ending; the step will be dropped.
    #[error("the run is ending, and result `{0}` was not kept")]
    Ending(String),
    /// What was kept before cannot be read.
    #[error("cannot read what step `{step}` kept before")]
    Read {
        /// The step.
        step: StepId,
        /// Why.
        source: StoreError,
    },
}

/// The key of the progress that tells that the work of a step has ended, by [`Attempt::exited`].
pub const EXITED_KEY: &str = "exited";

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
    pub(super) timeout: Option<Duration>,
    pub(super) interval: Option<Duration>,
    pub(super) stop: StopHandle,
    pub(super) cancel: StopHandle,
    pub(super) line: LineId,
    pub(super) job: u64,
    pub(super) requests: mpsc::Sender<Request>,
    pub(super) memos: Arc<Memos>,
    pub(super) clock: Arc<SteadyClock>,
    pub(super) config: Arc<Map<String, Value>>,
    pub(super) verifier: Arc<Verifier>,
    pub(super) site: Arc<Site>,
}

impl Attempt {
    /// A try of undoing a step: nobody hears what it asks for.
    pub(super) fn of_undo(
        engine: &Engine,
        (lease, stop): (&Lease, &StopHandle),
        spot: StepRef<'_>,
        at: Try,
    ) -> Self {
        Self {
            run: lease.run().clone(),
            branch: spot.branch.clone(),
            step: spot.step.id.clone(),
            at,
            lease: lease.clone(),
            timeout: spot.step.timeout,
            interval: None,
            stop: stop.clone(),
            cancel: StopHandle::default(),
            line: MAIN,
            job: 0,
            requests: mpsc::channel(1).0,
            memos: Arc::new(Memos::new(Arc::clone(&engine.store), 0)),
            clock: Arc::new(SteadyClock::new(Arc::clone(&engine.clock))),
            config: Arc::default(),
            verifier: Arc::clone(&engine.verifier),
            site: Arc::default(),
        }
    }

    /// Returns a key that is the same over retries and crashes, and new after a deliberate redo.
    pub fn idempotency_key(&self) -> String {
        self.key_of(&[])
    }

    /// Returns the id of a wait for `key` in this step: the same until the step is deliberately redone, or asks another
    /// question. An answer has the id of its question, and counts for no other question.
    pub fn wait_id(&self, key: &str, question: Option<&Value>) -> String {
        let question = question.map(Value::to_string).unwrap_or_default();
        self.key_of(&[key.as_bytes(), question.as_bytes()])
    }

    /// Returns a key for undoing the step: the same however often that is begun, and none of those of its tries.
    pub fn undo_key(&self) -> String {
        self.key_of(&[b"undo", &[0]])
    }

    fn key_of(&self, more: &[&[u8]]) -> String {
        let iteration: Vec<u8> = self.at.iteration.iter().flat_map(|count| count.to_le_bytes()).collect();
        let epoch = self.at.epoch.to_le_bytes();
        let names = [self.run.as_str(), self.branch.as_str(), self.step.as_str()].map(str::as_bytes);
        let parts = names.into_iter().chain([iteration.as_slice(), &epoch]).chain(more.iter().copied());
        Digest::of_parts(parts).to_string()[..32].to_owned()
    }

    /// Returns what the run was configured with.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// Pins what is to be pinned of a step's evidence and checks all of it, as at a commit, within the limits of the
    /// engine's verifier; returns the pack with its verdicts.
    pub async fn check_evidence(&self, pack: &Pack, exit_code: Option<i32>) -> Pack {
        let site = Site::clone(&self.site).with_exit_code(exit_code);
        self.verifier.commit(pack, &site).await
    }

    /// Returns the clock of the engine.
    pub fn clock(&self) -> &dyn Clock {
        self.clock.inner()
    }

    /// Returns the time for waits: a clock that is set back during the session makes no wait longer.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Resolves when the step must end: asked to stop, or out of time.
    ///
    /// Counts the time from this call; call it once, when the work begins.
    pub async fn stopped(&self) -> Ended {
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
            stop = self.stop.stopped() => Ended::Stop(stop),
            stop = self.cancel.stopped() => Ended::Stop(stop),
            limit = limit => Ended::Timeout(limit),
        }
    }

    /// Writes a checkpoint each time that the interval of the session has passed since this call, with what `said` gives:
    /// how far the step is, and what it has told. Never returns; to be dropped when the step ends.
    ///
    /// It is `progress` under [`RUNNING_KEY`], with the time that has passed as `elapsed_ms` beside what `said` gives.
    pub async fn told_meanwhile(&self, said: impl Fn() -> (Map<String, Value>, StepReport)) -> Infallible {
        let Some(interval) = self.interval else { return pending().await };
        let interval = interval.max(INTERVAL_MIN);
        let begun = Instant::now();
        let mut ticks = tokio::time::interval_at(begun + interval, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (mut value, told) = said();
            let elapsed_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            value.insert("elapsed_ms".to_owned(), elapsed_ms.into());
            if self.ask(Asked::Tell { value: Value::Object(value), told }).await.is_err() {
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

    /// Resolves when the step is to end because the run or this branch of it is stopped.
    pub async fn stop_asked(&self) -> Stop {
        tokio::select! {
            biased;
            stop = self.stop.stopped() => stop,
            stop = self.cancel.stopped() => stop,
        }
    }

    /// Asks that the session stops with grace, this step included; `by` is remembered as what stopped it.
    pub fn stop_session(&self, by: &str) {
        self.stop.stop(StopLevel::Graceful, by);
    }

    /// Says whether a stop was asked for.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_asked() || self.cancel.is_asked()
    }

    /// Returns what this step kept under `key` in an earlier try of this iteration, or before it was let go.
    ///
    /// # Errors
    /// [`MemoError::Read`]: the store cannot be read.
    pub async fn kept(&self, key: &str) -> Result<Option<Value>, MemoError> {
        self.read(Memo::Kept, key).await
    }

    /// Returns the answer or signal that the wait with this id took, [`wait_id`](Self::wait_id).
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

    /// Keeps a result under `key`, with what the step has to say so far; returns once it is as durable as the run asks.
    ///
    /// # Errors
    /// [`MemoError`]: nothing was kept.
    pub async fn keep(&self, key: &str, value: Value, told: StepReport) -> Result<(), MemoError> {
        let bytes = serde_json::to_vec(&value).map_or(0, |bytes| bytes.len());
        if bytes > MEMO_BYTES_MAX {
            return Err(MemoError::Large { key: key.to_owned(), bytes });
        }
        if !self.memos.take_slot() {
            return Err(MemoError::Many(self.step.clone()));
        }
        let (kept, answer) = oneshot::channel();
        let ending = || MemoError::Ending(key.to_owned());
        let what = Asked::Keep { key: key.to_owned(), value, told, kept };
        self.ask(what).await.map_err(|()| ending())?;
        answer.await.map_err(|_| ending())
    }

    /// Records that the work of the step has ended, with this exit code and these outputs, before what it is believed by is
    /// asked: if nobody lives to see that, a resume knows that it was not cut. Without the outputs where they are too
    /// large; what cannot be recorded as the session ends is left out. For steps that must not be repeated blindly.
    pub async fn exited(&self, code: i32, outputs: &Map<String, Value>) {
        let whole = json!({ "exit_code": code, "outputs": outputs });
        if let Err(MemoError::Large { .. }) = self.keep(EXITED_KEY, whole, StepReport::default()).await {
            // What stops this stops the session.
            let _ = self.keep(EXITED_KEY, json!({ "exit_code": code }), StepReport::default()).await;
        }
    }

    /// Makes a wait of this step.
    pub fn make_wait(&self, key: &str, on: WaitKind, question: Option<Value>) -> Wait {
        let id = self.wait_id(key, question.as_ref());
        Wait { id, key: key.to_owned(), on, question, until: None }
    }

    /// Suspends the step until one of `waits` has an end: this call never returns. The step then starts again from its
    /// top, and [`answered`](Self::answered) has the answer or signal.
    pub async fn suspend(&self, waits: Vec<Wait>) -> Infallible {
        let _ = self.ask(Asked::Suspend(waits)).await;
        pending().await
    }

    /// Has the session give a message to a wait while other work of the step goes on.
    pub(crate) async fn listen(&self, wait: Arc<PendingWait>) {
        // A session that has ended gives nothing.
        let _ = self.ask(Asked::Listen(wait)).await;
    }

    async fn ask(&self, what: Asked) -> Result<(), ()> {
        let request = Request { line: self.line, job: self.job, what };
        self.requests.send(request).await.map_err(drop)
    }
}

/// Why a step must end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Somebody wants the run, or this branch of it, to stop.
    Stop(Stop),
    /// It took longer than this.
    Timeout(Duration),
}

/// Where a result of a step comes from: the step kept it under a key, or the wait with an id took it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Memo {
    Kept,
    Answered,
}

/// What a step kept, read once when first asked for.
#[derive(Debug)]
pub(super) struct Memos {
    store: Arc<dyn Store>,
    /// How many there are in the store.
    count: u32,
    added: std::sync::atomic::AtomicU32,
    values: OnceCell<HashMap<(Memo, String), Value>>,
}

impl Memos {
    pub(super) fn new(store: Arc<dyn Store>, count: u32) -> Self {
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
            branch: Some(attempt.branch.clone()),
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
