//! Shell completion: options and commands of `cli`, runs, checkpoints, steps and dead letters from the store,
//! and params of workflow files.
//!
//! The script from `waypost completions` makes the shell call this program with [`VARIABLE`] set, and the
//! words of the line after `--`. Errors in the line, the configuration or the store only shorten the offers.
//! Completion writes nothing and takes no lock.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::CommandFactory as _;
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use waypost::ScopePath;
use waypost::engine::{MARK, Snapshot};
use waypost::record::Record;
use waypost::store::{RunQuery, Scan, ScanOrder};
use waypost_workflow::file::{ParamKind, Workflow};

use crate::cli::{Cli, DeadLetter, default_file};
use crate::config::Config;
use crate::format::time;
use crate::output;
use crate::run::definition::Chosen;
use crate::run::reference::{Default, Reference, find};
use crate::store_location::{self, Access};

/// The variable that requests completion, and names the shell.
pub(crate) const VARIABLE: &str = "WAYPOST_COMPLETE";
/// Most offered runs, checkpoints or keys: more than a person reads, and few enough for a fast answer.
const OFFERED_MAX: usize = 100;

/// Answers a completion request of a shell; returns whether there was a request. For a process with a single
/// thread.
pub(crate) fn answered() -> Result<bool, clap::Error> {
    let folder = std::env::current_dir().ok();
    CompleteEnv::with_factory(command).var(VARIABLE).try_complete(std::env::args_os(), folder.as_deref())
}

/// The command line, with completers for arguments that name an object.
fn command() -> clap::Command {
    completed(Cli::command())
}

fn completed(command: clap::Command) -> clap::Command {
    let takes_checkpoints = ["show", "verify"].contains(&command.get_name());
    let command = command.mut_args(|arg| match (arg.get_id().as_str(), arg.is_positional()) {
        ("checkpoint" | "before" | "after", true) => arg.add(ArgValueCompleter::new(checkpoints)),
        ("run", true) if takes_checkpoints => arg.add(ArgValueCompleter::new(checkpoints)),
        ("run" | "runs", true) => arg.add(ArgValueCompleter::new(runs)),
        ("key" | "keys", true) => arg.add(ArgValueCompleter::new(letters)),
        ("step", _) | ("from" | "until", false) => arg.add(ArgValueCompleter::new(steps)),
        ("params" | "set", false) => arg.add(ArgValueCompleter::new(params)),
        _ => arg,
    });
    command.mut_subcommands(completed)
}

/// The words of the completed line.
struct CommandLine {
    store: Option<String>,
    /// Words other than options and the store: the command and its arguments.
    words: Vec<String>,
}

impl CommandLine {
    fn read() -> Self {
        let mut line = Self { store: None, words: Vec::new() };
        // After the mark comes the name of the program.
        let words = std::env::args_os().skip_while(|word| word != "--").skip(2);
        let mut words = words.map(|word| word.to_string_lossy().into_owned());
        while let Some(word) = words.next() {
            match word.strip_prefix("--store") {
                Some("") => line.store = words.next(),
                Some(value) if value.starts_with('=') => line.store = Some(value[1..].to_owned()),
                _ if word.starts_with('-') => {}
                _ => line.words.push(word),
            }
        }
        line
    }

    /// Opens the store that the command would use.
    fn store(&self) -> Option<std::sync::Arc<dyn waypost::store::Store>> {
        let set = || std::env::var("WAYPOST_STORE").ok().filter(|store| !store.is_empty());
        let configured = || Some(Config::find(None).ok()?.store().ok()??.value);
        let given = self.store.clone().or_else(set).or_else(configured);
        store_location::open(given.as_deref(), None, Access::Read).ok()
    }

    /// Returns the workflow of the line: from a file for a new run, else from an existing run. Values of
    /// options are among the words, too.
    async fn workflow(&self, current: &str) -> Option<Workflow> {
        let (command, about) = self.words.split_first()?;
        if command == "run" {
            let file = about.iter().map(PathBuf::from).find(|file| file.is_file());
            return Workflow::read(&file.unwrap_or_else(default_file)).ok();
        }
        let store = self.store()?;
        let mut found = None;
        for name in about.iter().filter(|word| *word != current && !word.is_empty()) {
            let Ok(Reference { run, .. }) = Reference::parse(name) else { continue };
            found = find(store.as_ref(), run.as_deref(), Default::Newest).await.ok();
            if found.is_some() {
                break;
            }
        }
        let run = match found {
            Some(run) => run,
            None => find(store.as_ref(), None, Default::Newest).await.ok()?,
        };
        let snapshot = Snapshot::read(store.as_ref(), &run).await.ok()?;
        Some(Chosen::in_force(store.as_ref(), &snapshot).ok()?.workflow)
    }
}

/// Offers runs; after `RUN@`, the checkpoints of the run.
fn checkpoints(current: &OsStr) -> Vec<CompletionCandidate> {
    let named = current.to_str().and_then(|text| text.rsplit_once('@')).filter(|(left, _)| !left.is_empty());
    let Some((left, begun)) = named else { return runs(current) };
    blocking(async {
        let store = CommandLine::read().store()?;
        let (name, scope) = left.split_once('/').map_or((left, "main"), |(name, scope)| (name, scope));
        let run = Reference::parse(name).ok()?.run;
        let run = find(store.as_ref(), run.as_deref(), Default::Newest).await.ok()?;
        let scope = Some(ScopePath::new(scope).ok()?);
        let newest = Scan { scope, order: ScanOrder::NewestFirst, limit: OFFERED_MAX, ..Scan::of(&run) };
        let found = store.scan(&newest).await.ok()?;
        let now = time::now();
        let mut offers = Vec::new();
        for header in found.records.iter().map(Record::header) {
            let step = header.step.as_ref().map(|step| format!(" {step}")).unwrap_or_default();
            let told = format!("{}{step}, {}", header.phase.name(), time::ago(header.created_at, now));
            let names = header.labels.get(MARK).cloned().into_iter().chain([header.seq.to_string()]);
            for name in names.filter(|name| name.starts_with(begun)) {
                let offer =
                    CompletionCandidate::new(format!("{left}@{name}")).help(Some(told.clone().into()));
                offers.push(offer.display_order(Some(offers.len())));
            }
        }
        Some(offers)
    })
}

/// Offers the keys of the dead letters of the named run.
fn letters(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    blocking(async {
        let line = CommandLine::read();
        let store = line.store()?;
        // The command and subcommand come first.
        let run = Reference::parse(line.words.get(2)?).ok()?.run;
        let run = find(store.as_ref(), run.as_deref(), Default::Newest).await.ok()?;
        let found = crate::run::dead_letters::letters_of(store.as_ref(), &run).await.ok()?;
        let is_new =
            |key: &str| key.starts_with(current) && !line.words.iter().skip(3).any(|word| word == key);
        let fits = found.iter().filter(|letter| is_new(&letter.key)).take(OFFERED_MAX).enumerate();
        let offer = |(index, letter): (usize, &DeadLetter)| {
            let why = letter.failure.error.first().map(|error| output::shown(error).into_owned().into());
            CompletionCandidate::new(&letter.key).help(why).display_order(Some(index))
        };
        Some(fits.map(offer).collect())
    })
}

/// Offers the params of the workflow file, or of the named run's workflow; after `NAME=`, the allowed values.
fn params(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    blocking(async {
        let workflow = CommandLine::read().workflow(current).await?;
        let mut offers = Vec::new();
        for (index, param) in workflow.params().iter().enumerate() {
            let told = param.description.as_deref().map(|told| output::shown(told).into_owned());
            let told = told.unwrap_or_else(|| param.kind.as_str().to_owned());
            let values = match (&param.kind, current.contains('=')) {
                (_, false) => vec![String::new()],
                (ParamKind::Bool, true) => ["false", "true"].map(str::to_owned).to_vec(),
                (_, true) => Vec::new(),
            };
            let words = values.into_iter().map(|value| format!("{}={value}", param.name));
            offers.extend(words.filter(|word| word.starts_with(current)).map(|word| {
                CompletionCandidate::new(word).help(Some(told.clone().into())).display_order(Some(index))
            }));
        }
        Some(offers)
    })
}

fn runs(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    blocking(async {
        let store = CommandLine::read().store()?;
        let prefix = Some(current.to_owned()).filter(|prefix| !prefix.is_empty());
        let found = store.runs(&RunQuery { prefix, limit: OFFERED_MAX, ..RunQuery::default() }).await.ok()?;
        let now = time::now();
        let offer = |(index, run): (usize, waypost::store::RunSummary)| {
            let told = format!("{}, {}", run.status.name(), time::ago(run.updated_at, now));
            CompletionCandidate::new(run.run.as_str()).help(Some(told.into())).display_order(Some(index))
        };
        Some(found.runs.into_iter().enumerate().map(offer).collect())
    })
}

fn steps(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    blocking(async {
        let workflow = CommandLine::read().workflow(current).await?;
        let fits = workflow.steps().iter().filter(|step| step.id.starts_with(current));
        let offer = |step: &waypost_workflow::file::Step| {
            let name = step.name.as_deref().map(|name| output::shown(name).into_owned().into());
            CompletionCandidate::new(&step.id).help(name).display_order(Some(step.index))
        };
        Some(fits.map(offer).collect())
    })
}

/// Waits for an answer from the store; returns no offers if the store is not available.
fn blocking(asked: impl Future<Output = Option<Vec<CompletionCandidate>>>) -> Vec<CompletionCandidate> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.ok().and_then(|runtime| runtime.block_on(asked)).unwrap_or_default()
}
