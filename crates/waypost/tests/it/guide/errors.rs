//! The code of docs/guide/errors.md.

use std::sync::Arc;

use waypost::{MemoryStore, ToStepError as _};

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waypost::{Context, Engine, FailureKind, Graph, Retry, RunStatus, StepError};

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Fetch {
    url: String,
    body: String,
}

/// `?` makes a retryable `StepError` from an error. `fatal` makes an error without a retry.
async fn fetch(mut state: Fetch, context: Context) -> Result<Fetch, StepError> {
    if state.url.is_empty() {
        return Err(StepError::fatal("there is no url"));
    }
    state.body = get(&state.url, context.attempt())?;
    Ok(state)
}

fn fetch_graph() -> Graph<Fetch> {
    Graph::<Fetch>::builder("fetch")
        .step("fetch", fetch)
        .retry(Retry::exponential(4).starting_at(Duration::from_millis(200)))
        .timeout(Duration::from_secs(30))
        .build()
        .unwrap()
}

/// Many programs have a boxed error for everything.
fn look_up(url: &str) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    if url.is_empty() { Err("there is no url".into()) } else { Ok(format!("what {url} says")) }
}

async fn look(mut state: Fetch, _: Context) -> Result<Fetch, StepError> {
    state.body = look_up(&state.url).retryable()?;
    Ok(state)
}

// The page said that any error becomes a `StepError` with `?`. What boxed errors and text lack for that is
// `std::error::Error`, which no conversion of ours can ask for and do without at once. So the page says how, and this
// compiles what it shows.
#[tokio::test]
async fn a_boxed_error_becomes_one_of_a_step() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let graph = Graph::<Fetch>::builder("look").step("look", look).build().unwrap();

    let failed = engine.run(&graph, "r", Fetch::default()).await.unwrap();

    let (_, failure) = failed.failed.unwrap();
    assert_eq!((failure.kind, failure.error), (FailureKind::Error, vec!["there is no url".to_owned()]));
}

/// A server that is busy twice.
fn get(url: &str, attempt: u32) -> io::Result<String> {
    if attempt <= 2 { Err(io::Error::other("busy")) } else { Ok(format!("what {url} says")) }
}

#[tokio::test(start_paused = true)]
async fn a_step_is_tried_again_until_it_succeeds() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let begin = Fetch { url: "http://localhost".to_owned(), ..Fetch::default() };
    let outcome = engine.run(&fetch_graph(), "r", begin).await.unwrap();
    assert_eq!(outcome.state.body, "what http://localhost says");

    let outcome = engine.run(&fetch_graph(), "no-url", Fetch::default()).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Failed);
    let (step, failure) = outcome.failed.unwrap();
    assert_eq!((step.as_str(), failure.kind), ("fetch", FailureKind::Fatal));
    assert_eq!(failure.error, ["there is no url"]);
}

#[tokio::test(start_paused = true)]
async fn errors_are_told_apart_by_type() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let graph = Graph::<Fetch>::builder("fetch")
        .step("fetch", |_: Fetch, _| async {
            let missing = io::Error::new(io::ErrorKind::NotFound, "no such page");
            Err::<Fetch, _>(missing)
        })
        .retry(Retry::fixed(3, Duration::from_secs(1)))
        .retry_when(|error| match error.downcast_ref::<io::Error>() {
            Some(error) => error.kind() != io::ErrorKind::NotFound,
            None => true,
        })
        .build()
        .unwrap();

    let outcome = engine.run(&graph, "r", Fetch::default()).await.unwrap();

    assert_eq!(outcome.failed.unwrap().1.error, ["no such page"]);
}

#[tokio::test]
async fn a_failed_run_is_resumed_at_the_step_that_failed() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let graph = fetch_graph();

    let outcome = engine.run(&graph, "r", Fetch::default()).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Failed);

    // Fix the cause, here in the state, and resume.
    let outcome = engine
        .resume(&graph, "r")
        .edit_state(|state| state.url = "http://localhost".to_owned())
        .await
        .unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
}
