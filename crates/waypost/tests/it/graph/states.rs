//! States that cannot be kept, old ones, and programs that are simply started again.

use super::*;

#[tokio::test]
async fn a_state_that_json_would_change_is_refused_by_its_field() {
    #[derive(Debug, Clone, Serialize, Deserialize)]
    struct Price {
        items: Vec<f64>,
    }
    let rig = Rig::new();
    let graph = Graph::builder("nan")
        .step("a", |mut state: Price, _| async move {
            state.items.push(1.0);
            Ok::<_, StepError>(state)
        })
        .step("b", |mut state: Price, _| async move {
            state.items.push(f64::NAN);
            Ok::<_, StepError>(state)
        })
        .edge("a", "b")
        .build()
        .unwrap();

    let error = rig.engine.run(&graph, "r", Price { items: Vec::new() }).await.unwrap_err();

    let chain = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert!(chain.contains("items[1]"), "{chain}");
    let kept = rig.engine.inspect(&graph, &"r@2".parse().unwrap()).await.unwrap();
    assert_eq!(kept.state.items, [1.0]);
}

#[tokio::test]
async fn an_old_state_is_brought_up_to_date_and_a_newer_one_refused() {
    use waypost::schema::Migrations;
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Old {
        name: String,
    }
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct New {
        name: String,
        tries: u32,
    }
    let rig = Rig::new();
    let old = Graph::builder("g")
        .step("a", |state: Old, _| async move { Ok::<_, StepError>(state) })
        .step("b", |state: Old, _| async move { Ok::<_, StepError>(state) })
        .edge("a", "b")
        .build()
        .unwrap();
    let migrations = Migrations::builder().add(0, |state| {
        state["tries"] = json!(7);
        Ok(())
    });
    let new = Graph::builder("g")
        .step("a", |state: New, _| async move { Ok::<_, StepError>(state) })
        .step("b", |state: New, _| async move { Ok::<_, StepError>(state) })
        .edge("a", "b")
        .migrations(migrations.build().unwrap())
        .build()
        .unwrap();
    let state = Old { name: "x".to_owned() };
    rig.engine.run(&old, "r", state).interrupt_before(["b"]).await.unwrap();

    let outcome = rig.engine.resume(&new, "r").await.unwrap();
    let back = rig.engine.resume(&old, "r").from_step("b").await.unwrap_err();

    assert_eq!(outcome.state, New { name: "x".to_owned(), tries: 7 });
    assert_eq!(rig.engine.inspect(&old, &"r@2".parse().unwrap()).await.unwrap().state.name, "x");
    assert!(matches!(back, RunError::Version { found: 1, supported: 0, .. }), "{back:?}");
}

#[test]
fn a_made_id_is_always_a_run_id() {
    for name in ["nightly report", "../x", "--", "", "grün", "a..b", &"x".repeat(500), "1 %&/ 2"] {
        let id = RunId::random(name);
        assert!(RunId::new(id.as_str()).is_ok(), "{name}: {id}");
    }
    assert!(RunId::random("nightly report!").as_str().starts_with("nightly-report-"));
}

#[tokio::test]
async fn a_program_that_is_simply_started_again_goes_on() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    let start = || rig.engine.run(&graph, "r", Notes::default()).or_resume();
    rig.crash_at(start().into_future(), "b").await;
    rig.trace.clear();

    let outcome = start().await.unwrap();
    let again = start().await.unwrap();

    assert_eq!(rig.trace.text(), "b c");
    assert_eq!(outcome.state.done, ["a", "b", "c"]);
    assert!(again.idle);
}
