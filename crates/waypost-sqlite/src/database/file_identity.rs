//! Checks that SQLite's open files keep their names, because data in an unnamed file is lost.
//!
//! A removed file lives as long as it is open: writes succeed, are acknowledged, and are lost when the
//! process ends. A step that deletes too much does this to a store. So every commit first checks that each
//! file still has a name. The check takes a microsecond or two where the system supports it. (Checking less often
//! lost records: a step removes a file in less than a millisecond.) The name may also have changed after a
//! move. This check takes several times as long, and is made once per [`NAMES_EVERY`]. SQLite itself never
//! removes or replaces these files while a connection is open. The next commit notices a removal between the
//! check and the end of a commit.
//!
//! The shared memory, `-shm`, has no data beyond the log, but connections find each other through it. After a
//! removal, the next connection creates another. Then two writers use the same places of the log and
//! overwrite acknowledged data. A closing connection copies only its own view of the log to the database, and
//! removes the log with the rest. So a connection stops writing after a removal, and keeps the log.

use std::cell::{Cell, OnceCell};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::io::Errno;
use waypost::store::StoreError;

use crate::database::folder::open_flags;
use crate::database::open::Place;

/// Interval of the name checks. Few commands are faster, so the commit of a step usually notices a change by
/// this step.
const NAMES_EVERY: Duration = Duration::from_millis(1);

/// Device and inode of a file.
type Identity = (u64, u64);

/// The files of a writing connection, as at open.
#[derive(Debug)]
pub(crate) struct FileIdentities {
    database: WatchedFile,
    /// SQLite opens it in the first transaction.
    log: WatchedFile,
    /// SQLite opens it with the log's mode.
    shared: WatchedFile,
    /// When the names were last looked at.
    looked: Cell<Option<Instant>>,
}

/// A file that no longer has the name of the opened file.
#[derive(Debug)]
pub(crate) struct MissingFile<'a>(&'a Path);

impl FileIdentities {
    /// Records the identity of the files; call this right after the first read of the database.
    pub(crate) fn of(place: &Place) -> Self {
        let database = WatchedFile::new(place.file.clone());
        let [log, shared] = ["-wal", "-shm"].map(|suffix| WatchedFile::new(place.beside(suffix)));
        database.file();
        shared.file();
        Self { database, log, shared, looked: Cell::new(None) }
    }

    /// Checks that all files still exist; called at the end of a transaction.
    pub(crate) fn check(&self) -> Result<(), MissingFile<'_>> {
        let names = self.looked.get().is_none_or(|looked| looked.elapsed() >= NAMES_EVERY);
        for watched in [&self.database, &self.log, &self.shared] {
            if !watched.exists(names) {
                return Err(MissingFile(&watched.path));
            }
        }
        if names {
            self.looked.set(Some(Instant::now()));
        }
        Ok(())
    }

    /// Opens the log for writing; returns `None` if it is missing or was replaced.
    pub(crate) fn open_log(&self) -> Option<fs::File> {
        let seen = self.log.file()?;
        // Does not block on a pipe in its place.
        let opened =
            fs::OpenOptions::new().write(true).custom_flags(open_flags()).open(&self.log.path).ok()?;
        (system::identity_of(&opened) == Some(seen.identity)).then_some(opened)
    }

    /// Checks that all recorded files still exist; a connection without writes may have no log.
    pub(crate) fn check_seen(&self) -> Result<(), MissingFile<'_>> {
        let all = [&self.database, &self.log, &self.shared].into_iter();
        let loss = all.filter(|watched| watched.file.get().is_some()).find(|watched| !watched.exists(true));
        loss.map_or(Ok(()), |watched| Err(MissingFile(&watched.path)))
    }
}

/// A file with its expected name.
#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    file: OnceCell<OpenedFile>,
}

/// A file as at its first use.
#[derive(Debug)]
struct OpenedFile {
    handle: system::Handle,
    identity: Identity,
}

impl WatchedFile {
    fn new(path: PathBuf) -> Self {
        Self { path, file: OnceCell::new() }
    }

    /// Returns the file that had the name at the first call, if any.
    fn file(&self) -> Option<&OpenedFile> {
        match self.file.get() {
            Some(file) => Some(file),
            None => {
                let (handle, identity) = system::open(&self.path).ok()?;
                Some(self.file.get_or_init(|| OpenedFile { handle, identity }))
            }
        }
    }

    fn exists(&self, names: bool) -> bool {
        let Some(file) = self.file() else { return false };
        // An equal identity implies that the file has a name.
        if names { system::identity(&self.path) == Some(file.identity) } else { system::has_name(file) }
    }
}

impl MissingFile<'_> {
    /// Returns the error that stops all writes.
    pub(crate) fn to_store_error(&self) -> StoreError {
        let why = "the file was removed or replaced while in use";
        let source = match system::open(self.0) {
            // It could not be looked at.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) => error,
            _ => io::Error::new(io::ErrorKind::NotFound, why),
        };
        StoreError::Io { action: "write", place: self.0.display().to_string(), source }
    }
}

/// Queries only the inode or link count. Once the times of a file are queried, Linux records each write
/// immediately and exactly, which made every commit a fifth slower.
#[cfg(target_os = "linux")]
mod system {
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, makedev, statx};

    use super::{Identity, OpenedFile};

    /// A descriptor of a file without read and write access.
    ///
    /// Closing an ordinary descriptor would release SQLite's locks on the file in this process.
    pub(super) type Handle = OwnedFd;

    pub(super) fn open(path: &Path) -> std::io::Result<(Handle, Identity)> {
        let held = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let found = statx(&held, "", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
        Ok((held, of(&found)))
    }

    pub(super) fn has_name(file: &OpenedFile) -> bool {
        let found = statx(&file.handle, "", AtFlags::EMPTY_PATH, StatxFlags::NLINK);
        found.is_ok_and(|found| found.stx_nlink > 0)
    }

    pub(super) fn identity(path: &Path) -> Option<Identity> {
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::INO).ok()?;
        Some(of(&found))
    }

    pub(super) fn identity_of(opened: &std::fs::File) -> Option<Identity> {
        let found = statx(opened, "", AtFlags::EMPTY_PATH, StatxFlags::INO).ok()?;
        Some(of(&found))
    }

    fn of(found: &Statx) -> Identity {
        (makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::fs::Metadata;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::{Path, PathBuf};

    use super::{Identity, OpenedFile};

    /// The name of a file.
    pub(super) type Handle = PathBuf;

    pub(super) fn open(path: &Path) -> std::io::Result<(Handle, Identity)> {
        Ok((path.to_owned(), identity(path).ok_or(std::io::ErrorKind::NotFound)?))
    }

    pub(super) fn has_name(file: &OpenedFile) -> bool {
        identity(&file.handle) == Some(file.identity)
    }

    pub(super) fn identity(path: &Path) -> Option<Identity> {
        std::fs::metadata(path).ok().map(of)
    }

    pub(super) fn identity_of(opened: &std::fs::File) -> Option<Identity> {
        opened.metadata().ok().map(of)
    }

    fn of(found: Metadata) -> Identity {
        (found.dev(), found.ino())
    }
}
