//! The code of the README.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waypost::{Context, Engine, FileStore, Graph, Outcome, StepError};

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Notes {
    hits: Vec<String>,
    text: String,
}

async fn search(mut notes: Notes, context: Context) -> Result<Notes, StepError> {
    notes.hits.push(format!("hit {}", context.iteration()[0]));
    Ok(notes)
}

async fn write(mut notes: Notes, _: Context) -> Result<Notes, StepError> {
    notes.text = notes.hits.join(", ");
    Ok(notes)
}

async fn research(folder: &Path) -> Result<Outcome<Notes>, Box<dyn Error>> {
    let graph = Graph::<Notes>::builder("research")
        .step("search", search) // async fn(Notes, Context) -> Result<Notes, StepError>
        .step("write", write)
        .route("search", ["search", "write"], |n| if n.hits.len() < 3 { "search" } else { "write" })
        .build()?;
    let engine = Engine::new(Arc::new(FileStore::open(folder)?));
    let outcome = engine.run(&graph, "monday", Notes::default()).await?; // After a crash: `resume`.
    Ok(outcome)
}

#[tokio::test]
async fn the_code_of_the_readme_runs() {
    let folder = tempfile::tempdir().unwrap();

    let outcome = research(folder.path()).await.unwrap();

    assert_eq!(outcome.state.text, "hit 1, hit 2, hit 3");
}
