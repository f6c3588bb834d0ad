//! One scope: crashes between steps and inside one, a loop that is rolled back and forked.

use std::collections::BTreeSet;

use waypost::engine::{ResumeOptions, SessionOptions};
use waypost::record::RunStatus;
use waypost::store::{Store as _, StoreExt as _};
use waypost::{Context, END, Graph, RunId, ScopePath, StepError};

use crate::faulty::{Fault, World, run_id};
use crate::history::{assert_told, told};
use crate::scripted_program::{Does, Toy};
use crate::test_graphs::{Notes, Stage};

/// A start is on disk, and the step did not run. The newest record reports a cut, also after the second crash:
/// each resume writes its own start before it starts the step.
#[tokio::test]
async fn one_record_tells_a_crash_before_from_one_in_a_process() {
    for mut world in World::each() {
        let (toy, id) = (Toy::new("a; b: a; c: b", 1).does("c", 1, Does::Hang), run_id());
        // Dies after the start of `b` is on disk, and before `b` has begun.
        world.store.plan(2, 1, Fault::DieAfter);
        let run =
            world.engine.run_program(&toy, toy.record("r"), Default::default(), SessionOptions::default());
        assert!(world.until_death(run).await.is_none());
        world.reopen();
        world.store.plan(1, 1, Fault::DieAfter);
        let resume = world.engine.resume_program(&toy, &id, ResumeOptions::default());
        assert!(world.until_death(resume).await.is_none());
        assert_eq!(toy.trace(), "a", "neither start was carried out");
        world.reopen();
        // Dies inside `c`.
        tokio::select! {
            end = world.engine.resume_program(&toy, &id, ResumeOptions::default()) => panic!("{end:?}"),
            () = until(|| toy.trace() == "a b c") => {}
        }
        world.reopen();

        world.engine.resume_program(&toy, &run_id(), ResumeOptions::default()).await.unwrap();

        assert_eq!(toy.trace(), "a b c c");
        assert_told!(
            told(world.store.as_ref(), &run_id()).await,
            "main@1 started a(1) > a(1) | a started
             main@2 completed a(1) > b(1) | b started
             main@3 started b(2) > b(2) | b started
             main@4 started b(3) > b(3) | b started
             main@5 completed b(3) > c(1) | c started
             main@6 started c(2) > c(2) | c started
             main@7 completed c(2) | - = completed"
        );
    }
}

async fn until(reached: impl Fn() -> bool) {
    while !reached() {
        tokio::task::yield_now().await;
    }
}

/// A recorded start that never happened is withdrawn, and its attempt does not count.
#[tokio::test]
async fn a_start_that_failed_is_ready_and_counts_no_attempt() {
    let world = World::memory();
    let toy = Toy::new("a; b: a", 1);
    let unable = toy.again().unable_to_begin();

    let run =
        world.engine.run_program(&unable, unable.record("r"), Default::default(), SessionOptions::default());
    run.await.unwrap_err();
    world.engine.resume_program(&toy, &run_id(), ResumeOptions::default()).await.unwrap();

    assert_told!(
        told(world.store.as_ref(), &run_id()).await,
        "main@1 started a(1) > a(1) | a started
         main@2 interrupted a(1) | a ready = interrupted
         main@3 started a(1) > a(1) | a started
         main@4 completed a(1) > b(1) | b started
         main@5 completed b(1) | - = completed"
    );
}

/// Builds `x` then `y`, ten times. `y` fails for good in the seventh pass while the stage says so, and notes its
/// keys.
fn loop_of_ten(stage: &Stage) -> Graph<Notes> {
    let fails = stage.clone();
    Graph::builder("loop")
        .step("x", |state: Notes, context: Context| async move {
            Ok::<_, StepError>(state.and(format!("x{}", context.iteration()[0])))
        })
        .step("y", move |state: Notes, context: Context| {
            let stage = fails.clone();
            async move {
                let pass = context.iteration()[0];
                stage.pass(&format!("y{pass}")).await?;
                stage.say(format!("key {}", context.idempotency_key()));
                Ok::<_, StepError>(state.and(format!("y{pass}")))
            }
        })
        .edge("x", "y")
        .route("y", ["x", END], |state: &Notes| if state.done.len() < 20 { "x" } else { END })
        .build()
        .unwrap()
}

/// A rollback from a failure in the seventh pass to the end of the third. The effective history follows the basis
/// of each record; by seq alone, the newest record of `y` belongs to the sixth pass, which was rolled back.
#[tokio::test]
async fn a_rolled_back_loop_appends_and_has_its_own_keys() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = loop_of_ten(&stage);
        stage.fail("y7", 2);
        let failed = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        assert_eq!((failed.status, failed.at), (RunStatus::Failed, 15));
        world.reopen();
        assert_eq!(world.engine.resume(&graph, "r").await.unwrap().status, RunStatus::Failed);
        let before = keys(&stage.said());

        world.reopen();
        let back = world.engine.resume(&graph, "r").from_checkpoint(7).without_running().await.unwrap();
        assert_eq!(back.state.done, ["x1", "y1", "x2", "y2", "x3", "y3"]);
        world.reopen();
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!((outcome.status, outcome.state.done.len()), (RunStatus::Completed, 20));
        let lines = told(world.store.as_ref(), &run_id()).await;
        assert_told!(
            lines[12..21],
            "main@13 completed y(1) i6 > x(1) | x started
             main@14 completed x(1) i7 > y(1) | y started
             main@15 failed y(1) i7 | y failed = failed
             main@16 started y(2) i7 > y(2) | y started
             main@17 failed y(2) i7 | y failed = failed
             main@18 restored x(0) i4 e1 ^7 | x ready = interrupted
             main@19 started x(1) i4 e1 > x(1) | x started
             main@20 completed x(1) i4 e1 > y(1) | y started
             main@21 completed y(1) i4 e1 > x(1) | x started"
        );
        let walk = world.store.history(&run_id(), &ScopePath::main(), outcome.at).await.unwrap();
        let mut seqs: Vec<_> = walk.iter().map(|record| record.header().seq).collect();
        seqs.reverse();
        assert_eq!(seqs, (1..=7).chain(18..=outcome.at).collect::<Vec<_>>());
        let after = keys(&stage.said());
        assert!(before.is_disjoint(&after), "what is redone on purpose has keys of its own");
    }
}

fn keys(said: &[String]) -> BTreeSet<String> {
    said.iter().filter_map(|said| said.strip_prefix("key ")).map(str::to_owned).collect()
}

/// A fork copies all that it needs, the iteration of the loop and the step count included.
#[tokio::test]
async fn a_fork_in_a_loop_depends_on_nothing_of_its_parent() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = loop_of_ten(&stage);
        world.engine.run(&graph, "r", Notes::default()).step_limit(30).await.unwrap();
        stage.said();
        let at = "r@7".parse().unwrap();
        let fork =
            async |world: &World| world.engine.fork(&graph, &at, "r2").step_limit(12).into_future().await;
        stage.crash(&mut world, "y4", fork).await;
        world.store.delete(&run_id()).await.unwrap();
        let limited = world.engine.resume(&graph, "r2").await.unwrap();

        let other = RunId::new("r2").unwrap();
        assert_told!(
            told(world.store.as_ref(), &other).await,
            "main@1 restored > x(1) | x started
             main@2 completed x(1) i4 > y(1) | y started
             main@3 started y(2) i4 > y(2) | y started
             main@4 completed y(2) i4 > x(1) | x started
             main@5 completed x(1) i5 > y(1) | y started
             main@6 completed y(1) i5
             main@7 failed x(0) i6 | x failed = failed"
        );
        assert_eq!(limited.status, RunStatus::Failed);
        let outcome = world.engine.resume(&graph, "r2").step_limit(30).await.unwrap();
        assert_eq!(outcome.state.done.len(), 20);
        assert_eq!(limited.run, other);
    }
}
