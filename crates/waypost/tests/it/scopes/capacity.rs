//! The number of running scopes, with scopes that wait inside their own scopes.

use std::future::IntoFuture as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use waypost::record::RunStatus;
use waypost::{Context, Graph, StepError};

use crate::faulty::World;
use crate::test_graphs::{Notes, Stage};

/// Builds a graph in which `y` asks inside a fork, and each sibling asks in its own inner graph. One scope runs
/// at a time.
fn questions_within(stage: &Stage, graphs: &[&str]) -> Graph<Notes> {
    let inner = Graph::builder("inner").step("p", stage.ask()).build().unwrap();
    let mut builder =
        stage.steps(Graph::builder("asks"), &["s"]).step("y", stage.ask()).step("z", stage.note());
    for name in graphs {
        builder = builder.subgraph(
            name,
            &inner,
            |_| Notes::default(),
            |state, inner| state.done.extend(inner.done),
        );
    }
    let all = graphs.iter().copied().chain(["y", "z"]);
    builder.fork("s", all).max_parallel(1).join("j", stage.merge()).build().unwrap()
}

// Bug: a scope that waited for an answer inside its own scope kept its slot. Its siblings did not begin, and an
// answered sibling could not continue: the resume never ended. Fix: the scope releases its slot, like a scope
// that asks itself, and takes a slot again before its child continues.
#[tokio::test]
async fn a_scope_that_waits_for_one_of_its_own_makes_room() {
    for graphs in [&["x"] as &[&str], &["x", "w"]] {
        for order in [false, true] {
            for mut world in World::each() {
                let stage = Stage::default();
                let graph = questions_within(&stage, graphs);
                let outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
                assert_eq!(outcome.status, RunStatus::Waiting);
                assert_eq!(outcome.waiting.len(), graphs.len() + 1, "all have asked");
                assert!(stage.has_said("z"), "and who does not ask is done");

                let mut left = outcome.waiting;
                if order {
                    left.reverse();
                }
                let mut outcome = None;
                for wait in left {
                    world.reopen();
                    world.engine.answer("r", &wait.wait.id, json!("yes")).await.unwrap();
                    let resumed = world.engine.resume(&graph, "r").into_future();
                    let resumed = tokio::time::timeout(Duration::from_secs(60), resumed).await;
                    outcome = Some(resumed.expect("it ends").unwrap());
                }

                let outcome = outcome.unwrap();
                assert_eq!(outcome.status, RunStatus::Completed);
                assert_eq!(outcome.state.done.last().unwrap(), "z=z");
                assert!(outcome.state.done.contains(&"y=y:yes".to_owned()), "{:?}", outcome.state.done);
                assert!(outcome.state.done.contains(&"x=p:yes".to_owned()), "{:?}", outcome.state.done);
            }
        }
    }
}

// With more answers at once than slots, no more scopes run than the limit, at any depth.
#[tokio::test]
async fn what_goes_on_within_a_scope_counts_among_its_siblings() {
    let world = World::memory();
    let at_work = Arc::new(Mutex::new((0, 0)));
    let count = Arc::clone(&at_work);
    let inner = Graph::<Notes>::builder("inner")
        .step("p", move |state: Notes, context: Context| {
            let count = Arc::clone(&count);
            async move {
                let _: String = context.interrupt("ask", "may it?").await?;
                let now = {
                    let mut n = count.lock().unwrap();
                    n.0 += 1;
                    n.1 = n.1.max(n.0);
                    n.0
                };
                tokio::time::sleep(Duration::from_millis(20)).await;
                count.lock().unwrap().0 -= 1;
                Ok::<_, StepError>(state.and(format!("{}", now > 0)))
            }
        })
        .build()
        .unwrap();
    let names = ["a", "b", "c", "d"];
    let stage = Stage::default();
    let mut builder = stage.steps(Graph::builder("room"), &["s"]);
    for name in names {
        builder = builder.subgraph(
            name,
            &inner,
            |_| Notes::default(),
            |state, inner| state.done.extend(inner.done),
        );
    }
    let graph = builder.fork("s", names).max_parallel(2).join("j", stage.merge()).build().unwrap();
    let outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    assert_eq!(outcome.waiting.len(), 4);
    for wait in &outcome.waiting {
        world.engine.answer("r", &wait.wait.id, json!("yes")).await.unwrap();
    }

    let outcome = world.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(*at_work.lock().unwrap(), (0, 2), "two at once, and no more");
}
