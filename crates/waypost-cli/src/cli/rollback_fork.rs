//! Arguments of the commands that roll back, fork and compare.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{PrintedArgs, key_value};
use crate::format::time;

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    /// Checkpoint to roll back to: RUN@SEQ or RUN@LABEL; a run, with `--to` [default: the only run]
    #[arg(default_value = "@", hide_default_value = true)]
    pub(crate) checkpoint: String,
    /// Roll back to the newest checkpoint with valid evidence
    #[arg(long, value_name = "WHICH")]
    pub(crate) to: Option<RollbackTo>,
    /// Accept a checkpoint with failed evidence; its steps with failed evidence rerun
    #[arg(long)]
    pub(crate) redo: bool,
    /// Undo later finished steps first, newest first, with the `undo` command of each
    #[arg(long)]
    pub(crate) undo_steps: bool,
}

/// The target of a rollback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RollbackTo {
    /// The newest checkpoint with valid evidence
    Verified,
}

#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// Checkpoint to fork from: RUN@SEQ or RUN@LABEL, or a run for its newest
    pub(crate) checkpoint: String,
    /// Use this workflow file; changed finished steps rerun, with all steps downstream
    #[arg(long, value_name = "FILE")]
    pub(crate) with: Option<PathBuf>,
    /// Start at this finished or running step, and rerun all steps downstream. PATH/STEP names a step within a
    /// group, an item or an included file
    #[arg(long, value_name = "[PATH/]STEP")]
    pub(crate) from: Option<String>,
    /// Change a parameter in the new run; may be repeated. A parameter read by a finished step is refused unless
    /// `--from` reruns the step
    #[arg(short, long = "param", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) params: Vec<(String, String)>,
    /// Name the new run [default: the workflow's name with four random characters]
    #[arg(long, value_name = "RUN")]
    pub(crate) id: Option<String>,
    /// Add a label to the inherited labels; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) labels: Vec<(String, String)>,
    /// Run the steps of a run with this base in this folder; may be repeated
    #[arg(long = "base", value_name = "NAME=DIR", value_parser = key_value)]
    pub(crate) bases: Vec<(String, String)>,
    /// Run no step here: queue the new run for the workers of the store
    #[arg(long)]
    pub(crate) queue: bool,
    /// Keep waiting up to this long while only a time or a signal is pending
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
    #[command(flatten)]
    pub(crate) printed: PrintedArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Checkpoint: RUN@SEQ or RUN@LABEL, or a run for its newest
    pub(crate) before: String,
    /// Second checkpoint
    pub(crate) after: String,
}
