//! The order of checkpoints and runs, and the newest checkpoint.

use waypost::engine::RunError;
use waypost::memory::Part;
use waypost::record::RunStatus;
use waypost::store::{Page, RunQuery, Scan, ScanOrder, Store as _, StoreError, TrimMode};
use waypost::{END, Graph};

use super::newest_seq;
use crate::faulty::{World, run_id};
use crate::test_graphs::{Notes, Stage};

/// Builds `a` this many times.
fn again_and_again(stage: &Stage, times: usize) -> Graph<Notes> {
    let builder = stage.steps(Graph::builder("again"), &["a"]);
    builder
        .route("a", ["a", END], move |state| if state.done.len() < times { "a" } else { END })
        .build()
        .unwrap()
}

// Trap: the memory store lists in hash order, so "the latest" is random.
#[tokio::test]
async fn checkpoints_are_listed_in_order_and_the_latest_is_last() {
    for world in World::each() {
        let graph = again_and_again(&Stage::default(), 300);
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();

        for (order, expect) in [
            (ScanOrder::OldestFirst, (1..=301).collect::<Vec<u64>>()),
            (ScanOrder::NewestFirst, (1..=301).rev().collect()),
        ] {
            let mut scan = Scan { order, limit: 70, ..Scan::of(&run_id()) };
            let mut seqs = Vec::new();
            loop {
                let page = world.store.scan(&scan).await.unwrap();
                seqs.extend(page.records.iter().map(|record| record.header().seq));
                match page.next {
                    Some(cursor) => scan.cursor = Some(cursor),
                    None => break,
                }
            }
            assert_eq!(seqs, expect);
        }
        let heads = world.store.heads(&run_id(), &Page::default()).await.unwrap().heads;
        assert!(heads.is_empty(), "a run that has ended has no open scope");
        assert_eq!(newest_seq(&world).await, 301);
    }
}

#[tokio::test]
async fn runs_are_listed_newest_first_whatever_their_names() {
    for world in World::each() {
        let graph = Stage::default().line();
        for run in ["m", "z", "a", "k"] {
            world.engine.run(&graph, run, Notes::default()).await.unwrap();
        }

        let listed = world.store.runs(&RunQuery::default()).await.unwrap().runs;

        let names: Vec<_> = listed.iter().map(|entry| entry.run.to_string()).collect();
        assert_eq!(names, ["k", "a", "z", "m"]);
    }
}

// Trap: "resume from b" continues after b, so a failed step cannot be retried.
#[tokio::test]
async fn from_b_retries_failed_b_with_its_input_state() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.line();
        stage.fail("b", 2);
        assert_eq!(world.engine.run(&graph, "r", Notes::default()).await.unwrap().status, RunStatus::Failed);
        world.reopen();
        let second = world.engine.resume(&graph, "r").from_step("b").await.unwrap();
        assert_eq!((second.status, second.state.done), (RunStatus::Failed, vec!["a".to_owned()]));
        world.reopen();

        let outcome = world.engine.resume(&graph, "r").from_step("b").await.unwrap();

        assert_eq!(outcome.state.done, ["a", "b", "c"]);
        assert_eq!(stage.said(), ["a", "b", "b", "b", "c"]);
    }
}

// Trap: checkpoints superseded by a resume from an earlier step are still "the latest", so the next resume uses
// one of them.
#[tokio::test]
async fn what_was_left_behind_is_never_the_latest_again() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.line();
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        world.reopen();
        let back = world.engine.resume(&graph, "r").from_checkpoint(2).without_running().await.unwrap();
        world.reopen();

        let newest = format!("r@{}", newest_seq(&world).await).parse().unwrap();
        let latest = world.engine.inspect(&graph, &newest).await.unwrap();
        let left = world.engine.inspect(&graph, &"r@4".parse().unwrap()).await.unwrap();

        assert_eq!(
            (latest.state.done.as_slice(), latest.record.header().seq),
            (&["a".to_owned()][..], back.at)
        );
        assert_eq!(left.state.done, ["a", "b", "c"], "what was left behind can be looked at");
        let entry = world.store.run(&run_id()).await.unwrap();
        assert_eq!(entry.summary.status, RunStatus::Interrupted, "it is to go on");
        stage.said();
        let outcome = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!((stage.said(), outcome.state.done.len()), (vec!["b".to_owned(), "c".to_owned()], 3));
    }
}

// Trap: numbers are reused after a deletion, and references then mean another checkpoint.
#[tokio::test]
async fn a_seq_is_never_reused_after_drops_damage_or_quarantine() {
    let mut world = World::memory();
    let stage = Stage::default();
    let graph = again_and_again(&stage, 8);
    stage.hang("never");
    let held = world.engine.run(&graph, "r", Notes::default()).step_limit(5).await.unwrap();
    assert_eq!(held.status, RunStatus::Failed);
    let main = waypost::ScopePath::main();
    let mut given = newest_seq(&world).await;

    // Retention drops states.
    world.reopen();
    let holder = waypost_testing::records::holder("test");
    let lease = world.store.acquire(&run_id(), &main, &holder).await.unwrap();
    world.store.trim(&lease, 2, TrimMode::Apply).await.unwrap();
    world.store.release(lease, None).await.unwrap();
    // The newest record is damaged, and the resume moves it aside; twice, as a crash may come in between.
    for limit in [6, 7] {
        world.below().damage(&run_id(), &main, given, Part::Header);
        let outcome = world.engine.resume(&graph, "r").step_limit(limit).await.unwrap();
        assert_eq!(outcome.repaired.len(), 1);
        let records = world
            .store
            .scan(&Scan { seq_min: Some(given + 1), ..Scan::of(&run_id()) })
            .await
            .unwrap()
            .records;
        assert!(!records.is_empty() && newest_seq(&world).await > given);
        given = newest_seq(&world).await;
        world.reopen();
    }
    // A rollback by hand.
    world.engine.resume(&graph, "r").from_checkpoint(given).without_running().await.unwrap();
    assert_eq!(newest_seq(&world).await, given + 1);
}

// Requirement: the history can be listed without reading any state, also with missing or damaged states.
#[tokio::test]
async fn headers_are_read_without_states() {
    let world = World::memory();
    let graph = Stage::default().line();
    world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    let main = waypost::ScopePath::main();
    world.below().damage(&run_id(), &main, 3, Part::Body);

    let found = world.store.scan(&Scan::of(&run_id())).await.unwrap();

    assert_eq!((found.records.len(), found.damaged.len()), (4, 0));
    assert!(found.records.iter().all(|record| record.body_bytes().is_none()));
    let state = world.engine.inspect(&graph, &"r@3".parse().unwrap()).await.unwrap_err();
    assert!(matches!(state, RunError::Store(StoreError::Damaged { older: Some(2), .. })), "{state}");
}
