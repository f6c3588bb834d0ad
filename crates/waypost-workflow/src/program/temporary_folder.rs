//! Folders below `TMPDIR` that end with their process, also after a kill.
//!
//! A process holds a kernel lock on each of its folders. A folder without a lock belongs to a dead process.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

/// The purpose of a folder, in its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Files of running steps.
    Scratch,
    /// The included files of a run.
    Files,
}

impl Purpose {
    const ALL: [Self; 2] = [Self::Scratch, Self::Files];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Scratch => "waypost-scratch-",
            Self::Files => "waypost-files-",
        }
    }
}

/// A folder with owner-only access. The drop removes the folder; after a kill, the next call of [`make`](Self::make) does.
#[derive(Debug)]
pub struct TemporaryFolder {
    folder: TempDir,
    _lock: File,
}

impl TemporaryFolder {
    /// Makes a folder below `TMPDIR`, and removes the folders of dead processes of this user there.
    ///
    /// # Errors
    /// The error of the creation.
    pub fn make(purpose: Purpose) -> io::Result<Self> {
        let parent = std::env::temp_dir();
        remove_abandoned(&parent);
        loop {
            let folder = tempfile::Builder::new().prefix(purpose.prefix()).tempdir_in(&parent)?;
            // Another process may have removed the folder before the lock.
            match File::open(folder.path()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                lock => {
                    let lock = lock?;
                    // Without locks, as on some network file systems, no process removes the folder.
                    let _ = flock(&lock, FlockOperation::LockExclusive);
                    if folder.path().exists() {
                        return Ok(Self { folder, _lock: lock });
                    }
                }
            }
        }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders of dead processes. An error leaves a folder to the next process.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let user = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let is_named =
            Purpose::ALL.iter().any(|purpose| name.to_string_lossy().starts_with(purpose.prefix()));
        let is_own = || entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user);
        if !is_named || !is_own() {
            continue;
        }
        let Ok(lock) = File::open(&path) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_without_a_lock_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = parent.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let [held, abandoned, other] =
            ["waypost-files-held", "waypost-scratch-abandoned", "waypost-of-a-person"].map(make);
        let lock = File::open(&held).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();

        remove_abandoned(parent.path());

        assert_eq!([held, abandoned, other].map(|path| path.exists()), [true, false, true]);
    }
}
