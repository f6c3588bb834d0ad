//! Arguments of the commands that export from a store or import into a store.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::key_value;
use crate::format::time;

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Checkpoint: RUN@SEQ or RUN@LABEL, or a run for its newest
    pub(crate) checkpoint: String,
    /// File to write
    pub(crate) file: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) replace: bool,
    /// Write an in-toto statement of the files of a completed run, instead of a checkpoint to resume from
    #[arg(long)]
    pub(crate) attest: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ArchiveArgs {
    /// Run, `@` for the newest, or a unique prefix
    pub(crate) run: String,
    /// File to write, such as RUN.tar.zst
    pub(crate) file: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) replace: bool,
}

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    override_usage = "waypost import [OPTIONS] <FILE>\n       waypost import workflow [OPTIONS] <FILE>"
)]
pub(crate) struct ImportArgs {
    #[command(subcommand)]
    pub(crate) what: Option<ImportWhat>,
    #[command(flatten)]
    pub(crate) checkpoint: ImportCheckpointArgs,
}

/// Imports from other programs.
#[derive(Debug, Subcommand)]
pub(crate) enum ImportWhat {
    /// Convert a Prodigy workflow, and report everything that has no equivalent
    Workflow(ImportWorkflowArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ImportWorkflowArgs {
    /// Prodigy workflow file
    pub(crate) file: PathBuf,
    /// Write to this file [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImportCheckpointArgs {
    /// File written by `waypost export` or `waypost archive`
    #[arg(required = true)]
    pub(crate) file: Option<PathBuf>,
    /// Trust the file and run its commands; they have all your permissions
    #[arg(long)]
    pub(crate) trust: bool,
    /// Print the workflow of the file, and run nothing
    #[arg(long, conflicts_with = "trust")]
    pub(crate) show: bool,
    /// Name the new run [default: the workflow's name with four random characters]
    #[arg(long, value_name = "RUN")]
    pub(crate) id: Option<String>,
    /// Change a parameter in the new run; may be repeated
    #[arg(short, long = "param", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) params: Vec<(String, String)>,
    /// Add a label to the inherited labels; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) labels: Vec<(String, String)>,
    /// Run the steps in this folder [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Run no step here: queue the new run for the workers of the store
    #[arg(long)]
    pub(crate) queue: bool,
    /// Keep waiting up to this long while only a time or a signal is pending
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
}
