//! The engine over the memory store: sessions, crashes, stops. Histories are read back from the store.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use waypost::engine::{
    Adoption, Doubtful, Engine, OnDoubt, Outcome, Program, ResumeOptions, RunError, SessionOptions, Settle,
    StopHandle, StopLevel, TreatAs,
};
use waypost::memory::{MemoryStore, Part};
use waypost::record::RunStatus;
use waypost::store::{Scan, Signal, SignalKind, Store, StoreError, StoreExt};
use waypost::{RunId, ScopePath};

use crate::history::told;
use crate::scripted_program::{Does, Toy};

mod decisions;

struct Rig {
    store: Arc<MemoryStore>,
    engine: Engine,
}

impl Rig {
    fn new() -> Self {
        let store = Arc::new(MemoryStore::new());
        let engine = Engine::new(store.clone());
        Self { store, engine }
    }

    async fn run(&self, toy: &Toy) -> Result<Outcome<<Toy as Program>::State>, RunError> {
        self.engine.run_program(toy, toy.record("r"), Default::default(), SessionOptions::default()).await
    }

    async fn resume(&self, toy: &Toy) -> Result<Outcome<<Toy as Program>::State>, RunError> {
        self.engine.resume_program(toy, &run_id(), ResumeOptions::default()).await
    }

    /// Runs until these steps hang, then ends as a killed process does: without another call of the store.
    async fn crash(&self, toy: &Toy, resume: bool, until: &str) {
        let session = async { if resume { self.resume(toy).await } else { self.run(toy).await } };
        let reached = async {
            while toy.trace() != until {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            outcome = session => panic!("it ended by itself: {outcome:?}"),
            () = reached => {}
        }
        self.store.drop_holder(&run_id());
    }

    /// Returns one line per record, without the name of the main scope: `@seq phase step(attempt) > started |
    /// frontier`.
    async fn history(&self) -> String {
        let lines = told(self.store.as_ref(), &run_id()).await;
        lines.iter().map(|line| line.trim_start_matches("main")).collect::<Vec<_>>().join("\n")
    }

    async fn status(&self) -> RunStatus {
        self.store.run(&run_id()).await.unwrap().summary.status
    }
}

fn run_id() -> RunId {
    RunId::new("r").unwrap()
}

fn shape(toy: &Toy) -> waypost::shape::Shape {
    use waypost::engine::Program as _;
    toy.shape().clone()
}

macro_rules! expect {
    ($actual:expr, $expect:expr) => {
        let expect: Vec<&str> = $expect.trim().lines().map(str::trim).collect();
        assert_eq!($actual, expect.join("\n"));
    };
}

#[tokio::test]
async fn one_record_a_step_boundary() {
    let rig = Rig::new();

    let outcome = rig.run(&Toy::new("a; b: a; c: b", 1)).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    expect!(
        rig.history().await,
        "@1 started a(1) > a(1) | a started
         @2 completed a(1) > b(1) | b started
         @3 completed b(1) > c(1) | c started
         @4 completed c(1) | - = completed"
    );
}

#[tokio::test]
async fn two_crashes_in_one_step_repeat_only_that_step() {
    let rig = Rig::new();
    let toy = Toy::new("s1; s2: s1; s3: s2; s4: s3", 1).does("s3", 1, Does::Hang).does("s3", 2, Does::Hang);

    rig.crash(&toy, false, "s1 s2 s3").await;
    assert_eq!(rig.status().await, RunStatus::Interrupted);
    rig.crash(&toy.again(), true, "s1 s2 s3 s3").await;
    let outcome = rig.resume(&toy.again()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(toy.trace(), "s1 s2 s3 s3 s3 s4");
    expect!(
        rig.history().await,
        "@1 started s1(1) > s1(1) | s1 started
         @2 completed s1(1) > s2(1) | s2 started
         @3 completed s2(1) > s3(1) | s3 started
         @4 started s3(2) > s3(2) | s3 started
         @5 started s3(3) > s3(3) | s3 started
         @6 completed s3(3) > s4(1) | s4 started
         @7 completed s4(1) | - = completed"
    );
}

#[tokio::test]
async fn finished_is_not_repeated() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a", 1);
    rig.run(&toy).await.unwrap();
    let before = rig.history().await;

    let outcome = rig.resume(&toy.again()).await.unwrap();

    assert!(outcome.idle);
    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(toy.trace(), "a b");
    assert_eq!(rig.history().await, before);
}

#[tokio::test]
async fn a_graph_runs_what_is_free_and_resumes_what_is_cut() {
    let rig = Rig::new();
    let toy = Toy::new("a; b; c: a; d: a b", 4).does("b", 1, Does::Hang).does("c", 1, Does::Hang);

    rig.crash(&toy, false, "a b c").await;
    let outcome = rig.resume(&toy.again()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(toy.trace(), "a b c b c d");
    expect!(
        rig.history().await.lines().take(3).collect::<Vec<_>>().join("\n"),
        "@1 started a(1) > a(1) b(1) | a started, b started
         @2 completed a(1) > c(1) | b started, c started
         @3 started b(2) > b(2) c(2) | b started, c started"
    );
}

#[tokio::test]
async fn a_failed_step_is_tried_again_as_often_as_it_may() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a", 1).retry("a", 1, Duration::ZERO).does("a", 1, Does::Fail).does(
        "a",
        2,
        Does::Fail,
    );

    let outcome = rig.run(&toy).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Failed);
    expect!(
        rig.history().await,
        "@1 started a(1) > a(1) | a started
         @2 failed a(1) > a(2) | a started
         @3 failed a(2)
         @4 skipped b(0) | a failed = failed"
    );

    let outcome = rig.resume(&toy.again()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(toy.trace(), "a a a b");
}

#[tokio::test(start_paused = true)]
async fn a_delayed_try_has_a_start_of_its_own() {
    let rig = Rig::new();
    let toy = Toy::new("a", 1).retry("a", 1, Duration::from_millis(20)).does("a", 1, Does::Fail);

    let outcome = rig.run(&toy).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    expect!(
        rig.history().await,
        "@1 started a(1) > a(1) | a started
         @2 failed a(1) | a ready
         @3 started a(2) > a(2) | a started
         @4 completed a(2) | - = completed"
    );
}

#[tokio::test]
async fn the_retry_budget_goes_on_after_a_crash() {
    let rig = Rig::new();
    let toy = Toy::new("a", 1)
        .retry("a", 1, Duration::ZERO)
        .does("a", 1, Does::Fail)
        .does("a", 2, Does::Hang)
        .does("a", 3, Does::Fail);

    rig.crash(&toy, false, "a a").await;
    let outcome = rig.resume(&toy.again()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Failed, "one retry was allowed, and the crash is not a failure");
    assert_eq!(toy.trace(), "a a a");
}

#[tokio::test]
async fn a_stop_is_recorded_and_the_step_runs_again() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a", 1).does("b", 1, Does::Hang);
    let stop = StopHandle::default();
    let options = SessionOptions { stop: stop.clone(), ..SessionOptions::default() };

    let session = rig.engine.run_program(&toy, toy.record("r"), Default::default(), options);
    let asker = async {
        while toy.trace() != "a b" {
            tokio::task::yield_now().await;
        }
        stop.stop(StopLevel::Graceful, "SIGINT");
    };
    let (outcome, ()) = tokio::join!(session, asker);

    let outcome = outcome.unwrap();
    assert_eq!((outcome.status, outcome.stopped_by.as_deref()), (RunStatus::Interrupted, Some("SIGINT")));
    expect!(rig.history().await.lines().last().unwrap(), "@3 interrupted b(1) | b started = interrupted");
    assert_eq!(rig.resume(&toy.again()).await.unwrap().status, RunStatus::Completed);
    assert_eq!(toy.trace(), "a b b");
}

#[tokio::test(start_paused = true)]
async fn a_stop_from_afar_is_heeded_and_consumed() {
    let rig = Rig::new();
    let toy = Toy::new("a", 1).does("a", 1, Does::Hang);
    let signal = Signal {
        id: "s".to_owned(),
        kind: SignalKind::Stop,
        scope: None,
        sender: "someone".to_owned(),
        created_at: "2026-11-21T12:00:00Z".parse().unwrap(),
    };

    let asker = async {
        while toy.trace() != "a" {
            tokio::task::yield_now().await;
        }
        rig.store.signal(&run_id(), &signal).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(rig.run(&toy), asker);

    assert_eq!(outcome.unwrap().stopped_by.as_deref(), Some("someone"));
    assert_eq!(rig.store.signals(&run_id()).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_nobody_took_in_does_not_stop_the_next_resume() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a", 1).does("b", 1, Does::Hang);
    rig.crash(&toy, false, "a b").await;
    let signal = Signal {
        id: "late".to_owned(),
        kind: SignalKind::Stop,
        scope: None,
        sender: "someone".to_owned(),
        created_at: "2026-11-21T12:00:00Z".parse().unwrap(),
    };
    rig.store.signal(&run_id(), &signal).await.unwrap();

    let outcome = rig.resume(&toy.healed()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(rig.store.signals(&run_id()).await.unwrap(), []);
}

#[tokio::test]
async fn a_restart_can_adopt_another_graph() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a", 1).does("b", 1, Does::Fail);
    rig.run(&toy).await.unwrap();
    let other = Toy::new("z; a: z", 1);
    let adoption = Adoption {
        before: shape(&toy),
        definition: shape(&other).definition(None),
        redo: false,
        kept: Default::default(),
        rerun: Vec::new(),
        within: Default::default(),
        entered: Default::default(),
    };

    let options = ResumeOptions {
        restart: Some(Default::default()),
        adopt: Some(adoption),
        ..ResumeOptions::default()
    };
    let outcome = rig.engine.resume_program(&other, &run_id(), options).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(other.trace(), "z a");
    let again = rig.resume(&other.again()).await.unwrap();
    assert!(again.idle);
}

#[tokio::test]
async fn cut_is_known() {
    let rig = Rig::new();
    let toy = Toy::new("a; b!: a; c: b", 1).does("b", 1, Does::Hang);

    rig.crash(&toy, false, "a b").await;

    expect!(
        rig.history().await,
        "@1 started a(1) > a(1) | a started
         @2 completed a(1) | b ready
         @3 started b(1) > b(1) | b started"
    );
    assert_eq!(rig.status().await, RunStatus::InDoubt);
    let error = rig.resume(&toy.again()).await.unwrap_err();
    assert!(matches!(error, RunError::InDoubt { .. }), "{error}");
    assert_eq!(toy.trace(), "a b");
    let again = rig.resume(&toy.again()).await.unwrap_err();
    assert!(matches!(again, RunError::InDoubt { .. }), "the lease was given back: {again}");
}

#[tokio::test]
async fn unfinished_is_not_skipped() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a; c: b", 1).does("b", 1, Does::Skip).does("c", 1, Does::Hang);

    rig.crash(&toy, false, "a c").await;

    expect!(
        rig.history().await,
        "@1 started a(1) > a(1) | a started
         @2 completed a(1)
         @3 skipped b(0) > c(1) | c started"
    );
    // The condition would be true now; its earlier decision stays.
    let changed = Toy::new("a; b: a; c: b", 1);
    rig.resume(&changed).await.unwrap();
    assert_eq!(changed.trace(), "c");
}

#[tokio::test]
async fn a_tolerated_failure_lets_the_rest_go_on() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a", 1).does("a", 1, Does::Fail).tolerate("a");

    let outcome = rig.run(&toy).await.unwrap();

    assert_eq!(outcome.status, RunStatus::CompletedWithFailures);
    assert_eq!(toy.trace(), "a b");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_takes_too_long_fails() {
    let rig = Rig::new();
    let toy = Toy::new("a", 1).does("a", 1, Does::Hang).timeout("a", Duration::from_secs(5));

    let outcome = rig.run(&toy).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Failed);
}

#[tokio::test]
async fn until_starts_nothing_that_is_not_needed() {
    let rig = Rig::new();
    let toy = Toy::new("a; x; b: a; c: b", 4);
    let options = SessionOptions { until: Some("b".parse().unwrap()), ..SessionOptions::default() };

    let outcome = rig.engine.run_program(&toy, toy.record("r"), Default::default(), options).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Interrupted);
    assert_eq!(toy.trace(), "a b");
    assert_eq!(rig.resume(&toy.again()).await.unwrap().status, RunStatus::Completed);
    assert_eq!(toy.trace(), "a b x c");
}

// Bug: `resume --until` of a finished step recorded a run that had failed elsewhere as interrupted. Cause: the
// first record of a resume was always written. Fix: if no requested step is left, the resume writes no record,
// and the status stays.
#[tokio::test]
async fn a_dropped_choice_writes_nothing_and_keeps_the_run() {
    for (x, status) in [(Does::Fail, RunStatus::Failed), (Does::Hang, RunStatus::Interrupted)] {
        let rig = Rig::new();
        let toy = Toy::new("a; b: a; x: b; c: x", 1).does("x", 1, x.clone());
        match x {
            Does::Fail => drop(rig.run(&toy).await.unwrap()),
            _ => rig.crash(&toy, false, "a b x").await,
        }
        let before = rig.history().await;
        let until = |step: &str| {
            let session = SessionOptions { until: Some(step.parse().unwrap()), ..SessionOptions::default() };
            ResumeOptions { session, ..ResumeOptions::default() }
        };

        let outcome = rig.engine.resume_program(&toy.again(), &run_id(), until("b")).await.unwrap();

        assert_eq!((outcome.status, outcome.idle), (status, true));
        assert_eq!((rig.history().await, rig.status().await), (before, status));
        let more = rig.engine.resume_program(&toy.again(), &run_id(), until("x")).await.unwrap();
        assert_eq!((more.status, more.idle), (RunStatus::Interrupted, false), "the lease was given back");
        assert_eq!(toy.trace(), "a b x x");
        assert!(rig.engine.resume_program(&toy.again(), &run_id(), until("x")).await.unwrap().idle);
    }
}

#[tokio::test]
async fn one_writer() {
    let rig = Rig::new();
    let toy = Toy::new("a", 1).does("a", 1, Does::Hang);
    let stop = StopHandle::default();
    let options = SessionOptions { stop: stop.clone(), ..SessionOptions::default() };

    let session = rig.engine.run_program(&toy, toy.record("r"), Default::default(), options);
    let second = async {
        while toy.trace() != "a" {
            tokio::task::yield_now().await;
        }
        let refused = rig.resume(&toy.again()).await;
        stop.stop(StopLevel::Graceful, "test");
        refused
    };
    let (_, refused) = tokio::join!(session, second);

    assert!(matches!(refused, Err(RunError::Store(StoreError::Held { .. }))), "{refused:?}");
}

#[tokio::test]
async fn retention_holds_when_the_session_ends() {
    // Bug: a run with a retention of two states had kept all eight at its end. Cause: old states were dropped
    // every few commits, and never after the last. Fix: the last commit keeps the lease until they are dropped.
    let rig = Rig::new();
    let toy = Toy::new("a; b: a; c: b; d: c; e: d; f: e", 1);
    let options = SessionOptions { retention: Some(2), ..SessionOptions::default() };

    let record = toy.record(run_id().as_str());
    let outcome = rig.engine.run_program(&toy, record, Default::default(), options).await.unwrap();

    let mut kept = 0;
    for seq in 1..=outcome.at {
        let record = rig.store.load(&run_id(), &ScopePath::main(), seq).await.unwrap();
        kept += usize::from(record.state_bytes().is_some());
    }
    assert_eq!((outcome.status, kept), (RunStatus::Completed, 2));
    assert!(rig.store.run(&run_id()).await.unwrap().summary.holder.is_none(), "the lease is given back");
}

#[tokio::test]
async fn the_state_is_there_after_a_resume() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a", 1).does("a", 1, Does::Ok(json!({"x": 1}))).does("b", 1, Does::Hang);
    rig.crash(&toy, false, "a b").await;

    rig.resume(&toy.again()).await.unwrap();

    let newest = rig.store.newest(&run_id(), &ScopePath::main()).await.unwrap();
    assert_eq!(newest.state_bytes(), Some(br#"{"a":{"x":1},"b":{"n":2}}"#.as_slice()));
}
