//! Steps whose evidence undoes that of others: a resume comes to an end, and says which they are.

use std::sync::Arc;
use std::time::Duration;

use waypost::memory::MemoryStore;
use waypost::plan::Cause;
use waypost::record::{Claim, Pack, RunStatus};
use waypost::{Context, Engine, Graph, RunError, StepError};

use crate::play::{Notes, Stage};

/// How long a resume may take that does three steps again: it must not go on for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder, and steps that write files in it.
struct Desk {
    folder: tempfile::TempDir,
    stage: Stage,
    engine: Engine,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::new(Arc::new(MemoryStore::new())).with_base(folder.path());
        Self { folder, stage: Stage::default(), engine }
    }

    /// A step that says its name and writes it into files.
    fn writes(
        &self,
        files: &'static [&'static str],
    ) -> impl Fn(Notes, Context) -> std::future::Ready<Result<Notes, StepError>> + Send + Sync + use<> {
        let (stage, folder) = (self.stage.clone(), self.folder.path().to_owned());
        move |state, context| {
            let name = context.step().to_string();
            stage.say(&name);
            for file in files {
                std::fs::write(folder.join(file), format!("of {name}")).unwrap();
            }
            std::future::ready(Ok(state.and(name)))
        }
    }

    /// Each step writes its own file, which it pins, and all those of the others.
    fn rivals(&self) -> Graph<Notes> {
        let files: &[&str] = &["a.txt", "b.txt", "c.txt"];
        let pins = |file: &'static str| move |_: &Notes| Pack::all([Claim::unchanged(file)]);
        Graph::<Notes>::builder("rivals")
            .step("a", self.writes(files))
            .evidence(pins("a.txt"))
            .step("b", self.writes(files))
            .evidence(pins("b.txt"))
            .step("c", self.writes(&["c.txt"]))
            .evidence(pins("c.txt"))
            .edge("a", "b")
            .edge("b", "c")
            .build()
            .unwrap()
    }
}

// Two steps each wrote over what the other had pinned. A resume did one again, found the other broken, did that again,
// found the first one broken, and so on for ever: what had been done again was remembered only until the run was taken
// forward. Now all that was done again under one lease is known by its records, and nothing is twice.
#[tokio::test]
async fn steps_that_undo_each_other_are_done_again_once_and_asked_about() {
    let desk = Desk::new();
    let graph = desk.rivals();
    desk.engine.run(&graph, "r", Notes::default()).await.unwrap();
    desk.stage.said();

    for _ in 0..2 {
        let resumed = tokio::time::timeout(PATIENCE, desk.engine.resume(&graph, "r").into_future());
        let refused = resumed.await.unwrap().unwrap_err();

        let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
        let said = desk.stage.said();
        assert!(said.len() <= 3, "none of them twice: {said:?}");
        let [question] = &questions[..] else { panic!("{questions:?}") };
        assert_eq!(question.step.as_str(), "a");
        let Cause::EvidenceUndone { others, .. } = &question.cause else { panic!("{:?}", question.cause) };
        assert!(others.iter().any(|(step, _)| step.as_str() == "b"), "{others:?}");
        let told = refused.to_string() + &question.cause.to_string();
        assert!(told.contains("a.txt") && told.contains("`b` for") && told.contains("b.txt"), "{told}");
    }
    // A person may take the files as they are.
    desk.engine.accept(&graph, "r", "a").await.unwrap();
    let outcome = tokio::time::timeout(PATIENCE, desk.engine.resume(&graph, "r").into_future());
    assert_eq!(outcome.await.unwrap().unwrap().status, RunStatus::Completed);
}

// What breaks once, for whatever reason, is done again once, also if others follow: no question is asked.
#[tokio::test]
async fn steps_that_break_one_after_the_other_are_all_done_again() {
    let desk = Desk::new();
    let pins = |file: &'static str| move |_: &Notes| Pack::all([Claim::unchanged(file)]);
    let graph = Graph::<Notes>::builder("line")
        .step("a", desk.writes(&["a.txt", "b.txt"]))
        .evidence(pins("a.txt"))
        .step("b", desk.writes(&["b.txt"]))
        .evidence(pins("b.txt"))
        .edge("a", "b")
        .build()
        .unwrap();
    desk.engine.run(&graph, "r", Notes::default()).await.unwrap();
    desk.stage.said();
    std::fs::write(desk.folder.path().join("a.txt"), "somebody was here").unwrap();

    let outcome = desk.engine.resume(&graph, "r").await.unwrap();

    assert_eq!((outcome.status, desk.stage.said()), (RunStatus::Completed, vec!["a".into(), "b".into()]));
    assert!(desk.engine.resume(&graph, "r").await.unwrap().idle);
}
