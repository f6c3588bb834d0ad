//! States cost little on the disk, and every one that is kept comes back to the byte, whatever was dropped around it.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use waypost::record::{Durability, Reason, Record};
use waypost::store::{Lease, Page, Scan, Store, StoreError, TrimMode, Trimmed};
use waypost::{RunId, ScopePath};
use waypost_testing::contract::{DamageTarget, StoreFixture, block_on};
use waypost_testing::memory::MemoryFixture;
use waypost_testing::picture::scan_all;
use waypost_testing::records::{Links, holder, run_id, run_record, scope, sealed};

use crate::contract::Sqlite;
use crate::support::{Site, Writing};

/// Text that hardly compresses, the same for the same number.
fn noise(mut seed: u64, count: usize) -> String {
    let mut letter = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + (seed >> 59) as u8 % 26)
    };
    (0..count).map(|_| letter()).collect()
}

/// What a random history does next.
#[derive(Debug, Clone)]
enum Act {
    /// Appends a record to one of the scopes of one of the runs, after a change of its state.
    Step {
        run: usize,
        scope: usize,
        change: Change,
    },
    /// Appends records without and with a body in one batch, in two scopes.
    Several {
        run: usize,
        bare: usize,
    },
    /// Goes back to the state of an earlier record, if that is kept.
    Rollback {
        run: usize,
        scope: usize,
        back: u64,
    },
    Trim {
        run: usize,
        keep: u32,
    },
    /// Crashes, and opens the stores again.
    Reopen,
    /// Crashes, finds the header of a record damaged, and moves it aside.
    Lose {
        run: usize,
        scope: usize,
        back: u64,
    },
    /// Deletes a run and makes one of the same name.
    Anew {
        run: usize,
    },
}

#[derive(Debug, Clone)]
enum Change {
    Grow(usize),
    Replace(usize),
    Shrink,
    Nothing,
    Small,
    Insert(usize),
}

const RUNS: [&str; 2] = ["r-1", "r-2"];
const SCOPES: [&str; 3] = ["main", "each:a", "each:a/in:b"];

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let change = prop_oneof![
        4 => (1_usize..1_500).prop_map(Change::Grow),
        2 => (300_usize..6_000).prop_map(Change::Replace),
        1 => Just(Change::Shrink),
        1 => Just(Change::Nothing),
        1 => Just(Change::Small),
        2 => (1_usize..400).prop_map(Change::Insert),
    ];
    let (run, scope) = (0..RUNS.len(), 0..SCOPES.len());
    let act = prop_oneof![
        14 => (run.clone(), scope.clone(), change)
            .prop_map(|(run, scope, change)| Act::Step { run, scope, change }),
        2 => (run.clone(), 1..4_usize).prop_map(|(run, bare)| Act::Several { run, bare }),
        2 => (run.clone(), scope.clone(), 1..8_u64)
            .prop_map(|(run, scope, back)| Act::Rollback { run, scope, back }),
        3 => (run.clone(), 0..6_u32).prop_map(|(run, keep)| Act::Trim { run, keep }),
        2 => Just(Act::Reopen),
        2 => (run.clone(), scope, 0..5_u64).prop_map(|(run, scope, back)| Act::Lose { run, scope, back }),
        1 => run.prop_map(|run| Act::Anew { run }),
    ];
    prop::collection::vec(act, 1..60)
}

/// Both stores, what was written to them, and the states as they grow.
struct Pair {
    model: MemoryFixture,
    sqlite: Sqlite,
    runs: Vec<Run>,
}

struct Run {
    id: RunId,
    links: Links,
    leases: [Lease; 2],
    states: Vec<Vec<Value>>,
    /// Records of which the only batch is their own.
    made: u64,
    aside: BTreeSet<(usize, u64)>,
}

impl Pair {
    async fn new() -> Self {
        let mut pair = Self { model: MemoryFixture::fresh(), sqlite: Sqlite::fresh(), runs: Vec::new() };
        for name in RUNS {
            let run = pair.create(&run_id(name)).await;
            pair.runs.push(run);
        }
        pair
    }

    fn stores(&self) -> [Arc<dyn Store>; 2] {
        [self.model.store(), self.sqlite.store()]
    }

    async fn create(&self, id: &RunId) -> Run {
        let mut links = Links::of(id);
        let (frozen, first) = (sealed(run_record(id)), links.step());
        let [model, sqlite] = self.stores();
        let leases = [
            model.create(&frozen, first.clone(), &holder("test")).await.unwrap(),
            sqlite.create(&frozen, first, &holder("test")).await.unwrap(),
        ];
        let states = vec![Vec::new(); SCOPES.len()];
        Run { id: id.clone(), links, leases, states, made: 0, aside: BTreeSet::new() }
    }

    async fn append(&mut self, run: usize, records: Vec<Record>) {
        let [model, sqlite] = self.stores();
        let run = &mut self.runs[run];
        let batch = run.links.batch(records);
        model.append(&[&run.leases[0]], batch.clone()).await.unwrap();
        sqlite.append(&[&run.leases[1]], batch).await.unwrap();
    }

    async fn reopen(&mut self) {
        self.runs.iter_mut().for_each(|run| {
            // The kernel lock goes with the last copy of the lease.
            run.leases = [0, 1].map(|_| Lease::new(run.id.clone(), 0, None));
        });
        self.model.reopen().await;
        self.sqlite.reopen().await;
    }

    async fn take_up(&mut self) {
        let [model, sqlite] = self.stores();
        for run in &mut self.runs {
            let main = ScopePath::main();
            run.leases = [
                model.acquire(&run.id, &main, &holder("next")).await.unwrap(),
                sqlite.acquire(&run.id, &main, &holder("next")).await.unwrap(),
            ];
            run.links.under(&run.leases[1]);
        }
    }

    async fn act(&mut self, act: &Act) {
        match act {
            Act::Step { run, scope: at, change } => {
                self.change(*run, *at, change);
                let (path, run_of) = (scope(SCOPES[*at]), &mut self.runs[*run]);
                let header = run_of.links.header(&path);
                let record = run_of.links.seal(header, &json!({ "list": run_of.states[*at] }));
                self.append(*run, vec![record]).await;
            }
            Act::Several { run, bare } => {
                let run_of = &mut self.runs[*run];
                let mut records = Vec::new();
                for _ in 0..*bare {
                    let header = run_of.links.header(&ScopePath::main());
                    records.push(run_of.links.seal_bare(header));
                }
                for (at, path) in SCOPES.iter().enumerate().take(2) {
                    for more in ["x", "y"] {
                        run_of.states[at].push(json!(more));
                        let header = run_of.links.header(&scope(path));
                        records.push(run_of.links.seal(header, &json!({ "list": run_of.states[at] })));
                    }
                }
                self.append(*run, records).await;
            }
            Act::Rollback { run, scope: at, back } => self.roll_back(*run, *at, *back).await,
            Act::Trim { run, keep } => self.trim(*run, *keep).await,
            Act::Reopen => {
                self.reopen().await;
                self.take_up().await;
            }
            Act::Lose { run, scope: at, back } => self.lose(*run, *at, *back).await,
            Act::Anew { run } => {
                let [model, sqlite] = self.stores();
                let id = self.runs[*run].id.clone();
                let [a, b] = self.runs[*run].leases.clone();
                self.runs[*run].leases = [0, 1].map(|_| Lease::new(id.clone(), 0, None));
                model.release(a, None).await.unwrap();
                sqlite.release(b, None).await.unwrap();
                model.delete(&id).await.unwrap();
                sqlite.delete(&id).await.unwrap();
                self.runs[*run] = self.create(&id).await;
            }
        }
    }

    fn change(&mut self, run: usize, at: usize, change: &Change) {
        let run = &mut self.runs[run];
        run.made += 1;
        let (list, made) = (&mut run.states[at], run.made);
        match change {
            Change::Grow(count) => list.push(json!({ "n": made, "text": noise(made, *count) })),
            Change::Replace(count) => *list = vec![json!(noise(made, *count))],
            Change::Shrink => drop(list.drain(list.len() / 2..)),
            Change::Nothing => {}
            Change::Small => *list = vec![json!(made)],
            Change::Insert(count) => list.insert(list.len() / 3, json!(noise(made, *count))),
        }
    }

    async fn roll_back(&mut self, run: usize, at: usize, back: u64) {
        let [model, _] = self.stores();
        let (path, run_of) = (scope(SCOPES[at]), &mut self.runs[run]);
        let basis = run_of.links.next(&path).saturating_sub(1 + back);
        let Ok(found) = model.load(&run_of.id, &path, basis).await else { return };
        let Some(state) = found.state_bytes() else { return };
        let state: Value = serde_json::from_slice(state).unwrap();
        if let Some(list) = state["list"].as_array() {
            run_of.states[at].clone_from(list);
        }
        let mut header = run_of.links.header(&path);
        (header.reason, header.basis) = (Reason::Rollback, Some(basis));
        let record = run_of.links.seal(header, &state);
        self.append(run, vec![record]).await;
    }

    async fn trim(&self, run: usize, keep: u32) {
        let [model, sqlite] = self.stores();
        let [a, b] = &self.runs[run].leases;
        let expect = model.trim(a, keep, TrimMode::DryRun).await.unwrap();
        let would = sqlite.trim(b, keep, TrimMode::DryRun).await.unwrap();
        self.check().await;
        assert_eq!(model.trim(a, keep, TrimMode::Apply).await.unwrap(), expect);
        assert_eq!(sqlite.trim(b, keep, TrimMode::Apply).await.unwrap(), would);
        assert_eq!(would.checkpoints, expect.checkpoints);
        assert_eq!(sqlite.trim(b, keep, TrimMode::Apply).await.unwrap(), Trimmed::default());
    }

    async fn lose(&mut self, run: usize, at: usize, back: u64) {
        let (path, run_of) = (scope(SCOPES[at]), &self.runs[run]);
        let newest = run_of.links.next(&path) - 1;
        // The newest would have to be repaired, and the first is the only one to fall back to.
        let seq = newest.saturating_sub(1 + back);
        if seq < 2 || run_of.aside.contains(&(at, seq)) {
            return;
        }
        let id = run_of.id.clone();
        self.reopen().await;
        let place = DamageTarget::Header(path.clone(), seq);
        self.model.damage(&id, &place).await;
        self.sqlite.damage(&id, &place).await;
        self.take_up().await;
        self.check().await;
        for (store, lease) in self.stores().iter().zip(&self.runs[run].leases) {
            let Err(StoreError::Damaged { damage, .. }) = store.load(&id, &path, seq).await else {
                panic!("{store}: {path}@{seq} is damaged");
            };
            store.quarantine(lease, &damage).await.unwrap();
        }
        self.runs[run].aside.insert((at, seq));
    }

    /// Compares every record of both stores, to the byte.
    async fn check(&self) {
        let [model, sqlite] = self.stores();
        for run in &self.runs {
            for path in SCOPES.map(scope) {
                for seq in 1..run.links.next(&path) {
                    let expect = model.load(&run.id, &path, seq).await;
                    let found = sqlite.load(&run.id, &path, seq).await;
                    match (expect, found) {
                        (Ok(expect), Ok(found)) => {
                            assert!(found == expect, "{} is what was written", found.header().reference());
                        }
                        (Err(StoreError::NotFound { .. }), Err(StoreError::NotFound { .. }))
                        | (Err(StoreError::Damaged { .. }), Err(StoreError::Damaged { .. })) => {}
                        (expect, found) => panic!("{path}@{seq}: {expect:?}, {found:?}"),
                    }
                }
            }
            let all = Page::default();
            assert_eq!(
                sqlite.heads(&run.id, &all).await.unwrap().heads.len(),
                model.heads(&run.id, &all).await.unwrap().heads.len()
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_kept_state_comes_back_whatever_was_dropped_around_it(acts in acts()) {
        block_on(async {
            let mut pair = Pair::new().await;
            for act in &acts {
                pair.act(act).await;
            }
            pair.check().await;
            pair.reopen().await;
            pair.check().await;
            pair.sqlite.check_counters();
        });
    }
}

/// A run whose state grows by about a KiB each step; returns what was written.
async fn growing(site: &Site, steps: u64) -> (Writing, Vec<Record>) {
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Async).await;
    let (mut list, mut written) = (Vec::new(), Vec::new());
    for step in 2..=steps {
        list.push(json!({ "step": step, "text": noise(step, 1_000) }));
        let header = writing.links.header(&ScopePath::main());
        let record = writing.links.seal(header, &json!({ "list": list }));
        written.push(record.clone());
        let batch = writing.links.batch(vec![record]);
        Store::append(&*store, &[&writing.lease], batch).await.unwrap();
    }
    (writing, written)
}

fn codecs(site: &Site) -> Vec<i64> {
    let tables = site.tables();
    let mut rows = tables.prepare("SELECT codec FROM records WHERE codec IS NOT NULL ORDER BY key").unwrap();
    rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[tokio::test]
async fn a_growing_state_costs_about_its_size() {
    let site = Site::new();
    let (writing, written) = growing(&site, 300).await;
    let last = written.last().unwrap().body_bytes().unwrap().len() as u64;
    let bytes = writing.store.run(writing.lease.run()).await.unwrap().summary.bytes;
    let Writing { store, lease, .. } = writing;
    drop(lease);
    store.close().await.unwrap();

    let on_disk = std::fs::metadata(site.file()).unwrap().len();

    // Tables without a row take a page each, and the last page of each is not full.
    let tables = 25 * 8_192;
    assert!(on_disk < last * 5 / 4 + tables, "{on_disk} bytes for a state of {last}");
    assert!(bytes < on_disk && on_disk - bytes < tables + bytes / 8, "{bytes} are told of {on_disk}");
    let codecs = codecs(&site);
    let full = codecs.iter().filter(|codec| **codec == 1).count();
    assert!(full < 12 && codecs.iter().filter(|codec| **codec == 2).count() > 250, "{full} full frames");
}

#[tokio::test]
async fn a_store_opened_again_goes_on_with_deltas() {
    let site = Site::new();
    let (writing, written) = growing(&site, 40).await;
    let run = writing.lease.run().clone();
    let (mut links, last) = (writing.links.clone(), written.last().unwrap().clone());
    drop(writing);
    let store = site.open();
    let lease = store.acquire(&run, &ScopePath::main(), &holder("next")).await.unwrap();
    links.under(&lease);

    // As an engine does, which reads where the run stands.
    store.heads(&run, &Page::default()).await.unwrap();
    let state: Value = serde_json::from_slice(last.state_bytes().unwrap()).unwrap();
    let header = links.header(&ScopePath::main());
    let record = links.seal(header, &state);
    Store::append(&*store, &[&lease], links.batch(vec![record])).await.unwrap();

    assert_eq!(codecs(&site).last(), Some(&2));
}

#[tokio::test]
async fn a_damaged_frame_damages_only_its_dependents() {
    let site = Site::new();
    let (writing, written) = growing(&site, 60).await;
    let run = writing.lease.run().clone();
    drop(writing);
    let codecs = codecs(&site);
    // A delta in the middle of a chain, and the first record that does not need it.
    let hit = codecs.iter().rposition(|codec| *codec == 1).unwrap() + 5;
    assert_eq!(codecs[hit], 2);
    let seq = hit as u64 + 1;
    site.execute(&format!(
        "UPDATE records SET body = CAST(substr(body, 1, 40) || x'00' || substr(body, 42) AS BLOB) WHERE key = (1 << 32 | {seq})"
    ));
    let store = site.open();

    for record in &written {
        let of = record.header().seq;
        let found = store.load(&run, &ScopePath::main(), of).await;
        match found {
            Ok(found) => assert!(of < seq && found == *record, "{of} needs a frame that is damaged"),
            Err(StoreError::Damaged { damage, older }) => {
                assert!(of >= seq, "{of} is sound: {damage:?}");
                assert_eq!((damage.seq, older), (of, Some(seq - 1)));
                let names = damage.flaw.to_string().contains(&format!("based on record {seq}:"));
                assert_eq!(names, of > seq, "{damage:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    let head = store.heads(&run, &Page::default()).await.unwrap().heads.remove(0);
    assert_eq!((head.record.header().seq, head.next, head.damaged.len() as u64), (seq - 1, 61, 61 - seq));
    let scanned = scan_all(&*store, Scan::of(&run)).await.unwrap();
    assert_eq!((scanned.records.len(), scanned.damaged.len()), (60, 0), "headers are sound");

    // All of it is moved aside, newest first, and the run goes on from the one before.
    let lease = store.acquire(&run, &ScopePath::main(), &holder("next")).await.unwrap();
    for damage in &head.damaged {
        store.quarantine(&lease, damage).await.unwrap();
    }
    let mut links = Links::of(&run);
    links.under(&lease);
    links.continue_after(&ScopePath::main(), 60, Some(head.record.digest()));
    let mut header = links.header(&ScopePath::main());
    (header.reason, header.basis) = (Reason::Repair, Some(seq - 1));
    let state: Value = serde_json::from_slice(head.record.state_bytes().unwrap()).unwrap();
    let repaired = links.seal(header, &state);
    Store::append(&*store, &[&lease], links.batch(vec![repaired.clone()])).await.unwrap();
    drop((lease, store));
    let store = site.open();
    assert_eq!(store.load(&run, &ScopePath::main(), 61).await.unwrap(), repaired);
    assert_eq!(store.heads(&run, &Page::default()).await.unwrap().heads[0].damaged, []);
}

#[tokio::test]
async fn what_was_moved_aside_takes_no_sound_state_with_it() {
    let site = Site::new();
    let (writing, written) = growing(&site, 40).await;
    let run = writing.lease.run().clone();
    drop(writing);
    let hit = codecs(&site).iter().rposition(|codec| *codec == 1).unwrap() + 4;
    let seq = hit as u64 + 1;
    // Its header is damaged; the frame, which the next bodies are made from, is not.
    site.execute(&format!("UPDATE records SET header = zeroblob(20) WHERE key = (1 << 32 | {seq})"));
    let store = site.open();
    let lease = store.acquire(&run, &ScopePath::main(), &holder("next")).await.unwrap();
    let Err(StoreError::Damaged { damage, .. }) = store.load(&run, &ScopePath::main(), seq).await else {
        panic!("{seq} is damaged");
    };

    store.quarantine(&lease, &damage).await.unwrap();

    drop((lease, store));
    let store = site.open();
    for record in written.iter().filter(|record| record.header().seq != seq) {
        let of = record.header().seq;
        assert!(store.load(&run, &ScopePath::main(), of).await.unwrap() == *record, "{of} is as it was");
    }
    assert_eq!(codecs(&site)[hit], 1, "the next one stands alone now");
}

#[tokio::test]
async fn a_record_that_another_program_moved_is_not_built_upon() {
    let site = Site::new();
    let (mut writing, written) = growing(&site, 30).await;
    let newest = written.last().unwrap();
    // The record that the next body would be made from is another one, of which nothing in memory tells.
    site.execute("UPDATE records SET codec = -1, body = NULL WHERE key = (1 << 32 | 30)");

    let state: Value = serde_json::from_slice(newest.state_bytes().unwrap()).unwrap();
    let header = writing.links.header(&ScopePath::main());
    let record = writing.links.seal(header, &state);
    let batch = writing.links.batch(vec![record.clone()]);
    Store::append(&*writing.store, &[&writing.lease], batch).await.unwrap();

    let run = writing.lease.run().clone();
    drop(writing);
    assert_eq!(site.open().load(&run, &ScopePath::main(), 31).await.unwrap(), record);
    assert_eq!(codecs(&site).last(), Some(&1));
}

#[tokio::test]
async fn what_is_dropped_makes_the_file_smaller() {
    let site = Site::new();
    let store = site.open();
    let mut runs = Vec::new();
    for (name, steps) in [("r-1", 60), ("r-2", 60), ("r-3", 3)] {
        let mut writing = Writing::begin(&store, name, Durability::Async).await;
        for step in 0..steps {
            let header = writing.links.header(&ScopePath::main());
            let record = writing.links.seal(header, &json!(noise(step, 20_000)));
            let batch = writing.links.batch(vec![record]);
            Store::append(&*store, &[&writing.lease], batch).await.unwrap();
        }
        runs.push(writing);
    }
    let bytes = || {
        site.tables().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        std::fs::metadata(site.file()).unwrap().len()
    };
    let before = bytes();

    let trimmed = store.trim(&runs[0].lease, 2, TrimMode::Apply).await.unwrap();
    let after_trim = bytes();
    let run = runs[1].lease.run().clone();
    drop(runs.remove(1));
    store.delete(&run).await.unwrap();
    let after_delete = bytes();

    assert!(trimmed.bytes > 600_000, "{trimmed:?}");
    assert!(before - after_trim > trimmed.bytes * 8 / 10, "{before} to {after_trim} for {trimmed:?}");
    assert!(after_trim - after_delete > 600_000, "{after_trim} to {after_delete}");
    // The others are as they were.
    let kept = scan_all(&*store, Scan::of(&run_id("r-3"))).await.unwrap();
    assert_eq!((kept.records.len(), kept.damaged.len()), (4, 0));
    let check: String = site.tables().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

/// What happened: a trim of many small states left the file as large as it was.
/// Why: SQLite leaves pages apart whose rows were made smaller, however little is on them.
/// What stops it now: a row that loses its body is deleted and written anew, which joins pages.
#[tokio::test]
async fn small_states_that_are_dropped_make_the_file_smaller_too() {
    let site = Site::new();
    let (writing, _) = growing(&site, 400).await;
    let pages = || site.tables().query_row("PRAGMA page_count", [], |row| row.get::<_, u32>(0)).unwrap();
    let before = u64::from(pages()) * 8_192;

    let trimmed = writing.store.trim(&writing.lease, 2, TrimMode::Apply).await.unwrap();

    let after = u64::from(pages()) * 8_192;
    assert!(before - after > trimmed.bytes * 8 / 10, "{before} to {after} for {trimmed:?}");
}

#[tokio::test]
async fn many_scopes_are_kept_in_little_memory() {
    let site = Site::new();
    let store = site.open();
    let mut writing = Writing::begin(&store, "r-1", Durability::Async).await;
    let text = noise(1, 40_000);
    // More bytes than are kept, and then each of them again: some are known, all are right.
    let paths: Vec<ScopePath> = (0..40).map(|item| scope(&format!("each:{item}"))).collect();
    for round in 0..2 {
        let mut records = Vec::new();
        for path in &paths {
            let header = writing.links.header(path);
            records.push(writing.links.seal(header, &json!([round, text])));
        }
        let batch = writing.links.batch(records);
        Store::append(&*store, &[&writing.lease], batch).await.unwrap();
    }

    let codecs = codecs(&site);
    assert_eq!(codecs.iter().filter(|codec| **codec == 2).count(), 40, "the second of each is a delta");
    for path in &paths {
        store.load(writing.lease.run(), path, 2).await.unwrap();
    }
}
