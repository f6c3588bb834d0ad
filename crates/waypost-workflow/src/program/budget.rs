//! Usage of a run against its budget.
//!
//! All usage counts: of every session, and also of steps rolled back since.

use std::sync::Mutex;

use waypost::RunId;
use waypost::engine::{Attempt, Performed, StepReport};
use waypost::record::{Record, Usage};
use waypost::store::{Scan, Store, StoreError};

use super::state::StepOutput;
use crate::file::Budget;

/// Prefix of the stop reason after the budget is exceeded.
pub const BUDGET: &str = "its budget";

/// Returns the sum of the usage in the records of a run.
///
/// # Errors
/// The store cannot be read.
pub async fn spent(store: &dyn Store, run: &RunId) -> Result<Usage, StoreError> {
    let mut scan = Scan::of(run);
    let mut sum = Usage::default();
    loop {
        let page = store.scan(&scan).await?;
        let headers = page.records.iter().map(Record::header);
        headers.filter_map(|header| header.usage.as_ref()).for_each(|usage| sum += usage);
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(sum),
        }
    }
}

/// Budget of a run, and the usage so far.
#[derive(Debug)]
pub(super) struct BudgetUse {
    budget: Budget,
    used: Mutex<Usage>,
}

impl BudgetUse {
    pub(super) fn new(budget: Budget, used: Usage) -> Self {
        Self { budget, used: Mutex::new(used) }
    }

    /// Stops the session and returns `true` if the budget is exceeded.
    pub(super) fn is_empty(&self, attempt: &Attempt) -> bool {
        let passed = self.budget.passed_by(&self.used.lock().expect("no code panics while the lock is held"));
        if let Some(passed) = &passed {
            attempt.stop_session(&format!("{BUDGET} ({passed})"));
        }
        passed.is_some()
    }

    /// Adds the usage of an attempt, before another step starts.
    pub(super) fn add(&self, performed: &Performed<StepOutput>, attempt: &Attempt) {
        let (Performed::Completed { report, .. } | Performed::Failed { report, .. }) = performed else {
            return;
        };
        let StepReport { usage: Some(usage), .. } = report else { return };
        *self.used.lock().expect("no code panics while the lock is held") += usage;
        self.is_empty(attempt);
    }
}
