//! Log of a step, within a size limit.
//!
//! Owns the layout of a log: head, a line with the number of dropped bytes, and tail. Whatever the output of
//! a step, a log takes [`LOG_HEAD_BYTES_MAX`] and [`LOG_TAIL_BYTES_MAX`] of space, and little more than the
//! latter of memory. The input is already masked by [`record`].
//!
//! Deliberately does not know the destination of the bytes (a [`LogSink`]), nor their source.

mod record;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

pub use self::record::{CAPTURE_BYTES_MAX, Captured, Recorded, Streams, record};

/// Size of the kept head. About 50,000 lines, more than anyone reads; a thousand steps still fit on a usual
/// disk.
pub const LOG_HEAD_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Size of the kept tail, where failures are explained. Held in memory, once per running step.
pub const LOG_TAIL_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes gathered per write to the sink: one chunk of a blob.
const FLUSH_BYTES: usize = 64 * 1024;

/// Kept bytes of a log in a database: a thousand runs a day of ten steps stay below 3 GB a day, however much they print.
pub const LOG_DATABASE_BYTES_MAX: usize = 256 << 10;

/// Longest delay before a write to the sink, and so the loss after a kill of the engine. A reader of the live
/// log hardly notices the delay, and endless output costs five writes a second.
const FLUSH_AFTER: Duration = Duration::from_millis(200);

/// Destination of a log.
#[async_trait]
pub trait LogSink: Send {
    /// Appends bytes to the log, in batches of about 64 KiB or of 200 ms.
    ///
    /// # Errors
    /// The bytes may be lost. Nothing more is written to this sink.
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Size limits of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Size of the head.
    pub head_bytes_max: usize,
    /// Size of the tail.
    pub tail_bytes_max: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { head_bytes_max: LOG_HEAD_BYTES_MAX, tail_bytes_max: LOG_TAIL_BYTES_MAX }
    }
}

impl LogLimits {
    /// Returns the limits for logs in the rows of a database.
    pub(crate) fn of_database() -> Self {
        Self { head_bytes_max: LOG_DATABASE_BYTES_MAX / 2, tail_bytes_max: LOG_DATABASE_BYTES_MAX / 2 }
    }
}

/// Summary of a finished log.
#[derive(Debug)]
pub struct LogSummary {
    /// Bytes written, kept or not.
    pub bytes: u64,
    /// Bytes dropped in the middle.
    pub dropped_bytes: u64,
    /// SHA-256 of all bytes written, kept or not.
    pub sha256: [u8; 32],
    /// First error of the sink; then the kept log is incomplete.
    pub failure: Option<io::Error>,
}

/// Log of one attempt, while it is written.
pub struct Log<S> {
    sink: S,
    limits: LogLimits,
    digest: Sha256,
    bytes: u64,
    /// Bytes of the head so far.
    head_bytes: usize,
    /// End of the head not yet written to the sink, and the time of its first byte.
    pending: Vec<u8>,
    pending_since: Option<Instant>,
    /// Last bytes of all output, including the head's.
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
    /// Makes an empty log.
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

    /// Appends bytes, already masked.
    ///
    /// Never fails. After an error the sink gets no more writes, and [`LogSummary::failure`] has the error. A
    /// full disk therefore does not block the step.
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

    /// Returns when to call [`Log::flush`], if nothing more is written until then.
    #[must_use]
    pub fn flush_at(&self) -> Option<Instant> {
        self.pending_since.map(|since| since + FLUSH_AFTER)
    }

    /// Writes the pending part of the head to the sink.
    pub async fn flush(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.pending_since = None;
        self.give(&pending).await;
        // Keeps the allocation.
        self.pending = pending;
        self.pending.clear();
    }

    /// Returns the number of bytes written so far, kept or not.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the last lines, for an error message: at most `lines` lines and at most `bytes` bytes.
    ///
    /// Invalid UTF-8 is replaced; the first line may be cut by the limit.
    #[must_use]
    pub fn tail(&self, lines: usize, bytes: usize) -> String {
        let skipped = self.tail.len().saturating_sub(bytes);
        let kept: Vec<u8> = self.tail.range(skipped..).copied().collect();
        let mut kept = kept.strip_suffix(b"\n").unwrap_or(&kept);
        if skipped > 0 {
            // The limit may have split a character: the remaining bytes are skipped.
            let inside = kept.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
            kept = &kept[inside..];
        }
        let mut wanted: Vec<&[u8]> = kept.rsplit(|byte| *byte == b'\n').take(lines).collect();
        wanted.reverse();
        String::from_utf8_lossy(&wanted.join(&b'\n')).into_owned()
    }

    /// Ends the log: writes the rest to the sink, and returns the sink and a summary.
    pub async fn finish(mut self) -> (S, LogSummary) {
        self.flush().await;
        let mut tail = std::mem::take(&mut self.tail);
        let tail_start = self.bytes - tail.len() as u64;
        let head_end = self.head_bytes as u64;
        let dropped_bytes = tail_start.saturating_sub(head_end);
        if dropped_bytes > 0 {
            self.give(format!("\n[waypost: {dropped_bytes} bytes omitted here]\n").as_bytes()).await;
        }
        // Bytes of the head are not written again.
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
