//! Arguments of the commands about dead letters.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::OneRun;
use crate::format::time;
use serde_json::Value;
use waypost::record::Failure;
use waypost::{BranchPath, StepId};

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetters {
    /// List them
    List(OneRun),
    /// Show one: its item, why it failed, and the end of its log
    Show(OneLetter),
    /// Work on them again, and do again what comes after
    Retry(RetryArgs),
    /// Leave it at their failure: they are not listed any more
    Drop(DropArgs),
}

#[derive(Debug, Args)]
pub(crate) struct OneLetter {
    /// Run, `@` for the newest, or the beginning of its name
    pub(crate) run: String,
    /// Key of the item
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct RetryArgs {
    /// Run, `@` for the newest, or the beginning of its name
    pub(crate) run: String,
    /// Keys of the items [default: all]
    pub(crate) keys: Vec<String>,
    /// Work on this, as JSON, in the place of the one item that is named
    #[arg(long, value_name = "JSON")]
    pub(crate) item: Option<String>,
    /// Stay so long while nothing is to be done but to wait for a time or a signal
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    /// Run, `@` for the newest, or the beginning of its name
    pub(crate) run: String,
    /// Keys of the items
    #[arg(conflicts_with = "all")]
    pub(crate) keys: Vec<String>,
    /// All of them
    #[arg(long)]
    pub(crate) all: bool,
}

/// A finally failed item.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetter {
    pub(crate) branch: BranchPath,
    /// The failed branch: the item's own, or a nested branch with steps of the item's group.
    pub(crate) failed_on: BranchPath,
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
