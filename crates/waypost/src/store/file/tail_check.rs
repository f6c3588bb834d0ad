//! Detects missing newest commit files, from other files of the run.
//!
//! The highest sound commit file decides, and a missing file decides nothing. Without further sources an older
//! commit would count as the newest, and finished steps would silently run again. A source counts only where no
//! crash can have produced the same files:
//!
//! - **`checkpoint.json`** gets its bytes by a rename after the name of the commit is durable. If its number has
//!   no commit file, it is the newest commit, as sound as any other file, and replaces the missing file. The next
//!   holder of the lease restores the commit file.
//! - **`lease.json`** names the newest commit at the time of the lease. It is written after that commit was made
//!   durable once more.
//! - **Sidecars** are written right before their commit files. The sidecar of the next number proves nothing,
//!   since its writer may have died. The sidecar of a later number proves that the next commit was acknowledged.
//!
//! Quarantined files are not missing. A power cut may take the last commits of a run with durability `async`, so
//! nothing counts as missing there; `checkpoint.json` still serves as a replacement. The module `missing` names
//! the records of missing commits, also of commits below the newest commit.
//!
//! A source is read before the history is listed: commits written in between then exist, and are not reported.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::id::ScopePath;
use crate::record::{Durability, Flaw};
use crate::store::StoreError;

use super::format::{CommitFile, FILE_BYTES_MAX, LeaseFile, NoteFile, Small, number_at_begin};
use super::paths::{NEWEST_FILE, NOTE_SUFFIX, SIDECAR_SUFFIX, commit_number, commit_numbers, files_in};
use super::read::{RunReader, read_error};
use super::run_record::read_run;

/// Bytes read from a commit file to find its number; the preceding members are short.
const BEGIN_BYTES: usize = 1024;

/// The commits of a run, from file names.
#[derive(Debug, Default)]
pub(super) struct CommitNumbers {
    /// The readable commits, ascending.
    pub(super) numbers: Vec<u64>,
    /// The last of these, if only `checkpoint.json` has the commit.
    pub(super) copied: Option<u64>,
    /// Missing commits, ascending; all above the readable commits.
    pub(super) missing: Vec<u64>,
}

/// The records noted in quarantine, and whether later commits count each record, if known.
#[derive(Debug, Default)]
pub(super) struct Gone(BTreeMap<(ScopePath, u64), Option<bool>>);

impl Gone {
    /// Returns true if a record is noted.
    pub(super) fn has(&self, scope: &ScopePath, seq: u64) -> bool {
        self.0.contains_key(&(scope.clone(), seq))
    }

    /// Returns true if no record is noted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns scope and seq of each record, and whether later commits count the record.
    pub(super) fn records(&self) -> impl Iterator<Item = (&ScopePath, u64, Option<bool>)> {
        self.0.iter().map(|((scope, seq), counted)| (scope, *seq, *counted))
    }
}

impl RunReader<'_> {
    /// Lists the existing commits and the missing commits.
    pub(super) fn listed(&self) -> Result<CommitNumbers, StoreError> {
        let copy = self.number_of_copy();
        let leased = self.lease()?.and_then(Result::ok).map_or(0, |lease| lease.commit);
        let (numbers, sidecars) = self.names()?;
        let named = |newest: u64| sidecars.last().copied().filter(|number| *number > newest + 1).unwrap_or(0);
        let newest = numbers.last().copied().unwrap_or(0);
        if copy.max(leased).max(named(newest)) <= newest {
            return Ok(CommitNumbers { numbers, ..CommitNumbers::default() });
        }
        let mut numbers = self.in_history()?;
        let newest = numbers.last().copied().unwrap_or(0);
        let moved = self.moved()?;
        let greatest_moved = moved.last().copied().unwrap_or(0);
        let is_missed = !self.may_lose()?;
        let copied = copy > newest.max(greatest_moved) && self.copy(copy).is_some();
        if copied {
            numbers.push(copy);
        }
        let mut missing = BTreeSet::new();
        if is_missed {
            let newest = numbers.last().copied().unwrap_or(0);
            let last = leased.max(named(newest.max(greatest_moved)));
            missing.extend(sidecars.iter().copied().chain([leased]));
            missing.retain(|number| (newest + 1..=last).contains(number) && !moved.contains(number));
        }
        let copied = Some(copy).filter(|_| copied && is_missed);
        Ok(CommitNumbers { numbers, copied, missing: missing.into_iter().collect() })
    }

    /// Lists the history: the numbers of its commit files and of its sidecars, both ascending.
    fn names(&self) -> Result<(Vec<u64>, Vec<u64>), StoreError> {
        let history = self.paths.history();
        let names = files_in(self.disk, &history).map_err(|source| read_error(&history, source))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| commit_number(name)).collect();
        let sidecar = |name: &String| commit_number(name.strip_suffix(SIDECAR_SUFFIX)?);
        let mut sidecars: Vec<u64> = names.iter().filter_map(sidecar).collect();
        numbers.sort_unstable();
        sidecars.sort_unstable();
        Ok((numbers, sidecars))
    }

    /// Returns the numbers of the commit files in the history, ascending.
    pub(super) fn in_history(&self) -> Result<Vec<u64>, StoreError> {
        let history = self.paths.history();
        commit_numbers(self.disk, &history).map_err(|source| read_error(&history, source))
    }

    /// Reads a commit from `checkpoint.json`, if the number matches and the bytes are sound.
    pub(super) fn copy(&self, number: u64) -> Option<CommitFile> {
        // Compare the number first: usually it differs, and the state may be large.
        if self.number_of_copy() != number {
            return None;
        }
        let text = self.disk.read(&self.paths.root.join(NEWEST_FILE), FILE_BYTES_MAX).ok()?;
        CommitFile::open(self.run, number, &text).ok()
    }

    /// Returns the number in `checkpoint.json`, unverified; 0 if there is none, or if the file is of another
    /// kind.
    fn number_of_copy(&self) -> u64 {
        let begin = self.disk.read_at(&self.paths.root.join(NEWEST_FILE), 0, BEGIN_BYTES);
        begin.ok().and_then(|begin| number_at_begin(self.run, &begin)).unwrap_or(0)
    }

    /// Returns the ordinal of the run in the store, from 1; 0 if unknown.
    pub(super) fn ordinal(&self) -> Result<u64, StoreError> {
        Ok(read_run(self.disk, self.run, &self.paths)?.map_or(0, |(ordinal, _)| ordinal))
    }

    /// Returns true if a power cut may take acknowledged commits of this run.
    pub(super) fn may_lose(&self) -> Result<bool, StoreError> {
        let run = read_run(self.disk, self.run, &self.paths)?;
        Ok(matches!(run, Some((_, Ok(run))) if run.record().durability == Durability::Async))
    }

    /// Returns the records noted in quarantine. Ignores a note whose file is still in the history: a crash came
    /// between the note and the move.
    pub(super) fn gone(&self) -> Result<Gone, StoreError> {
        let folder = self.paths.quarantine();
        let names = files_in(self.disk, &folder).map_err(|source| read_error(&folder, source))?;
        let mut gone = Gone::default();
        let numbers = if names.is_empty() { Vec::new() } else { self.in_history()? };
        for name in names.iter().filter(|name| name.ends_with(NOTE_SUFFIX)) {
            let path = folder.join(name);
            let text = self.disk.read(&path, FILE_BYTES_MAX).map_err(|source| read_error(&path, source))?;
            // A damaged note is ignored; its records are reported as missing.
            let Ok(note) = NoteFile::open(&text) else { continue };
            let there = match commit_number(&note.file) {
                Some(number) => numbers.contains(&number),
                None => false,
            };
            if !there {
                gone.0.extend(note.records.into_iter().map(|record| (record, note.counted)));
            }
        }
        Ok(gone)
    }

    /// Returns the content of `lease.json`, if the file exists; the inner `Err` is the flaw of a damaged file.
    pub(super) fn lease(&self) -> Result<Option<Result<LeaseFile, Flaw>>, StoreError> {
        let path = self.paths.lease();
        match self.disk.read(&path, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(read_error(&path, source)),
            Ok(text) => Ok(Some(LeaseFile::open(&text))),
        }
    }

    /// Returns the numbers of the commit files that were moved to quarantine or noted as lost.
    pub(super) fn moved(&self) -> Result<BTreeSet<u64>, StoreError> {
        let folder = self.paths.quarantine();
        let names = files_in(self.disk, &folder).map_err(|source| read_error(&folder, source))?;
        let number = |name: &String| name.find(".json").and_then(|end| commit_number(&name[..end + 5]));
        Ok(names.iter().filter_map(number).collect())
    }
}
