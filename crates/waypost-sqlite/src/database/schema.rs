//! Tables, schema versions, and migrations.
//!
//! The version is in `user_version`. Every transaction that follows a commit of another connection checks it,
//! so that a running program is refused after an upgrade by another program. Columns are described in
//! docs/concepts/format-sqlite.md.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rusqlite::{Connection, TransactionBehavior};
use waypost::record::Durability;
use waypost::store::StoreError;

use crate::database::error::SqliteError;
use crate::database::open::{Place, SqliteOptions, explain, no_runs_yet};
use crate::database::values::time_text;

/// The version that this crate writes.
pub(crate) const VERSION: u32 = 6;

/// Returns the schema version of a database without changing it. A store that writes upgrades the database to
/// [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
///
/// # Errors
/// As [`SqliteStore::open_read_only`](crate::SqliteStore::open_read_only).
pub fn schema_of(path: &std::path::Path) -> Result<u32, StoreError> {
    let place = crate::database::open::find(path)?;
    let reader = crate::database::open::reader(&place, &SqliteOptions::default())?;
    check(&reader, &place)?;
    let version = reader.query_row("PRAGMA user_version", [], |row| row.get(0));
    version.map_err(|error| explain(SqliteError::from(error), &place))
}

/// The version of the first release, the oldest readable version.
const VERSION_MIN: u32 = 6;
/// Application id of our databases: `WYPT`.
pub(crate) const APPLICATION_ID: i32 = 0x5759_5054;
/// A record of a few KiB fits a page, and a large state needs half the pages of the default.
pub(crate) const PAGE_BYTES: u32 = 8192;
/// SQLite's number for incremental `auto_vacuum`.
const INCREMENTAL: u32 = 2;
/// Most back-ups per version before an upgrade is refused; the same version is not upgraded that often.
const BACKUPS_MAX: u32 = 100;

const TABLES: &str = "
CREATE TABLE migrations (
    version    INTEGER PRIMARY KEY,
    applied_at TEXT NOT NULL,
    tool       TEXT NOT NULL
) STRICT;

CREATE TABLE runs (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    workflow    TEXT NOT NULL,
    path        TEXT,
    labels      TEXT NOT NULL,
    created_at  TEXT NOT NULL,
    updated_at  TEXT NOT NULL,
    status      TEXT NOT NULL,
    doubtful    INTEGER NOT NULL,
    step        TEXT,
    done        INTEGER NOT NULL,
    total       INTEGER NOT NULL,
    wake_at     TEXT,
    lost        INTEGER NOT NULL,
    checkpoints INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,
    scopes    INTEGER NOT NULL,
    token       INTEGER NOT NULL,
    leased      INTEGER NOT NULL,
    batch_token INTEGER NOT NULL,
    batch_count INTEGER NOT NULL,
    main        INTEGER NOT NULL,
    main_open   INTEGER NOT NULL,
    main_newest INTEGER NOT NULL,
    main_bodies INTEGER NOT NULL
) STRICT;

CREATE TABLE frozen (
    run    INTEGER PRIMARY KEY REFERENCES runs,
    digest BLOB NOT NULL,
    record BLOB NOT NULL
) STRICT;

CREATE TABLE frozen_copies (
    run    INTEGER PRIMARY KEY REFERENCES runs,
    digest BLOB NOT NULL,
    record BLOB NOT NULL
) STRICT;

CREATE TABLE scopes (
    id     INTEGER PRIMARY KEY,
    run    INTEGER NOT NULL REFERENCES runs,
    path   TEXT NOT NULL,
    open   INTEGER,
    newest INTEGER,
    bodies INTEGER,
    UNIQUE (run, path)
) STRICT;
CREATE INDEX scopes_run ON scopes (run);

CREATE TABLE records (
    key      INTEGER PRIMARY KEY,
    external TEXT,
    about    INTEGER,
    codec    INTEGER,
    digest   BLOB NOT NULL,
    header   BLOB NOT NULL,
    body     BLOB
) STRICT;
CREATE INDEX records_external ON records (external) WHERE external IS NOT NULL;
CREATE INDEX records_about ON records (about) WHERE about IS NOT NULL;

CREATE TABLE signals (
    id       INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL REFERENCES runs,
    name     TEXT NOT NULL,
    consumed INTEGER NOT NULL,
    digest   BLOB NOT NULL,
    message  BLOB NOT NULL,
    UNIQUE (run, name)
) STRICT;
CREATE INDEX signals_pending ON signals (run) WHERE consumed = 0;

CREATE TABLE quarantine (
    id       INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL REFERENCES runs,
    key      INTEGER NOT NULL,
    why      TEXT NOT NULL,
    moved_at TEXT NOT NULL,
    codec    ANY,
    digest   ANY,
    header   ANY,
    body     ANY
) STRICT;
CREATE INDEX quarantine_key ON quarantine (key);
";

/// A migration from the previous version.
#[derive(Debug)]
struct Migration {
    /// The resulting version.
    to: u32,
    sql: &'static str,
}

/// All migrations, in ascending order.
const MIGRATIONS: &[Migration] = &[];

/// Returns whether this crate reads a version.
pub(crate) fn is_readable(version: u32) -> bool {
    (VERSION_MIN..=VERSION).contains(&version)
}

/// Reads the schema version.
pub(crate) fn version(connection: &Connection) -> Result<u32, SqliteError> {
    let version =
        connection.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get::<_, i64>(0))?;
    u32::try_from(version).map_err(|_| SqliteError::corrupt(format!("its version is {version}")))
}

/// Reads a counter that changes with each commit of another connection, but not with own commits.
pub(crate) fn changes_of_others(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}

/// Returns the error for an unreadable schema version.
pub(crate) fn version_error(place: &Place, found: u32) -> StoreError {
    StoreError::Version { what: place.name.clone(), found, supported: VERSION }
}

/// Sets whether a commit waits for the disk, and verifies the setting.
pub(crate) fn set_durability(connection: &Connection, durability: Durability) -> Result<(), SqliteError> {
    // SQLite's numbers: 2 is FULL, a sync per commit; 1 is NORMAL, a sync before a checkpoint of the log.
    let level = match durability {
        Durability::Sync => 2,
        Durability::Async => 1,
    };
    connection.pragma_update(None, "synchronous", level)?;
    if durability == Durability::Async {
        return Ok(());
    }
    let found: i64 = connection.query_row("PRAGMA synchronous", [], |row| row.get(0))?;
    if found == level {
        return Ok(());
    }
    Err(SqliteError::refused(format!("cannot set `synchronous` of SQLite: found {found}, expected {level}")))
}

/// Checks that a database is a Waypost store of a readable version.
pub(crate) fn check(connection: &Connection, place: &Place) -> Result<(), StoreError> {
    let failed = |fault| explain(fault, place);
    match kind(connection).map_err(failed)? {
        TableKind::Ours => {}
        // The creating process was killed before the tables existed; the next writer creates them.
        TableKind::Empty => return Err(no_runs_yet(place)),
        TableKind::Foreign => return Err(not_ours(place, "the database belongs to another program")),
    }
    match version(connection).map_err(failed)? {
        found if is_readable(found) => Ok(()),
        found => Err(version_error(place, found)),
    }
}

/// Returns whether a database is empty, and prepares an empty database for its first page.
pub(crate) fn begin(connection: &Connection, place: &Place) -> Result<bool, StoreError> {
    let failed = |fault| explain(fault, place);
    if !matches!(kind(connection).map_err(failed)?, TableKind::Empty) {
        return Ok(false);
    }
    let set = |name, value: u32| connection.pragma_update(None, name, value);
    set("page_size", PAGE_BYTES)
        .and_then(|()| set("auto_vacuum", INCREMENTAL))
        .map_err(|error| failed(error.into()))?;
    Ok(true)
}

/// Creates or upgrades the tables if needed.
pub(crate) fn ensure(
    connection: &mut Connection,
    place: &Place,
    options: &SqliteOptions,
) -> Result<(), StoreError> {
    let failed = |fault| explain(fault, place);
    match kind(connection).map_err(failed)? {
        TableKind::Ours => {}
        TableKind::Empty => create(connection, options).map_err(failed)?,
        TableKind::Foreign => return Err(not_ours(place, "the database belongs to another program")),
    }
    match version(connection).map_err(failed)? {
        VERSION => Ok(()),
        found if is_readable(found) => upgrade(connection, place, options, MIGRATIONS),
        // A newer version, or a version that never existed.
        found => Err(version_error(place, found)),
    }
}

enum TableKind {
    Empty,
    Ours,
    Foreign,
}

/// Returns the kind of a database from a single snapshot, because another process may be creating it.
fn kind(connection: &Connection) -> Result<TableKind, SqliteError> {
    if !connection.is_autocommit() {
        return kind_now(connection);
    }
    let transaction = connection.unchecked_transaction()?;
    let kind = kind_now(&transaction)?;
    transaction.finish()?;
    Ok(kind)
}

fn kind_now(connection: &Connection) -> Result<TableKind, SqliteError> {
    let id: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    if id == i64::from(APPLICATION_ID) {
        return Ok(TableKind::Ours);
    }
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let empty = id == 0 && tables == 0 && version(connection)? == 0;
    Ok(if empty { TableKind::Empty } else { TableKind::Foreign })
}

fn not_ours(place: &Place, why: &str) -> StoreError {
    StoreError::Invalid(format!("`{}` is not a Waypost store: {why}", place.file.display()))
}

fn create(connection: &mut Connection, options: &SqliteOptions) -> Result<(), SqliteError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
    // Another process may have created the tables during the wait.
    if matches!(kind(&transaction)?, TableKind::Empty) {
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        note(&transaction, VERSION, options)?;
    }
    Ok(transaction.commit()?)
}

fn note(connection: &Connection, version: u32, options: &SqliteOptions) -> Result<(), SqliteError> {
    let now = time_text(options.clock.now());
    let tool = concat!("waypost ", env!("CARGO_PKG_VERSION"));
    connection.execute("INSERT INTO migrations VALUES (?1, ?2, ?3)", (version, now, tool))?;
    Ok(())
}

/// Upgrades the schema in a single transaction, after a back-up next to the file.
fn upgrade(
    connection: &mut Connection,
    place: &Place,
    options: &SqliteOptions,
    migrations: &[Migration],
) -> Result<(), StoreError> {
    let failed = |error: rusqlite::Error| explain(error.into(), place);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    // Another process may have upgraded during the wait.
    let found = version(&transaction).map_err(|fault| explain(fault, place))?;
    let due: Vec<_> = migrations.iter().filter(|migration| migration.to > found).collect();
    if due.is_empty() {
        return transaction.commit().map_err(failed);
    }
    // Other writers are locked out and nothing is written yet, so another connection sees exactly the state
    // to upgrade.
    back_up(place, found)?;
    for migration in due {
        transaction.execute_batch(migration.sql).map_err(failed)?;
        transaction.pragma_update(None, "user_version", migration.to).map_err(failed)?;
        note(&transaction, migration.to, options).map_err(|fault| explain(fault, place))?;
    }
    transaction.commit().map_err(failed)
}

/// Copies the whole database to a new synced file next to it, and returns the path.
fn back_up(place: &Place, version: u32) -> Result<PathBuf, StoreError> {
    let path = new_backup(place, version)?;
    let copied = Connection::open(&place.file)
        .and_then(|source| source.execute("VACUUM INTO ?1", [path.to_str()]).map(drop));
    copied.map_err(|error| explain(error.into(), place))?;
    let synced = File::open(&path).and_then(|file| file.sync_all());
    synced
        .and_then(|()| File::open(&place.home)?.sync_all())
        .map_err(|source| StoreError::of_write("sync", path.display().to_string(), source))?;
    Ok(path)
}

/// Creates an empty file with an unused name: SQLite fills an empty file, but does not overwrite any other.
fn new_backup(place: &Place, version: u32) -> Result<PathBuf, StoreError> {
    for number in 1..=BACKUPS_MAX {
        let path = place.beside(&format!(".v{version}-{number}.backup"));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(StoreError::Create { path, source }),
        }
    }
    Err(StoreError::Invalid(format!(
        "cannot upgrade `{}`: it has {BACKUPS_MAX} backups of version {version}; remove some",
        place.file.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::open;

    const ADD_A_COLUMN: &[Migration] =
        &[Migration { to: VERSION + 1, sql: "ALTER TABLE runs ADD COLUMN cost REAL NOT NULL DEFAULT 0" }];

    fn site() -> (tempfile::TempDir, Place, SqliteOptions, Connection) {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::default();
        let place = open::make(&folder.path().join("waypost.db"), &options).unwrap();
        let (connection, _) = open::writer(&place, &options).unwrap();
        (folder, place, options, connection)
    }

    fn version_of(path: &std::path::Path) -> u32 {
        version(&Connection::open(path).unwrap()).unwrap()
    }

    #[test]
    fn an_upgrade_leaves_a_back_up_of_what_was_before() {
        let (_folder, place, options, mut connection) = site();

        upgrade(&mut connection, &place, &options, ADD_A_COLUMN).unwrap();

        assert_eq!(version(&connection).unwrap(), VERSION + 1);
        connection.execute("UPDATE runs SET cost = 1", []).unwrap();
        let noted: i64 =
            connection.query_row("SELECT max(version) FROM migrations", [], |row| row.get(0)).unwrap();
        assert_eq!(noted, i64::from(VERSION) + 1);
        let back_up = place.beside(&format!(".v{VERSION}-1.backup"));
        assert_eq!(version_of(&back_up), VERSION);
        let mode = std::os::unix::fs::PermissionsExt::mode(&back_up.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);

        upgrade(&mut connection, &place, &options, ADD_A_COLUMN).unwrap();
        assert!(!place.beside(&format!(".v{VERSION}-2.backup")).exists(), "nothing is left to do");
    }

    #[test]
    fn a_failed_upgrade_changes_nothing_and_keeps_the_backup() {
        let (_folder, place, options, mut connection) = site();
        let broken = [
            Migration { to: VERSION + 1, sql: "CREATE TABLE more (x) STRICT" },
            Migration { to: VERSION + 2, sql: "CREATE TABLE more (x INTEGER) STRICT" },
        ];

        for _ in 0..2 {
            upgrade(&mut connection, &place, &options, &broken).unwrap_err();
        }

        assert_eq!(version(&connection).unwrap(), VERSION);
        let tables: i64 = connection
            .query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'more'", [], |row| row.get(0))
            .unwrap();
        assert_eq!(tables, 0);
        assert_eq!(version_of(&place.beside(&format!(".v{VERSION}-1.backup"))), VERSION);
        assert_eq!(version_of(&place.beside(&format!(".v{VERSION}-2.backup"))), VERSION);
    }

    #[test]
    fn a_version_that_never_was_is_refused() {
        let (_folder, place, options, mut connection) = site();
        connection.pragma_update(None, "user_version", 0).unwrap();

        let error = ensure(&mut connection, &place, &options).unwrap_err();

        assert!(matches!(error, StoreError::Version { found: 0, .. }), "{error}");
    }
}
