//! Acceptance of evidence by a person, and the views of a run.

use waypost::record::STATE_BYTES_WARN;

use super::*;

#[tokio::test]
async fn accepted_evidence_is_believed_and_nothing_runs_again() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.run(&graph).await;
    desk.said();
    desk.write("a.txt", "mended by hand");

    let accepted = desk.engine().accept(&graph, "r", "a").await.unwrap();

    assert_eq!(accepted, 1);
    let outcome = desk.resume(&graph).await;
    assert!(outcome.idle);
    assert_eq!(desk.said(), Vec::<String>::new());
    assert_eq!(desk.read("a.txt"), "mended by hand");
    let records = desk.records().await;
    let newest = records.last().unwrap().header();
    assert_eq!((newest.reason, newest.about), (Reason::Accept, Some(2)));
    assert_eq!(desk.engine().accept(&graph, "r", "a").await.unwrap(), 0, "it holds");

    // The accepted content counts from then on.
    desk.write("a.txt", "mended again");
    desk.resume(&graph).await;
    assert_eq!(desk.said(), ["a", "b", "c"], "the file is not what `b` was done with");
}

#[tokio::test]
async fn evidence_that_was_not_pinned_is_not_accepted() {
    let desk = Desk::new();
    let graph = Graph::<Work>::builder("asserts")
        .step("a", desk.writes("a.txt", "of a"))
        .evidence(|_| Pack::all([Claim::file("a.txt")]))
        .build()
        .unwrap();
    desk.run(&graph).await;
    desk.remove("a.txt");

    let refused = desk.engine().accept(&graph, "r", "a").await.unwrap_err();

    let told = refused.to_string();
    assert!(
        told.starts_with("cannot accept the evidence of step `a` of run r: artifact_exists a.txt"),
        "{told}"
    );
    assert!(desk.resume(&graph).await.status == RunStatus::Completed, "the lease was given back");
}

#[tokio::test]
async fn evidence_of_a_scope_and_of_a_careful_step_is_accepted() {
    let desk = Desk::new();
    let graph = Graph::<Work>::builder("fork")
        .step("plan", desk.notes())
        .step("a", desk.writes("a.txt", "of a"))
        .not_idempotent()
        .evidence(|_| Pack::all([Claim::unchanged("a.txt")]))
        .step("b", desk.notes())
        .fork("plan", ["a", "b"])
        .join("merge", |work: Work, _: Branches<Work>, _: Context| async move { Ok::<_, StepError>(work) })
        .build()
        .unwrap();
    desk.run(&graph).await;
    desk.said();
    desk.write("a.txt", "mended by hand");
    let refused = desk.engine().resume(&graph, "r").await;
    assert!(matches!(refused, Err(RunError::InDoubt { .. })), "{refused:?}");

    assert_eq!(desk.engine().accept(&graph, "r", "a").await.unwrap(), 1);

    assert!(desk.resume(&graph).await.idle);
}

#[tokio::test]
async fn evidence_of_an_earlier_pass_is_accepted() {
    let desk = Desk::new();
    let graph = resume_checks::pages(&desk);
    desk.run(&graph).await;
    desk.said();
    desk.write("page-1.txt", "mended by hand");

    assert_eq!(desk.engine().accept(&graph, "r", "page").await.unwrap(), 1);

    assert!(desk.resume(&graph).await.idle);
    desk.write("page-1.txt", "mended again");
    desk.resume(&graph).await;
    assert_eq!(desk.said()[0], "page-1.txt");
}

#[tokio::test]
async fn history_lists_what_counts_and_what_was_undone_is_not_in_it() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.run(&graph).await;
    let engine = desk.engine();
    engine.resume(&graph, "r").from_checkpoint(2).without_running().await.unwrap();

    let history = engine.history("r").await.unwrap();

    let told: Vec<String> = history.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["r@1 started a", "r@2 completed a", "r@5 restored b"]);
    assert_eq!(history[1].evidence().unwrap().verdict(), Verdict::Ok);
    assert_eq!(history[1].state(&engine, &graph).await.unwrap().done, ["a"]);
    assert!(matches!(engine.history("nobody").await, Err(RunError::Store(_))));
}

#[tokio::test]
async fn a_large_state_is_warned_of_once_and_by_step() {
    let desk = Desk::new();
    let grows =
        |work: Work, text: usize| async move { Ok::<_, StepError>(Work { text: "x".repeat(text), ..work }) };
    let graph = Graph::<Work>::builder("large")
        .step("small", move |work, _| grows(work, 10))
        .step("large", move |work, _| grows(work, STATE_BYTES_WARN))
        .step("as-large", move |work, _| grows(work, STATE_BYTES_WARN))
        .edge("small", "large")
        .edge("large", "as-large")
        .build()
        .unwrap();

    desk.run(&graph).await;

    let records = desk.records().await;
    let warned: Vec<_> = records
        .iter()
        .map(Record::header)
        .flat_map(|header| &header.notes)
        .filter_map(|note| match note {
            waypost::record::Note::Warning(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(warned.len(), 1);
    assert!(warned[0].starts_with("the state of scope `main` at step `large` has 10"), "{}", warned[0]);
}

#[tokio::test]
async fn a_dropped_run_in_memory_releases_its_lease() {
    let desk = Desk::new();
    let hangs = desk.clone();
    let graph = Graph::<Work>::builder("hangs")
        .step("a", move |work: Work, context: Context| {
            let hangs = hangs.clone();
            async move {
                hangs.say("a");
                if context.attempt() == 1 {
                    std::future::pending::<()>().await;
                }
                Ok::<_, StepError>(work)
            }
        })
        .build()
        .unwrap();
    let engine = desk.engine();
    tokio::select! {
        ended = engine.run(&graph, "r", Work::default()).into_future() => panic!("it ended: {ended:?}"),
        () = async { while desk.said.lock().unwrap().is_empty() { tokio::task::yield_now().await; } } => {}
    }
    let entry = desk.store.run(&RunId::new("r").unwrap()).await.unwrap();
    assert_eq!(entry.summary.status, RunStatus::Interrupted);

    let outcome = desk.resume(&graph).await;

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["a", "a"]);
}

#[tokio::test]
async fn what_was_accepted_is_believed_also_where_the_run_goes_back() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.run(&graph).await;
    desk.said();
    desk.write("a.txt", "mended by hand");
    desk.engine().accept(&graph, "r", "a").await.unwrap();

    let outcome = desk.engine().resume(&graph, "r").from_step("b").await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["b", "c"]);
    assert_eq!(desk.read("a.txt"), "mended by hand");
}
