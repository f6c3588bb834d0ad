//! What else tells of commits, so that a newest file that somebody took away is missed.
//!
//! The highest sound commit file decides, and a file that is not there decides nothing: without another witness an older
//! commit would be the newest, and finished steps would run again without a word. A witness may only speak where no
//! crash can have left things so:
//!
//! - **`checkpoint.json`** gets its bytes by a rename that comes after the commit's own name is durable. With a number
//!   that no file has, it is the newest commit itself, as sound as any other file, and is read in the place of the one that
//!   is missing. The next holder of the lease writes that one again.
//! - **`lease.json`** names the newest commit of the moment when the lease was taken, and is written after that commit was
//!   made durable once more.
//! - **Sidecars** come right before their files. So that of the next number says nothing, its writer may have died;
//!   that of a later one is there only if the next commit was acknowledged.
//!
//! What was moved to quarantine is not missing. Of a run with durability `async` a power cut may take any of its last
//! commits, so nothing can be missed there; `checkpoint.json` is used all the same. The module
//! `missing` names the records of missing commits, also of commits below the newest one.
//!
//! A witness is read before the history is listed: what a writer adds meanwhile is then there, and not missed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::id::BranchPath;
use crate::record::{Durability, Flaw};
use crate::store::StoreError;

use super::format::{Commit, FILE_BYTES_MAX, LeaseFile, NoteFile, Small, number_at_begin};
use super::paths::{NEWEST_FILE, NOTE_SUFFIX, SIDECAR_SUFFIX, commit_number, commit_numbers, files_in};
use super::read::{RunReader, read_error};
use super::run_record::read_run;

/// How much of a commit file is read to find its number: the members before it are short.
const BEGIN_BYTES: usize = 1024;

/// The commits of a run, as far as names tell.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// Those that can be read, ascending.
    pub(super) numbers: Vec<u64>,
    /// The last of them, if its file should be there, and only `checkpoint.json` is.
    pub(super) copied: Option<u64>,
    /// Those that were there and are not, ascending; greater than all that can be read.
    pub(super) missing: Vec<u64>,
}

/// The records noted in quarantine, each with whether later commits count the record, if known.
#[derive(Debug, Default)]
pub(super) struct Gone(BTreeMap<(BranchPath, u64), Option<bool>>);

impl Gone {
    /// Says whether a record is noted.
    pub(super) fn has(&self, branch: &BranchPath, seq: u64) -> bool {
        self.0.contains_key(&(branch.clone(), seq))
    }

    /// Says whether no record is noted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns branch and seq of each record, and whether later commits count the record.
    pub(super) fn records(&self) -> impl Iterator<Item = (&BranchPath, u64, Option<bool>)> {
        self.0.iter().map(|((branch, seq), counted)| (branch, *seq, *counted))
    }
}

impl RunReader<'_> {
    /// Lists the commits that there are, and those that are missed.
    pub(super) fn listed(&self) -> Result<Listed, StoreError> {
        let copy = self.number_of_copy();
        let leased = self.lease()?.and_then(Result::ok).map_or(0, |lease| lease.commit);
        let (numbers, sidecars) = self.names()?;
        let named = |newest: u64| sidecars.last().copied().filter(|number| *number > newest + 1).unwrap_or(0);
        let newest = numbers.last().copied().unwrap_or(0);
        if copy.max(leased).max(named(newest)) <= newest {
            return Ok(Listed { numbers, ..Listed::default() });
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
        Ok(Listed { numbers, copied, missing: missing.into_iter().collect() })
    }

    /// Lists the history once: the numbers of its commit files, and those of its sidecars, both ascending.
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

    /// Reads a commit from `checkpoint.json`, if that is this one and sound.
    pub(super) fn copy(&self, number: u64) -> Option<Commit> {
        // Usually it is another one, and its state may be large.
        if self.number_of_copy() != number {
            return None;
        }
        let text = self.disk.read(&self.paths.root.join(NEWEST_FILE), FILE_BYTES_MAX).ok()?;
        Commit::open(self.run, number, &text).ok()
    }

    /// Returns the number that `checkpoint.json` says it has, without checking it; 0 if it says nothing, and for
    /// whatever else may have been put there.
    fn number_of_copy(&self) -> u64 {
        let begin = self.disk.read_at(&self.paths.root.join(NEWEST_FILE), 0, BEGIN_BYTES);
        begin.ok().and_then(|begin| number_at_begin(self.run, &begin)).unwrap_or(0)
    }

    /// Returns which run of the store it is, counted from 1; 0 if that cannot be told.
    pub(super) fn ordinal(&self) -> Result<u64, StoreError> {
        Ok(read_run(self.disk, self.run, &self.paths)?.map_or(0, |(ordinal, _)| ordinal))
    }

    /// Says whether a power cut may take commits of this run that were acknowledged.
    pub(super) fn may_lose(&self) -> Result<bool, StoreError> {
        let run = read_run(self.disk, self.run, &self.paths)?;
        Ok(matches!(run, Some((_, Ok(run))) if run.record().durability == Durability::Async))
    }

    /// Returns what quarantine says is gone. A note whose file still stands in the history was written right before a
    /// crash, and says nothing yet.
    pub(super) fn gone(&self) -> Result<Gone, StoreError> {
        let folder = self.paths.quarantine();
        let names = files_in(self.disk, &folder).map_err(|source| read_error(&folder, source))?;
        let mut gone = Gone::default();
        let numbers = if names.is_empty() { Vec::new() } else { self.in_history()? };
        for name in names.iter().filter(|name| name.ends_with(NOTE_SUFFIX)) {
            let path = folder.join(name);
            let text = self.disk.read(&path, FILE_BYTES_MAX).map_err(|source| read_error(&path, source))?;
            // A damaged note says nothing; what it stood for is told as missing.
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

    /// Returns `lease.json`, if there is one; `Err` within if it is not what was written.
    pub(super) fn lease(&self) -> Result<Option<Result<LeaseFile, Flaw>>, StoreError> {
        let path = self.paths.lease();
        match self.disk.read(&path, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(read_error(&path, source)),
            Ok(text) => Ok(Some(LeaseFile::open(&text))),
        }
    }

    /// Returns the numbers of the commit files that were moved aside, or noted as gone.
    pub(super) fn moved(&self) -> Result<BTreeSet<u64>, StoreError> {
        let folder = self.paths.quarantine();
        let names = files_in(self.disk, &folder).map_err(|source| read_error(&folder, source))?;
        let number = |name: &String| name.find(".json").and_then(|end| commit_number(&name[..end + 5]));
        Ok(names.iter().filter_map(number).collect())
    }
}
