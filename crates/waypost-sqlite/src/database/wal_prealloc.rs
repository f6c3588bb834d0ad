//! Preallocates WAL space for future commits, many frames at a time.
//!
//! A commit that extends the log file waits for the disk twice: for its pages, and for the inode with the new
//! length. SQLite restarts the log after a checkpoint and never shortens it. But a newly opened store starts
//! with an empty log, and most runs end before the log is full once, so nearly every commit extends it.
//! Preallocated zeros are not frames, and SQLite reads a log up to the first invalid frame, as after a longer
//! log.
//!
//! ```text
//!   without   pages + sync + inode   pages + sync + inode   pages + sync + inode ...
//!   with      pages, zeros + sync + inode   pages + sync   pages + sync ...
//! ```
//!
//! Only the holder of the write lock may preallocate: no other process then writes or removes the log.
//! Preallocation needs plenty of free space, because the last space is for records and for the pages of the
//! WAL index.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::fstatvfs;
use rustix::process::{Resource, getrlimit};

use crate::database::file_identity::FileIdentities;
use crate::database::open::commits_group;
use crate::database::schema::PAGE_BYTES;

/// Bytes of a log before its first frame (<https://www.sqlite.org/fileformat2.html#walformat>).
const HEADER_BYTES: u64 = 32;
/// Bytes of a frame: a header and a page. Frames of an older store may be smaller.
const FRAME_BYTES: u64 = 24 + PAGE_BYTES as u64;
/// Fewest preallocated frames: space for eight commits of a single run, written faster than an inode.
const AHEAD_MIN: u64 = 16;
/// Most preallocated frames. The log of a single run has little more than twice as many before its
/// checkpoint.
const AHEAD_MAX: u64 = 128;
/// Frames of most commits of a single run: the pages of its record and its row, and their parents in case of
/// a split.
const FRAMES_PER_COMMIT: u64 = 4;
/// Free space that must remain on the disk: many times the preallocated bytes.
const SPARE_BYTES: u64 = 64 << 20;

/// Frames of the log after the last commit of a connection.
pub(crate) type FramesSeen = Arc<AtomicU64>;

/// The preallocated space of a log.
#[derive(Debug)]
pub(crate) struct WalPrealloc {
    frames: FramesSeen,
    /// Frames at the last check of the file; a lower number means that the log restarted, possibly in a
    /// shorter file.
    frames_then: u64,
    /// Length of the file at that check.
    bytes: u64,
    /// Whether preallocation stopped after a failure.
    is_given_up: bool,
}

impl WalPrealloc {
    pub(crate) fn new(frames: FramesSeen) -> Self {
        Self { frames, frames_then: 0, bytes: 0, is_given_up: false }
    }

    /// Preallocates space for the current commit, if it has the usual size, and for some later commits. Call
    /// this within the transaction.
    ///
    /// Nothing depends on success: without preallocated space, the commit itself may still find space or
    /// report an error.
    pub(crate) fn extend(&mut self, files: &FileIdentities) {
        // A large commit writes many pages, so the inode is a small part of its wait.
        if self.is_given_up || commits_group() {
            return;
        }
        let frames = self.frames.load(Ordering::Relaxed);
        let needed = HEADER_BYTES + (frames + FRAMES_PER_COMMIT) * FRAME_BYTES;
        if self.bytes >= needed && frames >= self.frames_then {
            return;
        }
        let made = match files.open_log() {
            Some(log) => lengthen(log, needed, frames.clamp(AHEAD_MIN, AHEAD_MAX)),
            None => Ok(None),
        };
        self.frames_then = frames;
        match made {
            Ok(Some(bytes)) => self.bytes = bytes,
            Ok(None) | Err(_) => self.is_given_up = true,
        }
    }
}

/// Extends a file by `frames` frames unless it has `needed` bytes. Returns the length, or `None` if free
/// space is scarce.
///
/// # Errors
/// The write failed; the length is unchanged.
fn lengthen(mut file: File, needed: u64, frames: u64) -> io::Result<Option<u64>> {
    // The usual query of the length also requests times, which is costly (`file_identity.rs`).
    let bytes = file.seek(SeekFrom::End(0))?;
    if bytes >= needed {
        return Ok(Some(bytes));
    }
    // A file that exceeds a size limit kills the process, unless the signal is handled.
    let system = fstatvfs(&file)?;
    let is_limited = getrlimit(Resource::Fsize).current.is_some();
    if is_limited || system.f_bavail.saturating_mul(system.f_frsize) < SPARE_BYTES {
        return Ok(None);
    }
    let zeros = vec![0; (frames * FRAME_BYTES) as usize];
    if let Err(error) = file.write_all_at(&zeros, bytes) {
        // Free the partly written zeros; all frames are before them.
        file.set_len(bytes)?;
        return Err(error);
    }
    Ok(Some(bytes + zeros.len() as u64))
}
