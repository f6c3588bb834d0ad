//! Rollback, resume from another checkpoint, and fork, each followed by a second crash.

use serde_json::{Value, json};
use waypost::engine::RunError;
use waypost::graph::ItemEnds;
use waypost::memory::Part;
use waypost::record::RunStatus;
use waypost::store::Store as _;
use waypost::{END, Graph, RunId, StepError};

use crate::faulty::{World, run_id};
use crate::test_graphs::{Notes, Stage};

const WHOLE: [&str; 4] = ["plan", "a=a+a2", "b=b", "after"];

// A rollback to before a fan-out with open scopes invalidates the scopes: they do not count, are not planned,
// and do not run.
#[tokio::test]
async fn scopes_left_behind_by_a_rollback_do_not_count() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.fork();
        stage.crash_run(&mut world, &graph, "a2").await;
        stage.said();

        let back = world.engine.resume(&graph, "r").from_checkpoint(1).without_running().await.unwrap();
        assert_eq!(back.status, RunStatus::Interrupted);
        assert!(world.engine.waiting(&run_id()).await.unwrap().is_empty());
        world.reopen();
        let mut said = Vec::new();
        for at in ["plan", "a", "a2", "merge"] {
            stage.crash_resume(&mut world, &graph, at).await;
            said.extend(stage.said());
        }
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, WHOLE);
        said.extend(stage.said());
        for (name, times) in [("plan", 2), ("a", 2), ("b", 1), ("a2", 2), ("merge", 2), ("after", 1)] {
            let count = said.iter().filter(|said| *said == name).count();
            assert_eq!(count, times, "{name}: {said:?}");
        }
    }
}

#[tokio::test]
async fn a_join_alone_is_done_again_from_its_step() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.fork();
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        stage.said();

        stage
            .crash(&mut world, "merge", async |world| {
                world.engine.resume(&graph, "r").from_step("merge").into_future().await
            })
            .await;
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, WHOLE);
        assert_eq!(stage.said(), ["merge", "merge", "after"]);
    }
}

#[tokio::test]
async fn a_second_crash_after_a_fork_in_time_or_an_edit_loses_nothing() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.line();
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        stage.said();
        let from = "r@2".parse().unwrap();

        stage
            .crash(&mut world, "b", async |world| {
                let fork = world.engine.fork(&graph, &from, "r2");
                fork.edit_state(|state| state.done.push("edited".to_owned())).into_future().await
            })
            .await;
        world.store.delete(&run_id()).await.unwrap();
        let forked = world.engine.resume(&graph, "r2").await.unwrap();
        assert_eq!(forked.state.done, ["a", "edited", "b", "c"]);
        stage
            .crash(&mut world, "c", async |world| {
                let resume = world.engine.resume(&graph, "r2").from_step("c");
                resume.edit_state(|state| state.done.push("again".to_owned())).into_future().await
            })
            .await;
        let outcome = world.engine.resume(&graph, "r2").await.unwrap();

        assert_eq!(outcome.state.done, ["a", "edited", "b", "again", "c"]);
        assert_eq!(stage.said(), ["b", "b", "c", "c", "c"]);
        assert_eq!(outcome.run, RunId::new("r2").unwrap());
    }
}

// Bug: the highest epoch was lost if the newest record did not name it, so keys repeated.
#[tokio::test]
async fn every_redo_has_an_epoch_of_its_own() {
    let world = World::memory();
    let graph = Graph::builder("epochs")
        .step("a", |state: Notes, context: waypost::Context| async move {
            Ok::<_, StepError>(state.and(context.idempotency_key()))
        })
        .build()
        .unwrap();
    let mut keys = vec![world.engine.run(&graph, "r", Notes::default()).await.unwrap().state.done];

    keys.push(world.engine.resume(&graph, "r").from_step("a").await.unwrap().state.done);
    world.engine.resume(&graph, "r").from_step(END).await.unwrap();
    keys.push(world.engine.resume(&graph, "r").from_step("a").await.unwrap().state.done);
    world.engine.resume(&graph, "r").from_step(END).await.unwrap();
    keys.push(world.engine.resume(&graph, "r").restart(Notes::default()).await.unwrap().state.done);

    let all: std::collections::BTreeSet<_> = keys.iter().flatten().collect();
    assert_eq!(all.len(), 4, "{keys:?}");
}

#[tokio::test]
async fn items_after_a_rollback_into_their_fan_out_are_all_there() {
    let mut world = World::memory();
    let stage = Stage::default();
    let work = stage.clone();
    let graph = Graph::builder("pages")
        .each(
            "each",
            |_: &Notes| (0..1_500).collect(),
            |n: &u32| format!("n{n}"),
            move |n: u32, _| {
                let stage = work.clone();
                async move { stage.pass(&format!("n{n}")).await.map(|()| n) }
            },
        )
        .join(|mut state: Notes, mut ends: ItemEnds<u32, u32>, _| async move {
            while let Some(end) = ends.next().await? {
                state.done.push(end.key);
            }
            Ok::<_, StepError>(state)
        })
        .build()
        .unwrap();
    stage.crash_run(&mut world, &graph, "n1200").await;

    // This record is from the first page; the items of the second page are found by a lookup.
    let outcome = world.engine.resume(&graph, "r").from_checkpoint(2).await.unwrap();

    assert_eq!(outcome.state.done.len(), 1_500);
    assert!(stage.said().len() <= 1_508);
}

// After a redo of a fan-out, all records of a scope in that redo are damaged. The remaining records of that
// scope are from the first fan-out, with its state. They do not count, and the scope opens again.
#[tokio::test]
async fn leftovers_of_an_earlier_fan_out_are_not_taken_as_current() {
    for part in [Part::Header, Part::Body] {
        let mut world = World::memory();
        let stage = Stage::default();
        let graph = stage.fork();
        stage.crash_run(&mut world, &graph, "a2").await;
        let redone = async |world: &World| {
            let resume = world.engine.resume(&graph, "r").from_step("plan");
            resume.edit_state(|state| state.done.push("edited".to_owned())).into_future().await
        };
        stage.crash(&mut world, "a2", redone).await;
        stage.said();
        for seq in [3, 4] {
            world.below().damage(&run_id(), &"plan:a".parse().unwrap(), seq, part);
        }

        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, ["edited", "plan", "a=a+a2", "b=b", "after"], "{part:?}");
        assert_eq!(stage.said(), ["a", "a2", "merge", "after"], "{part:?}");
    }
}

// A fork from the middle of a fan-out: the source run keeps its scopes, and the fork has copies.
#[tokio::test]
async fn a_fork_during_a_fan_out_has_its_own_scopes() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.fork();
        stage.crash_run(&mut world, &graph, "a2").await;
        let records = world.records().await;
        let amid = records.iter().filter(|line| line.starts_with("main@")).count();
        let from = format!("r@{amid}").parse().unwrap();
        stage.said();

        let fork = async |world: &World| world.engine.fork(&graph, &from, "r2").into_future().await;
        stage.crash(&mut world, "a2", fork).await;
        assert_eq!(stage.said(), ["a2"]);
        let forked = world.engine.resume(&graph, "r2").await.unwrap();

        assert_eq!(
            (forked.state.done, stage.said()),
            (WHOLE.map(str::to_owned).to_vec(), said("a2 merge after"))
        );
        assert_eq!(world.records().await, records, "the other run is as it was");
        let other = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!(
            (other.state.done, stage.said()),
            (WHOLE.map(str::to_owned).to_vec(), said("a2 merge after"))
        );
    }
}

fn said(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

// Bug: a fork had the configuration that the run started with, and not the configuration at its checkpoint.
#[tokio::test]
async fn a_fork_in_time_has_the_configuration_in_force_there() {
    let world = World::memory();
    let graph = Graph::builder("config")
        .step("a", |state: Notes, context: waypost::Context| async move {
            Ok::<_, StepError>(state.and(Value::Object(context.config().clone()).to_string()))
        })
        .build()
        .unwrap();
    let map = |value: Value| value.as_object().unwrap().clone();
    let run = world.engine.run(&graph, "r", Notes::default()).config(map(json!({ "a": 1, "b": 1 })));
    run.interrupt_before(["a"]).await.unwrap();
    let over =
        world.engine.resume(&graph, "r").config(map(json!({ "b": 2 }))).without_running().await.unwrap();
    let at = |seq: u64| format!("r@{seq}").parse().unwrap();

    let before = world.engine.fork(&graph, &at(1), "r2").await.unwrap();
    let after = world.engine.fork(&graph, &at(over.at), "r3").await.unwrap();

    assert_eq!(before.state.done, [json!({ "a": 1, "b": 1 }).to_string()]);
    assert_eq!(after.state.done, [json!({ "a": 1, "b": 2 }).to_string()]);
}

#[tokio::test]
async fn a_checkpoint_that_is_not_there_changes_nothing() {
    let world = World::memory();
    let stage = Stage::default();
    let graph = stage.line();
    world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    let before = world.records().await;

    let refused = world.engine.resume(&graph, "r").from_checkpoint(99).await;

    assert!(matches!(refused, Err(RunError::Store(_))), "{refused:?}");
    assert_eq!(world.records().await, before);
}

// Bug: a run that ended with failures counted as completed after a rollback to its end, or an edit of its state,
// without running. Cause: that path did not check for failures. Fix: one function returns the end status of a
// run.
#[tokio::test]
async fn a_run_with_failures_stays_one_without_running() {
    for world in World::each() {
        let stage = Stage::default();
        let builder = stage.steps(Graph::builder("fork"), &["plan", "a", "b"]);
        let graph = builder.fork("plan", ["a", "b"]).collect().join("merge", stage.merge()).build().unwrap();
        stage.fail("a", u32::MAX);
        let ended = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        assert_eq!(ended.status, RunStatus::CompletedWithFailures);

        let resume = || world.engine.resume(&graph, "r").without_running();
        for outcome in [
            resume().from_checkpoint(ended.at).await.unwrap(),
            resume().from_step(END).await.unwrap(),
            resume().edit_state(|state| state.done.push("edited".to_owned())).await.unwrap(),
            world.engine.resume(&graph, "r").await.unwrap(),
        ] {
            assert_eq!(outcome.status, RunStatus::CompletedWithFailures);
        }
        let told = world.store.run(&run_id()).await.unwrap().summary.summary.status;
        assert_eq!(told, RunStatus::CompletedWithFailures);
    }
}
