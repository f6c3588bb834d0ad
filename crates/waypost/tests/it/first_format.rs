//! A run of format 3 (the first release), kept unchanged: every later version must read and resume the run. The
//! files are from the graph below, killed in branch `b` after its memo. A new format gets a second folder.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use waypost::engine::Engine;
use waypost::file::FileStore;
use waypost::graph::Branches;
use waypost::record::RunStatus;
use waypost::store::{Scan, Store as _};
use waypost::{Context, Graph, RunId, StepError};

#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct Trip {
    places: Vec<String>,
    budget: Option<f64>,
}

fn graph() -> Graph<Trip> {
    let visit = |mut state: Trip, context: Context| async move {
        let place: String =
            context.once("where", async { Ok::<_, StepError>(format!("{}!", context.step())) }).await?;
        context.emit("visited", json!({ "place": place }));
        state.places.push(place);
        Ok::<_, StepError>(state)
    };
    Graph::builder("trip")
        .step("plan", |mut state: Trip, context: Context| async move {
            context.report("A plan was made.");
            state.budget = Some(0.1);
            Ok::<_, StepError>(state)
        })
        .step("a", visit)
        .step("b", visit)
        .fork("plan", ["a", "b"])
        .join("home", |mut state: Trip, branches: Branches<Trip>, _| async move {
            for branch in branches {
                state.places.extend(branch.result.map(|trip| trip.places).unwrap_or_default());
            }
            Ok::<_, StepError>(state)
        })
        .build()
        .unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

fn fixture() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fixtures/format-3")
}

#[tokio::test]
async fn a_run_of_format_3_is_read_to_the_byte_and_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture(), folder.path());
    let store = Arc::new(FileStore::open(folder.path()).unwrap());
    let run = RunId::new("frozen").unwrap();

    let records = store.scan(&Scan::of(&run)).await.unwrap();
    let listed: Vec<_> = records
        .records
        .iter()
        .map(|r| format!("{} {} {}", r.header().reference(), r.header().phase.name(), r.digest()))
        .collect();
    let outcome = Engine::new(store).resume(&graph(), "frozen").await.unwrap();

    assert!(records.damaged.is_empty());
    insta::assert_snapshot!(listed.join("\n"));
    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(outcome.state, Trip { places: vec!["a!".into(), "b!".into()], budget: Some(0.1) });
}
