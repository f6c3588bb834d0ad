//! A rollback to a checkpoint whose finished steps have failed evidence.

use super::*;

/// Builds `a` and `b`, which pin their files, and `c`, which notes its idempotency key.
fn keyed(desk: &Desk, keys: &Arc<Mutex<Vec<String>>>) -> Graph<Work> {
    let (last, keys) = (desk.clone(), keys.clone());
    Graph::<Work>::builder("keyed")
        .step("a", desk.writes("a.txt", "of a"))
        .evidence(|_| Pack::all([Claim::unchanged("a.txt")]))
        .step("b", desk.writes("b.txt", "of b"))
        .evidence(|_| Pack::all([Claim::unchanged("b.txt")]))
        .step("c", move |mut work: Work, context: Context| {
            last.say("c");
            keys.lock().unwrap().push(context.idempotency_key());
            work.done.push("c".to_owned());
            async move { Ok::<_, StepError>(work) }
        })
        .edge("a", "b")
        .edge("b", "c")
        .build()
        .unwrap()
}

// Bug: after a rollback to before the last step, the evidence of an earlier step failed. That step ran again, and
// then the last step ran under its old key, like the same attempt. Cause: the run was restored to the target
// record of the rollback, with the epochs of that record. Fix: a rollback has its own record with the new epochs,
// and the run is restored to that record.
#[tokio::test]
async fn a_rerun_after_a_rollback_has_its_own_key() {
    for lost in [&["a.txt"][..], &["b.txt"], &["a.txt", "b.txt"]] {
        for by_name in [true, false] {
            let (desk, keys) = (Desk::new(), Arc::default());
            let graph = keyed(&desk, &keys);
            desk.run(&graph).await;
            desk.said();
            lost.iter().for_each(|file| desk.remove(file));

            let engine = desk.engine();
            let resume = engine.resume(&graph, "r");
            let resume = if by_name { resume.from_step("c") } else { resume.from_checkpoint(3) };
            let outcome = resume.await.unwrap();

            assert_eq!(outcome.status, RunStatus::Completed);
            assert_eq!(outcome.state.done, ["a", "b", "c"]);
            let again = lost.iter().map(|file| file.trim_end_matches(".txt").to_owned());
            assert_eq!(desk.said(), again.chain(["c".to_owned()]).collect::<Vec<_>>());
            let known = keys.lock().unwrap().iter().collect::<std::collections::BTreeSet<_>>().len();
            assert_eq!(known, 2, "a deliberate redo has a key of its own");
            assert!(desk.resume(&graph).await.idle);
        }
    }
}

#[tokio::test]
async fn rollbacks_by_name_and_for_evidence_have_two_bases() {
    let (desk, keys) = (Desk::new(), Arc::default());
    let graph = keyed(&desk, &keys);
    desk.run(&graph).await;
    desk.remove("a.txt");

    desk.engine().resume(&graph, "r").from_step("c").await.unwrap();

    let told = desk.told().await;
    let wanted =
        ["@5 restored c basis 3", "@6 restored a basis 1", "@7 completed a", "@8 restored a basis 5"];
    assert_eq!(told[4..8], wanted, "{told:?}");
}
