//! A session of a run on the command line: progress during the work, then the outcome.

mod asking;
pub(crate) mod interrupt;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use waypost::engine::{
    Engine, Outcome, ResumeOptions, RunError, SessionOptions, Snapshot, StepFailure, StopHandle, StopLevel,
    Waiting,
};
use waypost::record::{Failure, FailureKind, RunStatus, WaitKind};
use waypost::store::{Signal, SignalKind, Store};
use waypost::{RunId, ScopePath};
use waypost_workflow::file::Workflow;
use waypost_workflow::program::{BUDGET, WorkflowProgram, WorkflowState};

use crate::context::Context;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::exit_code;
use crate::format::time::now;
use crate::output::actions::{Level, annotation, harmless, summarise};
use crate::output::progress::Progress;
use crate::output::screen::ProgressOf;
use crate::output::waits::{answer_command, question_text, wait_text};
use crate::output::{log_lines, shown, shown_lines};
use crate::run::dead_letters::{self, ToleratedFailure};
use crate::run::doubt::doubts_of;
use crate::run::failed_item::{FailedStep, SHOWN_MAX};
use crate::run::failed_step::FailedAt;
use crate::run::keepalive::Keepalive;
use crate::run::progress::steps_are_done;
use crate::run::reference::damaged_reference;
use crate::view::doubt::{Doubt, answer_lines};
use crate::view::step_names::called;
use crate::view::{VERSION, WaitView};

use asking::{Asking, SessionEnds};

/// A session, before its start.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    context: &'a Context,
    /// The handle for stop requests by signals.
    pub(crate) stop: StopHandle,
    pub(crate) progress: Arc<Progress>,
    /// The deadline of the session, waits included.
    deadline: Option<Instant>,
    /// Stop requests since this time are for this session.
    began: Timestamp,
    /// The questions to the person at the terminal, if there is one.
    asking: Mutex<Option<Asking>>,
}

/// The requester name of a cancel, in records and messages.
pub(crate) const CANCEL: &str = "waypost cancel";

/// Most failures printed in full at the end of a run: each may have a tail of its log.
const FAILURES_SHOWN_MAX: usize = 10;
/// Most commands for answers at the end of a run that waits.
const ANSWERS_SHOWN_MAX: usize = 5;
/// The poll interval for signals to the run.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The result of a wait.
enum WaitResult {
    /// An awaited event arrived.
    Something,
    /// The wait time is over.
    Nothing,
    /// A stop was requested.
    Stop(String),
}

/// Context for the final messages.
#[derive(Debug, Clone)]
pub(crate) struct SessionReport {
    /// The run.
    pub(crate) run: RunId,
    /// The workflow file as the user knows it.
    pub(crate) file: Option<PathBuf>,
    /// Store words of the resume command; `None` if the store ends with this process.
    pub(crate) store_words: Option<String>,
    /// The step of `--until`.
    pub(crate) until: Option<String>,
    /// The report of the run, if the store keeps one.
    pub(crate) report: Option<PathBuf>,
}

impl SessionReport {
    /// Returns the exact command to resume the run, if a resume is possible.
    pub(crate) fn resume_line(&self) -> Option<String> {
        self.store_words.as_ref().map(|words| format!("waypost resume {}{words}", self.run))
    }
}

impl<'a> Session<'a> {
    /// Installs signal handlers and prepares the screen. After `timeout` the session is stopped.
    pub(crate) fn begin(context: &'a Context, timeout: Option<Duration>) -> Result<Self, Error> {
        Self::begin_as(context, timeout, ProgressOf::Run)
    }

    /// As [`Session::begin`], for several runs in sequence, with the run named on each line.
    pub(crate) fn begin_many(context: &'a Context) -> Result<Self, Error> {
        Self::begin_as(context, None, ProgressOf::Runs)
    }

    fn begin_as(context: &'a Context, timeout: Option<Duration>, of: ProgressOf) -> Result<Self, Error> {
        let progress = Arc::new(Progress::new(&context.output, of));
        let stop = StopHandle::default();
        let shown = Arc::clone(&progress);
        let report = move |level, by: &str| shown.stopping(level, by);
        interrupt::listen(stop.clone(), report).map_err(Error::Runtime)?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Ok(Self { context, stop, progress, deadline, began: now(), asking: Mutex::default() })
    }

    /// Derives the session of one of several runs: stopped with all runs, or by its own timeout.
    pub(crate) fn of_one<'b>(&self, context: &'b Context, timeout: Option<Duration>) -> Session<'b> {
        let (all, stop) = (self.stop.clone(), StopHandle::default());
        let own = stop.clone();
        tokio::spawn(async move {
            let asked = all.stopped().await;
            own.stop(asked.level, &asked.by);
            all.killed().await;
            own.stop(StopLevel::Kill, &asked.by);
        });
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let progress = Arc::clone(&self.progress);
        Session { context, stop, progress, deadline, began: now(), asking: Mutex::default() }
    }

    /// Asks the questions of the run at once, if a person is at the terminal.
    pub(crate) fn ask_questions(&self, engine: &Engine, run: &RunId, workflow: &Workflow) {
        let output = &self.context.output;
        if output.can_ask() && !output.json && !output.quiet {
            let ends = SessionEnds { progress: Arc::clone(&self.progress), stop: self.stop.clone() };
            *self.asking() = Some(Asking::begin(engine, run, workflow, ends));
        }
    }

    fn asking(&self) -> std::sync::MutexGuard<'_, Option<Asking>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the engine of this session for a workflow.
    pub(crate) fn engine(&self, store: Arc<dyn Store>, program: &WorkflowProgram) -> Engine {
        self.progress.read_logs_of(&store);
        self.progress.name_steps(program.workflow());
        program.equip(Engine::new(store)).with_observer(Arc::clone(&self.progress) as _)
    }

    /// Drives a session that resumes a run, until it ends.
    pub(crate) async fn watch_resume(
        &self,
        engine: &Engine,
        program: &WorkflowProgram,
        run: &RunId,
        options: ResumeOptions<WorkflowState>,
    ) -> Result<Outcome<WorkflowState>, Error> {
        self.progress.follow_services(engine.store().as_ref(), run, program.workflow()).await;
        self.watch(Box::pin(engine.resume_program(program, run, options))).await
    }

    /// Drives the session until it ends.
    pub(crate) async fn watch(
        &self,
        session: impl Future<Output = Result<Outcome<WorkflowState>, RunError>>,
    ) -> Result<Outcome<WorkflowState>, Error> {
        self.progress.open().map_err(Error::Runtime)?;
        let outcome = tokio::select! {
            biased;
            outcome = session => outcome,
            () = self.run_out() => unreachable!("the limit only stops the session"),
        };
        self.progress.close();
        Ok(outcome?)
    }

    /// Resumes a run that waits for a time or a signal, as often as one arrives within `wait`. A question to the
    /// person at this terminal is waited for; other questions do not extend the wait, but an answer in this time
    /// is processed. After a failure, only a person resumes: a resume retries the failed steps.
    pub(crate) async fn wait_out(
        &self,
        engine: &Engine,
        program: &WorkflowProgram,
        mut outcome: Outcome<WorkflowState>,
        options: &SessionOptions,
        wait: Duration,
    ) -> Result<Outcome<WorkflowState>, Error> {
        let end = Instant::now() + wait;
        let _staying = (outcome.status == RunStatus::Waiting && outcome.failures.is_empty())
            .then(|| Keepalive::begin(engine.store().as_ref(), &outcome.run));
        while outcome.status == RunStatus::Waiting && outcome.failures.is_empty() {
            if outcome.waiting.iter().any(|waiting| waiting.wait.on == WaitKind::Answer) {
                self.progress.question_is_open();
            }
            // The screen shows the waits meanwhile.
            self.progress.open().map_err(Error::Runtime)?;
            self.progress.waits(&outcome.waiting, outcome.progress);
            let came = tokio::select! {
                biased;
                came = self.comes(engine, &outcome, end) => came,
                () = self.run_out() => unreachable!("the limit only stops the session"),
            };
            self.progress.close();
            match came? {
                WaitResult::Nothing => break,
                WaitResult::Stop(by) => {
                    outcome.stopped_by = Some(by);
                    break;
                }
                WaitResult::Something => {}
            }
            let options = ResumeOptions { session: options.clone(), ..ResumeOptions::default() };
            let Outcome { run, repaired, lost, .. } = outcome;
            outcome = self.watch_resume(engine, program, &run, options).await?;
            outcome.repaired.splice(..0, repaired);
            outcome.lost = outcome.lost.max(lost);
        }
        Ok(outcome)
    }

    /// Waits until a timer or signal of the run is due, if possible before `end`.
    async fn comes(
        &self,
        engine: &Engine,
        outcome: &Outcome<WorkflowState>,
        end: Instant,
    ) -> Result<WaitResult, Error> {
        let due = |waiting: &Waiting| match waiting.wait.on {
            WaitKind::Until(due) => Some(due),
            _ => None,
        };
        let now = now();
        let due = outcome.waiting.iter().filter_map(due).min();
        let due = due.map(|due| Duration::try_from(due.duration_since(now)).unwrap_or_default());
        let has = |is: fn(&WaitKind) -> bool| outcome.waiting.iter().any(|waiting| is(&waiting.wait.on));
        let (signals, asks) =
            (has(|on| matches!(on, WaitKind::Signal(_))), has(|on| *on == WaitKind::Answer));
        let due = due.map(|due| Instant::now() + due).filter(|due| *due <= end);
        let last = due.unwrap_or(end);
        loop {
            let is_asking = asks && self.asking().as_ref().is_some_and(Asking::is_under_way);
            if due.is_none() && !signals && !is_asking {
                return Ok(WaitResult::Nothing);
            }
            let rest = if is_asking { LOOK_INTERVAL } else { last.saturating_duration_since(Instant::now()) };
            tokio::select! {
                stop = self.stop.stopped() => return Ok(WaitResult::Stop(stop.by)),
                () = tokio::time::sleep(rest.min(LOOK_INTERVAL)) => {}
            }
            let is_meant = |signal: &Signal| match &signal.kind {
                SignalKind::Named { name, .. } => {
                    outcome.waiting.iter().any(|waiting| waiting.wait.on == WaitKind::Signal(name.clone()))
                }
                SignalKind::Answer { .. } => asks,
                _ => false,
            };
            let said = engine.store().signals(&outcome.run).await?;
            // An older stop request was meant for a process that ended before reading it, also if the clock was set back.
            let times = self.began..=crate::format::time::now();
            let stops =
                |signal: &&Signal| signal.kind == SignalKind::Stop && times.contains(&signal.created_at);
            if let Some(stop) = said.iter().find(stops) {
                return Ok(WaitResult::Stop(stop.sender.clone()));
            }
            if said.iter().any(is_meant) {
                return Ok(WaitResult::Something);
            }
            if Instant::now() >= last && (due.is_some() || !is_asking) {
                return Ok(if due.is_some() { WaitResult::Something } else { WaitResult::Nothing });
            }
        }
    }

    /// Stops the session at its deadline.
    async fn run_out(&self) {
        if let Some(deadline) = self.deadline {
            tokio::time::sleep_until(deadline.into()).await;
            self.stop.stop(StopLevel::Graceful, crate::exit::TIMEOUT);
            self.progress.stopping(StopLevel::Graceful, crate::exit::TIMEOUT);
        }
        std::future::pending().await
    }

    /// Prints the outcome, and how to continue. A gone reader of the conclusion does not change the exit code.
    pub(crate) async fn conclude(
        &self,
        engine: &Engine,
        program: &WorkflowProgram,
        outcome: &Outcome<WorkflowState>,
        told: &SessionReport,
    ) -> Result<Exit, Error> {
        match self.print_conclusion(engine, program, outcome, told).await {
            Err(error) if !error.is_broken_pipe() => Err(error),
            _ => Ok(exit(outcome, told)),
        }
    }

    async fn print_conclusion(
        &self,
        engine: &Engine,
        program: &WorkflowProgram,
        outcome: &Outcome<WorkflowState>,
        told: &SessionReport,
    ) -> Result<(), Error> {
        let output = &self.context.output;
        if self.asking().take().is_some() {
            self.progress.asked_all(true);
        }
        for damage in &outcome.repaired {
            let at = damaged_reference(&told.run, damage);
            output.warn(&format!(
                "checkpoint {at} was damaged ({}) and moved to quarantine; the run continued from the \
                 checkpoint before",
                damage.flaw
            ));
        }
        if outcome.lost > 0 {
            output.warn(&format!(
                "{} checkpoints could not be written, within the tolerated failures",
                outcome.lost
            ));
        }
        let found = outcome.failed.as_ref().map(|(step, failure)| {
            let (file, scope) = (told.file.as_deref(), outcome.failed_on.as_ref());
            (FailedAt::find(program.workflow(), file, step, scope), failure)
        });
        let failed = found.as_ref().map(|(at, failure)| (at, *failure));
        let done = steps_are_done(engine.store().as_ref(), &told.run, outcome.progress).await;
        if outcome.idle {
            self.idle(engine.store().as_ref(), program.workflow(), outcome, told).await?;
        } else if !output.json {
            if matches!(outcome.status, RunStatus::Failed | RunStatus::Waiting | RunStatus::InDoubt) {
                self.report_failures(engine.store().as_ref(), program, outcome, told).await?;
            }
            let doubt = match outcome.status {
                RunStatus::InDoubt => self.doubt(engine.store().as_ref(), &told.run).await?,
                _ => None,
            };
            // A doubt needs a decision; a failed step is retried without.
            let place = doubt.or_else(|| {
                let (at, _) = failed?;
                Some(StoppedAt { step: at.name.clone(), cause: None, doubts: Vec::new() })
            });
            let mut text = sentence(program.workflow(), outcome, told, (&done, place.as_ref()));
            if outcome.status == RunStatus::CompletedWithFailures {
                let (store, words) = (engine.store().as_ref(), told.store_words.as_deref());
                let words = words.unwrap_or_default();
                text.push_str(&failed_items(store, program.workflow(), &told.run, (words, |_| true)).await?);
            }
            match exit(outcome, told) {
                Exit::Done => output.done(&text)?,
                _ => output.sentences(&text)?,
            }
        }
        if output.actions {
            self.report_job(program.workflow(), (outcome, &done), told, failed);
        }
        match self.progress.unheard() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Returns the steps in doubt, and the cause of the first.
    async fn doubt(&self, store: &dyn Store, run: &RunId) -> Result<Option<StoppedAt>, Error> {
        let snapshot = Snapshot::read(store, run).await?;
        let doubts = doubts_of(store, &snapshot, self.context.now()).await?;
        let Some(first) = doubts.first() else { return Ok(None) };
        let cause = Some(first.cause.clone());
        let step = doubts.iter().map(|doubt| doubt.step.as_str()).collect::<Vec<_>>().join(", ");
        Ok(Some(StoppedAt { step, cause, doubts }))
    }

    /// Prints every failure of a failed run.
    async fn report_failures(
        &self,
        store: &dyn Store,
        program: &WorkflowProgram,
        outcome: &Outcome<WorkflowState>,
        told: &SessionReport,
    ) -> Result<(), Error> {
        let output = &self.context.output;
        let words = told.store_words.as_deref().unwrap_or_default();
        for StepFailure { scope, step, failure } in outcome.failures.iter().take(FAILURES_SHOWN_MAX) {
            let at = FailedAt::find(program.workflow(), told.file.as_deref(), step, Some(scope));
            let (run, workflow, kind) = (&told.run, Some(program.workflow()), failure.kind);
            let items = FailedStep { store, run, workflow, scope, step, kind }.items().await?;
            let mut items = items.iter();
            let first = items.next().map(|item| item.told(output.paint_err, told.run.as_str(), words));
            let first = first.map(|mut text| {
                items.for_each(|item| text.push_str(&item.line()));
                text
            });
            let help = told.resume_line().and_then(|line| at.help(failure, &line));
            output.aside(&self.failure(&at, failure, first.as_deref(), help));
        }
        let more = outcome.failures.len().saturating_sub(FAILURES_SHOWN_MAX);
        if more > 0 {
            output.aside(&format!("{more} more steps failed: waypost show {}{words}", told.run));
        }
        Ok(())
    }

    /// Writes annotations and the summary for a GitHub Actions job.
    fn report_job(
        &self,
        workflow: &Workflow,
        (outcome, done): (&Outcome<WorkflowState>, &str),
        told: &SessionReport,
        failed: Option<(&FailedAt, &Failure)>,
    ) {
        let output = &self.context.output;
        if let Some((at, failure)) = failed.filter(|_| outcome.status == RunStatus::Failed) {
            let place = at.place.as_ref().map(|(file, line)| (file.as_path(), *line));
            let title = format!("step {} failed", at.name);
            output.aside(&annotation(Level::Error, place, &title, &failure.error.join("\n")));
        } else if !matches!(outcome.status, RunStatus::Completed) && exit(outcome, told) != Exit::Done {
            let title = format!("run {}", told.run);
            let level = if outcome.status == RunStatus::CompletedWithFailures {
                Level::Warning
            } else {
                Level::Error
            };
            output.aside(&annotation(level, None, &title, &sentence(workflow, outcome, told, (done, None))));
        }
        if let Some(report) = &told.report
            && let Err(error) = summarise(report)
        {
            output.warn(&format!("cannot add the report to the job summary: {error}"));
        }
    }

    async fn idle(
        &self,
        store: &dyn Store,
        workflow: &Workflow,
        outcome: &Outcome<WorkflowState>,
        told: &SessionReport,
    ) -> Result<(), Error> {
        if outcome.status == RunStatus::Waiting && !self.context.output.json {
            let done = steps_are_done(store, &told.run, outcome.progress).await;
            return Ok(self.context.output.sentences(&sentence(workflow, outcome, told, (&done, None)))?);
        }
        let why = match outcome.status {
            RunStatus::Waiting => "no answer, signal or time has arrived",
            RunStatus::CompletedWithFailures if dead_letters::can_retry(store, &told.run).await? => {
                "the run is completed with tolerated failures: `--retry-failed` retries the failures, \
                 `--from STEP` reruns a step"
            }
            RunStatus::CompletedWithFailures => {
                "the run is completed with tolerated failures that cannot be retried: `--from STEP` reruns a step"
            }
            RunStatus::Completed => "the run is completed",
            _ => "the step of --until and all steps upstream are finished",
        };
        Ok(report_nothing(self.context, &told.run, outcome.status, why)?)
    }

    /// Formats a failure of the run, with the end of the log, the failed `item`, and the step's place in the
    /// file.
    fn failure(&self, at: &FailedAt, failure: &Failure, item: Option<&str>, help: Option<String>) -> String {
        let paint = self.context.output.paint_err;
        let mut errors =
            failure.error.iter().skip_while(|text| failure.error.len() > 1 && at.is_named_by(text));
        let first = errors.next().map_or("it failed", String::as_str);
        let mut text = format!(
            "{} step {} failed: {}",
            paint.red("error:"),
            at.name,
            shown_lines(&at.names.plain(first))
        );
        for cause in errors {
            text.push_str(&format!("\n  {} {}", paint.dim("cause:"), shown_lines(&at.names.plain(cause))));
        }
        let tail = failure.ending.log.as_ref().map_or("", |log| log.tail.as_str());
        for line in log_lines(tail) {
            text.push_str(&format!("\n  {} {}", paint.dim("|"), harmless(&line)));
        }
        if let Some(item) = item {
            text.push_str(&format!("\n{}", item.trim_end()));
        }
        if let Some((file, line)) = &at.place {
            text.push_str(&format!("\n  {} {}:{line}", paint.dim("-->"), shown(&file.to_string_lossy())));
        }
        let meaning = || failure.ending.exit_code.and_then(exit_code::meaning);
        if let Some(help) = help.or_else(meaning) {
            text.push_str(&format!("\n{} {}", paint.cyan("hint:"), shown(&help)));
        }
        text
    }
}

/// Returns the last lines about a run that completed with failures: the first tolerated failures and dead letters, and the
/// retry command. `is_meant`: the scopes whose tolerated failures are named.
pub(crate) async fn failed_items(
    store: &dyn Store,
    workflow: &Workflow,
    run: &RunId,
    (words, is_meant): (&str, fn(&ScopePath) -> bool),
) -> Result<String, Error> {
    let workflow_of = Some(workflow);
    let mut text = String::new();
    let tolerated: Vec<_> = dead_letters::tolerated(store, run).await?;
    let tolerated: Vec<_> = tolerated.into_iter().filter(|failed| is_meant(&failed.scope)).collect();
    for ToleratedFailure { scope, step, error } in tolerated.iter().take(SHOWN_MAX) {
        let step = called(workflow_of, scope, step.as_str());
        text.push_str(&format!("\nStep {step} failed, tolerated by the workflow: {}", shown(error)));
    }
    text.push_str(&more(tolerated.len(), "step"));
    let letters = dead_letters::letters(store, run, workflow_of).await?;
    for letter in letters.iter().take(SHOWN_MAX) {
        let error = letter.failure.error.first().map_or("it failed", String::as_str);
        let above = letter.scope.parent().unwrap_or_else(ScopePath::main);
        text.push_str(&format!(
            "\nItem {} of step {} failed: {}",
            shown(&letter.key),
            called(workflow_of, &above, letter.each.as_str()),
            shown(error)
        ));
    }
    text.push_str(&more(letters.len(), "item"));
    if !letters.is_empty() {
        text.push_str(&format!("\nRetry with: waypost dead-letters retry {run}{words}"));
    }
    Ok(text)
}

/// Returns a line with the number of further failures.
fn more(count: usize, what: &str) -> String {
    match count.saturating_sub(SHOWN_MAX) {
        0 => String::new(),
        1 => format!("\n1 more {what} failed."),
        more => format!("\n{more} more {what}s failed."),
    }
}

/// "Nothing to do", as an object in the event stream of a session; not an event itself, like an error.
#[derive(Debug, Serialize)]
pub(crate) struct Nothing<'a> {
    v: u32,
    /// `None` for all runs of a store.
    run: Option<&'a str>,
    status: Option<RunStatus>,
    /// The reason.
    nothing_to_do: &'a str,
}

impl<'a> Nothing<'a> {
    /// Creates the object for a run, or for all.
    pub(crate) fn of(run: Option<(&'a str, RunStatus)>, cause: &'a str) -> Self {
        let (run, status) = run.unzip();
        Self { v: VERSION, run, status, nothing_to_do: cause }
    }
}

/// Prints that there is nothing to do for a run.
pub(crate) fn report_nothing(
    context: &Context,
    run: &RunId,
    status: RunStatus,
    why: &str,
) -> std::io::Result<()> {
    match context.output.json {
        true => context.output.line(&Nothing::of(Some((run.as_str(), status)), why)),
        false => context.output.done(&format!("Nothing to do for run {run}, because {why}.")),
    }
}

/// The failed step, or the steps in doubt with the cause.
struct StoppedAt {
    step: String,
    cause: Option<String>,
    doubts: Vec<Doubt>,
}

/// Returns the last lines about a run that another process has worked on, and the exit code of a session with
/// this outcome. `step`: the failed step, or the steps in doubt.
pub(crate) async fn conclusion(
    store: &dyn Store,
    workflow: &Workflow,
    outcome: &Outcome<()>,
    step: Option<String>,
    told: &SessionReport,
) -> Result<(String, Exit), Error> {
    let place = step.map(|step| StoppedAt { step, cause: None, doubts: Vec::new() });
    let done = steps_are_done(store, &told.run, outcome.progress).await;
    let mut text = sentence(workflow, outcome, told, (&done, place.as_ref()));
    if outcome.status == RunStatus::CompletedWithFailures {
        let words = told.store_words.as_deref().unwrap_or_default();
        text.push_str(&failed_items(store, workflow, &told.run, (words, |_| true)).await?);
    }
    Ok((text, exit(outcome, told)))
}

fn sentence<S>(
    workflow: &Workflow,
    outcome: &Outcome<S>,
    told: &SessionReport,
    (done, place): (&str, Option<&StoppedAt>),
) -> String {
    let run = &told.run;
    let at = place.map(|place| format!(" at step {}", place.step)).unwrap_or_default();
    let line = told.resume_line();
    let next = match &line {
        Some(line) => format!("\nResume with: {line}"),
        None => "\nThe run cannot be resumed: its store was in the memory of this process.".to_owned(),
    };
    // A pending cancel ends the run for good once this process is gone.
    if outcome.status.is_resumable() && outcome.stopped_by.as_deref() == Some(CANCEL) {
        return format!(
            "Run {run} was stopped by {CANCEL}, and cannot be resumed: {done}.{}",
            line.map_or(next, |line| format!("\nTo start over: {line} --restart"))
        );
    }
    match outcome.status {
        RunStatus::Completed => format!("Run {run} is completed: {done}."),
        RunStatus::CompletedWithFailures => {
            format!("Run {run} is completed with tolerated failures: {done}.")
        }
        RunStatus::Failed => format!("Run {run} failed{at}: {done}.{next}"),
        RunStatus::Interrupted => match (&outcome.stopped_by, &told.until) {
            (Some(by), _) if by.starts_with(BUDGET) => {
                format!(
                    "Run {run} was stopped by {by}: {done}.\nTo resume, {}",
                    raise_budget(line.as_deref())
                )
            }
            (Some(by), _) => format!("Run {run} was stopped by {by}: {done}.{next}"),
            (None, Some(step)) => format!("Run {run} stopped after step {step}, as requested: {done}.{next}"),
            (None, None) => format!("Run {run} was interrupted: {done}.{next}"),
        },
        RunStatus::InDoubt => format!(
            "Run {run} is in doubt{at}: {}; {done}.{}",
            match (&outcome.stopped_by, place.and_then(|place| place.cause.as_ref())) {
                (None, Some(cause)) => cause.clone(),
                (Some(by), _) => format!("a step with `idempotent: false` was cut by {by}"),
                (None, None) => "a step with `idempotent: false` was cut".to_owned(),
            },
            line.as_ref().map_or(next.clone(), |line| {
                let doubts = place.map_or(&[][..], |place| &place.doubts);
                let step = if doubts.len() > 1 { "each step" } else { "the step" };
                format!("\nCheck the effects of {step}, then decide:{}", answer_lines(line, doubts))
            })
        ),
        RunStatus::Waiting => waits(workflow, outcome, told, &format!("Run {run} waits: {done}."), &next),
        RunStatus::Cancelled => format!("Run {run} was cancelled: {done}."),
        RunStatus::Queued | RunStatus::Running => format!("Run {run} is {}: {done}.", outcome.status.name()),
    }
}

/// Returns how to resume a run over its budget.
fn raise_budget(line: Option<&str>) -> String {
    match line {
        Some(line) => format!("raise `budget` in the workflow file, then: {line}"),
        None => "raise `budget` in the workflow file and start a new run".to_owned(),
    }
}

/// Returns the open waits of a run after a headline, and how to continue; at the end, the commands that answer.
fn waits<S>(
    workflow: &Workflow,
    outcome: &Outcome<S>,
    told: &SessionReport,
    head: &str,
    next: &str,
) -> String {
    let words = told.store_words.as_deref().unwrap_or_default();
    let run = told.run.as_str();
    let open = outcome
        .waiting
        .iter()
        .filter(|waiting| !matches!(waiting.wait.on, WaitKind::Children | WaitKind::Resume));
    let (mut text, mut answers) = (head.to_owned(), Vec::new());
    for waiting in open {
        let view = WaitView::of(&waiting.scope, &waiting.step, &waiting.wait, Some(workflow));
        if waiting.wait.on == WaitKind::Answer {
            answers.push(format!("\nAnswer with: {}", answer_command(run, &view, words)));
            text.push_str(&format!("\n{}", question_text(&view)));
        } else {
            text.push_str(&format!("\n{}", wait_text(run, &view, false, words)));
        }
    }
    let more = answers.len().saturating_sub(ANSWERS_SHOWN_MAX);
    if more > 0 {
        answers.drain(..more);
    }
    format!("{text}{next}{}", answers.concat())
}

/// Returns the exit code of a session with this outcome.
fn exit<S>(outcome: &Outcome<S>, told: &SessionReport) -> Exit {
    match outcome.status {
        RunStatus::Completed => Exit::Done,
        RunStatus::CompletedWithFailures => Exit::WithFailures,
        _ if outcome.idle && told.until.is_some() => Exit::Done,
        RunStatus::Failed => match outcome.failed.as_ref().map(|(_, failure)| failure.kind) {
            Some(FailureKind::Evidence) => Exit::Evidence,
            _ => Exit::StepFailed,
        },
        RunStatus::Interrupted => match &outcome.stopped_by {
            Some(by) => crate::exit::exit_of(by),
            None if told.until.is_some() => Exit::Done,
            None => Exit::Interrupt,
        },
        RunStatus::Waiting => outcome.stopped_by.as_deref().map_or(Exit::Waiting, crate::exit::exit_of),
        RunStatus::Queued => Exit::Waiting,
        RunStatus::InDoubt => Exit::InDoubt,
        RunStatus::Cancelled => Exit::Usage,
        RunStatus::Running => Exit::Internal,
    }
}
