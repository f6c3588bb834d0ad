//! What was committed is written down for people behind the back of who commits, and none of it is left out.

use std::fs;
use std::time::{Duration, Instant};

use waypost::record::Durability;
use waypost::store::Store;

use crate::support::{Site, Writing, open};

fn lines(site: &Site) -> usize {
    let log = fs::read_to_string(site.home().join("runs/r-1/events.jsonl")).unwrap();
    assert!(log.ends_with('\n'), "no line is torn");
    log.lines().filter(|line| line.contains(r#""event":"checkpoint_written""#)).count()
}

#[tokio::test]
async fn a_lease_is_given_back_once_all_is_written_down() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Async).await;
    for _ in 0..100 {
        writing.step().await.unwrap();
    }

    store.release(writing.lease, None).await.unwrap();

    assert_eq!(lines(&site), 101);
}

#[tokio::test]
async fn a_store_that_is_dropped_leaves_nothing_unwritten() {
    let site = Site::new();
    let mut writing = Writing::begin(&open(&site.file()), "r-1", Durability::Async).await;
    for _ in 0..100 {
        writing.step().await.unwrap();
    }

    drop(writing);

    assert_eq!(lines(&site), 101);
}

#[tokio::test]
async fn whoever_takes_a_run_up_that_was_dropped_finds_all_written_down_once() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Async).await;
    for _ in 0..100 {
        writing.step().await.unwrap();
    }

    drop(writing);
    let main = waypost::BranchPath::main();
    let holder = waypost_testing::records::holder("next");
    let run = waypost_testing::records::run_id("r-1");
    store.acquire(&run, &main, &holder).await.unwrap();

    assert_eq!(lines(&site), 101);
}

#[tokio::test]
async fn a_line_does_not_wait_for_the_next_commit() {
    // Longer than a machine is ever away; on time it takes a millisecond.
    const PATIENCE: Duration = Duration::from_secs(60);
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;

    writing.step().await.unwrap();

    let begin = Instant::now();
    while lines(&site) < 2 {
        assert!(begin.elapsed() < PATIENCE, "nobody writes it down");
        std::thread::yield_now();
    }
}
