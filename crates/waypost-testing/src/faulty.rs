//! A store that dies, fails or forgets on demand, around a real one.
//!
//! What is above it sees the real store, but for one call or some calls that a test has planned something for: it is
//! never answered, as if the process had died before or after it, it is refused, its answer is lost, or something else
//! happens to the store meanwhile. It knows nothing of what the calls mean.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::Notify;
use waypost::lock::Holder;
use waypost::record::{Record, SealedRun};
use waypost::store::{
    Appended, Batch, Blobs, Damage, Heads, Lease, Page, Renewal, RunEntry, RunQuery, Runs, Scan, Scanned,
    Signal, Signalled, Store, StoreError, TrimMode, Trimmed,
};
use waypost::{BranchPath, RunId};

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies right before it.
    DieBefore,
    /// The process dies right after it, before it is answered.
    DieAfter,
    /// It is refused, and nothing is done.
    Refuse,
    /// It is done, but the answer is lost.
    LoseAnswer,
    /// It is lost on its way: nothing is done, and nobody is told so.
    Lose,
}

/// A call on its way to the store.
#[derive(Debug, Clone, Copy)]
pub enum Call<'a> {
    /// A run is made with this first batch.
    Create(&'a Batch),
    /// A batch is appended.
    Append(&'a Batch),
    /// Headers are read.
    Scan(&'a Scan),
    /// Anything else, by the name of the method.
    Other(&'static str),
}

impl<'a> Call<'a> {
    /// Returns what it writes to the chain of a run, if it does.
    pub fn batch(self) -> Option<&'a Batch> {
        match self {
            Self::Create(batch) | Self::Append(batch) => Some(batch),
            Self::Scan(_) | Self::Other(_) => None,
        }
    }
}

/// What a test does while a call is under way.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

enum Planned {
    Fault(Fault),
    Meanwhile(Work),
}

/// Says which call something is planned for.
type Chosen = Box<dyn Fn(Call<'_>) -> bool + Send>;

#[derive(Default)]
struct Plan {
    calls: u64,
    writes: u64,
    /// For writes of these numbers, from the first up to and without the second.
    of_writes: Option<(u64, u64, Fault)>,
    of_call: Option<(u64, Fault)>,
    of_chosen: Option<(Chosen, Planned)>,
}

/// Passes every call on, counts them, and does to some of them what was planned.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    plan: Mutex<Plan>,
    dead: Notify,
}

impl FaultyStore {
    /// Puts it around a store.
    pub fn around(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, plan: Mutex::default(), dead: Notify::new() })
    }

    /// Plans `fault` for `count` writes (create and append) from the `nth` from now on, counted from 1.
    pub fn plan(&self, nth: u64, count: u64, fault: Fault) {
        let mut plan = self.lock();
        let from = plan.writes + nth;
        plan.of_writes = Some((from, from + count, fault));
    }

    /// Plans `fault` for the `nth` call of any kind from now on, counted from 1.
    pub fn plan_call(&self, nth: u64, fault: Fault) {
        let mut plan = self.lock();
        plan.of_call = Some((plan.calls + nth, fault));
    }

    /// Plans `fault` for the first call that is meant.
    pub fn plan_where(&self, is_meant: impl Fn(Call<'_>) -> bool + Send + 'static, fault: Fault) {
        self.lock().of_chosen = Some((Box::new(is_meant), Planned::Fault(fault)));
    }

    /// Lets `work` happen right after the first call that is meant, before it is answered.
    pub fn meanwhile(
        &self,
        is_meant: impl Fn(Call<'_>) -> bool + Send + 'static,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        self.lock().of_chosen = Some((Box::new(is_meant), Planned::Meanwhile(Box::pin(work))));
    }

    /// Returns how many writes there were, refused and unanswered ones included.
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// Returns how many calls there were, refused and unanswered ones included.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Resolves when the process is to have died.
    pub async fn died(&self) {
        self.dead.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().expect("no holder of this lock panics")
    }

    fn next(&self, call: Call<'_>) -> Option<Planned> {
        let mut plan = self.lock();
        plan.calls += 1;
        plan.writes += u64::from(call.batch().is_some());
        if call.batch().is_some()
            && let Some((from, to, fault)) = plan.of_writes
            && (from..to).contains(&plan.writes)
        {
            return Some(Planned::Fault(fault));
        }
        if let Some((nth, fault)) = plan.of_call
            && nth == plan.calls
        {
            return Some(Planned::Fault(fault));
        }
        let (_, planned) = plan.of_chosen.take_if(|(is_meant, _)| is_meant(call))?;
        Some(planned)
    }

    async fn die(&self) -> std::convert::Infallible {
        self.dead.notify_one();
        std::future::pending().await
    }

    async fn through<T>(
        &self,
        call: Call<'_>,
        made: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.next(call) {
            None => made.await,
            Some(Planned::Meanwhile(work)) => {
                let answer = made.await;
                work.await;
                answer
            }
            Some(Planned::Fault(Fault::DieBefore)) => match self.die().await {},
            Some(Planned::Fault(Fault::DieAfter)) => {
                // What it gave is lost with the process: a lease, for one.
                drop(made.await);
                match self.die().await {}
            }
            Some(Planned::Fault(Fault::Refuse)) => {
                Err(StoreError::Full { place: "the test".to_owned(), source: io::Error::other("planned") })
            }
            Some(Planned::Fault(fault @ (Fault::LoseAnswer | Fault::Lose))) => {
                if fault == Fault::LoseAnswer {
                    made.await?;
                }
                Err(StoreError::Unknown { store: "the test".to_owned(), source: "planned".into() })
            }
        }
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for FaultyStore {
    async fn create(&self, run: &SealedRun, first: Batch, holder: &Holder) -> Result<Lease, StoreError> {
        let batch = first.clone();
        self.through(Call::Create(&batch), self.inner.create(run, first, holder)).await
    }

    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError> {
        self.through(Call::Other("run"), self.inner.run(run)).await
    }

    async fn acquire(&self, run: &RunId, branch: &BranchPath, holder: &Holder) -> Result<Lease, StoreError> {
        self.through(Call::Other("acquire"), self.inner.acquire(run, branch, holder)).await
    }

    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError> {
        self.through(Call::Other("renew"), self.inner.renew(leases)).await
    }

    async fn release(&self, lease: Lease, wake_at: Option<Timestamp>) -> Result<(), StoreError> {
        self.through(Call::Other("release"), self.inner.release(lease, wake_at)).await
    }

    async fn append(&self, lease: &Lease, batch: Batch) -> Result<Appended, StoreError> {
        let copy = batch.clone();
        self.through(Call::Append(&copy), self.inner.append(lease, batch)).await
    }

    async fn heads(&self, run: &RunId, page: &Page) -> Result<Heads, StoreError> {
        self.through(Call::Other("heads"), self.inner.heads(run, page)).await
    }

    async fn load(&self, run: &RunId, branch: &BranchPath, seq: u64) -> Result<Record, StoreError> {
        self.through(Call::Other("load"), self.inner.load(run, branch, seq)).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError> {
        self.through(Call::Scan(scan), self.inner.scan(scan)).await
    }

    async fn runs(&self, query: &RunQuery) -> Result<Runs, StoreError> {
        self.through(Call::Other("runs"), self.inner.runs(query)).await
    }

    async fn signal(&self, run: &RunId, signal: &Signal) -> Result<Signalled, StoreError> {
        self.through(Call::Other("signal"), self.inner.signal(run, signal)).await
    }

    async fn signals(&self, run: &RunId) -> Result<Vec<Signal>, StoreError> {
        self.through(Call::Other("signals"), self.inner.signals(run)).await
    }

    async fn quarantine(&self, lease: &Lease, damage: &Damage) -> Result<(), StoreError> {
        self.through(Call::Other("quarantine"), self.inner.quarantine(lease, damage)).await
    }

    async fn trim(&self, lease: &Lease, keep: u32, mode: TrimMode) -> Result<Trimmed, StoreError> {
        self.through(Call::Other("trim"), self.inner.trim(lease, keep, mode)).await
    }

    async fn delete(&self, run: &RunId) -> Result<(), StoreError> {
        self.through(Call::Other("delete"), self.inner.delete(run)).await
    }

    async fn deletions(&self) -> Result<Vec<RunId>, StoreError> {
        self.through(Call::Other("deletions"), self.inner.deletions()).await
    }

    async fn inspect(&self, run: Option<&RunId>) -> Result<Vec<String>, StoreError> {
        self.through(Call::Other("inspect"), self.inner.inspect(run)).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.through(Call::Other("close"), self.inner.close()).await
    }

    fn blobs(&self) -> &dyn Blobs {
        self
    }

    fn folder(&self, run: &RunId) -> Option<PathBuf> {
        self.inner.folder(run)
    }

    fn branches_max(&self) -> Option<u64> {
        self.inner.branches_max()
    }

    fn home(&self) -> Option<&Path> {
        self.inner.home()
    }
}

#[async_trait]
impl Blobs for FaultyStore {
    async fn append(&self, lease: &Lease, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.through(Call::Other("blobs.append"), self.inner.blobs().append(lease, name, bytes)).await
    }

    async fn sync(&self, lease: &Lease, name: &str) -> Result<(), StoreError> {
        self.through(Call::Other("blobs.sync"), self.inner.blobs().sync(lease, name)).await
    }

    async fn read(&self, run: &RunId, name: &str, offset: u64) -> Result<Vec<u8>, StoreError> {
        self.through(Call::Other("blobs.read"), self.inner.blobs().read(run, name, offset)).await
    }
}
