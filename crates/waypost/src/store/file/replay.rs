//! A lazy iterator over the records of a run in reverse commit order.

use std::collections::{BTreeSet, VecDeque};

use crate::id::ScopePath;
use crate::record::Record;
use crate::store::StoreError;

use super::journal::{self, JournalLine};
use super::lookup::IndexSource;
use super::read::{CommitRead, ReadError, RunReader, read_error};

/// Yields the sound records of a run without bodies, newest first: from the commit files, then from the journal.
/// For the holder of the lease, so no file disappears in the meantime.
pub(super) struct NewestFirst<'a> {
    reader: RunReader<'a>,
    index: &'a IndexSource<'a>,
    seen: BTreeSet<(ScopePath, u64)>,
    /// The commit files left to read, the next file last; `None` before the listing.
    numbers: Option<Vec<u64>>,
    /// The journal lines left to read, the next line first; `None` until the files are exhausted.
    lines: Option<VecDeque<(ScopePath, u64, JournalLine)>>,
    ready: VecDeque<Record>,
}

impl<'a> NewestFirst<'a> {
    pub(super) fn new(reader: RunReader<'a>, index: &'a IndexSource<'a>) -> Self {
        Self { reader, index, seen: BTreeSet::new(), numbers: None, lines: None, ready: VecDeque::new() }
    }

    fn read(&mut self) -> Result<Option<Record>, StoreError> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Ok(Some(record));
            }
            if self.numbers.is_none() {
                self.numbers = Some(self.reader.listed()?.numbers);
            }
            let Some(number) = self.numbers.as_mut().and_then(Vec::pop) else { return self.read_line() };
            match self.reader.commit(number) {
                Ok(CommitRead::Sound(commit) | CommitRead::Copied(commit, _)) => {
                    let records = commit.records.into_iter().rev().map(|(_, record)| record.without_body());
                    self.ready.extend(records);
                    let names = self.ready.iter().map(|r| (r.header().scope.clone(), r.header().seq));
                    self.seen.extend(names);
                }
                Ok(CommitRead::Damaged(_)) | Err(ReadError::Gone) => {}
                Err(ReadError::Error(error)) => return Err(error),
            }
        }
    }

    fn read_line(&mut self) -> Result<Option<Record>, StoreError> {
        if self.lines.is_none() {
            self.lines = Some(self.index.get(&self.reader)?.last_first().into());
        }
        while let Some((scope, seq, line)) = self.lines.as_mut().and_then(VecDeque::pop_front) {
            if self.seen.contains(&(scope, seq)) {
                continue;
            }
            let path = self.reader.paths.journal();
            let read = journal::read(self.reader.disk, &path, self.reader.run, line);
            if let Ok(record) = read.map_err(|source| read_error(&path, source))? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }
}

impl Iterator for NewestFirst<'_> {
    type Item = Result<Record, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}
