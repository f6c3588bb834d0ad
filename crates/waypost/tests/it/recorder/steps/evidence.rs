//! Steps and their evidence.

use super::*;

#[tokio::test]
async fn a_cut_step_is_settled_only_by_evidence_that_holds() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    recorder.begin_step(begin("publish")).await.unwrap();
    let recorder = rig.crash(recorder).await;
    let begun = recorder.cut().await.unwrap().remove(0);
    let before = rig.count().await;
    let published = || Pack::all([Claim::file("published")]);

    rig.write("pinned", "x");
    let refused = [
        Commit::without_evidence(),
        Commit::with(keeps("pinned")),
        Commit::with(published()),
        Commit::with(published()).auto_verify(false),
    ];
    for commit in refused {
        let error = recorder.commit_step(&begun, commit).await.unwrap_err();
        assert!(matches!(error, Error::Unsettled { .. }), "{error}");
    }
    assert_eq!(rig.count().await, before, "nothing was written");
    rig.write("published", "x");
    let done = recorder.commit_step(&begun, Commit::with(published())).await.unwrap();

    assert!(matches!(done.phase(), Phase::Completed(_)));
    assert_eq!(cut(&recorder).await, [""; 0]);
}

#[tokio::test]
async fn a_step_whose_evidence_fails_has_failed() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    step(&rig, &recorder, "a", 1).await;
    let begun = recorder.begin_step(begin("b")).await.unwrap();

    let commit = Commit::with(Pack::all([Claim::file("gone").named("the answer")])).state(&json!({ "n": 2 }));
    let failed = recorder.commit_step(&begun, commit).await.unwrap();

    assert_eq!(failed.verdict(), Verdict::Failed);
    let Phase::Failed(failure) = failed.phase() else { panic!("{failed:?}") };
    assert_eq!(failure.kind, FailureKind::Evidence);
    assert_eq!(failure.error, ["the evidence of step `b` is failed: the answer (the file does not exist)"]);
    assert_eq!(failed.state::<Value>().unwrap(), json!({ "n": 2 }), "the checkpoint has what it was given");
    let again = recorder.begin_step(begin("b")).await.unwrap();
    assert_eq!(again.at().attempt, 2);
    assert_eq!(state(&recorder, again.since()).await, json!({ "n": 1 }), "what failed is not gone on with");
}

#[tokio::test]
async fn what_failed_is_not_gone_on_with_after_a_crash_either() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    step(&rig, &recorder, "a", 1).await;
    for n in [2, 3] {
        let begun = recorder.begin_step(begin("b")).await.unwrap();
        let commit = Commit::with(Pack::all([Claim::file("gone")])).state(&json!({ "n": n }));
        recorder.commit_step(&begun, commit).await.unwrap();
    }

    let recorder = rig.crash(recorder).await;
    let begun = recorder.begin_step(begin("c")).await.unwrap();

    assert_eq!(state(&recorder, begun.since()).await, json!({ "n": 1 }));
}

#[tokio::test]
async fn an_empty_pack_never_commits_as_ok() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("a")).await.unwrap();

    for auto_verify in [true, false] {
        let commit = Commit::with(Pack::all([])).auto_verify(auto_verify);
        let error = recorder.commit_step(&begun, commit).await.unwrap_err();
        assert!(matches!(error, Error::Pack(InvalidPack::Empty)), "{error}");
    }
}

#[tokio::test]
async fn an_invalid_rule_is_refused_before_any_write() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let begun = recorder.begin_step(begin("a")).await.unwrap();
    let before = rig.count().await;

    for count in [0, 2] {
        let pack = Pack { at_least: Some(count), claims: vec![Claim::exists("x")] };
        let error = recorder.commit_step(&begun, Commit::with(pack)).await.unwrap_err();
        assert!(matches!(error, Error::Pack(InvalidPack::AtLeast { .. })), "{error}");
    }

    assert_eq!(rig.count().await, before);
    recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap();
}

#[tokio::test]
async fn part_of_the_evidence_is_enough_where_the_rule_says_so() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    rig.write("f1", "1");
    rig.write("f2", "2");
    let files = || ["f1", "f2", "f3"].map(Claim::file);

    let mut summaries = Vec::new();
    for pack in [Pack::at_least(2, files()).unwrap(), Pack::any(files()), Pack::all(files())] {
        let begun = recorder.begin_step(begin("a")).await.unwrap();
        let done = recorder.commit_step(&begun, Commit::with(pack)).await.unwrap();
        summaries.push((done.summary().ok, done.summary().total, done.summary().satisfied));
    }

    assert_eq!(summaries, [(2, 3, true), (2, 3, true), (2, 3, false)]);
}

#[tokio::test]
async fn an_exit_code_is_recorded_and_compared() {
    let rig = Rig::new();
    let recorder = rig.create().await;
    let pack = || Pack::all([Claim::exited("touch proof-that-it-ran", 0)]);

    let mut verdicts = Vec::new();
    for commit in [Commit::with(pack()).exit_code(0), Commit::with(pack()).exit_code(1), Commit::with(pack())]
    {
        let begun = recorder.begin_step(begin("make")).await.unwrap();
        let done = recorder.commit_step(&begun, commit).await.unwrap();
        let again = recorder.verify_checkpoint(&done.reference()).await.unwrap();
        verdicts.push((done.verdict(), again.verdict()));
    }

    use Verdict::{Failed, Ok};
    assert_eq!(verdicts, [(Ok, Ok), (Failed, Failed), (Failed, Failed)]);
    assert!(!rig.path("proof-that-it-ran").exists(), "a recorded command is never run");
}

#[tokio::test]
async fn without_auto_verify_a_commit_is_skipped_until_verified() {
    let rig = Rig::new();
    let recorder = rig.create_with(rig.options().auto_verify(false)).await;
    rig.write("out", "x");
    let begun = recorder.begin_step(begin("a")).await.unwrap();

    let done = recorder.commit_step(&begun, Commit::with(keeps("out"))).await.unwrap();
    let verified = recorder.verify_checkpoint(&done.reference()).await.unwrap();

    assert_eq!((done.verdict(), verified.verdict()), (Verdict::Skipped, Verdict::Ok));
    assert!(matches!(done.phase(), Phase::Completed(_)));
}
