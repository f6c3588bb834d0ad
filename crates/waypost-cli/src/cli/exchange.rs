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
    /// The file to write
    pub(crate) file: PathBuf,
    /// Take the place of a file of that name
    #[arg(long)]
    pub(crate) replace: bool,
    /// Write an in-toto statement of the files that a completed run made, instead of what a run can go on from
    #[arg(long)]
    pub(crate) attest: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ArchiveArgs {
    /// Run, `@` for the newest, or the beginning of its name
    pub(crate) run: String,
    /// The file to write, such as RUN.tar.zst
    pub(crate) file: PathBuf,
    /// Take the place of a file of that name
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

/// What is no exported checkpoint.
#[derive(Debug, Subcommand)]
pub(crate) enum ImportWhat {
    /// Turn a workflow of Prodigy into one of Waypost, and say what could not be carried over
    Workflow(ImportWorkflowArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ImportWorkflowArgs {
    /// The workflow file of Prodigy
    pub(crate) file: PathBuf,
    /// Write it into this file [default: print it]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Write over a file that is there
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImportCheckpointArgs {
    /// The file that `waypost export` wrote
    #[arg(required = true)]
    pub(crate) file: Option<PathBuf>,
    /// Run its commands: they come from elsewhere, and can do whatever you can
    #[arg(long)]
    pub(crate) trust: bool,
    /// Print the workflow in it, and do nothing
    #[arg(long, conflicts_with = "trust")]
    pub(crate) show: bool,
    /// Name the new run [default: the workflow's name with four random characters]
    #[arg(long, value_name = "RUN")]
    pub(crate) id: Option<String>,
    /// Set a parameter of the new run to something else; may be repeated
    #[arg(short, long = "param", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) params: Vec<(String, String)>,
    /// Label the new run, besides the labels of the other; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) labels: Vec<(String, String)>,
    /// Run the steps in this folder [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Stay so long while nothing is to be done but to wait for a time or a signal
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
}
