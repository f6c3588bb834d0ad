//! How a recorder writes: one draft at a time becomes a record, and what was not answered is asked about again.
//!
//! A call may be dropped while the store works, and an answer may be lost. Then the batch stays pending, and the next
//! call sends it again under the same id: it is answered, not applied twice. So what is known here never falls behind
//! what is stored.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::engine::chain::{Chain, Draft};
use crate::events::pruned;
use crate::id::{CheckpointRef, RunId, StepId};
use crate::record::{Body, FrontierEntry, Note, Position, Record, RunStatus, Settled, Status};
use crate::store::{Batch, BatchId, Lease, Progress, Store, StoreError, Summary, TrimMode};

use super::Error;
use super::step::{Begun, State};

/// Finished steps whose newest record the position names. A loop has a few; a program that invents names without end
/// would otherwise write all of them with every checkpoint.
pub(super) const LEDGER_STEPS_MAX: usize = 256;
/// How often old states are let go: rarely enough to cost nothing, often enough to bound the disk.
const TRIM_BATCHES: u64 = 16;

/// Where the run stands: what the next record continues.
#[derive(Debug, Clone)]
pub(super) struct Tip {
    pub(super) chain: Chain,
    pub(super) position: Position,
    /// What a record carries that is given no other state: the newest that is not that of a failed step.
    pub(super) state: State,
    pub(super) epoch: u32,
    /// Steps begun and not ended, by the seq of their start.
    pub(super) open: BTreeMap<u64, Begun>,
    /// The newest iteration of steps that were looked up.
    pub(super) visits: BTreeMap<StepId, u32>,
    /// The run has ended: nothing is written any more, and the lease is gone.
    pub(super) ended: bool,
}

impl Tip {
    /// Names a record of the run.
    pub(super) fn reference(&self, seq: u64) -> CheckpointRef {
        CheckpointRef { run: self.chain.run.clone(), branch: self.chain.branch.clone(), seq }
    }

    /// Sees that a step was begun and has not ended.
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

    /// Takes a step that was begun out of what is unfinished.
    pub(super) fn close(&mut self, begun: &Begun) {
        self.open.remove(&begun.since.seq);
        self.position.frontier.retain(|entry| entry.step != begun.step);
    }

    /// Enters a finished step, and forgets the oldest where there are too many.
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

/// A batch whose answer is not known, and where the run stands once it is written.
#[derive(Debug)]
struct Pending {
    batch: Batch,
    tip: Box<Tip>,
}

/// The writing side of a recorder.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) lease: Lease,
    pub(super) tip: Tip,
    batches: u64,
    pending: Option<Pending>,
    /// What retention let go since the last record; the next one says so.
    pruned: Option<Note>,
}

impl Writing {
    pub(super) fn new(lease: Lease, tip: Tip, batches: u64) -> Self {
        Self { lease, tip, batches, pending: None, pruned: None }
    }

    /// Appends one record that carries `state` and leads to `next`. With a status the lease is given back.
    ///
    /// `next` is as the run stands after the record, but for its chain, which is moved on here.
    pub(super) async fn append(
        &mut self,
        store: &dyn Store,
        mut draft: Draft,
        mut next: Tip,
        state: &State,
        now: Timestamp,
    ) -> Result<Record, Error> {
        draft.told.notes.extend(self.pruned.clone());
        if self.tip.ended {
            return Err(Error::Ended(next.chain.run));
        }
        let status = draft.status;
        let record = seal(&mut next, draft, state, now)?;
        let batch = Batch {
            id: BatchId { token: next.chain.token, count: self.batches + 1 },
            records: vec![record.clone()],
            consumed: Vec::new(),
            summary: next.summary(status),
            updated_at: None,
            release: status.is_some(),
        };
        self.pending = Some(Pending { batch, tip: Box::new(next) });
        self.send(store).await?;
        Ok(record)
    }

    /// Finds out what became of a batch whose answer was not heard, sending it again if need be.
    pub(super) async fn send(&mut self, store: &dyn Store) -> Result<(), Error> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let mut answer = store.append(&self.lease, pending.batch.clone()).await;
        if let Err(StoreError::Unknown { .. }) = answer {
            answer = store.append(&self.lease, pending.batch.clone()).await;
        }
        match answer {
            Ok(_) => {
                let pending = self.pending.take().expect("a batch was just sent");
                self.tip = *pending.tip;
                self.pruned = None;
                self.batches += 1;
                if self.tip.ended {
                    // What stands behind it, as a kernel lock, is given back with it: others may take the run up.
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

    /// Lets go of old states, now and then, where the run keeps only so many.
    pub(super) async fn trim(&mut self, store: &dyn Store, keep: Option<u32>) {
        if let Some(keep) = keep
            && self.batches.is_multiple_of(TRIM_BATCHES)
        {
            // What it leaves behind the next one takes; the record before it is acknowledged, and must be told so.
            let trimmed = store.trim(&self.lease, keep, TrimMode::Apply).await;
            self.pruned = trimmed.ok().and_then(|trimmed| pruned(trimmed, keep));
        }
    }
}

/// Makes the record of a draft at the end of the chain of `next`, and moves the chain past it.
pub(super) fn seal(next: &mut Tip, draft: Draft, state: &State, now: Timestamp) -> Result<Record, Error> {
    let run = next.chain.run.clone();
    let failed = |source| Error::Write { run: RunId::clone(&run), source };
    let body = Body::json(&next.position, &state.json, state.schema).map_err(failed)?;
    let mut records = Vec::with_capacity(1);
    next.chain.seal(&[draft], body, now, &mut records).map_err(failed)?;
    let record = records.pop().expect("a draft makes a record");
    next.chain.advance(&record);
    Ok(record)
}
