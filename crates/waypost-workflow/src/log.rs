//! What a step writes, kept within a limit.
//!
//! This owns the shape of a log: its beginning as it comes, its end, and between them a line that says how much is
//! missing. However much a step writes, a log takes [`LOG_HEAD_BYTES_MAX`] and [`LOG_TAIL_BYTES_MAX`] of space, and
//! hardly more than the latter of memory. What comes in is masked already; [`record`] sees to that.
//!
//! It deliberately does not know where the bytes go (a [`LogSink`] does), nor whose they are.

mod record;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

pub use self::record::{CAPTURE_BYTES_MAX, Captured, Recorded, Streams, record};

/// How much of the beginning of a log is kept: some 50,000 lines, more than anyone reads, of a thousand steps still
/// less than a usual disk has free.
pub const LOG_HEAD_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How much of the end of a log is kept, where the reason of a failure stands. It is held in memory, once for each
/// step in flight.
pub const LOG_TAIL_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How much is gathered before it is given to the sink: one chunk of a blob.
const FLUSH_BYTES: usize = 64 * 1024;

/// How long bytes wait for more before they are given to the sink, and so what a kill of the engine can lose of a log: a
/// person who follows it hardly notices, and a step that writes without end costs five writes a second.
const FLUSH_AFTER: Duration = Duration::from_millis(200);

/// Where a log is kept.
#[async_trait]
pub trait LogSink: Send {
    /// Appends bytes to the log. Called with some 64 KiB, or what came within 200 ms.
    ///
    /// # Errors
    /// The bytes may be lost. Nothing more will be written to this sink.
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// How much of a log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Of its beginning.
    pub head_bytes_max: usize,
    /// Of its end.
    pub tail_bytes_max: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { head_bytes_max: LOG_HEAD_BYTES_MAX, tail_bytes_max: LOG_TAIL_BYTES_MAX }
    }
}

/// What is known of a log that has ended.
#[derive(Debug)]
pub struct LogSummary {
    /// How much was written, kept or not.
    pub bytes: u64,
    /// How much of that was dropped in the middle.
    pub dropped_bytes: u64,
    /// The SHA-256 of all that was written, kept or not.
    pub sha256: [u8; 32],
    /// What the sink said when it failed; it has less than it should then.
    pub failure: Option<io::Error>,
}

/// The log of one attempt of a step, while it is written.
pub struct Log<S> {
    sink: S,
    limits: LogLimits,
    digest: Sha256,
    bytes: u64,
    /// How much of the head was taken so far.
    head_bytes: usize,
    /// The end of the head, not given to the sink yet, and since when.
    pending: Vec<u8>,
    pending_since: Option<Instant>,
    /// The last bytes of all, those of the head too.
    tail: VecDeque<u8>,
    failure: Option<io::Error>,
}

impl<S> std::fmt::Debug for Log<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("bytes", &self.bytes)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl<S: LogSink> Log<S> {
    /// Begins a log.
    pub fn new(sink: S, limits: LogLimits) -> Self {
        Self {
            sink,
            limits,
            digest: Sha256::new(),
            bytes: 0,
            head_bytes: 0,
            pending: Vec::new(),
            pending_since: None,
            tail: VecDeque::new(),
            failure: None,
        }
    }

    /// Appends bytes, masked already.
    ///
    /// Never fails: a sink that failed is left alone, and [`LogSummary::failure`] tells it at the end, so that a full
    /// disk does not block the step that writes.
    pub async fn write(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
        self.keep_tail(bytes);
        let room = self.limits.head_bytes_max - self.head_bytes;
        let head = &bytes[..bytes.len().min(room)];
        if head.is_empty() {
            return;
        }
        self.head_bytes += head.len();
        self.pending.extend_from_slice(head);
        self.pending_since.get_or_insert_with(Instant::now);
        if self.pending.len() >= FLUSH_BYTES || self.head_bytes == self.limits.head_bytes_max {
            self.flush().await;
        }
    }

    /// Returns when [`Log::flush`] is to be called, if nothing more is written until then.
    #[must_use]
    pub fn flush_at(&self) -> Option<Instant> {
        self.pending_since.map(|since| since + FLUSH_AFTER)
    }

    /// Gives to the sink what it has not got of the head.
    pub async fn flush(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.pending_since = None;
        self.give(&pending).await;
        // Its memory is used again.
        self.pending = pending;
        self.pending.clear();
    }

    /// Returns how much was written so far, kept or not.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the last lines, for an error message: at most `lines` of them and at most `bytes`.
    ///
    /// What is no text is replaced; a line that is cut by the limit begins in its middle.
    #[must_use]
    pub fn tail(&self, lines: usize, bytes: usize) -> String {
        let skipped = self.tail.len().saturating_sub(bytes);
        let kept: Vec<u8> = self.tail.range(skipped..).copied().collect();
        let mut kept = kept.strip_suffix(b"\n").unwrap_or(&kept);
        if skipped > 0 {
            // The limit may have cut a character in two: the rest of it is no text.
            let inside = kept.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
            kept = &kept[inside..];
        }
        let mut wanted: Vec<&[u8]> = kept.rsplit(|byte| *byte == b'\n').take(lines).collect();
        wanted.reverse();
        String::from_utf8_lossy(&wanted.join(&b'\n')).into_owned()
    }

    /// Ends the log: gives the rest to the sink, and returns that with what is known of the whole.
    pub async fn finish(mut self) -> (S, LogSummary) {
        self.flush().await;
        let mut tail = std::mem::take(&mut self.tail);
        let tail_start = self.bytes - tail.len() as u64;
        let head_end = self.head_bytes as u64;
        let dropped_bytes = tail_start.saturating_sub(head_end);
        if dropped_bytes > 0 {
            self.give(format!("\n[waypost: {dropped_bytes} bytes left out here]\n").as_bytes()).await;
        }
        // What the head has is not given again.
        let known = usize::try_from(head_end.saturating_sub(tail_start)).expect("not longer than the tail");
        for chunk in tail.make_contiguous()[known..].chunks(FLUSH_BYTES) {
            self.give(chunk).await;
        }
        let sha256 = self.digest.finalize().into();
        (self.sink, LogSummary { bytes: self.bytes, dropped_bytes, sha256, failure: self.failure })
    }

    async fn give(&mut self, bytes: &[u8]) {
        if bytes.is_empty() || self.failure.is_some() {
            return;
        }
        self.failure = self.sink.write(bytes).await.err();
    }

    fn keep_tail(&mut self, bytes: &[u8]) {
        let limit = self.limits.tail_bytes_max;
        let bytes = &bytes[bytes.len().saturating_sub(limit)..];
        let length = self.tail.len() + bytes.len();
        self.tail.drain(..length.saturating_sub(limit));
        let length = self.tail.len() + bytes.len();
        if length > self.tail.capacity() {
            // Doubled as usual, but never beyond the limit.
            let wanted = length.max(self.tail.capacity() * 2).min(limit);
            self.tail.reserve_exact(wanted - self.tail.len());
        }
        self.tail.extend(bytes);
    }
}
