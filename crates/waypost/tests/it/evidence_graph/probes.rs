//! Kinds of evidence, limits, and their traces in the record.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site};
use waypost::record::{Occasion, Terms};

use super::*;

/// A table with one row, which can be removed.
#[derive(Debug, Default)]
struct Table {
    has_row: AtomicBool,
    hangs: AtomicBool,
    panics: AtomicBool,
}

#[async_trait]
impl Probe for Table {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new("row", Cost::Asking)
    }

    async fn check(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
        assert!(!self.panics.load(Ordering::Relaxed), "as it was told to");
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        match self.has_row.load(Ordering::Relaxed) {
            true => Ok(Finding::ok(claim.expect.clone())),
            false => Ok(Finding::differs("no row")),
        }
    }
}

fn inserts(table: &Arc<Table>, desk: &Desk) -> Graph<Work> {
    let (table, desk) = (table.clone(), desk.clone());
    Graph::<Work>::builder("table")
        .step("insert", move |work: Work, _: Context| {
            desk.say("insert");
            table.has_row.store(true, Ordering::Relaxed);
            async move { Ok::<_, StepError>(work) }
        })
        .evidence(|_| Pack::all([Claim::new("row", "sales").expecting("done")]))
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_probe_of_the_users_own_is_asked() {
    let (desk, table) = (Desk::new(), Arc::new(Table::default()));
    let graph = inserts(&table, &desk);
    let engine = desk.engine().with_verifier(Verifier::new().with_probe(table.clone()));
    engine.run(&graph, "r", Work::default()).await.unwrap();
    assert!(engine.resume(&graph, "r").await.unwrap().idle);
    table.has_row.store(false, Ordering::Relaxed);

    let outcome = engine.resume(&graph, "r").await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["insert", "insert"]);
}

#[tokio::test(start_paused = true)]
async fn a_check_that_takes_too_long_stops_the_resume() {
    let (desk, table) = (Desk::new(), Arc::new(Table::default()));
    let graph = inserts(&table, &desk);
    let limits = Limits { all: Duration::from_secs(1), ..Limits::default() };
    let engine = desk.engine().with_verifier(Verifier::new().with_probe(table.clone()).with_limits(limits));
    engine.run(&graph, "r", Work::default()).await.unwrap();
    table.hangs.store(true, Ordering::Relaxed);

    let refused = engine.resume(&graph, "r").await.unwrap_err();

    assert_eq!(
        refused.to_string(),
        "run r needs a decision: step `insert`: evidence could not be checked: row sales \
         (no result within 1s, the end of the time for all checks)"
    );
}

#[tokio::test]
async fn the_exit_code_of_a_command_is_evidence() {
    for (code, status) in [(0, RunStatus::Completed), (3, RunStatus::Failed)] {
        let desk = Desk::new();
        let graph = Graph::<Work>::builder("command")
            .step("make", move |work: Work, context: Context| async move {
                context.exited(code);
                Ok::<_, StepError>(work)
            })
            .evidence(|_| Pack::all([Claim::exited("make", 0)]))
            .build()
            .unwrap();

        let outcome = desk.run(&graph).await;

        assert_eq!(outcome.status, status);
        let records = desk.records().await;
        let ending = match &records[1].header().phase {
            Phase::Completed(ending) => ending,
            Phase::Failed(failure) => &failure.ending,
            phase => panic!("{phase:?}"),
        };
        assert_eq!(ending.exit_code, Some(code));
        if code == 0 {
            assert!(desk.resume(&graph).await.idle, "it was recorded");
        }
    }
}

#[tokio::test]
async fn evidence_that_panics_fails_its_step() {
    let desk = Desk::new();
    let graph = Graph::<Work>::builder("panics")
        .step("a", desk.notes())
        .evidence(|work| Pack::all([Claim::file(&work.done[7])]))
        .build()
        .unwrap();

    let outcome = desk.run(&graph).await;

    let (_, failure) = outcome.failed.unwrap();
    assert_eq!(failure.kind, FailureKind::Error);
    assert!(failure.error[0].starts_with("the evidence of step `a` panicked: index"), "{:?}", failure.error);
}

#[tokio::test]
async fn some_of_many_claims_may_be_enough() {
    let desk = Desk::new();
    let graph = Graph::<Work>::builder("some")
        .step("a", desk.writes("a.txt", "of a"))
        .evidence(|_| Pack::any([Claim::file("a.txt"), Claim::file("other.txt")]))
        .build()
        .unwrap();

    let outcome = desk.run(&graph).await;

    assert_eq!(outcome.status, RunStatus::Completed);
    desk.said();
    assert!(desk.resume(&graph).await.idle);
    desk.remove("a.txt");
    desk.resume(&graph).await;
    assert_eq!(desk.said(), ["a"]);
}

#[tokio::test]
async fn a_claim_that_is_due_later_does_not_fail_its_step() {
    let desk = Desk::new();
    desk.write("a", "a");
    let later = Terms { at: [Occasion::Verify].into(), ..Terms::default() };
    let graph = Graph::<Work>::builder("later")
        .step("make", |work: Work, _: Context| async move { Ok::<_, StepError>(work) })
        .evidence(move |_| Pack::all([Claim::file("a"), Claim::file("later").on_terms(later.clone())]))
        .build()
        .unwrap();

    let outcome = desk.engine().run(&graph, "r", Work::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert!(desk.engine().resume(&graph, "r").await.unwrap().idle);
}

#[tokio::test]
async fn a_probe_that_panics_fails_its_step_and_not_the_program() {
    let (desk, table) = (Desk::new(), Arc::new(Table::default()));
    let graph = inserts(&table, &desk);
    let engine = desk.engine().with_verifier(Verifier::new().with_probe(table.clone()));
    engine.run(&graph, "r", Work::default()).await.unwrap();
    table.panics.store(true, Ordering::Relaxed);

    let refused = engine.resume(&graph, "r").await.unwrap_err();
    let failed = engine.run(&graph, "s", Work::default()).await.unwrap();

    let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
    let Cause::EvidenceUnknown(why) = &questions[0].cause else { panic!("{refused}") };
    assert!(why[0].contains("the probe for claims of kind `row` panicked"), "{why:?}");
    assert_eq!(failed.status, RunStatus::Failed);
}
