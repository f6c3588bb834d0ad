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
//! Only who has the write lock may do this: nobody else writes to the log then, nor removes it.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::crowd::is_shared_by_many;
use crate::present::Present;
use crate::schema::PAGE_BYTES;

/// Bytes of a log before its first frame (https://www.sqlite.org/fileformat2.html#walformat).
const HEADER_BYTES: u64 = 32;
/// Bytes of a frame: some before its page, and that. Of an older store they may be fewer, for which this is room as well.
const FRAME_BYTES: u64 = 24 + PAGE_BYTES as u64;
/// So many frames are room for eight commits of a run by itself, and are written in less time than an inode.
const AHEAD_MIN: u64 = 16;
/// The log of a run by itself has few more than twice as many before it is copied.
const AHEAD_MAX: u64 = 128;
/// Frames of a commit: the page of its record, that of the row of its run, and those above, should one be split.
const FRAMES_PER_COMMIT: u64 = 4;

/// Frames that the log had after the last commit of a connection.
pub(crate) type FramesSeen = Arc<AtomicU64>;

/// The room that a log has.
#[derive(Debug)]
pub(crate) struct Room {
    frames: FramesSeen,
    /// The least length that the file has; none if it is left as it is, since it could not be made longer.
    bytes: Option<u64>,
}

impl Room {
    pub(crate) fn new(frames: FramesSeen) -> Self {
        Self { frames, bytes: Some(0) }
    }

    /// Makes room for the commit that is about to end, and some more; to be called within its transaction.
    ///
    /// Nothing depends on it: where there is no space for it the commit itself may still find some, or says so.
    pub(crate) fn make(&mut self, present: &Present) {
        // A commit of many waits for its many pages, and what it waits for the inode is little of that.
        if is_shared_by_many() {
            return;
        }
        let frames = self.frames.load(Ordering::Relaxed);
        let needed = HEADER_BYTES + (frames + FRAMES_PER_COMMIT) * FRAME_BYTES;
        if self.bytes.is_some_and(|bytes| bytes < needed) {
            let log = present.open_log();
            self.bytes = log.and_then(|log| lengthen(log, needed, frames.clamp(AHEAD_MIN, AHEAD_MAX)).ok());
        }
    }
}

/// Makes a file longer by so many frames unless it has `needed` bytes; returns how many it has.
fn lengthen(mut file: File, needed: u64, frames: u64) -> std::io::Result<u64> {
    static ZEROS: [u8; (AHEAD_MAX * FRAME_BYTES) as usize] = [0; (AHEAD_MAX * FRAME_BYTES) as usize];
    // Asking for the length in the usual way asks for the times as well, and has a cost (`present.rs`).
    let bytes = file.seek(SeekFrom::End(0))?;
    if bytes >= needed {
        return Ok(bytes);
    }
    let ahead = &ZEROS[..(frames * FRAME_BYTES) as usize];
    file.write_all_at(ahead, bytes)?;
    Ok(bytes + ahead.len() as u64)
}
