//! Durable runs and claims on PostgreSQL, against a loop of one insert a commit on the same private server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};
use waypost::lock::Holder;
use waypost::record::RunStatus;
use waypost::store::{Job, Queue as _, Store};
use waypost::worker::Worker;
use waypost::{Clock as _, Engine, Graph, RunId, StepError, StopHandle, StopLevel, SystemClock};
use waypost_postgres::{PostgresOptions, PostgresStore};
use waypost_testing::postgres::{USER, cluster};

use super::append::RECORD_BYTES;
use super::measure::{self, Bench, Bound, Demand, Measured, Topic, Unit};
use super::program;

const RAW: &str = "PostgreSQL, one insert a commit, 1 KB row";
const ONE: &str = "one run on PostgreSQL, steps of 1 KB state";
const MANY: &str = "100 runs on PostgreSQL, 4 workers, steps";
const CLAIMS: &str = "claims on PostgreSQL, batches of 100";
const WORN: &str = "claims on PostgreSQL, after many claims";

/// About a second on a fast disk.
const COUNT: u32 = 2_000;
/// Runs in the target.
const RUNS: u32 = 100;
/// Workers in the target.
const WORKERS: usize = 4;
/// Steps per run: enough that the creation and the claim of the run do not matter.
const STEPS_EACH: u32 = 50;
/// Ready runs at the start of the claims.
const READY: u32 = 5_000;
/// Runs per claim.
const BATCH: usize = 100;
/// Claim-and-finish cycles of all ready runs before the measured cycle.
const CYCLES: u32 = 20;
/// Longest wait for the end of all runs.
const END_MAX: Duration = Duration::from_secs(300);
/// Threads of the runtime of workers and steps.
const THREADS: usize = 2;

/// The name of the topic, which needs a server.
pub(super) const NAME: &str = "postgres";

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let (count, steps, ready) = (bench.count(COUNT), bench.count(STEPS_EACH), bench.count(READY));
    let (runs, cycles) = (bench.count_or(RUNS, 4), bench.count_or(CYCLES, 1));
    let subjects = vec![
        Measured::new(RAW, Unit::PerSecond, move || program::runtime()?.block_on(raw(count))),
        Measured::new(ONE, Unit::PerSecond, move || program::runtime()?.block_on(one(count))),
        Measured::new(MANY, Unit::PerSecond, move || runtime()?.block_on(many(runs, steps))),
        Measured::new(CLAIMS, Unit::PerSecond, move || runtime()?.block_on(claims(ready, 0))),
        Measured::new(WORN, Unit::PerSecond, move || runtime()?.block_on(claims(ready, cycles))),
    ];
    let at_least = |claim, ours, limit, least| Demand { claim, ours, limit, bound: Bound::AtLeast(least) };
    let demands = vec![
        at_least("a durable step costs little more than its row", ONE, Some(RAW), 0.7),
        at_least("runs of four workers share the server", MANY, Some(ONE), 3.0),
        at_least("a claim of many runs is one statement", CLAIMS, None, 10_000.0),
        at_least("a worn queue is as fast as a fresh one", WORN, Some(CLAIMS), 1.0 / 1.5),
    ];
    Ok(Topic { name: NAME, subjects, demands })
}

fn runtime() -> anyhow::Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?)
}

/// A new database on the private server.
struct Site {
    url: String,
    tables: Client,
}

impl Site {
    async fn new() -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bench_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        cluster().database(&name, "SELECT 1");
        let url = cluster().connection(USER, &name);
        let (tables, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(async { drop(connection.await) });
        let site = Self { url, tables };
        site.open()?.init().await?;
        // The rounds begin with the same amount of work for the server.
        site.tables.batch_execute("CHECKPOINT").await?;
        Ok(site)
    }

    fn open(&self) -> anyhow::Result<Arc<PostgresStore>> {
        Ok(Arc::new(PostgresStore::open(&self.url, PostgresOptions::default())?))
    }
}

/// Returns rows per second, one insert in flight.
async fn raw(count: u32) -> anyhow::Result<f64> {
    let site = Site::new().await?;
    let text = "CREATE TABLE raw (seq bigint PRIMARY KEY, body bytea NOT NULL);
        ALTER TABLE raw ALTER COLUMN body SET STORAGE EXTERNAL";
    site.tables.batch_execute(text).await?;
    let insert = site.tables.prepare("INSERT INTO raw (seq, body) VALUES ($1, $2)").await?;
    let body = measure::noise(RECORD_BYTES);

    let start = Instant::now();
    for seq in 1..=i64::from(count) {
        site.tables.execute(&insert, &[&seq, &body]).await?;
    }
    let figure = measure::per_second(count, start);

    let row = site.tables.query_one("SELECT count(*) FROM raw WHERE body = $1", &[&body]).await?;
    ensure!(row.get::<_, i64>(0) == i64::from(count), "rows are missing");
    Ok(figure)
}

/// The state: a step counter, and a text that each step replaces.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Text {
    steps: u64,
    text: String,
}

/// Returns a graph of steps that replace the text.
fn graph(steps: u32) -> anyhow::Result<Graph<Text>> {
    let letter = |byte: u8| char::from(b'a' + byte % 26);
    let noise: String = measure::noise(2 * RECORD_BYTES).into_iter().map(letter).collect();
    let noise: Arc<str> = noise.into();
    let names: Vec<String> = (1..=steps).map(|step| format!("step-{step}")).collect();
    let mut builder = Graph::<Text>::builder("bench");
    for name in &names {
        let noise = Arc::clone(&noise);
        builder = builder.step(name, move |state: Text, _| {
            let begin = state.steps as usize % RECORD_BYTES;
            let text = noise[begin..begin + RECORD_BYTES].to_owned();
            async move { Ok::<_, StepError>(Text { steps: state.steps + 1, text }) }
        });
    }
    Ok(builder.chain(&names).build()?)
}

fn begin() -> Text {
    Text { steps: 0, text: String::new() }
}

/// Returns steps per second of a run.
async fn one(steps: u32) -> anyhow::Result<f64> {
    let site = Site::new().await?;
    let (store, graph) = (site.open()?, graph(steps)?);
    let engine = Engine::new(Arc::clone(&store) as _);

    let start = Instant::now();
    let outcome = engine.run(&graph, "r-1", begin()).await?;
    let figure = measure::per_second(steps, start);

    ensure!(outcome.state.steps == u64::from(steps), "steps are missing");
    store.close().await?;
    Ok(figure)
}

/// Returns steps per second of submitted runs, executed by workers with separate stores.
async fn many(runs: u32, steps: u32) -> anyhow::Result<f64> {
    let site = Site::new().await?;
    let (store, graph) = (site.open()?, graph(steps)?);
    let engine = Engine::new(Arc::clone(&store) as _);
    for run in 1..=runs {
        engine.run(&graph, format!("r-{run}"), begin()).submit(Job::default()).await?;
    }
    let stop = StopHandle::default();
    let slots = (runs as usize).div_ceil(WORKERS).try_into()?;
    let (mut workers, mut stores) = (JoinSet::new(), Vec::new());

    let start = Instant::now();
    for _ in 0..WORKERS {
        let store = site.open()?;
        stores.push(Arc::clone(&store));
        let worker = Worker::new(store).register(&graph).with_slots(slots).with_stop(stop.clone());
        workers.spawn(worker.run());
    }
    let ended = "SELECT count(*) FROM waypost.scopes WHERE status = 'completed'";
    while site.tables.query_one(ended, &[]).await?.get::<_, i64>(0) < i64::from(runs) {
        ensure!(start.elapsed() < END_MAX, "the runs do not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let figure = measure::per_second(runs * steps, start);

    stop.stop(StopLevel::Graceful, "bench");
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    for run in 1..=runs {
        let run = RunId::new(&format!("r-{run}"))?;
        let summary = store.run(&run).await?.summary;
        ensure!(summary.status == RunStatus::Completed, "run {run} is {:?}", summary.status);
    }
    for store in stores {
        store.close().await?;
    }
    Ok(figure)
}

/// Returns claims per second of ready runs, after cycles of claims and ends of all runs.
async fn claims(ready: u32, cycles: u32) -> anyhow::Result<f64> {
    const RUNS: &str = "INSERT INTO waypost.runs (name, workflow, labels, created_at)
            SELECT 'r-' || n, 'bench', '{}', '' FROM generate_series(1, $1::bigint) n";
    const SCOPES: &str =
        "INSERT INTO waypost.scopes (run, key, path, open, newest, bodies, records, bytes, status)
            SELECT id, $1, 'main', true, 0, 0, 0, 0, 'queued' FROM waypost.runs ORDER BY id";
    const QUEUE: &str = "INSERT INTO waypost.jobs (run, priority, needs) SELECT id, 0, '' FROM waypost.runs;
        INSERT INTO waypost.ready (scope, run, priority) SELECT id, run, 0 FROM waypost.scopes ORDER BY id";
    const AGAIN: &str = "UPDATE waypost.scopes SET held = false, status = 'completed';
        UPDATE waypost.scopes SET status = 'queued';
        INSERT INTO waypost.ready (scope, run, priority) SELECT id, run, 0 FROM waypost.scopes ORDER BY id";
    let site = Site::new().await?;
    site.tables.execute(RUNS, &[&i64::from(ready)]).await?;
    let main = waypost::Digest::of(b"main").as_bytes()[..16].to_vec();
    site.tables.execute(SCOPES, &[&main]).await?;
    site.tables.batch_execute(QUEUE).await?;
    for _ in 0..cycles {
        cycle(&site, ready).await?;
        site.tables.batch_execute(AGAIN).await?;
    }
    cycle(&site, ready).await
}

/// Claims all ready runs as a new worker; returns claims per second.
async fn cycle(site: &Site, ready: u32) -> anyhow::Result<f64> {
    let store = site.open()?;
    let (holder, needs) = (Holder::here(SystemClock.now())?, BTreeSet::from([BTreeSet::new()]));
    // The row of the worker exists before the first measured claim.
    store.claim(&holder, &BTreeSet::new(), 1).await?;
    let mut claimed = Vec::new();

    let start = Instant::now();
    loop {
        let leases = store.claim(&holder, &needs, BATCH).await?;
        if leases.is_empty() {
            break;
        }
        claimed.extend(leases);
    }
    let figure = measure::per_second(ready, start);

    // Without the store, the drop of a lease sends no statement.
    Arc::into_inner(store).context("the store is shared")?;
    let names: BTreeSet<&str> = claimed.iter().map(|lease| lease.run().as_str()).collect();
    ensure!(names.len() == ready as usize, "{} runs of {ready} were claimed", names.len());
    ensure!(claimed.len() == names.len(), "a run was claimed twice");
    Ok(figure)
}
