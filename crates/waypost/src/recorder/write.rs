//! The write side of a recorder: appends a draft at a time, and resolves lost answers.
//!
//! A call may be dropped while the store works, and an answer may be lost. The batch then stays pending, and
//! the next call sends it again under the same id: the store answers, and does not apply the batch twice. The
//! tip in memory therefore never lags the store.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::engine::chain::{Chain, Draft};
use crate::id::{CheckpointRef, RunId, StepId};
use crate::record::{Body, FrontierEntry, Note, Position, Record, RunStatus, Settled, Status};
use crate::store::{Batch, BatchId, Lease, Progress, Store, StoreError, Summary, TrimMode};

use super::Error;
use super::step::{Begun, EncodedState};

/// Finished steps in the ledger of the position. A loop has a few; without the limit, a program with ever new
/// step names would write all of them in every checkpoint.
pub(super) const LEDGER_STEPS_MAX: usize = 256;
/// Batches between trims of old states: rare enough for a low cost, frequent enough to bound the disk.
const TRIM_BATCHES: u64 = 16;

/// The tip of the run: the base of the next record.
#[derive(Debug, Clone)]
pub(super) struct Tip {
    pub(super) chain: Chain,
    pub(super) position: Position,
    /// The state for records without a new one: the newest state not of a failed step.
    pub(super) state: EncodedState,
    pub(super) epoch: u32,
    /// Steps begun and not ended, by the seq of their start.
    pub(super) open: BTreeMap<u64, Begun>,
    /// Newest iterations of steps, cached.
    pub(super) visits: BTreeMap<StepId, u32>,
    /// The run has ended: further writes are refused, and the lease is released.
    pub(super) ended: bool,
}

impl Tip {
    /// Returns the reference to a record of the run.
    pub(super) fn reference(&self, seq: u64) -> CheckpointRef {
        CheckpointRef { run: self.chain.run.clone(), scope: self.chain.scope.clone(), seq }
    }

    /// Checks that a step was begun and has not ended.
    pub(super) fn check_open(&self, begun: &Begun) -> Result<(), Error> {
        let same = |open: &Begun| open.since == begun.since && open.step == begun.step;
        if self.open.get(&begun.since.seq).is_some_and(same) {
            return Ok(());
        }
        Err(Error::NotUnderWay { step: begun.step.clone(), since: begun.since.clone() })
    }

    pub(super) fn entry(&self, step: &StepId) -> Option<&FrontierEntry> {
        self.position.frontier.iter().find(|entry| entry.step == *step)
    }

    /// Removes a begun step from the unfinished steps. The step of an earlier recorder was at work until now: no time was idle.
    pub(super) fn close(&mut self, begun: &Begun) {
        self.chain.idle_since = None;
        self.open.remove(&begun.since.seq);
        self.position.frontier.retain(|entry| entry.step != begun.step);
    }

    /// Adds a finished step to the ledger, and drops the oldest beyond the limit.
    pub(super) fn settle(&mut self, step: &StepId, settled: Settled) {
        let ledger = &mut self.position.ledger;
        ledger.insert(step.clone(), settled);
        if ledger.len() > LEDGER_STEPS_MAX {
            let oldest = ledger.iter().min_by_key(|(_, settled)| settled.seq).map(|(step, _)| step.clone());
            if let Some(oldest) = oldest {
                ledger.remove(&oldest);
                self.visits.remove(&oldest);
            }
        }
    }

    pub(super) fn summary(&self, status: Option<RunStatus>) -> Summary {
        let frontier = &self.position.frontier;
        let of = |status: Status| frontier.iter().find(|entry| entry.status == status);
        let step = of(Status::Failed).or_else(|| of(Status::Started)).or_else(|| frontier.first());
        let done = self.position.ledger.len() as u64;
        Summary {
            status: status.unwrap_or(RunStatus::Running),
            doubtful: false,
            step: step.map(|entry| entry.step.to_string()),
            progress: Progress { done, total: done + frontier.len() as u64 },
            wake_at: None,
            lost: 0,
        }
    }
}

/// A batch without a known answer, and the tip after the write.
#[derive(Debug)]
struct Pending {
    batch: Batch,
    tip: Box<Tip>,
}

/// The write side of a recorder.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) lease: Lease,
    pub(super) tip: Tip,
    batches: u64,
    pending: Option<Pending>,
    /// States trimmed since the last record; the next record has the note.
    pruned: Option<Note>,
}

impl Writing {
    pub(super) fn new(lease: Lease, tip: Tip, batches: u64) -> Self {
        Self { lease, tip, batches, pending: None, pruned: None }
    }

    /// Appends a record with `state` that leads to `next`. With a status, the append also releases the lease.
    ///
    /// `next` is the tip after the record, except for its chain, which is advanced here.
    pub(super) async fn append(
        &mut self,
        store: &dyn Store,
        mut draft: Draft,
        mut next: Tip,
        state: &EncodedState,
        now: Timestamp,
    ) -> Result<Record, Error> {
        draft.report.notes.extend(self.pruned.clone());
        if self.tip.ended {
            return Err(Error::Ended(next.chain.run));
        }
        let status = draft.status;
        let record = seal(&mut next, draft, state, now)?;
        let batch = Batch {
            id: BatchId { token: next.chain.token, count: self.batches + 1 },
            records: vec![record.clone()],
            consumed: Vec::new(),
            summary: Some(next.summary(status)),
            updated_at: None,
            release: status.is_some(),
        };
        self.pending = Some(Pending { batch, tip: Box::new(next) });
        self.send(store).await?;
        Ok(record)
    }

    /// Resolves the outcome of a pending batch, by sending it again if needed.
    pub(super) async fn send(&mut self, store: &dyn Store) -> Result<(), Error> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let mut answer = store.append(&[&self.lease], pending.batch.clone()).await;
        if let Err(StoreError::Unknown { .. }) = answer {
            answer = store.append(&[&self.lease], pending.batch.clone()).await;
        }
        match answer {
            Ok(_) => {
                let pending = self.pending.take().expect("a batch was just sent");
                self.tip = *pending.tip;
                self.pruned = None;
                self.batches += 1;
                if self.tip.ended {
                    // Releases resources of the lease, such as a kernel lock, so that others may open the
                    // run.
                    self.lease = Lease::new(self.lease.run().clone(), self.lease.token(), None);
                }
                Ok(())
            }
            Err(error) => {
                if !matches!(error, StoreError::Unknown { .. }) {
                    self.pending = None;
                }
                Err(error.into())
            }
        }
    }

    /// Trims old states at intervals, if the run has a retention limit.
    pub(super) async fn trim(&mut self, store: &dyn Store, keep: Option<u32>) {
        if let Some(keep) = keep
            && self.batches.is_multiple_of(TRIM_BATCHES)
        {
            // An error is ignored: the next trim repeats the work, and the caller must learn that its record
            // was acknowledged.
            let trimmed = store.trim(&self.lease, keep, TrimMode::Apply).await;
            self.pruned = trimmed.ok().and_then(|trimmed| trimmed.note(keep));
        }
    }
}

/// Seals the record of a draft at the end of the chain of `next`, and advances the chain.
pub(super) fn seal(
    next: &mut Tip,
    draft: Draft,
    state: &EncodedState,
    now: Timestamp,
) -> Result<Record, Error> {
    let run = next.chain.run.clone();
    let failed = |source| Error::Write { run: RunId::clone(&run), source };
    let body = Body::json(&next.position, &state.json, state.schema).map_err(failed)?;
    let mut records = Vec::with_capacity(1);
    next.chain.seal(&[draft], body, now, &mut records).map_err(failed)?;
    let record = records.pop().expect("a draft makes a record");
    next.chain.advance(&record);
    Ok(record)
}
