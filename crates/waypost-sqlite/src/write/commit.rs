//! The single write path, and group commit: concurrent tasks share a sync.
//!
//! Writes are queued. The first task in an empty queue becomes the leader. It yields once, so that other
//! tasks can queue, and then commits all queued work in a single transaction with a single sync. A single run
//! pays no thread hop, and a hundred runs share a sync (docs/decisions/0004-commit-path.md). While many tasks
//! share commits, a thread leads instead (`group_commit.rs`), so that the tasks continue meanwhile.
//!
//! ```text
//!   task A   queue --- yield --- [ BEGIN  A B C  COMMIT+sync ] [ BEGIN  D E ... ] ---> answer
//!   task B        queue --------------------------------------> answer
//!   task D                            queue -------------------------------------> answer
//! ```
//!
//! Dropping a [`LeadGuard`] leads. So a task cancelled at the yield still leads, and later tasks do not wait
//! forever. A refusal (a lost lease, a broken chain) must precede any change. If work fails after a change,
//! the transaction is rolled back, and each job is retried in its own transaction, so that other jobs do not
//! suffer.
//!
//! After a failed sync the writer refuses all writes: the content of the disk is unknown. A second successful
//! sync would prove nothing, because the kernel has dropped the pages.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;
use waypost::record::Durability;
use waypost::store::StoreError;

use crate::database::error::{Failure, SqliteError};
use crate::database::file_identity::FileIdentities;
use crate::database::open::{self, Place};
use crate::database::schema;
use crate::database::wal_prealloc::WalPrealloc;
use crate::lock;
use crate::write::group_commit::GroupCommit;

/// Most jobs per transaction; limits how long the first job waits for the last.
const GROUP_JOBS_MAX: usize = 512;
/// Most transactions that a task leads before another task takes over, so that a busy store does not block
/// its own caller forever.
const LEAD_GROUPS_MAX: usize = 16;
/// Longest time without a sync for commits of `async` runs.
const UNSYNCED_MAX: Duration = Duration::from_secs(1);

/// The writing connection.
#[derive(Debug)]
struct WriterConnection {
    connection: Connection,
    files: FileIdentities,
    wal_prealloc: WalPrealloc,
    level: Durability,
    synced: Instant,
    /// SQLite's change counter at the last schema check; commits of other connections change it.
    seen: Option<i64>,
}

/// The writer: all writes of a store pass through it.
pub(crate) struct Writer {
    place: Arc<Place>,
    queue: Mutex<Vec<Box<dyn Job>>>,
    link: Mutex<Option<WriterConnection>>,
    poisoned: AtomicBool,
    commits: AtomicU64,
    group_commit: GroupCommit,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(link) = lock(&self.link).as_ref()
            && link.files.check_seen().is_ok()
        {
            // On an error the log stays, and the next process to open the database reads it.
            let _ = open::end_log(&link.connection, true);
        }
    }
}

/// The duty to lead, fulfilled on drop.
struct LeadGuard(Arc<Writer>);

impl Drop for LeadGuard {
    fn drop(&mut self) {
        self.0.lead();
    }
}

/// The writing connection, lent for reading.
pub(crate) struct Borrowed<'a> {
    writer: &'a Arc<Writer>,
    guard: Option<MutexGuard<'a, Option<WriterConnection>>>,
}

impl Borrowed<'_> {
    pub(crate) fn connection(&self) -> &Connection {
        let link = self.guard.as_ref().and_then(|guard| guard.as_ref());
        &link.expect("the buffer is valid until returned").connection
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        self.guard = None;
        // Tasks that queued meanwhile left the commit to the holder of the connection.
        if !lock(&self.writer.queue).is_empty() {
            self.writer.lead();
        }
    }
}

/// Why a transaction was not committed.
enum NotCommitted {
    /// A job failed after a change.
    JobFailed,
    /// The transaction itself failed.
    Failed(SqliteError),
}

impl Writer {
    pub(crate) fn new(place: Arc<Place>, connection: Connection, wal_prealloc: WalPrealloc) -> Self {
        let files = FileIdentities::of(&place);
        let link = WriterConnection {
            connection,
            files,
            wal_prealloc,
            level: Durability::Sync,
            synced: Instant::now(),
            seen: None,
        };
        Self {
            place,
            queue: Mutex::default(),
            link: Mutex::new(Some(link)),
            poisoned: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            group_commit: GroupCommit::default(),
        }
    }

    /// Returns the number of committed transactions.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Runs `work` in a transaction and returns after the requested durability.
    ///
    /// `work` may run several times, each time on a fresh transaction. A refusal must precede any change; if
    /// it does not, the other jobs of the transaction run again.
    ///
    /// If the returned future is dropped, the work may or may not be committed.
    pub(crate) async fn write<T, F>(
        self: &Arc<Self>,
        durability: Durability,
        writes: Writes,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> Result<T, Failure> + Send + 'static,
    {
        let (to, answer) = oneshot::channel::<Box<Work<T, F>>>();
        let job = Box::new(Work { work, durability, writes, outcome: None, to: Some(to) });
        let first = {
            let mut queue = lock(&self.queue);
            queue.push(job);
            queue.len() == 1
        };
        if first && !self.group_commit.wake(self) {
            let turn = LeadGuard(Arc::clone(self));
            tokio::task::yield_now().await;
            drop(turn);
        }
        // The whole job returns to its caller, so that the allocating thread frees the memory.
        let done = answer
            .await
            .map_err(|lost| StoreError::Unknown { store: self.place.name.clone(), source: Box::new(lost) })?;
        let (outcome, _) = done.outcome.expect("every job is answered once, after its end");
        outcome
    }

    /// Lends the connection for reading, if it is free. Jobs queued meanwhile are committed on return.
    pub(crate) fn borrow(self: &Arc<Self>) -> Option<Borrowed<'_>> {
        let guard = match self.link.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        guard.is_some().then_some(Borrowed { writer: self, guard: Some(guard) })
    }

    /// Commits queued jobs until the queue is empty, unless another thread is leading.
    pub(crate) fn lead(self: &Arc<Self>) {
        let mut groups = 0;
        loop {
            let mut guard = match self.link.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // The holder of the connection checks the queue after its release.
                Err(TryLockError::WouldBlock) => return,
            };
            loop {
                let jobs = self.take();
                if jobs.is_empty() {
                    break;
                }
                self.group_commit.record_jobs(jobs.len());
                self.commit(guard.as_mut(), jobs);
                groups += 1;
                if groups >= LEAD_GROUPS_MAX
                    && let Ok(runtime) = tokio::runtime::Handle::try_current()
                {
                    drop(guard);
                    let turn = LeadGuard(Arc::clone(self));
                    runtime.spawn(async move { drop(turn) });
                    return;
                }
            }
            drop(guard);
            // A job may arrive between the last check and the unlock.
            if lock(&self.queue).is_empty() {
                return;
            }
        }
    }

    fn take(&self) -> Vec<Box<dyn Job>> {
        let mut queue = lock(&self.queue);
        if queue.len() <= GROUP_JOBS_MAX {
            return std::mem::take(&mut *queue);
        }
        let rest = queue.split_off(GROUP_JOBS_MAX);
        std::mem::replace(&mut *queue, rest)
    }

    fn commit(&self, link: Option<&mut WriterConnection>, mut jobs: Vec<Box<dyn Job>>) {
        let Some(link) = link else {
            return jobs.into_iter().for_each(|job| job.refuse(StoreError::Closed(self.place.name.clone())));
        };
        if jobs.len() > 1 {
            match self.attempt(link, &mut jobs) {
                Ok(()) => return jobs.into_iter().for_each(|job| job.answer()),
                Err(NotCommitted::Failed(fault)) if fault.is_busy() || fault.is_failed_sync() => {
                    return jobs.into_iter().for_each(|job| job.refuse(fault.to_store_error(&self.place)));
                }
                // A job is at fault, or too large for the remaining space: the other jobs may still succeed.
                Err(_) => {}
            }
        }
        jobs.into_iter().for_each(|job| self.commit_alone(link, job));
    }

    fn commit_alone(&self, link: &mut WriterConnection, mut job: Box<dyn Job>) {
        match self.attempt(link, std::slice::from_mut(&mut job)) {
            // The job has failed: its outcome has the reason.
            Ok(()) | Err(NotCommitted::JobFailed) => job.answer(),
            Err(NotCommitted::Failed(fault)) => job.refuse(fault.to_store_error(&self.place)),
        }
    }

    /// Runs `jobs` in a single transaction, all or nothing.
    fn attempt(&self, link: &mut WriterConnection, jobs: &mut [Box<dyn Job>]) -> Result<(), NotCommitted> {
        if self.poisoned.load(Ordering::Relaxed) {
            for job in jobs {
                job.fail(StoreError::Poisoned { place: self.place.file.display().to_string() });
            }
            return Ok(());
        }
        let result = self.transact(link, jobs);
        if let Err(undone) = &result {
            self.place.head_cache.clear();
            if !link.connection.is_autocommit() {
                // Fails only if the transaction has already ended.
                let _ = link.connection.execute_batch("ROLLBACK");
            }
            let failed_sync = match undone {
                NotCommitted::Failed(fault) => fault.is_failed_sync(),
                NotCommitted::JobFailed => jobs.iter().any(|job| job.failed_sync()),
            };
            if failed_sync {
                self.poisoned.store(true, Ordering::Relaxed);
            }
        }
        result
    }

    fn transact(&self, link: &mut WriterConnection, jobs: &mut [Box<dyn Job>]) -> Result<(), NotCommitted> {
        link.set_level(jobs.iter().map(|job| job.durability()))?;
        let connection = &link.connection;
        let failed =
            |error: rusqlite::Error| NotCommitted::Failed(SqliteError::from(error).ask_system(connection));
        execute(connection, "BEGIN IMMEDIATE").map_err(failed)?;
        let count = schema::changes_of_others(connection).map_err(failed)?;
        if link.seen != Some(count) {
            self.place.head_cache.clear();
            let version = schema::version(connection).map_err(NotCommitted::Failed)?;
            if version != schema::VERSION {
                jobs.iter_mut().for_each(|job| job.fail(schema::version_error(&self.place, version)));
                return execute(connection, "ROLLBACK").map_err(failed);
            }
            link.seen = Some(count);
        }
        let begun = connection.total_changes();
        let mut moved = false;
        for job in jobs.iter_mut() {
            if job.writes() == Writes::Rows {
                self.place.head_cache.clear();
            }
            let before = connection.total_changes();
            let done = job.apply(connection, &self.place);
            moved |= done && job.writes() == Writes::Pages;
            if !done && (connection.total_changes() != before || connection.is_autocommit()) {
                return Err(NotCommitted::JobFailed);
            }
        }
        if connection.total_changes() == begun && !moved {
            return execute(connection, "ROLLBACK").map_err(failed);
        }
        if let Err(missing) = link.files.check() {
            self.place.head_cache.clear();
            jobs.iter_mut().for_each(|job| job.fail(missing.to_store_error()));
            return execute(connection, "ROLLBACK").map_err(failed);
        }
        link.wal_prealloc.extend(&link.files);
        execute(connection, "COMMIT").map_err(failed)?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        if link.level == Durability::Sync {
            link.synced = Instant::now();
        }
        Ok(())
    }

    /// Waits until the queue is committed and the writer thread has ended.
    pub(crate) fn settle(&self) {
        self.group_commit.stop();
    }

    /// Closes the connection after a sync of all acknowledged work.
    pub(crate) fn close(&self) -> Result<(), StoreError> {
        self.settle();
        let Some(link) = lock(&self.link).take() else { return Ok(()) };
        if let Err(missing) = link.files.check_seen() {
            // The log stays for its current users; `open::writer` has disabled its removal.
            return Err(missing.to_store_error());
        }
        let error = |error: rusqlite::Error| SqliteError::from(error).to_store_error(&self.place);
        let (busy, _, _): (i64, i64, i64) = link
            .connection
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .map_err(error)?;
        // Another process may be copying the log right now, which starts with the same sync.
        debug_assert!(busy == 0 || busy == 1, "SQLite documents 0 and 1");
        open::end_log(&link.connection, true).map_err(error)?;
        link.connection.close().map_err(|(_, closed)| error(closed))
    }
}

impl WriterConnection {
    /// Syncs the commit if a job requests this, or if the last sync is too long ago.
    fn set_level(&mut self, mut asked: impl Iterator<Item = Durability>) -> Result<(), NotCommitted> {
        let sync = asked.any(|durability| durability == Durability::Sync);
        let level =
            if sync || self.synced.elapsed() >= UNSYNCED_MAX { Durability::Sync } else { Durability::Async };
        if level != self.level {
            schema::set_durability(&self.connection, level).map_err(NotCommitted::Failed)?;
            self.level = level;
        }
        Ok(())
    }
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

/// The kind of change of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writes {
    /// Any rows.
    Rows,
    /// Records of an existing run, and the rows of their summary. The job keeps the cached end of the run current.
    Records,
    /// The positions of pages in the file, and no rows: such a job does not wait for the disk.
    Pages,
}

/// A queued job.
trait Job: Send {
    fn durability(&self) -> Durability;
    fn writes(&self) -> Writes;
    /// Runs the job. Returns `false` on failure; the outcome is kept for `answer`.
    fn apply(&mut self, connection: &Connection, place: &Place) -> bool;
    /// Sets the outcome to `error`.
    fn fail(&mut self, error: StoreError);
    /// Returns whether the outcome is a failed sync.
    fn failed_sync(&self) -> bool;
    /// Sends the outcome to the caller, who may be gone.
    fn answer(self: Box<Self>);
    /// Fails the job without effect.
    fn refuse(self: Box<Self>, error: StoreError);
}

struct Work<T, F> {
    work: F,
    durability: Durability,
    writes: Writes,
    outcome: Option<(Result<T, StoreError>, bool)>,
    /// `None` after the answer.
    to: Option<oneshot::Sender<Box<Self>>>,
}

impl<T, F> Job for Work<T, F>
where
    T: Send,
    F: FnMut(&Connection) -> Result<T, Failure> + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn writes(&self) -> Writes {
        self.writes
    }

    fn apply(&mut self, connection: &Connection, place: &Place) -> bool {
        let result = (self.work)(connection).map_err(|failure| failure.ask_system(connection));
        let failed_sync = matches!(&result, Err(Failure::Sqlite(fault)) if fault.is_failed_sync());
        let done = result.is_ok();
        self.outcome = Some((result.map_err(|failure| failure.into_store_error(place)), failed_sync));
        done
    }

    fn fail(&mut self, error: StoreError) {
        self.outcome = Some((Err(error), false));
    }

    fn failed_sync(&self) -> bool {
        matches!(self.outcome, Some((_, true)))
    }

    fn answer(mut self: Box<Self>) {
        if let Some(to) = self.to.take() {
            let _ = to.send(self);
        }
    }

    fn refuse(mut self: Box<Self>, error: StoreError) {
        self.fail(error);
        self.answer();
    }
}
