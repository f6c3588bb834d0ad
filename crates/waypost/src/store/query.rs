//! What is asked of a store, and its answers.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{BranchPath, RunId};
use crate::lock::Holder;
use crate::record::{Record, RunStatus, SealedRun};

use super::batch::Summary;
use super::error::Damage;

/// Most items of one page: bounds the memory of every listing.
pub const PAGE_ITEMS_MAX: usize = 1_000;

/// A page of something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Where the page before ended; none for the first.
    pub cursor: Option<String>,
    /// How many items at most; stores give no more than [`PAGE_ITEMS_MAX`].
    pub limit: usize,
}

impl Default for Page {
    fn default() -> Self {
        Self { cursor: None, limit: PAGE_ITEMS_MAX }
    }
}

/// The newest sound record of an open branch.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// The record, with its body.
    pub record: Record,
    /// The seq that the next record must have: one more than the newest, damaged or not.
    pub next: u64,
    /// Newer records that are damaged, newest first.
    pub damaged: Vec<Damage>,
}

/// Heads of open branches.
#[derive(Debug, Clone, PartialEq)]
pub struct Heads {
    /// In the order in which the branches were opened.
    pub heads: Vec<Head>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// Which records are wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// Of this run.
    pub run: RunId,
    /// Of this branch; none for all, in the order in which they were opened.
    pub branch: Option<BranchPath>,
    /// From this seq.
    pub seq_min: Option<u64>,
    /// To this seq.
    pub seq_max: Option<u64>,
    /// Only of this step.
    pub step: Option<String>,
    /// Only with this phase, by its name.
    pub phase: Option<&'static str>,
    /// Only with this label.
    pub label: Option<(String, String)>,
    /// Only with this foreign id.
    pub external: Option<String>,
    /// Only those that belong to this record.
    pub about: Option<u64>,
    /// The direction within a branch.
    pub order: ScanOrder,
    /// Where the page before ended.
    pub cursor: Option<String>,
    /// How many at most; stores give no more than [`PAGE_ITEMS_MAX`].
    pub limit: usize,
}

impl Scan {
    /// Asks for all records of a run, oldest first.
    pub fn of(run: &RunId) -> Self {
        Self {
            run: run.clone(),
            branch: None,
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

    /// Says whether a seq is in the range.
    pub fn spans(&self, seq: u64) -> bool {
        self.seq_min.is_none_or(|least| seq >= least) && self.seq_max.is_none_or(|most| seq <= most)
    }

    /// Says whether a record is wanted, as far as its header tells: all but branch, cursor and limit.
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

/// Direction of a scan within a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanOrder {
    /// By rising seq.
    OldestFirst,
    /// By falling seq.
    NewestFirst,
}

/// Records found.
#[derive(Debug, Clone, PartialEq)]
pub struct Scanned {
    /// Without bodies.
    pub records: Vec<Record>,
    /// Records in the range scanned that are damaged; whether they would have been wanted cannot be told. A look-up by
    /// `external` or `about` may go by an index, and then lists only the damage that it comes by.
    pub damaged: Vec<Damage>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// The effective history of a branch, newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// What is sound of it, without bodies.
    pub records: Vec<Record>,
    /// What of it is damaged or missing, and was passed over. What such a record continues, nobody knows: it is taken to be
    /// the next sound one below, and all damage between the two counts.
    pub damaged: Vec<Damage>,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps finished: completed, skipped or tolerated.
    pub done: u64,
    /// Steps in all, as far as is known.
    pub total: u64,
}

/// What a store knows of a run without opening a record.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSummary {
    /// The run.
    pub run: RunId,
    /// Name of its workflow.
    pub workflow: String,
    /// Its file, relative to the store's home.
    pub path: Option<String>,
    /// Status, found out now.
    pub status: RunStatus,
    /// The rest of what was last written.
    pub summary: Summary,
    /// Labels of the run.
    pub labels: BTreeMap<String, String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// How many checkpoints it has, trimmed ones included.
    pub checkpoints: u64,
    /// Bytes of its records as kept, logs not counted.
    pub bytes: u64,
    /// Who holds its lease now, if anybody.
    pub holder: Option<Holder>,
}

impl RunSummary {
    /// Finds out what `status` is true: what was written, unless its process is gone.
    ///
    /// A holder that is gone counts as none, even while its supervisor still has the lock.
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

/// A run with its frozen record.
#[derive(Debug, Clone, PartialEq)]
pub struct RunEntry {
    /// What is frozen.
    pub record: SealedRun,
    /// What changes.
    pub summary: RunSummary,
}

/// Which runs are wanted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunQuery {
    /// Only ids that begin so.
    pub prefix: Option<String>,
    /// Only with one of these statuses, as found out now; empty for all.
    pub statuses: BTreeSet<RunStatus>,
    /// Only of this workflow.
    pub workflow: Option<String>,
    /// Only of this file, relative to the store's home.
    pub path: Option<String>,
    /// Only with all of these labels.
    pub labels: BTreeMap<String, String>,
    /// Only changed since.
    pub since: Option<Timestamp>,
    /// Where the page before ended.
    pub cursor: Option<String>,
    /// How many at most; 0 and all above [`PAGE_ITEMS_MAX`] mean that.
    pub limit: usize,
}

impl RunQuery {
    /// Says whether a run is wanted.
    pub fn wants(&self, run: &RunSummary) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| run.run.as_str().starts_with(prefix.as_str()))
            && (self.statuses.is_empty() || self.statuses.contains(&run.status))
            && self.workflow.as_ref().is_none_or(|name| run.workflow == *name)
            && self.path.as_ref().is_none_or(|path| run.path.as_ref() == Some(path))
            && self.labels.iter().all(|(key, value)| run.labels.get(key) == Some(value))
            && self.since.is_none_or(|since| run.updated_at >= since)
    }

    /// Returns the limit in force.
    pub fn limit(&self) -> usize {
        if self.limit == 0 { PAGE_ITEMS_MAX } else { self.limit.min(PAGE_ITEMS_MAX) }
    }
}

/// A run that can be named and not summarised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableRun {
    /// The run.
    pub run: RunId,
    /// What is wrong with it.
    pub why: String,
}

/// Runs found, newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    /// Their summaries.
    pub runs: Vec<RunSummary>,
    /// Runs that are there, or were, and of which no summary can be read; whether they would have been wanted cannot be
    /// told, but by their ids.
    pub damaged: Vec<UnreadableRun>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// What was or would be dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Checkpoints whose body goes.
    pub checkpoints: u64,
    /// Bytes of those bodies.
    pub bytes: u64,
}
