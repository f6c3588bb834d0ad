//! Steps that borrow the resources of their graph.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use waypost::graph::ItemEnds;
use waypost::memory::MemoryStore;
use waypost::{Context, Engine, Graph, Retry, RunStatus, StepError, ToStepError as _};

/// A client that answers from the second call on.
#[derive(Debug, Default)]
struct Client {
    calls: AtomicU32,
}

impl Client {
    fn get(&self, id: u32) -> Result<u32, String> {
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 => Err("the service is not up".to_owned()),
            _ => Ok(id * 10),
        }
    }
}

async fn fetch(ids: Vec<u32>, _: Context, client: &Client) -> Result<Vec<u32>, StepError> {
    let first = client.get(1).retryable()?;
    Ok([ids, vec![first]].concat())
}

async fn fetch_item(id: u32, _: Context, client: &Client) -> Result<u32, StepError> {
    client.get(id).fatal()
}

async fn collect(mut ids: Vec<u32>, mut ends: ItemEnds<u32, u32>, _: Context) -> Result<Vec<u32>, StepError> {
    while let Some(end) = ends.next().await? {
        ids.push(end.result.fatal()?);
    }
    Ok(ids)
}

#[tokio::test]
async fn steps_and_items_borrow_the_resources() {
    let graph = Graph::<Vec<u32>>::with_resources("fetches", Client::default())
        .step_using("fetch", fetch)
        .retry(Retry::fixed(1, std::time::Duration::ZERO))
        .each_using("each", |_| vec![2, 3], u32::to_string, fetch_item)
        .join(collect)
        .step("last", |ids: Vec<u32>, _| async move { Ok::<_, StepError>(ids) })
        .chain(["fetch", "each", "last"])
        .build()
        .unwrap();
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let outcome = engine.run(&graph, "r", Vec::new()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed, "{outcome:?}");
    assert_eq!(outcome.checkpoint().to_string(), format!("r@{}", outcome.at));
    assert_eq!(outcome.into_result().unwrap(), [10, 20, 30]);
}

#[tokio::test]
async fn settings_beside_a_step_apply_to_that_step() {
    let graph = Graph::<Vec<u32>>::with_resources("fetches", Client::default())
        .step_using("fetch", fetch)
        .step_with(
            "shaky",
            |ids: Vec<u32>, context: Context| async move {
                if context.attempt() == 1 { Err("shaky").retryable() } else { Ok(ids) }
            },
            |step| step.retry(Retry::fixed(1, std::time::Duration::ZERO)),
        )
        .start(String::from("shaky"))
        .edge("shaky", String::from("fetch"))
        .build()
        .unwrap();
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let outcome = engine.run(&graph, String::from("r"), Vec::new()).await.unwrap();

    // `shaky` was retried; `fetch` has no retry.
    let refused = outcome.into_result().unwrap_err();
    assert_eq!(refused.to_string(), "run r is failed: step `fetch` failed: the service is not up");
    assert_eq!(refused.failures[0].step.as_str(), "fetch");
}
