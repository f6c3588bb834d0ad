//! Evidence checks before a resume trusts finished steps.

use super::*;

// Bug: a resume never ended; two steps ran again and again, and each invalidated the evidence of the other.
// Cause: the mark of a rerun was lost once the run had moved forward. Fix: a resume reruns a step once for its
// evidence; if the evidence fails again, the resume asks.
#[tokio::test]
async fn steps_that_undo_their_evidence_do_not_loop() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.run(&graph).await;
    desk.said();
    // From here on, a write of one file also writes the other.
    desk.remove("a.txt");
    std::os::unix::fs::symlink("b.txt", desk.path().join("a.txt")).unwrap();

    let refused = desk.engine().resume(&graph, "r").await.unwrap_err();

    let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
    assert!(matches!(questions[0].cause, Cause::EvidenceUndone { .. }), "{refused}");
    assert_eq!(desk.said(), ["a", "b"], "each once");
    let accepted = desk.engine().accept(&graph, "r", questions[0].step.as_str()).await.unwrap();
    assert_eq!(accepted, 1);
    assert_eq!(
        desk.resume(&graph).await.status,
        RunStatus::Completed,
        "whoever accepts what is there ends it"
    );
    assert!(desk.said().is_empty(), "and has nothing done again for that");
    assert!(desk.resume(&graph).await.idle);
}

#[tokio::test]
async fn a_completed_run_whose_evidence_holds_has_nothing_to_do() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.run(&graph).await;
    desk.said();

    let outcome = desk.resume(&graph).await;

    assert!(outcome.idle);
    assert_eq!(desk.said(), Vec::<String>::new());
    assert_eq!(desk.records().await.len(), 4, "checks_change_nothing");
}

#[tokio::test]
async fn a_step_with_failed_evidence_reruns_and_others_are_reused() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.run(&graph).await;
    desk.said();
    desk.write("a.txt", "of somebody else");

    let outcome = desk.resume(&graph).await;

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["a"], "`b` and `c` gave nothing else");
    assert_eq!(outcome.state.done, ["a", "b", "c"]);
    assert_eq!(desk.read("a.txt"), "of a");
    assert_eq!(desk.told().await[4..], ["@5 restored a basis 1", "@6 completed a", "@7 restored a basis 4"]);
    let records = desk.records().await;
    let cause = records[4].header();
    assert_eq!((cause.reason, cause.about), (Reason::Redo, Some(2)));
    assert_eq!(verdicts(&records[4]), [Verdict::Failed]);
    assert!(desk.resume(&graph).await.idle, "all holds now");
}

#[tokio::test]
async fn a_step_in_the_middle_reruns_with_its_input_state() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.run(&graph).await;
    desk.said();
    desk.remove("b.txt");

    let outcome = desk.resume(&graph).await;

    assert_eq!(desk.said(), ["b"]);
    assert_eq!(outcome.state.done, ["a", "b", "c"]);
    assert_eq!(desk.read("b.txt"), "of b");
}

#[tokio::test]
async fn several_broken_steps_are_done_again_in_their_order() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.run(&graph).await;
    desk.said();
    desk.remove("a.txt");
    desk.remove("b.txt");

    let outcome = desk.resume(&graph).await;

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["a", "b"]);
    assert_eq!(outcome.state.done, ["a", "b", "c"]);
    assert!(desk.resume(&graph).await.idle);
}

/// Builds `a`, which returns the text of the day, `b`, which returns its length, and `c`, which notes.
fn changing(desk: &Desk, day: &Arc<Mutex<&'static str>>) -> Graph<Work> {
    let (first, second, day) = (desk.clone(), desk.clone(), day.clone());
    Graph::<Work>::builder("changing")
        .step("a", move |mut work: Work, _: Context| {
            first.say("a");
            work.text = day.lock().unwrap().to_string();
            first.write("a.txt", "the same");
            async move { Ok::<_, StepError>(work) }
        })
        .evidence(|_| Pack::all([Claim::unchanged("a.txt")]))
        .step("b", move |mut work: Work, _: Context| {
            second.say("b");
            work.done = vec![work.text.len().to_string()];
            work.text.clear();
            async move { Ok::<_, StepError>(work) }
        })
        .step("c", desk.notes())
        .edge("a", "b")
        .edge("b", "c")
        .build()
        .unwrap()
}

#[tokio::test]
async fn what_follows_runs_again_until_a_state_is_what_it_was() {
    let (desk, day) = (Desk::new(), Arc::new(Mutex::new("monday")));
    let graph = changing(&desk, &day);
    desk.run(&graph).await;
    desk.said();
    desk.remove("a.txt");
    *day.lock().unwrap() = "friday"; // Another text, of the same length.

    let outcome = desk.resume(&graph).await;

    assert_eq!(desk.said(), ["a", "b"], "`c` is used again: it was given the same");
    assert_eq!(outcome.state.done, ["6", "c"]);
}

#[tokio::test]
async fn what_follows_runs_again_where_its_input_changed() {
    let (desk, day) = (Desk::new(), Arc::new(Mutex::new("monday")));
    let graph = changing(&desk, &day);
    desk.run(&graph).await;
    desk.said();
    desk.remove("a.txt");
    *day.lock().unwrap() = "wednesday";

    let outcome = desk.resume(&graph).await;

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["a", "b", "c"]);
    assert_eq!(outcome.state.done, ["9", "c"]);
    assert!(desk.resume(&graph).await.idle);
}

#[tokio::test]
async fn what_follows_runs_again_where_something_else_was_pinned() {
    let desk = Desk::new();
    let (stamp, first) = (Arc::new(Mutex::new("1")), desk.clone());
    let now = stamp.clone();
    let graph = Graph::<Work>::builder("stamped")
        .step("a", move |work: Work, _: Context| {
            first.say("a");
            first.write("a.txt", *now.lock().unwrap());
            async move { Ok::<_, StepError>(work) }
        })
        .evidence(|_| Pack::all([Claim::unchanged("a.txt")]))
        .step("b", desk.notes())
        .step("c", desk.notes())
        .edge("a", "b")
        .edge("b", "c")
        .build()
        .unwrap();
    desk.run(&graph).await;
    desk.said();
    desk.remove("a.txt");
    *stamp.lock().unwrap() = "2";

    desk.resume(&graph).await;

    assert_eq!(desk.said(), ["a", "b", "c"], "they may have read the file");
    assert!(desk.resume(&graph).await.idle);
}

#[tokio::test]
async fn a_crash_during_reruns_costs_at_most_one_step() {
    for crash_at in ["a", "b"] {
        let (desk, day) = (Desk::new(), Arc::new(Mutex::new("monday")));
        let graph = changing(&desk, &day);
        desk.run(&graph).await;
        desk.said();
        desk.remove("a.txt");
        *day.lock().unwrap() = "friday";

        // The future of the resume is dropped after the step has ended and before its record.
        let engine = desk.engine();
        let mut resume = engine.resume(&graph, "r").into_future();
        loop {
            let done = futures_util::poll!(&mut resume).is_ready();
            if desk.said.lock().unwrap().iter().any(|said| said == crash_at) {
                break;
            }
            assert!(!done, "it ended before `{crash_at}`");
            tokio::task::yield_now().await;
        }
        drop(resume);
        let outcome = desk.resume(&graph).await;

        assert_eq!(outcome.status, RunStatus::Completed, "{crash_at}");
        assert_eq!(outcome.state.done, ["6", "c"], "{crash_at}");
        assert!(!desk.said().contains(&"c".to_owned()), "{crash_at}");
        assert!(desk.resume(&graph).await.idle, "{crash_at}");
    }
}

#[tokio::test]
async fn a_step_that_must_not_be_repeated_is_asked_about() {
    let desk = Desk::new();
    let graph = Graph::<Work>::builder("careful")
        .step("a", desk.writes("a.txt", "of a"))
        .not_idempotent()
        .evidence(|_| Pack::all([Claim::unchanged("a.txt").named("the letter")]))
        .step("b", desk.notes())
        .edge("a", "b")
        .build()
        .unwrap();
    desk.run(&graph).await;
    desk.said();
    desk.remove("a.txt");

    let refused = desk.engine().resume(&graph, "r").await.unwrap_err();

    assert_eq!(refused.to_string(), "run r needs a decision: step `a`: evidence no longer holds: the letter");
    assert_eq!(desk.said(), Vec::<String>::new());
    assert_eq!(desk.records().await.len(), 4, "nothing was written");
}

#[tokio::test]
async fn a_careful_step_with_changed_input_is_in_doubt() {
    let (desk, day) = (Desk::new(), Arc::new(Mutex::new("monday")));
    let (first, now) = (desk.clone(), day.clone());
    let graph = Graph::<Work>::builder("careful")
        .step("a", move |mut work: Work, _: Context| {
            first.say("a");
            work.text = now.lock().unwrap().to_string();
            first.write("a.txt", "the same");
            async move { Ok::<_, StepError>(work) }
        })
        .evidence(|_| Pack::all([Claim::unchanged("a.txt")]))
        .step("pay", desk.notes())
        .not_idempotent()
        .edge("a", "pay")
        .build()
        .unwrap();
    desk.run(&graph).await;
    desk.said();
    desk.remove("a.txt");
    *day.lock().unwrap() = "friday";

    let outcome = desk.resume(&graph).await;

    assert_eq!(outcome.status, RunStatus::InDoubt);
    assert_eq!(desk.said(), ["a"], "nothing was paid twice");
    let refused = desk.engine().resume(&graph, "r").await.unwrap_err();
    assert!(matches!(refused, RunError::InDoubt { .. }), "{refused}");
    let outcome = desk.engine().resume(&graph, "r").from_step("pay").await.unwrap();
    assert_eq!((outcome.status, outcome.state.text.as_str()), (RunStatus::Completed, "friday"));
}

#[tokio::test]
async fn what_cannot_be_checked_stops_the_resume() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.run(&graph).await;
    desk.said();
    let nowhere = Engine::new(desk.store.clone());

    let refused = nowhere.resume(&graph, "r").await.unwrap_err();

    let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
    assert!(matches!(questions[0].cause, Cause::EvidenceUnknown(_)));
    assert_eq!(desk.said(), Vec::<String>::new());

    // A person chooses a rerun of the unknown step.
    desk.write("a.txt", "of somebody else");
    let again = desk.engine().resume(&graph, "r").on_unknown(OnUnknown::RunAgain).await.unwrap();
    assert_eq!(again.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["a"]);
}

#[tokio::test]
async fn a_claim_binds_to_the_newest_step_that_makes_it() {
    let desk = Desk::new();
    let graph = Graph::<Work>::builder("same-file")
        .step("a", desk.writes("out.txt", "of a"))
        .evidence(|_| Pack::all([Claim::unchanged("out.txt")]))
        .step("d", desk.writes("out.txt", "of d"))
        .evidence(|_| Pack::all([Claim::unchanged("./out.txt")]))
        .edge("a", "d")
        .build()
        .unwrap();
    desk.run(&graph).await;
    desk.said();

    assert!(desk.resume(&graph).await.idle, "the older pin does not count any more");
    desk.write("out.txt", "of a");
    desk.resume(&graph).await;
    assert_eq!(desk.said(), ["d"]);
}

#[tokio::test]
async fn subjects_of_a_cut_step_are_not_judged_by_older_pins() {
    let desk = Desk::new();
    let half = desk.clone();
    let graph = Graph::<Work>::builder("same-file")
        .step("a", desk.writes("out.txt", "of a"))
        .evidence(|_| Pack::all([Claim::unchanged("out.txt")]))
        .step("d", move |work: Work, context: Context| {
            let half = half.clone();
            async move {
                half.say("d");
                half.write("out.txt", "half of d");
                if context.attempt() == 1 {
                    std::future::pending::<()>().await;
                }
                Ok::<_, StepError>(work)
            }
        })
        .evidence(|_| Pack::all([Claim::unchanged("out.txt")]))
        .edge("a", "d")
        .build()
        .unwrap();
    let engine = desk.engine();
    let run = engine.run(&graph, "r", Work::default()).into_future();
    tokio::select! {
        ended = run => panic!("it ended: {ended:?}"),
        () = async { while !desk.said.lock().unwrap().contains(&"d".to_owned()) { tokio::task::yield_now().await; } } => {}
    }
    desk.said();

    let outcome = desk.resume(&graph).await;

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["d"], "`a` is not done again");
}

#[tokio::test]
async fn an_undeclared_change_costs_one_rerun_and_no_loop() {
    let desk = Desk::new();
    let graph = Graph::<Work>::builder("undeclared")
        .step("a", desk.writes("out.txt", "of a"))
        .evidence(|_| Pack::all([Claim::unchanged("out.txt")]))
        .step("d", desk.writes("out.txt", "of d"))
        .edge("a", "d")
        .build()
        .unwrap();
    desk.run(&graph).await;
    desk.said();

    let outcome = desk.resume(&graph).await;

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["a"]);
}

/// Builds a graph of three passes, each writing a page.
pub(super) fn pages(desk: &Desk) -> Graph<Work> {
    let pages = desk.clone();
    Graph::<Work>::builder("pages")
        .step("page", move |mut work: Work, context: Context| {
            let name = format!("page-{}.txt", context.iteration()[0]);
            pages.say(&name);
            pages.write(&name, &name);
            work.done.push(name);
            async move { Ok::<_, StepError>(work) }
        })
        .evidence(|work| Pack::all(work.done.last().map(Claim::unchanged)))
        .route("page", ["page", END], |work| if work.done.len() < 3 { "page" } else { END })
        .build()
        .unwrap()
}

#[tokio::test]
async fn every_pass_of_a_loop_is_checked() {
    for lost in 1..=3 {
        let desk = Desk::new();
        let graph = pages(&desk);
        desk.run(&graph).await;
        desk.said();
        let lost = format!("page-{lost}.txt");
        desk.remove(&lost);

        let outcome = desk.resume(&graph).await;

        assert_eq!(outcome.status, RunStatus::Completed);
        assert_eq!(desk.said(), [lost.as_str()]);
        assert_eq!(outcome.state.done.len(), 3);
        assert_eq!(desk.read(&lost), lost);
        assert!(desk.resume(&graph).await.idle);
    }
}

#[tokio::test]
async fn a_loop_under_way_is_checked_too() {
    let desk = Desk::new();
    let graph = pages(&desk);
    let held = desk.engine().run(&graph, "r", Work::default()).interrupt_after(["page"]).await.unwrap();
    assert_eq!(held.state.done.len(), 1);
    desk.said();
    desk.remove("page-1.txt");

    let outcome = desk.engine().resume(&graph, "r").interrupt_after(Vec::<&str>::new()).await.unwrap();

    assert_eq!(desk.said(), ["page-1.txt", "page-2.txt", "page-3.txt"]);
    assert_eq!(outcome.state.done, ["page-1.txt", "page-2.txt", "page-3.txt"]);
}

#[tokio::test]
async fn a_run_under_way_is_checked_before_it_goes_on() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.engine().run(&graph, "r", Work::default()).interrupt_before(["c"]).await.unwrap();
    desk.said();
    desk.remove("a.txt");

    let outcome = desk.resume(&graph).await;

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["a", "c"]);
    assert_eq!(outcome.state.done, ["a", "b", "c"]);
}

#[tokio::test]
async fn an_edit_by_hand_is_not_thrown_away_by_a_step_done_again() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.engine().run(&graph, "r", Work::default()).interrupt_before(["c"]).await.unwrap();
    desk.said();
    desk.remove("a.txt");

    let refused = desk.engine().resume(&graph, "r").edit_state(|work| work.text = "mine".to_owned()).await;

    assert!(matches!(refused, Err(RunError::InDoubt { .. })), "{refused:?}");
    assert_eq!(desk.said(), Vec::<String>::new());
}

#[tokio::test]
async fn a_state_that_is_gone_is_said_to_be_so() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.engine().run(&graph, "r", Work::default()).retention(2).await.unwrap();
    desk.said();
    desk.remove("a.txt");

    let refused = desk.engine().resume(&graph, "r").await.unwrap_err();

    let why = "step `a` must rerun, but retention dropped its input state";
    let ways = "fix its evidence and accept it, or start the run over";
    assert_eq!(refused.to_string(), format!("cannot continue from r@2: {why}; {ways}"));
    assert_eq!(desk.said(), Vec::<String>::new());
}

#[tokio::test]
async fn going_back_checks_what_is_finished_there() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.run(&graph).await;
    desk.said();
    desk.remove("a.txt");

    let outcome = desk.engine().resume(&graph, "r").from_step("c").await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["a", "c"]);
}

#[tokio::test]
async fn a_fork_in_time_begins_only_with_what_holds() {
    let desk = Desk::new();
    let graph = desk.line();
    desk.run(&graph).await;
    desk.said();
    let at = "r@3".parse().unwrap();
    let forked = desk.engine().fork(&graph, &at, "good").await.unwrap();
    assert_eq!(forked.status, RunStatus::Completed);
    desk.remove("a.txt");

    let refused = desk.engine().fork(&graph, &at, "bad").await;

    assert!(matches!(refused, Err(RunError::InDoubt { .. })), "{refused:?}");
    assert!(desk.store.run(&RunId::new("bad").unwrap()).await.is_err(), "it was not made");
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_of_doing_again_is_survived() {
    for fault in [Fault::DieBefore, Fault::DieAfter] {
        for nth in 1.. {
            let desk = Desk::new();
            let graph = desk.line();
            desk.run(&graph).await;
            desk.said();
            desk.remove("a.txt");
            desk.remove("b.txt");

            if !desk.dies_in_resume(&graph, nth, fault).await {
                assert!(nth > 5, "only {nth} writes");
                break;
            }
            let outcome = desk.resume(&graph).await;

            let said = desk.said();
            let at = format!("{fault:?} {nth}: {said:?}");
            assert_eq!(outcome.status, RunStatus::Completed, "{at}");
            assert_eq!(outcome.state.done, ["a", "b", "c"], "{at}");
            assert_eq!((desk.read("a.txt"), desk.read("b.txt")), ("of a".into(), "of b".into()), "{at}");
            assert!(!said.contains(&"c".to_owned()), "{at}");
            assert!(said.iter().filter(|said| *said == "a").count() <= 2, "{at}");
            assert!(desk.resume(&graph).await.idle, "{at}");
        }
    }
}

// The solution of the guide if scopes of earlier passes matter: the join vouches for them.
#[tokio::test]
async fn a_fork_join_in_a_loop_is_verified_for_each_pass() {
    let desk = Desk::new();
    let (branch, join) = (desk.clone(), desk.clone());
    let graph = Graph::<Work>::builder("loop")
        .step("plan", desk.notes())
        .step("a", move |work: Work, context: Context| {
            let pass = context.iteration()[0];
            branch.say(format!("a{pass}"));
            branch.write(&format!("{pass}.txt"), &format!("of pass {pass}"));
            async move { Ok::<_, StepError>(work) }
        })
        .fork("plan", ["a"])
        .join("merge", move |mut work: Work, _: Branches<Work>, context: Context| {
            let pass = context.iteration()[0];
            join.say(format!("merge{pass}"));
            work.text = format!("{pass}.txt");
            async move { Ok::<_, StepError>(work) }
        })
        .evidence(|work| Pack::all([Claim::unchanged(&work.text)]))
        .route("merge", ["plan", END], |work| if work.text == "2.txt" { END } else { "plan" })
        .build()
        .unwrap();
    desk.run(&graph).await;
    assert_eq!(desk.said(), ["plan", "a1", "merge1", "plan", "a2", "merge2"]);
    assert!(desk.resume(&graph).await.idle);
    desk.remove("1.txt");

    let outcome = desk.resume(&graph).await;

    assert_eq!((outcome.status, desk.read("1.txt").as_str()), (RunStatus::Completed, "of pass 1"));
    assert_eq!(desk.said(), ["a1", "merge1"], "the second pass is used again");
    assert!(desk.resume(&graph).await.idle);
}
