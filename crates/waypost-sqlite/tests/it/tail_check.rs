//! What SQLite itself hides is seen: commits that were acknowledged and are not in the database any more.
//!
//! What happened: one changed bit in `waypost.db-wal` after a kill, and finished steps ran again; `verify` said sound.
//! Why: SQLite ends its log at the first frame whose checksum does not fit, and what is left is a sound older store.
//! What stops it now: the log of the run, which stands outside the database, tells of the newest records (tail_check.rs).

use std::fs;
use std::path::PathBuf;

use waypost::ScopePath;
use waypost::record::{Durability, Flaw, Reason};
use waypost::store::{Page, RunQuery, Scan, Store, StoreError};
use waypost_sqlite::SqliteStore;
use waypost_testing::records::{holder, run_id, run_record, sealed};

use crate::support::{Site, Writing, open};

/// Makes a run with six records of a process that is killed, and copies all that it left into a folder of its own.
async fn killed(durability: Durability) -> Site {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", durability).await;
    for _ in 2..=6 {
        writing.step().await.unwrap();
    }
    let left = Site::new();
    copy(&site.home(), &left.home());
    left
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else if entry.file_name() != "waypost.db-shm" {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn log_of(site: &Site) -> PathBuf {
    site.home().join("waypost.db-wal")
}

/// Returns where the frames of a log end: its file may be longer.
fn end_of(log: &[u8]) -> usize {
    let (header, frames) = log.split_at(32);
    let frames = frames.chunks(24 + 8192).take_while(|frame| frame[8..16] == header[16..24]);
    header.len() + frames.map(<[u8]>::len).sum::<usize>()
}

/// Changes one bit in the last commit of the log.
fn flip_last_commit(site: &Site) {
    let mut bytes = fs::read(log_of(site)).unwrap();
    let place = end_of(&bytes) - 4000;
    bytes[place] ^= 1;
    fs::write(log_of(site), bytes).unwrap();
}

/// Returns the newest sound seq of the main scope, and the seqs that are missed.
async fn head(store: &SqliteStore) -> (u64, Vec<u64>, u64) {
    let heads = store.heads(&run_id("r-1"), &Page::default()).await.unwrap();
    let head = &heads.heads[0];
    assert!(head.damaged.iter().all(|damage| damage.flaw == Flaw::Missing), "{:?}", head.damaged);
    (head.record.header().seq, head.damaged.iter().map(|damage| damage.seq).collect(), head.next)
}

#[tokio::test]
async fn a_changed_bit_in_the_log_of_sqlite_is_seen() {
    let site = killed(Durability::Sync).await;
    assert_eq!(head(&site.open_read_only()).await, (6, vec![], 7), "nothing is missed of what a kill leaves");
    flip_last_commit(&site);

    let store = site.open_read_only();
    assert_eq!(head(&store).await, (5, vec![6], 7));
    let answer = store.load(&run_id("r-1"), &ScopePath::main(), 6).await;
    assert!(matches!(answer, Err(StoreError::Damaged { older: Some(5), .. })), "{answer:?}");
    let scanned = store.scan(&Scan::of(&run_id("r-1"))).await.unwrap();
    assert_eq!((scanned.records.len(), scanned.damaged.len()), (5, 1));
}

#[tokio::test]
async fn taking_the_run_up_leaves_the_witness_as_it_is() {
    let site = killed(Durability::Sync).await;
    let told = fs::read(site.home().join("runs/r-1/events.jsonl")).unwrap();
    flip_last_commit(&site);
    let store = site.open();

    let lease = store.acquire(&run_id("r-1"), &ScopePath::main(), &holder("next")).await.unwrap();

    assert_eq!(fs::read(site.home().join("runs/r-1/events.jsonl")).unwrap(), told);
    assert_eq!(head(&store).await, (5, vec![6], 7));

    // Once it is noted, the number is not given again, and nothing is missed any more.
    let head_now = store.heads(&run_id("r-1"), &Page::default()).await.unwrap().heads.remove(0);
    store.quarantine(&lease, &head_now.damaged[0]).await.unwrap();
    assert_eq!(head(&store).await, (5, vec![], 7));
    assert_eq!(store.inspect(Some(&run_id("r-1"))).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn after_a_loss_only_a_repair_with_a_new_number_is_taken() {
    let site = killed(Durability::Sync).await;
    flip_last_commit(&site);
    let store = site.open();
    let run = run_id("r-1");
    let lease = store.acquire(&run, &ScopePath::main(), &holder("next")).await.unwrap();
    let head = store.heads(&run, &Page::default()).await.unwrap().heads.remove(0);
    store.quarantine(&lease, &head.damaged[0]).await.unwrap();

    let mut links = waypost_testing::records::Links::of(&run);
    links.under(&lease);
    links.continue_after(&ScopePath::main(), 6, Some(head.record.digest()));
    let mut header = links.header(&ScopePath::main());
    (header.basis, header.reason) = (Some(5), Reason::Repair);
    let record = links.seal(header, &serde_json::json!({ "n": 7 }));
    let batch = links.batch(vec![record]);
    Store::append(&*store, &[&lease], batch).await.unwrap();

    let seqs: Vec<u64> = {
        let found = store.scan(&Scan::of(&run)).await.unwrap();
        assert!(found.damaged.is_empty());
        found.records.iter().map(|record| record.header().seq).collect()
    };
    assert_eq!(seqs, [1, 2, 3, 4, 5, 7]);
}

#[tokio::test]
async fn a_log_of_sqlite_that_was_cut_off_or_taken_away_is_missed() {
    for keep in [0, 1, 40, 60, 90] {
        let site = killed(Durability::Sync).await;
        let bytes = fs::read(log_of(&site)).unwrap();
        fs::write(log_of(&site), &bytes[..end_of(&bytes) * keep / 100]).unwrap();

        match SqliteStore::open(&site.file(), Default::default()) {
            Ok(store) => match store.heads(&run_id("r-1"), &Page::default()).await {
                Ok(_) => {
                    let (sound, missed, next) = head(&store).await;
                    assert_eq!((missed.len() as u64 + sound, next), (6, 7), "{keep} %");
                    assert!(!missed.is_empty());
                }
                Err(StoreError::Damaged { damage, .. }) => assert_eq!(damage.flaw, Flaw::Missing),
                Err(error) => panic!("{keep} %: {error}"),
            },
            Err(error) => assert!(matches!(error, StoreError::NotFound { .. }), "{keep} %: {error}"),
        }
    }
}

#[tokio::test]
async fn an_older_copy_of_the_database_is_not_taken_for_the_run() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    writing.step().await.unwrap();
    let older = Site::new();
    copy(&site.home(), &older.home());
    writing.step().await.unwrap();
    writing.step().await.unwrap();
    fs::remove_dir_all(older.home().join("runs")).unwrap();
    copy(&site.home().join("runs"), &older.home().join("runs"));

    assert_eq!(head(&older.open()).await, (2, vec![4, 3], 5));
}

#[tokio::test]
async fn a_run_unknown_to_the_database_is_lost_and_not_new() {
    let site = killed(Durability::Sync).await;
    fs::remove_file(log_of(&site)).unwrap();
    fs::remove_file(site.file()).unwrap();
    let store = open(&site.file());
    let run = run_id("r-1");

    let answer = store.run(&run).await;
    assert!(
        matches!(&answer, Err(StoreError::Damaged { damage, older: None }) if damage.flaw == Flaw::Missing && damage.seq == 6),
        "{answer:?}"
    );
    let mut links = waypost_testing::records::Links::of(&run);
    let again = store.create(&sealed(run_record(&run)), links.step(), &holder("next")).await;
    assert!(matches!(again, Err(StoreError::Damaged { .. })), "{again:?}");
    let listed = store.runs(&RunQuery::default()).await.unwrap();
    assert_eq!((listed.runs.len(), listed.damaged[0].run.as_str()), (0, "r-1"));
    assert_eq!(store.inspect(None).await.unwrap().len(), 1);

    store.delete(&run).await.unwrap();
    assert!(matches!(store.run(&run).await, Err(StoreError::NotFound { .. })));
    assert_eq!(store.inspect(None).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn what_an_async_run_lost_is_told_and_gone_past() {
    let site = killed(Durability::Async).await;
    flip_last_commit(&site);

    let heads = site.open_read_only().heads(&run_id("r-1"), &Page::default()).await.unwrap();

    let damage = &heads.heads[0].damaged[0];
    assert_ne!(damage.flaw, Flaw::Missing, "a power cut may do the same: nobody is to put it back");
    assert!(damage.flaw.to_string().contains("durability `async`"), "{}", damage.flaw);
}

#[tokio::test]
async fn a_deleted_run_is_not_missed() {
    let site = Site::new();
    let store = site.open();
    let writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    store.release(writing.lease, None).await.unwrap();
    store.delete(&run_id("r-1")).await.unwrap();

    let mut again = Writing::begin(&store, "r-1", Durability::Sync).await;
    again.step().await.unwrap();

    assert_eq!(head(&store).await, (2, vec![], 3));
}

#[tokio::test]
async fn a_log_that_is_behind_or_gone_says_nothing() {
    let site = killed(Durability::Sync).await;
    let path = site.home().join("runs/r-1/events.jsonl");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(head(&site.open_read_only()).await, (6, vec![], 7));

    fs::remove_file(&path).unwrap();
    assert_eq!(head(&site.open_read_only()).await, (6, vec![], 7));
}

// What happened: of several processes that made the same run at once, one said that the run was lost.
// Why: it looked into the database before the run was there, and for its log after.
// What stops it now: a log counts as a trace of a loss only if the run is missed after it was seen.
#[test]
fn a_run_that_is_being_made_is_not_said_to_be_lost() {
    const RUNS: usize = 150;
    let site = Site::new();
    let (store, looking) = (site.open(), site.open());
    let name = |number: usize| format!("r-{number}");

    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                for number in 0..RUNS {
                    Writing::begin(&store, &name(number), Durability::Async).await;
                }
            });
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for number in 0..RUNS {
                while let Err(error) = looking.run(&run_id(&name(number))).await {
                    assert!(matches!(error, StoreError::NotFound { .. }), "{error:?}");
                }
            }
        });
    });
}

// What happened: a loss that only the file of the last moments told of was forgotten by a lease that was taken and given
// back. What stops it now: that file stays until something was written behind it (ack_journal.rs).
#[tokio::test]
async fn readers_keep_records_known_only_from_the_tail() {
    let site = killed(Durability::Sync).await;
    let path = site.home().join("runs/r-1/events.jsonl");
    let lines = fs::read_to_string(&path).unwrap();
    let first: String = lines.split_inclusive('\n').take(1).collect();
    fs::write(&path, first).unwrap();
    flip_last_commit(&site);
    let store = site.open();
    assert_eq!(head(&store).await, (5, vec![6], 7));

    let lease = store.acquire(&run_id("r-1"), &ScopePath::main(), &holder("next")).await.unwrap();
    store.release(lease, None).await.unwrap();

    assert_eq!(head(&store).await, (5, vec![6], 7));
}
