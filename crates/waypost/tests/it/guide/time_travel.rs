//! The code of docs/guide/time-travel.md.

use std::sync::Arc;

use waypost::MemoryStore;

use serde::{Deserialize, Serialize};
use waypost::{CheckpointRef, Context, Engine, Graph, RunStatus, StepError};

#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct Essay {
    outline: Vec<String>,
    text: String,
}

async fn outline(mut essay: Essay, _: Context) -> Result<Essay, StepError> {
    essay.outline = vec!["begin".to_owned(), "end".to_owned()];
    Ok(essay)
}

async fn write(mut essay: Essay, _: Context) -> Result<Essay, StepError> {
    essay.text = essay.outline.join(", ");
    Ok(essay)
}

async fn polish(mut essay: Essay, _: Context) -> Result<Essay, StepError> {
    essay.text.push('.');
    Ok(essay)
}

fn essay() -> Graph<Essay> {
    Graph::<Essay>::builder("essay")
        .step("outline", outline)
        .step("write", write)
        .step("polish", polish)
        .edge("outline", "write")
        .edge("write", "polish")
        .build()
        .unwrap()
}

#[tokio::test]
async fn any_checkpoint_can_be_looked_at_and_gone_on_from() {
    let (store, graph) = (Arc::new(MemoryStore::new()), essay());
    let engine = Engine::new(store.clone());
    engine.run(&graph, "r", Essay::default()).await.unwrap();

    let history = engine.history("r").await.unwrap();
    let told: Vec<String> = history.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        ["r@1 started outline", "r@2 completed outline", "r@3 completed write", "r@4 completed polish"]
    );

    let at: CheckpointRef = "r@3".parse().unwrap();
    let then = engine.inspect(&graph, &at).await.unwrap();
    assert_eq!(then.state.text, "begin, end");
    assert_eq!(then.position.frontier[0].step.as_str(), "polish");

    use waypost::diff;

    let end = engine.inspect(&graph, &"r@4".parse().unwrap()).await.unwrap();
    let before = serde_json::to_value(&then.state).unwrap();
    let after = serde_json::to_value(&end.state).unwrap();
    let told: Vec<String> = diff(&before, &after).iter().map(ToString::to_string).collect();
    assert_eq!(told, [r#"~ text: "begin, end" -> "begin, end.""#]);

    let forked = engine
        .fork(&graph, &"r@2".parse().unwrap(), "r-with-middle")
        .edit_state(|essay| essay.outline.insert(1, "middle".to_owned()))
        .await
        .unwrap();
    assert_eq!(forked.state.text, "begin, middle, end.");

    let outcome = engine
        .resume(&graph, "r")
        .from_step("write")
        .edit_state(|essay| essay.outline.push("coda".to_owned()))
        .validate_state(|essay| if essay.outline.len() < 9 { Ok(()) } else { Err("too long".to_owned()) })
        .await
        .unwrap();
    assert_eq!(outcome.state.text, "begin, end, coda.");

    let back = engine.resume(&graph, "r").from_checkpoint(2).without_running().await.unwrap();
    assert_eq!(back.status, RunStatus::Interrupted);
    assert_eq!(back.state.outline, ["begin", "end"]);
    assert_eq!(back.state.text, "");

    let outcome = engine.resume(&graph, "r").await.unwrap();
    assert_eq!(outcome.state.text, "begin, end.");

    let refused = engine
        .resume(&graph, "r")
        .from_step("polish")
        .edit_state(|essay| essay.text.clear())
        .validate_state(|essay| if essay.text.is_empty() { Err("no text".to_owned()) } else { Ok(()) })
        .await;
    assert!(refused.unwrap_err().to_string().ends_with("was refused: no text"));

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outline.json");

    use waypost::{Portable, SaveMode};

    Portable::of(store.as_ref(), &"r@2".parse().unwrap()).await.unwrap().save(&file, SaveMode::New).unwrap();

    // On another machine, with a store without `r`:
    let portable = Portable::load(&file).unwrap();
    let elsewhere = Engine::new(Arc::new(MemoryStore::new()));
    let outcome = elsewhere.import(&graph, &portable, "r-elsewhere").await.unwrap();
    assert_eq!(outcome.state.text, "begin, end.");
}
