//! A run with a file per step: the cost of late and of early steps, and the resume of the finished run. The resume
//! checks all evidence and runs nothing; the comparison is a `stat` per file and a digest lookup by the result.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use waypost::evidence::{FILE_SHA256, Limits, Verifier};
use waypost::record::{Claim, Durability, Pack, RunStatus, Terms};
use waypost::store::Store;
use waypost::{Digest, Engine, Graph};
use waypost_sqlite::{SqliteOptions, SqliteStore};

use super::measure::{self, Bench, Bound, Demand, Measured, Topic, Unit};
use super::part::RUN;
use super::program::runtime;

const EARLY: &str = "the first tenth of a run, for each step with a file";
const LATE: &str = "the last tenth of the same run";
const LOOK: &str = "a stat of each file, and a look for its digest";
const RESUME: &str = "resume of a finished run, for each step with a file";

/// The counts in the target.
const STEPS: u32 = 10_000;
const FILE_BYTES: usize = 16;

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let world = Rc::new(World { folder: bench.folder("resume")?, steps: bench.count(STEPS) });
    let made: Rc<RefCell<Option<Ran>>> = Rc::default();
    let (looked, early, late) = (Rc::clone(&world), Rc::clone(&world), Rc::clone(&world));
    let (made_early, made_late) = (Rc::clone(&made), Rc::clone(&made));
    let subjects = vec![
        Measured::new(EARLY, Unit::PerSecond, move || {
            let ran = early.run()?;
            let figure = early.speed_of(&ran, 0);
            *made_early.borrow_mut() = Some(ran);
            figure
        }),
        Measured::new(LATE, Unit::PerSecond, move || {
            late.speed_of(
                made_late.borrow().as_ref().context("the run comes first")?,
                late.steps - late.tenth(),
            )
        }),
        Measured::new(LOOK, Unit::PerSecond, move || looked.look()),
        Measured::new(RESUME, Unit::PerSecond, move || {
            world.resume(made.borrow().as_ref().context("the run comes first")?)
        }),
    ];
    let even = Demand {
        claim: "a late step with evidence costs little more than an early one",
        ours: LATE,
        limit: Some(EARLY),
        bound: Bound::AtLeast(0.67),
    };
    let near = Demand {
        claim: "what is finished is trusted for little more than a look at it",
        ours: RESUME,
        limit: Some(LOOK),
        bound: Bound::AtLeast(0.33),
    };
    Ok(Topic { name: "resume", subjects, demands: vec![even, near] })
}

/// A finished run, with the starts of its steps.
struct Ran {
    engine: Engine,
    graph: Graph<u64>,
    starts: Arc<Mutex<Vec<Instant>>>,
}

struct World {
    folder: PathBuf,
    steps: u32,
}

impl World {
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.steps).map(|number| self.folder.join("files").join(number.to_string()))
    }

    fn write(&self) -> anyhow::Result<()> {
        let noise = measure::noise(FILE_BYTES);
        fs::create_dir_all(self.folder.join("files"))?;
        for file in self.files().filter(|file| !file.exists()) {
            fs::write(&file, &noise).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }

    fn look(&self) -> anyhow::Result<f64> {
        self.write()?;
        let key = |stat: &Metadata| (stat.dev(), stat.ino(), stat.len(), stat.mtime(), stat.mtime_nsec());
        let mut digests = HashMap::new();
        for file in self.files() {
            digests.insert(key(&fs::metadata(&file)?), Digest::of(&fs::read(&file)?));
        }
        let files: Vec<PathBuf> = self.files().collect();

        let start = Instant::now();
        for file in &files {
            ensure!(digests.contains_key(&key(&fs::metadata(file)?)), "{} is another one", file.display());
        }
        Ok(measure::per_second(self.steps, start))
    }

    /// The number of steps in a tenth of the run.
    fn tenth(&self) -> u32 {
        (self.steps / 10).max(2)
    }

    /// Returns the steps a second in a tenth of a run, from a step on.
    fn speed_of(&self, ran: &Ran, first: u32) -> anyhow::Result<f64> {
        let starts = ran.starts.lock().map_err(|_| anyhow::anyhow!("a step panicked"))?;
        ensure!(starts.len() == self.steps as usize, "{} steps were started", starts.len());
        let count = self.tenth();
        let (first, last) = (first as usize, (first + count - 1) as usize);
        Ok(f64::from(count - 1) / (starts[last] - starts[first]).as_secs_f64())
    }

    /// Runs all steps in a new store; each pins its file.
    fn run(&self) -> anyhow::Result<Ran> {
        self.write()?;
        let folder = self.folder.join("store");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let path = folder.join("waypost.db");
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path, SqliteOptions::default())?);
        let hour = Duration::from_secs(3_600);
        let verifier = Verifier::new().with_limits(Limits { claim: hour, pack: hour, ..Limits::default() });
        let engine = Engine::new(store).with_base(&self.folder).with_verifier(verifier);
        let starts = Arc::new(Mutex::new(Vec::with_capacity(self.steps as usize)));
        let mut builder = Graph::<u64>::builder("bench");
        for number in 0..self.steps {
            let claim = Claim {
                pinned: true,
                terms: Terms { fast: true, ..Terms::default() },
                ..Claim::new(FILE_SHA256, format!("files/{number}"))
            };
            let pack = Pack::all([claim]);
            let started = Arc::clone(&starts);
            let step = move |state: u64, _| {
                if let Ok(mut starts) = started.lock() {
                    starts.push(Instant::now());
                }
                async move { Ok::<u64, std::convert::Infallible>(state + 1) }
            };
            builder = builder.step(name(number), step).evidence(move |_| pack.clone());
            if number > 0 {
                builder = builder.edge(name(number - 1), name(number));
            }
        }
        let graph = builder.build()?;
        let run = engine.run(&graph, RUN, 0).durability(Durability::Async);
        let outcome = runtime()?.block_on(run.into_future())?;
        ensure!(outcome.status == RunStatus::Completed, "the run ended as {:?}", outcome.status);
        Ok(Ran { engine, graph, starts })
    }

    fn resume(&self, Ran { engine, graph, .. }: &Ran) -> anyhow::Result<f64> {
        let runtime = runtime()?;

        let start = Instant::now();
        let outcome = runtime.block_on(engine.resume(graph, RUN).into_future())?;
        let figure = measure::per_second(self.steps, start);

        ensure!(outcome.state == u64::from(self.steps), "{} steps were done", outcome.state);
        Ok(figure)
    }
}

fn name(number: u32) -> String {
    format!("s{number}")
}
