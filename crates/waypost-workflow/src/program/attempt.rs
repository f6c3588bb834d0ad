//! One attempt of a step: starts the process, records the log, waits for the end and reads the outputs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use waypost::Digest;
use waypost::engine::{Attempt, CancelCause, Performed, StepReport, StopLevel};
use waypost::record::{Ending, Failure, FailureKind, Note, Printed, STATE_BYTES_WARN, Try};
use waypost::store::{Store, StoreError};

use crate::expr::StepView;
use crate::log::{Captured, Log, LogSink, Recorded, Streams, record};
use crate::mask::Mask;
use crate::supervisor::{
    Child, Exit, LeftoversError, Output, SpawnError, Stdin, StepProcess, Supervisor, SupervisorError,
    kill_leftovers,
};

use super::command::Command;
use super::executor::{ELSEWHERE, EndedStep, StepEnd, StepExecutor, StepRequest};
use super::leftovers::{ProcessMark, outlives_process};
use super::outputs::{OutputFiles, OutputSources, StepOutputs};
use super::scratch::{Scratch, ScratchFolder};
use super::state::{StepOutput, json_bytes, largest};
use super::step_events::EVENTS;
use super::{Echo, MARK, SESSION, WorkflowProgram, failure, log_name, undo_log_name};

/// Log tail kept with a failure, as lines and bytes: one screen.
const FAILURE_TAIL: (usize, usize) = (20, 2 * 1024);
/// Log tail kept with a success, as lines and bytes: the last line.
const SUCCESS_TAIL: (usize, usize) = (1, 200);
/// Longest command kept in a record.
const COMMAND_BYTES_MAX: usize = 4 * 1024;

/// Appends a log to the run's blobs, and to the screen if `echo` is set.
pub(super) struct BlobSink {
    pub(super) store: Arc<dyn Store>,
    pub(super) attempt: Attempt,
    pub(super) name: String,
    pub(super) echo: Option<Arc<dyn Echo>>,
    /// Bytes appended so far.
    pub(super) bytes: Arc<AtomicU64>,
}

#[async_trait]
impl LogSink for BlobSink {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(echo) = &self.echo {
            echo.printed(&self.attempt.step, bytes);
        }
        for chunk in bytes.chunks(waypost::store::BLOB_CHUNK_BYTES) {
            let written = self.store.blobs().append(&self.attempt.lease, &self.name, chunk).await;
            written.map_err(io::Error::other)?;
            self.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// How the process of an attempt ended.
enum Life {
    Exited(Exit),
    Cancelled(CancelCause),
    Lost(SupervisorError),
}

/// Counts a step of this process until the drop.
struct StepHere<'a>(&'a AtomicUsize);

impl<'a> StepHere<'a> {
    fn new(steps: &'a AtomicUsize) -> Self {
        steps.fetch_add(1, Ordering::AcqRel);
        Self(steps)
    }
}

impl Drop for StepHere<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl WorkflowProgram {
    pub(super) async fn run(&self, job: Command, attempt: Attempt) -> Performed<StepOutput> {
        let (budget_use, executor) = {
            let session = self.session.lock().expect("no code panics while the session is locked");
            let session = session.as_ref();
            let executor = session.and_then(|session| session.executor.clone());
            (session.and_then(|session| session.budget_use.clone()), executor)
        };
        if budget_use.as_ref().is_some_and(|budget_use| budget_use.is_empty(&attempt)) {
            return Performed::Stopped { in_progress: false };
        }
        if attempt.lease.is_over() {
            return Performed::Stopped { in_progress: false };
        }
        let performed = match executor.filter(|_| job.runs_on.is_some()) {
            Some(executor) => self.run_elsewhere(executor.as_ref(), &job, &attempt).await,
            None => {
                let dispatch = self.surroundings.dispatch.as_ref();
                let _here = dispatch.map(|options| StepHere::new(&options.steps_here));
                self.run_here(job, &attempt).await
            }
        };
        if let Some(budget_use) = budget_use {
            budget_use.add(&performed, &attempt);
        }
        performed
    }

    /// Runs a command through an executor.
    async fn run_elsewhere(
        &self,
        executor: &dyn StepExecutor,
        job: &Command,
        attempt: &Attempt,
    ) -> Performed<StepOutput> {
        let request = StepRequest::new(attempt, job, self.base());
        let in_text = serde_json::to_vec(&request).unwrap_or_default();
        if self.mask().contains(&in_text) {
            let text =
                "the command contains a secret, and secrets are not passed to other workers".to_owned();
            let hint = "read the secret from the environment in the command".to_owned();
            let failure = Failure::new(FailureKind::Limit, vec![text, hint]);
            return Performed::Failed { failure, report: StepReport::default() };
        }
        let key = attempt.idempotency_key();
        let ended = async {
            loop {
                let ended = match executor.submit(&key, request.clone()).await {
                    Ok(()) => executor.observe(&key).await,
                    Err(lost) => {
                        let why = format!("{LOSS_OF_QUEUE}: {}", chain(&lost));
                        EndedStep::unbegun(StepEnd::Cut {
                            why,
                            was_killed: false,
                            report: StepReport::default(),
                        })
                    }
                };
                // A worker that ends gives its steps back.
                match &ended.end {
                    _ if attempt.is_stopped() => return ended,
                    StepEnd::Stopped { lack: None, in_progress } if job.idempotent || !in_progress => {}
                    StepEnd::Lost | StepEnd::Stopped { lack: None, .. } => {
                        let losses = job.runs_on.as_ref().map_or(0, |runs_on| runs_on.losses_max);
                        return EndedStep { end: lost(job), losses, ..ended };
                    }
                    _ => return ended,
                }
            }
        };
        let cancel = async {
            attempt.stop_asked().await;
            // If the request is lost, the next session of the run repeats it.
            let _ = executor.cancel(&key, StopLevel::Graceful).await;
            attempt.killed().await;
            let _ = executor.cancel(&key, StopLevel::Kill).await;
            std::future::pending::<EndedStep>().await
        };
        let EndedStep { at, losses, end } = tokio::select! {
            ended = ended => ended,
            ended = cancel => ended,
            // The step continues on its worker, for the next holder of the run.
            () = attempt.lease.over() => EndedStep::unbegun(StepEnd::Stopped { in_progress: true, lack: None }),
            never = attempt.report_progress(Default::default) => match never {},
        };
        if let StepEnd::Stopped { lack: Some(lack), .. } = &end
            && !attempt.is_stopped()
        {
            match lack.starts_with(ELSEWHERE) {
                true => attempt.return_run(lack),
                false => attempt.stop_session(lack),
            }
        }
        let mut performed = end.performed();
        if let Performed::Completed { output, report, .. } = &mut performed {
            report.notes.extend(self.rendered_report(job, &output.outputs));
        }
        // The session has counted the loss of a worker that also held the run.
        let counted = at.as_ref().map_or(0, |at| attempt.at.attempt.saturating_sub(at.attempt));
        let further = losses.saturating_sub(counted);
        if further > 0
            && let Performed::Completed { report, .. } | Performed::Failed { report, .. } = &mut performed
        {
            report
                .notes
                .push(Note::Event { name: WORKER_LOST.to_owned(), data: json!({ "losses": further }) });
        }
        if let Some(at) = at.filter(|at| *at != attempt.at)
            && let Performed::Completed { report, .. } | Performed::Failed { report, .. } = &mut performed
        {
            let data = json!({ "attempt": at.attempt, "losses": losses });
            report.notes.push(Note::Event { name: "adopted".to_owned(), data });
            if let Err(error) = self.copy_log(&at, attempt).await {
                report.notes.push(Note::Warning(format!("the log is incomplete: {error}")));
            }
        }
        performed
    }

    /// Copies the log of an adopted attempt to the log of the attempt that adopts it.
    async fn copy_log(&self, at: &Try, attempt: &Attempt) -> Result<(), StoreError> {
        let Attempt { run, scope, step, lease, .. } = attempt;
        let (source, target) = (log_name(scope, step, at), log_name(scope, step, &attempt.at));
        let (blobs, mut offset) = (self.surroundings.store.blobs(), 0);
        loop {
            let bytes = blobs.read(run, &source, offset).await?;
            if bytes.is_empty() {
                return Ok(());
            }
            blobs.append(lease, &target, &bytes).await?;
            offset += bytes.len() as u64;
        }
    }

    /// Runs a command below the supervisor of this process.
    pub(super) async fn run_here(&self, job: Command, attempt: &Attempt) -> Performed<StepOutput> {
        let (supervisor, folder, mark) = self.tools();
        let may_be_cut = job.may_be_cut;
        let performed = self.run_in(&folder, supervisor, job, attempt, &mark).await;
        if may_be_cut && matches!(performed, Performed::Failed { .. }) && folder.is_full() {
            // The files, the log and the outputs of the step share this disk, so the full disk may be the
            // cause. A failure would use up a retry, and a fallback would replace the step.
            let why = format!("{NO_ROOM} at `{}`", folder.path().display());
            return Performed::Cut { why, was_killed: false, report: StepReport::default() };
        }
        performed
    }

    /// Returns the supervisor, the scratch folder and the process mark of the session.
    pub(super) fn tools(&self) -> (Arc<Supervisor>, Arc<ScratchFolder>, ProcessMark) {
        let session = self.session.lock().expect("no code panics while the session is locked");
        let session = session.as_ref().expect("the engine performs steps between `begin` and `end`");
        (Arc::clone(&session.supervisor), Arc::clone(&session.scratch), session.mark.clone())
    }

    /// Creates the process of a service. A service has no outputs.
    pub(super) fn process(
        &self,
        job: &Command,
        attempt: &Attempt,
        folder: &ScratchFolder,
        mark: &ProcessMark,
    ) -> Result<StepProcess, Failure> {
        let scratch = Scratch::make(folder.path(), attempt).map_err(|error| no_scratch(&error))?;
        Ok(StepProcess {
            argv: job.argv.iter().map(Into::into).collect(),
            env: self.environment(job, attempt, &scratch, mark),
            dir: job.dir.clone(),
            stdin: Stdin::Empty,
            output: Output::Merged,
        })
    }

    async fn run_in(
        &self,
        folder: &ScratchFolder,
        supervisor: Arc<Supervisor>,
        job: Command,
        attempt: &Attempt,
        mark: &ProcessMark,
    ) -> Performed<StepOutput> {
        let scratch = match Scratch::make(folder.path(), attempt) {
            Ok(scratch) => scratch,
            Err(error) => {
                return match lacking(&error) {
                    Some(lack) => interrupted(&lack, attempt),
                    None => Performed::Failed { failure: no_scratch(&error), report: StepReport::default() },
                };
            }
        };
        let process = StepProcess {
            argv: job.argv.iter().map(Into::into).collect(),
            env: self.environment(&job, attempt, &scratch, mark),
            dir: job.dir.clone(),
            stdin: job.stdin.clone().map_or(Stdin::Empty, |text| Stdin::Bytes(text.into_bytes())),
            output: if job.captures() { Output::Separate } else { Output::Merged },
        };
        let spawned = supervisor.spawn(process).await;
        // Not held while the step runs: `end` shuts the supervisor down only if no attempt holds a reference.
        drop(supervisor);
        match spawned {
            Ok(child) => self.follow(child, job, attempt, &scratch, mark).await,
            Err(error) => {
                if let Some(lack) = lacking(&error) {
                    return interrupted(&lack, attempt);
                }
                if let SpawnError::Supervisor(lost) = &error {
                    self.end_leftovers(lost, attempt, mark);
                }
                not_started(error, self.mask())
            }
        }
    }

    /// Kills the remaining processes of this step and session after the loss of the supervisor.
    ///
    /// The reaper kills these processes, unless the reaper was killed too. Other attempts kill the processes of their own
    /// steps.
    fn end_leftovers(&self, lost: &SupervisorError, attempt: &Attempt, mark: &ProcessMark) {
        if !matches!(lost, SupervisorError::Ended) || !outlives_process(self.surroundings.store.as_ref()) {
            return;
        }
        let (step, scope) = (attempt.step.as_str(), attempt.scope.as_str());
        let own =
            [(MARK, &*mark.run), (SESSION, &*mark.session), ("WAYPOST_STEP", step), ("WAYPOST_SCOPE", scope)];
        // The next holder of the run kills the survivors before the first step.
        let _ = kill_leftovers(&own);
    }

    /// Kills the processes of the step on this machine that an ended session has left.
    pub(super) fn kill_leftovers_of(
        &self,
        attempt: &Attempt,
        mark: &ProcessMark,
    ) -> Result<(), LeftoversError> {
        let (step, scope) = (attempt.step.as_str(), attempt.scope.as_str());
        kill_leftovers(&[(MARK, &mark.run), ("WAYPOST_STEP", step), ("WAYPOST_SCOPE", scope)]).map(drop)
    }

    fn environment(
        &self,
        job: &Command,
        attempt: &Attempt,
        scratch: &Scratch,
        mark: &ProcessMark,
    ) -> Vec<(OsString, OsString)> {
        let mut env: BTreeMap<OsString, OsString> = self.surroundings.environment.iter().cloned().collect();
        env.extend(job.env.iter().map(|(name, value)| (name.into(), value.into())));
        let mut set = |name: &str, value: OsString| drop(env.insert(name.into(), value));
        set("WAYPOST_RUN_ID", attempt.run.as_str().into());
        set("WAYPOST_STEP", attempt.step.as_str().into());
        set("WAYPOST_SCOPE", attempt.scope.as_str().into());
        set("WAYPOST_ATTEMPT", (attempt.at.attempt + job.losses).to_string().into());
        let key = if job.undoes { attempt.undo_key() } else { attempt.idempotency_key() };
        set("WAYPOST_IDEMPOTENCY_KEY", key.into());
        set("WAYPOST_OUTPUT", scratch.output.clone().into());
        set("WAYPOST_SUMMARY", scratch.summary.clone().into());
        set(EVENTS, scratch.events.clone().into());
        set(MARK, mark.run.clone().into());
        set(SESSION, mark.session.clone().into());
        env.into_iter().collect()
    }

    async fn follow(
        &self,
        mut child: Child,
        job: Command,
        attempt: &Attempt,
        scratch: &Scratch,
        mark: &ProcessMark,
    ) -> Performed<StepOutput> {
        let logged = Arc::new(AtomicU64::new(0));
        let sink = BlobSink {
            store: Arc::clone(&self.surroundings.store),
            attempt: attempt.clone(),
            name: match job.undoes {
                true => undo_log_name(&attempt.scope, &attempt.step, &attempt.at),
                false => log_name(&attempt.scope, &attempt.step, &attempt.at),
            },
            echo: self.surroundings.echo.clone(),
            bytes: Arc::clone(&logged),
        };
        let mut log = Log::new(sink, self.log_limits());
        let streams = Streams { stdout: child.stdout.take(), stderr: child.stderr.take() };
        let mut must_end = pin!(attempt.stopped());
        let life = async {
            tokio::select! {
                biased;
                life = live(&mut child, attempt, must_end.as_mut(), job.grace) => life,
                never = attempt.report_progress(|| how_far(&logged)) => match never {},
            }
        };
        let capture = job.captures().then_some(job.capture_max);
        let Recorded { life, captured } = record(streams, self.mask(), &mut log, capture, life).await;
        let is_done = job.is_done(&life);
        if let Life::Lost(lost) = &life {
            self.end_leftovers(lost, attempt, mark);
        }
        let (ending, report) = self.ending(&job, &life, log).await;
        if !is_done {
            clear(&mut child, attempt, job.grace).await;
        }
        if let Some(why) = job.cut_midway(&life, attempt) {
            return Performed::Cut { why, was_killed: false, report };
        }
        match life {
            Life::Cancelled(CancelCause::Stop(_)) => Performed::Stopped { in_progress: true },
            Life::Lost(error) => cut(&error),
            life => {
                let output_files = job.output_files(scratch, captured, &life, self.mask());
                let interrupted = async {
                    match &life {
                        // The attempt's time is over; reading its outputs is limited to the grace period.
                        Life::Cancelled(ended) => tokio::select! {
                            stop = attempt.stop_asked() => CancelCause::Stop(stop),
                            () = tokio::time::sleep(job.grace) => ended.clone(),
                        },
                        _ => must_end.await,
                    }
                };
                let taken = output_files.take(interrupted).await;
                let performed = match taken {
                    Ok(taken) => self.ended(&job, life, taken, ending, report),
                    Err(CancelCause::Stop(_)) => Performed::Stopped { in_progress: true },
                    Err(timeout) => {
                        Performed::Failed { failure: job.failed(Life::Cancelled(timeout), ending), report }
                    }
                };
                if is_done && !matches!(performed, Performed::Completed { .. }) {
                    clear(&mut child, attempt, job.grace).await;
                }
                performed
            }
        }
    }

    /// Closes the log, and returns the ending and the notes of an attempt, without outputs.
    async fn ending(&self, job: &Command, life: &Life, log: Log<BlobSink>) -> (Ending, StepReport) {
        let exit_code = life.exit_code();
        let (lines, bytes) = if job.is_done(life) { SUCCESS_TAIL } else { FAILURE_TAIL };
        let tail = log.tail(lines, bytes);
        let (_, summary) = log.finish().await;
        let mut report = StepReport::default();
        if let Some(lost) = summary.failure {
            report.notes.push(Note::Warning(format!("the log is incomplete: {lost}")));
        }
        let printed = (summary.bytes > 0).then(|| Printed {
            bytes: summary.bytes,
            digest: Digest::from_bytes(summary.sha256),
            tail,
        });
        let command = job.rendered.then(|| clipped(&self.mask().mask_str(&job.command), COMMAND_BYTES_MAX));
        (Ending { exit_code, command, log: printed, ..Ending::default() }, report)
    }

    /// Returns the result of a step that exited or timed out.
    fn ended(
        &self,
        job: &Command,
        life: Life,
        taken: StepOutputs,
        mut ending: Ending,
        mut report: StepReport,
    ) -> Performed<StepOutput> {
        let is_done = job.is_done(&life);
        report.usage = taken.usage;
        report.notes.extend(taken.events);
        match taken.stdout_text {
            Ok(printed) => ending.stdout = printed,
            // `taken.output` is the same error in this case.
            Err(_) if is_done => {}
            Err(unread) => report.notes.push(not_kept("the recorded output is", &unread)),
        }
        match taken.output {
            Ok(output) if is_done => {
                report.notes.extend(self.report_notes(job, taken.summary, Some(&output.outputs)));
                report.notes.extend(job.growth(&output).map(Note::Warning));
                ending.outputs = output.outputs.clone().into_iter().collect();
                Performed::Completed { output, ending, report }
            }
            Ok(output) => {
                report.notes.extend(self.report_notes(job, taken.summary, None));
                ending.outputs = output.outputs.into_iter().collect();
                Performed::Failed { failure: job.failed(life, ending), report }
            }
            Err(failure) if is_done => Performed::Failed { failure: Failure { ending, ..failure }, report },
            // The exit is the cause of the failure; the unread outputs become a note.
            Err(unread) => {
                report.notes.extend(self.report_notes(job, taken.summary, None));
                report.notes.push(not_kept("the outputs are", &unread));
                Performed::Failed { failure: job.failed(life, ending), report }
            }
        }
    }

    /// Returns the notes for the report: `$WAYPOST_SUMMARY`, and `report` if the step has outputs. An error
    /// becomes a warning and never fails the step.
    fn report_notes(
        &self,
        job: &Command,
        summary: io::Result<Option<String>>,
        outputs: Option<&Map<String, Value>>,
    ) -> Vec<Note> {
        let mut notes = Vec::new();
        match summary {
            Ok(text) => notes.extend(text.map(Note::Report)),
            Err(error) => {
                notes.push(Note::Warning(format!("cannot read $WAYPOST_SUMMARY: {error}")));
                return notes;
            }
        }
        notes.extend(outputs.and_then(|outputs| self.rendered_report(job, outputs)));
        notes
    }

    /// Returns the note of the step's `report`, or a warning.
    fn rendered_report(&self, job: &Command, outputs: &Map<String, Value>) -> Option<Note> {
        let (report, scope) = job.report.as_ref()?;
        let mut scope = scope.clone();
        if let Some(step) = scope.step().map(str::to_owned) {
            let outputs = Some(outputs.clone());
            let view = StepView {
                status: "completed".to_owned(),
                exit_code: Some(0),
                stdout: None,
                outputs,
                items: None,
            };
            scope.insert_step(step, &view);
        }
        Some(match report.render(&scope) {
            Ok(text) => Note::Report(self.mask().mask_str(&text).into_owned()),
            Err(error) => {
                let text = format!("cannot render the step's `report`: {error}");
                Note::Warning(self.mask().mask_str(&text).into_owned())
            }
        })
    }
}

impl Command {
    /// Returns whether the process succeeded: exit code 0, or an exit code that the evidence accepts.
    fn is_done(&self, life: &Life) -> bool {
        life.exit_code()
            .is_some_and(|code| code == 0 || u8::try_from(code).is_ok_and(|code| self.codes.contains(&code)))
    }

    /// Returns the failure of an attempt; of an attempt with an unknown effect, too, if the workflow tolerates that.
    fn failed(&self, life: Life, ending: Ending) -> Failure {
        let mut failure = failed(life, ending);
        if !self.idempotent && matches!(failure.kind, FailureKind::Signal | FailureKind::Timeout) {
            failure.error.push("the step is not idempotent: whether it took effect is unknown".to_owned());
        }
        failure
    }

    fn captures(&self) -> bool {
        self.capture.is_some() || self.keeps_stdout
    }

    fn output_files(
        &self,
        scratch: &Scratch,
        captured: Option<Captured>,
        life: &Life,
        mask: &Mask,
    ) -> OutputFiles {
        let wanted = if self.is_done(life) { OutputSources::All } else { OutputSources::Written };
        OutputFiles {
            output: scratch.output.clone(),
            summary: scratch.summary.clone(),
            events: scratch.events.clone(),
            sources: self.outputs.clone(),
            captured,
            capture: self.capture,
            is_agent: self.is_agent,
            capture_max: self.capture_max,
            keeps_stdout: self.keeps_stdout,
            makes_items: self.makes_items,
            wanted,
            mask: mask.clone(),
        }
    }

    /// Returns a warning text if this output makes the state exceed [`STATE_BYTES_WARN`], or exceeds the
    /// limit alone.
    ///
    /// The text names the largest output. The engine adds the limit and the remedy.
    fn growth(&self, output: &StepOutput) -> Option<String> {
        let StepOutput { outputs, stdout, .. } = output;
        let own = json_bytes(outputs) + stdout.as_ref().map_or(0, json_bytes);
        let bytes = self.state_bytes + own;
        let tells =
            bytes > STATE_BYTES_WARN && (self.state_bytes <= STATE_BYTES_WARN || own > STATE_BYTES_WARN);
        tells.then(|| format!("{} of the {bytes} bytes of the state", largest(outputs, stdout.as_deref())))
    }

    /// Returns the cause of the interruption of an attempt that must not be repeated blindly. An exit code
    /// rules out an interruption.
    fn cut_midway(&self, life: &Life, attempt: &Attempt) -> Option<String> {
        match life {
            _ if self.may_be_cut || self.is_done(life) => None,
            Life::Cancelled(CancelCause::Timeout(_)) => Some(format!("the timeout of step {}", attempt.step)),
            Life::Exited(exit) if exit.signal().is_some() => Some(format!("{exit} in step {}", attempt.step)),
            _ => None,
        }
    }
}

impl Life {
    fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Exited(exit) => Some(exit.code()),
            _ => None,
        }
    }
}

/// Returns the end of a step whose workers were lost. After several losses the step itself may be the cause.
fn lost(job: &Command) -> StepEnd {
    let report = StepReport::default();
    if let Some(runs_on) = job.runs_on.as_ref().filter(|_| job.idempotent) {
        let cuts = runs_on.losses_max + 1;
        let times = if cuts == 1 { "once".to_owned() } else { format!("{cuts} times") };
        let text = format!("cut {times}: each time, the worker of the step was lost");
        return StepEnd::Failed { failure: Box::new(Failure::new(FailureKind::Limit, vec![text])), report };
    }
    StepEnd::Cut { why: format!("{LOSS}a worker"), was_killed: true, report }
}

/// Formats an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Returns the progress of a running step: bytes of log.
fn how_far(logged: &AtomicU64) -> (Map<String, Value>, StepReport) {
    let bytes = logged.load(Ordering::Relaxed);
    (Map::from_iter([("log_bytes".to_owned(), bytes.into())]), StepReport::default())
}

/// The event of another execution after the loss of a worker; `losses`: the number of further executions.
pub const WORKER_LOST: &str = "worker_lost";

/// Prefix of the stop reason after the supervisor or a reaper is lost; follows the words "stopped by".
pub const LOSS: &str = "the loss of ";

/// Prefix of the stop reason after a possibly lasting error of the queue.
pub const LOSS_OF_QUEUE: &str = "the loss of the queue";

/// Prefix of the stop reason after a lack of descriptors, processes or memory.
pub const NO_RESOURCES: &str = "too few ";

/// Returns the exhausted resource of a failure and the command that raises the limit; `None` for other
/// causes.
pub fn lacking(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let errno = causes.find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error())?;
    Some(match errno {
        libc::EMFILE | libc::ENFILE => format!("{NO_RESOURCES}descriptors (`ulimit -n`)"),
        libc::EAGAIN => format!("{NO_RESOURCES}processes (`ulimit -u`)"),
        libc::ENOMEM => format!("{NO_RESOURCES}pages of memory"),
        libc::ENOSPC | libc::EDQUOT | libc::EROFS => format!("{NO_ROOM} on a disk"),
        _ => return None,
    })
}

/// Stops the session for lack of a resource. The step has not started and does not fail.
pub(super) fn interrupted(why: &str, attempt: &Attempt) -> Performed<StepOutput> {
    attempt.stop_session(&format!("{why} for step {}", attempt.step));
    Performed::Stopped { in_progress: false }
}

/// Prefix of the stop reason after a step failed on a disk without room for its files.
pub const NO_ROOM: &str = "the lack of space";

/// Returns the result of an attempt whose supervisor or reaper is lost.
fn cut(lost: &SupervisorError) -> Performed<StepOutput> {
    let what = match lost {
        SupervisorError::ReaperKilled => "the reaper of a step",
        _ => "its supervisor",
    };
    Performed::Cut { why: format!("{LOSS}{what}"), was_killed: true, report: StepReport::default() }
}

/// Returns the result of an attempt whose start failed or was not confirmed.
pub(super) fn not_started(error: SpawnError, mask: &Mask) -> Performed<StepOutput> {
    if let SpawnError::Supervisor(lost @ (SupervisorError::Ended | SupervisorError::ReaperKilled)) = &error {
        // The process may have started: the supervisor or reaper died before the answer.
        return cut(lost);
    }
    let kind = match error {
        SpawnError::TooLong { .. } => FailureKind::Limit,
        _ => FailureKind::Spawn,
    };
    let mut failure = failure(kind, error);
    failure.error.iter_mut().for_each(|text| *text = mask.mask_str(text).into_owned());
    Performed::Failed { failure, report: StepReport::default() }
}

/// Returns the failure of a step whose scratch files cannot be created.
fn no_scratch(error: &io::Error) -> Failure {
    let text = "cannot create the files for $WAYPOST_OUTPUT and $WAYPOST_SUMMARY".to_owned();
    Failure::new(FailureKind::Spawn, vec![text, error.to_string()])
}

/// Grace for an exit that is delivered late. If Ctrl-Z suspended this program, the timeout fires before an
/// earlier exit is read.
const LATE: Duration = Duration::from_millis(250);

/// Waits for the process. If `must_end` resolves first, ends the process with grace.
async fn live(
    child: &mut Child,
    attempt: &Attempt,
    must_end: impl Future<Output = CancelCause>,
    grace: Duration,
) -> Life {
    let ended = tokio::select! {
        exit = child.wait() => return exit.map_or_else(Life::Lost, Life::Exited),
        ended = must_end => ended,
    };
    if let CancelCause::Timeout(_) = ended
        && let Ok(Ok(exit)) = tokio::time::timeout(LATE, child.wait()).await
    {
        return Life::Exited(exit);
    }
    match end(child, attempt, grace).await {
        Ok(_) => Life::Cancelled(ended),
        Err(lost) => Life::Lost(lost),
    }
}

/// Ends all processes of an attempt with grace, or kills them if the attempt is killed. Returns once all are
/// dead.
async fn end(child: &mut Child, attempt: &Attempt, grace: Duration) -> Result<Exit, SupervisorError> {
    let gone = tokio::select! {
        gone = child.cancel(grace) => Some(gone),
        () = attempt.killed() => None,
    };
    match gone {
        Some(gone) => gone,
        None => child.kill().await,
    }
}

/// Ends the background processes of a failed attempt, so that none run next to the retry.
async fn clear(child: &mut Child, attempt: &Attempt, grace: Duration) {
    // On an error the processes are dead, or end with the run.
    let _ = end(child, attempt, grace).await;
}

/// Returns a warning that an output of a failed step is lost for expressions.
fn not_kept(what_is: &str, why: &Failure) -> Note {
    Note::Warning(format!("{what_is} not kept: {}", why.error.join(": ")))
}

fn failed(life: Life, ending: Ending) -> Failure {
    let (kind, error) = match life {
        Life::Exited(exit @ Exit::Code(_)) => (FailureKind::Exit, vec![exit.to_string()]),
        Life::Exited(exit @ Exit::Signal(_)) => (FailureKind::Signal, vec![format!("ended by {exit}")]),
        Life::Cancelled(CancelCause::Timeout(limit)) => {
            (FailureKind::Timeout, vec![format!("timed out after {limit:?}")])
        }
        Life::Cancelled(CancelCause::Stop(stop)) => {
            (FailureKind::Error, vec![format!("stopped ({})", stop.by)])
        }
        Life::Lost(error) => (FailureKind::Error, vec![error.to_string()]),
    };
    Failure { ending, error, ..Failure::new(kind, Vec::new()) }
}

fn clipped(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = (0..=bytes_max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{} …", &text[..end])
}

#[cfg(test)]
mod tests {
    use waypost::engine::Performed;

    use super::not_started;
    use crate::mask::Mask;
    use crate::supervisor::{SpawnError, SupervisorError};

    #[test]
    fn a_start_that_nobody_answered_may_have_happened() {
        // What happened: a step with `idempotent: false` ran twice when the reaper was killed right after the
        // start. Why: a start without an answer counted as a failed start, and was retried. What stops it
        // now: the process may have started, so the attempt is cut.
        let mask = Mask::new(std::iter::empty()).expect("no secret is fine");
        let of = |error: SpawnError| not_started(error, &mask);

        assert!(matches!(of(SupervisorError::ReaperKilled.into()), Performed::Cut { .. }));
        assert!(matches!(of(SupervisorError::Ended.into()), Performed::Cut { .. }));
        let unknown = SpawnError::CommandNotFound { command: "x".into() };
        assert!(matches!(of(unknown), Performed::Failed { .. }));
    }
}
