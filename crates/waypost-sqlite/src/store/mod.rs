//! The implementation of the store trait: where each operation runs, and the files next to the database.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::Connection;
use waypost::disk::{Disk, RealDisk};
use waypost::folder::{LOG_FOLDER, RunFolder, Trouble, append_blob, read_blob, remove_folder, sync_blob};
use waypost::id::{RunId, ScopePath};
use waypost::lock::{Holder, RunLock};
use waypost::record::{Durability, Record, RunRecord, SealedRun};
use waypost::store::{
    Appended, Batch, Blobs, Damage, FIRST_TOKEN, Heads, Lease, Page, Queue, Renewal, RunEntry, RunQuery,
    Runs, Scan, Scanned, Signal, Signalled, Store, StoreError, TrimMode, Trimmed,
};

use crate::database::error::{Failure, SqliteError};
use crate::database::heads::RunRow;
use crate::database::open::{self, Place, SqliteOptions};
use crate::database::schema;
use crate::database::shrink::{self, Shrink};
use crate::lock;
use crate::projector::{Projector, RunFiles};
use crate::tables::commit_order::NewestFirst;
use crate::tables::inspect;
use crate::tables::lease;
use crate::tables::read::View;
use crate::tables::tail_check::{self, Lost};
use crate::write::append;
use crate::write::commit::{Writer, Writes};
use crate::write::removal;
use crate::write::trim;
use waypost_codec::encode;

mod deletion;

/// Transactions of this store after which reading gets a connection of its own: one takes the lease of a run.
const COMMITS_BEFORE_READER: u64 = 1;
/// Most attempts of a trim, each with a new plan after concurrent changes.
const TRIM_TRIES_MAX: u32 = 3;

/// Keeps runs in an SQLite database, with files for people next to it.
///
/// Safe for concurrent use by many tasks, threads and processes: a single process holds a run, and any number read and
/// signal.
///
/// A call runs on the polling thread, and so does the commit for all waiting tasks: a thread hop would cost more than
/// the work. On a current-thread runtime, other tasks are blocked meanwhile by the sync of a commit. They are also
/// blocked by another writing process, at most for [`busy_timeout`](SqliteOptions::busy_timeout). While eight or more
/// tasks share commits, a thread of the store commits, and the tasks continue.
///
/// Commits of runs with durability `async` do not wait for the disk: SQLite syncs the log only at a checkpoint. The
/// last commit of such a run is synced, and so is at least one commit per second of activity. A commit of a `sync` run
/// makes all earlier commits durable, because all share a log.
pub struct SqliteStore {
    options: SqliteOptions,
    place: Arc<Place>,
    disk: Arc<dyn Disk>,
    held: Mutex<HashMap<RunId, HeldRun>>,
    closed: AtomicBool,
    /// Whether bodies were dropped, so that free pages may exist.
    trimmed: AtomicBool,
    projector: Projector,
    /// The read-only connection, opened when the writing connection is busy.
    // Dropped before the writer, whose end then tidies the log away.
    reader: Mutex<Option<Connection>>,
    writer: Option<Arc<Writer>>,
}

/// A run whose lease was taken by this store.
#[derive(Debug)]
struct HeldRun {
    token: u64,
    durability: Durability,
    /// `None` if the run record, which the report needs, is damaged.
    files: Option<Arc<RunFiles>>,
}

impl SqliteStore {
    /// Opens the database at `path` for reading and writing; creates missing files and folders.
    ///
    /// An older database is upgraded in one transaction, after a backup next to the file. A new folder has mode 0700, a new
    /// file mode 0600.
    ///
    /// # Errors
    /// - [`StoreError::Create`]: the folder or the file cannot be created or written. Nothing changed.
    /// - [`StoreError::Invalid`]: the file belongs to another program, or its file system has unreliable locks. Nothing
    ///   changed.
    /// - [`StoreError::Version`]: a newer version wrote the file. Nothing changed; use that version.
    /// - [`StoreError::Unreachable`]: another process did not end its write in time. Try again.
    /// - [`StoreError::Io`], [`StoreError::Full`]: errors of the medium. Existing data is untouched.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let place = Arc::new(open::make(path, &options)?);
        let (connection, wal_prealloc) = open::writer(&place, &options)?;
        let writer = Some(Arc::new(Writer::new(Arc::clone(&place), connection, wal_prealloc)));
        Self::with(place, writer, options)
    }

    /// Opens the database at `path` for reading only, without creation or upgrade. Works on a read-only file system if
    /// the log is empty, as after a clean close.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`StoreError::Io`] if the file does not exist.
    pub fn open_read_only(path: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        Self::with(Arc::new(open::find(path)?), None, options)
    }

    fn with(
        place: Arc<Place>,
        writer: Option<Arc<Writer>>,
        options: SqliteOptions,
    ) -> Result<Self, StoreError> {
        // The writer has checked the schema, and also serves reads while idle.
        let reader = if writer.is_none() { Some(open::checked_reader(&place, &options)?) } else { None };
        Ok(Self {
            options,
            place,
            disk: Arc::new(RealDisk),
            held: Mutex::default(),
            closed: AtomicBool::new(false),
            trimmed: AtomicBool::new(false),
            projector: Projector::default(),
            reader: Mutex::new(reader),
            writer,
        })
    }

    /// Returns the number of committed transactions: fewer than appends if tasks shared commits.
    pub fn commits(&self) -> u64 {
        self.writer.as_ref().map_or(0, |writer| writer.commits())
    }

    /// Returns and clears the trouble with log or report of a run held by this store. These files are derived, so
    /// commits do not fail because of them.
    pub fn take_trouble(&self, run: &RunId) -> Option<Trouble> {
        let files = lock(&self.held).get(run).and_then(|held| held.files.clone())?;
        self.projector.finish();
        files.folder.take_trouble()
    }

    /// Returns whether the built-in SQLite syncs with `fdatasync`, which is cheaper than `fsync` for a growing file.
    /// The answer comes from the build settings, because SQLite does not list this option. Without it, the store is
    /// slower but equally safe.
    pub fn has_fdatasync() -> bool {
        option_env!("LIBSQLITE3_FLAGS").is_some_and(|flags| flags.contains("HAVE_FDATASYNC"))
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) { Err(StoreError::Closed(self.to_string())) } else { Ok(()) }
    }

    fn writer(&self) -> Result<&Arc<Writer>, StoreError> {
        self.check_open()?;
        self.writer.as_ref().ok_or_else(|| StoreError::Invalid(format!("{self} is open read-only")))
    }

    async fn write<T, F>(&self, durability: Durability, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Connection, &Place) -> Result<T, Failure> + Send + 'static,
    {
        let (place, mut work) = (Arc::clone(&self.place), work);
        self.writer()?.write(durability, Writes::Rows, move |connection| work(connection, &place)).await
    }

    fn with_reader<T>(&self, work: impl FnOnce(&Connection) -> Result<T, Failure>) -> Result<T, StoreError> {
        let mut reader = lock(&self.reader);
        self.check_open()?;
        let read = |connection: &Connection| {
            work(connection).map_err(|failure| failure.ask_system(connection).into_store_error(&self.place))
        };
        if let Some(reader) = reader.as_ref() {
            return read(reader);
        }
        // A resuming process reads before it writes much, and saving a connection is a relevant gain.
        let idle = self.writer.as_ref().filter(|writer| writer.commits() <= COMMITS_BEFORE_READER);
        match idle.and_then(|writer| writer.borrow()) {
            Some(borrowed) => read(borrowed.connection()),
            None => read(reader.insert(open::checked_reader(&self.place, &self.options)?)),
        }
    }

    /// Reads everything from one state of the database.
    fn read<T>(&self, work: impl FnOnce(View<'_>) -> Result<T, Failure>) -> Result<T, StoreError> {
        self.with_reader(|connection| {
            let transaction = connection.unchecked_transaction()?;
            let version = schema::version(connection)?;
            if !schema::is_readable(version) {
                return Err(schema::version_error(&self.place, version).into());
            }
            let answer = work(View { connection, place: &self.place });
            transaction.finish()?;
            match answer {
                // The snapshot may predate the creation of the run. The log is written after the rows and removed
                // before them. So only a log that exists before and after another lookup proves a loss.
                Err(Failure::NoRun(run)) if !self.is_missed(connection, &run)? => {
                    Err(StoreError::no_run(self, &run).into())
                }
                answer => answer,
            }
        })
    }

    /// Returns whether a run with a log has no row.
    fn is_missed(&self, connection: &Connection, run: &RunId) -> Result<bool, Failure> {
        Ok(tail_check::has_log(&self.place, run) && RunRow::find(connection, run)?.is_none())
    }

    fn folder_of(&self, run: &RunId) -> PathBuf {
        tail_check::folder_of(&self.place, run)
    }

    fn run_folder(&self, run: &RunRecord) -> RunFolder {
        RunFolder::new(Arc::clone(&self.disk), self.folder_of(&run.run), run)
    }

    fn hold(&self, run: &RunId, token: u64, durability: Durability, folder: Option<RunFolder>) {
        let files = folder.map(|folder| Arc::new(RunFiles::of(folder, run)));
        lock(&self.held).insert(run.clone(), HeldRun { token, durability, files });
    }

    /// Drops a released lease after all its files are written: another worker may acquire it as soon as the lock is
    /// free.
    fn release_run(&self, lease: &Lease) {
        self.projector.finish();
        let mut held = lock(&self.held);
        if held.get(lease.run()).is_some_and(|held| held.token == lease.token()) {
            let files = held.remove(lease.run()).and_then(|held| held.files);
            self.place.delta_cache.remove_run(lease.run());
            // Its entries stay true if the file cannot be removed.
            let _ = files.map(|files| files.journal.remove());
        }
    }

    /// Returns free pages to the file system in slices, between which others write. Pages that cannot be returned now,
    /// for lack of space or idle time, are reused later.
    async fn shrink(&self, shrink: Shrink) {
        let Ok(writer) = self.writer() else { return };
        let work = move |connection: &_| shrink::slice(connection, shrink);
        while let Ok(true) = writer.write(Durability::Async, Writes::Pages, work).await {}
    }

    /// Records committed data outside the database, before its acknowledgement.
    fn project(&self, lease: &Lease, batch: Arc<Batch>) {
        let files = match lock(&self.held).get(lease.run()) {
            Some(held) if held.token == lease.token() => held.files.clone(),
            _ => None,
        };
        if let Some(files) = files {
            self.projector.enqueue(files, batch);
        }
    }

    /// Returns the repaired folder of a run at resume.
    fn repair_log(&self, run: &RunId) -> Result<(Durability, Option<RunFolder>), StoreError> {
        let frozen = self.read(|view| {
            let id = RunRow::get(view.connection, run)?.id;
            view.frozen(id, run)
        });
        let frozen = match frozen {
            Ok(frozen) => frozen,
            Err(StoreError::Damaged { .. } | StoreError::Version { .. }) => {
                return Ok((Durability::Sync, None));
            }
            Err(error) => return Err(error),
        };
        let folder = self.run_folder(frozen.record());
        let acknowledged = tail_check::acknowledged(&self.place, run);
        self.read(|view| {
            let id = RunRow::get(view.connection, run)?.id;
            // A log with more records than the database stays unchanged as evidence.
            if Lost::of(view, run, id, acknowledged)?.is_empty() {
                folder.heal(NewestFirst::of(view, run)?)
            } else {
                folder.heal(std::iter::empty::<Result<Record, Failure>>())
            }
        })?;
        Ok((frozen.record().durability, Some(folder)))
    }

    fn take_lock(&self, run: &RunId, holder: &Holder) -> Result<RunLock, StoreError> {
        lease::take_lock(&self.place, run, holder, self.options.allow_network)
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        if let Some(writer) = &self.writer {
            writer.settle();
        }
    }
}

impl fmt::Display for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place.name)
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("place", &self.place).finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for SqliteStore {
    async fn create(&self, run: &SealedRun, first: Batch, holder: &Holder) -> Result<Lease, StoreError> {
        self.writer()?;
        self.end_deletions().await?;
        let id = run.record().run.clone();
        match self.read(|view| RunRow::get(view.connection, &id).map(drop)) {
            Ok(()) => return Err(StoreError::Exists { run: id }),
            Err(StoreError::NotFound { .. }) => {}
            // The records of the run may be lost: the remaining files must not become part of another run.
            Err(error) => return Err(error),
        }
        let kernel_lock = self.take_lock(&id, holder)?;
        if self.is_deleting(&id)? {
            return Err(StoreError::Exists { run: id });
        }
        let first = Arc::new(first);
        let (encoded, update) = encode::encode(&self.place.delta_cache, &first.records);
        let job = (run.clone(), Arc::clone(&first));
        let made = self
            .write(Durability::Sync, move |connection, place| {
                append::create(connection, place, &job.0, &job.1, &encoded)
            })
            .await;
        if let Err(error) = made {
            if !matches!(error, StoreError::Exists { .. } | StoreError::Unknown { .. }) {
                // Nothing was created, so the lock is not needed; a left-over file is harmless.
                let _ = lease::remove_lock(kernel_lock);
            }
            return Err(error);
        }
        update.keep(&self.place.delta_cache, &first.records);
        // Files of a run without rows and log. If the files cannot be removed, the run is created with them.
        let _ = remove_folder(self.disk.as_ref(), &self.folder_of(&id));
        let folder = self.run_folder(run.record());
        folder.committed(&first.records);
        self.hold(&id, FIRST_TOKEN, run.record().durability, Some(folder));
        let lease = Lease::new(id, FIRST_TOKEN, Some(kernel_lock));
        if first.release {
            self.release_run(&lease);
        }
        Ok(lease)
    }

    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError> {
        self.refuse_deleting(run)?;
        self.read(|view| view.run(run))
    }

    async fn acquire(&self, run: &RunId, _: &ScopePath, holder: &Holder) -> Result<Lease, StoreError> {
        self.writer()?;
        self.end_deletions().await?;
        self.read(|view| RunRow::get(view.connection, run).map(drop))?;
        let kernel_lock = self.take_lock(run, holder)?;
        self.refuse_deleting(run)?;
        let (id, now) = (run.clone(), self.options.clock.now());
        // A power cut ends all leases. Later appends are synced after the token in the same log, so a token that was
        // used is never reused.
        let token = self
            .write(Durability::Async, move |connection, place| lease::acquire(connection, place, &id, now))
            .await;
        let token = match token {
            Err(error @ StoreError::NotFound { .. }) => {
                // The run was deleted meanwhile, with its lock file; this call created another.
                let _ = lease::remove_lock(kernel_lock);
                return Err(error);
            }
            token => token?,
        };
        // An earlier lease of this store may have been dropped without a release.
        self.projector.finish();
        let (durability, folder) = self.repair_log(run)?;
        self.hold(run, token, durability, folder);
        Ok(Lease::new(run.clone(), token, Some(kernel_lock)))
    }

    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError> {
        self.read(|view| {
            leases.iter().map(|held| lease::renew(view.connection, held.run(), held.token())).collect()
        })
    }

    async fn release(&self, lease: Lease, wake_at: Option<Timestamp>) -> Result<(), StoreError> {
        let (run, token) = (lease.run().clone(), lease.token());
        self.write(Durability::Sync, move |connection, _| lease::release(connection, &run, token, wake_at))
            .await?;
        self.release_run(&lease);
        Ok(())
    }

    async fn append(&self, leases: &[&Lease], batch: Batch) -> Result<Appended, StoreError> {
        let lease = batch.whole_run_lease(leases)?;
        let durability = match lock(&self.held).get(lease.run()) {
            Some(held) if held.token == lease.token() && !batch.release => held.durability,
            _ => Durability::Sync,
        };
        let writer = self.writer()?;
        let (encoded, update) = encode::encode(&self.place.delta_cache, &batch.records);
        let (run, token, batch) = (lease.run().clone(), lease.token(), Arc::new(batch));
        let (place, job) = (Arc::clone(&self.place), Arc::clone(&batch));
        let append = move |connection: &_| append::append(connection, &place, &run, token, &job, &encoded);
        let (answer, as_packed) = writer.write(durability, Writes::Records, append).await?;
        if answer == Appended::Now {
            if as_packed {
                update.keep(&self.place.delta_cache, &batch.records);
            } else {
                self.place.delta_cache.remove_run(lease.run());
            }
            self.project(lease, Arc::clone(&batch));
        }
        if batch.release {
            self.release_run(lease);
        }
        Ok(answer)
    }

    async fn heads(&self, run: &RunId, page: &Page) -> Result<Heads, StoreError> {
        let acknowledged = tail_check::acknowledged(&self.place, run);
        self.read(|view| view.heads(run, page, acknowledged))
    }

    async fn load(&self, run: &RunId, scope: &ScopePath, seq: u64) -> Result<Record, StoreError> {
        match self.read(|view| view.load(run, scope, seq, None)) {
            // Read again, since the log must be read before the rows.
            Err(StoreError::NotFound { .. }) => {
                let acknowledged = tail_check::acknowledged(&self.place, run);
                self.read(|view| view.load(run, scope, seq, Some(acknowledged)))
            }
            found => found,
        }
    }

    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError> {
        let acknowledged = tail_check::acknowledged(&self.place, &scan.run);
        self.read(|view| view.scan(scan, acknowledged))
    }

    async fn runs(&self, query: &RunQuery) -> Result<Runs, StoreError> {
        let look = || self.read(|view| view.runs(query, None));
        if query.cursor.is_some() {
            return Ok(look()?.0);
        }
        // Counting the folders of many runs takes longer than listing some runs, so both happen in parallel.
        let count = || inspect::count_folders(&self.place);
        let (found, folders) = std::thread::scope(|scope| {
            let counting = std::thread::Builder::new().spawn_scoped(scope, count);
            let found = look();
            // The system may be out of threads.
            (found, counting.map_or_else(|_| count(), |counting| counting.join().unwrap_or(usize::MAX)))
        });
        let (mut found, known) = found?;
        if folders > known {
            // Runs may be lost, or new. The folders are read before the rows, so a new run is in both.
            let acknowledged = inspect::logged_runs(&self.place);
            found = self.read(|view| view.runs(query, Some(acknowledged)))?.0;
        }
        let deleting = self.begun_deletions()?;
        found.runs.retain(|summary| !deleting.contains(&summary.run));
        Ok(found)
    }

    async fn signal(&self, run: &RunId, signal: &Signal) -> Result<Signalled, StoreError> {
        let (run, signal) = (run.clone(), signal.clone());
        self.write(Durability::Sync, move |connection, _| lease::signal(connection, &run, &signal)).await
    }

    async fn signals(&self, run: &RunId) -> Result<Vec<Signal>, StoreError> {
        self.read(|view| {
            let id = RunRow::get(view.connection, run)?.id;
            Ok(lease::pending(view.connection, id)?.into_iter().collect::<Result<_, _>>()?)
        })
    }

    async fn quarantine(&self, lease: &Lease, damage: &Damage) -> Result<(), StoreError> {
        if damage.run != *lease.run() {
            let run = &damage.run;
            return Err(StoreError::Invalid(format!(
                "the lease belongs to run {}, not to {run}",
                lease.run()
            )));
        }
        let (token, damage, now) = (lease.token(), damage.clone(), self.options.clock.now());
        self.write(Durability::Sync, move |connection, place| {
            removal::quarantine(connection, place, token, &damage, now)
        })
        .await
    }

    async fn trim(&self, lease: &Lease, keep: u32, mode: TrimMode) -> Result<Trimmed, StoreError> {
        self.check_open()?;
        let (run, token) = (lease.run(), lease.token());
        if mode == TrimMode::DryRun {
            return self.read(|view| trim::plan(view, run, None, keep)).map(|plan| plan.trimmed());
        }
        for _ in 0..TRIM_TRIES_MAX {
            let plan = self.read(|view| trim::plan(view, run, Some(token), keep))?;
            let trimmed = plan.trimmed();
            if plan.is_empty() {
                return Ok(trimmed);
            }
            let of = run.clone();
            // After a power cut, a lost trim is repeated.
            let done = self
                .write(Durability::Async, move |connection, _| trim::apply(connection, &of, token, &plan))
                .await?;
            if done {
                self.trimmed.store(true, Ordering::Relaxed);
                self.shrink(Shrink::IfMany).await;
                return Ok(trimmed);
            }
        }
        let why = format!("records of run {run} kept moving during the read");
        Err(StoreError::Invalid(format!("cannot trim: {why}")))
    }

    async fn delete(&self, run: &RunId) -> Result<(), StoreError> {
        self.delete_run(run).await
    }

    async fn deletions(&self) -> Result<Vec<RunId>, StoreError> {
        self.check_open()?;
        self.begun_deletions()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.check_open()?;
        self.projector.finish();
        let held = std::mem::take(&mut *lock(&self.held));
        let mut result = Ok(());
        if let Some(writer) = &self.writer {
            for (run, HeldRun { token, .. }) in held {
                let job = move |connection: &Connection| lease::abandon(connection, &run, token);
                result = result.and(writer.write(Durability::Async, Writes::Rows, job).await);
            }
            if self.trimmed.load(Ordering::Relaxed) {
                self.shrink(Shrink::All).await;
            }
        }
        self.closed.store(true, Ordering::Release);
        if let Some(Err((_, error))) = lock(&self.reader).take().map(Connection::close) {
            result = result.and(Err(SqliteError::from(error).to_store_error(&self.place)));
        }
        if let Some(writer) = &self.writer {
            result = result.and(writer.close());
        }
        result
    }

    async fn inspect(&self, run: Option<&RunId>) -> Result<Vec<String>, StoreError> {
        match run {
            Some(run) => self.read(|view| inspect::run(view, run)),
            None => self.with_reader(|connection| inspect::database(connection, &self.place)),
        }
    }

    fn blobs(&self) -> &dyn Blobs {
        self
    }

    fn queue(&self) -> Option<&dyn Queue> {
        None
    }

    fn folder(&self, run: &RunId) -> Option<PathBuf> {
        Some(self.folder_of(run))
    }

    fn scopes_max(&self) -> Option<u64> {
        None
    }

    fn home(&self) -> Option<&Path> {
        Some(&self.place.home)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Blobs for SqliteStore {
    async fn append(&self, lease: &Lease, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.writer()?;
        self.read(|view| RunRow::leased(view.connection, lease.run(), lease.token()).map(drop))?;
        append_blob(self.disk.as_ref(), &self.folder_of(lease.run()), name, bytes)
    }

    async fn sync(&self, lease: &Lease, name: &str) -> Result<(), StoreError> {
        self.writer()?;
        sync_blob(self.disk.as_ref(), &self.folder_of(lease.run()), name)
    }

    async fn read(&self, run: &RunId, name: &str, offset: u64) -> Result<Vec<u8>, StoreError> {
        self.check_open()?;
        read_blob(self.disk.as_ref(), &self.folder_of(run), name, offset)
    }

    fn log_folder(&self, run: &RunId) -> Option<PathBuf> {
        Some(self.folder_of(run).join(LOG_FOLDER))
    }
}
