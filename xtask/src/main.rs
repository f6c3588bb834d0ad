//! Repository chores: test set-up, benchmarks, proof rigs, tidy checks.

mod output;
#[cfg(target_os = "linux")]
mod prove;

use std::ffi::OsString;
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
    /// Kill `waypost` at every system call and check its promises
    #[cfg(target_os = "linux")]
    Prove(prove::Options),
    /// Wait for a tracer and become another program; for `prove` only
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    TraceMe {
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Behave as `waypost` does, with a planted mistake; for `prove` only
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Toy(prove::ToyOptions),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        #[cfg(target_os = "linux")]
        Command::Prove(options) => prove::run(&options),
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
