//! Graphs that a builder refuses, and the error messages.
//!
//! Bug: forks nested too deep were built, and failed after the first step had run. An edge from another step to a
//! join ran the fork without the step before it. Messages named edges that nobody wrote, or different edges each
//! time. Cause: scope names were checked at run time, a fork was stored as an edge, and edges were checked in
//! hash order. Fix: `build` checks all of this in the order of the calls, and uses the caller's names.

use waypost::graph::{Branches, Builder, Fork};
use waypost::memory::MemoryStore;
use waypost::record::RunStatus;
use waypost::{Context, END, Engine, Graph, StepError};

type State = Vec<String>;

async fn note(mut state: State, context: Context) -> Result<State, StepError> {
    state.push(context.step().to_string());
    Ok(state)
}

fn steps(steps: &[&str]) -> Builder<State> {
    steps.iter().fold(Graph::<State>::builder("g"), |graph, step| graph.step(step, note))
}

fn join(fork: Fork<State>, id: &str) -> Builder<State> {
    fork.join(id, |state: State, _: Branches<State>, _| async move { Ok::<_, StepError>(state) })
}

fn refused(graph: Builder<State>) -> String {
    graph.build().unwrap_err().to_string()
}

/// Builds forks in forks, each with one branch.
fn nested(deep: usize) -> Builder<State> {
    (0..deep).fold(steps(&["s0"]), |graph, level| {
        let next = format!("s{}", level + 1);
        join(graph.step(&next, note).fork(format!("s{level}"), [next]), &format!("j{level}"))
    })
}

#[tokio::test]
async fn forks_nest_as_deep_as_scopes_can_be_named_and_no_deeper() {
    let engine = Engine::new(std::sync::Arc::new(MemoryStore::new()));

    let outcome = engine.run(&nested(16).build().unwrap(), "r", State::new()).await.unwrap();
    assert_eq!((outcome.status, outcome.state.len()), (RunStatus::Completed, 1));

    let too_deep = "the scopes of step `j16` nest deeper than the 16 levels allowed";
    assert_eq!(refused(nested(17)), too_deep);
    assert_eq!(refused(nested(5_000)), too_deep, "and the stack is not what limits it");
}

#[test]
fn graphs_in_graphs_count_as_levels() {
    let inner = nested(15).build().unwrap();
    let around = |inner: &Graph<State>| {
        Graph::<State>::builder("outer").subgraph("sub", inner, State::clone, |_, _| ())
    };

    let outer = around(&inner).build().unwrap();
    assert_eq!(refused(around(&outer)), "the scopes of step `sub` nest deeper than the 16 levels allowed");

    let name = "n".repeat(1_025);
    let long = Graph::<State>::builder(&name).step("a", note).build().unwrap();
    assert!(around(&long).build().is_ok(), "the name of an inner graph names no scope");
}

#[test]
fn only_a_fork_and_its_branches_lead_to_its_join() {
    let into = |from: &str| {
        format!(
            "{from} leads to `j`, which joins the fork after `a`: only that fork and its branches lead to its join"
        )
    };

    let routed = join(steps(&["z", "a", "x"]).fork("a", ["x"]), "j").route("z", ["a", "j"], |_| "a");
    assert_eq!(refused(routed), into("step `z`"));
    let looped = join(steps(&["a", "x"]).fork("a", ["x"]), "j").route("j", ["j", END], |_| END);
    assert_eq!(refused(looped), into("step `j`"));
    let around = join(steps(&["a", "x", "p"]).fork("a", ["x"]), "j").edge("p", "j");
    assert_eq!(refused(around.route("j", ["p", END], |_| END)), into("step `p`"));
    let started = join(steps(&["a", "x"]).fork("a", ["x"]), "j").route("j", ["a", END], |_| END);
    assert_eq!(refused(started.start("j")), into("the start"));
    let branch = join(steps(&["o", "a", "x"]).fork("a", ["x"]), "j").fork("o", ["j", "a"]);
    assert_eq!(refused(join(branch, "k")), into("step `o`"));

    // An edge back to the step before the fork, an edge from a branch to its join, and forks in branches stay
    // valid.
    let again = join(steps(&["a", "x", "y"]).fork("a", ["x", "y"]), "j").edge("x", "j").route(
        "j",
        ["a", END],
        |_| END,
    );
    again.build().unwrap();
    let inner = join(steps(&["o", "a", "x"]).fork("a", ["x"]), "j").edge("j", "k");
    join(inner.fork("o", ["a"]), "k").build().unwrap();
}

#[test]
fn messages_name_what_was_written() {
    assert_eq!(
        refused(join(steps(&["a", "x"]).fork("zz", ["x"]), "j")),
        "the fork after `zz` names `zz`, which the graph does not have"
    );
    assert_eq!(
        refused(join(steps(&["a", "x", "y"]).edge("a", "x").fork("a", ["x", "y"]), "j")),
        "step `a` has two ways on, the edge from `a` to `x` and the fork after `a`: only one edge, route or \
         fork is allowed"
    );
    assert_eq!(
        refused(join(steps(&["a", "x"]).fork("a", ["x", "x"]), "j")),
        "the fork after `a` names `x` twice"
    );
    assert_eq!(
        refused(steps(&["a", "b"]).route("a", ["b", "b"], |_| "b")),
        "the route after `a` names `b` twice"
    );
    for (graph, edge) in [
        (steps(&["a"]).edge("a", "b c"), "the edge from `a` to `b c`"),
        (steps(&["a"]).edge("b c", "a"), "the edge from `b c` to `a`"),
        (steps(&["a"]).route("a", ["b c"], |_| "a"), "the route after `a`"),
        (join(steps(&["a"]).fork("a", ["b c"]), "j"), "the fork after `a`"),
        (join(steps(&["a"]).fork("b c", ["a"]), "j"), "the fork after `b c`"),
        (steps(&["a"]).start("b c"), "the start"),
    ] {
        let text = refused(graph);
        assert!(text.starts_with(&format!("{edge} is invalid: step id `b c` is not allowed")), "{text}");
    }
}

#[test]
fn of_two_mistakes_the_first_is_told() {
    for _ in 0..20 {
        let graph = steps(&["a", "b", "c"]).edge("a", "one").edge("b", "two").edge("c", "three");
        assert_eq!(refused(graph), "the edge from `a` to `one` names `one`, which the graph does not have");
    }
}
