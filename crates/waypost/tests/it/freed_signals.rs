//! A signal read by work that was later undone is available again; an ended run accepts no signals.

use serde_json::json;
use waypost::engine::{Outcome, RunError};
use waypost::record::RunStatus;
use waypost::{Context, END, Engine, Graph, RunId, StepError};

use crate::faulty::World;
use crate::test_graphs::{Notes, Stage};

/// Builds `a`, then `ship`, which reads signal `packed`, then `c`.
fn ships(stage: &Stage) -> Graph<Notes> {
    let builder = stage.steps(Graph::builder("ships"), &["a", "c"]);
    builder.step("ship", takes(stage)).edge("a", "ship").edge("ship", "c").build().unwrap()
}

/// Builds `ship`, `c` and `more`; two of them read a signal.
fn ships_twice(stage: &Stage) -> Graph<Notes> {
    let builder = stage.steps(Graph::builder("ships").step("ship", takes(stage)), &["c"]);
    builder.step("more", takes(stage)).edge("ship", "c").edge("c", "more").build().unwrap()
}

/// Returns a step that reads signal `packed` and notes it.
fn takes(
    stage: &Stage,
) -> impl Fn(Notes, Context) -> futures_util::future::BoxFuture<'static, Result<Notes, StepError>>
+ Send
+ Sync
+ use<> {
    let stage = stage.clone();
    move |state, context| {
        let stage = stage.clone();
        Box::pin(async move {
            let value: String = context.signal("packed", "packed").await?;
            stage.pass("taken").await?;
            Ok(state.and(value))
        })
    }
}

async fn send(engine: &Engine, value: &str) {
    engine.signal("r", "packed", json!(value)).await.unwrap();
}

/// Runs until the signal is read and the run has ended.
async fn shipped(world: &mut World, graph: &Graph<Notes>) -> Outcome<Notes> {
    let waiting = world.engine.run(graph, "r", Notes::default()).await.unwrap();
    assert_eq!(waiting.status, RunStatus::Waiting);
    send(&world.engine, "box 7").await;
    world.reopen();
    let end = world.engine.resume(graph, "r").await.unwrap();
    assert_eq!(end.state.done, ["a", "box 7", "c"]);
    world.reopen();
    end
}

// Bug: the step waited for ever, because its signal was consumed and is sent only once.
#[tokio::test]
async fn a_rollback_to_before_a_signal_was_taken_gives_it_again() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = ships(&stage);
        shipped(&mut world, &graph).await;

        // `a` is completed, and `ship` has not begun.
        let again = world.engine.resume(&graph, "r").from_checkpoint(2).await.unwrap();
        assert_eq!((again.status, again.state.done.clone()), (RunStatus::Completed, words("a,box 7,c")));
        world.reopen();
        let twice = world.engine.resume(&graph, "r").from_checkpoint(2).await.unwrap();
        assert_eq!((twice.status, twice.state.done), (RunStatus::Completed, words("a,box 7,c")));
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

#[tokio::test]
async fn a_rerun_of_the_step_that_took_a_signal_takes_it_again() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = ships(&stage);
        shipped(&mut world, &graph).await;

        let again = world.engine.resume(&graph, "r").from_step("ship").await.unwrap();

        assert_eq!((again.status, again.state.done), (RunStatus::Completed, words("a,box 7,c")));
    }
}

#[tokio::test]
async fn a_step_after_the_one_that_took_a_signal_does_not_free_it() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = ships_twice(&stage);
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        send(&world.engine, "box 7").await;
        let first = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!((first.status, first.waiting[0].step.as_str()), (RunStatus::Waiting, "more"));

        world.reopen();
        let again = world.engine.resume(&graph, "r").from_step("c").await.unwrap();

        assert_eq!((again.status, again.waiting[0].step.as_str()), (RunStatus::Waiting, "more"));
    }
}

#[tokio::test]
async fn a_signal_taken_before_the_checkpoint_stays_taken() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage
            .steps(Graph::builder("loop").step("ship", takes(&stage)), &["c"])
            .route("ship", ["ship", "c"], |state| if state.done.len() < 3 { "ship" } else { "c" })
            .build()
            .unwrap();
        let mut outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        let mut after = Vec::new();
        for value in ["1", "2", "3"] {
            send(&world.engine, value).await;
            world.reopen();
            outcome = world.engine.resume(&graph, "r").await.unwrap();
            let history = world.engine.history("r").await.unwrap();
            let ended = history.iter().rev().find(|entry| entry.status() == "completed").unwrap();
            after.push(ended.at().seq);
        }
        assert_eq!(outcome.state.done, words("1,2,3,c"));

        world.reopen();
        let again = world.engine.resume(&graph, "r").from_checkpoint(after[0]).await.unwrap();

        assert_eq!((again.status, again.state.done), (RunStatus::Completed, words("1,2,3,c")));
    }
}

#[tokio::test]
async fn a_fork_has_the_signals_that_were_not_taken_by_then() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = ships(&stage);
        shipped(&mut world, &graph).await;

        let before = world.engine.fork(&graph, &"r@2".parse().unwrap(), "before").await.unwrap();
        let again = world.engine.fork(&graph, &"before@2".parse().unwrap(), "again").await.unwrap();
        world.engine.store().delete(&RunId::new("r").unwrap()).await.unwrap();
        world.reopen();
        let rerun = world.engine.resume(&graph, "before").from_step("ship").await.unwrap();

        for end in [before, again, rerun] {
            assert_eq!(
                (end.status, end.state.done),
                (RunStatus::Completed, words("a,box 7,c")),
                "{}",
                end.run
            );
        }
    }
}

#[tokio::test]
async fn a_fork_after_a_signal_was_taken_does_not_have_it() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = ships_twice(&stage);
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        send(&world.engine, "box 7").await;
        world.engine.resume(&graph, "r").await.unwrap();
        let history = world.engine.history("r").await.unwrap();
        let at = history.iter().rev().find(|entry| entry.status() == "completed").unwrap().at();
        world.reopen();

        let forked = world.engine.fork(&graph, &at, "forked").await.unwrap();

        assert_eq!((forked.status, forked.waiting[0].step.as_str()), (RunStatus::Waiting, "more"));
    }
}

#[tokio::test]
async fn a_fork_amid_the_step_that_took_a_signal_has_it() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = ships(&stage);
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        send(&world.engine, "box 7").await;
        stage.crash_resume(&mut world, &graph, "taken").await;
        let newest = world.engine.history("r").await.unwrap().pop().unwrap().at();

        let forked = world.engine.fork(&graph, &newest, "forked").await.unwrap();
        let own = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(forked.state.done, words("a,box 7,c"));
        assert_eq!(own.state.done, words("a,box 7,c"));
    }
}

#[tokio::test]
async fn scopes_reopened_by_a_rollback_consume_signals_again() {
    for mut world in World::each() {
        let stage = Stage::default();
        let builder = stage.steps(Graph::builder("fork"), &["plan", "b"]).step("a", takes(&stage));
        let graph = builder.fork("plan", ["a", "b"]).join("merge", stage.merge()).build().unwrap();
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        send(&world.engine, "box 7").await;
        world.reopen();
        let first = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!(first.state.done, words("plan,a=box 7,b=b"));

        world.reopen();
        let again = world.engine.resume(&graph, "r").from_step("plan").await.unwrap();

        assert_eq!((again.status, again.state.done), (RunStatus::Completed, words("plan,a=box 7,b=b")));
    }
}

#[tokio::test]
async fn passes_of_a_loop_over_scopes_keep_the_signals_they_took() {
    for mut world in World::each() {
        let stage = Stage::default();
        let builder = stage.steps(Graph::builder("loop"), &["plan", "b"]).step("a", takes(&stage));
        let graph = builder
            .fork("plan", ["a", "b"])
            .join("merge", stage.merge())
            .route("merge", ["plan", END], |state| if state.done.len() < 6 { "plan" } else { END })
            .build()
            .unwrap();
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        send(&world.engine, "1").await;
        let second = world.engine.resume(&graph, "r").await.unwrap();

        // The second pass does not get the signal of the first.
        assert_eq!(second.status, RunStatus::Waiting);
        world.reopen();
        assert!(world.engine.resume(&graph, "r").await.unwrap().idle);
        send(&world.engine, "2").await;
        let end = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(end.state.done, words("plan,a=1,b=b,plan,a=2,b=b"));
    }
}

#[tokio::test]
async fn a_crash_between_rollback_and_signal_loses_nothing() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = ships(&stage);
        shipped(&mut world, &graph).await;
        let back = world.engine.resume(&graph, "r").from_checkpoint(2).without_running().await.unwrap();
        assert_eq!(back.status, RunStatus::Interrupted);
        stage.said();
        stage.crash_resume(&mut world, &graph, "taken").await;

        let end = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!((end.status, end.state.done), (RunStatus::Completed, words("a,box 7,c")));
    }
}

#[tokio::test]
async fn a_signal_to_an_ended_run_is_refused_with_its_state() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = ships(&stage);
        shipped(&mut world, &graph).await;
        let refused = world.engine.signal("r", "packed", json!("late")).await.unwrap_err();
        assert!(matches!(refused, RunError::Ended { status: RunStatus::Completed, .. }));
        assert_eq!(refused.to_string(), "cannot send signal `packed` to run r: it is completed");

        let failing = stage.line();
        stage.fail("b", 1);
        let failed = world.engine.run(&failing, "f", Notes::default()).await.unwrap();
        assert_eq!(failed.status, RunStatus::Failed);
        world.engine.signal("f", "packed", json!("may come")).await.unwrap();
        world.engine.cancel(&RunId::new("f").unwrap(), "somebody").await.unwrap();
        let refused = world.engine.signal("f", "packed", json!("late")).await.unwrap_err();
        assert_eq!(refused.to_string(), "cannot send signal `packed` to run f: it is cancelled");
    }
}
