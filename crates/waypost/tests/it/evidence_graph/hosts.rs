//! Claims about files that were made on another machine.

use super::*;

/// `a` pins a file, `b` records an exit code, `c` only notes.
fn line(desk: &Desk) -> Graph<Work> {
    let exits = |mut work: Work, context: Context| {
        context.exited(0);
        work.done.push("b".to_owned());
        std::future::ready(Ok::<_, StepError>(work))
    };
    Graph::<Work>::builder("line")
        .step("a", desk.writes("a.txt", "of a"))
        .evidence(|_| Pack::all([Claim::unchanged("a.txt"), Claim::file("a.txt").named("there")]))
        .step("b", exits)
        .evidence(|_| Pack::all([Claim::exited("make", 0)]))
        .step("c", desk.notes())
        .edge("a", "b")
        .edge("b", "c")
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_claim_about_a_file_of_another_host_is_unknown() {
    let desk = Desk::new();
    let graph = line(&desk);
    let on = |host: &str| desk.engine().on_host(host);
    on("here").run(&graph, "r", Work::default()).await.unwrap();
    desk.said();
    let before = desk.told().await;

    let refused = on("there").resume(&graph, "r").await.unwrap_err();

    let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
    assert_eq!(
        (questions.len(), questions[0].step.as_str()),
        (1, "a"),
        "an exit code is the same everywhere"
    );
    let why = "(the claim was recorded on `here`, and this is `there`)";
    let Cause::EvidenceUnknown(claims) = &questions[0].cause else { panic!("{refused}") };
    assert_eq!(claims, &[format!("file_sha256 a.txt {why}"), format!("there {why}")]);
    assert_eq!(desk.told().await, before);
    assert!(on("there").with_shared_base().resume(&graph, "r").await.unwrap().idle);
    assert!(on("here").resume(&graph, "r").await.unwrap().idle);
    assert!(desk.said().is_empty());
}

#[tokio::test]
async fn a_person_reruns_or_accepts_a_step_with_broken_evidence() {
    for accepts in [false, true] {
        let desk = Desk::new();
        let graph = line(&desk);
        let on = |host: &str| desk.engine().on_host(host);
        on("here").run(&graph, "r", Work::default()).await.unwrap();
        desk.said();

        if accepts {
            assert_eq!(on("there").accept(&graph, "r", "a").await.unwrap(), 1);
            assert!(desk.said().is_empty());
        } else {
            on("there").resume(&graph, "r").on_unknown(OnUnknown::RunAgain).await.unwrap();
            assert_eq!(
                desk.said(),
                ["a", "c"],
                "what it made is here now: what follows may have read it there"
            );
        }

        assert!(on("there").resume(&graph, "r").await.unwrap().idle);
        let refused = on("here").resume(&graph, "r").await;
        assert!(matches!(refused, Err(RunError::InDoubt { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn a_fork_on_another_machine_is_asked_about_too() {
    let desk = Desk::new();
    let graph = line(&desk);
    desk.engine().on_host("here").run(&graph, "r", Work::default()).await.unwrap();
    let there = desk.engine().on_host("there");
    let at = "r@2".parse().unwrap();

    let refused = there.fork(&graph, &at, "f").await;

    assert!(matches!(refused, Err(RunError::InDoubt { .. })), "{refused:?}");
    assert_eq!(there.fork(&graph, &at, "f").without_evidence().await.unwrap().status, RunStatus::Completed);
}
