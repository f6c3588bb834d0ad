//! A draft that a person approves before its publication; a second process gives the answer.
//!
//! ```text
//! cargo run -p waypost --example approval -- STORE                  writes a draft, asks, and ends
//! cargo run -p waypost --example approval -- STORE no "too long"    writes another draft, and asks again
//! cargo run -p waypost --example approval -- STORE yes              publishes it, by adding it to STORE/outbox.txt
//! cargo run -p waypost --example approval -- STORE                  shows how it stands
//! ```
//!
//! While the person decides, no process runs. The publication must not happen twice. If the program is killed
//! during it, the next program asks for a decision: answer `again` or `done`.
//!
//! Shows: `interrupt` inside a step, answers, a loop back, `not_idempotent` and steps in doubt.
#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use waypost::engine::Outcome;
use waypost::file::FileStore;
use waypost::store::StoreError;
use waypost::{Context, END, Engine, Graph, GraphError, RunError, RunId, StepError};

const RUN: &str = "announcement";

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Announcement {
    text: String,
    remarks: Vec<String>,
    approved: bool,
}

/// The answer of the person.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Verdict {
    approved: bool,
    remark: Option<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let store = args.next().ok_or("usage: approval STORE [yes | no [REMARK] | again | done]")?;
    let engine = Engine::new(Arc::new(FileStore::open(&store)?));
    let graph = graph(Path::new(&store).join("outbox.txt"))?;

    let outcome = match (args.next().as_deref(), args.next()) {
        (None, _) => match engine.run(&graph, RUN, Announcement::default()).await {
            Err(RunError::Store(StoreError::Exists { .. })) => engine.resume(&graph, RUN).await,
            outcome => outcome,
        },
        (Some("yes"), remark) => answer(&engine, &graph, Verdict { approved: true, remark }).await,
        (Some("no"), remark) => answer(&engine, &graph, Verdict { approved: false, remark }).await,
        (Some("again"), _) => engine.resume(&graph, RUN).from_step("publish").await,
        (Some("done"), _) => engine.resume(&graph, RUN).from_step(END).await,
        (Some(other), _) => return Err(format!("`{other}` is none of yes, no, again, done").into()),
    };
    match outcome {
        Ok(outcome) => tell(&outcome),
        Err(RunError::InDoubt { questions, .. }) => {
            println!("In doubt: {}. Look into the outbox; then say `again` or `done`.", questions[0].cause);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn graph(outbox: PathBuf) -> Result<Graph<Announcement>, GraphError> {
    Graph::<Announcement>::builder("announcement")
        .step("draft", draft)
        .step("review", review)
        .step("publish", move |state, context| publish(state, context, outbox.clone()))
        .not_idempotent()
        .edge("draft", "review")
        .route("review", ["draft", "publish"], |state| if state.approved { "publish" } else { "draft" })
        .build()
}

async fn draft(mut state: Announcement, context: Context) -> Result<Announcement, StepError> {
    state.text = format!("Draft {}: the new release is out.", context.iteration()[0]);
    for remark in &state.remarks {
        state.text += &format!(" ({remark}: heeded.)");
    }
    Ok(state)
}

/// Asks the question. The step ends here, and reruns from its beginning after the answer.
async fn review(mut state: Announcement, context: Context) -> Result<Announcement, StepError> {
    let verdict: Verdict = context.interrupt("verdict", json!({ "publish": state.text })).await?;
    state.approved = verdict.approved;
    state.remarks.extend(verdict.remark);
    Ok(state)
}

async fn publish(state: Announcement, context: Context, outbox: PathBuf) -> Result<Announcement, StepError> {
    let mut outbox = OpenOptions::new().create(true).append(true).open(outbox)?;
    // A real service would receive the key, and would prevent a second publication with it.
    writeln!(outbox, "[{}] {}", context.idempotency_key(), state.text)?;
    outbox.sync_all()?;
    Ok(state)
}

/// Answers the open question of the run, and resumes the run.
async fn answer(
    engine: &Engine,
    graph: &Graph<Announcement>,
    verdict: Verdict,
) -> Result<Outcome<Announcement>, RunError> {
    if let Some(question) = engine.waiting(&RunId::new(RUN)?).await?.first() {
        engine.answer(RUN, &question.wait.id, json!(verdict)).await?;
    }
    engine.resume(graph, RUN).await
}

fn tell(outcome: &Outcome<Announcement>) {
    for waiting in &outcome.waiting {
        let question = waiting.wait.question.clone().unwrap_or_default();
        println!("Step `{}` asks: {question}. Answer with `yes` or `no`.", waiting.step);
    }
    if let Some((step, failure)) = &outcome.failed {
        println!("Step `{step}` failed: {}.", failure.error.join(": "));
    }
    println!("The run is {}.", outcome.status.name());
}
