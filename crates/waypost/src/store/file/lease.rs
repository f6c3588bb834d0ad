//! Leases: the right to append to a run, and the fencing of writers without this right.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::id::RunId;
use crate::store::folder::remove_leftovers;
use crate::store::{BatchId, Lease, StoreError};
use crate::system::disk::Disk;
use crate::system::lock::{Holder, LockError, RunLock};

use super::FileStore;
use super::format::{CommitFile, FILE_BYTES_MAX, LeaseFile, Small};
use super::lookup::IndexSource;
use super::paths::{LEASE_FILE, NEWEST_FILE, RunPaths};
use super::read::{CommitWalk, ScopeTail, read_error};
use super::replay::NewestFirst;
use super::run_record;
use super::write::{Tail, Writer};

/// Tokens skipped if `lease.json` is damaged: more than the plausible number of leases without a commit.
const TOKENS_SKIPPED: u64 = 1 << 20;
/// How long to wait for the store lock. A holder needs the lock for a few syncs.
const STORE_LOCK_WAIT: Duration = Duration::from_secs(10);
/// The polling interval for the store lock.
const STORE_LOCK_STEP: Duration = Duration::from_millis(1);
/// The name of the store lock among the run locks; not a valid run id.
const STORE_LOCK: &str = ".store.lock";

/// The mechanism that ensures a single writer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Locking {
    /// Kernel locks, across all processes of this machine.
    Kernel {
        /// True to trust the locks of network file systems.
        allow_network: bool,
    },
    /// Only within this `FileStore`: for a disk that does not belong to the machine.
    InProcess,
}

/// The lease of this store on a run: held or released.
#[derive(Debug, Default)]
pub(super) struct Seat {
    pub(super) token: u64,
    pub(super) last_batch: Option<BatchId>,
    /// Set while the lease is held.
    pub(super) writer: Option<Box<Writer>>,
    holder: Option<Holder>,
}

impl Seat {
    /// Releases the lease. The kernel lock ends with the last copy of the [`Lease`].
    pub(super) fn release(&mut self) {
        self.writer = None;
        self.holder = None;
    }
}

pub(super) type Seats = Mutex<BTreeMap<RunId, Arc<Mutex<Seat>>>>;

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // All changes under these mutexes are complete before any possible panic, so a poisoned mutex is safe to use.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FileStore {
    pub(super) fn seat(&self, run: &RunId) -> Arc<Mutex<Seat>> {
        locked(&self.seats).entry(run.clone()).or_default().clone()
    }

    /// Takes the run lock.
    pub(super) fn lock_run(
        &self,
        run: &RunId,
        seat: &Seat,
        holder: &Holder,
    ) -> Result<Option<RunLock>, StoreError> {
        let held = |holder| Err(StoreError::Held { run: run.clone(), holder, until: None });
        match self.locking {
            Locking::InProcess if seat.writer.is_some() => held(seat.holder.clone()),
            Locking::InProcess => Ok(None),
            Locking::Kernel { allow_network } => {
                match RunLock::take(&self.lock_path(run), holder, allow_network) {
                    Ok(lock) => Ok(Some(lock)),
                    Err(LockError::Held { holder, .. }) => {
                        held(Some(*holder).filter(|holder| holder.pid != 0))
                    }
                    Err(error) => Err(lock_error(error)),
                }
            }
        }
    }

    /// Returns the current holder of a run.
    pub(super) fn holder_of(&self, run: &RunId) -> Result<Option<Holder>, StoreError> {
        if let Locking::InProcess = self.locking {
            let seat = locked(&self.seats).get(run).cloned();
            return Ok(seat.and_then(|seat| locked(&seat).holder.clone()));
        }
        let path = self.lock_path(run);
        RunLock::probe(&path).map_err(|source| read_error(&path, source))
    }

    /// Makes the lease of a new writer.
    pub(super) fn seat_writer(
        seat: &mut Seat,
        writer: Writer,
        lock: Option<RunLock>,
        holder: &Holder,
    ) -> Lease {
        *seat = Seat {
            token: writer.token,
            last_batch: writer.last_batch,
            holder: Some(holder.clone()),
            writer: None,
        };
        let lease = Lease::new(writer.run.clone(), writer.token, lock);
        seat.writer = Some(Box::new(writer));
        lease
    }

    pub(super) fn acquire_run(&self, run: &RunId, holder: &Holder) -> Result<Lease, StoreError> {
        let paths = self.run_paths(run);
        self.end_deletions()?;
        self.check_there(run)?;
        let seat = self.seat(run);
        let mut seat = locked(&seat);
        let lock = self.lock_run(run, &seat, holder)?;
        // The run may have been deleted before this process got the lock.
        self.check_there(run)?;
        // Before anything is written.
        run_record::refuse_newer(self.disk.as_ref(), run, &paths)?;
        let mut writer = Writer::new(self.disk.clone(), run.clone(), paths, 0);
        writer.take_over(self.retention, &self.index())?;
        Ok(Self::seat_writer(&mut seat, writer, lock, holder))
    }

    /// Calls `change` with the writer of a valid lease.
    pub(super) fn with_writer<T>(
        &self,
        lease: &Lease,
        change: impl FnOnce(&mut Writer) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.check_open()?;
        let seat = self.seat(lease.run());
        let mut seat = locked(&seat);
        let token = seat.token;
        match &mut seat.writer {
            Some(writer) if token == lease.token() => change(writer),
            _ => Err(self.fenced(lease)?),
        }
    }

    /// Returns the error for a lost lease, if the run exists.
    pub(super) fn fenced(&self, lease: &Lease) -> Result<StoreError, StoreError> {
        let reader = self.readable(lease.run())?;
        let of_commit = reader.newest()?.map_or(0, |commit| commit.token);
        let of_lease = reader.lease()?.and_then(Result::ok).map_or(0, |lease| lease.token);
        let newest = of_commit.max(of_lease);
        Ok(StoreError::Fenced { run: lease.run().clone(), token: lease.token(), newest })
    }

    /// Calls `change` under the store lock: no other process creates runs or sends signals in this store.
    pub(super) fn with_store_lock<T>(
        &self,
        change: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let _here = locked(&self.store_lock);
        let Locking::Kernel { allow_network } = self.locking else { return change() };
        let path = self.locks().join(STORE_LOCK);
        // The lock file names the holder. The start time does not matter for such a short hold.
        let holder = Holder::here(Timestamp::UNIX_EPOCH)
            .map_err(|source| read_error(Path::new("the process table"), source))?;
        let mut waited = Duration::ZERO;
        let _lock = loop {
            match RunLock::take(&path, &holder, allow_network) {
                Ok(lock) => break lock,
                Err(LockError::Held { .. }) if waited < STORE_LOCK_WAIT => {
                    std::thread::sleep(STORE_LOCK_STEP);
                    waited += STORE_LOCK_STEP;
                }
                Err(error) => return Err(lock_error(error)),
            }
        };
        change()
    }
}

fn lock_error(error: LockError) -> StoreError {
    match error {
        LockError::Io { path, source } => {
            match StoreError::of_write("write", path.display().to_string(), source) {
                StoreError::Io { source, .. } => StoreError::Create { path, source },
                full => full,
            }
        }
        LockError::NetworkFileSystem { .. } => StoreError::Invalid(error.to_string()),
        LockError::Held { path, holder } => {
            let source = io::Error::new(io::ErrorKind::WouldBlock, format!("held by {holder}"));
            StoreError::Create { path, source }
        }
    }
}

impl Writer {
    /// Takes over a run from its last writer, alive or dead. Cleans up, finds the newest sound commit, and makes
    /// a greater token durable. From then on the old token is fenced.
    fn take_over(&mut self, retention: Option<u32>, index: &IndexSource<'_>) -> Result<(), StoreError> {
        let disk = self.disk.clone();
        let history = self.paths.history();
        let failed =
            |path: &Path, source| StoreError::of_write("clean up", path.display().to_string(), source);
        for folder in [&self.paths.root, &history, &self.paths.quarantine()] {
            remove_leftovers(disk.as_ref(), folder).map_err(|source| failed(folder, source))?;
        }
        // If the history folder is missing, `checkpoint.json` may still hold the newest commit, to be restored
        // there.
        if matches!(disk.metadata(&history), Err(error) if error.kind() == io::ErrorKind::NotFound) {
            let made = disk.create_dir(&history).and_then(|()| disk.sync_dir(&self.paths.root));
            made.map_err(|source| StoreError::of_write("make", history.display().to_string(), source))?;
        }
        let (walk, is_missed) = self.find_tails()?;
        let missing = walk.missing.last().copied().unwrap_or(0);
        let newest_file = walk.numbers.last().copied().unwrap_or(0);
        let moved = self.reader().moved()?.last().copied().unwrap_or(0);
        self.number = newest_file.max(missing).max(moved);
        self.files = walk.numbers.len();
        let mut newest_token = 0;
        if let Some(commit) = walk.sound.first() {
            newest_token = commit.token;
            self.checkpoints = commit.checkpoints;
            self.last_batch = Some(commit.batch);
            self.summary = Some(commit.summary.clone());
            self.consumed = commit.consumed.iter().cloned().collect();
        }
        let mut wake_at = None;
        self.token = match self.reader().lease()? {
            None => newest_token + 1,
            Some(Ok(lease)) => {
                // The due time from the release is valid until a newer commit.
                wake_at = lease.wake_at.filter(|_| lease.commit == self.number);
                newest_token.max(lease.token) + 1
            }
            Some(Err(_)) => {
                self.copy_aside(LEASE_FILE);
                newest_token + TOKENS_SKIPPED
            }
        };
        // Before `lease.json` names the commit: a commit named there must be durable.
        match walk.sound.first() {
            Some(newest) => self.place_again(newest.number)?,
            None => disk.sync_dir(&history).map_err(|source| self.poison(&history, source))?,
        }
        self.write_lease(wake_at)?;
        // The last writer may have died between its commit and the marks.
        self.mark_consumed();
        self.plan_rotation();
        self.mend_run_record()?;
        if let Some((_, Ok(record))) = run_record::read_run(disk.as_ref(), &self.run, &self.paths)? {
            self.configure(record.record(), retention);
            // The missing records must stay in the log for the next check.
            if !is_missed {
                self.heal(index)?;
            }
        }
        Ok(())
    }

    /// Writes the newest commit file again, under the same name.
    ///
    /// The previous writer may have died before the sync of the folder, or may have seen that sync fail. After a
    /// failed sync, a later sync proves nothing about the name. If the file is missing or damaged,
    /// `checkpoint.json` has the bytes; the damaged file goes to quarantine.
    fn place_again(&mut self, number: u64) -> Result<(), StoreError> {
        let (disk, history, path) = (self.disk.clone(), self.paths.history(), self.paths.commit(number));
        let is_sound = |text: &[u8]| CommitFile::open(&self.run, number, text).is_ok();
        let copy = self.paths.root.join(NEWEST_FILE);
        let read_copy = || match disk.read(&copy, FILE_BYTES_MAX) {
            Ok(text) if !is_sound(&text) => Err(io::Error::other("the file changed since the last read")),
            text => text,
        };
        let (text, is_damaged) = match disk.read(&path, FILE_BYTES_MAX) {
            Ok(text) if is_sound(&text) => (text, false),
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::FileTooLarge) => {
                return Err(read_error(&path, error));
            }
            found => {
                let text = read_copy().map_err(|source| read_error(&copy, source))?;
                (text, !matches!(found, Err(error) if error.kind() == io::ErrorKind::NotFound))
            }
        };
        if is_damaged {
            self.move_replaced(number)?;
        }
        self.replace_file(&history, &path, &text)
    }

    /// Reads the end of every scope. Returns the commits of the walk, and true if newest records are missing.
    pub(super) fn find_tails(&mut self) -> Result<(CommitWalk, bool), StoreError> {
        let (walk, ends) = self.reader().walk_to_ends()?;
        self.tails = ends.iter().map(|(scope, end)| (scope.clone(), Tail::from(end))).collect();
        let is_missed = ends.values().any(ScopeTail::misses_any);
        Ok((walk, is_missed))
    }

    /// Makes the token of this lease and the due time of the run durable.
    pub(super) fn write_lease(&mut self, wake_at: Option<Timestamp>) -> Result<(), StoreError> {
        let text = LeaseFile { token: self.token, commit: self.number, wake_at }.seal();
        self.replace_file(&self.paths.root.clone(), &self.paths.lease(), &text)
    }

    /// Adds the records missing from `events.jsonl` and `report.md` after a crash.
    fn heal(&self, index: &IndexSource<'_>) -> Result<(), StoreError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        folder.heal(NewestFirst::new(self.reader(), index))
    }
}

/// Creates a folder and its missing parents, and makes their names durable.
pub(super) fn sync_new_folder(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match (disk.create_dir(path), path.parent()) {
        (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound && parent != Path::new("") => {
            sync_new_folder(disk, parent)?;
            disk.create_dir(path)?;
        }
        (made, _) => made?,
    }
    let synced = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => disk.sync_dir(parent),
        _ => disk.sync_dir(Path::new(".")),
    };
    if synced.is_err() {
        // After a failed sync, another sync proves nothing about this name: remove the folder, so that the next
        // call creates it. An older folder is not empty and stays.
        let _ = disk.remove_dir(path);
    }
    synced
}

/// Returns the paths of a run.
pub(super) fn paths_of(runs: &Path, run: &RunId) -> RunPaths {
    RunPaths { root: runs.join(run.as_str()) }
}
