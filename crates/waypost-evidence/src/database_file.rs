//! SQLite files, opened so that nothing is written, not even beside them.
//!
//! SQLite makes the log of a database (`-wal`) and the index of that (`-shm`) anew where they are missing, also for who only
//! reads. A database that was closed well has neither: it is read as a file that does not change, and whether it did is seen
//! afterwards. One that has both is read with an index that is not written to (<https://sqlite.org/wal.html#readonly>).

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use waypost::evidence::{Finding, Spot};

/// Where a file says whether it has a log, and what it says then (<https://sqlite.org/fileformat2.html#file_format_version_numbers>).
const READ_VERSION: usize = 19;
const LOGGED: u8 = 2;

/// A database that is open for reading.
pub(crate) struct DatabaseFile {
    pub(crate) connection: Connection,
    spot: Spot,
    /// How it looked when it was taken for one that does not change.
    closed: Option<Look>,
}

/// What changes when somebody writes to a database.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    file: (u64, u64, i64, i64),
    log_bytes: u64,
}

impl Look {
    fn at(spot: &Spot) -> io::Result<Self> {
        let file = spot.open()?.metadata()?;
        let log_bytes = spot.bytes_beside("-wal")?.unwrap_or_default();
        Ok(Self { file: (file.ino(), file.size(), file.mtime(), file.mtime_nsec()), log_bytes })
    }
}

impl DatabaseFile {
    /// Opens a database.
    pub(crate) fn open(spot: Spot) -> Result<Self, Finding> {
        let unclear = |error: io::Error| Finding::unknown(format!("it cannot be asked: {error}"));
        // SQLite opens what is beside a database by its name, and would wait at a pipe for ever.
        spot.bytes_beside("-journal").map_err(unclear)?;
        let log_bytes = spot.bytes_beside("-wal").map_err(unclear)?;
        let has_index = spot.bytes_beside("-shm").map_err(unclear)?.is_some();
        let (is_logged, is_empty) = read_header(&spot).map_err(unclear)?;
        let (closed, parameters) = match log_bytes {
            None if !is_logged => (None, ""),
            None => (Some(Look::at(&spot).map_err(unclear)?), "?immutable=1"),
            Some(0) if !has_index => (Some(Look::at(&spot).map_err(unclear)?), "?immutable=1"),
            Some(_) if has_index && !is_empty => (None, "?readonly_shm=1"),
            Some(_) => return Err(left_behind(spot.path(), "-wal", "takes that in")),
        };
        // There is no link in the path; one that is put there now is not followed.
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let connection = Connection::open_with_flags(uri(spot.path(), parameters), flags);
        let connection = connection.map_err(|error| match spot.is_there() {
            true => Finding::unknown(format!("it cannot be asked: {error}")),
            false => swapped(),
        })?;
        Ok(Self { connection, spot, closed })
    }

    /// Says that it cannot be told what was read, if so: another file stands there, or somebody wrote to it where that was not
    /// waited for.
    pub(crate) fn changed(&self) -> Option<Finding> {
        if !self.spot.is_there() {
            return Some(swapped());
        }
        let has_changed =
            self.closed.as_ref().is_some_and(|before| Look::at(&self.spot).ok().as_ref() != Some(before));
        has_changed.then(|| Finding::unknown_yet("it was written to while it was read"))
    }

    /// Returns where it is.
    pub(crate) fn path(&self) -> &Path {
        self.spot.path()
    }
}

fn swapped() -> Finding {
    Finding::unknown_yet("another file was put in its place while it was looked at")
}

/// Says that who wrote to a database was cut off (or has it open in a way that nobody else may read), and what is left.
pub(crate) fn left_behind(path: &Path, what: &str, does: &str) -> Finding {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (name, rest) = (name(path), name(&beside(path, what)));
    Finding::unknown(format!(
        "who wrote to it was cut off, or has it open alone, and left `{rest}`: open it once for writing, which {does}, as by \
         `sqlite3 {name} .tables`"
    ))
}

fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(what);
    PathBuf::from(name)
}

/// Says whether a database has a log while it is open, and whether there is nothing in it.
fn read_header(spot: &Spot) -> io::Result<(bool, bool)> {
    let mut header = Vec::new();
    spot.open()?.take(READ_VERSION as u64 + 1).read_to_end(&mut header)?;
    Ok((header.get(READ_VERSION) == Some(&LOGGED), header.is_empty()))
}

/// Writes a path as SQLite reads it where it takes parameters.
fn uri(path: &Path, parameters: &str) -> String {
    let mut uri = String::from(if path.is_absolute() { "file://" } else { "file:" });
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => write!(uri, "%{byte:02x}").expect("a text takes all that is written"),
        }
    }
    uri + parameters
}
