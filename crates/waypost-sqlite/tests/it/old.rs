//! Databases of older versions: read as they are, upgraded by who writes, with nothing lost.
//!
//! `fixtures/v1.db` was made by version 1, which kept every body as it was: run `r-1` with twelve records on the main
//! branch, of which the ninth goes back to the fifth and the newest eight keep their body, a branch `each:a` whose third
//! record is in quarantine, and a signal; run `r-2`, completed, with twelve records.

use std::fs;

use serde_json::json;
use waypost::BranchPath;
use waypost::record::Durability;
use waypost::store::{Page, RunQuery, Scan, Store, TrimMode};
use waypost_testing::picture::picture;
use waypost_testing::records::{Links, branch, holder, run_id};

use crate::support::{Site, Writing};

fn site() -> Site {
    let site = Site::new();
    fs::create_dir(site.home()).unwrap();
    fs::write(site.file(), include_bytes!("fixtures/v1.db")).unwrap();
    site
}

/// Checks that all is there that version 1 wrote.
async fn check(store: &dyn Store) {
    let (first, second, item) = (run_id("r-1"), run_id("r-2"), branch("each:a"));
    for (run, kept_from) in [(&first, 5), (&second, 1)] {
        for seq in 1..=12_u64 {
            let record = store.load(run, &BranchPath::main(), seq).await.unwrap();
            assert_eq!(record.header().seq, seq);
            let state = record.state_bytes().map(|bytes| serde_json::from_slice(bytes).unwrap());
            let expect = match seq {
                1 => json!({ "branch": "main", "seq": 1 }),
                _ => json!({ "seq": seq, "text": "state ".repeat(seq as usize * 20) }),
            };
            assert_eq!(state, (seq >= kept_from).then_some(expect), "{run}@{seq}");
        }
    }
    assert_eq!(store.load(&first, &BranchPath::main(), 9).await.unwrap().header().basis, Some(5));
    let head = store.heads(&first, &Page::default()).await.unwrap().heads.pop().unwrap();
    assert_eq!((head.record.header().branch.clone(), head.record.header().seq, head.next), (item, 2, 4));
    assert_eq!(
        head.record.state_bytes().unwrap(),
        json!({ "seq": 2, "text": "item ".repeat(200) }).to_string().as_bytes()
    );
    assert_eq!(store.signals(&first).await.unwrap().len(), 1);
    assert_eq!(store.runs(&RunQuery::default()).await.unwrap().runs.len(), 2);
}

#[tokio::test]
async fn an_older_database_is_read_as_it_is() {
    let site = site();

    check(&*site.open_read_only()).await;

    assert!(fs::read(site.file()).unwrap() == include_bytes!("fixtures/v1.db"), "reading changes nothing");
}

#[tokio::test]
async fn an_older_database_is_upgraded_and_goes_on() {
    let site = site();
    let store = site.open();
    check(&*store).await;
    let tables = site.tables();
    let number = |sql: &str| tables.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("PRAGMA user_version"), 4);
    assert_eq!(number("PRAGMA auto_vacuum"), 2, "it can give pages back from now on");
    assert_eq!(number("SELECT count(*) FROM migrations"), 4);
    let backup = Site::new();
    fs::create_dir(backup.home()).unwrap();
    fs::copy(site.home().join("waypost.db.v1-1.backup"), backup.file()).unwrap();
    check(&*backup.open_read_only()).await;

    let run = run_id("r-1");
    let lease = store.acquire(&run, &BranchPath::main(), &holder("next")).await.unwrap();
    let mut links = Links::of(&run);
    links.under(&lease);
    let newest = store.load(&run, &BranchPath::main(), 12).await.unwrap();
    links.go_on_behind(&BranchPath::main(), 12, Some(newest.digest()));
    let text =
        |seq: u64| -> String { (0..seq * 20).map(|word| format!("{:x} ", word * word * 7919)).collect() };
    for seq in 13..=20_u64 {
        let header = links.header(&BranchPath::main());
        let record = links.seal(header, &json!({ "seq": seq, "text": text(seq) }));
        let batch = links.batch(vec![record]);
        Store::append(&*store, &lease, batch).await.unwrap();
    }
    check(&*store).await;
    let expect = picture(&*store, &run).await;
    assert_eq!(picture(&*site.open_read_only(), &run).await, expect);
    let codecs = number("SELECT count(DISTINCT codec) FROM records WHERE key >> 32 = 1");
    assert_eq!(codecs, 4, "plain, full, delta and dropped stand side by side");

    let trimmed = store.trim(&lease, 10, TrimMode::Apply).await.unwrap();
    assert_eq!(trimmed.checkpoints, 6);
    drop((lease, store));
    let reader = site.open_read_only();
    let kept = reader.load(&run, &BranchPath::main(), 11).await.unwrap();
    assert_eq!(
        kept.state_bytes().unwrap(),
        json!({ "seq": 11, "text": "state ".repeat(220) }).to_string().as_bytes()
    );
    assert_eq!(
        reader
            .scan(&Scan { branch: Some(BranchPath::main()), ..Scan::of(&run) })
            .await
            .unwrap()
            .records
            .len(),
        20
    );
}

#[tokio::test]
async fn a_store_that_is_new_is_made_as_one_of_today() {
    let site = Site::new();
    drop(Writing::begin(&site.open(), "r-1", Durability::Sync).await);

    let tables = site.tables();
    let number = |sql: &str| tables.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((number("PRAGMA user_version"), number("PRAGMA auto_vacuum")), (4, 2));
}
