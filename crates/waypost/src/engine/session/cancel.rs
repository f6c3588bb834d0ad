//! Cancel: ends a run for good.
//!
//! Only the holder of the lease writes a cancel, so a running session must stop first. A single batch ends every
//! scope in force, the main scope last: a run is cancelled as a whole or not at all.

use crate::id::{RunId, ScopePath};
use crate::record::{
    End, FrontierEntry, Phase, Position, Reason, Record, RunStatus, Status, Try, Wait, WaitKind,
};
use crate::store::{Batch, BatchId, Head, Lease, StoreExt as _, Summary};

use crate::engine::chain::{Chain, Draft, unchanged_body};
use crate::engine::inspect::{Snapshot, position_of};
use crate::engine::{Engine, RunError};

/// The result of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel {
    /// The run is cancelled by this record of the main scope, together with its open scopes.
    Done {
        /// The seq of the record.
        seq: u64,
        /// The number of other scopes cancelled with the run.
        scopes: usize,
    },
    /// The run was already cancelled. Nothing changed.
    AlreadyCancelled,
    /// The run had already ended with this status. Nothing changed.
    AlreadyFinished(RunStatus),
}

impl Engine {
    /// Cancels a run for good. Every open scope ends as cancelled and questions are withdrawn. No resume
    /// continues the run, except a restart. The records stay.
    ///
    /// # Errors
    /// - [`RunError::Store`] with [`StoreError::Held`](crate::store::StoreError::Held): another worker holds the
    ///   lease. Nothing changed; stop the worker first.
    /// - [`RunError::Store`] with [`StoreError::Damaged`](crate::store::StoreError::Damaged): a scope has no
    ///   sound record left. Nothing changed.
    pub async fn cancel(&self, run: &RunId, by: &str) -> Result<Cancel, RunError> {
        self.store.wait_for_release(run).await?;
        let lease = self.store.acquire(run, &ScopePath::main(), &self.holder()?).await?;
        self.cancel_under(lease, by).await
    }

    /// As [`cancel`](Self::cancel), for the holder of the lease. Releases the lease in every case.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    pub async fn cancel_under(&self, lease: Lease, by: &str) -> Result<Cancel, RunError> {
        let cancelled = self.try_cancel(&lease, by).await;
        if !matches!(cancelled, Ok(Cancel::Done { .. })) {
            // A committed batch has released the lease. The error to report is the earlier error.
            let _ = self.store.release(lease, None).await;
        }
        cancelled
    }

    async fn try_cancel(&self, lease: &Lease, by: &str) -> Result<Cancel, RunError> {
        let snapshot = Snapshot::read(self.store.as_ref(), lease.run()).await?;
        let mut heads = snapshot.heads.clone();
        if let Some(ended) = &snapshot.ended {
            let header = ended.header();
            let status = header.status.unwrap_or(snapshot.status());
            if header.end == Some(End::Cancelled) {
                return Ok(Cancel::AlreadyCancelled);
            }
            if position_of(ended)?.undoing.is_none() {
                return Ok(Cancel::AlreadyFinished(status));
            }
            // An unfinished undo of a finished run: the cancel leaves the remaining effects.
            heads.push(Head { record: ended.clone(), next: header.seq + 1, damaged: Vec::new() });
        }
        for damage in snapshot.damaged() {
            self.store.quarantine(lease, damage).await?;
        }
        let mut records = Vec::with_capacity(heads.len());
        // Reverse order of opening: a child ends before its parent.
        for head in heads.iter().rev() {
            self.end_as_cancelled(lease, head, by, &mut records)?;
        }
        let consumed = self.store.signals(lease.run()).await?.into_iter().map(|signal| signal.id).collect();
        let id = BatchId { token: lease.token(), count: 1 };
        let summary = Summary {
            status: RunStatus::Cancelled,
            doubtful: false,
            wake_at: None,
            ..snapshot.entry.summary.summary.clone()
        };
        let scopes = records.len() - 1;
        let (seq, at) = records
            .last()
            .map(|record| (record.header().seq, record.header().reference().to_string()))
            .expect("a run that has not ended has an open main scope");
        let summary = Some(summary);
        let batch = Batch { id, records, consumed, summary, updated_at: None, release: true };
        let lost = |source| RunError::Checkpoint { at, source };
        self.store.append(&[lease], batch).await.map_err(lost)?;
        Ok(Cancel::Done { seq, scopes })
    }

    /// Makes the record that ends a scope as cancelled.
    fn end_as_cancelled(
        &self,
        lease: &Lease,
        head: &Head,
        by: &str,
        records: &mut Vec<Record>,
    ) -> Result<(), RunError> {
        let newest = &head.record;
        let header = newest.header();
        let mut position = position_of(newest)?;
        withdraw_questions(&mut position);
        let after = Chain::after(newest);
        let is_next = head.next == after.next;
        let chain = Chain {
            token: lease.token(),
            next: head.next,
            basis: (!is_next).then_some(header.seq),
            repair: !is_next,
            ..after
        };
        let phase = Phase::Interrupted { in_progress: false, by: by.to_owned() };
        let mut draft = Draft::new(phase, Reason::Cancel, None, Try::default());
        draft.end = Some(End::Cancelled);
        draft.status = header.scope.is_main().then_some(RunStatus::Cancelled);
        let unwritable = |source| RunError::Serialize { run: lease.run().clone(), step: None, source };
        let body = unchanged_body(newest, &position)?;
        chain.seal(&[draft], body, self.clock.now(), records).map_err(unwritable)
    }
}

/// Withdraws the open questions, signals and timers.
fn withdraw_questions(position: &mut Position) {
    let outside =
        |wait: &Wait| matches!(wait.on, WaitKind::Answer | WaitKind::Signal(_) | WaitKind::Until(_));
    let asks = |entry: &&mut FrontierEntry| {
        entry.status == Status::Waiting && entry.waits.iter().any(outside) && !entry.has_children()
    };
    for entry in position.frontier.iter_mut().filter(asks) {
        entry.status = Status::Ready;
        entry.waits.clear();
    }
    for entry in &mut position.frontier {
        entry.wake_at = None;
    }
}
