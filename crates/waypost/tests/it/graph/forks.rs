//! Forks, items and nested graphs.

use super::*;

#[tokio::test]
async fn a_fork_runs_branches_and_the_join_sees_each_state() {
    let rig = Rig::new();

    let outcome = rig.engine.run(&fork(&rig.trace, false), "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(outcome.state.done, ["plan", "a=plan+a+a2", "b=plan+b", "after"]);
    insta::assert_snapshot!(rig.records().await);
}

#[tokio::test]
async fn after_a_crash_in_a_fork_only_unfinished_branches_run() {
    let rig = Rig::new();
    let graph = fork(&rig.trace, false);
    rig.crash_at(rig.engine.run(&graph, "r", Notes::default()).into_future(), "a2").await;
    assert_eq!(rig.trace.text(), "plan a b a2");
    rig.trace.clear();
    rig.crash_at(rig.engine.resume(&graph, "r").into_future(), "a2").await;
    rig.trace.clear();

    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(rig.trace.text(), "a2 merge after");
    assert_eq!(outcome.state.done, ["plan", "a=plan+a+a2", "b=plan+b", "after"]);
}

/// Builds a fork whose branch `a` fails in its second step while `broken` is set, and whose branch `b` never
/// ends.
fn failing_fork(trace: &Trace, broken: &Arc<Mutex<bool>>, collect: bool) -> Graph<Notes> {
    let (fails, hangs, joins) = (trace.clone(), trace.clone(), trace.clone());
    let (broken, is_broken) = (Arc::clone(broken), Arc::clone(broken));
    let builder = Graph::builder("fork")
        .step("plan", note(trace))
        .step("a", move |state: Notes, _| {
            let (trace, broken) = (fails.clone(), *broken.lock().unwrap());
            async move {
                trace.say("a");
                if broken { Err(io::Error::other("a is broken")) } else { Ok(state.and("a")) }
            }
        })
        .step("b", move |state: Notes, _| {
            let (trace, hang) = (hangs.clone(), *is_broken.lock().unwrap() && !collect);
            async move {
                trace.say("b");
                if hang {
                    pending::<()>().await;
                }
                Ok::<_, StepError>(state.and("b"))
            }
        });
    let fork = builder.fork("plan", ["a", "b"]);
    let fork = if collect { fork.collect() } else { fork };
    fork.join("merge", move |mut state: Notes, branches: Branches<Notes>, _| {
        joins.say("merge");
        for branch in branches {
            let told =
                branch.result.map_or_else(|failure| failure.error.join(": "), |state| state.done.join("+"));
            state.done.push(format!("{}={told}", branch.key));
        }
        async move { Ok::<_, StepError>(state) }
    })
    .build()
    .unwrap()
}

#[tokio::test]
async fn a_failed_branch_cancels_siblings_and_a_resume_runs_both() {
    let rig = Rig::new();
    let broken = Arc::new(Mutex::new(true));
    let graph = failing_fork(&rig.trace, &broken, false);

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Failed);
    assert_eq!(outcome.failed.as_ref().unwrap().1.error, ["a is broken"]);
    insta::assert_snapshot!(rig.records().await);
    *broken.lock().unwrap() = false;
    rig.trace.clear();
    let outcome = rig.engine.resume(&graph, "r").await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(rig.trace.text(), "a b merge");
    assert_eq!(outcome.state.done, ["plan", "a=plan+a", "b=plan+b"]);
}

#[tokio::test]
async fn a_collecting_fork_goes_on_and_the_join_sees_the_error() {
    let rig = Rig::new();
    let broken = Arc::new(Mutex::new(true));
    let graph = failing_fork(&rig.trace, &broken, true);

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::CompletedWithFailures);
    assert_eq!(outcome.state.done, ["plan", "a=a is broken", "b=plan+b"]);
}

#[tokio::test]
async fn each_item_has_a_scope_and_the_join_reads_them_in_order() {
    let rig = Rig::new();

    let outcome = rig.engine.run(&each(&rig.trace, 20, 3), "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::CompletedWithFailures);
    assert_eq!(outcome.state.count, (0..20).map(|n| n % 7).sum::<u32>() - 13 % 7);
    assert_eq!(outcome.state.done, (0..20).map(|n| format!("n{n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn after_a_crash_no_finished_item_is_worked_on_again() {
    let rig = Rig::new();
    let graph = each(&rig.trace, 2_500, 4);
    rig.crash_at(rig.engine.run(&graph, "r", Notes::default()).into_future(), "n1500").await;
    let before = rig.trace.said.lock().unwrap().clone();

    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(outcome.state.done.len(), 2_500);
    let all = rig.trace.said.lock().unwrap().clone();
    let again: Vec<_> = all[before.len()..].iter().filter(|said| before.contains(said)).collect();
    assert!(again.len() <= 4 && again.contains(&&"n1500".to_owned()), "only what was cut: {again:?}");
    assert_eq!(all.len() - again.len(), 2_500, "nothing is left out");
}

#[tokio::test]
async fn no_items_join_at_once() {
    let rig = Rig::new();

    let outcome = rig.engine.run(&each(&rig.trace, 0, 3), "r", Notes::default()).await.unwrap();

    assert_eq!((outcome.status, outcome.state.count), (RunStatus::Completed, 0));
}

#[tokio::test]
async fn two_items_of_one_key_are_refused_before_any_work() {
    let rig = Rig::new();
    let graph = Graph::builder("twice")
        .each(
            "e",
            |_: &Notes| vec![1, 2],
            |_| "same".to_owned(),
            |n: u32, _| async move { Ok::<_, StepError>(n) },
        )
        .join(|state: Notes, _: ItemEnds<u32, u32>, _| async move { Ok::<_, StepError>(state) })
        .build()
        .unwrap();

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Failed);
    assert!(outcome.failed.unwrap().1.error[0].contains("`same`"));
}

#[tokio::test]
async fn a_graph_inside_a_graph_has_a_state_of_its_own() {
    let rig = Rig::new();
    let inner = Graph::<u32>::builder("inner")
        .step("double", |n: u32, _| async move { Ok::<_, StepError>(n * 2) })
        .build()
        .unwrap();
    let graph = Graph::builder("outer")
        .step("a", note(&rig.trace))
        .subgraph("sub", &inner, |_: &Notes| 21, |state, n| state.count = n)
        .edge("a", "sub")
        .build()
        .unwrap();

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!((outcome.state.count, outcome.status), (42, RunStatus::Completed));
}

#[tokio::test]
async fn a_restarted_fan_out_runs_each_item_once_after_a_crash() {
    // Given a fan-out of two pages that crashed in its second page, began again after a rollback, and crashed
    // again.
    let rig = Rig::new();
    let graph = each(&rig.trace, 1_500, 4);
    rig.crash_at(rig.engine.run(&graph, "r", Notes::default()).into_future(), "n1005").await;
    rig.trace.clear();
    let back = rig.engine.resume(&graph, "r").from_checkpoint(1);
    rig.crash_at(back.into_future(), "n3").await;
    let before = rig.trace.said.lock().unwrap().clone();

    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    let all = rig.trace.said.lock().unwrap().clone();
    let again = all[before.len()..].iter().filter(|said| before.contains(said)).count();
    assert_eq!(outcome.state.done.len(), 1_500);
    assert!(again <= 4, "only what was cut: {again}");
    assert_eq!(all.len() - again, 1_500, "each item is worked on in the new pass");
}
