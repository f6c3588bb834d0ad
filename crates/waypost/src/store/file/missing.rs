//! Committed records without a file: found by the checkpoint counter of the commits and by the event log of the run.
//!
//! **The counter.** Every commit file holds the checkpoint count of the run. The newest record of each scope is always
//! in a commit file, and the seq of that record is the record count of the scope. A checkpoint count above the sum of
//! those seqs is the number of missing records, also below newer commits of other scopes. A note in quarantine says
//! whether the count includes a record. For notes of older versions the smaller number of missing records is taken.
//!
//! **The log.** A line of `events.jsonl` is written after the record is durable ([`LoggedRecords`]). The log names the missing
//! records, and exposes an older copy of the whole folder. Reading stops at the first record with a file.
//!
//! Without a log, the suspect is a scope with a newest commit below a missing commit number.
//! A power cut may take the last commits of a run with durability `async`, so such a run has no missing records.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::id::ScopePath;
use crate::record::Flaw;
use crate::store::folder::LoggedRecords;
use crate::store::{Damage, StoreError};

use super::journal::Index;
use super::paths::{HISTORY, commit_name};
use super::read::{DamagedFile, MISSING_MAX, RunReader, ScopeTail, read_error};
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
    /// The end of each scope, by the commit files.
    pub(super) ends: &'r BTreeMap<ScopePath, ScopeTail>,
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
        for (scope, end) in self.ends {
            known += end.newest_seq();
            let here = end.damaged.iter().filter(|damage| damage.scope == *scope);
            known +=
                here.filter(|damage| number_of(&damage.place).is_some_and(|n| n < newest)).count() as u64;
        }
        for (scope, lines) in self.journal.scopes() {
            // The newest seq of a scope with files includes the journal lines.
            if self.ends.get(scope).is_none_or(|end| end.newest.is_none()) {
                known += lines.len() as u64;
            }
        }
        for (scope, seq, counts) in self.gone.records() {
            match self.ends.get(scope).is_some_and(|end| seq <= end.newest_seq()) {
                true if counts == Some(false) => counted += 1,
                false if counts != Some(false) => known += 1,
                _ => {}
            }
        }
        counted.saturating_sub(known)
    }

    fn lookup(&self, scope: &ScopePath, seq: u64) -> Lookup {
        let end = self.ends.get(scope);
        let is_damaged = |damage: &Damage| damage.scope == *scope && damage.seq == seq;
        if self.gone.has(scope, seq) || end.is_some_and(|end| end.damaged.iter().any(is_damaged)) {
            return Lookup::Known;
        }
        let is_there =
            end.is_some_and(|end| end.newest_seq() >= seq) || self.journal.line(scope, seq).is_some();
        if is_there { Lookup::There } else { Lookup::Missing }
    }
}

/// Collects missing records, oldest first.
struct Report<'r, 'a> {
    reader: &'r RunReader<'a>,
    read: &'r Read<'r>,
    found: Vec<Damage>,
    /// The next seq of each reported scope.
    next: BTreeMap<ScopePath, u64>,
}

impl Report<'_, '_> {
    /// Adds a record, and the missing records before.
    fn add(&mut self, scope: &ScopePath, seq: u64, (place, flaw): (&str, &Flaw)) {
        let first = self.next_of(scope).max(seq.saturating_sub(MISSING_MAX as u64));
        for seq in (first..=seq).filter(|seq| self.read.lookup(scope, *seq) == Lookup::Missing) {
            let (run, place, flaw) = (self.reader.run.clone(), place.to_owned(), flaw.clone());
            self.found.push(Damage { run, scope: scope.clone(), seq, place, flaw });
        }
        let next = self.next.entry(scope.clone()).or_default();
        *next = (seq + 1).max(*next);
    }

    /// Adds the next record of a scope.
    fn add_next(&mut self, scope: &ScopePath, cause: (&str, &Flaw)) {
        let next = self.next_of(scope);
        let seq = (next..).find(|seq| self.read.lookup(scope, *seq) == Lookup::Missing);
        self.add(scope, seq.expect("there are more numbers than files in quarantine"), cause);
    }

    fn next_of(&self, scope: &ScopePath) -> u64 {
        let after = || self.read.ends.get(scope).map_or(0, ScopeTail::newest_seq) + 1;
        self.next.get(scope).copied().unwrap_or_else(after)
    }

    /// Returns place and flaw of a counted record of a scope.
    fn cause_of(&self, scope: &ScopePath) -> Result<(String, Flaw), StoreError> {
        let newest = self.read.newest.map_or(0, |(number, _)| number);
        if let Some(file) = self.read.damaged.iter().find(|file| file.number < newest) {
            return Ok((commit_place(file.number), file.flaw.clone()));
        }
        // A rotated commit has no number either.
        if self.read.journal.scopes().next().is_some() {
            return Ok((HISTORY.to_owned(), Flaw::Missing));
        }
        let moved = self.reader.moved()?;
        let after = self.read.ends.get(scope).map_or(0, ScopeTail::newest_commit);
        let absent =
            |number: &u64| self.read.numbers.binary_search(number).is_err() && !moved.contains(number);
        let number = (after + 1..newest).find(absent);
        Ok((number.map_or_else(|| HISTORY.to_owned(), commit_place), Flaw::Missing))
    }

    /// Returns a scope with a newest commit below a missing commit number; else the main scope.
    fn suspect(&self) -> Result<ScopePath, StoreError> {
        let newest = self.read.newest.map_or(0, |(number, _)| number);
        let moved = self.reader.moved()?;
        let absent =
            |number: &u64| self.read.numbers.binary_search(number).is_err() && !moved.contains(number);
        let greatest = (1..newest).rev().find(absent).unwrap_or(0);
        let is_suspect = |(scope, end): &(&ScopePath, &ScopeTail)| {
            end.newest.is_some() && end.newest_commit() < greatest && !self.next.contains_key(*scope)
        };
        let first = self.read.ends.iter().filter(is_suspect).min_by_key(|(_, end)| end.opened);
        Ok(first.map_or_else(ScopePath::main, |(scope, _)| scope.clone()))
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
        let is_there = |(scope, seq): &(ScopePath, u64)| read.lookup(scope, *seq) == Lookup::There;
        if read.uncounted() == 0 && read.missing.is_empty() && log.peek().is_none_or(is_there) {
            return Ok(Vec::new());
        }
        let path = self.paths.journal();
        let journal = Arc::<Index>::default().update(self.disk, &path, self.run);
        let journal = journal.map_err(|source| read_error(&path, source))?;
        let read = &Read { journal, ..read };
        let uncounted = read.uncounted();
        let mut listed = Vec::new();
        for (scope, seq) in log {
            match read.lookup(&scope, seq) {
                Lookup::Missing => listed.push((scope, seq)),
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
        for (scope, seq) in &listed {
            let (place, flaw) = report.cause_of(scope)?;
            report.add(scope, *seq, (&place, &flaw));
        }
        for _ in (counted as u64..uncounted).take(MISSING_MAX) {
            let scope = report.suspect()?;
            let (place, flaw) = report.cause_of(&scope)?;
            report.add_next(&scope, (&place, &flaw));
        }
        let mut numbers = read.missing.iter();
        let mut place = log_place;
        for (scope, seq) in &above {
            place = numbers.next().map_or(place, |number| commit_place(*number));
            report.add(scope, *seq, (&place, &Flaw::Missing));
        }
        for number in numbers {
            report.add_next(&ScopePath::main(), (&commit_place(*number), &Flaw::Missing));
        }
        Ok(report.found)
    }
}

/// Returns the place of a commit file.
fn commit_place(number: u64) -> String {
    format!("{HISTORY}/{}", commit_name(number))
}
