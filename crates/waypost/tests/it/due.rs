//! Resumes of all due runs of several graphs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use waypost::engine::{NotCompleted, RunError};
use waypost::graph::{Child, Graphs, Update};
use waypost::memory::MemoryStore;
use waypost::{Context, Engine, Graph, RunStatus, StepError, ToStepError as _};

/// Builds a graph that asks a question in its only step.
fn asking() -> Graph<bool> {
    let ask = |_: bool, context: Context| async move { context.interrupt("may", "May I?").await };
    Graph::builder("asking").step("ask", ask).build().unwrap()
}

/// Builds a graph whose first attempt never ends.
fn hanging() -> Graph<u32> {
    let hang = |done: u32, context: Context| async move {
        if context.attempt() == 1 {
            std::future::pending::<()>().await;
        }
        Ok::<_, StepError>(done + 1)
    };
    Graph::builder("hanging").step("hang", hang).build().unwrap()
}

/// Drops a run in the middle of its step.
async fn crash(engine: &Engine, run: &str) {
    let (graph, time) = (hanging(), Duration::from_millis(50));
    tokio::time::timeout(time, engine.run(&graph, run, 0)).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn due_runs_of_known_graphs_are_resumed() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    crash(&engine, "cut").await;
    engine.run(&asking(), "answered", false).await.unwrap();
    engine.run(&asking(), "open", false).await.unwrap();
    engine.answer_step("answered", "ask", true).await.unwrap();

    let none = engine.resume_due(&Graphs::new()).await.unwrap();
    let resumed = engine.resume_due(&Graphs::new().with(&asking()).with(&hanging())).await.unwrap();
    let again = engine.resume_due(&Graphs::new().with(&asking()).with(&hanging())).await.unwrap();

    assert!(none.is_empty(), "{none:?}");
    let ended: Vec<_> =
        resumed.iter().map(|(run, end)| (run.as_str(), end.as_ref().unwrap().status)).collect();
    assert_eq!(ended, [("cut", RunStatus::Completed), ("answered", RunStatus::Completed)]);
    assert!(again.is_empty(), "{again:?}");
}

#[tokio::test]
async fn a_waiting_run_has_no_result() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let outcome = engine.run(&asking(), "r", false).await.unwrap();

    let NotCompleted { status, waiting, .. } = outcome.into_result().unwrap_err();
    assert_eq!((status, waiting.len()), (RunStatus::Waiting, 1));
}

#[tokio::test]
async fn a_question_is_answered_by_its_step() {
    let ask = |id: u32, context: Context| async move {
        context.interrupt::<u32>(&format!("item {id}"), json!(id)).await
    };
    let graph = Graph::<u32>::builder("asking")
        .each("each", |_| vec![1, 2], u32::to_string, ask)
        .join(|sum: u32, mut ends: waypost::graph::ItemEnds<u32, u32>, _| async move {
            let mut sum = sum;
            while let Some(end) = ends.next().await? {
                sum += end.result.fatal()?;
            }
            Ok::<_, StepError>(sum)
        })
        .build()
        .unwrap();
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    engine.run(&graph, "r", 0).await.unwrap();

    let several = engine.answer_step("r", "item", 5).await.unwrap_err();
    let none = engine.answer_step("r", "each", 5).await.unwrap_err();
    engine.answer_step("r", "each:1/item", 5).await.unwrap();
    engine.answer_step("r", "each:2/item", 7).await.unwrap();

    assert!(matches!(&several, RunError::SeveralWaits { waiting, .. } if waiting.len() == 2), "{several}");
    assert!(matches!(&none, RunError::NoSuchWait { waiting, .. } if waiting.len() == 2), "{none}");
    assert_eq!(engine.resume(&graph, "r").await.unwrap().into_result().unwrap(), 12);
    let item = engine.inspect_as::<Child<u32, u32>>(&graph, &"r/each:2@2".parse().unwrap()).await.unwrap();
    assert_eq!(item.state.item, 2);
    let wrong = engine.inspect(&graph, &"r/each:2@2".parse().unwrap()).await.unwrap_err();
    assert!(matches!(&wrong, RunError::NoState { why, .. } if why.contains("is not a `u32`")), "{wrong}");
}

#[tokio::test]
async fn a_forked_run_streams_its_events() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let graph = Graph::<u32>::builder("two")
        .step("a", |state: u32, _| async move { Ok::<_, StepError>(state + 1) })
        .step("b", |state: u32, _| async move { Ok::<_, StepError>(state * 10) })
        .chain(["a", "b"])
        .build()
        .unwrap();
    let outcome = engine.run(&graph, "r", 1).interrupt_after(["a"]).await.unwrap();

    let mut stream =
        engine.fork(&graph, &outcome.checkpoint(), "copy").edit_state(|state| *state = 5).stream();

    let (mut events, mut ended) = (0, None);
    while let Some(update) = stream.next().await {
        match update.unwrap() {
            Update::Event(_) => events += 1,
            Update::Ended(outcome) => ended = Some(outcome),
        }
    }
    assert!(events > 1);
    assert_eq!(ended.unwrap().into_result().unwrap(), 50);
}
