//! The next step gets a state as read back, and an error about an unkeepable state names the step that returned
//! it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waypost::engine::RunError;
use waypost::graph::{Branches, ItemEnds};
use waypost::memory::MemoryStore;
use waypost::record::RunStatus;
use waypost::{Context, END, Engine, Graph, StepError};

/// A state with a field that is skipped in serialization.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct Session {
    user: String,
    #[serde(skip)]
    token: String,
    saw: Vec<String>,
}

fn engine() -> Engine {
    Engine::new(Arc::new(MemoryStore::new()))
}

/// Notes the step's input token and sets another.
async fn step(mut session: Session, context: Context) -> Result<Session, StepError> {
    session.saw.push(format!("{} saw `{}`", context.step(), session.token));
    session.token = format!("token of {}", context.step());
    Ok(session)
}

// Bug: in the first run the next step still had the skipped field, and after a crash it was missing.
#[tokio::test]
async fn a_field_that_is_not_written_is_missing_for_the_next_step() {
    let graph = Graph::<Session>::builder("skip")
        .step("a", step)
        .step("b", step)
        .edge("a", "b")
        .route("b", ["c", END], |session| if session.token.is_empty() { "c" } else { END })
        .step("c", step)
        .build()
        .unwrap()
        .strict_states();
    let begin = Session { token: "of the caller".to_owned(), ..Session::default() };

    let outcome = engine().run(&graph, "r", begin).await.unwrap();

    assert_eq!(outcome.state.saw, ["a saw ``", "b saw ``", "c saw ``"]);
    assert_eq!(outcome.state.token, "");
}

#[tokio::test]
async fn scopes_items_and_inner_graphs_see_no_unwritten_field() {
    let inner = Graph::<Session>::builder("inner").step("in", step).build().unwrap();
    let graph = Graph::<Session>::builder("skip")
        .step("plan", step)
        .step("one", step)
        .fork("plan", ["one"])
        .join("merge", |mut session: Session, branches: Branches<Session>, _| async move {
            session.saw.extend(branches.into_iter().flat_map(|branch| branch.result.unwrap().saw).skip(1));
            Ok::<_, StepError>(session)
        })
        .subgraph(
            "sub",
            &inner,
            |_| Session { token: "of enter".to_owned(), ..Session::default() },
            |session, ended| session.saw.extend(ended.saw),
        )
        .edge("merge", "sub")
        .each(
            "item",
            |_| vec![1],
            ToString::to_string,
            |_: u32, _| async {
                Ok::<_, StepError>(Session { token: "of an item".to_owned(), ..Session::default() })
            },
        )
        .join(|mut session: Session, ends: ItemEnds<u32, Session>, _| async move {
            let mut ends = ends;
            while let Some(end) = ends.next().await? {
                session.saw.push(format!("item saw `{}`", end.result.unwrap().token));
            }
            Ok::<_, StepError>(session)
        })
        .edge("sub", "item")
        .build()
        .unwrap();

    let outcome = engine().run(&graph, "r", Session::default()).await.unwrap();

    assert_eq!(outcome.state.saw, ["plan saw ``", "one saw ``", "in saw ``", "item saw ``"]);
}

/// A state with a field whose written form reads as another type.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Order {
    items: Vec<String>,
    #[serde(default, skip_deserializing)]
    note: String,
}

#[tokio::test]
async fn a_state_that_comes_back_otherwise_names_step_and_field() {
    let graph = Graph::<Order>::builder("order")
        .step("fill", |mut order: Order, _| async move {
            // More bytes than a session reads back by default.
            order.items = vec!["pen".repeat(100); 1_000];
            Ok::<_, StepError>(order)
        })
        .step("sign", |mut order: Order, _| async move {
            order.note = "signed".to_owned();
            Ok::<_, StepError>(order)
        })
        .step("ship", |order: Order, _| async move { Ok::<_, StepError>(order) })
        .edge("fill", "sign")
        .edge("sign", "ship")
        .build()
        .unwrap()
        .strict_states();

    let refused = engine().run(&graph, "r", Order::default()).await.unwrap_err();

    assert_eq!(chain(&refused), SIGNED);
}

const SIGNED: &str =
    "cannot write the state of run r at step `sign`: note: written as \"signed\", read back as \"\"";

fn chain(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", chain(source)))
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Price {
    price: f64,
}

async fn keeps(price: Price, _: Context) -> Result<Price, StepError> {
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(price)
}

async fn divides(_: Price, _: Context) -> Result<Price, StepError> {
    Ok(Price { price: f64::NAN })
}

/// Returns the step that an error names.
fn named(error: &RunError) -> &str {
    match error {
        RunError::Serialize { step: Some(step), .. } => step.as_str(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn nan_names_the_step_that_made_it() {
    let line = |builder: waypost::graph::Builder<Price>| {
        let builder = builder.step("a", keeps).step("bad", divides).step("c", keeps);
        builder.edge("a", "bad").edge("bad", "c")
    };
    let plain = line(Graph::builder("line")).build().unwrap();
    let careful = line(Graph::builder("line")).not_idempotent().build().unwrap();
    let looped = line(Graph::builder("line"))
        .route("c", ["a", END], |price| if price.price.is_nan() { END } else { "a" })
        .build()
        .unwrap();
    for (graph, holds) in [(&plain, ""), (&plain, "c"), (&careful, ""), (&looped, "")] {
        let run = engine();
        let run = run
            .run(graph, "r", Price::default())
            .interrupt_before([holds].iter().filter(|hold| !hold.is_empty()));
        let refused = run.await.unwrap_err();
        assert_eq!(named(&refused), "bad", "held before `{holds}`");
        assert!(chain(&refused).ends_with("price: JSON has no NaN"), "{}", chain(&refused));
    }
}

#[tokio::test]
async fn nan_in_a_scope_or_an_inner_graph_names_the_step() {
    let fork = Graph::<Price>::builder("fork")
        .step("plan", keeps)
        .step("good", keeps)
        .step("bad", divides)
        .step("after", keeps)
        .edge("bad", "after")
        .fork("plan", ["good", "bad"])
        .join("merge", |price: Price, _: Branches<Price>, _| async move { Ok::<_, StepError>(price) })
        .build()
        .unwrap();
    let inner = Graph::<Price>::builder("inner").step("bad", divides).build().unwrap();
    let outer = Graph::<Price>::builder("outer")
        .subgraph("sub", &inner, Price::clone, |price, ended| *price = ended)
        .build()
        .unwrap();
    let joins = Graph::<Price>::builder("join")
        .step("plan", keeps)
        .step("good", keeps)
        .fork("plan", ["good"])
        .join("bad", |_: Price, _: Branches<Price>, _| async move {
            Ok::<_, StepError>(Price { price: f64::INFINITY })
        })
        .build()
        .unwrap();
    for graph in [fork, outer, joins] {
        let refused = engine().run(&graph, "r", Price::default()).await.unwrap_err();
        assert_eq!(named(&refused), "bad", "{}", graph.name());
    }
}

#[tokio::test]
async fn the_run_goes_on_once_the_step_makes_a_number() {
    let graph = |bad: bool| {
        let step = move |price: Price, _: Context| async move {
            Ok::<_, StepError>(if bad {
                Price { price: f64::NAN }
            } else {
                Price { price: price.price + 1.0 }
            })
        };
        Graph::<Price>::builder("line").step("a", step).build().unwrap()
    };
    let engine = engine();
    assert_eq!(named(&engine.run(&graph(true), "r", Price::default()).await.unwrap_err()), "a");

    let outcome = engine.resume(&graph(false), "r").await.unwrap();

    assert_eq!((outcome.status, outcome.state.price), (RunStatus::Completed, 1.0));
}
