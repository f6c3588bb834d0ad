//! States that serde writes and cannot read, or reads as another value.
//!
//! Bug: a run whose state had a `u128` in a tagged enum wrote a checkpoint after each step, and none was readable
//! after a crash. Cause: an unreadable value shows only in a read, and the first read was the first resume. Fix:
//! a session reads back some of its states at once, and refuses a state that does not round-trip.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::error::Error as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waypost::engine::{Engine, RunError};
use waypost::graph::{Branches, ItemEnds, State};
use waypost::memory::MemoryStore;
use waypost::record::RunStatus;
use waypost::store::StoreError;
use waypost::{Context, END, Graph, RunId, StepError};

fn engine() -> Engine {
    Engine::new(Arc::new(MemoryStore::new()))
}

/// Runs two steps that keep the state. Returns the error and its cause.
async fn refused<S: State>(state: S) -> (String, String) {
    let engine = engine();
    let step = |state: S, _: Context| async move { Ok::<_, StepError>(state) };
    let graph = Graph::<S>::builder("g").step("a", step).step("b", step).edge("a", "b").build().unwrap();

    let Err(error) = engine.run(&graph, "r", state).await else { return Default::default() };

    assert!(matches!(error, RunError::Serialize { .. }), "{error}");
    let run = engine.store().run(&RunId::new("r").unwrap()).await;
    assert!(matches!(run, Err(StoreError::NotFound { .. })), "nothing is made of what cannot be read");
    (error.to_string(), error.source().unwrap().to_string())
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Wide { number: u128 },
    Plain { number: u64 },
}

#[tokio::test]
async fn what_cannot_be_read_again_is_refused_before_anything_runs() {
    #[derive(Clone, Serialize, Deserialize)]
    struct Renamed {
        #[serde(rename(serialize = "out", deserialize = "in"))]
        value: u8,
    }
    #[derive(Clone, Serialize, Deserialize)]
    struct Omitted {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        list: Vec<u8>,
    }
    #[derive(Clone, Serialize, Deserialize)]
    struct Forgetful {
        #[serde(skip_deserializing)]
        lost: u32,
    }
    #[derive(Clone, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Keyed {
        Numbers(BTreeMap<u8, u8>),
        Nothing,
    }

    let (error, wide) = refused(vec![Tagged::Wide { number: 5 }]).await;
    assert_eq!(error, "cannot write the state of run r at step `a`");
    assert_eq!(wide, "[0]: the state could not be read back: u128 is not supported at line 1 column 28");

    let (_, renamed) = refused(Renamed { value: 1 }).await;
    assert!(
        renamed.starts_with("the state: the state could not be read back: missing field `in`"),
        "{renamed}"
    );

    let (_, omitted) = refused(Omitted { list: Vec::new() }).await;
    assert!(
        omitted.starts_with("the state: the state could not be read back: missing field `list`"),
        "{omitted}"
    );

    let (_, forgetful) = refused(Forgetful { lost: 3 }).await;
    assert_eq!(forgetful, "lost: written as 3, read back as 0");

    let (_, keyed) = refused(Keyed::Numbers(BTreeMap::from([(1, 2)]))).await;
    assert!(
        keyed.starts_with("the state: the state could not be read back: data did not match any"),
        "{keyed}"
    );
    assert_eq!(refused(Keyed::Nothing).await, Default::default());
}

#[tokio::test]
async fn a_state_with_another_order_in_memory_is_not_refused() {
    #[derive(Clone, Serialize, Deserialize)]
    struct Mixed {
        sets: Vec<HashSet<u32>>,
        map: HashMap<String, HashSet<String>>,
        #[serde(flatten)]
        rest: HashMap<String, f64>,
        single: f32,
        maybe: Option<Option<u8>>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        list: Vec<u8>,
    }
    let names = (0..50).map(|name| name.to_string());
    let state = Mixed {
        sets: vec![(0..50).collect(), (0..50).collect()],
        map: names.clone().map(|name| (name, names.clone().collect())).collect(),
        rest: names.map(|name| (format!("f{name}"), 1.0 / 3.0)).collect(),
        single: 0.1,
        maybe: None,
        list: Vec::new(),
    };

    assert_eq!(refused(state).await, Default::default());
}

#[tokio::test]
async fn a_state_that_turns_bad_is_refused_and_work_is_kept() {
    let engine = engine();
    let graph = |wide: bool| {
        Graph::<Vec<Tagged>>::builder("g")
            .step("a", |state: Vec<Tagged>, _| async move { Ok::<_, StepError>(state) })
            .step("b", move |mut state: Vec<Tagged>, _| async move {
                state.push(if wide { Tagged::Wide { number: 5 } } else { Tagged::Plain { number: 5 } });
                Ok::<_, StepError>(state)
            })
            .edge("a", "b")
            .build()
            .unwrap()
    };

    let refused = engine.run(&graph(true), "r", Vec::new()).await.unwrap_err();

    assert_eq!(refused.to_string(), "cannot write the state of run r at step `b`");
    let history = engine.history("r").await.unwrap();
    assert_eq!(history.last().unwrap().to_string(), "r@2 completed a");
    let outcome = engine.resume(&graph(false), "r").await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
    assert!(matches!(outcome.state[..], [Tagged::Plain { number: 5 }]));
}

#[tokio::test]
async fn the_states_of_scopes_and_items_are_read_again_too() {
    let engine = engine();
    let keep = |state: Vec<Tagged>, _: Context| async move { Ok::<_, StepError>(state) };
    let forked = Graph::<Vec<Tagged>>::builder("g")
        .step("a", keep)
        .step("b", |_: Vec<Tagged>, _| async move { Ok::<_, StepError>(vec![Tagged::Wide { number: 5 }]) })
        .fork("a", ["b"])
        .join("j", |state: Vec<Tagged>, _: Branches<Vec<Tagged>>, _| async move { Ok::<_, StepError>(state) })
        .build()
        .unwrap();
    let items = Graph::<u32>::builder("g")
        .each(
            "it",
            |_| vec![1_u8],
            u8::to_string,
            |_, _| async move { Ok::<_, StepError>(Tagged::Wide { number: 5 }) },
        )
        .join(|state: u32, _: ItemEnds<u8, Tagged>, _| async move { Ok::<_, StepError>(state) })
        .build()
        .unwrap();

    let of_fork = engine.run(&forked, "f", Vec::new()).await.unwrap_err();
    let of_item = engine.run(&items, "i", 0).await.unwrap_err();

    assert_eq!(of_fork.to_string(), "cannot write the state of run f at step `b`");
    assert_eq!(of_item.to_string(), "cannot write the state of run i at step `item`");
    assert!(of_item.source().unwrap().to_string().starts_with("result: the state could not be read back"));
}

/// The first states of a session are all read back; later ones up to a share of the written bytes.
#[tokio::test]
async fn a_bad_state_is_found_within_a_bounded_count_of_steps() {
    let engine = engine();
    let begin = 200_u64;
    let graph = Graph::<(u64, String, Vec<Tagged>)>::builder("g")
        .step("a", move |(turn, pad, mut list): (u64, String, Vec<Tagged>), _| async move {
            if turn == begin {
                list.push(Tagged::Wide { number: 1 });
            }
            Ok::<_, StepError>((turn + 1, pad, list))
        })
        .route("a", ["a", END], move |(turn, _, _)| if *turn < begin + 100 { "a" } else { END })
        .build()
        .unwrap();

    let refused = engine.run(&graph, "r", (0, "x".repeat(2_000), Vec::new())).await.unwrap_err();

    let done = engine.history("r").await.unwrap().len() as u64 - 1;
    assert!((begin..begin + 40).contains(&done), "{done}");
    assert!(refused.source().unwrap().to_string().starts_with("[2][0]: the state could not be read back"));
}
