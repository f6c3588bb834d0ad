//! Where the main branches of runs ended when this store last appended to them.
//!
//! An append has to know whose lease a run has, and what its branch ends with. Whoever has just written that need not ask
//! the database, which is a tenth of what its rows cost in processor time. What is here is only believed while nothing
//! but appends of this store came between: each takes what it needs away and puts it back when it has written; any
//! other work of this connection that changes rows, any transaction that did not end well, and any commit of another
//! connection (<https://www.sqlite.org/pragma.html#pragma_data_version>) has all of it forgotten.

use std::collections::HashMap;
use std::sync::Mutex;

use waypost::id::RunId;

use crate::branch::End;
use crate::commit::lock;
use crate::rows::RunRow;

/// Runs that are known at once: more than share commits.
const RUNS_MAX: usize = 1024;

/// The ends that are known.
#[derive(Debug, Default)]
pub(crate) struct Ends(Mutex<HashMap<RunId, (RunRow, End)>>);

impl Ends {
    /// Takes what is known of a run, which is not known any more then.
    pub(crate) fn take(&self, run: &RunId) -> Option<(RunRow, End)> {
        lock(&self.0).remove(run)
    }

    /// Takes note of what an append has written.
    pub(crate) fn put(&self, run: &RunId, row: RunRow, end: End) {
        let mut ends = lock(&self.0);
        if ends.len() < RUNS_MAX {
            ends.insert(run.clone(), (row, end));
        }
    }

    pub(crate) fn forget_all(&self) {
        lock(&self.0).clear();
    }
}
