//! The code of docs/guide/evidence.md.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waypost::plan::Cause;
use waypost::{
    Claim, Context, Engine, Graph, MemoryStore, OnUnknown, Pack, RunError, RunStatus, StepError, Verdict,
};

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Sales {
    raw: String,
    rows: usize,
}

async fn fetch(mut sales: Sales, context: Context) -> Result<Sales, StepError> {
    sales.raw = "raw.csv".to_owned();
    write(&context, &sales.raw, "eu,12\nus,30\n")?;
    Ok(sales)
}

async fn count(mut sales: Sales, context: Context) -> Result<Sales, StepError> {
    sales.rows = read(&context, &sales.raw)?.lines().count();
    Ok(sales)
}

fn sales() -> Graph<Sales> {
    Graph::<Sales>::builder("sales")
        .step("fetch", fetch)
        .evidence(|sales| Pack::all([Claim::file(&sales.raw), Claim::unchanged(&sales.raw)]))
        .step("count", count)
        .edge("fetch", "count")
        .build()
        .unwrap()
}

/// Steps find the folder in their configuration.
fn write(context: &Context, name: &str, text: &str) -> std::io::Result<()> {
    std::fs::write(folder_of(context).join(name), text)
}

fn read(context: &Context, name: &str) -> std::io::Result<String> {
    std::fs::read_to_string(folder_of(context).join(name))
}

fn folder_of(context: &Context) -> std::path::PathBuf {
    context.config()["folder"].as_str().unwrap().into()
}

#[tokio::test]
async fn a_finished_step_is_believed_by_its_evidence() {
    let (folder, store) = (tempfile::tempdir().unwrap(), Arc::new(MemoryStore::new()));
    let folder = folder.path();
    let config = serde_json::Map::from_iter([("folder".to_owned(), folder.to_str().unwrap().into())]);

    let engine = Engine::new(store.clone()).with_base(folder);
    let outcome = engine.run(&sales(), "r", Sales::default()).config(config).await.unwrap();
    assert_eq!((outcome.status, outcome.state.rows), (RunStatus::Completed, 2));

    let history = engine.history("r").await.unwrap();
    let fetched = &history[1];
    assert_eq!(fetched.to_string(), "r@2 completed fetch");
    assert_eq!(fetched.evidence().unwrap().verdict(), Verdict::Ok);

    std::fs::write(folder.join("raw.csv"), "somebody was here").unwrap();

    let outcome = engine.resume(&sales(), "r").await.unwrap();

    assert!(!outcome.idle);
    assert_eq!(std::fs::read_to_string(folder.join("raw.csv")).unwrap(), "eu,12\nus,30\n");
    let told: Vec<String> = engine.history("r").await.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        ["r@1 started fetch", "r@2 completed fetch", "r@3 completed count", "r@6 restored fetch"]
    );

    let outcome = engine.resume(&sales(), "r").await.unwrap();
    assert!(outcome.idle);

    let elsewhere = Engine::new(store.clone()); // Without the base folder.
    let refused = elsewhere.resume(&sales(), "r").await.unwrap_err();
    let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
    assert!(matches!(questions[0].cause, Cause::EvidenceUnknown(_)));

    let outcome = engine.resume(&sales(), "r").on_unknown(OnUnknown::RunAgain).await.unwrap();
    assert!(outcome.idle, "here everything could be checked");

    std::fs::write(folder.join("raw.csv"), "eu,12\nus,30\napac,7\n").unwrap();

    engine.accept(&sales(), "r", "fetch").await.unwrap();
    assert!(engine.resume(&sales(), "r").await.unwrap().idle);
}

#[tokio::test]
async fn a_step_without_what_it_claims_has_failed() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::new(Arc::new(MemoryStore::new())).with_base(folder.path());

    let graph = Graph::<Sales>::builder("sales")
        .step("fetch", |sales: Sales, _: Context| async move { Ok::<_, StepError>(sales) })
        .evidence(|_| Pack::all([Claim::file("raw.csv")]))
        .build()
        .unwrap();

    let outcome = engine.run(&graph, "r", Sales::default()).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Failed);
    let (_, failure) = outcome.failed.unwrap();
    assert_eq!(failure.error[0], "evidence of step `fetch` failed");
}

#[tokio::test]
async fn a_kind_of_the_users_own_is_a_probe() {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use waypost::evidence::{Cost, Finding, ProbeKind, Site};
    use waypost::{Probe, Verifier};

    /// Looks up rows in a table: `table:key`.
    #[derive(Debug)]
    struct Rows(Arc<Mutex<BTreeSet<String>>>);

    #[async_trait]
    impl Probe for Rows {
        fn kind(&self) -> ProbeKind {
            ProbeKind::new("row", Cost::Asking)
        }

        async fn check(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
            match self.0.lock().unwrap().contains(&claim.subject) {
                true => Ok(Finding::ok("it is there")),
                false => Ok(Finding::differs("no such row")),
            }
        }
    }

    let table = Arc::new(Mutex::new(BTreeSet::new()));
    let rows = table.clone();

    let verifier = Verifier::new().with_probe(Arc::new(Rows(table.clone())));
    let engine = Engine::new(Arc::new(MemoryStore::new())).with_verifier(verifier);
    let graph = Graph::<u32>::builder("load")
        .step("load", move |count: u32, _: Context| {
            rows.lock().unwrap().insert("sales:monday".to_owned());
            async move { Ok::<_, StepError>(count + 1) }
        })
        .evidence(|_| Pack::all([Claim::new("row", "sales:monday")]))
        .build()
        .unwrap();

    assert_eq!(engine.run(&graph, "r", 0).await.unwrap().status, RunStatus::Completed);
    table.lock().unwrap().clear();
    engine.resume(&graph, "r").await.unwrap();
    assert_eq!(table.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_loop_of_ones_own_goes_back_only_where_evidence_holds() -> Result<(), Box<dyn std::error::Error>> {
    use waypost::recorder::{Begin, Commit, Label, Options, Recorder, run_record};
    use waypost::{RunId, StepId};

    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let store = Arc::new(MemoryStore::new());
    let record = run_record(RunId::new("r")?, "loop");
    let recorder = Recorder::create(store, record, &0, Options::new().with_base(folder)).await?;

    let begun = recorder.begin_step(Begin::new(StepId::new("build")?, Label::ToolExecuted)).await?;
    std::fs::write(folder.join("out"), "built")?;
    let pack = Pack::all([Claim::unchanged("out"), Claim::file("token").sensitive().not()]);
    let built = recorder.commit_step(&begun, Commit::with(pack).state(&1)).await?;
    assert_eq!(built.verdict(), Verdict::Ok);

    std::fs::write(folder.join("out"), "spoiled")?;
    assert_eq!(recorder.verify_checkpoint(&built.reference()).await?.verdict(), Verdict::Failed);
    assert!(recorder.rollback_to_checkpoint::<u32>(&built.reference()).await.is_err());

    std::fs::write(folder.join("out"), "built")?;
    assert_eq!(recorder.rollback_to_checkpoint::<u32>(&built.reference()).await?, 1);
    Ok(())
}
