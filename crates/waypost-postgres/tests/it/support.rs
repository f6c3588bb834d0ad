//! A store in a separate database, and direct access to the tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio_postgres::{Client, NoTls};
use waypost_postgres::{PostgresOptions, PostgresStore};
use waypost_testing::postgres::{Cluster, USER, cluster};

/// The variable with the connection of another server, as `host=... user=...` without a database.
const SERVER_VARIABLE: &str = "WAYPOST_TEST_POSTGRES";

/// A database with a store.
pub(crate) struct Site {
    server: String,
    database: String,
}

impl Site {
    /// Makes a database with the tables of a store.
    pub(crate) async fn new() -> Self {
        let site = Self::empty().await;
        site.open().init().await.unwrap();
        site
    }

    /// Makes a database without tables.
    pub(crate) async fn empty() -> Self {
        let server = std::env::var(SERVER_VARIABLE).unwrap_or_else(|_| server_of(cluster()));
        Self::at(server).await
    }

    /// Makes a database with the tables of a store on a server.
    pub(crate) async fn on(cluster: &Cluster) -> Self {
        let site = Self::at(server_of(cluster)).await;
        site.open().init().await.unwrap();
        site
    }

    async fn at(server: String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let database = format!("waypost_test_{}_{number}", std::process::id());
        let admin = connect(&format!("{server} dbname=postgres")).await;
        admin.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
        Self { server, database }
    }

    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    pub(crate) fn url(&self) -> String {
        format!("{} dbname={}", self.server, self.database)
    }

    /// Returns the address with options of a store.
    pub(crate) fn address(&self, options: &str) -> String {
        let word = |name: &str| self.server.split(' ').find_map(|word| word.strip_prefix(name)).unwrap();
        let host = word("host=").replace('/', "%2F");
        format!("postgres://{}@{host}:{}/{}?{options}", word("user="), word("port="), self.database)
    }

    pub(crate) fn open(&self) -> Arc<PostgresStore> {
        Arc::new(PostgresStore::open(&self.url(), PostgresOptions::default()).unwrap())
    }

    /// Connects as another program does.
    pub(crate) async fn tables(&self) -> Client {
        connect(&self.url()).await
    }

    /// Ends the workers, as a long sleep of their processes does.
    pub(crate) async fn end_workers(&self) {
        let text = "UPDATE waypost.workers SET until = '-infinity', lease_ms = 0";
        self.tables().await.batch_execute(text).await.unwrap();
    }

    /// Ends all leases, as time does.
    pub(crate) async fn end_leases(&self) {
        self.tables().await.batch_execute("UPDATE waypost.scopes SET held = false WHERE held").await.unwrap();
    }
}

fn server_of(cluster: &Cluster) -> String {
    format!("host={} port={} user={USER}", cluster.folder().display(), cluster.port())
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(async { drop(connection.await) });
    client
}
