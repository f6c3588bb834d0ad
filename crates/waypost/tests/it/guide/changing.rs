//! The code of docs/guide/changing.md.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waypost::engine::OnChange;
use waypost::memory::MemoryStore;
use waypost::record::RunStatus;
use waypost::{Context, Engine, Graph, StepError};

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
    //@ first
    let graph = Graph::<Load>::builder("load")
        .step("fetch", fetch)
        .step("clean", clean)
        .edge("fetch", "clean")
        .build()
        .unwrap();
    engine.run(&graph, "r", Load::default()).interrupt_before(["clean"]).await.unwrap();
    //@

    //@ changed
    let changed = Graph::<Load>::builder("load")
        .step("fetch", fetch)
        .step("clean", clean)
        .revision(2) // It does something else than before.
        .step("store", store)
        .edge("fetch", "clean")
        .edge("clean", "store")
        .build()
        .unwrap();

    let refused = engine.resume(&changed, "r").await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the definition does not fit run r: step `clean` does something else, step `store` is new, \
         and nobody said to go on with that"
    );

    let outcome = engine.resume(&changed, "r").on_change(OnChange::Adopt).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
    //@
}

mod before {
    use super::{Deserialize, Serialize};

    //@ old-state
    #[derive(Debug, Default, Clone, Serialize, Deserialize)]
    struct Order {
        items: Vec<String>,
    }
    //@

    pub(super) fn order() -> impl waypost::graph::State + Default {
        Order { items: vec!["pen".to_owned()] }
    }
}

//@ new-state
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Order {
    items: Vec<String>,
    #[serde(default)]
    currency: Option<String>,
}
//@

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
