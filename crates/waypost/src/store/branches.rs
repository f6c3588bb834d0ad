//! The names of the branches of a run.

use std::collections::BTreeSet;

use crate::id::{BranchPath, RunId};

use super::{Scan, ScanOrder, Store, StoreError};

/// Returns the names of all branches of a run with records, also if the first record is damaged or missing.
pub(super) async fn names<S: Store + ?Sized>(
    store: &S,
    run: &RunId,
) -> Result<BTreeSet<BranchPath>, StoreError> {
    let (mut names, mut damaged) = (BTreeSet::new(), BTreeSet::new());
    let mut scan = Scan { seq_max: Some(1), ..Scan::of(run) };
    loop {
        let page = store.scan(&scan).await?;
        names.extend(page.records.iter().map(|record| record.header().branch.clone()));
        damaged.extend(page.damaged.into_iter().map(|damage| damage.branch));
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => break,
        }
    }
    for branch in damaged.difference(&names).cloned().collect::<Vec<_>>() {
        let order = ScanOrder::NewestFirst;
        let scan = Scan { branch: Some(branch.clone()), order, ..Scan::of(run) };
        if !store.scan(&scan).await?.records.is_empty() {
            names.insert(branch);
        }
    }
    Ok(names)
}
