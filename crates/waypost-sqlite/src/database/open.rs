//! Finds, creates and opens the database: files, modes, settings.

use std::cell::Cell;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, MAIN_DB, OpenFlags};
use waypost::disk::check_regular;
use waypost::in_use::InUse;
use waypost::lock::network_file_system;
use waypost::store::StoreError;
use waypost::{Clock, SystemClock};

use crate::database::error::SqliteError;
use crate::database::folder;
use crate::database::heads::HeadCache;
use crate::database::run_cache::RunCache;
use crate::database::schema;
use crate::database::wal_prealloc::{FramesSeen, WalPrealloc};
use waypost_codec::delta_cache::DeltaCache;

/// How long a call waits for writing processes. SQLite has no fair queue. With hundreds of concurrent runs, a
/// writer may be unlucky for many seconds, and giving up would stop a run with a sound disk.
const BUSY_TIMEOUT: Duration = Duration::from_secs(120);
/// Pages of the log before a checkpoint. A process that opens the database after a kill reads the whole log,
/// at up to 0.7 ms per MiB. More frequent checkpoints slow down commits (docs/decisions/0004-commit-path.md).
const CHECKPOINT_PAGES: i32 = 192;
/// The limit while many tasks share commits: each commit writes many pages, most of them again before the
/// checkpoint.
const CHECKPOINT_PAGES_SHARED: i32 = 2_048;
/// Prepared statements kept: all that this crate has.
const STATEMENTS_MAX: usize = 64;
/// Delay between attempts to set the journal mode while another process creates the store.
const MODE_RETRY_DELAY: Duration = Duration::from_millis(5);

thread_local! {
    static COMMITS_GROUP: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the current commit of this thread has many jobs.
pub(crate) fn commits_group() -> bool {
    COMMITS_GROUP.get()
}

/// Sets whether the current commit of this thread has many jobs.
pub(crate) fn set_commits_group(commits_group: bool) {
    COMMITS_GROUP.set(commits_group);
}

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// Opens a store even on a network file system. This is safe only if a single machine uses the store:
    /// locks and the shared memory of the write-ahead log are unreliable there.
    pub allow_network: bool,
    /// How long a call waits for another process that is writing.
    pub busy_timeout: Duration,
    /// Source of times for migrations and quarantine, which are informational.
    pub clock: Arc<dyn Clock>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { allow_network: false, busy_timeout: BUSY_TIMEOUT, clock: Arc::new(SystemClock) }
    }
}

/// The location of a store, with the data shared by reads and writes.
#[derive(Debug)]
pub(crate) struct Place {
    /// Its URL, as given.
    pub(crate) name: String,
    /// The database with resolved links, so that all processes use the same locks.
    pub(crate) file: PathBuf,
    /// The parent folder.
    pub(crate) home: PathBuf,
    /// The folder for locks, and for the folders of its runs.
    pub(crate) folder: PathBuf,
    /// How bodies become frames and frames bodies.
    pub(crate) delta_cache: DeltaCache,
    /// Guards its files against being opened elsewhere in this process.
    in_use: InUse,
    /// Cached ends of scopes.
    pub(crate) head_cache: HeadCache,
    /// The run record read last.
    pub(crate) run_cache: RunCache,
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        let file = fs::canonicalize(path)?;
        let home = file.parent().unwrap_or(Path::new("/")).to_owned();
        let folder = folder::folder_of(&file);
        let in_use = InUse::new();
        in_use.add(&file)?;
        Ok(Self {
            name: name(path),
            file,
            home,
            folder,
            in_use,
            delta_cache: DeltaCache::default(),
            head_cache: HeadCache::default(),
            run_cache: RunCache::default(),
        })
    }

    /// Rejects special files in place of SQLite's files: opening a pipe would block.
    fn check_files(&self) -> Result<(), StoreError> {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            let path = self.beside(suffix);
            let checked = match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                metadata => metadata.and_then(|metadata| check_regular(&metadata)),
            };
            checked.map_err(|source| cannot_open(&path, source))?;
        }
        Ok(())
    }

    /// Returns the path of a sidecar file of the database.
    pub(crate) fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = self.file.clone().into_os_string();
        path.push(suffix);
        path.into()
    }
}

fn name(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

fn cannot_open(path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { action: "open", place: path.display().to_string(), source }
}

/// Finds or creates the database file and its folder.
pub(crate) fn make(path: &Path, options: &SqliteOptions) -> Result<Place, StoreError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot_create = |path: &Path, source| StoreError::Create { path: path.to_owned(), source };
    if !folder.is_dir() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| cannot_create(folder, source))?;
        sync_folder(folder.parent().unwrap_or(folder)).map_err(|source| cannot_create(folder, source))?;
    }
    if !options.allow_network
        && let Some(kind) = network_file_system(folder).map_err(|source| cannot_open(folder, source))?
    {
        return Err(StoreError::Invalid(format!(
            "cannot keep runs in `{}`: {kind} is a network file system with unreliable locks",
            folder.display()
        )));
    }
    // SQLite creates sidecar files with the mode of the database.
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => sync_folder(folder).map_err(|source| cannot_create(path, source))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        // A read-only file system reports an error even for an existing file; opening it finds the actual
        // problem.
        Err(_) if path.exists() => {}
        Err(error) => return Err(cannot_create(path, error)),
    }
    let place = find(path)?;
    folder::make(&place.file, &place.folder).map_err(|source| cannot_create(&place.folder, source))?;
    Ok(place)
}

/// Finds the database file.
pub(crate) fn find(path: &Path) -> Result<Place, StoreError> {
    let place = Place::of(path).map_err(|source| cannot_open(path, source))?;
    place.check_files()?;
    Ok(place)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}

/// Opens the writing connection and its WAL preallocation; creates or upgrades the schema.
pub(crate) fn writer(
    place: &Place,
    options: &SqliteOptions,
) -> Result<(Connection, WalPrealloc), StoreError> {
    let failed = |error: rusqlite::Error| explain(SqliteError::from(error), place);
    let mut connection = Connection::open_with_flags(
        &place.file,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(failed)?;
    connection.busy_timeout(options.busy_timeout).map_err(failed)?;
    // SQLite falls back to reading where it may not write.
    if connection.is_readonly(MAIN_DB).map_err(failed)? {
        let opened = OpenOptions::new().append(true).open(&place.file);
        let source = opened.err().unwrap_or_else(|| io::ErrorKind::PermissionDenied.into());
        return Err(StoreError::of_write("write to", place.file.display().to_string(), source));
    }
    common(&connection).map_err(failed)?;
    end_log(&connection, false).map_err(failed)?;
    // An empty database gets its log before its tables, so that the tables arrive with a single commit of the
    // log.
    let is_new = schema::begin(&connection, place)?;
    if is_new {
        settle(&connection, place, options)?;
    }
    schema::ensure(&mut connection, place, options)?;
    if is_new {
        // After this checkpoint, a damaged log does not lose the tables. If blocked, the checkpoint happens
        // later.
        let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }
    settle(&connection, place, options)?;
    // Errors are ignored: if this process cannot inspect the files, its other code cannot open them either.
    let _ = place.in_use.add(&place.beside("-shm"));
    let _ = place.in_use.add(&place.beside("-wal"));
    schema::set_durability(&connection, waypost::record::Durability::Sync)
        .map_err(|fault| explain(fault, place))?;
    connection.pragma_update(None, "foreign_keys", true).map_err(failed)?;
    // Deleted data is overwritten with zeros if its page is written anyway.
    connection.pragma_update(None, "secure_delete", "FAST").map_err(failed)?;
    let frames = FramesSeen::default();
    watch_checkpoints(&mut connection, Arc::clone(&frames)).map_err(failed)?;
    Ok((connection, WalPrealloc::new(frames)))
}

/// Sets whether the last closing connection checkpoints and removes the log. Permitted only for the known
/// last connection (`file_identity.rs`): writes of others to the log would be lost.
pub(crate) fn end_log(connection: &Connection, head_cache: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !head_cache).map(drop)
}

/// Opens a read-only connection, even without write permission.
///
/// A database without a log in an unwritable folder is opened as immutable, so SQLite creates no shared
/// memory. With a log this is impossible, because its content would be missed. A rollback journal is an
/// obstacle too: its owner was killed during a write to the database itself.
///
/// On a full disk without space for shared memory, a log is read by a connection with exclusive access, which
/// needs none.
pub(crate) fn reader(place: &Place, options: &SqliteOptions) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let prepare = |connection: Connection| -> rusqlite::Result<Connection> {
        connection.busy_timeout(options.busy_timeout)?;
        common(&connection)?;
        // The first read opens the log and its shared memory.
        connection.query_row("PRAGMA user_version", [], |_| Ok(()))?;
        Ok(connection)
    };
    match Connection::open_with_flags(&place.file, flags).and_then(prepare) {
        Ok(connection) => Ok(connection),
        Err(_) if is_incomplete(place) => Err(no_runs_yet(place)),
        Err(error) => {
            let fault = SqliteError::from(error);
            let is_behind = |suffix| fs::metadata(place.beside(suffix)).is_ok_and(|beside| beside.len() > 0);
            let is_crowded = fault.lacks_shm_space();
            if !(fault.is_unwritable() || is_crowded) || is_behind("-journal") {
                return Err(explain(fault, place));
            }
            if is_behind("-wal") {
                let alone = if is_crowded { alone(place).and_then(prepare).ok() } else { None };
                return alone.ok_or_else(|| explain(fault, place));
            }
            Connection::open_with_flags(immutable_url(&place.file), flags | OpenFlags::SQLITE_OPEN_URI)
                .and_then(prepare)
                .map_err(|error| explain(SqliteError::from(error), place))
        }
    }
}

/// As [`reader`], of a database whose version can be read.
pub(crate) fn checked_reader(place: &Place, options: &SqliteOptions) -> Result<Connection, StoreError> {
    let reader = reader(place, options)?;
    schema::check(&reader, place)?;
    Ok(reader)
}

/// Opens a connection with exclusive access, which uses no shared memory and keeps the log.
fn alone(place: &Place) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(&place.file, flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.query_row("PRAGMA locking_mode = EXCLUSIVE", [], |_| Ok(()))?;
    Ok(connection)
}

/// Returns the error for a Waypost database without tables.
pub(crate) fn no_runs_yet(place: &Place) -> StoreError {
    StoreError::NotFound { store: place.name.clone(), what: "runs yet".to_owned() }
}

/// Returns whether the creating process was killed before the tables existed. The rollback journal then
/// restores an empty file, or the single page with the settings for the tables. Only a writing connection can
/// do this.
fn is_incomplete(place: &Place) -> bool {
    const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    // Number of pages before the transaction: the fifth number of the header, after a magic of two.
    const PAGES_BEFORE: std::ops::Range<usize> = 16..20;
    let mut header = [0; 20];
    let read = File::open(place.beside("-journal"))
        .and_then(|mut file| io::Read::read_exact(&mut file, &mut header));
    let before = [[0, 0, 0, 0], [0, 0, 0, 1]];
    read.is_ok() && header.starts_with(&MAGIC) && before.iter().any(|pages| header[PAGES_BEFORE] == *pages)
}

/// Maps a fault to a store error, with a clear message for a file that is not an SQLite database.
pub(crate) fn explain(fault: SqliteError, place: &Place) -> StoreError {
    if fault.is_not_a_database() {
        let file = place.file.display();
        return StoreError::Invalid(format!("`{file}` is not a Waypost store: not an SQLite database"));
    }
    fault.to_store_error(place)
}

fn common(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // A foreign file must not run own code, and its schema is not trusted.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // Query plans do not depend on bound values, so statements need not be prepared again.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "cell_size_check", true)
}

/// Enables the write-ahead log and verifies the mode.
fn settle(connection: &Connection, place: &Place, options: &SqliteOptions) -> Result<(), StoreError> {
    let began = Instant::now();
    loop {
        let mode = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        match mode.map_err(SqliteError::from) {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => {
                return Err(StoreError::Invalid(format!(
                    "cannot enable the write-ahead log of {}: the journal mode stays `{mode}`",
                    place.name
                )));
            }
            // SQLite does not wait here, to avoid a deadlock that cannot occur with our connections.
            Err(fault) if fault.is_busy() && began.elapsed() < options.busy_timeout => {
                std::thread::sleep(MODE_RETRY_DELAY);
            }
            Err(fault) => return Err(explain(fault, place)),
        }
    }
}

/// Checkpoints the log periodically, as SQLite does, but does not ignore a failed sync. The kernel reports it
/// only once, and commits of `async` runs may depend on it. Also stores the number of frames of the log in
/// `frames`.
fn watch_checkpoints(connection: &mut Connection, frames: FramesSeen) -> rusqlite::Result<()> {
    connection.wal_hook(Some(move |log: &mut rusqlite::hooks::Wal, pages: i32| {
        frames.store(u64::try_from(pages).unwrap_or(0), Ordering::Relaxed);
        let limit = if commits_group() { CHECKPOINT_PAGES_SHARED } else { CHECKPOINT_PAGES };
        if pages < limit {
            return Ok(());
        }
        match log.checkpoint() {
            Err(error) if SqliteError::from_ref(&error).is_failed_sync() => Err(error),
            // Readers in the way, or no space: the log stays longer, nothing is lost.
            _ => Ok(()),
        }
    }))
}

/// Returns a URL for a file, for which SQLite takes no lock and creates no sidecar file.
fn immutable_url(file: &Path) -> PathBuf {
    let mut url = b"file://".to_vec();
    for byte in file.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-~".contains(byte) {
            url.push(*byte);
        } else {
            url.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    url.extend_from_slice(b"?immutable=1");
    PathBuf::from(String::from_utf8(url).expect("the text is ASCII"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_immutable_url_keeps_no_special_character() {
        let url = immutable_url(Path::new("/a b/ü?#%.db"));

        assert_eq!(url, Path::new("file:///a%20b/%C3%BC%3F%23%25.db?immutable=1"));
    }
}
