//! Manual edits of scope states.

use std::time::Duration;

use waypost::engine::RunError;
use waypost::graph::{Child, ItemEnds};
use waypost::record::{Phase, Reason, RunStatus};
use waypost::store::{Scan, Store as _, StoreExt as _};
use waypost::{Context, Graph, StepError};

use crate::faulty::{World, run_id};
use crate::test_graphs::{Notes, Stage};

fn edited(state: &mut Notes) {
    state.done.push("edited".to_owned());
}

/// Returns the number of pure edit records in a scope.
async fn changes(world: &World, scope: &str) -> usize {
    let scan = Scan { scope: Some(scope.parse().unwrap()), ..Scan::of(&run_id()) };
    let records = world.store.scan(&scan).await.unwrap().records;
    let by_hand = |reason: Reason, phase: &Phase| reason == Reason::Manual && *phase == Phase::Restored;
    records.iter().filter(|record| by_hand(record.header().reason, &record.header().phase)).count()
}

// Bug: only the state of the main scope could be edited. To fix the state of a failed scope, a person had to
// roll back to before the fork, and finished work of other scopes was repeated. Fix: a scope is edited at its
// position.
#[tokio::test]
async fn a_failed_scope_resumes_with_an_edited_state() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.fork();
        stage.fail("a2", 1);
        let failed = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        assert_eq!(failed.status, RunStatus::Failed);
        stage.said();

        let edit = async |world: &World| {
            world.engine.resume(&graph, "r").edit_scope("plan:a", edited).into_future().await
        };
        stage.crash(&mut world, "a2", edit).await;
        assert_eq!(changes(&world, "plan:a").await, 1);
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, ["plan", "a=a+edited+a2", "b=b", "after"]);
        assert_eq!(stage.said_sorted(), ["a2", "a2", "after", "merge"], "nothing finished is done again");
        assert_eq!((changes(&world, "plan:a").await, changes(&world, "plan:b").await), (1, 0));
    }
}

#[tokio::test]
async fn a_scope_that_waits_for_an_answer_is_changed_and_waits_on() {
    for mut world in World::each() {
        let stage = Stage::default();
        let builder = stage.steps(Graph::builder("ask"), &["plan", "b"]).step("a", stage.ask());
        let graph = builder.fork("plan", ["a", "b"]).join("merge", stage.merge()).build().unwrap();
        let waits = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        assert_eq!(waits.status, RunStatus::Waiting);
        let id = waits.waiting[0].wait.id.clone();
        stage.said();

        let set =
            world.engine.resume(&graph, "r").edit_scope("plan:a", edited).without_running().await.unwrap();
        assert_eq!((set.status, set.waiting.len()), (RunStatus::Interrupted, 1));
        world.reopen();
        let still = world.engine.resume(&graph, "r").edit_scope("plan:a", edited).await.unwrap();
        assert_eq!((still.status, &still.waiting[0].wait.id), (RunStatus::Waiting, &id));
        assert!(stage.said().is_empty(), "the question is asked once");
        world.engine.answer("r", &id, "yes").await.unwrap();
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, ["plan", "a=edited+edited+a:yes", "b=b"]);
        assert_eq!(stage.said(), ["a", "merge"]);
        assert_eq!(changes(&world, "plan:a").await, 2);
    }
}

// An ended scope can be edited until its join has run, even if the join was interrupted. A crash after the edit
// does not repeat the edit.
#[tokio::test]
async fn the_join_sees_what_was_changed_on_a_scope_that_had_ended() {
    for at in ["a2", "merge"] {
        for stays in [false, true] {
            for mut world in World::each() {
                let stage = Stage::default();
                let graph = stage.fork();
                let run = async |world: &World| world.engine.run(&graph, "r", Notes::default()).await;
                stage.crash(&mut world, at, run).await;
                stage.said();

                if stays {
                    let resume = world.engine.resume(&graph, "r").edit_scope("plan:b", edited);
                    resume.without_running().await.unwrap();
                    world.reopen();
                } else {
                    let edit = async |world: &World| {
                        world.engine.resume(&graph, "r").edit_scope("plan:b", edited).into_future().await
                    };
                    stage.crash(&mut world, "merge", edit).await;
                }
                let outcome = world.engine.resume(&graph, "r").await.unwrap();

                assert_eq!(outcome.state.done, ["plan", "a=a+a2", "b=b+edited", "after"], "{at} {stays}");
                assert_eq!(outcome.status, RunStatus::Completed);
                assert!(!stage.said().contains(&"b".to_owned()), "nothing finished is done again");
                assert_eq!(changes(&world, "plan:b").await, 1);
            }
        }
    }
}

#[tokio::test]
async fn a_scope_that_has_not_begun_begins_with_what_was_changed() {
    for mut world in World::each() {
        let stage = Stage::default();
        let builder = stage.steps(Graph::builder("narrow"), &["plan", "a", "b"]);
        let fork = builder.fork("plan", ["a", "b"]).max_parallel(1);
        let graph = fork.join("merge", stage.merge()).build().unwrap();
        let run = async |world: &World| world.engine.run(&graph, "r", Notes::default()).await;
        stage.crash(&mut world, "a", run).await;
        stage.said();

        let outcome = world.engine.resume(&graph, "r").edit_scope("plan:b", edited).await.unwrap();

        assert_eq!(outcome.state.done, ["plan", "a=a", "b=edited+b"]);
        assert_eq!(stage.said(), ["b", "a", "merge"]);
    }
}

/// Returns ten times each of three items; items equal to 13 fail, and the others continue.
fn items(stage: &Stage) -> Graph<Notes> {
    let (work, join) = (stage.clone(), stage.clone());
    let each = Graph::builder("items").each(
        "it",
        |_: &Notes| [("x", 13), ("y", 2), ("z", 13)].map(|(key, n)| (key.to_owned(), n)).to_vec(),
        |(key, _): &(String, u32)| key.clone(),
        move |(key, n): (String, u32), _: Context| {
            let stage = work.clone();
            async move {
                stage.pass(&key).await?;
                if n == 13 { Err(StepError::fatal("13")) } else { Ok(n * 10) }
            }
        },
    );
    each.collect()
        .join(move |mut state: Notes, mut ends: ItemEnds<(String, u32), u32>, _| {
            let stage = join.clone();
            async move {
                stage.pass("join").await?;
                while let Some(end) = ends.next().await? {
                    let told = end.result.map_or_else(|failure| failure.error[0].clone(), |n| n.to_string());
                    state.done.push(format!("{}={told}", end.key));
                }
                Ok::<_, StepError>(state)
            }
        })
        .build()
        .unwrap()
}

// A failed item, about to be joined, runs again with its edit; failures are counted once.
#[tokio::test]
async fn an_item_that_failed_for_good_is_mended_before_it_is_joined() {
    type Item = Child<(String, u32), u32>;
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = items(&stage);
        let run = async |world: &World| world.engine.run(&graph, "r", Notes::default()).await;
        stage.crash(&mut world, "join", run).await;
        stage.said();

        let mend = async |world: &World| {
            let resume = world.engine.resume(&graph, "r");
            resume.edit_scope_as("it:z", |item: &mut Item| item.item.1 = 3).into_future().await
        };
        stage.crash(&mut world, "join", mend).await;
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, ["x=13", "y=20", "z=30"]);
        assert_eq!(outcome.status, RunStatus::CompletedWithFailures);
        assert_eq!(stage.said(), ["z", "join", "join"]);
        let newest = world.store.newest(&run_id(), &waypost::ScopePath::main()).await.unwrap();
        assert_eq!(newest.position().unwrap().failed_children(), 1);
    }
}

// Also after the join, on request: the join runs again, and finished siblings do not.
#[tokio::test]
async fn an_item_that_failed_for_good_is_mended_after_it_was_joined() {
    type Item = Child<(String, u32), u32>;
    for world in World::each() {
        let stage = Stage::default();
        let graph = items(&stage);
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        stage.said();

        let resume = world.engine.resume(&graph, "r").from_scopes();
        let outcome = resume.edit_scope_as("it:z", |item: &mut Item| item.item.1 = 3).await.unwrap();

        assert_eq!(outcome.state.done, ["x=13", "y=20", "z=30"]);
        assert_eq!(outcome.status, RunStatus::CompletedWithFailures);
        assert_eq!(stage.said(), ["z", "join"]);
        let newest = world.store.newest(&run_id(), &waypost::ScopePath::main()).await.unwrap();
        assert_eq!(newest.position().unwrap().failed_children(), 1);
    }
}

// An edit without a reader is refused, and nothing runs.
#[tokio::test]
async fn a_scope_that_no_step_waits_for_is_not_changed() {
    for world in World::each() {
        let stage = Stage::default();
        let graph = stage.fork();
        let refused = async |scope: &str| {
            let (before, _) = (world.records().await, stage.said());
            let resume = world.engine.resume(&graph, "r").edit_scope(scope, edited).into_future();
            let error = tokio::time::timeout(Duration::from_secs(60), resume).await.unwrap().unwrap_err();
            assert_eq!((world.records().await, stage.said()), (before, Vec::new()), "{error}");
            match error {
                RunError::NotEdited { why, .. } => why,
                error => panic!("{error}"),
            }
        };
        let held = world.engine.run(&graph, "r", Notes::default()).interrupt_before(["merge", "after"]).await;
        assert_eq!(held.unwrap().status, RunStatus::Interrupted);
        assert_eq!(refused("plan:c").await, "the run has no such scope");
        assert_eq!(refused("main").await, "the main scope has an edit of its own");
        let error = world.engine.resume(&graph, "r").edit_scope_as("plan:a", |n: &mut u32| *n += 1).await;
        let RunError::NotEdited { why, .. } = error.unwrap_err() else { panic!("it has another type") };
        assert_eq!(why, "the state is not a `u32`");
        let error = world.engine.resume(&graph, "r").edit_scope("no scope!", edited).await.unwrap_err();
        assert!(matches!(error, RunError::InvalidName(_)), "{error}");
        let restart = world.engine.resume(&graph, "r").restart(Notes::default());
        let error = restart.edit_scope("plan:a", edited).await.unwrap_err();
        assert!(matches!(error, RunError::NotEdited { .. }), "{error}");

        // Joined, and later abandoned by a rollback, even in a completed run.
        let joined = "no step waits for the scope: it is joined or abandoned";
        world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!(refused("plan:a").await, joined);
        world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!(refused("plan:a").await, joined);
        world.engine.resume(&graph, "r").from_checkpoint(1).without_running().await.unwrap();
        assert_eq!(refused("plan:a").await, joined);
    }
}

/// `plan` opens `a` and `b`; `merge` joins these in any case. `a` opens `x` and `y`; `am` joins these before
/// `a2`.
fn nested(stage: &Stage, collects: bool) -> Graph<Notes> {
    let builder = stage.steps(Graph::builder("nested"), &["plan", "a", "x", "y", "a2", "b"]);
    let fork = builder.fork("a", ["x", "y"]);
    let fork = if collects { fork.collect() } else { fork };
    let builder = fork.join("am", stage.merge()).edge("am", "a2");
    builder.fork("plan", ["a", "b"]).collect().join("merge", stage.merge()).build().unwrap()
}

// Bug: in a collecting fork, an edit of a scope that ended with its failed join was refused, with a wrong
// reason: failed children. Cause: every scope that ended with open children was refused. Fix: refused only if
// the children cannot be joined.
#[tokio::test]
async fn a_scope_goes_on_with_the_join_that_failed_on_it() {
    for collects in [false, true] {
        for mut world in World::each() {
            let stage = Stage::default();
            let graph = nested(&stage, collects);
            stage.fail("am", 1);
            let held = world.engine.run(&graph, "r", Notes::default()).interrupt_before(["merge"]).await;
            assert_eq!(held.unwrap().status, RunStatus::Interrupted);
            assert_eq!(stage.said_sorted(), ["a", "am", "b", "plan", "x", "y"]);

            let edit = async |world: &World| {
                world.engine.resume(&graph, "r").edit_scope("plan:a", edited).into_future().await
            };
            stage.crash(&mut world, "am", edit).await;
            let outcome = world.engine.resume(&graph, "r").await.unwrap();

            // The join notes the steps of each scope after the fork.
            assert_eq!(outcome.state.done, ["plan", "a=a+edited+x=+y=+a2", "b=b"]);
            assert_eq!(
                (outcome.status, stage.said()),
                (RunStatus::Completed, ["am", "am", "a2", "merge"].map(String::from).to_vec())
            );
        }
    }
}

// Bug: an edit of a failed scope with a failed opener was refused as already joined, although the join had never
// run. Cause: only scopes of a running opener were searched. Fix: the ancestors that ended with the scope
// resume too, and so do its cancelled siblings; all of this is recorded at once.
#[tokio::test]
async fn a_scope_that_ended_with_its_opener_resumes_after_an_edit() {
    for at in ["x", "y", "am"] {
        for mut world in World::each() {
            let stage = Stage::default();
            let graph = nested(&stage, false);
            stage.fail("x", 1);
            let held = world.engine.run(&graph, "r", Notes::default()).interrupt_before(["merge"]).await;
            assert_eq!(held.unwrap().status, RunStatus::Interrupted);
            let before = stage.said_sorted();
            assert!(!before.contains(&"am".to_owned()), "{before:?}");
            let refused = world.engine.resume(&graph, "r").edit_scope("plan:a", edited).await.unwrap_err();
            let RunError::NotEdited { why, .. } = &refused else { panic!("{refused}") };
            assert!(why.starts_with("the scope ended with its children"), "{why}");
            assert!(stage.said().is_empty());
            if at == "y" && before.contains(&at.to_owned()) {
                continue;
            }

            let edit = async |world: &World| {
                world.engine.resume(&graph, "r").edit_scope("plan:a/a:x", edited).into_future().await
            };
            stage.crash(&mut world, at, edit).await;
            let outcome = world.engine.resume(&graph, "r").await.unwrap();

            assert_eq!(outcome.state.done, ["plan", "a=a+x=edited+x+y=y+a2", "b=b"], "{at}");
            assert_eq!(outcome.status, RunStatus::Completed);
            assert!(!stage.said().contains(&"b".to_owned()), "nothing finished is done again");
            assert_eq!(changes(&world, "plan:a/a:x").await, 1);
        }
    }
}
