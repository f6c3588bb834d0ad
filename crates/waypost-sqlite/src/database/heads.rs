//! Cache of the main scopes' ends, as last written by this store.
//!
//! An append needs the lease of a run and the end of its scope. Keeping them after an append saves a query,
//! a tenth of the processor time of the rows. The cache is valid only while nothing but appends of this store
//! changes rows. An append takes its entry and puts it back after the write. Any other change of rows on this
//! connection, any failed transaction, and any commit of another connection clears the cache
//! (<https://www.sqlite.org/pragma.html#pragma_data_version>).

use std::collections::HashMap;
use std::sync::Mutex;

use waypost::id::{Digest, RunId};

use crate::lock;

/// Most cached runs; more than share commits.
const RUNS_MAX: usize = 1024;

/// The cached ends.
#[derive(Debug, Default)]
pub(crate) struct HeadCache(Mutex<HashMap<RunId, (RunRow, HeadEnd)>>);

impl HeadCache {
    /// Removes and returns the entry of a run.
    pub(crate) fn take(&self, run: &RunId) -> Option<(RunRow, HeadEnd)> {
        lock(&self.0).remove(run)
    }

    /// Stores the end that an append has written.
    pub(crate) fn put(&self, run: &RunId, row: RunRow, end: HeadEnd) {
        let mut head_cache = lock(&self.0);
        if head_cache.len() < RUNS_MAX {
            head_cache.insert(run.clone(), (row, end));
        }
    }

    pub(crate) fn clear(&self) {
        lock(&self.0).clear();
    }
}

/// The row of a run, with its lease.
#[derive(Debug)]
pub(crate) struct RunRow {
    pub(crate) id: i64,
    pub(crate) token: u64,
    pub(crate) leased: bool,
    pub(crate) batch: (u64, u64),
}

/// The end of a scope, as needed by an append.
#[derive(Debug, Clone)]
pub(crate) struct HeadEnd {
    pub(crate) scope: i64,
    /// The highest seq ever used.
    pub(crate) newest: u64,
    /// The record with this seq; `None` if it is missing.
    pub(crate) record: Option<Newest>,
}

/// Properties of the newest record that an append needs.
#[derive(Debug, Clone)]
pub(crate) struct Newest {
    pub(crate) digest: Digest,
    pub(crate) codec: Option<i64>,
}
