//! The context of a command: output, store and configuration.

use crate::cli::{Cli, Color, Command, DeadLetters};
use crate::config::Config;
use crate::error::{Diagnosis, Error};
use crate::exit::Exit;
use crate::format::time::now;
use crate::output::Output;
use crate::run::bases;
use crate::run::definition::{Chosen, names};
use crate::run::environment;
use crate::run::reference::{self, Default};
use crate::store_location::registry;
use crate::store_location::{self, Access};
use crate::view::Origin;
use crate::view::step_names::StepNames;
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use waypost::RunId;
use waypost::record::Flaw;
use waypost::store::{Damage, Store, StoreError};

/// The context of every command.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) output: Output,
    /// The given store, and the source of its name.
    store: Option<String>,
    store_origin: Origin,
    /// The workflow file whose store is used, if named.
    near: OnceLock<PathBuf>,
    /// The names of the steps of the run of an error.
    names: OnceLock<StepNames>,
    /// Defaults for command line and environment.
    pub(crate) config: Arc<Config>,
    /// The colour choice of the command line.
    pub(crate) color_flag: Option<Color>,
}

/// Returns whether a command reports progress: in JSON, an object per line, whatever the outcome.
fn reports_progress(command: &Command) -> bool {
    matches!(
        command,
        Command::Run(_)
            | Command::Resume(_)
            | Command::Events(_)
            | Command::Watch(_)
            | Command::Fork(_)
            | Command::DeadLetters(DeadLetters::Retry(_))
    ) || matches!(command, Command::Logs(args) if args.follow)
        || matches!(command, Command::Answer(args) if args.after.resume)
}

/// Returns whether a command asks for the printed text of steps, or for none.
fn wants_logs(command: &Command) -> Option<bool> {
    match command {
        Command::Run(args) => args.printed.wanted(),
        Command::Resume(args) => args.printed.wanted(),
        Command::Fork(args) => args.printed.wanted(),
        Command::Watch(args) => args.printed.wanted(),
        _ => None,
    }
}

impl Context {
    /// Creates the context from the global options.
    pub(crate) fn new(cli: &Cli) -> Self {
        // An empty variable names no store, as elsewhere; an empty option is an error.
        let unset = std::env::var_os("WAYPOST_STORE").is_some_and(|value| value.is_empty());
        let store = cli.global.store.clone().filter(|store| !(unset && store.is_empty()));
        Self {
            output: Output::new(&cli.global, reports_progress(&cli.command), wants_logs(&cli.command)),
            store,
            store_origin: Origin::Default,
            near: OnceLock::new(),
            names: OnceLock::new(),
            config: Arc::default(),
            color_flag: cli.global.color,
        }
    }

    /// Reads the configuration for a command, and completes its options.
    ///
    /// # Errors
    /// A configuration file is invalid or unreadable.
    pub(crate) fn configure(&mut self, cli: &mut Cli, matches: &ArgMatches) -> Result<(), Error> {
        if self.store.is_some() {
            self.store_origin = match matches.value_source("store") {
                Some(ValueSource::EnvVariable) => Origin::Environment,
                _ => Origin::Flag,
            };
        }
        let near = match &cli.command {
            Command::Run(args) => Some(args.file.as_path()),
            Command::Submit(args) => Some(args.file.as_path()),
            Command::Check(args) => Some(args.file.as_path()),
            _ => None,
        };
        let config = match Config::find(near) {
            // With an explicit store, the other user's files are not used.
            Err(Error::NotOwned { .. }) if self.store.is_some() => Config::of_user(near)?,
            config => config?,
        };
        config.complete(cli, matches);
        self.output = Output::new(&cli.global, reports_progress(&cli.command), wants_logs(&cli.command));
        environment::limit_parallel(cli.command.parallel(), config.max_parallel().map(|found| found.value));
        environment::use_agents(config.agent_commands());
        bases::set(cli.command.bases())?;
        let found = config.store()?;
        if self.store.is_none() {
            if let Some(error) = config.unheeded() {
                let why = error.problems().first().map_or("", |problem| problem.message.as_str());
                self.output.warn(&format!("ignored the store address in {}: {why}", error.path().display()));
            }
            if let Some(found) = found {
                (self.store, self.store_origin) = (Some(found.value), found.origin);
            }
        }
        self.config = Arc::new(config);
        Ok(())
    }

    /// Returns the address of the given store, if any, and its source.
    pub(crate) fn store_given(&self) -> (Option<&str>, Origin) {
        (self.store.as_deref(), self.store_origin)
    }

    /// Returns the context of the same command for another store.
    pub(crate) fn at(&self, store: &str) -> Self {
        Self { store: Some(store.to_owned()), store_origin: Origin::Flag, ..self.clone() }
    }

    /// Returns the current time.
    #[expect(clippy::unused_self, reason = "a command asks its context for whatever is not in its arguments")]
    pub(crate) fn now(&self) -> jiff::Timestamp {
        now()
    }

    /// Opens the store; `near` is the workflow file of the store.
    pub(crate) fn store(&self, near: Option<&Path>, access: Access) -> Result<Arc<dyn Store>, Error> {
        if let Some(near) = near {
            self.near.get_or_init(|| near.to_owned());
        }
        if access == Access::Create
            && let Some(lost @ Error::LostStore { empty: false, .. }) =
                store_location::lost_database(self.store.as_deref(), near)
        {
            self.output.warn(&format!("{lost}; those runs cannot be resumed until the database is restored"));
        }
        let store = store_location::open(self.store.as_deref(), near, access)?;
        if access != Access::Read {
            registry::remember(store.as_ref());
        }
        Ok(store)
    }

    /// Returns the command words by which a command from here finds the same store.
    pub(crate) fn store_words(&self) -> String {
        let near = self.near.get().map(PathBuf::as_path);
        let here = || Config::find(None).and_then(|config| config.store()).ok().flatten();
        let named =
            |store: &str| format!(" --store {}", crate::format::text::quoted(&store_location::shown(store)));
        match (&self.store, self.store_origin) {
            (Some(store), Origin::Workflow | Origin::Project | Origin::User) => match here() {
                Some(found) if found.value == *store => String::new(),
                _ => named(store),
            },
            // Another command from here would use another workflow file.
            (None, _) if near.is_some() && here().is_some() => {
                store_location::default_url(near).map_or_else(|_| String::new(), |store| named(&store))
            }
            (given, _) => store_location::words_for(given.as_deref(), near),
        }
    }

    /// Returns the store words for a run of this process; `None` if other processes cannot find the run.
    pub(crate) fn lasting_store_words(&self) -> Option<String> {
        (!store_location::is_memory(self.store.as_deref())).then(|| self.store_words())
    }

    /// Warns of a checkpoint missing from a shown history.
    pub(crate) fn warn_of_damage(&self, damage: &Damage) {
        let at = reference::damaged_reference(&damage.run, damage);
        let what = if damage.flaw == Flaw::Missing { "missing" } else { "damaged" };
        let text = format!(
            "checkpoint {at} is {what}, its contents are not shown; `waypost verify {}` shows details",
            damage.run
        );
        self.output.warn(&self.with_store(&text));
    }

    /// Adds the store words to every command for the user in a text, marked by backticks.
    ///
    /// The only such place: hints of errors, notes and warnings all pass through here.
    pub(crate) fn with_store(&self, text: &str) -> String {
        store_location::with_words(text, &self.store_words())
    }

    /// Learns the names of the run's steps, for the text of an error of the engine.
    pub(crate) async fn learn_names(&self, error: &Error) {
        if let Some(run) = error.run()
            && let Ok(store) = self.store(None, Access::Read)
        {
            let _ = self.names.set(names(store.as_ref(), run).await);
        }
    }

    /// Prints an error.
    pub(crate) fn tell(&self, error: &Error) -> Exit {
        let mut diagnosis = error.diagnosis();
        if store_location::is_memory(self.store.as_deref()) {
            // Other commands cannot find a store in this process's memory.
            let resumes = |hint: &String| {
                ["`", "\n  "].iter().any(|before| hint.contains(&format!("{before}waypost resume")))
            };
            diagnosis.hint = diagnosis.hint.filter(|hint| !resumes(hint));
        }
        diagnosis.hint = diagnosis.hint.map(|hint| self.with_store(&hint));
        if let Some(names) = self.names.get() {
            let Diagnosis { message, causes, hint, .. } = &mut diagnosis;
            causes.iter_mut().chain(hint).chain([message]).for_each(|text| *text = names.plain(text));
        }
        self.output.error(&diagnosis);
        diagnosis.exit
    }

    /// Opens the store for reading and finds a run, unless a newer version wrote its record.
    pub(crate) async fn find(&self, run: Option<&str>) -> Result<(Arc<dyn Store>, RunId), Error> {
        let store = self.store(None, Access::Read)?;
        let run = reference::find(store.as_ref(), run, Default::Newest).await?;
        if let Err(error @ StoreError::Version { .. }) = store.run(&run).await {
            return Err(error.into());
        }
        Ok((store, run))
    }
}

impl Chosen {
    /// Prints the notes for the user.
    pub(crate) fn tell(&self, context: &Context) {
        self.notes.iter().for_each(|note| context.output.note(&context.with_store(note)));
    }
}
