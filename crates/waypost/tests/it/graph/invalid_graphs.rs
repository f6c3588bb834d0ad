//! Graphs that cannot be, and how one that can is drawn.

use super::*;

fn problem(builder: waypost::graph::Builder<Notes>) -> String {
    builder.build().unwrap_err().to_string()
}

#[test]
fn an_invalid_graph_is_refused_by_names_of_steps_and_edges() {
    let trace = Trace::default();
    let two = || Graph::builder("g").step("a", note(&trace)).step("b", note(&trace));

    assert_eq!(Graph::<Notes>::builder("g").build().unwrap_err(), GraphError::Empty);
    insta::assert_snapshot!(
        [
            problem(two().edge("a", "c")),
            problem(two().edge("c", "a")),
            problem(two()),
            problem(two().edge("a", "b").edge("a", "b")),
            problem(two().edge("a", "b").route("b", ["a"], |_| "a")),
            problem(two().step("a", note(&trace))),
            problem(two().step("end", note(&trace))),
            problem(two().step("../x", note(&trace))),
            problem(two().route("a", Vec::<String>::new(), |_| "a")),
            problem(Graph::builder("g").retry(Retry::exponential(1)).step("a", note(&trace))),
            problem(
                two()
                    .edge("a", "b")
                    .fork("a", ["b"])
                    .join("m", |s: Notes, _, _| async { Ok::<_, StepError>(s) })
            ),
            problem(
                two()
                    .step("c", note(&trace))
                    .edge("b", "c")
                    .edge("c", "m")
                    .fork("a", ["b", "c"])
                    .join("m", |s: Notes, _, _| async { Ok::<_, StepError>(s) })
                    .step("d", note(&trace))
                    .edge("m", "c")
            ),
        ]
        .join("\n")
    );
}

#[test]
fn a_graph_is_drawn() {
    let trace = Trace::default();
    let graph = fork(&trace, false);

    insta::assert_snapshot!(graph.mermaid() + "\n" + &graph.dot());
}
