//! Lookup of a single record, and the cache of record positions between calls.
//!
//! A reader loads the records of a run one by one, so the cost of a lookup must not depend on the length of the
//! run. A lookup tries the likely places first, and walks the whole history only on a miss.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::id::{RunId, ScopePath};
use crate::record::Record;
use crate::store::StoreError;

use super::format::CommitFile;
use super::journal::{self, Index};
use super::read::{
    Bodies, CommitRead, CommitWalk, ReadError, RunReader, ScopeTail, Slot, Slots, Unordered, read_error,
};
use super::tail_check::CommitNumbers;

/// Limit of guessed commits per lookup. With a few records per commit the second or third guess is right. After a
/// miss, the first walk caches the position.
const GUESSES_MAX: usize = 4;

/// From this number of records on, a decoded commit is cached for sequential reads.
const LARGE_RECORDS_MIN: usize = 16;
/// Size limit of a cached commit text.
const LARGE_BYTES_MAX: u64 = 8 << 20;

/// The cache of a store between calls: positions of records, never their content.
#[derive(Debug, Default)]
pub(super) struct LookupCache {
    journals: Mutex<BTreeMap<RunId, Arc<Index>>>,
    places: Mutex<BTreeMap<RunId, RecordIndex>>,
    large: Mutex<Option<Arc<LargeCommit>>>,
    checks: Mutex<BTreeMap<RunId, MissingCheck>>,
}

/// Whether newest records of a scope were missing, for a history with this newest commit and file count.
#[derive(Debug, Clone, Copy)]
struct MissingCheck {
    newest: u64,
    files: usize,
    is_missed: bool,
}

/// The last read commit with many records: its text and the decoded commit. Each lookup reads the text again and
/// uses the decoded commit only if the text is unchanged.
#[derive(Debug)]
struct LargeCommit {
    run: RunId,
    text: Vec<u8>,
    commit: CommitFile,
}

/// The cached positions of a run.
#[derive(Debug, Default)]
struct RecordIndex {
    scopes: BTreeMap<ScopePath, ScopeIndex>,
    /// The ordinal of the run of which all commits were seen, and the sound ones of them: another run of the same name
    /// has another one.
    complete: Option<(u64, BTreeSet<u64>)>,
}

/// The commit numbers of the records of a scope, by seq.
#[derive(Debug, Default)]
struct ScopeIndex {
    /// Its place in the order of opening.
    opened: u64,
    commits: BTreeMap<u64, u64>,
}

/// The cache of a store, for readers.
#[derive(Debug)]
pub(super) struct IndexSource<'a>(pub(super) &'a LookupCache);

impl LookupCache {
    /// Forgets a run that is deleted.
    pub(super) fn forget(&self, run: &RunId) {
        lock(&self.journals).remove(run);
        lock(&self.places).remove(run);
        lock(&self.checks).remove(run);
        lock(&self.large).take_if(|large| large.run == *run);
    }
}

impl IndexSource<'_> {
    /// Returns the up-to-date journal index of a run.
    pub(super) fn get(&self, reader: &RunReader<'_>) -> Result<Arc<Index>, StoreError> {
        let known = lock(&self.0.journals).get(reader.run).cloned().unwrap_or_default();
        let path = reader.paths.journal();
        let index =
            known.update(reader.disk, &path, reader.run).map_err(|source| read_error(&path, source))?;
        lock(&self.0.journals).insert(reader.run.clone(), index.clone());
        Ok(index)
    }

    /// Caches the positions of the records in a walk. A walk through the whole history replaces the cache, so the
    /// cache never exceeds the number of files.
    pub(super) fn remember(&self, run: &RunId, walk: &CommitWalk) {
        let mut all = lock(&self.0.places);
        let places = all.entry(run.clone()).or_default();
        if walk.exhausted {
            *places = RecordIndex::default();
        }
        walk.sound.iter().for_each(|commit| places.add(commit));
    }

    /// Marks a run as fully walked.
    pub(super) fn complete(&self, run: &RunId, ordinal: u64, walk: &CommitWalk) {
        let mut all = lock(&self.0.places);
        let places = all.entry(run.clone()).or_default();
        // The ordinal is 0 if the run record is unreadable.
        let is_whole = walk.exhausted && walk.copied.is_none() && ordinal > 0;
        places.complete =
            is_whole.then(|| (ordinal, walk.sound.iter().map(|commit| commit.number).collect()));
    }

    /// Returns the positions of all records of a run, without reading already walked commits. Returns `None` if a
    /// commit was never walked, or if newest records may be damaged.
    pub(super) fn slots(&self, reader: &RunReader<'_>) -> Result<Option<Slots>, StoreError> {
        let ordinal = reader.ordinal()?;
        let CommitNumbers { numbers, copied: None, missing } = reader.listed()? else { return Ok(None) };
        if !missing.is_empty() || self.misses_ends(reader, &numbers)? {
            return Ok(None);
        }
        let new: Vec<u64> = match lock(&self.0.places).get(reader.run).and_then(|p| p.complete.as_ref()) {
            Some((known, seen)) if *known == ordinal => {
                numbers.iter().filter(|number| !seen.contains(number)).copied().collect()
            }
            _ => return Ok(None),
        };
        let (mut sound, mut damaged) = (Vec::new(), Vec::new());
        for number in new {
            match reader.commit(number) {
                Ok(CommitRead::Sound(commit)) => sound.push(commit),
                Ok(CommitRead::Damaged(file)) => damaged.push(file),
                Ok(CommitRead::Copied(..)) | Err(ReadError::Gone) => return Ok(None),
                Err(ReadError::Error(error)) => return Err(error),
            }
        }
        damaged.reverse();
        // Read the journal after the files: it holds the records of files removed in between.
        let journal = self.get(reader)?;
        let found = match lock(&self.0.places).get_mut(reader.run) {
            Some(places) if places.complete.as_ref().is_some_and(|(known, _)| *known == ordinal) => {
                sound.iter().for_each(|commit| places.add(commit));
                places.found(&numbers.into_iter().collect())
            }
            _ => return Ok(None),
        };
        reader.arranged(found, &journal, &damaged, Vec::new()).map(Some)
    }

    /// Returns true if newest records of a scope are missing. Reads the ends of all scopes, unless the commit
    /// files are unchanged since the last call.
    pub(super) fn misses_ends(&self, reader: &RunReader<'_>, numbers: &[u64]) -> Result<bool, StoreError> {
        let (newest, files) = (numbers.last().copied().unwrap_or(0), numbers.len());
        let known = lock(&self.0.checks).get(reader.run).copied();
        if let Some(known) = known.filter(|known| (known.newest, known.files) == (newest, files)) {
            return Ok(known.is_missed);
        }
        let is_missed = reader.walk_to_ends()?.1.values().any(ScopeTail::misses_any);
        lock(&self.0.checks).insert(reader.run.clone(), MissingCheck { newest, files, is_missed });
        Ok(is_missed)
    }

    /// Updates the check after a commit or a rotation by the writer: neither loses records.
    pub(super) fn committed(&self, run: &RunId, newest: u64, files: usize) {
        if let Some(check) = lock(&self.0.checks).get_mut(run) {
            (check.newest, check.files) = (newest, files);
        }
    }

    /// Drops the cached check, so that the next call reads the ends of all scopes.
    pub(super) fn check_again(&self, run: &RunId) {
        lock(&self.0.checks).remove(run);
    }

    pub(super) fn place(&self, run: &RunId, scope: &ScopePath, seq: u64) -> Option<u64> {
        lock(&self.0.places).get(run)?.scopes.get(scope)?.commits.get(&seq).copied()
    }
}

impl RecordIndex {
    fn add(&mut self, commit: &CommitFile) {
        for (opened, record) in &commit.records {
            let header = record.header();
            if !self.scopes.contains_key(&header.scope) {
                self.scopes.insert(header.scope.clone(), ScopeIndex::default());
            }
            let seen = self.scopes.get_mut(&header.scope).expect("the entry was just added");
            seen.opened = *opened;
            seen.commits.insert(header.seq, commit.number);
        }
        if let Some((_, sound)) = &mut self.complete {
            sound.insert(commit.number);
        }
    }

    /// Returns the records of these commits, and drops records of removed commits from the cache.
    fn found(&mut self, numbers: &BTreeSet<u64>) -> Unordered {
        let mut found = Unordered::default();
        for (scope, seen) in &mut self.scopes {
            seen.commits.retain(|_, number| numbers.contains(number));
            for (seq, number) in &seen.commits {
                found.add(scope.clone(), seen.opened, *seq, Slot::There(*number));
            }
        }
        self.scopes.retain(|_, seen| !seen.commits.is_empty());
        if let Some((_, sound)) = &mut self.complete {
            sound.retain(|number| numbers.contains(number));
        }
        found
    }
}

impl RunReader<'_> {
    /// Reads a record, with its body unless retention dropped the body.
    pub(super) fn load(
        &self,
        scope: &ScopePath,
        seq: u64,
        index: &IndexSource<'_>,
    ) -> Result<Record, StoreError> {
        let remembered = || self.load_remembered(scope, seq, index);
        if let Some(record) = self.load_near(scope, seq).or_else(remembered) {
            return Ok(record);
        }
        if let Some(record) = self.load_journaled(scope, seq, index)? {
            return Ok(record);
        }
        if let Some(record) = self.load_walking(scope, seq, index)? {
            return Ok(record);
        }
        let (mut slots, _) = self.slots(index)?;
        let (_, slots) = slots
            .iter_mut()
            .find(|((_, name), _)| name == scope)
            .ok_or_else(|| StoreError::no_scope(self.run, scope))?;
        let slot = slots.remove(&seq).ok_or_else(|| StoreError::no_record(self.run, scope, seq))?;
        let damage = match self.open_slot(scope, seq, slot)? {
            Ok(record) => return Ok(record),
            Err(damage) => damage,
        };
        while let Some((older, slot)) = slots.pop_last() {
            if older < seq && self.open_slot(scope, older, slot)?.is_ok() {
                return Err(StoreError::of_damage(damage, Some(older)));
            }
        }
        Err(StoreError::of_damage(damage, None))
    }

    /// Looks for a record near its seq: with about one record per commit, the commit number is close to the seq.
    fn load_near(&self, scope: &ScopePath, seq: u64) -> Option<Record> {
        let mut number = seq;
        for _ in 0..GUESSES_MAX {
            let Ok(CommitRead::Sound(commit) | CommitRead::Copied(commit, _)) = self.commit(number) else {
                return None;
            };
            let greatest = seqs_of(&commit, scope).max()?;
            if let Some(record) = take(commit, scope, seq) {
                return Some(record);
            }
            number = number.checked_add(seq)?.checked_sub(greatest).filter(|number| *number > 0)?;
        }
        None
    }

    /// Looks for a record in a commit.
    pub(super) fn load_from(&self, number: u64, scope: &ScopePath, seq: u64) -> Option<Record> {
        let Ok(CommitRead::Sound(commit) | CommitRead::Copied(commit, _)) = self.commit(number) else {
            return None;
        };
        take(commit, scope, seq)
    }

    /// Looks for a record in its cached commit.
    fn load_remembered(&self, scope: &ScopePath, seq: u64, index: &IndexSource<'_>) -> Option<Record> {
        let number = index.place(self.run, scope, seq)?;
        let of = |commit: &CommitFile| {
            let mut records = commit.records.iter().map(|(_, record)| record);
            records.find(|record| is_of(record, scope, seq)).cloned()
        };
        let known = lock(&index.0.large).clone();
        let known = known.filter(|large| large.run == *self.run && large.commit.number == number);
        let text = self.disk.read(&self.paths.commit(number), LARGE_BYTES_MAX).unwrap_or_default();
        if let Some(same) = known.filter(|large| large.text == text) {
            return of(&same.commit);
        }
        match CommitFile::open(self.run, number, &text) {
            Ok(commit) if commit.records.len() < LARGE_RECORDS_MIN => take(commit, scope, seq),
            Ok(commit) => {
                let record = of(&commit);
                *lock(&index.0.large) = Some(Arc::new(LargeCommit { run: self.run.clone(), text, commit }));
                record
            }
            Err(_) => self.load_from(number, scope, seq),
        }
    }

    /// Looks for a record in the journal; a journaled record has no state. Returns `None` for a damaged line:
    /// only a full walk determines the flaw.
    fn load_journaled(
        &self,
        scope: &ScopePath,
        seq: u64,
        index: &IndexSource<'_>,
    ) -> Result<Option<Record>, StoreError> {
        let Some(line) = index.get(self)?.line(scope, seq) else { return Ok(None) };
        if self.gone()?.has(scope, seq) {
            return Ok(None);
        }
        let path = self.paths.journal();
        let read = journal::read(self.disk, &path, self.run, line);
        let read = read.map_err(|source| read_error(&path, source))?;
        Ok(read.ok().filter(|record| is_of(record, scope, seq)))
    }

    /// Looks for a record in all commits, newest first.
    fn load_walking(
        &self,
        scope: &ScopePath,
        seq: u64,
        index: &IndexSource<'_>,
    ) -> Result<Option<Record>, StoreError> {
        let found = |found: &mut Option<Record>, commit: &CommitFile| {
            let of_scope =
                || commit.records.iter().map(|(_, record)| record).filter(|r| r.header().scope == *scope);
            *found = of_scope().find(|record| record.header().seq == seq).cloned();
            of_scope().any(|record| record.header().seq <= seq)
        };
        let (walk, found) = self.walk(Bodies::Drop, found)?;
        index.remember(self.run, &walk);
        Ok(found)
    }
}

fn seqs_of(commit: &CommitFile, scope: &ScopePath) -> impl Iterator<Item = u64> {
    let headers = commit.records.iter().map(|(_, record)| record.header());
    headers.filter(move |header| header.scope == *scope).map(|header| header.seq)
}

pub(super) fn take(commit: CommitFile, scope: &ScopePath, seq: u64) -> Option<Record> {
    let mut records = commit.records.into_iter().map(|(_, record)| record);
    records.find(|record| is_of(record, scope, seq))
}

fn is_of(record: &Record, scope: &ScopePath, seq: u64) -> bool {
    record.header().scope == *scope && record.header().seq == seq
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
