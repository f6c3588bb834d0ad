//! The names of a fork's scopes, and their stability.

use waypost::engine::OnChange;
use waypost::graph::ItemEnds;
use waypost::record::{End, RunStatus};
use waypost::{Context, Graph, StepError};

use crate::faulty::World;
use crate::test_graphs::{Notes, Stage};

/// Builds a step over two items, a fork into `x` and `y`, and a second fork from the join into `p` and `q`.
fn forks_behind_items(stage: &Stage) -> Graph<Notes> {
    let work = stage.clone();
    let each = stage.steps(Graph::builder("behind"), &["x", "y", "p", "q"]).start("items").each(
        "items",
        |_: &Notes| vec!["x".to_owned(), "p".to_owned()],
        |item: &String| item.clone(),
        move |item: String, _: Context| {
            let stage = work.clone();
            async move { stage.pass(&format!("item {item}")).await.map(|()| item) }
        },
    );
    let builder = each.join(|state: Notes, ends: ItemEnds<String, String>, _| async move {
        Ok::<_, StepError>(state.and(format!("{} items", ends.total())))
    });
    let builder = builder.fork("items", ["x", "y"]).join("one", stage.merge());
    builder.fork("one", ["p", "q"]).join("two", stage.merge()).build().unwrap()
}

// Bug: the scopes of a fork right after a step over items had the names of the items, and a crash mixed them
// up. They did not run again, were joined as cancelled, and the run was reported as completed. Fix: each step
// names its scopes uniquely.
#[tokio::test]
async fn a_fork_right_behind_items_has_scopes_of_its_own() {
    for at in ["item x", "x", "y", "one", "p", "q", "two"] {
        for mut world in World::each() {
            let stage = Stage::default();
            let graph = forks_behind_items(&stage);
            stage.crash_run(&mut world, &graph, at).await;
            stage.said();

            let outcome = world.engine.resume(&graph, "r").await.unwrap();

            assert_eq!(outcome.status, RunStatus::Completed, "{at}");
            assert_eq!(outcome.state.done, ["2 items", "x=x", "y=y", "p=p", "q=q"], "{at}");
            assert!(stage.has_said(at), "what was cut ran again");
            assert_eq!(world.end_of("items:x").await, Some(End::Completed));
            assert_eq!(world.end_of("one:x").await, Some(End::Completed));
            assert_eq!(world.end_of("two:p").await, Some(End::Completed));
        }
    }
    insta::assert_snapshot!(forks_behind_items(&Stage::default()).mermaid());
}

/// Builds `s`, then a fork into scopes of these names, then the join `j`.
fn fork_into(stage: &Stage, names: &[&str]) -> Graph<Notes> {
    let builder = stage.steps(Graph::builder("fork"), &["s"]);
    let builder = stage.steps(builder, names);
    builder.fork("s", names.iter().copied()).join("j", stage.merge()).build().unwrap()
}

// Bug: a graph with other scope names was accepted inside a fork, because the number of scopes was the same.
// The join searched for a scope that was never opened, on every resume, and neither graph could continue. Fix:
// the graph is refused, and the old one continues.
#[tokio::test]
async fn a_graph_that_names_scopes_under_way_otherwise_is_refused() {
    for renamed in [["z", "y"], ["x", "z"]] {
        for at in ["y", "j"] {
            for mut world in World::each() {
                let stage = Stage::default();
                let graph = fork_into(&stage, &["x", "y"]);
                stage
                    .crash(&mut world, at, async |world| {
                        world.engine.run(&graph, "r", Notes::default()).await
                    })
                    .await;

                let other = fork_into(&stage, &renamed);
                let refused = world.engine.resume(&other, "r").on_change(OnChange::Adopt).await.unwrap_err();

                let told = refused.to_string();
                assert!(told.contains("step `j` has open scopes, without `s:z`"), "{told}");
                let swapped = fork_into(&stage, &["y", "x"]);
                let outcome = world.engine.resume(&swapped, "r").on_change(OnChange::Adopt).await.unwrap();
                assert_eq!(outcome.status, RunStatus::Completed);
                assert_eq!(outcome.state.done, ["s", "y=y", "x=x"]);
            }
        }
    }
}
