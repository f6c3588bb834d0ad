//! `cargo xtask test` and `cargo xtask ci`: all tests, and all checks of a change.

use std::process::Command;
use std::time::Instant;

use anyhow::bail;

use crate::{bench, machine, output, release, repo, tidy};

/// Runs every test of the workspace, after installing missing programs.
///
/// Ignored tests are included: each needs a program of [`machine::NEEDS`], which is installed before the
/// tests start. `args` are passed to the test programs, as after `--` of `cargo test`.
///
/// # Errors
/// If a program is missing or a test failed.
pub(crate) fn test(args: &[String]) -> anyhow::Result<()> {
    machine::prepare(machine::NEEDS)?;
    let mut command = repo::cargo(&["test", "--workspace", "--no-fail-fast", "--", "--include-ignored"]);
    repo::run(command.args(args))
}

/// A check of a change.
type Check = fn() -> anyhow::Result<()>;

/// Runs every check in sequence, quick checks first; the kill tests take longest and come last.
///
/// A failed check does not stop the others, so that a run shows all problems.
///
/// # Errors
/// If a check failed; the message names each.
pub(crate) fn ci() -> anyhow::Result<()> {
    machine::prepare(machine::NEEDS)?;
    let checks: &[(&str, Check)] = &[
        ("tidy", || tidy::run(&repo::root())),
        ("format", || repo::run(&mut repo::cargo(&["fmt", "--all", "--check"]))),
        ("clippy", || repo::run(&mut clippy())),
        ("features", release::features),
        ("docs", release::docs),
        ("package", || release::package(false)),
        ("bench --short", || bench::run(&bench::BenchOptions::short())),
        ("test", || test(&[])),
        // Needs ptrace and the mounts of Linux. A process of its own: the tracer waits for SIGCHLD, and a thread left by an
        // earlier check would receive the signal instead. Through cargo, as the tests may have replaced this executable.
        #[cfg(target_os = "linux")]
        ("prove --short", || repo::run(&mut repo::cargo(&["xtask", "prove", "--short"]))),
    ];
    let mut failed = Vec::new();
    for (name, check) in checks {
        let start = Instant::now();
        output::note(format!("== {name}"));
        match check() {
            Ok(()) => output::note(format!("== {name}: passed in {:.1} s", start.elapsed().as_secs_f64())),
            Err(error) => {
                output::note(format!("== {name}: FAILED: {error:#}"));
                failed.push(*name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    output::say(format!("All {} checks passed.", checks.len()));
    Ok(())
}

fn clippy() -> Command {
    repo::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}
