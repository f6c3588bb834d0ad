//! The deletion of a run from a local store: a tombstone first, so that a kill leaves nothing for good.
//!
//! ```text
//! DIR/runs/RUN  --rename-->  DIR/deleting/RUN   the tombstone, with all files of the run: the deletion has begun
//!                            records, files and lock file are removed
//!                            DIR/deleting/RUN   removed last: the deletion has ended
//! ```
//!
//! A run with a tombstone is not there for any reader. The next writer of the store ends the deletion, under the lock of
//! that run.

use std::io;
use std::path::{Path, PathBuf};

use crate::id::RunId;
use crate::system::disk::{Disk, Kind};
use crate::system::lock::RunLock;

use super::remove_folder;

/// The folder of the tombstones, in that of the store.
const DELETING: &str = "deleting";

/// Returns the runs whose deletion has begun and not ended.
///
/// # Errors
/// As [`Disk::list`].
pub fn deletions(disk: &dyn Disk, home: &Path) -> io::Result<Vec<RunId>> {
    let entries = match disk.list(&home.join(DELETING)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let folders = entries.into_iter().filter(|entry| entry.kind == Kind::Folder);
    let mut runs: Vec<RunId> = folders.filter_map(|entry| RunId::new(entry.name.to_str()?).ok()).collect();
    runs.sort_unstable();
    Ok(runs)
}

/// Says whether the deletion of a run has begun and not ended.
///
/// # Errors
/// As [`Disk::metadata`].
pub fn is_deleting(disk: &dyn Disk, home: &Path, run: &RunId) -> io::Result<bool> {
    match disk.metadata(&tombstone(home, run)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.map(|_| true),
    }
}

/// Begins the deletion of a run, durably. For the holder of its lock.
///
/// # Errors
/// As [`Disk::rename`] and [`Disk::sync_dir`]: the deletion may have begun.
pub fn begin_deletion(disk: &dyn Disk, home: &Path, run: &RunId) -> io::Result<()> {
    let (runs, deleting, tombstone) = (home.join("runs"), home.join(DELETING), tombstone(home, run));
    disk.create_dir(&deleting)?;
    disk.sync_dir(home)?;
    match disk.rename(&runs.join(run.as_str()), &tombstone) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create_dir(&tombstone)?,
        renamed => renamed?,
    }
    disk.sync_dir(&deleting)?;
    match disk.sync_dir(&runs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        synced => synced,
    }
}

/// Removes the files of a run, its lock file and its tombstone, in this order. For the holder of its lock, when the records
/// are gone.
///
/// # Errors
/// As [`Disk::list`] and [`Disk::remove`]: the deletion has not ended.
pub fn end_deletion(disk: &dyn Disk, home: &Path, run: &RunId, lock: Option<RunLock>) -> io::Result<()> {
    let tombstone = tombstone(home, run);
    for entry in disk.list(&tombstone)? {
        remove_folder(disk, &tombstone.join(&entry.name))?;
    }
    // Of processes that worked for the run without its lease.
    for end in ["waits", "once"] {
        remove_folder(disk, &home.join("locks").join(format!("{run}.{end}")))?;
    }
    if let Some(lock) = lock {
        lock.remove_file()?;
    }
    disk.remove_dir(&tombstone)?;
    disk.sync_dir(&home.join(DELETING))
}

fn tombstone(home: &Path, run: &RunId) -> PathBuf {
    home.join(DELETING).join(run.as_str())
}
