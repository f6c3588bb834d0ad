//! `cargo xtask test` and `cargo xtask ci`: all tests, and everything else that a change must pass.

use std::process::Command;
use std::time::Instant;

use anyhow::bail;

use crate::{bench, machine, output, repo, tidy};

/// Runs every test of the workspace, after making sure that the machine has what they need.
///
/// Ignored tests are included: each is ignored because it needs a program of [`machine::NEEDS`], and those are
/// all there when cargo starts. `args` go to the test programs, as after `--` of `cargo test`.
///
/// # Errors
/// When a program is missing or a test failed.
pub(crate) fn test(args: &[String]) -> anyhow::Result<()> {
    machine::prepare(machine::NEEDS)?;
    let mut command = repo::cargo(&["test", "--workspace", "--no-fail-fast", "--", "--include-ignored"]);
    repo::run(command.args(args))
}

/// Something that a change must pass.
type Check = fn() -> anyhow::Result<()>;

/// Runs every check in turn, the quick ones first; the kills come last, since they take longest.
///
/// A failed check does not stop the others: one run shows all that is wrong.
///
/// # Errors
/// When a check failed; the message names each.
pub(crate) fn ci() -> anyhow::Result<()> {
    machine::prepare(machine::NEEDS)?;
    let checks: &[(&str, Check)] = &[
        ("tidy", || tidy::run(&repo::root())),
        ("format", || repo::run(&mut repo::cargo(&["fmt", "--all", "--check"]))),
        ("clippy", || repo::run(&mut clippy())),
        ("docs", || repo::run(&mut docs())),
        ("bench --short", || bench::run(&bench::Options::short())),
        ("test", || test(&[])),
        // It needs the tracing and the mounts of this system.
        #[cfg(target_os = "linux")]
        ("prove --short", || crate::prove::run(&crate::prove::Options::short())),
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

fn docs() -> Command {
    let mut command = repo::cargo(&["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}
