//! Raw limit of the command line: a loop that starts the shell of a step and waits for it, and does nothing else.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};

use super::measure::{self, Bench, Subject, Topic, Unit};

/// The subject's name, for demands of other topics.
const NAME: &str = "start `true` in the step's shell";

/// As many as the steps of the run that is measured against it.
const COUNT: u32 = 1_000;

/// The shell that a step has when the workflow names none.
const SHELL: [&str; 4] = ["bash", "-euo", "pipefail", "-c"];

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let count = bench.count(COUNT);
    let subject = Subject::new(NAME, Unit::PerSecond, move || round(count));
    Ok(Topic { name: "spawn", subjects: vec![subject], demands: Vec::new() })
}

fn round(count: u32) -> anyhow::Result<f64> {
    ensure!(!run("false")?, "a step that fails was not seen to fail");
    let start = Instant::now();
    for _ in 0..count {
        ensure!(run("true")?, "`true` failed");
    }
    Ok(measure::per_second(count, start))
}

fn run(script: &str) -> anyhow::Result<bool> {
    let mut command = Command::new(SHELL[0]);
    command.args(&SHELL[1..]).arg(script).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.status().context("cannot start bash")?.success())
}
