//! Room in the log for commits to come: it grows by many frames at once.
//!
//! A commit that makes the file of the log longer waits for the disk twice, once for its pages and once for the inode
//! that has the new length. SQLite begins a log anew once it was copied into the database, and never makes it shorter; but
//! whoever opens a store begins with an empty one, and most runs end before it was full once: nearly all that they
//! wait for is that. Zeros that were written ahead are no frames, and SQLite reads a log up to what is none, as it does
//! where an earlier one was longer.
//!
//! ```text
//!   without   pages + sync + inode   pages + sync + inode   pages + sync + inode ...
//!   with      pages, zeros + sync + inode   pages + sync   pages + sync ...
//! ```
//!
//! Only who has the write lock may do this: nobody else writes to the log then, nor removes it. And only where there is
//! plenty of space: the last of it is for records, and for those who wait for a page of the index beside the log.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::fstatvfs;
use rustix::process::{Resource, getrlimit};

use crate::crowd::is_shared_by_many;
use crate::present::Present;
use crate::schema::PAGE_BYTES;

/// Bytes of a log before its first frame (<https://www.sqlite.org/fileformat2.html#walformat>).
const HEADER_BYTES: u64 = 32;
/// Bytes of a frame: some before its page, and that. Of an older store they may be fewer, for which this is room as well.
const FRAME_BYTES: u64 = 24 + PAGE_BYTES as u64;
/// So many frames are room for eight commits of a run by itself, and are written in less time than an inode.
const AHEAD_MIN: u64 = 16;
/// The log of a run by itself has few more than twice as many before it is copied.
const AHEAD_MAX: u64 = 128;
/// Frames of most commits of a run by itself: the page of its record, that of its row, and those above, should one be split.
const FRAMES_PER_COMMIT: u64 = 4;
/// Space that must be left on the disk: many times what is taken.
const SPARE_BYTES: u64 = 64 << 20;

/// Frames that the log had after the last commit of a connection.
pub(crate) type FramesSeen = Arc<AtomicU64>;

/// The room that a log has.
#[derive(Debug)]
pub(crate) struct Room {
    frames: FramesSeen,
    /// How many they were when the file was last looked at: fewer, and the log began anew, maybe in a shorter file.
    frames_then: u64,
    /// The length of the file then.
    bytes: u64,
    /// It is left as it is, since it could not be made longer.
    is_given_up: bool,
}

impl Room {
    pub(crate) fn new(frames: FramesSeen) -> Self {
        Self { frames, frames_then: 0, bytes: 0, is_given_up: false }
    }

    /// Makes room for the commit that is about to end, if it is a usual one, and for some more; to be called within its
    /// transaction.
    ///
    /// Nothing depends on it: where there is no space for it the commit itself may still find some, or says so.
    pub(crate) fn make(&mut self, present: &Present) {
        // A commit of many waits for its many pages, and what it waits for the inode is little of that.
        if self.is_given_up || is_shared_by_many() {
            return;
        }
        let frames = self.frames.load(Ordering::Relaxed);
        let needed = HEADER_BYTES + (frames + FRAMES_PER_COMMIT) * FRAME_BYTES;
        if self.bytes >= needed && frames >= self.frames_then {
            return;
        }
        let made = match present.open_log() {
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

/// Makes a file longer by so many frames unless it has `needed` bytes; returns how many it has, or none if there is not
/// plenty of space.
///
/// # Errors
/// It could not be written; it is as long as it was.
fn lengthen(mut file: File, needed: u64, frames: u64) -> io::Result<Option<u64>> {
    // Asking for the length in the usual way asks for the times as well, and has a cost (`present.rs`).
    let bytes = file.seek(SeekFrom::End(0))?;
    if bytes >= needed {
        return Ok(Some(bytes));
    }
    // A file that would be too large for a limit ends the process, if nobody has seen to that.
    let system = fstatvfs(&file)?;
    let is_limited = getrlimit(Resource::Fsize).current.is_some();
    if is_limited || system.f_bavail.saturating_mul(system.f_frsize) < SPARE_BYTES {
        return Ok(None);
    }
    let zeros = vec![0; (frames * FRAME_BYTES) as usize];
    if let Err(error) = file.write_all_at(&zeros, bytes) {
        // What was written of it would be missing elsewhere; all frames lie before it.
        file.set_len(bytes)?;
        return Err(error);
    }
    Ok(Some(bytes + zeros.len() as u64))
}
