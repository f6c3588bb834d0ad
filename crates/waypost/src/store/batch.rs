//! Appended data: batches, and signals to a run.

use std::collections::HashSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{RunId, ScopePath};
use crate::record::{Record, RunStatus};

use super::Lease;
use super::error::StoreError;
use super::query::Progress;

/// The id of a batch within its run, to detect repetitions.
///
/// The token is unique to a lease, and its holder counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BatchId {
    /// The fencing token of the lease.
    pub token: u64,
    /// The 1-based count of batches under this lease.
    pub count: u64,
}

/// Records and related data, appended all or nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The id of the batch.
    pub id: BatchId,
    /// Records in order. The last record of each scope carries a body.
    pub records: Vec<Record>,
    /// Ids of signals consumed by these records.
    pub consumed: Vec<String>,
    /// The new summary of the run; `None` keeps the summary. Only the holder of the main scope knows a new one.
    pub summary: Option<Summary>,
    /// When the run last progressed, for records that make no progress: remarks about a run do not change its
    /// age. By default, the time of the last record.
    pub updated_at: Option<Timestamp>,
    /// Release the leases of the append with this batch.
    pub release: bool,
}

impl Batch {
    /// Returns when the run last progressed, after this batch; `None` without records.
    pub fn changed_at(&self) -> Option<Timestamp> {
        self.updated_at.or_else(|| self.records.last().map(|record| record.header().created_at))
    }

    /// Returns the lease that covers all scopes of the batch, for stores with one lease per run.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] names a scope without a lease.
    pub fn whole_run_lease<'a>(&self, leases: &[&'a Lease]) -> Result<&'a Lease, StoreError> {
        let lease = leases.first().ok_or_else(|| StoreError::Invalid("a batch needs a lease".to_owned()))?;
        match self.records.iter().find(|record| !lease.covers(&record.header().scope)) {
            None => Ok(lease),
            Some(record) => {
                let (run, scope) = (lease.run(), &record.header().scope);
                Err(StoreError::Invalid(format!("a batch for run {run} needs the lease of scope `{scope}`")))
            }
        }
    }

    /// Checks the consistency of a batch alone: it has records, all of `run` and under `token`, and the last
    /// record of each scope carries a body. For stores, before they compare the batch with their data.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] names the record.
    pub fn check(&self, run: &RunId, token: u64) -> Result<(), StoreError> {
        let invalid = |record: &Record, why: &str| {
            Err(StoreError::Invalid(format!("checkpoint {} {why}", record.header().reference())))
        };
        if self.records.is_empty() {
            return Err(StoreError::Invalid(format!("a batch for run {run} has no records")));
        }
        if self.id.token != token {
            let found = self.id.token;
            return Err(StoreError::Invalid(format!(
                "a batch for run {run} has token {found}, but its lease has {token}"
            )));
        }
        for record in &self.records {
            let header = record.header();
            if header.run != *run {
                return invalid(record, &format!("belongs to another run than {run}"));
            }
            if header.token != token {
                return invalid(record, &format!("has token {}, its lease has {token}", header.token));
            }
            if header.body.is_some() != record.body_bytes().is_some() {
                return invalid(record, "lacks the body that its header names");
            }
        }
        if self.records.iter().all(|record| record.body_bytes().is_some()) {
            return Ok(());
        }
        let mut later = HashSet::with_capacity(self.records.len());
        let mut lasts = self.records.iter().rev().filter(|record| later.insert(&record.header().scope));
        match lasts.find(|record| record.body_bytes().is_none()) {
            Some(record) => invalid(record, "is the last of its scope in a batch, and has no body"),
            None => Ok(()),
        }
    }
}

/// The summary of a run, kept by the store so that listing runs opens no record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Status as written; a reader verifies `running`.
    pub status: RunStatus,
    /// A non-idempotent step is running: if the process dies, the run is `in_doubt`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub doubtful: bool,
    /// The running step, or the failed one; a step of a child scope as `SCOPE/STEP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// How many steps are done, of how many.
    pub progress: Progress,
    /// When a waiting run is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_at: Option<Timestamp>,
    /// Checkpoints that could not be written, a failure that was tolerated.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
}

impl Summary {
    /// Creates the summary of a run of which only the status is known.
    pub fn of_status(status: RunStatus) -> Self {
        let progress = Progress::default();
        Self { status, doubtful: false, step: None, progress, wake_at: None, lost: 0 }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A durable signal to a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Signal {
    /// Unique in its run, chosen by the sender: a repeated id is the same signal.
    pub id: String,
    /// The kind of the signal.
    pub kind: SignalKind,
    /// The target scope; `None` for the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ScopePath>,
    /// The sender, for display.
    #[serde(default)]
    pub sender: String,
    /// The time, for display.
    pub created_at: Timestamp,
}

/// The kinds of signals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalKind {
    /// Stop, resumable.
    Stop,
    /// Cancel, final.
    Cancel,
    /// Write a checkpoint of the present position.
    Checkpoint {
        /// The label of the checkpoint.
        label: Option<String>,
    },
    /// The answer to the wait with this id.
    Answer {
        /// Id of the wait.
        wait: String,
        /// The answer.
        value: Value,
    },
    /// A named custom signal.
    Named {
        /// The name of the signal.
        name: String,
        /// The value of the signal.
        value: Value,
    },
}

impl SignalKind {
    /// Returns whether lease renewals report the signal: a request to the run, not to a step.
    pub fn is_for_the_run(&self) -> bool {
        match self {
            Self::Stop | Self::Cancel | Self::Checkpoint { .. } => true,
            Self::Answer { .. } | Self::Named { .. } => false,
        }
    }
}
