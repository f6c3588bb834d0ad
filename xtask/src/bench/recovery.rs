//! Recovery: from process start to the first step of a run that was killed in another process.
//!
//! The store is as after the kill: the log is not checkpointed and the lease not released. Each recovery is
//! killed in its first step, so that the next recovery also starts after a crash.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, ensure};

use super::measure::{Bench, Bound, Demand, Measured, Topic, Unit, median};
use super::part::{self, Part};

const NOTHING: &str = "start of a process that does nothing";
const FEW: &str = "process start to first new step, 100 checkpoints";
const MANY: &str = "process start to first new step, 100,000 checkpoints";

/// Lengths of the histories in the target.
const HISTORY_FEW: u32 = 100;
const HISTORY_MANY: u32 = 100_000;
/// A part of the longer history, to check creation and resume.
const HISTORY_MANY_SHORT: u32 = 1_000;
/// Processes per round, of which the median counts: a start takes milliseconds, a disturbed start many.
const STARTS: u32 = 15;
/// Starts in the short form: the second start recovers from a killed recovery.
const STARTS_SHORT: u32 = 2;

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let folder = bench.folder("recovery")?;
    let starts = bench.count_or(STARTS, STARTS_SHORT);
    let nothing = folder.join("nothing.db");
    let mut subjects = vec![Measured::new(NOTHING, Unit::Milliseconds, move || {
        start_often(Part::Nothing, &nothing, starts)
    })];
    let many = bench.count_or(HISTORY_MANY, HISTORY_MANY_SHORT);
    // A folder per store, because the files of its runs are in the folder of the store.
    for (name, home, history) in [(FEW, "few", HISTORY_FEW), (MANY, "many", many)] {
        std::fs::create_dir_all(folder.join(home))?;
        let path = folder.join(home).join("waypost.db");
        let mut store = RecoveryStore { path, history, made: false };
        subjects.push(Measured::new(name, Unit::Milliseconds, move || {
            start_often(Part::Resume, store.made()?, starts)
        }));
    }
    let quick = Demand { claim: "recovery is quick", ours: MANY, limit: None, bound: Bound::AtMost(5.0) };
    let flat = Demand {
        claim: "a long history costs recovery nothing",
        ours: MANY,
        limit: Some(FEW),
        bound: Bound::AtMost(1.5),
    };
    Ok(Topic { name: "recovery", subjects, demands: vec![quick, flat] })
}

/// A store created on first use.
struct RecoveryStore {
    path: PathBuf,
    history: u32,
    made: bool,
}

impl RecoveryStore {
    fn made(&mut self) -> anyhow::Result<&Path> {
        if !self.made {
            let status = part::command(Part::History, &self.path, self.history)?.status()?;
            ensure!(status.success(), "the process that makes the history ended with {status}");
            self.made = true;
        }
        Ok(&self.path)
    }
}

/// Returns the median time until a started process reports.
fn start_often(part: Part, store: &Path, starts: u32) -> anyhow::Result<f64> {
    let figures = (0..starts).map(|_| start(part, store)).collect::<anyhow::Result<Vec<f64>>>()?;
    median(&figures).context("nothing was started")
}

fn start(part: Part, store: &Path) -> anyhow::Result<f64> {
    let mut command = part::command(part, store, 0)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped());

    let start = Instant::now();
    let mut child = command.spawn().context("cannot start a process")?;
    let mut said = [0];
    let read = child.stdout.take().expect("its stdout is a pipe").read_exact(&mut said);
    let figure = start.elapsed().as_secs_f64() * 1e3;

    let status = child.wait()?;
    read.with_context(|| format!("the process ended with {status} and did not get to its first step"))?;
    ensure!(status.success(), "the process ended with {status}");
    Ok(figure)
}
