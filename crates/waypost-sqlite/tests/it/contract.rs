//! The contract of a store, kept by this one.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use waypost::store::Store;
use waypost::{RunId, ScopePath};
use waypost_sqlite::SqliteStore;
use waypost_testing::contract::{DamageTarget, StoreFixture};
use waypost_testing::{store_contract, store_differential};

use crate::support::Site;

pub(crate) struct Sqlite {
    site: Site,
    store: Option<Arc<SqliteStore>>,
}

impl Sqlite {
    pub(crate) fn fresh() -> Self {
        let site = Site::new();
        let store = Some(site.open());
        Self { site, store }
    }

    /// Sees that what is counted as records come and go is what is there.
    pub(crate) fn check_counters(&self) {
        let wrong: i64 = self
            .site
            .tables()
            .query_row(
                "SELECT count(*) FROM runs WHERE bytes <> (
                     SELECT sum(length(header) + ifnull(length(body), 0)) FROM records
                     JOIN scopes ON scopes.id = key >> 32 WHERE run = runs.id)",
                [],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(wrong, 0, "the bytes of a run are those of its records");
    }

    fn flip(&self, table: &str, column: &str, row: &str) {
        let tables = self.site.tables();
        let sql = format!("SELECT rowid, {column} FROM {table} WHERE {row}");
        let (id, mut bytes): (i64, Vec<u8>) =
            tables.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        let sql = format!("UPDATE {table} SET {column} = ?1 WHERE rowid = ?2");
        assert_eq!(tables.execute(&sql, (bytes, id)).unwrap(), 1);
    }
}

fn record(run: &RunId, scope: &ScopePath, seq: u64) -> String {
    format!(
        "key = (SELECT scopes.id << 32 | {seq} FROM scopes JOIN runs ON runs.id = run
                WHERE name = '{run}' AND scopes.path = '{scope}')"
    )
}

#[async_trait]
impl StoreFixture for Sqlite {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone().unwrap()
    }

    async fn reopen(&mut self) {
        self.store = None;
        self.store = Some(self.site.open());
    }

    async fn damage(&mut self, run: &RunId, place: &DamageTarget) {
        match place {
            DamageTarget::Run => {
                let row = format!("run = (SELECT id FROM runs WHERE name = '{run}')");
                for table in ["frozen", "frozen_copies"] {
                    self.flip(table, "record", &row);
                }
            }
            DamageTarget::Header(scope, seq) => self.flip("records", "header", &record(run, scope, *seq)),
            DamageTarget::Body(scope, seq) => self.flip("records", "body", &record(run, scope, *seq)),
        }
    }

    async fn quarantined(&mut self, run: &RunId) -> Vec<Vec<u8>> {
        let tables = self.site.tables();
        let mut rows = tables
            .prepare(
                "SELECT header, body FROM quarantine JOIN runs ON runs.id = run WHERE name = ?1
                 ORDER BY quarantine.id",
            )
            .unwrap();
        let rows = rows
            .query_map([run.as_str()], |row| {
                Ok([row.get::<_, Vec<u8>>(0)?, row.get::<_, Option<Vec<u8>>>(1)?.unwrap_or_default()]
                    .concat())
            })
            .unwrap();
        rows.map(Result::unwrap).collect()
    }

    fn folder(&self) -> Option<PathBuf> {
        Some(self.site.home())
    }
}

store_contract!(sqlite, Sqlite::fresh());
store_differential!(sqlite_like_the_model, Sqlite::fresh());
