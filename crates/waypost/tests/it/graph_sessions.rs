//! Sessions of a graph: interrupts, isolated scopes, failed saves, and configuration at a resume. Portable files of a
//! graph are in [`portable_files`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use waypost::engine::RunError;
use waypost::graph::{Branches, ItemEnds};
use waypost::record::{End, RunStatus};
use waypost::store::{RunQuery, Scan, Store as _};
use waypost::{Context, END, Graph, RunId, StepError};
use waypost_testing::TestClock;

use crate::faulty::{Fault, World, run_id};
use crate::test_graphs::{Notes, Stage};

mod portable_files;

const WHOLE: [&str; 4] = ["plan", "a=a+a2", "b=b", "after"];

// Trap: 50 saves within one second have 2 names, and the later ones overwrite the earlier.
#[tokio::test]
async fn fifty_saves_in_one_instant_are_fifty_records() {
    let stage = Stage::default();
    let graph = stage
        .steps(Graph::builder("fifty"), &["a"])
        .route("a", ["a", END], |state| if state.done.len() < 50 { "a" } else { END })
        .build()
        .unwrap();
    for world in World::each() {
        // The clock does not advance.
        let engine = world.engine.clone().with_clock(Arc::new(TestClock::default()));

        engine.run(&graph, "r", Notes::default()).await.unwrap();

        let found = world.store.scan(&Scan::of(&run_id())).await.unwrap().records;
        let completed: Vec<_> =
            found.iter().filter(|record| record.header().phase.name() == "completed").collect();
        let names: BTreeSet<_> =
            completed.iter().map(|record| record.header().reference().to_string()).collect();
        let digests: BTreeSet<_> = completed.iter().map(|record| record.digest().to_string()).collect();
        assert_eq!((completed.len(), names.len(), digests.len()), (50, 50, 50));
        for (passes, record) in completed.iter().enumerate() {
            let at = record.header().reference();
            assert_eq!(world.engine.inspect(&graph, &at).await.unwrap().state.done.len(), passes + 1);
        }
    }
}

// Trap: a checkpoint has no run id, so that runs in one place mix.
#[tokio::test]
async fn two_runs_in_one_store_never_mix() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.fork();
        for (run, at) in [("r", "a2"), ("r2", "b")] {
            let begin = Notes::default().and(run);
            stage
                .crash(&mut world, at, async |world| {
                    world.engine.run(&graph, run, begin.clone()).into_future().await
                })
                .await;
            stage.said();
        }

        let other = world.engine.resume(&graph, "r2").await.unwrap();
        let of_other = stage.said_sorted();
        let one = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(one.state.done, [&["r"], &WHOLE[..]].concat());
        assert_eq!(other.state.done, [&["r2"], &WHOLE[..]].concat());
        assert_eq!((of_other, stage.said()), (words("after b merge"), words("a2 merge after")));
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

// Trap: after a hold before a step in both lists, the resume skipped the step.
#[tokio::test]
async fn a_step_in_both_interrupt_lists_runs_exactly_once() {
    for name in ["plan", "a", "a2", "b", "merge", "after"] {
        for mut world in World::each() {
            let stage = Stage::default();
            let graph = stage.fork();
            let run = world.engine.run(&graph, "r", Notes::default());

            let mut outcome = run.interrupt_before([name]).interrupt_after([name]).await.unwrap();
            let mut holds = 0;
            while outcome.status == RunStatus::Interrupted {
                holds += 1;
                assert!(holds <= 2, "{name} is held for ever");
                world.reopen();
                outcome = world.engine.resume(&graph, "r").await.unwrap();
            }

            assert_eq!((holds, outcome.state.done.as_slice()), (2, &WHOLE.map(str::to_owned)[..]), "{name}");
            assert_eq!(stage.said_sorted(), words("a a2 after b merge plan"), "{name}");
        }
    }
}

// Trap: a resume of a run held before a step is held there again, forever; also after a crash on the way.
#[tokio::test]
async fn a_resumed_hold_does_not_hold_again_after_any_crash() {
    // A resume with a changed state records the change before the start of a non-idempotent step.
    for (repeats, edited) in [(true, false), (false, false), (true, true), (false, true)] {
        for nth in 1.. {
            let mut deaths = 0;
            for fault in [Fault::DieBefore, Fault::DieAfter] {
                let mut world = World::memory();
                let stage = Stage::default();
                let builder = stage.steps(Graph::builder("held"), &["a", "b"]);
                let builder = if repeats { builder } else { builder.not_idempotent() };
                let graph = builder.edge("a", "b").build().unwrap();
                let run = world.engine.run(&graph, "r", Notes::default()).interrupt_before(["b"]);
                assert_eq!(run.await.unwrap().status, RunStatus::Interrupted);

                world.store.plan(nth, 1, fault);
                let resume = world.engine.resume(&graph, "r");
                let resume = match edited {
                    true => resume.edit_state(|notes: &mut Notes| notes.done.push("by hand".to_owned())),
                    false => resume,
                };
                let end = world.until_death(resume.into_future()).await;
                deaths += u32::from(end.is_none());
                world.reopen();
                let is_edited = edited && (end.is_some() || nth > 1 || fault == Fault::DieAfter);
                let outcome = match end {
                    Some(outcome) => outcome.unwrap(),
                    None => match world.engine.resume(&graph, "r").await {
                        Err(RunError::InDoubt { .. }) => continue,
                        outcome => outcome.unwrap(),
                    },
                };

                let at = format!("write {nth}, {fault:?}, {repeats}, {edited}");
                assert_eq!(outcome.status, RunStatus::Completed, "{at}");
                let expect: &[&str] = if is_edited { &["a", "by hand", "b"] } else { &["a", "b"] };
                assert_eq!(outcome.state.done, expect, "{at}");
            }
            if deaths == 0 {
                assert!(nth > 2, "it died {nth} times");
                break;
            }
        }
    }
}

// Trap: saves only at interrupts, so that a crash or a failed step leaves no checkpoint.
#[tokio::test]
async fn a_crash_or_failure_without_interrupt_keeps_a_checkpoint() {
    for fails in [false, true] {
        for mut world in World::each() {
            let stage = Stage::default();
            let graph = stage.line();
            if fails {
                stage.fail("c", 1);
                let outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
                assert_eq!(outcome.status, RunStatus::Failed);
                world.reopen();
            } else {
                let run =
                    async |world: &World| world.engine.run(&graph, "r", Notes::default()).into_future().await;
                stage.crash(&mut world, "c", run).await;
            }
            stage.said();

            let outcome = world.engine.resume(&graph, "r").await.unwrap();

            assert_eq!((stage.said(), outcome.state.done), (words("c"), words("a b c")));
        }
    }
}

/// A deeply nested state.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct Deep {
    tree: BTreeMap<String, Vec<BTreeMap<String, u32>>>,
}

impl Deep {
    /// Counts at a place shared by all scopes.
    fn count(mut self) -> Self {
        let place = self.tree.entry("leaf".to_owned()).or_insert_with(|| vec![BTreeMap::new()]);
        *place[0].entry("count".to_owned()).or_default() += 1;
        self
    }

    fn counted(&self) -> u32 {
        self.tree["leaf"][0]["count"]
    }
}

// Trap: shallow copies, so that scopes change the state of their siblings and of the previous step.
#[tokio::test]
async fn scopes_share_no_nested_data_with_each_other_or_the_join() {
    for crashes in [false, true] {
        for mut world in World::each() {
            let stage = Stage::default();
            let counts = || {
                let stage = stage.clone();
                move |state: Deep, context: Context| {
                    let stage = stage.clone();
                    async move {
                        stage.pass(context.step().as_str()).await?;
                        // The siblings count in between.
                        let state = state.count();
                        tokio::task::yield_now().await;
                        Ok::<_, StepError>(state.count())
                    }
                }
            };
            let builder = Graph::builder("deep").step("plan", counts()).step("a", counts());
            let fork = builder.step("b", counts()).step("c", counts()).fork("plan", ["a", "b", "c"]);
            let join = |state: Deep, branches: Branches<Deep>, _: Context| async move {
                assert_eq!(state.counted(), 2, "the state before the fork");
                for branch in branches {
                    assert_eq!(branch.result.unwrap().counted(), 4, "scope {}", branch.key);
                }
                Ok::<_, StepError>(state.count())
            };
            let graph = fork.join("merge", join).build().unwrap();

            if crashes {
                let run =
                    async |world: &World| world.engine.run(&graph, "r", Deep::default()).into_future().await;
                stage.crash(&mut world, "c", run).await;
            }
            let outcome = world.engine.run(&graph, "r", Deep::default()).or_resume().await.unwrap();

            assert_eq!((outcome.status, outcome.state.counted()), (RunStatus::Completed, 3));
        }
    }
}

// A failed step leaves no changes of its copy of the state.
#[tokio::test]
async fn a_failed_attempt_leaves_the_state_as_it_was() {
    let world = World::memory();
    let graph = Graph::builder("half")
        .step("a", |state: Deep, context: Context| async move {
            let state = state.count();
            if context.attempt() < 3 {
                Err(StepError::from(std::io::Error::other("half-way")))
            } else {
                Ok(state)
            }
        })
        .retry(waypost::Retry::fixed(2, Duration::ZERO))
        .build()
        .unwrap();

    let outcome = world.engine.run(&graph, "r", Deep::default()).await.unwrap();

    assert_eq!(outcome.state.counted(), 1);
}

// Trap: an error of the save is swallowed.
#[tokio::test]
async fn a_failed_save_is_an_error_or_a_mark_if_that_is_tolerated() {
    for tolerate in [false, true] {
        for nth in 2.. {
            let mut world = World::memory();
            let stage = Stage::default();
            let graph = stage.fork();
            world.store.plan(nth, 1, Fault::Refuse);
            let run = world.engine.run(&graph, "r", Notes::default());
            let run = if tolerate { run.tolerate_lost_checkpoints() } else { run };

            let end = run.await;

            let is_last = matches!(&end, Ok(outcome) if outcome.lost == 0);
            if is_last {
                assert!(nth > 5 && world.store.writes() < nth, "write {nth} was refused without a word");
                break;
            }
            match end {
                Err(RunError::Checkpoint { .. }) => {
                    world.reopen();
                    let resumed = world.engine.resume(&graph, "r").await.unwrap();
                    assert_eq!(resumed.state.done, WHOLE, "write {nth}");
                }
                Err(error) => panic!("{error}"),
                Ok(outcome) => {
                    assert!(tolerate, "write {nth} was lost without leave");
                    assert_eq!(
                        (outcome.lost, outcome.state.done.as_slice()),
                        (1, &WHOLE.map(str::to_owned)[..])
                    );
                    let listed = world.store.runs(&RunQuery::default()).await.unwrap();
                    assert_eq!(listed.runs[0].summary.lost, 1, "the run is marked");
                }
            }
        }
    }
}

// Bug: a start that shared a lost checkpoint with the start of a non-idempotent step was recorded twice.
#[tokio::test]
async fn what_started_with_a_lost_checkpoint_is_recorded_once() {
    let world = World::memory();
    let stage = Stage::default();
    let builder = stage.steps(Graph::builder("fork"), &["plan", "a", "b"]).not_idempotent();
    let graph = builder.fork("plan", ["b", "a"]).join("merge", stage.merge()).build().unwrap();
    // The checkpoint that opens the scopes and starts `a`.
    world.store.plan(2, 1, Fault::Refuse);

    let outcome = world.engine.run(&graph, "r", Notes::default()).tolerate_lost_checkpoints().await.unwrap();

    assert_eq!((outcome.status, outcome.lost), (RunStatus::Completed, 1));
    let found = world.store.scan(&Scan::of(&run_id())).await.unwrap().records;
    let starts = found.iter().flat_map(|record| &record.header().started).map(|start| start.step.to_string());
    let mut starts: Vec<_> = starts.collect();
    starts.sort();
    assert_eq!(starts, ["a", "b", "merge", "plan"]);
}

// Trap: the work of scopes was in no checkpoint, so all parallel work was repeated; at a fan-in the checkpoint
// exists.
#[tokio::test]
async fn finished_parallel_work_is_on_disk_and_is_not_repeated() {
    for at in ["a2", "merge", "after"] {
        for mut world in World::each() {
            let stage = Stage::default();
            let graph = stage.fork();
            let run =
                async |world: &World| world.engine.run(&graph, "r", Notes::default()).into_future().await;
            stage.crash(&mut world, at, run).await;
            stage.said();
            assert_eq!(world.end_of("plan:b").await, Some(End::Completed));

            let outcome = world.engine.resume(&graph, "r").await.unwrap();

            let rest = ["a2", "merge", "after"];
            let rest = &rest[rest.iter().position(|step| *step == at).unwrap()..];
            assert_eq!(
                (stage.said().as_slice(), outcome.state.done),
                (&words(&rest.join(" "))[..], WHOLE.map(str::to_owned).to_vec())
            );
        }
    }
}

// The same for items, with many in parallel.
#[tokio::test]
async fn finished_items_are_on_disk_and_are_not_repeated() {
    for mut world in World::each() {
        let stage = Stage::default();
        let work = stage.clone();
        let each = Graph::builder("items").each(
            "each",
            |_: &Notes| (0..20).collect(),
            |n: &u32| format!("n{n}"),
            move |n: u32, _| {
                let stage = work.clone();
                async move { stage.pass(&format!("n{n}")).await.map(|()| n) }
            },
        );
        let graph = each
            .max_parallel(3)
            .join(|mut state: Notes, mut ends: ItemEnds<u32, u32>, _| async move {
                while let Some(end) = ends.next().await? {
                    state.done.extend(end.result.ok().map(|n| n.to_string()));
                }
                Ok::<_, StepError>(state)
            })
            .build()
            .unwrap();
        let run = async |world: &World| world.engine.run(&graph, "r", Notes::default()).into_future().await;
        stage.crash(&mut world, "n7", run).await;
        let before = stage.said();

        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        let again: Vec<_> = stage.said().into_iter().filter(|said| before.contains(said)).collect();
        assert_eq!(again, ["n7"], "the others had ended when it crashed");
        assert_eq!(outcome.state.done, (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
    }
}

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

// Trap: the configuration of a resume replaces whole sub-trees of the saved configuration.
#[tokio::test]
async fn config_of_a_resume_is_merged_at_each_depth() {
    for mut world in World::each() {
        let stage = Stage::default();
        let told = stage.clone();
        let graph = Graph::builder("config")
            .step("a", move |state: Notes, context: Context| {
                let stage = told.clone();
                async move {
                    stage.pass("a").await?;
                    Ok::<_, StepError>(state.and(Value::Object(context.config().clone()).to_string()))
                }
            })
            .build()
            .unwrap();
        let saved = json!({ "model": { "name": "m", "limits": { "tokens": 1, "cost": 2 } }, "keep": [1] });
        let run = world.engine.run(&graph, "r", Notes::default()).config(map(saved));
        run.interrupt_before(["a"]).await.unwrap();

        // Merged, and kept for a resume after a crash.
        let over = json!({ "model": { "limits": { "cost": 3 } }, "new": null });
        let merged = async |world: &World| {
            world.engine.resume(&graph, "r").config(map(over.clone())).into_future().await
        };
        stage.crash(&mut world, "a", merged).await;
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        let expect = json!({ "model": { "name": "m", "limits": { "tokens": 1, "cost": 3 } }, "keep": [1], "new": null });
        assert_eq!(serde_json::from_str::<Value>(&outcome.state.done[0]).unwrap(), expect);
    }
}

// "Nothing changes for who does not use it": no interrupts, no resume, no file asked for.
#[tokio::test]
async fn a_run_of_another_name_begins_anew_whatever_is_in_the_store() {
    let world = World::memory();
    let stage = Stage::default();
    let graph = stage.line();
    world.engine.run(&graph, "r", Notes::default()).interrupt_before(["c"]).await.unwrap();
    stage.said();

    let outcome = world.engine.run(&graph, "r2", Notes::default()).await.unwrap();
    let taken = world.engine.run(&graph, "r", Notes::default()).await.unwrap_err();

    assert_eq!((outcome.status, stage.said()), (RunStatus::Completed, words("a b c")));
    assert!(matches!(taken, RunError::Store(waypost::store::StoreError::Exists { .. })), "{taken}");
    assert_eq!(outcome.run, RunId::new("r2").unwrap());
}
