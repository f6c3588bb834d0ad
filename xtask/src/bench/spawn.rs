//! Raw limits of the command line: a loop that only starts the shell of a step and waits for its end, once as
//! a script and once with the cheapest system call.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};

use super::measure::{self, Bench, Measured, Topic, Unit};

/// Name of the subject, for demands of other topics.
pub(super) const LOOP: &str = "loop of bash that starts the step's shell, `true`";
const DIRECT: &str = "start of the step's shell, `true`, by posix_spawn";

/// The number of steps in the compared run.
const COUNT: u32 = 1_000;

/// The default shell of a step.
const SHELL: [&str; 4] = ["bash", "-euo", "pipefail", "-c"];

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let count = bench.count(COUNT);
    let subjects = vec![
        Measured::new(LOOP, Unit::Milliseconds, move || script(count)),
        Measured::new(DIRECT, Unit::Milliseconds, move || direct(count)),
    ];
    Ok(Topic { name: "spawn", subjects, demands: Vec::new() })
}

fn script(count: u32) -> anyhow::Result<f64> {
    let shell = SHELL.join(" ");
    let text = format!("for ((i = 0; i < $1; i++)); do {shell} true || exit 9; done");
    let mut command = Command::new(SHELL[0]);
    command.args(&SHELL[1..]).args([&text, "bash", &count.to_string()]);

    let start = Instant::now();
    let ended = succeeds(&mut command)?;
    let figure = measure::milliseconds(count, start);

    ensure!(ended, "the loop did not get to its end");
    Ok(figure)
}

fn direct(count: u32) -> anyhow::Result<f64> {
    ensure!(!succeeds(&mut step("false"))?, "a step that fails was not seen to fail");
    let start = Instant::now();
    for _ in 0..count {
        ensure!(succeeds(&mut step("true"))?, "`true` failed");
    }
    Ok(measure::milliseconds(count, start))
}

fn step(script: &str) -> Command {
    let mut command = Command::new(SHELL[0]);
    command.args(&SHELL[1..]).arg(script);
    command
}

fn succeeds(command: &mut Command) -> anyhow::Result<bool> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.status().context("cannot start bash")?.success())
}
