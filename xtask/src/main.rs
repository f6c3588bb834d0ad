//! Repository chores: test set-up, benchmarks, proof rigs, tidy checks.
//!
//! `cargo xtask test` runs every test on a machine with only Rust installed. `cargo xtask ci` adds the other
//! checks of a change. Nothing here is installed for users.

mod bench;
mod ci;
mod fuzz;
mod machine;
mod output;
#[cfg(target_os = "linux")]
mod prove;
mod release;
mod repo;
mod tidy;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Repository chores of Waypost
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Set up the machine for the tests and run them all
    Test {
        /// Arguments for the test programs, such as part of a test's name
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run all checks of a change: tidy, format, clippy, docs, packages, benchmarks in short form, tests, kills
    /// in short form
    Ci,
    /// Build the pages of the crates, and the site of `docs` if `mdbook` is installed
    Docs,
    /// Check that each kind of evidence that is a feature can be left out
    Features,
    /// Make the archives of the public crates, and check the licences of all dependencies
    Package {
        /// Also build each archive, as `cargo publish` does: as long as a first build
        #[arg(long)]
        verify: bool,
    },
    /// Check the rules of the repository that a tool can check
    Tidy {
        /// The folder to check [default: this repository]
        #[arg(long)]
        root: Option<PathBuf>,
        /// Print the figures of each crate and the worst places instead of the findings
        #[arg(long)]
        report: bool,
        /// Places to print of each kind
        #[arg(long, default_value_t = 10, requires = "report")]
        worst: usize,
    },
    /// Run each fuzz target for a time; needs `cargo-fuzz`
    Fuzz {
        /// Seconds for each target
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Measure speed and size against the raw limits of this machine
    Bench(bench::BenchOptions),
    /// Be a measured process; for `bench` only
    #[command(hide = true)]
    BenchPart(bench::PartOptions),
    /// Kill `waypost` at every system call and check its promises
    #[cfg(target_os = "linux")]
    Prove(prove::ProofOptions),
    /// Wait for a tracer and become another program; for `prove` only
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    TraceMe {
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Be a step of a generated workflow; for `prove` only
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    ProveStep(prove::StepOptions),
    /// Imitate `waypost` with a planted mistake; for `prove` only
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Toy(prove::ToyOptions),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Test { args } => ci::test(&args),
        Command::Ci => ci::ci(),
        Command::Docs => release::docs(),
        Command::Fuzz { seconds } => fuzz::run(seconds),
        Command::Features => release::features(),
        Command::Package { verify } => release::package(verify),
        Command::Tidy { root, report: true, worst } => tidy::report(&root.unwrap_or_else(repo::root), worst),
        Command::Tidy { root, .. } => tidy::run(&root.unwrap_or_else(repo::root)),
        Command::Bench(options) => bench::run(&options),
        Command::BenchPart(options) => bench::part(&options),
        #[cfg(target_os = "linux")]
        Command::Prove(options) => prove::run(&options),
        #[cfg(target_os = "linux")]
        Command::ProveStep(options) => prove::step(&options),
        #[cfg(target_os = "linux")]
        Command::TraceMe { command } => prove::trace_me(&command),
        #[cfg(target_os = "linux")]
        Command::Toy(options) => match prove::toy(&options) {
            Ok(code) => return ExitCode::from(code),
            Err(error) => Err(error),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
