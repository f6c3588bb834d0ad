//! Whether what is written can be found again: the files that SQLite has open still have their names.
//!
//! A file that somebody removed is there for as long as it is open: everything that is written to it succeeds, is
//! acknowledged, and is gone with the process. A step that cleans up too much does that to a store in its way. So the
//! names are looked at before every commit, which costs three calls of about a microsecond; SQLite itself never removes
//! or replaces these files while a connection is open. What is removed between that look and the end of the commit is
//! noticed by the next one.
//!
//! The shared memory, `-shm`, holds nothing that is not in the log, but by it those who have the database open know of
//! each other. Who opens it after it was removed makes another, and then two write the same places of the log, each
//! over what the other had acknowledged; and who ends copies into the database what it knows of the log, and removes
//! the log with all the rest. So a connection that finds another file there writes no more, and leaves the log as it is.

use std::cell::OnceCell;
use std::io;
use std::path::{Path, PathBuf};

use waypost::store::StoreError;

use crate::open::Place;

/// Device and inode: what a name stands for.
type Identity = (u64, u64);

/// The files of a connection that writes, as they were when it opened them.
#[derive(Debug)]
pub(crate) struct Present {
    database: (PathBuf, OnceCell<Identity>),
    /// SQLite opens it in the first transaction.
    log: (PathBuf, OnceCell<Identity>),
    /// SQLite opens it with the log's mode.
    shared: (PathBuf, OnceCell<Identity>),
}

/// A file that is not what was opened under its name.
#[derive(Debug)]
pub(crate) struct Missing<'a>(&'a Path);

impl Present {
    /// Notes which files they are; to be called right after the database was opened and read.
    pub(crate) fn of(place: &Place) -> Self {
        let noted = |path: PathBuf| {
            let known = identity(&path).map_or_else(OnceCell::new, OnceCell::from);
            (path, known)
        };
        let log = (place.beside("-wal"), OnceCell::new());
        Self { database: noted(place.file.clone()), log, shared: noted(place.beside("-shm")) }
    }

    /// Looks whether all are still there; within a transaction, before it ends.
    pub(crate) fn check(&self) -> Result<(), Missing<'_>> {
        for (path, known) in [&self.database, &self.log, &self.shared] {
            let found = identity(path).ok_or(Missing(path))?;
            if *known.get_or_init(|| found) != found {
                return Err(Missing(path));
            }
        }
        Ok(())
    }

    /// Looks whether those that were seen are still there; a connection that never wrote may have seen no log.
    pub(crate) fn check_seen(&self) -> Result<(), Missing<'_>> {
        let gone = |(path, known): &&(PathBuf, OnceCell<Identity>)| {
            known.get().is_some_and(|known| identity(path) != Some(*known))
        };
        let gone = [&self.database, &self.log, &self.shared].into_iter().find(gone);
        gone.map_or(Ok(()), |(path, _)| Err(Missing(path)))
    }
}

impl Missing<'_> {
    /// Says that nothing may be written any more.
    pub(crate) fn to_store_error(&self) -> StoreError {
        let why = "it was removed or replaced while it was in use";
        let source = io::Error::new(io::ErrorKind::NotFound, why);
        StoreError::Io { action: "write", place: self.0.display().to_string(), source }
    }
}

/// Asks for the inode and nothing else: once somebody has asked for the times of a file, Linux notes each write to it
/// at once and exactly, which made every commit a fifth slower.
#[cfg(target_os = "linux")]
fn identity(path: &Path) -> Option<Identity> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::INO).ok()?;
    Some((makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

#[cfg(not(target_os = "linux"))]
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}
