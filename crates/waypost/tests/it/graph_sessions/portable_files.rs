//! Portable files of a checkpoint, and the files of a store.

use std::future::IntoFuture as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use waypost::engine::RunError;
use waypost::file::FileStore;
use waypost::graph::Update;
use waypost::portable::{LoadError, Portable, SaveMode};
use waypost::record::{Flaw, RunStatus};
use waypost::store::StoreError;
use waypost::{Context, Digest, Engine, Graph, StepError};
use waypost_testing::contract::block_on;
use waypost_testing::damage::{OneIn, Outcome, damage_disk};
use waypost_testing::disk::SimDisk;

use crate::faulty::World;
use crate::test_graphs::{Notes, Stage};

/// Returns the file of a run that is held before `b`, with a config.
async fn saved(world: &World, graph: &Graph<Notes>, state: Notes) -> Portable {
    let config = json!({ "model": "m" }).as_object().unwrap().clone();
    let held = world.engine.run(graph, "r", state).config(config).interrupt_before(["b"]).await.unwrap();
    Portable::of(world.store.as_ref(), &format!("r@{}", held.at).parse().unwrap()).await.unwrap()
}

/// Returns the file with one member replaced and a valid digest, as from a foreign program or version.
fn rewritten(text: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert!(text.contains(from), "{from} is in the file");
    let text = text.replacen(from, to, 1);
    let at = text.find(":\"").unwrap() + 2;
    let zeros = format!("{}{}{}", &text[..at], "0".repeat(64), &text[at + 64..]);
    let hash = Digest::of(zeros.as_bytes()).to_string();
    format!("{}{hash}{}", &text[..at], &text[at + 64..]).into_bytes()
}

#[tokio::test]
async fn a_file_has_state_step_config_time_and_version() {
    let world = World::memory();
    let stage = Stage::default();

    let portable = saved(&world, &stage.line(), Notes::default()).await;

    let text: Value = serde_json::from_slice(&portable.to_text()).unwrap();
    assert_eq!(text["format"], 4);
    assert_eq!(text["checkpoint"]["state"], json!({ "done": ["a"] }));
    assert_eq!(text["checkpoint"]["position"]["frontier"][0]["step"], "b");
    assert_eq!(text["config"], json!({ "model": "m" }));
    let time = text["checkpoint"]["header"]["created_at"].as_str().unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
}

#[tokio::test]
async fn a_run_and_a_stream_both_go_on_from_a_file() {
    for streams in [false, true] {
        let stage = Stage::default();
        let graph = stage.line();
        let text = saved(&World::memory(), &graph, Notes::default()).await.to_text();
        stage.said();
        // Another store on another machine.
        let world = World::folder();
        let portable = Portable::from_text(&text).unwrap();
        let file = world.path().join("r.json");
        portable.save(&file, SaveMode::New).unwrap();
        let loaded = Portable::load(&file).unwrap();
        let held = world.engine.import(&graph, &loaded, "here").interrupt_before(["c"]).await.unwrap();
        assert_eq!((held.status, stage.said()), (RunStatus::Interrupted, vec!["b".to_owned()]));

        let resume = world.engine.resume(&graph, "here");
        let outcome = if streams {
            let mut ended = None;
            let mut stream = resume.stream();
            while let Some(update) = stream.next().await {
                if let Update::Ended(outcome) = update.unwrap() {
                    ended = Some(*outcome);
                }
            }
            ended.unwrap()
        } else {
            resume.await.unwrap()
        };

        assert_eq!((outcome.status, outcome.state.done), (RunStatus::Completed, super::words("a b c")));
        assert_eq!(stage.said(), ["c"]);
    }
}

// Trap: loading a pickle runs its code. Here the content of a file is data. Text with a meaning for a shell, a
// template, YAML or pickle comes back as text, and only steps of the graph run.
#[tokio::test]
async fn going_on_from_a_file_runs_no_code_of_the_file() {
    let world = World::folder();
    let stage = Stage::default();
    let graph = stage.line();
    let trace = world.path().join("trace");
    let code = [
        format!("$(touch {0}) `touch {0}` ; touch {0}", trace.display()),
        format!("${{{{ open('{}', 'w') }}}}", trace.display()),
        format!("!!python/object/apply:os.system ['touch {}']", trace.display()),
        format!("cos\nsystem\n(S'touch {}'\ntR.", trace.display()),
    ];
    let state = Notes { done: code.to_vec() };
    let portable = saved(&world, &graph, state).await;
    stage.said();

    let outcome = world.engine.import(&graph, &portable, "r2").await.unwrap();

    assert_eq!(outcome.state.done, [&code[..], &super::words("a b c")].concat());
    assert_eq!(stage.said(), ["b", "c"]);
    assert!(!trace.exists(), "something of the file was run");
}

#[tokio::test]
async fn a_file_cannot_make_a_graph_run_a_step_that_it_has_not() {
    let world = World::memory();
    let stage = Stage::default();
    let graph = stage.line();
    let builder = stage.steps(Graph::builder("line"), &["a", "b", "c", "x"]);
    let foreign = builder.edge("a", "b").edge("b", "x").edge("x", "c").build().unwrap();
    let run = world.engine.run(&foreign, "r", Notes::default()).interrupt_before(["x"]);
    let held = run.await.unwrap();
    let at = format!("r@{}", held.at).parse().unwrap();
    let portable = Portable::of(world.store.as_ref(), &at).await.unwrap();
    stage.said();

    let refused = world.engine.import(&graph, &portable, "r2").await.unwrap_err();
    let adopted = world.engine.import(&graph, &portable, "r3").on_change(waypost::engine::OnChange::Adopt);
    let adopted = adopted.await.unwrap_err();

    assert!(matches!(refused, RunError::Changed { .. }), "{refused}");
    assert!(adopted.to_string().contains("is at step `x`"), "{adopted}");
    assert!(stage.said().is_empty());
}

#[tokio::test]
async fn a_pickle_is_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let path = folder.path().join("checkpoint.pkl");
    let pickle = format!("cposix\nsystem\np0\n(S'touch {}'\np1\ntp2\nRp3\n.", trace.display());
    std::fs::write(&path, pickle).unwrap();

    let refused = Portable::load(&path).unwrap_err();

    assert!(matches!(refused, LoadError::Corrupt { .. }), "{refused}");
    assert!(!trace.exists());
}

// Trap: of 193 one-bit flips, 114 load without an error.
#[tokio::test]
async fn every_flipped_bit_of_a_saved_graph_is_refused() {
    let stage = Stage::default();
    let text = saved(&World::memory(), &stage.line(), Notes::default()).await.to_text();
    assert!(Portable::from_text(&text).is_ok());

    let mut flipped = text.clone();
    for at in 0..text.len() * 8 {
        flipped[at / 8] ^= 1 << (at % 8);
        let flaw = Portable::from_text(&flipped).expect_err("a bit was flipped");
        assert!(matches!(flaw, Flaw::Digest { .. } | Flaw::Malformed(_)), "bit {at}: {flaw}");
        flipped[at / 8] ^= 1 << (at % 8);
    }
}

/// Resumes a run in a store with damaged files: only one final state is correct.
async fn resumed(disk: &SimDisk) -> Outcome {
    let stage = Stage::default();
    let graph = stage.line();
    let engine = Engine::new(Arc::new(FileStore::on(Arc::new(disk.clone()), "store").with_retention(None)));
    match engine.resume(&graph, "r").await {
        Ok(end) if end.state.done != ["a", "b", "c"] => {
            Outcome::Wrong(format!("its state is {:?}", end.state))
        }
        Ok(end) if !matches!(end.status, RunStatus::Completed) => {
            Outcome::Wrong(format!("it is {:?}", end.status))
        }
        Ok(end) if !end.repaired.is_empty() => Outcome::Older,
        Ok(_) if stage.said() == ["b", "c"] => Outcome::Right,
        Ok(_) => Outcome::Wrong("it fell back without a word".to_owned()),
        Err(RunError::Store(StoreError::Damaged { .. } | StoreError::Version { .. })) => Outcome::Refused,
        Err(error) => Outcome::Wrong(format!("it says nothing of damage: {error}")),
    }
}

#[test]
fn each_flipped_bit_or_cut_of_a_run_is_harmless_or_refused() {
    let disk = SimDisk::with_folder("store");
    block_on(async {
        let stage = Stage::default();
        let store = Arc::new(FileStore::on(Arc::new(disk.clone()), "store").with_retention(None));
        stage.hang("b");
        let (engine, graph) = (Engine::new(store), stage.line());
        let hanging = async {
            while !stage.has_said("b") {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            end = engine.run(&graph, "r", Notes::default()).into_future() => panic!("it ended: {end:?}"),
            () = hanging => {}
        }
    });
    disk.settle();
    let is_kept = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        !matches!(name, "events.jsonl" | "report.md")
    };

    let tally = damage_disk(&disk, OneIn(19), is_kept, |disk| {
        let mut outcome = Outcome::Refused;
        block_on(async { outcome = resumed(disk).await });
        outcome
    });

    let tally = tally.unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(tally.right > 0 && tally.older > 0, "{tally:?}");
}

// Trap: the version is stored and never checked, so "99.0" loads.
#[tokio::test]
async fn the_version_of_a_file_is_checked_and_both_versions_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let stage = Stage::default();
    let text = saved(&World::memory(), &stage.line(), Notes::default()).await.to_text();
    let load = |to: &str| {
        let path = folder.path().join("r.json");
        std::fs::write(&path, rewritten(&text, "\"format\":4,", to)).unwrap();
        Portable::load(&path).unwrap_err()
    };

    for newer in ["\"format\":99,", "\"format\":99.0,"] {
        let refused = load(newer);
        assert!(matches!(refused, LoadError::Incompatible { found: 99, supported: 4, .. }), "{refused}");
        assert!(refused.to_string().ends_with("has format 99, this version reads up to 4"), "{refused}");
    }
    for older in ["\"format\":0,", "\"format\":1,", "\"format\":2,", "\"format\":3,"] {
        let refused = load(older);
        assert!(refused.to_string().ends_with("of a prerelease, this version reads 4"), "{refused}");
    }
    for unknown in ["\"format\":\"99.0\",", "\"format\":null,", "\"format\":-1,", ""] {
        let refused = load(unknown);
        assert!(matches!(refused, LoadError::Corrupt { .. }), "{unknown}: {refused}");
    }
}

#[tokio::test]
async fn another_state_version_is_refused_with_both_versions() {
    let migrations = |to: u32| {
        let all = (0..to).fold(waypost::schema::Migrations::builder(), |all, from| all.add(from, |_| Ok(())));
        all.build().unwrap()
    };
    let graph = |schema: u32| {
        let step = |state: Notes, context: Context| async move {
            Ok::<_, StepError>(state.and(context.step().as_str()))
        };
        let builder = Graph::builder("versions").step("a", step).step("b", step).edge("a", "b");
        builder.migrations(migrations(schema)).build().unwrap()
    };
    let world = World::memory();
    let portable = saved(&world, &graph(3), Notes::default()).await;

    let resumed = world.engine.resume(&graph(2), "r").await.unwrap_err();
    let imported = world.engine.import(&graph(2), &portable, "r2").await.unwrap_err();

    for refused in [resumed, imported] {
        assert!(matches!(refused, RunError::Version { found: 3, supported: 2, .. }), "{refused}");
        assert!(refused.to_string().contains("version 3, this program reads up to 2"), "{refused}");
    }
    let outcome = world.engine.resume(&graph(4), "r").await.unwrap();
    assert_eq!(outcome.state.done, ["a", "b"]);
}

#[tokio::test]
async fn not_found_corrupt_and_incompatible_are_three_errors() {
    let folder = tempfile::tempdir().unwrap();
    let stage = Stage::default();
    let text = saved(&World::memory(), &stage.line(), Notes::default()).await.to_text();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("half"), &text[..text.len() / 2]).unwrap();
    std::fs::write(path("newer"), rewritten(&text, "\"format\":4,", "\"format\":5,")).unwrap();

    let errors = ["none", "half", "newer"].map(|name| Portable::load(&path(name)).unwrap_err());

    assert!(matches!(errors[0], LoadError::NotFound { .. }), "{}", errors[0]);
    assert!(matches!(errors[1], LoadError::Corrupt { .. }), "{}", errors[1]);
    assert!(matches!(errors[2], LoadError::Incompatible { found: 5, supported: 4, .. }), "{}", errors[2]);
    // Each error names its file, so that a person can act.
    for (error, name) in errors.iter().zip(["none", "half", "newer"]) {
        assert!(error.to_string().contains(path(name).to_str().unwrap()), "{error}");
    }
}
