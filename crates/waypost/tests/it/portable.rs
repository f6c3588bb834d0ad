//! Portable checkpoints: content, detection of every damage, and atomic saving.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use waypost::disk::Disk;
use waypost::engine::Engine;
use waypost::file::FileStore;
use waypost::graph::{Graph, ItemEnds, StepError};
use waypost::memory::{MemoryStore, Part};
use waypost::portable::{ExportError, LoadError, PORTABLE_BYTES_MAX, Portable, SaveError, SaveMode};
use waypost::record::{
    Body, Definition, End, Fan, Flaw, FrontierEntry, FrozenItems, Header, Phase, Position, Record, Repeated,
    RunRecord, Settled, Status, StepPrint, Try,
};
use waypost::schema::{Migrations, SchemaError};
use waypost::store::{Lease, Store, StoreError, StoreExt as _};
use waypost::{CheckpointRef, Digest, ScopePath};
use waypost_testing::disk::{DiskFault, Refusal, Sampling, SimDisk, first_loss};
use waypost_testing::records::{Links, holder, run_id, run_record, scope, sealed, step_id};

mod atomic_save;
mod concurrent_export;
mod damage_detection;
mod fan_outs;

/// A running run in a store.
struct Story<S> {
    store: S,
    links: Links,
    lease: Option<Lease>,
}

fn definition(text: &str) -> Definition {
    let steps = vec![StepPrint {
        id: step_id("plan"),
        fingerprint: Digest::of(text.as_bytes()),
        leads_to: Vec::new(),
    }];
    Definition { text: Some(text.to_owned()), path: None, steps, accepted: BTreeMap::new() }
}

fn frozen() -> RunRecord {
    let config = json!({"topic": "tea", "depth": {"max": 3}}).as_object().unwrap().clone();
    RunRecord { config, definition: definition("first"), ..run_record(&run_id("r-1")) }
}

impl<S: Store> Story<S> {
    fn new(store: S) -> Self {
        Self { store, links: Links::of(&run_id("r-1")), lease: None }
    }

    fn at(&self, scope: &ScopePath, seq: u64) -> CheckpointRef {
        CheckpointRef { run: run_id("r-1"), scope: scope.clone(), seq }
    }

    /// Appends one record whose state is its position.
    async fn add(&mut self, scope: &ScopePath, position: Position, edit: impl FnOnce(&mut Header)) -> Record {
        let mut header = self.links.header(scope);
        edit(&mut header);
        let state = json!({"scope": scope.as_str(), "seq": header.seq, "float": 0.1});
        self.append(Record::seal(header, Some(Body::json(&position, &state, 0).unwrap())).unwrap()).await
    }

    async fn append(&mut self, record: Record) -> Record {
        let header = record.header();
        self.links.continue_after(&header.scope, header.seq, Some(record.digest()));
        let batch = self.links.batch(vec![record.clone()]);
        match &self.lease {
            Some(lease) => drop(self.store.append(&[lease], batch).await.unwrap()),
            None => {
                let lease = self.store.create(&sealed(frozen()), batch, &holder("test")).await.unwrap();
                self.lease = Some(lease);
            }
        }
        record
    }

    async fn export(&self, scope: &ScopePath, seq: u64) -> Result<Portable, ExportError> {
        Portable::of(&self.store, &self.at(scope, seq)).await
    }

    async fn blob(&self, name: &str, bytes: &[u8]) {
        self.store.blobs().append(self.lease.as_ref().unwrap(), name, bytes).await.unwrap();
    }
}

fn main_scope() -> ScopePath {
    ScopePath::main()
}

fn entry(step: &str, status: Status, since: u64) -> FrontierEntry {
    let at = Try { attempt: 1, ..Try::default() };
    FrontierEntry { status, at, since, ..FrontierEntry::ready(step_id(step)) }
}

fn frontier(entries: Vec<FrontierEntry>) -> Position {
    Position { frontier: entries, ..Position::default() }
}

/// Returns a position in which `step` waits for its children since record `since`.
fn fans_out(step: &str, since: u64, items: Option<(&str, &[u8])>) -> Position {
    let items = items.map(|(blob, bytes)| FrozenItems {
        blob: blob.to_owned(),
        bytes: bytes.len() as u64,
        digest: Digest::of(bytes),
    });
    let fan = Some(Fan { items, total: 3, opened: 3, since, ..Fan::new(None, 0) });
    frontier(vec![FrontierEntry { fan, ..entry(step, Status::Waiting, since) }])
}

/// Returns the position of a child that record `origin` opened.
fn opened_by(origin: u64) -> Position {
    Position { origin: Some(origin), ..Position::default() }
}

/// Returns a valid checkpoint other than `small`.
async fn other() -> Portable {
    let mut story = Story::new(MemoryStore::new());
    story.add(&main_scope(), Position::default(), |_| ()).await;
    story.export(&main_scope(), 1).await.unwrap()
}

fn seqs(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.header().seq).collect()
}

/// Returns a small valid checkpoint.
async fn small() -> Portable {
    let mut story = Story::new(MemoryStore::new());
    story.add(&main_scope(), frontier(vec![entry("plan", Status::Started, 1)]), |_| ()).await;
    let ledger = BTreeMap::from([(step_id("plan"), Settled::completed(1))]);
    let position = Position { ledger: ledger.into(), ..frontier(vec![entry("search", Status::Started, 2)]) };
    story.add(&main_scope(), position, |_| ()).await;
    story.export(&main_scope(), 2).await.unwrap()
}

fn text_of(portable: &Portable) -> String {
    String::from_utf8(portable.to_text()).unwrap()
}

#[tokio::test]
async fn it_holds_what_a_new_run_needs() {
    // Given a run whose definition changed at @2, with a memo of the running step.
    let mut story = Story::new(MemoryStore::new());
    let step = |name: &'static str| move |header: &mut Header| header.step = Some(step_id(name));
    story.add(&main_scope(), Position::default(), step("other")).await;
    let changed = |header: &mut Header| header.definition = Some(definition("second"));
    story.add(&main_scope(), Position::default(), changed).await;
    story.add(&main_scope(), Position::default(), step("plan")).await;
    story.add(&main_scope(), Position::default(), step("other")).await;
    let memo = |header: &mut Header| {
        header.step = Some(step_id("search"));
        header.phase = Phase::Progress { key: "page-1".to_owned(), value: json!("found") };
    };
    story.add(&main_scope(), Position::default(), memo).await;
    let position = Position {
        ledger: [(step_id("plan"), Settled::completed(3))].into_iter().collect(),
        definition: Some(2),
        ..frontier(vec![entry("search", Status::Started, 4)])
    };
    let newest = story.add(&main_scope(), position.clone(), step("other")).await;

    // When the run is exported, saved, and loaded elsewhere.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("review.json");
    let exported = story.export(&main_scope(), 6).await.unwrap();
    exported.save(&path, SaveMode::New).unwrap();
    let loaded = Portable::load(&path).unwrap();

    // Then the loaded file has the headers @2 and @3 that the position names, and the memo @5.
    assert_eq!(loaded, exported);
    assert_eq!(loaded.checkpoint(), &newest);
    assert_eq!(loaded.position(), &position);
    assert_eq!(loaded.run(), &sealed(frozen()));
    assert_eq!(loaded.definition(), &definition("second"));
    assert_eq!(loaded.config(), &frozen().config);
    assert_eq!(seqs(loaded.history()), [2, 3, 5]);
    assert!(loaded.history().iter().all(|record| record.body_bytes().is_none()));
    assert_eq!((loaded.children().len(), loaded.blobs().len()), (0, 0));
    let parent = loaded.parent();
    assert_eq!((parent.run, parent.scope, parent.seq), (run_id("r-1"), main_scope(), 6));
    assert_eq!(parent.digest, newest.digest());
    let state: Value = loaded.state(&Migrations::default()).unwrap();
    assert_eq!(state, json!({"scope": "main", "seq": 6, "float": 0.1}));
}

#[tokio::test]
async fn it_is_plain_json_that_a_person_can_read() {
    let value: Value = serde_json::from_slice(&small().await.to_text()).unwrap();

    let members: Vec<&String> = value.as_object().unwrap().keys().collect();
    assert_eq!(
        members,
        [
            "integrity_hash",
            "format",
            "portable_checkpoint",
            "tool",
            "config",
            "run_digest",
            "run",
            "checkpoint",
            "history",
            "children",
            "blobs",
            "begun_since"
        ]
    );
    assert_eq!(value["portable_checkpoint"], "r-1@2");
    assert_eq!(value["config"], json!({"topic": "tea", "depth": {"max": 3}}));
    assert_eq!(value["checkpoint"]["state"]["seq"], 2);
    assert_eq!(value["checkpoint"]["position"]["frontier"][0]["step"], "search");
    assert!(value["checkpoint"]["header"]["created_at"].is_string());
}

#[tokio::test]
async fn every_store_gives_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut texts = Vec::new();
    let memory: Box<dyn Fn() -> Box<dyn Store>> = Box::new(|| Box::new(MemoryStore::new()));
    let folder = dir.path().join("store");
    let file = move || Box::new(FileStore::open(folder.clone()).unwrap()) as Box<dyn Store>;
    for open in [memory, Box::new(file)] {
        let store = open();
        let mut links = Links::of(&run_id("r-1"));
        let batch = links.step();
        let lease = store.create(&sealed(frozen()), batch, &holder("test")).await.unwrap();
        store.append(&[&lease], links.step()).await.unwrap();
        let at = CheckpointRef { run: run_id("r-1"), scope: main_scope(), seq: 2 };
        texts.push(Portable::of(store.as_ref(), &at).await.unwrap().to_text());
    }

    assert_eq!(texts[0], texts[1]);
}

#[tokio::test]
async fn what_is_damaged_or_not_there_is_not_exported() {
    let run = run_id("r-1");
    let store = MemoryStore::new();
    let mut story = Story::new(store.clone());
    story.add(&main_scope(), Position::default(), |_| ()).await;
    let ledger = BTreeMap::from([(step_id("plan"), Settled::completed(1))]);
    story.add(&main_scope(), Position { ledger: ledger.into(), ..Position::default() }, |_| ()).await;
    story.add(&scope("each:a"), opened_by(3), |_| ()).await;
    story.add(&scope("each:a"), opened_by(3), |_| ()).await;
    story.add(&main_scope(), fans_out("each", 3, None), |_| ()).await;
    let damaged = |error: Result<Portable, ExportError>| match error {
        Err(ExportError::Store(StoreError::Damaged { damage, .. })) => (damage.scope.to_string(), damage.seq),
        other => panic!("{other:?}"),
    };

    assert!(matches!(
        story.export(&main_scope(), 4).await,
        Err(ExportError::Store(StoreError::NotFound { .. }))
    ));
    assert!(story.export(&main_scope(), 2).await.is_ok());
    // The ledger names this header, and the walk of the history would skip it.
    store.damage(&run, &main_scope(), 1, Part::Header);
    assert_eq!(damaged(story.export(&main_scope(), 2).await), ("main".to_owned(), 1));
    // This is the newest header of a child; the export must not use the older one instead.
    store.damage(&run, &scope("each:a"), 2, Part::Header);
    assert_eq!(damaged(story.export(&main_scope(), 3).await), ("each:a".to_owned(), 2));
    store.damage(&run, &main_scope(), 3, Part::Body);
    assert_eq!(damaged(story.export(&main_scope(), 3).await), ("main".to_owned(), 3));
}

// Bug: a run resumed with another definition could not be exported once the record of that change was damaged,
// although the run itself could resume. Cause: the export required the header by its number. Fix: the record
// behind the damage repeats the definition, and the export uses that record.
#[tokio::test]
async fn a_definition_with_a_damaged_record_exports_the_last_one() {
    let store = MemoryStore::new();
    let mut story = Story::new(store.clone());
    let changed = || Position { definition: Some(2), config: Some(2), ..Position::default() };
    let config = || Some(json!({ "retries": 3 }).as_object().unwrap().clone());
    let other = || Some(definition("other"));
    story.add(&main_scope(), Position::default(), |_| ()).await;
    let changes = |header: &mut Header| (header.definition, header.config) = (other(), config());
    story.add(&main_scope(), changed(), changes).await;
    let again = Repeated { of: 2, definition: other(), config: config() };
    story.add(&main_scope(), changed(), |header| header.repeated = Some(Box::new(again))).await;
    story.add(&main_scope(), changed(), |_| ()).await;
    store.damage(&run_id("r-1"), &main_scope(), 2, Part::Header);

    for seq in [3, 4] {
        let exported = story.export(&main_scope(), seq).await.unwrap();
        let portable = Portable::from_text(&exported.to_text()).unwrap();
        assert_eq!((portable.definition(), portable.config()), (&other().unwrap(), &config().unwrap()));
        assert_eq!(portable.history().len(), usize::from(seq == 4));
    }
    store.damage(&run_id("r-1"), &main_scope(), 3, Part::Header);
    assert!(matches!(story.export(&main_scope(), 4).await, Err(ExportError::Store(_))), "nobody knows it");
}

#[tokio::test]
async fn a_checkpoint_without_a_state_of_its_own_is_refused() {
    let store = MemoryStore::new();
    let mut links = Links::of(&run_id("r-1"));
    let bare = links.seal_bare(links.header(&main_scope()));
    let full = links.record(&main_scope());
    let batch = links.batch(vec![bare, full]);
    store.create(&sealed(frozen()), batch, &holder("test")).await.unwrap();

    let at = |seq| CheckpointRef { run: run_id("r-1"), scope: main_scope(), seq };
    assert!(matches!(Portable::of(&store, &at(1)).await, Err(ExportError::Absent { .. })));
    assert!(Portable::of(&store, &at(2)).await.is_ok());
}

#[tokio::test]
async fn a_state_comes_back_to_the_byte_whatever_its_codec() {
    for (bytes, codec) in [
        (&b"\x80\x04\x95pickle"[..], "pickle"),
        (b"{ \"spaced\" : 1.50 }", "json"),
        (b" [1]\n", "json"),
        (b"null", "json"),
        (b"", "empty"),
    ] {
        let mut story = Story::new(MemoryStore::new());
        let header = story.links.header(&main_scope());
        let body = Body::opaque(&Position::default(), bytes, codec, 0).unwrap();
        story.append(Record::seal(header, Some(body)).unwrap()).await;

        let exported = story.export(&main_scope(), 1).await.unwrap();
        let loaded = Portable::from_text(&exported.to_text()).unwrap();

        assert_eq!(loaded.checkpoint().state_bytes(), Some(bytes), "{codec}");
        let state = loaded.state::<Value>(&Migrations::default());
        assert_eq!(matches!(state, Err(SchemaError::Foreign { .. })), codec != "json");
    }
}

#[tokio::test]
async fn its_state_is_brought_to_the_current_version() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Counted {
        seq: u64,
        count: u32,
    }
    let migrations = Migrations::builder()
        .add(0, |state| {
            state["count"] = json!(7);
            Ok(())
        })
        .build()
        .unwrap();

    let state: Counted = small().await.state(&migrations).unwrap();

    assert_eq!(state, Counted { seq: 2, count: 7 });
}

#[tokio::test]
async fn the_config_is_the_one_in_force() {
    let later = json!({"topic": "coffee"}).as_object().unwrap().clone();
    let mut story = Story::new(MemoryStore::new());
    story.add(&main_scope(), Position::default(), |_| ()).await;
    let changed = later.clone();
    let position = Position { config: Some(2), ..Position::default() };
    story.add(&main_scope(), position.clone(), |header| header.config = Some(changed)).await;
    story.add(&main_scope(), position, |_| ()).await;

    for (seq, expect) in [(1, &frozen().config), (2, &later), (3, &later)] {
        let exported = story.export(&main_scope(), seq).await.unwrap();
        assert_eq!(exported.config(), expect);
        assert_eq!(Portable::from_text(&exported.to_text()).unwrap(), exported);
    }
}
