//! The newest records of the scopes of a fan-out, found in a single scan of the run.
//!
//! A store returns the records of a run scope by scope, in the order of opening, which is the item order. A
//! caller that asks for the scopes in this order finds each at the current position of the scan. In some
//! stores, a separate lookup per scope would scan the whole run each time.

use std::collections::HashMap;

use crate::id::{RunId, ScopePath, StepId};
use crate::record::{Flaw, Record};
use crate::store::{Lease, Page, Scan, ScanOrder, Store, StoreError};

use crate::engine::{Engine, RunError};

/// Below this number of scopes, separate lookups are cheaper than a scan of a long run.
const SCAN_MIN: u64 = 16;
/// Limit of records kept for scopes that the scan has passed, such as reopened scopes.
const PASSED_MAX: usize = 4_096;

/// A scan over the scopes that `opener` opened on `above`.
pub(crate) struct NewestOf<'s> {
    store: &'s dyn Store,
    run: RunId,
    above: ScopePath,
    opener: StepId,
    /// The next page of the scan; `None` at the end, or if a scan does not pay off.
    next_page: Option<Scan>,
    page: std::vec::IntoIter<Record>,
    last: Option<ScopePath>,
    passed: HashMap<ScopePath, Record>,
}

impl<'s> NewestOf<'s> {
    /// Begins a scan for `count` lookups.
    pub(crate) fn new(
        store: &'s dyn Store,
        run: RunId,
        (above, opener): (ScopePath, StepId),
        count: u64,
    ) -> Self {
        let first = Scan { order: ScanOrder::NewestFirst, ..Scan::of(&run) };
        Self {
            store,
            run,
            above,
            opener,
            next_page: Some(first).filter(|_| count >= SCAN_MIN),
            page: Vec::new().into_iter(),
            last: None,
            passed: HashMap::new(),
        }
    }

    /// Returns the newest sound record of a scope, or `None` without a sound record.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn of(&mut self, scope: &ScopePath) -> Result<Option<Record>, StoreError> {
        if let Some(found) = self.passed.remove(scope) {
            return Ok(Some(found));
        }
        while let Some((found, newest)) = self.next().await? {
            if found == *scope {
                return Ok(Some(newest));
            }
            if self.passed.len() < PASSED_MAX {
                self.passed.insert(found, newest);
            }
        }
        // The scan has passed the scope, or the scope does not exist.
        let scan = Scan {
            scope: Some(scope.clone()),
            order: ScanOrder::NewestFirst,
            limit: 1,
            ..Scan::of(&self.run)
        };
        Ok(self.store.scan(&scan).await?.records.into_iter().next())
    }

    /// Returns the next scope of the opener.
    async fn next(&mut self) -> Result<Option<(ScopePath, Record)>, StoreError> {
        loop {
            for record in self.page.by_ref() {
                let scope = &record.header().scope;
                if self.last.as_ref() == Some(scope) {
                    continue;
                }
                self.last = Some(scope.clone());
                let is_child = scope.parent().as_ref() == Some(&self.above)
                    && scope.opened_by().is_some_and(|(opener, _)| opener == self.opener);
                if is_child {
                    return Ok(Some((scope.clone(), record)));
                }
            }
            let Some(scan) = &self.next_page else { return Ok(None) };
            let page = self.store.scan(scan).await?;
            self.next_page = page.next.map(|cursor| Scan { cursor: Some(cursor), ..scan.clone() });
            self.page = page.records.into_iter();
        }
    }
}

/// Notes in quarantine the missing newest records of all child scopes. A person has decided to continue without these
/// records, and later records must not hide the loss.
pub(crate) async fn skip_missing(engine: &Engine, lease: &Lease) -> Result<(), RunError> {
    let (mut page, mut missing) = (Page::default(), Vec::new());
    loop {
        let found = match engine.store.heads(lease.run(), &page).await {
            // A scope without a sound record has no head.
            Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => break,
            found => found?,
        };
        let damaged = found.heads.into_iter().flat_map(|head| head.damaged);
        missing.extend(damaged.filter(|damage| damage.flaw == Flaw::Missing && !damage.scope.is_main()));
        match found.next {
            Some(cursor) => page.cursor = Some(cursor),
            None => break,
        }
    }
    for damage in missing {
        engine.store.quarantine(lease, &damage).await?;
    }
    Ok(())
}
