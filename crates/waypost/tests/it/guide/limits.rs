//! The code of docs/guide/limits.md.

use std::error::Error as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waypost::{Context, Engine, Graph, MemoryStore, StepError};

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Rates {
    rates: Vec<f64>,
}

async fn rate(mut state: Rates, _: Context) -> Result<Rates, StepError> {
    state.rates = vec![1.0, f64::NAN];
    Ok(state)
}

#[tokio::test]
async fn a_state_that_json_would_change_is_refused_by_field() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let graph = Graph::<Rates>::builder("rates").step("rate", rate).build().unwrap();

    let refused = engine.run(&graph, "r", Rates::default()).await.unwrap_err();
    assert_eq!(refused.to_string(), "cannot write the state of run r at step `rate`");
    assert_eq!(refused.source().unwrap().to_string(), "rates[1]: JSON has no NaN");
}

#[tokio::test]
async fn a_strict_graph_refuses_the_same_in_release_builds() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let graph = Graph::<Rates>::builder("rates").step("rate", rate).build().unwrap().strict_states();

    assert!(engine.run(&graph, "r", Rates::default()).await.is_err());
}

#[test]
fn the_limits_are_those_of_the_page() {
    use waypost::engine::{MEMO_BYTES_MAX, MEMOS_MAX};
    use waypost::graph::{PARALLEL_DEFAULT, SLEEP_IN_MEMORY_MAX, STOP_GRACE};
    use waypost::id::{RUN_ID_BYTES_MAX, SCOPE_DEPTH_MAX, SCOPE_KEY_BYTES_MAX, STEP_ID_BYTES_MAX};
    use waypost::record::{FAILURE_CAUSES_MAX, FAILURE_TEXT_BYTES_MAX, STATE_BYTES_MAX};
    use waypost::shape::STEPS_MAX;

    let page = std::fs::read_to_string(super::pages().join("limits.md")).unwrap();
    let told = [
        format!("| the state of a scope | {} MiB |", STATE_BYTES_MAX >> 20),
        format!("| a value that a step keeps under a key | {} MiB |", MEMO_BYTES_MAX >> 20),
        format!("| keys that a step keeps in one pass | {MEMOS_MAX} |"),
        format!("| steps of a graph | {STEPS_MAX} |"),
        format!("| the name of a step | {STEP_ID_BYTES_MAX} bytes |"),
        format!("| the id of a run | {RUN_ID_BYTES_MAX} bytes |"),
        format!("| the key of an item | {SCOPE_KEY_BYTES_MAX} bytes |"),
        format!("| forks in forks | {SCOPE_DEPTH_MAX} deep |"),
        format!(
            "| text of an error in a chain of causes; the rest is cut | {} KiB |",
            FAILURE_TEXT_BYTES_MAX >> 10
        ),
        format!("| errors kept of a chain | {FAILURE_CAUSES_MAX} |"),
        format!("| items at work at once, by default | {PARALLEL_DEFAULT} |"),
        format!("| a sleep that keeps the process | {} s |", SLEEP_IN_MEMORY_MAX.as_secs()),
        format!("| time for a step to end after a stop | {} s |", STOP_GRACE.as_secs()),
    ];

    for line in told {
        assert!(page.contains(&line), "docs/guide/limits.md does not say: {line}");
    }
}
