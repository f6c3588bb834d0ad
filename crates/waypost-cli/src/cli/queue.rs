//! Options of `submit` and `worker`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{RunArgs, default_file, file_parser, key_value, parallel};
use crate::format::time;

#[derive(Debug, Args)]
pub(crate) struct SubmitArgs {
    /// Workflow file
    #[arg(default_value_os_t = default_file(), value_parser = file_parser())]
    pub(crate) file: PathBuf,
    /// Set a parameter; may be repeated
    #[arg(short, long = "param", value_name = "NAME=VALUE", value_parser = key_value)]
    params: Vec<(String, String)>,
    /// Read parameters from a YAML or JSON file; `-p` overrides the file
    #[arg(long, value_name = "FILE")]
    params_file: Option<PathBuf>,
    /// Name the run; a second submission of the name changes nothing [default: the workflow's name with four random
    /// characters]
    #[arg(long, value_name = "RUN")]
    pub(crate) id: Option<String>,
    /// Label the run; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = key_value)]
    labels: Vec<(String, String)>,
    /// Run the steps in this folder [default: the workflow file's folder]
    #[arg(long, value_name = "DIR", conflicts_with = "base")]
    dir: Option<PathBuf>,
    /// Run the steps on any worker, each worker with a private copy of these files; may be repeated
    #[arg(long, value_name = "GLOB", conflicts_with = "base")]
    pub(crate) include: Vec<String>,
    /// Run the steps in the folder that a worker gives this name, on any machine
    #[arg(long, value_name = "NAME")]
    pub(crate) base: Option<String>,
    /// Run only on a worker with this tag; may be repeated
    #[arg(long = "tag", value_name = "TAG", value_parser = tag)]
    pub(crate) tags: Vec<String>,
    /// Start before runs of a lower priority
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
    /// Start no earlier than after this time
    #[arg(long, value_name = "DURATION", value_parser = time::parse_duration)]
    pub(crate) delay: Option<Duration>,
}

impl SubmitArgs {
    /// Returns the options of `run` for the same run.
    pub(crate) fn run_args(&self) -> RunArgs {
        RunArgs {
            file: self.file.clone(),
            params: self.params.clone(),
            params_file: self.params_file.clone(),
            id: self.id.clone(),
            labels: self.labels.clone(),
            dir: self.dir.clone(),
            ..RunArgs::default()
        }
    }
}

/// Reads a tag that a worker can have: `--tags` splits at commas, and needs are lines.
fn tag(text: &str) -> Result<String, String> {
    match text.is_empty()
        || text.trim() != text
        || text.contains([',', '\0'])
        || text.contains(char::is_control)
    {
        true => Err("a tag is a text without commas, control characters and spaces around it".to_owned()),
        false => Ok(text.to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// Execute at most this many runs at once
    #[arg(short = 'j', long, value_name = "COUNT", default_value = "1", value_parser = parallel)]
    pub(crate) runs: NonZeroUsize,
    /// Also claim runs that need this tag; separated by commas, may be repeated
    #[arg(long = "tags", value_name = "TAG,...", value_delimiter = ',')]
    pub(crate) tags: Vec<String>,
    /// Also claim runs submitted with this base, and run their steps in this folder; may be repeated
    #[arg(long = "base", value_name = "NAME=DIR", value_parser = key_value)]
    pub(crate) bases: Vec<(String, String)>,
    /// Serve counters in the format of Prometheus at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,
}
