//! Damage to the records and items of scopes.

use super::*;

// Bug: damage removed the end of a scope after its siblings had been joined. The join still started, and read an
// unfinished scope.
#[tokio::test]
async fn a_scope_with_a_damaged_end_resumes_before_its_join() {
    let mut world = World::memory();
    let stage = Stage::default();
    let graph = stage.fork();
    stage.crash_run(&mut world, &graph, "merge").await;
    stage.said();
    world.below().damage(&run_id(), &"plan:a".parse().unwrap(), 3, Part::Header);

    let outcome = world.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(outcome.repaired.len(), 1);
    assert_eq!(stage.said(), ["a2", "merge", "after"]);
    assert_eq!(outcome.state.done, ["plan", "a=a+a2", "b=b", "after"]);
}

#[tokio::test]
async fn a_scope_whose_newest_record_is_damaged_falls_back_alone() {
    for part in [Part::Header, Part::Body] {
        let mut world = World::memory();
        let stage = Stage::default();
        let graph = stage.fork();
        stage.crash_run(&mut world, &graph, "a2").await;
        stage.said();
        world.below().damage(&run_id(), &"plan:a".parse().unwrap(), 2, part);

        stage.crash_resume(&mut world, &graph, "a2").await;
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(stage.said(), ["a", "a2", "a2", "merge", "after"], "{part:?}");
        assert_eq!(outcome.state.done, ["plan", "a=a+a2", "b=b", "after"]);
    }
}

// Bug: the record of the main scope that opened the fork was damaged. The step before it ran again, and its
// scopes were opened as new ones, which the store always refused.
#[tokio::test]
async fn a_damaged_opening_of_a_fork_leaves_a_resumable_run() {
    for seqs in [&[2][..], &[3], &[2, 3]] {
        let mut world = World::memory();
        let stage = Stage::default();
        let graph = stage.fork();
        stage.crash_run(&mut world, &graph, "a2").await;
        stage.said();
        let main = world.records().await.iter().filter(|line| line.starts_with("main@")).count() as u64;
        for seq in seqs.iter().filter(|seq| **seq <= main) {
            world.below().damage(&run_id(), &"main".parse().unwrap(), *seq, Part::Header);
        }

        stage.crash_resume(&mut world, &graph, "a2").await;
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, ["plan", "a=a+a2", "b=b", "after"], "{seqs:?}");
        let said = stage.said();
        assert_eq!(said.iter().filter(|said| *said == "merge").count(), 1, "{seqs:?}: {said:?}");
    }
}

// Bug: as above, with the record of the open pages: ended items of a later page were opened again.
#[tokio::test]
async fn damage_to_the_record_of_a_page_redoes_no_finished_item() {
    let mut world = World::memory();
    let stage = Stage::default();
    let graph = squares(&stage, 2_100, |each| each).build().unwrap();
    stage.crash_run(&mut world, &graph, "n1500").await;
    let before = stage.said();
    let main: Vec<_> = world.records().await.into_iter().filter(|line| line.starts_with("main@")).collect();
    assert!(main.last().unwrap().contains("progress"), "{main:?}");
    world.below().damage(&run_id(), &"main".parse().unwrap(), main.len() as u64, Part::Header);

    let outcome = world.engine.resume(&graph, "r").await.unwrap();

    let after = stage.said();
    let again: Vec<_> = after.iter().filter(|said| before.contains(said)).collect();
    assert!(again.len() <= 8, "only what was cut: {again:?}");
    assert_eq!(outcome.state.done.len(), 2_100);
    assert_eq!(before.len() + after.len() - again.len(), 2_101);
}

#[tokio::test]
async fn a_scope_without_sound_records_needs_a_rollback() {
    let mut world = World::memory();
    let stage = Stage::default();
    let graph = stage.fork();
    stage.crash_run(&mut world, &graph, "a").await;
    world.below().damage(&run_id(), &"plan:a".parse().unwrap(), 1, Part::Header);
    stage.said();

    let refused = world.engine.resume(&graph, "r").await.unwrap_err();
    assert!(matches!(refused, RunError::Store(StoreError::Damaged { older: None, .. })), "{refused}");
    assert!(refused.to_string().contains("plan:a"), "{refused}");
    assert!(stage.said().is_empty());
    let outcome = world.engine.resume(&graph, "r").from_step("plan").await.unwrap();

    assert_eq!(outcome.state.done, ["plan", "a=a+a2", "b=b", "after"]);
}

#[tokio::test]
async fn missing_or_altered_frozen_items_are_never_another_list() {
    for altered in [None, Some("n2"), Some("n")] {
        let mut world = World::folder();
        let stage = Stage::default();
        let graph = squares(&stage, 3, |each| each.max_parallel(1)).build().unwrap();
        stage.crash_run(&mut world, &graph, "n1").await;
        stage.said();
        let found = find_items(world.path()).expect("the items are frozen in a file");
        match altered {
            None => std::fs::remove_file(&found).unwrap(),
            Some(text) => {
                let items = std::fs::read_to_string(&found).unwrap();
                std::fs::write(&found, items.replacen(text, "x", 1)).unwrap();
            }
        }

        let refused = format!("{:?}", world.engine.resume(&graph, "r").await.unwrap_err());

        let why = altered.map_or("are missing", |_| "have digest");
        assert!(refused.contains("recorded items") && refused.contains(why), "{refused}");
        assert!(stage.said().is_empty());
    }
}

fn find_items(folder: &std::path::Path) -> Option<std::path::PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find_map(|path| {
        let named = path.to_string_lossy().contains("items") && path.is_file();
        if named { Some(path) } else { path.is_dir().then(|| find_items(&path)).flatten() }
    })
}

#[tokio::test]
async fn an_undecodable_item_fails_before_its_page_starts() {
    let world = World::memory();
    let stage = Stage::default();
    let work = stage.clone();
    let graph = Graph::builder("nan")
        .each(
            "each",
            |_: &Notes| vec![1.0, f64::NAN],
            |n: &f64| format!("n{n}"),
            move |n: f64, _| {
                work.say("work");
                async move { Ok::<_, StepError>(n) }
            },
        )
        .join(|state: Notes, _: ItemEnds<f64, f64>, _| async move { Ok::<_, StepError>(state) })
        .build()
        .unwrap();

    let outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Failed);
    assert!(outcome.failed.unwrap().1.error[0].contains("`nNaN`"));
    assert!(stage.said().is_empty());
    assert!(world.records().await.iter().all(|line| line.starts_with("main@")));
    assert_eq!(world.engine.resume(&graph, "r").await.unwrap().status, RunStatus::Failed);
}
