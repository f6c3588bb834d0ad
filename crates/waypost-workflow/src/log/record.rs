//! Following a running step: its streams into the log, masked, until it has ended.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Log, LogSink};
use crate::mask::{Mask, MaskStream};

/// How much of its standard output a step may make its result, unless told otherwise: what a checkpoint carries without
/// a warning.
pub const CAPTURE_BYTES_MAX: usize = 1024 * 1024;

/// How much is read at once: what a pipe holds.
const READ_BYTES: usize = 64 * 1024;

/// After the step's end: how long its streams must be silent, while something in the background still has them
/// open, until they count as ended. Enough for a `tee` that has yet to write what the step said last.
const DRAIN_QUIET: Duration = Duration::from_millis(25);

/// After the step's end: how long they are read if they do not fall silent.
const DRAIN_MAX: Duration = Duration::from_millis(250);

/// A step's output, to be read: see [`Child`](crate::supervisor::Child).
#[derive(Debug)]
pub struct Streams {
    /// Its standard output, or both merged.
    pub stdout: Option<pipe::Receiver>,
    /// Its standard error.
    pub stderr: Option<pipe::Receiver>,
}

/// What came of a step that was followed to its end.
#[derive(Debug)]
pub struct Recorded<T> {
    /// What the future that stands for its life returned.
    pub life: T,
    /// Its standard output, if that was asked for.
    pub captured: Option<Captured>,
}

/// Standard output as it was, not masked: look for secrets with [`Mask::contains`] before keeping it.
#[derive(Clone, PartialEq, Eq)]
pub struct Captured {
    /// Its beginning, up to the limit.
    pub bytes: Vec<u8>,
    /// How much there was.
    pub bytes_total: u64,
}

impl Captured {
    /// Says whether all of it is there.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.bytes.len() as u64 == self.bytes_total
    }
}

impl std::fmt::Debug for Captured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the bytes: there may be a secret in them.
        f.debug_struct("Captured").field("bytes_total", &self.bytes_total).finish_non_exhaustive()
    }
}

/// Reads a step's streams into `log`, masked, in the order in which they arrive, until `life` has resolved and
/// what the step wrote by then is read.
///
/// `life` is what decides the step's end: its wait, or its cancelling after a timeout; reading goes on meanwhile, so that
/// a step that is told to end can still say something. `capture` is how many bytes of standard output are wanted
/// as such.
///
/// Streams that a process in the background keeps open do not hold this up: what comes after a short silence is read
/// and thrown away, so that the process does not die of writing.
pub async fn record<T, S: LogSink>(
    streams: Streams,
    mask: &Mask,
    log: &mut Log<S>,
    capture: Option<usize>,
    life: impl Future<Output = T>,
) -> Recorded<T> {
    let mut recorder = Recorder {
        stdout: Stream::new(streams.stdout, mask),
        stderr: Stream::new(streams.stderr, mask),
        captured: capture.map(|_| Captured { bytes: Vec::new(), bytes_total: 0 }),
        capture_bytes_max: capture.unwrap_or_default(),
        buffer: vec![0; READ_BYTES],
        masked: Vec::with_capacity(READ_BYTES),
        log,
    };
    let life = recorder.until_end(life).await;
    recorder.drain().await;
    recorder.finish_masks().await;
    let Recorder { stdout, stderr, captured, .. } = recorder;
    for pipe in [stdout.pipe, stderr.pipe].into_iter().flatten() {
        tokio::spawn(throw_away(pipe));
    }
    Recorded { life, captured }
}

/// Which of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Stdout,
    Stderr,
}

struct Stream {
    /// Gone after its end.
    pipe: Option<pipe::Receiver>,
    mask: MaskStream,
}

impl Stream {
    fn new(pipe: Option<pipe::Receiver>, mask: &Mask) -> Self {
        Self { pipe, mask: mask.stream() }
    }

    /// Waits until there is something to read, or the end; for ever after that.
    async fn readable(&self) {
        match &self.pipe {
            // An error shows again when it is read.
            Some(pipe) => drop(pipe.readable().await),
            None => std::future::pending().await,
        }
    }

    /// Counts the bytes that are there to be read.
    fn waiting_bytes(&self) -> u64 {
        self.pipe.as_ref().and_then(|pipe| rustix::io::ioctl_fionread(pipe).ok()).unwrap_or_default()
    }
}

struct Recorder<'l, S> {
    stdout: Stream,
    stderr: Stream,
    captured: Option<Captured>,
    capture_bytes_max: usize,
    buffer: Vec<u8>,
    masked: Vec<u8>,
    log: &'l mut Log<S>,
}

impl<S: LogSink> Recorder<'_, S> {
    async fn until_end<T>(&mut self, life: impl Future<Output = T>) -> T {
        let mut life = std::pin::pin!(life);
        loop {
            let flush_at = self.log.flush_at();
            let which = tokio::select! {
                life = &mut life => return life,
                () = self.stdout.readable() => Some(Which::Stdout),
                () = self.stderr.readable() => Some(Which::Stderr),
                () = sleep_until(flush_at.unwrap_or_else(Instant::now)), if flush_at.is_some() => None,
            };
            match which {
                Some(which) => drop(self.read(which).await),
                None => self.log.flush().await,
            }
        }
    }

    /// Reads on after the step's end: what is there now in any case, then as long as more comes soon.
    async fn drain(&mut self) {
        let end = Instant::now() + DRAIN_MAX;
        for which in [Which::Stdout, Which::Stderr] {
            let mut owed = self.stream(which).waiting_bytes();
            while owed > 0 {
                // From the pipe itself: the runtime may not have heard yet that there is something.
                match self.read_by(which, |pipe, buffer| Ok(rustix::io::read(pipe, buffer)?)).await {
                    0 => break,
                    count => owed = owed.saturating_sub(count as u64),
                }
            }
        }
        while self.stdout.pipe.is_some() || self.stderr.pipe.is_some() {
            let next = async {
                tokio::select! {
                    () = self.stdout.readable() => Which::Stdout,
                    () = self.stderr.readable() => Which::Stderr,
                }
            };
            let quiet = Instant::now() + DRAIN_QUIET;
            match timeout_at(quiet.min(end), next).await {
                Ok(which) if Instant::now() < end => self.read(which).await,
                Ok(_) | Err(_) => return,
            };
        }
    }

    /// Reads once from a stream that may have something; returns how much there was.
    async fn read(&mut self, which: Which) -> usize {
        self.read_by(which, pipe::Receiver::try_read).await
    }

    async fn read_by(
        &mut self,
        which: Which,
        read: impl FnOnce(&pipe::Receiver, &mut [u8]) -> io::Result<usize>,
    ) -> usize {
        let stream = match which {
            Which::Stdout => &mut self.stdout,
            Which::Stderr => &mut self.stderr,
        };
        let Some(pipe) = &stream.pipe else { return 0 };
        let count = match read(pipe, &mut self.buffer) {
            Ok(count) if count > 0 => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return 0,
            // The end. Pipes have no errors of their own.
            Ok(_) | Err(_) => {
                stream.pipe = None;
                return 0;
            }
        };
        let bytes = &self.buffer[..count];
        if which == Which::Stdout
            && let Some(captured) = &mut self.captured
        {
            let room = self.capture_bytes_max - captured.bytes.len();
            captured.bytes.extend_from_slice(&bytes[..count.min(room)]);
            captured.bytes_total += count as u64;
        }
        self.masked.clear();
        stream.mask.push(bytes, &mut self.masked);
        self.log.write(&self.masked).await;
        count
    }

    fn stream(&self, which: Which) -> &Stream {
        match which {
            Which::Stdout => &self.stdout,
            Which::Stderr => &self.stderr,
        }
    }

    async fn finish_masks(&mut self) {
        self.masked.clear();
        self.stdout.mask.finish(&mut self.masked);
        self.stderr.mask.finish(&mut self.masked);
        self.log.write(&self.masked).await;
    }
}

/// Reads until the end, for nobody.
async fn throw_away(pipe: pipe::Receiver) {
    let mut buffer = vec![0; 4096];
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
