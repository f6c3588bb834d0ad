//! Evidence of the steps of a graph: checked when they end, and before a resume trusts them.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use waypost::engine::{OnUnknown, Outcome};
use waypost::evidence::{Limits, Verifier};
use waypost::graph::{Branches, ItemEnds};
use waypost::memory::MemoryStore;
use waypost::plan::Cause;
use waypost::record::{Claim, FailureKind, Pack, Phase, Reason, Record, RunStatus, Verdict};
use waypost::store::{Scan, Store as _};
use waypost::{Context, END, Engine, Graph, Retry, RunError, RunId, StepError};

use crate::faulty::{Fault, FaultyStore};

mod accept;
mod copies;
mod fork_claims;
mod hosts;
mod probes;
mod resume_checks;
mod rollback;
mod running_steps;
mod scopes;

/// The state: finished steps and their counts.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct Work {
    done: Vec<String>,
    text: String,
}

/// A folder for the files of steps, and a log of the steps.
#[derive(Debug, Clone)]
struct Desk {
    folder: Arc<tempfile::TempDir>,
    said: Arc<Mutex<Vec<String>>>,
    store: Arc<MemoryStore>,
}

impl Desk {
    fn new() -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        Self { folder, said: Arc::default(), store: Arc::new(MemoryStore::new()) }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn engine(&self) -> Engine {
        Engine::new(self.store.clone()).with_base(self.path())
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path().join(file), text).unwrap();
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path().join(file)).unwrap()
    }

    fn remove(&self, file: &str) {
        std::fs::remove_file(self.path().join(file)).unwrap();
    }

    fn say(&self, text: impl Into<String>) {
        self.said.lock().unwrap().push(text.into());
    }

    /// Returns the log since the last call.
    fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.said.lock().unwrap())
    }

    /// Returns a step that logs its name, notes it in the state once, and writes `FILE` with `text`.
    fn writes(
        &self,
        file: &'static str,
        text: &'static str,
    ) -> impl Fn(Work, Context) -> std::future::Ready<Result<Work, StepError>> + Send + Sync + use<> {
        let desk = self.clone();
        move |mut work, context| {
            desk.say(context.step().to_string());
            desk.write(file, text);
            work.done.push(context.step().to_string());
            std::future::ready(Ok(work))
        }
    }

    /// Returns a step that logs and notes its name.
    fn notes(
        &self,
    ) -> impl Fn(Work, Context) -> std::future::Ready<Result<Work, StepError>> + Send + Sync + use<> {
        let desk = self.clone();
        move |mut work, context| {
            desk.say(context.step().to_string());
            work.done.push(context.step().to_string());
            std::future::ready(Ok(work))
        }
    }

    /// Builds `a`, which pins `a.txt`, `b`, which pins `b.txt`, and `c`, which only notes.
    fn line(&self) -> Graph<Work> {
        Graph::<Work>::builder("line")
            .step("a", self.writes("a.txt", "of a"))
            .evidence(|_| Pack::all([Claim::unchanged("a.txt")]))
            .step("b", self.writes("b.txt", "of b"))
            .evidence(|_| Pack::all([Claim::unchanged("b.txt")]))
            .step("c", self.notes())
            .edge("a", "b")
            .edge("b", "c")
            .build()
            .unwrap()
    }

    async fn run(&self, graph: &Graph<Work>) -> Outcome<Work> {
        self.engine().run(graph, "r", Work::default()).await.unwrap()
    }

    async fn resume(&self, graph: &Graph<Work>) -> Outcome<Work> {
        self.engine().resume(graph, "r").await.unwrap()
    }

    /// Resumes with a fault at the `nth` write; returns whether the process died.
    async fn dies_in_resume(&self, graph: &Graph<Work>, nth: u64, fault: Fault) -> bool {
        let store = FaultyStore::around(self.store.clone());
        store.plan(nth, 1, fault);
        let dying = Engine::new(store.clone()).with_base(self.path());
        let resume = dying.resume(graph, "r").into_future();
        tokio::time::timeout(std::time::Duration::from_secs(3600), resume).await.is_err()
    }

    async fn records(&self) -> Vec<Record> {
        self.store.scan(&Scan::of(&RunId::new("r").unwrap())).await.unwrap().records
    }

    /// Returns the records of the main scope, one line each.
    async fn told(&self) -> Vec<String> {
        let records = self.records().await;
        let main = records.iter().map(Record::header).filter(|header| header.scope.is_main());
        let told = main.map(|h| {
            let step = h.step.as_ref().map_or(String::new(), |step| format!(" {step}"));
            let basis = h.basis.map_or(String::new(), |basis| format!(" basis {basis}"));
            format!("@{} {}{step}{basis}", h.seq, h.phase.name())
        });
        told.collect()
    }
}

/// Returns the verdicts of a record's evidence.
fn verdicts(record: &Record) -> Vec<Verdict> {
    record.header().evidence.iter().flat_map(|pack| &pack.claims).map(|claim| claim.verdict).collect()
}

#[tokio::test]
async fn a_step_is_committed_with_its_evidence_and_pins() {
    let desk = Desk::new();
    let graph = desk.line();

    let outcome = desk.run(&graph).await;

    assert_eq!(outcome.status, RunStatus::Completed);
    let records = desk.records().await;
    let pack = records[1].header().evidence.as_ref().unwrap();
    assert_eq!(pack.verdict(), Verdict::Ok);
    assert_eq!(pack.claims[0].expect, waypost::Digest::of(b"of a").to_string());
}

#[tokio::test]
async fn failed_evidence_fails_the_step_with_expected_and_found() {
    let desk = Desk::new();
    let wanted = waypost::Digest::of(b"something else");
    let graph = Graph::<Work>::builder("line")
        .step("a", desk.writes("a.txt", "of a"))
        .evidence(move |_| Pack::all([Claim::sha256("a.txt", wanted), Claim::file("missing.txt")]))
        .step("b", desk.notes())
        .edge("a", "b")
        .build()
        .unwrap();

    let outcome = desk.run(&graph).await;

    assert_eq!(outcome.status, RunStatus::Failed);
    assert!(outcome.state.done.is_empty(), "what a step gives whose evidence fails is not taken");
    let (step, failure) = outcome.failed.unwrap();
    assert_eq!((step.as_str(), failure.kind), ("a", FailureKind::Evidence));
    assert_eq!(failure.error[0], "evidence of step `a` failed");
    let found = waypost::Digest::of(b"of a");
    let first = |digest: &str| digest[..12].to_owned();
    let expect = format!(
        "file_sha256 a.txt: expected {}…, found {}…",
        first(&wanted.to_string()),
        first(&found.to_string())
    );
    assert_eq!(failure.error[1], expect);
    assert!(failure.error[2].starts_with("artifact_exists missing.txt"), "{:?}", failure.error);
    let records = desk.records().await;
    assert_eq!(verdicts(records.last().unwrap()), [Verdict::Failed, Verdict::Failed]);
    assert_eq!(desk.said(), ["a"]);
}

#[tokio::test]
async fn a_step_whose_evidence_fails_is_tried_again() {
    let desk = Desk::new();
    let late = desk.clone();
    let graph = Graph::<Work>::builder("late")
        .step("a", move |work: Work, context: Context| {
            late.say(format!("a{}", context.attempt()));
            if context.attempt() == 3 {
                late.write("a.txt", "at last");
            }
            async move { Ok::<_, StepError>(work) }
        })
        .retry(Retry::fixed(3, std::time::Duration::ZERO))
        .evidence(|_| Pack::all([Claim::file("a.txt")]))
        .build()
        .unwrap();

    let outcome = desk.run(&graph).await;

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["a1", "a2", "a3"]);
}

#[tokio::test]
async fn an_empty_pack_is_refused() {
    let desk = Desk::new();
    let graph =
        Graph::<Work>::builder("empty").step("a", desk.notes()).evidence(|_| Pack::all([])).build().unwrap();

    let outcome = desk.run(&graph).await;

    let (_, failure) = outcome.failed.unwrap();
    assert_eq!(failure.kind, FailureKind::Evidence);
    assert_eq!(failure.error[1], "a pack without claims never holds");
}

#[tokio::test]
async fn files_cannot_be_checked_where_there_is_no_folder() {
    let desk = Desk::new();
    let graph = desk.line();

    let outcome = Engine::new(desk.store.clone()).run(&graph, "r", Work::default()).await.unwrap();

    let (_, failure) = outcome.failed.unwrap();
    assert_eq!(failure.kind, FailureKind::Evidence);
    assert!(failure.error[1].contains("could not be checked"), "{:?}", failure.error);
}
