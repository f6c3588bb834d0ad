//! Scratch folder: files that running steps write, for outputs, events and the report.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use waypost::engine::Attempt;
use waypost::folder::SCRATCH;

use super::log_name;
use super::temporary_folder::{Purpose, TemporaryFolder};

/// The scratch folder cannot be created. No step was started; free space or repair the disk, then resume.
#[derive(Debug, thiserror::Error)]
#[error("cannot create scratch folder `{}`", path.display())]
pub struct ScratchError {
    /// Path of the folder.
    pub path: PathBuf,
    /// System error.
    pub source: io::Error,
}

/// Scratch folder with owner-only access. Dropping removes the folder, unless replaced by another folder.
///
/// The folder is inside the run's folder. After a kill, the next holder of the run removes the contents,
/// possibly with secrets. A store without folders has no place there, so the system's temporary folder is
/// used.
#[derive(Debug)]
pub(super) enum ScratchFolder {
    OfRun {
        path: PathBuf,
        /// Open handle: prevents reuse of the inode number, so a replaced folder is detected.
        handle: File,
    },
    Temporary(TemporaryFolder),
}

impl ScratchFolder {
    /// Makes the folder in the run's folder `run`, after removing an earlier folder. For the holder of the
    /// run.
    pub(super) fn make(run: Option<PathBuf>) -> Result<Self, ScratchError> {
        let Some(run) = run else {
            let made = TemporaryFolder::make(Purpose::Scratch);
            return made
                .map(Self::Temporary)
                .map_err(|source| ScratchError { path: std::env::temp_dir(), source });
        };
        Self::make_in(&run).map_err(|source| ScratchError { path: run.join(SCRATCH), source })
    }

    fn make_in(run: &Path) -> io::Result<Self> {
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700);
        builder.recursive(true).create(run)?;
        // Absolute path: steps get this path, and run in other folders.
        let path = run.canonicalize()?.join(SCRATCH);
        remove(&path)?;
        builder.recursive(false).create(&path)?;
        let handle = File::open(&path)?;
        Ok(Self::OfRun { path, handle })
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::OfRun { path, .. } => path,
            Self::Temporary(folder) => folder.path(),
        }
    }

    /// Returns whether the disk is full, by writing 4 KiB.
    pub(super) fn is_full(&self) -> bool {
        let written =
            tempfile::NamedTempFile::new_in(self.path()).and_then(|mut file| file.write_all(&[1; 4096]));
        written.is_err_and(|error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        })
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if let Self::OfRun { path, handle } = self
            && is_same(path, handle).unwrap_or(false)
        {
            // If the removal fails, the next holder of the run removes the folder.
            let _ = remove(path);
        }
    }
}

/// Returns whether `path` is still the opened folder; a new holder of the run makes another one.
fn is_same(path: &Path, opened: &File) -> io::Result<bool> {
    let (found, opened) = (std::fs::symlink_metadata(path)?, opened.metadata()?);
    Ok(found.dev() == opened.dev() && found.ino() == opened.ino())
}

/// Removes the file or folder at `path`, if present. The target of a link stays.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
    }
}

/// Files of one attempt.
pub(super) struct Scratch {
    pub(super) output: PathBuf,
    pub(super) summary: PathBuf,
    pub(super) events: PathBuf,
}

impl Scratch {
    /// Makes the files, empty and with owner-only access, so that the step may read or append at once.
    pub(super) fn make(folder: &Path, attempt: &Attempt) -> io::Result<Self> {
        let name = log_name(&attempt.scope, &attempt.step, &attempt.at).replace('/', ".");
        let scratch = Self {
            output: folder.join(format!("{name}.output")),
            summary: folder.join(format!("{name}.summary")),
            events: folder.join(format!("{name}.events")),
        };
        for path in [&scratch.output, &scratch.summary, &scratch.events] {
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        }
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The step may have removed a file. Remaining files are removed with the folder.
        for path in [&self.output, &self.summary, &self.events] {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ScratchFolder;

    #[test]
    fn what_took_over_keeps_its_folder() {
        // What happened: after a takeover of a run the next step failed, because the scratch folder was
        // missing. Why: the process without the lease removed the folder by name, and hit the folder of the
        // new holder. What stops it now: a process removes only the folder that it made.
        let run = tempfile::tempdir().unwrap();
        let of_run = || Some(run.path().to_owned());
        let old = ScratchFolder::make(of_run()).unwrap();
        let new = ScratchFolder::make(of_run()).unwrap();

        drop(old);

        assert!(new.path().is_dir());
        drop(new);
        assert_eq!(std::fs::read_dir(run.path()).unwrap().count(), 0);
    }
}
