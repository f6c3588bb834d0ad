//! A run that goes on while it is exported.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use async_trait::async_trait;
use jiff::Timestamp;
use waypost::lock::Holder;
use waypost::memory::MemoryStore;
use waypost::portable::ExportError;
use waypost::record::{Position, SealedRun};
use waypost::store::{
    Appended, Batch, Blobs, Damage, Heads, Lease, Page, Renewal, RunEntry, RunQuery, Runs, Scan, Scanned,
    Signal, Signalled, Store, StoreError, TrimMode, Trimmed,
};
use waypost::{BranchPath, RunId};
use waypost_testing::records::branch;

use super::{Story, fans_out, main_branch, opened_by};

/// A store in which the run goes on as soon as its branches are listed.
struct Busy {
    inner: MemoryStore,
    next: Mutex<Option<(Lease, Batch)>>,
}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl Store for Busy {
    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError> {
        let found = self.inner.scan(scan).await?;
        let next = if scan.seq_max == Some(1) { self.next.lock().unwrap().take() } else { None };
        if let Some((lease, batch)) = next {
            Store::append(&self.inner, &lease, batch).await?;
        }
        Ok(found)
    }

    async fn create(&self, run: &SealedRun, first: Batch, holder: &Holder) -> Result<Lease, StoreError> {
        self.inner.create(run, first, holder).await
    }

    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError> {
        self.inner.run(run).await
    }

    async fn acquire(&self, run: &RunId, branch: &BranchPath, holder: &Holder) -> Result<Lease, StoreError> {
        self.inner.acquire(run, branch, holder).await
    }

    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError> {
        self.inner.renew(leases).await
    }

    async fn release(&self, lease: Lease, wake_at: Option<Timestamp>) -> Result<(), StoreError> {
        self.inner.release(lease, wake_at).await
    }

    async fn append(&self, lease: &Lease, batch: Batch) -> Result<Appended, StoreError> {
        Store::append(&self.inner, lease, batch).await
    }

    async fn heads(&self, run: &RunId, page: &Page) -> Result<Heads, StoreError> {
        self.inner.heads(run, page).await
    }

    async fn load(
        &self,
        run: &RunId,
        branch: &BranchPath,
        seq: u64,
    ) -> Result<waypost::record::Record, StoreError> {
        self.inner.load(run, branch, seq).await
    }

    async fn runs(&self, query: &RunQuery) -> Result<Runs, StoreError> {
        self.inner.runs(query).await
    }

    async fn signal(&self, run: &RunId, signal: &Signal) -> Result<Signalled, StoreError> {
        self.inner.signal(run, signal).await
    }

    async fn signals(&self, run: &RunId) -> Result<Vec<Signal>, StoreError> {
        self.inner.signals(run).await
    }

    async fn quarantine(&self, lease: &Lease, damage: &Damage) -> Result<(), StoreError> {
        self.inner.quarantine(lease, damage).await
    }

    async fn trim(&self, lease: &Lease, keep: u32, mode: TrimMode) -> Result<Trimmed, StoreError> {
        self.inner.trim(lease, keep, mode).await
    }

    async fn delete(&self, run: &RunId) -> Result<(), StoreError> {
        self.inner.delete(run).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }

    fn blobs(&self) -> &dyn Blobs {
        self.inner.blobs()
    }

    fn folder(&self, run: &RunId) -> Option<PathBuf> {
        self.inner.folder(run)
    }

    fn home(&self) -> Option<&Path> {
        self.inner.home()
    }
}

#[tokio::test]
async fn a_run_that_joins_while_its_branches_are_read_is_not_exported() {
    // Given a run amid a fan-out that joins as soon as its branches are listed.
    let busy = Busy { inner: MemoryStore::new(), next: Mutex::new(None) };
    let mut story = Story::new(busy);
    story.add(&main_branch(), Position::default(), |_| ()).await;
    story.add(&branch("each:a"), opened_by(2), |_| ()).await;
    story.add(&main_branch(), fans_out("each", 2, None), |_| ()).await;
    let join = story.links.step();
    *story.store.next.lock().unwrap() = story.lease.clone().map(|lease| (lease, join));

    let overtaken = story.export(&main_branch(), 2).await.unwrap_err();

    assert!(matches!(overtaken, ExportError::Overtaken { .. }), "{overtaken:?}");
    assert!(story.export(&main_branch(), 3).await.is_ok());
}
