//! Portable checkpoints inside a fan-out.

use super::*;

#[tokio::test]
async fn children_come_along_with_their_newest_checkpoints() {
    const ITEMS: &[u8] = b"\"a\"\n{\"key\":\"b\"}\n";
    const DEEP: &[u8] = b"\x00not json";
    // Given a fan-out @2: one child has ended, one is open with a memo, one is open inside its own fan-out.
    let mut story = Story::new(MemoryStore::new());
    let ended = |header: &mut Header| header.end = Some(End::Failed);
    story.add(&main_scope(), Position::default(), |_| ()).await;
    story.blob("items/each", ITEMS).await;
    story.blob("items/deep", DEEP).await;
    story.add(&scope("other:x"), opened_by(1), |_| ()).await;
    for seq in 1..=3 {
        let edit = |header: &mut Header| {
            if seq == 3 {
                ended(header)
            }
        };
        story.add(&scope("each:a"), opened_by(2), edit).await;
    }
    story.add(&scope("each:b"), opened_by(2), |header| header.step = Some(step_id("ask"))).await;
    let asks = Position { origin: Some(2), ..frontier(vec![entry("ask", Status::Started, 1)]) };
    story.add(&scope("each:b"), asks, |_| ()).await;
    let deep = Position { origin: Some(2), ..fans_out("deep", 1, Some(("items/deep", DEEP))) };
    story.add(&scope("each:c"), deep, |_| ()).await;
    story.add(&scope("each:c/deep:1"), opened_by(1), |_| ()).await;
    // Children of an ended child are joined, and children of an earlier pass do not count.
    story.add(&scope("each:a/deep:1"), opened_by(1), ended).await;
    story.add(&scope("each:z"), opened_by(1), |_| ()).await;
    story.add(&main_scope(), fans_out("each", 2, Some(("items/each", ITEMS))), |_| ()).await;

    let exported = story.export(&main_scope(), 2).await.unwrap();

    let references = |records: &[Record]| -> Vec<String> {
        records.iter().map(|record| record.header().reference().to_string()).collect()
    };
    assert_eq!(
        references(exported.children()),
        ["r-1/each:a@3", "r-1/each:b@2", "r-1/each:c@1", "r-1/each:c/deep:1@1"]
    );
    assert!(exported.children().iter().all(|child| child.state_bytes().is_some()));
    assert_eq!(references(exported.history()), ["r-1/each:b@1"]);
    assert_eq!(exported.blobs()["items/each"], ITEMS);
    assert_eq!(exported.blobs()["items/deep"], DEEP);
    assert_eq!(Portable::from_text(&exported.to_text()).unwrap(), exported);
    let text: Value = serde_json::from_slice(&exported.to_text()).unwrap();
    assert_eq!(text["blobs"]["items/each"]["lines"], json!(["a", {"key": "b"}]));

    // A child can also be exported alone.
    let child = story.export(&scope("each:c"), 1).await.unwrap();
    assert_eq!(child.children().len(), 1);
    assert_eq!(Portable::from_text(&child.to_text()).unwrap(), child);
}

#[tokio::test]
async fn a_graph_killed_during_a_fan_out_exports_its_children() {
    // Given a graph that dies at item 5 of 20.
    let store = Arc::new(MemoryStore::new());
    let reached = Arc::new(Notify::new());
    let told = reached.clone();
    let graph = Graph::builder("squares")
        .each(
            "square",
            |_: &u32| (0..20).collect(),
            |n: &u32| format!("n{n}"),
            move |n: u32, _| {
                let told = told.clone();
                async move {
                    if n == 5 {
                        told.notify_one();
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, StepError>(n * n)
                }
            },
        )
        .max_parallel(1)
        .join(|sum: u32, _: ItemEnds<u32, u32>, _| async move { Ok::<_, StepError>(sum) })
        .build()
        .unwrap();
    let engine = Engine::new(store.clone());
    tokio::select! {
        _ = engine.run(&graph, "r-1", 0).into_future() => panic!("it does not end"),
        () = reached.notified() => {}
    }
    let newest = store.newest(&run_id("r-1"), &main_scope()).await.unwrap();

    let exported = Portable::of(store.as_ref(), &newest.header().reference()).await.unwrap();

    assert_eq!(Portable::from_text(&exported.to_text()).unwrap(), exported);
    let ended = exported.children().iter().filter(|child| child.header().end == Some(End::Completed));
    assert_eq!((exported.children().len(), ended.count()), (20, 5));
    let items = exported.blobs().values().next().unwrap();
    assert_eq!(items.iter().filter(|byte| **byte == b'\n').count(), 20);
}

// Bug: children of a fork were left out. Cause: the scopes have the name of the step before the fork, and the
// export searched by the name of the waiting join. Fix: the record that opened a scope identifies its parent.
#[tokio::test]
async fn children_of_a_fork_without_items_come_along() {
    let mut story = Story::new(MemoryStore::new());
    story.add(&main_scope(), Position::default(), |_| ()).await;
    story.add(&scope("fork:a"), opened_by(2), |_| ()).await;
    story.add(&main_scope(), fans_out("merge", 2, None), |_| ()).await;

    assert_eq!(story.export(&main_scope(), 2).await.unwrap().children().len(), 1);
}

#[tokio::test]
async fn an_older_checkpoint_amid_a_fan_out_is_refused() {
    let mut story = Story::new(MemoryStore::new());
    story.add(&main_scope(), Position::default(), |_| ()).await;
    story.add(&scope("each:a"), opened_by(2), |_| ()).await;
    story.add(&main_scope(), fans_out("each", 2, None), |_| ()).await;
    story.add(&main_scope(), Position::default(), |_| ()).await;

    let amid = story.export(&main_scope(), 2).await.unwrap_err();

    assert_eq!(amid.to_string(), "the scopes of step `each` have newer records than checkpoint r-1@2");
    assert!(matches!(amid, ExportError::Amid { .. }));
    assert!(story.export(&main_scope(), 1).await.is_ok());
    assert!(story.export(&main_scope(), 3).await.is_ok());
}

#[tokio::test]
async fn items_that_are_gone_or_damaged_are_missed() {
    for found in [None, Some(&b"[2]\n"[..]), Some(b"[1]"), Some(b"[1]\n[1]\n")] {
        let mut story = Story::new(MemoryStore::new());
        story.add(&main_scope(), fans_out("each", 1, Some(("items/each", b"[1]\n"))), |_| ()).await;
        if let Some(bytes) = found {
            story.blob("items/each", bytes).await;
        }

        assert!(matches!(story.export(&main_scope(), 1).await, Err(ExportError::Items { .. })), "{found:?}");
    }
}
