//! Values that a step keeps or emits: read back unchanged, or refused by name while the step can still be fixed.

use std::fmt::Debug;
use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waypost::engine::{MEMO_BYTES_MAX, Outcome};
use waypost::graph::{ItemEnds, SAID_BYTES_MAX};
use waypost::record::{FailureKind, RunStatus, Usage};
use waypost::{Context, Graph, StepError};

use crate::faulty::World;
use crate::test_graphs::{Notes, Stage};

/// A graph of one step.
fn only<F>(step: impl Fn(Notes, Context) -> F + Send + Sync + 'static) -> Graph<Notes>
where
    F: Future<Output = Result<Notes, StepError>> + Send + 'static,
{
    Graph::builder("only").step("only", step).build().unwrap()
}

/// Returns the fatal error of the only step, in one line.
fn fatal(outcome: Outcome<Notes>) -> String {
    let (_, failure) = outcome.failed.unwrap();
    assert_eq!(failure.kind, FailureKind::Fatal, "{failure:?}");
    failure.error.join(": ")
}

/// Returns the notes of a step that keeps `value`, from the first attempt and from the one after a cut.
async fn kept_twice<T>(value: T) -> Vec<String>
where
    T: Debug + Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let mut world = World::memory();
    let stage = Stage::default();
    let (said, tries) = (stage.clone(), Arc::new(AtomicU32::new(0)));
    let graph = only(move |state, context| {
        let (said, tries, value) = (said.clone(), tries.clone(), value.clone());
        async move {
            let kept = context.once("k", async { Ok::<_, StepError>(value) }).await?;
            said.say(format!("{kept:?}"));
            if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                said.say("cut");
                pending::<()>().await;
            }
            Ok(state)
        }
    });
    stage.crash_run(&mut world, &graph, "cut").await;
    assert_eq!(world.engine.resume(&graph, "r").await.unwrap().status, RunStatus::Completed);
    stage.said().into_iter().filter(|said| said != "cut").collect()
}

/// Returns the error of a step that keeps `value`.
async fn refused<T>(value: T) -> String
where
    T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let graph = only(move |state, context| {
        let value = value.clone();
        async move {
            context.once("k", async { Ok::<_, StepError>(value) }).await?;
            Ok(state)
        }
    });
    fatal(World::memory().engine.run(&graph, "r", Notes::default()).await.unwrap())
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Price {
    name: String,
    net: f64,
}

/// A type with a field that is skipped in serialization.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Half {
    whole: u8,
    #[serde(skip)]
    half: u8,
}

// Bug: `once` returned `Some(NaN)` at first and `None` after a crash, and some values could not be read back.
// Cause: values were written as plain JSON. Fix: values use the encoding of states.
#[tokio::test]
async fn once_keeps_a_value_as_it_is_or_refuses_it_by_field() {
    let price = |net| Price { name: "tea".to_owned(), net };

    assert_eq!(refused(Some(f64::NAN)).await, "cannot keep `once/k`: JSON has no NaN");
    assert!(
        refused(vec![price(1.0), price(f64::NAN)])
            .await
            .contains("cannot keep `once/k`: [1].net: JSON has no NaN")
    );
    assert!(refused(Some(None::<u8>)).await.contains("`once/k`"));
    assert!(refused(Some(())).await.contains("`once/k`"));
    assert!(refused(u128::MAX).await.contains("more than 64 bits"));
    assert_eq!(kept_twice(Some(0.1f64)).await, ["Some(0.1)", "Some(0.1)"]);
    assert_eq!(kept_twice(None::<u8>).await, ["None", "None"]);
    assert_eq!(kept_twice(u64::MAX).await, [u64::MAX.to_string(), u64::MAX.to_string()]);
    assert_eq!(kept_twice(5i128).await, ["5", "5"]);
}

// Bug: a skipped field was present on the first call and missing after a crash.
#[tokio::test]
async fn once_gives_the_same_the_first_time_as_after_a_crash() {
    let said = kept_twice(Half { whole: 2, half: 1 }).await;

    assert_eq!(said, ["Half { whole: 2, half: 0 }", "Half { whole: 2, half: 0 }"]);
}

#[tokio::test]
async fn a_question_that_would_be_asked_as_another_one_is_refused() {
    let graph = only(|state: Notes, context: Context| async move {
        let answer: String = context.interrupt("q", json!(null)).await?;
        let more: String = context.interrupt("more", (answer, f32::INFINITY)).await?;
        Ok(state.and(more))
    });
    let world = World::memory();
    let asked = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    world.engine.answer("r", &asked.waiting[0].wait.id, json!("yes")).await.unwrap();

    let outcome = world.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(fatal(outcome), "cannot keep `more`: [1]: JSON has no infinite number");
}

#[tokio::test]
async fn an_item_that_would_come_back_as_another_one_is_refused() {
    let graph = Graph::<Notes>::builder("items")
        .each(
            "it",
            |_: &Notes| vec![1.0, f64::NAN],
            |n: &f64| format!("n{n}"),
            |n: f64, _: Context| async move { Ok::<_, StepError>(n.to_string()) },
        )
        .join(|state: Notes, _: ItemEnds<f64, String>, _| async move { Ok::<_, StepError>(state) })
        .build()
        .unwrap();

    let outcome = World::memory().engine.run(&graph, "r", Notes::default()).await.unwrap();

    let told = fatal(outcome);
    assert!(told.starts_with("cannot record item `nNaN`") && told.contains("no NaN"), "{told}");
}

// Bug: a cost that is not a number, or too many events for a header, ended the run without a record of the error,
// and each resume repeated both. Fix: the step fails.
#[tokio::test]
async fn what_a_step_says_and_cannot_be_written_fails_the_step() {
    type Say = fn(&Context);
    let says: [(Say, &str); 3] = [
        (|context| context.usage(&Usage { cost: f64::NAN, ..Usage::default() }), "a cost of NaN"),
        (|context| context.emit("large", "x".repeat(MEMO_BYTES_MAX)), "large"),
        (
            |context| (0..3).for_each(|_| context.report(&"x".repeat(SAID_BYTES_MAX / 2))),
            "since its last checkpoint",
        ),
    ];
    for (say, why) in says {
        let graph = only(move |state: Notes, context: Context| {
            say(&context);
            std::future::ready(Ok(state))
        });
        let world = World::memory();

        let outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();

        assert_eq!(outcome.status, RunStatus::Failed);
        let told = fatal(outcome);
        assert!(told.contains(why), "{told}");
    }
}

// Bug: a kept result and emitted events, each within its limit, ended the run with "the header has 2101000 bytes,
// 2097152 are allowed", and each resume repeated both. Many small events did the same. Cause: each limit was half
// of a header, without room for other fields, and only the text of an event was counted. Fix: the encoded size is
// counted, and both limits leave room for the rest of the header.
#[tokio::test]
async fn what_a_step_may_say_and_keep_fits_into_one_checkpoint() {
    // Each event takes `{"event":{"name":"n","data":...}},` in the header; a quote in the data takes one byte
    // more.
    let of_one = |data: usize| r#"{"event":{"name":"n","data":""}},"#.len() + data;
    let one_large = |beyond: usize| vec![SAID_BYTES_MAX - of_one(0) + beyond];
    let many_small = |beyond: usize| {
        let count = SAID_BYTES_MAX / of_one(0) - 1;
        let rest = SAID_BYTES_MAX - count * of_one(0) - of_one(0);
        let mut events = vec![0; count];
        events.push(rest + beyond);
        events
    };
    for (events, fits) in
        [(one_large(0), true), (many_small(0), true), (one_large(1), false), (many_small(1), false)]
    {
        let graph = only(move |state: Notes, context: Context| {
            let events = events.clone();
            async move {
                events.iter().for_each(|bytes| context.emit("n", "x".repeat(*bytes)));
                // With its quotes, the result has the maximum size.
                let result = "y".repeat(MEMO_BYTES_MAX - 2);
                context.once("result", async { Ok::<_, StepError>(result) }).await?;
                context.emit("n", "x".repeat(SAID_BYTES_MAX - of_one(0)));
                Ok(state)
            }
        });
        let world = World::memory();

        let outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();

        if fits {
            assert_eq!(outcome.status, RunStatus::Completed);
        } else {
            let told = fatal(outcome);
            assert!(told.contains("since its last checkpoint"), "{told}");
        }
    }
}

// The limit is per checkpoint, so an intermediate checkpoint resets the count.
#[tokio::test]
async fn a_step_may_say_as_much_as_it_likes_in_several_checkpoints() {
    let graph = only(|state: Notes, context: Context| async move {
        for _ in 0..3 {
            context.emit("most", "x".repeat(SAID_BYTES_MAX * 2 / 3));
            context.checkpoint().await?;
        }
        Ok(state)
    });

    let outcome = World::memory().engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
}

// Bug: an answer of the wrong type was accepted, the step failed for good, and so did each resume. The question
// was answered, so it could not be answered again. Fix: the step asks again, as a new question.
#[tokio::test]
async fn a_question_whose_answer_is_of_the_wrong_type_is_asked_again() {
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = only({
            let stage = stage.clone();
            move |state, context| {
                let stage = stage.clone();
                async move {
                    let answer: String = context.interrupt("q", "how?").await?;
                    stage.pass("asked").await?;
                    Ok(state.and(answer))
                }
            }
        });
        let mut asked = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        let mut ids = Vec::new();
        for wrong in [json!(5), json!({ "not": "text" })] {
            ids.push(asked.waiting[0].wait.id.clone());
            world.engine.answer("r", ids.last().unwrap(), wrong).await.unwrap();
            world.reopen();
            asked = world.engine.resume(&graph, "r").await.unwrap();
            assert_eq!((asked.status, asked.waiting.len()), (RunStatus::Waiting, 1));
            assert_eq!(asked.waiting[0].wait.question, Some(json!("how?")));
            assert!(
                !ids.contains(&asked.waiting[0].wait.id),
                "an answered question cannot be answered again"
            );
        }

        world.engine.answer("r", &asked.waiting[0].wait.id, json!("so")).await.unwrap();
        let resumed = async |world: &World| world.engine.resume(&graph, "r").into_future().await;
        stage.crash(&mut world, "asked", resumed).await;
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, ["so"]);
    }
}
