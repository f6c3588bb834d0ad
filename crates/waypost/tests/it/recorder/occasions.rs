//! Claims due only on some occasions do not count on others, and no verdict holds by an unchecked claim.

use waypost::record::{Claim, Occasion, Pack, Severity, Terms, Verdict};
use waypost::recorder::{Checkpoint, Commit, Error};

use super::*;

fn only(at: Occasion) -> Terms {
    Terms { at: [at].into(), ..Terms::default() }
}

fn sensitive() -> Terms {
    Terms { sensitive: true, ..Terms::default() }
}

async fn committed(rig: &Rig, recorder: &Recorder, claims: impl IntoIterator<Item = Claim>) -> Checkpoint {
    rig.write("a", "a");
    rig.write("b", "b");
    let begun = recorder.begin_step(begin("a")).await.unwrap();
    let commit = Commit::with(Pack::all(claims)).state(&json!({ "n": 1 }));
    recorder.commit_step(&begun, commit).await.unwrap()
}

/// Bug: a checkpoint with a claim checked only at the commit could never be verified or restored. Cause: a claim
/// that was not due counted as unknown. Fix: on each occasion only the due claims count.
#[tokio::test]
async fn what_is_not_due_does_not_count_against_a_checkpoint() {
    for terms in [sensitive(), only(Occasion::Commit), only(Occasion::Verify), only(Occasion::Resume)] {
        let rig = Rig::new();
        let recorder = rig.create().await;
        let claims = [Claim::file("a"), Claim::file("b").on_terms(terms.clone())];

        let done = committed(&rig, &recorder, claims).await;
        let verified = recorder.verify_checkpoint(&done.reference()).await.unwrap();
        let last = recorder.last_verified_checkpoint(None).await.unwrap().checkpoint.unwrap();
        let state: Value = recorder.rollback_to_checkpoint(&done.reference()).await.unwrap();

        for checkpoint in [&done, &verified, &last] {
            assert_eq!(checkpoint.verdict(), Verdict::Ok, "{terms:?}");
            assert!(checkpoint.summary().satisfied, "{terms:?}");
        }
        assert_eq!(state, json!({ "n": 1 }));
        rig.remove("a");
        let error = recorder.rollback_to_checkpoint::<Value>(&done.reference()).await.unwrap_err();
        let told = error.to_string();
        assert!(matches!(error, Error::NotVerified { verdict: Verdict::Failed, .. }), "{told}");
        assert!(told.contains("artifact_exists a") && !told.contains("artifact_exists b"), "{told}");
    }
}

#[tokio::test]
async fn what_is_due_counts() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let claims = [Claim::file("a").on_terms(only(Occasion::Resume)), Claim::file("b")];
    let done = committed(&rig, &recorder, claims).await;

    rig.remove("a");

    assert_eq!(recorder.verify_checkpoint(&done.reference()).await.unwrap().verdict(), Verdict::Ok);
    let error = recorder.rollback_to_checkpoint::<Value>(&done.reference()).await.unwrap_err();
    assert!(matches!(error, Error::NotVerified { verdict: Verdict::Failed, .. }), "{error}");
}

#[tokio::test]
async fn a_checkpoint_of_which_nothing_was_checked_is_never_ok() {
    for terms in [sensitive(), only(Occasion::Commit)] {
        let rig = Rig::new();
        let recorder = rig.create().await;
        let warned = Claim::file("b").on_terms(Terms { severity: Severity::Warn, ..Terms::default() });
        let done = committed(&rig, &recorder, [Claim::file("a").on_terms(terms), warned]).await;
        assert_eq!(done.verdict(), Verdict::Ok, "it was checked as it was committed");

        let verified = recorder.verify_checkpoint(&done.reference()).await.unwrap();
        let last = recorder.last_verified_checkpoint(None).await.unwrap();
        let error = recorder.rollback_to_checkpoint::<Value>(&done.reference()).await.unwrap_err();

        assert_eq!((verified.verdict(), verified.summary().satisfied), (Verdict::Skipped, false));
        assert_eq!((last.checkpoint, last.passed_over.len()), (None, 1));
        assert!(matches!(error, Error::NotVerified { verdict: Verdict::Skipped, .. }), "{error}");
        assert!(error.to_string().contains("not checked at this point"), "{error}");
    }
}

#[tokio::test]
async fn so_many_must_hold_of_those_that_are_due() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    rig.write("a", "a");
    let claims =
        [Claim::file("a"), Claim::file("gone"), Claim::file("later").on_terms(only(Occasion::Verify))];
    let begun = recorder.begin_step(begin("a")).await.unwrap();

    let commit = Commit::with(Pack::at_least(2, claims).unwrap());
    let failed = recorder.commit_step(&begun, commit).await.unwrap();

    assert_eq!((failed.phase().name(), failed.verdict()), ("failed", Verdict::Failed));
}

/// Bug: an old checkpoint failed because a later step expected another exit code of the same command. Cause: the
/// later claim replaced the older one and was checked against the code of the older step. Fix: the exit code
/// belongs to its step, and no later step changes it.
#[tokio::test]
async fn an_exit_code_is_judged_by_what_its_own_step_expected() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let exits = |code: i32| Commit::with(Pack::all([Claim::exited("make", code)])).exit_code(code);
    let begun = recorder.begin_step(begin("a")).await.unwrap();
    let older = recorder.commit_step(&begun, exits(0)).await.unwrap();
    let begun = recorder.begin_step(begin("b")).await.unwrap();
    recorder.commit_step(&begun, exits(3)).await.unwrap();

    let verified = recorder.verify_checkpoint(&older.reference()).await.unwrap();

    assert_eq!(verified.verdict(), Verdict::Ok, "{:?}", verified.evidence());
}
