//! What a local store keeps of a run for people: `events.jsonl`, `report.md`, `logs/`.
//!
//! ```text
//! runs/RUN/            0700
//!   events.jsonl       one line an event, in the order of the commits
//!   report.md          a head, then a section a step
//!   logs/...           blobs named `logs/...`: what steps printed
//!   blobs/...          all other blobs
//!   scratch/...        what steps under way hand over; there only while somebody works on the run
//! ```
//!
//! Events and report are derived from records after their commit. What is to be done is never read from them; that a
//! store has lost records which it once acknowledged, the log may tell ([`Told`]). So a failure
//! to write them never fails the commit: it is remembered ([`RunFolder::take_trouble`]) and nothing more is written to
//! that file until the run is taken up again, when [`RunFolder::heal`] adds what is missing. What a commit costs here
//! does not depend on how long the run is: one write to each file, neither of them synced.
//!
//! This module owns the names in the folder that are listed above. It knows no store: records are handed to it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::disk::{Disk, DiskFile, Kind, Metadata};
use crate::record::{Record, RunRecord};

mod blobs;
mod deletion;
mod events;
mod report;
mod told;

pub use blobs::{append_blob, read_blob, sync_blob};
pub use deletion::{begin_deletion, deletions, end_deletion, is_deleting};
pub use told::{Told, has_told};

/// How every unfinished file of ours begins. Only the holder of a run removes what a crash left of them.
pub const TEMP_PREFIX: &str = ".tmp-";

/// The report for people in a run's folder.
pub const REPORT: &str = "report.md";
/// The folder, in that of a run, for files that steps under way write to and the engine reads. A kill leaves it behind;
/// the next who takes the run up removes it, with whatever secrets steps may have put there.
pub const SCRATCH: &str = "scratch";

/// Deepest folder in a run's folder that is removed with it: blobs lie in folders of their own.
const DEPTH_MAX: u32 = 64;

/// How many names for an unfinished file are tried. Each one that is taken is a leftover of a process with our number.
const TEMP_NAMES_MAX: u32 = 1_000;

/// The folder of a run, as its one writer sees it.
///
/// Log and report may be written from two threads at once: neither waits for the other.
#[derive(Debug)]
pub struct RunFolder {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    events: Mutex<events::EventFile>,
    report: Mutex<report::ReportFile>,
    made: OnceLock<()>,
    trouble: Mutex<Option<Trouble>>,
}

/// A file for people that could not be written. What it lacks is added when the run is next taken up.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", .path.display())]
pub struct Trouble {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

impl RunFolder {
    /// Stands for the folder at `path`. Nothing is touched before something is written; then the folder and the one
    /// around it are made if need be.
    pub fn new(disk: Arc<dyn Disk>, path: PathBuf, run: &RunRecord) -> Self {
        let events = events::EventFile::new(path.join(told::EVENTS_FILE));
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

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes down what was committed: lines and sections of `records`, in their order.
    ///
    /// To be called once after each commit. It does not fail: see [`take_trouble`](Self::take_trouble).
    pub fn committed(&self, records: &[Record]) {
        self.log(records);
        self.report(records);
    }

    /// The first half of [`committed`](Self::committed): the lines of the log, which bear witness to what the store
    /// acknowledged. Records of several commits may be handed over together, in their order: they are written at once.
    pub fn log<'a>(&self, records: impl IntoIterator<Item = &'a Record>) {
        if self.make() {
            let written = lock(&self.events).committed(self.disk.as_ref(), records);
            written.unwrap_or_else(|trouble| self.note(trouble));
        }
    }

    /// The other half, for which nobody need wait: the sections of the report. Records of several commits are best
    /// handed over together: they are written at once.
    pub fn report<'a>(&self, records: impl IntoIterator<Item = &'a Record>) {
        if self.make() {
            let records: Vec<&Record> = records.into_iter().collect();
            let written = lock(&self.report).committed(self.disk.as_ref(), &records);
            written.unwrap_or_else(|trouble| self.note(trouble));
        }
    }

    /// Mends what a crash left behind, when the run is taken up by a new writer and before it appends.
    ///
    /// Takes away unfinished files, what steps handed over, and the torn last line of `events.jsonl`, and adds what is
    /// missing. `newest_first` gives the records of all branches against the order of their commits, and is asked only until
    /// both files have one of them, or for [`HEAL_RECORDS_MAX`] of them: older ones are not written down again.
    ///
    /// # Errors
    /// Those of `newest_first`. Troubles of the files themselves are remembered as for
    /// [`committed`](Self::committed).
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
        let mut written = report::Written::new(self.disk.as_ref(), &report);
        let mut missing = Vec::new();
        // How many of them each file lacks, once that is known.
        let (mut unlogged, mut unreported) = (None, None);
        for record in newest_first.take(HEAL_RECORDS_MAX) {
            let record = record?;
            let count = missing.len();
            if unlogged.is_none() && mark.as_ref().is_some_and(|mark| mark.covers(record.header())) {
                let is_amid = mark.as_ref().is_some_and(|mark| mark.is_amid(&record));
                unlogged = Some(count + usize::from(is_amid));
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

    /// Returns what went wrong since it was last asked, if anything did.
    pub fn take_trouble(&self) -> Option<Trouble> {
        lock(&self.trouble).take()
    }

    /// Makes the folder, once; says whether it is there.
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

/// Locks, and goes on after a panic elsewhere: a file that was being written to then is mended when it is next taken up.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Most records that [`RunFolder::heal`] writes down again: after a power cut the kernel had half a minute of them at
/// most; a file that a person deleted comes back with its newest part.
pub const HEAL_RECORDS_MAX: usize = 10_000;

/// Most records that a report may be behind its log: more than a store lets wait. Steps that say nothing leave no trace in
/// a report, however many records they have.
const REPORT_RECORDS_MAX: usize = 2_000;

impl fmt::Display for RunFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

/// Creates an unfinished file in `folder`, under a name that nobody else uses.
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

/// Removes the unfinished files in a folder. For the holder of the run, when no other writer can be at work there.
///
/// # Errors
/// As [`Disk::list`] and [`Disk::remove`]; a folder that is not there has none.
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

/// Removes a folder with all that is in it, or what else has that name; links are removed and not followed. Nothing
/// happens if it is not there.
///
/// # Errors
/// As [`Disk::list`] and [`Disk::remove`]: then some of it may be left. One that is nested deeper than any of ours is
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

/// Makes the folder of a run, and the one around it.
fn make_folder(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            disk.create_dir(path.parent().ok_or(error)?)?;
            disk.create_dir(path)
        }
        made => made,
    }
}

/// Replaces a file as a whole by what `write` writes. Not synced: a power cut may leave the old one, the new one or an empty
/// one.
fn replace_with(
    disk: &dyn Disk,
    path: &Path,
    write: impl FnOnce(&mut dyn DiskFile) -> io::Result<()>,
) -> io::Result<()> {
    let folder = path.parent().expect("a file of a run is in its folder");
    let (temp, mut file) = create_temp(disk, folder)?;
    let written = write(file.as_mut()).and_then(|()| disk.rename(&temp, path));
    if written.is_err() {
        // As well as can be: what is left is removed by the next holder.
        let _ = disk.remove(&temp);
    }
    written
}

/// Opens a file for appending, making it first if it is not there. Tells its length.
fn open_or_create(disk: &dyn Disk, path: &Path) -> io::Result<(Box<dyn DiskFile>, u64)> {
    match disk.open_append(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((disk.create_new(path)?, 0)),
        file => Ok((file?, disk.metadata(path)?.len)),
    }
}
