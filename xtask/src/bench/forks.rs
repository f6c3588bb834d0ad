//! Branches and loops of a typed graph: the marginal cost of a branch or iteration at different counts.
//!
//! Processor time is measured on the memory store over the whole run: opening the branches, start and end of
//! each branch, and the join. Memory is the peak of a separate process on SQLite. There all finished work is
//! on disk, so growth with the number of branches is caused by the engine.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use waypost::graph::{Branches, Builder};
use waypost::memory::MemoryStore;
use waypost::record::{Durability, RunStatus};
use waypost::store::Store;
use waypost::{Context, END, Engine, Graph, RunId, StepError};

use super::measure::{Bench, Bound, Demand, Measured, Topic, Unit, thread_time};
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

/// The counts in the target.
const FEW: u32 = 1_000;
const MANY: u32 = 100_000;
/// More than a page of branches, so that the short form opens several pages.
const FEW_SHORT: u32 = 1_100;
const MANY_SHORT: u32 = 3_300;
/// The base of the memory comparison: the caches of the database and the queue of the projector are full.
const SETTLED: u32 = 10_000;
/// Twice the base shows growth.
const MEMORY_MANY_SHORT: u32 = 2 * SETTLED;
/// Runs of the smaller counts per round; the first run warms up shared caches.
const RUNS: u32 = 10;
/// Most bytes that another item or iteration may add to the peak. An item keeps its value as passed by the
/// program and as frozen, a digest for the join, and a digest of its report section. A branch or report
/// section kept in memory needs more.
const MORE_BYTES_MAX: u64 = 512;

/// About 100 bytes as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ForkState {
    count: u64,
    text: String,
}

impl ForkState {
    fn new() -> Self {
        Self {
            count: 0,
            text: "a state of a hundred bytes is what most of them are, some names and numbers".into(),
        }
    }
}

/// The repeated element of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Branches of a fork, each with a single step.
    Fork,
    /// Items, each with a scope of a single step.
    Items,
    /// Iterations of a loop with a single step.
    Passes,
}

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let (few, many) = (bench.count_or(FEW, FEW_SHORT), bench.count_or(MANY, MANY_SHORT));
    let runs = bench.count_or(RUNS, 1);
    let time = |name, work, count, runs| {
        Measured::new(name, Unit::CpuMicroseconds, move || time_of(work, count, runs))
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
            subjects.push(Measured::new(name, Unit::Bytes, move || memory_of(&folder, part, SETTLED, many)));
        }
        demands.push(demand("finished items are not kept in memory", ITEMS_MEMORY, None, 100e6));
        demands.push(demand("finished passes are not kept in memory", PASSES_MEMORY, None, 100e6));
    } else {
        output::note("this system does not tell how much memory a process had: it is not measured");
    }
    Ok(Topic { name: "forks", subjects, demands })
}

/// Returns the processor time per element, in microseconds.
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

/// Runs a graph with `count` elements and checks the result.
async fn run(graph: &Graph<ForkState>, store: Arc<dyn Store>, count: u32) -> anyhow::Result<()> {
    let engine = Engine::new(Arc::clone(&store));
    let outcome = engine.run(graph, RUN, ForkState::new()).durability(Durability::Async).await?;
    ensure!(outcome.status == RunStatus::Completed, "the run ended as {:?}", outcome.status);
    let found = outcome.state.count;
    ensure!(found == u64::from(count), "{found} of {count} are in the state at the end");
    let summary = store.run(&RunId::new(RUN)?).await?.summary;
    ensure!(summary.checkpoints > u64::from(count), "{count} left {} records", summary.checkpoints);
    Ok(())
}

/// Returns a graph with `count` elements; each increments the count in the state.
fn graph(work: Work, count: u32) -> anyhow::Result<Graph<ForkState>> {
    let graph = match work {
        Work::Fork => fork(count).build(),
        Work::Items => items(count).build(),
        Work::Passes => passes(count).build(),
    };
    Ok(graph?)
}

fn fork(count: u32) -> Builder<ForkState> {
    let names: Vec<String> = (1..=count).map(|number| format!("branch-{number}")).collect();
    let begin =
        Graph::builder("bench").step("begin", |state: ForkState, _| async { Ok::<_, StepError>(state) });
    let builder = names.iter().fold(begin, |builder, name| builder.step(name, add_one));
    builder.fork("begin", &names).join("sum", |mut state, ends: Branches<ForkState>, _| {
        state.count = ends.iter().filter_map(|end| Some(end.result.as_ref().ok()?.count)).sum();
        async { Ok::<_, StepError>(state) }
    })
}

fn items(count: u32) -> Builder<ForkState> {
    let items = move |_: &ForkState| (0..count).collect();
    let work = |item: u32, _: Context| async move { Ok::<_, StepError>(item + 1) };
    let each = Graph::<ForkState>::builder("bench").each("items", items, u32::to_string, work);
    each.join(|mut state, mut ends, _| async move {
        while let Some(end) = ends.next().await? {
            state.count += u64::from(end.result.is_ok_and(|result| result == end.item + 1));
        }
        Ok::<_, StepError>(state)
    })
}

fn passes(count: u32) -> Builder<ForkState> {
    let last = u64::from(count);
    let next = move |state: &ForkState| if state.count < last { "pass" } else { END };
    Graph::builder("bench").step("pass", add_one).route("pass", ["pass", END], next)
}

async fn add_one(mut state: ForkState, _: Context) -> Result<ForkState, StepError> {
    state.count += 1;
    Ok(state)
}

/// Runs the work on `store` and prints the peak memory of the process.
///
/// # Errors
/// If the run does not complete.
pub(super) fn print_memory(work: Work, store: Arc<dyn Store>, count: u32) -> anyhow::Result<()> {
    let graph = graph(work, count)?;
    runtime()?.block_on(run(&graph, store, count))?;
    output::say(peak_bytes().context("this system does not tell")?.to_string());
    Ok(())
}

/// Returns the peak memory for `many`. The limit is the peak for `few` plus [`MORE_BYTES_MAX`] per additional
/// element.
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

/// Returns the peak memory of this process, if the system reports it.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1_024)
}
