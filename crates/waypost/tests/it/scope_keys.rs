//! Idempotency keys in scopes: each deliberate redo has its own key in every scope.

use std::sync::{Arc, Mutex};

use waypost::record::RunStatus;
use waypost::{Context, Graph, ScopePath};

use crate::faulty::{World, run_id};
use crate::test_graphs::{Notes, Stage};

type Keys = Arc<Mutex<Vec<String>>>;

/// Builds `plan`, the scopes `a` and `b`, and `merge`. Step `a` is not idempotent and notes its key.
fn fork(stage: &Stage, keys: &Keys) -> Graph<Notes> {
    let (work, keys) = (stage.clone(), Arc::clone(keys));
    stage
        .steps(Graph::builder("fork"), &["plan"])
        .step("a", move |state: Notes, context: Context| {
            let work = work.clone();
            keys.lock().unwrap().push(context.idempotency_key());
            async move { work.pass("a").await.map(|()| state.and("a")) }
        })
        .not_idempotent()
        .step("b", stage.note())
        .fork("plan", ["a", "b"])
        .join("merge", stage.merge())
        .build()
        .unwrap()
}

fn taken(keys: &Keys) -> Vec<String> {
    std::mem::take(&mut *keys.lock().unwrap())
}

// Bug: a deliberate redo of a step of a scope ran in an epoch of its scope. After a rollback to before the fork, the
// scope reopened in the next epoch of the main scope, with the same number. The second redo then repeated the
// key of the first, so a service could not distinguish them. Cause: the main scope knew only its own epochs.
// Fix: a reopened scope gets an epoch that it never had.
#[tokio::test]
async fn a_scope_opened_anew_has_keys_that_it_never_had() {
    for mut world in World::each() {
        let (stage, keys) = (Stage::default(), Keys::default());
        let graph = fork(&stage, &keys);
        stage.crash_run(&mut world, &graph, "a").await;
        let outcome = world.engine.resume(&graph, "r").retry_doubtful().await.unwrap();
        assert_eq!(outcome.status, RunStatus::Completed);
        let mut all = taken(&keys);
        assert_eq!(all.len(), 2, "the one that was cut, and the one that a person wanted");

        // Rollback to before the fork, redo of the whole fork, and restart.
        world.engine.resume(&graph, "r").from_checkpoint(1).await.unwrap();
        world.engine.resume(&graph, "r").from_step("plan").await.unwrap();
        world.engine.resume(&graph, "r").restart(Notes::default()).await.unwrap();
        all.extend(taken(&keys));

        let mut distinct = all.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!((all.len(), distinct.len()), (5, 5), "{all:?}");
    }
}

// A crash is not a redo: a reopened scope that was cut keeps its key.
#[tokio::test]
async fn a_scope_opened_anew_keeps_its_keys_over_a_crash() {
    for mut world in World::each() {
        let (stage, keys) = (Stage::default(), Keys::default());
        let graph = fork(&stage, &keys);
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        taken(&keys);

        stage
            .crash(&mut world, "b", async |world| {
                world.engine.resume(&graph, "r").from_checkpoint(1).into_future().await
            })
            .await;
        let before = taken(&keys);
        world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!((before.len(), taken(&keys).len()), (1, 0), "what had ended is not done again");
        let history = world.engine.history_of(&run_id(), &"plan:a".parse::<ScopePath>().unwrap()).await;
        let epochs: Vec<u32> =
            history.unwrap().iter().map(|entry| entry.record().header().at.epoch).collect();
        assert!(epochs.iter().all(|epoch| *epoch == epochs[0] && *epoch > 0), "{epochs:?}");
    }
}
