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
    /// Name the run of the script [default: the value of WAYPOST_SCRIPT_RUN]
    #[arg(long, value_name = "RUN")]
    pub(crate) id: Option<String>,
    /// Rerun the command if it ended with a non-zero exit code [default: true if WAYPOST_RETRY_FAILED is set]
    #[arg(long)]
    pub(crate) retry_failed: bool,
    /// Rerun a finished command, and keep the new result
    #[arg(long, conflicts_with = "keep")]
    pub(crate) redo: bool,
    /// Replay the kept result although the command differs
    #[arg(long)]
    pub(crate) keep: bool,
    /// Wait up to this long for another call with the same key [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = time::parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Finish the run: results stay, and new keys are refused
    #[arg(long, conflicts_with_all = ["key", "retry_failed", "redo", "keep", "wait"])]
    pub(crate) finish: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// File to create; an existing file is not overwritten
    #[arg(default_value = "waypost.yaml")]
    pub(crate) file: PathBuf,
    /// Name the workflow, without questions [default: the folder's name]
    #[arg(long)]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the folder
    #[arg(long)]
    pub(crate) keep: bool,
    /// Let each step take only 0.3 s
    #[arg(long)]
    pub(crate) fast: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Run, `@` for the newest, or a unique prefix [default: the newest]
    pub(crate) run: Option<String>,
    /// Write one HTML page with diagrams, usable offline
    #[arg(long)]
    pub(crate) html: bool,
    /// Write to this file, replacing an existing one [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct GraphArgs {
    /// Workflow file, `-` for stdin, or a run [default: `waypost.yaml`, or else the newest run]
    #[arg(value_name = "FILE|RUN")]
    pub(crate) what: Option<String>,
    /// Print Mermaid text in place of SVG
    #[arg(long)]
    pub(crate) mermaid: bool,
}
