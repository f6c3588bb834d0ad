//! Damage is seen, whatever byte of the file was changed: the value as it was, an older one with a report, or an error.

use std::fs;
use std::path::Path;

use waypost::ScopePath;
use waypost::record::{Durability, Record};
use waypost::store::{Page, Renewal, RunQuery, Scan, Signalled, Store, StoreError};
use waypost_sqlite::{SqliteOptions, SqliteStore};
use waypost_testing::records::{Links, holder, run_id, run_record, scope, sealed};

use crate::support::{Site, Writing};

/// Makes a small store, closed, and returns what was written to it.
async fn small(site: &Site) -> Vec<Record> {
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Async).await;
    for _ in 2..=6 {
        writing.step().await.unwrap();
    }
    let item = writing.links.record(&scope("each:a"));
    let batch = writing.links.batch(vec![item]);
    Store::append(&*store, &[&writing.lease], batch).await.unwrap();
    let mut written = store.scan(&Scan::of(&run_id("r-1"))).await.unwrap().records;
    for record in &mut written {
        let header = record.header();
        *record = store.load(&header.run, &header.scope, header.seq).await.unwrap();
    }
    drop(writing);
    store.close().await.unwrap();
    written
}

/// Writes a copy of a store in which one bit is another.
fn change(copy: &Site, bytes: &[u8], (place, bit): (usize, usize)) {
    let mut changed = bytes.to_vec();
    changed[place] ^= 1 << bit;
    fs::write(copy.file(), &changed).unwrap();
}

/// Of all places one in so many is tried, and every one with `WAYPOST_RIG_SHARE=1`, which takes minutes.
fn share(default: usize) -> usize {
    std::env::var("WAYPOST_RIG_SHARE").map_or(default, |text| text.parse().expect("a share is a number"))
}

#[derive(Debug, Default)]
struct Outcomes {
    whole: usize,
    reported: usize,
    refused: usize,
}

impl Outcomes {
    /// Reads a damaged store and fails if anything wrong is taken for right.
    async fn look(&mut self, file: &Path, written: &[Record], what: &str) {
        let Ok(store) = SqliteStore::open_read_only(file, SqliteOptions::default()) else {
            self.refused += 1;
            return;
        };
        let run = run_id("r-1");
        for record in written {
            let header = record.header();
            if let Ok(found) = store.load(&run, &header.scope, header.seq).await {
                assert_eq!(found, *record, "{what}: a wrong record was taken for right");
            }
        }
        let heads = store.heads(&run, &Page::default()).await;
        let Ok(heads) = heads else {
            self.refused += 1;
            return;
        };
        // One bit makes no records that never were.
        let scanned = store.scan(&Scan::of(&run)).await.map_or(0, |found| found.damaged.len());
        let missed = heads.heads.iter().map(|head| head.damaged.len()).sum::<usize>();
        assert!(
            scanned.max(missed) <= written.len(),
            "{what}: {scanned} and {missed} of {} are damaged",
            written.len()
        );
        let mut reported = false;
        for (path, newest) in [(ScopePath::main(), 6), (scope("each:a"), 1)] {
            let head = heads.heads.iter().find(|head| head.record.header().scope == path);
            let head = head.unwrap_or_else(|| panic!("{what}: scope {path} vanished in silence"));
            let seq = head.record.header().seq;
            assert!(written.contains(&head.record), "{what}: {path}@{seq} is not what was written");
            assert!(
                seq == newest || !head.damaged.is_empty(),
                "{what}: {path}@{seq} stands for {newest} in silence"
            );
            reported |= !head.damaged.is_empty();
        }
        if reported { self.reported += 1 } else { self.whole += 1 }
    }
}

/// A small run, the bytes of its database, and a folder for a changed copy.
struct Original {
    written: Vec<Record>,
    bytes: Vec<u8>,
    copy: Site,
}

impl Original {
    async fn new() -> Self {
        let site = Site::new();
        let written = small(&site).await;
        let copy = Site::new();
        fs::create_dir(copy.home()).unwrap();
        Self { written, bytes: fs::read(site.file()).unwrap(), copy }
    }
}

#[tokio::test]
async fn no_changed_bit_leads_to_a_wrong_value() {
    // Every page is hit in many places; a prime so that the bit and the column move.
    let stride = share(257);
    let Original { written, bytes, copy } = Original::new().await;

    let mut outcomes = Outcomes::default();
    for place in (0..bytes.len()).step_by(stride) {
        change(&copy, &bytes, (place, place % 8));
        outcomes.look(&copy.file(), &written, &format!("byte {place} bit {}", place % 8)).await;
    }

    assert!(outcomes.whole > 0 && outcomes.reported > 0 && outcomes.refused > 0, "{outcomes:?}");
}

// What happened: one bit of the key of the newest row made it the row of a record 268 million behind it, and readers listed all
// between as damaged, one by one, until memory was used up. Why: the last key decided where a scope ends. What stops it
// now: rows count as far as there are no more gaps than rows are missed.
#[tokio::test]
async fn no_bit_of_where_a_row_begins_leads_to_a_wrong_value() {
    /// Length of the cell, key, lengths of the columns, and what of them stands before the digest.
    const BEGIN: usize = 24;
    let Original { written, bytes, copy } = Original::new().await;

    let mut outcomes = Outcomes::default();
    for record in &written {
        let digest = record.digest();
        let at = bytes.windows(32).position(|window| window == digest.as_bytes()).unwrap();
        for (place, bit) in (at - BEGIN..at).flat_map(|place| (0..8).map(move |bit| (place, bit))) {
            change(&copy, &bytes, (place, bit));
            let what = format!("{}, byte {} bit {bit}", record.header().reference(), at - place);
            outcomes.look(&copy.file(), &written, &what).await;
        }
    }

    assert!(outcomes.whole > 0 && outcomes.reported > 0, "{outcomes:?}");
}

#[tokio::test]
async fn no_truncation_leads_to_a_wrong_value() {
    let stride = share(1021);
    let Original { written, bytes, copy } = Original::new().await;

    let mut outcomes = Outcomes::default();
    for length in (0..bytes.len()).step_by(stride) {
        fs::write(copy.file(), &bytes[..length]).unwrap();
        outcomes.look(&copy.file(), &written, &format!("length {length}")).await;
    }

    assert!(outcomes.refused > 0, "{outcomes:?}");
}

#[tokio::test]
async fn a_row_that_vanished_is_missed() {
    let site = Site::new();
    small(&site).await;
    site.execute("DELETE FROM records WHERE key = (1 << 32 | 6)");
    let store = site.open();
    let run = run_id("r-1");

    let head = store.heads(&run, &Page::default()).await.unwrap().heads.remove(0);
    assert_eq!((head.record.header().seq, head.next, head.damaged.len()), (5, 7, 1));
    assert!(matches!(
        store.load(&run, &ScopePath::main(), 6).await,
        Err(StoreError::Damaged { older: Some(5), .. })
    ));

    // Noted in quarantine, it is missed no more, and its number is not given again.
    let lease = store.acquire(&run, &ScopePath::main(), &holder("next")).await.unwrap();
    store.quarantine(&lease, &head.damaged[0]).await.unwrap();
    let head = store.heads(&run, &Page::default()).await.unwrap().heads.remove(0);
    assert_eq!((head.record.header().seq, head.next, head.damaged.len()), (5, 7, 0));
}

#[tokio::test]
async fn a_scope_that_vanished_is_missed() {
    let site = Site::new();
    small(&site).await;
    site.execute("DELETE FROM scopes WHERE path = 'each:a'");
    let store = site.open();
    let run = run_id("r-1");

    let heads = store.heads(&run, &Page::default()).await;
    let scanned = store.scan(&Scan::of(&run)).await;

    assert!(matches!(heads, Err(StoreError::Io { action: "read", .. })), "{heads:?}");
    assert!(matches!(scanned, Err(StoreError::Io { action: "read", .. })), "{scanned:?}");
}

#[tokio::test]
async fn a_row_in_the_place_of_another_is_damage() {
    let site = Site::new();
    small(&site).await;
    let tables = site.tables();
    tables
        .execute_batch(
            "UPDATE records SET (digest, header, body) =
                 (SELECT digest, header, body FROM records WHERE key = (1 << 32 | 5)) WHERE key = (1 << 32 | 6)",
        )
        .unwrap();
    let store = site.open();

    let answer = store.load(&run_id("r-1"), &ScopePath::main(), 6).await;

    assert!(matches!(answer, Err(StoreError::Damaged { older: Some(5), .. })), "{answer:?}");
}

#[tokio::test]
async fn a_scope_whose_end_is_damaged_is_open_again() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    let mut header = writing.links.header(&ScopePath::main());
    header.end = Some(waypost::record::End::Completed);
    let last = writing.links.seal(header, &serde_json::json!({}));
    let batch = writing.links.batch(vec![last]);
    Store::append(&*store, &[&writing.lease], batch).await.unwrap();
    assert_eq!(store.heads(&run_id("r-1"), &Page::default()).await.unwrap().heads, []);

    site.execute("UPDATE records SET header = zeroblob(10) WHERE key = (1 << 32 | 2)");

    let head = store.heads(&run_id("r-1"), &Page::default()).await.unwrap().heads.remove(0);
    assert_eq!((head.record.header().seq, head.damaged.len()), (1, 1));
}

#[tokio::test]
async fn a_newer_record_is_refused_and_nothing_older_stands_in() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    writing.step().await.unwrap();
    let header = br#"{"v":4,"something":"new"}"#;
    let digest = waypost::Digest::of(header);
    site.tables()
        .execute(
            "UPDATE records SET header = ?1, digest = ?2 WHERE key = (1 << 32 | 2)",
            (header, digest.as_bytes()),
        )
        .unwrap();

    let answer = store.heads(&run_id("r-1"), &Page::default()).await;

    assert!(matches!(answer, Err(StoreError::Version { found: 4, supported: 3, .. })), "{answer:?}");
}

#[tokio::test]
async fn a_damaged_signal_is_not_taken_for_another() {
    let site = Site::new();
    let store = site.open();
    let writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    let stop = waypost_testing::records::signal("s-1", waypost::store::SignalKind::Stop);
    store.signal(writing.lease.run(), &stop).await.unwrap();
    site.execute("UPDATE signals SET message = CAST(replace(message, 'stop', 'halt') AS BLOB)");

    let answer = store.signals(writing.lease.run()).await;
    assert!(matches!(&answer, Err(StoreError::Io { action: "read", .. })), "{answer:?}");
    let renewal = store.renew(&[&writing.lease]).await.unwrap();
    assert_eq!(renewal, [Renewal::Held(Vec::new())], "the run itself goes on");

    // Sent again, it is mended.
    assert_eq!(store.signal(writing.lease.run(), &stop).await.unwrap(), Signalled::Now);
    assert_eq!(store.signals(writing.lease.run()).await.unwrap(), [stop]);
}

// What happened: where a page of table `runs` was overwritten, the next run was refused with `UNIQUE constraint failed`
// and exit 74, as if the disk could not be written. Why: an id was given again that other tables still know, and what
// SQLite says of that was taken for a refusal. What stops it now: nothing is written that was not compared with what is
// there, so such an answer is told as damage.
#[tokio::test]
async fn tables_that_contradict_each_other_are_told_as_damage() {
    for table in ["runs", "scopes"] {
        let site = Site::new();
        small(&site).await;
        empty_table(&site, table);
        let store = site.open();
        let run = run_id("r-2");
        let frozen = sealed(run_record(&run));

        let refused = store.create(&frozen, Links::of(&run).step(), &holder("test")).await.unwrap_err();

        let StoreError::Io { source, .. } = &refused else { panic!("{table}: {refused:?}") };
        assert_eq!(source.kind(), std::io::ErrorKind::InvalidData, "{table}: {source}");
        assert!(source.to_string().contains("are inconsistent"), "{table}: {source}");
    }
}

/// Overwrites the one page of a table with one that has no rows.
fn empty_table(site: &Site, table: &str) {
    let tables = site.tables();
    let number = |sql: &str| tables.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap();
    let page = number(&format!("SELECT rootpage FROM sqlite_master WHERE name = '{table}'"));
    let bytes = number("PRAGMA page_size");
    drop(tables);
    let mut file = fs::read(site.file()).unwrap();
    let (begin, end) = ((page - 1) * bytes, page * bytes);
    let page = &mut file[begin as usize..end as usize];
    assert_eq!(page[0], 13, "a leaf of a table");
    page.fill(0);
    // No free block, no cell, and the content begins where the page ends.
    page[0] = 13;
    page[5..7].copy_from_slice(&u16::try_from(bytes).unwrap().to_be_bytes());
    fs::write(site.file(), file).unwrap();
}

#[tokio::test]
async fn an_emptied_page_of_runs_is_not_an_empty_store() {
    // What happened: a page of table `runs` was overwritten by an empty one, and `list` said that there are no runs.
    // Why: such a page is sound, and nothing else was asked whether there had been runs.
    // What stops it now: the index of their names is, and the table of their records.
    let site = Site::new();
    let store = site.open();
    for name in ["r-1", "r-2"] {
        drop(Writing::begin(&store, name, Durability::Sync).await);
    }
    store.close().await.unwrap();
    drop(store);
    // Without their logs, nothing beside the database tells of them.
    fs::remove_dir_all(site.home().join("runs")).unwrap();
    let query = RunQuery { workflow: Some("another".to_owned()), ..RunQuery::default() };

    empty_pages(&site, &["runs"]);
    let listed = site.open_read_only().runs(&RunQuery::default()).await.unwrap();
    let names: Vec<_> = listed.damaged.iter().map(|run| run.run.to_string()).collect();
    assert_eq!((listed.runs.len(), names), (0, vec!["r-2".to_owned(), "r-1".to_owned()]));
    assert_eq!(site.open_read_only().runs(&query).await.unwrap().damaged.len(), 2, "whatever was asked for");

    empty_pages(&site, &["runs", "sqlite_autoindex_runs_1"]);
    let told = site.open_read_only().runs(&query).await.unwrap_err();
    assert!(chain(&told).contains("table `runs` is empty, but table `frozen` is not"), "{}", chain(&told));
}

/// Overwrites the first page of each with an empty one of its kind.
fn empty_pages(site: &Site, names: &[&str]) {
    const PAGE: usize = 8192;
    let connection = rusqlite::Connection::open(site.file()).unwrap();
    let root = |name: &&str| -> u32 {
        let sql = "SELECT rootpage FROM sqlite_master WHERE name = ?1";
        connection.query_row(sql, [name], |row| row.get(0)).unwrap()
    };
    let roots: Vec<u32> = names.iter().map(root).collect();
    drop(connection);
    let mut bytes = fs::read(site.file()).unwrap();
    for root in roots {
        let root = root as usize;
        let page = &mut bytes[(root - 1) * PAGE..root * PAGE];
        // A leaf of the same kind, without cells; what they take begins at the end of the page.
        let kind = if matches!(page[0], 5 | 13) { 13 } else { 10 };
        page.fill(0);
        page[0] = kind;
        page[5..7].copy_from_slice(&u16::try_from(PAGE).unwrap().to_be_bytes());
    }
    fs::write(site.file(), bytes).unwrap();
}

/// Returns an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(|error| format!("{error}: ")).collect()
}
