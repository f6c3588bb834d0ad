//! The command line, as clap types. Decides nothing.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use waypost::RunId;
use waypost::engine::Answers;
use waypost_workflow::file::PARALLEL_MAX;

use crate::exit::Exit;
use crate::format::text::quoted;
use crate::format::time;
use crate::format::time::Since;

mod evidence;
mod exchange;
mod groups;
mod letters;
mod queue;
mod rollback_fork;
mod scripts;
mod steps;
mod treat_as;
mod unknown;
mod workflow_file;

pub(crate) use evidence::{Evidence, EvidenceArgs};
pub(crate) use exchange::{
    ArchiveArgs, ExportArgs, ImportArgs, ImportCheckpointArgs, ImportWhat, ImportWorkflowArgs,
};
pub(crate) use groups::command;
pub(crate) use letters::{DeadLetter, DeadLetters, DropArgs, RetryArgs, ShowLetters};
pub(crate) use queue::{SubmitArgs, WorkerArgs};
pub(crate) use rollback_fork::{DiffArgs, ForkArgs, RollbackArgs, RollbackTo};
pub(crate) use scripts::{DemoArgs, GraphArgs, NewArgs, OnceArgs, ReportArgs};
pub(crate) use steps::EventArgs;
pub(crate) use treat_as::Treatment;
pub(crate) use unknown::{explained, internal};
pub(crate) use workflow_file::{default_file, file_parser, is_stdin};

/// Largest limit of a listing: the page size of stores.
pub(crate) const LIMIT_MAX: u64 = waypost::store::PAGE_ITEMS_MAX as u64;

/// Checkpoint long runs of steps, and resume them after any crash
#[derive(Debug, Parser)]
#[command(name = "waypost", version, max_term_width = 100, after_help = Exit::table())]
#[command(subcommand_required = true, arg_required_else_help = true)]
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
    /// Use this store: `sqlite:PATH`, `file:DIR`, `memory:` or `postgres://...`, with `?logs=DIR` for logs in a folder [default: the nearest `.waypost` upward]
    #[arg(
        long,
        global = true,
        display_order = 900,
        value_name = "URL",
        env = "WAYPOST_STORE",
        hide_env_values = true
    )]
    pub(crate) store: Option<String>,
    /// Print JSON: one document, or one object per line for `run`, `resume` and `events`
    #[arg(long, global = true, display_order = 900)]
    pub(crate) json: bool,
    /// Colour the output [default: auto]
    #[arg(long, global = true, display_order = 900, value_name = "WHEN")]
    pub(crate) color: Option<Color>,
    /// Print only errors
    #[arg(short, long, global = true, display_order = 900, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print more details
    #[arg(short, long, global = true, display_order = 900)]
    pub(crate) verbose: bool,
}

/// When colour is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal with colour support, unless `NO_COLOR` is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a workflow file from its first step
    Run(RunArgs),
    /// Resume a run
    Resume(ResumeArgs),
    /// Retry the failures of a run: `resume --retry-failed`
    Retry(ResumeArgs),
    /// Show what a resume would do, with a cause for each step
    Plan(OneRun),
    /// Explain the next action for a step, with the records of the decision
    Why(WhyArgs),
    /// List runs, newest first
    #[command(visible_alias = "ps")]
    List(ListArgs),
    /// Show a run, or its state at a checkpoint
    #[command(visible_alias = "status")]
    Show(ShowArgs),
    /// List the checkpoints of a run
    Checkpoints(CheckpointsArgs),
    /// Write a labelled checkpoint of the current position
    Checkpoint(CheckpointArgs),
    /// Print the events of a run, oldest first
    Events(EventsArgs),
    /// Print the logs of steps
    Logs(LogsArgs),
    /// Check the records of a run for damage, and the evidence of its steps
    Verify(VerifyArgs),
    /// Check a workflow file without running it
    #[command(visible_alias = "validate")]
    Check(CheckArgs),
    /// Print the JSON Schema of the workflow file, for editors
    Schema,
    /// Delete runs with all their data
    #[command(visible_alias = "rm")]
    Delete(DeleteArgs),
    /// Drop old states, and delete old finished runs
    Prune(PruneArgs),
    /// Roll a run back to a checkpoint; later checkpoints stay visible
    Rollback(RollbackArgs),
    /// Fork a new run from a checkpoint
    Fork(ForkArgs),
    /// Compare the states of two checkpoints
    Diff(DiffArgs),
    /// List, retry or drop dead letters
    #[command(subcommand)]
    DeadLetters(DeadLetters),
    /// Suggest evidence from the files of a step, or accept current evidence
    #[command(subcommand)]
    Evidence(Evidence),
    /// Answer a question of a run
    Answer(AnswerArgs),
    /// Answer a question of a run with yes
    Approve(ApproveArgs),
    /// Send a signal to a run
    Signal(SignalArgs),
    /// Add an event to the run, from inside a step
    Event(EventArgs),
    /// Watch a run under way, from any terminal
    Watch(WatchArgs),
    /// Submit a run to the workers of a store in PostgreSQL
    Submit(SubmitArgs),
    /// Claim and execute submitted runs, until SIGTERM
    Worker(WorkerArgs),
    /// Stop a run; it stays resumable
    Stop(StopArgs),
    /// Cancel a run for good; its records stay
    Cancel(CancelArgs),
    /// Print every configuration value with its source
    Config,
    /// Export a checkpoint to a file, with everything needed to resume
    Export(ExportArgs),
    /// Write all data of a run to one compressed file, independent of the store
    Archive(ArchiveArgs),
    /// Start a new run from an exported checkpoint
    Import(ImportArgs),
    /// Create, upgrade or check the store
    #[command(subcommand)]
    Store(StoreCommand),
    /// Count runs, steps, checkpoints and bytes of the store
    Stats(StatsArgs),
    /// Check for problems: store, locks, processes, disk, clock
    Doctor,
    /// Print a shell script that completes commands, options, runs and steps
    Completions(CompletionsArgs),
    /// Print the manual page of waypost, or of one command
    Man(ManArgs),
    /// Run a command of a script once, and replay its output and exit code afterwards
    Once(OnceArgs),
    /// Create a workflow file: an example, or from commands that you type
    New(NewArgs),
    /// Demonstrate a killed and resumed run, in a temporary folder
    Demo(DemoArgs),
    /// Draw the steps of a workflow file or a run, and their dependencies, as SVG
    Graph(GraphArgs),
    /// Print the report of a run, as Markdown or as one HTML page
    Report(ReportArgs),
}

/// Whether a command prints the output of steps.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct PrintedArgs {
    /// Print each line of output of the steps on stderr [default: if stderr is not a terminal]
    #[arg(long, overrides_with = "no_logs")]
    logs: bool,
    /// Print no output of the steps
    #[arg(long)]
    no_logs: bool,
}

impl PrintedArgs {
    /// Returns the choice of the user, if any.
    pub(crate) fn wanted(self) -> Option<bool> {
        (self.logs || self.no_logs).then_some(self.logs)
    }
}

#[derive(Debug, Default, Args)]
pub(crate) struct RunArgs {
    /// Workflow file, or `-` for stdin
    #[arg(default_value_os_t = default_file(), value_parser = file_parser())]
    pub(crate) file: PathBuf,
    /// Set a parameter; may be repeated
    #[arg(short, long = "param", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) params: Vec<(String, String)>,
    /// Read parameters from a YAML or JSON file; `-p` overrides the file
    #[arg(long, value_name = "FILE")]
    pub(crate) params_file: Option<PathBuf>,
    /// Name the run [default: the workflow's name with four random characters]
    #[arg(long, value_name = "RUN")]
    pub(crate) id: Option<String>,
    /// Keep waiting up to this long while only a time or a signal is pending
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
    /// Resume the run named by `--id` if the run exists; without `--id`, the newest run of the file with the same
    /// parameters, unless it is finished
    #[arg(long)]
    pub(crate) or_resume: bool,
    /// Label the run; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) labels: Vec<(String, String)>,
    /// Stop after this step; start only the steps upstream
    #[arg(long, value_name = "STEP")]
    pub(crate) until: Option<String>,
    /// After a failure, start only steps with `always()` or `failure()` in their `if`
    #[arg(long)]
    pub(crate) fail_fast: bool,
    /// Run the steps in this folder [default: the workflow file's folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Run at most this many steps at once, in place of `max_parallel` in the file
    #[arg(short = 'j', long, value_name = "COUNT", value_parser = parallel)]
    pub(crate) max_parallel: Option<NonZeroUsize>,
    /// Show the plan, and run nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Run in a separate process, and return at once
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) printed: PrintedArgs,
    /// This is the process of a detached run
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

/// The default of `--wait` of a resume.
const WAIT: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ResumeArgs {
    /// Run, `@` for the newest, or a unique prefix [default: the newest resumable run]
    #[arg(conflicts_with = "all")]
    pub(crate) run: Option<String>,
    /// Resume every interrupted or due run, oldest first
    #[arg(long, conflicts_with_all = ["restart", "with", "until", "treat_as"])]
    pub(crate) all: bool,
    /// With `--all`, resume the runs of all stores used by this user
    #[arg(long, requires = "all")]
    pub(crate) everywhere: bool,
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
    /// Run the steps of a run with this base in this folder; may be repeated
    #[arg(long = "base", value_name = "NAME=DIR", value_parser = key_value)]
    pub(crate) bases: Vec<(String, String)>,
    /// Resume with the run's own copy of the workflow although the file changed
    #[arg(long)]
    pub(crate) keep_definition: bool,
    /// Settle steps in doubt as `done` (previous outputs, if any, stay) or as `retry` (the step reruns): all steps, or
    /// the named; may be repeated
    #[arg(long, value_name = "WHAT[=STEP,...]", value_parser = Treatment::parse, conflicts_with = "restart")]
    pub(crate) treat_as: Vec<Treatment>,
    /// The decisions of `--treat-as` about the steps of the run
    #[arg(skip)]
    pub(crate) answers: Answers,
    /// Give an output of a step that `--treat-as done` settles; may be repeated
    #[arg(long, value_name = "STEP.NAME=VALUE", value_parser = key_value, requires = "treat_as")]
    pub(crate) output: Vec<(String, String)>,
    /// Skip this unfinished step; may be repeated
    #[arg(long, value_name = "STEP", conflicts_with_all = ["all", "restart"])]
    pub(crate) skip: Vec<String>,
    /// Start over from the first step; earlier records stay
    #[arg(long)]
    pub(crate) restart: bool,
    /// Rerun this step and all steps downstream. PATH/STEP names a step within a group, an item or an included file
    #[arg(long, value_name = "[PATH/]STEP", conflicts_with_all = ["all", "restart"])]
    pub(crate) from: Option<String>,
    /// Rerun only the step of `--from`, then stop
    #[arg(long, requires = "from", conflicts_with = "until")]
    pub(crate) only: bool,
    /// Stop after this step; start only the steps upstream
    #[arg(long, value_name = "STEP")]
    pub(crate) until: Option<String>,
    /// Change a parameter for the remaining steps; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = key_value, conflicts_with = "all")]
    pub(crate) set: Vec<(String, String)>,
    /// Retry every failure that the run tolerates: dead letters, and steps with `continue_on_error`
    #[arg(long, conflicts_with_all = ["all", "restart", "from", "only"])]
    pub(crate) retry_failed: bool,
    /// Dead letters to retry, with replaced items
    #[arg(skip)]
    pub(crate) retry: Vec<(DeadLetter, Option<serde_json::Value>)>,
    /// Keep waiting up to this long while only a time or a signal is pending; not with `--all` [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = time::parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// The time of `--wait` if not given: by the configuration, or by another command.
    #[arg(skip)]
    pub(crate) wait_default: Option<Duration>,
    /// Run at most this many steps at once, in place of `max_parallel` in the file
    #[arg(short = 'j', long, value_name = "COUNT", value_parser = parallel)]
    pub(crate) max_parallel: Option<NonZeroUsize>,
    /// Show the plan, and run nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Resume in a separate process, and return at once
    #[arg(long, conflicts_with_all = ["all", "dry_run", "treat_as"])]
    pub(crate) detach: bool,
    /// Return a stopped run to the queue, for the workers
    #[arg(long, conflicts_with_all = ["all", "with", "keep_finished", "rerun_changed", "keep_definition", "treat_as",
          "skip", "restart", "from", "until", "set", "retry_failed", "max_parallel", "dry_run", "detach"])]
    pub(crate) queue: bool,
    #[command(flatten)]
    pub(crate) printed: PrintedArgs,
    /// This is the process of a detached resume
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

impl ResumeArgs {
    /// Returns this resume without decisions about steps in doubt.
    pub(crate) fn undecided(&self) -> Self {
        Self { treat_as: Vec::new(), answers: Answers::default(), output: Vec::new(), ..self.clone() }
    }

    /// Returns whether this resume names steps to rerun, to retry or to skip.
    pub(crate) fn requests(&self) -> bool {
        self.from.is_some() || !self.skip.is_empty() || !self.retry.is_empty()
    }

    /// Returns this resume with decisions about named steps only.
    pub(crate) fn only_named(&self) -> Self {
        let mut args = self.clone();
        args.treat_as.retain(|given| !given.steps.is_empty());
        if args.treat_as.is_empty() { args.undecided() } else { args }
    }

    /// Returns the command line of this resume of one run, with all options except `--dry-run`.
    pub(crate) fn command(&self, run: &RunId) -> String {
        // The pattern is complete: a new option does not compile without a decision here.
        let Self {
            run: _,
            all: _,
            everywhere: _,
            with,
            keep_finished,
            rerun_changed,
            bases,
            keep_definition,
            treat_as,
            answers: _,
            output,
            skip,
            restart,
            from,
            only,
            until,
            set,
            retry_failed,
            retry,
            wait,
            wait_default: _,
            max_parallel,
            dry_run: _,
            detach,
            queue,
            printed: PrintedArgs { logs, no_logs },
            detached: _,
        } = self;
        let mut command = format!("waypost resume {run}");
        let with = with.as_ref().map(|file| file.display().to_string());
        let pair = |(name, value): &(String, String)| format!("{name}={value}");
        let until = until.clone().filter(|_| !only);
        let given = [
            ("--with", with.into_iter().collect::<Vec<_>>()),
            ("--from", from.clone().into_iter().collect()),
            ("--until", until.into_iter().collect()),
            ("--set", set.iter().map(pair).collect()),
            ("--skip", skip.clone()),
            ("--treat-as", treat_as.iter().map(Treatment::to_string).collect()),
            ("--output", output.iter().map(pair).collect()),
            ("--base", bases.iter().map(pair).collect()),
            ("--wait", wait.map(time::written).into_iter().collect()),
            ("--max-parallel", max_parallel.iter().map(ToString::to_string).collect()),
        ];
        for (option, values) in given {
            values.iter().for_each(|value| command.push_str(&format!(" {option} {}", quoted(value))));
        }
        let flags = [
            ("--keep-definition", *keep_definition && retry.is_empty()),
            ("--restart", *restart),
            ("--only", *only),
            ("--retry-failed", *retry_failed),
            ("--detach", *detach),
            ("--queue", *queue),
            ("--logs", *logs),
            ("--no-logs", *no_logs),
        ];
        let flags = flags.iter().filter(|(_, is_given)| *is_given);
        flags.for_each(|(flag, _)| command.push_str(&format!(" {flag}")));
        for (option, steps) in [("--keep-finished", keep_finished), ("--rerun-changed", rerun_changed)] {
            let Some(steps) = steps else { continue };
            let steps = steps.join(",");
            let value = if steps.is_empty() { steps } else { format!("={}", quoted(&steps)) };
            command.push_str(&format!(" {option}{value}"));
        }
        command
    }

    /// Returns the time of `--wait`.
    pub(crate) fn wait(&self) -> Duration {
        self.wait.or(self.wait_default).unwrap_or(WAIT)
    }
}

#[derive(Debug, Args)]
pub(crate) struct OneRun {
    /// Run, `@` for the newest, or a unique prefix [default: the newest]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Run, `@` for the newest, or a unique prefix [default: the newest]
    pub(crate) run: Option<String>,
    /// Step [default: the first unfinished step]
    pub(crate) step: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only runs with one of these statuses
    #[arg(long, value_name = "STATUS,...", value_delimiter = ',')]
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
    /// Only resumable runs
    #[arg(long, conflicts_with = "status")]
    pub(crate) resumable: bool,
    /// Only runs changed since: an age such as `2h` or `7d`, a date in UTC such as `2026-11-20`, or a time such as
    /// `2026-11-20T08:00:00Z`
    #[arg(long, value_name = "TIME", value_parser = time::parse_since)]
    pub(crate) since: Option<Since>,
    /// List at most this many runs
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=LIMIT_MAX))]
    pub(crate) limit: u64,
    /// Continue after a page: the `next` of its JSON
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
    /// List the runs of all stores used by this user, newest first
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
    /// Run or checkpoint: `RUN`, `RUN@SEQ`, `RUN@LABEL`, `RUN/SCOPE@SEQ`, `@` for the newest run [default: the newest run]
    #[arg(value_name = "RUN[@SEQ]")]
    pub(crate) run: Option<String>,
    /// Show only this step, with all details; of a step with items, the items too
    #[arg(long, value_name = "STEP")]
    pub(crate) step: Option<String>,
    #[command(flatten)]
    pub(crate) items: ItemsArgs,
}

/// The listed items of a step.
#[derive(Debug, Args)]
pub(crate) struct ItemsArgs {
    /// List only items with this status
    #[arg(long, value_name = "STATUS", requires = "step")]
    pub(crate) status: Option<ItemStatusName>,
    /// List at most this many items [default: 50]
    #[arg(long, value_name = "COUNT", requires = "step", value_parser = clap::value_parser!(u64).range(1..=LIMIT_MAX))]
    pub(crate) limit: Option<u64>,
    /// Continue after a page: the `next` of its JSON
    #[arg(long, value_name = "CURSOR", requires = "step")]
    pub(crate) after: Option<String>,
}

/// The statuses of an item, as they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum ItemStatusName {
    Pending,
    Running,
    Waiting,
    Completed,
    Failed,
    Skipped,
    Cut,
    #[value(name = "in_doubt")]
    InDoubt,
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointsArgs {
    /// Run, `@` for the newest, or a unique prefix [default: the newest]
    pub(crate) run: Option<String>,
    /// Only checkpoints of this scope [default: all]
    #[arg(long, alias = "branch", value_name = "SCOPE")]
    pub(crate) scope: Option<String>,
    /// List at most this many checkpoints
    #[arg(long, value_name = "COUNT", default_value_t = LIMIT_MAX, value_parser = clap::value_parser!(u64).range(1..=LIMIT_MAX))]
    pub(crate) limit: u64,
    /// Continue after a page: the `next` of its JSON
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Run, `@` for the newest, or a unique prefix [default: the newest]
    pub(crate) run: Option<String>,
    /// Follow until the run stops
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print only events after this cursor
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Run, `@` for the newest, or a unique prefix [default: the newest]
    pub(crate) run: Option<String>,
    /// Only the logs of this step [default: all, in start order]
    pub(crate) step: Option<String>,
    /// Print only the newest attempt of each step
    #[arg(long)]
    pub(crate) last: bool,
    /// Follow until the run stops
    #[arg(short, long)]
    pub(crate) follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Run or checkpoint: `RUN`, `RUN@SEQ`, `RUN@LABEL`, `RUN/SCOPE@SEQ`, `@` for the newest run [default: the newest run]
    #[arg(value_name = "RUN[@SEQ]", conflicts_with = "all")]
    pub(crate) run: Option<String>,
    /// Check every run of the store
    #[arg(long)]
    pub(crate) all: bool,
    /// Repeat the check at this interval, and report changes, until Ctrl-C [without EVERY: 10s]
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
    /// Check the evidence of runs with this base in this folder; may be repeated
    #[arg(long = "base", value_name = "NAME=DIR", value_parser = key_value)]
    pub(crate) bases: Vec<(String, String)>,
    /// Record the verdicts in a new checkpoint
    #[arg(long, conflicts_with_all = ["all", "watch"])]
    pub(crate) record: bool,
    /// Check evidence this many times: by workers for a submitted run, else in turn by this process
    #[arg(long, value_name = "COUNT", value_parser = parallel, conflicts_with_all = ["all", "watch"])]
    pub(crate) workers: Option<NonZeroUsize>,
    /// Count a verdict with this many votes, else `unknown` [default: more than half]
    #[arg(long, value_name = "COUNT", value_parser = parallel, requires = "workers")]
    pub(crate) quorum: Option<NonZeroUsize>,
    /// Wait at most this long for workers
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Workflow file, or `-` for stdin
    #[arg(default_value_os_t = default_file(), value_parser = file_parser())]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Runs, `@` for the newest, or unique prefixes; with `--yes` none that cuts a number
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    /// Skip the confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct PruneArgs {
    /// Drop states of this run only: a run, `@` for the newest, or a unique prefix [default: all runs]
    #[arg(conflicts_with_all = ["keep_runs", "older_than", "status"])]
    pub(crate) run: Option<String>,
    /// Keep this many of the newest states of each scope (at least 2), and drop older states; headers stay
    #[arg(long, value_name = "COUNT", group = "what", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) keep: Option<u32>,
    /// Keep this many of the newest finished runs, and delete older ones; resumable runs always stay
    #[arg(long, value_name = "COUNT", group = "what")]
    pub(crate) keep_runs: Option<usize>,
    /// Delete finished runs unchanged since: an age such as `30d`, a date in UTC such as `2026-11-20`, or a time such
    /// as `2026-11-20T08:00:00Z`; with --keep-runs, only runs selected by both
    #[arg(long, value_name = "TIME", group = "what", value_parser = time::parse_since)]
    pub(crate) older_than: Option<Since>,
    /// Delete runs with one of these statuses, also unfinished ones; with --older-than and --keep-runs, only runs
    /// selected by all
    #[arg(long, value_name = "STATUS,...", value_delimiter = ',', group = "what")]
    pub(crate) status: Vec<StatusName>,
    /// Show the runs and states to drop, and the bytes to free
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Skip the confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
#[command(override_usage = "waypost answer [OPTIONS] <RUN> [STEP|ID] <VALUE>")]
pub(crate) struct AnswerArgs {
    /// Run, `@` for the newest, or a unique prefix
    pub(crate) run: Option<String>,
    /// The answer; with several open questions, preceded by the step or the id of the question
    #[arg(num_args = 1..=2, value_names = ["STEP|ID", "VALUE"], allow_negative_numbers = true)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) after: AfterAnswer,
}

#[derive(Debug, Args)]
pub(crate) struct ApproveArgs {
    /// Run, `@` for the newest, or a unique prefix [default: the only run with a question]
    pub(crate) run: Option<String>,
    /// The step or the id of the question [default: the only question]
    pub(crate) step: Option<String>,
    #[command(flatten)]
    pub(crate) after: AfterAnswer,
}

/// The work after an answer.
#[derive(Debug, Args)]
pub(crate) struct AfterAnswer {
    /// Resume the run with the answer
    #[arg(long)]
    pub(crate) resume: bool,
    /// With --resume, keep waiting up to this long while only a time or a signal is pending
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct SignalArgs {
    /// Run, `@` for the newest, or a unique prefix
    pub(crate) run: String,
    /// Name of the signal
    pub(crate) name: String,
    /// Payload: JSON, or else text
    #[arg(allow_negative_numbers = true)]
    pub(crate) value: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// Run, `@` for the newest, or a unique prefix
    pub(crate) run: String,
    /// Label, for RUN@LABEL
    #[arg(long)]
    pub(crate) label: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Run, `@` for the newest, or a unique prefix [default: the newest run under way]
    pub(crate) run: Option<String>,
    #[command(flatten)]
    pub(crate) printed: PrintedArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Run, `@` for the newest, or a unique prefix [default: the only live run]
    pub(crate) run: Option<String>,
    /// Wait up to this long for the last checkpoint of the run
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// Run, or `@` for the newest [default: the only unfinished run]
    pub(crate) run: Option<String>,
    /// Undo the effects of its steps, newest first
    #[arg(long)]
    pub(crate) undo_steps: bool,
    /// Wait up to this long for the run to stop
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = time::parse_duration)]
    pub(crate) wait: Duration,
}

#[derive(Debug, Args)]
#[command(
    after_help = "To enable completion, add the line of the shell to its startup file:\n  bash  source \
                  <(waypost completions bash)\n  zsh   source <(waypost completions zsh)\n  fish  waypost \
                  completions fish | source"
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
    /// Only runs changed since: an age such as `2h` or `7d`, a date in UTC such as `2026-11-20`, or a time such as
    /// `2026-11-20T08:00:00Z`
    #[arg(long, value_name = "TIME", value_parser = time::parse_since)]
    pub(crate) since: Option<Since>,
}

/// What is done with a store.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum StoreCommand {
    /// Create an empty store, if none exists
    Init,
    /// Upgrade an older store to this version, after a backup
    Upgrade,
    /// Check the derived data of the store: indexes, counts and ends
    Check,
    /// Show the load of the store: runs and bytes; in PostgreSQL also queue, leases, tables and connections
    Stats,
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
    /// Write the pages of all commands to this folder
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub(crate) dir: Option<PathBuf>,
}

impl Command {
    /// Expands a short form into the full command.
    ///
    /// # Errors
    /// An option contradicts the short form.
    pub(crate) fn expanded(self) -> Result<Self, clap::Error> {
        match self {
            Self::Retry(args) if args.all || args.restart || args.from.is_some() => {
                let message = "cannot use `retry` with `--all`, `--restart` or `--from`: use `resume`";
                Err(Cli::command().error(ErrorKind::ArgumentConflict, message))
            }
            Self::Retry(args) => Ok(Self::Resume(ResumeArgs { retry_failed: true, ..args })),
            Self::Approve(ApproveArgs { run, step, after }) => {
                let words = step.into_iter().chain(["yes".to_owned()]).collect();
                Ok(Self::Answer(AnswerArgs { run, words, after }))
            }
            command => Ok(command),
        }
    }

    /// Returns the limit of concurrent steps, if the command sets one.
    pub(crate) fn parallel(&self) -> Option<NonZeroUsize> {
        match self {
            Self::Run(args) => args.max_parallel,
            Self::Resume(args) => args.max_parallel,
            _ => None,
        }
    }

    /// Returns the folders of bases on the command line.
    pub(crate) fn bases(&self) -> &[(String, String)] {
        match self {
            Self::Resume(args) => &args.bases,
            Self::Fork(args) => &args.bases,
            Self::Verify(args) => &args.bases,
            Self::Worker(args) => &args.bases,
            _ => &[],
        }
    }

    /// Returns whether the command works with an invalid configuration: it uses none, or reports the error
    /// itself.
    pub(crate) fn bears_wrong_configuration(&self) -> bool {
        matches!(self, Self::Completions(_) | Self::Man(_) | Self::Doctor | Self::Event(_) | Self::Schema)
    }
}

/// Parses a limit of concurrent steps.
fn parallel(text: &str) -> Result<NonZeroUsize, String> {
    let count = text.parse().ok().filter(|count| (1..=PARALLEL_MAX).contains(count));
    let count = count.and_then(|count| NonZeroUsize::new(usize::try_from(count).ok()?));
    count.ok_or_else(|| format!("expected a whole number from 1 to {PARALLEL_MAX}"))
}

/// Splits `NAME=VALUE`; the value may be empty and may hold `=`.
fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, CommandFactory as _, Parser as _};
    use waypost::RunId;

    use super::{Cli, Command, ResumeArgs};

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    fn resume(words: &[&str]) -> ResumeArgs {
        let Ok(Cli { command: Command::Resume(args), .. }) = Cli::try_parse_from(words) else {
            panic!("not a resume: {words:?}")
        };
        args
    }

    // Commands in hints lost the options `--keep-finished`, `--rerun-changed`, `--keep-definition` and others. The command
    // was a list of some options.
    #[test]
    fn the_command_of_a_resume_has_every_option() {
        /// The options that a hint leaves out, and why.
        const LEFT_OUT: [&str; 5] = [
            // The run is named.
            "all",
            "everywhere",
            // A hint is a command that acts.
            "dry_run",
            // The internal form of `--detach`.
            "detached",
            // Stands for `--until`.
            "only",
        ];
        let run = RunId::new("r").unwrap();
        let options = ResumeArgs::augment_args(clap::Command::new("resume"));
        for option in options.get_opts().filter(|option| !LEFT_OUT.contains(&option.get_id().as_str())) {
            let name = option.get_long().expect("each option has a long name");
            let takes_value = option.get_action().takes_values();
            let given = match option.get_id().as_str() {
                "treat_as" => "--treat-as=done=a,b".to_owned(),
                "max_parallel" => "--max-parallel=3".to_owned(),
                "wait" => "--wait=7m".to_owned(),
                _ if takes_value => format!("--{name}=a=b"),
                _ => format!("--{name}"),
            };
            let more: &[&str] = if name == "output" { &["--treat-as=done"] } else { &[] };
            let words = [&["waypost", "resume", "r", &given], more].concat();

            let command = resume(&words).command(&run);

            let again: Vec<&str> = command.split(' ').collect();
            assert!(command.contains(&format!("--{name}")), "`{given}` is lost in `{command}`");
            assert_eq!(resume(&again).command(&run), command);
        }
        let only = resume(&["waypost", "resume", "--from=a", "--only"]).command(&run);
        assert_eq!(only, "waypost resume r --from a --only");
        let named = resume(&["waypost", "resume", "--keep-finished=a,b", "--rerun-changed"]).command(&run);
        assert_eq!(named, "waypost resume r --keep-finished=a,b --rerun-changed");
    }
}
