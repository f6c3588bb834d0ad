//! `waypost once`: runs a command of a shell script once, and replays its output and exit code afterwards.
//!
//! Each command is a step of a run driven by the recorder; the state of the run has the results. The command starts
//! after its start is durable, and its result is reported after the result is durable. After a kill at any time, a
//! command with a reported result never reruns, and any other command restarts.
//!
//! ```text
//! lock of the key    |--------------------------------------|   held by `once`, then by the supervisor
//! lease of the run    |start|                        |end|      only while a record is appended
//! command                    |----------------------|
//! ```

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use waypost::engine::Snapshot;
use waypost::lock::{Holder, LockError, RunLock};
use waypost::record::{Ending, Failure, FailureKind, RunRecord};
use waypost::recorder::{self, Begin, Begun, Commit, Label, Options, Recorder, run_record};
use waypost::store::{Store, StoreError};
use waypost::{Digest, RunId};
use waypost_workflow::program::run_mark;
use waypost_workflow::supervisor::{Exit as Ended, Supervisor, kill_leftovers};

use super::Context;
use crate::cli::OnceArgs;
use crate::error::Error;
use crate::error::OnceError;
use crate::exit::Exit;
use crate::run::definition::SCRIPT;
use crate::run::environment::{self, Local};
use crate::run::keepalive;
use crate::run::keepalive::SCRIPT_WORKFLOW;
use crate::run::reference;
use crate::run::run_status;
use crate::session::Session;
use crate::session::interrupt;
use crate::store_location::{self, Access};
use crate::view::{FinishedView, OnceView, VERSION};

mod memo;
mod work;

use memo::{Key, MEMOS_MAX, Memo, Memos, SCHEMA, StoredOutput};
use work::{End, Work, WorkResult};

/// The variable with the name of the script's run.
const VARIABLE: &str = "WAYPOST_SCRIPT_RUN";
/// The variable that reruns all failed commands of a script.
const RETRY_FAILED: &str = "WAYPOST_RETRY_FAILED";
/// The variable with the step of a command, set for the command.
const STEP_VARIABLE: &str = "WAYPOST_STEP";
/// The poll interval for the lock of a key.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The poll interval for the lease of the run: another command holds the lease for one append, which takes milliseconds.
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The longest wait for the lease of the run. A trim of a large run takes seconds.
const LEASE_WAIT_MAX: Duration = Duration::from_secs(60);
/// The most bytes of each stream in the JSON document, as in the result of a step.
const DOCUMENT_BYTES_MAX: usize = waypost_workflow::log::CAPTURE_BYTES_MAX;
/// The longest command in a record, as of a step.
const COMMAND_BYTES_MAX: usize = 4 * 1024;

impl From<OnceError> for Error {
    fn from(error: OnceError) -> Self {
        Self::Once(Box::new(error))
    }
}

impl From<recorder::Error> for Error {
    fn from(error: recorder::Error) -> Self {
        match error {
            recorder::Error::Store(error) => error.into(),
            error => OnceError::Recorder(error).into(),
        }
    }
}

pub(crate) async fn once(context: &Context, args: OnceArgs) -> Result<Exit, Error> {
    let run = run_named(&args)?;
    let Some(key) = &args.key else { return finish(context, &run).await };
    let key = Key::new(key)?;
    let call = Call { context, args: &args, key, run };
    // A finished result needs no lock: it is returned also while another command runs.
    match context.store(None, Access::Read) {
        Ok(store) => {
            if let Some(exit) = call.replay_recorded(store.as_ref()).await? {
                return Ok(exit);
            }
        }
        Err(Error::NoStore { .. } | Error::NoRuns { .. } | Error::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    call.refuse_nested()?;
    let store = context.store(None, Access::Create)?;
    call.refuse_lost(store.as_ref()).await?;
    call.work_on(store).await
}

/// Returns the run that the option or the variable names.
fn run_named(args: &OnceArgs) -> Result<RunId, Error> {
    let variable = || std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    let name = args.id.clone().or_else(variable).ok_or(OnceError::NoRun)?;
    RunId::new(&name).map_err(Error::from_name)
}

/// The origin of a printed result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultOrigin {
    /// Recorded before; the command did not run.
    Replayed,
    /// The command ran, and its result is recorded.
    Remembered,
    /// The command ran, and runs again next time.
    Forgotten,
}

/// One call of `waypost once` with a command.
struct Call<'a> {
    context: &'a Context,
    args: &'a OnceArgs,
    key: Key,
    run: RunId,
}

impl Call<'_> {
    /// Replays the recorded result, if there is one that counts.
    async fn replay_recorded(&self, store: &dyn Store) -> Result<Option<Exit>, Error> {
        let Some(memos) = memo::read(store, &self.run).await? else { return Ok(None) };
        let counts = |memo: &&Memo| !self.args.redo && (memo.exit_code == 0 || !self.retries_failed());
        match memos.memos.get(&self.key.text).filter(counts) {
            Some(memo) if memo.command == memo::digest_of(&self.args.command) || self.args.keep => {
                self.replay(store, memo).await.map(Some)
            }
            Some(_) => Err(OnceError::Changed { run: self.run.clone(), key: self.key.text.clone() }.into()),
            None => Ok(None),
        }
    }

    /// Returns whether failed commands rerun: by the option of this call, or by the variable for the whole script.
    fn retries_failed(&self) -> bool {
        self.args.retry_failed || std::env::var_os(RETRY_FAILED).is_some_and(|value| !value.is_empty())
    }

    async fn replay(&self, store: &dyn Store, memo: &Memo) -> Result<Exit, Error> {
        let output = &self.context.output;
        output.detail(&format!("{} of run {} is finished: replaying its output.", self.key.text, self.run));
        if memo.exit_code != 0 {
            output.note(&format!(
                "{} ended with exit code {} before, replayed here: `waypost once --retry-failed …` reruns \
                 the command.",
                self.key.text, memo.exit_code
            ));
        }
        if output.json {
            self.document(store, memo, ResultOrigin::Replayed).await?;
            return Ok(Exit::Command(memo.exit_code));
        }
        memo.stderr
            .read(store, &self.run, |bytes| {
                // No reader: the existence of the result suffices.
                let _ = io::stderr().lock().write_all(bytes);
                Ok(())
            })
            .await?;
        let mut has_reader = true;
        let write = |bytes: &[u8]| match has_reader.then(|| output.bytes(bytes)) {
            Some(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                has_reader = false;
                Ok(())
            }
            Some(written) => Ok(written?),
            None => Ok(()),
        };
        memo.stdout.read(store, &self.run, write).await?;
        Ok(Exit::Command(memo.exit_code))
    }

    async fn document(&self, store: &dyn Store, memo: &Memo, origin: ResultOrigin) -> Result<(), Error> {
        let mut texts = [String::new(), String::new()];
        for (place, stored) in [&memo.stdout, &memo.stderr].into_iter().enumerate() {
            let mut text = Vec::new();
            let take = |bytes: &[u8]| {
                let room = DOCUMENT_BYTES_MAX - text.len();
                text.extend_from_slice(&bytes[..bytes.len().min(room)]);
                Ok(())
            };
            stored.read(store, &self.run, take).await?;
            texts[place] = String::from_utf8_lossy(&text).into_owned();
        }
        let [stdout, stderr] = texts;
        let view = OnceView {
            v: VERSION,
            run: self.run.to_string(),
            key: self.key.text.clone(),
            step: self.key.step.to_string(),
            replayed: origin == ResultOrigin::Replayed,
            remembered: origin != ResultOrigin::Forgotten,
            exit_code: Some(memo.exit_code),
            stdout,
            stderr,
            stdout_bytes: memo.stdout.bytes,
            stderr_bytes: memo.stderr.bytes,
        };
        Ok(self.context.output.document(&view)?)
    }

    /// Refuses a call within a command of the same run: each would wait for the end of the other.
    fn refuse_nested(&self) -> Result<(), Error> {
        let is_within = std::env::var("WAYPOST_RUN_ID").is_ok_and(|outer| outer == self.run.as_str());
        if !is_within {
            return Ok(());
        }
        let outer = std::env::var(STEP_VARIABLE).unwrap_or_default();
        Err(OnceError::Nested { run: self.run.clone(), outer }.into())
    }

    /// Refuses a run with lost records: its command may be finished.
    async fn refuse_lost(&self, store: &dyn Store) -> Result<(), Error> {
        if let Some(lost) = reference::lost(store, self.run.as_str()).await {
            return Err(lost);
        }
        if !reference::is_there(store, &self.run).await? {
            return Ok(());
        }
        let snapshot = Snapshot::read(store, &self.run).await?;
        let Some(logged) = run_status::logged_and_lost(store, &snapshot).await else { return Ok(()) };
        let log = store.folder(&logged.run).expect("a log stands in a folder").join("events.jsonl");
        Err(Error::Behind { newest: snapshot.newest().header().reference(), logged, log })
    }

    /// Takes the lock of the key, and runs the command unless another call finished it during the wait.
    async fn work_on(&self, store: Arc<dyn Store>) -> Result<Exit, Error> {
        // The command writes to the terminal: no live output.
        let mut plain = self.context.clone();
        plain.output.live = false;
        plain.output.json = false;
        plain.output.actions = false;
        let session = Session::begin(&plain, None)?;
        let Some(lock) = self.lock(store.as_ref(), &session).await? else {
            return Ok(self.stopped(&session));
        };
        let exit = self.work_with(&store, &lock, &session).await;
        // A remaining file is harmless: only the lock on it counts.
        let _ = lock.remove_file();
        Ok(exit?.unwrap_or_else(|| self.stopped(&session)))
    }

    /// Waits for the lock of the key and takes it; `None` after a stop request.
    async fn lock(&self, store: &dyn Store, session: &Session<'_>) -> Result<Option<RunLock>, Error> {
        let path = keepalive::lock_of_key(store, &self.run, &self.key.step).ok_or(OnceError::NoFolder)?;
        let waited_until = self.args.wait.map(|wait| Instant::now() + wait);
        let mut is_reported = false;
        loop {
            let holder = Holder::here(self.context.now()).map_err(Error::Runtime)?;
            let holder = match RunLock::take(&path, &holder, true) {
                Ok(lock) => return Ok(Some(lock)),
                Err(LockError::Held { holder, .. }) => *holder,
                Err(source) => return Err(OnceError::Lock { key: self.key.text.clone(), source }.into()),
            };
            let key = self.key.text.clone();
            if waited_until.is_some_and(|until| until <= Instant::now()) {
                return Err(
                    OnceError::UnderWay { run: self.run.clone(), key, holder: Box::new(holder) }.into()
                );
            }
            if !std::mem::replace(&mut is_reported, true) {
                self.context
                    .output
                    .detail(&format!("{key} is running, held by {holder}; waiting for its end."));
            }
            tokio::select! {
                _ = session.stop.stopped() => return Ok(None),
                () = tokio::time::sleep(LOCK_POLL_INTERVAL) => {}
            }
        }
    }

    /// Takes the lease of the run to append a record. Other commands hold the lease for moments only.
    async fn take(&self, store: &Arc<dyn Store>) -> Result<Recorder, Error> {
        let until = Instant::now() + LEASE_WAIT_MAX;
        loop {
            let options = Options::new().with_schema(SCHEMA);
            let taken = match reference::is_there(store.as_ref(), &self.run).await? {
                true => Recorder::open(Arc::clone(store), &self.run, options).await,
                false => {
                    let record = self.record(store.as_ref())?;
                    Recorder::create(Arc::clone(store), record, &Memos::default(), options).await
                }
            };
            match taken {
                Ok(recorder) => return Ok(self.taken(recorder)),
                // Another command created the run first.
                Err(recorder::Error::Store(StoreError::Exists { .. })) => {}
                Err(recorder::Error::Ended(_)) => {
                    let (run, key) = (self.run.clone(), self.key.text.clone());
                    return Err(OnceError::Finished { run, key }.into());
                }
                Err(recorder::Error::Store(StoreError::Held { .. })) if Instant::now() < until => {}
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(LEASE_POLL_INTERVAL).await;
        }
    }

    fn taken(&self, recorder: Recorder) -> Recorder {
        for damage in recorder.repaired() {
            self.context.output.warn(&format!(
                "checkpoint {}@{} was damaged ({}) and moved to quarantine; commands recorded only there \
                 rerun",
                self.run, damage.seq, damage.flaw
            ));
        }
        recorder
    }

    fn record(&self, store: &dyn Store) -> Result<RunRecord, Error> {
        let here =
            std::env::current_dir().map_err(|source| Error::Unreadable { path: ".".into(), source })?;
        Ok(RunRecord {
            base: store.home().and_then(|home| store_location::relative_to(home, &here)),
            settings: environment::settings(serde_json::json!({ SCRIPT: SCHEMA })),
            actor: Local::detect()?.actor(),
            created_at: self.context.now(),
            ..run_record(self.run.clone(), SCRIPT_WORKFLOW)
        })
    }

    /// Runs the command under the lock of its key; `None` if the command was stopped.
    async fn work_with(
        &self,
        store: &Arc<dyn Store>,
        lock: &RunLock,
        session: &Session<'_>,
    ) -> Result<Option<Exit>, Error> {
        if let Some(exit) = self.replay_recorded(store.as_ref()).await? {
            return Ok(Some(exit));
        }
        // Processes of an earlier attempt must not run at the same time as the new attempt.
        let (mark, value) = run_mark(store.as_ref(), &self.run);
        kill_leftovers(&[(mark, &value), (STEP_VARIABLE, self.key.step.as_str())])
            .map_err(|source| OnceError::Leftovers { run: self.run.clone(), source })?;
        let begun = self.begin(store).await?;
        let held = lock.try_clone_fd().map_err(Error::Runtime)?;
        let supervisor = Supervisor::start(Local::detect()?.supervisor(), Some(held)).await;
        let supervisor = supervisor.map_err(OnceError::from)?;
        let work = Work {
            store,
            run: &self.run,
            supervisor: &supervisor,
            stop: &session.stop,
            begun: &begun,
            command: &self.args.command,
            silent: self.context.output.json,
        };
        let result = work::work(work).await?;
        // An error means that the supervisor and its processes are dead.
        let _ = supervisor.shutdown().await;
        let recorder = self.take(store).await?;
        let ended = self.ended(store.as_ref(), &recorder, &begun, result).await;
        // The error of `ended` matters more than that of `close`.
        let closed = recorder.close().await;
        let exit = ended?;
        closed?;
        Ok(exit)
    }

    /// Records the start of the command.
    async fn begin(&self, store: &Arc<dyn Store>) -> Result<Begun, Error> {
        let recorder = self.take(store).await?;
        let count = memo::read(store.as_ref(), &self.run).await?.unwrap_or_default().memos.len();
        let begin = Begin::new(self.key.step.clone(), Label::ToolExecuted).label("key", &self.key.text);
        let begun = match count {
            count if count >= MEMOS_MAX => Err(OnceError::TooMany { run: self.run.clone(), count }.into()),
            _ => recorder.begin_step(begin).await.map_err(Error::from),
        };
        let closed = recorder.close().await;
        let begun = begun?;
        closed?;
        Ok(begun)
    }

    /// Records the result, then prints the result.
    async fn ended(
        &self,
        store: &dyn Store,
        recorder: &Recorder,
        begun: &Begun,
        result: WorkResult,
    ) -> Result<Option<Exit>, Error> {
        let WorkResult { end, streams, printed } = result;
        let command = Some(clipped(&self.args.command));
        let (code, kind, error) = match end {
            End::Ended(Ended::Code(code)) => {
                (u8::try_from(code).unwrap_or(u8::MAX), FailureKind::Exit, format!("exit code {code}"))
            }
            // The exit code that a shell reports.
            End::Ended(Ended::Signal(signal)) => {
                let code = u8::try_from(128 + signal).unwrap_or(u8::MAX);
                (code, FailureKind::Signal, format!("ended by signal {signal}"))
            }
            End::Stopped(by) => {
                let failure = failure(FailureKind::Signal, format!("stopped by {by}"), command, printed);
                recorder.fail_step_with(begun, failure, Vec::new()).await?;
                return Ok(None);
            }
            End::TooLarge => {
                let max_mib = memo::OUTPUT_BYTES_MAX >> 20;
                let error = OnceError::TooLarge { key: self.key.text.clone(), max_mib };
                let failure = failure(FailureKind::Limit, error.to_string(), command, printed);
                recorder.fail_step_with(begun, failure, Vec::new()).await?;
                return Err(error.into());
            }
            End::NotStored(error) => return Err(error.into()),
            End::NotStarted(error) => {
                let failure = failure(FailureKind::Spawn, error.to_string(), command, printed);
                recorder.fail_step_with(begun, failure, Vec::new()).await?;
                return Err(OnceError::from(error).into());
            }
        };
        let (stdout, stderr) = streams.expect("a command that ended has streams");
        let memo = Memo { command: memo::digest_of(&self.args.command), exit_code: code, stdout, stderr };
        let origin = if kind == FailureKind::Exit {
            // Other commands may have finished meanwhile.
            let mut memos = memo::read(store, &self.run).await?.unwrap_or_default();
            memos.memos.insert(self.key.text.clone(), memo.clone());
            let commit = Commit::without_evidence().state(&memos).exit_code(i32::from(code)).printed(printed);
            let commit = command.into_iter().fold(commit, Commit::command);
            recorder.commit_step(begun, commit).await?;
            ResultOrigin::Remembered
        } else {
            let failure = failure(kind, error, command, printed);
            recorder.fail_step_with(begun, failure, Vec::new()).await?;
            ResultOrigin::Forgotten
        };
        if self.context.output.json {
            self.document(store, &memo, origin).await?;
        }
        Ok(Some(Exit::Command(code)))
    }

    /// Ends this process by the signal that stopped the command, so that a shell ends its script too.
    fn stopped(&self, session: &Session<'_>) -> Exit {
        let by = session.stop.asked().map(|stop| stop.by).unwrap_or_default();
        let said = format!("Stopped by {by}: {} is not finished, and will restart.", self.key.text);
        self.context.output.note(&said);
        interrupt::die_of(&by);
        crate::exit::exit_of(&by)
    }
}

fn failure(
    kind: FailureKind,
    error: String,
    command: Option<String>,
    printed: Option<waypost::record::Printed>,
) -> Failure {
    let ending = Ending { command, log: printed, ..Ending::default() };
    Failure { ending, ..Failure::new(kind, vec![error]) }
}

/// Returns the command as shell text, clipped to the limit of a record.
fn clipped(command: &[std::ffi::OsString]) -> String {
    let words: Vec<String> =
        command.iter().map(|word| crate::format::text::quoted(&word.to_string_lossy())).collect();
    let mut text = words.join(" ");
    if text.len() > COMMAND_BYTES_MAX {
        let end = (0..=COMMAND_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" …");
    }
    text
}

/// Finishes the run of a script: new commands are refused.
async fn finish(context: &Context, run: &RunId) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    if memo::read(store.as_ref(), run).await?.is_none() {
        return Err(reference::lost(store.as_ref(), run.as_str())
            .await
            .unwrap_or_else(|| reference::no_run(run.as_str())));
    }
    let options = Options::new().with_schema(SCHEMA);
    let finished = match Recorder::open(store, run, options).await {
        Ok(recorder) => {
            recorder.finish().await?;
            true
        }
        Err(recorder::Error::Ended(_)) => false,
        Err(error) => return Err(error.into()),
    };
    if context.output.json {
        context.output.document(&FinishedView { v: VERSION, run: run.to_string(), finished })?;
    } else if finished {
        context
            .output
            .done(&format!("Run {run} is finished: its results stay, and new keys are refused."))?;
    } else {
        context.output.done(&format!("Nothing to do for run {run}, because it is already finished."))?;
    }
    Ok(Exit::Done)
}

/// Returns the blobs with the output of a script's commands, each with its size and SHA-256.
pub(super) async fn blobs(store: &dyn Store, run: &RunId) -> Result<Vec<(String, u64, Digest)>, Error> {
    let memos = memo::read(store, run).await?.unwrap_or_default();
    let streams = memos.memos.values().flat_map(|memo| [&memo.stdout, &memo.stderr]);
    Ok(streams.filter_map(StoredOutput::in_blob).collect())
}
