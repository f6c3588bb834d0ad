//! The start of a resumed session: its first record, and the check whether there is work at all.

use jiff::{SignedDuration, Timestamp};

use crate::id::{RunId, ScopePath, StepId};
use crate::record::{FrontierEntry, RunStatus, Status, WaitKind};
use crate::store::{Lease, RunSummary, SignalKind, StoreExt as _};
use crate::system::clock::Clock as _;
use crate::system::lock::Holder;

use super::begin::{Edits, Prepared, manual_draft, prepare_resume};
use crate::engine::chain::Draft;
use crate::engine::scope::{MAIN, Scope};
use crate::engine::session::{Session, SessionEnd};
use crate::engine::walk::scheduler::BEFORE;
use crate::engine::{
    Answers, Engine, OnDoubt, Outcome, Program, ResumeOptions, RunError, StopHandle, StopLevel, Then,
};

/// Limit of verifications in a row without a start. A resume needs one or two. More are a defect of the engine,
/// and each appends a checkpoint.
const IDLE_ROUNDS_MAX: u32 = 32;

/// Resumes a run.
pub(crate) async fn resumed<P: Program>(
    engine: &Engine,
    program: &P,
    run: &RunId,
    options: ResumeOptions<P::State>,
    holder: &Holder,
) -> Result<Outcome<P::State>, RunError> {
    // Read before the acquisition of the lease: later stop requests are meant for this session.
    let (mut withdrawn_stops, mut lease) = match &options.claimed {
        Some(lease) => (Vec::new(), lease.clone()),
        None => {
            engine.store.wait_for_release(run).await?;
            let withdrawn_stops = stop_requests(engine, run).await?;
            (withdrawn_stops, engine.store.acquire(run, &ScopePath::main(), holder).await?)
        }
    };
    let (then, kept, on_unknown) = (options.then, options.session.clone(), options.on_unknown);
    let (mut options, mut carried) = (options, None);
    loop {
        let is_again = carried.is_some();
        // The futures of a start are large: the stack of a caller is small.
        let prepared = Box::pin(prepare_resume(engine, program, &lease, options, carried.take()));
        let prepared =
            if is_again { prepared.await } else { unless_stopped(&kept.stop, run, prepared).await };
        let mut session = match prepared {
            Ok(Prepared::Session(session)) => session,
            Ok(Prepared::AnswersFirst { edits, options: asked }) => {
                options = Box::pin(record_answers(engine, program, lease, edits, *asked)).await?;
                lease = engine.store.acquire(run, &ScopePath::main(), holder).await?;
                continue;
            }
            ended => {
                if is_again {
                    program.end().await;
                }
                let released = engine.store.release(lease, None).await;
                let Prepared::Idle(outcome) = ended? else { unreachable!("the others were seen above") };
                return released.map(|()| *outcome).map_err(RunError::from);
            }
        };
        session.consumed = std::mem::take(&mut withdrawn_stops);
        if then == Then::Stop {
            return session.write_and_stop(lease).await;
        }
        match session.continue_with(lease.clone()).await? {
            SessionEnd::Done(outcome) => return Ok(*outcome),
            SessionEnd::Continues(carry) if carry.idle_rounds > IDLE_ROUNDS_MAX => {
                engine.store.release(lease, None).await?;
                return Err(RunError::Unsettled { run: run.clone(), rounds: carry.idle_rounds });
            }
            SessionEnd::Continues(carry) => {
                let on_doubt = OnDoubt::Each(carry.answers.clone());
                let session = kept.clone();
                options = ResumeOptions { session, on_unknown, on_doubt, ..ResumeOptions::default() };
                carried = Some(carry);
            }
        }
    }
}

/// Records the answers to the open questions and edits of scopes, and releases the lease. Returns the options of the
/// resume.
async fn record_answers<P: Program>(
    engine: &Engine,
    program: &P,
    lease: Lease,
    edit_scopes: Edits<P::State>,
    mut options: ResumeOptions<P::State>,
) -> Result<ResumeOptions<P::State>, RunError> {
    let answers = options.on_doubt.answers();
    let (on_doubt, by, on_change) = (OnDoubt::Each(answers.clone()), options.by.clone(), options.on_change);
    let first =
        ResumeOptions { on_doubt, by, on_change, edit_scopes, then: Then::Stop, ..ResumeOptions::default() };
    match prepare_resume(engine, program, &lease, first, None).await {
        Ok(Prepared::Session(session)) => drop(session.write_and_stop(lease).await?),
        ended => {
            engine.store.release(lease, None).await?;
            ended?;
        }
    }
    options.on_doubt = OnDoubt::Each(Answers { recorded: true, ..answers });
    Ok(options)
}

/// Prepares a resume, unless stopped first: the check of evidence may take minutes. Meanwhile only damaged
/// records move to quarantine, as in any resume.
async fn unless_stopped<T>(
    stop: &StopHandle,
    run: &RunId,
    prepared: impl Future<Output = Result<T, RunError>>,
) -> Result<T, RunError> {
    tokio::select! {
        biased;
        prepared = prepared => prepared,
        stop = stop.stopped() => Err(RunError::NotBegun { run: run.clone(), by: stop.by }),
    }
}

/// The result of starting a resume.
enum StartResult {
    /// The first record is written; with the status of the run if no step can run.
    Written(Option<RunStatus>),
    /// The requested work is already done: nothing was written, and the status is unchanged.
    NotNeeded(RunStatus),
}

impl<P: Program> Session<'_, P> {
    /// Returns the time for waits. Setting the clock back during the session makes no wait longer.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Continues a prepared resume; no step is started yet.
    pub(crate) async fn continue_with(mut self, lease: Lease) -> Result<SessionEnd<P::State>, RunError> {
        self.lease = Some(lease.clone());
        self.write_adoption();
        let taken = self.write_first_record().await;
        if self.is_again && !matches!(taken, Ok(StartResult::Written(_))) {
            self.program.end().await;
        }
        match taken {
            Ok(StartResult::Written(status)) => self.work_on(status).await,
            Ok(StartResult::NotNeeded(status_before)) => {
                let wake_at = self.summary(Some(status_before)).wake_at;
                self.engine.store.release(lease, wake_at).await?;
                Ok(SessionEnd::Done(Box::new(Outcome { idle: true, ..self.outcome(status_before) })))
            }
            Err(error) => {
                let _ = self.engine.store.release(lease, None).await;
                Err(error)
            }
        }
    }

    /// Drafts the adoption of a definition for the next commit.
    fn write_adoption(&mut self) {
        let Some(definition) = self.adopt.take() else { return };
        let main = self.main_mut();
        main.position.definition = Some(main.seq_of_next_draft());
        main.drafts.push(Draft { definition: Some(definition), ..manual_draft() });
        self.mark_dirty(MAIN);
    }

    /// Writes the first record of a resume, unless there is no work.
    async fn write_first_record(&mut self) -> Result<StartResult, RunError> {
        self.deliver_all().await?;
        // Sleeping steps may be due; this session has no timer for these yet.
        let now = self.now();
        self.scopes.iter_mut().for_each(|(_, scope)| scope.wake(now));
        self.schedule().await?;
        let status = self.idle_status();
        if let (Some(status_before), true) = (self.status_before, self.is_idle(status)) {
            return Ok(StartResult::NotNeeded(status_before));
        }
        // A step with a separate start commit writes its own record. Everything else begins with this record,
        // even if all steps are delayed.
        let begins = !self.scopes.iter().any(|(_, scope)| !scope.starting_alone.is_empty());
        if begins || !self.dirty.is_empty() {
            self.commit(status).await?;
        }
        Ok(StartResult::Written(status))
    }

    /// Returns whether the requested work is done and nothing else changed.
    fn is_idle(&self, status: Option<RunStatus>) -> bool {
        if status == Some(RunStatus::Waiting)
            && self.status_before == status
            && self.dirty.is_empty()
            && !self.is_again
        {
            // No message has arrived.
            return true;
        }
        let Some(until_steps) = &self.until_steps else { return false };
        let main = self.main();
        let mut unfinished =
            main.position.frontier.iter().filter_map(|entry| main.shape.place(entry.step.as_str()));
        status.is_some()
            && self.dirty.is_empty()
            && !self.is_again
            && !unfinished.any(|place| until_steps[place])
    }

    /// Writes the record of a resume without execution, and releases the lease.
    pub(crate) async fn write_and_stop(mut self, lease: Lease) -> Result<Outcome<P::State>, RunError> {
        self.lease = Some(lease.clone());
        self.write_adoption();
        self.options.stop.stop(StopLevel::Graceful, "a dry run starts no step");
        let main = self.main();
        let is_done = main.position.frontier.is_empty();
        let status = if is_done { main.status_at_end() } else { RunStatus::Interrupted };
        match self.commit(Some(status)).await {
            Ok(()) => Ok(self.outcome(status)),
            Err(error) => {
                let _ = self.engine.store.release(lease, None).await;
                Err(error)
            }
        }
    }
}

/// Returns whether a failed step reruns together with its hooks: the hooks follow its own work.
pub(crate) fn restarts_before_hooks(entry: &FrontierEntry) -> bool {
    entry.status == Status::Failed && entry.hooks.is_some()
}

/// The conditions under which a resume reopens unfinished steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reopening<'a> {
    pub(crate) now: Timestamp,
    /// A person resumes: delayed attempts start at once, the retry budget is reset, and interruptions count from
    /// 0.
    pub(crate) by_person: bool,
    /// The previous session was killed: each running step counts another interruption.
    pub(crate) was_killed: bool,
    /// A worker claimed the run, at rest or from a dead worker: failed steps stay failed.
    pub(crate) keeps_failures: bool,
    /// Steps that continue elsewhere count no interruption.
    pub(crate) answers: &'a Answers,
}

/// Returns whether the previous session was killed. False if the session ended, was asked to stop, or the machine
/// was restarted.
pub(crate) async fn was_killed(
    engine: &Engine,
    summary: &RunSummary,
    newest: Timestamp,
) -> Result<bool, RunError> {
    Ok(summary.summary.status == RunStatus::Running
        && !was_restarted_since(newest, engine.clock.now())
        && stop_requests(engine, &summary.run).await?.is_empty())
}

/// Returns whether the machine was started after a time; false if unknown.
fn was_restarted_since(time: Timestamp, now: Timestamp) -> bool {
    let uptime = std::fs::read_to_string("/proc/uptime").ok();
    let seconds = uptime.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    let up = seconds.and_then(|seconds| SignedDuration::try_from_secs_f64(seconds).ok());
    up.and_then(|up| now.checked_sub(up).ok()).is_some_and(|started| started > time)
}

/// Applies a resume to the unfinished steps of a scope: interrupted and failed steps are ready, failed steps have
/// a reset retry budget, and held steps continue.
pub(crate) fn reopen<S>(scope: &mut Scope<'_, S>, reopening: Reopening<'_>) {
    let Reopening { now, by_person, was_killed, keeps_failures, answers } = reopening;
    let path = scope.chain.scope.clone();
    let mut is_rerun = false;
    let must_ask = |entry: &&FrontierEntry| scope.shape.must_ask(&scope.position, &entry.step);
    let started = scope.position.frontier.iter().filter(|entry| entry.status == Status::Started);
    let held = started.filter(must_ask).map(|entry| entry.step.clone());
    let held: Vec<StepId> = held.filter(|step| answers.holds(&path, step)).collect();
    for entry in &mut scope.position.frontier {
        if held.contains(&entry.step) {
            continue;
        }
        entry.continue_wait(now);
        entry.cuts = match entry.status {
            _ if by_person => 0,
            Status::Started if was_killed && !answers.continues(&path, &entry.step) => entry.cuts + 1,
            _ => entry.cuts,
        };
        if entry.status == Status::Failed && entry.is_unsettled() {
            scope.interrupted.push(entry.step.clone());
        }
        if restarts_before_hooks(entry) {
            is_rerun |= entry.hooks.take().is_some();
        }
        let has_work = entry.fan.is_some() && entry.status != Status::Waiting;
        if !keeps_failures && (entry.status == Status::Failed || entry.hooks.is_none() && !has_work) {
            scope.redecided.insert(entry.step.clone());
        }
        match entry.status {
            Status::Started => {
                (entry.status, entry.continues) = (Status::Ready, false);
                scope.interrupted.push(entry.step.clone());
            }
            Status::Failed if !keeps_failures => {
                (entry.status, entry.continues) = (Status::Ready, false);
                entry.failures = 0;
                entry.wake_at = None;
                if entry.fan.as_ref().is_some_and(|fan| fan.failures == 0) {
                    scope.uncounted.push(entry.step.clone());
                }
            }
            Status::Waiting if entry.waits.iter().any(|wait| wait.on == WaitKind::Resume) => {
                entry.status = Status::Ready;
                // A released hold after the previous step does not skip a hold before this step.
                entry.passed |= entry.waits.iter().any(|wait| wait.key == BEFORE);
                entry.waits.clear();
            }
            Status::Ready if by_person => {
                (entry.failures, entry.wake_at) = (0, None);
            }
            Status::Ready | Status::Waiting | Status::Failed => {}
        }
    }
    if is_rerun {
        scope.position.note_rerun();
    }
}

/// Returns the ids of unconsumed stop requests; the resume withdraws these.
pub(crate) async fn stop_requests(engine: &Engine, run: &RunId) -> Result<Vec<String>, RunError> {
    let signals = engine.store.signals(run).await?;
    Ok(signals.into_iter().filter(|signal| signal.kind == SignalKind::Stop).map(|signal| signal.id).collect())
}
