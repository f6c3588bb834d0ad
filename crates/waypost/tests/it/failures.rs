//! Steps that run after a failure in a graph by needs, and steps that a resume retries.

use std::sync::Arc;

use waypost::RunId;
use waypost::engine::{Engine, Outcome, Program, ResumeOptions, SessionOptions};
use waypost::memory::MemoryStore;
use waypost::record::RunStatus;

use crate::history::told;
use crate::scripted_program::{AfterFailure, Does, Toy};

struct Rig {
    store: Arc<MemoryStore>,
    engine: Engine,
}

type Ended = Outcome<<Toy as Program>::State>;

impl Rig {
    fn new() -> Self {
        let store = Arc::new(MemoryStore::new());
        Self { engine: Engine::new(store.clone()), store }
    }

    async fn run(&self, toy: &Toy) -> Ended {
        let options = SessionOptions::default();
        self.engine.run_program(toy, toy.record("r"), Default::default(), options).await.unwrap()
    }

    async fn resume(&self, toy: &Toy) -> Ended {
        let options = ResumeOptions::default();
        self.engine.resume_program(toy, &RunId::new("r").unwrap(), options).await.unwrap()
    }
}

/// Returns the end of a run: its status, the failed steps, and each step of the state that did not complete.
fn ended(outcome: &Ended) -> String {
    let failed: Vec<_> = outcome.failures.iter().map(|failure| failure.step.as_str()).collect();
    let state = outcome.state.iter().filter_map(|(step, value)| Some(format!("{step}={}", value.as_str()?)));
    format!("{} [{}] {}", outcome.status.name(), failed.join(" "), state.collect::<Vec<_>>().join(" "))
}

#[tokio::test]
async fn a_failure_leaves_what_does_not_depend_on_it() {
    // Input: the graph, the failing steps, the steps with `always()`, and those with `failure()`. Output: the
    // trace, the end, and the trace of the resume without failures.
    let cases = [
        ("a; b: a; c: b", "a", "", "", "a", "failed [a] a=failed b=skipped c=skipped", "a b c"),
        ("a; b: a; c: b", "a", "c", "", "a c", "failed [a] a=failed b=skipped", "a b c"),
        ("a; b: a; c: b", "a", "", "c", "a c", "failed [a] a=failed b=skipped", "a b"),
        ("a; b: a; c: b", "", "", "c", "a b", "completed [] c=skipped", ""),
        ("a; b: a; c: a", "b", "", "", "a b c", "failed [b] b=failed", "b"),
        ("a; b; c: a; d: b", "a", "", "", "a b d", "failed [a] a=failed c=skipped", "a c"),
        ("a; b; c: a b", "a b", "", "", "a b", "failed [a b] a=failed b=failed c=skipped", "a b c"),
        ("a; b: a; c: b; d: c", "a", "c", "", "a c", "failed [a] a=failed b=skipped d=skipped", "a b c d"),
        ("a; b: a", "a b", "b", "", "a b", "failed [a b] a=failed b=failed", "a b"),
    ];
    for (graph, fail, always, only, ran, expect, again) in cases {
        let rig = Rig::new();
        let mut toy = Toy::new(graph, 1);
        for step in fail.split_whitespace() {
            toy = toy.does(step, 1, Does::Fail);
        }
        for step in always.split_whitespace() {
            toy = toy.decides(step, AfterFailure::Always);
        }
        for step in only.split_whitespace() {
            toy = toy.decides(step, AfterFailure::Only);
        }

        let first = rig.run(&toy).await;
        let trace = toy.trace();
        toy.trace.lock().unwrap().clear();
        let second = rig.resume(&toy.healed()).await;

        let case = format!("{graph} | fails {fail} | always {always} | failure {only}");
        assert_eq!((trace.as_str(), ended(&first).as_str()), (ran, expect), "{case}");
        assert_eq!((toy.trace().as_str(), second.status), (again, RunStatus::Completed), "{case}");
    }
}

#[tokio::test]
async fn fail_fast_stops_what_does_not_depend_on_it() {
    let rig = Rig::new();
    let toy = Toy::new("a; b; c: b; d: b", 1).does("a", 1, Does::Fail);
    let toy = toy.decides("d", AfterFailure::Always).failing_fast();

    let first = rig.run(&toy).await;
    let trace = toy.trace();
    toy.trace.lock().unwrap().clear();
    let second = rig.resume(&toy.healed()).await;

    assert_eq!((trace.as_str(), first.status), ("a d", RunStatus::Failed));
    assert_eq!((toy.trace().as_str(), second.status), ("a b c d", RunStatus::Completed));
}

#[tokio::test]
async fn a_resume_retries_only_what_failed() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a; c: a; d: b c", 2).does("b", 1, Does::Fail).does("b", 2, Does::Fail);

    let first = rig.run(&toy).await;
    let second = rig.resume(&toy.again()).await;
    let third = rig.resume(&toy.again()).await;

    assert_eq!(
        [first.status, second.status, third.status],
        [RunStatus::Failed, RunStatus::Failed, RunStatus::Completed]
    );
    assert_eq!(toy.trace(), "a b c b b d");
    let progress = second.progress;
    assert_eq!((progress.done, progress.total), (2, 4));
}

#[tokio::test]
async fn a_tolerated_failure_counts_as_success() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a; c: b", 1).does("a", 1, Does::Fail).tolerate("a");

    let outcome = rig.run(&toy.decides("c", AfterFailure::Only)).await;

    assert_eq!(ended(&outcome), "completed_with_failures [] a=tolerated c=skipped");
}

#[tokio::test]
async fn a_step_after_a_failure_that_must_not_repeat_is_asked() {
    let rig = Rig::new();
    let toy = Toy::new("a; b!: a", 1).does("a", 1, Does::Fail).decides("b", AfterFailure::Always);

    rig.run(&toy).await;
    let again = rig.resume(&toy.healed()).await;

    assert_eq!((again.status, toy.trace().as_str()), (RunStatus::InDoubt, "a b a"));
}

#[tokio::test]
async fn a_passed_over_step_has_an_end_of_its_own() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a; c: b", 1).does("a", 1, Does::Fail).decides("c", AfterFailure::Always);

    rig.run(&toy).await;

    let history = told(rig.store.as_ref(), &RunId::new("r").unwrap()).await.join("\n");
    insta::assert_snapshot!(history, @r"
    main@1 started a(1) > a(1) | a started
    main@2 failed a(1)
    main@3 skipped b(0) > c(1) | c started, a failed
    main@4 completed c(1) | a failed = failed
    ");
}
