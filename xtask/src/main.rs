//! Repository chores: test set-up, benchmarks, proof rigs, tidy checks.
//!
//! `cargo xtask test` is the one command that runs every test on a machine that has only Rust; `cargo xtask ci`
//! adds what a change must pass beside them. Nothing here is part of what users install.

mod bench;
mod ci;
mod machine;
mod output;
mod repo;
mod tidy;

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
    /// Set up what the tests need and run them all
    Test {
        /// Arguments for the test programs, such as part of a test's name
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run all that a change must pass: tidy, format, clippy, docs, benchmarks in short form, tests
    Ci,
    /// Check the rules of the repository that a tool can check
    Tidy {
        /// The folder to check [default: this repository]
        #[arg(long)]
        root: Option<PathBuf>,
    },
    /// Measure speed and size beside the raw limits of this machine
    Bench(bench::Options),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Test { args } => ci::test(&args),
        Command::Ci => ci::ci(),
        Command::Tidy { root } => tidy::run(&root.unwrap_or_else(repo::root)),
        Command::Bench(options) => bench::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
