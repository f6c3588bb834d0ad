//! Decisions of a person: damage, changed graphs, steps in doubt.

use super::*;

#[tokio::test]
async fn damage_is_seen() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a; c: b", 1).does("c", 1, Does::Hang);
    rig.crash(&toy, false, "a b c").await;
    rig.store.damage(&run_id(), &ScopePath::main(), 3, Part::Header);

    let outcome = rig.resume(&toy.healed()).await.unwrap();

    assert_eq!(outcome.repaired.len(), 1);
    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(toy.trace(), "a b c b c", "b's end was in the damaged record");
    let newest = rig.store.newest(&run_id(), &ScopePath::main()).await.unwrap();
    assert_eq!(newest.header().seq, 6, "no seq is given twice");
}

#[tokio::test]
async fn no_silent_fresh_start() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a", 1).does("b", 1, Does::Hang);
    rig.crash(&toy, false, "a b").await;
    rig.store.damage(&run_id(), &ScopePath::main(), 1, Part::Header);
    rig.store.damage(&run_id(), &ScopePath::main(), 2, Part::Header);

    let refused = rig.resume(&toy.again()).await.unwrap_err();
    assert!(matches!(refused, RunError::Store(StoreError::Damaged { older: None, .. })), "{refused}");
    assert_eq!(toy.trace(), "a b");

    let options = ResumeOptions { restart: Some(Default::default()), ..ResumeOptions::default() };
    let outcome = rig.engine.resume_program(&toy.healed(), &run_id(), options).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(toy.trace(), "a b a b");
}

// Bug: a session that moved damage aside and died before its first commit left a gap. The next session saw no
// damage, so its first record was not a repair and was always refused. Fix: the gap itself marks that record as a
// repair.
#[tokio::test]
async fn a_session_that_dies_after_moving_damage_aside_blocks_nothing() {
    for (damaged, restart) in [(vec![3], false), (vec![3], true), (vec![3, 2, 1], true)] {
        let rig = Rig::new();
        let toy = Toy::new("a; b: a; c: b", 1).does("c", 1, Does::Hang);
        rig.crash(&toy, false, "a b c").await;
        let main = ScopePath::main();
        let holder = waypost_testing::records::holder("a session that dies");
        let lease = rig.store.acquire(&run_id(), &main, &holder).await.unwrap();
        for seq in &damaged {
            rig.store.damage(&run_id(), &main, *seq, Part::Header);
            let Err(StoreError::Damaged { damage, .. }) = rig.store.load(&run_id(), &main, *seq).await else {
                panic!("{seq} was just damaged");
            };
            rig.store.quarantine(&lease, &damage).await.unwrap();
        }
        rig.store.drop_holder(&run_id());

        let options = ResumeOptions { restart: restart.then(Default::default), ..ResumeOptions::default() };
        let outcome = rig.engine.resume_program(&toy.healed(), &run_id(), options).await.unwrap();

        assert_eq!(outcome.status, RunStatus::Completed, "{damaged:?}, restart {restart}");
    }
}

#[tokio::test]
async fn a_changed_graph_is_refused_unless_adopted() {
    let rig = Rig::new();
    let toy = Toy::new("a; b: a", 1).does("b", 1, Does::Fail);
    rig.run(&toy).await.unwrap();
    let longer = Toy::new("a; b: a; c: b", 1);
    let adoption = |before: &Toy, after: &Toy| Adoption {
        before: shape(before),
        definition: shape(after).definition(None),
        redo: false,
        kept: Default::default(),
        rerun: Vec::new(),
        within: Default::default(),
        entered: Default::default(),
    };

    let refused = rig.resume(&longer).await.unwrap_err();
    assert!(matches!(refused, RunError::Changed { .. }), "{refused}");
    let inserted = Toy::new("z; a: z; b: a", 1);
    let options = ResumeOptions { adopt: Some(adoption(&toy, &inserted)), ..ResumeOptions::default() };
    let refused = rig.engine.resume_program(&inserted, &run_id(), options).await.unwrap_err();
    assert!(refused.to_string().contains("`a`"), "{refused}");

    let options = ResumeOptions { adopt: Some(adoption(&toy, &longer)), ..ResumeOptions::default() };
    let outcome = rig.engine.resume_program(&longer, &run_id(), options).await.unwrap();

    assert_eq!((outcome.status, longer.trace().as_str()), (RunStatus::Completed, "b c"));
}

#[tokio::test]
async fn an_adopted_change_reruns_changed_and_downstream_steps() {
    // Bug: a run could not resume with a changed file after one of the changed steps had finished. Cause: a
    // position carried over only if all finished steps were unchanged. Fix: changed steps and their downstream
    // steps are reopened in a new epoch; all other steps stay.
    let rig = Rig::new();
    let toy = Toy::new("a; b: a; c: a; d: b c; e: d", 1).does("e", 1, Does::Fail);
    rig.run(&toy).await.unwrap();
    let changed = Toy::new("a; b: a; c: a; d: b c; e: d", 1).meaning("b", "other");
    let adoption = Adoption {
        before: shape(&toy),
        definition: shape(&changed).definition(None),
        redo: true,
        kept: Default::default(),
        rerun: Vec::new(),
        within: Default::default(),
        entered: Default::default(),
    };

    let options = ResumeOptions { adopt: Some(adoption), ..ResumeOptions::default() };
    let outcome = rig.engine.resume_program(&changed, &run_id(), options).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(changed.trace(), "b d e");
    let records = rig.store.scan(&Scan::of(&run_id())).await.unwrap().records;
    let epochs = |step: &str| -> Vec<u32> {
        let about = records.iter().filter(|record| record.header().phase.name() == "completed");
        let about =
            about.filter(|record| record.header().step.as_ref().is_some_and(|id| id.as_str() == step));
        about.map(|record| record.header().at.epoch).collect()
    };
    assert_eq!(["a", "b", "c", "d"].map(epochs), [vec![0], vec![0, 1], vec![0], vec![0, 1]]);
}

#[tokio::test]
async fn a_person_settles_what_is_in_doubt() {
    // Bug: a run with only a step in doubt could only restart. Cause: the engine had no input for the finding of
    // a person. Fix: the engine accepts that decision and records it.
    for (on_doubt, trace, history) in [
        (OnDoubt::Settle(Settle(Box::new(|_, _| Ok(TreatAs::Done)))), "a b c", "completed b(1)"),
        (OnDoubt::Retry, "a b b c", "restored b"),
    ] {
        let rig = Rig::new();
        let toy = Toy::new("a; b!: a; c: b", 1).does("b", 1, Does::Hang);
        rig.crash(&toy, false, "a b").await;
        // A redo starts again at attempt 1, which must not hang again.
        let again = toy.healed();
        assert!(matches!(rig.resume(&again).await.unwrap_err(), RunError::InDoubt { .. }));

        let options = ResumeOptions { on_doubt, ..ResumeOptions::default() };
        let outcome = rig.engine.resume_program(&again, &run_id(), options).await.unwrap();

        assert_eq!((outcome.status, again.trace().as_str()), (RunStatus::Completed, trace));
        assert!(rig.history().await.contains(history), "{}", rig.history().await);
    }
}

#[tokio::test]
async fn what_was_started_as_not_to_be_repeated_stays_in_doubt() {
    // Bug: a step in doubt ran again without a decision after `idempotent: false` was removed from the file.
    // Cause: the new definition decided, and not the definition that started the step. Fix: the graph in force
    // decides.
    let rig = Rig::new();
    let toy = Toy::new("a; b!: a", 1).does("b", 1, Does::Hang);
    rig.crash(&toy, false, "a b").await;
    let harmless = Toy::new("a; b: a", 1);
    let adoption = Adoption {
        before: shape(&toy),
        definition: shape(&harmless).definition(None),
        redo: true,
        kept: Default::default(),
        rerun: Vec::new(),
        within: Default::default(),
        entered: Default::default(),
    };

    let options = ResumeOptions { adopt: Some(adoption), ..ResumeOptions::default() };
    let refused = rig.engine.resume_program(&harmless, &run_id(), options).await.unwrap_err();

    assert!(matches!(refused, RunError::InDoubt { .. }), "{refused}");
    assert_eq!(harmless.trace(), "");
}

#[tokio::test]
async fn a_person_refused_changes_nothing() {
    let rig = Rig::new();
    let toy = Toy::new("a; b!: a; c: b", 1).does("b", 1, Does::Hang);
    rig.crash(&toy, false, "a b").await;
    let before = rig.history().await;

    let refuse = Settle(Box::new(|_: &mut _, _: &Doubtful| Err("step `c` reads it".to_owned())));
    let options = ResumeOptions { on_doubt: OnDoubt::Settle(refuse), ..ResumeOptions::default() };
    let refused = rig.engine.resume_program(&toy.again(), &run_id(), options).await.unwrap_err();

    assert!(matches!(refused, RunError::NotSettled { .. }), "{refused}");
    assert_eq!(rig.history().await, before);
}
