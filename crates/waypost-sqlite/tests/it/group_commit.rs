//! Tasks share a sync, and none suffers for another.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use waypost::record::{Durability, Reason};
use waypost::store::{Appended, Lease, Page, Store, StoreError};
use waypost_sqlite::SqliteStore;
use waypost_testing::records::run_id;

use crate::support::{Site, Writing};

/// Long enough for any disk; only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);

async fn writers(store: &Arc<SqliteStore>, count: usize, durability: Durability) -> Vec<Writing> {
    let mut writers = Vec::new();
    for index in 0..count {
        writers.push(Writing::begin(store, &format!("r-{index}"), durability).await);
    }
    writers
}

async fn commits_per_append() -> f64 {
    const TASKS: usize = 100;
    const APPENDS: usize = 10;
    let site = Site::new();
    let store = site.open();
    let writers = writers(&store, TASKS, Durability::Sync).await;
    let before = store.commits();

    let tasks = writers.into_iter().map(|mut writing| {
        tokio::spawn(async move {
            for _ in 0..APPENDS {
                assert_eq!(writing.step().await.unwrap(), Appended::Now);
            }
        })
    });
    for ended in join_all(tasks).await {
        ended.unwrap();
    }

    (store.commits() - before) as f64 / (TASKS * APPENDS) as f64
}

#[tokio::test]
async fn a_hundred_tasks_of_one_thread_share_commits() {
    let share = commits_per_append().await;

    assert!(share < 0.5, "{share} commits for each append");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_tasks_of_two_threads_share_commits() {
    let share = commits_per_append().await;

    assert!(share < 0.5, "{share} commits for each append");
}

#[tokio::test]
async fn while_many_share_commits_their_tasks_go_on() {
    let site = Site::new();
    let store = site.open();
    let mut writers = writers(&store, 16, Durability::Async).await;
    let answers = join_all(writers.iter_mut().map(Writing::step)).await;
    assert!(answers.iter().all(Result::is_ok), "they are known as many now: {answers:?}");
    let other = site.tables();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();

    // On the one thread that there is, nobody could let go while somebody waited for that.
    let lets_go = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        other.execute_batch("COMMIT").unwrap();
    };
    let steps = join_all(writers.iter_mut().map(Writing::step));
    let (answers, ()) = tokio::time::timeout(HANG, async { tokio::join!(steps, lets_go) }).await.unwrap();

    assert!(answers.iter().all(|answer| matches!(answer, Ok(Appended::Now))), "{answers:?}");
    drop((writers, store, other));
    assert!(!site.file().with_extension("db-wal").exists(), "what committed has let go of the database");
}

#[tokio::test]
async fn a_task_alone_commits_each_append_once() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    let before = store.commits();

    for _ in 0..20 {
        writing.step().await.unwrap();
    }

    assert_eq!(store.commits() - before, 20);
}

#[tokio::test]
async fn more_tasks_than_fit_one_transaction_all_get_their_answer() {
    let site = Site::new();
    let store = site.open();
    let mut writers = writers(&store, 600, Durability::Async).await;
    let before = store.commits();

    let answers = tokio::time::timeout(HANG, join_all(writers.iter_mut().map(Writing::step))).await.unwrap();

    assert!(answers.iter().all(|answer| matches!(answer, Ok(Appended::Now))));
    assert!((2..600).contains(&(store.commits() - before)), "{} commits", store.commits() - before);
}

/// What happened: a task was dropped at the one yield before it led. Nobody led then, and whoever queued next waited
/// for ever. Leading in the drop of a guard stops that.
#[tokio::test]
async fn a_dropped_append_leaves_nobody_waiting() {
    let site = Site::new();
    let store = site.open();
    let mut writers = writers(&store, 2, Durability::Async).await;
    let (first, second) = writers.split_at_mut(1);

    let mut dropped = Box::pin(first[0].step());
    let polled =
        std::future::poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_pending())).await;
    assert!(polled, "it waits for its turn");
    let mut behind = Box::pin(second[0].step());
    let polled =
        std::future::poll_fn(|context| Poll::Ready(behind.as_mut().poll(context).is_pending())).await;
    assert!(polled, "it waits for the one before");
    drop(dropped);

    let answer = tokio::time::timeout(HANG, behind).await.expect("somebody leads");
    assert_eq!(answer.unwrap(), Appended::Now);
    // The dropped one may or may not be done; asked again with the same id, it is answered.
    let mut links = first[0].links.clone();
    links.continue_after(&waypost::ScopePath::main(), 2, None);
    let known = store.load(first[0].lease.run(), &waypost::ScopePath::main(), 2).await;
    assert!(known.is_ok(), "the dropped one was queued, so it was carried out: {known:?}");
}

#[tokio::test]
async fn a_body_made_from_one_before_the_last_survives_a_trim() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    let main = waypost::ScopePath::main();
    let text: String = (0..900_u64).map(|word| format!("{:x} ", word * word * 7919)).collect();
    let mut batches = Vec::new();
    for step in 0..6 {
        let header = writing.links.header(&main);
        let record = writing.links.seal(header, &serde_json::json!([text, step]));
        batches.push((record.clone(), writing.links.batch(vec![record])));
    }
    for (step, (_, batch)) in batches.iter().enumerate() {
        let leases = [&writing.lease];
        let mut appended = Box::pin(Store::append(&*store, &leases, batch.clone()));
        // The last but one is dropped: it is carried out, and the store does not learn of it.
        if step == 4 {
            std::future::poll_fn(|context| Poll::Ready(appended.as_mut().poll(context).is_pending())).await;
        } else {
            appended.await.unwrap();
        }
    }

    let trimmed = store.trim(&writing.lease, 2, waypost::store::TrimMode::Apply).await.unwrap();

    assert_eq!(trimmed.checkpoints, 5);
    let run = writing.lease.run().clone();
    drop((writing, store));
    let store = site.open();
    for (record, _) in &batches[4..] {
        assert_eq!(store.load(&run, &main, record.header().seq).await.unwrap(), *record);
    }
}

#[tokio::test]
async fn what_is_refused_does_not_hinder_its_neighbours() {
    let site = Site::new();
    let store = site.open();
    let mut writers = writers(&store, 3, Durability::Async).await;
    let stale = Lease::new(writers[1].lease.run().clone(), 7, None);
    let before = store.commits();

    let (a, b, c) = {
        let (first, rest) = writers.split_at_mut(1);
        let (second, third) = rest.split_at_mut(1);
        let batch = second[0].links.step();
        let leases = [&stale];
        tokio::join!(first[0].step(), Store::append(&*store, &leases, batch), third[0].step())
    };

    assert!(matches!((a, c), (Ok(Appended::Now), Ok(Appended::Now))));
    assert!(matches!(b, Err(StoreError::Fenced { .. })), "{b:?}");
    assert_eq!(store.commits() - before, 1, "they shared one commit");
}

#[tokio::test]
async fn what_fails_half_way_does_not_hinder_its_neighbours() {
    let site = Site::new();
    let store = site.open();
    let mut writers = writers(&store, 3, Durability::Async).await;
    site.tables()
        .execute_batch(
            "CREATE TRIGGER boom BEFORE INSERT ON records WHEN NEW.external = 'boom'
             BEGIN SELECT RAISE(ABORT, 'boom'); END",
        )
        .unwrap();
    let half_way = {
        let links = &mut writers[1].links;
        let mut header = links.header(&waypost::ScopePath::main());
        header.external = Some("boom".to_owned());
        let record = links.seal(header, &serde_json::json!({}));
        links.batch(vec![record])
    };

    let (a, b, c) = {
        let (first, rest) = writers.split_at_mut(1);
        let (second, third) = rest.split_at_mut(1);
        let leases = [&second[0].lease];
        tokio::join!(first[0].step(), Store::append(&*store, &leases, half_way), third[0].step())
    };

    assert!(matches!((a, c), (Ok(Appended::Now), Ok(Appended::Now))));
    assert!(matches!(b, Err(StoreError::Database { .. })), "{b:?}");
    for (index, newest) in [(0, 2), (1, 1), (2, 2)] {
        let run = writers[index].lease.run();
        assert_eq!(store.run(run).await.unwrap().summary.checkpoints, newest, "of writer {index}");
        let head = store.heads(run, &Page::default()).await.unwrap().heads.remove(0);
        assert_eq!((head.record.header().seq, head.next, head.damaged), (newest, newest + 1, Vec::new()));
    }
}

#[tokio::test]
async fn the_log_of_a_run_by_itself_grows_by_many_frames_at_once() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    let log = site.file().with_extension("db-wal");
    let mut lengths = std::collections::BTreeSet::new();

    for _ in 0..48 {
        writing.step().await.unwrap();
        lengths.insert(std::fs::metadata(&log).unwrap().len());
    }

    // Two frames each: 96 and a few more, and it grows by 16 and then by as many as it has.
    assert!((2..=5).contains(&lengths.len()), "{lengths:?}");
    assert!(*lengths.last().unwrap() < 256 * 8216, "{lengths:?}");
}

#[tokio::test]
async fn what_others_did_to_a_run_is_seen_by_its_next_append() {
    for (sql, expect) in [
        ("UPDATE runs SET token = token + 1", "fenced"),
        ("UPDATE runs SET leased = 0", "fenced"),
        ("UPDATE runs SET main_newest = main_newest - 1", "now"),
        ("DELETE FROM records WHERE key & 0xffffffff = 3", "conflict"),
        ("UPDATE records SET digest = zeroblob(32) WHERE key & 0xffffffff = 3", "conflict"),
    ] {
        let site = Site::new();
        let store = site.open();
        let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
        writing.step().await.unwrap();
        writing.step().await.unwrap();
        site.execute(sql);

        let answer = writing.step().await;

        let found = match &answer {
            Ok(Appended::Now) => "now",
            Err(StoreError::Fenced { .. }) => "fenced",
            Err(StoreError::Conflict { .. }) => "conflict",
            _ => "something else",
        };
        assert_eq!(found, expect, "{sql}: {answer:?}");
    }
}

#[tokio::test]
async fn a_lease_that_was_given_back_here_is_none_for_the_next_append() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    writing.step().await.unwrap();
    store.release(writing.lease.clone(), None).await.unwrap();

    let answer = writing.step().await;

    assert!(matches!(answer, Err(StoreError::Fenced { .. })), "{answer:?}");
}

/// What happened: a repair stood before the newest number, which was gone, and the next append took it for the newest.
#[tokio::test]
async fn what_follows_a_repair_before_the_newest_is_a_repair() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    let main = waypost::ScopePath::main();
    let mut third = None;
    for seq in 2..=5 {
        writing.step().await.unwrap();
        third = if seq == 3 { writing.links.tip(&main) } else { third };
    }
    for seq in [4, 5] {
        site.execute(&format!("UPDATE records SET header = x'00' WHERE key & 0xffffffff = {seq}"));
    }
    let head = store.heads(&run_id("r-1"), &Page::default()).await.unwrap().heads.remove(0);
    for damage in &head.damaged {
        store.quarantine(&writing.lease, damage).await.unwrap();
    }
    writing.links.continue_after(&main, 3, third);
    let mut header = writing.links.header(&main);
    (header.seq, header.reason, header.basis) = (4, Reason::Repair, Some(3));
    let repair = writing.links.seal(header, &serde_json::json!(0));
    let digest = repair.digest();
    let batch = writing.links.batch(vec![repair]);
    assert_eq!(Store::append(&*store, &[&writing.lease], batch).await.unwrap(), Appended::Now);

    writing.links.continue_after(&main, 5, Some(digest));
    let answer = writing.step().await;

    assert!(matches!(answer, Err(StoreError::Conflict { .. })), "{answer:?}");
}

#[tokio::test]
async fn nothing_is_acknowledged_once_a_file_was_removed() {
    for name in ["waypost.db", "waypost.db-wal", "waypost.db-shm"] {
        let site = Site::new();
        let store = site.open();
        let mut writing = Writing::begin(&store, "r-1", Durability::Async).await;
        writing.step().await.unwrap();
        std::fs::remove_file(site.home().join(name)).unwrap();

        let answer = writing.step().await;

        assert!(matches!(answer, Err(StoreError::Io { .. })), "{name}: {answer:?}");
    }
}
