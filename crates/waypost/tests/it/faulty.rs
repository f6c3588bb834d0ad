//! A store that dies, fails or forgets on demand, around a real one; and runs that are played on it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::Notify;
use waypost::engine::{Engine, Outcome, RunError};
use waypost::file::FileStore;
use waypost::memory::MemoryStore;
use waypost::record::SealedRun;
use waypost::store::{
    Appended, Batch, Blobs, Damage, Heads, Lease, Page, Renewal, RunEntry, RunQuery, Runs, Scan, Scanned,
    Signal, Signalled, Store, StoreError, StoreExt as _, TrimMode, Trimmed,
};
use waypost::{BranchPath, RunId};

/// What happens to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process dies right before it.
    DieBefore,
    /// The process dies right after it, before it is acknowledged.
    DieAfter,
    /// It is refused, and nothing is written.
    Refuse,
    /// It is written, but the answer is lost.
    LoseAnswer,
}

/// Passes everything on, counts the writes (create and append), and does to some of them what was planned.
#[derive(Debug)]
pub(crate) struct Faulty {
    inner: Arc<dyn Store>,
    plan: Mutex<Plan>,
    dead: Notify,
}

#[derive(Debug, Default)]
struct Plan {
    writes: u64,
    at: Option<(u64, u64, Fault)>,
}

impl Faulty {
    pub(crate) fn around(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, plan: Mutex::default(), dead: Notify::new() })
    }

    /// Plans `fault` for `count` writes from the `nth` from now on, counted from 1.
    pub(crate) fn plan(&self, nth: u64, count: u64, fault: Fault) {
        let mut plan = self.plan.lock().unwrap();
        let from = plan.writes + nth;
        plan.at = Some((from, from + count, fault));
    }

    pub(crate) fn writes(&self) -> u64 {
        self.plan.lock().unwrap().writes
    }

    fn next(&self) -> Option<Fault> {
        let mut plan = self.plan.lock().unwrap();
        plan.writes += 1;
        let now = plan.writes;
        plan.at.filter(|(from, to, _)| (*from..*to).contains(&now)).map(|(.., fault)| fault)
    }

    async fn die(&self) -> std::convert::Infallible {
        self.dead.notify_one();
        std::future::pending().await
    }

    async fn write<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        match self.next() {
            None => call.await,
            Some(Fault::DieBefore) => match self.die().await {},
            Some(Fault::DieAfter) => {
                call.await?;
                match self.die().await {}
            }
            Some(Fault::Refuse) => Err(StoreError::Full {
                place: "the test".to_owned(),
                source: std::io::Error::other("planned"),
            }),
            Some(Fault::LoseAnswer) => {
                call.await?;
                Err(StoreError::Unknown { store: "the test".to_owned(), source: "planned".into() })
            }
        }
    }
}

impl std::fmt::Display for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Faulty {
    async fn create(
        &self,
        run: &SealedRun,
        first: Batch,
        holder: &waypost::lock::Holder,
    ) -> Result<Lease, StoreError> {
        self.write(self.inner.create(run, first, holder)).await
    }
    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError> {
        self.inner.run(run).await
    }
    async fn acquire(
        &self,
        run: &RunId,
        branch: &BranchPath,
        holder: &waypost::lock::Holder,
    ) -> Result<Lease, StoreError> {
        self.inner.acquire(run, branch, holder).await
    }
    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError> {
        self.inner.renew(leases).await
    }
    async fn release(&self, lease: Lease, wake_at: Option<Timestamp>) -> Result<(), StoreError> {
        self.inner.release(lease, wake_at).await
    }
    async fn append(&self, lease: &Lease, batch: Batch) -> Result<Appended, StoreError> {
        self.write(self.inner.append(lease, batch)).await
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
    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError> {
        self.inner.scan(scan).await
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
    async fn inspect(&self, run: Option<&RunId>) -> Result<Vec<String>, StoreError> {
        self.inner.inspect(run).await
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

/// Where a world keeps its store.
#[derive(Debug)]
enum Home {
    Memory(Arc<MemoryStore>),
    Folder(tempfile::TempDir),
}

/// A store with an engine over it, which can crash and come back.
#[derive(Debug)]
pub(crate) struct World {
    home: Home,
    pub(crate) store: Arc<Faulty>,
    pub(crate) engine: Engine,
}

impl World {
    pub(crate) fn memory() -> Self {
        let store = Arc::new(MemoryStore::new());
        Self::over(Home::Memory(store.clone()), store)
    }

    pub(crate) fn folder() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Self::open(folder.path());
        Self::over(Home::Folder(folder), store)
    }

    /// One of each kind of store.
    pub(crate) fn each() -> [Self; 2] {
        [Self::memory(), Self::folder()]
    }

    fn over(home: Home, store: Arc<dyn Store>) -> Self {
        let store = Faulty::around(store);
        Self { home, engine: Engine::new(store.clone()), store }
    }

    fn open(folder: &Path) -> Arc<dyn Store> {
        Arc::new(FileStore::open(folder.join("store")).unwrap().with_retention(None))
    }

    /// Comes back as another process.
    pub(crate) fn reopen(&mut self) {
        let inner: Arc<dyn Store> = match &self.home {
            Home::Memory(store) => Arc::new(store.reopen()),
            Home::Folder(folder) => {
                let folder = folder.path().to_owned();
                // The old one lets go of its locks first.
                self.store = Faulty::around(Arc::new(MemoryStore::new()));
                self.engine = Engine::new(self.store.clone());
                Self::open(&folder)
            }
        };
        self.store = Faulty::around(inner);
        self.engine = Engine::new(self.store.clone());
    }

    /// The store in memory below, to damage it.
    pub(crate) fn below(&self) -> &MemoryStore {
        match &self.home {
            Home::Memory(store) => store,
            Home::Folder(_) => panic!("this world is not kept in memory"),
        }
    }

    /// The folder of the store.
    pub(crate) fn path(&self) -> &Path {
        match &self.home {
            Home::Folder(folder) => folder.path(),
            Home::Memory(_) => panic!("this world is not kept in a folder"),
        }
    }

    /// Works until the planned death; says how it ended if it ended before.
    pub(crate) async fn until_death<S>(
        &self,
        session: impl Future<Output = Result<Outcome<S>, RunError>>,
    ) -> Option<Result<Outcome<S>, RunError>> {
        tokio::select! {
            biased;
            end = session => Some(end),
            () = self.store.dead.notified() => None,
        }
    }

    /// The records of run `r`, one a line: `branch@seq phase step`.
    pub(crate) async fn records(&self) -> Vec<String> {
        let mut scan = Scan::of(&run_id());
        let mut lines = Vec::new();
        loop {
            let page = self.store.scan(&scan).await.unwrap();
            for record in &page.records {
                let header = record.header();
                let step = header.step.as_ref().map(|step| format!(" {step}")).unwrap_or_default();
                let phase = header.phase.name();
                lines.push(format!("{}@{} {phase}{step}", header.branch, header.seq));
            }
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => return lines,
            }
        }
    }

    /// How the newest record of a branch says that it ended.
    pub(crate) async fn end_of(&self, branch: &str) -> Option<waypost::record::End> {
        let newest = self.store.newest(&run_id(), &branch.parse().unwrap()).await.unwrap();
        newest.header().end
    }
}

pub(crate) fn run_id() -> RunId {
    RunId::new("r").unwrap()
}
