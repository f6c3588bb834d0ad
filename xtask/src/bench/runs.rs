//! Durable runs on SQLite: a single run, and many runs with shared commits.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use waypost::record::Durability;
use waypost::store::Store;
use waypost_sqlite::{SqliteOptions, SqliteStore};

use super::append::RECORD_BYTES;
use super::measure::{self, Bench, Bound, Demand, Measured, Topic, Unit};
use super::part::{self, Part};
use super::program::{Row, runtime};
use super::sqlite;
use crate::output;

const ONE: &str = "one run on SQLite, steps of 1 KB state";
const SYNCS: &str = "one run on SQLite, syncs a step";
const MANY: &str = "100 runs at once on SQLite, one thread, steps";
const MANY_THREADS: &str = "100 runs at once on SQLite, two threads, steps";

const DATABASE: &str = "waypost.db";

/// About half a second on a fast disk.
const STEPS: u32 = 2_000;
/// Concurrent runs in the target.
const RUNS: u32 = 100;
/// Steps per run: enough that the creation of the run does not matter.
const STEPS_EACH: u32 = 500;
/// Threads of the multi-threaded runtime.
const THREADS: usize = 2;

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let folder = bench.folder("runs")?;
    let (steps, steps_each) = (bench.count(STEPS), bench.count(STEPS_EACH));
    let one = folder.clone();
    let mut subjects = vec![Measured::new(ONE, Unit::PerSecond, move || many(&one, &runtime()?, 1, steps))];
    let at_least =
        |claim, ours, least| Demand { claim, ours, limit: Some(sqlite::NAME), bound: Bound::AtLeast(least) };
    let mut demands = vec![
        at_least("a durable step costs little more than its row", ONE, 0.8),
        at_least("runs at once share their syncs", MANY, 4.0),
        at_least("so they do on many threads", MANY_THREADS, 4.0),
    ];
    if has_strace() {
        let counted = folder.clone();
        subjects.push(Measured::new(SYNCS, Unit::Count, move || syncs(&counted, steps)));
        let bound = Bound::AtMost(1.05);
        demands.push(Demand { claim: "a step waits for the disk once", ours: SYNCS, limit: None, bound });
    } else {
        output::note("strace cannot be used here: syncs are not counted");
    }
    let folder_threads = folder.clone();
    subjects.push(Measured::new(MANY, Unit::PerSecond, move || many(&folder, &runtime()?, RUNS, steps_each)));
    subjects.push(Measured::new(MANY_THREADS, Unit::PerSecond, move || {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        let runtime = threads.worker_threads(THREADS).enable_all().build()?;
        many(&folder_threads, &runtime, RUNS, steps_each)
    }));
    Ok(Topic { name: "runs", subjects, demands })
}

/// Returns steps per second of `runs` concurrent runs, including creation and end of the runs.
fn many(folder: &Path, runtime: &Runtime, runs: u32, steps: u32) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir_in(folder)?;
    let store = SqliteStore::open(&folder.path().join(DATABASE), SqliteOptions::default())?;
    let store: Arc<dyn Store> = Arc::new(store);
    let row = Arc::new(Row::new(steps, RECORD_BYTES));
    runtime.block_on(async move {
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for run in 1..=runs {
            let (row, store) = (Arc::clone(&row), Arc::clone(&store));
            tasks.spawn(async move { row.run(store, &format!("r-{run}"), Durability::Sync).await });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        let figure = measure::per_second(runs * steps, start);

        for run in 1..=runs {
            row.check(store.as_ref(), &format!("r-{run}")).await?;
        }
        store.close().await?;
        clear(folder)?;
        Ok(figure)
    })
}

/// Removes the large files and keeps the run folders until the end of the benchmark. For seconds after an
/// inode is freed, ext4 examines it on every nearby file creation, which would double the file costs of the
/// next hundred runs.
fn clear(folder: TempDir) -> anyhow::Result<()> {
    std::fs::remove_file(folder.path().join(DATABASE))?;
    let _kept: PathBuf = folder.keep();
    Ok(())
}

/// System calls that count as a sync.
const SYNC_CALLS: &str = "fsync,fdatasync,sync_file_range,msync,syncfs,sync";

fn has_strace() -> bool {
    let mut command = Command::new("strace");
    command.args(["-o", "/dev/null", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Returns the syncs per step of a run, including open, creation, end and log checkpoints.
fn syncs(folder: &Path, steps: u32) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir_in(folder)?;
    let (store, log) = (folder.path().join("waypost.db"), folder.path().join("strace"));
    let part = part::command(Part::Steps, &store, steps)?;
    let mut command = Command::new("strace");
    command.args(["-f", "-o"]).arg(&log).arg("-e").arg(format!("trace={SYNC_CALLS}"));
    command.arg(part.get_program()).args(part.get_args());
    let status = command.status().context("cannot start strace")?;
    ensure!(status.success(), "a run under strace ended with {status}");
    // With `-f`, strace may split a call into two lines; only the first line has the arguments.
    let begins = |line: &&str| SYNC_CALLS.split(',').any(|call| line.contains(&format!(" {call}(")));
    let count = std::fs::read_to_string(&log)?.lines().filter(begins).count();

    let store = SqliteStore::open(&store, SqliteOptions::default())?;
    runtime()?.block_on(Row::new(steps, RECORD_BYTES).check(&store, part::RUN))?;
    ensure!(count >= steps as usize, "{steps} durable steps took only {count} syncs");
    Ok(count as f64 / f64::from(steps))
}
