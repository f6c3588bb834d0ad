//! One try of a step: rendered, started, followed to its end, its outputs read.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};
use waypost::Digest;
use waypost::engine::{Attempt, Ended, Performed, Told};
use waypost::record::{Ending, Failure, FailureKind, Note, Printed};
use waypost::store::Store;

use crate::expr::{ExprError, Scope, StepView, Template};
use crate::file::{OutputSource, Step};
use crate::log::{CAPTURE_BYTES_MAX, Captured, Log, LogLimits, LogSink, Recorded, Streams, record};
use crate::mask::Mask;
use crate::output::{Capture, OUTPUT_BYTES_MAX, parse_output_file};
use crate::supervisor::{Child, Exit, Output, SpawnError, Stdin, StepProcess, SupervisorError};

use super::state::StepOutput;
use super::{Echo, MARK, Surroundings, WorkflowProgram, contains_secret, failure, log_name};

/// Longest text that a step may add to the report: a page or two, not a log.
const SUMMARY_BYTES_MAX: u64 = 64 * 1024;
/// Longest file that an output is read from.
const OUTPUT_SOURCE_BYTES_MAX: u64 = 16 << 20;
/// How much of the end of a log a failure carries: what fits a screen.
const FAILURE_TAIL: (usize, usize) = (20, 2 * 1024);
/// How much of the end of a log a success carries: its last word.
const SUCCESS_TAIL: (usize, usize) = (1, 200);
/// Longest command kept in a record.
const COMMAND_BYTES_MAX: usize = 4 * 1024;

/// A step with everything filled in, ready to run without the state.
#[derive(Debug)]
pub struct Job {
    argv: Vec<OsString>,
    command: String,
    /// The command was made from a template: the record keeps it.
    rendered: bool,
    env: BTreeMap<String, String>,
    dir: PathBuf,
    stdin: Option<String>,
    outputs: Vec<(String, PathBuf, OutputSource)>,
    capture: Option<Capture>,
    keeps_stdout: bool,
    grace: Duration,
    report: Option<(Template, Scope)>,
}

impl Job {
    pub(super) fn render(step: &Step, scope: &Scope, around: &Surroundings) -> Result<Self, ExprError> {
        let env = step.resolve_env(scope)?;
        let scope = scope.for_step(&step.id, &env);
        let command = step.run.render(&scope)?;
        let dir = step.dir.as_ref().map(|dir| dir.render(&scope)).transpose()?;
        let output = |(name, source): &(String, OutputSource)| {
            Ok((name.clone(), around.base.join(source.from.render(&scope)?), source.clone()))
        };
        let mut argv: Vec<OsString> =
            step.shell.command(around.has_bash).into_iter().map(Into::into).collect();
        argv.push(command.clone().into());
        Ok(Self {
            argv,
            rendered: !step.run.is_plain(),
            command,
            dir: dir.map_or_else(|| around.base.clone(), |dir| around.base.join(dir)),
            stdin: step.stdin.as_ref().map(|stdin| stdin.render(&scope)).transpose()?,
            outputs: step.outputs.iter().map(output).collect::<Result<_, ExprError>>()?,
            capture: step.capture,
            keeps_stdout: step.keeps_stdout,
            grace: step.grace,
            report: step.report.clone().map(|report| (report, scope)),
            env,
        })
    }
}

/// Puts a log into the run's blobs, and on the screen where wanted.
struct BlobSink {
    store: Arc<dyn Store>,
    attempt: Attempt,
    name: String,
    echo: Option<Arc<dyn Echo>>,
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
        }
        Ok(())
    }
}

/// Files that a step writes to, one pair a try.
struct Scratch {
    output: PathBuf,
    summary: PathBuf,
}

impl Scratch {
    fn new(folder: &Path, attempt: &Attempt) -> Self {
        let name = log_name(&attempt.branch, &attempt.step, &attempt.at).replace('/', ".");
        Self {
            output: folder.join(format!("{name}.output")),
            summary: folder.join(format!("{name}.summary")),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // They may never have been written; what is left goes with the folder.
        let _ = std::fs::remove_file(&self.output);
        let _ = std::fs::remove_file(&self.summary);
    }
}

/// What ended a try.
enum Life {
    Exited(Exit),
    Told(Ended),
    Lost(SupervisorError),
}

impl WorkflowProgram {
    pub(super) async fn run(&self, job: Job, attempt: Attempt) -> Performed<StepOutput> {
        let (supervisor, folder, mark) = {
            let session = self.session.lock().expect("no code panics while it holds the session");
            let session = session.as_ref().expect("the engine performs steps between `begin` and `end`");
            (Arc::clone(&session.supervisor), Arc::clone(&session.scratch), session.mark.clone())
        };
        let scratch = Scratch::new(folder.path(), &attempt);
        let process = StepProcess {
            argv: job.argv.clone(),
            env: self.environment(&job, &attempt, &scratch, &mark),
            dir: job.dir.clone(),
            stdin: job.stdin.clone().map_or(Stdin::Empty, |text| Stdin::Bytes(text.into_bytes())),
            output: if job.captures() { Output::Separate } else { Output::Merged },
        };
        let spawned = supervisor.spawn(process).await;
        // Not held while the step runs: `end` shuts the supervisor down once nobody has it.
        drop(supervisor);
        match spawned {
            Ok(child) => self.follow(child, job, &attempt, &scratch).await,
            Err(error) => not_started(error, self.mask()),
        }
    }

    fn environment(
        &self,
        job: &Job,
        attempt: &Attempt,
        scratch: &Scratch,
        mark: &str,
    ) -> Vec<(OsString, OsString)> {
        let mut env: BTreeMap<OsString, OsString> = self.surroundings.environment.iter().cloned().collect();
        env.extend(job.env.iter().map(|(name, value)| (name.into(), value.into())));
        let mut set = |name: &str, value: OsString| drop(env.insert(name.into(), value));
        set("WAYPOST_RUN_ID", attempt.run.as_str().into());
        set("WAYPOST_STEP", attempt.step.as_str().into());
        set("WAYPOST_BRANCH", attempt.branch.as_str().into());
        set("WAYPOST_ATTEMPT", attempt.at.attempt.to_string().into());
        set("WAYPOST_IDEMPOTENCY_KEY", attempt.idempotency_key().into());
        set("WAYPOST_OUTPUT", scratch.output.clone().into());
        set("WAYPOST_SUMMARY", scratch.summary.clone().into());
        set(MARK, mark.into());
        env.into_iter().collect()
    }

    async fn follow(
        &self,
        mut child: Child,
        job: Job,
        attempt: &Attempt,
        scratch: &Scratch,
    ) -> Performed<StepOutput> {
        let sink = BlobSink {
            store: Arc::clone(&self.surroundings.store),
            attempt: attempt.clone(),
            name: log_name(&attempt.branch, &attempt.step, &attempt.at),
            echo: self.surroundings.echo.clone(),
        };
        let mut log = Log::new(sink, LogLimits::default());
        let streams = Streams { stdout: child.stdout.take(), stderr: child.stderr.take() };
        let life = live(&mut child, attempt, job.grace);
        let capture = job.captures().then_some(CAPTURE_BYTES_MAX);
        let Recorded { life, captured } = record(streams, self.mask(), &mut log, capture, life).await;
        let tail = if matches!(life, Life::Exited(Exit::Code(0))) { SUCCESS_TAIL } else { FAILURE_TAIL };
        let tail = log.tail(tail.0, tail.1);
        let (_, summary) = log.finish().await;
        let mut told = Told::default();
        if let Some(lost) = summary.failure {
            told.notes.push(Note::Warning(format!("the log could not be kept whole: {lost}")));
        }
        let printed = (summary.bytes > 0).then(|| Printed {
            bytes: summary.bytes,
            digest: Digest::from_bytes(summary.sha256),
            tail,
        });
        let command = job.rendered.then(|| clipped(&self.mask().mask_str(&job.command), COMMAND_BYTES_MAX));
        let exit_code = match life {
            Life::Exited(Exit::Code(code)) => Some(code),
            _ => None,
        };
        let ending = Ending { exit_code, command, log: printed, ..Ending::default() };
        match life {
            Life::Told(Ended::Stop(_)) => Performed::Stopped { in_progress: true },
            Life::Lost(error) => cut(&error),
            Life::Exited(Exit::Code(0)) => self.completed(&job, captured, scratch, ending, told).await,
            life => {
                told.notes.extend(self.summary_note(&job, scratch, &Map::new(), false));
                Performed::Failed { failure: failed(life, ending), told }
            }
        }
    }

    async fn completed(
        &self,
        job: &Job,
        captured: Option<Captured>,
        scratch: &Scratch,
        mut ending: Ending,
        mut told: Told,
    ) -> Performed<StepOutput> {
        let quotes_secret = self.reads_secret(job, captured.as_ref(), scratch);
        match self.outputs(job, captured.as_ref(), scratch) {
            Ok(output) => {
                told.notes.extend(self.summary_note(job, scratch, &output.outputs, true));
                ending.outputs = output.outputs.clone().into_iter().collect();
                Performed::Completed { output, ending, told }
            }
            Err(mut failure) => {
                // What was wrong with an output is quoted, and it may be a secret, or a part of one that was clipped.
                failure.error.iter_mut().for_each(|text| *text = self.mask().mask_str(text).into_owned());
                // Those that say that there is a secret name the output only.
                let safe = ["output `", "standard output is read"];
                if quotes_secret && !safe.iter().any(|start| failure.error[0].starts_with(start)) {
                    failure.error.truncate(1);
                    failure.error[0] =
                        "its outputs cannot be read, and what is wrong with them is not shown: a secret is \
                                        among them"
                            .to_owned();
                }
                failure.ending = ending;
                Performed::Failed { failure, told }
            }
        }
    }

    /// Says whether a secret stands in anything that outputs are read from: an error about them must not quote it.
    fn reads_secret(&self, job: &Job, captured: Option<&Captured>, scratch: &Scratch) -> bool {
        if self.mask().is_empty() {
            return false;
        }
        let in_file = |path: &Path, limit: u64| {
            read_at_most(path, limit).is_ok_and(|bytes| self.mask().contains(&bytes))
        };
        captured.is_some_and(|captured| self.mask().contains(&captured.bytes))
            || in_file(&scratch.output, OUTPUT_BYTES_MAX as u64)
            || job.outputs.iter().any(|(_, path, _)| in_file(path, OUTPUT_SOURCE_BYTES_MAX))
    }

    /// Reads what the step gave: its output file, the files it declared, what it printed.
    fn outputs(
        &self,
        job: &Job,
        captured: Option<&Captured>,
        scratch: &Scratch,
    ) -> Result<StepOutput, Failure> {
        let mut outputs = match read_at_most(&scratch.output, OUTPUT_BYTES_MAX as u64) {
            Ok(bytes) => parse_output_file(&bytes).map_err(|error| {
                let mut failure = failure(FailureKind::Outputs, error);
                failure.error.insert(0, "cannot take outputs from $WAYPOST_OUTPUT".to_owned());
                failure
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Map::new(),
            Err(error) => return Err(not_read("$WAYPOST_OUTPUT", error)),
        };
        for (name, path, source) in &job.outputs {
            let bytes = read_at_most(path, OUTPUT_SOURCE_BYTES_MAX)
                .map_err(|error| not_read(&format!("output `{name}` from {}", path.display()), error))?;
            let value = source.read(&bytes).map_err(|error| {
                let mut failure = failure(FailureKind::Outputs, error);
                failure.error.insert(0, format!("cannot take output `{name}` from {}", path.display()));
                failure
            })?;
            outputs.insert(name.clone(), value);
        }
        let mut stdout = None;
        if let Some(captured) = captured {
            if !captured.is_whole() {
                let text = format!(
                    "the step printed {} bytes, of which {CAPTURE_BYTES_MAX} can be captured; write the rest to a file",
                    captured.bytes_total
                );
                return Err(outputs_failure(vec![text]));
            }
            if let Some(capture) = job.capture {
                let value =
                    capture.convert(&captured.bytes).map_err(|error| failure(FailureKind::Outputs, error))?;
                outputs.insert("result".to_owned(), value);
            }
            if job.keeps_stdout {
                stdout = Some(String::from_utf8_lossy(&captured.bytes).trim_end_matches('\n').to_owned());
            }
        }
        let leaks = |name: &String, value: &Value| {
            self.mask().contains(name.as_bytes()) || contains_secret(self.mask(), value)
        };
        if let Some((name, _)) = outputs.iter().find(|(name, value)| leaks(name, value)) {
            let name = self.mask().mask_str(name);
            return Err(outputs_failure(vec![format!(
                "output `{name}` contains a secret, which must not be recorded"
            )]));
        }
        if stdout.as_ref().is_some_and(|text| self.mask().contains(text.as_bytes())) {
            let text =
                "standard output is read by an expression and contains a secret, which must not be recorded";
            return Err(outputs_failure(vec![text.to_owned()]));
        }
        Ok(StepOutput { outputs, stdout })
    }

    /// Takes what the step adds to the report; trouble with it is a note and never fails the step.
    fn summary_note(
        &self,
        job: &Job,
        scratch: &Scratch,
        outputs: &Map<String, Value>,
        done: bool,
    ) -> Vec<Note> {
        let mut notes = Vec::new();
        let mut add = |text: &str| notes.push(Note::Report(self.mask().mask_str(text).into_owned()));
        match read_at_most(&scratch.summary, SUMMARY_BYTES_MAX) {
            Ok(bytes) if !bytes.is_empty() => add(&String::from_utf8_lossy(&bytes)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                notes.push(Note::Warning(format!("cannot read $WAYPOST_SUMMARY: {error}")));
                return notes;
            }
            _ => {}
        }
        if let Some((report, scope)) = job.report.as_ref().filter(|_| done) {
            let mut scope = scope.clone();
            if let Some(step) = scope.step().map(str::to_owned) {
                let outputs = Some(outputs.clone());
                let view =
                    StepView { status: "completed".to_owned(), exit_code: Some(0), stdout: None, outputs };
                scope.insert_step(step, &view);
            }
            match report.render(&scope) {
                Ok(text) => notes.push(Note::Report(self.mask().mask_str(&text).into_owned())),
                Err(error) => {
                    let text = format!("cannot render the step's `report`: {error}");
                    notes.push(Note::Warning(self.mask().mask_str(&text).into_owned()));
                }
            }
        }
        notes
    }
}

impl Job {
    fn captures(&self) -> bool {
        self.capture.is_some() || self.keeps_stdout
    }
}

/// Names what a run was stopped by when what ran its step is lost, so that it can stand behind "stopped by".
pub const LOSS: &str = "the loss of ";

/// Says what became of a step whose supervisor or reaper is lost.
fn cut(lost: &SupervisorError) -> Performed<StepOutput> {
    let what = match lost {
        SupervisorError::ReaperKilled => "the reaper of a step",
        _ => "its supervisor",
    };
    Performed::Cut { why: format!("{LOSS}{what}") }
}

/// Says what became of a step whose start was not answered well.
fn not_started(error: SpawnError, mask: &Mask) -> Performed<StepOutput> {
    if let SpawnError::Supervisor(lost @ (SupervisorError::Ended | SupervisorError::ReaperKilled)) = &error {
        // What was to start it is gone, and nobody can say that it had not begun.
        return cut(lost);
    }
    let mut failure = failure(FailureKind::Spawn, error);
    failure.error.iter_mut().for_each(|text| *text = mask.mask_str(text).into_owned());
    Performed::Failed { failure, told: Told::default() }
}

/// Waits for the process, and ends it with grace when it must end before.
async fn live(child: &mut Child, attempt: &Attempt, grace: Duration) -> Life {
    let ended = tokio::select! {
        exit = child.wait() => return exit.map_or_else(Life::Lost, Life::Exited),
        ended = attempt.stopped() => ended,
    };
    let gone = tokio::select! {
        gone = child.cancel(grace) => Some(gone),
        () = attempt.killed() => None,
    };
    let gone = match gone {
        Some(gone) => gone,
        None => child.kill().await,
    };
    match gone {
        Ok(_) => Life::Told(ended),
        Err(lost) => Life::Lost(lost),
    }
}

fn failed(life: Life, ending: Ending) -> Failure {
    let (kind, error) = match life {
        Life::Exited(exit @ Exit::Code(_)) => (FailureKind::Exit, vec![exit.to_string()]),
        Life::Exited(exit @ Exit::Signal(_)) => (FailureKind::Signal, vec![format!("ended by {exit}")]),
        Life::Told(Ended::Timeout(limit)) => {
            (FailureKind::Timeout, vec![format!("it took longer than {limit:?}")])
        }
        Life::Told(Ended::Stop(stop)) => (FailureKind::Error, vec![format!("it was stopped ({})", stop.by)]),
        Life::Lost(error) => (FailureKind::Error, vec![error.to_string()]),
    };
    Failure { kind, error, retried: false, tolerated: false, ending }
}

fn outputs_failure(error: Vec<String>) -> Failure {
    Failure { kind: FailureKind::Outputs, error, retried: false, tolerated: false, ending: Ending::default() }
}

fn not_read(what: &str, error: io::Error) -> Failure {
    outputs_failure(vec![format!("cannot read {what}"), error.to_string()])
}

fn read_at_most(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let file = std::fs::File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
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
        // What happened: a step that must not be repeated ran twice when its reaper was killed right after it had begun.
        // Why: before the start was answered, that counted as a step that could not be started, and was retried.
        // What stops it: nobody can say that it had not begun, so it is cut.
        let mask = Mask::new(std::iter::empty()).expect("no secret is fine");
        let of = |error: SpawnError| not_started(error, &mask);

        assert!(matches!(of(SupervisorError::ReaperKilled.into()), Performed::Cut { .. }));
        assert!(matches!(of(SupervisorError::Ended.into()), Performed::Cut { .. }));
        let unknown = SpawnError::CommandNotFound { command: "x".into() };
        assert!(matches!(of(unknown), Performed::Failed { .. }));
    }
}
