//! Idempotency keys on branches: each deliberate redo has its own, whichever branch it was on.

use std::sync::{Arc, Mutex};

use waypost::record::RunStatus;
use waypost::{BranchPath, Context, Graph};

use crate::faulty::{World, run_id};
use crate::play::{Notes, Stage};

type Keys = Arc<Mutex<Vec<String>>>;

/// `plan`, the branches `a` and `b`, and `merge`. `a` must not be repeated blindly, and tells the key that it works with.
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

// A step of a branch was done again deliberately, in an epoch of its branch. The run then went back to before the fork,
// and the branch was opened anew in the next epoch of the main branch, which was the same number: what was done on
// purpose a second time had the key of what was done before, so that a service would have taken the one for the other.
// For the main branch knew only its own epochs. A branch that was there before is opened in an epoch that it never had.
#[tokio::test]
async fn a_branch_opened_anew_has_keys_that_it_never_had() {
    for mut world in World::each() {
        let (stage, keys) = (Stage::default(), Keys::default());
        let graph = fork(&stage, &keys);
        stage
            .crash(&mut world, "a", async |world| world.engine.run(&graph, "r", Notes::default()).await)
            .await;
        let outcome = world.engine.resume(&graph, "r").retry_doubtful().await.unwrap();
        assert_eq!(outcome.status, RunStatus::Completed);
        let mut all = taken(&keys);
        assert_eq!(all.len(), 2, "the one that was cut, and the one that a person wanted");

        // Gone back before the fork, done again as a whole, and started over.
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

// A crash is no redo: the branch that was opened anew and cut there goes on with the key that it had.
#[tokio::test]
async fn a_branch_opened_anew_keeps_its_keys_over_a_crash() {
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
        let history = world.engine.history_of(&run_id(), &"plan:a".parse::<BranchPath>().unwrap()).await;
        let epochs: Vec<u32> =
            history.unwrap().iter().map(|entry| entry.record().header().at.epoch).collect();
        assert!(epochs.iter().all(|epoch| *epoch == epochs[0] && *epoch > 0), "{epochs:?}");
    }
}
