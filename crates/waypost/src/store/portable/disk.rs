//! Saves and loads portable checkpoints: atomic, and without an unasked overwrite.

use std::io;
use std::path::{Path, PathBuf};

use crate::record::{Flaw, other_format};
use crate::store::folder::create_temp;
use crate::system::disk::{Disk, RealDisk, write_whole};

use super::{PORTABLE_BYTES_MAX, Portable};

/// The behaviour if the file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveMode {
    /// Refuse.
    New,
    /// Replace the file.
    Replace,
}

/// Why a portable checkpoint was not saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The path exists, and was not changed. Choose another name, or [`SaveMode::Replace`].
    #[error("{} exists already", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file would exceed [`PORTABLE_BYTES_MAX`] and could not be loaded. Nothing was written.
    #[error("the checkpoint has {bytes} bytes, the maximum of a file is {PORTABLE_BYTES_MAX}")]
    TooLarge {
        /// The size in bytes.
        bytes: u64,
    },
    /// Space or quota is exhausted. An existing file of this name did not change.
    #[error("no space left to write {}", .path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The write failed. The path has its previous content, or the complete new file. After a failed sync of
    /// the folder, a power failure may leave either. An unfinished file, `.tmp-...`, may be left next to it.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// `create`, `write`, `sync`, ...
        action: &'static str,
        /// The file, or its folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a portable checkpoint was not loaded. Do not use any part of the file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file does not exist.
    #[error("there is no file {}", .path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged, or not a portable checkpoint. Get another copy.
    #[error("{} is not a sound portable checkpoint: {flaw}", .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The flaw.
        flaw: Flaw,
    },
    /// Another version wrote the intact file: a newer version, or a version from before the first release.
    /// Use this version.
    #[error("{} {}", .path.display(), other_format(*found, *supported))]
    Incompatible {
        /// The file.
        path: PathBuf,
        /// The format found.
        found: u32,
        /// The format read by this version.
        supported: u32,
    },
    /// The read failed, or the path is not a regular file.
    #[error("cannot read {}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Portable {
    /// Saves the checkpoint to a file with mode 0600; durable when this returns.
    ///
    /// The file appears complete or not at all, also after a crash.
    ///
    /// # Errors
    /// Every [`SaveError`].
    pub fn save(&self, path: &Path, mode: SaveMode) -> Result<(), SaveError> {
        self.save_to(&RealDisk, path, mode)
    }

    /// As [`Portable::save`], on a given disk.
    ///
    /// # Errors
    /// Every [`SaveError`].
    pub fn save_to(&self, disk: &dyn Disk, path: &Path, mode: SaveMode) -> Result<(), SaveError> {
        let text = self.to_text();
        if text.len() as u64 > PORTABLE_BYTES_MAX {
            return Err(SaveError::TooLarge { bytes: text.len() as u64 });
        }
        let failed = |action| move |source| failure(action, path, source);
        let folder = match (path.file_name(), path.parent()) {
            (Some(_), Some(folder)) if folder.as_os_str().is_empty() => Path::new("."),
            (Some(_), Some(folder)) => folder,
            _ => return Err(failed("create")(io::ErrorKind::IsADirectory.into())),
        };
        let (temp, mut file) = create_temp(disk, folder).map_err(failed("create"))?;
        let written = write_whole(file.as_mut(), &text).map_err(failed("write"));
        let synced = written.and_then(|()| file.sync().map_err(failed("sync")));
        let named = synced.and_then(|()| match mode {
            SaveMode::New => name_new(disk, &temp, path),
            SaveMode::Replace => disk.rename(&temp, path).map_err(failed("name")),
        });
        if named.is_err() {
            // Best effort: the first error is the one to report.
            let _ = disk.remove(&temp);
        }
        named?;
        disk.sync_dir(folder).map_err(|source| failure("sync", folder, source))
    }

    /// Loads a file, after checking every byte. Follows a symbolic link; executes nothing.
    ///
    /// # Errors
    /// Every [`LoadError`].
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => LoadError::NotFound { path: path.to_owned() },
            io::ErrorKind::FileTooLarge => {
                let flaw = Flaw::Limit(format!("the file exceeds {PORTABLE_BYTES_MAX} bytes"));
                LoadError::Corrupt { path: path.to_owned(), flaw }
            }
            _ => LoadError::Io { path: path.to_owned(), source },
        };
        let real = path.canonicalize().map_err(failed)?;
        let text = RealDisk.read(&real, PORTABLE_BYTES_MAX).map_err(failed)?;
        Self::from_text(&text).map_err(|flaw| match flaw {
            Flaw::Format { found, supported } => {
                LoadError::Incompatible { path: path.to_owned(), found, supported }
            }
            flaw => LoadError::Corrupt { path: path.to_owned(), flaw },
        })
    }
}

/// Links the finished file to its name, unless the name exists.
fn name_new(disk: &dyn Disk, temp: &Path, path: &Path) -> Result<(), SaveError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => SaveError::Exists { path: path.to_owned() },
        _ => failure("name", path, source),
    };
    match disk.hard_link(temp, path) {
        // The temporary name is unused now, and harmless if the removal fails.
        Ok(()) => disk.remove(temp).or(Ok(())),
        // File systems without hard links, such as on memory sticks: an empty file of our own reserves the
        // name first, so that a foreign file is never replaced.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) =>
        {
            drop(disk.create_new(path).map_err(failed)?);
            disk.rename(temp, path).map_err(|source| {
                let _ = disk.remove(path);
                failed(source)
            })
        }
        Err(error) => Err(failed(error)),
    }
}

fn failure(action: &'static str, path: &Path, source: io::Error) -> SaveError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => SaveError::Full { path, source },
        _ => SaveError::Io { action, path, source },
    }
}
