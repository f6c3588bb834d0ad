//! Columns that no digest covers are not believed against the records, and are mended.
//!
//! What happened: with `scopes.newest` lowered, `verify` said sound and every append failed for ever; raised, a resume
//! moved a million records to quarantine that never were. A run whose status could not be read made the list of all
//! runs fail, and one changed bit in a run record cost the run. Why: each of them was believed by itself. What stops it
//! now: the records decide (counters.rs), summaries are derived anew (runs.rs), run records are kept twice (run_copies.rs).

use std::sync::Arc;

use waypost::ScopePath;
use waypost::record::{Durability, RunStatus};
use waypost::store::{Page, RunQuery, Scan, Store, StoreError};
use waypost_sqlite::SqliteStore;
use waypost_testing::records::{Links, holder, run_id};

use crate::support::{Site, Writing};

/// Makes a run with five records that nobody holds.
async fn five(site: &Site) -> Links {
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    for _ in 2..=5 {
        writing.step().await.unwrap();
    }
    store.release(writing.lease, None).await.unwrap();
    writing.links
}

/// Appends a record as whoever takes the run up does.
async fn go_on(store: &Arc<SqliteStore>, links: &mut Links) {
    let lease = store.acquire(&run_id("r-1"), &ScopePath::main(), &holder("next")).await.unwrap();
    links.under(&lease);
    store.append(&[&lease], links.step()).await.unwrap();
    store.release(lease, None).await.unwrap();
}

async fn found(store: &SqliteStore) -> Vec<String> {
    store.inspect(Some(&run_id("r-1"))).await.unwrap()
}

#[tokio::test]
async fn a_scope_ends_where_its_records_end() {
    for newest in [0, 1, 4, 6, 1 << 20, (1_i64 << 32) - 1] {
        let site = Site::new();
        let mut links = five(&site).await;
        site.execute(&format!("UPDATE runs SET main_newest = {newest}"));
        let store = site.open();

        assert_eq!(found(&store).await.len(), 1, "{newest}: {:?}", found(&store).await);
        let head = store.heads(&run_id("r-1"), &Page::default()).await.unwrap().heads.remove(0);
        assert_eq!((head.record.header().seq, head.next, head.damaged.len()), (5, 6, 0), "{newest}");
        let scanned = store.scan(&Scan::of(&run_id("r-1"))).await.unwrap();
        assert_eq!((scanned.records.len(), scanned.damaged.len()), (5, 0), "{newest}");

        go_on(&store, &mut links).await;
        assert_eq!(found(&store).await, [""; 0], "{newest}");
    }
}

#[tokio::test]
async fn records_of_the_main_scope_never_go_to_another() {
    for main in [0, 2, 3, -1, 1_i64 << 33] {
        let site = Site::new();
        let mut links = five(&site).await;
        site.execute("INSERT INTO scopes VALUES (2, 1, 'each:a', 1, 0, 0)");
        site.execute(&format!("UPDATE runs SET main = {main}, scopes = 2"));
        let store = site.open();
        assert_eq!(found(&store).await.len(), 1, "{main}: {:?}", found(&store).await);

        go_on(&store, &mut links).await;

        let kept: (i64, i64) = site
            .tables()
            .query_row("SELECT count(*), max(key >> 32) FROM records", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .unwrap();
        assert_eq!(kept, (6, 1), "{main}");
        assert_eq!(found(&store).await, [""; 0], "{main}");
    }
}

#[tokio::test]
async fn a_row_that_vanished_is_not_mended_away() {
    let site = Site::new();
    five(&site).await;
    std::fs::remove_file(site.home().join("runs/r-1/events.jsonl")).unwrap();
    site.execute("DELETE FROM records WHERE key = (1 << 32 | 5)");
    let store = site.open();

    store.acquire(&run_id("r-1"), &ScopePath::main(), &holder("next")).await.unwrap();

    let head = store.heads(&run_id("r-1"), &Page::default()).await.unwrap().heads.remove(0);
    assert_eq!((head.record.header().seq, head.next, head.damaged.len()), (4, 6, 1));
}

#[tokio::test]
async fn counts_are_compared_and_mended() {
    for (column, wrong) in [("checkpoints", 3), ("checkpoints", 1_i64 << 40), ("bytes", 1), ("scopes", 9)] {
        let site = Site::new();
        let mut links = five(&site).await;
        site.execute(&format!("UPDATE runs SET {column} = {wrong}"));
        let store = site.open();

        assert_eq!(found(&store).await.len(), 1, "{column}: {:?}", found(&store).await);
        assert!(store.heads(&run_id("r-1"), &Page::default()).await.is_ok(), "{column}");

        go_on(&store, &mut links).await;
        assert_eq!(found(&store).await, [""; 0], "{column}");
        let summary = store.run(&run_id("r-1")).await.unwrap().summary;
        assert_eq!(summary.checkpoints, 6);
    }
}

#[tokio::test]
async fn a_summary_that_cannot_be_read_hides_no_other_run() {
    for change in ["status = 'zzz'", "wake_at = 'garbage'", "done = -1", "labels = '{'", "created_at = 'x'"] {
        let site = Site::new();
        let mut links = five(&site).await;
        let store = site.open();
        Writing::begin(&store, "r-2", Durability::Sync).await;
        let sql = format!("UPDATE runs SET {change} WHERE name = 'r-1'");
        site.execute(&sql);

        let listed = store.runs(&RunQuery::default()).await.unwrap();
        assert_eq!((listed.runs.len(), listed.runs[0].run.as_str()), (1, "r-2"), "{change}");
        assert_eq!(listed.damaged[0].run.as_str(), "r-1", "{change}");
        let entry = store.run(&run_id("r-1")).await.unwrap();
        assert_eq!(entry.summary.status, RunStatus::Interrupted, "{change}");
        assert_eq!(found(&store).await.len(), 1, "{change}");

        go_on(&store, &mut links).await;
        assert_eq!(found(&store).await, [""; 0], "{change}");
        assert_eq!(store.runs(&RunQuery::default()).await.unwrap().runs.len(), 2, "{change}");
    }
}

#[tokio::test]
async fn one_of_the_two_run_records_is_enough() {
    let changes = [
        "UPDATE frozen SET record = CAST('{}' AS BLOB)",
        "UPDATE frozen SET digest = zeroblob(32)",
        "DELETE FROM frozen",
        "UPDATE frozen_copies SET record = zeroblob(9)",
        "DELETE FROM frozen_copies",
    ];
    for change in changes {
        let site = Site::new();
        let mut links = five(&site).await;
        let sound = site.open().run(&run_id("r-1")).await.unwrap().record;
        site.execute(change);
        let store = site.open();

        assert_eq!(store.run(&run_id("r-1")).await.unwrap().record, sound, "{change}");
        assert_eq!(found(&store).await.len(), 1, "{change}");

        go_on(&store, &mut links).await;
        assert_eq!(found(&store).await, [""; 0], "{change}");
        let kept: i64 =
            site.tables().query_row("SELECT count(*) FROM quarantine", [], |row| row.get(0)).unwrap();
        assert_eq!(kept, i64::from(!change.starts_with("DELETE")), "{change}: what was damaged is kept");
    }
}

#[tokio::test]
async fn without_a_sound_run_record_the_run_is_damaged() {
    let site = Site::new();
    five(&site).await;
    site.execute("DELETE FROM frozen");
    site.execute("DELETE FROM frozen_copies");

    let answer = site.open().run(&run_id("r-1")).await;

    assert!(matches!(&answer, Err(StoreError::Damaged { damage, .. }) if damage.seq == 0), "{answer:?}");
}

#[tokio::test]
async fn a_damaged_page_of_an_index_is_seen() {
    // What happened: with a page of an index overwritten, `verify` said sound. Why: indexes hold no records, and only
    // those were looked at. What stops it now: SQLite compares them itself (inspect.rs).
    for name in ["signals_pending", "records_about", "scopes_run", "quarantine_key"] {
        let site = Site::new();
        five(&site).await;
        let store = site.open();
        assert_eq!(store.inspect(None).await.unwrap(), [""; 0]);
        store.close().await.unwrap();
        let root: i64 = site
            .tables()
            .query_row("SELECT rootpage FROM sqlite_schema WHERE name = ?1", [name], |row| row.get(0))
            .unwrap();
        let mut bytes = std::fs::read(site.file()).unwrap();
        let begin = (root as usize - 1) * 8192;
        bytes[begin..begin + 100].fill(0xa5);
        std::fs::write(site.file(), bytes).unwrap();

        assert_ne!(site.open_read_only().inspect(None).await.unwrap(), [""; 0], "{name}");
    }
}

#[test]
fn many_may_make_the_store_at_once() {
    // What happened: one of sixty first runs said that the store belonged to another program. Why: what it is was asked
    // in three reads, and another made it in between. What stops it now: one transaction reads all of it.
    const ROUNDS: usize = 20;
    const OPENERS: usize = 8;
    for round in 0..ROUNDS {
        let site = Site::new();
        let barrier = std::sync::Barrier::new(OPENERS);
        std::thread::scope(|scope| {
            let openers: Vec<_> = (0..OPENERS)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        SqliteStore::open(&site.file(), Default::default()).map(drop)
                    })
                })
                .collect();
            for opener in openers {
                opener.join().unwrap().unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
        });
    }
}

#[tokio::test]
async fn a_run_without_its_row_but_in_the_index_is_damaged() {
    // What happened: with the page of `runs` overwritten, a list said that there are no runs. Why: they were counted in
    // the index, whose page was sound. What stops it now: a list that reads all rows asks the folders for each.
    let site = Site::new();
    five(&site).await;
    // With a clean end, all is in the file.
    let root: i64 = site
        .tables()
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'runs'", [], |row| row.get(0))
        .unwrap();
    let mut bytes = std::fs::read(site.file()).unwrap();
    let begin = (root as usize - 1) * 8192;
    // A leaf of a table, sound and without a row: what it holds begins at its end.
    bytes[begin..begin + 8].copy_from_slice(&[13, 0, 0, 0, 0, 0x20, 0, 0]);
    std::fs::write(site.file(), bytes).unwrap();

    let store = site.open_read_only();
    let listed = store.runs(&RunQuery::default()).await.unwrap();

    assert!(listed.runs.is_empty());
    let damaged: Vec<_> = listed.damaged.iter().map(|run| run.run.as_str()).collect();
    assert_eq!(damaged, ["r-1"]);
}
