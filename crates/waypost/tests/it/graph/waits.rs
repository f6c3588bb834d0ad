//! Holds, questions, signals, and what is done once.

use super::*;

#[tokio::test]
async fn interrupts_before_and_after_hold_the_run_once_each() {
    let rig = Rig::new();
    let graph = line(&rig.trace);

    let run = rig.engine.run(&graph, "r", Notes::default()).interrupt_before(["b"]).interrupt_after(["b"]);
    let first = run.await.unwrap();
    let after_first = rig.trace.text();
    let second = rig.engine.resume(&graph, "r").await.unwrap();
    let after_second = rig.trace.text();
    let third = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!((first.status, after_first.as_str()), (RunStatus::Interrupted, "a"));
    assert_eq!((second.status, after_second.as_str()), (RunStatus::Interrupted, "a b"));
    assert_eq!((third.status, rig.trace.text().as_str()), (RunStatus::Completed, "a b c"));
}

#[tokio::test]
async fn a_hold_after_the_last_step_is_a_hold() {
    let rig = Rig::new();
    let graph = line(&rig.trace);

    let first = rig.engine.run(&graph, "r", Notes::default()).interrupt_after(["c"]).await.unwrap();
    let second = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(first.status, RunStatus::Interrupted);
    assert_eq!(second.status, RunStatus::Completed);
    assert_eq!(rig.trace.text(), "a b c");
    assert_eq!(second.state.done, ["a", "b", "c"]);
}

#[tokio::test]
async fn questions_of_several_branches_have_their_own_answers() {
    let rig = Rig::new();
    let ask = |state: Notes, context: Context| async move {
        let answer: String = context.interrupt("ok", json!({ "may": context.step() })).await?;
        Ok::<_, StepError>(state.and(&answer))
    };
    let graph = Graph::builder("ask")
        .step("plan", note(&rig.trace))
        .step("a", ask)
        .step("b", ask)
        .fork("plan", ["a", "b"])
        .join("merge", |mut state: Notes, branches: Branches<Notes>, _| async move {
            state.done = branches.iter().map(|b| b.result.as_ref().unwrap().done.join("+")).collect();
            Ok::<_, StepError>(state)
        })
        .build()
        .unwrap();

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Waiting);
    let waiting = outcome.waiting;
    assert_eq!(waiting.iter().map(|w| w.scope.to_string()).collect::<Vec<_>>(), ["plan:a", "plan:b"]);
    assert_ne!(waiting[0].wait.id, waiting[1].wait.id);
    assert_eq!(waiting[1].wait.question, Some(json!({ "may": "b" })));
    rig.engine.answer("r", &waiting[1].wait.id, json!("no")).await.unwrap();
    let half = rig.engine.resume(&graph, "r").await.unwrap();
    assert_eq!(half.status, RunStatus::Waiting);
    assert_eq!(half.waiting.len(), 1);
    rig.engine.answer("r", &waiting[0].wait.id, json!("yes")).await.unwrap();
    let end = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(end.status, RunStatus::Completed);
    assert_eq!(end.state.done, ["plan+yes", "plan+no"]);
    assert!(matches!(
        rig.engine.answer("r", &waiting[0].wait.id, json!("again")).await,
        Err(RunError::Answered { .. })
    ));
    assert!(matches!(rig.engine.answer("r", "nobody", json!(1)).await, Err(RunError::NoSuchWait { .. })));
}

#[tokio::test]
async fn what_was_done_once_is_not_done_again_after_a_crash() {
    let rig = Rig::new();
    let trace = rig.trace.clone();
    let graph = Graph::builder("once")
        .step("a", move |state: Notes, context: Context| {
            let trace = trace.clone();
            async move {
                let work = async {
                    trace.say("paid");
                    Ok::<_, StepError>(42)
                };
                let value: u32 = context.once("pay", work).await?;
                trace.pass("after").await;
                Ok::<_, StepError>(state.and(&value.to_string()))
            }
        })
        .build()
        .unwrap();
    rig.crash_at(rig.engine.run(&graph, "r", Notes::default()).into_future(), "after").await;

    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(outcome.state.done, ["42"]);
    assert_eq!(rig.trace.text(), "paid after after");
}

#[tokio::test]
async fn a_signal_left_before_or_after_is_taken_once() {
    let rig = Rig::new();
    let graph = Graph::builder("signal")
        .step("a", |state: Notes, context: Context| async move {
            let value: String = context.signal("go", "go").await?;
            Ok::<_, StepError>(state.and(&value))
        })
        .build()
        .unwrap();
    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Waiting);

    rig.engine.signal("r", "go", json!("now")).await.unwrap();
    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!((outcome.status, outcome.state.done), (RunStatus::Completed, vec!["now".to_owned()]));
}
