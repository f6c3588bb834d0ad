//! The tail journal: the newest acknowledged records of a run, whose log lines may not be written yet.
//!
//! An acknowledged record must be known outside the database before the caller gets the answer, so that its
//! loss is detectable (`tail_check.rs`). The lines of `events.jsonl` serve this purpose, but are too slow for
//! each step and are written later (`projector.rs`). This file covers the interval with a small write at a fixed
//! place:
//!
//! ```text
//!   runs/RUN/recent      128 entries of 128 bytes, a ring
//!
//!     41 main 17                                  ...   93c1f0a2be6d7714
//!     42 each:b 3                                 ...   0d5528e1c7aa9f36
//!     ^^ which entry, ^^^ scope and seq; spaces;       the first 16 digits of the SHA-256 of run and entry
//! ```
//!
//! An entry is written after its record is durable, so every readable entry is true forever: a scope and seq
//! are never reused. An incomplete entry is ignored. An entry is overwritten only after its log line is
//! written; without space or without a file, the caller waits for the log line. The file exists while a
//! worker holds the run. After a kill, the file stays until a later worker has written to it and released the
//! run. A reader must not remove the evidence of a loss.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use waypost::Digest;
use waypost::id::{RunId, ScopePath};
use waypost::record::Record;

use crate::database::folder::open_flags;
use crate::lock;

/// Name of the file in the folder of a run.
const RECENT_FILE: &str = "recent";
const ENTRY_BYTES: usize = 128;
/// More entries than a single run commits while the log thread sleeps. Every reader of a run reads all
/// entries.
const ENTRIES: u64 = 128;
/// Length of the check in digits.
const CHECK_DIGITS: usize = 16;

/// The tail journal of a run, as seen by its only writer.
#[derive(Debug)]
pub(crate) struct AckJournal {
    run: RunId,
    path: PathBuf,
    file_state: Mutex<JournalFile>,
    /// Last entry whose log line is written; all earlier lines are written too.
    logged: AtomicU64,
}

#[derive(Debug)]
enum JournalFile {
    Closed,
    Open {
        file: File,
        /// The last written entry.
        newest: u64,
    },
    /// The file could not be written; its entries stay true.
    Failed,
}

impl AckJournal {
    /// Returns the journal in the folder of a run; the first entry creates the file.
    pub(crate) fn new(folder: &Path, run: &RunId) -> Self {
        Self {
            run: run.clone(),
            path: path_in(folder),
            file_state: Mutex::new(JournalFile::Closed),
            logged: AtomicU64::new(0),
        }
    }

    /// Writes the entries of committed records, before their acknowledgement. Returns the last entry. `None`
    /// means that the log lines must be written before the acknowledgement.
    pub(crate) fn record(&self, records: &[Record]) -> Option<u64> {
        let mut file_state = lock(&self.file_state);
        if matches!(*file_state, JournalFile::Closed) {
            *file_state = self.open().unwrap_or(JournalFile::Failed);
        }
        let JournalFile::Open { file, newest } = &mut *file_state else { return None };
        let entries = self.entries(*newest, records)?;
        let count = (entries.len() / ENTRY_BYTES) as u64;
        if *newest + count - self.logged.load(Ordering::Acquire) > ENTRIES {
            return None;
        }
        if write_ring(file, *newest, &entries).is_err() {
            *file_state = JournalFile::Failed;
            return None;
        }
        *newest += count;
        Some(*newest)
    }

    /// Records that the log lines up to an entry are written.
    pub(crate) fn mark_logged(&self, entry: u64) {
        self.logged.fetch_max(entry, Ordering::Release);
    }

    /// Removes the file, after all log lines are written and the run is released. A file of a killed worker
    /// stays if nothing was written since, because it may show a loss.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match std::mem::replace(&mut *lock(&self.file_state), JournalFile::Closed) {
            JournalFile::Open { .. } => remove(&self.path),
            JournalFile::Closed | JournalFile::Failed => Ok(()),
        }
    }

    /// Opens the file and continues after the entries of an earlier writer.
    fn open(&self) -> io::Result<JournalFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(open_flags());
        let mut file = options.open(&self.path)?;
        let newest = entries_in(&mut file, &self.run)?.first().map_or(0, |entry| entry.number);
        self.logged.store(newest, Ordering::Release);
        Ok(JournalFile::Open { file, newest })
    }

    /// Returns the entries for the newest record of each scope; `None` if an entry is too long.
    fn entries(&self, newest: u64, records: &[Record]) -> Option<Vec<u8>> {
        let mut entries = Vec::with_capacity(2 * ENTRY_BYTES);
        let mut number = newest;
        for (place, record) in records.iter().enumerate() {
            let header = record.header();
            let is_newest = |later: &Record| later.header().scope != header.scope;
            if !records[place + 1..].iter().take(BATCH_LOOKED_AT_MAX).all(is_newest) {
                continue;
            }
            number += 1;
            let begin = entries.len();
            let acknowledged = write!(entries, "{number} {} {}", header.scope, header.seq);
            acknowledged.expect("writing to memory does not fail");
            let text_end = begin + ENTRY_BYTES - CHECK_DIGITS - 2;
            if entries.len() > text_end {
                return None;
            }
            let check = check(&self.run, &entries[begin..]);
            entries.resize(text_end, b' ');
            writeln!(entries, " {check}").expect("writing to memory does not fail");
        }
        Some(entries)
    }
}

/// Number of later records checked for a newer record of the same scope; a superfluous entry is harmless.
const BATCH_LOOKED_AT_MAX: usize = 8;

/// Writes entries after the last written entry, wrapping around at the end of the file.
fn write_ring(file: &File, newest: u64, entries: &[u8]) -> io::Result<()> {
    let place = newest % ENTRIES;
    let before_end = (ENTRIES - place) as usize * ENTRY_BYTES;
    let (here, at_start) = entries.split_at(before_end.min(entries.len()));
    file.write_all_at(here, place * ENTRY_BYTES as u64)?;
    if at_start.is_empty() { Ok(()) } else { file.write_all_at(at_start, 0) }
}

fn check(run: &RunId, entry: &[u8]) -> String {
    let whole = [run.as_str().as_bytes(), b" ", entry].concat();
    let digest = Digest::of(&whole);
    let (first, _) = digest.as_bytes().split_at(CHECK_DIGITS / 2);
    format!("{:016x}", u64::from_be_bytes(first.try_into().expect("it is half as many bytes as digits")))
}

/// A parsed entry.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    number: u64,
    scope: ScopePath,
    seq: u64,
}

impl Entry {
    fn read(entry: &Unchecked<'_>, run: &RunId) -> Option<Self> {
        if check(run, entry.text.as_bytes()) != entry.digits {
            return None;
        }
        let scope = ScopePath::new(entry.scope).ok()?;
        Some(Self { number: entry.number, scope, seq: entry.seq.parse().ok()? })
    }
}

/// An entry before its check is verified, which is the most expensive part.
struct Unchecked<'b> {
    number: u64,
    scope: &'b str,
    seq: &'b str,
    text: &'b str,
    digits: &'b str,
}

impl<'b> Unchecked<'b> {
    fn read(bytes: &'b [u8]) -> Option<Self> {
        let (text, digits) = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?.rsplit_once(' ')?;
        let text = text.trim_end_matches(' ');
        let (number, rest) = text.split_once(' ')?;
        let (scope, seq) = rest.rsplit_once(' ')?;
        Some(Self { number: number.parse().ok()?, scope, seq, text, digits })
    }
}

/// Reads the newest entry of each scope, newest first.
fn entries_in(file: &mut File, run: &RunId) -> io::Result<Vec<Entry>> {
    let mut bytes = Vec::new();
    file.take(ENTRIES * ENTRY_BYTES as u64).read_to_end(&mut bytes)?;
    let mut seeming: Vec<_> = bytes.chunks_exact(ENTRY_BYTES).filter_map(Unchecked::read).collect();
    seeming.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.number));
    let mut known = HashSet::new();
    let mut entries = Vec::new();
    for entry in &seeming {
        if !known.contains(entry.scope)
            && let Some(found) = Entry::read(entry, run)
        {
            known.insert(entry.scope);
            entries.push(found);
        }
    }
    Ok(entries)
}

/// Returns the path of the file of a run.
pub(crate) fn path_in(folder: &Path) -> PathBuf {
    folder.join(RECENT_FILE)
}

/// Returns the newest record of each scope in the file of a run, newest first; empty if the file is
/// unreadable.
pub(crate) fn acknowledged(path: &Path, run: &RunId) -> Vec<(ScopePath, u64)> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(open_flags()).open(path);
    let entries = file.and_then(|mut file| entries_in(&mut file, run)).unwrap_or_default();
    entries.into_iter().map(|entry| (entry.scope, entry.seq)).collect()
}

/// Removes the file of a run.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use waypost_testing::records::{self, Links, run_id};

    use super::*;

    struct TestRun {
        folder: tempfile::TempDir,
        journal: AckJournal,
    }

    impl TestRun {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let journal = AckJournal::new(folder.path(), &run_id("r-1"));
            Self { folder, journal }
        }

        fn path(&self) -> PathBuf {
            path_in(self.folder.path())
        }

        fn acknowledged(&self) -> Vec<String> {
            let acknowledged = acknowledged(&self.path(), &run_id("r-1"));
            acknowledged.into_iter().map(|(scope, seq)| format!("{scope} {seq}")).collect()
        }
    }

    fn record(scope: &str, seq: u64) -> Record {
        let mut links = Links::of(&run_id("r-1"));
        let mut header = links.header(&records::scope(scope));
        header.seq = seq;
        links.seal(header, &serde_json::Value::Null)
    }

    #[test]
    fn the_newest_of_each_scope_is_told_newest_first() {
        let test = TestRun::new();
        assert_eq!(test.acknowledged(), [""; 0], "there is no file");

        assert_eq!(test.journal.record(&[record("main", 1), record("main", 2), record("fan:a", 1)]), Some(2));
        assert_eq!(test.journal.record(&[record("fan:a", 2)]), Some(3));

        assert_eq!(test.acknowledged(), ["fan:a 2", "main 2"]);
    }

    #[test]
    fn nothing_is_written_over_what_is_not_in_the_log() {
        let test = TestRun::new();
        for seq in 1..=ENTRIES {
            assert_eq!(test.journal.record(&[record("main", seq)]), Some(seq));
        }
        assert_eq!(test.journal.record(&[record("main", ENTRIES + 1)]), None, "there is no room");
        assert_eq!(test.acknowledged()[0], format!("main {ENTRIES}"));

        test.journal.mark_logged(2);
        let two = [record("fan:a", 9), record("fan:b", 9)];
        assert_eq!(test.journal.record(&two), Some(ENTRIES + 2), "round, to the start of the file");
        assert_eq!(
            test.acknowledged(),
            ["fan:b 9".to_owned(), "fan:a 9".to_owned(), format!("main {ENTRIES}")]
        );
        assert_eq!(test.journal.record(&[record("main", ENTRIES + 1)]), None);
    }

    #[test]
    fn the_next_writer_goes_on_behind_what_a_kill_left() {
        let test = TestRun::new();
        test.journal.record(&[record("main", 1)]);

        let next = AckJournal::new(test.folder.path(), &run_id("r-1"));
        assert_eq!(next.record(&[record("main", 2)]), Some(2));

        assert_eq!(test.acknowledged(), ["main 2"]);
    }

    #[test]
    fn each_changed_bit_and_length_is_truth_or_nothing() {
        let test = TestRun::new();
        test.journal.record(&[record("main", 1)]);
        test.journal.record(&[record("each:b", 31)]);
        let sound = std::fs::read(test.path()).unwrap();
        let whole = test.acknowledged();

        for bit in 0..sound.len() * 8 {
            let mut bytes = sound.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(test.path(), &bytes).unwrap();
            let acknowledged = test.acknowledged();
            assert_eq!(acknowledged.len(), 1, "bit {bit}: {acknowledged:?}");
            assert!(whole.contains(&acknowledged[0]), "bit {bit}: {acknowledged:?}");
        }
        for length in 0..sound.len() {
            std::fs::write(test.path(), &sound[..length]).unwrap();
            assert_eq!(test.acknowledged().len(), length / ENTRY_BYTES);
        }
        std::fs::write(test.path(), &sound).unwrap();
        assert_eq!(acknowledged(&test.path(), &run_id("r-2")), [], "it is of another run");
    }

    #[test]
    fn what_has_no_room_in_an_entry_or_no_file_has_to_be_in_the_log() {
        let test = TestRun::new();
        let long = format!("fan:{}", "x".repeat(120));
        assert_eq!(test.journal.record(&[record(&long, 1)]), None);
        assert_eq!(test.journal.record(&[record("main", 1)]), Some(1), "the next one has");

        let test = TestRun::new();
        std::fs::create_dir(test.path()).unwrap();
        assert_eq!(test.journal.record(&[record("main", 1)]), None);
        assert_eq!(test.acknowledged(), [""; 0]);
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let test = TestRun::new();
        let elsewhere = test.folder.path().join("elsewhere");
        std::fs::write(&elsewhere, "mine").unwrap();
        std::os::unix::fs::symlink(&elsewhere, test.path()).unwrap();

        assert_eq!(test.journal.record(&[record("main", 1)]), None);
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"mine");
    }
}
