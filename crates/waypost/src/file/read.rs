//! Reading a run: without any lock, beside a writer, on a disk that may be read-only.
//!
//! Everything is read anew from the files at each call; the newest sound commit file decides. A writer may take files
//! away meanwhile, but only after it wrote what they hold to the journal, so a call that misses one begins again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use crate::disk::Disk;
use crate::folder::LoggedRecords;
use crate::id::{BranchPath, Digest, RunId};
use crate::record::{Flaw, Reason, Record};
use crate::store::{Damage, Head, Heads, PAGE_ITEMS_MAX, Page, StoreError};

use super::format::{self, Commit, FILE_BYTES_MAX};
use super::journal::{self, Index, Line};
use super::lookup::IndexSource;
use super::missing::Read;
use super::paths::{HISTORY, JOURNAL_FILE, RunPaths, commit_name};
use super::tail_check::{Gone, Listed};

/// How often a call begins again because a writer took files away while it read. Each time, the writer has made at
/// least one rotation, which is some commits long.
const RESTARTS_MAX: u32 = 100;
/// Most records of one branch that are reported as missing one by one: a listing of more helps nobody.
pub(super) const MISSING_MAX: usize = 10_000;

/// A run as it is read.
#[derive(Debug, Clone)]
pub(super) struct RunReader<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) run: &'a RunId,
    pub(super) paths: RunPaths,
}

/// A commit file that is not what was written.
#[derive(Debug, Clone)]
pub(super) struct DamagedFile {
    pub(super) number: u64,
    pub(super) flaw: Flaw,
    /// The branches of its records, as far as the text still shows them; the main branch where it does not.
    pub(super) branches: Vec<BranchPath>,
}

/// A commit that was read from `checkpoint.json`, and what is wrong with its own file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) number: u64,
    pub(super) flaw: Flaw,
}

/// What was found where a commit should be.
pub(super) enum Found {
    /// Its file is as it was written.
    Sound(Commit),
    /// Its file is not, but `checkpoint.json` has the same commit.
    Copied(Commit, Flaw),
    /// Nothing that can be used.
    Damaged(DamagedFile),
}

/// Whether a walk keeps the bodies of what it has seen: those of a whole history may not fit into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bodies {
    Keep,
    Drop,
}

/// What was found in the history, newest first.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(super) sound: Vec<Commit>,
    pub(super) damaged: Vec<DamagedFile>,
    /// All commit files there are.
    pub(super) numbers: Vec<u64>,
    /// Numbers of missing commits above all commit files, ascending.
    pub(super) missing: Vec<u64>,
    /// The commit whose own file is missing or damaged, and for which `checkpoint.json` stood in.
    pub(super) copied: Option<Copied>,
    /// The oldest file was reached.
    pub(super) exhausted: bool,
}

/// The end of a branch.
#[derive(Debug, Clone, Default)]
pub(super) struct End {
    /// Place in the order of opening.
    pub(super) opened: u64,
    /// Its newest sound record, and the commit it is in.
    pub(super) newest: Option<(u64, Record)>,
    /// The seq of the next record.
    pub(super) next: u64,
    /// Damage above the newest sound record, oldest first.
    pub(super) damaged: Vec<Damage>,
    /// Missing records of child branches without any sound record.
    pub(super) below: Vec<Damage>,
}

impl End {
    /// Returns the seq of the newest sound record; 0 if there is none.
    pub(super) fn newest_seq(&self) -> u64 {
        self.newest.as_ref().map_or(0, |(_, record)| record.header().seq)
    }

    /// Says whether newest records are missing.
    pub(super) fn misses_any(&self) -> bool {
        self.damaged.iter().chain(&self.below).any(|damage| damage.flaw == Flaw::Missing)
    }

    /// Returns the number of the commit that has the newest sound record; 0 if there is none.
    pub(super) fn newest_commit(&self) -> u64 {
        self.newest.as_ref().map_or(0, |(number, _)| *number)
    }

    /// Returns seq and digest of the newest sound record.
    pub(super) fn link(&self) -> Option<(u64, Digest)> {
        self.newest.as_ref().map(|(_, record)| (record.header().seq, record.digest()))
    }
}

/// A record that is known to be or to have been.
pub(super) enum Slot {
    /// In a commit file.
    Record(Box<Record>),
    /// In `checkpoint.json` alone, although its own file should have it.
    Copied(Box<Record>),
    /// In this commit file, as far as is remembered.
    There(u64),
    /// In the journal.
    Line(Line),
    /// Not what was written, or not there.
    Damaged(Damage),
}

pub(super) type Slots = BTreeMap<(u64, BranchPath), BTreeMap<u64, Slot>>;

/// Records as they are found, before the branches are put in the order in which they were opened.
#[derive(Default)]
pub(super) struct Unordered {
    order: BTreeMap<BranchPath, u64>,
    branches: BTreeMap<BranchPath, BTreeMap<u64, Slot>>,
}

impl Unordered {
    pub(super) fn add(&mut self, branch: BranchPath, opened: u64, seq: u64, slot: Slot) {
        self.order.insert(branch.clone(), opened);
        self.branches.entry(branch).or_default().insert(seq, slot);
    }
}

/// Why a read could not be finished.
#[derive(Debug)]
pub(super) enum Stop {
    /// A file that was listed is gone: begin again.
    Gone,
    Error(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

pub(super) fn read_error(place: &std::path::Path, source: io::Error) -> StoreError {
    StoreError::Io { action: "read", place: place.display().to_string(), source }
}

impl<'a> RunReader<'a> {
    /// Reads the history from its newest file on, until `enough` of it was seen; `T` is what that needs to remember.
    pub(super) fn walk<T: Default>(
        &self,
        bodies: Bodies,
        enough: impl Fn(&mut T, &Commit) -> bool,
    ) -> Result<(Walk, T), StoreError> {
        self.walk_from(u64::MAX, bodies, enough)
    }

    /// As [`walk`](Self::walk), from commit `first` on.
    pub(super) fn walk_from<T: Default>(
        &self,
        first: u64,
        bodies: Bodies,
        enough: impl Fn(&mut T, &Commit) -> bool,
    ) -> Result<(Walk, T), StoreError> {
        self.again(|| {
            let Listed { numbers, copied, missing } = self.listed()?;
            let copied = copied.map(|number| Copied { number, flaw: Flaw::Missing });
            let mut walk = Walk { numbers, copied, missing, ..Walk::default() };
            let mut memory = T::default();
            for number in walk.numbers.clone().into_iter().rev().skip_while(|number| *number > first) {
                let mut commit = match self.commit(number)? {
                    // Whether one that is not there is missed, the list says.
                    Found::Sound(commit) | Found::Copied(commit, Flaw::Missing) => commit,
                    Found::Copied(commit, flaw) => {
                        walk.copied = Some(Copied { number, flaw });
                        commit
                    }
                    Found::Damaged(damaged) => {
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

    fn again<T>(&self, mut read: impl FnMut() -> Result<T, Stop>) -> Result<T, StoreError> {
        for _ in 0..RESTARTS_MAX {
            match read() {
                Ok(found) => return Ok(found),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Gone) => {}
            }
        }
        let source = io::Error::other("it changes faster than it can be read");
        Err(read_error(&self.paths.history(), source))
    }

    /// Reads one commit. A newer format is no damage: nothing may be concluded without what it says.
    pub(super) fn commit(&self, number: u64) -> Result<Found, Stop> {
        let path = self.paths.commit(number);
        let damaged = match self.disk.read(&path, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let copy = self.copy(number).ok_or(Stop::Gone)?;
                return Ok(Found::Copied(copy, Flaw::Missing));
            }
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let flaw = Flaw::Malformed(format!("it is larger than {FILE_BYTES_MAX} bytes"));
                DamagedFile { number, flaw, branches: vec![BranchPath::main()] }
            }
            Err(source) => return Err(read_error(&path, source).into()),
            Ok(text) => match Commit::open(self.run, number, &text) {
                Ok(commit) => return Ok(Found::Sound(commit)),
                Err(flaw @ Flaw::Format { .. }) => {
                    let damage = self.damage(BranchPath::main(), number, number, flaw);
                    return Err(StoreError::of_damage(damage, None).into());
                }
                Err(flaw) => {
                    let mut branches = format::branches_in(self.run, &text);
                    if branches.is_empty() {
                        branches.push(BranchPath::main());
                    }
                    DamagedFile { number, flaw, branches }
                }
            },
        };
        // Most often a second name of the same file, and as damaged; not where somebody wrote the file anew.
        Ok(match self.copy(number) {
            Some(copy) => Found::Copied(copy, damaged.flaw),
            None => Found::Damaged(damaged),
        })
    }

    pub(super) fn damage(&self, branch: BranchPath, seq: u64, number: u64, flaw: Flaw) -> Damage {
        let place = format!("{HISTORY}/{}", commit_name(number));
        Damage { run: self.run.clone(), branch, seq, place, flaw }
    }

    /// Returns the newest sound commit.
    pub(super) fn newest(&self) -> Result<Option<Commit>, StoreError> {
        Ok(self.walk(Bodies::Keep, |(), _| true)?.0.sound.pop())
    }

    /// Reads commits, newest first, up to the end of every branch.
    pub(super) fn walk_to_ends(&self) -> Result<(Walk, BTreeMap<BranchPath, End>), StoreError> {
        type Memory = (Option<u64>, BTreeSet<u64>);
        let enough = |(count, seen): &mut Memory, commit: &Commit| {
            let count = *count.get_or_insert(commit.branches);
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

    /// Returns the missing newest records of branches, oldest first.
    fn missing_after(
        &self,
        walk: &Walk,
        ends: &BTreeMap<BranchPath, End>,
        log: LoggedRecords<'_>,
    ) -> Result<Vec<Damage>, StoreError> {
        let newest = walk.sound.first().map(|commit| (commit.number, commit.checkpoints));
        let (numbers, missing, damaged) = (&walk.numbers[..], &walk.missing[..], &walk.damaged[..]);
        let (gone, journal) = (&self.gone()?, Arc::default());
        self.missing_records(Read { numbers, missing, newest, ends, damaged, gone, journal }, log)
    }

    /// Returns the end of every branch in the commits of a walk.
    fn ends(&self, walk: &Walk) -> Result<BTreeMap<BranchPath, End>, StoreError> {
        let mut ends: BTreeMap<BranchPath, End> = BTreeMap::new();
        for commit in &walk.sound {
            for (opened, record) in commit.records.iter().rev() {
                let header = record.header();
                ends.entry(header.branch.clone()).or_insert_with(|| End {
                    opened: *opened,
                    newest: Some((commit.number, record.clone())),
                    next: header.seq + 1,
                    ..End::default()
                });
            }
        }
        let gone = self.gone()?;
        for file in walk.damaged.iter().rev() {
            for branch in &file.branches {
                let end = ends.entry(branch.clone()).or_insert_with(End::unknown);
                if end.newest.as_ref().is_none_or(|(number, _)| *number < file.number) {
                    let seq = (end.next..).find(|seq| !gone.has(branch, *seq));
                    let seq = seq.expect("there are more numbers than files in quarantine");
                    end.damaged.push(self.damage(branch.clone(), seq, file.number, file.flaw.clone()));
                    end.next = seq + 1;
                }
            }
        }
        for (branch, seq, _) in gone.records() {
            let end = ends.entry(branch.clone()).or_insert_with(End::unknown);
            end.next = end.next.max(seq + 1);
        }
        Ok(ends)
    }

    pub(super) fn heads(&self, page: &Page) -> Result<Heads, StoreError> {
        let (walk, ends) = self.walk_to_ends()?;
        let from = page.cursor.as_deref().map_or(Ok(0), number)?;
        let mut ends: Vec<End> = ends.into_values().collect();
        let known = ends.iter().filter(|end| end.newest.is_some()).count() as u64;
        // A run has its first commit from the beginning.
        let expected = walk.sound.first().map_or(1, |commit| commit.branches);
        let is_sound = ends.iter().all(|end| end.damaged.is_empty() && end.below.is_empty());
        if walk.exhausted && walk.damaged.is_empty() && is_sound && known < expected {
            let damage = self.damage(BranchPath::main(), 0, 0, Flaw::Missing);
            return Err(StoreError::of_damage(Damage { place: HISTORY.to_owned(), ..damage }, None));
        }
        ends.sort_by_key(|end| end.opened);
        let limit = page.limit.clamp(1, PAGE_ITEMS_MAX);
        let mut heads = Vec::new();
        for end in ends.into_iter().filter(|end| end.opened >= from) {
            let End { opened, newest, next, mut damaged, below } = end;
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
        branch: &BranchPath,
        seq: u64,
        slot: Slot,
    ) -> Result<Result<Record, Damage>, StoreError> {
        let line = match slot {
            Slot::Record(record) | Slot::Copied(record) => return Ok(Ok(*record)),
            Slot::Damaged(damage) => return Ok(Err(damage)),
            Slot::There(number) => {
                let damage = || self.damage(branch.clone(), seq, number, Flaw::Missing);
                return Ok(self.load_from(number, branch, seq).ok_or_else(damage));
            }
            Slot::Line(line) => line,
        };
        let path = self.paths.journal();
        let read = journal::read(self.disk, &path, self.run, line);
        let opened = read.map_err(|source| read_error(&path, source))?;
        Ok(opened.map_err(|(flaw, _)| self.journal_damage(branch.clone(), seq, flaw)))
    }

    fn journal_damage(&self, branch: BranchPath, seq: u64, flaw: Flaw) -> Damage {
        Damage { run: self.run.clone(), branch, seq, place: JOURNAL_FILE.to_owned(), flaw }
    }

    /// Returns all records that are or should be: those of the files, those of the journal, and those that are
    /// missing between others; with the commit that only `checkpoint.json` has, if one is so.
    pub(super) fn slots(&self, index: &IndexSource<'_>) -> Result<(Slots, Option<Copied>), StoreError> {
        let ordinal = self.ordinal()?;
        let log = self.log();
        let (walk, ()) = self.walk(Bodies::Drop, |(), _| false)?;
        let missing = self.missing_after(&walk, &self.ends(&walk)?, log)?;
        // After the files: what was taken away meanwhile is in the journal.
        let journal = index.get(self)?;
        index.remember(self.run, &walk);
        index.complete(self.run, ordinal, &walk);
        let mut found = Unordered::default();
        for commit in walk.sound {
            let is_copied = walk.copied.as_ref().is_some_and(|copied| copied.number == commit.number);
            let slot = if is_copied { Slot::Copied } else { Slot::Record };
            for (opened, record) in commit.records {
                let (branch, seq) = (record.header().branch.clone(), record.header().seq);
                found.add(branch, opened, seq, slot(Box::new(record)));
            }
        }
        Ok((self.arranged(found, &journal, &walk.damaged, missing)?, walk.copied))
    }

    /// Puts what was found in files beside what the journal has, and in order.
    pub(super) fn arranged(
        &self,
        found: Unordered,
        journal: &Index,
        damaged: &[DamagedFile],
        missing: Vec<Damage>,
    ) -> Result<Slots, StoreError> {
        let Unordered { order, mut branches } = found;
        let gone = self.gone()?;
        for (branch, lines) in journal.branches() {
            let slots = branches.entry(branch.clone()).or_default();
            for (seq, line) in lines.iter().filter(|(seq, _)| !gone.has(branch, **seq)) {
                slots.entry(*seq).or_insert(Slot::Line(*line));
            }
        }
        for branch in damaged.iter().flat_map(|file| &file.branches) {
            branches.entry(branch.clone()).or_default();
        }
        let mut all = Slots::new();
        for (branch, mut slots) in branches {
            self.add_damage(&branch, &mut slots, damaged, &gone)?;
            // Where no file tells the order any more, the branch comes last.
            let opened = order.get(&branch).copied().unwrap_or(u64::MAX);
            all.insert((opened, branch), slots);
        }
        for damage in missing {
            let opened = order.get(&damage.branch).copied().unwrap_or(u64::MAX);
            let slots = all.entry((opened, damage.branch.clone())).or_default();
            slots.insert(damage.seq, Slot::Damaged(damage));
        }
        Ok(all)
    }

    /// Returns the known damaged records of one place.
    pub(super) fn damaged_at(
        &self,
        place: &str,
        index: &IndexSource<'_>,
    ) -> Result<Vec<(BranchPath, u64)>, StoreError> {
        let mut records = Vec::new();
        for ((_, branch), slots) in self.slots(index)?.0 {
            let lies_there = |slot: &Slot| matches!(slot, Slot::Damaged(damage) if damage.place == place);
            let seqs = slots.iter().filter(|(_, slot)| lies_there(slot)).map(|(seq, _)| *seq);
            records.extend(seqs.map(|seq| (branch.clone(), seq)));
        }
        Ok(records)
    }

    /// Returns the text of a damaged line of the journal; empty if there is none for the record.
    pub(super) fn damaged_line(
        &self,
        branch: &BranchPath,
        seq: u64,
        index: &IndexSource<'_>,
    ) -> Result<Vec<u8>, StoreError> {
        let Some(line) = index.get(self)?.line(branch, seq) else { return Ok(Vec::new()) };
        let path = self.paths.journal();
        let read = journal::read(self.disk, &path, self.run, line);
        Ok(read.map_err(|source| read_error(&path, source))?.err().map(|(_, text)| text).unwrap_or_default())
    }

    /// Adds what is missing on a branch: it lies in its damaged files, as far as there are any, else nowhere.
    fn add_damage(
        &self,
        branch: &BranchPath,
        slots: &mut BTreeMap<u64, Slot>,
        damaged: &[DamagedFile],
        gone: &Gone,
    ) -> Result<(), StoreError> {
        let mut missing = Vec::new();
        let mut expect = 1;
        for (seq, slot) in &*slots {
            let gap = (expect..*seq).filter(|seq| !gone.has(branch, *seq));
            let mut gap = gap.take(MISSING_MAX.saturating_sub(missing.len())).peekable();
            if gap.peek().is_some() && !self.repairs(branch, *seq, slot)? {
                missing.extend(gap);
            }
            expect = seq + 1;
        }
        let mut missing = missing.into_iter();
        let mut tail = (expect..).filter(|seq| !gone.has(branch, *seq));
        for file in damaged.iter().rev() {
            for _ in file.branches.iter().filter(|name| *name == branch) {
                let seq = missing.next().or_else(|| tail.next());
                let seq = seq.expect("there are more numbers than files");
                let damage = self.damage(branch.clone(), seq, file.number, file.flaw.clone());
                slots.insert(seq, Slot::Damaged(damage));
            }
        }
        for seq in missing {
            slots.insert(seq, Slot::Damaged(self.journal_damage(branch.clone(), seq, Flaw::Missing)));
        }
        Ok(())
    }

    /// Says whether a record may stand behind a gap.
    fn repairs(&self, branch: &BranchPath, seq: u64, slot: &Slot) -> Result<bool, StoreError> {
        let reason = match slot {
            Slot::Record(record) | Slot::Copied(record) => Some(record.header().reason),
            Slot::Damaged(_) => None,
            Slot::There(number) => self.load_from(*number, branch, seq).map(|record| record.header().reason),
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

impl End {
    /// A branch of which no sound record was seen.
    fn unknown() -> Self {
        Self { opened: u64::MAX, next: 1, ..Self::default() }
    }
}

/// Adds a missing record to the end of the branch. Without a sound record of that branch, adds the record to the nearest
/// parent, unless records of the parent are missing too.
fn add_missing(ends: &mut BTreeMap<BranchPath, End>, damage: Damage) {
    if damage.branch.is_main() || ends.get(&damage.branch).is_some_and(|end| end.newest.is_some()) {
        let end = ends.entry(damage.branch.clone()).or_insert_with(End::unknown);
        end.next = end.next.max(damage.seq + 1);
        end.damaged.push(damage);
        end.damaged.sort_by_key(|damage| damage.seq);
        return;
    }
    let above = std::iter::successors(damage.branch.parent(), BranchPath::parent);
    let is_known = |above: &BranchPath| ends.get(above).is_some_and(|end| end.newest.is_some());
    let above = above.into_iter().find(is_known).unwrap_or_else(BranchPath::main);
    let end = ends.entry(above).or_insert_with(End::unknown);
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
