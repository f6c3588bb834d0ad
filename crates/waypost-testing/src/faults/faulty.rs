//! A wrapper around a store that dies, fails or loses answers on demand.
//!
//! The code above sees the real store, except for calls with a planned fault. The call is never answered, as
//! if the process died before or after the call, it is refused, or its answer is lost. A test can also run
//! other work during a call. The wrapper does not interpret the calls.

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
    Appended, Batch, Blobs, Damage, Heads, Lease, Page, Queue, Renewal, RunEntry, RunQuery, Runs, Scan,
    Scanned, Signal, Signalled, Store, StoreError, TrimMode, Trimmed,
};
use waypost::{RunId, ScopePath};

/// A fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies right before the call.
    DieBefore,
    /// The process dies after the call and before the answer.
    DieAfter,
    /// The call is refused and has no effect.
    Refuse,
    /// The call takes effect, but its answer is lost.
    LoseAnswer,
    /// The call has no effect, and the caller gets the same error as for a lost answer.
    Lose,
}

/// A call to the store.
#[derive(Debug, Clone, Copy)]
pub enum Call<'a> {
    /// Creates a run with this first batch.
    Create(&'a Batch),
    /// Appends a batch.
    Append(&'a Batch),
    /// Scans headers.
    Scan(&'a Scan),
    /// Any other call, by method name.
    Other(&'static str),
}

impl<'a> Call<'a> {
    /// Returns the batch that the call appends to the chain of a run, if any.
    pub fn batch(self) -> Option<&'a Batch> {
        match self {
            Self::Create(batch) | Self::Append(batch) => Some(batch),
            Self::Scan(_) | Self::Other(_) => None,
        }
    }
}

/// Work of a test during a call.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

enum PlannedFault {
    Fault(Fault),
    Meanwhile(Work),
}

/// Selects the call for a plan.
type Chosen = Box<dyn Fn(Call<'_>) -> bool + Send>;

#[derive(Default)]
struct Plan {
    calls: u64,
    writes: u64,
    /// Write numbers `from..to` with the fault.
    of_writes: Option<(u64, u64, Fault)>,
    of_call: Option<(u64, Fault)>,
    of_chosen: Option<(Chosen, PlannedFault)>,
}

/// Forwards every call, counts the calls, and applies the planned faults.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    plan: Mutex<Plan>,
    dead: Notify,
}

impl FaultyStore {
    /// Wraps a store.
    pub fn around(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, plan: Mutex::default(), dead: Notify::new() })
    }

    /// Plans `fault` for `count` writes (create and append), starting with the `nth` from now, counted from
    /// 1.
    pub fn plan(&self, nth: u64, count: u64, fault: Fault) {
        let mut plan = self.lock();
        let from = plan.writes + nth;
        plan.of_writes = Some((from, from + count, fault));
    }

    /// Plans `fault` for the `nth` call of any kind from now, counted from 1.
    pub fn plan_call(&self, nth: u64, fault: Fault) {
        let mut plan = self.lock();
        plan.of_call = Some((plan.calls + nth, fault));
    }

    /// Plans `fault` for the first call that `is_meant` selects.
    pub fn plan_where(&self, is_meant: impl Fn(Call<'_>) -> bool + Send + 'static, fault: Fault) {
        self.lock().of_chosen = Some((Box::new(is_meant), PlannedFault::Fault(fault)));
    }

    /// Runs `work` after the first call that `is_meant` selects, before its answer.
    pub fn meanwhile(
        &self,
        is_meant: impl Fn(Call<'_>) -> bool + Send + 'static,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        self.lock().of_chosen = Some((Box::new(is_meant), PlannedFault::Meanwhile(Box::pin(work))));
    }

    /// Returns the number of writes, including refused and unanswered writes.
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// Returns the number of calls, including refused and unanswered calls.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Resolves when the simulated process has died.
    pub async fn died(&self) {
        self.dead.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().expect("no holder of this lock panics")
    }

    fn next(&self, call: Call<'_>) -> Option<PlannedFault> {
        let mut plan = self.lock();
        plan.calls += 1;
        plan.writes += u64::from(call.batch().is_some());
        if call.batch().is_some()
            && let Some((from, to, fault)) = plan.of_writes
            && (from..to).contains(&plan.writes)
        {
            return Some(PlannedFault::Fault(fault));
        }
        if let Some((nth, fault)) = plan.of_call
            && nth == plan.calls
        {
            return Some(PlannedFault::Fault(fault));
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
            Some(PlannedFault::Meanwhile(work)) => {
                let answer = made.await;
                work.await;
                answer
            }
            Some(PlannedFault::Fault(Fault::DieBefore)) => match self.die().await {},
            Some(PlannedFault::Fault(Fault::DieAfter)) => {
                // The answer, for example a lease, is lost with the process.
                drop(made.await);
                match self.die().await {}
            }
            Some(PlannedFault::Fault(Fault::Refuse)) => {
                Err(StoreError::Full { place: "the test".to_owned(), source: io::Error::other("planned") })
            }
            Some(PlannedFault::Fault(fault @ (Fault::LoseAnswer | Fault::Lose))) => {
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

    async fn acquire(&self, run: &RunId, scope: &ScopePath, holder: &Holder) -> Result<Lease, StoreError> {
        self.through(Call::Other("acquire"), self.inner.acquire(run, scope, holder)).await
    }

    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError> {
        self.through(Call::Other("renew"), self.inner.renew(leases)).await
    }

    async fn release(&self, lease: Lease, wake_at: Option<Timestamp>) -> Result<(), StoreError> {
        self.through(Call::Other("release"), self.inner.release(lease, wake_at)).await
    }

    async fn append(&self, leases: &[&Lease], batch: Batch) -> Result<Appended, StoreError> {
        let copy = batch.clone();
        self.through(Call::Append(&copy), self.inner.append(leases, batch)).await
    }

    async fn heads(&self, run: &RunId, page: &Page) -> Result<Heads, StoreError> {
        self.through(Call::Other("heads"), self.inner.heads(run, page)).await
    }

    async fn load(&self, run: &RunId, scope: &ScopePath, seq: u64) -> Result<Record, StoreError> {
        self.through(Call::Other("load"), self.inner.load(run, scope, seq)).await
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

    fn queue(&self) -> Option<&dyn Queue> {
        None
    }

    fn folder(&self, run: &RunId) -> Option<PathBuf> {
        self.inner.folder(run)
    }

    fn scopes_max(&self) -> Option<u64> {
        self.inner.scopes_max()
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

    fn log_folder(&self, run: &RunId) -> Option<PathBuf> {
        self.inner.blobs().log_folder(run)
    }
}
