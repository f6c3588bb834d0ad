//! The code of docs/guide/loops.md.

use std::sync::Arc;

use waypost::MemoryStore;

use serde::{Deserialize, Serialize};
use waypost::{Context, END, Engine, FailureKind, Graph, RunStatus, StepError};

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Search {
    hits: Vec<String>,
}

async fn search(mut state: Search, context: Context) -> Result<Search, StepError> {
    let pass = context.iteration()[0]; // From 1.
    state.hits.push(format!("hit {pass}"));
    Ok(state)
}

async fn rate(state: Search, _: Context) -> Result<Search, StepError> {
    Ok(state)
}

fn three_hits() -> Graph<Search> {
    Graph::<Search>::builder("search")
        .step("search", search)
        .step("rate", rate)
        .edge("search", "rate")
        .route("rate", ["search", END], |state| if state.hits.len() < 3 { "search" } else { END })
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_loop_runs_until_its_route_leads_out() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let outcome = engine.run(&three_hits(), "r", Search::default()).await.unwrap();

    assert_eq!(outcome.state.hits, ["hit 1", "hit 2", "hit 3"]);
}

#[tokio::test]
async fn a_limit_ends_a_loop_that_does_not_end() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let endless = Graph::<Search>::builder("endless")
        .step("search", search)
        .route("search", ["search", END], |_| "search")
        .build()
        .unwrap();

    let outcome = engine.run(&endless, "r", Search::default()).step_limit(50).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Failed);
    let (step, failure) = outcome.failed.unwrap();
    assert_eq!((step.as_str(), failure.kind), ("search", FailureKind::Limit));

    // The run stores the limit. A resume needs a greater limit.
    let outcome = engine.resume(&endless, "r").step_limit(60).await.unwrap();
    assert_eq!(outcome.state.hits.len(), 60);
}

#[tokio::test]
async fn a_choice_that_was_not_declared_fails_its_step() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let graph = Graph::<Search>::builder("search")
        .step("search", rate)
        .step("rate", rate)
        .route("search", ["rate", END], |_| "rest")
        .build()
        .unwrap();

    let outcome = engine.run(&graph, "r", Search::default()).await.unwrap();

    assert_eq!(
        outcome.failed.unwrap().1.error,
        ["the route after step `search` chose `rest`, declared are `rate`, `end`"]
    );
}
