//! The first use of a store: demands on server and schema, and the errors.

use waypost::store::{RunQuery, Store as _, StoreError};
use waypost_postgres::{PostgresOptions, PostgresStore, SCHEMA_VERSION};
use waypost_testing::contract::block_on;

use crate::proxy::{Proxy, When};
use crate::support::Site;

#[test]
fn tables_are_made_once_and_only_by_init() {
    block_on(async {
        let site = Site::empty().await;
        let store = site.open();

        let error = store.runs(&RunQuery::default()).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::NotFound { what, .. } if what == "tables of Waypost"),
            "{error}"
        );
        assert_eq!(store.schema().await.unwrap(), None);

        let (one, two) = (site.open(), site.open());
        let made = tokio::join!(one.init(), two.init());
        let made = [made.0.unwrap(), made.1.unwrap()];
        assert!(made.contains(&None), "a single call made the tables: {made:?}");
        assert_eq!(store.init().await.unwrap(), Some(SCHEMA_VERSION));
        assert_eq!(store.runs(&RunQuery::default()).await.unwrap().runs, []);
    });
}

#[test]
fn a_database_that_refuses_characters_is_refused() {
    block_on(async {
        let site = Site::new().await;
        let name = format!("{}_latin", site.database());
        let make = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'");
        site.tables().await.batch_execute(&make).await.unwrap();
        let url = site.url().replace(site.database(), &name);

        let error = PostgresStore::open(&url, PostgresOptions::default()).unwrap().init().await.unwrap_err();

        assert!(matches!(&error, StoreError::Unsupported { why, .. } if why.contains("LATIN1")), "{error}");
    });
}

#[test]
fn a_schema_of_another_version_is_refused() {
    block_on(async {
        let site = Site::new().await;
        site.tables().await.batch_execute("UPDATE waypost.version SET version = 9").await.unwrap();
        let store = site.open();

        for error in
            [store.runs(&RunQuery::default()).await.unwrap_err(), store.init().await.map(drop).unwrap_err()]
        {
            assert!(
                matches!(error, StoreError::Version { found: 9, supported: SCHEMA_VERSION, .. }),
                "{error}"
            );
        }
    });
}

/// Makes version 5 of version 6, and so on.
const DOWNGRADES: [(u32, &str); 5] = [
    (5, "UPDATE waypost.version SET version = 5; DELETE FROM waypost.migrations"),
    (
        4,
        "DROP TABLE waypost.logs; ALTER TABLE waypost.tasks DROP COLUMN until;
        UPDATE waypost.version SET version = 4",
    ),
    (
        3,
        "ALTER TABLE waypost.tasks ALTER COLUMN losses_max TYPE boolean USING losses_max > 0;
        ALTER TABLE waypost.tasks RENAME COLUMN losses_max TO repeatable;
        UPDATE waypost.version SET version = 3",
    ),
    (2, "DROP TABLE waypost.tasks; UPDATE waypost.version SET version = 2"),
    (
        1,
        "DROP TABLE waypost.ready, waypost.jobs, waypost.workers;
        DROP INDEX waypost.scopes_worker;
        ALTER TABLE waypost.scopes DROP COLUMN worker, ADD COLUMN until timestamptz;
        UPDATE waypost.version SET version = 1",
    ),
];

#[test]
fn a_store_of_an_older_version_is_upgraded() {
    block_on(async {
        for count in 1..=DOWNGRADES.len() {
            let site = Site::new().await;
            for (_, downgrade) in &DOWNGRADES[..count] {
                site.tables().await.batch_execute(downgrade).await.unwrap();
            }
            let store = site.open();
            assert!(store.runs(&RunQuery::default()).await.is_err());

            assert_eq!(store.init().await.unwrap(), Some(DOWNGRADES[count - 1].0));

            assert_eq!(store.runs(&RunQuery::default()).await.unwrap().runs, []);
            assert_eq!(store.schema().await.unwrap(), Some(SCHEMA_VERSION));
        }
    });
}

#[test]
fn a_store_with_runs_of_a_prerelease_is_not_upgraded() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let run = waypost_testing::records::run_id("r-1");
        let sealed = waypost_testing::records::sealed(waypost_testing::records::run_record(&run));
        let first = waypost_testing::records::Links::of(&run).step();
        store.create(&sealed, first, &waypost_testing::records::holder("test")).await.unwrap();
        let tables = site.tables().await;
        tables.batch_execute("UPDATE waypost.frozen SET record = set_byte(record, 0, 2)").await.unwrap();
        tables.batch_execute(DOWNGRADES[0].1).await.unwrap();
        let store = site.open();

        let opened = store.runs(&RunQuery::default()).await.unwrap_err();
        let upgraded = store.init().await.unwrap_err();

        assert!(matches!(opened, StoreError::Version { found: 5, supported: 6, .. }), "{opened}");
        assert!(upgraded.to_string().contains("its runs have records of a prerelease"), "{upgraded}");
        assert_eq!(store.schema().await.unwrap(), Some(5));
    });
}

#[test]
fn a_worker_needs_no_right_to_change_the_schema() {
    block_on(async {
        let site = Site::new().await;
        let role = format!("worker_{}", site.database());
        let rights = format!(
            "CREATE ROLE {role} LOGIN;
             GRANT USAGE ON SCHEMA waypost TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA waypost TO {role};
             REVOKE INSERT, UPDATE, DELETE ON waypost.version, waypost.migrations FROM {role}"
        );
        site.tables().await.batch_execute(&rights).await.unwrap();
        let url = site.url().replace("user=waypost", &format!("user={role}"));
        let worker = PostgresStore::open(&url, PostgresOptions::default()).unwrap();
        let run = waypost_testing::records::run_id("r-1");
        let mut links = waypost_testing::records::Links::of(&run);
        let sealed = waypost_testing::records::sealed(waypost_testing::records::run_record(&run));

        let lease =
            worker.create(&sealed, links.step(), &waypost_testing::records::holder("worker")).await.unwrap();
        worker.blobs().append(&lease, "logs/a.log", b"line").await.unwrap();
        waypost::store::Store::append(&worker, &[&lease], links.step()).await.unwrap();
        worker.release(lease, None).await.unwrap();
        // Partitions are left to the owner of the tables.
        assert_eq!(worker.rotate_logs(&[]).await.unwrap(), [""; 0]);
        worker.delete(&run).await.unwrap();

        let none = format!("CREATE ROLE none_{role} LOGIN");
        site.tables().await.batch_execute(&none).await.unwrap();
        let url = site.url().replace("user=waypost", &format!("user=none_{role}"));
        let stranger = PostgresStore::open(&url, PostgresOptions::default()).unwrap();
        let error = stranger.runs(&RunQuery::default()).await.unwrap_err();
        assert!(matches!(error, StoreError::Denied { .. }), "{error}");
    });
}

#[test]
fn a_server_that_is_away_is_reported_at_once() {
    block_on(async {
        let begun = std::time::Instant::now();
        let store =
            PostgresStore::open("postgres://me@127.0.0.1:1/jobs", PostgresOptions::default()).unwrap();

        let error = store.runs(&RunQuery::default()).await.unwrap_err();

        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        assert!(begun.elapsed() < PostgresOptions::default().patience / 2);
    });
}

/// Such as the thread of a screen, which waits while the thread that opened the store is busy.
#[test]
fn a_caller_needs_no_runtime_with_drivers() {
    let bare = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let opener = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (site, store) = opener.block_on(async {
        let site = Site::new().await;
        let store = site.open();
        store.runs(&RunQuery::default()).await.unwrap();
        (site, store)
    });
    // The connection outlives the runtime that asked for it.
    drop(opener);
    assert_eq!(bare().block_on(store.runs(&RunQuery::default())).unwrap().runs, []);
    assert_eq!(bare().block_on(site.open().runs(&RunQuery::default())).unwrap().runs, []);
}

#[test]
fn a_pooler_that_refuses_parameters_is_enough() {
    block_on(async {
        let site = Site::new().await;
        let proxy = Proxy::before(&site.url(), b"options\0").await;
        proxy.cut(When::Pooler);
        let store = proxy.store(PostgresOptions::default());

        assert_eq!(store.runs(&RunQuery::default()).await.unwrap().runs, []);
        assert_eq!(proxy.cuts(), 1, "the parameters are sent once");

        // A role with another isolation level is refused there, and harmless without a pooler.
        let sql =
            format!("ALTER DATABASE {} SET default_transaction_isolation = serializable", site.database());
        site.tables().await.batch_execute(&sql).await.unwrap();
        let error = proxy.store(PostgresOptions::default()).runs(&RunQuery::default()).await.unwrap_err();
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
        site.open().runs(&RunQuery::default()).await.unwrap();
    });
}

/// The newest runs of many come by the index.
#[test]
fn a_list_of_many_runs_is_quick() {
    block_on(async {
        let site = Site::new().await;
        let many = "INSERT INTO waypost.runs (name, workflow, path, labels, created_at)
                SELECT 'r-' || n, 'nightly', NULL, '{}', '2026-01-01T00:00:00.000000000Z'
                FROM generate_series(1, 100000) n;
            INSERT INTO waypost.scopes (run, key, path, open, newest, bodies, records, bytes, status)
                SELECT id, substr(sha256('main'), 1, 16), 'main', false, 1, 1, 1, 100, 'completed'
                FROM waypost.runs;
            ANALYZE";
        site.tables().await.batch_execute(many).await.unwrap();
        let store = site.open();
        let query = RunQuery { limit: 50, ..RunQuery::default() };
        store.runs(&query).await.unwrap();
        let begun = std::time::Instant::now();

        let found = store.runs(&query).await.unwrap();

        let took = begun.elapsed();
        assert_eq!((found.runs.len(), found.runs[0].run.as_str()), (50, "r-100000"));
        assert!(took < std::time::Duration::from_millis(500), "{took:?}");
    });
}
