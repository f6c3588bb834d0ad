//! What holds where neither the command line nor the environment says otherwise: the store of the workflow file, the
//! configuration of the project, and behind it that of the user.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;
use serde::Serialize;
use waypost_workflow::file::{
    AgentCommand, ColorChoice, ConfigFile, FileError, NamedStore, ReadError, Setting,
};

use crate::cli::{Cli, Color, Command};
use crate::error::Error;
use crate::place::{self, StoreUrl};

/// The name of a configuration file in its folder.
const FILE: &str = "config.yaml";
/// The workflow file that counts where none is named.
const WORKFLOW: &str = "waypost.yaml";

/// Where a value comes from; what stands first counts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    /// The command line.
    Flag,
    /// The caller's environment.
    Environment,
    /// The workflow file.
    Workflow,
    /// The nearest `.waypost/config.yaml`.
    Project,
    /// The configuration file of the user.
    User,
    /// Nobody said anything.
    Default,
}

/// The files that count in a place, nearest first.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// The store that the workflow file names.
    workflow: Option<NamedStore>,
    /// That file is the one that the command is about; otherwise it only stands in the folder.
    is_meant: bool,
    pub(crate) project: Place,
    pub(crate) user: Place,
}

/// Where a configuration file may be, and what it says if it is there.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// None where there can be none: no `.waypost` above, no home.
    pub(crate) path: Option<PathBuf>,
    pub(crate) file: Option<ConfigFile>,
}

/// A value of a configuration file.
#[derive(Debug, Clone)]
pub(crate) struct Found<T> {
    pub(crate) value: T,
    pub(crate) origin: Origin,
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
}

impl Config {
    /// Reads the files that count for commands given here, or, with `near`, for a workflow file.
    ///
    /// Whatever keeps the workflow file from being read, the command says that works with it; to others it says nothing.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Unreadable`]: one of them is wrong or cannot be read. [`Error::NotOwned`]: the `.waypost` of
    /// the project, or its configuration, belongs to another user.
    pub(crate) fn find(near: Option<&Path>) -> Result<Self, Error> {
        // Where the search cannot begin, there is no project; whatever needs its folder says so.
        let folder = place::start_of_search(near).ok().and_then(|from| place::nearest(&from));
        for path in folder.iter().flat_map(|folder| [folder.clone(), folder.join(FILE)]) {
            place::refuse_of_others(&path)?;
        }
        Self::read(near, folder.map(|folder| folder.join(FILE)))
    }

    /// Reads the configuration without that of the project.
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

    /// Returns the store that is named, by an address that holds wherever the command is called.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::File`]: it is no address, or one that would mean another place in each folder.
    pub(crate) fn store(&self) -> Result<Option<Found<String>>, Error> {
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
            (StoreUrl::Memory, _) => setting.value.clone(),
            (StoreUrl::File(path) | StoreUrl::Sqlite(path), Origin::Project) => {
                let home = file.path().parent().and_then(Path::parent).unwrap_or(Path::new("."));
                url.with_path(&home.join(path)).ok_or_else(|| {
                    wrong(
                        "`store`: the folder of the project has no name in UTF-8".to_owned(),
                        "name it with `--store`",
                    )
                })?
            }
            (StoreUrl::File(path) | StoreUrl::Sqlite(path), _) if path.is_absolute() => setting.value.clone(),
            _ => {
                let message = format!("`store`: `{}` would be another place in each folder", setting.value);
                return Err(wrong(message, "write the whole path, beginning with `/`"));
            }
        };
        Ok(Some(Found { value, origin, path: file.path().to_owned(), line: setting.line }))
    }

    /// Returns what is wrong with the store of a workflow file that has no say for that reason.
    pub(crate) fn unheeded(&self) -> Option<FileError> {
        self.workflow.as_ref().filter(|_| !self.is_meant).and_then(|named| of_workflow(named).err())
    }

    /// Returns the workflow file, if it names a store that counts.
    pub(crate) fn workflow_file(&self) -> Option<PathBuf> {
        self.workflow.as_ref().and_then(|named| of_workflow(named).ok()).map(|found| found.path)
    }

    /// Returns when colour is used.
    pub(crate) fn color(&self) -> Option<Found<Color>> {
        self.first(ConfigFile::color).map(|found| {
            found_as(found, |choice| match choice {
                ColorChoice::Auto => Color::Auto,
                ColorChoice::Always => Color::Always,
                ColorChoice::Never => Color::Never,
            })
        })
    }

    /// Returns how long a command stays while a run only waits.
    pub(crate) fn wait(&self) -> Option<Found<Duration>> {
        self.first(ConfigFile::wait).map(|found| found_as(found, |wait| *wait))
    }

    /// Returns how many steps run at once where the workflow does not say.
    pub(crate) fn max_parallel(&self) -> Option<Found<std::num::NonZeroUsize>> {
        self.first(ConfigFile::max_parallel).map(|found| found_as(found, |count| *count))
    }

    /// Returns the command of each agent, by name.
    pub(crate) fn agent_commands(&self) -> Vec<(String, AgentCommand)> {
        let files = self.places().into_iter().rev().filter_map(|(_, place)| place.file.as_ref());
        // The nearer one comes last, and counts.
        files.flat_map(ConfigFile::agents).map(|(name, found)| (name.clone(), found.value.clone())).collect()
    }

    /// Returns the command of each agent as it is written, by name.
    pub(crate) fn agents(&self) -> Vec<(String, Found<String>)> {
        let mut agents: Vec<(String, Found<String>)> = Vec::new();
        for (origin, place) in self.places() {
            let Some(file) = &place.file else { continue };
            for (name, setting) in file.agents() {
                if !agents.iter().any(|(known, _)| known == name) {
                    agents.push((name.clone(), found_as((origin, file, setting), AgentCommand::shown)));
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

    /// Gives options their configured values where the command line has none.
    pub(crate) fn complete(&self, cli: &mut Cli, matches: &ArgMatches) {
        if cli.global.color.is_none() {
            cli.global.color = self.color().map(|found| found.value);
        }
        let Some((_, given)) = matches.subcommand() else { return };
        let wait = match &mut cli.command {
            Command::Run(args) => &mut args.wait,
            Command::Resume(args) => &mut args.wait,
            Command::Fork(args) => &mut args.wait,
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
            // A home that this user may not enter, as under `sudo -u`, says nothing.
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

/// Returns the store that a workflow file names, seen from the folder of the file.
fn of_workflow(named: &NamedStore) -> Result<Found<String>, FileError> {
    let Setting { value, line, .. } = named.setting();
    let url = StoreUrl::parse(value).map_err(|error| {
        let help = error.diagnosis().hint.unwrap_or_default();
        named.wrong(format!("`store`: {error}"), &help)
    })?;
    let unseen = |message: &str| named.wrong(format!("`store`: {message}"), "name it with `--store`");
    let home = place::start_of_search(Some(named.path()))
        .map_err(|_| unseen("the folder of the file cannot be looked at"))?;
    let value = match url.path() {
        None => value.clone(),
        Some(path) => {
            let whole = url.with_path(&home.join(path));
            whole.ok_or_else(|| unseen("the folder of the file has no name in UTF-8"))?
        }
    };
    let path = home.join(named.path().file_name().unwrap_or_default());
    Ok(Found { value, origin: Origin::Workflow, path, line: *line })
}

fn found_as<T, U>(found: (Origin, &ConfigFile, &Setting<T>), value: impl Fn(&T) -> U) -> Found<U> {
    let (origin, file, setting) = found;
    Found { value: value(&setting.value), origin, path: file.path().to_owned(), line: setting.line }
}

/// Returns the folder of the user's configuration; none without a home.
///
/// # Source
/// XDG Base Directory Specification 0.8: a path that is not absolute is to be ignored.
fn user_folder() -> Option<PathBuf> {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let base = path("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let base =
        base.or_else(|| path("HOME").filter(|home| home.is_absolute()).map(|home| home.join(".config")));
    base.map(|base| base.join("waypost"))
}
