//! The contract of a store.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use waypost::store::Store;
use waypost::{RunId, ScopePath};
use waypost_postgres::PostgresStore;
use waypost_testing::contract::{DamageTarget, StoreFixture};
use waypost_testing::{store_contract, store_differential};

use crate::support::Site;

pub(crate) struct Postgres {
    site: Site,
    store: Option<Arc<PostgresStore>>,
}

impl Postgres {
    pub(crate) async fn fresh() -> Self {
        let site = Site::new().await;
        let store = Some(site.open());
        Self { site, store }
    }

    /// As [`fresh`](Self::fresh), without a runtime: connections of one runtime are not used in another.
    pub(crate) fn fresh_anywhere() -> Self {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let site = std::thread::spawn(move || runtime().block_on(Site::new())).join().unwrap();
        let store = Some(site.open());
        Self { site, store }
    }

    async fn flip(&self, table: &str, column: &str, row: &str) {
        let text = format!(
            "UPDATE waypost.{table} SET {column} = set_byte({column}, length({column}) / 2,
                 get_byte({column}, length({column}) / 2) # 1) WHERE {row}"
        );
        assert_eq!(self.site.tables().await.execute(&text, &[]).await.unwrap(), 1, "{text}");
    }
}

fn record(run: &RunId, scope: &ScopePath, seq: u64) -> String {
    format!(
        "seq = {seq} AND scope = (SELECT s.id FROM waypost.scopes s JOIN waypost.runs r ON r.id = s.run
             WHERE r.name = '{run}' AND s.path = '{scope}')"
    )
}

#[async_trait]
impl StoreFixture for Postgres {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone().unwrap()
    }

    async fn reopen(&mut self) {
        self.store = None;
        self.site.end_leases().await;
        self.store = Some(self.site.open());
    }

    async fn damage(&mut self, run: &RunId, place: &DamageTarget) {
        match place {
            DamageTarget::Run => {
                let row = format!("run = (SELECT id FROM waypost.runs WHERE name = '{run}')");
                self.flip("frozen", "record", &row).await;
            }
            DamageTarget::Header(scope, seq) => {
                self.flip("records", "header", &record(run, scope, *seq)).await;
            }
            DamageTarget::Body(scope, seq) => {
                self.flip("records", "body", &record(run, scope, *seq)).await;
            }
        }
        // The cache would hide the damage.
        self.store = Some(self.site.open());
    }

    async fn quarantined(&mut self, run: &RunId) -> Vec<Vec<u8>> {
        let tables = self.site.tables().await;
        let text = "SELECT q.header, coalesce(q.body, '') FROM waypost.quarantine q
            JOIN waypost.runs r ON r.id = q.run WHERE r.name = $1 ORDER BY q.id";
        let rows = tables.query(text, &[&run.as_str()]).await.unwrap();
        rows.iter().map(|row| [row.get::<_, Vec<u8>>(0), row.get(1)].concat()).collect()
    }

    fn folder(&self) -> Option<PathBuf> {
        None
    }
}

store_contract!(postgres, Postgres::fresh().await);
store_differential!(postgres_like_the_model, Postgres::fresh().await);
