//! The code of docs/guide/crashes.md.

use std::future::{IntoFuture, pending};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use waypost::{Context, Engine, Graph, StepError};

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Import {
    rows: u32,
}

/// The effects of the steps, for the assertions of the test.
#[derive(Debug, Default)]
struct World {
    did: Mutex<Vec<&'static str>>,
    loading: Notify,
}

fn import(world: &Arc<World>) -> Graph<Import> {
    let (fetching, loading) = (Arc::clone(world), Arc::clone(world));
    Graph::<Import>::builder("import")
        .step("fetch", move |mut state: Import, _| {
            fetching.did.lock().unwrap().push("fetch");
            state.rows = 1_000;
            async move { Ok::<_, StepError>(state) }
        })
        .step("load", move |state: Import, context: Context| {
            loading.did.lock().unwrap().push("load");
            let world = Arc::clone(&loading);
            async move {
                if context.attempt() == 1 {
                    world.loading.notify_one();
                    pending::<()>().await; // Hangs until the crash.
                }
                Ok::<_, StepError>(state)
            }
        })
        .edge("fetch", "load")
        .build()
        .unwrap()
}

#[tokio::test]
async fn all_runs_that_can_continue_are_resumed() {
    use waypost::RunStatus;
    use waypost::graph::Graphs;

    let world = Arc::new(World::default());
    let import = import(&world);
    let step = |text: String, _: Context| async move { Ok::<_, StepError>(text) };
    let report = Graph::<String>::builder("report").step("write", step).build().unwrap();
    let engine = Engine::new(Arc::new(waypost::memory::MemoryStore::new()));
    engine.run(&report, "monday", String::new()).interrupt_before(["write"]).await.unwrap();

    let graphs = Graphs::new().with(&import).with(&report);
    for (run, ended) in engine.resume_due(&graphs).await.unwrap() {
        assert_eq!((run.as_str(), ended.unwrap().status), ("monday", RunStatus::Completed));
    }

    assert!(engine.run(&report, "monday", String::new()).or_resume().await.unwrap().idle);
}

#[tokio::test]
async fn a_crash_costs_the_step_that_was_running() {
    use waypost::{FileStore, RunStatus};

    let (folder, world) = (tempfile::tempdir().unwrap(), Arc::new(World::default()));
    let graph = import(&world);
    let engine = Engine::new(Arc::new(FileStore::open(folder.path()).unwrap()));

    // The drop of a running future has the effect of a crash: no record is written any more.
    tokio::select! {
        ended = engine.run(&graph, "monday", Import::default()).into_future() => panic!("it ended: {ended:?}"),
        () = world.loading.notified() => {}
    }
    let outcome = engine.resume(&graph, "monday").await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(outcome.state.rows, 1_000);
    assert_eq!(*world.did.lock().unwrap(), ["fetch", "load", "load"]);
}

#[tokio::test]
async fn a_run_that_is_there_is_gone_on_with() {
    let engine = Engine::new(Arc::new(waypost::memory::MemoryStore::new()));
    let graph = Graph::<Import>::builder("import")
        .step("fetch", |state: Import, _| async move { Ok::<_, StepError>(state) })
        .build()
        .unwrap();
    engine.run(&graph, "monday", Import { rows: 7 }).interrupt_before(["fetch"]).await.unwrap();

    let outcome = engine.run(&graph, "monday", Import::default()).or_resume().await;

    assert_eq!(outcome.unwrap().state.rows, 7);
}
