//! The implementation of the store trait: the leases of the store, and the task of each call.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;
use waypost::disk::RealDisk;
use waypost::folder::{LOG_FOLDER, append_blob, is_log, read_blob, remove_folder};
use waypost::id::{RunId, ScopePath};
use waypost::lock::Holder;
use waypost::record::{Durability, Record, SealedRun};
use waypost::store::{
    Appended, Batch, Blobs, ClaimedTask, Damage, FIRST_TOKEN, Heads, Job, Lease, Page, Queue, QueuedJob,
    Renewal, RunEntry, RunQuery, Runs, Scan, Scanned, Signal, Signalled, Store, StoreError, Submitted, Task,
    TaskEntry, TaskQueue, TaskStop, TasksOf, TrimMode, Trimmed,
};
use waypost_codec::encode;

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::schema;
use crate::database::settings::{PostgresOptions, Settings};
use crate::lock;
use crate::queue::hints::{self, Hints};
use crate::queue::jobs::{self, Claim};
use crate::queue::statistics::{self, Statistics};
use crate::queue::tasks::{self, Claimed};
use crate::queue::worker::{self, Worker};
use crate::runtime;
use crate::tables::{inspect, lease, read, runs, scopes, signals};
use crate::write::append::{self, Owner, Written};
use crate::write::{blobs, removal, trim};

mod held;

use held::{Abandon, HeldRun, HeldRuns};

/// Keeps runs in a PostgreSQL database.
///
/// Safe for concurrent use by many tasks and processes on many machines. Opening connects to nothing: the first call
/// does, and checks server and schema.
///
/// Each call is a task on a runtime shared by all stores of the process; the runtime of the caller needs neither network
/// nor timers. The drop of a call does not interrupt a write, and a connection never serves another call in the middle of
/// an answer.
pub struct PostgresStore {
    shared: Arc<Shared>,
}

/// The shared part of a store and its tasks.
struct Shared {
    database: Arc<Database>,
    held: Arc<HeldRuns>,
    /// The row of this process, from the first lease on.
    worker: tokio::sync::Mutex<Option<Arc<Worker>>>,
    hints: Hints,
}

impl PostgresStore {
    /// Opens the store at a URL such as `postgres://USER@HOST/DATABASE`. Does not connect.
    ///
    /// # Errors
    /// [`StoreError::Invalid`]: the URL is wrong. The message does not quote the URL.
    pub fn open(url: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let database = Arc::new(Database::new(Settings::parse(url)?, options));
        let (held, worker, hints) = (Arc::default(), tokio::sync::Mutex::default(), Hints::default());
        Ok(Self { shared: Arc::new(Shared { database, held, worker, hints }) })
    }

    /// Makes or upgrades the tables. Returns the version before; `None` without tables.
    ///
    /// # Errors
    /// - [`StoreError::Version`]: a newer version made the tables.
    /// - [`StoreError::Invalid`]: the database has runs of a prerelease.
    /// - [`StoreError::Denied`]: the user may not change the schema.
    pub async fn init(&self) -> Result<Option<u32>, StoreError> {
        self.task(async |shared| schema::init(&shared.database).await).await
    }

    /// Makes the partitions for logs of this month and the next ones, and drops those of past months without a run other
    /// than `doomed`, which are to be deleted. Returns the dropped months.
    ///
    /// Only the owner of the tables may do so; the call of another role does nothing.
    ///
    /// # Errors
    /// [`StoreError::Io`] and others of the server, such as a lock held by a dump.
    pub async fn rotate_logs(&self, doomed: &[RunId]) -> Result<Vec<String>, StoreError> {
        let doomed = doomed.iter().map(ToString::to_string).collect();
        self.call(|shared| async move { schema::rotate_logs(&shared.database, doomed).await }).await
    }

    /// Returns the schema version of the database; `None` without tables.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`], [`StoreError::Denied`].
    pub async fn schema(&self) -> Result<Option<u32>, StoreError> {
        self.task(async |shared| schema::version(&shared.database).await).await
    }

    /// Returns figures of the queue, the leases, the tables and the server.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`], [`StoreError::Denied`], [`StoreError::Version`], [`StoreError::NotFound`].
    pub async fn statistics(&self) -> Result<Statistics, StoreError> {
        self.call(|shared| async move { statistics::read(&shared.database).await }).await
    }

    /// Does the work in a task, which continues after a drop of the caller.
    async fn task<T, F>(&self, work: impl FnOnce(Arc<Shared>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let name = &self.shared.database.name;
        let runtime = runtime::handle().map_err(|source| StoreError::Io {
            action: "start",
            place: "the thread for the database".into(),
            source,
        })?;
        match runtime.spawn(work(Arc::clone(&self.shared))).await {
            Ok(answer) => answer.map_err(|failure| failure.into_store_error(name)),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => Err(StoreError::Unknown { store: name.clone(), source: error.into() }),
            },
        }
    }

    /// As [`task`](Self::task), after a check of the schema.
    async fn call<T, F>(&self, work: impl FnOnce(Arc<Shared>) -> F + Send) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.task(|shared| {
            let database = Arc::clone(&shared.database);
            let work = work(shared);
            async move {
                database.check().await?;
                work.await
            }
        })
        .await
    }
}

impl Shared {
    /// Returns the lease of this store on a run, as `read` sees it.
    fn with_held<T>(&self, lease: &Lease, read: impl FnOnce(&mut HeldRun) -> T) -> Option<T> {
        let mut held = lock(&self.held);
        held.get_mut(lease.run()).filter(|held| held.token == lease.token()).map(read)
    }

    /// Waits until no other write of this store to the run is in flight.
    async fn writing(&self, lease: &Lease) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        let writing = self.with_held(lease, |held| Arc::clone(&held.writing))?;
        Some(writing.lock_owned().await)
    }

    fn hold(&self, run: &RunId, held: HeldRun) -> Lease {
        let (token, deadline) = (held.token, held.worker.deadline.clone());
        self.database.delta_cache.remove_run(run);
        lock(&self.held).insert(run.clone(), held);
        let guard = Abandon {
            database: Arc::downgrade(&self.database),
            held: Arc::downgrade(&self.held),
            run: run.clone(),
            token,
        };
        let lease = Lease::new(run.clone(), token, None).guarded_by(Arc::new(guard));
        deadline.into_iter().fold(lease, Lease::until)
    }

    /// Returns the worker of this process; a new one after the end of the former.
    async fn worker(&self, holder: &Holder) -> Result<Arc<Worker>, Failure> {
        let mut worker = self.worker.lock().await;
        match worker.as_ref().filter(|worker| worker.lasts()) {
            Some(worker) => Ok(Arc::clone(worker)),
            None => Ok(Arc::clone(worker.insert(Worker::register(&self.database, holder).await?))),
        }
    }

    fn forget(&self, run: &RunId, token: u64) {
        if held::remove(&self.held, run, token).is_some() {
            self.database.delta_cache.remove_run(run);
        }
    }

    /// Refuses a promise of durability on a server without durability.
    async fn refuse_lossy(&self, durability: Durability) -> Result<(), Failure> {
        match (durability, self.database.lossy().await?) {
            (Durability::Sync, Some(setting)) => {
                let store = self.database.name.clone();
                let why = format!(
                    "the server has `{setting}`, which loses acknowledged checkpoints in a power cut; give the \
                     run `durability: async`, or change the setting"
                );
                Err(StoreError::Unsupported { store, why }.into())
            }
            _ => Ok(()),
        }
    }

    async fn create(&self, run: SealedRun, first: Batch, holder: Holder) -> Result<Lease, Failure> {
        let durability = run.record().durability;
        self.refuse_lossy(durability).await?;
        let id = run.record().run.clone();
        let (encoded, update) = encode::encode(&self.database.delta_cache, &first.records);
        let worker = self.worker(&holder).await?;
        let written = Written {
            run: &id,
            main: None,
            token: FIRST_TOKEN,
            batch: &first,
            encoded: &encoded,
            durability: Durability::Sync,
        };
        append::create(&self.database, &run, (&holder, Owner::Worker(worker.id)), written).await?;
        let mut held = HeldRun::new(FIRST_TOKEN, Some(durability), worker);
        held.acknowledge(&first.records);
        let lease = self.hold(&id, held);
        update.keep(&self.database.delta_cache, &first.records);
        if first.release {
            self.forget(&id, FIRST_TOKEN);
        }
        Ok(lease)
    }

    async fn submit(&self, run: &SealedRun, first: Batch, job: &Job, holder: &Holder) -> Result<(), Failure> {
        self.refuse_lossy(run.record().durability).await?;
        if !first.release {
            let why = "the first batch of a submitted run releases the lease".to_owned();
            return Err(StoreError::Invalid(why).into());
        }
        let (encoded, _) = encode::encode(&self.database.delta_cache, &first.records);
        let written = Written {
            run: &run.record().run,
            main: None,
            token: FIRST_TOKEN,
            batch: &first,
            encoded: &encoded,
            durability: Durability::Sync,
        };
        append::create(&self.database, run, (holder, Owner::Queue(job)), written).await
    }

    async fn acquire(&self, run: RunId, holder: Holder) -> Result<Lease, Failure> {
        let durability = self.durability_of(&run).await?;
        let worker = self.worker(&holder).await?;
        let token = lease::acquire(&self.database, &run, &holder, worker.id).await?;
        Ok(self.hold(&run, HeldRun::new(token, Some(durability), worker)))
    }

    /// Returns the durability of a run, which the server can keep.
    async fn durability_of(&self, run: &RunId) -> Result<Durability, Failure> {
        let durability = match runs::frozen(&self.database, run).await {
            Ok(frozen) => frozen.record().durability,
            Err(Failure::Store(StoreError::Damaged { .. } | StoreError::Version { .. })) => Durability::Sync,
            Err(failure) => return Err(failure),
        };
        self.refuse_lossy(durability).await?;
        Ok(durability)
    }

    /// Returns the row of the main scope of a run under a lease of this store.
    async fn main_row(&self, lease: &Lease) -> Result<Option<i64>, Failure> {
        match self.with_held(lease, |held| held.main) {
            None => Ok(None),
            Some(Some(row)) => Ok(Some(row)),
            Some(None) => {
                let scope = scopes::find(&self.database, lease.run(), &ScopePath::main()).await;
                let row = scope.ok().flatten().map(|scope| scope.id);
                self.with_held(lease, |held| held.main = row);
                Ok(row)
            }
        }
    }

    /// Returns the durability of a write under a lease.
    async fn durability(&self, lease: &Lease) -> Result<Durability, Failure> {
        match self.with_held(lease, |held| held.durability) {
            Some(Some(durability)) => Ok(durability),
            Some(None) => {
                let durability = self.durability_of(lease.run()).await?;
                self.with_held(lease, |held| held.durability = Some(durability));
                Ok(durability)
            }
            None => Ok(Durability::Sync),
        }
    }

    /// Claims ready runs by one statement; a run whose durability the server cannot keep is refused.
    async fn claim(
        &self,
        holder: Holder,
        served: BTreeSet<BTreeSet<String>>,
        count: usize,
    ) -> Result<Vec<Lease>, Failure> {
        let worker = self.worker(&holder).await?;
        let claim = Claim { holder: &holder, worker: worker.id, served: &served, count };
        // On other servers, the first write reads the durability of the run.
        let is_lossy = self.database.lossy().await?.is_some();
        let mut leases = Vec::new();
        for (run, token) in jobs::claim(&self.database, claim).await? {
            if lock(&self.held).get(&run).is_some_and(|held| held.token == token) {
                continue;
            }
            let lease = self.hold(&run, HeldRun::new(token, None, Arc::clone(&worker)));
            if is_lossy {
                self.durability(&lease).await?;
            }
            leases.push(lease);
        }
        Ok(leases)
    }

    /// Answers whether a lease holds, and the pending requests to its run. Without an answered renewal in time, the lease
    /// counts as lost: another process may take the lease at the end.
    async fn renew(self: &Arc<Self>, lease: &Lease) -> Result<Renewal, Failure> {
        let Some(worker) = self.with_held(lease, |held| Arc::clone(&held.worker)) else {
            return lease::renewal(&self.database, lease).await;
        };
        // The question is asked in a separate task: a timeout of the caller does not cancel the statement.
        let renewal = tokio::spawn({
            let (shared, lease) = (Arc::clone(self), lease.clone());
            async move { lease::renewal(&shared.database, &lease).await }
        });
        let left = worker.time().saturating_sub(worker.renewed());
        let answer = tokio::time::timeout(left, renewal).await;
        match answer {
            _ if !worker.lasts() => Ok(Renewal::Expired),
            Ok(Ok(renewal)) => renewal,
            Ok(Err(error)) => Err(Failure::Lost(error.into())),
            Err(elapsed) => Err(Failure::Lost(elapsed.into())),
        }
    }

    /// Appends a batch, again and again while the server is away: the id of the batch makes a repetition harmless.
    async fn append(&self, lease: &Lease, batch: &Batch) -> Result<Appended, Failure> {
        let begun = Instant::now();
        loop {
            match self.append_once(lease, batch).await {
                Err(Failure::Away(_) | Failure::Lost(_))
                    if begun.elapsed() < self.database.options.patience_of_holder => {}
                answer => return answer,
            }
        }
    }

    async fn append_once(&self, lease: &Lease, batch: &Batch) -> Result<Appended, Failure> {
        let _writing = self.writing(lease).await;
        let durability = match batch.release {
            true => Durability::Sync,
            false => self.durability(lease).await?,
        };
        let (encoded, update) = encode::encode(&self.database.delta_cache, &batch.records);
        let (run, token) = (lease.run(), lease.token());
        let main = self.main_row(lease).await?;
        let written = Written { run, main, token, batch, encoded: &encoded, durability };
        let acknowledged =
            |scope: &ScopePath| self.with_held(lease, |held| held.acknowledged(scope)).flatten();
        let answer = append::append(&self.database, written, acknowledged).await?;
        if answer == Appended::Now {
            self.with_held(lease, |held| held.acknowledge(&batch.records));
            update.keep(&self.database.delta_cache, &batch.records);
        }
        if batch.release {
            self.forget(run, token);
        }
        Ok(answer)
    }

    async fn append_blob(&self, lease: Lease, name: String, bytes: Vec<u8>) -> Result<(), Failure> {
        let _writing = self.writing(&lease).await;
        if bytes.is_empty() {
            let row = lease::LeaseRow::get(&self.database, lease.run()).await?;
            return match row.held && row.token == lease.token() {
                true => Ok(()),
                false => Err(row.fenced(lease.run(), lease.token()).into()),
            };
        }
        let worker = match self.with_held(&lease, |_| ()) {
            Some(()) => None,
            None => self.worker.lock().await.as_ref().map(|worker| worker.id),
        };
        if let Some(folder) = self.database.settings.logs.as_deref().filter(|_| is_log(&name)) {
            blobs::check_writer(&self.database, &lease, worker).await?;
            return Ok(append_blob(&RealDisk, &folder.join(lease.run().as_str()), &name, &bytes)?);
        }
        let end = self.with_held(&lease, |held| held.blobs.get(&name).copied()).flatten();
        let end = blobs::append(&self.database, &lease, &name, (end, worker), &bytes).await?;
        self.with_held(&lease, |held| held.blobs.insert(name, end));
        Ok(())
    }

    async fn close(&self) -> Result<(), Failure> {
        let leases: Vec<(RunId, u64)> =
            lock(&self.held).drain().map(|(run, held)| (run, held.token)).collect();
        let mut result = Ok(());
        for (run, token) in leases {
            match lease::release(&self.database, &run, token, None).await {
                // Lost before, or deleted.
                Ok(()) | Err(Failure::Store(_)) => {}
                failed => result = result.and(failed),
            }
        }
        if let Some(worker) = self.worker.lock().await.take() {
            result = result.and(worker::leave(&self.database, &worker).await);
        }
        self.hints.flush().await;
        self.database.close();
        result
    }
}

impl fmt::Display for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.database.name)
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("name", &self.shared.database.name).finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for PostgresStore {
    async fn create(&self, run: &SealedRun, first: Batch, holder: &Holder) -> Result<Lease, StoreError> {
        let (run, holder) = (run.clone(), holder.clone());
        self.call(|shared| async move { shared.create(run, first, holder).await }).await
    }

    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError> {
        let run = run.clone();
        self.call(|shared| async move { runs::run(&shared.database, &run).await }).await
    }

    async fn acquire(&self, run: &RunId, _: &ScopePath, holder: &Holder) -> Result<Lease, StoreError> {
        let (run, holder) = (run.clone(), holder.clone());
        self.call(|shared| async move { shared.acquire(run, holder).await }).await
    }

    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError> {
        let leases: Vec<Lease> = leases.iter().map(|lease| (*lease).clone()).collect();
        self.call(|shared| async move {
            let mut answers = Vec::with_capacity(leases.len());
            for lease in &leases {
                answers.push(shared.renew(lease).await?);
            }
            Ok(answers)
        })
        .await
    }

    async fn release(&self, lease: Lease, wake_at: Option<Timestamp>) -> Result<(), StoreError> {
        self.call(|shared| async move {
            let _writing = shared.writing(&lease).await;
            lease::release(&shared.database, lease.run(), lease.token(), wake_at).await?;
            shared.forget(lease.run(), lease.token());
            Ok(())
        })
        .await
    }

    async fn append(&self, leases: &[&Lease], batch: Batch) -> Result<Appended, StoreError> {
        let lease = batch.whole_run_lease(leases)?.clone();
        self.call(|shared| async move { shared.append(&lease, &batch).await }).await
    }

    async fn heads(&self, run: &RunId, page: &Page) -> Result<Heads, StoreError> {
        let (run, page) = (run.clone(), page.clone());
        self.call(|shared| async move { read::heads(&shared.database, &run, &page).await }).await
    }

    async fn load(&self, run: &RunId, scope: &ScopePath, seq: u64) -> Result<Record, StoreError> {
        let (run, scope) = (run.clone(), scope.clone());
        self.call(|shared| async move { read::load(&shared.database, &run, &scope, seq).await }).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError> {
        let scan = scan.clone();
        self.call(|shared| async move { read::scan(&shared.database, &scan).await }).await
    }

    async fn runs(&self, query: &RunQuery) -> Result<Runs, StoreError> {
        let query = query.clone();
        self.call(|shared| async move { runs::runs(&shared.database, &query).await }).await
    }

    async fn signal(&self, run: &RunId, signal: &Signal) -> Result<Signalled, StoreError> {
        let (run, signal) = (run.clone(), signal.clone());
        self.call(|shared| async move {
            let added = signals::add(&shared.database, &run, &signal).await?;
            shared.hints.send(&shared.database);
            Ok(added)
        })
        .await
    }

    async fn signals(&self, run: &RunId) -> Result<Vec<Signal>, StoreError> {
        let run = run.clone();
        self.call(|shared| async move { signals::pending(&shared.database, &run).await }).await
    }

    async fn quarantine(&self, lease: &Lease, damage: &Damage) -> Result<(), StoreError> {
        if damage.run != *lease.run() {
            let (run, other) = (&damage.run, lease.run());
            return Err(StoreError::Invalid(format!("the lease belongs to run {other}, not to {run}")));
        }
        let (lease, damage) = (lease.clone(), damage.clone());
        self.call(|shared| async move {
            let _writing = shared.writing(&lease).await;
            removal::quarantine(&shared.database, lease.token(), &damage).await?;
            shared.database.delta_cache.remove_run(lease.run());
            Ok(())
        })
        .await
    }

    async fn trim(&self, lease: &Lease, keep: u32, mode: TrimMode) -> Result<Trimmed, StoreError> {
        let lease = lease.clone();
        self.call(|shared| async move {
            let _writing = match mode {
                TrimMode::Apply => shared.writing(&lease).await,
                TrimMode::DryRun => None,
            };
            let token = (mode == TrimMode::Apply).then(|| lease.token());
            let trimmed = trim::trim(&shared.database, lease.run(), token, keep).await?;
            if mode == TrimMode::Apply {
                shared.database.delta_cache.remove_run(lease.run());
            }
            Ok(trimmed)
        })
        .await
    }

    async fn delete(&self, run: &RunId) -> Result<(), StoreError> {
        let run = run.clone();
        self.call(|shared| async move {
            if let Err(Failure::Store(error @ StoreError::Version { .. })) =
                runs::frozen(&shared.database, &run).await
            {
                return Err(error.into());
            }
            removal::delete(&shared.database, &run).await?;
            if let Some(folder) = &shared.database.settings.logs {
                let folder = folder.join(run.as_str());
                remove_folder(&RealDisk, &folder).map_err(|source| StoreError::Io {
                    action: "remove",
                    place: folder.display().to_string(),
                    source,
                })?;
            }
            Ok(())
        })
        .await
    }

    async fn deletions(&self) -> Result<Vec<RunId>, StoreError> {
        // A deletion is a single statement.
        self.shared.database.refuse_closed().map(|()| Vec::new())
    }

    async fn inspect(&self, run: Option<&RunId>) -> Result<Vec<String>, StoreError> {
        let Some(run) = run.cloned() else {
            return self.call(|_| async { Ok(Vec::new()) }).await;
        };
        self.call(|shared| async move { inspect::run(&shared.database, &run).await }).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.shared.database.refuse_closed()?;
        self.task(|shared| async move { shared.close().await }).await
    }

    fn blobs(&self) -> &dyn Blobs {
        self
    }

    fn queue(&self) -> Option<&dyn Queue> {
        Some(self)
    }

    fn folder(&self, _: &RunId) -> Option<PathBuf> {
        None
    }

    fn scopes_max(&self) -> Option<u64> {
        None
    }

    fn home(&self) -> Option<&Path> {
        None
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Blobs for PostgresStore {
    async fn append(&self, lease: &Lease, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.shared.database.refuse_closed()?;
        blobs::check(name, bytes)?;
        let (lease, name, bytes) = (lease.clone(), name.to_owned(), bytes.to_vec());
        self.call(|shared| async move { shared.append_blob(lease, name, bytes).await }).await
    }

    async fn sync(&self, lease: &Lease, name: &str) -> Result<(), StoreError> {
        blobs::check(name, b"")?;
        let lease = lease.clone();
        self.call(|shared| async move {
            // A synced commit makes all earlier commits durable.
            match lease::confirm(&shared.database, lease.run(), lease.token()).await? {
                true => Ok(()),
                false => {
                    let row = lease::LeaseRow::get(&shared.database, lease.run()).await?;
                    Err(row.fenced(lease.run(), lease.token()).into())
                }
            }
        })
        .await
    }

    async fn read(&self, run: &RunId, name: &str, offset: u64) -> Result<Vec<u8>, StoreError> {
        let (run, name) = (run.clone(), name.to_owned());
        self.call(|shared| async move {
            match shared.database.settings.logs.as_deref().filter(|_| is_log(&name)) {
                Some(folder) => Ok(read_blob(&RealDisk, &folder.join(run.as_str()), &name, offset)?),
                None => blobs::read(&shared.database, &run, &name, offset).await,
            }
        })
        .await
    }

    fn log_folder(&self, run: &RunId) -> Option<PathBuf> {
        let folder = self.shared.database.settings.logs.as_ref()?;
        Some(folder.join(run.as_str()).join(LOG_FOLDER))
    }
}

#[async_trait]
impl Queue for PostgresStore {
    async fn submit(
        &self,
        run: &SealedRun,
        first: Batch,
        job: &Job,
        holder: &Holder,
    ) -> Result<(), StoreError> {
        let (run, job, holder) = (run.clone(), job.clone(), holder.clone());
        self.call(|shared| async move {
            shared.submit(&run, first, &job, &holder).await?;
            shared.hints.send(&shared.database);
            Ok(())
        })
        .await
    }

    async fn requeue(&self, run: &RunId, job: Option<&Job>) -> Result<(), StoreError> {
        let (run, job) = (run.clone(), job.cloned());
        self.call(|shared| async move {
            jobs::requeue(&shared.database, &run, job.as_ref()).await?;
            shared.hints.send(&shared.database);
            Ok(())
        })
        .await
    }

    async fn defer(&self, run: &RunId, missing: &str, pause: Duration) -> Result<(), StoreError> {
        let (run, missing) = (run.clone(), missing.to_owned());
        self.call(|shared| async move { jobs::defer(&shared.database, &run, &missing, pause).await }).await
    }

    async fn job(&self, run: &RunId) -> Result<Option<QueuedJob>, StoreError> {
        let run = run.clone();
        self.call(|shared| async move { jobs::job(&shared.database, &run).await }).await
    }

    async fn needs(&self, known: &BTreeSet<BTreeSet<String>>) -> Result<Vec<BTreeSet<String>>, StoreError> {
        let known = known.clone();
        self.call(|shared| async move { jobs::needs(&shared.database, &known).await }).await
    }

    async fn report_missing(&self, needs: &BTreeSet<String>, missing: &str) -> Result<(), StoreError> {
        let (needs, missing) = (needs.clone(), missing.to_owned());
        self.call(|shared| async move { jobs::report_missing(&shared.database, &needs, &missing).await })
            .await
    }

    async fn expire(&self) -> Result<(), StoreError> {
        self.call(|shared| async move {
            worker::bury_dead(&shared.database).await?;
            jobs::expire(&shared.database).await
        })
        .await
    }

    async fn claim(
        &self,
        holder: &Holder,
        served: &BTreeSet<BTreeSet<String>>,
        count: usize,
    ) -> Result<Vec<Lease>, StoreError> {
        let (holder, served) = (holder.clone(), served.clone());
        self.call(|shared| async move { shared.claim(holder, served, count).await }).await
    }

    async fn wait(&self, longest: Duration) {
        // The time ends the wait.
        let _ = tokio::time::timeout(longest, self.shared.hints.arrived.notified()).await;
    }

    async fn listen(&self) -> Option<String> {
        let listen = |shared: Arc<Shared>| async move {
            Ok(hints::listen(&shared.database, &shared.hints.arrived).await)
        };
        self.task(listen).await.unwrap_or_else(|error| Some(error.to_string()))
    }

    async fn register(&self, holder: &Holder) -> Result<(), StoreError> {
        let holder = holder.clone();
        self.call(|shared| async move {
            // The tables may have been upgraded since: a claim would find nothing.
            schema::check(&shared.database).await?;
            shared.worker(&holder).await.map(drop)
        })
        .await
    }

    async fn workers(&self) -> Result<Vec<Holder>, StoreError> {
        self.call(|shared| async move {
            worker::bury_dead(&shared.database).await?;
            worker::living(&shared.database).await.map(|living| living.into_values().collect())
        })
        .await
    }

    fn tasks(&self) -> &dyn TaskQueue {
        self
    }

    async fn oldest(&self) -> Result<Duration, StoreError> {
        self.call(|shared| async move { jobs::oldest(&shared.database).await }).await
    }

    async fn depth(&self) -> Result<u64, StoreError> {
        self.call(|shared| async move { jobs::depth(&shared.database).await }).await
    }
}

#[async_trait]
impl TaskQueue for PostgresStore {
    async fn submit_task(&self, lease: &Lease, task: &Task) -> Result<Submitted, StoreError> {
        let (lease, task) = (lease.clone(), task.clone());
        self.call(|shared| async move {
            let submitted = tasks::submit(&shared.database, &lease, &task).await?;
            shared.hints.send(&shared.database);
            Ok(submitted)
        })
        .await
    }

    async fn submit_verification(
        &self,
        run: &RunId,
        tasks: &[Task],
        time: Duration,
    ) -> Result<(), StoreError> {
        let (run, tasks) = (run.clone(), tasks.to_vec());
        self.call(|shared| async move {
            tasks::submit_unleased(&shared.database, &run, (&tasks, time)).await?;
            shared.hints.send(&shared.database);
            Ok(())
        })
        .await
    }

    async fn task_states(&self, run: &RunId) -> Result<Vec<TaskEntry>, StoreError> {
        let run = run.clone();
        self.call(|shared| async move { tasks::tasks(&shared.database, &run).await }).await
    }

    async fn remove_tasks(&self, run: &RunId, token: u64, keys: &[String]) -> Result<(), StoreError> {
        let (run, keys) = (run.clone(), keys.to_vec());
        self.call(|shared| async move { tasks::remove(&shared.database, &run, token, keys).await }).await
    }

    async fn cancel_task(&self, run: &RunId, key: &str, stop: TaskStop) -> Result<(), StoreError> {
        let (run, key) = (run.clone(), key.to_owned());
        self.call(|shared| async move {
            tasks::cancel(&shared.database, &run, &key, stop).await?;
            shared.hints.send(&shared.database);
            Ok(())
        })
        .await
    }

    async fn withdraw_tasks(
        &self,
        run: &RunId,
        keys: &[String],
        needs: &BTreeSet<String>,
        missing: &str,
    ) -> Result<bool, StoreError> {
        let (run, keys, needs, missing) = (run.clone(), keys.to_vec(), needs.clone(), missing.to_owned());
        self.call(
            |shared| async move { tasks::withdraw(&shared.database, &run, keys, (&needs, &missing)).await },
        )
        .await
    }

    async fn clear(&self, lease: &Lease) -> Result<u64, StoreError> {
        let lease = lease.clone();
        self.call(|shared| async move {
            worker::bury_dead(&shared.database).await?;
            let living = tasks::clear(&shared.database, &lease).await?;
            if living > 0 {
                shared.hints.send(&shared.database);
            }
            Ok(living)
        })
        .await
    }

    async fn task_needs(
        &self,
        known: &BTreeSet<BTreeSet<String>>,
    ) -> Result<Vec<BTreeSet<String>>, StoreError> {
        let known = known.clone();
        self.call(|shared| async move { tasks::needs(&shared.database, &known).await }).await
    }

    async fn report_missing_for_tasks(
        &self,
        needs: &BTreeSet<String>,
        missing: &str,
    ) -> Result<(), StoreError> {
        let (needs, missing) = (needs.clone(), missing.to_owned());
        self.call(|shared| async move { tasks::report_missing(&shared.database, &needs, &missing).await })
            .await
    }

    async fn claim_tasks(
        &self,
        holder: &Holder,
        served: &BTreeSet<BTreeSet<String>>,
        of: TasksOf,
        count: usize,
    ) -> Result<Vec<ClaimedTask>, StoreError> {
        let (holder, served) = (holder.clone(), served.clone());
        self.call(|shared| async move {
            let worker = shared.worker(&holder).await?;
            let claim = Claim { holder: &holder, worker: worker.id, served: &served, count };
            let claimed = tasks::claim(&shared.database, claim, of).await?;
            let task = |Claimed { id, run, token, key, request, losses }| {
                let lease = Lease::new(run, token, None);
                let lease = worker.deadline.clone().into_iter().fold(lease, Lease::until);
                ClaimedTask { id, lease, key, request, losses }
            };
            Ok(claimed.into_iter().map(task).collect())
        })
        .await
    }

    async fn cancelled_tasks(&self, tasks: &[(u64, u32)]) -> Result<Vec<(u64, TaskStop)>, StoreError> {
        let tasks = tasks.to_vec();
        self.call(|shared| async move { tasks::cancelled(&shared.database, &tasks).await }).await
    }

    async fn finish_task(&self, task: &ClaimedTask, result: &str) -> Result<bool, StoreError> {
        let (claim, result) = ((task.id, task.losses), result.to_owned());
        self.call(|shared| async move {
            let counts = tasks::finish(&shared.database, claim, &result).await?;
            shared.hints.send(&shared.database);
            Ok(counts)
        })
        .await
    }
}
