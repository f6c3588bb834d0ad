//! Item results that JSON writes as null, or without content.

use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use waypost::graph::{Child, ItemEnds};
use waypost::record::{Claim, Pack, RunStatus};
use waypost::schema::check_state;
use waypost::{Context, Engine, FileStore, Graph, StepError};

use crate::faulty::World;
use crate::test_graphs::{Notes, Stage};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Sent;

/// Builds a graph of two items, each with this result, whose first join fails.
fn mails<R>(stage: &Stage, result: R) -> Graph<Notes>
where
    R: Debug + Clone + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let (working, joining, expect) = (stage.clone(), stage.clone(), result.clone());
    let work = move |item: String, context: Context| {
        let (stage, result) = (working.clone(), result.clone());
        async move {
            stage.pass(&item).await?;
            context.exited(0);
            Ok::<_, StepError>(result)
        }
    };
    let items = |_: &Notes| vec!["ada".to_owned(), "bob".to_owned()];
    let each = Graph::builder("mails").each("mail", items, String::clone, work);
    let each = each.max_parallel(1).evidence(|_, _| Pack::all([Claim::exited("mail", 0)]));
    let join = move |mut notes: Notes, mut ends: ItemEnds<String, R>, _: Context| {
        let (stage, expect) = (joining.clone(), expect.clone());
        async move {
            stage.pass("join").await?;
            while let Some(end) = ends.next().await? {
                assert_eq!(end.result.unwrap(), expect);
                notes.done.push(end.key);
            }
            Ok::<_, StepError>(notes)
        }
    };
    each.join(join).build().unwrap()
}

async fn completes<R>(result: R)
where
    R: Debug + Clone + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    for mut world in World::each() {
        let stage = Stage::default();
        let graph = mails(&stage, result.clone());
        stage.fail("join", 1);
        let failed = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        assert_eq!(failed.status, RunStatus::Failed, "{result:?}");
        world.reopen();

        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!((outcome.status, outcome.state.done.join(" ")), (RunStatus::Completed, "ada bob".into()));
        assert_eq!(stage.said(), ["ada", "bob", "join", "join"], "{result:?}");
    }
}

// Bug: items with the result `()` ran at every resume, and the run never completed. Cause: the result was stored
// as an `Option`, and a null `Some` reads as `None`. The result was refused after its effect. Fix: a result
// exists if its field exists, null or not.
#[tokio::test]
async fn items_without_a_result_complete() {
    completes(()).await;
    completes(Sent).await;
    completes(Value::Null).await;
    completes(None::<u32>).await;
    completes(Some(7)).await;
}

#[tokio::test]
async fn an_item_that_is_null_itself_completes() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::new(std::sync::Arc::new(FileStore::open(folder.path()).unwrap()));
    let work = |item: Option<u32>, _: Context| async move { Ok::<_, StepError>(item) };
    let each =
        Graph::builder("null").each("each", |_: &Notes| vec![None, Some(1)], |n| format!("{n:?}"), work);
    let join = |mut notes: Notes, mut ends: ItemEnds<Option<u32>, Option<u32>>, _: Context| async move {
        while let Some(end) = ends.next().await? {
            notes.done.push(format!("{:?}", end.result.unwrap()));
        }
        Ok::<_, StepError>(notes)
    };
    let graph = each.join(join).build().unwrap();

    let outcome = engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.state.done, ["None", "Some(1)"]);
}

#[test]
fn a_child_keeps_no_result_apart_from_a_null_one() {
    let child = |result| Child { index: 0, item: 1, result };

    let [none, null] = [None, Some(())].map(|result| serde_json::to_string(&child(result)).unwrap());

    assert_eq!(none, r#"{"index":0,"item":1}"#);
    assert_eq!(null, r#"{"index":0,"item":1,"result":null}"#);
    for (text, expect) in [(none, None), (null, Some(()))] {
        let read: Child<u32, ()> = serde_json::from_str(&text).unwrap();
        assert_eq!(read.result, expect);
        check_state(&read).unwrap();
    }
}
