//! Blobs as files: logs where a person looks for them, the rest apart.

use std::io;
use std::path::{Path, PathBuf};

use super::{make_folder, open_or_create};
use crate::disk::{Disk, write_whole};
use crate::store::BLOB_CHUNK_BYTES;

/// Longest name of a blob: a branch, a step and an attempt fit, and a path of it stays below every system's limit.
pub const BLOB_NAME_BYTES_MAX: usize = 512;

/// Longest segment of a name: what every file system takes (255 bytes).
const SEGMENT_BYTES_MAX: usize = 255;

/// What cannot be done with a blob.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The name is none. Nothing changed; a bug of the caller.
    #[error(
        "`{0}` is no name of a blob: path segments of letters, digits, `.`, `_`, `-`, joined by `/`, none of them `.` or `..`"
    )]
    Name(String),
    /// The chunk is larger than [`BLOB_CHUNK_BYTES`]. Nothing changed; a bug of the caller.
    #[error("a chunk of {0} bytes is too large: {BLOB_CHUNK_BYTES} are allowed")]
    Chunk(usize),
    /// The file could not be read or written.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Appends at most [`BLOB_CHUNK_BYTES`] to a blob of the run whose folder is `run`; makes folders as needed. Not synced.
///
/// The caller has made sure that it holds the run's lease.
///
/// # Errors
/// [`BlobError`]; of the chunk, any part may have been written after [`BlobError::Io`].
pub fn append_blob(disk: &dyn Disk, run: &Path, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
    let place = place_of(name)?;
    if bytes.len() > BLOB_CHUNK_BYTES {
        return Err(BlobError::Chunk(bytes.len()));
    }
    let path = run.join(&place);
    let failed = |source| BlobError::Io { action: "write", path: path.clone(), source };
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

/// Reads at most [`BLOB_CHUNK_BYTES`] from `offset`; nothing at the end and where there is no such blob.
///
/// # Errors
/// [`BlobError::Name`], [`BlobError::Io`].
pub fn read_blob(disk: &dyn Disk, run: &Path, name: &str, offset: u64) -> Result<Vec<u8>, BlobError> {
    let path = run.join(place_of(name)?);
    match disk.read_at(&path, offset, BLOB_CHUNK_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(BlobError::Io { action: "read", path, source }),
        Ok(bytes) => Ok(bytes),
    }
}

/// Makes the folders between a run's folder and a blob in it, and that of the run too.
fn create_folders(disk: &dyn Disk, run: &Path, place: &Path) -> io::Result<()> {
    make_folder(disk, run)?;
    let mut folder = run.to_owned();
    for segment in place.parent().into_iter().flat_map(Path::components) {
        folder.push(segment);
        disk.create_dir(&folder)?;
    }
    Ok(())
}

/// Returns where a blob lies in the run's folder: never outside of it, and never in the place of another file of ours.
fn place_of(name: &str) -> Result<PathBuf, BlobError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let sound = |segment: &str| {
        !matches!(segment, "" | "." | "..")
            && segment.len() <= SEGMENT_BYTES_MAX
            && segment.bytes().all(allowed)
    };
    if name.len() > BLOB_NAME_BYTES_MAX || !name.split('/').all(sound) {
        return Err(BlobError::Name(name.chars().take(80).collect()));
    }
    if name.starts_with("logs/") { Ok(name.into()) } else { Ok(Path::new("blobs").join(name)) }
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
