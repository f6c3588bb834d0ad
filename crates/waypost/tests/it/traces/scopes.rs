//! Scopes: a fan-out in pages with a crash between them, its join, a stale writer, and two concurrent
//! questions.

use std::collections::BTreeMap;
use std::future::IntoFuture as _;
use std::io;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::Notify;
use waypost::engine::RunError;
use waypost::graph::ItemEnds;
use waypost::memory::MemoryStore;
use waypost::record::{Phase, RunStatus};
use waypost::store::{Batch, Scan, ScanOrder, Store as _, StoreError, StoreExt as _};
use waypost::{Digest, Engine, Graph, ScopePath, StepError};

use crate::faulty::{Fault, World, run_id};
use crate::history::{assert_told, told};
use crate::test_graphs::{Notes, Stage};

/// More than two pages of items.
const ITEMS: u32 = 2_100;

/// Builds a graph that squares `count` items; each hundredth fails.
fn squares(stage: &Stage, count: u32) -> Graph<Notes> {
    let work = stage.clone();
    let each = Graph::builder("each").each(
        "square",
        move |_: &Notes| (0..count).collect(),
        |n: &u32| format!("n{n}"),
        move |n: u32, _| {
            let stage = work.clone();
            async move {
                stage.pass(&format!("n{n}")).await?;
                if n % 100 == 99 { Err(StepError::from(io::Error::other("unlucky"))) } else { Ok(n) }
            }
        },
    );
    let joined = stage.clone();
    let join = move |state: Notes, mut ends: ItemEnds<u32, u32>, _| {
        let stage = joined.clone();
        async move {
            stage.pass("join").await?;
            let (mut well, mut keys) = (0, Vec::new());
            while let Some(end) = ends.next().await? {
                well += u32::from(end.result.is_ok());
                keys.push(end.key);
            }
            let in_order = keys.iter().enumerate().all(|(index, key)| *key == format!("n{index}"));
            Ok::<_, StepError>(state.and(format!("{well} of {}, in order: {in_order}", keys.len())))
        }
    };
    each.collect().max_parallel(1).join(join).build().unwrap()
}

/// Groups the lines by scope.
fn by_scope(lines: Vec<String>) -> BTreeMap<String, Vec<String>> {
    let mut scopes = BTreeMap::<String, Vec<String>>::new();
    for line in lines {
        let (scope, _) = line.split_once('@').unwrap();
        scopes.entry(scope.to_owned()).or_default().push(line);
    }
    scopes
}

/// The session dies right before the second page is on disk, and right after. The newest record of the main
/// scope has the number of open scopes. So each scope opens once, and the join starts after all are open.
#[tokio::test]
async fn a_crash_between_pages_of_children_loses_no_child() {
    for fault in [Fault::DieBefore, Fault::DieAfter] {
        let mut world = World::memory();
        let stage = Stage::default();
        let graph = squares(&stage, ITEMS);
        world.store.plan_where(|call| call.batch().is_some_and(opens_another_page), fault);
        assert!(
            world.until_death(world.engine.run(&graph, "r", Notes::default()).into_future()).await.is_none()
        );
        let open = if fault == Fault::DieBefore { 1_000 } else { 2_000 };
        let before = told(world.store.as_ref(), &run_id()).await;
        assert_eq!(before.iter().filter(|line| line.contains("@1 started")).count(), open + 1);
        let main = by_scope(before).remove("main").unwrap();
        assert!(main.last().unwrap().ends_with(&format!("square waiting {open}/{ITEMS}")), "{main:?}");
        world.reopen();

        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.status, RunStatus::CompletedWithFailures);
        assert_eq!(outcome.state.done, [format!("{} of {ITEMS}, in order: true", ITEMS - 21)]);
        let after = by_scope(told(world.store.as_ref(), &run_id()).await);
        for n in 0..ITEMS {
            let child = &after[&format!("square:n{n}")];
            let ends =
                child.iter().filter(|line| line.ends_with("= completed") || line.ends_with("= failed"));
            assert_eq!(ends.count(), 1, "{child:?}");
        }
        if fault == Fault::DieBefore {
            assert_told!(
                after["main"],
                "main@1 started | square ready
                 main@2 waiting square(0) | square waiting 1000/2100
                 main@3 progress children of square(0) | square waiting 2000/2100
                 main@4 progress children of square(0) | square waiting 2100/2100
                 main@5 started square(1) > square(1) | square started 2100/2100
                 main@6 completed square(1) | - = completed_with_failures"
            );
        } else {
            // A resume begins with a record of the main scope.
            assert_told!(
                after["main"],
                "main@1 started | square ready
                 main@2 waiting square(0) | square waiting 1000/2100
                 main@3 progress children of square(0) | square waiting 2000/2100
                 main@4 started | square waiting 2000/2100
                 main@5 progress children of square(0) | square waiting 2100/2100
                 main@6 started square(1) > square(1) | square started 2100/2100
                 main@7 completed square(1) | - = completed_with_failures"
            );
        }
        joined_under_one_root(&world).await;
    }
}

// Bug: an empty list of items could not be frozen in a file, and the run ended there.
#[tokio::test]
async fn no_items_are_joined_at_once_in_every_store() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = squares(&stage, 0);
        stage.crash_run(&mut world, &graph, "join").await;

        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(
            (outcome.status, outcome.state.done),
            (RunStatus::Completed, vec!["0 of 0, in order: true".to_owned()])
        );
        assert_told!(
            told(world.store.as_ref(), &run_id()).await,
            "main@1 started | square ready
             main@2 waiting square(0) > square(1) | square started 0/0
             main@3 started square(2) > square(2) | square started 0/0
             main@4 completed square(2) | - = completed"
        );
    }
}

// Bug: items that ended together opened one page each, all in one commit.
#[tokio::test]
async fn one_commit_opens_one_page_however_many_end_together() {
    for at_once in [4, 300] {
        let world = World::memory();
        let each = Graph::builder("pages").each(
            "each",
            |_: &Notes| (0..3_500).collect(),
            |n: &u32| format!("n{n}"),
            |n: u32, _| async move { Ok::<_, StepError>(n) },
        );
        let join = |state: Notes, _: ItemEnds<u32, u32>, _| async move { Ok::<_, StepError>(state) };
        let graph = each.max_parallel(at_once).join(join).build().unwrap();

        world.engine.run(&graph, "r", Notes::default()).await.unwrap();

        let lines = by_scope(told(world.store.as_ref(), &run_id()).await).remove("main").unwrap();
        assert_told!(
            lines,
            "main@1 started | each ready
             main@2 waiting each(0) | each waiting 1000/3500
             main@3 progress children of each(0) | each waiting 2000/3500
             main@4 progress children of each(0) | each waiting 3000/3500
             main@5 progress children of each(0) | each waiting 3500/3500
             main@6 started each(1) > each(1) | each started 3500/3500
             main@7 completed each(1) | - = completed"
        );
    }
}

fn opens_another_page(batch: &Batch) -> bool {
    let of_children = |phase: &Phase| matches!(phase, Phase::Progress { key, .. } if key == "children");
    batch.records.iter().any(|record| of_children(&record.header().phase))
}

/// The record of the join vouches for the last record of each child, in item order.
async fn joined_under_one_root(world: &World) {
    let main = ScopePath::main();
    let newest = world.store.newest(&run_id(), &main).await.unwrap();
    let mut leaves = Vec::new();
    for n in 0..ITEMS {
        let child = main.child(&"square".parse().unwrap(), &format!("n{n}")).unwrap();
        leaves.push(world.store.newest(&run_id(), &child).await.unwrap().digest());
    }
    assert_eq!(newest.header().children, Some(Digest::merkle(&leaves)));
    assert_eq!(newest.position().unwrap().failed_children(), 21);
}

/// A paused session whose run was taken over is refused at its next write.
#[tokio::test(start_paused = true)]
async fn a_stale_writer_is_refused_for_good_and_changes_nothing() {
    let store = Arc::new(MemoryStore::new());
    let (stage, gate) = (Stage::default(), Arc::new(Notify::new()));
    let work = |waits: Option<Arc<Notify>>| {
        let stage = stage.clone();
        let each = Graph::builder("stale").each(
            "ask",
            |_: &Notes| (0..20).collect(),
            |n: &u32| format!("n{n}"),
            move |n: u32, _| {
                let (stage, gate) = (stage.clone(), waits.clone().filter(|_| n == 17));
                async move {
                    stage.say(format!("n{n}"));
                    if let Some(gate) = gate {
                        gate.notified().await;
                    }
                    Ok::<_, StepError>(n)
                }
            },
        );
        let join = |state: Notes, _: ItemEnds<u32, u32>, _| async move { Ok::<_, StepError>(state) };
        each.join(join).build().unwrap()
    };
    let (paused, awake) = (work(Some(gate.clone())), work(None));
    let engine = Engine::new(store.clone());
    let mut stale = engine.run(&paused, "r", Notes::default()).into_future();
    while !stage.has_said("n17") {
        assert!(futures_util::poll!(&mut stale).is_pending());
        tokio::task::yield_now().await;
    }
    // The first session has lost its lease and does not know.
    store.drop_holder(&run_id());
    let outcome = engine.resume(&awake, "r").await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
    let before = told(store.as_ref(), &run_id()).await;

    gate.notify_one();
    let refused = stale.await.unwrap_err();

    let RunError::Checkpoint { source, .. } = &refused else { panic!("{refused}") };
    assert!(matches!(source, StoreError::Fenced { .. }), "{source}");
    assert_eq!(told(store.as_ref(), &run_id()).await, before);
}

/// Each waiting scope has its own wait id. An answer is a message until a resume records the answer and its
/// effects in one batch.
#[tokio::test]
async fn two_scopes_wait_at_once_and_each_is_answered_alone() {
    for mut world in World::each() {
        let stage = Stage::default();
        let builder =
            stage.steps(Graph::builder("ask"), &["plan"]).step("a", stage.ask()).step("b", stage.ask());
        let graph = builder.fork("plan", ["a", "b"]).join("merge", stage.merge()).build().unwrap();
        let asked = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        let [a, b] = &asked.waiting[..] else { panic!("{:?}", asked.waiting) };
        assert_ne!(a.wait.id, b.wait.id);
        assert_told!(
            told(world.store.as_ref(), &run_id()).await,
            "main@1 started plan(1) > plan(1) | plan started
             main@2 completed plan(1)
             main@3 waiting merge(0) | merge waiting 2/2
             plan:a@1 started a(0) > a(1) | a started
             plan:a@2 waiting a(1) | a waiting for an answer
             plan:b@1 started b(0) > b(1) | b started
             plan:b@2 waiting b(1) | b waiting for an answer = waiting"
        );

        world.engine.answer("r", &b.wait.id, json!("no")).await.unwrap();
        world.reopen();
        let half = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!((half.status, half.waiting), (RunStatus::Waiting, vec![a.clone()]));
        world.engine.answer("r", &a.wait.id, json!("yes")).await.unwrap();
        world.reopen();
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, ["plan", "a=a:yes", "b=b:no"]);
        assert_told!(
            told(world.store.as_ref(), &run_id()).await,
            "main@1 started plan(1) > plan(1) | plan started
             main@2 completed plan(1)
             main@3 waiting merge(0) | merge waiting 2/2
             main@4 started | merge waiting 2/2
             main@5 started | merge waiting 2/2
             main@6 started merge(1) > merge(1) | merge started 2/2
             main@7 completed merge(1) | - = completed
             plan:a@1 started a(0) > a(1) | a started
             plan:a@2 waiting a(1) | a waiting for an answer
             plan:a@3 progress ask of a(1) > a(1) | a started
             plan:a@4 completed a(1) | - = completed
             plan:b@1 started b(0) > b(1) | b started
             plan:b@2 waiting b(1) | b waiting for an answer = waiting
             plan:b@3 progress ask of b(1) > b(1) | b started
             plan:b@4 completed b(1) | - = completed = waiting"
        );
    }
}

/// A run waits only if every scope waits: while one scope runs, the session continues.
#[tokio::test]
async fn a_run_waits_only_when_every_open_scope_waits() {
    let world = World::memory();
    let stage = Stage::default();
    let builder = stage.steps(Graph::builder("ask"), &["plan", "b"]).step("a", stage.ask());
    let graph = builder.fork("plan", ["a", "b"]).join("merge", stage.merge()).build().unwrap();
    stage.hang("b");
    let mut run = world.engine.run(&graph, "r", Notes::default()).into_future();
    while !stage.has_said("b")
        || world.engine.waiting(&run_id()).await.is_ok_and(|waiting| waiting.is_empty())
    {
        assert!(futures_util::poll!(&mut run).is_pending());
        tokio::task::yield_now().await;
    }

    let status = world.store.run(&run_id()).await.unwrap().summary.status;

    assert_eq!(status, RunStatus::Running);
    let scan = Scan { order: ScanOrder::NewestFirst, ..Scan::of(&run_id()) };
    let found = world.store.scan(&scan).await.unwrap().records;
    assert!(found.iter().all(|record| record.header().status.is_none()), "no record says that it waits");
}
