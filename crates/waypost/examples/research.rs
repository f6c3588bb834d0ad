//! A research agent without a network: answers a question from a folder of documents.
//!
//! ```text
//! cargo run -p waypost --example research -- STORE [QUESTION [FOLDER]]
//! ```
//!
//! The agent plans topics; for each topic it searches, reads and summarises; then it writes the answer. The
//! report of the run, `STORE/runs/research/report.md`, grows with every summary, and keeps the results of an
//! unfinished run. Kill the agent and give the same command again: summaries are not paid for twice.
//!
//! Shows: a loop with a route, notes as state, `once` around a costly call, usage, and the report of a run.
#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use std::collections::VecDeque;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use waypost::file::FileStore;
use waypost::record::Usage;
use waypost::store::{Store as _, StoreError};
use waypost::{Context, Engine, Graph, GraphError, RunError, StepError};

const QUESTION: &str = "What survives a crash, and which evidence decides about a step that was cut?";
/// Stop words of a question.
const SMALL_WORDS: &[&str] = &["about", "does", "that", "this", "what", "when", "where", "which", "with"];

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Research {
    question: String,
    folder: PathBuf,
    /// Topics still to be researched; the first is in progress.
    topics: VecDeque<String>,
    /// Documents about the first topic, best first.
    found: Vec<String>,
    /// Passages about the first topic.
    passages: Vec<String>,
    notes: Vec<Note>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Note {
    topic: String,
    summary: String,
    sources: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let store = args.next().ok_or("usage: research STORE [QUESTION [FOLDER]]")?;
    let question = args.next().unwrap_or_else(|| QUESTION.to_owned());
    let folder = fs::canonicalize(args.next().unwrap_or_else(|| "docs".to_owned()))?;
    let store = Arc::new(FileStore::open(store)?);
    let engine = Engine::new(store.clone());
    let graph = graph()?;

    let begin = Research { question, folder, ..Research::default() };
    let outcome = match engine.run(&graph, "research", begin).step_limit(100).await {
        Err(RunError::Store(StoreError::Exists { .. })) => engine.resume(&graph, "research").await?,
        outcome => outcome?,
    };

    if let Some((step, failure)) = &outcome.failed {
        return Err(format!("step `{step}` failed: {}", failure.error.join(": ")).into());
    }
    println!("{} notes, {}", outcome.state.notes.len(), outcome.status.name());
    if let Some(folder) = store.folder(&outcome.run) {
        println!("{}", folder.join("report.md").display());
    }
    Ok(())
}

fn graph() -> Result<Graph<Research>, GraphError> {
    Graph::<Research>::builder("research")
        .step("plan", plan)
        .step("search", search)
        .step("read", read)
        .step("summarise", summarise)
        .step("write", write)
        .edge("plan", "search")
        .edge("search", "read")
        .edge("read", "summarise")
        .route("summarise", ["search", "write"], |r| if r.topics.is_empty() { "write" } else { "search" })
        .build()
}

/// Makes a topic of each word of the question, without stop words.
async fn plan(mut research: Research, _: Context) -> Result<Research, StepError> {
    let words = research.question.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
    let topics = words.filter(|word| word.len() > 3 && !SMALL_WORDS.contains(&word.as_str()));
    research.topics = topics.collect();
    if research.topics.is_empty() {
        return Err(StepError::fatal("the question is about nothing"));
    }
    Ok(research)
}

/// Ranks the documents by occurrences of the topic, and selects the best two.
async fn search(mut research: Research, context: Context) -> Result<Research, StepError> {
    let topic = &research.topics[0];
    let mut ranked = Vec::new();
    for entry in fs::read_dir(&research.folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            let text = fs::read_to_string(research.folder.join(&name))?;
            ranked.push((text.to_lowercase().matches(topic.as_str()).count(), name));
        }
    }
    ranked.retain(|(count, _)| *count > 0);
    ranked.sort_by(|one, other| other.cmp(one));
    context.emit("searched", json!({ "topic": topic, "hits": ranked.len() }));
    research.found = ranked.into_iter().take(2).map(|(_, name)| name).collect();
    Ok(research)
}

/// Extracts the passages about the topic: paragraphs, and single lines of tables and lists.
async fn read(mut research: Research, _: Context) -> Result<Research, StepError> {
    research.passages.clear();
    for name in &research.found {
        let text = fs::read_to_string(research.folder.join(name))?;
        let pieces = text.split("\n\n").flat_map(|piece| match piece.starts_with(['|', '-']) {
            true => piece.lines().collect(),
            false => vec![piece],
        });
        let about = pieces.filter(|piece| piece.to_lowercase().contains(&research.topics[0]));
        let plain = about.filter(|piece| !piece.starts_with(['#', '`', ' ']));
        research.passages.extend(plain.take(3).map(|piece| piece.replace(['|', '*', '\n'], " ")));
    }
    Ok(research)
}

/// Asks the model. `once` records the answer before any further work, together with its usage.
async fn summarise(mut research: Research, context: Context) -> Result<Research, StepError> {
    let Some(topic) = research.topics.pop_front() else { return Ok(research) };
    let summary = context.once("summary", async {
        let (summary, usage) = ask_model(&topic, &research.passages).await?;
        context.usage(&usage);
        Ok::<_, StepError>(summary)
    });
    let summary = summary.await?;
    let sources = std::mem::take(&mut research.found);
    context.report(&format!("### {topic}\n\n{summary}\n\n{}", list_of(&sources)));
    research.notes.push(Note { topic, summary, sources });
    Ok(research)
}

async fn write(research: Research, context: Context) -> Result<Research, StepError> {
    let mut text = format!("# {}\n", research.question);
    for Note { topic, summary, sources } in &research.notes {
        text += &format!("\n**{topic}.** {summary}\n\n{}", list_of(sources));
    }
    context.report(&text);
    Ok(research)
}

/// A stand-in for a language model: returns the first sentence about the topic of each passage. Put your own
/// call here.
async fn ask_model(topic: &str, passages: &[String]) -> Result<(String, Usage), StepError> {
    let is_about = |sentence: &&str| sentence.to_lowercase().contains(topic);
    let sentences = passages.iter().filter_map(|passage| passage.split_inclusive(". ").find(is_about));
    let said = sentences.map(str::trim).collect::<Vec<_>>().join(" ");
    let words = |text: &str| text.split_whitespace().count() as u64;
    let (tokens_in, tokens_out) = (words(&passages.join(" ")), words(&said));
    Ok((said, Usage { tokens_in, tokens_out, cost: 0.0, model: Some("first-sentence".to_owned()) }))
}

fn list_of(sources: &[String]) -> String {
    sources.iter().map(|name| format!("- {name}\n")).collect()
}
