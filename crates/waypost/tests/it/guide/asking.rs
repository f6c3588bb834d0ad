//! The code of docs/guide/asking-a-person.md.

use std::sync::Arc;
use std::time::Duration;

use waypost::{Context, Engine, MemoryStore};

use serde::{Deserialize, Serialize};
use serde_json::json;
use waypost::{Graph, RunError, RunStatus, StepError};

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Letter {
    text: String,
    sent: bool,
}

async fn draft(mut letter: Letter, _: Context) -> Result<Letter, StepError> {
    letter.text = "Dear all".to_owned();
    Ok(letter)
}

async fn send(mut letter: Letter, context: Context) -> Result<Letter, StepError> {
    let may: bool = context.interrupt("may-send", json!({ "text": letter.text })).await?;
    letter.sent = may;
    Ok(letter)
}

fn letter() -> Graph<Letter> {
    Graph::<Letter>::builder("letter")
        .step("draft", draft)
        .step("send", send)
        .edge("draft", "send")
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_question_waits_for_its_answer() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let outcome = engine.run(&letter(), "r", Letter::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Waiting);
    let question = &outcome.waiting[0];
    assert_eq!(question.step.as_str(), "send");
    assert_eq!(question.wait.question, Some(json!({ "text": "Dear all" })));

    engine.answer_step("r", "send", true).await.unwrap();

    let outcome = engine.resume(&letter(), "r").await.unwrap();
    assert!(outcome.state.sent);

    let again = engine.answer("r", &question.wait.id, false).await;
    assert!(matches!(again, Err(RunError::Answered { .. })));
    let nobody = engine.answer("r", "c0ffee", true).await.unwrap_err();
    assert_eq!(nobody.to_string(), "run r has no open question `c0ffee`; it waits for nothing");
}

async fn review(mut letter: Letter, context: Context) -> Result<Letter, StepError> {
    let questions = ["ada", "bob"].map(|name| (name, json!({ "for": name, "text": letter.text })));
    let votes: Vec<bool> = context.interrupt_all(questions).await?;

    let day = Duration::from_secs(24 * 60 * 60);
    let veto: Option<bool> = context.interrupt_within("veto", "Does anybody object?", day).await?;
    letter.sent = votes.iter().all(|vote| *vote) && veto != Some(true);
    Ok(letter)
}

#[tokio::test]
async fn several_questions_are_asked_at_once_and_one_has_a_deadline() {
    let clock = Arc::new(waypost_testing::TestClock::default());
    let engine = Engine::new(Arc::new(MemoryStore::new())).with_clock(clock.clone());
    let graph = Graph::<Letter>::builder("letter").step("review", review).build().unwrap();

    for question in engine.run(&graph, "r", Letter::default()).await.unwrap().waiting {
        engine.answer("r", &question.wait.id, json!(true)).await.unwrap();
    }
    let outcome = engine.resume(&graph, "r").await.unwrap();

    // The run now waits a day for a veto.
    assert!(outcome.waiting[0].wait.until.is_some());

    clock.pass(Duration::from_secs(25 * 60 * 60));
    assert!(engine.resume(&graph, "r").await.unwrap().state.sent);
}

#[tokio::test]
async fn a_run_can_be_held_around_any_step() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let graph = Graph::<Letter>::builder("letter")
        .step("draft", draft)
        .step("post", |letter: Letter, _| async move { Ok::<_, StepError>(letter) })
        .edge("draft", "post")
        .build()
        .unwrap();

    let outcome = engine.run(&graph, "r", Letter::default()).interrupt_before(["post"]).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Interrupted);

    // A person reads and edits the draft. `post` is not held a second time.
    let resume = engine.resume(&graph, "r").edit_state(|letter| letter.text += ",\nit is done.");
    let outcome = resume.await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(outcome.state.text, "Dear all,\nit is done.");
}
