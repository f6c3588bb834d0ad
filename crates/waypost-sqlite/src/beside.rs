//! The folder of a database for what is not in it: locks, and what people read of its runs.
//!
//! Runs are named by people, so two databases may well have runs of one name. They must not share a lock, which would
//! hold up the one for the other, nor a log, in which each would miss what only the other has. So every database has a
//! folder of its own:
//!
//! ```text
//!   .waypost/waypost.db    .waypost/{locks,runs}                the usual one: its folder is its own anyway
//!   reports/sales.db       reports/sales.db.waypost/{locks,runs}
//! ```

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The name of a database that has the folder around it to itself.
const USUAL_NAME: &str = "waypost.db";
/// What is added to any other name.
const SUFFIX: &str = ".waypost";

/// Returns the folder that holds `locks` and `runs` of the database at `file`.
///
/// That is the folder around it if it is called `waypost.db`, else one beside it: `sales.db.waypost` for `sales.db`.
/// Links are followed where the database is there, so that all names of a database give one folder.
pub fn folder_of(file: &Path) -> PathBuf {
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let mut name = match file.file_name() {
        Some(name) if name != USUAL_NAME => name.to_owned(),
        _ => return file.parent().unwrap_or(Path::new("/")).to_owned(),
    };
    name.push(SUFFIX);
    file.with_file_name(name)
}

/// Makes the folder if it is not the one around the database, for its owner only, and has git ignore it.
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

/// Has git ignore what is in a folder, by these lines, unless it has others there: a file that a full disk or a kill left
/// empty ignores nothing.
///
/// # Errors
/// It cannot be written.
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
