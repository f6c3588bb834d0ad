//! Leaving a branch at its failure: a person says that it is not to be tried again.

use crate::id::{BranchPath, RunId};
use crate::record::{End, Phase, Reason, SkipCause};
use crate::store::{Batch, BatchId, Lease, StoreExt as _};

use super::chain::{Chain, Draft, body_as_it_stands};
use super::snapshot::{Snapshot, position_as_recorded};
use super::{Engine, RunError};

/// What its last record says of why it was left.
const LEFT: &str = "a person left it at its failure";

impl Engine {
    /// Has branches that ended as failed end as skipped, on a person's word, all of them or none. A step that has not
    /// joined them yet sees them so; one that has is not done again. They count as failures that the run came past.
    ///
    /// # Errors
    /// - [`RunError::NotEdited`]: one of them has not failed. Nothing changed.
    /// - [`RunError::Store`] with [`StoreError::Held`](crate::store::StoreError::Held): somebody is at it.
    pub async fn leave_branches(&self, run: &RunId, branches: &[BranchPath]) -> Result<(), RunError> {
        self.store.wait_while_dying(run).await?;
        let lease = self.store.acquire(run, &BranchPath::main(), &self.holder()?).await?;
        match self.leave_under(&lease, branches).await {
            // The batch gave the lease back.
            Ok(true) => Ok(()),
            other => {
                let _ = self.store.release(lease, None).await;
                other.map(|_| ())
            }
        }
    }

    async fn leave_under(&self, lease: &Lease, branches: &[BranchPath]) -> Result<bool, RunError> {
        let (store, run) = (self.store.as_ref(), lease.run());
        let mut records = Vec::new();
        for branch in branches {
            let newest = store.newest(run, branch).await?;
            let header = newest.header();
            if header.end != Some(End::Failed) {
                let why = "it has not ended as failed".to_owned();
                return Err(RunError::NotEdited { run: run.clone(), branch: branch.clone(), why });
            }
            let body = body_as_it_stands(&newest, &position_as_recorded(&newest)?)?;
            let step = header.step.clone();
            let unwritable =
                |source| RunError::Serialize { run: run.clone(), step: header.step.clone(), source };
            let cause = SkipCause::Condition(LEFT.to_owned());
            let mut draft = Draft::new(Phase::Skipped(cause), Reason::Manual, step, header.at.clone());
            draft.end = Some(End::Skipped);
            // It failed all the same: whoever joins it comes past that.
            draft.failures = header.failures + 1;
            let chain = Chain { token: lease.token(), ..Chain::behind(&newest) };
            chain.seal(&[draft], body, self.clock.now(), &mut records).map_err(unwritable)?;
        }
        if records.is_empty() {
            return Ok(false);
        }
        let id = BatchId { token: lease.token(), count: 1 };
        let at = records.last().map(|record| record.header().reference().to_string()).unwrap_or_default();
        let summary = Snapshot::main(store, run).await?.entry.summary.summary.clone();
        let batch = Batch { id, records, consumed: Vec::new(), summary, updated_at: None, release: true };
        let lost = |source| RunError::Checkpoint { at, source };
        self.store.append(lease, batch).await.map_err(lost)?;
        Ok(true)
    }
}
