//! Atomic output files: only complete files get their final name. Also removes the leftovers of killed
//! commands.

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
use std::os::unix::fs::OpenOptionsExt as _;
use waypost::disk::check_regular;

/// The name prefix of unfinished files in a foreign folder; unique to this program.
const PREFIX: &str = ".waypost-unfinished-";
/// Most names tried for an unfinished file: more than a process writes at once.
const NAMES_MAX: u32 = 1_000;

/// Refuses a path with another type than a regular file, or any existing path without `replace`.
///
/// # Errors
/// [`Error::Usage`]: nothing was changed.
pub(crate) fn refuse_taken(file: &Path, replace: bool) -> Result<(), Error> {
    // If the path cannot be inspected, the write fails with the reason.
    let Ok(own) = file.symlink_metadata() else { return Ok(()) };
    // A dangling link is replaced like a link to a file.
    let what = file.metadata().ok().and_then(|meant| irregular(&meant));
    if let Some(what) = what {
        return Err(Error::usage(
            format!("cannot replace {}: the path is {what}, not a regular file", file.display()),
            "name another file",
        ));
    }
    debug_assert!(own.is_file() || own.is_symlink(), "all else was refused");
    if replace { Ok(()) } else { Err(exists(file)) }
}

/// Returns the error for an existing file.
pub(crate) fn exists(file: &Path) -> Error {
    Error::usage(format!("{} exists already", file.display()), "`--replace` replaces the file")
}

/// Returns the name of the file type, if not a regular file.
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

/// Returns the folder of a file.
pub(crate) fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Creates an unfinished file in a folder, removed on drop; after a kill, [`remove_left`] removes it.
///
/// The file is locked during the write.
///
/// # Errors
/// The system's error.
pub(crate) fn unfinished(folder: &Path) -> io::Result<NamedTempFile> {
    let pid = std::process::id();
    for count in 0..NAMES_MAX {
        let name = format!("{PREFIX}{pid}-{count}");
        match tempfile::Builder::new().prefix(&name).rand_bytes(0).tempfile_in(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                let made = made?;
                // Without locks in the file system, only the process number identifies the writer.
                let _ = rustix::fs::flock(made.as_file(), FlockOperation::NonBlockingLockExclusive);
                return Ok(made);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Renames a finished file to its final name, durably.
///
/// # Errors
/// The name exists without `replace`, or the system's error: the unfinished file is then removed.
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

/// Removes the unfinished files of this user's killed commands; unclear cases stay.
pub(crate) fn remove_left(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if writer_of(&entry.file_name()).is_some_and(is_dead) {
            // A leftover is harmless.
            let _ = remove_unlocked(&entry.path());
        }
    }
}

/// Returns the writer process of an unfinished file, by its name.
fn writer_of(name: &OsStr) -> Option<Pid> {
    let (pid, count) = name.to_str()?.strip_prefix(PREFIX)?.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(pid) && is_number(count)).then(|| Pid::from_raw(pid.parse().ok()?))?
}

fn is_dead(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) == Err(Errno::SRCH)
}

/// Removes a file, unless a live writer holds its lock. The writer's process may be invisible here, as in a
/// container.
fn remove_unlocked(path: &Path) -> io::Result<()> {
    let found = path.symlink_metadata()?;
    if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let file = File::open(path)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    fs::remove_file(path)
}

/// Opens a regular file to read it, without waiting for the other end of a pipe in its place.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}
