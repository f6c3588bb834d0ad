//! The names of the scopes of a run.

use std::collections::BTreeSet;

use crate::id::{RunId, ScopePath};

use super::{Scan, ScanOrder, Store, StoreError};

/// Returns the names of all scopes of a run with records, also if the first record is damaged or missing.
pub(super) async fn names<S: Store + ?Sized>(
    store: &S,
    run: &RunId,
) -> Result<BTreeSet<ScopePath>, StoreError> {
    let (mut names, mut damaged) = (BTreeSet::new(), BTreeSet::new());
    let mut scan = Scan { seq_max: Some(1), ..Scan::of(run) };
    loop {
        let page = store.scan(&scan).await?;
        names.extend(page.records.iter().map(|record| record.header().scope.clone()));
        damaged.extend(page.damaged.into_iter().map(|damage| damage.scope));
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => break,
        }
    }
    for scope in damaged.difference(&names).cloned().collect::<Vec<_>>() {
        let order = ScanOrder::NewestFirst;
        let scan = Scan { scope: Some(scope.clone()), order, ..Scan::of(run) };
        if !store.scan(&scan).await?.records.is_empty() {
            names.insert(scope);
        }
    }
    Ok(names)
}
