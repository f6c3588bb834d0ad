//! SQLite files, opened so that nothing is written, not even beside them.
//!
//! SQLite makes the log of a database (`-wal`) and the index of that (`-shm`) anew where they are missing, also for who only
//! reads. A database that was closed well has neither: it is read as a file that does not change, and whether it did is seen
//! afterwards. One that has both is read with an index that is not written to (<https://sqlite.org/wal.html#readonly>).

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use waypost::evidence::Finding;
use waypost::in_use::is_in_use;

/// Where a file says whether it has a log, and what it says then (<https://sqlite.org/fileformat2.html#file_format_version_numbers>).
const READ_VERSION: usize = 19;
const LOGGED: u8 = 2;

/// A database that is open for reading.
pub(crate) struct DatabaseFile {
    pub(crate) connection: Connection,
    path: PathBuf,
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
    fn at(path: &Path) -> io::Result<Self> {
        let file = fs::metadata(path)?;
        let log_bytes = bytes_of(&beside(path, "-wal"))?.unwrap_or_default();
        Ok(Self { file: (file.ino(), file.size(), file.mtime(), file.mtime_nsec()), log_bytes })
    }
}

impl DatabaseFile {
    /// Opens a database.
    pub(crate) fn open(path: PathBuf) -> Result<Self, Finding> {
        let unclear = |error: io::Error| Finding::unknown(format!("it cannot be asked: {error}"));
        if fs::metadata(&path).is_ok_and(|file| is_in_use(file.dev(), file.ino())) {
            return Err(Finding::failed("it is the database in which this run is kept"));
        }
        let log_bytes = bytes_of(&beside(&path, "-wal")).map_err(unclear)?;
        let has_index = bytes_of(&beside(&path, "-shm")).map_err(unclear)?.is_some();
        let (is_logged, is_empty) = read_header(&path).map_err(unclear)?;
        let (closed, parameters) = match log_bytes {
            None if !is_logged => (None, ""),
            None => (Some(Look::at(&path).map_err(unclear)?), "?immutable=1"),
            Some(0) if !has_index => (Some(Look::at(&path).map_err(unclear)?), "?immutable=1"),
            Some(_) if has_index && !is_empty => (None, "?readonly_shm=1"),
            Some(_) => return Err(left_behind(&path, "-wal", "takes that in")),
        };
        let flags =
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
        let connection = Connection::open_with_flags(uri(&path, parameters), flags);
        let connection =
            connection.map_err(|error| Finding::unknown(format!("it cannot be asked: {error}")))?;
        Ok(Self { connection, path, closed })
    }

    /// Says whether somebody wrote to it meanwhile where that was not waited for.
    pub(crate) fn has_changed(&self) -> bool {
        self.closed.as_ref().is_some_and(|before| Look::at(&self.path).ok().as_ref() != Some(before))
    }
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

/// Returns how long a file is, if there is one.
fn bytes_of(path: &Path) -> io::Result<Option<u64>> {
    match fs::metadata(path) {
        Ok(file) => Ok(Some(file.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Says whether a database has a log while it is open, and whether there is nothing in it.
fn read_header(path: &Path) -> io::Result<(bool, bool)> {
    let mut header = Vec::new();
    File::open(path)?.take(READ_VERSION as u64 + 1).read_to_end(&mut header)?;
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
