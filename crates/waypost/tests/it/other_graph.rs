//! Resumes with a graph that is not the one of the run.
//!
//! What happened: a completed run was resumed with the graph of another program, which was told `Completed` and took its
//! state for its own; a changed edge was told as a step that "does something else"; holds at steps that there are not
//! were accepted.
//! Why: whether a graph fits was asked after it was found that nothing was left to do, and a fingerprint does not say what
//! went into it.
//! What stops it now: the graph is compared, and what is named is looked for, before anything else; where a step leads
//! stands in the definition.

use std::sync::Arc;

use waypost::engine::{Engine, OnChange, Outcome, RunError};
use waypost::graph::{Branches, Builder};
use waypost::memory::MemoryStore;
use waypost::record::RunStatus;
use waypost::{Context, END, Graph, StepError};

type State = Vec<String>;

fn engine() -> Engine {
    Engine::new(Arc::new(MemoryStore::new()))
}

async fn note(mut state: State, context: Context) -> Result<State, StepError> {
    state.push(context.step().to_string());
    Ok(state)
}

fn steps(name: &str, steps: &[&str]) -> Builder<State> {
    steps.iter().fold(Graph::<State>::builder(name), |graph, step| graph.step(step, note))
}

fn a_to_b() -> Graph<State> {
    steps("g", &["a", "b"]).edge("a", "b").build().unwrap()
}

fn why(refused: Result<Outcome<State>, RunError>) -> String {
    let refused = refused.unwrap_err();
    assert!(matches!(refused, RunError::Changed { .. }), "{refused}");
    refused.to_string()
}

#[tokio::test]
async fn a_completed_run_of_another_graph_is_refused() {
    let engine = engine();
    engine.run(&a_to_b(), "r", State::new()).await.unwrap();
    let other = steps("g", &["q"]).build().unwrap();
    let expect = "the definition does not fit run r: step `q` is new, step `a` is gone, step `b` is gone, \
                  and nobody said to go on with that";

    assert_eq!(why(engine.resume(&other, "r").await), expect);
    assert_eq!(why(engine.run(&other, "r", State::new()).or_resume().await), expect);

    // Not even its state is read: that of another type is no better told as damage.
    let number = Graph::<u32>::builder("g").step("q", |n: u32, _| async move { Ok::<_, StepError>(n) });
    let refused = engine.resume(&number.build().unwrap(), "r").await.unwrap_err();
    assert!(matches!(refused, RunError::Changed { .. }), "{refused}");

    let adopted = engine.resume(&other, "r").on_change(OnChange::Adopt).await.unwrap();
    assert!(adopted.idle);
    let own = engine.resume(&a_to_b(), "r").await.unwrap();
    assert!(own.idle);
}

#[tokio::test]
async fn the_name_of_a_graph_counts_only_where_nobody_named_the_run() {
    let engine = engine();
    engine.run(&a_to_b(), "r", State::new()).interrupt_before(["b"]).await.unwrap();
    let renamed = steps("renamed", &["a", "b"]).edge("a", "b").build().unwrap();

    let refused = why(engine.run(&renamed, "r", State::new()).or_resume().await);
    assert_eq!(
        refused,
        "the definition does not fit run r: it is a run of graph `g`, and this one is called `renamed`"
    );

    let outcome = engine.resume(&renamed, "r").await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
    let outcome = engine.run(&a_to_b(), "r", State::new()).or_resume().await.unwrap();
    assert!(outcome.idle);
}

#[tokio::test]
async fn the_order_of_steps_and_the_ways_to_say_that_a_branch_ends_are_no_change() {
    let engine = engine();
    let join = |state: State, _: Branches<State>, _: Context| async move { Ok::<_, StepError>(state) };
    let first = steps("g", &["a", "b", "c", "d"]).fork("a", ["b", "c"]).join("j", join).edge("j", "d");
    let first = first.build().unwrap();
    let second = steps("g", &["d", "c", "b", "a"])
        .start("a")
        .fork("a", ["b", "c"])
        .join("j", join)
        .edge("j", "d")
        .edge("d", END)
        .edge("b", "j")
        .edge("c", END);
    let second = second.build().unwrap();
    engine.run(&first, "r", State::new()).interrupt_before(["j"]).await.unwrap();

    let outcome = engine.resume(&second, "r").await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
}

/// Branches are known by their place: other branches of a fork are another fork, even of the same steps.
#[tokio::test]
async fn other_branches_of_the_same_steps_are_a_change() {
    let engine = engine();
    let join = |state: State, _: Branches<State>, _: Context| async move { Ok::<_, StepError>(state) };
    let graph = |starts: &[&str]| {
        steps("g", &["a", "b", "c"]).edge("b", "c").fork("a", starts).join("j", join).build().unwrap()
    };
    engine.run(&graph(&["b", "c"]), "r", State::new()).interrupt_before(["b"]).await.unwrap();

    for other in [&["c", "b"][..], &["b"]] {
        let refused = why(engine.resume(&graph(other), "r").await);
        assert!(refused.contains("step `j` does something else"), "{refused}");
    }
}

#[tokio::test]
async fn a_step_that_leads_elsewhere_is_told_as_that() {
    let engine = engine();
    let graph = a_to_b();
    let run = engine.run(&graph, "r", State::new()).interrupt_before(["b"]);
    assert_eq!(run.await.unwrap().status, RunStatus::Interrupted);

    let routed = steps("g", &["a", "b"]).route("a", ["b", END], |_| "b").build().unwrap();
    assert_eq!(
        why(engine.resume(&routed, "r").await),
        "the definition does not fit run r: step `a` now leads to `b` or `end`, and led to `b`, \
         and nobody said to go on with that"
    );
    let back = steps("g", &["a", "b"]).edge("a", "b").route("b", ["a", END], |_| END).build().unwrap();
    assert_eq!(
        why(engine.resume(&back, "r").await),
        "the definition does not fit run r: step `b` now leads to `a` or `end`, and led to `end`, \
         and nobody said to go on with that"
    );
}

/// A run that was started over with another graph was taken as one of the old graph by the next resume.
#[tokio::test]
async fn starting_over_with_another_graph_needs_a_word_and_is_remembered() {
    let engine = engine();
    engine.run(&a_to_b(), "r", State::new()).await.unwrap();
    let other = steps("g", &["q", "r"]).edge("q", "r").build().unwrap();

    why(engine.resume(&other, "r").restart(State::new()).await);

    let restart = engine.resume(&other, "r").restart(State::new()).on_change(OnChange::Adopt);
    let outcome = restart.interrupt_before(["r"]).await.unwrap();
    assert_eq!(outcome.state, ["q"]);
    why(engine.resume(&a_to_b(), "r").await);
    let outcome = engine.resume(&other, "r").interrupt_before([""; 0]).await.unwrap();
    assert_eq!((outcome.status, outcome.state.join(" ").as_str()), (RunStatus::Completed, "q r"));

    // Back to the graph that the run was made with, and again to the other.
    let first = a_to_b();
    let back = engine.resume(&first, "r").restart(State::new()).on_change(OnChange::Adopt);
    assert_eq!(back.await.unwrap().state, ["a", "b"]);
    assert!(engine.resume(&a_to_b(), "r").await.unwrap().idle);
    why(engine.resume(&other, "r").await);
}

#[tokio::test]
async fn what_is_said_of_a_completed_run_is_looked_at_although_nothing_runs() {
    let engine = engine();
    engine.run(&a_to_b(), "r", State::new()).await.unwrap();

    for refused in [
        engine.resume(&a_to_b(), "r").interrupt_before(["zz"]).await.unwrap_err(),
        engine.resume(&a_to_b(), "r").interrupt_after(["zz"]).await.unwrap_err(),
    ] {
        assert_eq!(refused.to_string(), "the graph has no step `zz`");
    }
    let refused = engine.resume(&a_to_b(), "r").validate_state(|_| Err("no".to_owned())).await;
    assert!(matches!(refused, Err(RunError::Rejected { .. })), "{refused:?}");
    assert!(engine.resume(&a_to_b(), "r").interrupt_before(["b"]).await.unwrap().idle);
}

/// A hold was kept with the run, and its step is gone: the resume was refused for a name that nobody had said.
#[tokio::test]
async fn a_hold_that_was_kept_goes_with_its_step() {
    let engine = engine();
    let graph = a_to_b();
    let run = engine.run(&graph, "r", State::new()).interrupt_before(["a"]).interrupt_after(["b"]);
    assert_eq!(run.await.unwrap().status, RunStatus::Interrupted);
    let shorter = steps("g", &["a"]).build().unwrap();

    let outcome = engine.resume(&shorter, "r").on_change(OnChange::Adopt).await.unwrap();

    assert_eq!((outcome.status, outcome.state.join(" ").as_str()), (RunStatus::Completed, "a"));
}
