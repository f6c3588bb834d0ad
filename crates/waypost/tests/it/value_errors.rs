//! Errors about reading and writing values name the right value.
//!
//! Bug: every resume reported an error of 5 MB, or an event of 70 MB, as a state that cannot be written. An
//! unreadable state was reported three times over, and in a join without its scope. Cause: the state and other
//! values shared one error, and errors included the text of their cause. Fix: error chains are cut to the size of
//! a header, the two errors are separate, and each text has only its own facts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waypost::engine::{Engine, RunError};
use waypost::graph::Branches;
use waypost::memory::MemoryStore;
use waypost::record::{Claim, Pack, RunStatus};
use waypost::{Context, Graph, StepError};

fn engine() -> Engine {
    Engine::new(Arc::new(MemoryStore::new()))
}

#[tokio::test]
async fn an_error_of_many_megabytes_fails_its_step_and_is_cut() {
    let engine = engine();
    let graph = Graph::<u32>::builder("g")
        .step("a", |_: u32, _| async move { Err::<u32, _>(StepError::fatal("é".repeat(3 << 20))) })
        .build()
        .unwrap();

    let outcome = engine.run(&graph, "r", 0).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Failed);
    let (_, failure) = outcome.failed.unwrap();
    assert!(failure.error[0].len() < 17 << 10);
    assert!(failure.error[0].ends_with("é … (6291456 bytes in all)"));
}

#[tokio::test]
async fn what_is_not_the_state_is_not_told_as_the_state() {
    let engine = engine();
    let graph = Graph::<u32>::builder("g")
        .step("a", |state: u32, _| async move { Ok::<_, StepError>(state) })
        .evidence(|_| Pack::all([Claim::file("f".repeat(3 << 20))]))
        .build()
        .unwrap();

    let refused = engine.run(&graph, "r", 0).await;

    match refused {
        Err(error @ RunError::Record { .. }) => {
            assert_eq!(error.to_string(), "cannot write a record of run r at step `a`");
        }
        other => panic!("{other:?}"),
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Old {
    list: Vec<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct New {
    list: Vec<u32>,
    more: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Other {
    list: Vec<String>,
}

fn two<S: waypost::graph::State>() -> Graph<S> {
    let keep = |state: S, _: Context| async move { Ok::<_, StepError>(state) };
    Graph::<S>::builder("g").step("a", keep).step("b", keep).edge("a", "b").build().unwrap()
}

#[tokio::test]
async fn a_state_that_cannot_be_read_is_told_once() {
    let engine = engine();
    engine.run(&two(), "r", Old { list: vec![1] }).interrupt_before(["b"]).await.unwrap();

    let missing = engine.resume(&two::<New>(), "r").await.unwrap_err();
    let other = engine.resume(&two::<Other>(), "r").await.unwrap_err();

    assert_eq!(missing.to_string(), "cannot read the state of r@3: missing field `more` at line 1 column 12");
    assert_eq!(
        other.to_string(),
        "cannot read the state of r@3: list[0]: invalid type: integer `1`, expected a string at line 1 column 10"
    );
}

#[tokio::test]
async fn a_join_says_whose_state_it_cannot_read() {
    let engine = engine();
    fn graph<S: waypost::graph::State>() -> Graph<S> {
        let keep = |state: S, _: Context| async move { Ok::<_, StepError>(state) };
        let join = |_: S, mut branches: Branches<S>, _: Context| async move {
            Ok::<_, StepError>(branches.0.remove(0).result.unwrap())
        };
        Graph::<S>::builder("g")
            .step("a", keep)
            .step("b", keep)
            .fork("a", ["b"])
            .join("j", join)
            .build()
            .unwrap()
    }
    engine.run(&graph(), "r", Old { list: vec![1] }).interrupt_after(["b"]).await.unwrap();
    let edit: fn(&mut serde_json::Value) = |state| state["more"] = 1.into();

    // The main scope has the new type; the scope has the old one.
    let edited = engine.resume(&graph::<serde_json::Value>(), "r").edit_state(edit).without_running().await;
    assert_eq!(edited.unwrap().status, RunStatus::Interrupted);
    let outcome = engine.resume(&graph::<New>(), "r").await;

    let told = match outcome {
        Ok(outcome) => outcome.failed.unwrap().1.error.join(": "),
        Err(error) => error.to_string(),
    };
    assert!(told.starts_with("cannot read the state of r/a:b@"), "{told}");
    assert!(told.contains(": missing field `more`"), "{told}");
}
