//! Going back, going on elsewhere, changed graphs and configurations.

use waypost::graph::{RunStream, Update};

use super::*;

#[tokio::test]
async fn a_resume_from_a_step_runs_it_again_with_the_state_of_then() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.engine.run(&graph, "r", Notes::default()).await.unwrap();
    rig.trace.clear();

    let outcome = rig
        .engine
        .resume(&graph, "r")
        .from_step("b")
        .edit_state(|state| state.done.push("fixed".to_owned()))
        .validate_state(|state| if state.done.len() == 2 { Ok(()) } else { Err("not then".to_owned()) })
        .await
        .unwrap();

    assert_eq!(rig.trace.text(), "b c");
    assert_eq!(outcome.state.done, ["a", "fixed", "b", "c"]);
    let unknown = rig.engine.resume(&graph, "r").from_step("nope").await.unwrap_err();
    assert_eq!(unknown.to_string(), "the graph has no step `nope`");
    let rejected = rig.engine.resume(&graph, "r").from_step("b").validate_state(|_| Err("no".to_owned()));
    assert!(matches!(rejected.await.unwrap_err(), RunError::Rejected { .. }));
}

#[tokio::test]
async fn a_rollback_appends_and_what_was_after_it_stays_visible() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    let back = rig.engine.resume(&graph, "r").from_checkpoint(2).without_running().await.unwrap();
    assert_eq!((back.status, back.state.done.as_slice()), (RunStatus::Interrupted, &["a".to_owned()][..]));
    rig.trace.clear();
    rig.crash_at(rig.engine.resume(&graph, "r").into_future(), "c").await;
    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(rig.trace.text(), "b c c");
    assert_eq!(outcome.state.done, ["a", "b", "c"]);
    insta::assert_snapshot!(rig.records().await);
}

#[tokio::test]
async fn a_fork_in_time_is_a_run_of_its_own() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.engine.run(&graph, "r", Notes::default()).await.unwrap();
    rig.trace.clear();
    let from = "r@2".parse().unwrap();

    let forked = rig.engine.fork(&graph, &from, "r2").edit_state(|state| state.count = 7).await.unwrap();
    rig.store.delete(&run_id()).await.unwrap();
    let again = rig.engine.resume(&graph, "r2").await.unwrap();

    assert_eq!(rig.trace.text(), "b c");
    assert_eq!((forked.state.done.len(), forked.state.count), (3, 7));
    assert!(again.idle);
    let parent = rig.store.run(&RunId::new("r2").unwrap()).await.unwrap().record.record().parent.clone();
    assert_eq!(parent.unwrap().seq, 2);
}

#[tokio::test]
async fn a_checkpoint_shows_its_state() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    let then = rig.engine.inspect(&graph, &"r@3".parse().unwrap()).await.unwrap();

    assert_eq!(then.state.done, ["a", "b"]);
    assert_eq!(then.position.frontier[0].step.as_str(), "c");
}

#[tokio::test]
async fn a_changed_graph_is_reported_and_adopted_on_request() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.crash_at(rig.engine.run(&graph, "r", Notes::default()).into_future(), "b").await;
    let changed = Graph::builder("line")
        .step("a", note(&rig.trace))
        .step("b", note(&rig.trace))
        .revision(2)
        .step("d", note(&rig.trace))
        .edge("a", "b")
        .edge("b", "d")
        .build()
        .unwrap();

    let refused = rig.engine.resume(&changed, "r").await.unwrap_err();
    rig.trace.clear();
    let adopted = rig.engine.resume(&changed, "r").on_change(waypost::engine::OnChange::Adopt).await.unwrap();

    assert_eq!(
        refused.to_string(),
        "the definition does not fit run r: step `b` now leads to `d`, before to `c`, step `d` is new, step `c` is gone, and no choice was given"
    );
    assert_eq!((adopted.status, rig.trace.text().as_str()), (RunStatus::Completed, "b d"));
}

#[tokio::test]
async fn runs_resumes_and_forks_stream_events_and_then_the_end() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    let from = "r@2".parse().unwrap();

    let told = [
        streamed(rig.engine.run(&graph, "r", Notes::default()).interrupt_after(["b"]).stream()).await,
        streamed(rig.engine.resume(&graph, "r").stream()).await,
        streamed(rig.engine.fork(&graph, &from, "r2").stream()).await,
    ];

    assert_eq!(
        told,
        [
            "run_started, 2 of 3 steps, interrupted",
            "run_resumed, 1 of 3 steps, completed",
            "run_forked, 2 of 3 steps, completed"
        ]
    );
}

/// Returns the first event of a stream, the number of completed steps, and the status at the end.
async fn streamed(mut stream: RunStream<'_, Notes>) -> String {
    let (mut events, mut ended) = (Vec::new(), None);
    while let Some(update) = stream.next().await {
        assert!(ended.is_none(), "nothing follows the end");
        match update.unwrap() {
            Update::Event(event) => {
                events.push(serde_json::to_value(&event).unwrap()["event"].as_str().unwrap().to_owned());
            }
            Update::Ended(outcome) => ended = Some(outcome.status),
        }
    }
    let steps = events.iter().filter(|name| *name == "step_completed").count();
    format!("{}, {steps} of 3 steps, {}", events[0], ended.expect("the stream has an end").name())
}

#[tokio::test]
async fn configuration_is_merged_deep_and_stays() {
    let rig = Rig::new();
    let graph = Graph::builder("config")
        .step("a", |state: Notes, context: Context| async move {
            Ok::<_, StepError>(state.and(&serde_json::to_string(context.config()).unwrap()))
        })
        .build()
        .unwrap();
    let map = |value: serde_json::Value| value.as_object().unwrap().clone();
    let run = rig.engine.run(&graph, "r", Notes::default()).config(map(json!({"m": {"a": 1, "b": 2}})));
    run.interrupt_before(["a"]).await.unwrap();
    let held = rig.engine.resume(&graph, "r").config(map(json!({"m": {"b": 3}, "n": 4}))).without_running();
    held.await.unwrap();

    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(outcome.state.done, [r#"{"m":{"a":1,"b":3},"n":4}"#]);
}

#[tokio::test]
async fn a_run_starts_from_a_file_of_the_same_graph_only() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.engine.run(&graph, "r", Notes::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.json");
    let exported =
        waypost::portable::Portable::of(rig.store.as_ref(), &"r@2".parse().unwrap()).await.unwrap();
    exported.save(&file, waypost::portable::SaveMode::New).unwrap();
    let elsewhere = Rig::new();
    let loaded = waypost::portable::Portable::load(&file).unwrap();
    rig.trace.clear();

    let outcome = elsewhere.engine.import(&graph, &loaded, "r").await.unwrap();
    let other = fork(&rig.trace, false);
    let refused = elsewhere.engine.import(&other, &loaded, "x").await.unwrap_err();

    assert_eq!((outcome.status, rig.trace.text().as_str()), (RunStatus::Completed, "b c"));
    assert!(matches!(refused, RunError::Changed { .. }), "{refused}");
}
