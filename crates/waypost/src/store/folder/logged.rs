//! The log of a run as proof of acknowledged records, newest first, independent of the store's own files.
//!
//! A line of `events.jsonl` is written only after the acknowledgement of its record. A record with a line
//! therefore existed. If the store lacks the record, the store has lost it. Examples: a log that SQLite
//! truncates at the first changed bit, a deleted database, or a database replaced by an older copy.
//!
//! Conclusions, case by case:
//!
//! ```text
//!   kill, power cut, full disk   the log lags the store, or ends in a torn line: missing lines prove nothing
//!   order of blocks in a power   lines may be missing in the middle; each readable line was written after its record
//!     cut                        was on the disk, so it counts on its own
//!   durability `async`           records were acknowledged before they were on the disk: a power cut may lose them and
//!                                keep their lines. The loss is real, and is reported without blame
//!   a log that was removed       proves nothing; the next holder begins another one
//!   a changed bit in a line      a line has run, scope and seq twice; if they differ, the line is ignored
//!   a run deleted, made again    the old log is removed durably before the records
//! ```
//!
//! Only the loss is known from the log: it does not have the content of the lost records.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::id::{RunId, ScopePath};
use crate::projection::events::Cursor;
use crate::system::disk::{Disk, Kind};

/// The name of the log.
pub(super) const EVENTS_FILE: &str = "events.jsonl";
/// Bytes of the first read: most lines are below 1 KB, and usually a single line suffices.
const TAIL_BYTES: usize = 4 << 10;
/// Most bytes read from the end of a log: a hundred thousand records.
const LOG_BYTES_MAX: u64 = 64 << 20;

/// Returns whether a run's folder has a log, which proves that the run was acknowledged.
pub fn has_log(disk: &dyn Disk, folder: &Path) -> bool {
    let found = disk.metadata(&folder.join(EVENTS_FILE));
    found.is_ok_and(|file| file.kind == Kind::File && file.len > 0)
}

/// The records in the log of a run, newest first. A record with adjacent lines is returned once.
///
/// Create it before reading the store, so that concurrent appends are not reported as lost. An unreadable log
/// yields nothing.
#[derive(Debug)]
pub struct LoggedRecords<'a> {
    disk: &'a dyn Disk,
    path: PathBuf,
    run: RunId,
    /// The offset of the first byte read so far.
    from: u64,
    /// The offset where reading stops.
    until: u64,
    /// Bytes read and not yet yielded; ends at a line end.
    rest: Vec<u8>,
    last: Option<(ScopePath, u64)>,
}

/// The members of a line in every version.
#[derive(Deserialize)]
struct LogLine {
    cursor: Cursor,
    run: RunId,
    scope: ScopePath,
    seq: u64,
}

impl<'a> LoggedRecords<'a> {
    /// Reads the end of the log in the folder of `run`.
    pub fn newest_first(disk: &'a dyn Disk, folder: &Path, run: &RunId) -> Self {
        let path = folder.join(EVENTS_FILE);
        let len = disk.metadata(&path).ok().filter(|file| file.kind == Kind::File).map_or(0, |file| file.len);
        let until = len.saturating_sub(LOG_BYTES_MAX);
        let mut record =
            Self { disk, path, run: run.clone(), from: len, until, rest: Vec::new(), last: None };
        // Ignore a torn line at the end.
        while !record.rest.contains(&b'\n') && record.read_more() {}
        let whole = record.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        record.rest.truncate(whole);
        record
    }

    /// Returns the path of the log.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Prepends the bytes before `rest`; returns whether there were any.
    fn read_more(&mut self) -> bool {
        let bytes = (TAIL_BYTES.max(self.rest.len()) as u64).min(self.from - self.until);
        let from = self.from - bytes;
        let Ok(mut before) = self.disk.read_at(&self.path, from, bytes as usize) else { return false };
        if bytes == 0 || before.len() as u64 != bytes {
            return false;
        }
        before.append(&mut self.rest);
        (self.from, self.rest) = (from, before);
        true
    }

    /// Removes and returns the last line of `rest`.
    fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            let end = self.rest.len().checked_sub(1)?;
            match self.rest[..end].iter().rposition(|byte| *byte == b'\n') {
                Some(before) => return Some(self.rest.split_off(before + 1)),
                None if self.from == 0 => return Some(std::mem::take(&mut self.rest)),
                None if self.read_more() => {}
                None => return None,
            }
        }
    }
}

impl Iterator for LoggedRecords<'_> {
    type Item = (ScopePath, u64);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Ok(line) = serde_json::from_slice::<LogLine>(&self.line()?) else { continue };
            let LogLine { cursor, run, scope, seq } = line;
            let record = (scope, seq);
            let agrees = run == self.run && cursor.scope == record.0 && cursor.seq == record.1;
            if agrees && self.last.as_ref() != Some(&record) {
                self.last = Some(record.clone());
                return Some(record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::disk::RealDisk;

    fn line(seq: u64) -> String {
        let pad = "x".repeat(300);
        format!(r#"{{"v":1,"cursor":"main@{seq}.0","run":"r-1","scope":"main","seq":{seq},"pad":"{pad}"}}"#)
    }

    fn record(text: &str) -> Vec<u64> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(EVENTS_FILE), text).unwrap();
        let run = RunId::new("r-1").unwrap();
        LoggedRecords::newest_first(&RealDisk, folder.path(), &run).map(|(_, seq)| seq).collect()
    }

    #[test]
    fn a_log_is_told_from_its_end_to_its_begin() {
        let text: String = (1..=1000).map(|seq| line(seq) + "\n" + &line(seq) + "\n").collect();

        assert_eq!(record(&text), (1..=1000).rev().collect::<Vec<_>>());
        assert_eq!(record(""), [0; 0]);
        assert_eq!(record("\n"), [0; 0]);
    }

    #[test]
    fn what_is_torn_or_contradicts_itself_tells_nothing() {
        let (one, two, three) = (line(1), line(2), line(3));

        assert_eq!(record(&format!("{one}\n{two}\n{}", &three[..200])), [2, 1]);
        assert_eq!(record(&format!("{one}\n{two}\n{three}")), [2, 1], "its end may be missing");
        let flipped = three.replace("main@3.0", "main@7.0");
        assert_eq!(record(&format!("{one}\n{flipped}\n{two}\n")), [2, 1]);
        assert_eq!(record(&format!("{one}\n{}\n{two}\n", "\0".repeat(9000))), [2, 1]);
        assert_eq!(record(&three.replace("r-1", "r-2")), [0; 0]);
    }
}
