//! Maps SQLite errors to store errors, by possible reactions of the caller.

use std::io;

use rusqlite::{Connection, ffi};
use waypost::id::RunId;
use waypost::store::StoreError;

use crate::database::open::Place;

/// Why work in a transaction stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A refusal of the store: a lost lease, a broken chain, an unknown run.
    Refused(StoreError),
    /// The run is not in the snapshot: never created, or lost.
    NoRun(RunId),
    /// An SQLite error.
    Sqlite(SqliteError),
}

impl Failure {
    /// As [`SqliteError::ask_system`].
    pub(crate) fn ask_system(self, connection: &Connection) -> Self {
        match self {
            Self::Sqlite(fault) => Self::Sqlite(fault.ask_system(connection)),
            other => other,
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<SqliteError> for Failure {
    fn from(fault: SqliteError) -> Self {
        Self::Sqlite(fault)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error.into())
    }
}

/// An SQLite error that can be cloned for every job of the transaction.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(crate) struct SqliteError {
    /// SQLite's extended result code.
    code: i32,
    message: String,
    /// The system's error number, if any.
    errno: Option<i32>,
}

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::from_ref(&error)
    }
}

impl SqliteError {
    pub(crate) fn from_ref(error: &rusqlite::Error) -> Self {
        let message = error.to_string();
        let code = match error {
            rusqlite::Error::SqliteFailure(failure, _) => failure.extended_code,
            // Our statements match our schema, so a missing name means a change on disk.
            rusqlite::Error::SqlInputError { error, msg, .. }
                if error.extended_code & 0xff == ffi::SQLITE_ERROR =>
            {
                return Self::corrupt(format!("the tables differ from the schema: {msg}"));
            }
            rusqlite::Error::SqlInputError { error, .. } => error.extended_code,
            // A column with another type or length than written; SQLite does not check this on read.
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::Utf8Error(..) => ffi::SQLITE_CORRUPT,
            _ => ffi::SQLITE_ERROR,
        };
        Self { code, message, errno: None }
    }

    /// Adds the system's error number while `connection` has it. For example, SQLite reports an exceeded
    /// quota as an I/O error.
    pub(crate) fn ask_system(mut self, connection: &Connection) -> Self {
        if matches!(self.primary(), ffi::SQLITE_IOERR | ffi::SQLITE_FULL | ffi::SQLITE_CANTOPEN) {
            #[expect(unsafe_code, reason = "rusqlite does not offer the system's error number")]
            // SAFETY: the handle is open while the connection is borrowed, and the call only reads from it.
            let errno = unsafe { ffi::sqlite3_system_errno(connection.handle()) };
            self.errno = Some(errno).filter(|errno| *errno != 0);
        }
        self
    }

    /// Returns a fault for an operation that SQLite did not perform.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self { code: ffi::SQLITE_ERROR, message: message.into(), errno: None }
    }

    /// Returns a fault for data that differs from what was written.
    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self { code: ffi::SQLITE_CORRUPT, message: message.into(), errno: None }
    }

    fn primary(&self) -> i32 {
        self.code & 0xff
    }

    /// Returns whether the file's bytes differ from what was written.
    pub(crate) fn is_corrupt(&self) -> bool {
        matches!(self.primary(), ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB)
    }

    /// Returns whether tables contradict each other: an unexpected row exists, or a referenced row is
    /// missing.
    fn is_contradiction(&self) -> bool {
        matches!(
            self.code,
            ffi::SQLITE_CONSTRAINT_UNIQUE
                | ffi::SQLITE_CONSTRAINT_PRIMARYKEY
                | ffi::SQLITE_CONSTRAINT_ROWID
                | ffi::SQLITE_CONSTRAINT_FOREIGNKEY
        )
    }

    /// Returns whether the file is not a database.
    pub(crate) fn is_not_a_database(&self) -> bool {
        self.primary() == ffi::SQLITE_NOTADB
    }

    /// Returns whether another connection blocked the operation.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.primary(), ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED)
    }

    /// Returns whether the file, its folder or a sidecar file cannot be opened or written.
    pub(crate) fn is_unwritable(&self) -> bool {
        matches!(self.primary(), ffi::SQLITE_CANTOPEN | ffi::SQLITE_READONLY)
    }

    /// Returns whether there is no space for the shared-memory file.
    pub(crate) fn lacks_shm_space(&self) -> bool {
        matches!(self.code, ffi::SQLITE_IOERR_SHMSIZE | ffi::SQLITE_IOERR_SHMOPEN | ffi::SQLITE_IOERR_SHMMAP)
    }

    /// Returns whether a sync failed, after which the content of the disk is unknown.
    pub(crate) fn is_failed_sync(&self) -> bool {
        matches!(self.code, ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC)
    }

    pub(crate) fn to_store_error(&self, place: &Place) -> StoreError {
        let file = || place.file.display().to_string();
        let source = |kind| match self.errno {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(kind, self.clone()),
        };
        let io = |action, kind| StoreError::Io { action, place: file(), source: source(kind) };
        match self.primary() {
            ffi::SQLITE_FULL => {
                StoreError::Full { place: file(), source: source(io::ErrorKind::StorageFull) }
            }
            ffi::SQLITE_IOERR if self.code == ffi::SQLITE_IOERR_SHMSIZE && self.errno.is_none() => {
                StoreError::Full { place: file(), source: source(io::ErrorKind::StorageFull) }
            }
            ffi::SQLITE_IOERR => StoreError::of_write(self.io_action(), file(), source(io::ErrorKind::Other)),
            ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB => io("read", io::ErrorKind::InvalidData),
            // Writes are checked against existing rows first, so a constraint failure means that a table has
            // lost rows.
            ffi::SQLITE_CONSTRAINT if self.is_contradiction() => {
                let fault = Self {
                    message: format!("the tables are inconsistent: {}", self.message),
                    ..self.clone()
                };
                StoreError::Io {
                    action: "read",
                    place: file(),
                    source: io::Error::new(io::ErrorKind::InvalidData, fault),
                }
            }
            ffi::SQLITE_CANTOPEN => io("open", io::ErrorKind::Other),
            ffi::SQLITE_READONLY | ffi::SQLITE_PERM => io("write", io::ErrorKind::PermissionDenied),
            ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED => {
                StoreError::Unreachable { store: place.name.clone(), source: Box::new(self.clone()) }
            }
            _ => StoreError::Database { store: place.name.clone(), source: Box::new(self.clone()) },
        }
    }

    fn io_action(&self) -> &'static str {
        match self.code {
            ffi::SQLITE_IOERR_READ | ffi::SQLITE_IOERR_SHORT_READ | ffi::SQLITE_IOERR_FSTAT => "read",
            ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC => "sync",
            ffi::SQLITE_IOERR_LOCK | ffi::SQLITE_IOERR_RDLOCK | ffi::SQLITE_IOERR_UNLOCK => "lock",
            ffi::SQLITE_IOERR_SHMOPEN | ffi::SQLITE_IOERR_SHMMAP | ffi::SQLITE_IOERR_SHMLOCK => "share",
            _ => "write",
        }
    }
}
