//! Lock-free reads of a run, concurrent with a writer, also from a read-only disk.
//!
//! Each call reads the files again; the newest sound commit file decides. A writer may remove files during a
//! read, but only after their content is in the journal. So a call that misses a file starts over.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use crate::id::{Digest, RunId, ScopePath};
use crate::record::{Flaw, Reason, Record};
use crate::store::folder::LoggedRecords;
use crate::store::{Damage, Head, Heads, PAGE_ITEMS_MAX, Page, StoreError};
use crate::system::disk::Disk;

use super::format::{self, CommitFile, FILE_BYTES_MAX};
use super::journal::{self, Index, JournalLine};
use super::lookup::IndexSource;
use super::missing::Read;
use super::paths::{HISTORY, JOURNAL_FILE, RunPaths, commit_name};
use super::tail_check::{CommitNumbers, Gone};

/// How often a call starts over after a concurrent removal. Each time, the writer has made at least one rotation,
/// a period of several commits.
const RESTARTS_MAX: u32 = 100;
/// Upper limit of missing records reported one by one in a scope; a longer list is of no use.
pub(super) const MISSING_MAX: usize = 10_000;

/// A reader of a run.
#[derive(Debug, Clone)]
pub(super) struct RunReader<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) run: &'a RunId,
    pub(super) paths: RunPaths,
}

/// A commit file with altered bytes.
#[derive(Debug, Clone)]
pub(super) struct DamagedFile {
    pub(super) number: u64,
    pub(super) flaw: Flaw,
    /// The scopes of its records, as far as the text is readable; else the main scope.
    pub(super) scopes: Vec<ScopePath>,
}

/// A commit read from `checkpoint.json`, and the flaw of its own file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) number: u64,
    pub(super) flaw: Flaw,
}

/// The result of reading a commit.
pub(super) enum CommitRead {
    /// The file is sound.
    Sound(CommitFile),
    /// The file is not sound, but `checkpoint.json` has the same commit.
    Copied(CommitFile, Flaw),
    /// No usable copy exists.
    Damaged(DamagedFile),
}

/// Whether a walk keeps bodies: the bodies of a whole history may not fit into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bodies {
    Keep,
    Drop,
}

/// The commits read by a walk, newest first.
#[derive(Debug, Default)]
pub(super) struct CommitWalk {
    pub(super) sound: Vec<CommitFile>,
    pub(super) damaged: Vec<DamagedFile>,
    /// All existing commit files.
    pub(super) numbers: Vec<u64>,
    /// Numbers of missing commits above all commit files, ascending.
    pub(super) missing: Vec<u64>,
    /// The commit with a missing or damaged file, read from `checkpoint.json` instead.
    pub(super) copied: Option<Copied>,
    /// True if the walk reached the oldest file.
    pub(super) exhausted: bool,
}

/// The end of a scope.
#[derive(Debug, Clone, Default)]
pub(super) struct ScopeTail {
    /// The index in the order of opening.
    pub(super) opened: u64,
    /// The newest sound record, and its commit number.
    pub(super) newest: Option<(u64, Record)>,
    /// The seq of the next record.
    pub(super) next: u64,
    /// Damage above the newest sound record, oldest first.
    pub(super) damaged: Vec<Damage>,
    /// Missing records of child scopes without any sound record.
    pub(super) below: Vec<Damage>,
}

impl ScopeTail {
    /// Returns the seq of the newest sound record; 0 if there is none.
    pub(super) fn newest_seq(&self) -> u64 {
        self.newest.as_ref().map_or(0, |(_, record)| record.header().seq)
    }

    /// Returns true if newest records are missing.
    pub(super) fn misses_any(&self) -> bool {
        self.damaged.iter().chain(&self.below).any(|damage| damage.flaw == Flaw::Missing)
    }

    /// Returns the commit number of the newest sound record; 0 without a sound record.
    pub(super) fn newest_commit(&self) -> u64 {
        self.newest.as_ref().map_or(0, |(number, _)| *number)
    }

    /// Returns seq and digest of the newest sound record.
    pub(super) fn link(&self) -> Option<(u64, Digest)> {
        self.newest.as_ref().map(|(_, record)| (record.header().seq, record.digest()))
    }
}

/// The position of an existing or lost record.
pub(super) enum Slot {
    /// In a commit file.
    Record(Box<Record>),
    /// Only in `checkpoint.json`; its own commit file is damaged or missing.
    Copied(Box<Record>),
    /// In this commit file, by the cache.
    There(u64),
    /// In the journal.
    Line(JournalLine),
    /// Damaged or missing.
    Damaged(Damage),
}

pub(super) type Slots = BTreeMap<(u64, ScopePath), BTreeMap<u64, Slot>>;

/// Records in the order of discovery, before the scopes are sorted by their order of opening.
#[derive(Default)]
pub(super) struct Unordered {
    order: BTreeMap<ScopePath, u64>,
    scopes: BTreeMap<ScopePath, BTreeMap<u64, Slot>>,
}

impl Unordered {
    pub(super) fn add(&mut self, scope: ScopePath, opened: u64, seq: u64, slot: Slot) {
        self.order.insert(scope.clone(), opened);
        self.scopes.entry(scope).or_default().insert(seq, slot);
    }
}

/// The reason why a read did not finish.
#[derive(Debug)]
pub(super) enum ReadError {
    /// A listed file is gone: start over.
    Gone,
    Error(StoreError),
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

pub(super) fn read_error(place: &std::path::Path, source: io::Error) -> StoreError {
    StoreError::Io { action: "read", place: place.display().to_string(), source }
}

impl<'a> RunReader<'a> {
    /// Reads commits, newest first, until `enough` returns true. `T` is the memory of `enough`.
    pub(super) fn walk<T: Default>(
        &self,
        bodies: Bodies,
        enough: impl Fn(&mut T, &CommitFile) -> bool,
    ) -> Result<(CommitWalk, T), StoreError> {
        self.walk_from(u64::MAX, bodies, enough)
    }

    /// As [`walk`](Self::walk), starting at commit `first`.
    pub(super) fn walk_from<T: Default>(
        &self,
        first: u64,
        bodies: Bodies,
        enough: impl Fn(&mut T, &CommitFile) -> bool,
    ) -> Result<(CommitWalk, T), StoreError> {
        self.again(|| {
            let CommitNumbers { numbers, copied, missing } = self.listed()?;
            let copied = copied.map(|number| Copied { number, flaw: Flaw::Missing });
            let mut walk = CommitWalk { numbers, copied, missing, ..CommitWalk::default() };
            let mut memory = T::default();
            for number in walk.numbers.clone().into_iter().rev().skip_while(|number| *number > first) {
                let mut commit = match self.commit(number)? {
                    // The listing decides whether a missing file counts as missed.
                    CommitRead::Sound(commit) | CommitRead::Copied(commit, Flaw::Missing) => commit,
                    CommitRead::Copied(commit, flaw) => {
                        walk.copied = Some(Copied { number, flaw });
                        commit
                    }
                    CommitRead::Damaged(damaged) => {
                        walk.damaged.push(damaged);
                        continue;
                    }
                };
                let enough = enough(&mut memory, &commit);
                if bodies == Bodies::Drop {
                    commit.records.iter_mut().for_each(|(_, record)| *record = record.without_body());
                }
                walk.sound.push(commit);
                if enough {
                    return Ok((walk, memory));
                }
            }
            walk.exhausted = true;
            Ok((walk, memory))
        })
    }

    fn again<T>(&self, mut read: impl FnMut() -> Result<T, ReadError>) -> Result<T, StoreError> {
        for _ in 0..RESTARTS_MAX {
            match read() {
                Ok(found) => return Ok(found),
                Err(ReadError::Error(error)) => return Err(error),
                Err(ReadError::Gone) => {}
            }
        }
        let source = io::Error::other("the file changes faster than it can be read");
        Err(read_error(&self.paths.history(), source))
    }

    /// Reads a commit. A newer format is an error and not damage: no conclusion is safe without the content.
    pub(super) fn commit(&self, number: u64) -> Result<CommitRead, ReadError> {
        let path = self.paths.commit(number);
        let damaged = match self.disk.read(&path, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let copy = self.copy(number).ok_or(ReadError::Gone)?;
                return Ok(CommitRead::Copied(copy, Flaw::Missing));
            }
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let flaw = Flaw::Malformed(format!("the file exceeds {FILE_BYTES_MAX} bytes"));
                DamagedFile { number, flaw, scopes: vec![ScopePath::main()] }
            }
            Err(source) => return Err(read_error(&path, source).into()),
            Ok(text) => match CommitFile::open(self.run, number, &text) {
                Ok(commit) => return Ok(CommitRead::Sound(commit)),
                Err(flaw @ Flaw::Format { .. }) => {
                    let damage = self.damage(ScopePath::main(), number, number, flaw);
                    return Err(StoreError::of_damage(damage, None).into());
                }
                Err(flaw) => {
                    let mut scopes = format::scopes_in(self.run, &text);
                    if scopes.is_empty() {
                        scopes.push(ScopePath::main());
                    }
                    DamagedFile { number, flaw, scopes }
                }
            },
        };
        // The copy is usually a hard link to the same file, with the same damage, unless the file was replaced.
        Ok(match self.copy(number) {
            Some(copy) => CommitRead::Copied(copy, damaged.flaw),
            None => CommitRead::Damaged(damaged),
        })
    }

    pub(super) fn damage(&self, scope: ScopePath, seq: u64, number: u64, flaw: Flaw) -> Damage {
        let place = format!("{HISTORY}/{}", commit_name(number));
        Damage { run: self.run.clone(), scope, seq, place, flaw }
    }

    /// Returns the newest sound commit.
    pub(super) fn newest(&self) -> Result<Option<CommitFile>, StoreError> {
        Ok(self.walk(Bodies::Keep, |(), _| true)?.0.sound.pop())
    }

    /// Reads commits, newest first, until every scope has its newest record.
    pub(super) fn walk_to_ends(&self) -> Result<(CommitWalk, BTreeMap<ScopePath, ScopeTail>), StoreError> {
        type Memory = (Option<u64>, BTreeSet<u64>);
        let enough = |(count, seen): &mut Memory, commit: &CommitFile| {
            let count = *count.get_or_insert(commit.scopes);
            seen.extend(commit.records.iter().map(|(opened, _)| *opened));
            seen.len() as u64 >= count
        };
        let log = self.log();
        let (walk, _) = self.walk(Bodies::Keep, enough)?;
        let mut ends = self.ends(&walk)?;
        for damage in self.missing_after(&walk, &ends, log)? {
            add_missing(&mut ends, damage);
        }
        Ok((walk, ends))
    }

    /// Returns the missing newest records of scopes, oldest first.
    fn missing_after(
        &self,
        walk: &CommitWalk,
        ends: &BTreeMap<ScopePath, ScopeTail>,
        log: LoggedRecords<'_>,
    ) -> Result<Vec<Damage>, StoreError> {
        let newest = walk.sound.first().map(|commit| (commit.number, commit.checkpoints));
        let (numbers, missing, damaged) = (&walk.numbers[..], &walk.missing[..], &walk.damaged[..]);
        let (gone, journal) = (&self.gone()?, Arc::default());
        self.missing_records(Read { numbers, missing, newest, ends, damaged, gone, journal }, log)
    }

    /// Returns the end of every scope in the commits of a walk.
    fn ends(&self, walk: &CommitWalk) -> Result<BTreeMap<ScopePath, ScopeTail>, StoreError> {
        let mut ends: BTreeMap<ScopePath, ScopeTail> = BTreeMap::new();
        for commit in &walk.sound {
            for (opened, record) in commit.records.iter().rev() {
                let header = record.header();
                ends.entry(header.scope.clone()).or_insert_with(|| ScopeTail {
                    opened: *opened,
                    newest: Some((commit.number, record.clone())),
                    next: header.seq + 1,
                    ..ScopeTail::default()
                });
            }
        }
        let gone = self.gone()?;
        for file in walk.damaged.iter().rev() {
            for scope in &file.scopes {
                let end = ends.entry(scope.clone()).or_insert_with(ScopeTail::unknown);
                if end.newest.as_ref().is_none_or(|(number, _)| *number < file.number) {
                    let seq = (end.next..).find(|seq| !gone.has(scope, *seq));
                    let seq = seq.expect("there are more numbers than files in quarantine");
                    end.damaged.push(self.damage(scope.clone(), seq, file.number, file.flaw.clone()));
                    end.next = seq + 1;
                }
            }
        }
        for (scope, seq, _) in gone.records() {
            let end = ends.entry(scope.clone()).or_insert_with(ScopeTail::unknown);
            end.next = end.next.max(seq + 1);
        }
        Ok(ends)
    }

    pub(super) fn heads(&self, page: &Page) -> Result<Heads, StoreError> {
        let (walk, ends) = self.walk_to_ends()?;
        let from = page.cursor.as_deref().map_or(Ok(0), number)?;
        let mut ends: Vec<ScopeTail> = ends.into_values().collect();
        let known = ends.iter().filter(|end| end.newest.is_some()).count() as u64;
        // A run has its first commit from the start.
        let expected = walk.sound.first().map_or(1, |commit| commit.scopes);
        let is_sound = ends.iter().all(|end| end.damaged.is_empty() && end.below.is_empty());
        if walk.exhausted && walk.damaged.is_empty() && is_sound && known < expected {
            let damage = self.damage(ScopePath::main(), 0, 0, Flaw::Missing);
            return Err(StoreError::of_damage(Damage { place: HISTORY.to_owned(), ..damage }, None));
        }
        ends.sort_by_key(|end| end.opened);
        let limit = page.limit.clamp(1, PAGE_ITEMS_MAX);
        let mut heads = Vec::new();
        for end in ends.into_iter().filter(|end| end.opened >= from) {
            let ScopeTail { opened, newest, next, mut damaged, below } = end;
            damaged.extend(below);
            damaged.reverse();
            match newest {
                Some((_, record)) if record.header().end.is_some() => {}
                Some(_) if heads.len() == limit => {
                    return Ok(Heads { heads, next: Some(opened.to_string()) });
                }
                Some((_, record)) => heads.push(Head { record, next, damaged }),
                None if damaged.is_empty() => {}
                None => return Err(StoreError::of_damage(damaged.swap_remove(0), None)),
            }
        }
        Ok(Heads { heads, next: None })
    }

    pub(super) fn open_slot(
        &self,
        scope: &ScopePath,
        seq: u64,
        slot: Slot,
    ) -> Result<Result<Record, Damage>, StoreError> {
        let line = match slot {
            Slot::Record(record) | Slot::Copied(record) => return Ok(Ok(*record)),
            Slot::Damaged(damage) => return Ok(Err(damage)),
            Slot::There(number) => {
                let damage = || self.damage(scope.clone(), seq, number, Flaw::Missing);
                return Ok(self.load_from(number, scope, seq).ok_or_else(damage));
            }
            Slot::Line(line) => line,
        };
        let path = self.paths.journal();
        let read = journal::read(self.disk, &path, self.run, line);
        let opened = read.map_err(|source| read_error(&path, source))?;
        Ok(opened.map_err(|(flaw, _)| self.journal_damage(scope.clone(), seq, flaw)))
    }

    fn journal_damage(&self, scope: ScopePath, seq: u64, flaw: Flaw) -> Damage {
        Damage { run: self.run.clone(), scope, seq, place: JOURNAL_FILE.to_owned(), flaw }
    }

    /// Returns all records that exist or should exist: from the files, from the journal, and missing records in
    /// between. Also returns the commit that only `checkpoint.json` has, if there is such a commit.
    pub(super) fn slots(&self, index: &IndexSource<'_>) -> Result<(Slots, Option<Copied>), StoreError> {
        let ordinal = self.ordinal()?;
        let log = self.log();
        let (walk, ()) = self.walk(Bodies::Drop, |(), _| false)?;
        let missing = self.missing_after(&walk, &self.ends(&walk)?, log)?;
        // Read the journal after the files: it holds the records of files removed in between.
        let journal = index.get(self)?;
        index.remember(self.run, &walk);
        index.complete(self.run, ordinal, &walk);
        let mut found = Unordered::default();
        for commit in walk.sound {
            let is_copied = walk.copied.as_ref().is_some_and(|copied| copied.number == commit.number);
            let slot = if is_copied { Slot::Copied } else { Slot::Record };
            for (opened, record) in commit.records {
                let (scope, seq) = (record.header().scope.clone(), record.header().seq);
                found.add(scope, opened, seq, slot(Box::new(record)));
            }
        }
        Ok((self.arranged(found, &journal, &walk.damaged, missing)?, walk.copied))
    }

    /// Merges the records of the files with those of the journal, in order.
    pub(super) fn arranged(
        &self,
        found: Unordered,
        journal: &Index,
        damaged: &[DamagedFile],
        missing: Vec<Damage>,
    ) -> Result<Slots, StoreError> {
        let Unordered { order, mut scopes } = found;
        let gone = self.gone()?;
        for (scope, lines) in journal.scopes() {
            let slots = scopes.entry(scope.clone()).or_default();
            for (seq, line) in lines.iter().filter(|(seq, _)| !gone.has(scope, **seq)) {
                slots.entry(*seq).or_insert(Slot::Line(*line));
            }
        }
        for scope in damaged.iter().flat_map(|file| &file.scopes) {
            scopes.entry(scope.clone()).or_default();
        }
        let mut all = Slots::new();
        for (scope, mut slots) in scopes {
            self.add_damage(&scope, &mut slots, damaged, &gone)?;
            // Without a file that has the order, the scope comes last.
            let opened = order.get(&scope).copied().unwrap_or(u64::MAX);
            all.insert((opened, scope), slots);
        }
        for damage in missing {
            let opened = order.get(&damage.scope).copied().unwrap_or(u64::MAX);
            let slots = all.entry((opened, damage.scope.clone())).or_default();
            slots.insert(damage.seq, Slot::Damaged(damage));
        }
        Ok(all)
    }

    /// Returns the damaged records at a place.
    pub(super) fn damaged_at(
        &self,
        place: &str,
        index: &IndexSource<'_>,
    ) -> Result<Vec<(ScopePath, u64)>, StoreError> {
        let mut records = Vec::new();
        for ((_, scope), slots) in self.slots(index)?.0 {
            let lies_there = |slot: &Slot| matches!(slot, Slot::Damaged(damage) if damage.place == place);
            let seqs = slots.iter().filter(|(_, slot)| lies_there(slot)).map(|(seq, _)| *seq);
            records.extend(seqs.map(|seq| (scope.clone(), seq)));
        }
        Ok(records)
    }

    /// Returns the text of a damaged line of the journal; empty if there is none for the record.
    pub(super) fn damaged_line(
        &self,
        scope: &ScopePath,
        seq: u64,
        index: &IndexSource<'_>,
    ) -> Result<Vec<u8>, StoreError> {
        let Some(line) = index.get(self)?.line(scope, seq) else { return Ok(Vec::new()) };
        let path = self.paths.journal();
        let read = journal::read(self.disk, &path, self.run, line);
        Ok(read.map_err(|source| read_error(&path, source))?.err().map(|(_, text)| text).unwrap_or_default())
    }

    /// Adds the missing records of a scope, attributed to its damaged files if there are any.
    fn add_damage(
        &self,
        scope: &ScopePath,
        slots: &mut BTreeMap<u64, Slot>,
        damaged: &[DamagedFile],
        gone: &Gone,
    ) -> Result<(), StoreError> {
        let mut missing = Vec::new();
        let mut expect = 1;
        for (seq, slot) in &*slots {
            let gap = (expect..*seq).filter(|seq| !gone.has(scope, *seq));
            let mut gap = gap.take(MISSING_MAX.saturating_sub(missing.len())).peekable();
            if gap.peek().is_some() && !self.repairs(scope, *seq, slot)? {
                missing.extend(gap);
            }
            expect = seq + 1;
        }
        let mut missing = missing.into_iter();
        let mut tail = (expect..).filter(|seq| !gone.has(scope, *seq));
        for file in damaged.iter().rev() {
            for _ in file.scopes.iter().filter(|name| *name == scope) {
                let seq = missing.next().or_else(|| tail.next());
                let seq = seq.expect("there are more numbers than files");
                let damage = self.damage(scope.clone(), seq, file.number, file.flaw.clone());
                slots.insert(seq, Slot::Damaged(damage));
            }
        }
        for seq in missing {
            slots.insert(seq, Slot::Damaged(self.journal_damage(scope.clone(), seq, Flaw::Missing)));
        }
        Ok(())
    }

    /// Returns true if a record may follow a gap.
    fn repairs(&self, scope: &ScopePath, seq: u64, slot: &Slot) -> Result<bool, StoreError> {
        let reason = match slot {
            Slot::Record(record) | Slot::Copied(record) => Some(record.header().reason),
            Slot::Damaged(_) => None,
            Slot::There(number) => self.load_from(*number, scope, seq).map(|record| record.header().reason),
            Slot::Line(line) => {
                let path = self.paths.journal();
                let read = journal::read(self.disk, &path, self.run, *line);
                let read = read.map_err(|source| read_error(&path, source))?;
                read.ok().map(|record| record.header().reason)
            }
        };
        Ok(reason == Some(Reason::Repair))
    }
}

impl ScopeTail {
    /// Returns the end of a scope without a sound record.
    fn unknown() -> Self {
        Self { opened: u64::MAX, next: 1, ..Self::default() }
    }
}

/// Adds a missing record to the end of the scope. Without a sound record of that scope, adds the record to the
/// nearest parent, unless records of the parent are missing too.
fn add_missing(ends: &mut BTreeMap<ScopePath, ScopeTail>, damage: Damage) {
    if damage.scope.is_main() || ends.get(&damage.scope).is_some_and(|end| end.newest.is_some()) {
        let end = ends.entry(damage.scope.clone()).or_insert_with(ScopeTail::unknown);
        end.next = end.next.max(damage.seq + 1);
        end.damaged.push(damage);
        end.damaged.sort_by_key(|damage| damage.seq);
        return;
    }
    let above = std::iter::successors(damage.scope.parent(), ScopePath::parent);
    let is_known = |above: &ScopePath| ends.get(above).is_some_and(|end| end.newest.is_some());
    let above = above.into_iter().find(is_known).unwrap_or_else(ScopePath::main);
    let end = ends.entry(above).or_insert_with(ScopeTail::unknown);
    if end.damaged.is_empty() {
        end.below.push(damage);
    }
}

pub(super) fn number(cursor: &str) -> Result<u64, StoreError> {
    cursor.parse().map_err(|_| no_cursor(cursor))
}

pub(super) fn no_cursor(cursor: &str) -> StoreError {
    StoreError::Invalid(format!("`{cursor}` is not a cursor of this store"))
}
