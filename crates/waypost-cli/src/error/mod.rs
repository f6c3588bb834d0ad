//! Errors of commands: a single `match` maps each to a code word, an exit code, a message, a hint and causes.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};

use waypost::engine::RunError;
use waypost::lock::Holder;
use waypost::portable::LoadError;
use waypost::store::StoreError;
use waypost::{CheckpointRef, InvalidName, RunId, ScopePath, StepId};
use waypost_import::State;
use waypost_workflow::file::{FileError, ParamsError, Problem, ReadError};
use waypost_workflow::program::ProgramError;

use crate::cli::{ResumeArgs, default_file};
use crate::exit::Exit;
use crate::view::ProblemView;
use crate::view::doubt::Doubt;

mod causes;
mod diagnosis;
mod once;
mod run;
mod store;
mod words;

pub(crate) use causes::are_of_evidence;
pub(crate) use once::OnceError;
pub(crate) use store::log_with_record;
pub(crate) use words::undo_command;

use causes::{is_without_descriptors, lacking_resource};
pub(crate) use diagnosis::{Diagnosis, Rendered};
use run::of_run;
use store::of_store;
use words::{by_hand, first_problem, how_to_wake, logs_beside, unreadable};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The command line is invalid in a way that the option parser cannot detect.
    #[error("{message}")]
    Usage {
        /// The problem.
        message: String,
        /// The correct use.
        hint: Option<String>,
    },
    /// Several runs match a prefix.
    #[error("`{given}` is ambiguous: {}{}", candidates.join(", "), if *more { ", and more" } else { "" })]
    Ambiguous {
        /// The prefix.
        given: String,
        /// Some of the runs, newest first.
        candidates: Vec<String>,
        /// There are more candidates.
        more: bool,
    },
    /// The search found no store.
    #[error("there is no `.waypost` folder in {} or above", from.display())]
    NoStore {
        /// Start of the search.
        from: PathBuf,
    },
    /// The run to archive is damaged. Nothing was written.
    #[error("cannot archive run {run}: the run is damaged")]
    Unsound {
        /// The run.
        run: RunId,
    },
    /// The store lost a run.
    #[error("run {run} has an event log in {}, but no records in the store", folder.display())]
    Lost {
        /// The run.
        run: RunId,
        /// The remaining folder of the run.
        folder: PathBuf,
    },
    /// A database without runs.
    #[error("{} {}", database.display(), if *made { "has no runs yet" } else { "does not exist" })]
    NoRuns {
        /// The database.
        database: PathBuf,
        /// The database exists.
        made: bool,
    },
    /// The database is gone or empty, and logs of runs remain next to it.
    #[error("{} {}, but {}", database.display(), if *empty { "is empty" } else { "is gone" }, logs_beside(runs))]
    LostStore {
        /// The database.
        database: PathBuf,
        /// The database exists and is empty.
        empty: bool,
        /// The runs.
        runs: Vec<RunId>,
    },
    /// The file is not a database.
    #[error("{} is damaged: not an SQLite database", .0.display())]
    NoSqlite(PathBuf),
    /// The path of the store exists, with another type.
    #[error("the store `{store}` is {is}, not {wanted}")]
    OtherKind {
        /// The name of the store.
        store: String,
        /// The type found.
        is: &'static str,
        /// The type required.
        wanted: &'static str,
        /// The correct name, or another store.
        hint: String,
    },
    /// The disk is too full to record a deletion; everything removable without a write was removed.
    #[error("cannot delete runs in {}: the disk is full", place.display())]
    NoRoom {
        /// The folder with the runs' files.
        place: PathBuf,
        /// The store's error.
        source: StoreError,
    },
    /// A run could not be created, and left no data.
    #[error("cannot create {what}")]
    NotMade {
        /// The run, or the store for the run.
        what: String,
        /// The cause.
        source: StoreError,
    },
    /// The log of a run names checkpoints that its store lacks.
    #[error("event log of run {} has checkpoint {logged}, but the store ends at {newest}: checkpoints are lost", logged.run)]
    Behind {
        /// The last checkpoint in the log.
        logged: CheckpointRef,
        /// The newest in the store.
        newest: CheckpointRef,
        /// The log.
        log: PathBuf,
    },
    /// The object does not exist.
    #[error("there is no {what}")]
    NotFound {
        /// The object, such as "run `x`".
        what: String,
        /// How to find existing objects.
        hint: Option<String>,
    },
    /// The workflow file, or a params file, is invalid; all problems with their places.
    #[error("{} is invalid: {}", .0.path().display(), first_problem(.0))]
    File(Box<FileError>),
    /// The workflow file of a run, or an included file, is invalid now; all problems with their places.
    #[error("{} is invalid: {}", .error.path().display(), first_problem(.error))]
    NotAdopted {
        /// The run.
        run: RunId,
        /// The problems.
        error: Box<FileError>,
    },
    /// A params file is not a map of params; all problems with their places.
    #[error("{} is invalid: {}", .0.path().display(), first_problem(.0))]
    ParamsFile(Box<FileError>),
    /// A configuration file is invalid; all problems with their places.
    #[error("{} is invalid: {}", .0.path().display(), first_problem(.0))]
    Config(Box<FileError>),
    /// A workflow of another program cannot be imported; the problem with its place.
    #[error("cannot import {}: {}", .0.path().display(), first_problem(.0))]
    Foreign(Box<FileError>),
    /// A file is a session or a checkpoint of another program.
    #[error("cannot import {0}")]
    ForeignState(State),
    /// An imported workflow does not pass the check; all problems.
    #[error("the workflow converted from {} is invalid: {}", .0.path().display(), first_problem(.0))]
    Made(Box<FileError>),
    /// The params do not match the declarations of the workflow.
    #[error("{0}")]
    Params(ParamsError),
    /// A named file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file or folder cannot be created.
    #[error("cannot create {}", path.display())]
    Create {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The workflow file changed in finished steps, and the user made no choice.
    #[error("{} changes finished results of run {run}:\n{}", file.display(), diff.join("\n"))]
    Changed {
        /// The file.
        file: PathBuf,
        /// The run.
        run: RunId,
        /// The options of the resume.
        args: Box<ResumeArgs>,
        /// The difference of each step.
        diff: Vec<String>,
    },
    /// A resume is refused.
    #[error("{message}")]
    Refused {
        /// The error, with the exact causes of questions.
        message: String,
        /// The cause.
        error: Box<RunError>,
        /// Commands with the choices of the refused one.
        hint: String,
    },
    /// A portable checkpoint cannot be read.
    #[error(transparent)]
    Import(#[from] LoadError),
    /// A foreign workflow would run commands, and the user has not approved it.
    #[error("cannot import {} without `--trust`: it has {steps} with commands", file.display())]
    NotTrusted {
        /// The file.
        file: PathBuf,
        /// The number of steps, in words.
        steps: String,
    },
    /// A store or configuration found by search belongs to another user; it could name programs to run.
    #[error("cannot use {}: it belongs to {owner}", path.display())]
    NotOwned {
        /// The folder or file.
        path: PathBuf,
        /// Its owner.
        owner: String,
    },
    /// The evidence of finished steps does not hold at a checkpoint.
    #[error("evidence at {at} {why}")]
    Unverified {
        /// The checkpoint.
        at: String,
        /// The verdict, and the claims.
        why: String,
        /// The next action.
        hint: String,
    },
    /// The run has exceeded its budget.
    #[error("cannot start a step of run {run}: the budget is exceeded ({passed})")]
    Budget {
        /// The run.
        run: RunId,
        /// The usage and the limit.
        passed: String,
    },
    /// The workflow cannot run here.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A run did not stop in time.
    #[error("run {run} did not stop within {waited}: held by {holder}")]
    StillRunning {
        /// The run.
        run: String,
        /// The time waited.
        waited: String,
        /// The holder.
        holder: Box<Holder>,
        /// Processes of the run suspended by a signal, which cannot act.
        halted: Vec<u32>,
    },
    /// The files of a submission could not be unpacked.
    #[error("cannot unpack the files of run {run}")]
    NotUnpacked {
        /// The run.
        run: RunId,
        /// The cause: damage, or a full disk.
        source: io::Error,
    },
    /// No worker checked the evidence of a run.
    #[error("cannot verify run {0}: no worker answered")]
    NoVerifier(RunId),
    /// The system refused timers or sockets.
    #[error("cannot start the runtime of this process")]
    Runtime(#[source] io::Error),
    /// The answer could not be written.
    #[error("cannot write the answer to stdout")]
    Output(#[from] io::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The engine.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A memoized command of `once`.
    #[error(transparent)]
    Once(Box<OnceError>),
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io { path, source } => Self::Unreadable { path, source },
            ReadError::File(error) => Self::File(Box::new(error)),
        }
    }
}

/// Returns whether an option names this step of this scope.
fn is_step_on(option: &str, path: &ScopePath, step: &StepId) -> bool {
    match option.rsplit_once('/') {
        None => path.is_main() && option == step.as_str(),
        Some((scope, own)) => own == step.as_str() && [path.as_str(), &path.readable()].contains(&scope),
    }
}

impl Error {
    /// Adds the choices of a refused resume to the commands of the hint. `doubts`: the questions.
    pub(crate) fn of_resume(self, args: &ResumeArgs, doubts: &[Doubt]) -> Self {
        let mut message = self.to_string();
        if let Self::Run(RunError::InDoubt { run, .. }) = &self {
            let told = doubts.iter().map(|Doubt { step, cause, .. }| format!("step `{step}`: {cause}"));
            message = format!("run {run} needs a decision: {}", told.collect::<Vec<_>>().join("; "));
        }
        let hint = match &self {
            Self::Run(RunError::InDoubt { run, questions }) if !are_of_evidence(questions) => {
                let mut args = args.only_named();
                args.retry_failed |= !args.retry.is_empty();
                args.detach = false;
                words::choices_of_doubt(&args.command(run), doubts)
            }
            Self::Run(RunError::NotSettled { run, scope, step, .. })
                if args.skip.iter().any(|skip| is_step_on(skip, scope, step)) =>
            {
                let skip = args.skip.iter().filter(|skip| !is_step_on(skip, scope, step)).cloned().collect();
                let without = ResumeArgs { skip, ..args.clone() };
                format!("`{}` resumes without this choice", without.command(run))
            }
            Self::Run(RunError::Changed { run, .. }) if !args.treat_as.is_empty() && !args.restart => {
                let own = ResumeArgs {
                    keep_definition: true,
                    with: None,
                    keep_finished: None,
                    rerun_changed: None,
                    ..args.clone()
                };
                format!("`{}` answers with the run's own copy of the definition", own.command(run))
            }
            Self::Run(RunError::NotEdited { run, scope, why }) if !args.skip.is_empty() => {
                message = format!("cannot settle steps of scope `{scope}` of run {run}: {why}");
                let without = ResumeArgs { skip: Vec::new(), ..args.clone() };
                format!("`{}` resumes without this choice", without.command(run))
            }
            _ => return self,
        };
        match self {
            Self::Run(error) => Self::Refused { message, error: Box::new(error), hint },
            error => error,
        }
    }

    /// Returns the run of an error of the engine about steps.
    pub(crate) fn run(&self) -> Option<&RunId> {
        match self {
            Self::Run(error) => run::run_of(error),
            Self::Refused { error, .. } => run::run_of(error),
            _ => None,
        }
    }

    /// Creates the error for an invalid command line.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: Some(hint.into()) }
    }

    /// Creates the error for an invalid name.
    pub(crate) fn from_name(error: InvalidName) -> Self {
        Self::Usage { message: error.to_string(), hint: None }
    }

    /// Creates the error for a workflow of another program that was not imported.
    pub(crate) fn from_import(error: waypost_import::Error) -> Self {
        match error {
            waypost_import::Error::Source(error) => Self::Foreign(error),
            waypost_import::Error::Made(error) => Self::Made(error),
            waypost_import::Error::State(state) => Self::ForeignState(state),
            error => Self::usage(error.to_string(), "`waypost import --help`"),
        }
    }

    /// Creates the error for a missing object.
    pub(crate) fn not_found(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::NotFound { what: what.into(), hint: Some(hint.into()) }
    }

    /// Returns whether the only error is a closed pipe: the reader of the output has ended.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Returns the file error, if the error is about a file's content.
    fn file_error(&self) -> Option<&FileError> {
        match self {
            Self::File(error) | Self::ParamsFile(error) | Self::Config(error) | Self::Foreign(error) => {
                Some(error)
            }
            Self::Made(error) | Self::NotAdopted { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Returns the diagnosis to print.
    pub(crate) fn diagnosis(&self) -> Diagnosis {
        let (code, exit, hint) = match self.kind() {
            (_, exit, _) if exit != Exit::NoResources && is_without_descriptors(self) => {
                let hint = "raise the limit of descriptors (`ulimit -n`) and repeat the command".to_owned();
                ("no_resources", Exit::NoResources, Some(hint))
            }
            kind => kind,
        };
        let causes = std::iter::successors(self.source(), |error| (*error).source());
        let mut causes: Vec<String> = causes.map(ToString::to_string).collect();
        causes.dedup();
        if let Some(error) = self.file_error() {
            let place = |(file, problem): (&Path, &Problem)| {
                let Problem { line, column, message, hint, help, .. } = problem;
                let hint = hint.as_ref().map(|word| format!("did you mean `{word}`?"));
                let more = hint.iter().chain(help).map(|text| format!(" ({text})")).collect::<String>();
                format!("{}:{line}:{column}: {message}{more}", file.display())
            };
            causes.extend(error.all_problems().into_iter().map(place));
        }
        let rendered = self.file_error().map(|error| Rendered {
            plain: error.render(),
            styled: error.render_styled(),
            problems: error
                .all_problems()
                .into_iter()
                .map(|(file, problem)| ProblemView::of(file, problem))
                .collect(),
            with_hint: matches!(self, Self::NotAdopted { .. }),
        });
        Diagnosis { code, exit, message: self.to_string(), hint, causes, rendered }
    }

    /// Maps every error to its code word, its exit code and a hint.
    fn kind(&self) -> (&'static str, Exit, Option<String>) {
        let hint = |text: &str| Some(text.to_owned());
        match self {
            Self::Usage { hint, .. } => ("usage", Exit::Usage, hint.clone()),
            Self::Ambiguous { .. } => {
                ("ambiguous", Exit::Usage, hint("give a longer prefix of the run name"))
            }
            Self::NoStore { .. } | Self::NoRuns { .. } => (
                "no_store",
                Exit::NotFound,
                hint("name a store with `--store`, or create one with `waypost run FILE`"),
            ),
            Self::Unsound { run } => {
                ("damaged", Exit::Damaged, Some(format!("`waypost verify {run}` shows the damage")))
            }
            Self::Lost { run, .. } => (
                "lost",
                Exit::Damaged,
                Some(format!(
                    "restore the files of the store; `waypost delete {run}` deletes the remaining files"
                )),
            ),
            Self::LostStore { .. } => (
                "lost",
                Exit::Damaged,
                hint("restore the database; to start with an empty store, move the remaining files away"),
            ),
            Self::Behind { logged, newest, log } => (
                "lost",
                Exit::Damaged,
                Some(format!(
                    "restore the files of the store; to continue from {newest} without the lost \
                     checkpoints, move {} away; `waypost resume {} --restart` starts over",
                    log.display(),
                    logged.run
                )),
            ),
            Self::NoSqlite(_) => (
                "damaged",
                Exit::Damaged,
                hint("copy the file, then restore a sound database, or name another store with `--store`"),
            ),
            Self::NoRoom { place, .. } => ("disk_full", Exit::CannotWrite, Some(by_hand(place))),
            Self::OtherKind { hint, .. } => ("wrong_store", Exit::Unreachable, Some(hint.clone())),
            Self::NotMade { source, .. } => {
                let (code, _, found) = of_store(source);
                let of_full = || hint("free disk space and repeat the command; the run was not created");
                (code, Exit::CannotCreate, if code == "disk_full" { of_full() } else { found })
            }
            Self::NotFound { hint, .. } => ("not_found", Exit::NotFound, hint.clone()),
            Self::File(_) => {
                ("invalid_workflow", Exit::InvalidWorkflow, hint("`waypost check FILE` lists the problems"))
            }
            Self::NotAdopted { run, .. } => (
                "invalid_workflow",
                Exit::InvalidWorkflow,
                Some(format!(
                    "fix the file, or continue with the run's own copy: `waypost resume {run} \
                     --keep-definition`"
                )),
            ),
            Self::Config(_) => ("invalid_config", Exit::InvalidWorkflow, None),
            Self::Foreign(_) => (
                "invalid_workflow",
                Exit::InvalidWorkflow,
                hint("Prodigy workflows are supported; for an exported checkpoint: `waypost import ./FILE`"),
            ),
            Self::ForeignState(state) => ("foreign_state", Exit::InvalidWorkflow, Some(state.hint())),
            Self::Made(_) => (
                "internal",
                Exit::Internal,
                hint("this is a bug in waypost, please report it; no file was written"),
            ),
            Self::Params(error) => {
                let hint = error.problems().iter().find_map(|problem| problem.hint.clone());
                ("params", Exit::Usage, hint)
            }
            Self::Unreadable { path, source }
                if source.kind() == io::ErrorKind::NotFound && *path == default_file() =>
            {
                let text = "name a workflow file; `waypost new` writes a first one";
                ("unreadable", Exit::Usage, hint(text))
            }
            Self::Unreadable { source, .. } | Self::Import(LoadError::Io { source, .. }) => {
                ("unreadable", Exit::Usage, unreadable(source.kind()))
            }
            Self::Create { .. } => {
                ("cannot_create", Exit::CannotCreate, hint("check that the folder exists and is writable"))
            }
            Self::ParamsFile(_) => ("params", Exit::Usage, hint("a params file is a map of `name: value`")),
            Self::Changed { args, run, file, .. } => {
                ("changed", Exit::Changed, Some(words::choices_of_change(args, run, file)))
            }
            Self::Refused { error, hint, .. } => {
                let (code, exit, _) = of_run(error);
                (code, exit, Some(hint.clone()))
            }
            Self::Import(LoadError::NotFound { .. }) => (
                "not_found",
                Exit::NotFound,
                hint("name a file written by `waypost export` or `waypost archive`"),
            ),
            Self::Import(LoadError::Corrupt { .. }) => (
                "damaged",
                Exit::Damaged,
                hint("restore the file from another copy, or export the checkpoint again"),
            ),
            Self::Import(LoadError::Incompatible { .. }) => {
                ("newer", Exit::Newer, hint("use the version of waypost that wrote the file"))
            }
            Self::NotTrusted { file, .. } => (
                "not_trusted",
                Exit::NotTrusted,
                Some(format!(
                    "`waypost import {} --show` prints the workflow; `--trust` creates the run and runs \
                     its commands",
                    crate::format::text::quoted(&file.display().to_string())
                )),
            ),
            Self::NotOwned { .. } => (
                "not_owned",
                Exit::NotTrusted,
                hint("a store can name programs to run: use your own with `--store sqlite:PATH`"),
            ),
            Self::Unverified { hint, .. } => ("evidence_failed", Exit::Evidence, Some(hint.clone())),
            Self::Budget { run, .. } => (
                "budget",
                Exit::Timeout,
                Some(format!(
                    "raise `budget` in the workflow file, then: `waypost resume {run}`; `--with FILE` uses \
                     another file"
                )),
            ),
            Self::Program(ProgramError::MissingSecrets(_)) => {
                ("missing_secret", Exit::Usage, hint("set the variable in the environment"))
            }
            Self::Program(ProgramError::UnknownAgent { agent, .. }) => (
                "unknown_agent",
                Exit::Usage,
                Some(format!(
                    "configure the agent in `.waypost/config.yaml`: `agents: {{ {agent}: [program, -p, \
                     \"${{{{ prompt }}}}\"] }}`"
                )),
            ),
            Self::Program(ProgramError::Mask(_)) => (
                "secret",
                Exit::Usage,
                hint("use a value that can be masked, or remove the name from `secrets`"),
            ),
            Self::Program(ProgramError::SecretParam { .. }) => (
                "secret",
                Exit::Usage,
                hint("params are recorded: omit the param, and read the variable in the step"),
            ),
            Self::Program(ProgramError::SameKey { .. }) => (
                "same_key",
                Exit::Usage,
                hint("list each item once, remove duplicates with `distinct`, or set a unique `key`"),
            ),
            Self::StillRunning { halted, .. } => ("still_running", Exit::Locked, Some(how_to_wake(halted))),
            Self::NotUnpacked { .. } => {
                ("not_unpacked", Exit::CannotCreate, hint("TMPDIR names another folder for the files"))
            }
            Self::NoVerifier(run) => (
                "no_verifier",
                Exit::Evidence,
                hint(&format!(
                    "start a worker with the needs of the run, or verify here: `waypost verify {run}`"
                )),
            ),
            Self::Runtime(error) if lacking_resource(error).is_some() => {
                let how = |lack| format!("{lack}: raise that limit and repeat the command");
                ("no_resources", Exit::NoResources, lacking_resource(error).map(how))
            }
            Self::Program(ProgramError::Shape(_) | ProgramError::Name(_)) | Self::Runtime(_) => {
                ("internal", Exit::Internal, None)
            }
            Self::Output(_) => (
                "cannot_write",
                Exit::CannotWrite,
                hint("the command itself completed; only its answer is missing"),
            ),
            Self::Once(error) => error.kind(),
            Self::Store(error) => of_store(error),
            Self::Run(error) => of_run(error),
        }
    }
}
