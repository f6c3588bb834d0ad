//! Thousands of scopes: the number opened at once, their events, and the ends that a join reads.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use waypost::engine::{CHILD_PAGE, Engine, Observer};
use waypost::graph::{Each, ItemEnds};
use waypost::memory::{MemoryStore, Part};
use waypost::record::{Position, Record, RunStatus};
use waypost::store::{Progress, Store as _};
use waypost::{Context, Graph, RunId, StepError};

#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct Sum {
    ends: Vec<String>,
}

type Then = Box<dyn Fn(&Record) + Send + Sync>;

/// The scopes opened by each commit, by key, and an action per committed record.
#[derive(Default)]
struct Watch {
    opened: Mutex<Vec<Vec<String>>>,
    then: Option<Then>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Observer for Watch {
    fn committed(&self, records: &[Record], _: &Position, _: Progress) {
        let children = records.iter().filter(|record| record.header().seq == 1);
        let keys = children.filter_map(|record| record.header().scope.opened_by()).map(|(_, key)| key);
        self.opened.lock().unwrap().push(keys.collect());
        records.iter().for_each(|record| self.then.iter().for_each(|then| then(record)));
    }

    fn warned(&self, _: &str) {}
}

/// Builds items `n0`, `n1` and so on; each returns its number.
fn items(count: u32) -> Each<Sum, u32, u32> {
    let work = |item: u32, _: Context| async move { Ok::<_, StepError>(item) };
    Graph::<Sum>::builder("items").each("items", move |_| (0..count).collect(), |n| format!("n{n}"), work)
}

async fn listed(mut sum: Sum, mut ends: ItemEnds<u32, u32>, _: Context) -> Result<Sum, StepError> {
    while let Some(end) = ends.next().await? {
        let told = end.result.map_or_else(|failure| failure.error.join(": "), |result| result.to_string());
        sum.ends.push(format!("{}={told}", end.key));
    }
    Ok(sum)
}

/// Bug: each item that ended while the last item of a page began opened another page. Thousands of scopes were
/// in memory at once.
#[tokio::test]
async fn no_commit_opens_more_than_a_page_of_scopes() {
    let count = 3 * CHILD_PAGE as u32 + 500;
    let watch = Arc::new(Watch::default());
    let engine = Engine::new(Arc::new(MemoryStore::new())).with_observer(watch.clone());

    let outcome = engine.run(&items(count).join(listed).build().unwrap(), "r", Sum::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    let opened = watch.opened.lock().unwrap();
    assert!(
        opened.iter().all(|keys| keys.len() as u64 <= CHILD_PAGE),
        "a page is all that is opened at once"
    );
    assert_eq!(opened.concat(), (0..count).map(|n| format!("n{n}")).collect::<Vec<_>>(), "in their order");
    assert_eq!(outcome.state.ends.len() as u32, count);
}

#[tokio::test]
async fn a_scope_with_a_damaged_end_reruns_before_the_join() {
    let store = MemoryStore::new();
    let run = RunId::new("r").unwrap();
    let (damaged, id) = (store.clone(), run.clone());
    let damage = move |record: &Record| {
        let header = record.header();
        if header.end.is_some() && header.scope.as_str() == "items:n1" {
            damaged.damage(&id, &header.scope, header.seq, Part::Header);
        }
    };
    let watch = Watch { then: Some(Box::new(damage)), ..Watch::default() };
    let graph = items(3).max_parallel(1).join(listed).build().unwrap();
    let watched = Engine::new(Arc::new(store.clone())).with_observer(Arc::new(watch));

    let outcome = watched.run(&graph, "r", Sum::default()).await.unwrap();
    let resumed = Engine::new(Arc::new(store)).resume(&graph, "r").await.unwrap();

    assert_eq!(outcome.status, RunStatus::Failed, "the join cannot read it");
    assert_eq!(outcome.state, Sum::default());
    assert_eq!(resumed.state.ends, ["n0=0", "n1=1", "n2=2"]);
}

#[tokio::test]
async fn a_run_is_in_doubt_while_a_scope_has_a_careful_cut_step() {
    let store = MemoryStore::new();
    let is_doubtful = |store: &MemoryStore| {
        let store = store.clone();
        async move { store.run(&RunId::new("r").unwrap()).await.unwrap().summary.summary.doubtful }
    };
    let (within, after) = (store.clone(), store.clone());
    let work = move |item: u32, _: Context| {
        let doubtful = is_doubtful(&within);
        async move { Ok::<_, StepError>((item, doubtful.await)) }
    };
    let each = Graph::<Sum>::builder("doubt")
        .each("items", |_| (0..5).collect(), u32::to_string, work)
        .max_parallel(2)
        .not_idempotent();
    let graph = each.join(move |mut sum: Sum, mut ends, _| {
        let doubtful = is_doubtful(&after);
        async move {
            while let Some(end) = ends.next().await? {
                sum.ends.push(format!("{:?}", end.result.map(|(_, doubtful)| doubtful)));
            }
            sum.ends.push(format!("{}", doubtful.await));
            Ok::<_, StepError>(sum)
        }
    });

    let outcome =
        Engine::new(Arc::new(store)).run(&graph.build().unwrap(), "r", Sum::default()).await.unwrap();

    let expect = ["Ok(true)", "Ok(true)", "Ok(true)", "Ok(true)", "Ok(true)", "false"];
    assert_eq!(outcome.state.ends, expect);
}
