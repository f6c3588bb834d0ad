//! Reclaims disk space next to a database on a full disk. There the database is not writable, even to delete
//! a run, but files can still be removed.

use std::fs;
use std::io;
use std::path::Path;

use waypost::id::RunId;
use waypost::store::StoreError;

use crate::database::open;
use crate::tables::ack_journal;
use crate::tables::lease;
use crate::tables::tail_check;

/// The event log of a run, needed to detect lost records.
const EVENTS_FILE: &str = "events.jsonl";

/// Removes the files of a run next to the database at `path`, except those needed to detect lost records. The
/// database is not written.
///
/// Intended for a run whose deletion failed on a full disk. The run remains, but without step logs.
///
/// # Errors
/// - [`StoreError::Held`]: a worker holds the run; nothing was removed.
/// - [`StoreError::Io`], [`StoreError::Full`]: the run cannot be locked, or a file cannot be removed; other
///   files may be gone.
pub fn clear_files(path: &Path, run: &RunId) -> Result<(), StoreError> {
    let place = open::find(path)?;
    let folder = tail_check::folder_of(&place, run);
    let _lock = lease::take_lock_unnoted(&place, run)?;
    let failed = |source| StoreError::of_write("remove", folder.display().to_string(), source);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        if path == folder.join(EVENTS_FILE) || path == ack_journal::path_in(&folder) {
            continue;
        }
        let removed = match entry.file_type().map_err(failed)?.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.map_err(failed)?;
    }
    Ok(())
}
