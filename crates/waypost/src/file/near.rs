//! One record of a run, read without the others; and what a store remembers between calls so that it can be.
//!
//! Whoever goes through a run reads its records one by one. So each of them must cost the same however long the run is:
//! it is looked for where it should be, and the whole history is walked only if it is not there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::id::{BranchPath, RunId};
use crate::record::Record;
use crate::store::StoreError;

use super::format::Commit;
use super::journal::{self, Index};
use super::read::{Bodies, Found, RunReader, Walk, read_error};

/// Most commits that are looked at: with a few records a commit the second or third guess is right, and where it is not,
/// the place is remembered from the first walk on.
const GUESSES_MAX: usize = 4;

/// What a store remembers of its runs between calls: only where to look, never what is there.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    journals: Mutex<BTreeMap<RunId, Arc<Index>>>,
    places: Mutex<BTreeMap<RunId, Places>>,
}

/// In which commit the records of each branch were seen, by seq.
type Places = BTreeMap<BranchPath, BTreeMap<u64, u64>>;

/// The memory of a store, as readers use it.
#[derive(Debug)]
pub(super) struct IndexSource<'a>(pub(super) &'a Remembered);

impl Remembered {
    /// Forgets a run that is deleted.
    pub(super) fn forget(&self, run: &RunId) {
        locked(&self.journals).remove(run);
        locked(&self.places).remove(run);
    }
}

impl IndexSource<'_> {
    /// Returns the index of a run's journal, up to date.
    pub(super) fn get(&self, reader: &RunReader<'_>) -> Result<Arc<Index>, StoreError> {
        let known = locked(&self.0.journals).get(reader.run).cloned().unwrap_or_default();
        let path = reader.paths.journal();
        let index =
            known.update(reader.disk, &path, reader.run).map_err(|source| read_error(&path, source))?;
        locked(&self.0.journals).insert(reader.run.clone(), index.clone());
        Ok(index)
    }

    /// Remembers where the records stand that a walk has seen. What one through the whole history has not seen is
    /// forgotten, so that no more is kept than there are files.
    pub(super) fn remember(&self, run: &RunId, walk: &Walk) {
        let mut all = locked(&self.0.places);
        let places = all.entry(run.clone()).or_default();
        if walk.exhausted {
            places.clear();
        }
        for commit in &walk.sound {
            for header in commit.records.iter().map(|(_, record)| record.header()) {
                match places.get_mut(&header.branch) {
                    Some(numbers) => drop(numbers.insert(header.seq, commit.number)),
                    None => drop(places.insert(header.branch.clone(), [(header.seq, commit.number)].into())),
                }
            }
        }
    }

    fn place(&self, run: &RunId, branch: &BranchPath, seq: u64) -> Option<u64> {
        locked(&self.0.places).get(run)?.get(branch)?.get(&seq).copied()
    }
}

impl RunReader<'_> {
    /// Reads one record, with its body if that is still there.
    pub(super) fn load(
        &self,
        branch: &BranchPath,
        seq: u64,
        index: &IndexSource<'_>,
    ) -> Result<Record, StoreError> {
        let remembered = || self.load_from(index.place(self.run, branch, seq)?, branch, seq);
        if let Some(record) = self.load_near(branch, seq).or_else(remembered) {
            return Ok(record);
        }
        if let Some(record) = self.load_journaled(branch, seq, index)? {
            return Ok(record);
        }
        if let Some(record) = self.load_walking(branch, seq, index)? {
            return Ok(record);
        }
        let (mut slots, _) = self.slots(index)?;
        let (_, slots) = slots
            .iter_mut()
            .find(|((_, name), _)| name == branch)
            .ok_or_else(|| StoreError::no_branch(self.run, branch))?;
        let slot = slots.remove(&seq).ok_or_else(|| StoreError::no_record(self.run, branch, seq))?;
        let damage = match self.open_slot(branch, seq, slot)? {
            Ok(record) => return Ok(record),
            Err(damage) => damage,
        };
        while let Some((older, slot)) = slots.pop_last() {
            if older < seq && self.open_slot(branch, older, slot)?.is_ok() {
                return Err(StoreError::of_damage(damage, Some(older)));
            }
        }
        Err(StoreError::of_damage(damage, None))
    }

    /// Looks for a record where it usually stands: a commit has one record, or few, so that its number is near the seq.
    fn load_near(&self, branch: &BranchPath, seq: u64) -> Option<Record> {
        let mut number = seq;
        for _ in 0..GUESSES_MAX {
            let Ok(Found::Sound(commit) | Found::Copied(commit, _)) = self.commit(number) else {
                return None;
            };
            let greatest = seqs_of(&commit, branch).max()?;
            if let Some(record) = take(commit, branch, seq) {
                return Some(record);
            }
            number = number.checked_add(seq)?.checked_sub(greatest).filter(|number| *number > 0)?;
        }
        None
    }

    /// Looks for a record in a commit where it was seen before.
    fn load_from(&self, number: u64, branch: &BranchPath, seq: u64) -> Option<Record> {
        let Ok(Found::Sound(commit) | Found::Copied(commit, _)) = self.commit(number) else { return None };
        take(commit, branch, seq)
    }

    /// Looks for a record in the journal: one that stands there has let go of its state. What is wrong with it, if it is
    /// not sound, only the whole history tells.
    fn load_journaled(
        &self,
        branch: &BranchPath,
        seq: u64,
        index: &IndexSource<'_>,
    ) -> Result<Option<Record>, StoreError> {
        let Some(line) = index.get(self)?.line(branch, seq) else { return Ok(None) };
        if self.gone()?.contains(&(branch.clone(), seq)) {
            return Ok(None);
        }
        let path = self.paths.journal();
        let read = journal::read(self.disk, &path, self.run, line);
        let read = read.map_err(|source| read_error(&path, source))?;
        let is_it = |record: &Record| record.header().branch == *branch && record.header().seq == seq;
        Ok(read.ok().filter(is_it))
    }

    /// Looks for a record in all commits, from the newest on.
    fn load_walking(
        &self,
        branch: &BranchPath,
        seq: u64,
        index: &IndexSource<'_>,
    ) -> Result<Option<Record>, StoreError> {
        let found = |found: &mut Option<Record>, commit: &Commit| {
            let of_branch =
                || commit.records.iter().map(|(_, record)| record).filter(|r| r.header().branch == *branch);
            *found = of_branch().find(|record| record.header().seq == seq).cloned();
            of_branch().any(|record| record.header().seq <= seq)
        };
        let (walk, found) = self.walk(Bodies::Drop, found)?;
        index.remember(self.run, &walk);
        Ok(found)
    }
}

fn seqs_of(commit: &Commit, branch: &BranchPath) -> impl Iterator<Item = u64> {
    let headers = commit.records.iter().map(|(_, record)| record.header());
    headers.filter(move |header| header.branch == *branch).map(|header| header.seq)
}

fn take(commit: Commit, branch: &BranchPath, seq: u64) -> Option<Record> {
    let mut records = commit.records.into_iter().map(|(_, record)| record);
    records.find(|record| record.header().branch == *branch && record.header().seq == seq)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
