//! Retries: retryable errors, on every kind of scope, and the number of attempts.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use waypost::graph::{Builder, ItemEnds};
use waypost::record::{FailureKind, RunStatus};
use waypost::store::{Scan, Store as _};
use waypost::{Context, Graph, Retry, StepError};

use waypost_testing::TestClock;

use crate::faulty::{World, run_id};
use crate::test_graphs::{Notes, Stage};

/// Whether the error is retryable: only a busy service is.
fn is_busy(error: &StepError) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}

/// Returns a step whose first attempts fail in these ways; the next attempt completes.
fn fails(
    stage: &Stage,
    builder: Builder<Notes>,
    name: &str,
    kinds: &'static [io::ErrorKind],
) -> Builder<Notes> {
    let stage = stage.clone();
    builder.step(name, move |state: Notes, context: Context| {
        let stage = stage.clone();
        async move {
            stage.pass(&format!("{}{}", context.step(), context.attempt())).await?;
            match kinds.get(context.attempt() as usize - 1) {
                Some(kind) => Err(StepError::from(io::Error::from(*kind))),
                None => Ok(state.and(context.step().as_str())),
            }
        }
    })
}

const BUSY: io::ErrorKind = io::ErrorKind::ResourceBusy;
const DENIED: io::ErrorKind = io::ErrorKind::PermissionDenied;

#[tokio::test]
async fn only_errors_that_are_worth_it_are_tried_again() {
    let table: [(&[io::ErrorKind], &str, RunStatus); 4] = [
        (&[BUSY, BUSY], "a1 a2 a3", RunStatus::Completed),
        (&[DENIED], "a1", RunStatus::Failed),
        (&[BUSY, DENIED], "a1 a2", RunStatus::Failed),
        // The budget is used up before the step completes.
        (&[BUSY, BUSY, BUSY], "a1 a2 a3", RunStatus::Failed),
    ];
    for (kinds, said, status) in table {
        for world in World::each() {
            let stage = Stage::default();
            let builder = fails(&stage, Graph::builder("retry"), "a", kinds);
            let graph = builder.retry(Retry::fixed(2, Duration::ZERO)).retry_when(is_busy).build().unwrap();

            let outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();

            assert_eq!((stage.said().join(" ").as_str(), outcome.status), (said, status), "{kinds:?}");
            let records = world.store.scan(&Scan::of(&run_id())).await.unwrap().records;
            let retried = |record: &waypost::record::Record| match &record.header().phase {
                waypost::record::Phase::Failed(failure) => Some((failure.retried, failure.kind)),
                _ => None,
            };
            let told: Vec<_> = records.iter().filter_map(retried).collect();
            let last = if status == RunStatus::Failed { told.len() - 1 } else { told.len() };
            for (at, (is_retried, kind)) in told.iter().enumerate() {
                let expect = if kinds[at] == BUSY { FailureKind::Error } else { FailureKind::Fatal };
                assert_eq!((*is_retried, *kind), (at < last, expect), "{told:?}");
            }
        }
    }
}

#[tokio::test]
async fn scopes_and_items_try_again_by_their_own_rule() {
    let world = World::memory();
    let stage = Stage::default();
    let builder = stage.steps(Graph::builder("retry"), &["plan"]);
    let builder =
        fails(&stage, builder, "a", &[BUSY]).retry(Retry::fixed(1, Duration::ZERO)).retry_when(is_busy);
    let builder =
        fails(&stage, builder, "b", &[DENIED]).retry(Retry::fixed(1, Duration::ZERO)).retry_when(is_busy);
    let builder = builder.fork("plan", ["a", "b"]).collect().join("merge", stage.merge());
    let work = stage.clone();
    let each = builder.each(
        "each",
        |_: &Notes| vec![BUSY_ITEM, DENIED_ITEM],
        |n: &u32| format!("n{n}"),
        move |n: u32, context: Context| {
            let stage = work.clone();
            async move {
                stage.say(format!("n{n}.{}", context.attempt()));
                let kind = if n == BUSY_ITEM { BUSY } else { DENIED };
                if context.attempt() == 1 { Err(io::Error::from(kind)) } else { Ok(n) }
            }
        },
    );
    let each = each.retry(Retry::fixed(1, Duration::ZERO)).retry_when(is_busy).collect();
    let builder = each.join(|mut state: Notes, mut ends: ItemEnds<u32, u32>, _| async move {
        while let Some(end) = ends.next().await? {
            state.done.push(format!("{}={}", end.key, end.result.is_ok()));
        }
        Ok::<_, StepError>(state)
    });
    let graph = builder.edge("merge", "each").build().unwrap();

    let outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::CompletedWithFailures);
    assert_eq!(outcome.state.done, ["plan", "a=a", "b=!permission denied", "n0=true", "n1=false"]);
    assert_eq!(stage.said_sorted(), ["a1", "a2", "b1", "merge", "n0.1", "n0.2", "n1.1", "plan"]);
}

const BUSY_ITEM: u32 = 0;
const DENIED_ITEM: u32 = 1;

// The budget counts failures: a crash neither uses nor restores it; a resume by a person resets it.
#[tokio::test]
async fn a_crash_neither_uses_the_budget_nor_gives_it_back() {
    for mut world in World::each() {
        let stage = Stage::default();
        let builder = fails(&stage, Graph::builder("retry"), "a", &[BUSY, BUSY, BUSY, BUSY, BUSY]);
        let graph = builder.retry(Retry::fixed(2, Duration::ZERO)).retry_when(is_busy).build().unwrap();
        let run = async |world: &World| world.engine.run(&graph, "r", Notes::default()).into_future().await;
        stage.crash(&mut world, "a2", run).await;
        stage.said();

        let failed = world.engine.resume(&graph, "r").await.unwrap();
        let of_crash = stage.said();
        world.reopen();
        let done = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!((failed.status, of_crash.join(" ").as_str()), (RunStatus::Failed, "a3 a4"));
        assert_eq!((done.status, stage.said().join(" ").as_str()), (RunStatus::Completed, "a5 a6"));
    }
}

// The clock was 30 days ahead at the start of the delay. It is corrected before the resume, or during the delay.
#[tokio::test(start_paused = true)]
async fn a_delay_is_not_longer_after_the_clock_was_set_back() {
    let ahead = waypost_testing::records::time(30 * 86_400);
    let right = waypost_testing::records::time(0);
    for is_in_session in [false, true] {
        for mut world in World::each() {
            let stage = Stage::default();
            let clock = Arc::new(TestClock::at(ahead));
            let builder = fails(&stage, Graph::builder("retry"), "a", &[BUSY]);
            let graph = builder.retry(Retry::fixed(1, Duration::from_secs(10))).build().unwrap();
            let engine = |world: &World| world.engine.clone().with_clock(clock.clone());
            let run = async |world: &World| engine(world).run(&graph, "r", Notes::default()).await;
            if is_in_session {
                let set = async {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    clock.set(right);
                };
                let began = tokio::time::Instant::now();
                let (outcome, ()) = tokio::join!(run(&world), set);
                assert_eq!(outcome.unwrap().status, RunStatus::Completed);
                assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
                continue;
            }
            tokio::time::timeout(Duration::from_secs(5), run(&world)).await.unwrap_err();
            world.reopen();
            clock.set(right);

            let began = tokio::time::Instant::now();
            let outcome = engine(&world).resume(&graph, "r").await.unwrap();

            assert_eq!((outcome.status, stage.said().join(" ")), (RunStatus::Completed, "a1 a2".to_owned()));
            let waited = began.elapsed();
            assert!((9..11).contains(&waited.as_secs()), "the whole delay, and no more: {waited:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_sleep_is_not_longer_after_the_clock_was_set_back() {
    for mut world in World::each() {
        let clock = Arc::new(TestClock::at(waypost_testing::records::time(30 * 86_400)));
        let graph = Graph::builder("sleep")
            .step("a", |state: Notes, context: Context| async move {
                context.sleep("long", Duration::from_secs(3_600)).await?;
                Ok::<_, StepError>(state.and("slept"))
            })
            .build()
            .unwrap();
        let engine = |world: &World| world.engine.clone().with_clock(clock.clone());
        let first = engine(&world).run(&graph, "r", Notes::default()).await.unwrap();
        assert_eq!(first.status, RunStatus::Waiting);
        world.reopen();
        clock.set(waypost_testing::records::time(0));

        let second = engine(&world).resume(&graph, "r").await.unwrap();
        assert_eq!(second.status, RunStatus::Waiting);
        world.reopen();
        clock.pass(Duration::from_secs(3_601));
        let third = engine(&world).resume(&graph, "r").await.unwrap();

        assert_eq!(third.status, RunStatus::Completed);
    }
}
