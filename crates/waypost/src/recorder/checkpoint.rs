//! Checkpoints for reading: needs no lease, and changes nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::evidence::VerdictSummary;
use crate::id::{CheckpointRef, RunId, ScopePath, StepId};
use crate::record::{Ending, FailureKind, Header, Occasion, Pack, Phase, Record, Try, Verdict};
use crate::schema::decode;
use crate::store::{Damage, Page, Scan, ScanOrder, Store, StoreError};

use super::Error;
use super::label::Label;
use super::stats::Stats;
use super::step::EncodedState;

/// Progress key of a record with the verdicts of a later check.
pub(super) use crate::engine::VERIFIED_KEY;
/// Headers per page in a walk over history: few pages for a long walk, little waste for a short one.
const WALK_PAGE: usize = 100;

/// A checkpoint with the newest requested check of its evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    record: Record,
    /// Result of a check made just now, not written.
    found: Option<Pack>,
    /// The newest appended check.
    verification: Option<Record>,
}

impl Checkpoint {
    pub(super) fn of(record: Record, verification: Option<Record>) -> Self {
        Self { record, found: None, verification }
    }

    pub(super) fn found(record: Record, pack: Pack) -> Self {
        Self { record, found: Some(pack), verification: None }
    }

    fn header(&self) -> &Header {
        self.record.header()
    }

    /// Returns the record itself, for fields without an accessor here.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the reference to the checkpoint, as people write it.
    pub fn reference(&self) -> CheckpointRef {
        self.header().reference()
    }

    /// Returns the position in the run, from 1.
    pub fn seq(&self) -> u64 {
        self.header().seq
    }

    /// Returns the step, if the checkpoint has one.
    pub fn step(&self) -> Option<&StepId> {
        self.header().step.as_ref()
    }

    /// Returns the attempt of the step.
    pub fn at(&self) -> &Try {
        &self.header().at
    }

    /// Returns the phase: `started`, `completed`, `failed`, `restored`, or `progress` for the verdicts of a
    /// check.
    pub fn phase(&self) -> &Phase {
        &self.header().phase
    }

    /// Returns the label.
    pub fn label(&self) -> Option<Label> {
        Label::among(&self.header().labels)
    }

    /// Returns all labels of the header, including the recorder's own.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.header().labels
    }

    /// Returns the external id that the caller gave to the commit.
    pub fn external(&self) -> Option<&str> {
        self.header().external.as_deref()
    }

    /// Returns the seq of the related checkpoint: for a commit, its start; for the verdicts of a check, the
    /// checked one.
    pub fn about(&self) -> Option<u64> {
        self.header().about
    }

    /// Returns the creation time, for display.
    pub fn created_at(&self) -> Timestamp {
        self.header().created_at
    }

    /// Returns the evidence as committed.
    pub fn committed(&self) -> Option<&Pack> {
        self.header().evidence.as_ref()
    }

    /// Returns the evidence as last checked, possibly at the commit.
    pub fn evidence(&self) -> Option<&Pack> {
        let newest = self.verification.as_ref().and_then(|record| record.header().evidence.as_ref());
        self.found.as_ref().or(newest).or_else(|| self.committed())
    }

    /// Returns the verdict of the last check; `skipped` without evidence. Only `ok` is trusted, and the
    /// present may differ.
    pub fn verdict(&self) -> Verdict {
        self.evidence().map_or(Verdict::Skipped, |pack| pack.verdict_at(self.occasion()))
    }

    /// Counts the verdicts of the last check.
    pub fn summary(&self) -> VerdictSummary {
        self.evidence().map(|pack| pack.summary_at(self.occasion())).unwrap_or_default()
    }

    /// Returns the occasion of the last check.
    fn occasion(&self) -> Occasion {
        match &self.found {
            Some(_) => Occasion::Resume,
            None => self.verification.as_ref().unwrap_or(&self.record).header().occasion(),
        }
    }

    /// Returns how the step ended, if it ended.
    pub fn ending(&self) -> Option<&Ending> {
        ending_of(self.header())
    }

    /// Returns the version of the state's schema; `None` without a state.
    pub fn schema(&self) -> Option<u32> {
        self.header().body.as_ref().map(|body| body.schema)
    }

    /// Returns the state as written. For older schemas,
    /// [`Migrations::state`](crate::schema::Migrations::state) reads the [`record`](Self::record).
    ///
    /// # Errors
    /// - [`Error::NoState`]: retention dropped the state, or the checkpoint was listed and not loaded.
    /// - [`Error::Read`]: the state does not decode as `S`.
    pub fn state<S: DeserializeOwned>(&self) -> Result<S, Error> {
        let bytes = self.record.state_bytes().ok_or_else(|| Error::NoState(self.reference()))?;
        decode(bytes).map_err(|error| Error::Read { at: self.reference(), why: error.to_string() })
    }
}

/// Returns how a step ended, from the header.
pub(super) fn ending_of(header: &Header) -> Option<&Ending> {
    match &header.phase {
        Phase::Completed(ending) => Some(ending),
        Phase::Failed(failure) => Some(&failure.ending),
        _ => None,
    }
}

/// Returns whether a record commits a step with evidence, whatever the verdict.
pub(super) fn is_judged_commit(header: &Header) -> bool {
    let judged = match &header.phase {
        Phase::Completed(_) => true,
        Phase::Failed(failure) => failure.kind == FailureKind::Evidence,
        _ => false,
    };
    judged && header.step.is_some() && header.evidence.is_some()
}

/// Returns the state of a record, to continue with.
pub(super) fn state_of(record: &Record) -> Result<EncodedState, Error> {
    let at = record.header().reference();
    let (Some(bytes), Some(body)) = (record.state_bytes(), &record.header().body) else {
        return Err(Error::NoState(at));
    };
    let unreadable = |why: String| Error::Read { at: record.header().reference(), why };
    if body.codec != "json" {
        return Err(unreadable(format!("the codec of the state is `{}`", body.codec)));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| unreadable(error.to_string()))?;
    let json = RawValue::from_string(text.to_owned()).map_err(|error| unreadable(error.to_string()))?;
    Ok(EncodedState { json: json.into(), schema: body.schema })
}

/// The checkpoints of a run, for reading.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    pub(super) store: Arc<dyn Store>,
    pub(super) run: RunId,
}

/// A page of checkpoints in order of seq, without states.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// The checkpoints.
    pub checkpoints: Vec<Checkpoint>,
    /// Damaged records found on this page.
    pub damaged: Vec<Damage>,
    /// The cursor of the next page, if any.
    pub next: Option<String>,
}

impl Checkpoints {
    /// Returns a reader of the checkpoints of `run` in `store`.
    pub fn of(store: Arc<dyn Store>, run: RunId) -> Self {
        Self { store, run }
    }

    /// Returns a checkpoint with its state, if retention kept the state, and with the newest check of its
    /// evidence.
    ///
    /// # Errors
    /// [`Error::Store`]: the run does not exist, or the checkpoint is damaged.
    pub async fn get(&self, at: &CheckpointRef) -> Result<Option<Checkpoint>, Error> {
        let record = match self.load(at).await {
            Ok(record) => record,
            Err(Error::Store(StoreError::NotFound { .. })) => {
                // An unknown run is an error; an unknown seq is an answer.
                self.store.run(&self.run).await?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let verification = self.verification(at.seq).await?;
        Ok(Some(Checkpoint::of(record, verification)))
    }

    /// Lists the checkpoints by ascending seq, with a given label or all.
    ///
    /// Starts, ends, checks and rollbacks are separate checkpoints. The list includes checkpoints undone by a
    /// rollback, as history only grows.
    ///
    /// # Errors
    /// [`Error::Store`]: the run does not exist, or the cursor is invalid.
    pub async fn list(&self, label: Option<Label>, page: &Page) -> Result<Listed, Error> {
        let scan = Scan {
            scope: Some(ScopePath::main()),
            label: label.map(Label::wanted),
            cursor: page.cursor.clone(),
            limit: page.limit,
            ..Scan::of(&self.run)
        };
        let found = self.store.scan(&scan).await?;
        let checkpoint = |record| Checkpoint::of(record, None);
        let checkpoints = found.records.into_iter().map(checkpoint).collect();
        Ok(Listed { checkpoints, damaged: found.damaged, next: found.next })
    }

    /// Returns counts over the run, from its headers, read page by page.
    ///
    /// # Errors
    /// [`Error::Store`]: the run does not exist.
    pub async fn stats(&self) -> Result<Stats, Error> {
        let mut stats = Stats::default();
        let mut scan = Scan { scope: Some(ScopePath::main()), ..Scan::of(&self.run) };
        loop {
            let page = self.store.scan(&scan).await?;
            page.records.iter().for_each(|record| stats.take(record));
            stats.damaged += page.damaged.len() as u64;
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => return Ok(stats),
            }
        }
    }

    /// Loads a record of this run's main scope.
    pub(super) async fn load(&self, at: &CheckpointRef) -> Result<Record, Error> {
        if at.run != self.run || !at.scope.is_main() {
            return Err(Error::Invalid(format!("checkpoint {at} belongs to another run than {}", self.run)));
        }
        Ok(self.store.load(&at.run, &at.scope, at.seq).await?)
    }

    /// Returns the newest appended verdicts about a checkpoint.
    async fn verification(&self, seq: u64) -> Result<Option<Record>, Error> {
        let scan = Scan {
            scope: Some(ScopePath::main()),
            about: Some(seq),
            phase: Some("progress"),
            order: ScanOrder::NewestFirst,
            limit: 1,
            ..Scan::of(&self.run)
        };
        Ok(self.store.scan(&scan).await?.records.pop())
    }

    /// Walks the effective history backwards from `seq`.
    pub(super) fn walk(&self, seq: u64) -> BasisWalk<'_> {
        let scan = Scan {
            scope: Some(ScopePath::main()),
            seq_max: Some(seq),
            order: ScanOrder::NewestFirst,
            limit: WALK_PAGE,
            ..Scan::of(&self.run)
        };
        BasisWalk { checkpoints: self, wanted: Some(seq), scan: Some(scan), page: VecDeque::new() }
    }
}

/// A walk along `basis`, newest first, by pages of headers. Skips records undone by a rollback.
pub(super) struct BasisWalk<'a> {
    checkpoints: &'a Checkpoints,
    wanted: Option<u64>,
    scan: Option<Scan>,
    page: VecDeque<Record>,
}

impl BasisWalk<'_> {
    pub(super) async fn next(&mut self) -> Result<Option<Record>, Error> {
        loop {
            let Some(wanted) = self.wanted else { return Ok(None) };
            while let Some(record) = self.page.pop_front() {
                // If the wanted record is damaged or quarantined, the walk continues with the next sound
                // record below.
                if record.header().seq <= wanted {
                    self.wanted = record.header().basis();
                    return Ok(Some(record));
                }
            }
            let Some(scan) = self.scan.take() else { return Ok(None) };
            let found = self.checkpoints.store.scan(&scan).await?;
            self.page = found.records.into();
            self.scan = found.next.map(|cursor| Scan { cursor: Some(cursor), ..scan });
        }
    }
}

/// Returns the phase for the record with the verdicts of a check.
pub(super) fn verified_phase(pack: &Pack) -> Phase {
    let summary = serde_json::to_value(pack.summary_at(Occasion::Verify)).unwrap_or(Value::Null);
    Phase::Progress { key: VERIFIED_KEY.to_owned(), value: summary }
}
