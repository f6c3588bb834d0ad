//! A store for dry runs: new records stay in memory, over the records of another store.
//!
//! ```text
//!   reads:  written in memory, else the base       writes: memory only
//! ```
//!
//! An overlay is itself a base: the records of a further overlay are apart.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use jiff::Timestamp;

use crate::id::{RunId, ScopePath};
use crate::record::{Record, SealedRun};
use crate::system::lock::Holder;

use super::{
    Appended, BLOB_CHUNK_BYTES, Batch, Blobs, Damage, Head, Heads, Lease, Page, Queue, Renewal, RunEntry,
    RunQuery, RunSummary, Runs, Scan, ScanOrder, Scanned, Signal, Signalled, Store, StoreError,
    StoreExt as _, Summary, TrimMode, Trimmed,
};

/// The cursor of the page with the records of the dry run.
const WRITTEN: &str = "written";

/// The prefix of a cursor of the store below. That store may be an overlay, too.
const BELOW: &str = "below ";

/// A run of another store, with the records of a dry run on top.
#[derive(Debug)]
pub struct Overlay {
    base: Arc<dyn Store>,
    written: Mutex<OverlayWrites>,
}

#[derive(Debug, Default)]
struct OverlayWrites {
    /// The token of the newest lease.
    token: u64,
    records: BTreeMap<ScopePath, Vec<Record>>,
    summary: Option<Summary>,
    consumed: HashSet<String>,
    blobs: BTreeMap<String, Vec<u8>>,
}

impl Overlay {
    /// Creates an overlay without records.
    pub fn over(base: Arc<dyn Store>) -> Self {
        Self { base, written: Mutex::default() }
    }

    /// Returns the records of the dry run by scope, oldest first.
    pub(crate) fn records(&self) -> Vec<Record> {
        self.lock().records.values().flatten().cloned().collect()
    }

    /// Returns the token of the newest sound record of a run.
    async fn newest_token(&self, run: &RunId) -> Result<u64, StoreError> {
        let main = ScopePath::main();
        match self.newest(run, &main).await {
            Ok(newest) => Ok(newest.header().token),
            Err(StoreError::Damaged { older: Some(seq), .. }) => {
                Ok(self.load(run, &main, seq).await?.header().token)
            }
            // A restart continues without a sound record.
            Err(StoreError::Damaged { older: None, .. } | StoreError::NotFound { .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn lock(&self) -> MutexGuard<'_, OverlayWrites> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_only<T>(&self) -> Result<T, StoreError> {
        Err(StoreError::Invalid(format!("a dry run changes nothing in {self}")))
    }

    /// Returns the wanted records of the dry run, without bodies, in the order of the scan.
    fn scan_written(&self, scan: &Scan) -> Result<Vec<Record>, StoreError> {
        let written = self.lock();
        let scopes = written.records.iter();
        let scopes = scopes.filter(|(path, _)| scan.scope.as_ref().is_none_or(|wanted| *path == wanted));
        let mut found: Vec<Record> = Vec::new();
        for (_, records) in scopes {
            let mut wanted: Vec<&Record> = records.iter().filter(|record| scan.wants(record)).collect();
            if scan.order == ScanOrder::NewestFirst {
                wanted.reverse();
            }
            found.extend(wanted.into_iter().cloned());
        }
        Ok(found)
    }
}

impl fmt::Display for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.base.fmt(f)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Overlay {
    async fn create(&self, _: &SealedRun, _: Batch, _: &Holder) -> Result<Lease, StoreError> {
        self.read_only()
    }

    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError> {
        let mut entry = self.base.run(run).await?;
        // A running run can be planned too.
        entry.summary.holder = None;
        if let Some(summary) = &self.lock().summary {
            entry.summary.status = RunSummary::true_status(summary, None);
            entry.summary.summary = summary.clone();
        }
        Ok(entry)
    }

    async fn acquire(&self, run: &RunId, _: &ScopePath, _: &Holder) -> Result<Lease, StoreError> {
        let newest = self.newest_token(run).await?;
        let mut written = self.lock();
        written.token = written.token.max(newest) + 1;
        Ok(Lease::new(run.clone(), written.token, None))
    }

    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError> {
        Ok(leases.iter().map(|_| Renewal::Held(Vec::new())).collect())
    }

    async fn release(&self, _: Lease, _: Option<Timestamp>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn append(&self, _: &[&Lease], batch: Batch) -> Result<Appended, StoreError> {
        let mut written = self.lock();
        for record in batch.records {
            written.records.entry(record.header().scope.clone()).or_default().push(record);
        }
        written.consumed.extend(batch.consumed);
        written.summary = batch.summary.or(written.summary.take());
        Ok(Appended::Now)
    }

    async fn heads(&self, run: &RunId, page: &Page) -> Result<Heads, StoreError> {
        let mut heads = self.base.heads(run, page).await?;
        let written = self.lock();
        heads.heads.retain(|head| !written.records.contains_key(&head.record.header().scope));
        let newest = written.records.values().filter_map(|records| records.last());
        let open = newest.filter(|record| record.header().end.is_none());
        let open = open.map(|record| Head {
            record: record.clone(),
            next: record.header().seq + 1,
            damaged: Vec::new(),
        });
        // The main scope is the first of the first page.
        let (main, below): (Vec<Head>, Vec<Head>) =
            open.partition(|head| head.record.header().scope.is_main());
        if page.cursor.is_none() {
            heads.heads.splice(0..0, main);
        }
        if heads.next.is_none() {
            heads.heads.extend(below);
        }
        Ok(heads)
    }

    async fn load(&self, run: &RunId, scope: &ScopePath, seq: u64) -> Result<Record, StoreError> {
        let written = || {
            let written = self.lock();
            written.records.get(scope)?.iter().find(|record| record.header().seq == seq).cloned()
        };
        match written() {
            Some(record) => Ok(record),
            None => self.base.load(run, scope, seq).await,
        }
    }

    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError> {
        let is_newest_first = scan.order == ScanOrder::NewestFirst;
        let is_first = scan.cursor.is_none();
        if scan.cursor.as_deref() == Some(WRITTEN) {
            return Ok(Scanned { records: self.scan_written(scan)?, damaged: Vec::new(), next: None });
        }
        let below = scan.cursor.as_deref().map(|cursor| cursor.strip_prefix(BELOW).unwrap_or(cursor));
        let mut page = match self.base.scan(&Scan { cursor: below.map(str::to_owned), ..scan.clone() }).await
        {
            // The dry run opened the scope.
            Err(StoreError::NotFound { .. }) if is_first => {
                return Ok(Scanned { records: self.scan_written(scan)?, damaged: Vec::new(), next: None });
            }
            page => page?,
        };
        page.next = page.next.map(|cursor| format!("{BELOW}{cursor}"));
        if is_newest_first && is_first {
            let mut records = self.scan_written(scan)?;
            records.append(&mut page.records);
            page.records = records;
        } else if !is_newest_first && page.next.is_none() {
            page.next = Some(WRITTEN.to_owned());
        }
        Ok(page)
    }

    async fn runs(&self, query: &RunQuery) -> Result<Runs, StoreError> {
        self.base.runs(query).await
    }

    async fn signal(&self, _: &RunId, _: &Signal) -> Result<Signalled, StoreError> {
        self.read_only()
    }

    async fn signals(&self, run: &RunId) -> Result<Vec<Signal>, StoreError> {
        let mut signals = self.base.signals(run).await?;
        signals.retain(|signal| !self.lock().consumed.contains(&signal.id));
        Ok(signals)
    }

    async fn quarantine(&self, _: &Lease, _: &Damage) -> Result<(), StoreError> {
        Ok(())
    }

    async fn trim(&self, _: &Lease, _: u32, _: TrimMode) -> Result<Trimmed, StoreError> {
        Ok(Trimmed { checkpoints: 0, bytes: 0 })
    }

    async fn delete(&self, _: &RunId) -> Result<(), StoreError> {
        self.read_only()
    }

    async fn deletions(&self) -> Result<Vec<RunId>, StoreError> {
        self.base.deletions().await
    }

    async fn inspect(&self, run: Option<&RunId>) -> Result<Vec<String>, StoreError> {
        self.base.inspect(run).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn blobs(&self) -> &dyn Blobs {
        self
    }

    fn queue(&self) -> Option<&dyn Queue> {
        None
    }

    fn folder(&self, run: &RunId) -> Option<PathBuf> {
        self.base.folder(run)
    }

    fn scopes_max(&self) -> Option<u64> {
        self.base.scopes_max()
    }

    fn home(&self) -> Option<&Path> {
        self.base.home()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Blobs for Overlay {
    async fn append(&self, _: &Lease, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.lock().blobs.entry(name.to_owned()).or_default().extend_from_slice(bytes);
        Ok(())
    }

    async fn sync(&self, _: &Lease, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    async fn read(&self, run: &RunId, name: &str, offset: u64) -> Result<Vec<u8>, StoreError> {
        let written = || {
            let written = self.lock();
            let blob = written.blobs.get(name)?;
            let rest = usize::try_from(offset).ok().and_then(|offset| blob.get(offset..)).unwrap_or_default();
            Some(rest[..rest.len().min(BLOB_CHUNK_BYTES)].to_vec())
        };
        match written() {
            Some(bytes) => Ok(bytes),
            None => self.base.blobs().read(run, name, offset).await,
        }
    }

    fn log_folder(&self, run: &RunId) -> Option<PathBuf> {
        self.base.blobs().log_folder(run)
    }
}
