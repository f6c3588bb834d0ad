//! One attempt of a command: its output is forwarded as it comes, and stored.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::unix::pipe;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use waypost::engine::{StopHandle, StopLevel};
use waypost::record::Printed;
use waypost::recorder::Begun;
use waypost::store::{SignalKind, Store, StoreError};
use waypost::{Digest, RunId, ScopePath};
use waypost_workflow::log::{Log, LogLimits, LogSink};
use waypost_workflow::program::{log_name, run_mark};
use waypost_workflow::supervisor::{
    Child, Exit as Ended, Output, SpawnError, Stdin, StepProcess, Supervisor, SupervisorError,
};

use super::memo::{OUTPUT_BYTES_MAX, OutputWriter, StoredOutput, append};

/// The time for a stopped command to end before it is killed, as for a step.
const GRACE: Duration = Duration::from_secs(10);
/// The time for background processes to close the output after the end of the command, before they are killed.
const BACKGROUND_MAX: Duration = Duration::from_millis(250);
/// Interval of the check for stop requests: bounds the wait of `waypost stop`.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(300);
/// The bytes read at once: the capacity of a pipe.
const READ_BYTES: usize = 64 * 1024;
/// The lines and bytes of the end of the output in the record, as of a step.
const TAIL: (usize, usize) = (20, 2 * 1024);

/// The command and its environment.
pub(super) struct Work<'a> {
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) run: &'a RunId,
    pub(super) supervisor: &'a Supervisor,
    pub(super) stop: &'a StopHandle,
    pub(super) begun: &'a Begun,
    pub(super) command: &'a [OsString],
    /// The output is not forwarded to stdout and stderr.
    pub(super) silent: bool,
}

/// The end of an attempt.
#[derive(Debug)]
pub(super) enum End {
    /// The command ended by itself.
    Ended(Ended),
    /// The command was stopped, by this sender.
    Stopped(String),
    /// The output exceeds the limit.
    TooLarge,
    /// The output could not be stored.
    NotStored(StoreError),
    /// The command could not be started, or its supervisor died.
    NotStarted(SpawnError),
}

/// The result of an attempt.
pub(super) struct WorkResult {
    pub(super) end: End,
    /// Stdout and stderr; `None` if they could not be stored.
    pub(super) streams: Option<(StoredOutput, StoredOutput)>,
    pub(super) printed: Option<Printed>,
}

/// Writes the log into a blob of the run.
struct BlobSink {
    folder: PathBuf,
    name: String,
}

#[async_trait]
impl LogSink for BlobSink {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        append(&self.folder, &self.name, bytes).map_err(io::Error::other)
    }
}

/// Runs one attempt to its end.
pub(super) async fn work(work: Work<'_>) -> Result<WorkResult, StoreError> {
    let log_name = log_name(&ScopePath::main(), work.begun.step(), work.begun.at());
    let name = log_name.strip_prefix("logs/").unwrap_or(&log_name);
    let name = name.strip_suffix(".log").unwrap_or(name);
    let folder = work.store.folder(work.run).expect("a key is locked in a folder");
    let writer = |stream: &str| OutputWriter::new(folder.clone(), &format!("once/{name}.{stream}"));
    let (stdout, stderr) = (writer("stdout")?, writer("stderr")?);
    let mut child = match work.supervisor.spawn(process(&work)).await {
        Ok(child) => child,
        Err(error) => {
            return Ok(WorkResult { end: End::NotStarted(error), streams: None, printed: None });
        }
    };
    let sink = BlobSink { folder, name: log_name };
    let mut pump = Pump {
        streams: [
            Stream { pipe: child.stdout.take(), output: stdout, echo: !work.silent },
            Stream { pipe: child.stderr.take(), output: stderr, echo: !work.silent },
        ],
        log: Log::new(sink, LogLimits::default()),
        buffer: vec![0; READ_BYTES],
    };
    let shared = Shared::default();
    let pumped = async {
        let pumped = pump.run(&shared).await;
        shared.drained.notify_one();
        if let Err(error) = pumped {
            *shared.pump_error.borrow_mut() = Some(error);
            shared.must_end.notify_one();
        }
    };
    let (end, ()) = tokio::join!(wait_or_end(&mut child, &work, &shared), pumped);
    let Pump { streams: [stdout, stderr], log, .. } = pump;
    let tail = log.tail(TAIL.0, TAIL.1);
    let (_, summary) = log.finish().await;
    let printed = (summary.bytes > 0).then(|| Printed {
        bytes: summary.bytes,
        digest: Digest::from_bytes(summary.sha256),
        tail,
    });
    let (end, streams) = match end {
        end @ (End::NotStored(_) | End::TooLarge) => (end, None),
        end => match (stdout.output.finish(), stderr.output.finish()) {
            (Ok(stdout), Ok(stderr)) => (end, Some((stdout, stderr))),
            (Err(error), _) | (_, Err(error)) => (End::NotStored(error), None),
        },
    };
    Ok(WorkResult { end, streams, printed })
}

fn process(work: &Work<'_>) -> StepProcess {
    let mut env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let (mark, value) = run_mark(work.store.as_ref(), work.run);
    let own: [(&str, OsString); 6] = [
        ("WAYPOST_RUN_ID", work.run.as_str().into()),
        ("WAYPOST_SCOPE", ScopePath::main().as_str().into()),
        (super::STEP_VARIABLE, work.begun.step().as_str().into()),
        ("WAYPOST_ATTEMPT", work.begun.at().attempt.to_string().into()),
        ("WAYPOST_IDEMPOTENCY_KEY", work.begun.idempotency_key().into()),
        (mark, value.into()),
    ];
    env.retain(|(name, _)| own.iter().all(|(own, _)| name != own));
    env.extend(own.map(|(name, value)| (name.into(), value)));
    // The command reads the stdin of this process, as without `waypost once`.
    let stdin = io::stdin().as_fd().try_clone_to_owned().map_or(Stdin::Empty, Stdin::File);
    StepProcess { argv: work.command.to_vec(), env, dir: ".".into(), stdin, output: Output::Separate }
}

/// The state shared by the task that reads the output and the task that waits for the end.
#[derive(Default)]
struct Shared {
    /// All output has been read.
    drained: Notify,
    /// The command must end, because of `pump_error`.
    must_end: Notify,
    pump_error: RefCell<Option<End>>,
    /// Stops forwarding to stdout and stderr, so that a slow reader does not delay the end.
    mute: Cell<bool>,
    muted: Notify,
}

impl Shared {
    fn mute(&self) {
        self.mute.set(true);
        self.muted.notify_one();
    }
}

/// Polls for a stop request of another process and forwards the request. Requests from before the start are ignored.
async fn poll_stop_requests(work: &Work<'_>) -> Infallible {
    let requests = async || {
        let signals = work.store.signals(work.run).await.unwrap_or_default();
        let stops = signals.into_iter().filter(|signal| signal.kind == SignalKind::Stop);
        stops.map(|signal| (signal.id, signal.sender)).collect::<Vec<_>>()
    };
    let before: HashSet<String> = requests().await.into_iter().map(|(id, _)| id).collect();
    loop {
        tokio::time::sleep(STOP_POLL_INTERVAL).await;
        if let Some((_, sender)) = requests().await.into_iter().find(|(id, _)| !before.contains(id)) {
            work.stop.stop(StopLevel::Graceful, &sender);
        }
    }
}

/// Waits for the end of the command, or ends it, and then kills its remaining processes.
async fn wait_or_end(child: &mut Child, work: &Work<'_>, shared: &Shared) -> End {
    let stop = work.stop;
    let end = tokio::select! {
        never = poll_stop_requests(work) => match never {},
        ended = child.wait() => match ended {
            Ok(ended) => End::Ended(ended),
            Err(lost) => End::NotStarted(lost.into()),
        },
        asked = stop.stopped() => {
            shared.mute();
            terminate(child, stop).await;
            End::Stopped(asked.by)
        }
        () = shared.must_end.notified() => {
            terminate(child, stop).await;
            End::TooLarge
        }
    };
    if matches!(end, End::Ended(_)) && timeout(BACKGROUND_MAX, shared.drained.notified()).await.is_err() {
        // An error means that the process is dead.
        let _ = child.kill().await;
        tokio::select! {
            () = shared.drained.notified() => {}
            // The reader of the output is slow.
            _ = stop.stopped() => shared.mute(),
        }
    } else {
        let _ = child.kill().await;
    }
    match shared.pump_error.borrow_mut().take() {
        Some(error) => error,
        None => end,
    }
}

/// Ends the command: with a grace period, or at once after a request to kill.
async fn terminate(child: &mut Child, stop: &StopHandle) {
    let ended: Result<Option<Ended>, SupervisorError> = tokio::select! {
        ended = child.cancel(GRACE) => ended.map(Some),
        () = stop.killed() => Ok(None),
    };
    if let Ok(None) = ended {
        // An error means that it is dead.
        let _ = child.kill().await;
    }
}

struct Stream {
    /// `None` after the end of the stream.
    pipe: Option<pipe::Receiver>,
    output: OutputWriter,
    /// The output still has a reader.
    echo: bool,
}

impl Stream {
    async fn readable(&self) {
        match &self.pipe {
            // The read returns the same error.
            Some(pipe) => drop(pipe.readable().await),
            None => std::future::pending().await,
        }
    }
}

/// Reads the output, stores it and forwards it.
struct Pump {
    streams: [Stream; 2],
    log: Log<BlobSink>,
    buffer: Vec<u8>,
}

impl Pump {
    /// Runs until both streams have ended.
    async fn run(&mut self, shared: &Shared) -> Result<(), End> {
        while self.streams.iter().any(|stream| stream.pipe.is_some()) {
            let flush_at = self.log.flush_at();
            let [stdout, stderr] = &self.streams;
            let which = tokio::select! {
                () = stdout.readable() => Some(0),
                () = stderr.readable() => Some(1),
                () = sleep_until(flush_at.unwrap_or_else(Instant::now)), if flush_at.is_some() => None,
            };
            match which {
                Some(which) => self.read(which, shared).await?,
                None => self.log.flush().await,
            }
        }
        Ok(())
    }

    async fn read(&mut self, which: usize, shared: &Shared) -> Result<(), End> {
        let stream = &mut self.streams[which];
        let Some(pipe) = &stream.pipe else { return Ok(()) };
        let count = match pipe.try_read(&mut self.buffer) {
            Ok(count) if count > 0 => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // The end. Pipes have no errors of their own.
            Ok(_) | Err(_) => {
                stream.pipe = None;
                return Ok(());
            }
        };
        let bytes = &self.buffer[..count];
        if stream.output.bytes() + count as u64 > OUTPUT_BYTES_MAX {
            return Err(End::TooLarge);
        }
        stream.output.push(bytes).map_err(End::NotStored)?;
        self.log.write(bytes).await;
        if stream.echo && !shared.mute.get() {
            let forwarded = tokio::select! {
                forwarded = forward(which, bytes.to_vec()) => forwarded,
                () = shared.muted.notified() => Ok(()),
            };
            // The reader closed the pipe; the output is still recorded.
            stream.echo = forwarded.is_ok();
        }
        Ok(())
    }
}

/// Writes to stdout or stderr of this process, on another thread because the reader may be slow.
async fn forward(which: usize, bytes: Vec<u8>) -> io::Result<()> {
    let written = tokio::task::spawn_blocking(move || match which {
        0 => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&bytes).and_then(|()| stdout.flush())
        }
        _ => io::stderr().lock().write_all(&bytes),
    });
    written.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
