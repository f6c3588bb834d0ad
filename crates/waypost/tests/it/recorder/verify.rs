//! A new check of evidence, and the search for the last checkpoint that holds.

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use serde_json::json;
use waypost::ScopePath;
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site, Verifier};
use waypost::memory::Part;
use waypost::record::{Claim, Note, Pack, Verdict};
use waypost::recorder::{Checkpoints, Commit, Error, Label, SEARCH_TRIES_MAX};
use waypost::store::{Page, Store, StoreError};

use super::*;

#[tokio::test]
async fn verifying_checks_now_and_appends_what_it_finds() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let done = step(&rig, &recorder, "a", 1).await;
    let before = rig.store.load(&run(), &ScopePath::main(), 3).await.unwrap();

    let held = recorder.verify_checkpoint(&done.reference()).await.unwrap();
    rig.remove("a.txt");
    let failed = recorder.verify_checkpoint(&done.reference()).await.unwrap();

    assert_eq!((held.verdict(), failed.verdict()), (Verdict::Ok, Verdict::Failed));
    assert_eq!(failed.committed().unwrap().verdict(), Verdict::Ok, "what was committed stays");
    assert_eq!(rig.store.load(&run(), &ScopePath::main(), 3).await.unwrap(), before);
    expect_lines!(
        rig.history().await,
        "@1 started
         @2 started a(1.1.0)
         @3 completed a(1.1.0), about 2 = ok
         @4 progress, about 3 = ok
         @5 progress, about 3 = failed"
    );
    let read = recorder.get(&done.reference()).await.unwrap().unwrap();
    assert_eq!(read.verdict(), Verdict::Failed, "the newest check is shown");
    assert_eq!(state(&recorder, &at(5)).await, json!({ "n": 1 }));
}

#[tokio::test]
async fn verdicts_survive_a_second_crash() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let done = step(&rig, &recorder, "a", 1).await;
    rig.remove("a.txt");
    let open = recorder.begin_step(begin("b")).await.unwrap();
    recorder.verify_checkpoint(&done.reference()).await.unwrap();

    let recorder = rig.crash(recorder).await;

    assert_eq!(recorder.get(&done.reference()).await.unwrap().unwrap().verdict(), Verdict::Failed);
    assert_eq!(cut(&recorder).await, ["b(1)"]);
    assert_eq!(recorder.cut().await.unwrap()[0].since(), open.since());
    recorder.verify_checkpoint(&done.reference()).await.unwrap();
    let recorder = rig.crash(recorder).await;
    assert_eq!(cut(&recorder).await, ["b(1)"]);
}

#[tokio::test]
async fn what_has_no_evidence_cannot_be_verified() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("a").rewrites([Claim::file("out")])).await.unwrap();
    let done = recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap();
    let before = rig.count().await;

    for reference in [at(1), begun.since().clone(), done.reference()] {
        let error = recorder.verify_checkpoint(&reference).await.unwrap_err();
        assert!(matches!(error, Error::NoEvidence(_)), "{error}");
    }
    let error = recorder.verify_checkpoint(&at(9)).await.unwrap_err();
    assert!(matches!(error, Error::Store(StoreError::NotFound { .. })), "{error}");
    let mut elsewhere = at(1);
    elsewhere.run = run_id("other");
    assert!(matches!(recorder.verify_checkpoint(&elsewhere).await.unwrap_err(), Error::Invalid(_)));
    assert_eq!(rig.count().await, before);
}

/// Bug: a file that a later step rewrote correctly made every older checkpoint fail. Cause: each checkpoint was
/// checked against its own digest. Fix: a claim is checked in the version of the newest step that makes it.
#[tokio::test]
async fn a_file_rewritten_by_a_later_step_keeps_the_older_end() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let older = step(&rig, &recorder, "a", 1).await;
    let begun = recorder.begin_step(begin("b")).await.unwrap();
    rig.write("a.txt", "rewritten");
    recorder.commit_step(&begun, Commit::with(keeps("./a.txt"))).await.unwrap();

    let verified = recorder.verify_checkpoint(&older.reference()).await.unwrap();
    rig.write("a.txt", "by nobody who says so");
    let broken = recorder.verify_checkpoint(&older.reference()).await.unwrap();

    assert_eq!(verified.verdict(), Verdict::Ok);
    assert_eq!(broken.verdict(), Verdict::Failed);
    let record = rig.store.load(&run(), &ScopePath::main(), 6).await.unwrap();
    let bound = json!({ "kind": "file_sha256", "subject": "./a.txt", "as_claimed_at": 5 });
    assert_eq!(record.header().notes, [Note::Event { name: "evidence_bound".to_owned(), data: bound }]);
}

/// Bug: a checkpoint with a missing file was `ok` because another file had reused its inode. Cause: a name stood
/// for its former file, although it no longer led there. Fix: a name that leads nowhere, or elsewhere, counts as
/// its own subject.
#[tokio::test]
async fn a_file_that_is_gone_is_not_another_one_that_has_its_inode() {
    for _ in 0..20 {
        let rig = Rig::new();
        let recorder = rig.create().await;
        let linked = |name: &str| {
            rig.write(name, name);
            fs::hard_link(rig.path(name), rig.path(&format!("{name}2"))).unwrap();
            fs::metadata(rig.path(name)).unwrap().ino()
        };
        let first = linked("a");
        let begun = recorder.begin_step(begin("a")).await.unwrap();
        let older = recorder.commit_step(&begun, Commit::with(keeps("a"))).await.unwrap();
        rig.remove("a");
        rig.remove("a2");
        let begun = recorder.begin_step(begin("c")).await.unwrap();
        let second = linked("c");
        recorder.commit_step(&begun, Commit::with(keeps("c"))).await.unwrap();

        let verified = recorder.verify_checkpoint(&older.reference()).await.unwrap();

        assert_eq!(verified.verdict(), Verdict::Failed);
        if first == second {
            break;
        }
    }
}

#[tokio::test]
async fn a_link_that_is_gone_is_not_what_it_led_to() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    rig.write("v1", "1");
    symlink("v1", rig.path("latest")).unwrap();
    let begun = recorder.begin_step(begin("a")).await.unwrap();
    let older = recorder.commit_step(&begun, Commit::with(keeps("latest"))).await.unwrap();
    let begun = recorder.begin_step(begin("b")).await.unwrap();
    rig.write("v1", "rewritten");
    recorder.commit_step(&begun, Commit::with(keeps("v1"))).await.unwrap();

    let led = recorder.verify_checkpoint(&older.reference()).await.unwrap();
    rig.remove("latest");
    let gone = recorder.verify_checkpoint(&older.reference()).await.unwrap();

    assert_eq!((led.verdict(), gone.verdict()), (Verdict::Ok, Verdict::Failed));
}

#[tokio::test]
async fn a_claim_that_never_held_is_not_saved_by_a_newer_one() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    rig.write("out", "old");
    let begun = recorder.begin_step(begin("a")).await.unwrap();
    let claim = Claim::sha256("out", waypost::Digest::of(b"never"));
    let commit = Commit::with(Pack::all([claim])).auto_verify(false);
    let unchecked = recorder.commit_step(&begun, commit).await.unwrap();
    let begun = recorder.begin_step(begin("b")).await.unwrap();
    recorder.commit_step(&begun, Commit::with(keeps("out"))).await.unwrap();

    let verified = recorder.verify_checkpoint(&unchecked.reference()).await.unwrap();

    assert_eq!(verified.verdict(), Verdict::Failed);
}

#[tokio::test]
async fn a_file_rewritten_by_a_cut_step_ignores_older_pins() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let older = step(&rig, &recorder, "a", 1).await;
    recorder.begin_step(begin("b").rewrites([Claim::unchanged("a.txt")])).await.unwrap();
    rig.write("a.txt", "half of wha");
    let recorder = rig.crash(recorder).await;

    let verified = recorder.verify_checkpoint(&older.reference()).await.unwrap();

    assert_eq!(verified.verdict(), Verdict::Skipped, "neither failed nor ok");
    let found = recorder.last_verified_checkpoint(None).await.unwrap();
    assert_eq!(found.checkpoint, None, "and no place to go back to");
}

#[tokio::test]
async fn the_last_verified_checkpoint_is_verified_now() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let a = step(&rig, &recorder, "a", 1).await;
    let b = step(&rig, &recorder, "b", 2).await;
    let before = rig.count().await;

    let last = recorder.last_verified_checkpoint(None).await.unwrap();
    rig.remove("b.txt");
    let fallen_back = recorder.last_verified_checkpoint(None).await.unwrap();
    rig.remove("a.txt");
    let none = recorder.last_verified_checkpoint(None).await.unwrap();

    let found = last.checkpoint.unwrap();
    assert_eq!((found.reference(), found.verdict()), (b.reference(), Verdict::Ok));
    assert_eq!(found.state::<Value>().unwrap(), json!({ "n": 2 }));
    assert_eq!(fallen_back.checkpoint.unwrap().reference(), a.reference());
    assert_eq!(fallen_back.passed_over.len(), 1);
    assert_eq!((&fallen_back.passed_over[0].0, fallen_back.passed_over[0].1.failed), (&b.reference(), 1));
    assert_eq!((none.checkpoint, none.passed_over.len(), none.given_up), (None, 2, false));
    assert_eq!(rig.count().await, before, "a search appends nothing");
}

#[tokio::test]
async fn the_last_verified_checkpoint_of_one_label() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    rig.write("out", "x");
    for label in [Label::LlmResponse, Label::ToolExecuted, Label::LlmResponse, Label::IterationEnd] {
        let begun = recorder.begin_step(Begin::new(step_id("a"), label)).await.unwrap();
        recorder.commit_step(&begun, Commit::with(keeps("out"))).await.unwrap();
    }
    let found = async |label| {
        let found = recorder.last_verified_checkpoint(label).await.unwrap();
        found.checkpoint.map(|checkpoint| checkpoint.seq())
    };

    assert_eq!(found(Some(Label::LlmResponse)).await, Some(7));
    assert_eq!(found(Some(Label::ToolExecuted)).await, Some(5));
    assert_eq!(found(None).await, Some(9));
    assert_eq!(found(Some(Label::ApprovalPoint)).await, None);
}

#[tokio::test]
async fn a_checkpoint_without_evidence_is_never_the_last_verified_one() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("a")).await.unwrap();
    recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap();

    assert_eq!(recorder.last_verified_checkpoint(None).await.unwrap().checkpoint, None);
}

#[tokio::test]
async fn what_was_not_checked_at_commit_is_found_once_it_holds() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("a")).await.unwrap();
    let commit = Commit::with(Pack::all([Claim::file("late")])).state(&json!({ "n": 5 }));
    let failed = recorder.commit_step(&begun, commit).await.unwrap();
    assert_eq!(recorder.last_verified_checkpoint(None).await.unwrap().checkpoint, None);

    rig.write("late", "x");

    let found = recorder.last_verified_checkpoint(None).await.unwrap().checkpoint.unwrap();
    assert_eq!(found.reference(), failed.reference());
    let state: Value = recorder.rollback_to_checkpoint(&failed.reference()).await.unwrap();
    assert_eq!(state, json!({ "n": 5 }));
    recorder.finish().await.unwrap();
    let status = rig.store.run(&run()).await.unwrap().summary.status;
    assert_eq!(status.name(), "completed", "the step is finished after all");
}

#[tokio::test]
async fn a_search_has_an_end() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    for n in 0..=SEARCH_TRIES_MAX as u64 {
        step(&rig, &recorder, "a", n).await;
    }
    rig.remove("a.txt");

    let search = recorder.last_verified_checkpoint(None).await.unwrap();

    assert_eq!((search.checkpoint, search.passed_over.len()), (None, SEARCH_TRIES_MAX));
    assert!(search.given_up);
}

#[tokio::test]
async fn a_damaged_checkpoint_is_passed_by() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let a = step(&rig, &recorder, "a", 1).await;
    step(&rig, &recorder, "b", 2).await;
    recorder.begin_step(begin("c")).await.unwrap();

    rig.store.damage(&run(), &ScopePath::main(), 5, Part::Body);

    let found = recorder.last_verified_checkpoint(None).await.unwrap();
    assert_eq!(found.checkpoint.unwrap().reference(), a.reference());
    let error = recorder.rollback_to_checkpoint::<Value>(&at(5)).await.unwrap_err();
    assert!(matches!(error, Error::Store(StoreError::Damaged { .. })), "{error}");
    rig.store.damage(&run(), &ScopePath::main(), 3, Part::Header);
    assert_eq!(recorder.last_verified_checkpoint(None).await.unwrap().checkpoint, None);
}

/// Returns unknown at first, then ok.
#[derive(Debug)]
struct Slow(AtomicU32);

#[async_trait]
impl Probe for Slow {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new("server", Cost::Waiting).live()
    }

    async fn check(&self, _: &Claim, _: &Site) -> Result<Finding, Finding> {
        match self.0.fetch_sub(1, Ordering::SeqCst) {
            0 => {
                self.0.store(0, Ordering::SeqCst);
                Ok(Finding::ok(true))
            }
            _ => Err(Finding::unknown_yet("no response")),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn uncheckable_evidence_fails_the_step_and_is_never_ok() {
    let rig = Rig::new();
    let probe = Arc::new(Slow(AtomicU32::new(100)));
    let verifier = Verifier::new().with_probe(probe.clone()).with_limits(hasty());
    let recorder = rig.create_with(rig.options().with_verifier(verifier)).await;
    let begun = recorder.begin_step(begin("serve")).await.unwrap();

    let pack = Pack::all([Claim::new("server", "localhost")]);
    let done = recorder.commit_step(&begun, Commit::with(pack)).await.unwrap();
    let rollback = recorder.rollback_to_checkpoint::<Value>(&done.reference()).await.unwrap_err();
    probe.0.store(2, Ordering::SeqCst);
    let later = recorder.verify_checkpoint(&done.reference()).await.unwrap();

    assert_eq!(done.verdict(), Verdict::Unknown);
    assert!(matches!(rollback, Error::NotVerified { verdict: Verdict::Unknown, .. }), "{rollback}");
    assert_eq!(later.verdict(), Verdict::Ok, "asked again until it answered");
}

#[tokio::test]
async fn checkpoints_are_listed_in_pages_by_seq() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    for n in 1..=5 {
        step(&rig, &recorder, "a", n).await;
    }

    let reader = Checkpoints::of(rig.shared(), run());
    let mut seqs = Vec::new();
    let mut page = Page { limit: 4, ..Page::default() };
    loop {
        let listed = reader.list(None, &page).await.unwrap();
        assert!(listed.checkpoints.len() <= 4);
        seqs.extend(listed.checkpoints.iter().map(Checkpoint::seq));
        let Some(cursor) = listed.next else { break };
        page.cursor = Some(cursor);
    }

    assert_eq!(seqs, (1..=11).collect::<Vec<u64>>());
    let tools = recorder.list(Some(Label::ToolExecuted), &Page::default()).await.unwrap();
    assert_eq!(tools.checkpoints.len(), 10);
    let error = tools.checkpoints[0].state::<Value>().unwrap_err();
    assert!(matches!(error, Error::NoState(_)), "a list has no states: {error}");
}

#[tokio::test]
async fn a_missing_checkpoint_is_none_and_a_missing_run_an_error() {
    let rig = Rig::new();
    let recorder = rig.create().await;

    assert_eq!(recorder.get(&at(2)).await.unwrap(), None);
    assert!(recorder.get(&at(1)).await.unwrap().is_some());
    recorder.delete().await.unwrap();
    let error = Checkpoints::of(rig.shared(), run()).get(&at(1)).await.unwrap_err();
    assert!(matches!(error, Error::Store(StoreError::NotFound { .. })), "{error}");
}

#[tokio::test]
async fn a_deleted_run_is_gone_and_its_name_is_free() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    step(&rig, &recorder, "a", 1).await;

    recorder.delete().await.unwrap();

    assert!(matches!(rig.store.run(&run()).await.unwrap_err(), StoreError::NotFound { .. }));
    let recorder = rig.create().await;
    assert_eq!(rig.count().await, 1, "and begins anew");
    recorder.finish().await.unwrap();
    recorder.delete().await.unwrap();
}

#[tokio::test]
async fn stats_are_counted_from_what_is_stored() {
    let rig = Rig::new();
    let clock = Arc::new(waypost_testing::TestClock::default());
    let options = || rig.options().with_clock(clock.clone());
    let recorder = rig.create_with(options()).await;
    let a = step(&rig, &recorder, "a", 1).await;
    let begun = recorder.begin_step(begin("b").rewrites([Claim::file("x")])).await.unwrap();
    recorder.commit_step(&begun, Commit::with(Pack::all([Claim::file("gone")]))).await.unwrap();
    rig.remove("a.txt");
    recorder.verify_checkpoint(&a.reference()).await.unwrap();
    rig.write("a.txt", "1");
    clock.pass(std::time::Duration::from_secs(1_800));
    let _: Value = recorder.rollback_to_checkpoint(&a.reference()).await.unwrap();

    drop(recorder);
    rig.store.drop_holder(&run());
    let stats = Checkpoints::of(rig.shared(), run()).stats().await.unwrap();

    assert_eq!((stats.checkpoints, stats.begun, stats.completed, stats.failed), (7, 2, 1, 1));
    assert_eq!((stats.restored, stats.damaged), (1, 0));
    assert_eq!((stats.checks.ok, stats.checks.failed), (2, 2));
    assert_eq!(stats.success_rate(), Some(0.5));
    assert_eq!(stats.failures, [("artifact_exists".to_owned(), 1), ("file_sha256".to_owned(), 1)].into());
    assert_eq!(stats.per_hour(), Some(12.0));
    assert!(stats.bytes_max > 0 && stats.bytes >= stats.bytes_max && stats.bytes_mean() <= stats.bytes_max);
    assert_eq!(waypost::recorder::Stats::default().success_rate(), None);
}
