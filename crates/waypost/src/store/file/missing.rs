//! Committed records without a file: found by the checkpoint counter of the commits and by the event log of the run.
//!
//! **The counter.** Every commit file holds the checkpoint count of the run. The newest record of each branch is always
//! in a commit file, and the seq of that record is the record count of the branch. A checkpoint count above the sum of
//! those seqs is the number of missing records, also below newer commits of other branches. A note in quarantine says
//! whether the count includes a record. For notes of older versions the smaller number of missing records is taken.
//!
//! **The log.** A line of `events.jsonl` is written after the record is durable ([`LoggedRecords`]). The log names the missing
//! records, and exposes an older copy of the whole folder. Reading stops at the first record with a file.
//!
//! Without a log, the suspect is a branch with a newest commit below a missing commit number.
//! A power cut may take the last commits of a run with durability `async`, so such a run has no missing records.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::id::BranchPath;
use crate::record::Flaw;
use crate::store::folder::LoggedRecords;
use crate::store::{Damage, StoreError};

use super::journal::Index;
use super::paths::{HISTORY, commit_name};
use super::read::{BranchTail, DamagedFile, MISSING_MAX, RunReader, read_error};
use super::retain::number_of;
use super::tail_check::Gone;

/// The files of a run, for the comparison with counter and log.
pub(super) struct Read<'r> {
    /// The numbers of the commit files, ascending.
    pub(super) numbers: &'r [u64],
    /// The numbers of missing commits above all commit files, ascending.
    pub(super) missing: &'r [u64],
    /// Number and checkpoint count of the newest sound commit.
    pub(super) newest: Option<(u64, u64)>,
    /// The end of each branch, by the commit files.
    pub(super) ends: &'r BTreeMap<BranchPath, BranchTail>,
    pub(super) damaged: &'r [DamagedFile],
    pub(super) gone: &'r Gone,
    /// The journal, read only on suspicion.
    pub(super) journal: Arc<Index>,
}

/// The place of a record named by the log.
#[derive(PartialEq, Eq)]
enum Lookup {
    There,
    /// Reported as damaged, or noted in quarantine.
    Known,
    Missing,
}

impl Read<'_> {
    /// Returns the number of counted records without a file.
    fn uncounted(&self) -> u64 {
        let Some((newest, checkpoints)) = self.newest else { return 0 };
        let (mut counted, mut known) = (checkpoints, 0);
        for (branch, end) in self.ends {
            known += end.newest_seq();
            let here = end.damaged.iter().filter(|damage| damage.branch == *branch);
            known +=
                here.filter(|damage| number_of(&damage.place).is_some_and(|n| n < newest)).count() as u64;
        }
        for (branch, lines) in self.journal.branches() {
            // The newest seq of a branch with files includes the journal lines.
            if self.ends.get(branch).is_none_or(|end| end.newest.is_none()) {
                known += lines.len() as u64;
            }
        }
        for (branch, seq, counts) in self.gone.records() {
            match self.ends.get(branch).is_some_and(|end| seq <= end.newest_seq()) {
                true if counts == Some(false) => counted += 1,
                false if counts != Some(false) => known += 1,
                _ => {}
            }
        }
        counted.saturating_sub(known)
    }

    fn lookup(&self, branch: &BranchPath, seq: u64) -> Lookup {
        let end = self.ends.get(branch);
        let is_damaged = |damage: &Damage| damage.branch == *branch && damage.seq == seq;
        if self.gone.has(branch, seq) || end.is_some_and(|end| end.damaged.iter().any(is_damaged)) {
            return Lookup::Known;
        }
        let is_there =
            end.is_some_and(|end| end.newest_seq() >= seq) || self.journal.line(branch, seq).is_some();
        if is_there { Lookup::There } else { Lookup::Missing }
    }
}

/// Collects missing records, oldest first.
struct Report<'r, 'a> {
    reader: &'r RunReader<'a>,
    read: &'r Read<'r>,
    found: Vec<Damage>,
    /// The next seq of each reported branch.
    next: BTreeMap<BranchPath, u64>,
}

impl Report<'_, '_> {
    /// Adds a record, and the missing records before.
    fn add(&mut self, branch: &BranchPath, seq: u64, (place, flaw): (&str, &Flaw)) {
        let first = self.next_of(branch).max(seq.saturating_sub(MISSING_MAX as u64));
        for seq in (first..=seq).filter(|seq| self.read.lookup(branch, *seq) == Lookup::Missing) {
            let (run, place, flaw) = (self.reader.run.clone(), place.to_owned(), flaw.clone());
            self.found.push(Damage { run, branch: branch.clone(), seq, place, flaw });
        }
        let next = self.next.entry(branch.clone()).or_default();
        *next = (seq + 1).max(*next);
    }

    /// Adds the next record of a branch.
    fn add_next(&mut self, branch: &BranchPath, cause: (&str, &Flaw)) {
        let next = self.next_of(branch);
        let seq = (next..).find(|seq| self.read.lookup(branch, *seq) == Lookup::Missing);
        self.add(branch, seq.expect("there are more numbers than files in quarantine"), cause);
    }

    fn next_of(&self, branch: &BranchPath) -> u64 {
        let after = || self.read.ends.get(branch).map_or(0, BranchTail::newest_seq) + 1;
        self.next.get(branch).copied().unwrap_or_else(after)
    }

    /// Returns place and flaw of a counted record of a branch.
    fn cause_of(&self, branch: &BranchPath) -> Result<(String, Flaw), StoreError> {
        let newest = self.read.newest.map_or(0, |(number, _)| number);
        if let Some(file) = self.read.damaged.iter().find(|file| file.number < newest) {
            return Ok((commit_place(file.number), file.flaw.clone()));
        }
        // A rotated commit has no number either.
        if self.read.journal.branches().next().is_some() {
            return Ok((HISTORY.to_owned(), Flaw::Missing));
        }
        let moved = self.reader.moved()?;
        let after = self.read.ends.get(branch).map_or(0, BranchTail::newest_commit);
        let absent =
            |number: &u64| self.read.numbers.binary_search(number).is_err() && !moved.contains(number);
        let number = (after + 1..newest).find(absent);
        Ok((number.map_or_else(|| HISTORY.to_owned(), commit_place), Flaw::Missing))
    }

    /// Returns a branch with a newest commit below a missing commit number; else the main branch.
    fn suspect(&self) -> Result<BranchPath, StoreError> {
        let newest = self.read.newest.map_or(0, |(number, _)| number);
        let moved = self.reader.moved()?;
        let absent =
            |number: &u64| self.read.numbers.binary_search(number).is_err() && !moved.contains(number);
        let greatest = (1..newest).rev().find(absent).unwrap_or(0);
        let is_suspect = |(branch, end): &(&BranchPath, &BranchTail)| {
            end.newest.is_some() && end.newest_commit() < greatest && !self.next.contains_key(*branch)
        };
        let first = self.read.ends.iter().filter(is_suspect).min_by_key(|(_, end)| end.opened);
        Ok(first.map_or_else(BranchPath::main, |(branch, _)| branch.clone()))
    }
}

impl RunReader<'_> {
    /// Returns the event log of the run. Call before listing the history.
    pub(super) fn log(&self) -> LoggedRecords<'_> {
        LoggedRecords::newest_first(self.disk, &self.paths.root, self.run)
    }

    /// Returns the committed records without a file, oldest first.
    pub(super) fn missing_records(
        &self,
        read: Read<'_>,
        log: LoggedRecords<'_>,
    ) -> Result<Vec<Damage>, StoreError> {
        let log_place = format!("{} has the record", log.path().display());
        let mut log = log.peekable();
        let is_there = |(branch, seq): &(BranchPath, u64)| read.lookup(branch, *seq) == Lookup::There;
        if read.uncounted() == 0 && read.missing.is_empty() && log.peek().is_none_or(is_there) {
            return Ok(Vec::new());
        }
        let path = self.paths.journal();
        let journal = Arc::<Index>::default().update(self.disk, &path, self.run);
        let journal = journal.map_err(|source| read_error(&path, source))?;
        let read = &Read { journal, ..read };
        let uncounted = read.uncounted();
        let mut listed = Vec::new();
        for (branch, seq) in log {
            match read.lookup(&branch, seq) {
                Lookup::Missing => listed.push((branch, seq)),
                Lookup::There if listed.len() as u64 >= uncounted => break,
                Lookup::There | Lookup::Known => {}
            }
        }
        if (listed.is_empty() && uncounted == 0 && read.missing.is_empty()) || self.may_lose()? {
            return Ok(Vec::new());
        }
        listed.reverse();
        let counted = listed.len().min(usize::try_from(uncounted).unwrap_or(usize::MAX));
        let above = listed.split_off(counted);
        let mut report = Report { reader: self, read, found: Vec::new(), next: BTreeMap::new() };
        for (branch, seq) in &listed {
            let (place, flaw) = report.cause_of(branch)?;
            report.add(branch, *seq, (&place, &flaw));
        }
        for _ in (counted as u64..uncounted).take(MISSING_MAX) {
            let branch = report.suspect()?;
            let (place, flaw) = report.cause_of(&branch)?;
            report.add_next(&branch, (&place, &flaw));
        }
        let mut numbers = read.missing.iter();
        let mut place = log_place;
        for (branch, seq) in &above {
            place = numbers.next().map_or(place, |number| commit_place(*number));
            report.add(branch, *seq, (&place, &Flaw::Missing));
        }
        for number in numbers {
            report.add_next(&BranchPath::main(), (&commit_place(*number), &Flaw::Missing));
        }
        Ok(report.found)
    }
}

/// Returns the place of a commit file.
fn commit_place(number: u64) -> String {
    format!("{HISTORY}/{}", commit_name(number))
}
