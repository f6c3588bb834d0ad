//! One session of a run: from the lease to its release.
//!
//! Everything between two commits happens in memory ([`Session::take`], [`Session::schedule`]); [`Session::commit`]
//! makes it true; only then are the steps started that the commit says are started. A failed commit leaves the store
//! where it was, and the steps in flight are dropped, which ends their processes.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use tokio::time::MissedTickBehavior;

use crate::change::{self, ready};
use crate::graph::{Graph, Unfinished};
use crate::id::{BranchPath, Digest, RunId, StepId};
use crate::lock::Holder;
use crate::plan::{Verdicts, plan};
use crate::record::{
    End, Ending, Failure, FrontierEntry, OUTPUTS_INLINE_BYTES_MAX, Phase, Position, Reason, RunStatus,
    SealedRun, Settled, Start, Status, Try,
};
use crate::store::{
    Batch, BatchId, Damage, FIRST_TOKEN, Lease, Progress, Renewal, Scan, ScanOrder, SignalKind, StoreError,
    Summary, TrimMode,
};

use super::chain::{Chain, Draft};
use super::snapshot::{Snapshot, position_of};
use super::stop::{Stop, StopLevel};
use super::{
    Admission, Adoption, Attempt, Engine, OnLostCheckpoint, Outcome, Performed, Program, RENEW_INTERVAL,
    ResumeOptions, RunError, SessionOptions, Settlement, Told,
};

/// Checkpoints kept in memory while the store cannot take them and that is tolerated.
const DRAFTS_PENDING_MAX: usize = 1_000;
/// How often old states are let go: rarely enough to cost nothing, often enough to bound the disk.
const TRIM_BATCHES: u64 = 16;

type Job<'a, O> = Pin<Box<dyn Future<Output = (usize, Performed<O>)> + Send + 'a>>;

/// Makes a run and works on it.
pub(super) async fn first<P: Program>(
    engine: &Engine,
    program: &P,
    run: &SealedRun,
    state: P::State,
    options: SessionOptions,
    holder: &Holder,
) -> Result<Outcome, RunError> {
    let graph = program.graph();
    let frontier = graph.roots().into_iter().map(|place| ready(graph.steps()[place].id.clone())).collect();
    let position = Position { frontier, ..Position::default() };
    let chain = Chain {
        run: run.record().run.clone(),
        branch: BranchPath::main(),
        token: FIRST_TOKEN,
        next: 1,
        prev: None,
        basis: None,
        repair: false,
        root: Some(run.digest()),
        resumed: false,
    };
    let mut session = Session::new(engine, program, chain, position, state, options)?;
    session.reason = Reason::Start;
    let status = session.create(run, holder).await?;
    session.work(status).await
}

/// Takes a run up where it stood.
pub(super) async fn resumed<P: Program>(
    engine: &Engine,
    program: &P,
    run: &RunId,
    options: ResumeOptions<P::State>,
    holder: &Holder,
) -> Result<Outcome, RunError> {
    let lease = engine.store.acquire(run, &BranchPath::main(), holder).await?;
    match prepare_resume(engine, program, &lease, options).await {
        Ok(Prepared::Session(session)) => session.continue_with(lease).await,
        Ok(Prepared::Idle(outcome)) => {
            engine.store.release(lease, None).await?;
            Ok(*outcome)
        }
        Err(error) => {
            // The lease is given back as well as can be; the error that matters is the one above.
            let _ = engine.store.release(lease, None).await;
            Err(error)
        }
    }
}

enum Prepared<'a, P: Program> {
    Session(Box<Session<'a, P>>),
    Idle(Box<Outcome>),
}

async fn prepare_resume<'a, P: Program>(
    engine: &'a Engine,
    program: &'a P,
    lease: &Lease,
    options: ResumeOptions<P::State>,
) -> Result<Prepared<'a, P>, RunError> {
    if let Some(state) = options.restart {
        let session = restart(engine, program, lease, state, options.session).await?;
        return Ok(Prepared::Session(Box::new(session)));
    }
    let snapshot = Snapshot::read(engine.store.as_ref(), lease.run()).await?;
    if snapshot.ended.is_some() {
        return idle(&snapshot, program.graph()).map(|outcome| Prepared::Idle(Box::new(outcome)));
    }
    let damaged: Vec<Damage> = snapshot.damaged().cloned().collect();
    for damage in &damaged {
        engine.store.quarantine(lease, damage).await?;
    }
    let newest = snapshot.newest();
    let head =
        snapshot.heads.iter().find(|head| head.record.header().branch.is_main()).expect("main is open");
    let graph = program.graph();
    let mut position = position_of(newest)?;
    let mut effective = snapshot.effective(engine.store.as_ref(), graph).await?;
    let adopted = adopt(&snapshot, graph, &position, options.adopt.as_ref())
        .map_err(|why| RunError::Changed { run: lease.run().clone(), why })?;
    if let Some(adopted) = adopted {
        let main = effective.iter_mut().find(|branch| branch.branch.is_main()).expect("main is open");
        main.position = adopted.clone();
        position = adopted;
    }
    let planned = plan(graph, &effective, &Verdicts::new(), engine.clock.now());
    let questions: Vec<_> = planned.questions().cloned().collect();
    if !questions.is_empty() {
        return Err(RunError::InDoubt { run: lease.run().clone(), questions });
    }
    let state = decode_state::<P>(newest)?;
    let header = newest.header();
    let chain = Chain {
        run: header.run.clone(),
        branch: BranchPath::main(),
        token: lease.token(),
        next: head.next,
        prev: Some(newest.digest()),
        basis: (head.next != header.seq + 1).then_some(header.seq),
        repair: !damaged.is_empty(),
        root: None,
        resumed: true,
    };
    reopen(&mut position);
    let mut session = Session::new(engine, program, chain, position, state, options.session)?;
    session.repaired = damaged;
    session.lost = snapshot.entry.summary.summary.lost;
    session.adopt = options.adopt.map(|adoption| adoption.definition);
    Ok(Prepared::Session(Box::new(session)))
}

/// Carries the position over to the graph in hand, where that is not the one of the run.
fn adopt(
    snapshot: &Snapshot,
    graph: &Graph,
    position: &Position,
    adoption: Option<&Adoption>,
) -> Result<Option<Position>, String> {
    if let Some(adoption) = adoption {
        let carried = change::carry_over(&adoption.before, position, &snapshot.definition, graph);
        return carried.map(Some).map_err(|changes| {
            let steps: Vec<_> = changes.iter().map(|change| format!("`{}`", change.step)).collect();
            format!("it touches finished steps: {}", steps.join(", "))
        });
    }
    if graph.definition(None).steps == snapshot.definition.steps {
        return Ok(None);
    }
    Err("the steps differ from those it was made with, and nobody said to go on with them".to_owned())
}

/// Says that a branch that has ended needs nothing.
fn idle(snapshot: &Snapshot, graph: &Graph) -> Result<Outcome, RunError> {
    let newest = snapshot.newest();
    if newest.header().end == Some(End::Cancelled) {
        return Err(RunError::Cancelled(newest.header().run.clone()));
    }
    let total = graph.steps().len() as u64;
    Ok(Outcome {
        status: snapshot.entry.summary.summary.status,
        failed: None,
        stopped_by: None,
        idle: true,
        progress: Progress { done: total, total },
        repaired: Vec::new(),
        lost: 0,
    })
}

/// What a user's resume changes before it plans: cut steps may start again, and retry budgets begin anew.
fn reopen(position: &mut Position) {
    for entry in &mut position.frontier {
        match entry.status {
            Status::Started => entry.status = Status::Ready,
            Status::Failed => {
                entry.status = Status::Ready;
                entry.failures = 0;
                entry.wake_at = None;
            }
            Status::Ready | Status::Waiting => {}
        }
    }
}

fn decode_state<P: Program>(record: &crate::record::Record) -> Result<P::State, RunError> {
    let at = || record.header().reference().to_string();
    let bytes = record
        .state_bytes()
        .ok_or_else(|| RunError::Deserialize { at: at(), why: "retention dropped it".to_owned() })?;
    serde_json::from_slice(bytes).map_err(|error| RunError::Deserialize { at: at(), why: error.to_string() })
}

/// Starts over on the same chain: nothing before counts, and nothing of it is removed.
async fn restart<'a, P: Program>(
    engine: &'a Engine,
    program: &'a P,
    lease: &Lease,
    state: P::State,
    options: SessionOptions,
) -> Result<Session<'a, P>, RunError> {
    let scan = Scan {
        branch: Some(BranchPath::main()),
        order: ScanOrder::NewestFirst,
        limit: 1,
        ..Scan::of(lease.run())
    };
    let found = engine.store.scan(&scan).await?;
    for damage in &found.damaged {
        engine.store.quarantine(lease, damage).await?;
    }
    let newest = found.records.first();
    let seqs = found.damaged.iter().map(|damage| damage.seq).chain(newest.map(|record| record.header().seq));
    let chain = Chain {
        run: lease.run().clone(),
        branch: BranchPath::main(),
        token: lease.token(),
        next: seqs.max().unwrap_or(0) + 1,
        prev: newest.map(crate::record::Record::digest),
        basis: Some(0),
        repair: !found.damaged.is_empty(),
        root: None,
        resumed: true,
    };
    let graph = program.graph();
    let epoch = newest.map_or(0, |record| record.header().at.epoch) + 1;
    let root = |place: usize| {
        let at = Try { epoch, ..Try::default() };
        FrontierEntry { at, ..ready(graph.steps()[place].id.clone()) }
    };
    let position =
        Position { frontier: graph.roots().into_iter().map(root).collect(), ..Position::default() };
    let mut session = Session::new(engine, program, chain, position, state, options)?;
    session.reason = Reason::Redo;
    session.repaired = found.damaged;
    Ok(session)
}

/// A run under way.
struct Session<'a, P: Program> {
    engine: &'a Engine,
    program: &'a P,
    graph: &'a Graph,
    options: SessionOptions,
    lease: Option<Lease>,
    chain: Chain,
    batches: u64,
    state: P::State,
    position: Position,
    unfinished: Unfinished,
    /// Under `--until`: whether a step may be started, by place.
    wanted: Option<Vec<bool>>,
    jobs: FuturesUnordered<Job<'a, P::Output>>,
    drafts: Vec<Draft>,
    /// Places that the next commit starts.
    starting: Vec<usize>,
    /// Places whose start needs a commit of its own.
    alone: Vec<usize>,
    consumed: Vec<String>,
    reason: Reason,
    adopt: Option<crate::record::Definition>,
    failed: Option<(StepId, Failure)>,
    repaired: Vec<Damage>,
    lost: u64,
}

impl<'a, P: Program> Session<'a, P> {
    fn new(
        engine: &'a Engine,
        program: &'a P,
        chain: Chain,
        position: Position,
        state: P::State,
        options: SessionOptions,
    ) -> Result<Self, RunError> {
        let graph = program.graph();
        let wanted = match &options.until {
            Some(step) => {
                let place = graph.place(step.as_str()).ok_or_else(|| RunError::InvalidStep(step.clone()))?;
                Some(graph.with_needs(place))
            }
            None => None,
        };
        let unfinished = Unfinished::of(graph, &position);
        Ok(Self {
            engine,
            program,
            graph,
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
    async fn create(&mut self, run: &SealedRun, holder: &Holder) -> Result<Option<RunStatus>, RunError> {
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
    async fn continue_with(mut self, lease: Lease) -> Result<Outcome, RunError> {
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
    async fn work(mut self, status: Option<RunStatus>) -> Result<Outcome, RunError> {
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
    async fn give_up(&mut self, error: super::BeginError) -> Result<RunStatus, RunError> {
        self.options.stop.stop(StopLevel::Graceful, "its steps could not be prepared");
        self.alone.clear();
        for place in std::mem::take(&mut self.starting) {
            self.take(place, Performed::Stopped { in_progress: false });
        }
        self.commit(self.standstill()).await?;
        Err(error.into())
    }

    async fn turns(&mut self) -> Result<RunStatus, RunError> {
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

    /// Lets go of old states, now and then, where the run keeps only so many.
    async fn trim(&mut self) -> Result<(), RunError> {
        if let Some(keep) = self.options.retention
            && self.batches.is_multiple_of(TRIM_BATCHES)
        {
            let lease = self.lease.clone().expect("a session works under a lease");
            self.engine.store.trim(&lease, keep, TrimMode::Apply).await?;
        }
        Ok(())
    }

    /// Starts what the last commit says is started, and commits and starts one by one what needs its own commit.
    async fn launch(&mut self) -> Result<(), RunError> {
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

    fn start(&mut self, place: usize) {
        let step = &self.graph.steps()[place];
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

    fn entry(&self, place: usize) -> &FrontierEntry {
        let id = &self.graph.steps()[place].id;
        self.position
            .frontier
            .iter()
            .find(|entry| entry.step == *id)
            .expect("a step in flight is in the frontier")
    }

    fn entry_mut(&mut self, place: usize) -> &mut FrontierEntry {
        let id = &self.graph.steps()[place].id;
        self.position
            .frontier
            .iter_mut()
            .find(|entry| entry.step == *id)
            .expect("a step in flight is in the frontier")
    }

    /// Takes in how a step ended: state, position and draft change together.
    fn take(&mut self, place: usize, performed: Performed<P::Output>) {
        let at = self.entry(place).at.clone();
        let step = self.graph.steps()[place].id.clone();
        match performed {
            Performed::Completed { output, mut ending, told } => {
                inline_outputs(&mut ending);
                let matters =
                    told.evidence.is_some() || !ending.outputs.is_empty() || ending.outputs_bytes.is_some();
                self.program.apply(
                    &mut self.state,
                    &self.graph.steps()[place],
                    Settlement::Completed(output, &ending),
                );
                let settled = matters.then(|| Settled::Completed(self.seq_of_next_draft()));
                self.settle(place, settled);
                self.draft(Phase::Completed(ending), step, at, told);
            }
            Performed::Failed { failure, told } => self.take_failure(place, failure, told),
            Performed::Stopped { in_progress } => {
                let by = self.options.stop.asked().map_or_else(|| "a stop".to_owned(), |stop| stop.by);
                if !in_progress {
                    let entry = self.entry_mut(place);
                    entry.status = Status::Ready;
                    entry.at.attempt -= 1;
                    entry.since = 0;
                    self.position.steps_started -= 1;
                }
                let phase = Phase::Interrupted { in_progress, by };
                self.drafts.push(Draft::new(phase, Reason::Stopped, Some(step), at));
            }
        }
    }

    fn take_failure(&mut self, place: usize, mut failure: Failure, told: Told) {
        let step = &self.graph.steps()[place];
        let at = self.entry(place).at.clone();
        let verdict = self.program.on_failure(step, &failure);
        let failures = self.entry(place).failures + 1;
        let random = chance(&self.chain.run, &step.id, at.attempt);
        let pause = step.retry.pause(failures, random).filter(|_| verdict.retry);
        inline_outputs(&mut failure.ending);
        let reason = if at.attempt > 1 { Reason::Retry } else { Reason::Step };
        if let Some(pause) = pause {
            failure.retried = true;
            let now = self.engine.clock.now();
            let entry = self.entry_mut(place);
            entry.status = Status::Ready;
            entry.failures = failures;
            entry.since = 0;
            entry.wake_at = (!pause.is_zero()).then(|| now.checked_add(pause).unwrap_or(Timestamp::MAX));
        } else if verdict.tolerate {
            failure.tolerated = true;
            self.program.apply(&mut self.state, step, Settlement::Tolerated(&failure));
            let settled = Some(Settled::Tolerated(self.seq_of_next_draft()));
            self.settle(place, settled);
        } else {
            let entry = self.entry_mut(place);
            entry.status = Status::Failed;
            entry.failures = failures;
            entry.since = 0;
            self.failed.get_or_insert((step.id.clone(), failure.clone()));
        }
        let mut draft = Draft::new(Phase::Failed(failure), reason, Some(step.id.clone()), at);
        draft.told = told;
        self.drafts.push(draft);
    }

    fn draft(&mut self, phase: Phase, step: StepId, at: Try, told: Told) {
        let reason = if at.attempt > 1 { Reason::Retry } else { Reason::Step };
        let mut draft = Draft::new(phase, reason, Some(step), at);
        draft.told = told;
        self.drafts.push(draft);
    }

    fn seq_of_next_draft(&self) -> u64 {
        self.chain.next + self.drafts.len() as u64
    }

    /// Takes a finished step out of the frontier and puts in what it freed.
    fn settle(&mut self, place: usize, settled: Option<Settled>) {
        let id = self.graph.steps()[place].id.clone();
        let epoch = self.entry(place).at.epoch;
        self.position.frontier.retain(|entry| entry.step != id);
        match settled {
            Some(settled) => drop(self.position.ledger.insert(id, settled)),
            None => drop(self.position.ledger.remove(&id)),
        }
        for freed in self.unfinished.settle(self.graph, place) {
            let mut entry = ready(self.graph.steps()[freed].id.clone());
            entry.at.epoch = epoch;
            self.position.frontier.push(entry);
        }
    }

    /// Decides what starts with the next commit: as much as may run at once. Skips are decided here, once.
    fn schedule(&mut self) {
        let stopping = self.options.stop.asked().is_some();
        let failed = self.position.frontier.iter().any(|entry| entry.status == Status::Failed);
        if stopping || failed {
            return;
        }
        let now = self.engine.clock.now();
        while self.jobs.len() + self.starting.len() + self.alone.len() < self.graph.parallel_max() {
            let Some(place) = self.next_ready(now) else { return };
            let step = &self.graph.steps()[place];
            match self.program.admit(step, &self.state) {
                Ok(Admission::Skip(cause)) => {
                    self.program.apply(&mut self.state, step, Settlement::Skipped);
                    let at = Try { attempt: 0, ..self.entry(place).at.clone() };
                    let settled = Some(Settled::Skipped(self.seq_of_next_draft()));
                    self.settle(place, settled);
                    let draft = Draft::new(Phase::Skipped(cause), self.reason, Some(step.id.clone()), at);
                    self.drafts.push(draft);
                }
                // A condition that cannot be evaluated fails the step when it starts.
                Ok(Admission::Run) | Err(_) if step.idempotent => {
                    self.mark_started(place);
                    self.starting.push(place);
                }
                Ok(Admission::Run) | Err(_) => self.alone.push(place),
            }
        }
    }

    fn next_ready(&self, now: Timestamp) -> Option<usize> {
        let due = |entry: &&FrontierEntry| {
            entry.status == Status::Ready && entry.wake_at.is_none_or(|wake_at| wake_at <= now)
        };
        let place = |entry: &FrontierEntry| self.graph.place(entry.step.as_str());
        let wanted = |place: &usize| {
            !self.alone.contains(place) && self.wanted.as_ref().is_none_or(|wanted| wanted[*place])
        };
        self.position.frontier.iter().filter(due).filter_map(place).find(wanted)
    }

    fn next_due(&self) -> Option<Timestamp> {
        if self.options.stop.asked().is_some() {
            return None;
        }
        let ready = self.position.frontier.iter().filter(|entry| entry.status == Status::Ready);
        ready.filter_map(|entry| entry.wake_at).min()
    }

    fn mark_started(&mut self, place: usize) -> Start {
        self.position.steps_started += 1;
        let entry = self.entry_mut(place);
        entry.status = Status::Started;
        entry.at.attempt += 1;
        entry.since = 0;
        entry.wake_at = None;
        Start { step: entry.step.clone(), at: entry.at.clone() }
    }

    /// Returns how the run stands if nothing goes on by itself any more.
    fn standstill(&self) -> Option<RunStatus> {
        if !self.jobs.is_empty() || !self.starting.is_empty() || !self.alone.is_empty() {
            return None;
        }
        let frontier = &self.position.frontier;
        let has = |status: Status| frontier.iter().any(|entry| entry.status == status);
        if frontier.is_empty() {
            let tolerated =
                self.position.ledger.values().any(|settled| matches!(settled, Settled::Tolerated(_)));
            return Some(if tolerated { RunStatus::CompletedWithFailures } else { RunStatus::Completed });
        }
        if self.doubtful() {
            return Some(RunStatus::InDoubt);
        }
        if has(Status::Failed) {
            return Some(RunStatus::Failed);
        }
        if self.options.stop.asked().is_some() || has(Status::Started) {
            return Some(RunStatus::Interrupted);
        }
        let runnable = |entry: &FrontierEntry| {
            let place = self.graph.place(entry.step.as_str());
            entry.status == Status::Ready
                && self.wanted.as_ref().is_none_or(|wanted| place.is_some_and(|place| wanted[place]))
        };
        if frontier.iter().any(runnable) {
            return None;
        }
        Some(if has(Status::Waiting) { RunStatus::Waiting } else { RunStatus::Interrupted })
    }

    fn doubtful(&self) -> bool {
        let doubtful = |entry: &FrontierEntry| {
            entry.status == Status::Started
                && self.graph.step(entry.step.as_str()).is_some_and(|step| !step.idempotent)
        };
        self.position.frontier.iter().any(doubtful)
    }

    fn progress(&self) -> Progress {
        let total = self.graph.steps().len();
        Progress { done: (total - self.unfinished.count()) as u64, total: total as u64 }
    }

    fn summary(&self, status: Option<RunStatus>) -> Summary {
        let frontier = &self.position.frontier;
        let of = |status: Status| frontier.iter().find(|entry| entry.status == status);
        let step = of(Status::Failed).or_else(|| of(Status::Started)).or_else(|| of(Status::Waiting));
        Summary {
            status: status.unwrap_or(RunStatus::Running),
            doubtful: self.doubtful(),
            step: step.map(|entry| entry.step.to_string()),
            progress: self.progress(),
            wake_at: frontier.iter().filter_map(|entry| entry.wake_at).min(),
            lost: self.lost,
        }
    }

    /// Makes the batch of all drafts, and of the starts that go with it.
    fn batch(&mut self, status: Option<RunStatus>) -> Result<Batch, RunError> {
        if self.drafts.is_empty() {
            let draft = match status {
                Some(_) => {
                    let by = self.options.stop.asked().map_or_else(|| "--until".to_owned(), |stop| stop.by);
                    let phase = Phase::Interrupted { in_progress: false, by };
                    Draft::new(phase, Reason::Stopped, None, Try::default())
                }
                None => {
                    let first = self.starting.first().map(|place| self.entry(*place));
                    let (step, at) = first.map(|entry| (entry.step.clone(), entry.at.clone())).unzip();
                    Draft::new(Phase::Started, self.reason, step, at.unwrap_or_default())
                }
            };
            self.drafts.push(draft);
        }
        let starts: Vec<Start> = self.starting.iter().map(|place| self.entry(*place)).map(start_of).collect();
        let last = self.drafts.last_mut().expect("a batch has a draft");
        last.started.extend(starts);
        last.status = status;
        last.end = matches!(status, Some(RunStatus::Completed | RunStatus::CompletedWithFailures))
            .then_some(End::Completed);
        let since = self.chain.next + self.drafts.len() as u64 - 1;
        self.position
            .frontier
            .iter_mut()
            .filter(|entry| entry.since == 0)
            .for_each(|entry| entry.since = since);
        let records = self
            .chain
            .seal(&self.drafts, &self.position, &self.state, self.program.schema(), self.engine.clock.now())
            .map_err(|source| RunError::Serialize { run: self.chain.run.clone(), source })?;
        let id = BatchId { token: self.chain.token, count: self.batches + 1 };
        let consumed = std::mem::take(&mut self.consumed);
        Ok(Batch { id, records, consumed, summary: self.summary(status), release: status.is_some() })
    }

    /// Makes true what happened since the last commit.
    ///
    /// With a status, nothing goes on by itself after it, and the lease is given back.
    async fn commit(&mut self, status: Option<RunStatus>) -> Result<(), RunError> {
        let batch = self.batch(status)?;
        let lease = self.lease.clone().expect("a session works under a lease");
        let mut answer = self.engine.store.append(&lease, batch.clone()).await;
        if let Err(StoreError::Unknown { .. }) = answer {
            // The id makes the repetition harmless: it is answered, not applied again.
            answer = self.engine.store.append(&lease, batch.clone()).await;
        }
        match answer {
            Ok(_) => {
                self.acknowledged(&batch);
                Ok(())
            }
            Err(source) => self.not_written(source, &batch, status.is_some()),
        }
    }

    fn acknowledged(&mut self, batch: &Batch) {
        self.batches += 1;
        self.chain.advance(&batch.records);
        self.drafts.clear();
        self.reason = Reason::Step;
        self.engine.observer.committed(&batch.records, &self.position, self.progress());
    }

    fn not_written(&mut self, source: StoreError, batch: &Batch, last: bool) -> Result<(), RunError> {
        let at =
            batch.records.last().map(|record| record.header().reference().to_string()).unwrap_or_default();
        let tolerable = !matches!(
            source,
            StoreError::Fenced { .. } | StoreError::Conflict { .. } | StoreError::Invalid(_)
        );
        let tolerate = self.options.on_lost_checkpoint == OnLostCheckpoint::Tolerate;
        if !tolerate || !tolerable || last || self.drafts.len() > DRAFTS_PENDING_MAX {
            return Err(RunError::Checkpoint { at, source });
        }
        self.lost += 1;
        self.consumed.extend(batch.consumed.iter().cloned());
        let text = format!(
            "checkpoint {at} could not be written ({source}); a crash now would cost the steps since then"
        );
        self.engine.observer.warned(&text);
        Ok(())
    }

    /// Keeps the lease, and takes in requests to stop.
    async fn renew(&mut self) -> Result<(), RunError> {
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

    fn outcome(self, status: RunStatus) -> Outcome {
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

fn start_of(entry: &FrontierEntry) -> Start {
    Start { step: entry.step.clone(), at: entry.at.clone() }
}

/// Keeps small outputs in the header and only the size of large ones.
fn inline_outputs(ending: &mut Ending) {
    if ending.outputs.is_empty() {
        return;
    }
    let bytes = serde_json::to_vec(&ending.outputs).map_or(usize::MAX, |bytes| bytes.len());
    if bytes > OUTPUTS_INLINE_BYTES_MAX {
        ending.outputs.clear();
        ending.outputs_bytes = Some(bytes as u64);
    }
}

/// A number between 0 and 1 for jitter, different for each run, step and attempt, the same when asked again.
fn chance(run: &RunId, step: &StepId, attempt: u32) -> f64 {
    let digest =
        Digest::of_parts([run.as_str().as_bytes(), step.as_str().as_bytes(), &attempt.to_le_bytes()]);
    let [a, b, c, d, ..] = *digest.as_bytes();
    f64::from(u32::from_le_bytes([a, b, c, d])) / f64::from(u32::MAX)
}

async fn sleep_until(due: Option<Timestamp>, now: Timestamp) {
    match due {
        None => pending().await,
        Some(due) => {
            tokio::time::sleep(Duration::try_from(due.duration_since(now)).unwrap_or_default()).await
        }
    }
}
