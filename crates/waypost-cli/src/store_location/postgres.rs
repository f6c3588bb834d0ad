//! Stores in PostgreSQL, if this build has them. Addresses may hold a password, so no message quotes one.

use std::sync::Arc;

use waypost::RunId;
use waypost::store::Store;

use crate::error::Error;

#[cfg(feature = "postgres")]
mod built {
    use waypost_postgres::{PostgresOptions, PostgresStore};

    use super::{Arc, Error, RunId, Store};

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
}

#[cfg(not(feature = "postgres"))]
mod built {
    use super::{Arc, Error, RunId, Store};

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
}

pub(crate) use built::{check, init, name, open, rotate_logs, schema};
