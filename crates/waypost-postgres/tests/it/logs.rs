//! Logs: partitions by month, and files outside the database.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Client;
use waypost::id::RunId;
use waypost::store::{self, Lease, Store as _};
use waypost::{Clock as _, SystemClock};
use waypost_postgres::{PostgresOptions, PostgresStore};
use waypost_testing::contract::{self, DamageTarget, StoreFixture, block_on};
use waypost_testing::records::{Links, holder, run_id, run_record, sealed};

use crate::support::Site;

const LOG: &str = "logs/a.1.log";

/// Creates a run of a time, with a log.
async fn logged(store: &PostgresStore, run: &str, created_at: &str) -> Lease {
    let run = run_id(run);
    let record = waypost::record::RunRecord { created_at: created_at.parse().unwrap(), ..run_record(&run) };
    let lease = store.create(&sealed(record), Links::of(&run).step(), &holder("one")).await.unwrap();
    store.blobs().append(&lease, LOG, b"line").await.unwrap();
    lease
}

async fn log_of(store: &PostgresStore, run: &RunId) -> Vec<u8> {
    store.blobs().read(run, LOG, 0).await.unwrap()
}

/// Returns the tables with logs, each with its number of chunks.
async fn tables_with_logs(tables: &Client) -> Vec<String> {
    let text = "SELECT c.relname || ' ' || count(*) FROM waypost.logs l JOIN pg_class c ON c.oid = l.tableoid
        GROUP BY c.relname ORDER BY 1";
    tables.query(text, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn partitions(tables: &Client) -> i64 {
    let text = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'waypost.logs'::regclass";
    tables.query_one(text, &[]).await.unwrap().get(0)
}

fn now() -> String {
    SystemClock.now().to_string()
}

fn partition_of(time: &str) -> String {
    format!("logs_{}", time[..7].replace('-', "_"))
}

/// Makes the partition of a past month, as a store of that month has.
async fn add_partition(tables: &Client, month: &str, next: &str) {
    let text = format!(
        "CREATE TABLE waypost.logs_{} PARTITION OF waypost.logs FOR VALUES FROM ('{month}') TO ('{next}')",
        month.replace('-', "_")
    );
    tables.batch_execute(&text).await.unwrap();
}

#[test]
fn a_log_is_in_the_partition_of_the_month_of_its_run() {
    block_on(async {
        let site = Site::new().await;
        let (store, tables, now) = (site.open(), site.tables().await, now());

        let lease = logged(&store, "new", &now).await;
        logged(&store, "old", "2025-01-31T23:59:59Z").await;
        store.blobs().append(&lease, "list", b"items").await.unwrap();

        let expect = [format!("{} 1", partition_of(&now)), "logs_default 1".to_owned()];
        assert_eq!(tables_with_logs(&tables).await, expect);
        assert_eq!(partitions(&tables).await, 5, "this month, three ahead, and the default");
        for run in ["new", "old"] {
            assert_eq!(log_of(&store, &run_id(run)).await, b"line");
        }
        store.release(lease, None).await.unwrap();
        store.delete(&run_id("new")).await.unwrap();
        assert_eq!(tables_with_logs(&tables).await, ["logs_default 1"]);
    });
}

#[test]
fn a_past_month_without_kept_runs_is_dropped() {
    block_on(async {
        let site = Site::new().await;
        let (store, tables) = (site.open(), site.tables().await);
        for (month, next) in [("2025-01", "2025-02"), ("2025-02", "2025-03"), ("2025-03", "2025-04")] {
            add_partition(&tables, month, next).await;
        }
        let doomed = logged(&store, "doomed", "2025-01-10T00:00:00Z").await;
        let held = logged(&store, "held", "2025-02-10T00:00:00Z").await;
        store.release(doomed, None).await.unwrap();
        logged(&store, "new", &now()).await;

        let dropped = store.rotate_logs(&[run_id("doomed"), run_id("held")]).await.unwrap();

        assert_eq!(dropped, ["2025-01", "2025-03"], "a held run keeps the logs of its month");
        assert_eq!(log_of(&store, &run_id("doomed")).await, b"");
        for run in ["held", "new"] {
            assert_eq!(log_of(&store, &run_id(run)).await, b"line");
        }
        store.delete(&run_id("doomed")).await.unwrap();
        store.release(held, None).await.unwrap();
        assert_eq!(store.rotate_logs(&[]).await.unwrap(), [""; 0], "a run at rest is kept");
    });
}

#[test]
fn a_month_with_rows_in_the_default_partition_gets_none() {
    block_on(async {
        let site = Site::new().await;
        let (store, tables, now) = (site.open(), site.tables().await, now());
        tables.batch_execute(&format!("DROP TABLE waypost.{}", partition_of(&now))).await.unwrap();
        let lease = logged(&store, "r", &now).await;

        store.init().await.unwrap();

        assert_eq!(tables_with_logs(&tables).await, ["logs_default 1"]);
        assert_eq!(log_of(&store, &run_id("r")).await, b"line");
        store.release(lease, None).await.unwrap();
        store.delete(&run_id("r")).await.unwrap();
        store.rotate_logs(&[]).await.unwrap();
        logged(&store, "r", &now).await;
        assert_eq!(tables_with_logs(&tables).await, [format!("{} 1", partition_of(&now))]);
    });
}

#[test]
fn only_logs_are_written_without_a_sync() {
    block_on(async {
        let site = Site::new().await;
        let (store, tables) = (site.open(), site.tables().await);
        let watch = "CREATE TABLE seen (place text, setting text);
            CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO seen VALUES (TG_ARGV[0], current_setting('synchronous_commit')); RETURN NULL;
            END $$;
            CREATE TRIGGER see AFTER INSERT ON waypost.logs FOR EACH ROW EXECUTE FUNCTION see('logs');
            CREATE TRIGGER see AFTER INSERT ON waypost.records FOR EACH ROW EXECUTE FUNCTION see('records')";
        tables.batch_execute(watch).await.unwrap();

        logged(&store, "r", &now()).await;

        let seen = tables.query("SELECT DISTINCT place || ' ' || setting FROM seen ORDER BY 1", &[]).await;
        let seen: Vec<String> = seen.unwrap().iter().map(|row| row.get(0)).collect();
        assert_eq!(seen, ["logs off", "records on"]);
    });
}

/// A store with logs in a folder.
struct LogFiles {
    site: Site,
    folder: tempfile::TempDir,
    store: Option<Arc<PostgresStore>>,
}

impl LogFiles {
    async fn fresh() -> Self {
        let (site, folder) = (Site::new().await, tempfile::tempdir().unwrap());
        let mut files = Self { site, folder, store: None };
        files.store = Some(files.open());
        files
    }

    fn open(&self) -> Arc<PostgresStore> {
        let url = self.site.address(&format!("logs={}", self.folder.path().display()));
        Arc::new(PostgresStore::open(&url, PostgresOptions::default()).unwrap())
    }
}

#[async_trait]
impl StoreFixture for LogFiles {
    fn store(&self) -> Arc<dyn store::Store> {
        self.store.clone().unwrap()
    }

    async fn reopen(&mut self) {
        self.store = None;
        self.site.end_leases().await;
        self.store = Some(self.open());
    }

    async fn damage(&mut self, _: &RunId, _: &DamageTarget) {
        unreachable!("logs are no records")
    }

    async fn quarantined(&mut self, _: &RunId) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn folder(&self) -> Option<PathBuf> {
        Some(self.folder.path().to_owned())
    }
}

#[test]
fn logs_in_a_folder_obey_the_contract() {
    block_on(async {
        contract::blobs_are_fenced_and_appended(LogFiles::fresh().await).await;
        contract::delete_removes_everything(LogFiles::fresh().await).await;
    });
}

#[test]
fn logs_in_a_folder_are_not_in_the_database() {
    block_on(async {
        let files = LogFiles::fresh().await;
        let store = files.store.as_ref().unwrap();

        let lease = logged(store, "r", &now()).await;

        assert_eq!(tables_with_logs(&files.site.tables().await).await, [""; 0]);
        let file = files.folder.path().join("r").join(LOG);
        assert_eq!(std::fs::read(&file).unwrap(), b"line");
        assert_eq!(store.blobs().log_folder(lease.run()), file.parent().map(Into::into));
        // Other data of the run stays in the database.
        store.blobs().append(&lease, "list", b"items").await.unwrap();
        assert_eq!(files.site.open().blobs().read(lease.run(), "list", 0).await.unwrap(), b"items");
    });
}

#[test]
fn an_upgrade_moves_logs() {
    block_on(async {
        let site = Site::new().await;
        let (store, tables) = (site.open(), site.tables().await);
        logged(&store, "r", &now()).await;
        let before = "INSERT INTO waypost.blobs SELECT run, name, at, bytes FROM waypost.logs;
            DROP TABLE waypost.logs; ALTER TABLE waypost.tasks DROP COLUMN until; UPDATE waypost.version SET version = 4; DELETE FROM waypost.migrations";
        tables.batch_execute(before).await.unwrap();

        assert_eq!(site.open().init().await.unwrap(), Some(4));

        assert_eq!(log_of(&store, &run_id("r")).await, b"line");
        let left = tables.query_one("SELECT count(*) FROM waypost.blobs", &[]).await.unwrap();
        assert_eq!(left.get::<_, i64>(0), 0);
    });
}
