//! Forks with open scopes: their finished work is copied.

use std::sync::Arc;

use waypost::engine::{Outcome, RunError};
use waypost::graph::{Branches, ItemEnds};
use waypost::memory::{MemoryStore, Part};
use waypost::record::{Claim, Pack, RunStatus};
use waypost::store::{Store as _, StoreExt as _};
use waypost::{CheckpointRef, Context, Engine, Graph, Portable, ScopePath, StepError};

use crate::faulty::{Fault, World, run_id};
use crate::test_graphs::{Notes, Stage};

const WHOLE: [&str; 4] = ["plan", "a=a+a2", "b=b", "after"];

/// Returns the newest checkpoint of the main scope.
async fn newest(world: &World) -> CheckpointRef {
    world.store.newest(&run_id(), &ScopePath::main()).await.unwrap().header().reference()
}

/// Returns ten times each of eight items, two in parallel; the item `n3` fails as often as configured in the
/// stage.
fn items(stage: &Stage) -> Graph<Notes> {
    let (work, join) = (stage.clone(), stage.clone());
    let each = Graph::builder("items").each(
        "it",
        |_: &Notes| (1..=8).collect(),
        |n: &u32| format!("n{n}"),
        move |n: u32, _: Context| {
            let stage = work.clone();
            async move { stage.pass(&format!("n{n}")).await.map(|()| n * 10) }
        },
    );
    each.collect()
        .max_parallel(2)
        .join(move |mut state: Notes, mut ends: ItemEnds<u32, u32>, _| {
            let stage = join.clone();
            async move {
                stage.pass("join").await?;
                while let Some(end) = ends.next().await? {
                    let told = end.result.map_or_else(|failure| failure.error[0].clone(), |n| n.to_string());
                    state.done.push(told);
                }
                Ok::<_, StepError>(state)
            }
        })
        .build()
        .unwrap()
}

// Bug: a fork with an open fan-out restarted all scopes, and repeated their finished work. Fix: each scope is
// copied with its position; the fork has its own copies, and a second crash costs no more than in any run.
#[tokio::test]
async fn a_fork_during_a_fan_out_runs_only_unfinished_scopes() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.fork();
        let run = async |world: &World| world.engine.run(&graph, "r", Notes::default()).await;
        stage.crash(&mut world, "a2", run).await;
        assert_eq!(stage.said_sorted(), ["a", "a2", "b", "plan"]);
        let from = newest(&world).await;

        let fork = async |world: &World| world.engine.fork(&graph, &from, "r2").into_future().await;
        stage.crash(&mut world, "a2", fork).await;
        world.store.delete(&run_id()).await.unwrap();
        let resume = async |world: &World| world.engine.resume(&graph, "r2").into_future().await;
        stage.crash(&mut world, "merge", resume).await;
        let outcome = world.engine.resume(&graph, "r2").await.unwrap();

        assert_eq!(
            (outcome.status, &outcome.state.done[..]),
            (RunStatus::Completed, &WHOLE.map(String::from)[..])
        );
        assert_eq!(stage.said(), ["a2", "a2", "merge", "merge", "after"]);
        assert!(world.engine.resume(&graph, "r2").await.unwrap().idle);
    }
}

// Items are copied together with unstarted items; failures are counted once, even if the join is about to run.
#[tokio::test]
async fn a_fork_amid_its_items_works_on_the_others_only() {
    for (at, rest) in [("n5", &["n5", "n6", "n7", "n8", "join"][..]), ("join", &["join"])] {
        for mut world in World::each() {
            let stage = Stage::default();
            let graph = items(&stage);
            stage.fail("n3", 1);
            let run = async |world: &World| world.engine.run(&graph, "r", Notes::default()).await;
            stage.crash(&mut world, at, run).await;
            let before = stage.said();
            let from = newest(&world).await;

            let fork = async |world: &World| world.engine.fork(&graph, &from, "r2").into_future().await;
            stage.crash(&mut world, at, fork).await;
            world.store.delete(&run_id()).await.unwrap();
            let outcome = world.engine.resume(&graph, "r2").await.unwrap();

            let told = ["10", "20", "n3 is broken", "40", "50", "60", "70", "80"];
            assert_eq!(outcome.state.done, told, "{before:?}");
            assert_eq!(outcome.status, RunStatus::CompletedWithFailures);
            let mut said = stage.said();
            // The hanging item was logged twice, and items in parallel may have finished by then.
            said.sort();
            said.dedup();
            let mut expect: Vec<String> = rest.iter().map(ToString::to_string).collect();
            expect.retain(|name| name == at || !before.contains(name));
            expect.sort();
            assert_eq!(said, expect, "{before:?}");
            let end = world.store.newest(&outcome.run, &ScopePath::main()).await.unwrap();
            assert_eq!(end.position().unwrap().failed_children(), 1);
        }
    }
}

// The same from a file, on another machine.
#[tokio::test]
async fn an_import_during_a_fan_out_runs_only_unfinished_scopes() {
    for graph in [Stage::fork as fn(&Stage) -> Graph<Notes>, items] {
        for mut world in World::each() {
            let stage = Stage::default();
            let graph = graph(&stage);
            let at = if graph.name() == "fork" { "a2" } else { "n5" };
            let run = async |world: &World| world.engine.run(&graph, "r", Notes::default()).await;
            stage.crash(&mut world, at, run).await;
            let before = stage.said();
            let exported = Portable::of(world.store.as_ref(), &newest(&world).await).await.unwrap();
            let carried = Portable::from_text(&exported.to_text()).unwrap();

            let elsewhere = Engine::new(Arc::new(MemoryStore::new()));
            let outcome = elsewhere.import(&graph, &carried, "r2").await.unwrap();

            assert_eq!(outcome.status, RunStatus::Completed);
            let again: Vec<_> = stage.said().into_iter().filter(|said| before.contains(said)).collect();
            let cut: Vec<_> = before.iter().filter(|said| again.contains(said)).collect();
            assert!(again.contains(&at.to_owned()) && cut.len() <= 2, "only what was cut: {again:?}");
            if at == "a2" {
                assert_eq!(outcome.state.done, WHOLE);
            } else {
                assert_eq!(outcome.state.done, (1..=8).map(|n| (n * 10).to_string()).collect::<Vec<_>>());
            }
        }
    }
}

/// A fork in a scope of a fork: `a` opens `x` (then `x2`) and `y`; `am` joins these.
fn nested(stage: &Stage) -> Graph<Notes> {
    let builder = stage.steps(Graph::builder("nested"), &["plan", "a", "x", "x2", "y", "b"]).edge("x", "x2");
    let builder = builder.fork("a", ["x", "y"]).join("am", stage.merge());
    builder.fork("plan", ["a", "b"]).join("merge", stage.merge()).build().unwrap()
}

#[tokio::test]
async fn scopes_of_scopes_come_along() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = nested(&stage);
        let run = async |world: &World| world.engine.run(&graph, "r", Notes::default()).await;
        stage.crash(&mut world, "x2", run).await;
        assert_eq!(stage.said_sorted(), ["a", "b", "plan", "x", "x2", "y"]);
        let from = newest(&world).await;

        let fork = async |world: &World| world.engine.fork(&graph, &from, "r2").into_future().await;
        stage.crash(&mut world, "x2", fork).await;
        let outcome = world.engine.resume(&graph, "r2").await.unwrap();

        assert_eq!(outcome.state.done, ["plan", "a=a+x=x+x2+y=y", "b=b"]);
        assert_eq!(stage.said(), ["x2", "x2", "am", "merge"]);
    }
}

// As for a rollback: with an edited state the scopes restart, and scopes joined later had not been joined
// then.
#[tokio::test]
async fn scopes_are_opened_anew_where_they_would_be_by_going_back() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.fork();
        let run = async |world: &World| world.engine.run(&graph, "r", Notes::default()).await;
        stage.crash(&mut world, "a2", run).await;
        let from = newest(&world).await;
        stage.said();

        let fork = world.engine.fork(&graph, &from, "r2");
        let other = fork.edit_state(|state| state.done.push("edited".to_owned())).await.unwrap();
        assert_eq!(other.state.done, ["plan", "edited", "a=a+a2", "b=b", "after"]);
        assert_eq!(stage.said_sorted(), ["a", "a2", "after", "b", "merge"]);

        world.engine.resume(&graph, "r").await.unwrap();
        stage.said();
        let older = world.engine.fork(&graph, &from, "r3").await.unwrap();
        assert_eq!((older.state.done, stage.said().len()), (WHOLE.map(String::from).to_vec(), 5));
    }
}

// A damaged scope is copied at its newest sound record; without a sound record, it restarts.
#[tokio::test]
async fn a_damaged_scope_comes_along_as_far_as_it_is_sound() {
    for (seqs, again) in [(&[3][..], &["a2"][..]), (&[1, 2, 3], &["a", "a2"])] {
        let mut world = World::memory();
        let stage = Stage::default();
        let graph = stage.fork();
        let run = async |world: &World| world.engine.run(&graph, "r", Notes::default()).await;
        stage.crash(&mut world, "merge", run).await;
        stage.said();
        let from = newest(&world).await;
        for seq in seqs {
            world.below().damage(&run_id(), &"plan:a".parse().unwrap(), *seq, Part::Body);
        }

        let outcome = world.engine.fork(&graph, &from, "r2").await.unwrap();

        assert_eq!(outcome.state.done, WHOLE);
        let expect: Vec<&str> = again.iter().copied().chain(["merge", "after"]).collect();
        assert_eq!(stage.said(), expect, "{seqs:?}");
    }
}

// The items are copied right after the new run is created. After a crash in between, the next resume reports the
// loss: nothing reruns unasked, and the parent run is unchanged.
#[tokio::test]
async fn a_fork_that_died_before_it_had_its_items_says_so() {
    let mut world = World::memory();
    let stage = Stage::default();
    let graph = items(&stage);
    let run = async |world: &World| world.engine.run(&graph, "r", Notes::default()).await;
    stage.crash(&mut world, "n5", run).await;
    stage.said();
    let from = newest(&world).await;

    world.store.plan_where(|call| matches!(call, waypost_testing::faulty::Call::Create(_)), Fault::DieAfter);
    let died = world.until_death(world.engine.fork(&graph, &from, "r2").into_future()).await;
    assert!(died.is_none());
    world.reopen();
    let refused = world.engine.resume(&graph, "r2").await.unwrap_err();

    assert!(refused.to_string().contains("delete the run, and fork or import again"), "{refused}");
    assert!(stage.said().is_empty());
    world.store.delete(&waypost::RunId::new("r2").unwrap()).await.unwrap();
    let outcome: Outcome<Notes> = world.engine.fork(&graph, &from, "r2").await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
    assert!(!stage.said().contains(&"n1".to_owned()));
}

// The evidence of copied scopes is checked, like all evidence at the checkpoint.
#[tokio::test]
async fn evidence_of_what_scopes_have_finished_is_checked_too() {
    let folder = tempfile::tempdir().unwrap();
    let (stage, path) = (Stage::default(), folder.path().join("b.txt"));
    let engine = Engine::new(Arc::new(MemoryStore::new())).with_base(folder.path());
    let (work, file) = (stage.clone(), path.clone());
    let graph = stage
        .steps(Graph::<Notes>::builder("fork"), &["plan", "a"])
        .step("b", move |state: Notes, _: Context| {
            work.say("b");
            std::fs::write(&file, "of b").unwrap();
            async move { Ok::<_, StepError>(state.and("b")) }
        })
        .evidence(|_| Pack::all([Claim::unchanged("b.txt")]))
        .fork("plan", ["a", "b"])
        .join("merge", |state: Notes, ends: Branches<Notes>, _: Context| async move {
            Ok::<_, StepError>(state.and(ends.iter().map(|end| end.key.clone()).collect::<String>()))
        })
        .build()
        .unwrap();
    let held = engine.run(&graph, "r", Notes::default()).interrupt_before(["a"]).await.unwrap();
    assert_eq!(held.status, RunStatus::Interrupted);
    let from = engine.store().newest(&run_id(), &ScopePath::main()).await.unwrap().header().reference();
    std::fs::remove_file(&path).unwrap();
    stage.said();

    let refused = engine.fork(&graph, &from, "r2").await.unwrap_err();
    let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
    assert_eq!((questions.len(), questions[0].scope.as_str()), (1, "plan:b"), "{refused}");
    let left = engine.fork(&graph, &from, "r3").without_evidence().await.unwrap();
    assert_eq!((left.status, stage.said()), (RunStatus::Completed, vec!["a".to_owned()]));
    assert!(engine.resume(&graph, "r3").await.unwrap().idle);

    // Evidence that holds is copied; the new run reruns steps that break later.
    std::fs::write(&path, "of b").unwrap();
    engine.fork(&graph, &from, "r4").await.unwrap();
    stage.said();
    std::fs::remove_file(&path).unwrap();
    let again = engine.resume(&graph, "r4").await;
    assert!(again.is_err() || !again.unwrap().idle, "it is looked at there");
}
