//! Read-only access to SQLite files that also writes no sidecar file.
//!
//! SQLite creates a missing log (`-wal`) and a missing log index (`-shm`), even for a reader. A cleanly
//! closed database has neither: it is opened as immutable, and a later comparison detects changes. A database
//! with both files is read with a read-only index (<https://sqlite.org/wal.html#readonly>).

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use waypost::evidence::{FileGuard, Finding};

/// Offset and value of the header byte that marks WAL mode
/// (<https://sqlite.org/fileformat2.html#file_format_version_numbers>).
const READ_VERSION: usize = 19;
const LOGGED: u8 = 2;

/// A database open for reading.
pub(crate) struct DatabaseFile {
    pub(crate) connection: Connection,
    guard: FileGuard,
    /// The file's state at open, if it was opened as immutable.
    closed: Option<Snapshot>,
}

/// File properties that change with every write to the database.
#[derive(Debug, PartialEq, Eq)]
struct Snapshot {
    file: (u64, u64, i64, i64),
    log_bytes: u64,
}

impl Snapshot {
    fn at(guard: &FileGuard) -> io::Result<Self> {
        let file = guard.open()?.metadata()?;
        let log_bytes = guard.bytes_beside("-wal")?.unwrap_or_default();
        Ok(Self { file: (file.ino(), file.size(), file.mtime(), file.mtime_nsec()), log_bytes })
    }
}

impl DatabaseFile {
    /// Opens a database read-only, with the mode that its sidecar files allow.
    pub(crate) fn open(guard: FileGuard) -> Result<Self, Finding> {
        let unclear = |error: io::Error| Finding::unknown(format!("cannot query the database: {error}"));
        // SQLite opens sidecar files by name and would block forever on a pipe; `bytes_beside` rejects pipes.
        guard.bytes_beside("-journal").map_err(unclear)?;
        let log_bytes = guard.bytes_beside("-wal").map_err(unclear)?;
        let has_index = guard.bytes_beside("-shm").map_err(unclear)?.is_some();
        let (is_logged, is_empty) = read_header(&guard).map_err(unclear)?;
        let (closed, parameters) = match log_bytes {
            None if !is_logged => (None, ""),
            None => (Some(Snapshot::at(&guard).map_err(unclear)?), "?immutable=1"),
            Some(0) if !has_index => (Some(Snapshot::at(&guard).map_err(unclear)?), "?immutable=1"),
            Some(_) if has_index && !is_empty => (None, "?readonly_shm=1"),
            Some(_) => return Err(unfinished_write(guard.path(), "-wal", "merges that file")),
        };
        // The path contains no link now; a link created later is not followed.
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let connection = Connection::open_with_flags(uri(guard.path(), parameters), flags);
        let connection = connection.map_err(|error| match guard.is_there() {
            true => Finding::unknown(format!("cannot query the database: {error}")),
            false => swapped(),
        })?;
        Ok(Self { connection, guard, closed })
    }

    /// Returns a finding if the read result is unreliable: the file was replaced, or written to while open as
    /// immutable.
    pub(crate) fn changed(&self) -> Option<Finding> {
        if !self.guard.is_there() {
            return Some(swapped());
        }
        let has_changed = self
            .closed
            .as_ref()
            .is_some_and(|before| Snapshot::at(&self.guard).ok().as_ref() != Some(before));
        has_changed.then(|| Finding::unknown_yet("the database changed during the read"))
    }

    /// Returns the path of the database.
    pub(crate) fn path(&self) -> &Path {
        self.guard.path()
    }
}

fn swapped() -> Finding {
    Finding::unknown_yet("another file replaced the database during the check")
}

/// Returns a finding about the sidecar file of an interrupted or exclusive writer.
pub(crate) fn unfinished_write(path: &Path, what: &str, does: &str) -> Finding {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (name, rest) = (name(path), name(&beside(path, what)));
    Finding::unknown(format!(
        "the last writer was interrupted, or has exclusive access, and left `{rest}`: open the database \
         once for writing, which {does}, as by `sqlite3 {name} .tables`"
    ))
}

fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(what);
    PathBuf::from(name)
}

/// Returns whether the database is in WAL mode, and whether the file is empty.
fn read_header(guard: &FileGuard) -> io::Result<(bool, bool)> {
    let mut header = Vec::new();
    guard.open()?.take(READ_VERSION as u64 + 1).read_to_end(&mut header)?;
    Ok((header.get(READ_VERSION) == Some(&LOGGED), header.is_empty()))
}

/// Formats a path as an SQLite URI with parameters.
fn uri(path: &Path, parameters: &str) -> String {
    let mut uri = String::from(if path.is_absolute() { "file://" } else { "file:" });
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => write!(uri, "%{byte:02x}").expect("a string accepts every write"),
        }
    }
    uri + parameters
}
