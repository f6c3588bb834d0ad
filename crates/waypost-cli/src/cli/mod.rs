//! The command line, as clap types. Decides nothing.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::exit::Exit;
use crate::format::time;
use crate::format::time::Since;

mod evidence;
mod exchange;
mod letters;
mod scripts;
mod steps;
mod travel;

pub(crate) use evidence::{Evidence, EvidenceArgs};
pub(crate) use exchange::{
    ArchiveArgs, ExportArgs, ImportArgs, ImportCheckpointArgs, ImportWhat, ImportWorkflowArgs,
};
pub(crate) use letters::{DeadLetter, DeadLetters, DropArgs, OneLetter, RetryArgs};
pub(crate) use scripts::{DemoArgs, NewArgs, OnceArgs, ReportArgs};
pub(crate) use steps::EventArgs;
pub(crate) use travel::{DiffArgs, ForkArgs, RollbackArgs, RollbackTo};

/// Largest limit of a listing: the page size of stores.
pub(crate) const LIMIT_MAX: u64 = waypost::store::PAGE_ITEMS_MAX as u64;

/// Make long work survive: run steps, checkpoint each, resume after anything
#[derive(Debug, Parser)]
#[command(name = "waypost", version, max_term_width = 100, after_help = Exit::table())]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(infer_long_args = false)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command has.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Keep runs in this store: `sqlite:PATH`, `file:DIR` or `memory:` [default: the nearest `.waypost` upward]
    #[arg(long, global = true, value_name = "URL", env = "WAYPOST_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// Answer in JSON: one document, or one object a line from `run`, `resume` and `events`
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Colour the output [default: auto]
    #[arg(long, global = true, value_name = "WHEN")]
    pub(crate) color: Option<Color>,
    /// Say only what went wrong
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

/// When colour is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal that has it, unless `NO_COLOR` is set
    Auto,
    /// Everywhere
    Always,
    /// Nowhere
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a workflow file from its first step
    Run(RunArgs),
    /// Go on with a run where it stood
    Resume(ResumeArgs),
    /// Show what a resume would do, with a cause for each step
    Plan(OneRun),
    /// Explain what would be done with a step, and from which records that follows
    Why(WhyArgs),
    /// List runs, newest first
    List(ListArgs),
    /// Show a run, or how it stood at a checkpoint
    Show(ShowArgs),
    /// List the checkpoints of a run
    Checkpoints(CheckpointsArgs),
    /// Have a checkpoint written of where a run stands, with a label to find it by
    Checkpoint(CheckpointArgs),
    /// Print the events of a run, oldest first
    Events(EventsArgs),
    /// Print what steps printed
    Logs(LogsArgs),
    /// Check the digests and the chain of checkpoints
    Verify(VerifyArgs),
    /// Check a workflow file without running it
    Check(CheckArgs),
    /// Print the JSON Schema of the workflow file, for editors
    Schema,
    /// Delete runs with everything that belongs to them
    Delete(DeleteArgs),
    /// Drop old states, and delete old runs that are finished
    Prune(PruneArgs),
    /// Take a run back to a checkpoint; what came after stays visible
    Rollback(RollbackArgs),
    /// Make a new run that begins where another stood
    Fork(ForkArgs),
    /// Show what differs between the states of two checkpoints
    Diff(DiffArgs),
    /// Look at items that failed for good, and try them again or leave it at that
    #[command(subcommand)]
    DeadLetters(DeadLetters),
    /// Find evidence for a step in what it wrote, and accept evidence as it is found
    #[command(subcommand)]
    Evidence(Evidence),
    /// Answer what a run asks
    Answer(AnswerArgs),
    /// Send a signal to a run, for a step that waits for it
    Signal(SignalArgs),
    /// Add an event to the run, from inside one of its steps
    Event(EventArgs),
    /// Stop a run from afar, resumable
    Stop(StopArgs),
    /// End a run for good; what was recorded stays
    Cancel(CancelArgs),
    /// Show every value of the configuration, and where it comes from
    Config,
    /// Write a checkpoint, with all that a run needs to go on from it, to a file
    Export(ExportArgs),
    /// Write everything of a run to one compressed file, to keep it without its store
    Archive(ArchiveArgs),
    /// Make a new run that begins with an exported checkpoint
    Import(ImportArgs),
    /// Make, upgrade or check the store itself
    #[command(subcommand)]
    Store(StoreCommand),
    /// Count runs, steps, checkpoints and bytes of the store
    Stats(StatsArgs),
    /// Look for what could go wrong: store, locks, processes, disk, clock
    Doctor,
    /// Print a script that completes commands, options, runs and steps in a shell
    Completions(CompletionsArgs),
    /// Print the manual page of waypost, or of a command
    Man(ManArgs),
    /// Do a command of a script once, and give what it came to after that
    Once(OnceArgs),
    /// Make a workflow file to begin with, or of a shell script
    New(NewArgs),
    /// Show a run that is killed and goes on, in a folder that is removed again
    Demo(DemoArgs),
    /// Print the report of a run, as Markdown or as one page of HTML
    Report(ReportArgs),
    /// Keep the processes of one run; started by `run` and `resume`
    #[command(hide = true)]
    Supervise,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Workflow file
    #[arg(default_value = "waypost.yaml")]
    pub(crate) file: PathBuf,
    /// Set a parameter; may be repeated
    #[arg(short, long = "param", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) params: Vec<(String, String)>,
    /// Read parameters from a YAML or JSON file; `-p` goes before it
    #[arg(long, value_name = "FILE")]
    pub(crate) params_file: Option<PathBuf>,
    /// Name the run [default: the workflow's name with four random characters]
    #[arg(long, value_name = "RUN")]
    pub(crate) id: Option<String>,
    /// Stay so long while nothing is to be done but to wait for a time or a signal
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
    /// Resume the run named by `--id` if there is one already
    #[arg(long, requires = "id")]
    pub(crate) or_resume: bool,
    /// Label the run; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) labels: Vec<(String, String)>,
    /// Stop after this step; start only what it needs
    #[arg(long, value_name = "STEP")]
    pub(crate) until: Option<String>,
    /// Start no further step once one has failed, but those that ask for failures in their `if`
    #[arg(long)]
    pub(crate) fail_fast: bool,
    /// Run the steps in this folder [default: the workflow file's folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Begin the run in a process of its own, and do not wait for it
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) detach: bool,
    /// This is the process of a detached run
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ResumeArgs {
    /// Run, `@` for the newest, or the beginning of its name [default: the newest resumable one]
    #[arg(conflicts_with = "all")]
    pub(crate) run: Option<String>,
    /// Resume every run that was interrupted or is due, oldest first
    #[arg(long, conflicts_with_all = ["restart", "with", "until", "treat_as"])]
    pub(crate) all: bool,
    /// Adopt this workflow file; changed finished steps run again, with all steps downstream
    #[arg(long, value_name = "FILE", conflicts_with = "keep_definition")]
    pub(crate) with: Option<PathBuf>,
    /// Keep the results of changed finished steps: of all, or of the named steps
    #[arg(long, value_name = "STEP,...", num_args = 0..=1, require_equals = true, value_delimiter = ',',
          default_missing_value = "", conflicts_with_all = ["keep_definition", "restart", "all"])]
    pub(crate) keep_finished: Option<Vec<String>>,
    /// Run changed finished steps again, with all steps downstream: all, or the named steps
    #[arg(long, value_name = "STEP,...", num_args = 0..=1, require_equals = true, value_delimiter = ',',
          default_missing_value = "", conflicts_with_all = ["keep_definition", "restart", "all"])]
    pub(crate) rerun_changed: Option<Vec<String>>,
    /// Resume with the run's own copy of the workflow although the file changed
    #[arg(long)]
    pub(crate) keep_definition: bool,
    /// Decide what became of a step in doubt: it is done, with what outputs it gave before, if any, or it runs again
    #[arg(long, value_name = "WHAT", conflicts_with = "restart")]
    pub(crate) treat_as: Option<TreatAs>,
    /// Give an output of a failed step for `--treat-as done`; may be repeated
    #[arg(long, value_name = "STEP.NAME=VALUE", value_parser = key_value, requires = "treat_as")]
    pub(crate) output: Vec<(String, String)>,
    /// Skip this unfinished step; may be repeated
    #[arg(long, value_name = "STEP", conflicts_with_all = ["all", "restart"])]
    pub(crate) skip: Vec<String>,
    /// Start over from the first step; what was recorded stays
    #[arg(long)]
    pub(crate) restart: bool,
    /// Do this step again, and all that needs it; as BRANCH/STEP, a step of an item or another branch, with the step that
    /// joins it
    #[arg(long, value_name = "[BRANCH/]STEP", conflicts_with_all = ["all", "restart"])]
    pub(crate) from: Option<String>,
    /// Do the step of `--from` again, and stop
    #[arg(long, requires = "from", conflicts_with = "until")]
    pub(crate) only: bool,
    /// Stop after this step; start only what it needs
    #[arg(long, value_name = "STEP")]
    pub(crate) until: Option<String>,
    /// Set a parameter to something else, for the steps that are still to come; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = key_value, conflicts_with = "all")]
    pub(crate) set: Vec<(String, String)>,
    /// Retry every failure that the run tolerates: dead letters, and steps with `continue_on_error`
    #[arg(long, conflicts_with_all = ["all", "restart", "from", "only"])]
    pub(crate) retry_failed: bool,
    /// Those that are tried again, with another item where one is given
    #[arg(skip)]
    pub(crate) retry: Vec<(DeadLetter, Option<serde_json::Value>)>,
    /// Stay so long while nothing is to be done but to wait for a time or a signal; with `--all`, for no run
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What a person says about a step in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TreatAs {
    /// It took effect
    Done,
    /// It did not, or may again
    Retry,
}

#[derive(Debug, Args)]
pub(crate) struct OneRun {
    /// Run, `@` for the newest, or the beginning of its name [default: the newest]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Run, `@` for the newest, or the beginning of its name
    pub(crate) run: String,
    /// Step [default: the first that is not finished]
    pub(crate) step: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only runs with this status; may be repeated
    #[arg(long, value_name = "STATUS")]
    pub(crate) status: Vec<StatusName>,
    /// Only runs of this workflow
    #[arg(long, value_name = "NAME")]
    pub(crate) workflow: Option<String>,
    /// Only runs of this workflow file
    #[arg(long, value_name = "FILE")]
    pub(crate) path: Option<PathBuf>,
    /// Only runs with this label; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) labels: Vec<(String, String)>,
    /// Only runs that can be resumed
    #[arg(long, conflicts_with = "status")]
    pub(crate) resumable: bool,
    /// Only runs that changed since: an age such as `2h` or `7d`, a date in UTC such as `2026-11-20`, or a time such as
    /// `2026-11-20T08:00:00Z`
    #[arg(long, value_name = "TIME", value_parser = time::parse_since)]
    pub(crate) since: Option<Since>,
    /// List at most this many runs
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=LIMIT_MAX))]
    pub(crate) limit: u64,
    /// Go on after a page: the `next` of its JSON
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
    /// List the runs of all stores that this user has worked with, the last begun first
    #[arg(long, conflicts_with = "after")]
    pub(crate) everywhere: bool,
}

/// The statuses of a run, as they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum StatusName {
    Queued,
    Running,
    Waiting,
    Interrupted,
    Failed,
    InDoubt,
    Completed,
    CompletedWithFailures,
    Cancelled,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Run or checkpoint: `RUN`, `RUN@SEQ`, `RUN@LABEL`, `RUN/BRANCH@SEQ`, `@` for the newest run [default: the newest run]
    #[arg(value_name = "RUN[@SEQ]")]
    pub(crate) run: Option<String>,
    /// Show only this step, in full
    #[arg(long, value_name = "STEP")]
    pub(crate) step: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointsArgs {
    /// Run, `@` for the newest, or the beginning of its name [default: the newest]
    pub(crate) run: Option<String>,
    /// Only those of this branch [default: all]
    #[arg(long, value_name = "BRANCH")]
    pub(crate) branch: Option<String>,
    /// List at most this many checkpoints
    #[arg(long, value_name = "COUNT", default_value_t = LIMIT_MAX, value_parser = clap::value_parser!(u64).range(1..=LIMIT_MAX))]
    pub(crate) limit: u64,
    /// Go on after a page: the `next` of its JSON
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Run, `@` for the newest, or the beginning of its name [default: the newest]
    pub(crate) run: Option<String>,
    /// Wait for more until the run stands still
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print only what comes after this cursor
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Run, `@` for the newest, or the beginning of its name
    pub(crate) run: String,
    /// Only the logs of this step [default: all, in the order in which they were started]
    pub(crate) step: Option<String>,
    /// Print only the newest attempt of each step
    #[arg(long)]
    pub(crate) last: bool,
    /// Wait for more until the run stands still
    #[arg(short, long)]
    pub(crate) follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Run or checkpoint: `RUN`, `RUN@SEQ`, `RUN@LABEL`, `RUN/BRANCH@SEQ`, `@` for the newest run [default: the newest run]
    #[arg(value_name = "RUN[@SEQ]", conflicts_with = "all")]
    pub(crate) run: Option<String>,
    /// Check every run of the store
    #[arg(long)]
    pub(crate) all: bool,
    /// Look again and again, with that time between two looks, and tell of what changes, until Ctrl-C
    #[arg(
        long,
        value_name = "EVERY",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "10s",
        value_parser = time::parse_interval,
        conflicts_with = "all"
    )]
    pub(crate) watch: Option<Duration>,
    /// Record what the evidence has come to, in a checkpoint of its own
    #[arg(long, conflicts_with_all = ["all", "watch"])]
    pub(crate) record: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Workflow file
    #[arg(default_value = "waypost.yaml")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Runs, or `@` for the newest; where it asks, the beginnings of their names are enough
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct PruneArgs {
    /// Drop states of this run only: a run, `@` for the newest, or the beginning of its name [default: all runs]
    #[arg(conflicts_with_all = ["keep_runs", "older_than"])]
    pub(crate) run: Option<String>,
    /// Keep the newest states of each branch, this many, at least 2, and drop those before; what happened stays
    #[arg(long, value_name = "COUNT", group = "what", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) keep: Option<u32>,
    /// Keep the newest finished runs, this many, and delete those before; what can be resumed always stays
    #[arg(long, value_name = "COUNT", group = "what")]
    pub(crate) keep_runs: Option<usize>,
    /// Delete finished runs that have not changed since: an age such as `30d`, a date in UTC such as `2026-11-20`, or a
    /// time such as `2026-11-20T08:00:00Z`; with --keep-runs, only those that both let go
    #[arg(long, value_name = "TIME", group = "what", value_parser = time::parse_since)]
    pub(crate) older_than: Option<Since>,
    /// Show what would go, and how many bytes that frees
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask before runs are deleted
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
#[command(override_usage = "waypost answer [OPTIONS] <RUN> [ID] <VALUE>")]
pub(crate) struct AnswerArgs {
    /// Run, `@` for the newest, or the beginning of its name
    pub(crate) run: String,
    /// The answer; before it, where there are several questions, the step that asks, or the id of the question
    #[arg(required = true, num_args = 1..=2, value_names = ["ID", "VALUE"], allow_negative_numbers = true)]
    pub(crate) words: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SignalArgs {
    /// Run, `@` for the newest, or the beginning of its name
    pub(crate) run: String,
    /// Name of the signal
    pub(crate) name: String,
    /// What it brings: JSON, or else a text
    #[arg(allow_negative_numbers = true)]
    pub(crate) value: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// Run, `@` for the newest, or the beginning of its name
    pub(crate) run: String,
    /// What to find it by: RUN@LABEL
    #[arg(long)]
    pub(crate) label: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Run, `@` for the newest, or the beginning of its name
    pub(crate) run: String,
    /// Wait so long for the run to write its last checkpoint
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// Run, or `@` for the newest
    pub(crate) run: String,
    /// Undo what its steps did, newest first
    #[arg(long)]
    pub(crate) undo_steps: bool,
    /// Wait so long for the run to stop
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
}

#[derive(Debug, Args)]
#[command(
    after_help = "To use it, put this where the shell starts:\n  bash  source <(waypost completions bash)\n  zsh   source <(waypost completions zsh)\n  fish  waypost completions fish | source"
)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Only runs of this workflow
    #[arg(long, value_name = "NAME")]
    pub(crate) workflow: Option<String>,
    /// Only runs that changed since: an age such as `2h` or `7d`, a date in UTC such as `2026-11-20`, or a time such as
    /// `2026-11-20T08:00:00Z`
    #[arg(long, value_name = "TIME", value_parser = time::parse_since)]
    pub(crate) since: Option<Since>,
}

/// What is done with a store.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum StoreCommand {
    /// Make an empty store, if there is none
    Init,
    /// Bring an older store up to this version, after a back-up
    Upgrade,
    /// Check what the store keeps beside records: indexes, counts and ends
    Check,
}

/// Shells with completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    /// Returns the name of the shell.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Command [default: waypost itself]
    pub(crate) command: Option<String>,
    /// Write the pages of all commands into this folder
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub(crate) dir: Option<PathBuf>,
}

impl Command {
    /// Returns whether the command works with an invalid configuration: it uses none, or reports the error
    /// itself.
    pub(crate) fn bears_wrong_configuration(&self) -> bool {
        matches!(self, Self::Completions(_) | Self::Man(_) | Self::Doctor | Self::Event(_) | Self::Schema)
    }
}

/// Splits `NAME=VALUE`; the value may be empty and may hold `=`.
fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("it must read NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
