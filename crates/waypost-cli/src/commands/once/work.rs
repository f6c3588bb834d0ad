//! One try of a command: its streams go on as they come, and are kept besides.

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
use waypost::{BranchPath, Digest, RunId};
use waypost_workflow::log::{Log, LogLimits, LogSink};
use waypost_workflow::program::{log_name, run_mark};
use waypost_workflow::supervisor::{
    Child, Exit as Ended, Output, SpawnError, Stdin, StepProcess, Supervisor, SupervisorError,
};

use super::memo::{Keeping, Kept, OUTPUT_BYTES_MAX, append};

/// How long a command that is to stop may take to end by itself: that of a step.
const GRACE: Duration = Duration::from_secs(10);
/// How long what a command left in the background may still write after its end, before it is ended.
const BACKGROUND_MAX: Duration = Duration::from_millis(250);
/// Interval of the check for stop requests: bounds the wait of `waypost stop`.
const HEAR_INTERVAL: Duration = Duration::from_millis(300);
/// How much is read at once: what a pipe holds.
const READ_BYTES: usize = 64 * 1024;
/// How much of the end of what was printed stands in the record: that of a step.
const TAIL: (usize, usize) = (20, 2 * 1024);

/// What a try is made with.
pub(super) struct Work<'a> {
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) run: &'a RunId,
    pub(super) supervisor: &'a Supervisor,
    pub(super) stop: &'a StopHandle,
    pub(super) begun: &'a Begun,
    pub(super) command: &'a [OsString],
    /// Nothing goes on to our own streams.
    pub(super) silent: bool,
}

/// How a try ended.
#[derive(Debug)]
pub(super) enum Life {
    /// By itself.
    Ended(Ended),
    /// It was stopped: by whom.
    Stopped(String),
    /// It printed more than is kept.
    TooLarge,
    /// What it printed cannot be kept.
    NotKept(StoreError),
    /// It could not be started, or what started it is lost.
    NotStarted(SpawnError),
}

/// What came of a try.
pub(super) struct Came {
    pub(super) life: Life,
    /// None if they could not be kept.
    pub(super) streams: Option<(Kept, Kept)>,
    pub(super) printed: Option<Printed>,
}

/// Puts the log into the blobs of the run.
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

/// Runs the command to its end.
pub(super) async fn work(work: Work<'_>) -> Result<Came, StoreError> {
    let log_name = log_name(&BranchPath::main(), work.begun.step(), work.begun.at());
    let name = log_name.strip_prefix("logs/").unwrap_or(&log_name);
    let name = name.strip_suffix(".log").unwrap_or(name);
    let folder = work.store.folder(work.run).expect("a key is locked in a folder");
    let keep = |stream: &str| Keeping::new(folder.clone(), &format!("once/{name}.{stream}"));
    let (stdout, stderr) = (keep("stdout")?, keep("stderr")?);
    let mut child = match work.supervisor.spawn(process(&work)).await {
        Ok(child) => child,
        Err(error) => {
            return Ok(Came { life: Life::NotStarted(error), streams: None, printed: None });
        }
    };
    let sink = BlobSink { folder, name: log_name };
    let mut pump = Pump {
        streams: [
            Stream { pipe: child.stdout.take(), keeping: stdout, echo: !work.silent },
            Stream { pipe: child.stderr.take(), keeping: stderr, echo: !work.silent },
        ],
        log: Log::new(sink, LogLimits::default()),
        buffer: vec![0; READ_BYTES],
    };
    let signs = Signs::default();
    let pumped = async {
        let pumped = pump.run(&signs).await;
        signs.drained.notify_one();
        if let Err(trouble) = pumped {
            *signs.trouble.borrow_mut() = Some(trouble);
            signs.must_end.notify_one();
        }
    };
    let (life, ()) = tokio::join!(live(&mut child, &work, &signs), pumped);
    let Pump { streams: [stdout, stderr], log, .. } = pump;
    let tail = log.tail(TAIL.0, TAIL.1);
    let (_, summary) = log.finish().await;
    let printed = (summary.bytes > 0).then(|| Printed {
        bytes: summary.bytes,
        digest: Digest::from_bytes(summary.sha256),
        tail,
    });
    let (life, streams) = match life {
        life @ (Life::NotKept(_) | Life::TooLarge) => (life, None),
        life => match (stdout.keeping.finish(), stderr.keeping.finish()) {
            (Ok(stdout), Ok(stderr)) => (life, Some((stdout, stderr))),
            (Err(error), _) | (_, Err(error)) => (Life::NotKept(error), None),
        },
    };
    Ok(Came { life, streams, printed })
}

fn process(work: &Work<'_>) -> StepProcess {
    let mut env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let (mark, value) = run_mark(work.store.as_ref(), work.run);
    let own: [(&str, OsString); 6] = [
        ("WAYPOST_RUN_ID", work.run.as_str().into()),
        ("WAYPOST_SCOPE", BranchPath::main().as_str().into()),
        (super::STEP_VARIABLE, work.begun.step().as_str().into()),
        ("WAYPOST_ATTEMPT", work.begun.at().attempt.to_string().into()),
        ("WAYPOST_IDEMPOTENCY_KEY", work.begun.idempotency_key().into()),
        (mark, value.into()),
    ];
    env.retain(|(name, _)| own.iter().all(|(own, _)| name != own));
    env.extend(own.map(|(name, value)| (name.into(), value)));
    // As if it had been called without us: what comes in, goes in.
    let stdin = io::stdin().as_fd().try_clone_to_owned().map_or(Stdin::Empty, Stdin::File);
    StepProcess { argv: work.command.to_vec(), env, dir: ".".into(), stdin, output: Output::Separate }
}

/// State shared by the threads that read output and the thread that waits.
#[derive(Default)]
struct Signs {
    /// All that was printed is read.
    drained: Notify,
    /// The command must end, for its trouble.
    must_end: Notify,
    trouble: RefCell<Option<Life>>,
    /// Stops forwarding to stdout and stderr, so that a slow reader does not delay the end.
    mute: Cell<bool>,
    muted: Notify,
}

impl Signs {
    fn mute(&self) {
        self.mute.set(true);
        self.muted.notify_one();
    }
}

/// Polls for a stop request of another process and forwards the request. Requests from before the start are ignored.
async fn hear(work: &Work<'_>) -> Infallible {
    let asked = async || {
        let signals = work.store.signals(work.run).await.unwrap_or_default();
        let stops = signals.into_iter().filter(|signal| signal.kind == SignalKind::Stop);
        stops.map(|signal| (signal.id, signal.sender)).collect::<Vec<_>>()
    };
    let before: HashSet<String> = asked().await.into_iter().map(|(id, _)| id).collect();
    loop {
        tokio::time::sleep(HEAR_INTERVAL).await;
        if let Some((_, sender)) = asked().await.into_iter().find(|(id, _)| !before.contains(id)) {
            work.stop.stop(StopLevel::Graceful, &sender);
        }
    }
}

/// Waits for the end of the command, or ends it, and then all that it left.
async fn live(child: &mut Child, work: &Work<'_>, signs: &Signs) -> Life {
    let stop = work.stop;
    let life = tokio::select! {
        never = hear(work) => match never {},
        ended = child.wait() => match ended {
            Ok(ended) => Life::Ended(ended),
            Err(lost) => Life::NotStarted(lost.into()),
        },
        asked = stop.stopped() => {
            signs.mute();
            end(child, stop).await;
            Life::Stopped(asked.by)
        }
        () = signs.must_end.notified() => {
            end(child, stop).await;
            Life::TooLarge
        }
    };
    if matches!(life, Life::Ended(_)) && timeout(BACKGROUND_MAX, signs.drained.notified()).await.is_err() {
        // An error means that it is dead.
        let _ = child.kill().await;
        tokio::select! {
            () = signs.drained.notified() => {}
            // The reader of the output is slow.
            _ = stop.stopped() => signs.mute(),
        }
    } else {
        let _ = child.kill().await;
    }
    match signs.trouble.borrow_mut().take() {
        Some(trouble) => trouble,
        None => life,
    }
}

/// Ends the command, with grace unless it is to be killed.
async fn end(child: &mut Child, stop: &StopHandle) {
    let gone: Result<Option<Ended>, SupervisorError> = tokio::select! {
        gone = child.cancel(GRACE) => gone.map(Some),
        () = stop.killed() => Ok(None),
    };
    if let Ok(None) = gone {
        // An error means that it is dead.
        let _ = child.kill().await;
    }
}

struct Stream {
    /// Gone after its end.
    pipe: Option<pipe::Receiver>,
    keeping: Keeping,
    /// The output still has a reader.
    echo: bool,
}

impl Stream {
    async fn readable(&self) {
        match &self.pipe {
            // An error shows again when it is read.
            Some(pipe) => drop(pipe.readable().await),
            None => std::future::pending().await,
        }
    }
}

/// Reads what is printed, keeps it and passes it on.
struct Pump {
    streams: [Stream; 2],
    log: Log<BlobSink>,
    buffer: Vec<u8>,
}

impl Pump {
    /// Goes on until both streams have ended.
    async fn run(&mut self, signs: &Signs) -> Result<(), Life> {
        while self.streams.iter().any(|stream| stream.pipe.is_some()) {
            let flush_at = self.log.flush_at();
            let [stdout, stderr] = &self.streams;
            let which = tokio::select! {
                () = stdout.readable() => Some(0),
                () = stderr.readable() => Some(1),
                () = sleep_until(flush_at.unwrap_or_else(Instant::now)), if flush_at.is_some() => None,
            };
            match which {
                Some(which) => self.read(which, signs).await?,
                None => self.log.flush().await,
            }
        }
        Ok(())
    }

    async fn read(&mut self, which: usize, signs: &Signs) -> Result<(), Life> {
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
        if stream.keeping.bytes() + count as u64 > OUTPUT_BYTES_MAX {
            return Err(Life::TooLarge);
        }
        stream.keeping.push(bytes).map_err(Life::NotKept)?;
        self.log.write(bytes).await;
        if stream.echo && !signs.mute.get() {
            let passed_on = tokio::select! {
                passed_on = pass_on(which, bytes.to_vec()) => passed_on,
                () = signs.muted.notified() => Ok(()),
            };
            // The reader closed the pipe; the output is still recorded.
            stream.echo = passed_on.is_ok();
        }
        Ok(())
    }
}

/// Writes to our own stdout or stderr, beside everything else: who reads it may be slow.
async fn pass_on(which: usize, bytes: Vec<u8>) -> io::Result<()> {
    let written = tokio::task::spawn_blocking(move || match which {
        0 => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&bytes).and_then(|()| stdout.flush())
        }
        _ => io::stderr().lock().write_all(&bytes),
    });
    written.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
