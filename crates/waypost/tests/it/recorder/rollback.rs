//! Rollback to a verified checkpoint: only appends, and only if the evidence holds now.

use serde_json::json;
use waypost::ScopePath;
use waypost::memory::Part;
use waypost::record::{Claim, Pack, RunRecord, Verdict};
use waypost::recorder::{Commit, Error, Options, Recorder, run_record};
use waypost::store::{Store, StoreError, TrimMode};

use super::*;

#[tokio::test]
async fn a_rollback_appends_and_gives_the_state_back() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let a = step(&rig, &recorder, "a", 1).await;
    step(&rig, &recorder, "b", 2).await;

    let state: Value = recorder.rollback_to_checkpoint(&a.reference()).await.unwrap();

    assert_eq!(state, json!({ "n": 1 }));
    step(&rig, &recorder, "b", 3).await;
    expect_lines!(
        rig.history().await,
        "@1 started
         @2 started a(1.1.0)
         @3 completed a(1.1.0), about 2 = ok
         @4 started b(1.1.0)
         @5 completed b(1.1.0), about 4 = ok
         @6 restored < 3, about 3 = ok
         @7 started b(1.1.1)
         @8 completed b(1.1.1), about 7 = ok"
    );
}

/// Bug: a rollback trusted the verdict of the commit although the artifact was missing. Cause: the verdict was a
/// flag. Fix: the rollback checks the claims.
#[tokio::test]
async fn a_rollback_is_refused_when_the_artifact_is_gone() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let a = step(&rig, &recorder, "a", 1).await;
    step(&rig, &recorder, "b", 2).await;
    let before = rig.count().await;
    rig.remove("a.txt");

    let error = recorder.rollback_to_checkpoint::<Value>(&a.reference()).await.unwrap_err();

    assert_eq!(
        error.to_string(),
        "the evidence of r@3 is failed: file_sha256 a.txt (the file does not exist)"
    );
    let Error::NotVerified { verdict, pack, .. } = error else { panic!("{error}") };
    assert_eq!((verdict, pack.verdict()), (Verdict::Failed, Verdict::Failed));
    assert_eq!(rig.count().await, before, "nothing changed");
    rig.write("a.txt", "1");
    let _: Value = recorder.rollback_to_checkpoint(&a.reference()).await.unwrap();
}

#[tokio::test]
async fn a_rollback_goes_only_where_evidence_was_committed() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("a")).await.unwrap();
    let bare = recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap();
    let begun = recorder.begin_step(begin("b")).await.unwrap();
    let failed = recorder.commit_step(&begun, Commit::with(keeps("gone"))).await.unwrap();
    let before = rig.count().await;

    for reference in [at(1), begun.since().clone(), bare.reference()] {
        let error = recorder.rollback_to_checkpoint::<Value>(&reference).await.unwrap_err();
        assert!(matches!(error, Error::NoEvidence(_)), "{error}");
    }
    let error = recorder.rollback_to_checkpoint::<Value>(&failed.reference()).await.unwrap_err();
    assert!(matches!(error, Error::NotVerified { .. }), "{error}");
    assert_eq!(rig.count().await, before);
}

#[tokio::test]
async fn a_state_that_this_program_cannot_read_is_not_gone_back_to() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let a = step(&rig, &recorder, "a", 1).await;
    let before = rig.count().await;

    let error = recorder.rollback_to_checkpoint::<Vec<u8>>(&a.reference()).await.unwrap_err();

    assert!(matches!(error, Error::Read { .. }), "{error}");
    assert_eq!(rig.count().await, before);
}

#[tokio::test]
async fn a_state_that_retention_dropped_is_not_gone_back_to() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let a = step(&rig, &recorder, "a", 1).await;
    step(&rig, &recorder, "b", 2).await;
    step(&rig, &recorder, "c", 3).await;
    recorder.close().await.unwrap();
    let holder = waypost_testing::records::holder("trimmer");
    let lease = rig.store.acquire(&run(), &ScopePath::main(), &holder).await.unwrap();
    rig.store.trim(&lease, 2, TrimMode::Apply).await.unwrap();
    rig.store.release(lease, None).await.unwrap();
    let recorder = rig.open().await;
    let before = rig.count().await;

    let error = recorder.rollback_to_checkpoint::<Value>(&a.reference()).await.unwrap_err();

    assert!(matches!(error, Error::NoState(_)), "{error}");
    assert_eq!(rig.count().await, before);
    rig.remove("b.txt");
    rig.remove("c.txt");
    let search = recorder.last_verified_checkpoint(None).await.unwrap();
    assert_eq!(search.checkpoint, None, "what has no state is no place to go back to");
}

#[tokio::test]
async fn undone_work_is_no_candidate_but_a_rollback_target() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let a = step(&rig, &recorder, "a", 1).await;
    let b = step(&rig, &recorder, "b", 2).await;
    let _: Value = recorder.rollback_to_checkpoint(&a.reference()).await.unwrap();

    let last = recorder.last_verified_checkpoint(None).await.unwrap().checkpoint.unwrap();
    let verified = recorder.verify_checkpoint(&b.reference()).await.unwrap();
    let forth: Value = recorder.rollback_to_checkpoint(&b.reference()).await.unwrap();

    assert_eq!(last.reference(), a.reference());
    assert_eq!(verified.verdict(), Verdict::Ok);
    assert_eq!(forth, json!({ "n": 2 }));
    let last = recorder.last_verified_checkpoint(None).await.unwrap().checkpoint.unwrap();
    assert_eq!(last.reference(), b.reference());
}

#[tokio::test]
async fn steps_under_way_are_undone_with_the_rest() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let a = step(&rig, &recorder, "a", 1).await;
    let begun = recorder.begin_step(begin("b")).await.unwrap();
    let _: Value = recorder.rollback_to_checkpoint(&a.reference()).await.unwrap();
    let before = rig.count().await;

    let error = recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap_err();

    assert!(matches!(error, Error::NotUnderWay { .. }), "{error}");
    assert_eq!(rig.count().await, before);
    let again = recorder.begin_step(begin("b")).await.unwrap();
    assert_ne!(again.idempotency_key(), begun.idempotency_key(), "a redo is wanted");
    recorder.finish().await.unwrap_err();
}

#[tokio::test]
async fn what_was_under_way_at_the_target_is_to_be_begun_again() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let long = recorder.begin_step(begin("long")).await.unwrap();
    let a = step(&rig, &recorder, "a", 1).await;
    recorder.commit_step(&long, Commit::without_evidence()).await.unwrap();

    let _: Value = recorder.rollback_to_checkpoint(&a.reference()).await.unwrap();
    let recorder = rig.crash(recorder).await;

    assert_eq!(cut(&recorder).await, [""; 0], "it was undone, not cut");
    let error = recorder.finish().await.unwrap_err();
    assert!(matches!(error, Error::Unfinished { .. }), "{error}");
    let again = recorder.begin_step(begin("long")).await.unwrap();
    assert_eq!((again.at().attempt, again.at().epoch), (1, 1));
    recorder.commit_step(&again, Commit::without_evidence()).await.unwrap();
    recorder.finish().await.unwrap();
}

#[tokio::test]
async fn an_id_is_free_again_where_a_rollback_undid_its_commit() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let commit = |n: u64| Commit::without_evidence().external(format!("id-{n}")).state(&json!({ "n": n }));
    let a = step(&rig, &recorder, "a", 1).await;
    let kept = recorder.begin_step(begin("kept")).await.unwrap();
    let kept_at = recorder.commit_step(&kept, commit(7)).await.unwrap();
    let b = step(&rig, &recorder, "b", 2).await;
    let undone = recorder.begin_step(begin("undone")).await.unwrap();
    recorder.commit_step(&undone, commit(9)).await.unwrap();

    let _: Value = recorder.rollback_to_checkpoint(&b.reference()).await.unwrap();
    let again = recorder.begin_step(begin("undone")).await.unwrap();
    let other = Commit::without_evidence().external("id-9").state(&json!({ "n": "other" }));
    let done = recorder.commit_step(&again, other).await.unwrap();
    let answered = recorder.commit_step(&kept, commit(7)).await.unwrap();

    assert_eq!(done.reference(), recorder.newest().await.unwrap(), "it was written");
    assert_eq!(answered.reference(), kept_at.reference(), "what was not undone keeps its id");
    assert!(a.seq() < kept_at.seq());
}

#[tokio::test]
async fn a_rollback_survives_a_second_crash_and_a_second_rollback() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let a = step(&rig, &recorder, "a", 1).await;
    step(&rig, &recorder, "b", 2).await;
    let _: Value = recorder.rollback_to_checkpoint(&a.reference()).await.unwrap();

    let recorder = rig.crash(recorder).await;
    let begun = recorder.begin_step(begin("c")).await.unwrap();
    assert_eq!(state(&recorder, begun.since()).await, json!({ "n": 1 }), "it goes on from there");
    assert_eq!(begun.at().epoch, 1);
    let recorder = rig.crash(recorder).await;
    let _: Value = recorder.rollback_to_checkpoint(&a.reference()).await.unwrap();
    let recorder = rig.crash(recorder).await;

    let begun = recorder.begin_step(begin("b")).await.unwrap();
    assert_eq!((begun.at().epoch, begun.at().iteration.as_slice()), (2, &[1][..]));
    let last = recorder.last_verified_checkpoint(None).await.unwrap().checkpoint.unwrap();
    assert_eq!(last.reference(), a.reference());
}

#[tokio::test]
async fn damage_at_the_end_is_passed_over_and_set_aside() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let a = step(&rig, &recorder, "a", 1).await;
    step(&rig, &recorder, "b", 2).await;
    drop(recorder);
    rig.store.drop_holder(&run());
    rig.store.damage(&run(), &ScopePath::main(), 5, Part::Body);

    let recorder = rig.open().await;

    assert_eq!(recorder.repaired().len(), 1);
    assert_eq!(cut(&recorder).await, ["b(1)"], "its end is lost, its start is not");
    let _: Value = recorder.rollback_to_checkpoint(&a.reference()).await.unwrap();
    step(&rig, &recorder, "b", 3).await;
    let recorder = rig.crash(recorder).await;
    assert_eq!(recorder.repaired(), []);
    let last = recorder.last_verified_checkpoint(None).await.unwrap().checkpoint.unwrap();
    assert_eq!(last.state::<Value>().unwrap(), json!({ "n": 3 }));
}

#[tokio::test]
async fn nothing_sound_left_is_said_and_nothing_is_begun_anew() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    drop(recorder);
    rig.store.drop_holder(&run());
    rig.store.damage(&run(), &ScopePath::main(), 1, Part::Header);

    let record: RunRecord = run_record(run(), "loop");
    let error = Recorder::open_or_create(rig.shared(), record, &json!({}), rig.options()).await.unwrap_err();

    assert!(matches!(error, Error::Store(StoreError::Damaged { .. })), "{error}");
    let holder = rig.store.run(&run()).await.unwrap().summary.holder;
    assert_eq!(holder, None, "the lease was given back");
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_an_older_keeps_its_number() {
    let rig = Rig::new();
    let recorder = rig.create_with(rig.options().with_schema(2)).await;
    let a = step(&rig, &recorder, "a", 1).await;
    recorder.close().await.unwrap();

    let older: Options = rig.options().with_schema(1);
    let error = Recorder::open(rig.shared(), &run(), older).await.unwrap_err();
    let newer = Recorder::open(rig.shared(), &run(), rig.options().with_schema(3)).await.unwrap();
    let begun = newer.begin_step(begin("b")).await.unwrap();
    let given = newer.commit_step(&begun, Commit::without_evidence().state(&json!({}))).await.unwrap();

    let Error::Store(StoreError::Version { found, supported, .. }) = error else { panic!("{error}") };
    assert_eq!((found, supported), (2, 1));
    let schema = async |at: CheckpointRef| newer.get(&at).await.unwrap().unwrap().schema();
    assert_eq!(schema(a.reference()).await, Some(2));
    assert_eq!(schema(begun.since().clone()).await, Some(2), "what is carried on is not relabelled");
    assert_eq!(schema(given.reference()).await, Some(3));
}

#[tokio::test]
async fn an_older_state_is_migrated_when_it_is_gone_back_to() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let a = step(&rig, &recorder, "a", 1).await;
    recorder.close().await.unwrap();
    let change = |state: &mut Value| {
        state["unit"] = json!("m");
        Ok(())
    };
    let migrations = waypost::schema::Migrations::builder().add(0, change).build().unwrap();
    let options = rig.options().with_migrations(migrations);
    let recorder = Recorder::open(rig.shared(), &run(), options).await.unwrap();

    let state: Value = recorder.rollback_to_checkpoint(&a.reference()).await.unwrap();
    let begun = recorder.begin_step(begin("b").state(&state)).await.unwrap();

    assert_eq!(state, json!({ "n": 1, "unit": "m" }));
    let schema = async |at: &CheckpointRef| recorder.get(at).await.unwrap().unwrap().schema();
    assert_eq!(schema(&at(4)).await, Some(0), "the state that was restored is as it was written");
    assert_eq!(schema(begun.since()).await, Some(1));
}

#[tokio::test]
async fn paths_are_resolved_against_the_run_and_not_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> =
        Arc::new(waypost::file::FileStore::open(folder.path().join("store")).unwrap());
    let mut record = run_record(run(), "loop");
    record.base = Some("../work".to_owned());
    fs::create_dir(folder.path().join("work")).unwrap();
    fs::write(folder.path().join("work/out"), "x").unwrap();
    let recorder = Recorder::create(store.clone(), record, &json!({}), Options::new()).await.unwrap();
    let begun = recorder.begin_step(begin("a")).await.unwrap();

    let claims = [Claim::file("out"), Claim::file("Cargo.toml")];
    let done = recorder.commit_step(&begun, Commit::with(Pack::all(claims))).await.unwrap();

    let verdicts: Vec<_> = done.evidence().unwrap().claims.iter().map(|claim| claim.verdict).collect();
    assert_eq!(verdicts, [Verdict::Ok, Verdict::Failed]);
    let mut absolute = run_record(run_id("r2"), "loop");
    absolute.base = Some(folder.path().display().to_string());
    let error = Recorder::create(store, absolute, &json!({}), Options::new()).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}
