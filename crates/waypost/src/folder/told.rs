//! What the log of a run tells of, newest first: a witness that stands outside the store's own files.
//!
//! A line of `events.jsonl` is written after its record was acknowledged and never before. So a record that a line tells
//! of was there, and where the store does not have it, the store has lost it: a log of SQLite that it cuts off at the
//! first changed bit, a database that somebody took away, or put an older copy in the place of.
//!
//! What may be concluded, case by case:
//!
//! ```text
//!   kill, power cut, full disk   the log lags behind the store, or ends in a torn line: it says nothing of what it lacks
//!   order of blocks in a power   lines may be missing amid others; each one that can be read was written after its
//!     cut                        record was on the disk, so it is believed by itself
//!   durability `async`           records were acknowledged before they were on the disk: a power cut may take them and
//!                                leave their lines. They are lost all the same, and it is said, but as nobody's doing
//!   a log that somebody removed  tells nothing; the next holder begins another one
//!   a changed bit in a line      run, branch and seq stand in it twice; where they differ, the line is no witness
//!   a run deleted, made anew     the old log is gone for good before the records are
//! ```
//!
//! Nothing but the loss is learnt from it: what the lost records held is not in the log.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::disk::{Disk, Kind};
use crate::events::Cursor;
use crate::id::{BranchPath, RunId};

/// The name of the log.
pub(super) const EVENTS_FILE: &str = "events.jsonl";
/// How much is read at first: most lines are below 1 KB, and most often one is enough.
const TAIL_BYTES: usize = 4 << 10;
/// Most that is read of a log, from its end: a hundred thousand records.
const LOG_BYTES_MAX: u64 = 64 << 20;

/// Says whether a log stands in the folder of a run: then the run was acknowledged once.
pub fn has_told(disk: &dyn Disk, folder: &Path) -> bool {
    let found = disk.metadata(&folder.join(EVENTS_FILE));
    found.is_ok_and(|file| file.kind == Kind::File && file.len > 0)
}

/// The records that the log of a run tells of, newest first, each once as long as its lines stand together.
///
/// Must be made before the store is looked at: what is appended meanwhile is then not missed. A log that cannot be read
/// tells nothing.
#[derive(Debug)]
pub struct Told<'a> {
    disk: &'a dyn Disk,
    path: PathBuf,
    run: RunId,
    /// What is before this in the file was not read.
    from: u64,
    /// How far reading goes back.
    until: u64,
    /// What was read and not told; ends with the end of a line.
    rest: Vec<u8>,
    last: Option<(BranchPath, u64)>,
}

/// What every line has, of whatever version.
#[derive(Deserialize)]
struct Line {
    cursor: Cursor,
    run: RunId,
    #[serde(rename = "scope")]
    branch: BranchPath,
    seq: u64,
}

impl<'a> Told<'a> {
    /// Reads the end of the log in the folder of `run`.
    pub fn newest_first(disk: &'a dyn Disk, folder: &Path, run: &RunId) -> Self {
        let path = folder.join(EVENTS_FILE);
        let len = disk.metadata(&path).ok().filter(|file| file.kind == Kind::File).map_or(0, |file| file.len);
        let until = len.saturating_sub(LOG_BYTES_MAX);
        let mut told = Self { disk, path, run: run.clone(), from: len, until, rest: Vec::new(), last: None };
        // A torn line at the end is not there yet.
        while !told.rest.contains(&b'\n') && told.read_more() {}
        let whole = told.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        told.rest.truncate(whole);
        told
    }

    /// Returns where the log is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts what stands before `rest` in front of it; says whether there was anything.
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

    /// Takes the last line off what was read.
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

impl Iterator for Told<'_> {
    type Item = (BranchPath, u64);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Ok(line) = serde_json::from_slice::<Line>(&self.line()?) else { continue };
            let Line { cursor, run, branch, seq } = line;
            let told = (branch, seq);
            let agrees = run == self.run && cursor.branch == told.0 && cursor.seq == told.1;
            if agrees && self.last.as_ref() != Some(&told) {
                self.last = Some(told.clone());
                return Some(told);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    fn line(seq: u64) -> String {
        let pad = "x".repeat(300);
        format!(r#"{{"v":1,"cursor":"main@{seq}.0","run":"r-1","scope":"main","seq":{seq},"pad":"{pad}"}}"#)
    }

    fn told(text: &str) -> Vec<u64> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(EVENTS_FILE), text).unwrap();
        let run = RunId::new("r-1").unwrap();
        Told::newest_first(&RealDisk, folder.path(), &run).map(|(_, seq)| seq).collect()
    }

    #[test]
    fn a_log_is_told_from_its_end_to_its_begin() {
        let text: String = (1..=1000).map(|seq| line(seq) + "\n" + &line(seq) + "\n").collect();

        assert_eq!(told(&text), (1..=1000).rev().collect::<Vec<_>>());
        assert_eq!(told(""), [0; 0]);
        assert_eq!(told("\n"), [0; 0]);
    }

    #[test]
    fn what_is_torn_or_contradicts_itself_tells_nothing() {
        let (one, two, three) = (line(1), line(2), line(3));

        assert_eq!(told(&format!("{one}\n{two}\n{}", &three[..200])), [2, 1]);
        assert_eq!(told(&format!("{one}\n{two}\n{three}")), [2, 1], "its end may be missing");
        let flipped = three.replace("main@3.0", "main@7.0");
        assert_eq!(told(&format!("{one}\n{flipped}\n{two}\n")), [2, 1]);
        assert_eq!(told(&format!("{one}\n{}\n{two}\n", "\0".repeat(9000))), [2, 1]);
        assert_eq!(told(&three.replace("r-1", "r-2")), [0; 0]);
    }
}
