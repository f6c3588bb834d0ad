//! A store in a folder of its own, and a way to look at its tables behind its back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use tempfile::TempDir;
use waypost::record::{Durability, RunRecord};
use waypost::store::{Appended, Lease, Store, StoreError};
use waypost_sqlite::{SqliteOptions, SqliteStore};
use waypost_testing::records::{Links, holder, run_id, run_record, sealed};

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

/// A run that a test appends to.
pub(crate) struct Writing {
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) links: Links,
    pub(crate) lease: Lease,
}

impl Writing {
    /// Makes a run with one record.
    pub(crate) async fn begin(store: &Arc<SqliteStore>, run: &str, durability: Durability) -> Self {
        let run = run_id(run);
        let mut links = Links::of(&run);
        let frozen = sealed(RunRecord { durability, ..run_record(&run) });
        let lease = store.create(&frozen, links.step(), &holder("test")).await.unwrap();
        Self { store: Arc::clone(store), links, lease }
    }

    /// Appends one record.
    pub(crate) async fn step(&mut self) -> Result<Appended, StoreError> {
        let batch = self.links.step();
        Store::append(&*self.store, &[&self.lease], batch).await
    }
}
