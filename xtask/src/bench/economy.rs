//! Disk space of states, and the cost of compression and decompression.

use std::cell::RefCell;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use waypost::record::{Durability, Record};
use waypost::store::{Store, StoreExt as _};
use waypost::{RunId, ScopePath};
use waypost_sqlite::{SqliteOptions, SqliteStore};

use super::measure::{self, Bench, Bound, Demand, Measured, Topic, Unit, thread_time};
use super::part::RUN;
use super::program::{Row, runtime};

const DISK: &str = "growing state, all checkpoints kept, on disk";
const FINAL: &str = "growing state, the last one";
const BESIDE: &str = "growing state, events and report beside the database";
const LOAD: &str = "growing state, newest back from the store";
const PARSE: &str = "growing state, parsed";
const CHECKPOINT: &str = "1 MB state, small change, a step and its checkpoint";
const SERIALISE: &str = "1 MB state, serialised";
const RESULT: &str = "step with a new incompressible result of 1 KB, on disk";

/// The count in the target.
const STEPS: u32 = 1_000;
/// Steps with the large state: enough that the creation of the run does not matter.
const LARGE_STEPS: u32 = 100;
/// Items of the large state: about 1 MB of JSON.
const ITEMS: u32 = 10_000;
/// Loads and parses of the newest state per round, of which the fastest counts; each takes a millisecond.
const LOADS: u32 = 5;
/// Result size and limit per step, as in the target.
const RESULT_BYTES: usize = 1_024;
const RESULT_BYTES_MAX: f64 = 1_536.0;

/// A conversation as in the state of an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Conversation {
    messages: Vec<Message>,
}

/// The content of a turn: text, a tool call with arguments, and its usage.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Message {
    id: String,
    number: usize,
    role: String,
    text: String,
    calls: Vec<StoreCall>,
    tokens: Tokens,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct StoreCall {
    id: String,
    tool: String,
    query: String,
    scores: Vec<f64>,
    cached: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Tokens {
    input: u32,
    output: u32,
}

impl Message {
    /// Returns a message of about 1 KB of JSON, mostly lines of random letters.
    fn new(number: usize) -> Self {
        let lines: Vec<String> = (0..9).map(|line| text(LETTERS, number * 16 + line, 70)).collect();
        let call = StoreCall {
            id: text(HEX, number * 16 + 9, 24),
            tool: "search".to_owned(),
            query: text(LETTERS, number * 16 + 10, 48),
            scores: (1..=4_u32).map(|place| f64::from(place) / (number + 3) as f64).collect(),
            cached: number.is_multiple_of(3),
        };
        let count = u32::try_from(number).expect("there are not so many steps");
        Self {
            id: text(HEX, number * 16 + 11, 24),
            number,
            role: if number.is_multiple_of(2) { "user" } else { "assistant" }.to_owned(),
            text: lines.join("\n"),
            calls: vec![call],
            tokens: Tokens { input: 300 + 250 * count, output: 200 + count % 7 },
        }
    }
}

/// A table in which each step changes a single number.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct CostTable {
    changed: usize,
    items: Vec<Item>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Item {
    id: u32,
    name: String,
    score: f64,
    done: bool,
    note: String,
}

/// The result of the last step.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Last {
    steps: usize,
    result: String,
}

fn at_most(claim: &'static str, ours: &'static str, limit: Option<&'static str>, most: f64) -> Demand {
    Demand { claim, ours, limit, bound: Bound::AtMost(most) }
}

/// Returns `count` random characters of `alphabet`, determined by `number`.
fn text(alphabet: &[u8], number: usize, count: usize) -> String {
    // The seeds are far apart, so that texts do not overlap.
    let noise = measure::noise_from((number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15), count);
    noise.into_iter().map(|byte| char::from(alphabet[usize::from(byte) % alphabet.len()])).collect()
}

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let folder = bench.folder("economy")?;
    let steps = bench.count(STEPS);
    let store = Rc::new(RefCell::new(None));
    let made = Rc::clone(&store);
    let disk = Measured::new(DISK, Unit::Bytes, move || grow(&folder, steps, &mut made.borrow_mut()));
    let with = |name, unit, round: fn(&Grown) -> anyhow::Result<f64>| {
        let store = Rc::clone(&store);
        Measured::new(name, unit, move || {
            round(store.borrow().as_ref().context("the subject before made the store")?)
        })
    };
    let last = with(FINAL, Unit::Bytes, |grown| Ok(grown.state.len() as f64));
    let beside = with(BESIDE, Unit::Bytes, |grown| Ok(bytes_of(&grown.folder.path().join("runs"))? as f64));
    let load = with(LOAD, Unit::Milliseconds, Grown::load);
    let parse = with(PARSE, Unit::Milliseconds, Grown::parse);
    let demands = vec![
        at_most("all states together cost little more than the last", DISK, Some(FINAL), 1.6),
        at_most("the newest state is soon back", LOAD, Some(PARSE), 5.0),
    ];
    Ok(Topic { name: "economy", subjects: vec![disk, last, beside, load, parse], demands })
}

/// A closed store with a run whose state has grown.
struct Grown {
    folder: tempfile::TempDir,
    state: Vec<u8>,
}

/// Random letters and punctuation compress worse than any language.
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz ,.";
const HEX: &[u8] = b"0123456789abcdef";

/// Runs steps that each add about 1 KB to the state; returns the size of the database in bytes.
fn grow(folder: &Path, steps: u32, made: &mut Option<Grown>) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir_in(folder)?;
    let row = Row::of(steps, Conversation { messages: Vec::new() }, |state: &mut Conversation| {
        state.messages.push(Message::new(state.messages.len()));
    });
    let path = folder.path().join("waypost.db");
    run(&path, &row)?;
    // After closing, the log is gone and all data is in the database file.
    ensure!(!path.with_extension("db-wal").exists(), "the store was closed, and its log is there");
    let bytes = fs::metadata(&path)?.len();

    let newest = newest(&path)?;
    let state = newest.state_bytes().context("the newest has no state")?.to_vec();
    let conversation: Conversation = serde_json::from_slice(&state)?;
    ensure!(conversation.messages.len() == steps as usize, "a step is missing in the last state");
    check(&path, steps)?;
    *made = Some(Grown { folder, state });
    Ok(bytes as f64)
}

fn run<S>(path: &Path, row: &Row<S>) -> anyhow::Result<()>
where
    S: Serialize + serde::de::DeserializeOwned + Clone + Send + Sync,
{
    let store = Arc::new(SqliteStore::open(path, SqliteOptions::default())?);
    runtime()?.block_on(async {
        row.run(Arc::clone(&store) as Arc<dyn Store>, RUN, Durability::Async).await?;
        Ok(store.close().await?)
    })
}

fn newest(path: &Path) -> anyhow::Result<Record> {
    let store = SqliteStore::open_read_only(path, SqliteOptions::default())?;
    Ok(runtime()?.block_on(store.newest(&RunId::new(RUN)?, &ScopePath::main()))?)
}

/// Checks a sample of states from the whole history: each has a message more than the state before.
fn check(path: &Path, steps: u32) -> anyhow::Result<()> {
    let store = SqliteStore::open_read_only(path, SqliteOptions::default())?;
    let (run, main, runtime) = (RunId::new(RUN)?, ScopePath::main(), runtime()?);
    for seq in (1..=u64::from(steps)).step_by(37) {
        let record = runtime.block_on(store.load(&run, &main, seq))?;
        let state: Conversation = serde_json::from_slice(record.state_bytes().context("it was kept")?)?;
        ensure!(state.messages.len() as u64 == seq - 1, "{seq} has {} messages", state.messages.len());
    }
    Ok(())
}

/// Returns the bytes of all files below a folder.
fn bytes_of(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let path: PathBuf = entry?.path();
        bytes += if path.is_dir() { bytes_of(&path)? } else { fs::metadata(&path)?.len() };
    }
    Ok(bytes)
}

impl Grown {
    /// Returns the milliseconds to load and verify the newest state from a freshly opened store.
    fn load(&self) -> anyhow::Result<f64> {
        let path = self.folder.path().join("waypost.db");
        let (run, runtime) = (RunId::new(RUN)?, runtime()?);
        fastest(|| {
            let store = SqliteStore::open_read_only(&path, SqliteOptions::default())?;

            let start = Instant::now();
            let newest = runtime.block_on(store.newest(&run, &ScopePath::main()))?;
            let figure = measure::milliseconds(1, start);

            ensure!(newest.state_bytes() == Some(&self.state), "the newest state is another one");
            Ok(figure)
        })
    }

    /// Returns the milliseconds to parse the newest state.
    fn parse(&self) -> anyhow::Result<f64> {
        fastest(|| {
            let start = Instant::now();
            let state: Conversation = serde_json::from_slice(black_box(&self.state))?;
            let figure = measure::milliseconds(1, start);

            ensure!(!state.messages.is_empty(), "nothing was parsed");
            Ok(figure)
        })
    }
}

fn fastest(mut once: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..LOADS {
        best = best.min(once()?);
    }
    Ok(best)
}

pub(super) fn large_topic(bench: &Bench) -> anyhow::Result<Topic> {
    let folder = bench.folder("large")?;
    let steps = bench.count(LARGE_STEPS);
    let subjects = vec![
        Measured::new(CHECKPOINT, Unit::CpuMicroseconds, move || large(&folder, steps)),
        Measured::new(SERIALISE, Unit::CpuMicroseconds, move || serialise(steps)),
    ];
    let demands = vec![at_most("a large state is cheap to keep", CHECKPOINT, Some(SERIALISE), 2.5)];
    Ok(Topic { name: "economy-large", subjects, demands })
}

fn table() -> CostTable {
    let item = |id: u32| Item {
        id,
        name: format!("item-{}", id * 7_919 % 10_007),
        score: f64::from(id * 7_717 % 10_007) / 3.0,
        done: id.is_multiple_of(3),
        note: text(LETTERS, id as usize % 97, 20),
    };
    CostTable { changed: 0, items: (0..ITEMS).map(item).collect() }
}

fn change(table: &mut CostTable) {
    table.changed += 1;
    let at = table.changed * 97 % table.items.len();
    table.items[at].score += 1.0;
}

/// Returns the processor time of a step with a large state and a small change.
fn large(folder: &Path, steps: u32) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir_in(folder)?;
    let row = Row::of(steps, table(), change);
    let path = folder.path().join("waypost.db");

    let start = thread_time();
    run(&path, &row)?;
    let used = thread_time() - start;

    let newest: CostTable =
        serde_json::from_slice(newest(&path)?.state_bytes().context("the newest has no state")?)?;
    ensure!(newest.changed == steps as usize, "the newest state has {} changes", newest.changed);
    Ok(used.as_secs_f64() * 1e6 / f64::from(steps))
}

fn serialise(steps: u32) -> anyhow::Result<f64> {
    let mut table = table();
    let start = thread_time();
    for _ in 0..steps {
        change(&mut table);
        black_box(serde_json::to_vec(&table)?);
    }
    Ok((thread_time() - start).as_secs_f64() * 1e6 / f64::from(steps))
}

pub(super) fn results_topic(bench: &Bench) -> anyhow::Result<Topic> {
    let folder = bench.folder("results")?;
    let steps = bench.count(STEPS);
    let subject = Measured::new(RESULT, Unit::Bytes, move || results(&folder, steps));
    let demands = vec![at_most("a result is kept once", RESULT, None, RESULT_BYTES_MAX)];
    Ok(Topic { name: "results", subjects: vec![subject], demands })
}

/// Returns the database bytes per step if each result replaces the result before.
fn results(folder: &Path, steps: u32) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir_in(folder)?;
    let path = folder.path().join("waypost.db");
    let empty = {
        let none = Row::of(1, Last { steps: 0, result: String::new() }, |_: &mut Last| {});
        // A separate folder, because the files of its runs are in the folder of the store.
        let folder = tempfile::tempdir_in(folder.path())?;
        let path = folder.path().join("waypost.db");
        run(&path, &none)?;
        fs::metadata(path)?.len()
    };
    // Without characters that JSON escapes, so that the text is as dense as possible.
    let alphabet: Vec<u8> = (b' '..=b'~').filter(|byte| !matches!(byte, b'"' | b'\\')).collect();
    let results: Vec<String> = (0..steps as usize).map(|step| text(&alphabet, step, RESULT_BYTES)).collect();
    let row = Row::of(steps, Last { steps: 0, result: String::new() }, move |state: &mut Last| {
        state.result.clone_from(&results[state.steps]);
        state.steps += 1;
    });
    run(&path, &row)?;
    let newest: Last =
        serde_json::from_slice(newest(&path)?.state_bytes().context("the newest has no state")?)?;
    ensure!(newest.steps == steps as usize, "the newest state has {} steps", newest.steps);
    Ok((fs::metadata(&path)?.len() - empty).max(1) as f64 / f64::from(steps))
}
