//! What is appended: a batch, and the messages left for a run.

use std::collections::HashSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{BranchPath, RunId};
use crate::record::{Record, RunStatus};

use super::error::StoreError;
use super::query::Progress;

/// Names a batch within its run, so that a repeated one is known.
///
/// The token is unique to a lease, and its holder counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BatchId {
    /// The fencing token of the lease.
    pub token: u64,
    /// Counts the batches under that lease, from 1.
    pub count: u64,
}

/// What is appended at once, all or nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Its name.
    pub id: BatchId,
    /// Records in order. The last one of each branch carries a body.
    pub records: Vec<Record>,
    /// Ids of signals that these records took in.
    pub consumed: Vec<String>,
    /// The run's summary from now on.
    pub summary: Summary,
    /// When the run went on last, where these records do not: what is written about a run makes it no younger. Without
    /// it, that is the time of the last record.
    pub updated_at: Option<Timestamp>,
    /// Give the lease back with this batch.
    pub release: bool,
}

impl Batch {
    /// Returns when the run went on last, once this is appended; without records, nothing.
    pub fn changed_at(&self) -> Option<Timestamp> {
        self.updated_at.or_else(|| self.records.last().map(|record| record.header().created_at))
    }

    /// Checks what can be told of a batch by itself: it has records, all of them of `run` and under `token`, and the
    /// last one of each branch carries a body. For stores, before they look at what they have.
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
                "a batch for run {run} is named by token {found}, its lease has {token}"
            )));
        }
        for record in &self.records {
            let header = record.header();
            if header.run != *run {
                return invalid(record, &format!("is not one of run {run}"));
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
        let mut lasts = self.records.iter().rev().filter(|record| later.insert(&record.header().branch));
        match lasts.find(|record| record.body_bytes().is_none()) {
            Some(record) => invalid(record, "is the last of its branch in a batch, and has no body"),
            None => Ok(()),
        }
    }
}

/// What a list of runs shows of one; kept by the store so that a list opens no record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Status as written; a reader finds out whether `running` is still true.
    pub status: RunStatus,
    /// A step is under way that must not be repeated blindly: if the process dies, the run is `in_doubt`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub doubtful: bool,
    /// The step under way, or the one that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// How many steps are done, of how many.
    pub progress: Progress,
    /// When a waiting run is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_at: Option<Timestamp>,
    /// Checkpoints that could not be written and were tolerated.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A durable message for a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Signal {
    /// Unique in its run, given by the sender: the same one twice is one message.
    pub id: String,
    /// What it is.
    pub kind: SignalKind,
    /// The branch it is meant for; none for the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<BranchPath>,
    /// Who sent it, for people.
    #[serde(default)]
    pub sender: String,
    /// When, for people.
    pub created_at: Timestamp,
}

/// The kinds of message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalKind {
    /// Stop, resumable.
    Stop,
    /// Cancel, final.
    Cancel,
    /// Write a checkpoint of where the run stands.
    Checkpoint {
        /// What to find it by.
        label: Option<String>,
    },
    /// The answer to the wait of this id.
    Answer {
        /// Id of the wait.
        wait: String,
        /// The answer.
        value: Value,
    },
    /// A named signal of the user's own.
    Named {
        /// Its name.
        name: String,
        /// Its value.
        value: Value,
    },
}

impl SignalKind {
    /// Says whether a session is told of it when it renews its lease: what asks something of the run, and not of a step.
    pub fn is_for_the_run(&self) -> bool {
        match self {
            Self::Stop | Self::Cancel | Self::Checkpoint { .. } => true,
            Self::Answer { .. } | Self::Named { .. } => false,
        }
    }
}
