//! Starts that need their own commit, and skips that share the commit of the previous end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use waypost::engine::{ResumeOptions, SessionOptions, StopHandle, StopLevel};
use waypost::record::RunStatus;
use waypost::store::Store as _;
use waypost::{Context, Graph, StepError};
use waypost_testing::TestClock;

use crate::faulty::{World, run_id};
use crate::history::{assert_told, told};
use crate::scripted_program::{Does, Toy};
use crate::test_graphs::{Notes, Stage};

async fn run(world: &World, toy: &Toy, session: SessionOptions) -> RunStatus {
    let run = world.engine.run_program(toy, toy.record("r"), Default::default(), session);
    run.await.unwrap().status
}

async fn resume(world: &World, toy: &Toy) -> RunStatus {
    world.engine.resume_program(toy, &run_id(), ResumeOptions::default()).await.unwrap().status
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_a_delay_is_started_by_a_record_of_its_own() {
    let world = World::memory();
    let toy = Toy::new("a; b", 2).retry("a", 1, Duration::from_secs(9)).does("a", 1, Does::Fail);

    run(&world, &toy, SessionOptions::default()).await;

    assert_told!(
        told(world.store.as_ref(), &run_id()).await,
        "main@1 started a(1) > a(1) b(1) | a started, b started
         main@2 failed a(1)
         main@3 completed b(1) | a ready
         main@4 started a(2) > a(2) | a started
         main@5 completed a(2) | - = completed"
    );
}

#[tokio::test]
async fn what_until_leaves_out_is_started_by_the_resume() {
    let world = World::memory();
    let toy = Toy::new("a; b: a; c: b", 1);
    let until = SessionOptions { until: Some("b".parse().unwrap()), ..SessionOptions::default() };

    run(&world, &toy, until).await;
    resume(&world, &toy.again()).await;

    assert_told!(
        told(world.store.as_ref(), &run_id()).await,
        "main@1 started a(1) > a(1) | a started
         main@2 completed a(1) > b(1) | b started
         main@3 completed b(1) | c ready = interrupted
         main@4 started c(1) > c(1) | c started
         main@5 completed c(1) | - = completed"
    );
}

#[tokio::test]
async fn after_a_stop_no_step_starts_with_ends_in_flight() {
    let world = World::memory();
    let stage = Stage::default();
    let stop = StopHandle::default();
    let asks = stop.clone();
    let builder = stage.steps(Graph::builder("stop"), &["b"]).step("a", move |state: Notes, _: Context| {
        asks.stop(StopLevel::Graceful, "a person");
        async move { Ok::<_, StepError>(state.and("a")) }
    });
    let graph = builder.edge("a", "b").start("a").build().unwrap();

    world.engine.run(&graph, "r", Notes::default()).stop_handle(&stop).await.unwrap();
    world.engine.resume(&graph, "r").await.unwrap();

    assert_told!(
        told(world.store.as_ref(), &run_id()).await,
        "main@1 started a(1) > a(1) | a started
         main@2 completed a(1) | b ready = interrupted
         main@3 started b(1) > b(1) | b started
         main@4 completed b(1) | - = completed"
    );
}

#[tokio::test]
async fn a_step_without_a_slot_starts_in_the_record_that_frees_it() {
    let world = World::memory();
    let toy = Toy::new("a; b; c", 2);

    run(&world, &toy, SessionOptions::default()).await;

    assert_told!(
        told(world.store.as_ref(), &run_id()).await,
        "main@1 started a(1) > a(1) b(1) | a started, b started, c ready
         main@2 completed a(1)
         main@3 completed b(1) > c(1) | c started
         main@4 completed c(1) | - = completed"
    );
}

#[tokio::test]
async fn what_must_not_be_repeated_is_started_by_a_record_of_its_own() {
    let world = World::memory();
    let toy = Toy::new("a; b!: a; c!: a; d: b c", 2);

    run(&world, &toy, SessionOptions::default()).await;

    assert_told!(
        told(world.store.as_ref(), &run_id()).await,
        "main@1 started a(1) > a(1) | a started
         main@2 completed a(1) | b ready, c ready
         main@3 started b(1) > b(1) | b started, c ready
         main@4 started c(1) > c(1) | b started, c started
         main@5 completed b(1)
         main@6 completed c(1) > d(1) | d started
         main@7 completed d(1) | - = completed"
    );
}

#[tokio::test]
async fn a_false_condition_skips_a_step_in_the_previous_batch() {
    let world = World::memory();
    let toy = Toy::new("a; b: a; c: b; d: c", 1).does("b", 1, Does::Skip).does("c", 1, Does::Skip);

    run(&world, &toy, SessionOptions::default()).await;

    // Only the last record of a batch has a body.
    assert_told!(
        told(world.store.as_ref(), &run_id()).await,
        "main@1 started a(1) > a(1) | a started
         main@2 completed a(1)
         main@3 skipped b(0)
         main@4 skipped c(0) > d(1) | d started
         main@5 completed d(1) | - = completed"
    );
}

/// A sleep, a question and a signal: the step is suspended, and starts again at the event. Results from before
/// the wait come from its memos.
#[tokio::test]
async fn a_waiting_step_restarts_and_repeats_no_kept_result() {
    for mut world in World::each() {
        let stage = Stage::default();
        let clock = Arc::new(TestClock::default());
        let told_by = stage.clone();
        let graph = Graph::builder("waits")
            .step("a", move |state: Notes, context: Context| {
                let stage = told_by.clone();
                async move {
                    stage.say("top");
                    let paid = async {
                        stage.say("paid");
                        Ok::<_, StepError>(7)
                    };
                    let paid: u32 = context.once("pay", paid).await?;
                    context.sleep("rest", Duration::from_secs(3_600)).await?;
                    let answer: String = context.interrupt("ask", "?").await?;
                    let signal: String = context.signal("go", "go").await?;
                    Ok::<_, StepError>(state.and(format!("{paid} {answer} {signal}")))
                }
            })
            .build()
            .unwrap();
        let engine = |world: &World| world.engine.clone().with_clock(clock.clone());

        let slept = engine(&world).run(&graph, "r", Notes::default()).await.unwrap();
        assert_eq!(slept.status, RunStatus::Waiting);
        let entry = world.store.run(&run_id()).await.unwrap();
        let due = entry.summary.summary.wake_at.expect("somebody can know when it is due");
        assert_eq!(due.duration_since(entry.record.record().created_at), jiff::SignedDuration::from_hours(1));
        assert!(entry.summary.holder.is_none(), "nobody holds a run that only sleeps");
        clock.pass(Duration::from_secs(3_601));
        world.reopen();
        let asked = engine(&world).resume(&graph, "r").await.unwrap();
        // Another process must not append, and leaves a message.
        let lines = told(world.store.as_ref(), &run_id()).await.len();
        engine(&world).answer("r", &asked.waiting[0].wait.id, json!("yes")).await.unwrap();
        engine(&world).signal("r", "go", json!("now")).await.unwrap();
        assert_eq!(told(world.store.as_ref(), &run_id()).await.len(), lines);
        assert_eq!(world.store.signals(&run_id()).await.unwrap().len(), 2);
        world.reopen();
        let outcome = engine(&world).resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, ["7 yes now"]);
        assert!(world.store.signals(&run_id()).await.unwrap().is_empty(), "taken in with what they did");
        assert_eq!(stage.said(), ["top", "paid", "top", "top", "top"]);
        assert_told!(
            told(world.store.as_ref(), &run_id()).await,
            "main@1 started a(1) > a(1) | a started
             main@2 progress once/pay of a(1) | a started
             main@3 progress sleep/rest of a(1) | a started
             main@4 waiting a(1) | a waiting for a time = waiting
             main@5 started a(1) > a(1) | a started
             main@6 waiting a(1) | a waiting for an answer = waiting
             main@7 progress ask of a(1) > a(1) | a started
             main@8 waiting a(1)
             main@9 progress signal/go of a(1) > a(1) | a started
             main@10 completed a(1) | - = completed"
        );
    }
}
