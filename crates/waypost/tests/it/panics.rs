//! Panics in functions of the caller: the step or the call fails, and the run survives.

use serde::{Deserialize, Deserializer, Serialize};
use waypost::engine::{Doubtful, RunError, TreatAs};
use waypost::graph::{Branches, ItemEnds};
use waypost::record::{Claim, FailureKind, Pack, RunStatus};
use waypost::{Context, END, Graph, Retry, StepError};

use crate::faulty::World;
use crate::test_graphs::{Notes, Stage};

/// The place of a panic, until it is fixed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    Nowhere,
    Body,
    Route,
    Evidence,
    RetryWhen,
    Items,
    Key,
    Item,
    Join,
    ForkJoin,
    Enter,
    Leave,
}

impl At {
    fn pass(self, at: Self) {
        assert!(self != at, "no way");
    }
}

/// Builds steps, items, a fork and a sub-graph, with a function of each kind.
fn graph(at: At) -> Graph<Notes> {
    let step = move |notes: Notes, context: Context| {
        at.pass(At::Body);
        async move {
            context.exited(0);
            match at {
                At::RetryWhen => Err(StepError::retryable("busy")),
                _ => Ok(notes.and("first")),
            }
        }
    };
    let evidence = move |_: &Notes| {
        at.pass(At::Evidence);
        Pack::all([Claim::exited("first", 0)])
    };
    let builder = Graph::builder("panics").step("first", step).evidence(evidence);
    let builder = builder.retry_when(move |_| {
        at.pass(At::RetryWhen);
        true
    });
    let route = move |_: &Notes| {
        at.pass(At::Route);
        "each"
    };
    let items = move |_: &Notes| {
        at.pass(At::Items);
        vec![1, 2]
    };
    let key = move |n: &u32| {
        at.pass(At::Key);
        n.to_string()
    };
    let work = move |n: u32, _: Context| async move {
        at.pass(At::Item);
        Ok::<_, StepError>(n)
    };
    let join = move |notes: Notes, _: ItemEnds<u32, u32>, _: Context| async move {
        at.pass(At::Join);
        Ok::<_, StepError>(notes)
    };
    let merge = move |notes: Notes, _: Branches<Notes>, _: Context| async move {
        at.pass(At::ForkJoin);
        Ok::<_, StepError>(notes)
    };
    let below = Stage::default().steps(Graph::builder("below"), &["deep"]).build().unwrap();
    let enter = move |notes: &Notes| {
        at.pass(At::Enter);
        notes.clone()
    };
    let leave = move |_: &mut Notes, _: Notes| at.pass(At::Leave);
    let builder = builder.route("first", ["each", END], route).each("each", items, key, work).join(join);
    let builder = builder.subgraph("sub", &below, enter, leave);
    let builder = Stage::default().steps(builder, &["a", "b"]).edge("each", "sub");
    builder.fork("sub", ["a", "b"]).join("merge", merge).build().unwrap()
}

// Bug: a panic in some functions of a graph killed the process of the run. Fix: the engine catches the panic of
// every function of the caller.
#[tokio::test]
async fn a_panic_of_any_function_fails_its_step() {
    let expect = [
        (At::Body, "first", "step `first` panicked: no way"),
        (At::Route, "first", "the route after step `first` panicked: no way"),
        (At::Evidence, "first", "the evidence of step `first` panicked: no way"),
        (At::Items, "each", "the items or the keys of step `each` panicked: no way"),
        (At::Key, "each", "the items or the keys of step `each` panicked: no way"),
        (At::Item, "item", "step `item` panicked: no way"),
        (At::Join, "each", "step `each` panicked: no way"),
        (At::ForkJoin, "merge", "step `merge` panicked: no way"),
        (At::Enter, "sub", "the state of scope `graph` of step `sub` panicked: no way"),
        (At::Leave, "sub", "step `sub` panicked: no way"),
    ];
    for (at, step, text) in expect {
        for mut world in World::each() {
            let failed = world.engine.run(&graph(at), "r", Notes::default()).await.unwrap();

            let (failed_step, failure) = failed.failed.unwrap();
            assert_eq!((failed.status, failed_step.as_str()), (RunStatus::Failed, step), "{at:?}");
            assert_eq!((failure.kind, failure.error.join(": ").as_str()), (FailureKind::Error, text));
            world.reopen();
            let outcome = world.engine.resume(&graph(At::Nowhere), "r").await.unwrap();
            assert_eq!(outcome.status, RunStatus::Completed, "{at:?}");
        }
    }
}

#[tokio::test]
async fn a_panic_of_retry_when_ends_the_retries() {
    let world = World::memory();

    let failed = world.engine.run(&graph(At::RetryWhen), "r", Notes::default()).await.unwrap();

    let failure = failed.failed.unwrap().1;
    assert_eq!(failure.kind, FailureKind::Fatal);
    assert_eq!(failure.error, ["busy", "the `retry_when` of step `first` panicked: no way"]);
}

#[tokio::test]
async fn a_panic_is_retried_as_an_error() {
    let (world, stage) = (World::memory(), Stage::default());
    let said = stage.clone();
    let step = move |notes: Notes, context: Context| {
        said.say("first");
        assert!(context.attempt() > 2, "no way");
        async move { Ok::<_, StepError>(notes) }
    };
    let retry = Retry::fixed(2, std::time::Duration::ZERO);
    let graph = Graph::builder("panics").step("first", step).retry(retry).build().unwrap();

    let outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!((outcome.status, stage.said().len()), (RunStatus::Completed, 3));
}

/// Makes a run of `a`, `b`, `c` that failed at `b`.
async fn failed_at_b(world: &World, stage: &Stage) -> Graph<Notes> {
    let graph = stage.line();
    stage.fail("b", 1);
    world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    stage.said();
    graph
}

#[tokio::test]
async fn a_panic_of_an_edit_or_a_check_changes_nothing() {
    for at in ["edit", "check", "restart"] {
        let (mut world, stage) = (World::memory(), Stage::default());
        let graph = failed_at_b(&world, &stage).await;
        let before = world.records().await;

        let resume = world.engine.resume(&graph, "r");
        let refused = match at {
            "edit" => resume.edit_state(|notes| panic!("{} notes", notes.done.len())).await,
            "check" => resume.validate_state(|notes| panic!("{} notes", notes.done.len())).await,
            _ => {
                resume
                    .restart(Notes::default().and("x"))
                    .edit_state(|notes| panic!("{} notes", notes.done.len()))
                    .await
            }
        };

        let refused = refused.unwrap_err();
        assert!(matches!(refused, RunError::Rejected { .. }), "{refused}");
        assert!(refused.to_string().ends_with("panicked: 1 notes"), "{refused}");
        assert_eq!((world.records().await, stage.said().len()), (before, 0), "{at}");
        world.reopen();
        assert_eq!(world.engine.resume(&graph, "r").await.unwrap().status, RunStatus::Completed);
    }
}

#[tokio::test]
async fn a_panic_of_an_edit_of_a_scope_changes_nothing() {
    let (mut world, stage) = (World::memory(), Stage::default());
    let graph = stage.fork();
    stage.fail("a2", 1);
    world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    let before = world.records().await;

    let refused = world.engine.resume(&graph, "r").edit_scope("plan:a", |_| panic!("no way")).await;

    let refused = refused.unwrap_err();
    assert!(matches!(refused, RunError::NotEdited { .. }), "{refused}");
    assert!(refused.to_string().ends_with("the edit panicked: no way"), "{refused}");
    assert_eq!(world.records().await, before);
    world.reopen();
    assert_eq!(world.engine.resume(&graph, "r").await.unwrap().status, RunStatus::Completed);
}

#[tokio::test]
async fn a_panic_of_a_settlement_changes_nothing() {
    let (mut world, stage) = (World::memory(), Stage::default());
    let graph = stage.steps(Graph::builder("pay"), &["pay"]).not_idempotent().build().unwrap();
    stage.crash_run(&mut world, &graph, "pay").await;
    let before = world.records().await;

    let panics = |_: &mut Notes, _: &Doubtful| panic!("no way");
    let refused = world.engine.resume(&graph, "r").settle_doubtful(panics).await.unwrap_err();

    assert!(matches!(refused, RunError::NotSettled { .. }), "{refused}");
    assert_eq!(world.records().await, before);
    world.reopen();
    let done = |_: &mut Notes, _: &Doubtful| Ok(TreatAs::Done);
    let outcome = world.engine.resume(&graph, "r").settle_doubtful(done).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
}

/// A state whose own code panics at one value.
#[derive(Debug, Default, Clone, Serialize)]
struct Fragile(u32);

impl<'de> Deserialize<'de> for Fragile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = u32::deserialize(deserializer)?;
        assert!(value != 7, "no seven");
        Ok(Self(value))
    }
}

#[tokio::test]
async fn a_panic_of_the_type_of_the_state_refuses_the_state() {
    let world = World::memory();
    let step = |_: Fragile, _: Context| async { Ok::<_, StepError>(Fragile(7)) };
    let graph = Graph::<Fragile>::builder("fragile").step("first", step).build().unwrap();

    let refused = world.engine.run(&graph, "r", Fragile::default()).await.unwrap_err();

    assert!(matches!(refused, RunError::Serialize { .. }), "{refused}");
    let source = std::error::Error::source(&refused).unwrap().to_string();
    assert!(source.contains("panicked: no seven"), "{source}");
}
