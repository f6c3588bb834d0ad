//! An answer counts only for the shown question; a key is used once per attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use waypost::engine::{Outcome, RunError};
use waypost::record::RunStatus;
use waypost::{Context, Engine, Graph, Retry, StepError};

use crate::faulty::World;
use crate::test_graphs::{Notes, Stage};

/// Answers the only open question of run `r`.
async fn answer(engine: &Engine, outcome: &Outcome<Notes>, value: Value) {
    assert_eq!((outcome.status, outcome.waiting.len()), (RunStatus::Waiting, 1), "{outcome:?}");
    engine.answer("r", &outcome.waiting[0].wait.id, value).await.unwrap();
}

/// Builds a step that asks about a tenant. Each answered attempt moves `more` tenants further, and the first one
/// fails.
fn asks_about(more: u32, stage: &Stage) -> Graph<Notes> {
    let (asked, stage) = (Arc::new(AtomicU32::new(0)), stage.clone());
    stage.fail("delete 0", 1);
    Graph::builder("tenants")
        .step("delete", move |state: Notes, context: Context| {
            let (tenant, stage) = (asked.load(Ordering::Relaxed), stage.clone());
            let asked = Arc::clone(&asked);
            async move {
                let may: bool = context.interrupt("approve", json!({ "delete": tenant })).await?;
                asked.store(tenant + more, Ordering::Relaxed);
                stage.pass(&format!("delete {tenant}")).await?;
                Ok::<_, StepError>(state.and(format!("{tenant}={may}")))
            }
        })
        .retry(Retry::fixed(1, Duration::ZERO))
        .build()
        .unwrap()
}

// Bug: the retry asked about another tenant under the same key, and got the answer about the first tenant.
#[tokio::test]
async fn a_retry_with_another_question_gets_no_old_answer() {
    for mut world in World::each() {
        let graph = asks_about(1, &Stage::default());

        let first = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        answer(&world.engine, &first, json!(true)).await;
        world.reopen();
        let second = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!(second.waiting[0].wait.question, Some(json!({ "delete": 1 })));
        answer(&world.engine, &second, json!(false)).await;
        let end = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!((end.status, end.state.done), (RunStatus::Completed, vec!["1=false".to_owned()]));
    }
}

#[tokio::test]
async fn a_retry_with_the_same_question_gets_its_answer() {
    let world = World::memory();
    let graph = asks_about(0, &Stage::default());

    let first = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    answer(&world.engine, &first, json!(true)).await;
    let end = world.engine.resume(&graph, "r").await.unwrap();

    assert_eq!((end.status, end.state.done), (RunStatus::Completed, vec!["0=true".to_owned()]));
}

#[tokio::test]
async fn a_rerun_by_a_person_asks_again() {
    let mut world = World::memory();
    let stage = Stage::default();
    let graph = Graph::builder("ask").step("a", stage.ask()).build().unwrap();
    let first = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    answer(&world.engine, &first, json!("yes")).await;
    assert_eq!(world.engine.resume(&graph, "r").await.unwrap().state.done, ["a:yes"]);

    world.reopen();
    let again = world.engine.resume(&graph, "r").from_step("a").await.unwrap();
    answer(&world.engine, &again, json!("no")).await;
    let end = world.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(end.state.done, ["a:no"]);
}

/// Runs a step of one function and returns its error.
async fn failure<F, W>(step: F) -> String
where
    F: Fn(Context) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), StepError>> + Send + 'static,
{
    let world = World::memory();
    let step = move |state: Notes, context: Context| {
        let work = step(context);
        async move { work.await.map(|()| state) }
    };
    let graph = Graph::builder("twice").step("tools", step).build().unwrap();
    world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    for name in ["m", "m"] {
        let _ = world.engine.signal("r", name, json!(1)).await;
    }
    let mut outcome = world.engine.resume(&graph, "r").await.unwrap();
    while outcome.status == RunStatus::Waiting {
        answer(&world.engine, &outcome, json!(true)).await;
        outcome = world.engine.resume(&graph, "r").await.unwrap();
    }
    assert_eq!(outcome.status, RunStatus::Failed);
    outcome.failed.unwrap().1.error.join(": ")
}

// Bug: one approval counted for every later question with the same key: `acme` was shown, and `evil-corp`
// deleted.
#[tokio::test]
async fn a_key_used_twice_in_an_attempt_fails_the_step() {
    let questions = failure(|context| async move {
        for tenant in ["acme", "evil-corp"] {
            let _: bool = context.interrupt("approve", json!({ "delete": tenant })).await?;
        }
        Ok(())
    });
    let same_question = failure(|context| async move {
        let _: bool = context.interrupt("approve", "may I?").await?;
        context.interrupt("approve", "may I?").await
    });
    let at_once = failure(|context| async move {
        let questions = [("approve", "a?"), ("approve", "b?")];
        let _: Vec<bool> = context.interrupt_all(questions).await?;
        Ok(())
    });
    let joined = failure(|context| async move {
        let (one, other) = tokio::join!(
            context.interrupt::<bool>("approve", "a?"),
            context.interrupt_within::<bool>("approve", "b?", Duration::from_secs(3_600)),
        );
        one.map(drop).and(other.map(drop))
    });
    let expect =
        "cannot use key `approve` of `interrupt` twice in one attempt of step `tools`: use a unique key";
    for error in [questions.await, same_question.await, at_once.await] {
        assert_eq!(error, expect);
    }
    // The first of the two uses has the key, and waits for its answer.
    assert_eq!(joined.await, expect);
}

#[tokio::test]
async fn every_kind_of_call_needs_a_key_of_its_own() {
    let once = failure(|context| async move {
        for _ in ["acme", "evil-corp"] {
            context.once("lookup", async { Ok::<_, StepError>(7) }).await?;
        }
        Ok(())
    });
    let signal = failure(|context| async move {
        for _ in 0..2 {
            let _: u32 = context.signal("m", "m").await?;
        }
        Ok(())
    });
    let sleep = failure(|context| async move {
        for _ in 0..2 {
            context.sleep("pause", Duration::ZERO).await?;
        }
        Ok(())
    });
    for (call, key, error) in
        [("once", "lookup", once.await), ("signal", "m", signal.await), ("sleep", "pause", sleep.await)]
    {
        let expect = format!("cannot use key `{key}` of `{call}` twice in one attempt of step `tools`");
        assert!(error.starts_with(&expect), "{error}");
    }
}

#[tokio::test]
async fn a_call_that_failed_or_was_dropped_gives_its_key_back() {
    let world = World::memory();
    let graph = Graph::builder("again")
        .step("a", |state: Notes, context: Context| async move {
            let mut tries = 0;
            let value = loop {
                tries += 1;
                let work = async { if tries < 3 { Err(StepError::fatal("not yet")) } else { Ok(tries) } };
                if let Ok(value) = context.once("poll", work).await {
                    break value;
                }
            };
            let mut beats = 0;
            while beats < 3 {
                tokio::select! {
                    stop = context.signal::<u32>("stop", "stop") => drop(stop?),
                    () = tokio::time::sleep(Duration::from_millis(1)) => beats += 1,
                }
            }
            Ok::<_, StepError>(state.and(format!("{value} {beats}")))
        })
        .build()
        .unwrap();

    let outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!((outcome.status, outcome.state.done), (RunStatus::Completed, vec!["3 3".to_owned()]));
}

#[tokio::test]
async fn an_answer_stays_with_its_question_after_a_crash() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = Graph::builder("ask").step("a", stage.ask()).build().unwrap();
        let first = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        answer(&world.engine, &first, json!("yes")).await;
        let twice = world.engine.answer("r", &first.waiting[0].wait.id, json!("no")).await.unwrap_err();
        world.reopen();
        let end = world.engine.resume(&graph, "r").await.unwrap();
        let late = world.engine.answer("r", &first.waiting[0].wait.id, json!("no")).await.unwrap_err();

        assert_eq!(end.state.done, ["a:yes"]);
        assert!(matches!((&twice, &late), (RunError::Answered { .. }, RunError::Answered { .. })));
    }
}
