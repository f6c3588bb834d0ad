//! Files that take their name only when they are whole: what may be replaced, and what a killed command left beside.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::Pid;
use tempfile::NamedTempFile;
use waypost::store::StoreError;

use crate::error::Error;

/// How an unfinished file of ours begins, in a folder that is not ours: nobody else's is called so.
const PREFIX: &str = ".waypost-unfinished-";
/// How many names are tried for an unfinished file: as many as one process could have at work.
const NAMES_MAX: u32 = 1_000;

/// Refuses a name that something else than a regular file has, or anything at all unless it is to be replaced.
///
/// # Errors
/// [`Error::Usage`]: nothing was changed.
pub(crate) fn refuse_taken(file: &Path, replace: bool) -> Result<(), Error> {
    // What cannot be looked at cannot be written either, and that says why.
    let Ok(own) = file.symlink_metadata() else { return Ok(()) };
    // A link to nothing is replaced as a link to a file is.
    let what = file.metadata().ok().and_then(|meant| irregular(&meant));
    if let Some(what) = what {
        return Err(Error::usage(
            format!("{} is {what}, and only a regular file is replaced", file.display()),
            "name another file",
        ));
    }
    debug_assert!(own.is_file() || own.is_symlink(), "all else was refused");
    if replace { Ok(()) } else { Err(exists(file)) }
}

/// Says that a file is there.
pub(crate) fn exists(file: &Path) -> Error {
    Error::usage(format!("{} exists already", file.display()), "`--replace` takes its place")
}

/// Names what is no regular file.
fn irregular(meant: &Metadata) -> Option<&'static str> {
    let kind = meant.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a folder"),
        () if kind.is_fifo() => Some("a pipe"),
        () if kind.is_socket() => Some("a socket"),
        () => Some("a device"),
    }
}

/// Returns the folder that a file is in.
pub(crate) fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Makes an unfinished file in a folder, which goes when it is dropped; a kill leaves it to [`remove_left`].
///
/// It is locked as long as it is written.
///
/// # Errors
/// Those of making a file.
pub(crate) fn unfinished(folder: &Path) -> io::Result<NamedTempFile> {
    let pid = std::process::id();
    for count in 0..NAMES_MAX {
        let name = format!("{PREFIX}{pid}-{count}");
        match tempfile::Builder::new().prefix(&name).rand_bytes(0).tempfile_in(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                let made = made?;
                // A file system without locks: then its process is all that tells.
                let _ = rustix::fs::flock(made.as_file(), FlockOperation::NonBlockingLockExclusive);
                return Ok(made);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Gives a file that is finished the name that it is for, for good: a power cut afterwards does not take it away.
///
/// # Errors
/// The name is taken, and not to be replaced, or the system's: then the unfinished file is gone.
pub(crate) fn finish(temp: NamedTempFile, file: &Path, replace: bool) -> Result<File, Error> {
    let failed =
        |source: io::Error| Error::from(StoreError::of_write("write", file.display().to_string(), source));
    let named = if replace { temp.persist(file) } else { temp.persist_noclobber(file) };
    let named = named.map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => exists(file),
        _ => failed(error.error),
    })?;
    File::open(folder_of(file)).and_then(|folder| folder.sync_all()).map_err(failed)?;
    Ok(named)
}

/// Removes the unfinished files of commands of this user that were killed; what is in doubt stays.
pub(crate) fn remove_left(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if writer_of(&entry.file_name()).is_some_and(is_dead) {
            // It does no harm where it is.
            let _ = remove_unlocked(&entry.path());
        }
    }
}

/// Returns the process that an unfinished file is of, by its name.
fn writer_of(name: &OsStr) -> Option<Pid> {
    let (pid, count) = name.to_str()?.strip_prefix(PREFIX)?.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(pid) && is_number(count)).then(|| Pid::from_raw(pid.parse().ok()?))?
}

fn is_dead(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) == Err(Errno::SRCH)
}

/// Removes a file, unless its writer lives where its process is not seen, as in a container: it has a lock on it.
fn remove_unlocked(path: &Path) -> io::Result<()> {
    let found = path.symlink_metadata()?;
    if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let file = File::open(path)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    fs::remove_file(path)
}
