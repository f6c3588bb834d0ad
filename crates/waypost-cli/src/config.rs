//! Configuration below command line and environment: the store of the workflow file, then the project's
//! configuration, then the user's.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;
use waypost_workflow::file::{
    AgentCommand, ColorChoice, ConfigFile, FileError, NamedStore, ReadError, Setting,
};

use crate::cli::{Cli, Color, Command};
use crate::error::Error;
use crate::store_location::{self, StoreUrl};
use crate::view::Origin;

/// The name of a configuration file in its folder.
const FILE: &str = "config.yaml";
/// The workflow file if none is named.
const WORKFLOW: &str = "waypost.yaml";

/// The configuration files in effect, nearest first.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// The store named by the workflow file.
    workflow: Option<NamedStore>,
    /// The command names this workflow file; if false, the file was only found in the folder.
    is_meant: bool,
    pub(crate) project: Place,
    pub(crate) user: Place,
}

/// A possible configuration file, with its content if it exists.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// `None` without a possible place: no `.waypost` above, no home.
    pub(crate) path: Option<PathBuf>,
    pub(crate) file: Option<ConfigFile>,
}

/// A value of a configuration file.
#[derive(Debug, Clone)]
pub(crate) struct Sourced<T> {
    pub(crate) value: T,
    pub(crate) origin: Origin,
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
}

impl Config {
    /// Reads the files in effect for commands given here, or, with `near`, for a workflow file.
    ///
    /// Read errors of the workflow file are reported only by commands about it.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Unreadable`]: a file is invalid or unreadable. [`Error::NotOwned`]: the
    /// project's `.waypost` or its configuration belongs to another user.
    pub(crate) fn find(near: Option<&Path>) -> Result<Self, Error> {
        // If the search cannot begin, there is no project; commands that need the folder report the error.
        let folder =
            store_location::start_of_search(near).ok().and_then(|from| store_location::nearest(&from));
        for path in folder.iter().flat_map(|folder| [folder.clone(), folder.join(FILE)]) {
            store_location::refuse_foreign_owner(&path)?;
        }
        Self::read(near, folder.map(|folder| folder.join(FILE)))
    }

    /// Reads the configuration without the project's file.
    ///
    /// # Errors
    /// As for [`Config::find`].
    pub(crate) fn of_user(near: Option<&Path>) -> Result<Self, Error> {
        Self::read(near, None)
    }

    fn read(near: Option<&Path>, project: Option<PathBuf>) -> Result<Self, Error> {
        let project = Place::read(project)?;
        let user = Place::read(user_folder().map(|folder| folder.join(FILE)))?;
        let workflow = NamedStore::read(near.unwrap_or(Path::new(WORKFLOW))).ok().flatten();
        Ok(Self { workflow, is_meant: near.is_some(), project, user })
    }

    /// Returns the configured store, with an address valid in every folder.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::File`]: the address is invalid, or depends on the current folder.
    pub(crate) fn store(&self) -> Result<Option<Sourced<String>>, Error> {
        match self.workflow.as_ref().map(of_workflow) {
            Some(Ok(found)) => return Ok(Some(found)),
            Some(Err(error)) if self.is_meant => return Err(Error::File(Box::new(error))),
            Some(Err(_)) | None => {}
        }
        let Some(found) = self.first(ConfigFile::store) else { return Ok(None) };
        let (origin, file, setting) = found;
        let wrong = |message: String, help: &str| Error::Config(Box::new(file.wrong(setting, message, help)));
        let url = StoreUrl::parse(&setting.value).map_err(|error| {
            let help = error.diagnosis().hint.unwrap_or_default();
            wrong(format!("`store`: {error}"), &help)
        })?;
        let value = match (&url, origin) {
            (StoreUrl::Memory | StoreUrl::Postgres(_), _) => setting.value.clone(),
            (StoreUrl::File(path) | StoreUrl::Sqlite(path), Origin::Project) => {
                let home = file.path().parent().and_then(Path::parent).unwrap_or(Path::new("."));
                url.with_path(&home.join(path)).ok_or_else(|| {
                    wrong(
                        "cannot resolve `store`: the path of the project folder is not UTF-8".to_owned(),
                        "give the address with `--store`",
                    )
                })?
            }
            (StoreUrl::File(path) | StoreUrl::Sqlite(path), _) if path.is_absolute() => setting.value.clone(),
            _ => {
                let message =
                    format!("relative path in `store`: `{}` would differ between folders", setting.value);
                return Err(wrong(message, "write an absolute path, starting with `/`"));
            }
        };
        Ok(Some(Sourced { value, origin, path: file.path().to_owned(), line: setting.line }))
    }

    /// Returns the error in the store of a workflow file that is ignored for this reason.
    pub(crate) fn unheeded(&self) -> Option<FileError> {
        self.workflow.as_ref().filter(|_| !self.is_meant).and_then(|named| of_workflow(named).err())
    }

    /// Returns the workflow file, if its store is used.
    pub(crate) fn workflow_file(&self) -> Option<PathBuf> {
        self.workflow.as_ref().and_then(|named| of_workflow(named).ok()).map(|found| found.path)
    }

    /// Returns when colour is used.
    pub(crate) fn color(&self) -> Option<Sourced<Color>> {
        self.first(ConfigFile::color).map(|(origin, file, setting)| {
            sourced(origin, file, setting, |choice| match choice {
                ColorChoice::Auto => Color::Auto,
                ColorChoice::Always => Color::Always,
                ColorChoice::Never => Color::Never,
            })
        })
    }

    /// Returns how long a command waits while a run only waits.
    pub(crate) fn wait(&self) -> Option<Sourced<Duration>> {
        self.first(ConfigFile::wait)
            .map(|(origin, file, setting)| sourced(origin, file, setting, |wait| *wait))
    }

    /// Returns the step parallelism for workflows without a setting.
    pub(crate) fn max_parallel(&self) -> Option<Sourced<std::num::NonZeroUsize>> {
        self.first(ConfigFile::max_parallel)
            .map(|(origin, file, setting)| sourced(origin, file, setting, |count| *count))
    }

    /// Returns the command of each agent, by name.
    pub(crate) fn agent_commands(&self) -> Vec<(String, AgentCommand)> {
        let files = self.places().into_iter().rev().filter_map(|(_, place)| place.file.as_ref());
        // Later entries override: the nearer file comes last.
        files.flat_map(ConfigFile::agents).map(|(name, found)| (name.clone(), found.value.clone())).collect()
    }

    /// Returns the command of each agent as written, by name.
    pub(crate) fn agents(&self) -> Vec<(String, Sourced<String>)> {
        let mut agents: Vec<(String, Sourced<String>)> = Vec::new();
        for (origin, place) in self.places() {
            let Some(file) = &place.file else { continue };
            for (name, setting) in file.agents() {
                if !agents.iter().any(|(known, _)| known == name) {
                    agents.push((name.clone(), sourced(origin, file, setting, AgentCommand::shown)));
                }
            }
        }
        agents.sort_by(|(a, _), (b, _)| a.cmp(b));
        agents
    }

    /// Returns both places, nearest first.
    pub(crate) fn places(&self) -> [(Origin, &Place); 2] {
        [(Origin::Project, &self.project), (Origin::User, &self.user)]
    }

    fn first<'c, T>(
        &'c self,
        pick: impl Fn(&'c ConfigFile) -> Option<&'c Setting<T>>,
    ) -> Option<(Origin, &'c ConfigFile, &'c Setting<T>)> {
        let read =
            self.places().into_iter().filter_map(|(origin, place)| Some((origin, place.file.as_ref()?)));
        read.filter_map(|(origin, file)| Some((origin, file, pick(file)?))).next()
    }

    /// Sets the options missing on the command line to their configured values.
    pub(crate) fn complete(&self, cli: &mut Cli, matches: &ArgMatches) {
        if cli.global.color.is_none() {
            cli.global.color = self.color().map(|found| found.value);
        }
        let Some((_, given)) = matches.subcommand() else { return };
        let wait = match &mut cli.command {
            Command::Resume(args) => {
                args.wait_default = self.wait().map(|found| found.value);
                return;
            }
            Command::Run(args) => &mut args.wait,
            Command::Fork(args) => &mut args.wait,
            Command::Answer(args) => &mut args.after.wait,
            _ => return,
        };
        if let (Some(ValueSource::DefaultValue), Some(found)) = (given.value_source("wait"), self.wait()) {
            *wait = found.value;
        }
    }
}

impl Place {
    fn read(path: Option<PathBuf>) -> Result<Self, Error> {
        let file = match path.as_deref().map(ConfigFile::read).transpose() {
            Ok(file) => file.flatten(),
            Err(ReadError::File(error)) => return Err(Error::Config(Box::new(error))),
            // A home that this user may not enter, as under `sudo -u`, counts as empty.
            Err(ReadError::Io { path, source })
                if source.kind() == io::ErrorKind::PermissionDenied && path.symlink_metadata().is_err() =>
            {
                None
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { path, file })
    }
}

/// Returns the store of a workflow file, relative to the folder of the file.
fn of_workflow(named: &NamedStore) -> Result<Sourced<String>, FileError> {
    let Setting { value, line, .. } = named.setting();
    let url = StoreUrl::parse(value).map_err(|error| {
        let help = error.diagnosis().hint.unwrap_or_default();
        named.wrong(format!("`store`: {error}"), &help)
    })?;
    let unseen =
        |message: &str| named.wrong(format!("`store`: {message}"), "give the address with `--store`");
    let home = store_location::start_of_search(Some(named.path()))
        .map_err(|_| unseen("cannot read the folder of the workflow file"))?;
    let value = match url.path() {
        None => value.clone(),
        Some(path) => {
            let whole = url.with_path(&home.join(path));
            whole.ok_or_else(|| unseen("the path of the workflow folder is not UTF-8"))?
        }
    };
    let path = home.join(named.path().file_name().unwrap_or_default());
    Ok(Sourced { value, origin: Origin::Workflow, path, line: *line })
}

/// Returns the converted value of a setting, with its source.
fn sourced<T, U>(
    origin: Origin,
    file: &ConfigFile,
    setting: &Setting<T>,
    value: impl Fn(&T) -> U,
) -> Sourced<U> {
    Sourced { value: value(&setting.value), origin, path: file.path().to_owned(), line: setting.line }
}

/// Returns the folder of the user's configuration; `None` without a home.
///
/// # Source
/// XDG Base Directory Specification 0.8: relative paths must be ignored.
fn user_folder() -> Option<PathBuf> {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let base = path("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let base =
        base.or_else(|| path("HOME").filter(|home| home.is_absolute()).map(|home| home.join(".config")));
    base.map(|base| base.join("waypost"))
}
