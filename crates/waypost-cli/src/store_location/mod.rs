//! Stores by address, and the default store: the database in the nearest `.waypost`, upward. If there is none, a command
//! that reads takes the store of the user's list that was last used from the current folder, and a command that creates
//! a store creates it at the root of the git repository, or in the current folder.

pub(crate) mod registry;

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use waypost::RunId;
use waypost::file::FileStore;
use waypost::memory::MemoryStore;
use waypost::store::{Store, StoreError};
use waypost_sqlite::{SqliteOptions, SqliteStore, ignored_by_git};

use crate::atomic_file::open_regular;
use crate::error::Error;
use crate::format::text::quoted;

pub(crate) mod postgres;
mod search;

pub(crate) use search::{nearest, refuse_foreign_owner};

/// The folder of a default store, searched for upward.
pub(crate) const FOLDER: &str = ".waypost";
/// The database in [`FOLDER`].
const DATABASE: &str = "waypost.db";

/// A store, by its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// Lives as long as this process.
    Memory,
    /// A folder of readable files.
    File(PathBuf),
    /// An SQLite database.
    Sqlite(PathBuf),
    /// A PostgreSQL database, by its whole address, which may hold a password.
    Postgres(String),
}

/// Returns the URL that a bare path most likely means.
fn url_of_path(text: &str) -> String {
    let path = Path::new(text);
    match path.join(DATABASE).is_file() {
        true => format!("sqlite:{}", path.join(DATABASE).display()),
        false if path.is_dir() => format!("file:{text}"),
        false => format!("sqlite:{text}"),
    }
}

/// What a command does with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read: no write, no lock, no new file.
    Read,
    /// Read and write an existing store; a missing store is an error.
    Write,
    /// Read and write; a missing store is created.
    Create,
}

impl StoreUrl {
    /// Reads an address.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let path = |rest: &str| {
            // `file:///x` is `/x`: an address with an empty host.
            let rest = match rest.strip_prefix("//") {
                Some(path) if path.starts_with('/') => path,
                Some(_) => {
                    return Err(Error::usage(
                        format!(
                            "cannot use the store `{text}`: text after `//` is a host, and stores have none"
                        ),
                        KINDS,
                    ));
                }
                None => rest,
            };
            if rest.is_empty() {
                return Err(Error::usage(format!("the store `{text}` has no path"), KINDS));
            }
            Ok(PathBuf::from(rest))
        };
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("file", rest)) => path(rest).map(Self::File),
            Some(("sqlite", rest)) => path(rest).map(Self::Sqlite),
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                postgres::check(text).map(|()| Self::Postgres(text.to_owned()))
            }
            Some((kind, _)) if kind.bytes().all(|byte| byte.is_ascii_alphanumeric()) && kind.len() > 1 => {
                Err(Error::usage(format!("unknown store scheme `{kind}`"), KINDS))
            }
            // Text with `@` or `=` may hold a password.
            None if !text.is_empty() && !text.contains(['@', '=']) => {
                let hint = format!("did you mean `{}`?", url_of_path(text));
                Err(Error::usage(format!("the store `{}` is not a URL", crate::output::shown(text)), hint))
            }
            _ => Err(Error::usage("the store is not a URL", KINDS)),
        }
    }

    /// Returns the address with another path; `None` if the path is not UTF-8.
    pub(crate) fn with_path(&self, path: &Path) -> Option<String> {
        let path = path.to_str()?;
        Some(match self {
            Self::Memory => "memory:".to_owned(),
            Self::File(_) => format!("file:{path}"),
            Self::Sqlite(_) => format!("sqlite:{path}"),
            Self::Postgres(url) => postgres::name(url),
        })
    }

    /// Returns the path of the store; `None` for a store without one.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Memory | Self::Postgres(_) => None,
            Self::File(path) | Self::Sqlite(path) => Some(path),
        }
    }

    fn is_there(&self) -> Result<bool, Error> {
        match self {
            // The first use of the store connects to the server.
            Self::Memory | Self::Postgres(_) => Ok(true),
            Self::File(path) | Self::Sqlite(path) => is_there(path),
        }
    }

    /// Returns the error for a missing store; `text`: its name as given.
    fn missing(&self, text: &str) -> Error {
        let create = "`waypost run` creates the store";
        match self {
            Self::File(path) | Self::Sqlite(path) if path.is_relative() => {
                let here = std::env::current_dir().unwrap_or_default();
                let hint = format!(
                    "the path is relative to the current folder {}: give an absolute path with `--store` to \
                     use the store from any folder; {create}",
                    here.display()
                );
                Error::not_found(format!("store `{text}`"), hint)
            }
            _ => Error::not_found(format!("store `{text}`"), create),
        }
    }
}

const KINDS: &str = "give `sqlite:PATH`, `file:DIR`, `postgres://USER@HOST/DATABASE` or `memory:`";

/// Opens the named or default store; `near` is the workflow file of the store.
///
/// # Errors
/// - [`Error::NoStore`], [`Error::NoRuns`]: the store is missing and must not be created.
/// - [`Error::LostStore`]: the database is missing or empty, and logs of runs remain next to it.
/// - [`Error::NoSqlite`]: the file is not an SQLite database.
pub(crate) fn open(
    given: Option<&str>,
    near: Option<&Path>,
    access: Access,
) -> Result<Arc<dyn Store>, Error> {
    if let Some(text) = given {
        let url = StoreUrl::parse(text)?;
        refuse_other_kind(&url, text)?;
        if let StoreUrl::Sqlite(file) = &url {
            refuse_lost_database(file, access)?;
        }
        if access != Access::Create && !url.is_there()? {
            return Err(url.missing(text));
        }
        let store = open_url(&url, access)?;
        // Files in such a folder must not be committed, also with `--store`.
        let around = store.home().into_iter().flat_map(Path::ancestors);
        if let Some(folder) = around.filter(|_| access == Access::Create).find(|path| path.ends_with(FOLDER))
        {
            make_folder(folder).map_err(|source| StoreError::Create { path: folder.to_owned(), source })?;
        }
        return Ok(store);
    }
    let from = start_of_search(near)?;
    let found = nearest(&from);
    if let Some(folder) = &found {
        refuse_foreign_owner(folder)?;
        refuse_lost_database(&folder.join(DATABASE), access)?;
    }
    let has_runs = found.as_ref().is_some_and(|folder| folder.join(DATABASE).exists());
    if access != Access::Create
        && near.is_none()
        && !has_runs
        && let Some(address) = registry::used_from(&from)
    {
        return open(Some(&address), None, access);
    }
    let folder = match found {
        Some(folder) => folder,
        None if access == Access::Create => search::new_folder(&from),
        None => return Err(Error::NoStore { from }),
    };
    let database = folder.join(DATABASE);
    if access == Access::Create {
        make_folder(&folder).map_err(|source| StoreError::Create { path: folder, source })?;
    } else if !is_there(&database)? {
        return Err(Error::NoRuns { database, made: false });
    }
    open_url(&StoreUrl::Sqlite(database), access)
}

/// Refuses a folder named as a database, and a file named as a folder. Neither is damage.
fn refuse_other_kind(url: &StoreUrl, text: &str) -> Result<(), Error> {
    let found = url.path().and_then(|path| Some((path, fs::metadata(path).ok()?)));
    let (is, wanted, hint) = match (url, found) {
        (StoreUrl::Sqlite(_), Some((path, found))) if found.is_dir() => {
            let database = path.join(DATABASE);
            let hint = match database.is_file() {
                true => format!("the database in the folder is `sqlite:{}`", database.display()),
                false => {
                    let folder = path.display();
                    format!(
                        "for a store in the folder, give `file:{folder}`; for a database, the path of its \
                         file"
                    )
                }
            };
            ("a folder", "the file of a database", hint)
        }
        (StoreUrl::File(_), Some((path, found))) if found.is_file() => {
            let mut header = Vec::new();
            let read = open_regular(path).and_then(|file| file.take(100).read_to_end(&mut header));
            let hint = match read.is_ok() && begins_sqlite(&header) {
                true => format!("the file is a database: give `sqlite:{}`", path.display()),
                false => "name the folder of a store, or a new folder".to_owned(),
            };
            ("a file", "a folder", hint)
        }
        _ => return Ok(()),
    };
    Err(Error::OtherKind { store: text.to_owned(), is, wanted, hint })
}

/// Returns the address of the default store of this folder or of a workflow file.
pub(crate) fn default_url(near: Option<&Path>) -> Result<String, Error> {
    let from = start_of_search(near)?;
    let folder = nearest(&from).unwrap_or_else(|| search::new_folder(&from));
    Ok(format!("sqlite:{}", folder.join(DATABASE).display()))
}

/// Returns whether the path exists; an error if the check fails.
fn is_there(path: &Path) -> Result<bool, Error> {
    let place = || path.display().to_string();
    Ok(path.try_exists().map_err(|source| StoreError::Io { action: "read", place: place(), source })?)
}

/// Refuses a missing or empty database beside logs of runs. Without the error, the store would create a new database.
///
/// # Errors
/// [`Error::LostStore`], [`Error::NoSqlite`].
fn refuse_lost_database(database: &Path, access: Access) -> Result<(), Error> {
    if missing_or_empty(database, access)?.is_none() {
        return Ok(());
    }
    let runs = runs_with_logs(database);
    // Checked again: another process may have created the database after the first check, and then the logs.
    match missing_or_empty(database, access)? {
        Some(empty) if !runs.is_empty() => {
            Err(Error::LostStore { database: database.to_owned(), empty, runs })
        }
        _ => Ok(()),
    }
}

/// Returns `true` for an empty database, `false` for a missing one that must not be created, and else `None`.
fn missing_or_empty(database: &Path, access: Access) -> Result<Option<bool>, Error> {
    let mut header = Vec::new();
    let read = open_regular(database).and_then(|file| file.take(100).read_to_end(&mut header));
    match read {
        // The error of opening the database is more exact.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Ok(None),
        Err(_) => Ok((access != Access::Create).then_some(false)),
        Ok(0) => Ok(Some(true)),
        // No checkpoint of the write-ahead log yet: the tables are in that log, or the log is lost.
        Ok(_) if begins_sqlite(&header) && header[APPLICATION_ID] == [0; 4] => {
            let opened = SqliteStore::open_read_only(database, SqliteOptions::default());
            Ok(matches!(opened, Err(StoreError::NotFound { .. })).then_some(true))
        }
        // The creating process may have been killed; the rollback journal then restores an empty file.
        Ok(_) if begins_sqlite(&header) || beside(database, "-journal").exists() => Ok(None),
        Ok(_) => Err(Error::NoSqlite(database.to_owned())),
    }
}

/// Reads at most `bytes_max` + 1 bytes of a regular file.
pub(crate) fn read_regular(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Error> {
    let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = open_regular(path).map_err(unreadable)?;
    io::Read::read_to_end(&mut io::Read::take(file, bytes_max + 1), &mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Returns whether `header` is the header of an SQLite database, by the fields that SQLite checks.
///
/// # Source
/// <https://www.sqlite.org/fileformat2.html>, section 1.3.
fn begins_sqlite(header: &[u8]) -> bool {
    const MAGIC: &[u8] = b"SQLite format 3\0";
    // After the magic: page size, two versions, and constant payload fractions.
    header.len() == 100 && header.starts_with(MAGIC) && header[19] <= 2 && header[21..24] == [64, 32, 32] && {
        let page_bytes = u16::from_be_bytes([header[16], header[17]]);
        page_bytes == 1 || (page_bytes >= 512 && page_bytes.is_power_of_two())
    }
}

/// Bytes of the application id in the database header; zero before the first checkpoint of the log.
const APPLICATION_ID: std::ops::Range<usize> = 68..72;

fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Returns the runs with a log next to the database.
fn runs_with_logs(database: &Path) -> Vec<RunId> {
    let runs = waypost_sqlite::folder_of(database).join("runs");
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    let names =
        entries.filter_map(|entry| RunId::new(entry.file_name().to_str()?).ok().zip(Some(entry.path())));
    let mut runs: Vec<RunId> = names.filter(|(_, folder)| has_log(folder)).map(|(run, _)| run).collect();
    runs.sort_unstable();
    runs
}

/// Returns whether the folder of a run has a log with events.
pub(crate) fn has_log(folder: &Path) -> bool {
    fs::metadata(folder.join("events.jsonl")).is_ok_and(|file| file.is_file() && file.len() > 0)
}

/// Returns the error for a missing or empty database, if logs of its runs remain.
pub(crate) fn lost_database(given: Option<&str>, near: Option<&Path>) -> Option<Error> {
    let database = match given.map(StoreUrl::parse) {
        Some(Ok(StoreUrl::Sqlite(file))) => file,
        Some(_) => return None,
        None => nearest(&start_of_search(near).ok()?)?.join(DATABASE),
    };
    refuse_lost_database(&database, Access::Read).err()
}

/// Returns whether the store keeps the records of a run in the folder of the run.
pub(crate) fn keeps_records_in_folders(store: &dyn Store) -> bool {
    // The name of a store begins with its kind.
    store.to_string().starts_with("file:")
}

/// Returns the address without a password.
pub(crate) fn shown(text: &str) -> String {
    match StoreUrl::parse(text) {
        Ok(StoreUrl::Postgres(url)) => postgres::name(&url),
        _ => without_password(text),
    }
}

/// Returns an unusable address without what may be a password: the text between the user and the last `@`, and the values
/// of `password` and of `listen`, which is an address too.
fn without_password(text: &str) -> String {
    let mut shown = text.to_owned();
    if let (Some(scheme), Some(at)) = (text.find("://"), text.rfind('@')) {
        let begin = scheme + "://".len();
        if begin < at {
            let user = text[begin..at].split([':', '@']).next().unwrap_or_default();
            shown = format!("{}{user}{}", &text[..begin], &text[at..]);
        }
    }
    for name in ["password=", "listen="] {
        let mut parts = shown.split(name);
        let first = parts.next().unwrap_or_default().to_owned();
        shown = parts.fold(first, |shown, value| {
            let end = match value.strip_prefix('\'') {
                Some(quoted) => quoted.find('\'').map_or(value.len(), |end| end + 2),
                None => value.find(['&', ' ']).unwrap_or(value.len()),
            };
            format!("{shown}{name}***{}", &value[end..])
        });
    }
    shown
}

/// Returns whether the address is that of a memory store, which ends with the process.
pub(crate) fn is_memory(given: Option<&str>) -> bool {
    given.is_some_and(|text| matches!(StoreUrl::parse(text), Ok(StoreUrl::Memory)))
}

/// Returns the option (` --store ADDRESS`) with which a command in the current folder uses the same store; empty if the
/// command finds it without an option.
pub(crate) fn words_for(given: Option<&str>, near: Option<&Path>) -> String {
    if let Some(text) = given {
        return if std::env::var("WAYPOST_STORE").is_ok_and(|set| set == text) {
            String::new()
        } else {
            format!(" --store {}", quoted(&shown(text)))
        };
    }
    let search = |near: Option<&Path>| start_of_search(near).ok().and_then(|from| nearest(&from));
    match (search(near), search(None)) {
        (Some(used), found) if found.as_ref() != Some(&used) => {
            format!(" --store {}", quoted(&format!("sqlite:{}", used.join(DATABASE).display())))
        }
        _ => String::new(),
    }
}

/// Appends `words` to every `waypost` command in `text` that reads a store: a command in backticks, or on an indented
/// line, before a comment.
pub(crate) fn with_words(text: &str, words: &str) -> String {
    text.split('\n').map(|line| line_with_words(line, words)).collect::<Vec<_>>().join("\n")
}

fn line_with_words(line: &str, words: &str) -> String {
    if line.starts_with("  waypost ") {
        let (command, comment) = line.split_at(line.find("  # ").unwrap_or(line.len()));
        let end = command.trim_end().len();
        return format!("{}{words}{}{comment}", &command[..end], &command[end..]);
    }
    let mut extended = String::with_capacity(line.len());
    for (index, part) in line.split('`').enumerate() {
        if index > 0 {
            extended.push('`');
        }
        extended.push_str(part);
        // Every second part is between backticks.
        let uses_store = index % 2 == 1 && part.starts_with("waypost ") && !part.starts_with("waypost check");
        if uses_store {
            extended.push_str(words);
        }
    }
    extended
}

/// Returns the folder where the search for the nearest store begins: that of `near`, else the current one.
pub(crate) fn start_of_search(near: Option<&Path>) -> Result<PathBuf, Error> {
    let here = || std::env::current_dir().map_err(|source| Error::Unreadable { path: ".".into(), source });
    let Some(file) = near else { return here() };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    folder.canonicalize().map_err(|source| Error::Unreadable { path: folder.to_owned(), source })
}

/// Refuses the path of a new file in a missing folder.
pub(crate) fn refuse_no_folder(file: &Path) -> Result<(), Error> {
    match file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => {
            Err(Error::not_found(format!("folder {}", folder.display()), "create the folder first"))
        }
        None => Ok(()),
    }
}

/// Creates the folder with mode 0700 and a `.gitignore`.
fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        made => made?,
    }
    ignored_by_git(folder, "*\n!config.yaml\n")
}

fn open_url(url: &StoreUrl, access: Access) -> Result<Arc<dyn Store>, Error> {
    match url {
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::new())),
        StoreUrl::Postgres(url) => postgres::open(url),
        StoreUrl::Sqlite(path) => {
            let options = SqliteOptions::default();
            let opened = match access {
                Access::Read => SqliteStore::open_read_only(path, options),
                Access::Write | Access::Create => SqliteStore::open(path, options),
            };
            match opened {
                Err(StoreError::NotFound { .. }) => Err(Error::NoRuns { database: path.clone(), made: true }),
                opened => Ok(Arc::new(opened?)),
            }
        }
        StoreUrl::File(folder) => {
            let opened = match access {
                Access::Read => FileStore::open_read_only(folder),
                Access::Write | Access::Create => FileStore::open(folder),
            };
            Ok(Arc::new(opened?))
        }
    }
}

/// Returns `path` in the form used in records: relative to `home`, the folder of the store.
///
/// Symbolic links in existing paths are resolved; missing paths are taken literally.
pub(crate) fn relative_to(home: &Path, path: &Path) -> Option<String> {
    let home = absolute(home)?;
    let path = absolute(path)?;
    let shared = home.components().zip(path.components()).take_while(|(a, b)| a == b).count();
    let up = home.components().skip(shared).map(|_| Component::ParentDir);
    let relative: PathBuf = up.chain(path.components().skip(shared)).collect();
    let relative = if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative };
    relative.into_os_string().into_string().ok()
}

/// Returns `path` in the form used in the records of `store`: relative if the store has a folder, else absolute.
pub(crate) fn relative(store: &dyn Store, path: &Path) -> Option<String> {
    match store.home() {
        Some(home) => relative_to(home, path),
        None => path.canonicalize().ok().and_then(|path| path.into_os_string().into_string().ok()),
    }
}

/// Returns [`relative`], for a record: a later resume reads the path.
///
/// # Errors
/// The path is not UTF-8.
pub(crate) fn recorded_path(store: &dyn Store, path: &Path) -> Result<Option<String>, Error> {
    match relative(store, path) {
        None => Err(Error::usage(
            format!("cannot record the path {}: not UTF-8", path.display()),
            "rename the non-UTF-8 part of the path",
        )),
        found => Ok(found),
    }
}

/// Returns the absolute path of a recorded `path`, which is relative to `home`.
pub(crate) fn from_home(home: Option<&Path>, path: &str) -> PathBuf {
    // `..` can lead above a relative home.
    let whole = |home: &Path| std::path::absolute(home).unwrap_or_else(|_| home.to_owned());
    home.map_or_else(|| PathBuf::from(path), |home| normalized(&whole(home).join(path)))
}

fn absolute(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().or_else(|| std::path::absolute(path).ok().map(|path| normalized(&path)))
}

/// Removes `.` and `..` literally, without resolving symbolic links.
fn normalized(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if matches!(normal.components().next_back(), Some(Component::Normal(_))) => {
                normal.pop();
            }
            component => normal.push(component),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_address_shows_its_password() {
        for (address, shown) in [
            ("postgres://me:sesame@db/w?bogus=x", "postgres://me@db/w?bogus=x"),
            ("postgres://me:ses@me77@db/w", "postgres://me@db/w"),
            ("postgres://me@db/w?lease=0&password=sesame&x=1", "postgres://me@db/w?lease=0&password=***&x=1"),
            ("host=db password=sesame user=me", "host=db password=*** user=me"),
            ("host=db password='ses ame' user=me", "host=db password=*** user=me"),
            (
                "postgres://me@db/w?lease=0&listen=postgres%3A%2F%2Fme%3Asesame%40db",
                "postgres://me@db/w?lease=0&listen=***",
            ),
            ("postgress://me:sesame@db/w", "postgress://me@db/w"),
            ("sqlite:/a/b@c.db", "sqlite:/a/b@c.db"),
        ] {
            assert_eq!(super::shown(address), shown);
        }
    }

    use std::path::{Path, PathBuf};

    use super::{StoreUrl, from_home, relative_to};

    #[test]
    fn addresses_name_kind_and_path() {
        assert_eq!(StoreUrl::parse("memory:").unwrap(), StoreUrl::Memory);
        assert_eq!(StoreUrl::parse("file:a/b").unwrap(), StoreUrl::File(PathBuf::from("a/b")));
        assert_eq!(StoreUrl::parse("file:///a/b").unwrap(), StoreUrl::File(PathBuf::from("/a/b")));
        assert_eq!(StoreUrl::parse("sqlite:x.db").unwrap(), StoreUrl::Sqlite(PathBuf::from("x.db")));
        for wrong in ["", "x.db", "sqlite:", "mysql:x", "memory:x", "sqlite://localhost/x.db", "file://a"] {
            assert!(StoreUrl::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_address_with_a_password_is_not_repeated() {
        let error = StoreUrl::parse("postgres://me:geheim@host/db?colour=red").unwrap_err();

        assert!(!error.to_string().contains("geheim"));
        #[cfg(feature = "postgres")]
        assert_eq!(super::shown("postgres://me:geheim@host/db"), "postgres://me@host/db");
    }

    #[test]
    fn every_command_in_a_hint_finds_the_store() {
        let hint = "see it: `waypost show r`; `--restart` or `waypost resume r --treat-as done`, `waypost check` aside";

        assert_eq!(
            super::with_words(hint, " --store file:x"),
            "see it: `waypost show r --store file:x`; `--restart` or `waypost resume r --treat-as done --store file:x`, `waypost check` aside"
        );
        assert_eq!(super::with_words(hint, ""), hint);
    }

    #[test]
    fn words_for_a_shell_are_quoted() {
        assert_eq!(super::quoted("sqlite:/a/b.db"), "sqlite:/a/b.db");
        assert_eq!(super::quoted("file:it's here"), r"'file:it'\''s here'");
    }

    #[test]
    fn a_path_goes_to_the_record_and_back() {
        let home = Path::new("/no/where/.waypost");

        assert_eq!(relative_to(home, Path::new("/no/where/flow.yaml")).as_deref(), Some("../flow.yaml"));
        assert_eq!(from_home(Some(home), "../flow.yaml"), PathBuf::from("/no/where/flow.yaml"));
        assert_eq!(from_home(Some(home), "../../../x"), PathBuf::from("/x"));
    }
}
