//! Checkpoints inside a long step.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use waypost::graph::ItemEnds;
use waypost::record::{Phase, Reason, Record, RunStatus, Usage};
use waypost::store::{Scan, Store as _};
use waypost::{Context, Engine, Graph, MemoryStore, RunId, StepError};

const SECOND: Duration = Duration::from_secs(1);

/// Builds two items; the first takes two and a half seconds and counts its tokens at its start.
fn slow(paid: Arc<AtomicU32>) -> Graph<u64> {
    Graph::<u64>::builder("slow")
        .each(
            "work",
            |_| vec![2_500, 10],
            |ms: &u64| format!("n{ms}"),
            move |ms: u64, context: Context| {
                let paid = Arc::clone(&paid);
                async move {
                    context
                        .once("pay", async { Ok::<_, StepError>(paid.fetch_add(1, Ordering::Relaxed)) })
                        .await?;
                    context.usage(&Usage { tokens_in: 7, ..Usage::default() });
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    Ok::<_, StepError>(ms)
                }
            },
        )
        .join(|mut sum: u64, mut ends: ItemEnds<u64, u64>, _| async move {
            while let Some(end) = ends.next().await? {
                sum += end.result.unwrap();
            }
            Ok::<_, StepError>(sum)
        })
        .build()
        .unwrap()
}

/// Returns the progress reported in a scope while its step ran, and the used tokens.
async fn told(store: &MemoryStore, scope: &str) -> Vec<(Value, u64)> {
    let scan = Scan { scope: Some(scope.parse().unwrap()), ..Scan::of(&RunId::new("r").unwrap()) };
    let records = store.scan(&scan).await.unwrap().records;
    let told = |record: &Record| match &record.header().phase {
        Phase::Progress { key, value } if record.header().reason == Reason::Interval => {
            assert_eq!(key, "running");
            let tokens = record.header().usage.as_ref().map_or(0, |usage| usage.tokens_in);
            Some((value.clone(), tokens))
        }
        _ => None,
    };
    records.iter().filter_map(told).collect()
}

#[tokio::test(start_paused = true)]
async fn a_long_step_of_any_scope_writes_interval_checkpoints() {
    let store = Arc::new(MemoryStore::new());
    let graph = slow(Arc::default());

    let outcome = Engine::new(store.clone()).run(&graph, "r", 0).checkpoint_interval(SECOND).await.unwrap();

    assert_eq!((outcome.status, outcome.state), (RunStatus::Completed, 2_510));
    let first = (json!({ "elapsed_ms": 1_000 }), 7);
    let second = (json!({ "elapsed_ms": 2_000 }), 0);
    assert_eq!(told(&store, "work:n2500").await, [first, second], "what is told once is not told again");
    assert!(told(&store, "work:n10").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn progress_is_not_a_result_and_resumes_keep_reporting() {
    let (store, paid) = (Arc::new(MemoryStore::new()), Arc::new(AtomicU32::new(0)));
    let graph = slow(paid.clone());
    let engine = Engine::new(store.clone());
    let run = engine.run(&graph, "r", 0).checkpoint_interval(SECOND).into_future();
    let cut = tokio::time::timeout(Duration::from_millis(2_200), run).await;
    assert!(cut.is_err(), "it was to be cut");

    let outcome = engine.resume(&graph, "r").await.unwrap();

    assert_eq!(outcome.state, 2_510);
    assert_eq!(paid.load(Ordering::Relaxed), 2, "each item paid once");
    let elapsed: Vec<_> =
        told(&store, "work:n2500").await.iter().map(|(value, _)| value["elapsed_ms"].clone()).collect();
    assert_eq!(elapsed, [1_000, 2_000, 1_000, 2_000]);
}

#[tokio::test(start_paused = true)]
async fn progress_needs_an_observer_and_a_minimum_interval() {
    for (interval, count) in [(None, 0), (Some(Duration::ZERO), 24)] {
        let store = Arc::new(MemoryStore::new());
        let (graph, engine) = (slow(Arc::default()), Engine::new(store.clone()));
        let run = engine.run(&graph, "r", 0);
        let run = interval.into_iter().fold(run, |run, interval| run.checkpoint_interval(interval));

        run.await.unwrap();

        assert_eq!(told(&store, "work:n2500").await.len(), count);
    }
}
