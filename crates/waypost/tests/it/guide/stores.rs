//! The code of docs/guide/stores.md.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waypost::{Context, Graph, StepError};

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Job {
    done: u32,
}

async fn work(mut job: Job, _: Context) -> Result<Job, StepError> {
    job.done += 1;
    Ok(job)
}

fn job() -> Graph<Job> {
    Graph::<Job>::builder("job")
        .step("one", work)
        .step("two", work)
        .step("three", work)
        .edge("one", "two")
        .edge("two", "three")
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_store_keeps_runs_for_a_program_that_comes_later() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, graph) = (dir.path(), job());

    use waypost::store::{RunQuery, Store};
    use waypost::{Engine, FileStore};

    let store = Arc::new(FileStore::open(dir).unwrap());
    let engine = Engine::new(store.clone());
    engine.run(&graph, "job-7", Job::default()).label("customer", "ada").await.unwrap();

    for run in store.runs(&RunQuery::default()).await.unwrap().runs {
        assert_eq!((run.run.as_str(), run.status.name()), ("job-7", "completed"));
        assert_eq!(run.labels["customer"], "ada");
        assert!(!run.status.is_resumable());
    }

    use waypost::Durability;

    let outcome = engine
        .run(&graph, "job-8", Job::default())
        .durability(Durability::Async)
        .retention(2)
        .tolerate_lost_checkpoints()
        .await
        .unwrap();
    assert_eq!(outcome.lost, 0);
}

#[tokio::test]
async fn damage_is_seen_and_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, graph) = (dir.path(), job());
    use waypost::{Engine, FileStore};
    let engine = Engine::new(Arc::new(FileStore::open(dir).unwrap()));
    engine.run(&graph, "r", Job::default()).await.unwrap();

    use waypost::{OnDamage, RunError, StoreError};

    // A person edits the newest checkpoint of run `r`.
    let history = dir.join("runs/r/history");
    let mut files: Vec<_> = std::fs::read_dir(history).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    let newest = files.iter().max().unwrap();
    let text = std::fs::read_to_string(newest).unwrap();
    std::fs::write(newest, text.replace("\"done\":3", "\"done\":9")).unwrap();

    let refused = engine.resume(&graph, "r").on_damage(OnDamage::Stop).await;
    assert!(matches!(refused, Err(RunError::Store(StoreError::Damaged { .. }))));

    // Default: damage goes to quarantine, and the newest sound checkpoint is used.
    let outcome = engine.resume(&graph, "r").await.unwrap();
    assert_eq!(outcome.repaired.len(), 1);
    assert_eq!(outcome.state.done, 3);
}

#[tokio::test]
async fn one_process_works_on_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::<Job>::builder("stuck")
        .step("stuck", |job: Job, _| async move {
            std::future::pending::<()>().await;
            Ok::<_, StepError>(job)
        })
        .build()
        .unwrap();
    use waypost::{Engine, FileStore, RunError, StoreError};
    let engine = Engine::new(Arc::new(FileStore::open(dir.path()).unwrap()));
    let other = Engine::new(Arc::new(FileStore::open(dir.path()).unwrap()));
    let mut first = engine.run(&graph, "r", Job::default()).into_future();
    while !dir.path().join("runs/r/history/checkpoint_0000000001.json").exists() {
        assert!(futures_util::poll!(&mut first).is_pending());
        tokio::task::yield_now().await;
    }

    let refused = other.resume(&graph, "r").await;
    assert!(matches!(refused, Err(RunError::Store(StoreError::Held { .. }))));
}
