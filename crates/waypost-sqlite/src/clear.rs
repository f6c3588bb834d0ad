//! Room on a disk that is full: there, nothing can be written to a database, not even that a run is gone. What can be
//! removed without writing is what lies beside the database.

use std::fs;
use std::io;
use std::path::Path;

use waypost::id::RunId;
use waypost::store::StoreError;

use crate::{lease, open, recent, witness};

/// The log of a run, which tells of its records.
const EVENTS_FILE: &str = "events.jsonl";

/// Removes the logs and other files of a run beside the database at `path`, but for those by which its records would be
/// missed; writes nothing.
///
/// For a run that is to be deleted where that found no room. What is left is a run whose steps have no logs.
///
/// # Errors
/// - [`StoreError::Held`]: somebody works on the run; nothing was removed.
/// - [`StoreError::Io`], [`StoreError::Full`]: it cannot be locked, or a file not be removed; others are gone.
pub fn clear_files(path: &Path, run: &RunId) -> Result<(), StoreError> {
    let place = open::find(path)?;
    let folder = witness::folder_of(&place, run);
    let _lock = lease::take_lock_unnoted(&place, run)?;
    let failed = |source| StoreError::of_write("remove", folder.display().to_string(), source);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        if path == folder.join(EVENTS_FILE) || path == recent::path_in(&folder) {
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
