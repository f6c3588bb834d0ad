//! One run id for a program that is simply started, also concurrently, and renames of graphs.

use std::future::IntoFuture as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waypost::engine::RunError;
use waypost::record::RunStatus;
use waypost::store::{Store, StoreError};
use waypost::{Engine, FileStore, Graph, StepError};
use waypost_testing::faulty::Call;

use crate::faulty::World;
use crate::test_graphs::{Notes, Stage};

/// Returns the holder of the run.
fn holder(refused: &RunError) -> String {
    match refused {
        RunError::Store(StoreError::Held { holder: Some(holder), .. }) => holder.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Builds `a`, `b` and `c`; step `b` is slow.
fn slow_line(stage: &Stage) -> Graph<Notes> {
    let slow = stage.clone();
    let builder = stage.steps(Graph::builder("line"), &["a"]).step("b", move |state: Notes, _| {
        let stage = slow.clone();
        async move {
            stage.pass("b").await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok::<_, StepError>(state.and("b"))
        }
    });
    stage.steps(builder, &["c"]).edge("a", "b").edge("b", "c").build().unwrap()
}

// Bug: the second start was told that the run exists, and not the holder of the run.
#[tokio::test]
async fn a_start_that_loses_the_race_names_the_holder() {
    for world in World::each() {
        let stage = Stage::default();
        let graph = slow_line(&stage);
        let (engine, first, began) = (world.engine.clone(), graph.clone(), stage.clone());
        let other = async move {
            tokio::spawn(async move {
                engine.run(&first, "r", Notes::default()).or_resume().await.unwrap();
            });
            while !began.has_said("b") {
                tokio::task::yield_now().await;
            }
        };
        world.store.meanwhile(|call| matches!(call, Call::Other("run")), other);

        let refused = world.engine.run(&graph, "r", Notes::default()).or_resume().await.unwrap_err();

        assert!(holder(&refused).starts_with(&format!("process {}", std::process::id())), "{refused}");
    }
}

#[tokio::test]
async fn of_three_starts_at_once_one_runs_and_two_are_told_who() {
    for begun in [false, true] {
        for mut world in World::each() {
            let stage = Stage::default();
            let graph = slow_line(&stage);
            if begun {
                let run =
                    async |world: &World| world.engine.run(&graph, "r", Notes::default()).into_future().await;
                stage.crash(&mut world, "b", run).await;
                stage.said();
            }
            let start = || world.engine.run(&graph, "r", Notes::default()).or_resume().into_future();

            let ends = tokio::join!(start(), start(), start());

            let (done, refused): (Vec<_>, Vec<_>) =
                [ends.0, ends.1, ends.2].into_iter().partition(Result::is_ok);
            assert_eq!((done.len(), refused.len()), (1, 2));
            let outcome = done.into_iter().next().unwrap().unwrap();
            assert_eq!(
                (outcome.status, outcome.state.done.join(" ")),
                (RunStatus::Completed, "a b c".to_owned())
            );
            for refused in refused {
                let refused = refused.unwrap_err();
                let process = format!("process {}", std::process::id());
                assert!(holder(&refused).contains(&process), "{refused}");
                assert!(refused.to_string().starts_with("run r is held by "), "{refused}");
            }
            assert_eq!(stage.said(), if begun { vec!["b", "c"] } else { vec!["a", "b", "c"] });
            assert!(world.engine.run(&graph, "r", Notes::default()).or_resume().await.unwrap().idle);
        }
    }
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Count {
    steps: u32,
}

/// Builds a graph that appends a line to a file in each of its steps.
fn counting(file: PathBuf) -> Graph<Count> {
    let mut builder = Graph::<Count>::builder("counting");
    for name in ["a", "b", "c", "d"] {
        let file = file.clone();
        builder = builder.step(name, move |mut count: Count, _| {
            let file = file.clone();
            async move {
                use std::io::Write as _;
                let mut lines = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
                writeln!(lines, "{name}")?;
                tokio::time::sleep(Duration::from_millis(200)).await;
                count.steps += 1;
                Ok::<_, StepError>(count)
            }
        });
    }
    builder.edge("a", "b").edge("b", "c").edge("c", "d").build().unwrap()
}

const FOLDER: &str = "WAYPOST_TEST_OR_RESUME";

/// Runs the graph once and writes the result to a file named by the process.
async fn start_once(folder: &Path) {
    let engine = Engine::new(Arc::new(FileStore::open(folder.join("store")).unwrap()) as Arc<dyn Store>);
    let graph = counting(folder.join("lines"));
    let said = match engine.run(&graph, "r", Count::default()).or_resume().await {
        Ok(outcome) => format!("ended {:?} {}", outcome.status, outcome.state.steps),
        // Between its lock and its name in the lock file, a holder is unknown.
        Err(RunError::Store(StoreError::Held { holder: None, .. })) => "refused, held by another".to_owned(),
        Err(refused) => format!("refused, held by {}", holder(&refused)),
    };
    std::fs::write(folder.join(std::process::id().to_string()), said).unwrap();
}

#[tokio::test]
async fn one_of_three_processes_does_the_work() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return start_once(Path::new(&folder)).await;
    }
    let folder = tempfile::tempdir().unwrap();
    drop(FileStore::open(folder.path().join("store")).unwrap());
    let start = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "or_resume::one_of_three_processes_does_the_work"]);
        command.env(FOLDER, folder.path()).stdout(Stdio::null()).spawn().unwrap()
    };

    let processes: Vec<_> = (0..3).map(|_| start()).collect();
    let ids: Vec<u32> = processes.iter().map(Child::id).collect();
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let said = ids.iter().map(|id| std::fs::read_to_string(folder.path().join(id.to_string())).unwrap());
    let said: Vec<String> = said.collect();

    let lines = std::fs::read_to_string(folder.path().join("lines")).unwrap();
    assert_eq!(lines, "a\nb\nc\nd\n");
    let winner = said.iter().position(|said| said.contains("ended Completed 4")).expect("one does the work");
    for (place, said) in said.iter().enumerate().filter(|(place, _)| *place != winner) {
        let told = format!("held by process {}", ids[winner]);
        // A start after the end finds the run completed.
        let allowed = [told.as_str(), "held by another", "ended Completed 4"];
        assert!(allowed.iter().any(|allowed| said.contains(allowed)), "{place}: {said}");
    }
    assert!(said.iter().any(|said| said.contains("refused")), "{said:?}");
}

// Bug: the scope of an inner graph was named after its graph, so a rename repeated all its work.
#[tokio::test]
async fn an_inner_graph_may_be_renamed_amid_its_work() {
    for mut world in World::each() {
        let stage = Stage::default();
        let outer = |name: &str| {
            let inner =
                stage.steps(Graph::builder(name), &["in1", "in2"]).edge("in1", "in2").build().unwrap();
            let builder = stage.steps(Graph::builder("outer"), &["a"]);
            let builder = builder.subgraph(
                "sub",
                &inner,
                |_| Notes::default(),
                |state: &mut Notes, ended| {
                    state.done.extend(ended.done);
                },
            );
            builder.edge("a", "sub").build().unwrap()
        };
        let before = outer("draft");
        stage
            .crash(&mut world, "in2", async |world| {
                world.engine.run(&before, "r", Notes::default()).into_future().await
            })
            .await;
        stage.said();

        let end = world.engine.resume(&outer("a letter, renamed"), "r").await.unwrap();

        assert_eq!(
            (stage.said(), end.state.done),
            (vec!["in2".to_owned()], vec!["a".to_owned(), "in1".to_owned(), "in2".to_owned()])
        );
    }
}
