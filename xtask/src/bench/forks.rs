//! Branches and loops of a typed graph: what one more of them costs, however many there are.
//!
//! Processor time is measured over the store in memory, all of the run counted: opening the branches, each one's start
//! and end, the join that reads them. Memory is that of a process of its own over SQLite, at its peak: there all that
//! is done is on the disk, and what grows with the number of branches is the engine's.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use waypost::graph::{Branches, Builder};
use waypost::memory::MemoryStore;
use waypost::record::{Durability, RunStatus};
use waypost::store::Store;
use waypost::{Context, END, Engine, Graph, RunId, StepError};

use super::measure::{Bench, Bound, Demand, Subject, Topic, Unit, thread_time};
use super::part::{self, Part, RUN};
use super::program::runtime;
use crate::output;

const FORK: &str = "a branch of a fork of 1,000";
const ITEMS_FEW: &str = "an item of 1,000";
const ITEMS_MANY: &str = "an item of 100,000";
const PASSES_FEW: &str = "a pass of a loop of 1,000";
const PASSES_MANY: &str = "a pass of a loop of 100,000";
const ITEMS_MEMORY: &str = "memory of 100,000 items on SQLite, at its peak";
const PASSES_MEMORY: &str = "memory of 100,000 passes on SQLite, at its peak";

/// As the targets name them.
const FEW: u32 = 1_000;
const MANY: u32 = 100_000;
/// More than a page of branches, so that the short form opens several.
const FEW_SHORT: u32 = 1_100;
const MANY_SHORT: u32 = 3_300;
/// What memory is compared with: enough that the caches of the database are full, and what waits to be written for
/// people is as much as may wait.
const SETTLED: u32 = 10_000;
/// Twice as many show whether it grows.
const MEMORY_MANY_SHORT: u32 = 2 * SETTLED;
/// Runs of the smaller counts in a round: the first one warms up what the others use.
const RUNS: u32 = 10;
/// Most bytes that one more item or pass may add to the peak: an item has its value, as the program hands it over and as it
/// is frozen, and a digest for the join, and the report knows its sections by a digest. A branch that stays in memory, or
/// a section of the report, takes more.
const MORE_BYTES_MAX: u64 = 512;

/// About 100 bytes as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct State {
    count: u64,
    text: String,
}

impl State {
    fn new() -> Self {
        Self {
            count: 0,
            text: "a state of a hundred bytes is what most of them are, some names and numbers".into(),
        }
    }
}

/// What a graph does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Branches of a fork, each with one step.
    Fork,
    /// Items, each with a branch of one step.
    Items,
    /// Passes of a loop of one step.
    Passes,
}

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let (few, many) = (bench.count_or(FEW, FEW_SHORT), bench.count_or(MANY, MANY_SHORT));
    let runs = bench.count_or(RUNS, 1);
    let time = |name, work, count, runs| {
        Subject::new(name, Unit::CpuMicroseconds, move || time_of(work, count, runs))
    };
    let mut subjects = vec![
        time(FORK, Work::Fork, few, runs),
        time(ITEMS_FEW, Work::Items, few, runs),
        time(ITEMS_MANY, Work::Items, many, 1),
        time(PASSES_FEW, Work::Passes, few, runs),
        time(PASSES_MANY, Work::Passes, many, 1),
    ];
    let demand = |claim, ours, limit, most| Demand { claim, ours, limit, bound: Bound::AtMost(most) };
    let mut demands = vec![
        demand("a branch costs little", FORK, None, 10.0),
        demand("many items cost no more each than few", ITEMS_MANY, Some(ITEMS_FEW), 1.3),
        demand("a long loop costs no more a pass than a short one", PASSES_MANY, Some(PASSES_FEW), 1.1),
    ];
    if peak_bytes().is_some() {
        let folder = bench.folder("forks")?;
        let many = bench.count_or(MANY, MEMORY_MANY_SHORT);
        for (name, part) in [(ITEMS_MEMORY, Part::Items), (PASSES_MEMORY, Part::Passes)] {
            let folder = folder.clone();
            subjects.push(Subject::new(name, Unit::Bytes, move || memory_of(&folder, part, SETTLED, many)));
        }
        demands.push(demand("finished items are not kept in memory", ITEMS_MEMORY, None, 100e6));
        demands.push(demand("finished passes are not kept in memory", PASSES_MEMORY, None, 100e6));
    } else {
        output::note("this system does not tell how much memory a process had: it is not measured");
    }
    Ok(Topic { name: "forks", subjects, demands })
}

/// Processor time for each, in microseconds.
fn time_of(work: Work, count: u32, runs: u32) -> anyhow::Result<f64> {
    let graph = graph(work, count)?;
    let runtime = runtime()?;
    let mut used = std::time::Duration::ZERO;
    for _ in 0..runs {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());

        let start = thread_time();
        runtime.block_on(run(&graph, Arc::clone(&store), count))?;
        used += thread_time() - start;
    }
    Ok(used.as_secs_f64() * 1e6 / f64::from(count * runs))
}

/// Runs a graph of `count`, and looks at what became of it.
async fn run(graph: &Graph<State>, store: Arc<dyn Store>, count: u32) -> anyhow::Result<()> {
    let engine = Engine::new(Arc::clone(&store));
    let outcome = engine.run(graph, RUN, State::new()).durability(Durability::Async).await?;
    ensure!(outcome.status == RunStatus::Completed, "the run ended as {:?}", outcome.status);
    let found = outcome.state.count;
    ensure!(found == u64::from(count), "{found} of {count} are in the state at the end");
    let summary = store.run(&RunId::new(RUN)?).await?.summary;
    ensure!(summary.checkpoints > u64::from(count), "{count} left {} records", summary.checkpoints);
    Ok(())
}

/// Makes a graph that does `work` `count` times, each of which adds one to the count in the state.
fn graph(work: Work, count: u32) -> anyhow::Result<Graph<State>> {
    let graph = match work {
        Work::Fork => fork(count).build(),
        Work::Items => items(count).build(),
        Work::Passes => passes(count).build(),
    };
    Ok(graph?)
}

fn fork(count: u32) -> Builder<State> {
    let names: Vec<String> = (1..=count).map(|number| format!("branch-{number}")).collect();
    let begin = Graph::builder("bench").step("begin", |state: State, _| async { Ok::<_, StepError>(state) });
    let builder = names.iter().fold(begin, |builder, name| builder.step(name, add_one));
    builder.fork("begin", &names).join("sum", |mut state, ends: Branches<State>, _| {
        state.count = ends.iter().filter_map(|end| Some(end.result.as_ref().ok()?.count)).sum();
        async { Ok::<_, StepError>(state) }
    })
}

fn items(count: u32) -> Builder<State> {
    let items = move |_: &State| (0..count).collect();
    let work = |item: u32, _: Context| async move { Ok::<_, StepError>(item + 1) };
    let each = Graph::<State>::builder("bench").each("items", items, u32::to_string, work);
    each.join(|mut state, mut ends, _| async move {
        while let Some(end) = ends.next().await? {
            state.count += u64::from(end.result.is_ok_and(|result| result == end.item + 1));
        }
        Ok::<_, StepError>(state)
    })
}

fn passes(count: u32) -> Builder<State> {
    let last = u64::from(count);
    let next = move |state: &State| if state.count < last { "pass" } else { END };
    Graph::builder("bench").step("pass", add_one).route("pass", ["pass", END], next)
}

async fn add_one(mut state: State, _: Context) -> Result<State, StepError> {
    state.count += 1;
    Ok(state)
}

/// Does the work in `store`, and says how much memory that took.
///
/// # Errors
/// When it does not end as it should.
pub(super) fn tell_memory(work: Work, store: Arc<dyn Store>, count: u32) -> anyhow::Result<()> {
    let graph = graph(work, count)?;
    runtime()?.block_on(run(&graph, store, count))?;
    output::say(peak_bytes().context("this system does not tell")?.to_string());
    Ok(())
}

/// The most memory that `many` took. For each one more than `few` it may be more by [`MORE_BYTES_MAX`].
fn memory_of(folder: &Path, part: Part, few: u32, many: u32) -> anyhow::Result<f64> {
    let peak = |count: u32| -> anyhow::Result<u64> {
        let folder = tempfile::tempdir_in(folder)?;
        let output = part::command(part, &folder.path().join("waypost.db"), count)?.output()?;
        ensure!(output.status.success(), "the process ended with {}", output.status);
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    let (least, most) = (peak(few)?, peak(many)?);
    let each = most.saturating_sub(least) / u64::from(many - few);
    ensure!(each <= MORE_BYTES_MAX, "one more took {each} bytes of memory, {MORE_BYTES_MAX} are allowed");
    Ok(most as f64)
}

/// The most memory that this process ever had, where the system tells.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1_024)
}
