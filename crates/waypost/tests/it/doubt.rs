//! Steps that must not be repeated blindly: cut on any branch they are in doubt, nothing runs, and a person settles it.

use waypost::Graph;
use waypost::engine::{OnDoubt, ResumeOptions, RunError, SessionOptions, SettleAsDone};
use waypost::graph::Builder;
use waypost::record::RunStatus;
use waypost::store::Store as _;

use crate::faulty::{Fault, World, run_id};
use crate::play::{Notes, Stage};
use crate::toy::{Does, Toy};

/// Adds a step that must not be repeated.
fn pays(stage: &Stage, builder: Builder<Notes>, name: &str) -> Builder<Notes> {
    stage.steps(builder, &[name]).not_idempotent()
}

/// `plan`, then `p` (which pays in `x` beside `y`) beside `q`.
fn nested(stage: &Stage) -> Graph<Notes> {
    let builder = stage.steps(Graph::builder("nested"), &["plan", "p", "y", "q"]);
    let builder = pays(stage, builder, "x").fork("p", ["x", "y"]).join("inner", stage.merge());
    builder.fork("plan", ["p", "q"]).join("outer", stage.merge()).build().unwrap()
}

// A child branch two forks down: it is named, nothing of the run runs, and whoever goes on from the newest checkpoint of
// the run has decided that it is tried again.
#[tokio::test]
async fn a_cut_in_a_branch_of_a_branch_asks_a_person_before_anything_runs() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = nested(&stage);
        stage
            .crash(&mut world, "x", async |world| world.engine.run(&graph, "r", Notes::default()).await)
            .await;
        stage.said();
        let before = world.records().await;

        for _ in 0..2 {
            let refused = world.engine.resume(&graph, "r").await.unwrap_err();
            let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
            let asked: Vec<_> = questions.iter().map(|q| format!("{} {}", q.branch, q.step)).collect();
            assert_eq!(asked, ["plan:p/p:x x"]);
            world.reopen();
        }
        assert!(stage.said().is_empty());
        assert_eq!(world.records().await, before, "asking changes nothing");
        assert_eq!(world.store.run(&run_id()).await.unwrap().summary.status, RunStatus::InDoubt);
        let newest = before.iter().filter(|line| line.starts_with("main@")).count() as u64;
        let outcome = world.engine.resume(&graph, "r").from_checkpoint(newest).await.unwrap();

        assert_eq!(outcome.state.done, ["plan", "p=p+x=x+y=y", "q=q"]);
        assert_eq!(stage.said(), ["x", "inner", "outer"]);
    }
}

#[tokio::test]
async fn a_person_says_that_a_cut_step_of_a_branch_runs_again() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = nested(&stage);
        stage
            .crash(&mut world, "x", async |world| world.engine.run(&graph, "r", Notes::default()).await)
            .await;
        stage.said();

        let outcome = world.engine.resume(&graph, "r").retry_doubtful().await.unwrap();

        assert_eq!(outcome.state.done, ["plan", "p=p+x=x+y=y", "q=q"]);
        let mut said = stage.said();
        said.retain(|said| *said == "x");
        assert_eq!(said, ["x"], "once more, and only by that word");
        let redone = world.records().await.into_iter().filter(|line| line.contains("plan:p/p:x@")).count();
        assert!(redone > 2, "it is written that it was a decision");
    }
}

#[tokio::test]
async fn a_person_says_that_a_cut_step_took_effect_and_what_came_of_it() {
    for mut world in World::each() {
        let stage = Stage::default();
        let builder = pays(&stage, stage.steps(Graph::builder("pay"), &["plan", "after"]), "pay");
        let graph = builder.edge("plan", "pay").edge("pay", "after").build().unwrap();
        stage
            .crash(&mut world, "pay", async |world| world.engine.run(&graph, "r", Notes::default()).await)
            .await;
        stage.said();

        let refusing = |_: &mut Notes, _: &waypost::StepId| Err("nobody has the receipt".to_owned());
        let refused = world.engine.resume(&graph, "r").settle_doubtful(refusing).await.unwrap_err();
        assert!(matches!(refused, RunError::NotSettled { .. }), "{refused}");
        let settling = |notes: &mut Notes, step: &waypost::StepId| {
            notes.done.push(format!("{step} by hand"));
            Ok(())
        };
        let outcome = world.engine.resume(&graph, "r").settle_doubtful(settling).await.unwrap();

        assert_eq!(outcome.state.done, ["plan", "pay by hand", "after"]);
        assert_eq!(stage.said(), ["after"]);
    }
}

// A start that was recorded and not carried out cannot be told from one that was: it is in doubt too. One that was not
// recorded was never made.
#[tokio::test]
async fn only_a_recorded_start_is_in_doubt() {
    let mut asked = Vec::new();
    for fault in [Fault::DieBefore, Fault::DieAfter] {
        for nth in 1..=6 {
            let mut world = World::memory();
            let stage = Stage::default();
            let builder = stage.steps(Graph::builder("pay"), &["plan", "b"]);
            let builder = pays(&stage, builder, "a").fork("plan", ["a", "b"]).join("merge", stage.merge());
            let graph = builder.build().unwrap();
            world.store.plan(nth, 1, fault);
            let run = world.engine.run(&graph, "r", Notes::default()).into_future();
            if world.until_death(run).await.is_some() {
                continue;
            }
            world.reopen();

            let end = world.engine.run(&graph, "r", Notes::default()).or_resume().await;

            let paid = stage.said().iter().filter(|said| *said == "a").count();
            match end {
                Err(RunError::InDoubt { .. }) => {
                    assert!(paid <= 1);
                    asked.push((fault, nth, paid));
                }
                end => {
                    assert_eq!(end.unwrap().state.done, ["plan", "a=a", "b=b"]);
                    assert_eq!(paid, 1, "write {nth}, {fault:?}");
                }
            }
        }
    }
    assert!(
        asked.iter().any(|(.., paid)| *paid == 0) && asked.iter().any(|(.., paid)| *paid == 1),
        "{asked:?}"
    );
}

// What ran a step is gone, and nobody knows how it ended: the session ends, and it is as if it had crashed there.
#[tokio::test]
async fn a_step_whose_end_nobody_saw_is_cut() {
    for (idempotent, status) in [(true, RunStatus::Interrupted), (false, RunStatus::InDoubt)] {
        let world = World::memory();
        let shape = if idempotent { "a; b: a; c: b" } else { "a; b!: a; c: b" };
        let toy = Toy::new(shape, 1).does("b", 1, Does::Cut);
        let run =
            world.engine.run_program(&toy, toy.record("r"), Default::default(), SessionOptions::default());

        let cut = run.await.unwrap();

        assert_eq!((cut.status, cut.stopped_by.as_deref()), (status, Some("its supervisor is gone")));
        assert_eq!(toy.trace(), "a b", "nothing after it is started");
        let id = run_id();
        let resumed = world.engine.resume_program(&toy, &id, ResumeOptions::default()).await;
        if idempotent {
            assert_eq!((resumed.unwrap().status, toy.trace().as_str()), (RunStatus::Completed, "a b b c"));
            continue;
        }
        assert!(matches!(resumed, Err(RunError::InDoubt { .. })), "{resumed:?}");
        let done = OnDoubt::Done(SettleAsDone(Box::new(|_: &mut _, _: &waypost::StepId| Ok(()))));
        let options = ResumeOptions { on_doubt: done, ..ResumeOptions::default() };
        let outcome = world.engine.resume_program(&toy, &id, options).await.unwrap();
        assert_eq!((outcome.status, toy.trace().as_str()), (RunStatus::Completed, "a b c"));
    }
}
