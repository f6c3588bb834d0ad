//! What is carried out of a store, and into it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::key_value;
use crate::time;

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Checkpoint: RUN@SEQ, or a run for its newest
    pub(crate) checkpoint: String,
    /// The file to write
    pub(crate) file: PathBuf,
    /// Take the place of a file of that name
    #[arg(long)]
    pub(crate) replace: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The file that `waypost export` wrote
    pub(crate) file: PathBuf,
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
