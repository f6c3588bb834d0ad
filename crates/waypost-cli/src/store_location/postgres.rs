//! Stores in PostgreSQL, if this build has them. Addresses may hold a password, so no message quotes one.

use std::sync::Arc;

use waypost::RunId;
use waypost::store::Store;

use crate::error::Error;
use crate::view::ServerStatsView;

#[cfg(feature = "postgres")]
mod built {
    use waypost_postgres::{HolderStatistics, PostgresOptions, PostgresStore, TableStatistics};

    use super::{Arc, Error, RunId, ServerStatsView, Store};
    use crate::view::{ConnectionsView, LeaseStatsView, QueueStatsView, TableStatsView};

    /// Opens the store at a URL. Nothing is connected before the first use.
    pub(crate) fn connect(url: &str) -> Result<PostgresStore, Error> {
        Ok(PostgresStore::open(url, PostgresOptions::default())?)
    }

    pub(crate) fn open(url: &str) -> Result<Arc<dyn Store>, Error> {
        Ok(Arc::new(connect(url)?))
    }

    pub(crate) fn check(url: &str) -> Result<(), Error> {
        connect(url).map(drop)
    }

    /// Returns the URL without its password.
    pub(crate) fn name(url: &str) -> String {
        connect(url).map_or_else(|_| "postgres:".to_owned(), |store| store.to_string())
    }

    /// The schema versions before and after an action.
    pub(crate) type Versions = (Option<u32>, Option<u32>);

    /// Creates the tables, or upgrades older ones.
    pub(crate) async fn init(url: &str) -> Result<Versions, Error> {
        let store = connect(url)?;
        let before = store.init().await?;
        Ok((before, store.schema().await?))
    }

    /// Drops the logs of past months without other runs than `doomed`, and returns the months. Makes partitions for the
    /// next months.
    pub(crate) async fn rotate_logs(url: &str, doomed: &[RunId]) -> Result<Vec<String>, Error> {
        let store = connect(url)?;
        let dropped = store.rotate_logs(doomed).await?;
        store.close().await?;
        Ok(dropped)
    }

    /// Returns the schema version.
    pub(crate) async fn schema(url: &str) -> Result<Option<u32>, Error> {
        Ok(connect(url)?.schema().await?)
    }

    /// Returns the load of the server.
    pub(crate) async fn statistics(url: &str) -> Result<ServerStatsView, Error> {
        let found = connect(url)?.statistics().await?;
        let lease = |HolderStatistics { holder, until, runs, tasks, .. }| LeaseStatsView {
            expired: until.is_none(),
            host: holder.as_ref().map(|holder| holder.host.clone()),
            pid: holder.as_ref().map(|holder| holder.pid),
            since: holder.map(|holder| holder.since),
            until,
            runs,
            steps: tasks,
        };
        let table = |TableStatistics { table, bytes, rows, dead_rows, vacuumed_at, .. }| TableStatsView {
            table,
            bytes,
            rows,
            dead_rows,
            vacuumed_at,
        };
        let (queue, connections) = (&found, found.connections);
        Ok(ServerStatsView {
            queue: QueueStatsView {
                ready: queue.ready,
                oldest_ms: u64::try_from(queue.oldest.as_millis()).unwrap_or(u64::MAX),
                later: queue.later,
                lacking: queue.lacking,
                steps: queue.tasks,
            },
            leases: found.holders.into_iter().map(lease).collect(),
            tables: found.tables.into_iter().map(table).collect(),
            connections: ConnectionsView {
                used: connections.used,
                database: connections.database,
                max: connections.max,
            },
        })
    }
}

#[cfg(not(feature = "postgres"))]
mod built {
    use super::{Arc, Error, RunId, ServerStatsView, Store};

    fn lacking() -> Error {
        Error::usage("this build has no stores in PostgreSQL", "build it with the feature `postgres`")
    }

    pub(crate) fn open(_: &str) -> Result<Arc<dyn Store>, Error> {
        Err(lacking())
    }

    pub(crate) fn check(_: &str) -> Result<(), Error> {
        Err(lacking())
    }

    pub(crate) fn name(_: &str) -> String {
        "postgres:".to_owned()
    }

    pub(crate) type Versions = (Option<u32>, Option<u32>);

    pub(crate) async fn init(_: &str) -> Result<Versions, Error> {
        Err(lacking())
    }

    pub(crate) async fn schema(_: &str) -> Result<Option<u32>, Error> {
        Err(lacking())
    }

    pub(crate) async fn rotate_logs(_: &str, _: &[RunId]) -> Result<Vec<String>, Error> {
        Err(lacking())
    }

    pub(crate) async fn statistics(_: &str) -> Result<ServerStatsView, Error> {
        Err(lacking())
    }
}

pub(crate) use built::{check, init, name, open, rotate_logs, schema, statistics};
