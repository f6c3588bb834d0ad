//! File names in the folder of a run. Commit files are ordered by number.

use std::io;
use std::path::{Path, PathBuf};

use crate::system::disk::{Disk, Kind};

pub(super) const RUN_FILE: &str = "run.json";
pub(super) const RUN_COPY_FILE: &str = "run.copy.json";
pub(super) const LEASE_FILE: &str = "lease.json";
pub(super) const NEWEST_FILE: &str = "checkpoint.json";
pub(super) const JOURNAL_FILE: &str = "journal.jsonl";
pub(super) const HISTORY: &str = "history";
pub(super) const SIGNALS: &str = "signals";
pub(super) const QUARANTINE: &str = "quarantine";
pub(super) const SIDECAR_SUFFIX: &str = ".sha256";
pub(super) const NOTE_SUFFIX: &str = ".note";
const COMMIT_PREFIX: &str = "checkpoint_";
const COMMIT_SUFFIX: &str = ".json";

/// The paths of a run.
#[derive(Debug, Clone)]
pub(super) struct RunPaths {
    pub(super) root: PathBuf,
}

impl RunPaths {
    pub(super) fn history(&self) -> PathBuf {
        self.root.join(HISTORY)
    }

    pub(super) fn commit(&self, number: u64) -> PathBuf {
        self.history().join(commit_name(number))
    }

    pub(super) fn sidecar(&self, number: u64) -> PathBuf {
        self.history().join(format!("{}{SIDECAR_SUFFIX}", commit_name(number)))
    }

    pub(super) fn lease(&self) -> PathBuf {
        self.root.join(LEASE_FILE)
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.root.join(JOURNAL_FILE)
    }

    pub(super) fn signals(&self) -> PathBuf {
        self.root.join(SIGNALS)
    }

    pub(super) fn quarantine(&self) -> PathBuf {
        self.root.join(QUARANTINE)
    }
}

/// Returns the name of a commit file, with at least ten digits, so that a folder lists commits in order.
pub(super) fn commit_name(number: u64) -> String {
    format!("{COMMIT_PREFIX}{number:010}{COMMIT_SUFFIX}")
}

/// Returns the commit number of a file name, if the name is that of a commit file.
pub(super) fn commit_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix(COMMIT_PREFIX)?.strip_suffix(COMMIT_SUFFIX)?.parse().ok()?;
    (commit_name(number) == name).then_some(number)
}

/// Returns the names of the files in a folder; empty without a folder.
pub(super) fn files_in(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<String>> {
    let entries = match disk.list(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let files = entries.into_iter().filter(|entry| entry.kind == Kind::File);
    Ok(files.filter_map(|entry| entry.name.into_string().ok()).collect())
}

/// Returns the numbers of the commit files of a run, in numerical order.
pub(super) fn commit_numbers(disk: &dyn Disk, history: &Path) -> io::Result<Vec<u64>> {
    let names = files_in(disk, history)?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| commit_number(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::{commit_name, commit_number};

    #[test]
    fn commit_names_are_numbers_even_beyond_ten_digits() {
        for number in [1, 9_999, 10_000, 9_999_999_999, 10_000_000_000, u64::MAX] {
            assert_eq!(commit_number(&commit_name(number)), Some(number));
        }
        for name in [
            "checkpoint_1.json",
            "checkpoint_00000000001.json",
            "checkpoint_+000000001.json",
            "checkpoint.json",
        ] {
            assert_eq!(commit_number(name), None, "{name}");
        }
    }
}
