//! Cancelled runs: every scope ends, no step starts later, and records stay.

use waypost::engine::{Cancel, RunError};
use waypost::record::{End, RunStatus};
use waypost::store::{Page, Signal, SignalKind, Store as _, StoreError};
use waypost::{Clock as _, Graph, ScopePath, SystemClock};
use waypost_testing::records::holder;

use crate::faulty::{World, run_id};
use crate::test_graphs::{Notes, Stage};

async fn cancel(world: &World) -> Result<Cancel, RunError> {
    world.engine.cancel(&run_id(), "a test").await
}

#[tokio::test]
async fn a_run_cut_amid_its_scopes_ends_with_all_of_them() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.fork();
        stage.crash_run(&mut world, &graph, "a2").await;
        stage.let_go();
        let before = world.records().await.len();

        let Cancel::Done { scopes, .. } = cancel(&world).await.unwrap() else { panic!("it was under way") };

        assert_eq!(world.end_of("main").await, Some(End::Cancelled));
        assert_eq!(world.end_of("plan:a").await, Some(End::Cancelled));
        assert_eq!(world.records().await.len(), before + 1 + scopes, "a record of each scope, no more");
        assert_eq!(world.store.heads(&run_id(), &Page::default()).await.unwrap().heads.len(), 0);
        assert_eq!(world.store.run(&run_id()).await.unwrap().summary.status, RunStatus::Cancelled);
        stage.said();
        let refused = world.engine.resume(&graph, "r").await;
        assert!(matches!(refused, Err(RunError::Cancelled(_))), "{refused:?}");
        assert_eq!(stage.said(), Vec::<String>::new(), "and nothing ran");
        assert_eq!(cancel(&world).await.unwrap(), Cancel::AlreadyCancelled);
        assert_eq!(world.records().await.len(), before + 1 + scopes, "which changed nothing");
        let over = world.engine.resume(&graph, "r").restart(Notes::default()).await.unwrap();
        assert_eq!(over.status, RunStatus::Completed, "it can be started over");
        assert_eq!(cancel(&world).await.unwrap(), Cancel::AlreadyFinished(RunStatus::Completed));
    }
}

#[tokio::test]
async fn what_was_asked_is_withdrawn() {
    for world in World::each() {
        let stage = Stage::default();
        let graph = Graph::builder("ask").step("a", stage.ask()).build().unwrap();
        assert_eq!(world.engine.run(&graph, "r", Notes::default()).await.unwrap().status, RunStatus::Waiting);
        let signal = Signal {
            id: "s".to_owned(),
            kind: SignalKind::Stop,
            scope: None,
            sender: String::new(),
            created_at: SystemClock.now(),
        };
        world.store.signal(&run_id(), &signal).await.unwrap();

        assert!(matches!(cancel(&world).await.unwrap(), Cancel::Done { scopes: 0, .. }));

        assert_eq!(world.engine.waiting(&run_id()).await.unwrap(), []);
        assert_eq!(world.store.signals(&run_id()).await.unwrap(), [], "what was sent to it is taken in");
    }
}

#[tokio::test]
async fn nobody_cancels_a_run_that_another_has() {
    for world in World::each() {
        let stage = Stage::default();
        stage.fail("b", 1);
        let graph = stage.line();
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        let lease = world.store.acquire(&run_id(), &ScopePath::main(), &holder("another")).await.unwrap();
        let before = world.records().await;

        let held = cancel(&world).await;

        assert!(matches!(held, Err(RunError::Store(StoreError::Held { .. }))), "{held:?}");
        assert_eq!(world.records().await, before);
        world.store.release(lease, None).await.unwrap();
        assert!(matches!(cancel(&world).await.unwrap(), Cancel::Done { .. }), "a run that failed, too");
        assert!(matches!(
            world.engine.cancel(&"none".parse().unwrap(), "a test").await,
            Err(RunError::Store(StoreError::NotFound { .. }))
        ));
    }
}
