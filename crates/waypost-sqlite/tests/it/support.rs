//! A store in a folder of its own, and a way to look at its tables behind its back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use tempfile::TempDir;
use waypost_sqlite::{SqliteOptions, SqliteStore};

/// A folder with a store that a test opens and opens again.
pub(crate) struct Site {
    folder: TempDir,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(".waypost")
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.home().join("waypost.db")
    }

    pub(crate) fn open(&self) -> Arc<SqliteStore> {
        open(&self.file())
    }

    pub(crate) fn open_read_only(&self) -> Arc<SqliteStore> {
        Arc::new(SqliteStore::open_read_only(&self.file(), SqliteOptions::default()).unwrap())
    }

    /// Opens the database as another program does.
    pub(crate) fn tables(&self) -> Connection {
        Connection::open(self.file()).unwrap()
    }

    /// Carries out a statement as another program does.
    pub(crate) fn execute(&self, sql: &str) {
        assert_eq!(self.tables().execute(sql, []).unwrap(), 1, "{sql} changes one row");
    }
}

pub(crate) fn open(file: &Path) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(file, SqliteOptions::default()).unwrap())
}
