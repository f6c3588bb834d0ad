//! A redo of a step of a scope by name, with its downstream steps in the scope, the join, and the steps after the
//! join.

use std::future::IntoFuture as _;

use waypost::engine::RunError;
use waypost::record::RunStatus;
use waypost::{Graph, ScopePath};

use crate::faulty::World;
use crate::test_graphs::{Notes, Stage};

const WHOLE: [&str; 4] = ["plan", "a=a+a2", "b=b", "after"];

fn scope(name: &str) -> ScopePath {
    ScopePath::new(name).unwrap()
}

async fn completed(world: &World, stage: &Stage) -> Graph<Notes> {
    let graph = stage.fork();
    world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    stage.said();
    graph
}

#[tokio::test]
async fn only_downstream_steps_rerun_although_nothing_else_does() {
    for world in World::each() {
        let stage = Stage::default();
        let graph = completed(&world, &stage).await;

        for _ in 0..2 {
            let again = world.engine.resume(&graph, "r").from_step_on(&scope("plan:a"), "a2").await.unwrap();
            assert_eq!(again.state.done, WHOLE);
            assert_eq!(stage.said(), ["a2", "merge", "after"]);
        }
        let again = world.engine.resume(&graph, "r").from_step_on(&scope("plan:a"), "a").await.unwrap();
        assert_eq!((again.status, again.state.done), (RunStatus::Completed, WHOLE.map(str::to_owned).into()));
        assert_eq!(stage.said(), ["a", "a2", "merge", "after"]);
        let idle = world.engine.resume(&graph, "r").await.unwrap();
        assert!(idle.idle);
    }
}

#[tokio::test]
async fn crashes_after_it_cost_no_more_than_what_was_under_way() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = completed(&world, &stage).await;

        stage
            .crash(&mut world, "a", async |world: &World| {
                let again = world.engine.resume(&graph, "r").from_step_on(&scope("plan:a"), "a");
                again.into_future().await
            })
            .await;
        for at in ["a2", "merge", "after"] {
            stage.crash_resume(&mut world, &graph, at).await;
        }
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, WHOLE);
        assert_eq!(stage.said(), ["a", "a", "a2", "a2", "merge", "merge", "after", "after"]);
    }
}

#[tokio::test]
async fn a_scope_that_is_under_way_goes_back_too() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.fork();
        stage.crash_run(&mut world, &graph, "a2").await;
        stage.let_go();
        stage.said();

        let again = world.engine.resume(&graph, "r").from_step_on(&scope("plan:a"), "a").await.unwrap();

        assert_eq!(again.state.done, WHOLE);
        let mut said = stage.said_sorted();
        // The other scope may have ended before the crash or not.
        said.retain(|said| said != "b");
        assert_eq!(said, ["a", "a2", "after", "merge"]);
        let refused = world.engine.resume(&graph, "r").from_step_on(&scope("plan:a"), "b").await;
        assert!(matches!(refused, Err(RunError::NotFinished { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn places_that_are_not_there_are_refused_and_nothing_changes() {
    for world in World::each() {
        let stage = Stage::default();
        let graph = completed(&world, &stage).await;
        let before = world.records().await;

        for (on, step) in
            [("plan:c", "a"), ("nobody:a", "a"), ("plan:a", "merge"), ("plan:b", "a2"), ("plan:a", "no such")]
        {
            let refused = world.engine.resume(&graph, "r").from_step_on(&scope(on), step).await;
            let is_told = matches!(
                refused,
                Err(RunError::NotFinished { .. } | RunError::InvalidStep(_) | RunError::UnknownStep(_))
            );
            assert!(is_told, "{on}/{step}: {refused:?}");
        }
        assert_eq!(world.records().await, before);
        let main = world.engine.resume(&graph, "r").from_step_on(&ScopePath::main(), "after").await.unwrap();
        assert_eq!(
            (main.state.done, stage.said()),
            (WHOLE.map(str::to_owned).into(), vec!["after".to_owned()])
        );
    }
}

// An edit together with a rerun applies to the state at the start of the named step, and a crash does not repeat
// the edit.
#[tokio::test]
async fn an_older_state_of_a_joined_scope_is_edited() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = completed(&world, &stage).await;
        let edited = |state: &mut Notes| state.done.push("edited".to_owned());

        let edit = async |world: &World| {
            let resume = world.engine.resume(&graph, "r").from_step_on(&scope("plan:a"), "a2");
            resume.edit_scope("plan:a", edited).into_future().await
        };
        stage.crash(&mut world, "a2", edit).await;
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, ["plan", "a=a+edited+a2", "b=b", "after"]);
        assert_eq!(stage.said(), ["a2", "a2", "merge", "after"]);
    }
}
