//! The leases of this store, and the end of a lease at the drop of its last copy.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use waypost::id::{RunId, ScopePath};
use waypost::record::{Durability, Record};
use waypost::store::Guard;

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::lock;
use crate::queue::worker::Worker;
use crate::runtime;
use crate::tables::lease;

/// Most scopes with a known acknowledged seq; further scopes of a large fan-out go unchecked.
const SCOPES_MAX: usize = 10_000;

/// Pause before another attempt to end a lease.
const ABANDON_PAUSE: Duration = Duration::from_secs(5);

/// The leases of a store, by run.
pub(super) type HeldRuns = Mutex<HashMap<RunId, HeldRun>>;

/// A run under a lease of this store.
#[derive(Debug)]
pub(super) struct HeldRun {
    pub(super) token: u64,
    /// As of the run record; a claim does not read it.
    pub(super) durability: Option<Durability>,
    /// The row of the main scope, after the first write.
    pub(super) main: Option<i64>,
    /// The worker with the end of the lease.
    pub(super) worker: Arc<Worker>,
    /// Held during a write: two batches of a run are never in flight together.
    pub(super) writing: Arc<tokio::sync::Mutex<()>>,
    /// The newest acknowledged seq of each open scope.
    acknowledged: HashMap<ScopePath, u64>,
    /// The end of each blob.
    pub(super) blobs: HashMap<String, u64>,
}

impl HeldRun {
    pub(super) fn new(token: u64, durability: Option<Durability>, worker: Arc<Worker>) -> Self {
        let writing = Arc::new(tokio::sync::Mutex::new(()));
        let (acknowledged, blobs, main) = (HashMap::new(), HashMap::new(), None);
        Self { token, durability, main, worker, writing, acknowledged, blobs }
    }

    /// Adds acknowledged records.
    pub(super) fn acknowledge(&mut self, records: &[Record]) {
        for record in records {
            let header = record.header();
            if header.end.is_some() && !header.scope.is_main() {
                self.acknowledged.remove(&header.scope);
            } else if self.acknowledged.len() < SCOPES_MAX || header.scope.is_main() {
                self.acknowledged.insert(header.scope.clone(), header.seq);
            }
        }
    }

    /// Returns the newest acknowledged seq of a scope; of the main scope, 0 if nothing was written yet.
    pub(super) fn acknowledged(&self, scope: &ScopePath) -> Option<u64> {
        self.acknowledged.get(scope).copied().or(scope.is_main().then_some(0))
    }
}

/// Ends a lease at the drop of the last copy, as of a run dropped midway.
pub(super) struct Abandon {
    pub(super) database: Weak<Database>,
    pub(super) held: Weak<HeldRuns>,
    pub(super) run: RunId,
    pub(super) token: u64,
}

impl Guard for Abandon {}

impl fmt::Debug for Abandon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Abandon").field("run", &self.run).field("token", &self.token).finish_non_exhaustive()
    }
}

impl Drop for Abandon {
    fn drop(&mut self) {
        let (Some(held), Some(database)) = (self.held.upgrade(), self.database.upgrade()) else { return };
        match remove(&held, &self.run, self.token) {
            // An ended lease of the worker ends by itself, and says that no process was killed.
            Some(removed) if removed.worker.lasts() => {}
            Some(_) | None => return,
        }
        // Without a runtime, the lease runs out.
        let Ok(runtime) = runtime::handle() else { return };
        let (run, token) = (self.run.clone(), self.token);
        runtime.spawn(async move {
            // The worker lives on, so the lease would never end.
            while let Err(Failure::Away(_) | Failure::Lost(_)) = lease::abandon(&database, &run, token).await
            {
                tokio::time::sleep(ABANDON_PAUSE).await;
            }
        });
    }
}

/// Removes and returns an ended lease; `None` for an unknown lease.
pub(super) fn remove(held: &HeldRuns, run: &RunId, token: u64) -> Option<HeldRun> {
    let mut held = lock(held);
    let is_there = held.get(run).is_some_and(|held| held.token == token);
    if is_there { held.remove(run) } else { None }
}
