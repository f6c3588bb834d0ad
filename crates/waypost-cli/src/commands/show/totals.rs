//! Facts of all records of a run, for the screen of the run.

use std::collections::BTreeMap;

use waypost::record::{Record, Usage};
use waypost::store::{Scan, Store, StoreExt as _};
use waypost::{RunId, ScopePath};

use super::super::executions::{events, settled};
use super::steps::Scope;
use crate::error::Error;
use crate::run::dead_letters::Fans;

/// The usage of a run, and decisions of a person.
#[derive(Default)]
pub(super) struct Totals {
    /// Includes ended scopes and undone steps.
    pub(super) usage: Usage,
    /// Per step of a scope without a row: the last decision since the last start.
    pub(super) settled: BTreeMap<(ScopePath, String), String>,
}

impl Totals {
    /// Reads all records of a run. `shown`: the scopes with steps on the screen.
    pub(super) async fn read(store: &dyn Store, run: &RunId, shown: &[Scope]) -> Result<Self, Error> {
        let (mut totals, mut scan) = (Self::default(), Scan::of(run));
        loop {
            let page = store.scan(&scan).await?;
            for header in page.records.iter().map(Record::header) {
                if let Some(usage) = &header.usage {
                    totals.usage += usage;
                }
                let at = |step: &str| (header.scope.clone(), step.to_owned());
                for (_, data) in events(header).filter(|(name, _)| *name == "step_settled") {
                    let step = data["step"].as_str().unwrap_or_default();
                    totals.settled.insert(at(step), settled(data));
                }
                // Starts in a record come after its end.
                for start in &header.started {
                    totals.settled.remove(&at(start.step.as_str()));
                }
            }
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => break,
            }
        }
        let mut fans = Fans::default();
        for at in totals.settled.keys().cloned().collect::<Vec<_>>() {
            let is_shown = shown.iter().any(|scope| scope.name == at.0);
            if is_shown || !fans.has(store, run, &store.newest(run, &at.0).await?).await? {
                totals.settled.remove(&at);
            }
        }
        Ok(totals)
    }
}
