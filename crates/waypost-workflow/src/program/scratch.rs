//! The folder for files that steps under way write to: their outputs, and what they add to the report.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use waypost::folder::SCRATCH;

/// Such a folder, for its owner only; removed when this is dropped.
///
/// It lies in the run's folder, so that what a kill leaves of it, secrets perhaps, is found and removed by whoever takes
/// the run up next, and is nowhere else than the run is. A store without folders has no next one: there it is a
/// temporary folder of the system.
#[derive(Debug)]
pub(super) enum ScratchFolder {
    OfRun(PathBuf),
    Temporary(TempDir),
}

impl ScratchFolder {
    /// Makes it, in `run`, the run's folder; what was left of an earlier one is removed. For the holder of the run.
    pub(super) fn make(run: Option<PathBuf>) -> io::Result<Self> {
        let Some(run) = run else {
            return tempfile::Builder::new().prefix("waypost-").tempdir().map(Self::Temporary);
        };
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700);
        builder.recursive(true).create(&run)?;
        // Steps are told of it, and they run in folders of their own.
        let path = run.canonicalize()?.join(SCRATCH);
        remove(&path)?;
        builder.recursive(false).create(&path)?;
        Ok(Self::OfRun(path))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::OfRun(path) => path,
            Self::Temporary(folder) => folder.path(),
        }
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if let Self::OfRun(path) = self {
            // Whoever takes the run up next removes what could not be removed now.
            let _ = remove(path);
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
