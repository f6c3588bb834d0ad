//! A store in a database of its own, and a way to look at its tables behind its back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio_postgres::{Client, NoTls};
use waypost_postgres::{PostgresOptions, PostgresStore};
use waypost_testing::postgres::{USER, cluster};

/// A database with a store that a test opens and opens again.
pub(crate) struct Site {
    database: String,
}

impl Site {
    /// Makes a database with the tables of a store.
    pub(crate) async fn new() -> Self {
        let site = Self::empty();
        site.open().init().await.unwrap();
        site
    }

    /// Makes a database without tables.
    pub(crate) fn empty() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let database = format!("store_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        cluster().database(&database, "SELECT 1");
        Self { database }
    }

    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    pub(crate) fn url(&self) -> String {
        cluster().connection(USER, &self.database)
    }

    pub(crate) fn open(&self) -> Arc<PostgresStore> {
        Arc::new(PostgresStore::open(&self.url(), PostgresOptions::default()).unwrap())
    }

    /// Connects as another program does.
    pub(crate) async fn tables(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await.unwrap();
        tokio::spawn(async { drop(connection.await) });
        client
    }

    /// Ends all leases, as time does.
    pub(crate) async fn end_leases(&self) {
        self.tables().await.batch_execute("UPDATE waypost.scopes SET held = false WHERE held").await.unwrap();
    }
}
