//! Holds, questions, sleeps and signals: the interrupts of source 2, and its bugs.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use waypost::engine::{MEMO_BYTES_MAX, MEMOS_MAX, RunError};
use waypost::graph::Update;
use waypost::memory::Part;
use waypost::record::RunStatus;
use waypost::store::Store as _;
use waypost::{Context, END, Engine, Graph, Retry, StepError};
use waypost_testing::TestClock;

use crate::faulty::{Fault, World, run_id};
use crate::test_graphs::{Notes, Stage};

/// Runs with these holds and resumes to the end. Returns the trace of each session. Every session but the last
/// must end as held, and the world crashes after each.
async fn sessions(
    world: &mut World,
    graph: &Graph<Notes>,
    stage: &Stage,
    before: &[&str],
    after: &[&str],
) -> String {
    let mut told = Vec::new();
    let run = world.engine.run(graph, "r", Notes::default()).interrupt_before(before).interrupt_after(after);
    let mut outcome = run.await.unwrap();
    loop {
        told.push(stage.said_sorted().join(" "));
        if outcome.status == RunStatus::Completed {
            return told.join(" | ");
        }
        assert_eq!(outcome.status, RunStatus::Interrupted);
        assert!(told.len() < 20, "held for ever: {told:?}");
        world.reopen();
        outcome = world.engine.resume(graph, "r").await.unwrap();
    }
}

#[tokio::test]
async fn holds_in_a_line_hold_once_each_and_skip_nothing() {
    let table: [(&[&str], &[&str], &str); 8] = [
        (&["b"], &[], "a | b c"),
        (&[], &["b"], "a b | c"),
        (&["b"], &["b"], "a | b | c"),
        (&["a"], &[], " | a b c"),
        (&[], &["c"], "a b c | "),
        // Adjacent steps: the hold after one step and the hold before the next are separate.
        (&["b"], &["a"], "a |  | b c"),
        (&["a", "b", "c"], &[], " | a | b | c"),
        (&["a", "b", "c"], &["a", "b", "c"], " | a |  | b |  | c | "),
    ];
    for (before, after, expect) in table {
        for mut world in World::each() {
            let stage = Stage::default();
            let told = sessions(&mut world, &stage.line(), &stage, before, after).await;
            assert_eq!(told, expect, "before {before:?}, after {after:?}");
        }
    }
}

// Bug: a hold before a join came before its scopes had run, and a hold after the last step of a scope was
// skipped.
#[tokio::test]
async fn holds_in_a_fork_and_at_its_join_hold_where_they_say() {
    let table: [(&[&str], &[&str], &str); 7] = [
        (&["merge"], &[], "a a2 b plan | after merge"),
        (&[], &["merge"], "a a2 b merge plan | after"),
        (&["merge"], &["merge"], "a a2 b plan | merge | after"),
        (&["a2"], &[], "a b plan | a2 after merge"),
        (&[], &["a2"], "a a2 b plan | after merge"),
        (&["b"], &["a"], "a plan | a2 after b merge"),
        (&["merge"], &["plan"], "plan | a a2 b | after merge"),
    ];
    for (before, after, expect) in table {
        for mut world in World::each() {
            let stage = Stage::default();
            let told = sessions(&mut world, &stage.fork(), &stage, before, after).await;
            assert_eq!(told, expect, "before {before:?}, after {after:?}");
        }
    }
}

#[tokio::test]
async fn a_hold_at_a_join_has_the_results_of_the_scopes_on_disk() {
    let world = World::memory();
    let stage = Stage::default();

    let held =
        world.engine.run(&stage.fork(), "r", Notes::default()).interrupt_before(["merge"]).await.unwrap();

    assert_eq!(held.status, RunStatus::Interrupted);
    let ended = world.end_of("plan:a").await.zip(world.end_of("plan:b").await);
    assert!(ended.is_some());
}

// Bug: a release of one pass of a loop released all passes.
#[tokio::test]
async fn a_hold_in_a_loop_holds_each_pass() {
    let mut world = World::memory();
    let stage = Stage::default();
    let graph = stage
        .steps(Graph::builder("loop"), &["a", "b"])
        .edge("a", "b")
        .route("b", ["a", END], |state| if state.done.len() < 6 { "a" } else { END })
        .build()
        .unwrap();

    assert_eq!(sessions(&mut world, &graph, &stage, &["b"], &[]).await, "a | a b | a b | b");
}

#[tokio::test]
async fn a_stream_sees_the_record_of_a_hold_before_its_end() {
    let world = World::memory();
    let stage = Stage::default();
    let graph = stage.line();
    let mut stream = world.engine.run(&graph, "r", Notes::default()).interrupt_before(["b"]).stream();

    let mut seen = 0;
    while let Some(update) = stream.next().await {
        match update.unwrap() {
            Update::Event(event) => seen = seen.max(event.seq),
            Update::Ended(outcome) => {
                assert_eq!((outcome.status, outcome.at), (RunStatus::Interrupted, seen));
                assert!(world.store.load(&run_id(), &"main".parse().unwrap(), seen).await.is_ok());
            }
        }
    }
    assert!(seen >= 3);
}

#[tokio::test]
async fn a_hold_or_a_question_that_cannot_be_saved_is_not_reported() {
    for nth in [2, 3] {
        let world = World::memory();
        let stage = Stage::default();
        let graph = Graph::builder("ask").step("a", stage.ask()).build().unwrap();
        world.store.plan(nth.min(2), 9, Fault::Refuse);
        let run = world.engine.run(&graph, "r", Notes::default());
        let run = if nth == 3 { run.interrupt_before(["a"]) } else { run };

        let refused = run.await.unwrap_err();

        assert!(matches!(refused, RunError::Checkpoint { .. }), "{refused}");
    }
}

#[tokio::test]
async fn an_answer_while_the_session_is_at_work_is_taken_in_by_it() {
    let world = World::memory();
    let stage = Stage::default();
    let opened = Arc::new(tokio::sync::Notify::new());
    let waits = opened.clone();
    let builder = stage.steps(Graph::builder("ask"), &["plan"]).step("a", stage.ask());
    let builder = builder.step("b", move |state: Notes, _| {
        let opened = waits.clone();
        async move {
            opened.notified().await;
            Ok::<_, StepError>(state.and("b"))
        }
    });
    let after = opened.clone();
    let builder = builder.step("a2", move |state: Notes, _| {
        // The other scope continues only after the answer.
        after.notify_one();
        async move { Ok::<_, StepError>(state.and("a2")) }
    });
    let builder = builder.edge("a", "a2").fork("plan", ["a", "b"]).join("merge", stage.merge());
    let graph = builder.build().unwrap();
    let answer = async {
        loop {
            if let Ok(waiting) = world.engine.waiting(&run_id()).await
                && let Some(waiting) = waiting.first()
            {
                world.engine.answer("r", &waiting.wait.id, json!("yes")).await.unwrap();
                break;
            }
            tokio::task::yield_now().await;
        }
    };

    let (outcome, ()) = tokio::join!(world.engine.run(&graph, "r", Notes::default()).into_future(), answer);

    assert_eq!(outcome.unwrap().state.done, ["plan", "a=a:yes+a2", "b=b"]);
}

#[tokio::test]
async fn a_long_sleep_gives_the_lease_back_and_survives_a_crash() {
    for mut world in World::each() {
        let stage = Stage::default();
        let clock = Arc::new(TestClock::default());
        let step = stage.clone();
        let graph = Graph::builder("sleep")
            .step("a", move |state: Notes, context: Context| {
                let stage = step.clone();
                async move {
                    stage.say("a");
                    context.sleep("long", Duration::from_secs(3_600)).await?;
                    stage.pass("woke").await?;
                    Ok::<_, StepError>(state.and("slept"))
                }
            })
            .build()
            .unwrap();
        let engine = |world: &World| world.engine.clone().with_clock(clock.clone());

        let first = engine(&world).run(&graph, "r", Notes::default()).await.unwrap();
        assert_eq!(first.status, RunStatus::Waiting);
        clock.pass(Duration::from_secs(1_800));
        world.reopen();
        let second = engine(&world).resume(&graph, "r").await.unwrap();
        assert_eq!((second.status, stage.said()), (RunStatus::Waiting, vec!["a".to_owned()]));
        clock.pass(Duration::from_secs(1_801));
        world.reopen();
        stage
            .crash(&mut world, "woke", async |world| engine(world).resume(&graph, "r").into_future().await)
            .await;
        let third = engine(&world).resume(&graph, "r").await.unwrap();

        assert_eq!((third.status, third.state.done), (RunStatus::Completed, vec!["slept".to_owned()]));
        assert_eq!(stage.said(), ["a", "woke", "a", "woke"]);
    }
}

#[tokio::test]
async fn once_is_not_repeated_by_a_retry_and_kinds_have_own_keys() {
    let mut world = World::memory();
    let stage = Stage::default();
    let step = stage.clone();
    let graph = Graph::builder("once")
        .step("a", move |state: Notes, context: Context| {
            let stage = step.clone();
            async move {
                let work = async {
                    stage.say("paid");
                    Ok::<_, StepError>(7)
                };
                let paid: u32 = context.once("checkpoint", work).await?;
                context.checkpoint().await?;
                stage.pass("tried").await?;
                let answer: String = context.interrupt("checkpoint", "?").await?;
                let second: String = context.interrupt("once/checkpoint", "?").await?;
                Ok::<_, StepError>(state.and(format!("{paid}{answer}{second}")))
            }
        })
        .retry(Retry::fixed(1, Duration::ZERO))
        .build()
        .unwrap();
    stage.fail("tried", 1);

    let mut outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    for answer in ["x", "y"] {
        assert_eq!(outcome.status, RunStatus::Waiting);
        world.engine.answer("r", &outcome.waiting[0].wait.id, json!(answer)).await.unwrap();
        world.reopen();
        outcome = world.engine.resume(&graph, "r").await.unwrap();
    }

    assert_eq!(outcome.state.done, ["7xy"]);
    assert_eq!(stage.said().iter().filter(|said| *said == "paid").count(), 1);
}

#[tokio::test]
async fn what_a_step_keeps_has_limits_in_size_and_number() {
    let world = World::memory();
    let graph = |large: bool| {
        Graph::builder("memos")
            .step("a", move |state: Notes, context: Context| async move {
                let bytes = if large { MEMO_BYTES_MAX } else { 1 };
                for key in 0..=MEMOS_MAX {
                    let work = async { Ok::<_, StepError>("x".repeat(bytes)) };
                    context.once(&key.to_string(), work).await?;
                }
                Ok::<_, StepError>(state)
            })
            .retry(Retry::fixed(3, Duration::ZERO))
            .build()
            .unwrap()
    };

    let large = world.engine.run(&graph(true), "r", Notes::default()).await.unwrap().failed.unwrap().1;
    let many = world.engine.run(&graph(false), "r2", Notes::default()).await.unwrap().failed.unwrap().1;

    assert!(large.error[0].contains("1048578 bytes, the maximum is 1048576"), "{large:?}");
    assert!(many.error[0].contains("has 1000 kept results"), "{many:?}");
}

#[tokio::test]
async fn a_question_after_a_rollback_is_a_new_one() {
    for mut world in World::each() {
        let stage = Stage::default();
        let builder = stage.steps(Graph::builder("ask"), &["a", "c"]).step("b", stage.ask());
        let graph = builder.edge("a", "b").edge("b", "c").build().unwrap();
        let asked = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        let id = asked.waiting[0].wait.id.clone();
        world.engine.answer("r", &id, json!("yes")).await.unwrap();
        assert_eq!(world.engine.resume(&graph, "r").await.unwrap().status, RunStatus::Completed);

        // After a rollback to the wait, the old question has its answer, and the new question is separate.
        world.reopen();
        let again = world.engine.resume(&graph, "r").from_checkpoint(asked.at).await.unwrap();
        assert_eq!(again.status, RunStatus::Waiting);
        assert_ne!(again.waiting[0].wait.id, id);
        world.engine.answer("r", &again.waiting[0].wait.id, json!("no")).await.unwrap();
        let end = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(end.state.done, ["a", "b:no", "c"]);
    }
}

// Bug: the record of an answer was damaged. The step waited again, and a second answer was refused.
#[tokio::test]
async fn a_question_with_a_lost_answer_is_answered_again() {
    for in_scope in [false, true] {
        let mut world = World::memory();
        let stage = Stage::default();
        let (graph, scope) = if in_scope {
            (asks_in_a_scope(&stage), "plan:b")
        } else {
            (Graph::builder("ask").step("b", stage.ask()).build().unwrap(), "main")
        };
        let asked = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        let id = asked.waiting[0].wait.id.clone();
        world.engine.answer("r", &id, json!("yes")).await.unwrap();
        world.store.plan(1, 1, Fault::DieAfter);
        assert!(world.until_death(world.engine.resume(&graph, "r").into_future()).await.is_none());
        world.reopen();
        world.below().damage(&run_id(), &scope.parse().unwrap(), 3, Part::Header);

        let again = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!((again.status, again.repaired.len()), (RunStatus::Waiting, 1));
        assert_eq!(again.waiting[0].wait.id, id);
        world.engine.answer("r", &id, json!("no")).await.unwrap();
        let second = world.engine.answer("r", &id, json!("maybe")).await.unwrap_err();
        assert!(matches!(second, RunError::Answered { .. }), "{second}");
        let end = world.engine.resume(&graph, "r").await.unwrap();

        let expect = if in_scope { vec!["plan", "b=b:no"] } else { vec!["b:no"] };
        assert_eq!(end.state.done, expect);
    }
}

fn asks_in_a_scope(stage: &Stage) -> Graph<Notes> {
    let builder = stage.steps(Graph::builder("ask"), &["plan"]).step("b", stage.ask());
    builder.fork("plan", ["b"]).join("merge", stage.merge()).build().unwrap()
}

#[tokio::test]
async fn an_engine_without_a_run_answers_nothing() {
    let world = World::memory();
    let engine: &Engine = &world.engine;

    assert!(engine.answer("r", "x", json!(1)).await.is_err());
    assert!(engine.signal("r", "x", json!(1)).await.is_err());
}
