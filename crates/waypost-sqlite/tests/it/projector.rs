//! What was committed comes into the report behind the back of who commits, and none of it is left out.

use std::fs;
use std::time::{Duration, Instant};

use waypost::ScopePath;
use waypost::record::{Durability, Note};
use waypost::store::Store;
use waypost_testing::records::{holder, run_id, step_id};

use crate::support::{Site, Writing, open};

/// Says whether a record has its section.
fn has_section(site: &Site, seq: u64) -> bool {
    let report = fs::read_to_string(site.home().join("runs/r-1/report.md")).unwrap_or_default();
    report.contains(&format!("| checkpoint | `r-1@{seq}` |"))
}

/// Commits faster than can be put into the report: each section takes the place of one that is not the last, so that a
/// large file is written anew for it.
async fn written(site: &Site) -> Writing {
    let mut writing = Writing::begin(&open(&site.file()), "r-1", Durability::Async).await;
    for seq in 2..=100 {
        let mut header = writing.links.header(&ScopePath::main());
        header.step = Some(step_id(["one", "two"][seq % 2]));
        header.notes = if seq == 2 { vec![Note::Report("x".repeat(300_000))] } else { Vec::new() };
        let record = writing.links.seal(header, &serde_json::Value::Null);
        let batch = writing.links.batch(vec![record]);
        Store::append(&*writing.store, &[&writing.lease], batch).await.unwrap();
    }
    writing
}

#[tokio::test]
async fn a_lease_is_given_back_once_all_is_written_down() {
    let site = Site::new();
    let Writing { store, lease, .. } = written(&site).await;

    store.release(lease, None).await.unwrap();

    assert!(has_section(&site, 100));
}

#[tokio::test]
async fn a_store_that_is_dropped_leaves_nothing_unwritten() {
    let site = Site::new();

    drop(written(&site).await);

    assert!(has_section(&site, 100));
}

#[tokio::test]
async fn a_section_does_not_wait_for_the_next_commit() {
    // Longer than a machine is ever away; on time it takes a millisecond.
    const PATIENCE: Duration = Duration::from_secs(180);
    let site = Site::new();

    let writing = written(&site).await;

    let begin = Instant::now();
    while !has_section(&site, 100) {
        assert!(begin.elapsed() < PATIENCE, "nobody writes it down");
        std::thread::yield_now();
    }
    drop(writing);
}

#[tokio::test]
async fn a_report_cut_by_a_kill_is_completed_by_the_next_session() {
    let site = Site::new();
    let report = site.home().join("runs/r-1/report.md");
    drop(written(&site).await);
    let whole = fs::read_to_string(&report).unwrap();
    let sections = whole.find("<!-- section").unwrap();
    fs::write(&report, &whole[..sections]).unwrap();

    let store = site.open();
    let lease = store.acquire(&run_id("r-1"), &ScopePath::main(), &holder("next")).await.unwrap();
    store.release(lease, None).await.unwrap();

    assert_eq!(fs::read_to_string(&report).unwrap(), whole);
}
