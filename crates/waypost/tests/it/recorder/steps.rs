//! Beginning and committing steps.

use std::error::Error as _;

use serde_json::json;
use waypost::evidence::InvalidPack;
use waypost::record::{Claim, FailureKind, Note, Occasion, Pack, Phase, RunStatus, Terms, Usage, Verdict};
use waypost::recorder::{Begin, Commit, Error, Label, Recorder, run_record};
use waypost::shape::{Shape, Step};
use waypost::store::{Page, RunQuery, Signal, SignalKind, Store, StoreError};
use waypost::{Digest, StepId};
use waypost_testing::records::{step_id, time};

use super::*;

mod evidence;

#[tokio::test]
async fn a_step_is_a_start_and_an_end() {
    let rig = Rig::new();
    let recorder = rig.create().await;

    let checkpoint = step(&rig, &recorder, "fetch", 1).await;

    expect_lines!(
        rig.history().await,
        "@1 started
         @2 started fetch(1.1.0)
         @3 completed fetch(1.1.0), about 2 = ok"
    );
    assert_eq!(checkpoint.verdict(), Verdict::Ok);
    assert_eq!(checkpoint.state::<Value>().unwrap(), json!({ "n": 1 }));
    assert_eq!((checkpoint.seq(), checkpoint.about()), (3, Some(2)));
    assert_eq!(recorder.newest().await.unwrap(), at(3));
}

#[tokio::test]
async fn a_loop_gets_one_checkpoint_for_each_visit() {
    let rig = Rig::new();
    let recorder = rig.create().await;

    for n in 1..=3 {
        step(&rig, &recorder, "ask", n).await;
    }

    expect_lines!(
        rig.history().await,
        "@1 started
         @2 started ask(1.1.0)
         @3 completed ask(1.1.0), about 2 = ok
         @4 started ask(1.2.0)
         @5 completed ask(1.2.0), about 4 = ok
         @6 started ask(1.3.0)
         @7 completed ask(1.3.0), about 6 = ok"
    );
    let recorder = rig.crash(recorder).await;
    let begun = recorder.begin_step(begin("ask")).await.unwrap();
    assert_eq!(begun.at().iteration, [4], "the count goes on after a crash");
}

#[tokio::test]
async fn every_label_is_recorded_and_found_again() {
    let rig = Rig::new();
    let recorder = rig.create().await;

    for (index, label) in Label::ALL.into_iter().enumerate() {
        let step = StepId::new(&format!("s{index}")).unwrap();
        let begun = recorder.begin_step(Begin::new(step, label).label("n", index.to_string())).await.unwrap();
        assert_eq!(begun.label(), Some(label));
        recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap();
    }

    let names = Label::ALL.map(Label::name);
    assert_eq!(
        names,
        [
            "iteration_start",
            "iteration_end",
            "tool_executed",
            "llm_response",
            "approval_point",
            "state_transition",
            "manual_checkpoint",
            "error_boundary"
        ]
    );
    for label in Label::ALL {
        let found = recorder.list(Some(label), &Page::default()).await.unwrap().checkpoints;
        assert_eq!(found.len(), 2, "{label}: its start and its end");
        assert!(found.iter().all(|checkpoint| checkpoint.label() == Some(label)));
        assert_eq!(label.name().parse::<Label>().unwrap(), label);
    }
    assert!("iteration".parse::<Label>().is_err());
}

#[tokio::test]
async fn a_commit_may_have_another_label_than_its_start() {
    let rig = Rig::new();
    let recorder = rig.create().await;

    let begun = recorder.begin_step(Begin::new(step_id("pass"), Label::IterationStart)).await.unwrap();
    let commit = Commit::without_evidence().label(Label::IterationEnd);
    let done = recorder.commit_step(&begun, commit).await.unwrap();

    assert_eq!(done.label(), Some(Label::IterationEnd));
}

#[tokio::test]
async fn the_start_is_durable_before_the_work() {
    let rig = Rig::new();
    let recorder = rig.create().await;

    let begin = begin("fetch").state(&json!({ "n": 7 }));
    let begun = recorder.begin_step(begin).await.unwrap();
    let recorder = rig.crash(recorder).await;

    assert_eq!(cut(&recorder).await, ["fetch(1)"]);
    let found = recorder.cut().await.unwrap().remove(0);
    assert!(found.is_cut() && found.since() == begun.since());
    assert_eq!(found.label(), Some(Label::ToolExecuted));
    assert_eq!(found.idempotency_key(), begun.idempotency_key(), "a crash does not change it");
    assert_eq!(state(&recorder, begun.since()).await, json!({ "n": 7 }));
    assert_eq!(recorder.begun(since(&begun)).await.unwrap(), Some(found));
}

#[tokio::test]
async fn a_cut_step_begins_again_as_the_next_attempt() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    recorder.begin_step(begin("fetch")).await.unwrap();
    let recorder = rig.crash(recorder).await;

    let first = recorder.begin_step(begin("fetch")).await.unwrap();
    let recorder = rig.crash(recorder).await;
    let second = recorder.begin_step(begin("fetch")).await.unwrap();

    assert_eq!((first.at().attempt, second.at().attempt), (2, 3));
    assert_eq!(first.idempotency_key(), second.idempotency_key());
    expect_lines!(
        rig.history().await,
        "@1 started
         @2 started fetch(1.1.0)
         @3 started fetch(2.1.0) resumed
         @4 started fetch(3.1.0) resumed"
    );
}

#[tokio::test]
async fn one_step_is_not_begun_twice_at_once() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("a")).await.unwrap();

    let error = recorder.begin_step(begin("a")).await.unwrap_err();
    let other = recorder.begin_step(begin("b")).await.unwrap();

    assert!(matches!(error, Error::UnderWay { .. }), "{error}");
    for begun in [other, begun] {
        recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap();
    }
    expect_lines!(
        rig.history().await,
        "@1 started
         @2 started a(1.1.0)
         @3 started b(1.1.0)
         @4 completed b(1.1.0), about 3
         @5 completed a(1.1.0), about 2"
    );
}

#[tokio::test]
async fn a_step_ends_once() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("a")).await.unwrap();
    recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap();
    let before = rig.count().await;

    let again = recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap_err();
    let failed = recorder.fail_step(&begun, ["late".to_owned()], Vec::new()).await.unwrap_err();

    assert!(matches!(again, Error::NotUnderWay { .. }), "{again}");
    assert!(matches!(failed, Error::NotUnderWay { .. }), "{failed}");
    assert_eq!(rig.count().await, before);
}

#[tokio::test]
async fn the_same_commit_again_is_answered_and_not_written() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("ask")).await.unwrap();
    rig.write("out", "x");
    let commit = |state: Value| Commit::with(keeps("out")).external("answer-1").output("n", 1).state(&state);

    let first = recorder.commit_step(&begun, commit(json!({ "a": 1, "b": [2] }))).await.unwrap();
    let second = recorder.commit_step(&begun, commit(json!({ "b": [2], "a": 1 }))).await.unwrap();
    let history = rig.history().await;
    let recorder = rig.crash(recorder).await;
    let third = recorder.commit_step(&begun, commit(json!({ "a": 1, "b": [2] }))).await.unwrap();

    assert_eq!((first.reference(), second.reference()), (at(3), at(3)));
    assert_eq!(third, first);
    assert_eq!(rig.history().await, history, "nothing was appended");
    assert_eq!(third.external(), Some("answer-1"));
}

#[tokio::test]
async fn work_that_was_begun_again_for_nothing_counts_as_ended() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("ask")).await.unwrap();
    let commit = || Commit::without_evidence().external("answer-1");
    recorder.commit_step(&begun, commit()).await.unwrap();
    // The program dies before it learns of it, and does the work again.
    let recorder = rig.crash(recorder).await;
    let again = recorder.begin_step(begin("ask")).await.unwrap();

    let answered = recorder.commit_step(&again, commit()).await.unwrap();

    assert_eq!(answered.reference(), at(3));
    recorder.finish().await.unwrap();
}

#[tokio::test]
async fn one_id_does_not_stand_for_two_contents() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("ask")).await.unwrap();
    rig.write("out", "x");
    let commit = || Commit::with(keeps("out")).external("id").state(&json!({ "n": 1 })).output("a", 1);
    recorder.commit_step(&begun, commit()).await.unwrap();
    let on_terms = |terms: Terms| {
        let pack = Pack::all([Claim::unchanged("out").on_terms(terms)]);
        Commit::with(pack).external("id").state(&json!({ "n": 1 })).output("a", 1)
    };
    let other = recorder.begin_step(begin("tell")).await.unwrap();
    let before = rig.count().await;

    let others = [
        (&begun, commit().state(&json!({ "n": 2 }))),
        (&begun, commit().output("a", 2)),
        (&begun, commit().exit_code(0)),
        (&begun, commit().label(Label::ErrorBoundary)),
        (&begun, Commit::with(keeps("other")).external("id").state(&json!({ "n": 1 })).output("a", 1)),
        (&begun, Commit::without_evidence().external("id").state(&json!({ "n": 1 })).output("a", 1)),
        (&begun, commit().auto_verify(false)),
        (&begun, on_terms(Terms { not: true, ..Terms::default() })),
        (&begun, on_terms(Terms { within_ms: Some(1), ..Terms::default() })),
        (&begun, on_terms(Terms { at: [Occasion::Commit].into(), ..Terms::default() })),
        (&begun, on_terms(Terms { sensitive: true, ..Terms::default() })),
        (&other, commit()),
    ];
    for (begun, commit) in others {
        let error = recorder.commit_step(begun, commit).await.unwrap_err();
        assert!(matches!(error, Error::OtherContent { .. }), "{error}");
    }

    assert_eq!(rig.count().await, before);
}

#[tokio::test]
async fn an_id_whose_evidence_failed_may_be_used_by_the_next_try() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let commit =
        |n: u64| Commit::with(Pack::all([Claim::file("out")])).external("id").state(&json!({ "n": n }));
    let first = recorder.begin_step(begin("a")).await.unwrap();
    let failed = recorder.commit_step(&first, commit(1)).await.unwrap();

    let same = recorder.commit_step(&first, commit(1)).await.unwrap();
    let second = recorder.begin_step(begin("a")).await.unwrap();
    rig.write("out", "x");
    let done = recorder.commit_step(&second, commit(2)).await.unwrap();
    let again = recorder.commit_step(&second, commit(2)).await.unwrap();

    assert_eq!((failed.verdict(), same.reference()), (Verdict::Failed, failed.reference()));
    assert_eq!((done.verdict(), again.reference()), (Verdict::Ok, done.reference()));
    assert_eq!(rig.count().await, 5);
}

#[tokio::test]
async fn two_commits_of_one_id_at_once_write_one_checkpoint() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("ask")).await.unwrap();
    rig.write("out", "x");
    let commit = || recorder.commit_step(&begun, Commit::with(keeps("out")).external("id"));

    let (first, second, third) = tokio::join!(commit(), commit(), commit());

    let references = [first, second, third].map(|done| done.unwrap().reference());
    assert_eq!(references, [at(3), at(3), at(3)]);
    assert_eq!(rig.count().await, 3);
}

#[tokio::test]
async fn many_tasks_share_a_recorder() {
    let rig = Rig::new();
    let recorder = Arc::new(rig.create().await);
    for index in 0..20 {
        rig.write(&format!("f{index}"), "x");
    }

    let work = (0..20).map(|index| {
        let recorder = Arc::clone(&recorder);
        tokio::spawn(async move {
            let begun = recorder.begin_step(begin(&format!("s{index}"))).await.unwrap();
            recorder.commit_step(&begun, Commit::with(keeps(&format!("f{index}")))).await.unwrap()
        })
    });
    let mut seqs = Vec::new();
    for task in work.collect::<Vec<_>>() {
        seqs.push(task.await.unwrap().seq());
    }

    seqs.sort_unstable();
    seqs.dedup();
    assert_eq!((seqs.len(), rig.count().await), (20, 41), "no seq is given twice");
    assert_eq!(recorder.finish().await.unwrap(), at(42));
}

#[tokio::test]
async fn a_failed_step_keeps_its_error_and_its_input_state() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("ask")).await.unwrap();

    let chain = ["cannot ask".to_owned(), "connection refused".to_owned()];
    let note = Note::Report("It did not work.".to_owned());
    let failed = recorder.fail_step(&begun, chain.clone(), vec![note]).await.unwrap();

    let Phase::Failed(failure) = failed.phase() else { panic!("{failed:?}") };
    assert_eq!((failure.kind, failure.error.as_slice()), (FailureKind::Error, chain.as_slice()));
    assert_eq!(recorder.begin_step(begin("ask")).await.unwrap().at().attempt, 2);
}

#[tokio::test]
async fn usage_and_notes_are_kept() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("ask")).await.unwrap();
    let usage = Usage { tokens_in: 10, tokens_out: 20, cost: 0.5, model: Some("m".to_owned()) };

    let note = Note::Event { name: "asked".to_owned(), data: json!({ "n": 1 }) };
    let commit = Commit::without_evidence().usage(usage.clone()).note(note.clone());
    recorder.commit_step(&begun, commit).await.unwrap();

    let record = rig.store.load(&run(), &at(3).scope, 3).await.unwrap();
    assert_eq!(
        (record.header().usage.as_ref(), record.header().notes.as_slice()),
        (Some(&usage), &[note][..])
    );
}

#[tokio::test]
async fn finishing_ends_the_run_for_good() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    step(&rig, &recorder, "a", 1).await;

    recorder.finish().await.unwrap();

    assert_eq!(rig.store.run(&run()).await.unwrap().summary.status, RunStatus::Completed);
    assert!(matches!(recorder.begin_step(begin("b")).await.unwrap_err(), Error::Ended(_)));
    assert!(matches!(recorder.finish().await.unwrap_err(), Error::Ended(_)));
    recorder.close().await.unwrap();
    let error = Recorder::open(rig.shared(), &run(), rig.options()).await.unwrap_err();
    assert!(matches!(error, Error::Ended(_)), "{error}");
    assert_eq!(rig.store.run(&run()).await.unwrap().summary.holder, None, "who was refused holds nothing");
}

#[tokio::test]
async fn a_run_does_not_finish_over_unfinished_steps() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("a")).await.unwrap();

    let error = recorder.finish().await.unwrap_err();
    recorder.fail_step(&begun, ["no".to_owned()], Vec::new()).await.unwrap();
    recorder.finish().await.unwrap();

    assert!(matches!(&error, Error::Unfinished { steps, .. } if steps == &[step_id("a")]), "{error}");
    let status = rig.store.run(&run()).await.unwrap().summary.status;
    assert_eq!(status, RunStatus::CompletedWithFailures);
}

#[tokio::test]
async fn a_closed_run_is_interrupted_and_can_be_opened_again() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    assert_eq!(rig.store.run(&run()).await.unwrap().summary.status, RunStatus::Running);

    recorder.close().await.unwrap();

    assert_eq!(rig.store.run(&run()).await.unwrap().summary.status, RunStatus::Interrupted);
    assert_eq!(cut(&rig.open().await).await, [""; 0]);
}

#[tokio::test]
async fn one_recorder_at_a_time() {
    let rig = Rig::new();
    let recorder = rig.create().await;

    let second = Recorder::open(rig.shared(), &run(), rig.options()).await.unwrap_err();
    let third = Recorder::create(rig.shared(), run_record(run(), "loop"), &json!({}), rig.options())
        .await
        .unwrap_err();

    assert!(matches!(second, Error::Store(StoreError::Held { .. })), "{second}");
    assert!(matches!(third, Error::Store(StoreError::Exists { .. })), "{third}");
    recorder.begin_step(begin("a")).await.unwrap();
}

#[tokio::test]
async fn a_recorder_that_lost_its_lease_is_refused_for_good() {
    let rig = Rig::new();
    let old = rig.create().await;
    let begun = old.begin_step(begin("a")).await.unwrap();
    rig.store.drop_holder(&run());
    let new = rig.open().await;
    let before = rig.count().await;

    let commit = old.commit_step(&begun, Commit::without_evidence()).await.unwrap_err();
    let renew = old.renew().await.unwrap_err();

    for error in [commit, renew] {
        assert!(matches!(error, Error::Store(StoreError::Fenced { .. })), "{error}");
    }
    assert_eq!(rig.count().await, before);
    new.begin_step(begin("b")).await.unwrap();
}

#[tokio::test]
async fn a_request_to_stop_is_told() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let kind = SignalKind::Stop;
    let stop = Signal { id: "s".to_owned(), kind, scope: None, sender: "me".to_owned(), created_at: time(0) };
    assert_eq!(recorder.renew().await.unwrap(), []);

    rig.store.signal(&run(), &stop).await.unwrap();

    assert_eq!(recorder.renew().await.unwrap(), [stop]);
}

#[tokio::test]
async fn a_run_of_a_workflow_is_left_to_its_engine() {
    let rig = Rig::new();
    let mut record = run_record(run(), "flow");
    let steps = vec![Step::new(step_id("a"), Vec::new(), Digest::of(b"a"))];
    record.definition = Shape::new(steps, 1).unwrap().definition(None);

    let error = Recorder::create(rig.shared(), record, &json!({}), rig.options()).await.unwrap_err();

    assert!(matches!(error, Error::Driven(_)), "{error}");
    assert_eq!(rig.store.runs(&RunQuery::default()).await.unwrap().runs, []);
}

#[tokio::test]
async fn what_cannot_be_written_is_refused_before_anything_is() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("a")).await.unwrap();
    let before = rig.count().await;
    let no_text = std::collections::HashMap::from([((1, 2), 3)]);
    let long = "x".repeat(1_000);

    let errors = [
        recorder.begin_step(begin("b").state(&no_text)).await.unwrap_err(),
        recorder.begin_step(begin("b").state(&[f64::NAN])).await.unwrap_err(),
        recorder.begin_step(begin("b").label("type", "mine")).await.unwrap_err(),
        recorder.begin_step(begin("b").label("k", &long)).await.unwrap_err(),
        recorder.begin_step(begin("b").label("", "v")).await.unwrap_err(),
        recorder.commit_step(&begun, Commit::without_evidence().state(&no_text)).await.unwrap_err(),
        recorder.commit_step(&begun, Commit::without_evidence().output("o", &*long)).await.unwrap_err(),
        recorder.commit_step(&begun, Commit::without_evidence().external("")).await.unwrap_err(),
        recorder.commit_step(&begun, Commit::without_evidence().external(long)).await.unwrap_err(),
    ];

    for error in errors {
        let text = error.to_string();
        assert!(matches!(error, Error::Write { .. } | Error::Invalid(_)), "{text}");
        assert!(error.source().is_none_or(|source| !text.contains(&source.to_string())), "{text}");
    }
    assert_eq!(rig.count().await, before);
    recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap();
}

#[tokio::test]
async fn names_without_end_do_not_grow_the_checkpoints() {
    let rig = Rig::new();
    let recorder = rig.create().await;

    let mut bytes = Vec::new();
    for index in 0..600 {
        let begun = recorder.begin_step(begin(&format!("s{index:04}"))).await.unwrap();
        let done = recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap();
        let record = rig.store.load(&run(), &at(1).scope, done.seq()).await.unwrap();
        bytes.push(record.header().body.as_ref().unwrap().bytes);
    }

    assert!(bytes[599] <= bytes[299] + 300, "{} then {}", bytes[299], bytes[599]);
    let again = recorder.begin_step(begin("s0000")).await.unwrap();
    assert_eq!(again.at().iteration, [2], "also a step that the ledger has forgotten");
}
