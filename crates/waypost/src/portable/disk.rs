//! To a file and back: whole or not at all, and never in place of another unasked.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{Disk, RealDisk, write_whole};
use crate::folder::create_temp;
use crate::record::{Flaw, other_format};

use super::{PORTABLE_BYTES_MAX, Portable};

/// What to do where a file of that name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveMode {
    /// Refuse.
    New,
    /// Take its place.
    Replace,
}

/// Why a portable checkpoint was not saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// There is something of that name. It was not touched; choose another name, or [`SaveMode::Replace`].
    #[error("{} exists already", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// It would be larger than [`PORTABLE_BYTES_MAX`], and could not be loaded. Nothing was written.
    #[error("the checkpoint has {bytes} bytes, {PORTABLE_BYTES_MAX} are allowed in a file")]
    TooLarge {
        /// Its size in bytes.
        bytes: u64,
    },
    /// No space or quota is left. What had that name before still has it.
    #[error("no space left to write {}", .path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Writing failed. What has that name is what was there before, or the new file as a whole; after a failed sync of
    /// the folder it may be either once the power fails. An unfinished file, `.tmp-…`, may be left beside it.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// `create`, `write`, `sync`, …
        action: &'static str,
        /// The file, or its folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a portable checkpoint was not loaded. Nothing of it may be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no such file.
    #[error("there is no file {}", .path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// It is not what was written, or no portable checkpoint at all. Get another copy.
    #[error("{} is no sound portable checkpoint: {flaw}", .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        flaw: Flaw,
    },
    /// Another version wrote the sound file: a newer one, or one from before the first release. Use the same version.
    #[error("{} {}", .path.display(), other_format(*found, *supported))]
    Incompatible {
        /// The file.
        path: PathBuf,
        /// The format found.
        found: u32,
        /// The format read by this version.
        supported: u32,
    },
    /// Reading failed, or it is no regular file.
    #[error("cannot read {}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Portable {
    /// Writes it to a file for its owner only (0600); durable when this returns.
    ///
    /// The file appears whole or not at all, whatever happens on the way.
    ///
    /// # Errors
    /// Every [`SaveError`].
    pub fn save(&self, path: &Path, mode: SaveMode) -> Result<(), SaveError> {
        self.save_to(&RealDisk, path, mode)
    }

    /// As [`Portable::save`], on a disk of the caller's choice.
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
            // As well as can be: the error that counts is the first one.
            let _ = disk.remove(&temp);
        }
        named?;
        disk.sync_dir(folder).map_err(|source| failure("sync", folder, source))
    }

    /// Loads a file, after checking every byte of it. A symbolic link is followed; nothing is executed.
    ///
    /// # Errors
    /// Every [`LoadError`].
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => LoadError::NotFound { path: path.to_owned() },
            io::ErrorKind::FileTooLarge => {
                let flaw = Flaw::Limit(format!("it has more than the {PORTABLE_BYTES_MAX} bytes allowed"));
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

/// Gives the finished file its name, unless something has it.
fn name_new(disk: &dyn Disk, temp: &Path, path: &Path) -> Result<(), SaveError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => SaveError::Exists { path: path.to_owned() },
        _ => failure("name", path, source),
    };
    match disk.hard_link(temp, path) {
        // The other name is of no use any more, and does no harm if it stays.
        Ok(()) => disk.remove(temp).or(Ok(())),
        // A file system without hard links, as on a memory stick: an empty file of our own takes the name first, so
        // that none of somebody else's is replaced.
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
