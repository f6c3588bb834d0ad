//! Hash sets and hash maps in states: equal states have equal bytes, and their order causes no rerun.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use waypost::memory::MemoryStore;
use waypost::record::{Claim, Pack, RunStatus, encode};
use waypost::{Context, Engine, Graph, StepError};

/// A state of unordered collections.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct Crawl {
    seen: HashSet<String>,
    found: HashMap<String, HashSet<u32>>,
    nested: Vec<HashMap<u8, HashMap<String, bool>>>,
    #[serde(flatten)]
    more: More,
}

#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct More {
    tags: HashSet<(u8, String)>,
}

fn crawl() -> Crawl {
    let pages = 0..24u8;
    Crawl {
        seen: pages.clone().map(|page| format!("page {page}")).collect(),
        found: pages.clone().map(|page| (format!("\"{page}\""), (0..u32::from(page)).collect())).collect(),
        nested: vec![pages.clone().map(|page| (page, HashMap::from([(page.to_string(), true)]))).collect()],
        more: More { tags: pages.map(|page| (page % 5, page.to_string())).collect() },
    }
}

fn written<S: Serialize>(state: &S) -> String {
    let mut bytes = b"before ".to_vec();
    encode(state, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap().strip_prefix("before ").unwrap().to_owned()
}

fn read_again<S: Serialize + DeserializeOwned>(state: &S) -> S {
    serde_json::from_str(&written(state)).unwrap()
}

#[test]
fn equal_sets_and_maps_are_written_as_equal_bytes() {
    let state = crawl();
    let text = written(&state);
    for _ in 0..8 {
        let other = crawl();
        assert_eq!(written(&other), text);
        assert_eq!((written(&read_again(&other)), read_again(&other)), (text.clone(), state.clone()));
    }
    let small: HashSet<u32> = [3, 1, 2, 10].into();
    assert_eq!(written(&small), "[1,10,2,3]");
    assert_eq!(written(&HashMap::from([("b", 1), ("a", 2)])), r#"{"a":2,"b":1}"#);
    assert_eq!(written(&HashSet::<u8>::new()), "[]");
}

#[test]
fn lists_and_ordered_maps_keep_their_order() {
    assert_eq!(written(&vec![3, 1, 2]), "[3,1,2]");
    assert_eq!(written(&vec![HashSet::from([2]), HashSet::from([1])]), "[[2],[1]]");
    assert_eq!(written(&BTreeMap::from([(10, 'a'), (9, 'b')])), r#"{"9":"b","10":"a"}"#);
}

#[test]
fn a_bad_value_in_a_set_or_map_is_still_named() {
    let map = HashMap::from([("price", f64::NAN)]);
    assert_eq!(encode(&map, &mut Vec::new()).unwrap_err().to_string(), "price: JSON has no NaN");
    let same: HashMap<Key, u8> = HashMap::from([(Key::Number(1), 1), (Key::Text("1"), 2)]);
    let refused = encode(&same, &mut Vec::new()).unwrap_err();
    assert!(refused.to_string().contains("two of its keys are"), "{refused}");
}

/// Keys that may have the same text.
#[derive(PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
enum Key {
    Number(u8),
    Text(&'static str),
}

// Bug: a step reran for its evidence and returned the same set in another order, so all downstream steps ran
// again.
#[tokio::test]
async fn a_set_made_again_in_another_order_reruns_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let file = folder.path().join("page");
    let (fetching, parsing) = (Arc::clone(&said), Arc::clone(&said));
    let path = file.clone();
    let graph = Graph::<Crawl>::builder("crawl")
        .step("fetch", move |_, _| {
            fetching.lock().unwrap().push("fetch");
            std::fs::write(&path, "page").unwrap();
            async { Ok::<_, StepError>(crawl()) }
        })
        .evidence(|_| Pack::all(vec![Claim::file("page")]))
        .step("parse", move |state: Crawl, _: Context| {
            parsing.lock().unwrap().push("parse");
            async { Ok::<_, StepError>(state) }
        })
        .edge("fetch", "parse")
        .build()
        .unwrap();
    let engine = Engine::new(Arc::new(MemoryStore::new())).with_base(folder.path());

    engine.run(&graph, "r", Crawl::default()).await.unwrap();
    std::fs::remove_file(&file).unwrap();
    let again = engine.resume(&graph, "r").await.unwrap();

    assert_eq!((again.status, again.state), (RunStatus::Completed, crawl()));
    assert_eq!(*said.lock().unwrap(), ["fetch", "parse", "fetch"]);
}
