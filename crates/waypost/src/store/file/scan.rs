//! Scans the records of a run, page by page.
//!
//! The cost of a page depends on its content. The first page that needs the whole history reads the history.
//! Later pages use the cached positions and read only their own records and newer commits. A call returns only
//! records read by the same call.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::record::Record;
use crate::store::{PAGE_ITEMS_MAX, Scan, ScanOrder, Scanned, StoreError};

use super::format::CommitFile;
use super::lookup::IndexSource;
use super::read::{Bodies, CommitRead, Copied, RunReader, Slot, Slots, no_cursor, number};

/// Commits read for a page, without bodies: a commit that opens many scopes has a record for each scope.
type Opened = BTreeMap<u64, CommitFile>;

impl RunReader<'_> {
    pub(super) fn scan(&self, scan: &Scan, index: &IndexSource<'_>) -> Result<Scanned, StoreError> {
        let limit = scan.limit.clamp(1, PAGE_ITEMS_MAX);
        let after = scan.cursor.as_deref().map(position).transpose()?;
        if let Some(found) = self.scan_newest(scan, limit, after, index)? {
            return Ok(found);
        }
        if after.is_some()
            && let Some(slots) = index.slots(self)?
            && let Some(found) = self.page(scan, slots, None)?
        {
            return Ok(found);
        }
        let (slots, copied) = self.slots(index)?;
        let found = self.page(scan, slots, copied.as_ref())?;
        Ok(found.expect("what was just read is nowhere else"))
    }

    /// Returns a page; `None` if a record is not at its cached position.
    fn page(&self, scan: &Scan, all: Slots, copied: Option<&Copied>) -> Result<Option<Scanned>, StoreError> {
        let limit = scan.limit.clamp(1, PAGE_ITEMS_MAX);
        let after = scan.cursor.as_deref().map(position).transpose()?;
        let mut found = Scanned { records: Vec::new(), damaged: Vec::new(), next: None };
        let mut last = None;
        let mut opened_files = Opened::new();
        for ((opened, scope), slots) in all {
            let skip = after.is_some_and(|(at, _)| opened < at)
                || scan.scope.as_ref().is_some_and(|wanted| *wanted != scope);
            if skip {
                continue;
            }
            let slots: Box<dyn Iterator<Item = (u64, Slot)>> = match scan.order {
                ScanOrder::OldestFirst => Box::new(slots.into_iter()),
                ScanOrder::NewestFirst => Box::new(slots.into_iter().rev()),
            };
            for (seq, slot) in slots {
                if after.is_some_and(|(at, after)| opened == at && !is_past(scan.order, seq, after)) {
                    continue;
                }
                if found.records.len() == limit {
                    found.next = last.map(|(opened, seq): (u64, u64)| format!("{opened}.{seq}"));
                    return Ok(Some(found));
                }
                last = Some((opened, seq));
                if let (Slot::Copied(_), Some(Copied { number, flaw }), true) =
                    (&slot, copied, scan.spans(seq))
                {
                    found.damaged.push(self.damage(scope.clone(), seq, *number, flaw.clone()));
                }
                let slot = match slot {
                    // Outside the requested range: not read.
                    Slot::There(_) if !scan.spans(seq) => continue,
                    Slot::There(number) => {
                        let is_it =
                            |record: &&Record| record.header().scope == scope && record.header().seq == seq;
                        let commit = self.opened(number, &mut opened_files);
                        let mut records = commit.into_iter().flat_map(|commit| &commit.records);
                        match records.by_ref().map(|(_, record)| record).find(is_it) {
                            Some(record) => Slot::Record(Box::new(record.clone())),
                            None => return Ok(None),
                        }
                    }
                    slot => slot,
                };
                match self.open_slot(&scope, seq, slot)? {
                    Ok(record) if scan.wants(&record) => found.records.push(record.without_body()),
                    Ok(_) => {}
                    Err(damage) if scan.spans(seq) => found.damaged.push(damage),
                    Err(_) => {}
                }
            }
        }
        Ok(Some(found))
    }

    /// Reads a commit, at most once per page.
    fn opened<'o>(&self, number: u64, opened: &'o mut Opened) -> Option<&'o CommitFile> {
        match opened.entry(number) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(place) => {
                let Ok(CommitRead::Sound(mut commit)) = self.commit(number) else { return None };
                commit.records.iter_mut().for_each(|(_, record)| *record = record.without_body());
                Some(place.insert(commit))
            }
        }
    }

    /// Answers from the newest files alone, if these hold the whole answer and are undamaged. So the cost of
    /// reading the newest records does not depend on the length of the run. A continued page begins at the end of
    /// the previous page, if that position is cached.
    fn scan_newest(
        &self,
        scan: &Scan,
        limit: usize,
        after: Option<(u64, u64)>,
        index: &IndexSource<'_>,
    ) -> Result<Option<Scanned>, StoreError> {
        let (Some(scope), ScanOrder::NewestFirst) = (&scan.scope, scan.order) else { return Ok(None) };
        let wanted = |record: &Record| {
            let header = record.header();
            header.scope == *scope && after.is_none_or(|(_, after)| header.seq < after) && scan.wants(record)
        };
        let enough = |count: &mut usize, commit: &CommitFile| {
            *count += commit.records.iter().filter(|(_, record)| wanted(record)).count();
            *count > limit
        };
        let known = after.and_then(|(_, seq)| Some((seq, index.place(self.run, scope, seq)?)));
        let (mut walk, _) = match known {
            Some((_, first)) => self.walk_from(first, Bodies::Drop, enough)?,
            None => self.walk(Bodies::Drop, enough)?,
        };
        let is_there = |seq: u64| {
            let first = walk.sound.first().into_iter().flat_map(|commit| &commit.records);
            first.into_iter().any(|(_, record)| record.header().scope == *scope && record.header().seq == seq)
        };
        if known.is_some_and(|(seq, _)| !is_there(seq)) {
            walk = self.walk(Bodies::Drop, enough)?.0;
        }
        if walk.exhausted
            || !walk.damaged.is_empty()
            || !walk.missing.is_empty()
            || walk.copied.is_some()
            || !self.gone()?.is_empty()
        {
            return Ok(None);
        }
        // An old state can remain in a file below headers in the journal; the files alone do not show those
        // headers.
        let seen = walk.sound.iter().flat_map(|commit| &commit.records).map(|(_, record)| record.header());
        let lowest = seen.filter(|header| header.scope == *scope).map(|header| header.seq).min();
        let above = lowest.unwrap_or(0)..after.map_or(u64::MAX, |(_, seq)| seq);
        if index.get(self)?.has_any(scope, above) || index.misses_ends(self, &walk.numbers)? {
            return Ok(None);
        }
        index.remember(self.run, &walk);
        let newest_first = walk.sound.into_iter().flat_map(|commit| commit.records.into_iter().rev());
        let found: Vec<(u64, Record)> =
            newest_first.filter(|(_, record)| wanted(record)).take(limit).collect();
        let next = found.last().map(|(opened, record)| format!("{opened}.{}", record.header().seq));
        let records = found.into_iter().map(|(_, record)| record.without_body()).collect();
        Ok(Some(Scanned { records, damaged: Vec::new(), next }))
    }
}

fn is_past(order: ScanOrder, seq: u64, after: u64) -> bool {
    match order {
        ScanOrder::OldestFirst => seq > after,
        ScanOrder::NewestFirst => seq < after,
    }
}

fn position(cursor: &str) -> Result<(u64, u64), StoreError> {
    let (opened, seq) = cursor.split_once('.').ok_or_else(|| no_cursor(cursor))?;
    Ok((number(opened)?, number(seq)?))
}
