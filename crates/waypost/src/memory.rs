//! The store in memory: the reference that the others are compared with.
//!
//! Keeps the same bytes as every store and checks them the same way, so that a test can damage it. Nothing survives
//! the value; several handles share one by `Arc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use jiff::Timestamp;

use crate::id::{BranchPath, Digest, RunId};
use crate::lock::Holder;
use crate::record::{Record, SealedRun};
use crate::store::{
    Appended, BLOB_CHUNK_BYTES, Batch, BatchId, Blobs, Damage, FIRST_TOKEN, Head, Heads, Lease,
    PAGE_ITEMS_MAX, Page, Renewal, RunEntry, RunQuery, RunSummary, Runs, Scan, ScanOrder, Scanned, Signal,
    SignalKind, Signalled, Store, StoreError, Summary, TrimMode, Trimmed, check_batch, check_blob_name,
};

/// A store that lives as long as its value.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    closed: bool,
    created: u64,
    runs: BTreeMap<RunId, Run>,
}

#[derive(Debug)]
struct Run {
    ordinal: u64,
    record: SealedRun,
    summary: Summary,
    updated_at: Timestamp,
    checkpoints: u64,
    token: u64,
    holder: Option<Holder>,
    last_batch: Option<BatchId>,
    /// In the order in which they were opened.
    branches: Vec<(BranchPath, BTreeMap<u64, Row>)>,
    signals: Vec<(Signal, bool)>,
    quarantine: Vec<(BranchPath, u64, Row)>,
    blobs: BTreeMap<String, Vec<u8>>,
}

/// A record as bytes, so that damage is possible and is found.
#[derive(Debug, Clone)]
struct Row {
    digest: Digest,
    header: Vec<u8>,
    body: Option<Vec<u8>>,
}

impl Row {
    fn of(record: &Record) -> Self {
        let body = record.body_bytes().map(|bytes| bytes.to_vec());
        Self { digest: record.digest(), header: record.header_bytes().to_vec(), body }
    }

    fn open(&self, run: &RunId, branch: &BranchPath, seq: u64) -> Result<Record, Damage> {
        Record::open(self.digest, self.header.clone(), self.body.clone()).map_err(|flaw| Damage {
            run: run.clone(),
            branch: branch.clone(),
            seq,
            place: "memory".to_owned(),
            flaw,
        })
    }

    fn bytes(&self) -> u64 {
        (self.header.len() + self.body.as_ref().map_or(0, Vec::len)) as u64
    }
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory:")
    }
}

impl MemoryStore {
    /// Makes an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Flips one bit of a record, for tests.
    ///
    /// # Panics
    /// If there is no such record.
    #[doc(hidden)]
    pub fn damage(&self, run: &RunId, branch: &BranchPath, seq: u64) {
        let mut inner = self.inner.lock().expect("no test panics while it holds the store");
        let rows =
            inner.runs.get_mut(run).and_then(|run| run.rows_mut(branch)).expect("a run and branch to damage");
        rows.get_mut(&seq).expect("a record to damage").header[0] ^= 1;
    }

    /// Lets the lease of a run go as a process that dies does: nothing is written.
    #[doc(hidden)]
    pub fn drop_holder(&self, run: &RunId) {
        let mut inner = self.inner.lock().expect("no test panics while it holds the store");
        if let Some(run) = inner.runs.get_mut(run) {
            run.holder = None;
        }
    }

    fn open(&self) -> Result<MutexGuard<'_, Inner>, StoreError> {
        let inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if inner.closed { Err(StoreError::Closed(self.to_string())) } else { Ok(inner) }
    }
}

impl Inner {
    fn run(&self, run: &RunId) -> Result<&Run, StoreError> {
        self.runs.get(run).ok_or_else(|| StoreError::no_run(&"memory:", run))
    }

    fn run_mut(&mut self, run: &RunId) -> Result<&mut Run, StoreError> {
        self.runs.get_mut(run).ok_or_else(|| StoreError::no_run(&"memory:", run))
    }

    /// Returns the run of a lease that still holds.
    fn leased(&mut self, lease: &Lease) -> Result<&mut Run, StoreError> {
        let run = self.run_mut(lease.run())?;
        if run.token != lease.token() || run.holder.is_none() {
            let (token, newest) = (lease.token(), run.token);
            return Err(StoreError::Fenced { run: lease.run().clone(), token, newest });
        }
        Ok(run)
    }
}

impl Run {
    fn name(&self) -> &RunId {
        &self.record.record().run
    }

    fn rows(&self, branch: &BranchPath) -> Option<&BTreeMap<u64, Row>> {
        self.branches.iter().find(|(name, _)| name == branch).map(|(_, rows)| rows)
    }

    fn rows_mut(&mut self, branch: &BranchPath) -> Option<&mut BTreeMap<u64, Row>> {
        self.branches.iter_mut().find(|(name, _)| name == branch).map(|(_, rows)| rows)
    }

    /// Returns the newest sound record of a branch below `below`, with a body if asked for, and the damage above it.
    fn newest(&self, branch: &BranchPath, below: u64, with_body: bool) -> (Option<Record>, Vec<Damage>) {
        let mut damaged = Vec::new();
        let rows = self.rows(branch).into_iter().flat_map(|rows| rows.range(..below).rev());
        for (seq, row) in rows {
            match row.open(self.name(), branch, *seq) {
                Ok(record) if !with_body || record.body_bytes().is_some() => return (Some(record), damaged),
                Ok(_) => {}
                Err(damage) => damaged.push(damage),
            }
        }
        (None, damaged)
    }

    /// Returns the seq after the newest record of a branch, quarantined ones included.
    fn next(&self, branch: &BranchPath) -> u64 {
        let kept = self.rows(branch).and_then(|rows| rows.keys().next_back().copied());
        let moved = self.quarantine.iter().filter(|(name, ..)| name == branch).map(|(_, seq, _)| *seq).max();
        kept.max(moved).unwrap_or(0) + 1
    }

    fn apply(&mut self, batch: &Batch) -> Result<Appended, StoreError> {
        if self.last_batch == Some(batch.id) {
            return Ok(Appended::Before);
        }
        check_batch(self.name(), self.token, batch, |branch| {
            let (newest, _) = self.newest(branch, u64::MAX, false);
            (newest.map(|record| (record.header().seq, record.digest())), self.next(branch))
        })?;
        for record in &batch.records {
            let header = record.header();
            if self.rows(&header.branch).is_none() {
                self.branches.push((header.branch.clone(), BTreeMap::new()));
            }
            let rows = self.rows_mut(&header.branch).expect("the branch was just opened");
            rows.insert(header.seq, Row::of(record));
            self.checkpoints += 1;
            self.updated_at = header.created_at;
        }
        for (signal, consumed) in &mut self.signals {
            *consumed |= batch.consumed.contains(&signal.id);
        }
        self.summary = batch.summary.clone();
        self.last_batch = Some(batch.id);
        if batch.release {
            self.holder = None;
        }
        Ok(Appended::Now)
    }

    fn summary(&self) -> RunSummary {
        let record = self.record.record();
        RunSummary {
            run: record.run.clone(),
            workflow: record.workflow.clone(),
            path: record.path.clone(),
            status: RunSummary::true_status(&self.summary, self.holder.is_some()),
            summary: self.summary.clone(),
            labels: record.labels.clone(),
            created_at: record.created_at,
            updated_at: self.updated_at,
            checkpoints: self.checkpoints,
            bytes: self.branches.iter().flat_map(|(_, rows)| rows.values()).map(Row::bytes).sum(),
            holder: self.holder.clone(),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Store for MemoryStore {
    async fn create(&self, run: &SealedRun, first: Batch, holder: &Holder) -> Result<Lease, StoreError> {
        let mut inner = self.open()?;
        let name = run.record().run.clone();
        if inner.runs.contains_key(&name) {
            return Err(StoreError::Exists { run: name });
        }
        let mut new = Run {
            ordinal: inner.created + 1,
            record: run.clone(),
            summary: first.summary.clone(),
            updated_at: run.record().created_at,
            checkpoints: 0,
            token: FIRST_TOKEN,
            holder: Some(holder.clone()),
            last_batch: None,
            branches: Vec::new(),
            signals: Vec::new(),
            quarantine: Vec::new(),
            blobs: BTreeMap::new(),
        };
        new.apply(&first)?;
        inner.created += 1;
        inner.runs.insert(name.clone(), new);
        Ok(Lease::new(name, FIRST_TOKEN, None))
    }

    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError> {
        let inner = self.open()?;
        let run = inner.run(run)?;
        Ok(RunEntry { record: run.record.clone(), summary: run.summary() })
    }

    async fn acquire(&self, run: &RunId, _: &BranchPath, holder: &Holder) -> Result<Lease, StoreError> {
        let mut inner = self.open()?;
        let found = inner.run_mut(run)?;
        if let Some(other) = &found.holder {
            return Err(StoreError::Held { run: run.clone(), holder: Some(other.clone()) });
        }
        found.token += 1;
        found.holder = Some(holder.clone());
        Ok(Lease::new(run.clone(), found.token, None))
    }

    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError> {
        let mut inner = self.open()?;
        let mut answers = Vec::with_capacity(leases.len());
        for lease in leases {
            answers.push(match inner.leased(lease) {
                Ok(run) => {
                    let pending = run.signals.iter().filter(|(signal, consumed)| {
                        !consumed && matches!(signal.kind, SignalKind::Stop | SignalKind::Cancel)
                    });
                    Renewal::Held(pending.map(|(signal, _)| signal.clone()).collect())
                }
                Err(_) => Renewal::Lost,
            });
        }
        Ok(answers)
    }

    async fn release(&self, lease: Lease, wake_at: Option<Timestamp>) -> Result<(), StoreError> {
        let mut inner = self.open()?;
        let run = inner.leased(&lease)?;
        run.holder = None;
        if wake_at.is_some() {
            run.summary.wake_at = wake_at;
        }
        Ok(())
    }

    async fn append(&self, lease: &Lease, batch: Batch) -> Result<Appended, StoreError> {
        let mut inner = self.open()?;
        let run = inner.run_mut(lease.run())?;
        if run.token == lease.token() && run.last_batch == Some(batch.id) {
            return Ok(Appended::Before);
        }
        inner.leased(lease)?.apply(&batch)
    }

    async fn heads(&self, run: &RunId, page: &Page) -> Result<Heads, StoreError> {
        let inner = self.open()?;
        let run = inner.run(run)?;
        let (from, limit) = (offset(page.cursor.as_deref())?, page.limit.clamp(1, PAGE_ITEMS_MAX));
        let mut heads = Vec::new();
        for (at, (branch, _)) in run.branches.iter().enumerate().skip(from) {
            if heads.len() == limit {
                return Ok(Heads { heads, next: Some(at.to_string()) });
            }
            let (record, mut damaged) = run.newest(branch, u64::MAX, true);
            match record {
                Some(record) if record.header().end.is_some() => {}
                Some(record) => heads.push(Head { record, next: run.next(branch), damaged }),
                None if damaged.is_empty() => {}
                None => return Err(StoreError::of_damage(damaged.remove(0), None)),
            }
        }
        Ok(Heads { heads, next: None })
    }

    async fn load(&self, run: &RunId, branch: &BranchPath, seq: u64) -> Result<Record, StoreError> {
        let inner = self.open()?;
        let found = inner.run(run)?;
        let rows = found.rows(branch).ok_or_else(|| StoreError::no_branch(run, branch))?;
        let row = rows.get(&seq).ok_or_else(|| StoreError::no_record(run, branch, seq))?;
        row.open(run, branch, seq).map_err(|damage| {
            let (older, _) = found.newest(branch, seq, true);
            StoreError::of_damage(damage, older.map(|record| record.header().seq))
        })
    }

    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError> {
        let inner = self.open()?;
        let run = inner.run(&scan.run)?;
        let (from, limit) = (offset(scan.cursor.as_deref())?, scan.limit.clamp(1, PAGE_ITEMS_MAX));
        let mut rows = Vec::new();
        for (branch, found) in &run.branches {
            if scan.branch.as_ref().is_none_or(|wanted| wanted == branch) {
                let in_order: Vec<_> = match scan.order {
                    ScanOrder::OldestFirst => found.iter().collect(),
                    ScanOrder::NewestFirst => found.iter().rev().collect(),
                };
                rows.extend(in_order.into_iter().map(|(seq, row)| (branch, *seq, row)));
            }
        }
        let mut found = Scanned { records: Vec::new(), damaged: Vec::new(), next: None };
        for (at, (branch, seq, row)) in rows.into_iter().enumerate().skip(from) {
            if found.records.len() == limit {
                found.next = Some(at.to_string());
                break;
            }
            match row.open(&scan.run, branch, seq) {
                Ok(record) if scan.wants(&record) => found.records.push(record.without_body()),
                Ok(_) => {}
                Err(damage) if scan.spans(seq) => found.damaged.push(damage),
                Err(_) => {}
            }
        }
        Ok(found)
    }

    async fn runs(&self, query: &RunQuery) -> Result<Runs, StoreError> {
        let inner = self.open()?;
        let mut runs: Vec<&Run> = inner.runs.values().collect();
        runs.sort_by_key(|run| std::cmp::Reverse(run.ordinal));
        let from = query.cursor.as_deref().map_or(Ok(u64::MAX), number)?;
        let mut found = Runs { runs: Vec::new(), next: None };
        let mut last = from;
        for run in runs.into_iter().filter(|run| run.ordinal < from) {
            let summary = run.summary();
            if query.wants(&summary) {
                if found.runs.len() == query.limit() {
                    found.next = Some(last.to_string());
                    break;
                }
                last = run.ordinal;
                found.runs.push(summary);
            }
        }
        Ok(found)
    }

    async fn signal(&self, run: &RunId, signal: &Signal) -> Result<Signalled, StoreError> {
        let mut inner = self.open()?;
        let run = inner.run_mut(run)?;
        if run.signals.iter().any(|(known, _)| known.id == signal.id) {
            return Ok(Signalled::Before);
        }
        run.signals.push((signal.clone(), false));
        Ok(Signalled::Now)
    }

    async fn signals(&self, run: &RunId) -> Result<Vec<Signal>, StoreError> {
        let inner = self.open()?;
        let pending = inner.run(run)?.signals.iter().filter(|(_, consumed)| !consumed);
        Ok(pending.map(|(signal, _)| signal.clone()).collect())
    }

    async fn quarantine(&self, lease: &Lease, damage: &Damage) -> Result<(), StoreError> {
        let mut inner = self.open()?;
        let run = inner.leased(lease)?;
        let name = run.name().clone();
        let Some(row) = run.rows(&damage.branch).and_then(|rows| rows.get(&damage.seq)).cloned() else {
            return Err(StoreError::no_record(&name, &damage.branch, damage.seq));
        };
        if row.open(&name, &damage.branch, damage.seq).is_ok() {
            return Err(StoreError::Invalid(format!("checkpoint {name}@{} is sound", damage.seq)));
        }
        run.rows_mut(&damage.branch).expect("the row was just there").remove(&damage.seq);
        run.quarantine.push((damage.branch.clone(), damage.seq, row));
        Ok(())
    }

    async fn trim(&self, lease: &Lease, keep: u32, mode: TrimMode) -> Result<Trimmed, StoreError> {
        let mut inner = self.open()?;
        let run = inner.leased(lease)?;
        let name = run.name().clone();
        let mut trimmed = Trimmed::default();
        for (branch, rows) in &mut run.branches {
            let sound = |(seq, row): (&u64, &Row)| {
                (row.body.is_some() && row.open(&name, branch, *seq).is_ok()).then_some(*seq)
            };
            let kept: BTreeSet<u64> =
                rows.iter().rev().filter_map(sound).take(keep.max(2) as usize).collect();
            let Some(oldest) = kept.first() else { continue };
            for (_, row) in rows.range_mut(..oldest) {
                if let Some(body) = &row.body {
                    trimmed.checkpoints += 1;
                    trimmed.bytes += body.len() as u64;
                    if mode == TrimMode::Apply {
                        row.body = None;
                    }
                }
            }
        }
        Ok(trimmed)
    }

    async fn delete(&self, run: &RunId) -> Result<(), StoreError> {
        let mut inner = self.open()?;
        if let Some(holder) = &inner.run(run)?.holder {
            return Err(StoreError::Held { run: run.clone(), holder: Some(holder.clone()) });
        }
        inner.runs.remove(run);
        Ok(())
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.open()?.closed = true;
        Ok(())
    }

    fn blobs(&self) -> &dyn Blobs {
        self
    }

    fn folder(&self, _: &RunId) -> Option<PathBuf> {
        None
    }

    fn home(&self) -> Option<&Path> {
        None
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Blobs for MemoryStore {
    async fn append(&self, lease: &Lease, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        check_blob_name(name)?;
        if bytes.len() > BLOB_CHUNK_BYTES {
            return Err(StoreError::Invalid(format!(
                "a chunk has {} bytes, {BLOB_CHUNK_BYTES} are allowed",
                bytes.len()
            )));
        }
        let mut inner = self.open()?;
        inner.leased(lease)?.blobs.entry(name.to_owned()).or_default().extend_from_slice(bytes);
        Ok(())
    }

    async fn read(&self, run: &RunId, name: &str, offset: u64) -> Result<Vec<u8>, StoreError> {
        check_blob_name(name)?;
        let inner = self.open()?;
        let bytes = inner.run(run)?.blobs.get(name).map_or(&[][..], Vec::as_slice);
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        Ok(bytes[from..].iter().take(BLOB_CHUNK_BYTES).copied().collect())
    }
}

fn offset(cursor: Option<&str>) -> Result<usize, StoreError> {
    cursor.map_or(Ok(0), |cursor| number(cursor).map(|at| usize::try_from(at).unwrap_or(usize::MAX)))
}

fn number(cursor: &str) -> Result<u64, StoreError> {
    cursor.parse().map_err(|_| StoreError::Invalid(format!("`{cursor}` is not a cursor of this store")))
}
