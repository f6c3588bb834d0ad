//! The folder for files that steps under way write to: their outputs, and what they add to the report.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use waypost::engine::Attempt;
use waypost::folder::SCRATCH;

use super::log_name;

/// The folder for what steps hand over could not be made. No step was started; make room or mend the disk, and resume.
#[derive(Debug, thiserror::Error)]
#[error("cannot make folder `{}` for what steps hand over", path.display())]
pub struct ScratchError {
    /// The folder.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// Such a folder, for its owner only; removed when this is dropped, unless another one has been made in its place.
///
/// It lies in the run's folder, so that what a kill leaves of it, secrets perhaps, is found and removed by whoever takes
/// the run up next, and is nowhere else than the run is. A store without folders has no next one: there it is a
/// temporary folder of the system.
#[derive(Debug)]
pub(super) enum ScratchFolder {
    OfRun {
        path: PathBuf,
        /// Keeps its number from being given to another folder, so that it is known whether this one is still there.
        handle: File,
    },
    Temporary(TempDir),
}

impl ScratchFolder {
    /// Makes it, in `run`, the run's folder; what was left of an earlier one is removed. For the holder of the run.
    pub(super) fn make(run: Option<PathBuf>) -> Result<Self, ScratchError> {
        let Some(run) = run else {
            let made = tempfile::Builder::new().prefix("waypost-").tempdir();
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
        // Steps are told of it, and they run in folders of their own.
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

    /// Says whether its disk has no room left, by writing a little there.
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
            // Whoever takes the run up next removes what could not be removed now.
            let _ = remove(path);
        }
    }
}

/// Says whether a folder is still the one that was opened: whoever took the run over has made another one.
fn is_same(path: &Path, opened: &File) -> io::Result<bool> {
    let (found, opened) = (std::fs::symlink_metadata(path)?, opened.metadata()?);
    Ok(found.dev() == opened.dev() && found.ino() == opened.ino())
}

/// Removes what has that name, if anything has; what a link leads to stays.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
    }
}

/// Files that a step writes to, its own for each try.
pub(super) struct Scratch {
    pub(super) output: PathBuf,
    pub(super) summary: PathBuf,
    pub(super) events: PathBuf,
}

impl Scratch {
    /// Makes them, empty and for their owner only: a step may read, count or append to them at once.
    pub(super) fn make(folder: &Path, attempt: &Attempt) -> io::Result<Self> {
        let name = log_name(&attempt.branch, &attempt.step, &attempt.at).replace('/', ".");
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
        // The step may have removed them; what is left goes with the folder.
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
        // What happened: the next step of a run that was taken over failed, as it found no folder for its outputs.
        // Why: who had lost the lease removed its folder by name on its way out, and that was the new holder's.
        // What stops it now: it removes only the folder that it made.
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
