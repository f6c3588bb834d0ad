//! Blobs as files: logs in `logs/`, all others in `blobs/`.

use std::io;
use std::path::{Path, PathBuf};

use super::{make_folder, open_or_create};
use crate::store::{BLOB_CHUNK_BYTES, StoreError, check_blob_name};
use crate::system::disk::{Disk, write_whole};

/// The folder of logs in the folder of a run, and in the names of logs.
pub const LOG_FOLDER: &str = "logs";

/// Returns whether a blob is a log, by its name.
#[must_use]
pub fn is_log(name: &str) -> bool {
    name.strip_prefix(LOG_FOLDER).is_some_and(|rest| rest.starts_with('/'))
}

/// Appends at most [`BLOB_CHUNK_BYTES`] to a blob in the run's folder `run`; creates folders as needed. Not
/// synced.
///
/// The caller holds the run's lease.
///
/// # Errors
/// - [`StoreError::Invalid`]: invalid name, or too large a chunk; nothing was written.
/// - [`StoreError::Full`], [`StoreError::Io`]: any part of the chunk may have been written.
pub fn append_blob(disk: &dyn Disk, run: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let place = place_of(name)?;
    if bytes.len() > BLOB_CHUNK_BYTES {
        let found = bytes.len();
        return Err(StoreError::Invalid(format!(
            "a chunk has {found} bytes, the maximum is {BLOB_CHUNK_BYTES}"
        )));
    }
    let path = run.join(&place);
    let failed = |source| StoreError::of_write("write", path.display().to_string(), source);
    let opened = match open_or_create(disk, &path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_folders(disk, run, &place).map_err(failed)?;
            open_or_create(disk, &path)
        }
        opened => opened,
    };
    let (mut file, _) = opened.map_err(failed)?;
    write_whole(file.as_mut(), bytes).map_err(failed)
}

/// Syncs a blob and its parent folders.
///
/// # Errors
/// [`StoreError::Invalid`]: invalid name. [`StoreError::Full`], [`StoreError::Io`]: do not refer to the blob.
pub fn sync_blob(disk: &dyn Disk, run: &Path, name: &str) -> Result<(), StoreError> {
    let path = run.join(place_of(name)?);
    let failed = |source| StoreError::of_write("sync", path.display().to_string(), source);
    let (mut file, _) = open_or_create(disk, &path).map_err(failed)?;
    file.sync().map_err(failed)?;
    let above = path.ancestors().skip(1).take_while(|folder| folder.starts_with(run)).chain(run.parent());
    for folder in above {
        disk.sync_dir(folder).map_err(failed)?;
    }
    Ok(())
}

/// Reads at most [`BLOB_CHUNK_BYTES`] from `offset`; empty at the end and for a missing blob.
///
/// # Errors
/// [`StoreError::Invalid`]: invalid name. [`StoreError::Io`].
pub fn read_blob(disk: &dyn Disk, run: &Path, name: &str, offset: u64) -> Result<Vec<u8>, StoreError> {
    let path = run.join(place_of(name)?);
    match disk.read_at(&path, offset, BLOB_CHUNK_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(StoreError::Io { action: "read", place: path.display().to_string(), source }),
        Ok(bytes) => Ok(bytes),
    }
}

/// Creates the run's folder, and the folders from there to a blob.
fn create_folders(disk: &dyn Disk, run: &Path, place: &Path) -> io::Result<()> {
    make_folder(disk, run)?;
    let mut folder = run.to_owned();
    for segment in place.parent().into_iter().flat_map(Path::components) {
        folder.push(segment);
        disk.create_dir(&folder)?;
    }
    Ok(())
}

/// Returns the path of a blob in the run's folder: never outside, and never in place of another file of ours.
fn place_of(name: &str) -> Result<PathBuf, StoreError> {
    check_blob_name(name)?;
    if is_log(name) { Ok(name.into()) } else { Ok(Path::new("blobs").join(name)) }
}

#[cfg(test)]
mod tests {
    use super::place_of;

    #[test]
    fn no_name_leads_out_of_the_folder_or_to_another_file() {
        for name in [
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            "..",
            "../a",
            "logs/../../a",
            ".",
            "a/./b",
            "a b",
            "a\0",
            "ä",
            "a\\b",
        ] {
            assert!(place_of(name).is_err(), "{name:?}");
        }
        for (name, place) in
            [("logs/a.1.log", "logs/a.1.log"), ("logs", "blobs/logs"), ("run.json", "blobs/run.json")]
        {
            assert_eq!(place_of(name).unwrap().to_str(), Some(place));
        }
    }
}
