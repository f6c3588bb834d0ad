//! Opening: what is made, what is refused, what reading leaves alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use waypost::record::Durability;
use waypost::store::{Page, RunQuery, Scan, Store, StoreError};
use waypost_sqlite::{SqliteOptions, SqliteStore};
use waypost_testing::records::{holder, run_id, run_record, sealed, signal};

use crate::support::{Site, Writing, open};

fn try_open(file: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(file, SqliteOptions::default())
}

fn try_read(file: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open_read_only(file, SqliteOptions::default())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn what_it_makes_is_for_its_owner_only() {
    let site = Site::new();

    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    writing.step().await.unwrap();

    assert_eq!(mode(&site.home()), 0o700);
    for name in ["waypost.db", "waypost.db-wal", "waypost.db-shm", "locks/r-1.lock", "runs/r-1/events.jsonl"]
    {
        assert_eq!(mode(&site.home().join(name)), 0o600, "{name}");
    }
    for name in ["locks", "runs", "runs/r-1"] {
        assert_eq!(mode(&site.home().join(name)), 0o700, "{name}");
    }
}

#[test]
fn the_settings_of_a_new_database_are_those_that_were_chosen() {
    let site = Site::new();
    drop(site.open());

    let tables = site.tables();
    let text = |sql: &str| tables.query_row(sql, [], |row| row.get::<_, rusqlite::types::Value>(0)).unwrap();
    assert_eq!(text("PRAGMA page_size"), 8192.into());
    assert_eq!(text("PRAGMA journal_mode"), "wal".to_owned().into());
    assert_eq!(text("PRAGMA user_version"), 6.into());
    assert_eq!(text("PRAGMA auto_vacuum"), 2.into());
    assert_eq!(text("PRAGMA application_id"), 0x5759_5054.into());
    assert_eq!(text("SELECT version FROM migrations"), 6.into());
}

#[test]
fn the_sqlite_that_is_built_in_syncs_only_data() {
    assert!(SqliteStore::has_fdatasync(), "LIBSQLITE3_FLAGS in .cargo/config.toml says so");
}

#[test]
fn a_file_of_another_program_is_refused_and_left_alone() {
    let site = Site::new();
    fs::create_dir(site.home()).unwrap();
    let file = site.file();
    for (name, text) in [("text", "this is not a database, but long enough to look like one\n".repeat(40))] {
        fs::write(&file, &text).unwrap();
        for answer in [try_open(&file), try_read(&file)] {
            let error = answer.err().unwrap();
            assert!(
                matches!(&error, StoreError::Invalid(why) if why.contains("not an SQLite database")),
                "{name}: {error}"
            );
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
    fs::remove_file(&file).unwrap();
    Connection::open(&file)
        .unwrap()
        .execute_batch("CREATE TABLE mine (x); INSERT INTO mine VALUES (1)")
        .unwrap();
    let before = fs::read(&file).unwrap();
    for answer in [try_open(&file), try_read(&file)] {
        let error = answer.err().unwrap();
        assert!(matches!(&error, StoreError::Invalid(why) if why.contains("another program")), "{error}");
    }
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn an_empty_file_becomes_a_store_but_is_none_to_a_reader() {
    let site = Site::new();
    fs::create_dir(site.home()).unwrap();
    fs::write(site.file(), b"").unwrap();

    let error = try_read(&site.file()).err().unwrap();

    assert!(matches!(&error, StoreError::NotFound { what, .. } if what == "runs yet"), "{error}");
    try_open(&site.file()).unwrap();
    try_read(&site.file()).unwrap();
}

/// What happened: a reader that came after the maker of a store had been killed called the database malformed.
/// Why: SQLite had written some of it, a reader may not roll that back, and it was then opened as immutable.
/// What stops it now: the journal says that the database was nothing before, so that there are no runs.
#[test]
fn a_store_whose_maker_was_killed_has_no_runs_yet() {
    // The database was nothing before, or the one page that says how it gives pages back.
    for begun in ["", "PRAGMA page_size = 8192; PRAGMA auto_vacuum = 2;"] {
        let site = Site::new();
        fs::create_dir(site.home()).unwrap();
        let elsewhere = site.home().join("elsewhere");
        let maker = Connection::open(&elsewhere).unwrap();
        maker.execute_batch(begun).unwrap();
        maker
            .execute_batch(
                "PRAGMA cache_size = 1; BEGIN; CREATE TABLE half (made);
                 WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
                 INSERT INTO half SELECT randomblob(4000) FROM n;",
            )
            .unwrap();
        for suffix in ["", "-journal"] {
            let [source, target] =
                ["elsewhere", "waypost.db"].map(|name| site.home().join(format!("{name}{suffix}")));
            assert!(fs::copy(source, target).unwrap() > 0, "SQLite has written to `{suffix}`");
        }

        let error = try_read(&site.file()).err().unwrap();

        assert!(matches!(&error, StoreError::NotFound { what, .. } if what == "runs yet"), "{error}");
        try_open(&site.file()).unwrap();
        try_read(&site.file()).unwrap();
    }
}

#[test]
fn what_is_not_there_is_not_made_by_a_reader() {
    let site = Site::new();

    let error = try_read(&site.file()).err().unwrap();

    assert!(matches!(error, StoreError::Io { action: "open", .. }), "{error}");
    assert!(!site.home().exists());
}

#[test]
fn a_place_that_cannot_be_made_is_told_by_its_path() {
    let site = Site::new();
    fs::write(site.home(), b"a file where the folder should be").unwrap();

    let error = try_open(&site.file()).err().unwrap();

    assert!(matches!(&error, StoreError::Create { path, .. } if path.starts_with(site.home())), "{error:?}");
}

#[tokio::test]
async fn newer_is_refused() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;

    // Another program upgrades it while this one has it open.
    site.tables().pragma_update(None, "user_version", 7).unwrap();

    let newer = |error: StoreError| matches!(error, StoreError::Version { found: 7, supported: 6, .. });
    assert!(newer(writing.step().await.unwrap_err()));
    assert!(newer(store.run(writing.lease.run()).await.unwrap_err()));
    assert!(newer(store.heads(writing.lease.run(), &Page::default()).await.unwrap_err()));
    let before = fs::read(site.file()).unwrap();
    assert!(newer(try_open(&site.file()).err().unwrap()));
    assert!(newer(try_read(&site.file()).err().unwrap()));
    assert_eq!(fs::read(site.file()).unwrap(), before);
}

#[tokio::test]
async fn a_reader_refuses_to_write() {
    let site = Site::new();
    let store = site.open();
    drop(Writing::begin(&store, "r-1", Durability::Sync).await);
    let reader = site.open_read_only();
    let run = run_id("r-1");

    let refused =
        |error: StoreError| matches!(&error, StoreError::Invalid(why) if why.contains("open read-only"));
    let links = waypost_testing::records::Links::of(&run_id("r-2")).step();
    let frozen = sealed(run_record(&run_id("r-2")));
    assert!(refused(reader.create(&frozen, links, &holder("test")).await.unwrap_err()));
    assert!(refused(reader.acquire(&run, &waypost::ScopePath::main(), &holder("test")).await.unwrap_err()));
    let stop = signal("s-1", waypost::store::SignalKind::Stop);
    assert!(refused(reader.signal(&run, &stop).await.unwrap_err()));
    assert!(refused(reader.delete(&run).await.unwrap_err()));
    assert!(!site.home().join("locks/r-2.lock").exists());
}

#[tokio::test]
async fn reading_works_where_nothing_may_be_written() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    writing.step().await.unwrap();
    drop(writing);
    store.close().await.unwrap();
    drop(store);
    assert!(!site.home().join("waypost.db-wal").exists(), "a clean end leaves no log");
    // The superuser may write all the same, and then only sees that reading works.
    fs::set_permissions(site.file(), fs::Permissions::from_mode(0o400)).unwrap();
    fs::set_permissions(site.home(), fs::Permissions::from_mode(0o500)).unwrap();

    let reader = site.open_read_only();
    let run = run_id("r-1");
    let head = reader.heads(&run, &Page::default()).await.unwrap().heads.remove(0);
    assert_eq!(head.record.header().seq, 2);
    assert_eq!(reader.runs(&RunQuery::default()).await.unwrap().runs.len(), 1);
    assert_eq!(reader.scan(&Scan::of(&run)).await.unwrap().records.len(), 2);

    fs::set_permissions(site.home(), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn two_names_of_a_store_share_its_locks() {
    let site = Site::new();
    let first = site.open();
    let link = site.home().parent().unwrap().join("elsewhere.db");
    std::os::unix::fs::symlink(site.file(), &link).unwrap();

    let second = open(&link);

    assert_eq!(first.home(), second.home());
    assert_ne!(first.to_string(), second.to_string());
}

#[test]
fn many_open_a_new_store_at_once() {
    let site = Arc::new(Site::new());
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let site = Arc::clone(&site);
            std::thread::spawn(move || try_open(&site.file()).map(drop))
        })
        .collect();

    for thread in threads {
        thread.join().unwrap().unwrap();
    }
    let made: i64 = site.tables().query_row("SELECT count(*) FROM migrations", [], |row| row.get(0)).unwrap();
    assert_eq!(made, 1);
}
