//! The code of docs/guide/first-graph.md.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waypost::{Context, Engine, Graph, GraphError, MemoryStore, StepError};

/// The state of the work, stored after every step.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Trip {
    city: String,
    degrees: Option<f64>,
    advice: String,
}

async fn measure(mut trip: Trip, _: Context) -> Result<Trip, StepError> {
    trip.degrees = Some(if trip.city == "Oslo" { -4.5 } else { 19.0 });
    Ok(trip)
}

async fn advise(mut trip: Trip, _: Context) -> Result<Trip, StepError> {
    let degrees = trip.degrees.ok_or_else(|| StepError::fatal("nothing was measured"))?;
    trip.advice = if degrees < 5.0 { "Take a coat." } else { "No coat needed." }.to_owned();
    Ok(trip)
}

fn trip() -> Result<Graph<Trip>, GraphError> {
    Graph::<Trip>::builder("trip")
        .step("measure", measure)
        .step("advise", advise)
        .chain(["measure", "advise"])
        .build()
}

#[tokio::test]
async fn a_graph_is_refused_by_the_name_of_what_is_wrong() {
    let refused = Graph::<Trip>::builder("trip")
        .step("measure", measure)
        .step("advise", advise)
        .edge("measure", "advice")
        .build()
        .unwrap_err();

    assert_eq!(
        refused.to_string(),
        "the edge from `measure` to `advice` names `advice`, which the graph does not have"
    );
}

#[tokio::test]
async fn every_step_leaves_a_checkpoint() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let begin = Trip { city: "Rome".to_owned(), ..Trip::default() };
    engine.run(&trip().unwrap(), "trip-2", begin).await.unwrap();

    let history = engine.history("trip-2").await.unwrap();
    let told: Vec<String> = history.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["trip-2@1 started measure", "trip-2@2 completed measure", "trip-2@3 completed advise"]);
}

#[test]
fn the_picture_is_the_one_of_the_page() {
    let graph = trip().unwrap();

    super::page_says("first-graph.md", &graph.mermaid());
}
