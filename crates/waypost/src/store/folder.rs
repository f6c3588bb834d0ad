//! The folder of a run, for people: `events.jsonl`, `report.md`, `logs/`.
//!
//! ```text
//! runs/RUN/            0700
//!   events.jsonl       one line an event, in the order of the commits
//!   report.md          a head, then a section a step
//!   logs/...           blobs named `logs/...`: what steps printed
//!   blobs/...          all other blobs
//!   scratch/...        files of running steps; exists only during a session
//! ```
//!
//! Events and report are derived from records after their commit. No decision reads them; only a store's loss
//! of acknowledged records can be detected from the log ([`LoggedRecords`]). A failed write therefore never fails the
//! commit: the error is kept ([`RunFolder::take_trouble`]), and the file is not written any more in this
//! session. At the next open, [`RunFolder::heal`] adds the missing part. The cost of a commit does not depend
//! on the length of the run: a write to each file, without a sync.
//!
//! This module owns the names listed above. It does not know stores: callers pass records.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::record::{Record, RunRecord};
use crate::system::disk::{Disk, DiskFile, Kind, Metadata};

mod blobs;
mod deletion;
mod events;
mod logged;
mod report;

pub use blobs::{LOG_FOLDER, append_blob, is_log, read_blob, sync_blob};
pub use deletion::{begin_deletion, deletions, end_deletion, is_deleting};
pub use logged::{LoggedRecords, has_log};

/// The name prefix of unfinished files. Only the holder of a run removes them after a crash.
pub const TEMP_PREFIX: &str = ".tmp-";

/// The report in a run's folder.
pub const REPORT: &str = "report.md";
/// The scratch folder in a run's folder: running steps write files there, and the engine reads them. After a
/// kill, the next holder removes the folder, with any secrets from steps.
pub const SCRATCH: &str = "scratch";

/// Deepest nesting of folders removed with a run: blobs have folders of their own.
const DEPTH_MAX: u32 = 64;

/// Most names tried for an unfinished file. Each taken name is a leftover of a process with the same number.
const TEMP_NAMES_MAX: u32 = 1_000;

/// The folder of a run, for its single writer.
///
/// Two threads may write log and report in parallel, without waiting for each other.
#[derive(Debug)]
pub struct RunFolder {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    events: Mutex<events::EventFile>,
    report: Mutex<report::ReportFile>,
    made: OnceLock<()>,
    trouble: Mutex<Option<Trouble>>,
}

/// A file for people that could not be written. The next open of the run adds the missing part.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", .path.display())]
pub struct Trouble {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

impl RunFolder {
    /// Creates a handle for the folder at `path`. The first write creates the folder and its parent.
    pub fn new(disk: Arc<dyn Disk>, path: PathBuf, run: &RunRecord) -> Self {
        let events = events::EventFile::new(path.join(logged::EVENTS_FILE));
        let report = report::ReportFile::new(path.join(REPORT), run.clone());
        Self {
            disk,
            path,
            events: Mutex::new(events),
            report: Mutex::new(report),
            made: OnceLock::new(),
            trouble: Mutex::default(),
        }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the lines and sections of committed `records`, in order.
    ///
    /// Call it once after each commit. It does not fail: see [`take_trouble`](Self::take_trouble).
    pub fn committed(&self, records: &[Record]) {
        self.log(records);
        self.report(records);
    }

    /// The first half of [`committed`](Self::committed): the lines of the log, which prove the
    /// acknowledgement of records. Records of several commits may be passed together, in order, for a single
    /// write.
    pub fn log<'a>(&self, records: impl IntoIterator<Item = &'a Record>) {
        if self.make() {
            let written = lock(&self.events).committed(self.disk.as_ref(), records);
            written.unwrap_or_else(|trouble| self.note(trouble));
        }
    }

    /// The second half: the sections of the report, which may be written later. Pass records of several
    /// commits together, for a single write.
    pub fn report<'a>(&self, records: impl IntoIterator<Item = &'a Record>) {
        if self.make() {
            let records: Vec<&Record> = records.into_iter().collect();
            let written = lock(&self.report).committed(self.disk.as_ref(), &records);
            written.unwrap_or_else(|trouble| self.note(trouble));
        }
    }

    /// Repairs the folder after a crash, when a new writer opens the run, before its first append.
    ///
    /// Removes unfinished files, the scratch folder, and the torn last line of `events.jsonl`; adds missing
    /// lines and sections. `newest_first` yields the records of all scopes in reverse order of commit. The
    /// iterator is read until both files have a record, or up to [`HEAL_RECORDS_MAX`] records: older records
    /// are not written again.
    ///
    /// # Errors
    /// Those of `newest_first`. Errors of the files themselves are kept as in [`committed`](Self::committed).
    pub fn heal<E>(&self, newest_first: impl Iterator<Item = Result<Record, E>>) -> Result<(), E> {
        let removed = remove_leftovers(self.disk.as_ref(), &self.path)
            .and_then(|()| remove_folder(self.disk.as_ref(), &self.path.join(SCRATCH)));
        if let Err(source) = removed {
            self.note(Trouble { path: self.path.clone(), source });
            return Ok(());
        }
        let mended = lock(&self.events).mend(self.disk.as_ref());
        let mark = match mended {
            Ok(mark) => mark,
            Err(trouble) => {
                self.note(trouble);
                return Ok(());
            }
        };
        let report = self.path.join(REPORT);
        let mut written = report::ReportSections::new(self.disk.as_ref(), &report);
        let mut missing = Vec::new();
        // The number of records missing from each file, once known.
        let (mut unlogged, mut unreported) = (None, None);
        for record in newest_first.take(HEAL_RECORDS_MAX) {
            let record = record?;
            let count = missing.len();
            if unlogged.is_none() && mark.as_ref().is_some_and(|mark| mark.covers(record.header())) {
                let is_partly_written = mark.as_ref().is_some_and(|mark| mark.is_partly_written(&record));
                unlogged = Some(count + usize::from(is_partly_written));
            }
            let is_enough = unlogged.is_some() && count >= REPORT_RECORDS_MAX;
            if unreported.is_none() && (is_enough || written.has(&record)) {
                unreported = Some(count);
            }
            missing.push(record.without_body());
            if unlogged.is_some() && unreported.is_some() {
                break;
            }
        }
        missing.reverse();
        if let Some(mark) = mark {
            lock(&self.events).skip_to(mark);
        }
        let behind = |count: Option<usize>| missing.len() - count.unwrap_or(missing.len());
        let (logged, reported) = (behind(unlogged), behind(unreported));
        if logged < missing.len() {
            self.log(&missing[logged..]);
        }
        if reported < missing.len() {
            self.report(&missing[reported..]);
        }
        Ok(())
    }

    /// Returns the last error since the previous call, if any.
    pub fn take_trouble(&self) -> Option<Trouble> {
        lock(&self.trouble).take()
    }

    /// Creates the folder once; returns whether it exists.
    fn make(&self) -> bool {
        if self.made.get().is_none() {
            match make_folder(self.disk.as_ref(), &self.path) {
                Ok(()) => {
                    self.made.get_or_init(|| ());
                }
                Err(source) => self.note(Trouble { path: self.path.clone(), source }),
            }
        }
        self.made.get().is_some()
    }

    fn note(&self, trouble: Trouble) {
        *lock(&self.trouble) = Some(trouble);
    }
}

/// Locks, ignoring poison: a file under write during a panic is repaired at the next open.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Most records that [`RunFolder::heal`] writes again. After a power failure the kernel had at most half a
/// minute of records; a file deleted by a person comes back with its newest part.
pub const HEAL_RECORDS_MAX: usize = 10_000;

/// Most records that a report may lag its log: more than a store delays. Steps without an outcome leave no
/// trace in a report, however many records they have.
const REPORT_RECORDS_MAX: usize = 2_000;

impl fmt::Display for RunFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

/// Creates an unfinished file in `folder`, under a unique name.
///
/// # Errors
/// As [`Disk::create_new`].
pub fn create_temp(disk: &dyn Disk, folder: &Path) -> io::Result<(PathBuf, Box<dyn DiskFile>)> {
    let pid = std::process::id();
    let mut count = 0;
    loop {
        let path = folder.join(format!("{TEMP_PREFIX}{pid}-{count}"));
        match disk.create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && count < TEMP_NAMES_MAX => {
                count += 1
            }
            answer => return Ok((path, answer?)),
        }
    }
}

/// Removes the unfinished files in a folder. For the holder of the run, when no other writer can be active.
///
/// # Errors
/// As [`Disk::list`] and [`Disk::remove`]; a missing folder is not an error.
pub fn remove_leftovers(disk: &dyn Disk, folder: &Path) -> io::Result<()> {
    let entries = match disk.list(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let unfinished = entry.name.to_str().is_some_and(|name| name.starts_with(TEMP_PREFIX));
        if unfinished && entry.kind == Kind::File {
            disk.remove(&folder.join(&entry.name))?;
        }
    }
    Ok(())
}

/// Removes a folder with its content, or a file of this name; links are removed and not followed. A missing
/// path is not an error.
///
/// # Errors
/// As [`Disk::list`] and [`Disk::remove`]: a part may then be left. Deeper nesting than in our own folders is
/// refused.
pub fn remove_folder(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    remove_folder_at(disk, path, 0)
}

fn remove_folder_at(disk: &dyn Disk, path: &Path, depth: u32) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(io::Error::other(format!("`{}` is nested too deep", path.display())));
    }
    match disk.metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(Metadata { kind: Kind::File | Kind::Other, .. }) => return disk.remove(path),
        Ok(Metadata { kind: Kind::Folder, .. }) => {}
    }
    for entry in disk.list(path)? {
        remove_folder_at(disk, &path.join(&entry.name), depth + 1)?;
    }
    disk.remove_dir(path)
}

/// Creates the folder of a run, and its parent.
fn make_folder(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            disk.create_dir(path.parent().ok_or(error)?)?;
            disk.create_dir(path)
        }
        made => made,
    }
}

/// Replaces a file by the output of `write`, without a sync: a power failure may leave the old file, the new
/// file or an empty one.
fn replace_with(
    disk: &dyn Disk,
    path: &Path,
    write: impl FnOnce(&mut dyn DiskFile) -> io::Result<()>,
) -> io::Result<()> {
    let folder = path.parent().expect("a file of a run is in its folder");
    let (temp, mut file) = create_temp(disk, folder)?;
    let written = write(file.as_mut()).and_then(|()| disk.rename(&temp, path));
    if written.is_err() {
        // Best effort: the next holder removes the leftover.
        let _ = disk.remove(&temp);
    }
    written
}

/// Opens a file for appending, creating it if missing; returns its length, too.
fn open_or_create(disk: &dyn Disk, path: &Path) -> io::Result<(Box<dyn DiskFile>, u64)> {
    match disk.open_append(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((disk.create_new(path)?, 0)),
        file => Ok((file?, disk.metadata(path)?.len)),
    }
}
