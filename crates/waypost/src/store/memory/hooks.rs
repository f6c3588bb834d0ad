//! Test hooks of the store in memory: crashes, damage, and a view of the quarantine.

use std::sync::Arc;

use super::MemoryStore;
use crate::id::{RunId, ScopePath};

/// The part of a run changed by [`MemoryStore::damage`].
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Run,
    Header,
    Body,
}

impl MemoryStore {
    /// Drops every holder and reopens a closed store, as another process would after a crash.
    #[doc(hidden)]
    pub fn reopen(&self) -> Self {
        let mut kept = self.lock();
        kept.closed = false;
        kept.runs.values_mut().for_each(|run| run.holder = None);
        drop(kept);
        self.clone()
    }

    /// Flips a bit in the middle of a stored record; for tests.
    #[doc(hidden)]
    pub fn damage(&self, run: &RunId, scope: &ScopePath, seq: u64, part: Part) {
        let mut kept = self.lock();
        let run = kept.runs.get_mut(run).expect("a test damages what is there");
        let bytes = match part {
            Part::Run => Some(&mut run.bytes),
            part => run.scope_mut(scope).and_then(|scope| scope.records.get_mut(seq)).and_then(|stored| {
                if part == Part::Header { Some(&mut stored.header) } else { stored.body.as_mut() }
            }),
        };
        let bytes = bytes.expect("a test damages what is there");
        let bytes = Arc::make_mut(bytes);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }

    /// Returns the bytes in quarantine; for tests.
    #[doc(hidden)]
    pub fn quarantined(&self, run: &RunId) -> Vec<Vec<u8>> {
        let kept = self.lock();
        let stored = kept.runs.get(run).into_iter().flat_map(|run| &run.quarantine);
        stored
            .map(|stored| [stored.header.as_slice(), stored.body.as_ref().map_or(&[], |b| b)].concat())
            .collect()
    }

    /// Keeps only the newest `keep` bodies of each scope, of any kind: simulates a faulty store.
    #[doc(hidden)]
    pub fn trim_by_age(&self, run: &RunId, keep: usize) {
        let mut kept = self.lock();
        for scope in kept.runs.get_mut(run).into_iter().flat_map(|run| &mut run.scopes) {
            let bodies = scope.records.iter_mut().rev().map(|(_, stored)| &mut stored.body);
            bodies.filter(|body| body.is_some()).skip(keep).for_each(|body| *body = None);
        }
    }
}
