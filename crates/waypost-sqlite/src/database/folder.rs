//! The folder of a database for locks and run files.
//!
//! People choose run ids, so two databases may contain runs with the same id. Such runs must not share a
//! lock, which would block either run. They must not share a log either, because tail-loss detection would
//! report the records of the other run as lost. So every database has its own folder:
//!
//! ```text
//!   .waypost/waypost.db    .waypost/{locks,runs}                usual name: the parent folder
//!   reports/sales.db       reports/sales.db.waypost/{locks,runs}
//! ```

use rustix::fs::OFlags;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Name of a database that uses its parent folder.
const USUAL_NAME: &str = "waypost.db";
/// Suffix of the folder of any other database.
const SUFFIX: &str = ".waypost";

/// Returns the folder that holds `locks` and `runs` of the database at `file`.
///
/// For `waypost.db` this is the parent folder, else a sibling folder: `sales.db.waypost` for `sales.db`.
/// Links to an existing database are resolved, so that all its names yield the same folder.
pub fn folder_of(file: &Path) -> PathBuf {
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let mut name = match file.file_name() {
        Some(name) if name != USUAL_NAME => name.to_owned(),
        _ => return file.parent().unwrap_or(Path::new("/")).to_owned(),
    };
    name.push(SUFFIX);
    file.with_file_name(name)
}

/// Creates the folder with mode 0700 unless it is the parent folder, and makes git ignore its content.
pub(crate) fn make(file: &Path, folder: &Path) -> io::Result<()> {
    if file.parent() == Some(folder) {
        return Ok(());
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        made => made?,
    }
    ignored_by_git(folder, "*\n")
}

/// Writes `lines` to the `.gitignore` of a folder, unless the file has content. An empty file, left by a full
/// disk or a kill, is filled.
///
/// # Errors
/// The file cannot be written.
pub fn ignored_by_git(folder: &Path, lines: &str) -> io::Result<()> {
    let file = folder.join(".gitignore");
    if std::fs::metadata(&file).is_ok_and(|found| found.len() > 0) {
        return Ok(());
    }
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(file)?
        .write_all(lines.as_bytes())
}

/// Open flags that neither follow a link nor block on a pipe at this path.
pub(crate) fn open_flags() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_usual_name_has_the_folder_around_it() {
        for (file, folder) in [
            ("/a/waypost.db", "/a"),
            ("/a/sales.db", "/a/sales.db.waypost"),
            ("/a/sales", "/a/sales.waypost"),
            ("sales.db", "sales.db.waypost"),
            ("waypost.db", ""),
        ] {
            assert_eq!(folder_of(Path::new(file)), Path::new(folder), "{file}");
        }
    }
}
