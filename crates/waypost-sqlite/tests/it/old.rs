//! Databases of a schema version before the first release are refused and left unchanged.

use std::fs;

use waypost::record::Durability;
use waypost::store::StoreError;
use waypost_sqlite::{SqliteOptions, SqliteStore};

use crate::support::{Site, Writing};

#[tokio::test]
async fn a_database_before_the_first_release_is_refused() {
    let site = Site::new();
    drop(Writing::begin(&site.open(), "r-1", Durability::Sync).await);
    for version in 0..6 {
        site.tables().pragma_update(None, "user_version", version).unwrap();
        let before = fs::read(site.file()).unwrap();

        for opened in [
            SqliteStore::open(&site.file(), SqliteOptions::default()).map(drop),
            SqliteStore::open_read_only(&site.file(), SqliteOptions::default()).map(drop),
        ] {
            let Err(error @ StoreError::Version { .. }) = opened else { panic!("{opened:?}") };
            let why = format!("has format {version} of a prerelease, this version reads 6");
            assert!(error.to_string().ends_with(&why), "{error}");
        }
        assert!(fs::read(site.file()).unwrap() == before);
    }
}

#[tokio::test]
async fn a_store_that_is_new_is_made_as_one_of_today() {
    let site = Site::new();
    drop(Writing::begin(&site.open(), "r-1", Durability::Sync).await);

    let tables = site.tables();
    let number = |sql: &str| tables.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((number("PRAGMA user_version"), number("PRAGMA auto_vacuum")), (6, 2));
}
