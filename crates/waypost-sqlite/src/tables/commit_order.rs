//! Reads the records of a run in commit order, to repair its event log.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use waypost::id::RunId;
use waypost::record::Record;

use crate::database::error::Failure;
use crate::database::heads::RunRow;
use crate::tables::read::View;
use crate::tables::rows::{Found, Want, fetch};
use crate::tables::scope::Scope;

/// Most scopes to merge: the newest, and the main scope. Older scopes ended long ago.
const SCOPES_MAX: usize = 1_000;

/// Sound headers of a run, newest first.
///
/// Commits of different scopes have no common number, so their records are merged by time. This suffices
/// for a log for people, on which nothing depends.
pub(crate) struct NewestFirst<'a> {
    view: View<'a>,
    run: &'a RunId,
    head_cache: BinaryHeap<End>,
}

/// The newest record of a scope that was not yielded yet.
struct End {
    scope: Scope,
    record: Box<Record>,
}

impl Ord for End {
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |end: &Self| (end.record.header().created_at, end.scope.id);
        place(self).cmp(&place(other))
    }
}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for End {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for End {}

impl<'a> NewestFirst<'a> {
    pub(crate) fn of(view: View<'a>, run: &'a RunId) -> Result<Self, Failure> {
        let id = RunRow::get(view.connection, run)?.id;
        let mut all = Self { view, run, head_cache: BinaryHeap::new() };
        for scope in Scope::newest(view.connection, id, SCOPES_MAX)? {
            let scope = scope.settled(view.connection, id)?;
            let newest = scope.newest;
            all.put(scope, newest)?;
        }
        Ok(all)
    }

    /// Queues the newest sound record of a scope up to `seq`.
    fn put(&mut self, scope: Scope, seq: u64) -> Result<(), Failure> {
        for seq in (1..=seq).rev() {
            let found = fetch(self.view.connection, self.view.place, self.run, &scope, seq, Want::Header);
            match found {
                Ok(Found::Sound(record)) => {
                    self.head_cache.push(End { scope, record });
                    return Ok(());
                }
                Ok(Found::Damaged(_) | Found::Absent) => {}
                Err(Failure::Refused(_)) => return Ok(()),
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }
}

impl Iterator for NewestFirst<'_> {
    type Item = Result<Record, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        let End { scope, record } = self.head_cache.pop()?;
        let below = record.header().seq - 1;
        Some(self.put(scope, below).map(|()| *record))
    }
}
