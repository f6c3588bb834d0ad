//! A portable checkpoint: what it holds, that every damage of it is seen, and that saving is all or nothing.

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
use waypost::memory::MemoryStore;
use waypost::portable::{ExportError, LoadError, PORTABLE_BYTES_MAX, Portable, SaveError, SaveMode};
use waypost::record::{
    Body, Definition, End, Fan, Flaw, FrontierEntry, FrozenItems, Header, Phase, Position, Record, RunRecord,
    Settled, Status, StepPrint, Try,
};
use waypost::schema::{Migrations, SchemaError};
use waypost::store::{Lease, Store, StoreError, StoreExt as _};
use waypost::{BranchPath, CheckpointRef, Digest};
use waypost_testing::disk::{Fault, Refusal, Sampling, SimDisk, first_loss};
use waypost_testing::records::{Links, branch, holder, run_id, run_record, sealed, step_id};

mod overtaken;

/// A run under way in a store.
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
    Definition { text: Some(text.to_owned()), steps }
}

fn frozen() -> RunRecord {
    let config = json!({"topic": "tea", "depth": {"max": 3}}).as_object().unwrap().clone();
    RunRecord { config, definition: definition("first"), ..run_record(&run_id("r-1")) }
}

impl<S: Store> Story<S> {
    fn new(store: S) -> Self {
        Self { store, links: Links::of(&run_id("r-1")), lease: None }
    }

    fn at(&self, branch: &BranchPath, seq: u64) -> CheckpointRef {
        CheckpointRef { run: run_id("r-1"), branch: branch.clone(), seq }
    }

    /// Appends one record; its state names its place.
    async fn add(
        &mut self,
        branch: &BranchPath,
        position: Position,
        edit: impl FnOnce(&mut Header),
    ) -> Record {
        let mut header = self.links.header(branch);
        edit(&mut header);
        let state = json!({"branch": branch.as_str(), "seq": header.seq, "float": 0.1});
        self.append(Record::seal(header, Some(Body::json(&position, &state, 0).unwrap())).unwrap()).await
    }

    async fn append(&mut self, record: Record) -> Record {
        let header = record.header();
        self.links.go_on_behind(&header.branch, header.seq, Some(record.digest()));
        let batch = self.links.batch(vec![record.clone()]);
        match &self.lease {
            Some(lease) => drop(self.store.append(lease, batch).await.unwrap()),
            None => {
                let lease = self.store.create(&sealed(frozen()), batch, &holder("test")).await.unwrap();
                self.lease = Some(lease);
            }
        }
        record
    }

    async fn export(&self, branch: &BranchPath, seq: u64) -> Result<Portable, ExportError> {
        Portable::of(&self.store, &self.at(branch, seq)).await
    }

    async fn blob(&self, name: &str, bytes: &[u8]) {
        self.store.blobs().append(self.lease.as_ref().unwrap(), name, bytes).await.unwrap();
    }
}

fn main_branch() -> BranchPath {
    BranchPath::main()
}

fn entry(step: &str, status: Status, since: u64) -> FrontierEntry {
    let at = Try { attempt: 1, ..Try::default() };
    FrontierEntry { status, at, since, ..FrontierEntry::ready(step_id(step)) }
}

fn frontier(entries: Vec<FrontierEntry>) -> Position {
    Position { frontier: entries, ..Position::default() }
}

/// A position in which `step` waits for its children since record `since`.
fn fans_out(step: &str, since: u64, items: Option<(&str, &[u8])>) -> Position {
    let items = items.map(|(blob, bytes)| FrozenItems {
        blob: blob.to_owned(),
        bytes: bytes.len() as u64,
        digest: Digest::of(bytes),
    });
    let fan = Some(Fan { items, total: 3, opened: 3, since });
    frontier(vec![FrontierEntry { fan, ..entry(step, Status::Waiting, since) }])
}

/// The position of a child that was opened by record `origin`.
fn opened_by(origin: u64) -> Position {
    Position { origin: Some(origin), ..Position::default() }
}

/// Another sound one than `small`.
async fn other() -> Portable {
    let mut story = Story::new(MemoryStore::new());
    story.add(&main_branch(), Position::default(), |_| ()).await;
    story.export(&main_branch(), 1).await.unwrap()
}

fn seqs(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.header().seq).collect()
}

/// A small sound one.
async fn small() -> Portable {
    let mut story = Story::new(MemoryStore::new());
    story.add(&main_branch(), frontier(vec![entry("plan", Status::Started, 1)]), |_| ()).await;
    let ledger = BTreeMap::from([(step_id("plan"), Settled::Completed(1))]);
    let position = Position { ledger, ..frontier(vec![entry("search", Status::Started, 2)]) };
    story.add(&main_branch(), position, |_| ()).await;
    story.export(&main_branch(), 2).await.unwrap()
}

/// Makes a text vouch for itself again after it was edited.
fn rehashed(text: &str) -> Vec<u8> {
    let mut text = text.as_bytes().to_vec();
    let place = 19..83;
    text[place.clone()].fill(b'0');
    let hash = Digest::from_bytes(Sha256::digest(&text).into()).to_string();
    text[place].copy_from_slice(hash.as_bytes());
    text
}

fn text_of(portable: &Portable) -> String {
    String::from_utf8(portable.to_text()).unwrap()
}

#[tokio::test]
async fn it_holds_what_a_new_run_needs() {
    // Given a run whose definition was changed at @2, with a memo of the step under way.
    let mut story = Story::new(MemoryStore::new());
    let step = |name: &'static str| move |header: &mut Header| header.step = Some(step_id(name));
    story.add(&main_branch(), Position::default(), step("other")).await;
    let changed = |header: &mut Header| header.definition = Some(definition("second"));
    story.add(&main_branch(), Position::default(), changed).await;
    story.add(&main_branch(), Position::default(), step("plan")).await;
    story.add(&main_branch(), Position::default(), step("other")).await;
    let memo = |header: &mut Header| {
        header.step = Some(step_id("search"));
        header.phase = Phase::Progress { key: "page-1".to_owned(), value: json!("found") };
    };
    story.add(&main_branch(), Position::default(), memo).await;
    let position = Position {
        ledger: BTreeMap::from([(step_id("plan"), Settled::Completed(3))]),
        definition: Some(2),
        ..frontier(vec![entry("search", Status::Started, 4)])
    };
    let newest = story.add(&main_branch(), position.clone(), step("other")).await;

    // When it is exported, saved, and loaded elsewhere.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("review.json");
    let exported = story.export(&main_branch(), 6).await.unwrap();
    exported.save(&path, SaveMode::New).unwrap();
    let loaded = Portable::load(&path).unwrap();

    // Then all of it is there: the headers @2 and @3 that the position names, and the memo @5.
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
    assert_eq!((parent.run, parent.branch, parent.seq), (run_id("r-1"), main_branch(), 6));
    assert_eq!(parent.digest, newest.digest());
    let state: Value = loaded.state(&Migrations::default()).unwrap();
    assert_eq!(state, json!({"branch": "main", "seq": 6, "float": 0.1}));
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
            "blobs"
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
        store.append(&lease, links.step()).await.unwrap();
        let at = CheckpointRef { run: run_id("r-1"), branch: main_branch(), seq: 2 };
        texts.push(Portable::of(store.as_ref(), &at).await.unwrap().to_text());
    }

    assert_eq!(texts[0], texts[1]);
}

#[tokio::test]
async fn every_flipped_bit_is_seen() {
    let portable = small().await;
    let text = portable.to_text();
    assert_eq!(Portable::from_text(&text).unwrap(), portable);

    for at in 0..text.len() {
        for bit in 0..8 {
            let mut spoilt = text.clone();
            spoilt[at] ^= 1 << bit;
            let flaw = Portable::from_text(&spoilt).expect_err("a bit was flipped");
            // A flipped digit of the format must not look like a newer version.
            assert!(matches!(flaw, Flaw::Digest { .. } | Flaw::Malformed(_)), "byte {at}, bit {bit}: {flaw}");
        }
    }
}

#[tokio::test]
async fn every_truncation_and_every_addition_is_seen() {
    let text = small().await.to_text();

    for length in 0..text.len() {
        assert!(Portable::from_text(&text[..length]).is_err(), "cut to {length} bytes");
    }
    for more in [&b"\n"[..], b" ", b"{}", b"\0"] {
        assert!(Portable::from_text(&[&text, more].concat()).is_err());
        assert!(Portable::from_text(&[more, &text].concat()).is_err());
    }
    assert!(Portable::from_text(&[text.clone(), text].concat()).is_err());
}

#[tokio::test]
async fn not_found_corrupt_and_incompatible_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let text = text_of(&small().await);
    let load = |name: &str, bytes: Option<&[u8]>| {
        let path = dir.path().join(name);
        bytes.into_iter().for_each(|bytes| fs::write(&path, bytes).unwrap());
        Portable::load(&path).unwrap_err()
    };

    let missing = load("missing.json", None);
    assert!(matches!(missing, LoadError::NotFound { .. }), "{missing:?}");
    assert!(missing.to_string().ends_with("missing.json"));
    assert!(matches!(Portable::load(&dir.path().join("no/folder")), Err(LoadError::NotFound { .. })));

    for (name, bytes) in [
        ("empty", &b""[..]),
        ("json", b"{}"),
        ("binary", &[0xFF; 200]),
        ("half", &text.as_bytes()[..text.len() / 2]),
        ("edited", text.replace("tea", "gin").as_bytes()),
    ] {
        let corrupt = load(name, Some(bytes));
        assert!(matches!(corrupt, LoadError::Corrupt { .. }), "{name}: {corrupt:?}");
        assert!(
            corrupt.to_string().contains(&format!("{name} is no sound portable checkpoint: it")),
            "{corrupt}"
        );
    }

    let newer = rehashed(&text.replace("\"format\":1", "\"format\":99"));
    let incompatible = load("newer", Some(&newer));
    assert!(
        matches!(incompatible, LoadError::Incompatible { found: 99, supported: 1, .. }),
        "{incompatible:?}"
    );
    assert!(incompatible.to_string().ends_with("newer has format 99, this version reads up to 1"));
}

#[tokio::test]
async fn a_record_of_a_newer_format_is_incompatible() {
    // Given a file of today's format around a record of tomorrow's.
    let portable = small().await;
    let text = text_of(&portable);
    let header = String::from_utf8(portable.checkpoint().header_bytes().to_vec()).unwrap();
    let newer = header.replacen("{\"v\":1", "{\"v\":2", 1);
    let digest = Digest::of(newer.as_bytes()).to_string();
    let text = text.replace(&header, &newer).replace(&portable.checkpoint().digest().to_string(), &digest);

    let refused = Portable::from_text(&rehashed(&text)).unwrap_err();

    assert_eq!(refused, Flaw::Newer { found: 2, supported: 1 });
}

#[tokio::test]
async fn what_is_no_regular_file_is_neither_waited_for_nor_read() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    let huge = dir.path().join("huge");
    fs::File::create(&huge).unwrap().set_len(PORTABLE_BYTES_MAX + 1).unwrap();
    let sound = dir.path().join("sound.json");
    small().await.save(&sound, SaveMode::New).unwrap();
    let link = dir.path().join("newest.json");
    symlink("sound.json", &link).unwrap();

    assert!(matches!(Portable::load(&pipe), Err(LoadError::Io { .. })));
    assert!(matches!(Portable::load(dir.path()), Err(LoadError::Io { .. })));
    assert!(matches!(Portable::load(&huge), Err(LoadError::Corrupt { flaw: Flaw::Limit(_), .. })));
    assert_eq!(Portable::load(&link).unwrap(), small().await);
}

#[tokio::test]
async fn saving_takes_no_name_that_is_taken_unless_asked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    fs::write(&path, "precious").unwrap();
    let portable = small().await;

    let refused = portable.save(&path, SaveMode::New).unwrap_err();
    assert!(matches!(refused, SaveError::Exists { .. }), "{refused:?}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    portable.save(&path, SaveMode::Replace).unwrap();

    assert_eq!(Portable::load(&path).unwrap(), portable);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing unfinished is left");
    for no_file in ["..", "/", ""] {
        assert!(matches!(portable.save(Path::new(no_file), SaveMode::New), Err(SaveError::Io { .. })));
    }
    let nowhere = dir.path().join("no/folder.json");
    assert!(matches!(portable.save(&nowhere, SaveMode::New), Err(SaveError::Io { .. })));
}

/// Whether a file of that name is there, and sound; it may be `other` instead.
fn found(disk: &SimDisk, path: &Path, portable: &Portable, other: Option<&[u8]>) -> Result<bool, String> {
    match disk.read(path, PORTABLE_BYTES_MAX) {
        Err(_) if other.is_none() => Ok(false),
        Err(error) => Err(format!("nothing is there: {error}")),
        Ok(bytes) if Some(bytes.as_slice()) == other => Ok(false),
        Ok(bytes) => match Portable::from_text(&bytes) {
            Ok(read) if read == *portable => Ok(true),
            other => Err(format!("something else is there: {other:?}")),
        },
    }
}

#[tokio::test]
async fn a_power_cut_leaves_the_file_whole_or_what_was_before() {
    let portable = small().await;
    let path = Path::new("disk/a.json");
    let empty = SimDisk::with_folder("disk");
    let taken = SimDisk::with_folder("disk");
    other().await.save_to(&taken, path, SaveMode::New).unwrap();
    taken.settle();
    let old = taken.read(path, PORTABLE_BYTES_MAX).unwrap();

    for (start, mode, old) in [
        (&empty, SaveMode::New, None),
        (&empty, SaveMode::Replace, None),
        (&taken, SaveMode::Replace, Some(old)),
    ] {
        let survey = first_loss(
            start,
            Sampling { seed: 1, draws: 100 },
            |disk| portable.save_to(disk, path, mode).is_ok(),
            |acknowledged, disk| match found(disk, path, &portable, old.as_deref())? {
                false if *acknowledged => Err("it was acknowledged and is not there".to_owned()),
                _ => Ok(()),
            },
        );
        let survey = survey.unwrap_or_else(|loss| panic!("{loss}"));
        assert!(survey.calls >= 5 && survey.states > 10, "{survey:?} shows nothing");
    }
}

#[tokio::test]
async fn a_disk_error_at_any_call_is_told_and_leaves_what_was_before() {
    let portable = small().await;
    let path = Path::new("disk/a.json");
    let taken = SimDisk::with_folder("disk");
    other().await.save_to(&taken, path, SaveMode::New).unwrap();
    taken.settle();
    let old = taken.read(path, PORTABLE_BYTES_MAX).unwrap();
    let first = taken.call_count();
    let whole = taken.fork();
    portable.save_to(&whole, path, SaveMode::Replace).unwrap();

    let mut told = 0;
    for call in first..whole.call_count() {
        for refusal in Refusal::ALL {
            let disk = taken.fork();
            disk.fail(call, Fault::Refuse(refusal));
            let saved = portable.save_to(&disk, path, SaveMode::Replace);
            disk.heal();
            let there = found(&disk, path, &portable, Some(&old)).unwrap();
            assert!(there || saved.is_err(), "call {call}, {refusal}");
            let temps = disk.files().len() - 1;
            assert_eq!(temps, 0, "call {call}, {refusal}: an unfinished file is left");
            told += usize::from(saved.is_err());
        }
        let disk = taken.fork();
        disk.fail(call, Fault::ShortWrite(7));
        portable.save_to(&disk, path, SaveMode::Replace).unwrap();
        assert!(found(&disk, path, &portable, None).unwrap());
    }
    assert!(told > 10, "{told} errors show nothing");
}

#[tokio::test]
async fn children_come_along_with_their_newest_checkpoints() {
    const ITEMS: &[u8] = b"\"a\"\n{\"key\":\"b\"}\n";
    const DEEP: &[u8] = b"\x00not json";
    // Given a fan-out @2: one child ended, one is open with a memo, one is open amid a fan-out of its own.
    let mut story = Story::new(MemoryStore::new());
    let ended = |header: &mut Header| header.end = Some(End::Failed);
    story.add(&main_branch(), Position::default(), |_| ()).await;
    story.blob("items/each", ITEMS).await;
    story.blob("items/deep", DEEP).await;
    story.add(&branch("other:x"), opened_by(2), |_| ()).await;
    for seq in 1..=3 {
        let edit = |header: &mut Header| {
            if seq == 3 {
                ended(header)
            }
        };
        story.add(&branch("each:a"), opened_by(2), edit).await;
    }
    story.add(&branch("each:b"), opened_by(2), |header| header.step = Some(step_id("ask"))).await;
    let asks = Position { origin: Some(2), ..frontier(vec![entry("ask", Status::Started, 1)]) };
    story.add(&branch("each:b"), asks, |_| ()).await;
    let deep = Position { origin: Some(2), ..fans_out("deep", 1, Some(("items/deep", DEEP))) };
    story.add(&branch("each:c"), deep, |_| ()).await;
    story.add(&branch("each:c/deep:1"), opened_by(1), |_| ()).await;
    // What an ended child once opened is joined, and what an earlier pass of the loop left behind does not count.
    story.add(&branch("each:a/deep:1"), opened_by(1), ended).await;
    story.add(&branch("each:z"), opened_by(1), |_| ()).await;
    story.add(&main_branch(), fans_out("each", 2, Some(("items/each", ITEMS))), |_| ()).await;

    let exported = story.export(&main_branch(), 2).await.unwrap();

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

    // And a child can be taken by itself.
    let child = story.export(&branch("each:c"), 1).await.unwrap();
    assert_eq!(child.children().len(), 1);
    assert_eq!(Portable::from_text(&child.to_text()).unwrap(), child);
}

#[tokio::test]
async fn a_graph_that_was_killed_amid_a_fan_out_is_exported_with_its_children() {
    // Given a graph that dies while item 5 of 20 is worked on.
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
    let newest = store.newest(&run_id("r-1"), &main_branch()).await.unwrap();

    let exported = Portable::of(store.as_ref(), &newest.header().reference()).await.unwrap();

    assert_eq!(Portable::from_text(&exported.to_text()).unwrap(), exported);
    let ended = exported.children().iter().filter(|child| child.header().end == Some(End::Completed));
    assert_eq!((exported.children().len(), ended.count()), (20, 5));
    let items = exported.blobs().values().next().unwrap();
    assert_eq!(items.iter().filter(|byte| **byte == b'\n').count(), 20);
}

#[tokio::test]
async fn children_of_a_fork_without_items_come_along() {
    let mut story = Story::new(MemoryStore::new());
    story.add(&main_branch(), Position::default(), |_| ()).await;
    story.add(&branch("fork:a"), opened_by(2), |_| ()).await;
    story.add(&main_branch(), fans_out("fork", 2, None), |_| ()).await;

    assert_eq!(story.export(&main_branch(), 2).await.unwrap().children().len(), 1);
}

#[tokio::test]
async fn an_older_checkpoint_amid_a_fan_out_is_refused() {
    let mut story = Story::new(MemoryStore::new());
    story.add(&main_branch(), Position::default(), |_| ()).await;
    story.add(&branch("each:a"), opened_by(2), |_| ()).await;
    story.add(&main_branch(), fans_out("each", 2, None), |_| ()).await;
    story.add(&main_branch(), Position::default(), |_| ()).await;

    let amid = story.export(&main_branch(), 2).await.unwrap_err();

    assert_eq!(
        amid.to_string(),
        "checkpoint r-1@2 is older than the branches that step `each` has open in it"
    );
    assert!(matches!(amid, ExportError::Amid { .. }));
    assert!(story.export(&main_branch(), 1).await.is_ok());
    assert!(story.export(&main_branch(), 3).await.is_ok());
}

#[tokio::test]
async fn items_that_are_gone_or_damaged_are_missed() {
    for found in [None, Some(&b"[2]\n"[..]), Some(b"[1]"), Some(b"[1]\n[1]\n")] {
        let mut story = Story::new(MemoryStore::new());
        story.add(&main_branch(), fans_out("each", 1, Some(("items/each", b"[1]\n"))), |_| ()).await;
        if let Some(bytes) = found {
            story.blob("items/each", bytes).await;
        }

        assert!(matches!(story.export(&main_branch(), 1).await, Err(ExportError::Items { .. })), "{found:?}");
    }
}

#[tokio::test]
async fn what_is_damaged_or_not_there_is_not_exported() {
    use waypost::memory::Part;
    let run = run_id("r-1");
    let store = MemoryStore::new();
    let mut story = Story::new(store.clone());
    story.add(&main_branch(), Position::default(), |_| ()).await;
    let ledger = BTreeMap::from([(step_id("plan"), Settled::Completed(1))]);
    story.add(&main_branch(), Position { ledger, ..Position::default() }, |_| ()).await;
    story.add(&branch("each:a"), opened_by(3), |_| ()).await;
    story.add(&branch("each:a"), opened_by(3), |_| ()).await;
    story.add(&main_branch(), fans_out("each", 3, None), |_| ()).await;
    let damaged = |error: Result<Portable, ExportError>| match error {
        Err(ExportError::Store(StoreError::Damaged { damage, .. })) => {
            (damage.branch.to_string(), damage.seq)
        }
        other => panic!("{other:?}"),
    };

    assert!(matches!(
        story.export(&main_branch(), 4).await,
        Err(ExportError::Store(StoreError::NotFound { .. }))
    ));
    assert!(story.export(&main_branch(), 2).await.is_ok());
    // The header that the ledger names: the walk of the history would pass over it.
    store.damage(&run, &main_branch(), 1, Part::Header);
    assert_eq!(damaged(story.export(&main_branch(), 2).await), ("main".to_owned(), 1));
    // The newest of a child: the one before would be taken for it.
    store.damage(&run, &branch("each:a"), 2, Part::Header);
    assert_eq!(damaged(story.export(&main_branch(), 3).await), ("each:a".to_owned(), 2));
    store.damage(&run, &main_branch(), 3, Part::Body);
    assert_eq!(damaged(story.export(&main_branch(), 3).await), ("main".to_owned(), 3));
}

#[tokio::test]
async fn a_checkpoint_without_a_state_of_its_own_is_refused() {
    let store = MemoryStore::new();
    let mut links = Links::of(&run_id("r-1"));
    let bare = links.seal_bare(links.header(&main_branch()));
    let full = links.record(&main_branch());
    let batch = links.batch(vec![bare, full]);
    store.create(&sealed(frozen()), batch, &holder("test")).await.unwrap();

    let at = |seq| CheckpointRef { run: run_id("r-1"), branch: main_branch(), seq };
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
        let header = story.links.header(&main_branch());
        let body = Body::opaque(&Position::default(), bytes, codec, 0).unwrap();
        story.append(Record::seal(header, Some(body)).unwrap()).await;

        let exported = story.export(&main_branch(), 1).await.unwrap();
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
async fn parts_that_do_not_belong_together_are_refused() {
    // A hash vouches for the bytes, not for who wrote them.
    let text = text_of(&small().await);
    let refused = |text: String| Portable::from_text(&rehashed(&text)).unwrap_err().to_string();
    let history = {
        let begin = text.find("\"history\":[").unwrap() + 11;
        text[begin..text.find("],\n\"children\"").unwrap()].to_owned()
    };
    let mut foreign = Links::of(&run_id("r-2"));
    let foreign = foreign.record(&branch("each:a"));
    let mut own = Links::of(&run_id("r-1"));
    let (main, bare) = (own.record(&main_branch()), own.seal_bare(own.header(&branch("each:a"))));
    let child = |record: &Record, body: bool| {
        let header = String::from_utf8(record.header_bytes().to_vec()).unwrap();
        let body = if body {
            format!(",\"position\":{{}},\"state\":{}", String::from_utf8_lossy(record.state_bytes().unwrap()))
        } else {
            String::new()
        };
        let child =
            format!("\"children\":[{{\"digest\":\"{}\",\"header\":{header}{body}}}]", record.digest());
        refused(text.replace("\"children\":[]", &child))
    };

    assert_eq!(
        refused(text.replace(&history, "")),
        "it cannot be read: it lacks the header of r-1@1, which a position in it refers to"
    );
    assert_eq!(
        refused(text.replace(&history, &format!("{history},{history}"))),
        "it cannot be read: its history does not lead to r-1@2"
    );
    assert_eq!(
        refused(text.replace("\"portable_checkpoint\":\"r-1@2\"", "\"portable_checkpoint\":\"r-1@9\"")),
        "it cannot be read: it says that it is of r-1@9"
    );
    assert_eq!(child(&foreign, true), "it cannot be read: checkpoint r-2/each:a@1 is of another run");
    assert_eq!(child(&main, true), "it cannot be read: checkpoint r-1@1 is no child of it");
    assert_eq!(child(&bare, false), "it cannot be read: checkpoint r-1/each:a@1 is no child of it");
    assert_eq!(
        refused(text.replace("\"blobs\":{}", "\"blobs\":{\"../up\":{\"lines\":[1]}}")),
        "it cannot be read: `../up` is not the name of a blob"
    );
    assert!(
        refused(text.replace("\"topic\":\"tea\"", "\"topic\":\"gin\"")).contains("run record has digest")
    );
    assert!(refused(text.replace("\"seq\":2,\"float\"", "\"seq\":3,\"float\"")).contains("body has digest"));
}

#[tokio::test]
async fn the_config_is_the_one_in_force() {
    let later = json!({"topic": "coffee"}).as_object().unwrap().clone();
    let mut story = Story::new(MemoryStore::new());
    story.add(&main_branch(), Position::default(), |_| ()).await;
    let changed = later.clone();
    let position = Position { config: Some(2), ..Position::default() };
    story.add(&main_branch(), position.clone(), |header| header.config = Some(changed)).await;
    story.add(&main_branch(), position, |_| ()).await;

    for (seq, expect) in [(1, &frozen().config), (2, &later), (3, &later)] {
        let exported = story.export(&main_branch(), seq).await.unwrap();
        assert_eq!(exported.config(), expect);
        assert_eq!(Portable::from_text(&exported.to_text()).unwrap(), exported);
    }
}
