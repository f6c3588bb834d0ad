//! Others read, signal and wait while one writes; here each is a store value of its own, as a process has it.

use std::fs;

use waypost::ScopePath;
use waypost::record::{Durability, RunStatus};
use waypost::store::{Page, Renewal, RunQuery, SignalKind, Signalled, Store, StoreError};
use waypost_testing::records::{holder, run_id, signal};

use crate::support::{Site, Writing};

#[tokio::test]
async fn others_read_and_signal_while_one_writes() {
    let site = Site::new();
    let store = site.open();
    let (other, reader) = (site.open(), site.open_read_only());
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    let run = run_id("r-1");

    for seq in 2..=20 {
        writing.step().await.unwrap();
        let head = reader.heads(&run, &Page::default()).await.unwrap().heads.remove(0);
        assert_eq!(head.record.header().seq, seq);
        let summary = other.run(&run).await.unwrap().summary;
        assert_eq!((summary.status, summary.checkpoints), (RunStatus::Running, seq));
    }
    let stop = signal("s-1", SignalKind::Stop);
    assert_eq!(other.signal(&run, &stop).await.unwrap(), Signalled::Now);

    assert_eq!(store.renew(&[&writing.lease]).await.unwrap(), [Renewal::Held(vec![stop])]);
    assert!(matches!(
        other.acquire(&run, &ScopePath::main(), &holder("other")).await.unwrap_err(),
        StoreError::Held { holder: Some(holder), .. } if holder.pid == std::process::id()
    ));
}

#[tokio::test]
async fn who_waits_too_long_for_another_writer_is_told_so() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    drop(store);
    let impatient = waypost_sqlite::SqliteOptions {
        busy_timeout: std::time::Duration::from_millis(20),
        ..waypost_sqlite::SqliteOptions::default()
    };
    writing.store = std::sync::Arc::new(waypost_sqlite::SqliteStore::open(&site.file(), impatient).unwrap());
    let tables = site.tables();
    tables.execute_batch("BEGIN IMMEDIATE").unwrap();
    let before = writing.links.clone();

    let error = writing.step().await.unwrap_err();

    assert!(matches!(error, StoreError::Unreachable { .. }) && error.retry(), "{error}");
    tables.execute_batch("ROLLBACK").unwrap();
    writing.links = before;
    writing.step().await.unwrap();
}

#[tokio::test]
async fn a_deletion_that_was_cut_short_is_brought_to_its_end() {
    let site = Site::new();
    let store = site.open();
    let run = run_id("r-1");
    let folder = store.folder(&run).unwrap();
    fs::create_dir_all(folder.join("logs")).unwrap();
    fs::write(folder.join("logs/work.1.log"), b"of a run that is gone").unwrap();

    store.delete(&run).await.unwrap();

    assert!(!folder.exists() && !site.home().join("locks/r-1.lock").exists());
    assert!(matches!(store.delete(&run).await.unwrap_err(), StoreError::NotFound { .. }));
}

#[tokio::test]
async fn a_new_run_does_not_inherit_the_files_of_one_that_is_gone() {
    let site = Site::new();
    let store = site.open();
    let folder = store.folder(&run_id("r-1")).unwrap();
    fs::create_dir_all(folder.join("logs")).unwrap();
    fs::write(folder.join("logs/work.1.log"), b"of a run that is gone").unwrap();

    let _writing = Writing::begin(&store, "r-1", Durability::Sync).await;

    assert!(!folder.join("logs").exists() && folder.join("events.jsonl").exists());
}

#[tokio::test]
async fn a_run_without_sync_is_read_by_others_at_once() {
    let site = Site::new();
    let store = site.open();
    let reader = site.open_read_only();
    let mut writing = Writing::begin(&store, "r-1", Durability::Async).await;

    for _ in 0..50 {
        writing.step().await.unwrap();
    }

    let head = reader.heads(&run_id("r-1"), &Page::default()).await.unwrap().heads.remove(0);
    assert_eq!(head.record.header().seq, 51);
    drop(writing);
    store.close().await.unwrap();
    assert_eq!(reader.run(&run_id("r-1")).await.unwrap().summary.checkpoints, 51);
}

#[tokio::test]
async fn the_newest_runs_are_found_without_looking_at_the_others() {
    let site = Site::new();
    let store = site.open();
    for index in 0..30 {
        drop(Writing::begin(&store, &format!("r-{index:02}"), Durability::Async).await);
    }

    let query = RunQuery { limit: 7, ..RunQuery::default() };
    let mut names = Vec::new();
    let mut page = store.runs(&query).await.unwrap();
    loop {
        names.extend(page.runs.iter().map(|run| run.run.to_string()));
        let Some(cursor) = page.next else { break };
        page = store.runs(&RunQuery { cursor: Some(cursor), ..query.clone() }).await.unwrap();
    }

    let expect: Vec<_> = (0..30).rev().map(|index| format!("r-{index:02}")).collect();
    assert_eq!(names, expect);
    let prefix = RunQuery { prefix: Some("r-1".to_owned()), ..RunQuery::default() };
    assert_eq!(store.runs(&prefix).await.unwrap().runs.len(), 10);
    let interrupted = RunQuery { statuses: [RunStatus::Interrupted].into(), ..RunQuery::default() };
    assert_eq!(store.runs(&interrupted).await.unwrap().runs.len(), 30, "their leases were dropped");
    let running = RunQuery { statuses: [RunStatus::Running].into(), ..RunQuery::default() };
    assert_eq!(store.runs(&running).await.unwrap().runs, []);
}
