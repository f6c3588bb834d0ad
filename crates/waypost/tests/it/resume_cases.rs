//! Resumes of a graph: start points, refused runs, lost checkpoints, and states that cannot be kept.

use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;
use waypost::engine::RunError;
use waypost::memory::MemoryStore;
use waypost::record::{End, RunStatus, STATE_BYTES_MAX};
use waypost::store::{StoreError, StoreExt as _};
use waypost::{Context, END, Engine, Graph, ScopePath, StepError};

use crate::faulty::{Fault, World, run_id};
use crate::test_graphs::{Notes, Stage};

mod checkpoint_order;

async fn newest_seq(world: &World) -> u64 {
    world.store.newest(&run_id(), &ScopePath::main()).await.unwrap().header().seq
}

// Trap: key (run, step) keeps only the last pass of a loop.
#[tokio::test]
async fn a_b_a_gives_three_checkpoints_in_order() {
    for world in World::each() {
        let stage = Stage::default();
        let builder = stage.steps(Graph::builder("aba"), &["a", "b"]);
        let builder = builder.route("a", ["b", END], |state| if state.done.len() < 3 { "b" } else { END });
        let graph = builder.edge("b", "a").build().unwrap();

        world.engine.run(&graph, "r", Notes::default()).await.unwrap();

        let records = world.records().await;
        let completed: Vec<_> = records.iter().filter(|line| line.contains("completed")).collect();
        assert_eq!(completed, ["main@2 completed a", "main@3 completed b", "main@4 completed a"]);
        for (seq, done) in [(2, 1), (3, 2), (4, 3)] {
            let at = format!("r@{seq}").parse().unwrap();
            assert_eq!(world.engine.inspect(&graph, &at).await.unwrap().state.done.len(), done);
        }
    }
}

// Traps: a resumed run is not checkpointed; a second crash loses everything since the first.
#[tokio::test]
async fn each_resume_is_checkpointed_as_a_run_is() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.line();
        stage.crash_run(&mut world, &graph, "a").await;
        for at in ["a", "b", "b", "c", "c"] {
            stage.said();
            stage.crash_resume(&mut world, &graph, at).await;
            let said = stage.said();
            assert!(said.len() <= 2 && said.last().unwrap() == at, "{said:?}");
        }
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(stage.said(), ["c"]);
        assert_eq!(outcome.state.done, ["a", "b", "c"]);
    }
}

// Trap: a missing run id is found only after the first step ran.
#[tokio::test]
async fn a_run_id_that_cannot_be_is_refused_before_anything_runs() {
    let world = World::memory();
    let stage = Stage::default();
    for id in ["", "..", "a/b", "a b", &"x".repeat(1_000)] {
        let refused = world.engine.run(&stage.line(), id, Notes::default()).await.unwrap_err();
        assert!(matches!(refused, RunError::InvalidName(_)), "{refused}");
    }
    assert!(stage.said().is_empty());
    let made = world.engine.run_unnamed(&stage.line(), Notes::default()).await.unwrap();
    assert!(made.run.as_str().starts_with("line"));
}

// Trap: a failed save is a warning.
#[tokio::test]
async fn a_checkpoint_that_cannot_be_written_ends_the_run_there() {
    for nth in 1..=4 {
        let mut world = World::memory();
        let stage = Stage::default();
        let graph = stage.line();
        world.store.plan(nth, 1, Fault::Refuse);

        let refused = world.engine.run(&graph, "r", Notes::default()).await.unwrap_err();

        assert!(matches!(refused, RunError::Checkpoint { .. }), "{refused}");
        assert_eq!(stage.said().len() as u64, nth - 1, "no step ran beyond the one not recorded");
        world.reopen();
        let outcome = match nth {
            1 => world.engine.run(&graph, "r", Notes::default()).await,
            _ => world.engine.resume(&graph, "r").await,
        };
        assert_eq!(outcome.unwrap().state.done, ["a", "b", "c"]);
    }
}

#[tokio::test]
async fn a_tolerated_lost_checkpoint_is_counted_and_written_later() {
    for nth in 2..=3 {
        for fork in [false, true] {
            let mut world = World::memory();
            let stage = Stage::default();
            let graph = if fork { stage.fork() } else { stage.line() };
            world.store.plan(nth, 1, Fault::Refuse);
            let run = world.engine.run(&graph, "r", Notes::default());

            let outcome = run.tolerate_lost_checkpoints().await.unwrap();

            assert_eq!((outcome.status, outcome.lost), (RunStatus::Completed, 1));
            let names =
                if fork { vec!["plan", "a", "a2", "b", "merge", "after"] } else { vec!["a", "b", "c"] };
            let records = world.records().await;
            for name in names {
                let ended = format!("completed {name}");
                assert_eq!(
                    records.iter().filter(|line| line.ends_with(&ended)).count(),
                    1,
                    "{name}: {records:?}"
                );
            }
            world.reopen();
            assert!(world.engine.resume(&graph, "r").await.unwrap().idle);
        }
    }
}

#[tokio::test]
async fn a_step_that_must_not_be_repeated_does_not_start_unrecorded() {
    let world = World::memory();
    let stage = Stage::default();
    let graph = stage.steps(Graph::builder("pay"), &["pay"]).not_idempotent().build().unwrap();
    world.store.plan(2, 1, Fault::Refuse);
    let run = world.engine.run(&graph, "r", Notes::default());

    let refused = run.tolerate_lost_checkpoints().await;

    assert!(matches!(refused, Err(RunError::Checkpoint { .. })), "{refused:?}");
    assert!(stage.said().is_empty());
}

// Bug: a batch whose reply was lost twice was sent again with more records under the same id, and counted as
// written.
#[tokio::test]
async fn a_lost_answer_loses_nothing() {
    for (count, tolerate) in [(1, false), (1, true), (2, false), (2, true)] {
        for nth in 2..=4 {
            let mut world = World::memory();
            let stage = Stage::default();
            let graph = stage.line();
            world.store.plan(nth, count, Fault::LoseAnswer);
            let run = world.engine.run(&graph, "r", Notes::default());
            let run = if tolerate { run.tolerate_lost_checkpoints() } else { run };

            let first = run.await;
            world.reopen();
            let outcome = match first {
                Ok(outcome) => outcome,
                Err(_) => world.engine.resume(&graph, "r").await.unwrap(),
            };

            assert_eq!(outcome.state.done, ["a", "b", "c"]);
            assert_eq!(stage.said(), ["a", "b", "c"]);
        }
    }
}

// Traps: "resume from b" continues after b; abandoned checkpoints stay the newest; sequence numbers repeat.
#[tokio::test]
async fn from_b_runs_b_again_and_what_came_after_counts_no_more() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.line();
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        let before = newest_seq(&world).await;
        stage.said();

        stage
            .crash(&mut world, "b", async |world| {
                world.engine.resume(&graph, "r").from_step("b").into_future().await
            })
            .await;
        assert!(newest_seq(&world).await > before);
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(stage.said(), ["b", "b", "c"]);
        assert_eq!(outcome.state.done, ["a", "b", "c"]);
    }
}

#[tokio::test]
async fn a_resume_retries_a_failed_step_with_the_given_state() {
    let mut world = World::memory();
    let stage = Stage::default();
    let graph = stage.line();
    stage.fail("b", 1);
    let failed = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    assert_eq!(failed.failed.unwrap().1.error, ["b is broken"]);
    stage.said();
    world.reopen();

    let refused = world.engine.resume(&graph, "r").validate_state(|_| Err("not so".to_owned())).await;
    assert!(matches!(refused, Err(RunError::Rejected { .. })));
    let resume = world.engine.resume(&graph, "r").edit_state(|state| state.done.push("mended".to_owned()));
    let outcome =
        resume.validate_state(|state| (state.done.len() == 2).then_some(()).ok_or_else(String::new)).await;

    assert_eq!(outcome.unwrap().state.done, ["a", "mended", "b", "c"]);
    assert_eq!(stage.said(), ["b", "c"]);
}

#[tokio::test]
async fn the_end_is_a_step_to_resume_from() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.fork();
        stage.crash_run(&mut world, &graph, "a2").await;
        stage.said();

        let ended = world.engine.resume(&graph, "r").from_step(END).await.unwrap();

        assert_eq!(
            (ended.status, ended.state.done.as_slice()),
            (RunStatus::Completed, &["plan".to_owned()][..])
        );
        assert!(stage.said().is_empty());
        assert_eq!(world.end_of("main").await, Some(End::Completed));
        assert!(world.engine.waiting(&run_id()).await.unwrap().is_empty());
        world.reopen();
        assert!(world.engine.resume(&graph, "r").await.unwrap().idle);
        // A later redo has its own epoch.
        let again = world.engine.resume(&graph, "r").from_step("plan").await.unwrap();
        assert_eq!(again.state.done, ["plan", "a=a+a2", "b=b", "after"]);
    }
}

#[tokio::test]
async fn an_unknown_step_and_a_step_never_started_are_told_apart() {
    let world = World::memory();
    let stage = Stage::default();
    let graph = stage.line();
    world.engine.run(&graph, "r", Notes::default()).interrupt_before(["c"]).await.unwrap();

    let unknown = world.engine.resume(&graph, "r").from_step("nope").await.unwrap_err();
    let early = world.engine.resume(&graph, "r").from_step("c").await.unwrap_err();
    let nowhere = world.engine.resume(&graph, "nobody").await.unwrap_err();

    assert_eq!(unknown.to_string(), "the graph has no step `nope`");
    assert_eq!(
        early.to_string(),
        "cannot rerun step `c` of run r: the step has not finished, or a step upstream has not"
    );
    assert!(matches!(nowhere, RunError::Store(StoreError::NotFound { .. })), "{nowhere}");
}

// Trap: the version is never checked.
#[tokio::test]
async fn a_state_of_a_newer_version_or_of_another_kind_is_refused() {
    let world = World::memory();
    let stage = Stage::default();
    let other = |name: &str| {
        Graph::builder(name).step("a", |n: u32, _| async move { Ok::<_, StepError>(n) }).build().unwrap()
    };
    let graph = stage.steps(Graph::builder("x"), &["a"]).build().unwrap();
    world.engine.run(&graph, "r", Notes::default()).interrupt_before(["a"]).await.unwrap();

    let refused = world.engine.resume(&other("x"), "r").await.unwrap_err();

    assert!(matches!(refused, RunError::Deserialize { .. }), "{refused}");
    assert_eq!(world.engine.resume(&graph, "r").await.unwrap().status, RunStatus::Completed);
}

// Bug: edges were not part of a step's identity, so a run resumed in a graph with other edges.
#[tokio::test]
async fn a_checkpoint_of_a_graph_with_other_edges_is_refused() {
    let world = World::memory();
    let stage = Stage::default();
    let graph = stage.line();
    world.engine.run(&graph, "r", Notes::default()).interrupt_before(["b"]).await.unwrap();
    let builder = stage.steps(Graph::builder("line"), &["a", "b", "c"]);
    let rewired = builder.edge("a", "c").edge("c", "b").build().unwrap();

    let refused = world.engine.resume(&rewired, "r").await.unwrap_err();

    assert!(matches!(refused, RunError::Changed { .. }), "{refused}");
}

// Trap: two resumes run at once.
#[tokio::test]
async fn of_two_resumes_one_is_refused_and_names_the_holder() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = stage.line();
        stage.crash_run(&mut world, &graph, "b").await;
        stage.said();

        let (one, other) = tokio::join!(
            world.engine.resume(&graph, "r").into_future(),
            world.engine.resume(&graph, "r").into_future()
        );

        let (done, refused) = if one.is_ok() { (one, other) } else { (other, one) };
        assert!(
            matches!(refused, Err(RunError::Store(StoreError::Held { .. }))) || refused.is_ok_and(|o| o.idle)
        );
        assert_eq!(done.unwrap().state.done, ["a", "b", "c"]);
        assert_eq!(stage.said(), ["b", "c"]);
    }
}

// Trap: the limit against endless loops restarts on resume.
#[tokio::test]
async fn the_step_limit_goes_on_counting_through_crashes() {
    for mut world in World::each() {
        let stage = Stage::default();
        let builder = stage.steps(Graph::builder("endless"), &["a"]);
        let graph = builder.route("a", ["a", END], |_: &Notes| "a").build().unwrap();
        let run = async |world: &World| {
            world.engine.run(&graph, "r", Notes::default()).step_limit(4).into_future().await
        };
        stage.crash(&mut world, "a", run).await;
        stage.crash_resume(&mut world, &graph, "a").await;

        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!((outcome.status, stage.said().len()), (RunStatus::Failed, 4));
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Odd {
    bytes: usize,
    broken: bool,
}

impl Serialize for Odd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.broken {
            return Err(serde::ser::Error::custom("cannot be kept"));
        }
        let padding = "x".repeat(self.bytes);
        json!({ "bytes": self.bytes, "broken": false, "padding": padding }).serialize(serializer)
    }
}

#[tokio::test]
async fn an_unstorable_state_ends_the_session_and_the_run_resumes() {
    for (bytes, broken, why) in [(STATE_BYTES_MAX, false, "the state exceeds"), (0, true, "cannot be kept")] {
        let mut world = World::memory();
        let stage = Stage::default();
        let step = stage.clone();
        let graph = Graph::builder("odd")
            .step("a", |state: Odd, _| async move { Ok::<_, StepError>(state) })
            .step("b", move |state: Odd, _: Context| {
                let stage = step.clone();
                async move {
                    if stage.pass("b").await.is_err() {
                        Ok(Odd { bytes, broken })
                    } else {
                        Ok::<_, StepError>(state)
                    }
                }
            })
            .edge("a", "b")
            .build()
            .unwrap();
        stage.fail("b", 1);

        let refused = world.engine.run(&graph, "r", Odd::default()).await.unwrap_err();

        assert!(matches!(refused, RunError::Serialize { .. }), "{refused}");
        let source = std::error::Error::source(&refused).unwrap().to_string();
        assert!(source.contains(why), "{source}");
        // The lease was released, and the step before still counts.
        let outcome = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!(outcome.status, RunStatus::Completed);
        assert_eq!(stage.said(), ["b", "b"]);
        world.reopen();
    }
}

// Dropping a run is a crash, at any await.
#[tokio::test]
async fn a_run_dropped_at_any_await_repeats_no_step() {
    for polls in 1.. {
        let store = Arc::new(MemoryStore::new());
        let engine = Engine::new(store.clone());
        let stage = Stage::default();
        let graph = {
            let step = stage.clone();
            let names = ["plan", "a", "b"];
            let mut builder = Graph::builder("yields");
            for name in names {
                let stage = step.clone();
                builder = builder.step(name, move |state: Notes, context: Context| {
                    let stage = stage.clone();
                    async move {
                        tokio::task::yield_now().await;
                        let name = context.step().to_string();
                        let work = async {
                            stage.say(name.clone());
                            Ok::<_, StepError>(())
                        };
                        context.once("work", work).await?;
                        tokio::task::yield_now().await;
                        Ok::<_, StepError>(state.and(name))
                    }
                });
            }
            builder.fork("plan", ["a", "b"]).join("merge", stage.merge()).build().unwrap()
        };
        let ended = {
            let mut run = engine.run(&graph, "r", Notes::default()).into_future();
            let mut ended = None;
            for _ in 0..polls {
                ended = futures_util::poll!(&mut run).map(Some).map_pending();
                if ended.is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            ended
        };
        if ended.is_some() {
            assert!(polls > 3, "it was polled {polls} times");
            return;
        }
        store.drop_holder(&run_id());
        let outcome = match engine.resume(&graph, "r").await {
            Err(RunError::Store(StoreError::NotFound { .. })) => {
                engine.run(&graph, "r", Notes::default()).await
            }
            resumed => resumed,
        };
        assert_eq!(outcome.unwrap().state.done, ["plan", "a=a", "b=b"], "dropped after {polls} polls");
    }
}

trait OrPending<T> {
    fn map_pending(self) -> Option<T>;
}

impl<T> OrPending<T> for std::task::Poll<Option<T>> {
    fn map_pending(self) -> Option<T> {
        match self {
            Self::Ready(value) => value,
            Self::Pending => None,
        }
    }
}
