//! Whether what is written can be found again: the files that SQLite has open still have their names.
//!
//! A file that somebody removed is there for as long as it is open: everything that is written to it succeeds, is
//! acknowledged, and is gone with the process. A step that cleans up too much does that to a store in its way. So each
//! file is asked before every commit whether it still has a name, which costs a microsecond or two where the system can
//! be asked about an open file. (Asking some of them only now and then lost records: a step takes less than a millisecond to
//! remove one.) Whether that name is the one that it was opened by, as it is not once somebody has moved the file away,
//! takes several times as long to find out: that is looked at once in [`NAMES_EVERY`]. SQLite itself never removes or replaces these files while a connection is open. What is removed
//! between a look and the end of the commit is noticed by the next one.
//!
//! The shared memory, `-shm`, holds nothing that is not in the log, but by it those who have the database open know of
//! each other. Who opens it after it was removed makes another, and then two write the same places of the log, each
//! over what the other had acknowledged; and who ends copies into the database what it knows of the log, and removes
//! the log with all the rest. So a connection that finds it removed writes no more, and leaves the log as it is.

use std::cell::{Cell, OnceCell};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::io::Errno;
use waypost::store::StoreError;

use crate::open::Place;
use crate::recent::open_flags;

/// How often the names are looked at: few commands end sooner, so that what a step of a workflow did is mostly noticed by
/// the commit behind it.
const NAMES_EVERY: Duration = Duration::from_millis(1);

/// Device and inode: what a name stands for.
type Identity = (u64, u64);

/// The files of a connection that writes, as they were when it opened them.
#[derive(Debug)]
pub(crate) struct Present {
    database: Watched,
    /// SQLite opens it in the first transaction.
    log: Watched,
    /// SQLite opens it with the log's mode.
    shared: Watched,
    /// When the names were last looked at.
    looked: Cell<Option<Instant>>,
}

/// A file that is not what was opened under its name.
#[derive(Debug)]
pub(crate) struct Missing<'a>(&'a Path);

impl Present {
    /// Notes which files they are; to be called right after the database was opened and read.
    pub(crate) fn of(place: &Place) -> Self {
        let database = Watched::new(place.file.clone());
        let [log, shared] = ["-wal", "-shm"].map(|suffix| Watched::new(place.beside(suffix)));
        database.file();
        shared.file();
        Self { database, log, shared, looked: Cell::new(None) }
    }

    /// Looks whether all are still there; within a transaction, before it ends.
    pub(crate) fn check(&self) -> Result<(), Missing<'_>> {
        let names = self.looked.get().is_none_or(|looked| looked.elapsed() >= NAMES_EVERY);
        for watched in [&self.database, &self.log, &self.shared] {
            if !watched.is_there(names) {
                return Err(Missing(&watched.path));
            }
        }
        if names {
            self.looked.set(Some(Instant::now()));
        }
        Ok(())
    }

    /// Opens the log for writing; none if it is not there, or not the one that was seen.
    pub(crate) fn open_log(&self) -> Option<fs::File> {
        let seen = self.log.file()?;
        // A pipe in its place is not waited for.
        let opened =
            fs::OpenOptions::new().write(true).custom_flags(open_flags()).open(&self.log.path).ok()?;
        (system::identity_of(&opened) == Some(seen.identity())).then_some(opened)
    }

    /// Looks whether those that were seen are still there; a connection that never wrote may have seen no log.
    pub(crate) fn check_seen(&self) -> Result<(), Missing<'_>> {
        let all = [&self.database, &self.log, &self.shared].into_iter();
        let gone = all.filter(|watched| watched.file.get().is_some()).find(|watched| !watched.is_there(true));
        gone.map_or(Ok(()), |watched| Err(Missing(&watched.path)))
    }
}

/// A file that is to keep its name.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    file: OnceCell<system::File>,
}

impl Watched {
    fn new(path: PathBuf) -> Self {
        Self { path, file: OnceCell::new() }
    }

    /// Returns the file that had the name when this was first asked; none if there is none.
    fn file(&self) -> Option<&system::File> {
        match self.file.get() {
            Some(file) => Some(file),
            None => system::File::find(&self.path).ok().map(|found| self.file.get_or_init(|| found)),
        }
    }

    fn is_there(&self, names: bool) -> bool {
        let Some(file) = self.file() else { return false };
        // What the name stands for has one.
        if names { system::identity(&self.path) == Some(file.identity()) } else { file.has_name() }
    }
}

impl Missing<'_> {
    /// Says that nothing may be written any more.
    pub(crate) fn to_store_error(&self) -> StoreError {
        let why = "it was removed or replaced while it was in use";
        let source = match system::File::find(self.0) {
            // It could not be looked at.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) => error,
            _ => io::Error::new(io::ErrorKind::NotFound, why),
        };
        StoreError::Io { action: "write", place: self.0.display().to_string(), source }
    }
}

/// Asks for the inode, or the number of names, and nothing else: once somebody has asked for the times of a file, Linux
/// notes each write to it at once and exactly, which made every commit a fifth slower.
#[cfg(target_os = "linux")]
mod system {
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, makedev, open, statx};

    use super::Identity;

    /// A file, held by a descriptor that can neither read nor write.
    ///
    /// Of a usual one, closing it would take the locks away that SQLite has on the file in this process.
    #[derive(Debug)]
    pub(super) struct File {
        held: OwnedFd,
        identity: Identity,
    }

    impl File {
        pub(super) fn find(path: &Path) -> std::io::Result<Self> {
            let held = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let found = statx(&held, "", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
            Ok(Self { held, identity: of(&found) })
        }

        pub(super) fn identity(&self) -> Identity {
            self.identity
        }

        pub(super) fn has_name(&self) -> bool {
            let found = statx(&self.held, "", AtFlags::EMPTY_PATH, StatxFlags::NLINK);
            found.is_ok_and(|found| found.stx_nlink > 0)
        }
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

    use super::Identity;

    /// A file, known by its name.
    #[derive(Debug)]
    pub(super) struct File {
        path: PathBuf,
        identity: Identity,
    }

    impl File {
        pub(super) fn find(path: &Path) -> std::io::Result<Self> {
            let identity = identity(path).ok_or(std::io::ErrorKind::NotFound)?;
            Ok(Self { path: path.to_owned(), identity })
        }

        pub(super) fn identity(&self) -> Identity {
            self.identity
        }

        pub(super) fn has_name(&self) -> bool {
            identity(&self.path) == Some(self.identity)
        }
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
