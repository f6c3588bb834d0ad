//! The command line: overhead of `waypost` per step, and response times.

use std::cell::OnceCell;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tokio::task::JoinSet;
use waypost::record::Durability;
use waypost::store::Store;
use waypost_sqlite::{SqliteOptions, SqliteStore};

use super::measure::{self, Bench, Bound, Demand, Measured, Topic, Unit, median};
use super::program::{Row, runtime};
use super::spawn;
use crate::repo;

const STEPS: &str = "`waypost run`, a step of `true`";
const LIST: &str = "`waypost list`, newest 50 of 100,000 runs";
const VERSION: &str = "`waypost --version`";

/// The counts in the target.
const STEP_COUNT: u32 = 1_000;
const RUN_COUNT: u32 = 100_000;
/// More than a page of the list, and quick to create.
const RUN_COUNT_SHORT: u32 = 2_000;
/// Runs on a page of the list.
const LIST_COUNT: usize = 50;
/// Runs created concurrently, which share commits.
const RUNS_AT_ONCE: u32 = 256;
/// State size of the listed runs; irrelevant for the list.
const STATE_BYTES: usize = 100;
/// Processes per round, of which the median counts: a start takes milliseconds, a disturbed start many.
const STARTS: u32 = 15;

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let folder = bench.folder("command")?;
    let program = Rc::new(Waypost::default());
    let (steps, starts) = (bench.count(STEP_COUNT), bench.count_or(STARTS, 1));
    let runs = bench.count_or(RUN_COUNT, RUN_COUNT_SHORT);

    let (waypost, flows) = (Rc::clone(&program), folder.clone());
    let run = Measured::new(STEPS, Unit::Milliseconds, move || run(&waypost, &flows, steps));
    let (waypost, mut store) = (Rc::clone(&program), Runs { folder, count: runs, made: false });
    let list = Measured::new(LIST, Unit::Milliseconds, move || list(&waypost, store.made()?, starts));
    let version = Measured::new(VERSION, Unit::Milliseconds, move || version(&program, starts));
    let at_most = |claim, ours, limit, most| Demand { claim, ours, limit, bound: Bound::AtMost(most) };
    let demands = vec![
        at_most("a step costs little more than its shell", STEPS, Some(spawn::LOOP), 2.0),
        at_most("a list opens no run", LIST, None, 50.0),
        at_most("the command starts at once", VERSION, None, 10.0),
    ];
    Ok(Topic { name: "command", subjects: vec![run, list, version], demands })
}

/// The command `waypost`, built on first use.
#[derive(Debug, Default)]
pub(super) struct Waypost {
    path: OnceCell<PathBuf>,
}

impl Waypost {
    /// Returns a command in `folder`, without terminal and user settings.
    pub(super) fn command(&self, folder: &Path) -> anyhow::Result<Command> {
        let path = match self.path.get() {
            Some(path) => path,
            None => self.path.get_or_init(build()?),
        };
        let mut command = Command::new(path);
        command.current_dir(folder).env_remove("WAYPOST_STORE").stdin(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }
}

/// Builds `waypost` in the same target folder; beside an optimised build of this program with the profile of a release.
fn build() -> anyhow::Result<impl FnOnce() -> PathBuf> {
    let this = std::env::current_exe().context("cannot find this program")?;
    let mut command = repo::cargo(&["build", "--quiet", "--package", "waypost-cli"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    repo::run(&mut command)?;
    Ok(move || this.with_file_name("waypost"))
}

/// Returns milliseconds per step of a workflow, including the start of command, store and supervisor.
fn run(waypost: &Waypost, folder: &Path, steps: u32) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir_in(folder)?;
    let mut text = "steps:\n".to_owned();
    for step in 1..=steps {
        writeln!(text, "  - {{ id: step-{step}, run: \"true\" }}")?;
    }
    std::fs::write(folder.path().join("waypost.yaml"), text)?;
    let mut command = waypost.command(folder.path())?;
    command.arg("run").stdout(Stdio::null());

    let start = Instant::now();
    let status = command.status()?;
    let figure = measure::milliseconds(steps, start);

    ensure!(status.success(), "`waypost run` ended with {status}");
    let listed = answer(waypost.command(folder.path())?.args(["list", "--json"]))?;
    let (status, done) = (&listed["runs"][0]["status"], &listed["runs"][0]["progress"]["done"]);
    ensure!(status == "completed" && *done == steps, "the run is {status}, with {done} steps done");
    Ok(figure)
}

/// Runs a command and returns its JSON output.
fn answer(command: &mut Command) -> anyhow::Result<Value> {
    let output = command.stdout(Stdio::piped()).output()?;
    ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("the answer of {command:?} is no JSON"))
}

/// A store with many runs, created on first use.
struct Runs {
    folder: PathBuf,
    count: u32,
    made: bool,
}

impl Runs {
    /// Returns the folder of the store.
    fn made(&mut self) -> anyhow::Result<&Path> {
        if !self.made {
            let path = self.folder.join(".waypost").join("waypost.db");
            let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path, SqliteOptions::default())?);
            runtime()?.block_on(make_runs(store, self.count))?;
            self.made = true;
        }
        Ok(&self.folder)
    }
}

async fn make_runs(store: Arc<dyn Store>, count: u32) -> anyhow::Result<()> {
    let row = Arc::new(Row::new(1, STATE_BYTES));
    let mut tasks = JoinSet::new();
    for run in 1..=count {
        if run > RUNS_AT_ONCE {
            tasks.join_next().await.expect("as many are under way as may be")??;
        }
        let (row, store) = (Arc::clone(&row), Arc::clone(&store));
        tasks.spawn(async move { row.run(store, &format!("r-{run}"), Durability::Async).await });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(store.close().await?)
}

fn list(waypost: &Waypost, folder: &Path, starts: u32) -> anyhow::Result<f64> {
    let limit = LIST_COUNT.to_string();
    let mut command = waypost.command(folder)?;
    command.args(["list", "--json", "--limit", &limit]);
    let listed = answer(&mut command)?;
    let count = listed["runs"].as_array().map(Vec::len);
    ensure!(count == Some(LIST_COUNT), "the list has {count:?} runs");
    median_of(&mut command, starts)
}

fn version(waypost: &Waypost, starts: u32) -> anyhow::Result<f64> {
    let mut command = waypost.command(Path::new("."))?;
    command.arg("--version");
    median_of(&mut command, starts)
}

/// Returns the median duration of a command.
fn median_of(command: &mut Command, starts: u32) -> anyhow::Result<f64> {
    command.stdout(Stdio::null());
    let mut figures = Vec::new();
    for _ in 0..starts {
        let start = Instant::now();
        let status = command.status()?;
        figures.push(measure::milliseconds(1, start));
        ensure!(status.success(), "{command:?} ended with {status}");
    }
    median(&figures).context("nothing was started")
}
