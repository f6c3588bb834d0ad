//! One session of a run: from the lease to its release.
//!
//! Everything between two commits happens in memory ([`advance`](super::advance)); a commit makes it true
//! ([`commit`](super::commit)); only then are the steps started that the commit says are started. A failed commit
//! leaves the store where it was, and the steps in flight are dropped, which ends their processes.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use tokio::time::MissedTickBehavior;

use crate::id::StepId;
use crate::lock::Holder;
use crate::record::{Definition, Failure, Phase, Position, Reason, RunStatus, SealedRun, Try};
use crate::shape::{Shape, Unfinished};
use crate::store::{Damage, Lease, Renewal, SignalKind, StoreError};

use super::chain::{Chain, Draft};
use super::stop::{Stop, StopLevel};
use super::{Attempt, Engine, Outcome, Performed, Program, RENEW_INTERVAL, RunError, SessionOptions, Told};

type Job<'a, O> = Pin<Box<dyn Future<Output = (usize, Performed<O>)> + Send + 'a>>;

/// A run under way.
pub(super) struct Session<'a, P: Program> {
    pub(super) engine: &'a Engine,
    pub(super) program: &'a P,
    pub(super) shape: &'a Shape,
    pub(super) options: SessionOptions,
    pub(super) lease: Option<Lease>,
    pub(super) chain: Chain,
    pub(super) batches: u64,
    pub(super) state: P::State,
    pub(super) position: Position,
    pub(super) unfinished: Unfinished,
    /// Under `--until`: whether a step may be started, by place.
    pub(super) wanted: Option<Vec<bool>>,
    pub(super) jobs: FuturesUnordered<Job<'a, P::Output>>,
    pub(super) drafts: Vec<Draft>,
    /// Places that the next commit starts.
    pub(super) starting: Vec<usize>,
    /// Places whose start needs a commit of its own.
    pub(super) alone: Vec<usize>,
    pub(super) consumed: Vec<String>,
    pub(super) reason: Reason,
    pub(super) adopt: Option<Definition>,
    pub(super) failed: Option<(StepId, Failure)>,
    pub(super) repaired: Vec<Damage>,
    pub(super) lost: u64,
}

impl<'a, P: Program> Session<'a, P> {
    pub(super) fn new(
        engine: &'a Engine,
        program: &'a P,
        chain: Chain,
        position: Position,
        state: P::State,
        options: SessionOptions,
    ) -> Result<Self, RunError> {
        let shape = program.shape();
        let wanted = match &options.until {
            Some(step) => {
                let place = shape.place(step.as_str()).ok_or_else(|| RunError::InvalidStep(step.clone()))?;
                Some(shape.with_needs(place))
            }
            None => None,
        };
        let unfinished = Unfinished::of(shape, &position);
        Ok(Self {
            engine,
            program,
            shape,
            options,
            lease: None,
            chain,
            batches: 0,
            state,
            position,
            unfinished,
            wanted,
            jobs: FuturesUnordered::new(),
            drafts: Vec::new(),
            starting: Vec::new(),
            alone: Vec::new(),
            consumed: Vec::new(),
            reason: Reason::Step,
            adopt: None,
            failed: None,
            repaired: Vec::new(),
            lost: 0,
        })
    }

    /// Makes the run with its first batch.
    pub(super) async fn create(
        &mut self,
        run: &SealedRun,
        holder: &Holder,
    ) -> Result<Option<RunStatus>, RunError> {
        self.schedule();
        let status = self.standstill();
        let batch = self.batch(status)?;
        let lease =
            self.engine.store.create(run, batch.clone(), holder).await.map_err(|source| match source {
                StoreError::Full { .. } | StoreError::Io { .. } | StoreError::Poisoned { .. } => {
                    RunError::Checkpoint { at: format!("{}@1", run.record().run), source }
                }
                source => RunError::Store(source),
            })?;
        self.lease = Some(lease);
        self.acknowledged(&batch);
        Ok(status)
    }

    /// Goes on after a resume: plans were made, nothing was started.
    pub(super) async fn continue_with(mut self, lease: Lease) -> Result<Outcome, RunError> {
        self.lease = Some(lease.clone());
        if let Some(definition) = self.adopt.take() {
            let mut draft = Draft::new(Phase::Restored, Reason::Manual, None, Try::default());
            draft.definition = Some(definition);
            self.position.definition = Some(self.chain.next + self.drafts.len() as u64);
            self.drafts.push(draft);
        }
        self.schedule();
        let status = self.standstill();
        // What needs a start of its own brings its own record; everything else begins with this one, even if all of it
        // is delayed.
        let begins = self.alone.is_empty() || !self.drafts.is_empty() || !self.starting.is_empty();
        if begins && let Err(error) = self.commit(status).await {
            let _ = self.engine.store.release(lease, None).await;
            return Err(error);
        }
        self.work(status).await
    }

    /// Works until nothing goes on by itself; `status` is set if that is so already.
    pub(super) async fn work(mut self, status: Option<RunStatus>) -> Result<Outcome, RunError> {
        if let Some(status) = status {
            return Ok(self.outcome(status));
        }
        let lease = self.lease.clone().expect("a session works under a lease");
        let result = match self.program.begin(&lease).await {
            Ok(()) => self.turns().await,
            Err(error) => self.give_up(error).await,
        };
        // Dropping what is in flight ends its processes; `end` waits for all the rest.
        self.jobs.clear();
        self.program.end().await;
        match result {
            Ok(status) => Ok(self.outcome(status)),
            Err(error) => {
                // Given back as well as can be: the error that matters is the one above.
                let _ = self.engine.store.release(lease, None).await;
                Err(error)
            }
        }
    }

    /// Takes back starts that were committed but cannot happen, and says so in a record.
    pub(super) async fn give_up(&mut self, error: super::BeginError) -> Result<RunStatus, RunError> {
        self.options.stop.stop(StopLevel::Graceful, "its steps could not be prepared");
        self.alone.clear();
        for place in std::mem::take(&mut self.starting) {
            self.take(place, Performed::Stopped { in_progress: false });
        }
        self.commit(self.standstill()).await?;
        Err(error.into())
    }

    pub(super) async fn turns(&mut self) -> Result<RunStatus, RunError> {
        let mut renewal = tokio::time::interval(RENEW_INTERVAL);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = self.options.stop.clone();
        let mut stopped = pin!(stop.stopped());
        let mut stopping = false;
        loop {
            self.launch().await?;
            let due = self.next_due();
            tokio::select! {
                biased;
                Some((place, performed)) = self.jobs.next(), if !self.jobs.is_empty() => {
                    self.take(place, performed);
                    // What else has ended meanwhile shares the commit.
                    while let Some(Some((place, performed))) = self.jobs.next().now_or_never() {
                        self.take(place, performed);
                    }
                }
                _ = &mut stopped, if !stopping => stopping = true,
                () = sleep_until(due, self.engine.clock.now()), if due.is_some() => {}
                _ = renewal.tick() => self.renew().await?,
            }
            self.schedule();
            let status = self.standstill();
            if !self.drafts.is_empty() || !self.starting.is_empty() || status.is_some() {
                self.trim().await?;
                self.commit(status).await?;
            }
            if let Some(status) = status {
                return Ok(status);
            }
        }
    }

    /// Starts what the last commit says is started, and commits and starts one by one what needs its own commit.
    pub(super) async fn launch(&mut self) -> Result<(), RunError> {
        for place in std::mem::take(&mut self.starting) {
            self.start(place);
        }
        for place in std::mem::take(&mut self.alone) {
            let start = self.mark_started(place);
            let mut draft =
                Draft::new(Phase::Started, self.reason, Some(start.step.clone()), start.at.clone());
            draft.started.push(start);
            self.drafts.push(draft);
            self.commit(None).await?;
            self.start(place);
        }
        Ok(())
    }

    pub(super) fn start(&mut self, place: usize) {
        let step = &self.shape.steps()[place];
        let entry = self.entry(place);
        let attempt = Attempt {
            run: self.chain.run.clone(),
            branch: self.chain.branch.clone(),
            step: step.id.clone(),
            at: entry.at.clone(),
            lease: self.lease.clone().expect("a session works under a lease"),
            timeout: step.timeout,
            stop: self.options.stop.clone(),
        };
        let admitted = self.program.admit(step, &self.state).map(|_| ());
        let program = self.program;
        match admitted.and_then(|()| program.prepare(step, &self.state)) {
            Ok(job) => self.jobs.push(Box::pin(async move { (place, program.perform(job, attempt).await) })),
            Err(failure) => {
                let performed = Performed::Failed { failure, told: Told::default() };
                self.jobs.push(Box::pin(std::future::ready((place, performed))));
            }
        }
    }

    /// Keeps the lease, and takes in requests to stop.
    pub(super) async fn renew(&mut self) -> Result<(), RunError> {
        let lease = self.lease.clone().expect("a session works under a lease");
        let answers = match self.engine.store.renew(&[&lease]).await {
            Ok(answers) => answers,
            Err(error) if error.retry() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for answer in answers {
            match answer {
                Renewal::Held(signals) => {
                    for signal in signals {
                        if matches!(signal.kind, SignalKind::Stop) && !self.consumed.contains(&signal.id) {
                            let by = if signal.sender.is_empty() { "waypost stop" } else { &signal.sender };
                            self.options.stop.stop(StopLevel::Graceful, by);
                            self.consumed.push(signal.id);
                        }
                    }
                }
                Renewal::Lost => {
                    let token = lease.token();
                    return Err(
                        StoreError::Fenced { run: lease.run().clone(), token, newest: token + 1 }.into()
                    );
                }
            }
        }
        Ok(())
    }

    pub(super) fn outcome(self, status: RunStatus) -> Outcome {
        Outcome {
            status,
            progress: self.progress(),
            failed: self.failed,
            stopped_by: self.options.stop.asked().map(|Stop { by, .. }| by),
            idle: false,
            repaired: self.repaired,
            lost: self.lost,
        }
    }
}

async fn sleep_until(due: Option<Timestamp>, now: Timestamp) {
    match due {
        None => pending().await,
        Some(due) => {
            tokio::time::sleep(Duration::try_from(due.duration_since(now)).unwrap_or_default()).await
        }
    }
}
