//! What a shell offers when Tab is pressed: the options and commands of `cli`, and runs and steps from the store.
//!
//! The script that `waypost completions` prints has the shell call this program again, with [`VARIABLE`] set and the words
//! of the line behind `--`. Whatever is wrong then, with the line, the configuration or the store, only means that there
//! is less to offer. Nothing is written and no lock taken.

use std::ffi::OsStr;
use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use waypost::engine::Snapshot;
use waypost::store::RunQuery;
use waypost_workflow::file::Workflow;

use crate::cli::Cli;
use crate::config::Config;
use crate::definition::Chosen;
use crate::place::{self, Access};
use crate::reference::{Default, Reference, find};
use crate::{output, time};

/// The variable that asks for completion, and names the shell.
pub(crate) const VARIABLE: &str = "WAYPOST_COMPLETE";
/// How many runs are offered: more than anybody reads, and few enough to be found at once.
const RUNS_MAX: usize = 100;

/// Answers a shell that asks for completion; says whether one did. For a process that has no second thread.
pub(crate) fn answered() -> Result<bool, clap::Error> {
    let folder = std::env::current_dir().ok();
    CompleteEnv::with_factory(command).var(VARIABLE).try_complete(std::env::args_os(), folder.as_deref())
}

/// The command line, with what is offered for each argument that names a run or a step.
fn command() -> clap::Command {
    Cli::command().mut_subcommands(|command| {
        command.mut_args(|arg| match (arg.get_id().as_str(), arg.is_positional()) {
            ("run" | "runs" | "checkpoint" | "before" | "after", true) => {
                arg.add(ArgValueCompleter::new(runs))
            }
            ("step", _) | ("from" | "until", false) => arg.add(ArgValueCompleter::new(steps)),
            _ => arg,
        })
    })
}

/// The words of the line that is completed.
struct Line {
    store: Option<String>,
    /// Those that are neither options nor the store: the command, and what it is about.
    words: Vec<String>,
}

impl Line {
    fn read() -> Self {
        let mut line = Self { store: None, words: Vec::new() };
        // Behind the mark comes the name of the program.
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

    /// The store that the command would use.
    fn store(&self) -> Option<std::sync::Arc<dyn waypost::store::Store>> {
        let set = || std::env::var("WAYPOST_STORE").ok().filter(|store| !store.is_empty());
        let configured = || Some(Config::find(None).ok()?.store().ok()??.value);
        let given = self.store.clone().or_else(set).or_else(configured);
        place::open(given.as_deref(), None, Access::Read).ok()
    }
}

fn runs(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    blocking(async {
        let store = Line::read().store()?;
        let prefix = Some(current.to_owned()).filter(|prefix| !prefix.is_empty());
        let found = store.runs(&RunQuery { prefix, limit: RUNS_MAX, ..RunQuery::default() }).await.ok()?;
        let now = crate::commands::now();
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
        let line = Line::read();
        let (command, about) = (line.words.first()?, line.words.get(1));
        let workflow = if command == "run" {
            let file = about.filter(|file| Path::new(file).is_file());
            Workflow::read(Path::new(file.map_or("waypost.yaml", String::as_str))).ok()?
        } else {
            let store = line.store()?;
            let run = about.filter(|word| *word != current).and_then(|word| Reference::parse(word).ok()?.run);
            let run = find(store.as_ref(), run.as_deref(), Default::Newest).await.ok()?;
            let snapshot = Snapshot::read(store.as_ref(), &run).await.ok()?;
            Chosen::in_force(store.as_ref(), &snapshot).ok()?.workflow
        };
        let fits = workflow.steps().iter().filter(|step| step.id.starts_with(current));
        let offer = |step: &waypost_workflow::file::Step| {
            let name = step.name.as_deref().map(|name| output::shown(name).into_owned().into());
            CompletionCandidate::new(&step.id).help(name).display_order(Some(step.index))
        };
        Some(fits.map(offer).collect())
    })
}

/// Waits for what a store has to say; nothing where it cannot be asked.
fn blocking(asked: impl Future<Output = Option<Vec<CompletionCandidate>>>) -> Vec<CompletionCandidate> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.ok().and_then(|runtime| runtime.block_on(asked)).unwrap_or_default()
}
