//! The file store: runs as folders of readable files, a file per commit.
//!
//! ```text
//! DIR/ordinal.json                        gives runs their order
//!     locks/RUN.lock                      kernel locks
//!     deleting/RUN                        a run whose deletion has begun (`crate::store::folder`)
//!     runs/RUN/run.json, run.copy.json    the frozen run record, twice
//!              history/checkpoint_0000000003.json, and .sha256 beside it
//!              checkpoint.json            the newest commit, for people
//!              journal.jsonl              headers of what rotation removed
//!              lease.json                 the token of the newest lease
//!              signals/  quarantine/  events.jsonl  report.md  logs/  blobs/
//! ```
//!
//! **The highest sound commit file decides.** No timestamp and no pointer says which commit is the newest. A
//! commit file holds the summary, the counters and the token of the run. So a step costs two syncs, of the file
//! and of its folder (`write`), and the cost of finding the newest commit does not depend on the length of the
//! run (`read`). Every file verifies itself (`format`); a damaged file is reported, skipped, and quarantined by
//! the holder of the lease.
//!
//! **Fencing.** The kernel lock of a run ensures a single writer and ends with its process. The lock may fail:
//! its file was removed by hand, or a network file system does not lock. Then the token protects the run. A new
//! lease makes a greater token durable in `lease.json` before its holder writes anything, and every append reads
//! that token first.
//!
//! A new holder may still appear between this read and the write. Both writers then write the commit of the same
//! number, and the hard link that names the file admits only one writer. The other writer gets the error that it
//! was fenced.
//!
//! All disk access goes through [`Disk`], except for kernel locks. A call blocks the thread for a few syncs at
//! most.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::Timestamp;

use crate::id::{RunId, ScopePath};
use crate::record::{Record, SealedRun};
use crate::store::folder::{LOG_FOLDER, Trouble, append_blob, deletions, read_blob, sync_blob};
use crate::store::{
    Appended, Batch, BatchId, Blobs, Damage, Heads, Lease, Page, Queue, Renewal, RunEntry, RunQuery, Runs,
    Scan, Scanned, Signal, Signalled, Store, StoreError, TrimMode, Trimmed, check_blob_name,
};
use crate::system::disk::{Disk, Kind, RealDisk};
use crate::system::lock::Holder;

mod create;
mod format;
mod journal;
mod lease;
mod list;
mod lookup;
mod missing;
mod paths;
mod read;
mod replay;
mod retain;
mod run_record;
mod scan;
mod signals;
mod tail_check;
mod write;

use lease::{Locking, Seats, locked};
use lookup::{IndexSource, LookupCache};
use paths::RunPaths;
use read::{RunReader, read_error};

/// The default number of step boundaries that keep their states: enough to go back a few steps, and few enough
/// for a readable folder.
pub const RETENTION_DEFAULT: u32 = 5;

/// A store that keeps runs as folders.
#[derive(Debug)]
pub struct FileStore {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    locking: Locking,
    retention: Option<u32>,
    read_only: bool,
    closed: AtomicBool,
    seats: Seats,
    remembered: LookupCache,
    store_lock: Mutex<()>,
}

impl fmt::Display for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file:{}", self.dir.display())
    }
}

impl FileStore {
    /// Opens the store in the folder `dir`, and creates the folder and its parents if missing.
    ///
    /// # Errors
    /// [`StoreError::Create`]: the folder cannot be created, or `dir` is not a folder.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let store = Self::new(Arc::new(RealDisk), dir.into(), Locking::Kernel { allow_network: false });
        if store.disk.metadata(&store.dir).is_err() {
            lease::sync_new_folder(store.disk.as_ref(), &store.dir)
                .map_err(|source| StoreError::Create { path: store.dir.clone(), source })?;
        }
        Ok(store)
    }

    /// Opens the store for reading only. Calls that would write are refused.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]: the folder does not exist.
    pub fn open_read_only(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let mut store = Self::new(Arc::new(RealDisk), dir.into(), Locking::Kernel { allow_network: false });
        store.read_only = true;
        match store.disk.metadata(&store.dir) {
            Ok(metadata) if metadata.kind == Kind::Folder => Ok(store),
            _ => Err(StoreError::NotFound { store: store.to_string(), what: "folder".to_owned() }),
        }
    }

    /// Makes a store on another disk. Run locks are valid only within this value, so the caller must keep all
    /// other writers away from the disk.
    pub fn on(disk: Arc<dyn Disk>, dir: impl Into<PathBuf>) -> Self {
        Self::new(disk, dir.into(), Locking::InProcess)
    }

    fn new(disk: Arc<dyn Disk>, dir: PathBuf, locking: Locking) -> Self {
        Self {
            disk,
            dir,
            locking,
            retention: Some(RETENTION_DEFAULT),
            read_only: false,
            closed: AtomicBool::new(false),
            seats: Mutex::default(),
            remembered: LookupCache::default(),
            store_lock: Mutex::default(),
        }
    }

    /// Sets how many step boundaries keep their states, for runs without their own setting. Values below 2 mean
    /// 2; `None` keeps all.
    #[must_use]
    pub fn with_retention(self, retention: Option<u32>) -> Self {
        Self { retention, ..self }
    }

    /// Trusts the locks of network file systems: for a folder used by a single machine.
    #[must_use]
    pub fn allow_network(self) -> Self {
        let locking = match self.locking {
            Locking::Kernel { .. } => Locking::Kernel { allow_network: true },
            Locking::InProcess => Locking::InProcess,
        };
        Self { locking, ..self }
    }

    /// Returns the last problem with the event log or the report of a run held by this store, once.
    pub fn take_trouble(&self, run: &RunId) -> Option<Trouble> {
        let seat = locked(&self.seats).get(run).cloned()?;
        let mut seat = locked(&seat);
        seat.writer.as_mut()?.folder.as_mut()?.take_trouble()
    }

    fn runs_folder(&self) -> PathBuf {
        self.dir.join("runs")
    }

    fn locks(&self) -> PathBuf {
        self.dir.join("locks")
    }

    fn lock_path(&self, run: &RunId) -> PathBuf {
        self.locks().join(format!("{run}.lock"))
    }

    fn run_paths(&self, run: &RunId) -> RunPaths {
        lease::paths_of(&self.runs_folder(), run)
    }

    fn index(&self) -> IndexSource<'_> {
        IndexSource(&self.remembered)
    }

    fn reader<'a>(&'a self, run: &'a RunId) -> RunReader<'a> {
        RunReader { disk: self.disk.as_ref(), run, paths: self.run_paths(run) }
    }

    /// Returns a reader of an existing run.
    fn readable<'a>(&'a self, run: &'a RunId) -> Result<RunReader<'a>, StoreError> {
        self.check_open()?;
        self.check_there(run)?;
        Ok(self.reader(run))
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) { Err(StoreError::Closed(self.to_string())) } else { Ok(()) }
    }

    fn check_writable(&self) -> Result<(), StoreError> {
        self.check_open()?;
        if !self.read_only {
            return Ok(());
        }
        let source = io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the store is open read-only");
        Err(StoreError::Io { action: "write", place: self.to_string(), source })
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Store for FileStore {
    async fn create(&self, run: &SealedRun, first: Batch, holder: &Holder) -> Result<Lease, StoreError> {
        self.check_writable()?;
        self.create_run(run, &first, holder)
    }

    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError> {
        self.check_open()?;
        self.entry(run)
    }

    async fn acquire(&self, run: &RunId, _: &ScopePath, holder: &Holder) -> Result<Lease, StoreError> {
        self.check_writable()?;
        self.acquire_run(run, holder)
    }

    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError> {
        let mut answers = Vec::with_capacity(leases.len());
        for lease in leases {
            let answer = self.with_writer(lease, |writer| {
                writer.check_newest()?;
                let mut asked = signals::pending(&writer.reader(), Some(&writer.consumed))?;
                asked.retain(|signal| signal.kind.is_for_the_run());
                Ok(asked)
            });
            answers.push(match answer {
                Ok(asked) => Renewal::Held(asked),
                Err(StoreError::Fenced { .. } | StoreError::NotFound { .. }) => Renewal::Lost,
                Err(error) => return Err(error),
            });
        }
        Ok(answers)
    }

    async fn release(&self, lease: Lease, wake_at: Option<Timestamp>) -> Result<(), StoreError> {
        self.with_writer(&lease, |writer| {
            writer.check_newest()?;
            if wake_at.is_some() {
                writer.write_lease(wake_at)?;
            }
            writer.sync_all()
        })?;
        locked(&self.seat(lease.run())).release();
        Ok(())
    }

    async fn append(&self, leases: &[&Lease], batch: Batch) -> Result<Appended, StoreError> {
        let lease = batch.whole_run_lease(leases)?;
        self.check_writable()?;
        let seat = self.seat(lease.run());
        let mut seat = locked(&seat);
        let applied = |last: BatchId| batch.id.token == last.token && batch.id.count <= last.count;
        if seat.last_batch.is_some_and(applied) {
            return Ok(Appended::Before);
        }
        let known = seat.token;
        let Some(writer) = seat.writer.as_mut().filter(|_| known == lease.token()) else {
            // The batch may have been applied under a lease unknown to this store.
            let newest = self.readable(lease.run())?.newest()?;
            return match newest {
                Some(commit) if applied(commit.batch) => Ok(Appended::Before),
                _ => Err(self.fenced(lease)?),
            };
        };
        let appended = writer.append(&batch);
        self.index().committed(lease.run(), writer.number, writer.files);
        if let Err(StoreError::Fenced { .. }) = &appended {
            seat.release();
        }
        appended?;
        seat.last_batch = Some(batch.id);
        if batch.release {
            seat.release();
        }
        Ok(Appended::Now)
    }

    async fn heads(&self, run: &RunId, page: &Page) -> Result<Heads, StoreError> {
        self.readable(run)?.heads(page)
    }

    async fn load(&self, run: &RunId, scope: &ScopePath, seq: u64) -> Result<Record, StoreError> {
        self.readable(run)?.load(scope, seq, &self.index())
    }

    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError> {
        self.readable(&scan.run)?.scan(scan, &self.index())
    }

    async fn runs(&self, query: &RunQuery) -> Result<Runs, StoreError> {
        self.check_open()?;
        self.list(query)
    }

    async fn signal(&self, run: &RunId, signal: &Signal) -> Result<Signalled, StoreError> {
        self.check_writable()?;
        self.check_there(run)?;
        self.with_store_lock(|| {
            self.check_there(run)?;
            signals::leave(self.disk.as_ref(), &self.run_paths(run), signal)
        })
    }

    async fn signals(&self, run: &RunId) -> Result<Vec<Signal>, StoreError> {
        signals::pending(&self.readable(run)?, None)
    }

    async fn quarantine(&self, lease: &Lease, damage: &Damage) -> Result<(), StoreError> {
        self.with_writer(lease, |writer| {
            writer.check_newest()?;
            self.index().check_again(&writer.run);
            writer.quarantine(damage, &self.index())
        })
    }

    async fn trim(&self, lease: &Lease, keep: u32, mode: TrimMode) -> Result<Trimmed, StoreError> {
        if mode == TrimMode::DryRun {
            return self.readable(lease.run())?.surplus(keep).map(|surplus| surplus.trimmed);
        }
        self.with_writer(lease, |writer| {
            writer.check_newest()?;
            let trimmed = writer.trim(keep);
            writer.plan_rotation();
            trimmed
        })
    }

    async fn delete(&self, run: &RunId) -> Result<(), StoreError> {
        self.check_writable()?;
        self.delete_run(run)
    }

    async fn deletions(&self) -> Result<Vec<RunId>, StoreError> {
        self.check_open()?;
        deletions(self.disk.as_ref(), &self.dir).map_err(|source| read_error(&self.dir, source))
    }

    async fn inspect(&self, run: Option<&RunId>) -> Result<Vec<String>, StoreError> {
        match run {
            Some(run) => run_record::findings(self.disk.as_ref(), run, &self.readable(run)?.paths),
            None => self.check_open().map(|()| Vec::new()),
        }
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.check_open()?;
        self.closed.store(true, Ordering::Release);
        let mut closed = Ok(());
        for seat in std::mem::take(&mut *locked(&self.seats)).into_values() {
            let mut seat = locked(&seat);
            if let Some(writer) = &mut seat.writer {
                closed = closed.and(writer.sync_all());
            }
            seat.release();
        }
        closed
    }

    fn blobs(&self) -> &dyn Blobs {
        self
    }

    fn queue(&self) -> Option<&dyn Queue> {
        None
    }

    fn folder(&self, run: &RunId) -> Option<PathBuf> {
        Some(self.run_paths(run).root)
    }

    fn scopes_max(&self) -> Option<u64> {
        Some(write::SCOPES_MAX as u64)
    }

    fn home(&self) -> Option<&Path> {
        Some(&self.dir)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Blobs for FileStore {
    async fn append(&self, lease: &Lease, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.check_open()?;
        check_blob_name(name)?;
        self.with_writer(lease, |writer| {
            writer.check_newest()?;
            append_blob(writer.disk.as_ref(), &writer.paths.root, name, bytes)
        })
    }

    async fn sync(&self, lease: &Lease, name: &str) -> Result<(), StoreError> {
        self.check_open()?;
        self.with_writer(lease, |writer| sync_blob(writer.disk.as_ref(), &writer.paths.root, name))
    }

    async fn read(&self, run: &RunId, name: &str, offset: u64) -> Result<Vec<u8>, StoreError> {
        self.check_open()?;
        read_blob(self.disk.as_ref(), &self.run_paths(run).root, name, offset)
    }

    fn log_folder(&self, run: &RunId) -> Option<PathBuf> {
        Some(self.run_paths(run).root.join(LOG_FOLDER))
    }
}
