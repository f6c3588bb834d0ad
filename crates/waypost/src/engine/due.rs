//! The runs that a resume can continue now.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::id::RunId;
use crate::record::RunStatus;
use crate::store::{RunQuery, Store, StoreError};

/// The runs of a store that a resume can continue now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DueRuns {
    /// The interrupted, queued and due runs, oldest first.
    pub runs: Vec<RunId>,
    /// The runs whose status cannot be read.
    pub damaged: BTreeSet<RunId>,
}

/// Lists the runs that a resume can continue now: interrupted and queued runs, and waiting runs whose time has come or
/// that have a signal or an answer.
///
/// # Errors
/// Those of the store.
pub async fn due_runs(store: &dyn Store, now: Timestamp) -> Result<DueRuns, StoreError> {
    let statuses = [RunStatus::Interrupted, RunStatus::Queued, RunStatus::Waiting].into();
    let mut query = RunQuery { statuses, ..RunQuery::default() };
    let mut due = DueRuns::default();
    loop {
        let page = store.runs(&query).await?;
        due.damaged.extend(page.damaged.into_iter().map(|found| found.run));
        for found in page.runs {
            let is_due = found.status != RunStatus::Waiting
                || found.summary.wake_at.is_some_and(|wake_at| wake_at <= now)
                || !store.signals(&found.run).await?.is_empty();
            due.runs.extend(is_due.then_some(found.run));
        }
        match page.next {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    due.runs.reverse();
    Ok(due)
}
