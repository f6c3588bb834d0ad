//! Steps that fail, take too long or panic; what they said before.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_failing_step_is_tried_again_and_a_fatal_error_is_not() {
    let rig = Rig::new();
    let trace = rig.trace.clone();
    let graph = Graph::builder("retry")
        .step("a", move |state: Notes, context: Context| {
            trace.say("a");
            async move {
                match context.attempt() {
                    1 | 2 => Err(StepError::from(io::Error::other("busy"))),
                    _ => Ok(state.and("a")),
                }
            }
        })
        .retry(Retry::exponential(3))
        .step("b", |_: Notes, _| async move { Err::<Notes, _>(StepError::fatal("broken for good")) })
        .retry(Retry::exponential(3))
        .edge("a", "b")
        .build()
        .unwrap();

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(rig.trace.text(), "a a a");
    let (step, failure) = outcome.failed.unwrap();
    assert_eq!((step.as_str(), failure.kind), ("b", FailureKind::Fatal));
    assert_eq!(failure.error, ["broken for good"]);
}

#[tokio::test]
async fn a_step_that_takes_too_long_or_panics_fails_with_its_reason() {
    let rig = Rig::new();
    let slow = Graph::builder("slow")
        .step("a", |state: Notes, _| async move {
            pending::<()>().await;
            Ok::<_, StepError>(state)
        })
        .timeout(Duration::from_millis(5))
        .build()
        .unwrap();
    let panics = Graph::builder("panics")
        .step("a", |state: Notes, _| async move {
            assert!(state.done.len() > 7, "too few");
            Ok::<_, StepError>(state)
        })
        .build()
        .unwrap();

    let timeout = rig.engine.run(&slow, "r", Notes::default()).await.unwrap().failed.unwrap().1;
    let panic = rig.engine.run(&panics, "p", Notes::default()).await.unwrap().failed.unwrap().1;

    assert_eq!((timeout.kind, timeout.error[0].as_str()), (FailureKind::Timeout, "timed out after 5ms"));
    assert_eq!(panic.error, ["step `a` panicked: too few"]);
}

#[tokio::test]
async fn progress_records_carry_what_was_said() {
    let rig = Rig::new();
    let graph = Graph::builder("said")
        .step("a", |state: Notes, context: Context| async move {
            context.emit("found", json!({ "n": 1 }));
            context.checkpoint().await?;
            context.report("## Found");
            Ok::<_, StepError>(state)
        })
        .build()
        .unwrap();

    rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    let records = rig.store.scan(&Scan::of(&run_id())).await.unwrap().records;
    let notes: Vec<usize> = records.iter().map(|record| record.header().notes.len()).collect();
    assert_eq!(notes, [0, 1, 1]);
    assert!(matches!(records[1].header().phase, Phase::Progress { .. }));
}
