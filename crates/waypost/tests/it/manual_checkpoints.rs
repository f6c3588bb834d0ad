//! Checkpoints requested by a person do not change the next step of the run.

use std::future::IntoFuture as _;
use std::sync::Arc;

use tokio::sync::Notify;
use waypost::engine::{RunError, labelled};
use waypost::record::RunStatus;
use waypost::store::{Store as _, StoreError};
use waypost::{Context, END, Graph, ScopePath, StepError};
use waypost_testing::records::holder;

use crate::faulty::{World, run_id};
use crate::test_graphs::{Notes, Stage};

const WHOLE: [&str; 4] = ["plan", "a=a+a2", "b=b", "after"];

#[tokio::test]
async fn a_run_cut_amid_its_scopes_goes_on_behind_a_mark_as_before() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.fork();
        stage.crash_run(&mut world, &graph, "a2").await;
        stage.said();

        let at = world.engine.checkpoint(&run_id(), Some("amid")).await.unwrap();
        let again = world.engine.checkpoint(&run_id(), Some("amid")).await.unwrap();

        assert_eq!(again.seq, at.seq + 1);
        assert_eq!(labelled(world.store.as_ref(), &run_id(), "amid").await.unwrap(), Some(again));
        stage.crash_resume(&mut world, &graph, "merge").await;
        world.engine.checkpoint(&run_id(), None).await.unwrap();
        let outcome = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!(
            (outcome.status, outcome.state.done),
            (RunStatus::Completed, WHOLE.map(str::to_owned).into())
        );
        assert_eq!(stage.said_sorted(), ["a2", "after", "merge", "merge"]);
    }
}

#[tokio::test]
async fn a_run_under_way_writes_the_mark_between_its_steps() {
    for world in World::each() {
        let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tells, waits) = (Arc::clone(&begun), Arc::clone(&go));
        let slow = move |state: Notes, _: Context| {
            let (tells, waits) = (Arc::clone(&tells), Arc::clone(&waits));
            async move {
                tells.notify_one();
                waits.notified().await;
                Ok::<_, StepError>(state.and("slow"))
            }
        };
        let graph = Graph::builder("notes")
            .step("slow", slow)
            .step("after", async |state: Notes, _: Context| Ok::<_, StepError>(state.and("after")))
            .edge("slow", "after")
            .edge("after", END)
            .build()
            .unwrap();
        let asks = async {
            begun.notified().await;
            let at = world.engine.checkpoint(&run_id(), Some("amid")).await.unwrap();
            go.notify_one();
            at
        };

        let running = world.engine.run(&graph, "r", Notes::default()).into_future();
        let (outcome, at) = tokio::join!(running, asks);

        assert_eq!(outcome.unwrap().state.done, ["slow", "after"]);
        assert_eq!(labelled(world.store.as_ref(), &run_id(), "amid").await.unwrap(), Some(at.clone()));
        assert!(world.store.signals(&run_id()).await.unwrap().is_empty(), "the signal was consumed");
        go.notify_one();
        let back = world.engine.resume(&graph, "r").from_checkpoint(at.seq).await.unwrap();
        assert_eq!(back.state.done, ["slow", "after"], "it can be gone back to");
    }
}

#[tokio::test]
async fn labels_that_are_no_names_are_refused() {
    let world = World::memory();
    let stage = Stage::default();
    world.engine.run(&stage.fork(), "r", Notes::default()).await.unwrap();

    for label in ["", "7", "a b", "a/b", "a@b", "\u{e4}", &"x".repeat(65)] {
        let refused = world.engine.checkpoint(&run_id(), Some(label)).await;
        assert!(matches!(refused, Err(RunError::NotMarked { .. })), "{label}: {refused:?}");
    }
    assert!(world.engine.checkpoint(&run_id(), Some(&"x".repeat(64))).await.is_ok());
}

// With paused time, the minute passes at once.
#[tokio::test(start_paused = true)]
async fn a_signal_that_nobody_consumes_is_kept() {
    let world = World::memory();
    let stage = Stage::default();
    world.engine.run(&stage.fork(), "r", Notes::default()).await.unwrap();
    let lease = world.store.acquire(&run_id(), &ScopePath::main(), &holder("test")).await.unwrap();

    let refused = world.engine.checkpoint(&run_id(), Some("late")).await;

    assert!(matches!(refused, Err(RunError::Store(StoreError::Held { .. }))), "{refused:?}");
    assert_eq!(world.store.signals(&run_id()).await.unwrap().len(), 1);
    drop(lease);
}
