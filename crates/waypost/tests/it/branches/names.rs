//! What the branches of a fork are called, and that they keep their names.

use waypost::engine::OnChange;
use waypost::graph::ItemEnds;
use waypost::record::{End, RunStatus};
use waypost::{Context, Graph, StepError};

use crate::faulty::World;
use crate::play::{Notes, Stage};

/// Works on two items, then forks into `x` and `y`, and the join of that into `p` and `q`.
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

// The branches of a fork right behind a step over items were named as its items are, and after a crash taken for some of
// theirs: they were not run again, and joined as cancelled, and the run was said to be completed. Now no two steps name
// their branches after the same one.
#[tokio::test]
async fn a_fork_right_behind_items_has_branches_of_its_own() {
    for at in ["item x", "x", "y", "one", "p", "q", "two"] {
        for mut world in World::each() {
            let stage = Stage::default();
            let graph = forks_behind_items(&stage);
            stage
                .crash(&mut world, at, async |world| world.engine.run(&graph, "r", Notes::default()).await)
                .await;
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

/// `s`, then a fork into branches of these names, then the join `j`.
fn fork_into(stage: &Stage, names: &[&str]) -> Graph<Notes> {
    let builder = stage.steps(Graph::builder("fork"), &["s"]);
    let builder = stage.steps(builder, names);
    builder.fork("s", names.iter().copied()).join("j", stage.merge()).build().unwrap()
}

// A graph whose branches have other names was taken up amid a fork, since their number was the same: the join looked for one
// that was never opened, on every resume, and neither graph could go on. Now it is refused, and the old one goes on.
#[tokio::test]
async fn a_graph_that_names_branches_under_way_otherwise_is_refused() {
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
                assert!(
                    told.contains("branches of step `j` are under way, and `s:z` is none of them"),
                    "{told}"
                );
                let swapped = fork_into(&stage, &["y", "x"]);
                let outcome = world.engine.resume(&swapped, "r").on_change(OnChange::Adopt).await.unwrap();
                assert_eq!(outcome.status, RunStatus::Completed);
                assert_eq!(outcome.state.done, ["s", "y=y", "x=x"]);
            }
        }
    }
}
