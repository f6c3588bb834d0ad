//! Arguments of the commands that roll back, fork and compare.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::key_value;
use crate::format::time;

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    /// Checkpoint to go back to: RUN@SEQ or RUN@LABEL; a run, with `--to`
    pub(crate) checkpoint: String,
    /// Go back to the newest checkpoint whose evidence holds
    #[arg(long, value_name = "WHICH")]
    pub(crate) to: Option<RollbackTo>,
    /// Go back also where evidence of steps that are finished there does not hold: those run again
    #[arg(long)]
    pub(crate) redo: bool,
    /// Undo first what steps did that finished since, newest first: with the `undo` of each
    #[arg(long)]
    pub(crate) undo_steps: bool,
}

/// Which checkpoint is gone back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RollbackTo {
    /// The newest whose evidence holds
    Verified,
}

#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// Checkpoint to begin with: RUN@SEQ or RUN@LABEL, or a run for its newest
    pub(crate) checkpoint: String,
    /// Go on with this workflow file; finished steps that it touches run again, with all after them
    #[arg(long, value_name = "FILE")]
    pub(crate) with: Option<PathBuf>,
    /// Begin with this step, which must be finished or under way: it and what needs it run again
    #[arg(long, value_name = "STEP")]
    pub(crate) from: Option<String>,
    /// Set a parameter of the new run to something else; may be repeated. A param that a finished step has read is refused,
    /// unless `--from` runs that step again
    #[arg(short, long = "param", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) params: Vec<(String, String)>,
    /// Name the new run [default: the workflow's name with four random characters]
    #[arg(long, value_name = "RUN")]
    pub(crate) id: Option<String>,
    /// Label the new run, besides the labels of the other; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) labels: Vec<(String, String)>,
    /// Stay so long while nothing is to be done but to wait for a time or a signal
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Checkpoint: RUN@SEQ or RUN@LABEL, or a run for its newest
    pub(crate) before: String,
    /// The other one
    pub(crate) after: String,
}
