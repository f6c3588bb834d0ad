//! Queries of a store, and their answers.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::id::{RunId, ScopePath};
use crate::projection::events::PRUNED;
use crate::record::{Note, RETENTION_MIN, Record, RunStatus, SealedRun};
use crate::system::lock::Holder;

use super::batch::Summary;
use super::error::Damage;

/// Most items of a page: bounds the memory of every listing.
pub const PAGE_ITEMS_MAX: usize = 1_000;

/// A page request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The cursor from the previous page; `None` for the first page.
    pub cursor: Option<String>,
    /// Most items; stores return at most [`PAGE_ITEMS_MAX`].
    pub limit: usize,
}

impl Default for Page {
    fn default() -> Self {
        Self { cursor: None, limit: PAGE_ITEMS_MAX }
    }
}

/// The newest sound record of an open scope.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// The record, with its body.
    pub record: Record,
    /// The seq of the next record: one more than the newest, damaged or not.
    pub next: u64,
    /// Newer damaged records, newest first.
    pub damaged: Vec<Damage>,
}

/// Heads of open scopes.
#[derive(Debug, Clone, PartialEq)]
pub struct Heads {
    /// In order of opening.
    pub heads: Vec<Head>,
    /// The cursor of the next page, if any.
    pub next: Option<String>,
}

/// A query for records.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// Only this run.
    pub run: RunId,
    /// Only this scope; `None` for all, in order of opening.
    pub scope: Option<ScopePath>,
    /// From this seq on.
    pub seq_min: Option<u64>,
    /// Up to this seq.
    pub seq_max: Option<u64>,
    /// Only this step.
    pub step: Option<String>,
    /// Only this phase, by its name.
    pub phase: Option<&'static str>,
    /// Only this label.
    pub label: Option<(String, String)>,
    /// Only this external id.
    pub external: Option<String>,
    /// Only records about this record.
    pub about: Option<u64>,
    /// The direction within a scope.
    pub order: ScanOrder,
    /// The cursor from the previous page.
    pub cursor: Option<String>,
    /// Most records; stores return at most [`PAGE_ITEMS_MAX`].
    pub limit: usize,
}

impl Scan {
    /// Creates a query for all records of a run, oldest first.
    pub fn of(run: &RunId) -> Self {
        Self {
            run: run.clone(),
            scope: None,
            seq_min: None,
            seq_max: None,
            step: None,
            phase: None,
            label: None,
            external: None,
            about: None,
            order: ScanOrder::OldestFirst,
            cursor: None,
            limit: PAGE_ITEMS_MAX,
        }
    }

    /// Returns whether a seq is in the range.
    pub fn spans(&self, seq: u64) -> bool {
        self.seq_min.is_none_or(|least| seq >= least) && self.seq_max.is_none_or(|most| seq <= most)
    }

    /// Returns whether a record matches, by its header; ignores scope, cursor and limit.
    pub fn wants(&self, record: &Record) -> bool {
        let header = record.header();
        self.spans(header.seq)
            && self.step.as_ref().is_none_or(|step| header.step.as_ref().is_some_and(|s| s.as_str() == step))
            && self.phase.is_none_or(|phase| header.phase.name() == phase)
            && self.label.as_ref().is_none_or(|(key, value)| header.labels.get(key) == Some(value))
            && self.external.as_ref().is_none_or(|id| header.external.as_ref() == Some(id))
            && self.about.is_none_or(|seq| header.about == Some(seq))
    }
}

/// Direction of a scan within a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanOrder {
    /// By ascending seq.
    OldestFirst,
    /// By descending seq.
    NewestFirst,
}

/// The answer to a scan.
#[derive(Debug, Clone, PartialEq)]
pub struct Scanned {
    /// Matching records, without bodies.
    pub records: Vec<Record>,
    /// Damaged records in the scanned range; whether they match is unknown. A lookup by `external` or `about`
    /// may use an index, and then lists only the damage on its way.
    pub damaged: Vec<Damage>,
    /// The cursor of the next page, if any.
    pub next: Option<String>,
}

/// The effective history of a scope, newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// The sound records, without bodies.
    pub records: Vec<Record>,
    /// Damaged or missing records on the way. The basis of a damaged record is unknown: the walk continues
    /// with the next sound record below, and all damage in between is listed.
    pub damaged: Vec<Damage>,
}

/// The progress of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps finished: completed, skipped or tolerated.
    pub done: u64,
    /// All steps, as far as known.
    pub total: u64,
}

/// A run as a store knows it without opening a record.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSummary {
    /// The run.
    pub run: RunId,
    /// Name of the workflow.
    pub workflow: String,
    /// The workflow file, relative to the store's home.
    pub path: Option<String>,
    /// Status, verified now.
    pub status: RunStatus,
    /// The rest of the summary, as last written.
    pub summary: Summary,
    /// Labels of the run.
    pub labels: BTreeMap<String, String>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// The number of checkpoints, trimmed ones included.
    pub checkpoints: u64,
    /// Bytes of the stored records, without logs.
    pub bytes: u64,
    /// Bytes of logs and lists in the store itself; 0 if these are files of the run's folder.
    pub blob_bytes: u64,
    /// The present holder of the lease, if any.
    pub holder: Option<Holder>,
    /// The end of the holder's lease unless renewed, as in [`StoreError::Held`](super::StoreError::Held).
    pub until: Option<Timestamp>,
}

impl RunSummary {
    /// Returns the true status: as written, unless the holder is dead.
    ///
    /// A dead holder counts as none, even while its supervisor still has the lock.
    pub fn true_status(summary: &Summary, holder: Option<&Holder>) -> RunStatus {
        let held = holder.is_some_and(|holder| !holder.is_gone());
        match summary.status {
            RunStatus::Running if held => RunStatus::Running,
            RunStatus::Running | RunStatus::Interrupted if summary.doubtful => RunStatus::InDoubt,
            RunStatus::Running => RunStatus::Interrupted,
            _ if held => RunStatus::Running,
            written => written,
        }
    }
}

/// A run with its run record.
#[derive(Debug, Clone, PartialEq)]
pub struct RunEntry {
    /// The fixed part.
    pub record: SealedRun,
    /// The changing part.
    pub summary: RunSummary,
}

/// A query for runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunQuery {
    /// Only ids with this prefix.
    pub prefix: Option<String>,
    /// Only these statuses, verified now; empty for all.
    pub statuses: BTreeSet<RunStatus>,
    /// Only this workflow.
    pub workflow: Option<String>,
    /// Only this file, relative to the store's home.
    pub path: Option<String>,
    /// Only runs with all of these labels.
    pub labels: BTreeMap<String, String>,
    /// Only runs changed since.
    pub since: Option<Timestamp>,
    /// The cursor from the previous page.
    pub cursor: Option<String>,
    /// Most runs; 0 and values above [`PAGE_ITEMS_MAX`] mean [`PAGE_ITEMS_MAX`].
    pub limit: usize,
}

impl RunQuery {
    /// Returns whether a run matches.
    pub fn wants(&self, run: &RunSummary) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| run.run.as_str().starts_with(prefix.as_str()))
            && (self.statuses.is_empty() || self.statuses.contains(&run.status))
            && self.workflow.as_ref().is_none_or(|name| run.workflow == *name)
            && self.path.as_ref().is_none_or(|path| run.path.as_ref() == Some(path))
            && self.labels.iter().all(|(key, value)| run.labels.get(key) == Some(value))
            && self.since.is_none_or(|since| run.updated_at >= since)
    }

    /// Returns the effective limit.
    pub fn limit(&self) -> usize {
        if self.limit == 0 { PAGE_ITEMS_MAX } else { self.limit.min(PAGE_ITEMS_MAX) }
    }
}

/// A run with a known id and an unreadable summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableRun {
    /// The run.
    pub run: RunId,
    /// The reason.
    pub why: String,
}

/// The answer to a run query, newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    /// The summaries.
    pub runs: Vec<RunSummary>,
    /// Present or lost runs without a readable summary; except by id, whether they match is unknown.
    pub damaged: Vec<UnreadableRun>,
    /// The cursor of the next page, if any.
    pub next: Option<String>,
}

/// The bodies dropped, or to be dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Checkpoints that lose their body.
    pub checkpoints: u64,
    /// Bytes of these bodies.
    pub bytes: u64,
}

impl Trimmed {
    /// Returns the note of a trim that kept `keep` states; `None` if the trim removed none.
    pub(crate) fn note(self, keep: u32) -> Option<Note> {
        let Self { checkpoints, bytes } = self;
        let data = json!({ "states": checkpoints, "bytes": bytes, "keep": keep.max(RETENTION_MIN) });
        (checkpoints > 0).then(|| Note::Event { name: PRUNED.to_owned(), data })
    }
}
