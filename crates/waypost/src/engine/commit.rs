//! How a session's changes become true: drafts to records, records to the store.

use crate::record::{End, FrontierEntry, Phase, Reason, RunStatus, Start, Status, Try};
use crate::store::{Batch, BatchId, StoreError, Summary, TrimMode};

use super::chain::Draft;
use super::session::Session;
use super::{OnLostCheckpoint, Program, RunError};

/// Checkpoints kept in memory while the store cannot take them and that is tolerated.
const DRAFTS_PENDING_MAX: usize = 1_000;
/// How often old states are let go: rarely enough to cost nothing, often enough to bound the disk.
const TRIM_BATCHES: u64 = 16;

impl<P: Program> Session<'_, P> {
    pub(super) fn summary(&self, status: Option<RunStatus>) -> Summary {
        let frontier = &self.position.frontier;
        let of = |status: Status| frontier.iter().find(|entry| entry.status == status);
        let step = of(Status::Failed).or_else(|| of(Status::Started)).or_else(|| of(Status::Waiting));
        Summary {
            status: status.unwrap_or(RunStatus::Running),
            doubtful: self.doubtful(),
            step: step.map(|entry| entry.step.to_string()),
            progress: self.progress(),
            wake_at: frontier.iter().filter_map(|entry| entry.wake_at).min(),
            lost: self.lost,
        }
    }

    /// Makes the batch of all drafts, and of the starts that go with it.
    pub(super) fn batch(&mut self, status: Option<RunStatus>) -> Result<Batch, RunError> {
        if self.drafts.is_empty() {
            let draft = match status {
                Some(_) => {
                    let by = self.options.stop.asked().map_or_else(|| "--until".to_owned(), |stop| stop.by);
                    let phase = Phase::Interrupted { in_progress: false, by };
                    Draft::new(phase, Reason::Stopped, None, Try::default())
                }
                None => {
                    let first = self.starting.first().map(|place| self.entry(*place));
                    let (step, at) = first.map(|entry| (entry.step.clone(), entry.at.clone())).unzip();
                    Draft::new(Phase::Started, self.reason, step, at.unwrap_or_default())
                }
            };
            self.drafts.push(draft);
        }
        let starts: Vec<Start> = self.starting.iter().map(|place| self.entry(*place)).map(start_of).collect();
        let last = self.drafts.last_mut().expect("a batch has a draft");
        last.started.extend(starts);
        last.status = status;
        last.end = matches!(status, Some(RunStatus::Completed | RunStatus::CompletedWithFailures))
            .then_some(End::Completed);
        let since = self.chain.next + self.drafts.len() as u64 - 1;
        self.position
            .frontier
            .iter_mut()
            .filter(|entry| entry.since == 0)
            .for_each(|entry| entry.since = since);
        let records = self
            .chain
            .seal(&self.drafts, &self.position, &self.state, self.program.schema(), self.engine.clock.now())
            .map_err(|source| RunError::Serialize { run: self.chain.run.clone(), source })?;
        let id = BatchId { token: self.chain.token, count: self.batches + 1 };
        let consumed = std::mem::take(&mut self.consumed);
        Ok(Batch { id, records, consumed, summary: self.summary(status), release: status.is_some() })
    }

    /// Makes true what happened since the last commit.
    ///
    /// With a status, nothing goes on by itself after it, and the lease is given back.
    pub(super) async fn commit(&mut self, status: Option<RunStatus>) -> Result<(), RunError> {
        let batch = self.batch(status)?;
        let lease = self.lease.clone().expect("a session works under a lease");
        let mut answer = self.engine.store.append(&lease, batch.clone()).await;
        if let Err(StoreError::Unknown { .. }) = answer {
            // The id makes the repetition harmless: it is answered, not applied again.
            answer = self.engine.store.append(&lease, batch.clone()).await;
        }
        match answer {
            Ok(_) => {
                self.acknowledged(&batch);
                Ok(())
            }
            Err(source) => self.not_written(source, &batch, status.is_some()),
        }
    }

    pub(super) fn acknowledged(&mut self, batch: &Batch) {
        self.batches += 1;
        self.chain.advance(&batch.records);
        self.drafts.clear();
        self.reason = Reason::Step;
        self.engine.observer.committed(&batch.records, &self.position, self.progress());
    }

    pub(super) fn not_written(
        &mut self,
        source: StoreError,
        batch: &Batch,
        last: bool,
    ) -> Result<(), RunError> {
        let at =
            batch.records.last().map(|record| record.header().reference().to_string()).unwrap_or_default();
        let tolerable = !matches!(
            source,
            StoreError::Fenced { .. } | StoreError::Conflict { .. } | StoreError::Invalid(_)
        );
        let tolerate = self.options.on_lost_checkpoint == OnLostCheckpoint::Tolerate;
        if !tolerate || !tolerable || last || self.drafts.len() > DRAFTS_PENDING_MAX {
            return Err(RunError::Checkpoint { at, source });
        }
        self.lost += 1;
        self.consumed.extend(batch.consumed.iter().cloned());
        let text = format!(
            "checkpoint {at} could not be written ({source}); a crash now would cost the steps since then"
        );
        self.engine.observer.warned(&text);
        Ok(())
    }

    /// Lets go of old states, now and then, where the run keeps only so many.
    pub(super) async fn trim(&mut self) -> Result<(), RunError> {
        if let Some(keep) = self.options.retention
            && self.batches.is_multiple_of(TRIM_BATCHES)
        {
            let lease = self.lease.clone().expect("a session works under a lease");
            self.engine.store.trim(&lease, keep, TrimMode::Apply).await?;
        }
        Ok(())
    }
}

fn start_of(entry: &FrontierEntry) -> Start {
    Start { step: entry.step.clone(), at: entry.at.clone() }
}
