//! A first graph: two steps over a state, stored in the folder `trips`.
//!
//! ```text
//! cargo run -p waypost --example first_graph
//! ```
//!
//! Kill the program while it is `advising`, and start it again: it does not measure again.
#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waypost::{Context, Engine, FileStore, Graph, GraphError, StepError};

/// The state of the work, stored after every step.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Trip {
    city: String,
    degrees: Option<f64>,
    advice: String,
}

async fn measure(mut trip: Trip, _: Context) -> Result<Trip, StepError> {
    println!("measuring in {}", trip.city);
    trip.degrees = Some(if trip.city == "Oslo" { -4.5 } else { 19.0 });
    Ok(trip)
}

async fn advise(mut trip: Trip, _: Context) -> Result<Trip, StepError> {
    println!("advising");
    tokio::time::sleep(Duration::from_secs(2)).await; // Long work: kill the program here.
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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::new(Arc::new(FileStore::open("trips")?));
    let begin = Trip { city: "Oslo".to_owned(), ..Trip::default() };

    let outcome = engine.run(&trip()?, "trip-1", begin).or_resume().await?;

    println!("{}", outcome.into_result()?.advice);
    Ok(())
}
