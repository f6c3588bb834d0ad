//! The code of docs/guide/changing.md.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waypost::{Context, Engine, Graph, MemoryStore, OnChange, RunStatus, StepError};

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Load {
    rows: u32,
}

async fn fetch(mut load: Load, _: Context) -> Result<Load, StepError> {
    load.rows = 10;
    Ok(load)
}

async fn clean(load: Load, _: Context) -> Result<Load, StepError> {
    Ok(load)
}

async fn store(load: Load, _: Context) -> Result<Load, StepError> {
    Ok(load)
}

#[tokio::test]
async fn a_changed_graph_is_refused_until_it_is_adopted() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let graph = Graph::<Load>::builder("load")
        .step("fetch", fetch)
        .step("clean", clean)
        .edge("fetch", "clean")
        .build()
        .unwrap();
    engine.run(&graph, "r", Load::default()).interrupt_before(["clean"]).await.unwrap();

    let changed = Graph::<Load>::builder("load")
        .step("fetch", fetch)
        .step("clean", clean)
        .revision(2) // The meaning of the step changed.
        .step("store", store)
        .edge("fetch", "clean")
        .edge("clean", "store")
        .build()
        .unwrap();

    let refused = engine.resume(&changed, "r").await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the definition does not fit run r: step `clean` now leads to `store`, and led to `end`, \
         step `store` is new, and nobody said to go on with that"
    );

    let outcome = engine.resume(&changed, "r").on_change(OnChange::Adopt).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
}

mod before {
    use super::{Deserialize, Serialize};

    #[derive(Debug, Default, Clone, Serialize, Deserialize)]
    struct Order {
        items: Vec<String>,
    }

    pub(super) fn order() -> impl waypost::graph::State {
        Order { items: vec!["pen".to_owned()] }
    }
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Order {
    items: Vec<String>,
    #[serde(default)]
    currency: Option<String>,
}

fn pack_and_ship<S: waypost::graph::State>() -> Graph<S> {
    Graph::<S>::builder("order")
        .step("pack", |order: S, _| async move { Ok::<_, StepError>(order) })
        .step("ship", |order: S, _| async move { Ok::<_, StepError>(order) })
        .edge("pack", "ship")
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_state_without_the_new_field_is_read() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let old = pack_and_ship();
    engine.run(&old, "r", before::order()).interrupt_before(["ship"]).await.unwrap();

    let outcome = engine.resume(&pack_and_ship::<Order>(), "r").await.unwrap();

    assert_eq!((outcome.state.items, outcome.state.currency), (vec!["pen".to_owned()], None));
}

#[tokio::test]
async fn a_state_is_migrated_when_it_is_read() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let old = pack_and_ship();
    engine.run(&old, "r", before::order()).interrupt_before(["ship"]).await.unwrap();

    use serde_json::json;
    use waypost::{Migrations, RunError};

    #[derive(Debug, Default, Clone, Serialize, Deserialize)]
    struct Priced {
        item: String,
        amount: u32,
        currency: String,
    }

    let migrations = Migrations::builder()
        .add(0, |order| {
            order["currency"] = json!("EUR");
            Ok(())
        })
        .lossy(1, "an order has one item", |order| {
            let item = order["items"][0].clone();
            *order = json!({ "item": item, "amount": 1, "currency": order["currency"] });
            Ok(())
        })
        .build()
        .unwrap();

    let graph = Graph::<Priced>::builder("order")
        .migrations(migrations)
        .step("pack", |order: Priced, _| async move { Ok::<_, StepError>(order) })
        .step("ship", |order: Priced, _| async move { Ok::<_, StepError>(order) })
        .edge("pack", "ship")
        .build()
        .unwrap();

    let outcome = engine.resume(&graph, "r").await.unwrap();
    assert_eq!((outcome.state.item.as_str(), outcome.state.currency.as_str()), ("pen", "EUR"));

    // The old program refuses states of the new program.
    let refused = engine.resume(&old, "r").await;
    assert!(matches!(refused, Err(RunError::Version { found: 2, supported: 0, .. })));
}
