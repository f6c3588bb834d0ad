//! Arguments of the commands about dead letters.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::OneRun;
use crate::format::time;
use serde_json::Value;
use waypost::record::Failure;
use waypost::{ScopePath, StepId};

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetters {
    /// List dead letters
    List(OneRun),
    /// Show dead letters: the item, the error and the end of the log of each
    Show(ShowLetters),
    /// Retry dead letters, and rerun all steps downstream
    Retry(RetryArgs),
    /// Drop dead letters: their items stay failed, and are no longer listed
    Drop(DropArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ShowLetters {
    /// Run, `@` for the newest, or a unique prefix [default: the newest]
    pub(crate) run: Option<String>,
    /// Keys of the items [default: all]
    pub(crate) keys: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RetryArgs {
    /// Run, `@` for the newest, or a unique prefix [default: the newest]
    pub(crate) run: Option<String>,
    /// Keys of the items [default: all]
    pub(crate) keys: Vec<String>,
    /// Replace the item of the named dead letter, as JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) item: Option<String>,
    /// Keep waiting up to this long while only a time or a signal is pending
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    /// Run, `@` for the newest, or a unique prefix [default: the only run that is unfinished or has dead letters]
    pub(crate) run: Option<String>,
    /// Keys of the items
    #[arg(conflicts_with = "all")]
    pub(crate) keys: Vec<String>,
    /// All dead letters
    #[arg(long)]
    pub(crate) all: bool,
}

/// A finally failed item.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetter {
    pub(crate) scope: ScopePath,
    /// The failed scope: the item's own, or a nested scope with steps of the item's group.
    pub(crate) failed_on: ScopePath,
    /// The `foreach` step, and the item's key there.
    pub(crate) each: StepId,
    pub(crate) key: String,
    pub(crate) index: u64,
    pub(crate) item: Value,
    /// The failed step.
    pub(crate) step: Option<StepId>,
    pub(crate) failure: Failure,
    pub(crate) attempts: u32,
    /// The blob with the log of the last attempt.
    pub(crate) log: Option<String>,
}
