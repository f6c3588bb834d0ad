//! Arguments of the commands for scripts, and of commands that show something to a person.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::format::time;

#[derive(Debug, Args)]
#[command(
    override_usage = "waypost once [OPTIONS] <KEY> -- <COMMAND>...\n       waypost once [OPTIONS] --finish"
)]
pub(crate) struct OnceArgs {
    /// Name of the command within its script
    #[arg(required_unless_present = "finish", requires = "command")]
    pub(crate) key: Option<String>,
    /// Command and its arguments
    #[arg(last = true, requires = "key")]
    pub(crate) command: Vec<OsString>,
    /// Name the run of the script [default: what WAYPOST_SCRIPT_RUN says]
    #[arg(long, value_name = "RUN")]
    pub(crate) id: Option<String>,
    /// Do the command again if it ended with another exit code than 0 [default: WAYPOST_RETRY_FAILED is set]
    #[arg(long)]
    pub(crate) retry_failed: bool,
    /// Do the command although it is done, and remember that
    #[arg(long, conflicts_with = "keep")]
    pub(crate) redo: bool,
    /// Give what is remembered although the command is another one now
    #[arg(long)]
    pub(crate) keep: bool,
    /// Wait so long while another call of the same key is under way [default: until it has ended]
    #[arg(long, value_name = "DURATION", value_parser = time::parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// End the run: what it remembers stays, and nothing is added
    #[arg(long, conflicts_with_all = ["key", "retry_failed", "redo", "keep", "wait"])]
    pub(crate) finish: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// File to make; one that is there is not overwritten
    #[arg(default_value = "waypost.yaml")]
    pub(crate) file: PathBuf,
    /// Name the workflow, and ask nothing [default: the folder's name]
    #[arg(long)]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the folder
    #[arg(long)]
    pub(crate) keep: bool,
    /// Let each step take 0.3 s only
    #[arg(long)]
    pub(crate) fast: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Run, `@` for the newest, or the beginning of its name [default: the newest]
    pub(crate) run: Option<String>,
    /// Make one page of HTML, with pictures, that needs no network
    #[arg(long)]
    pub(crate) html: bool,
    /// Write it into this file, over what is there
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}
