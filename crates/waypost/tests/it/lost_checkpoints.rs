//! Tolerated failures to write a checkpoint, also in scopes of scopes. Lost records are written with the next
//! ones, and a crash before that repeats only the steps since.

use waypost::Graph;
use waypost::StepError;
use waypost::engine::RunError;
use waypost::graph::ItemEnds;
use waypost::record::RunStatus;

use crate::faulty::{Fault, World};
use crate::test_graphs::{Notes, Stage};

/// Builds a fork in a fork, and items in one of its scopes.
fn nested(stage: &Stage) -> Graph<Notes> {
    let builder = stage.steps(Graph::builder("nested"), &["plan", "p", "x", "x2", "y", "q", "after"]);
    let builder = builder.edge("x", "x2").fork("p", ["x", "y"]).join("inner", stage.merge());
    let work = stage.clone();
    let each = builder.each(
        "each",
        |_: &Notes| (0..3).collect(),
        |n: &u32| format!("n{n}"),
        move |n: u32, _| {
            let stage = work.clone();
            async move { stage.pass(&format!("n{n}")).await.map(|()| n) }
        },
    );
    let builder = each.max_parallel(2).join(|mut state: Notes, mut ends: ItemEnds<u32, u32>, _| async move {
        while let Some(end) = ends.next().await? {
            state.done.push(format!("{}={:?}", end.key, end.result.ok()));
        }
        Ok::<_, StepError>(state)
    });
    let builder = builder.edge("q", "each").fork("plan", ["p", "q"]).join("outer", stage.merge());
    builder.edge("outer", "after").build().unwrap()
}

async fn undisturbed() -> Notes {
    let (world, stage) = (World::memory(), Stage::default());
    world.engine.run(&nested(&stage), "r", Notes::default()).await.unwrap().state
}

#[tokio::test]
async fn any_lost_checkpoint_of_scopes_of_scopes_is_made_up_for() {
    let expect = undisturbed().await;
    for count in [1, 2] {
        for nth in 2.. {
            let mut world = World::memory();
            let stage = Stage::default();
            let graph = nested(&stage);
            world.store.plan(nth, count, Fault::Refuse);
            let run = world.engine.run(&graph, "r", Notes::default()).tolerate_lost_checkpoints();

            let first = run.await;

            let lost = first.as_ref().map_or(0, |outcome| outcome.lost);
            if first.is_ok() && lost == 0 {
                assert!(nth > 6, "only {nth} writes were tried");
                break;
            }
            world.reopen();
            // A join reads from the store, so it does not start while its input cannot be written. The last
            // checkpoint of a run cannot be lost either.
            let outcome = match first {
                Err(RunError::Checkpoint { .. }) => world.engine.resume(&graph, "r").await.unwrap(),
                first => first.unwrap(),
            };
            assert_eq!((outcome.status, &outcome.state), (RunStatus::Completed, &expect), "write {nth}");
            let records = world.records().await;
            for name in ["plan", "p", "x", "x2", "y", "inner", "q", "each", "outer", "after"] {
                let ended = format!("completed {name}");
                let count = records.iter().filter(|line| line.ends_with(&ended)).count();
                assert_eq!(count, 1, "write {nth}, {name}: {records:#?}");
            }
            world.reopen();
            assert!(world.engine.resume(&graph, "r").await.unwrap().idle);
        }
    }
}

#[tokio::test]
async fn a_crash_right_after_a_lost_checkpoint_costs_the_steps_since() {
    let expect = undisturbed().await;
    for nth in 2.. {
        let mut died = false;
        for fault in [Fault::DieBefore, Fault::DieAfter] {
            let mut world = World::memory();
            let stage = Stage::default();
            let graph = nested(&stage);
            world.store.plan(nth, 1, Fault::Refuse);
            let refused = nth;
            // The write after the refused one.
            world.store.plan_where(
                {
                    let mut left = refused + 1;
                    let left = std::sync::Mutex::new(move || {
                        left -= 1;
                        left == 0
                    });
                    move |call| call.batch().is_some() && (left.lock().unwrap())()
                },
                fault,
            );
            let run =
                world.engine.run(&graph, "r", Notes::default()).tolerate_lost_checkpoints().into_future();
            let end = world.until_death(run).await;
            died |= end.is_none();
            world.reopen();

            let outcome = world.engine.run(&graph, "r", Notes::default()).or_resume().await.unwrap();

            assert_eq!(
                (outcome.status, &outcome.state),
                (RunStatus::Completed, &expect),
                "write {nth}, {fault:?}"
            );
        }
        if !died {
            assert!(nth > 6, "it died only {nth} times");
            break;
        }
    }
}
