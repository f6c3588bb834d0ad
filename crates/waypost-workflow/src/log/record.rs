//! Records a running step: reads the streams, masks them and writes the log, until the step has ended.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Log, LogSink};
use crate::mask::{Mask, MaskStream};

/// Default limit for a captured standard output: the size of a checkpoint without a warning.
pub const CAPTURE_BYTES_MAX: usize = 1024 * 1024;

/// Read size: the capacity of a pipe.
const READ_BYTES: usize = 64 * 1024;

/// After the step's end: silence until streams held open by background processes count as ended. Enough for a
/// `tee` that still has to write the step's last output.
const DRAIN_QUIET: Duration = Duration::from_millis(25);

/// After the step's end: longest time for reading streams without silence.
const DRAIN_MAX: Duration = Duration::from_millis(250);

/// Output streams of a step: see [`Child`](crate::supervisor::Child).
#[derive(Debug)]
pub struct Streams {
    /// Standard output, or both streams merged.
    pub stdout: Option<pipe::Receiver>,
    /// Standard error.
    pub stderr: Option<pipe::Receiver>,
}

/// Result of recording a step.
#[derive(Debug)]
pub struct Recorded<T> {
    /// Result of the `life` future.
    pub life: T,
    /// Standard output, if requested.
    pub captured: Option<Captured>,
}

/// Standard output, not masked: check with [`Mask::contains`] before storing it.
#[derive(Clone, PartialEq, Eq)]
pub struct Captured {
    /// Beginning, up to the limit.
    pub bytes: Vec<u8>,
    /// Total size.
    pub bytes_total: u64,
}

impl Captured {
    /// Returns whether the output is complete.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.bytes.len() as u64 == self.bytes_total
    }
}

impl std::fmt::Debug for Captured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the bytes, which may contain a secret.
        f.debug_struct("Captured").field("bytes_total", &self.bytes_total).finish_non_exhaustive()
    }
}

/// Reads a step's streams into `log`, masked, in order of arrival, until `life` has resolved and all output
/// before that is read.
///
/// `life` decides the step's end: a wait, or a cancel after a timeout. Reading continues during a cancel, so
/// that the last output of the step is kept. `capture` is the limit for capturing standard output, in bytes.
///
/// Streams held open by a background process do not delay the return. After a short silence further output is
/// read and discarded, so that the process does not get SIGPIPE.
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

/// Output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Stdout,
    Stderr,
}

struct Stream {
    /// `None` after the end of the stream.
    pipe: Option<pipe::Receiver>,
    mask: MaskStream,
}

impl Stream {
    fn new(pipe: Option<pipe::Receiver>, mask: &Mask) -> Self {
        Self { pipe, mask: mask.stream() }
    }

    /// Waits for data or the end of the stream; never resolves after the end.
    async fn readable(&self) {
        match &self.pipe {
            // The error appears again in the read.
            Some(pipe) => drop(pipe.readable().await),
            None => std::future::pending().await,
        }
    }

    /// Returns the number of bytes ready to read.
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

    /// Reads the rest after the step's end: all buffered bytes, then further output until a short silence.
    async fn drain(&mut self) {
        let end = Instant::now() + DRAIN_MAX;
        for which in [Which::Stdout, Which::Stderr] {
            let mut owed = self.stream(which).waiting_bytes();
            while owed > 0 {
                // Direct read of the pipe: the runtime may not have seen the readiness yet.
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

    /// Reads once from a stream, without waiting; returns the number of bytes.
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
            // End of the stream. Reads of a pipe have no other errors.
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

/// Reads and discards a stream until its end.
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
