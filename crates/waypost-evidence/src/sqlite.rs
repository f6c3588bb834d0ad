//! `db_row` in SQLite files.
//!
//! The database is opened for reading only, and nothing is written beside it. Names are checked against its catalog and quoted, values are bound: nothing of
//! a claim is ever part of the text of a statement, but for a `query`, which must be one that only reads.

use async_trait::async_trait;
use rusqlite::ffi::SQLITE_READONLY_ROLLBACK;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::{Value as Cell, ValueRef};
use rusqlite::{Connection, ErrorCode, InterruptHandle, params_from_iter};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use waypost::evidence::{Cost, Finding, Probe, Site, find_file};
use waypost::record::Claim;

use crate::database_file::{DatabaseFile, left_behind};
use crate::rows::{self, DB_ROW, Found, Gathered, ROWS_BYTES_MAX, ROWS_MAX, Rows, Wanted, quoted};

/// How long a writer is waited for, within the time of the check.
const BUSY: Duration = Duration::from_secs(2);
/// Pragmas that look at something and change nothing. With a value, some of them would: those may have none.
const PRAGMAS: [(&str, bool); 16] = [
    ("application_id", false),
    ("collation_list", false),
    ("encoding", false),
    ("foreign_key_check", true),
    ("foreign_key_list", true),
    ("freelist_count", false),
    ("index_info", true),
    ("index_list", true),
    ("integrity_check", true),
    ("journal_mode", false),
    ("page_count", false),
    ("quick_check", true),
    ("table_info", true),
    ("table_list", true),
    ("table_xinfo", true),
    ("user_version", false),
];

/// Checks `db_row` in an SQLite file: a row of `table` where `where` holds has `values`, or `count` rows do; or the first
/// value that `query` gives `equals`.
///
/// - `ok`: it has, or does.
/// - `failed`: it has not; there is no such file, table or column; the query does not only read.
/// - `unknown`: it cannot be opened or is no database, who wrote to it was cut off, the query is not understood, more than 100,000 rows or 16 MiB
///   would have to be looked at.
#[derive(Debug, Clone, Copy, Default)]
pub struct SqliteProbe;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Probe for SqliteProbe {
    fn kind(&self) -> &str {
        DB_ROW
    }

    fn cost(&self) -> Cost {
        Cost::Waiting
    }

    fn is_live(&self) -> bool {
        false
    }

    fn is_local(&self, _: &Claim) -> bool {
        true
    }

    fn glance(&self, _: &Claim, _: &Site) -> Option<Finding> {
        None
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Finding {
        let wanted = match Wanted::read(&claim.expect) {
            Ok(wanted) => wanted,
            Err(finding) => return finding,
        };
        let path = match find_file(site, &claim.subject).await {
            Ok(path) => path,
            Err(finding) => return finding.either_way(),
        };
        let (told, handle) = tokio::sync::oneshot::channel();
        let work = tokio::task::spawn_blocking(move || {
            let database = match open(path.clone()) {
                Ok(database) => database,
                Err(ended) => return ended.finding,
            };
            let _ = told.send(database.connection.get_interrupt_handle());
            let found = looked(&database.connection, &wanted);
            if database.has_changed() {
                return Finding::unknown_yet("it was written to while it was read");
            }
            found.unwrap_or_else(|ended| if ended.is_hot { hot(&path) } else { ended.finding })
        });
        // Who is not waited for any more ends its statement.
        let _guard = Interrupted(handle.await.ok());
        work.await.unwrap_or_else(|_| Finding::unknown("the check was cut short"))
    }

    async fn pin(&self, _: &Claim, _: &Site) -> Finding {
        Finding::failed("a row is expected, not pinned")
    }
}

struct Interrupted(Option<InterruptHandle>);

impl Drop for Interrupted {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.interrupt();
        }
    }
}

fn open(path: PathBuf) -> Result<DatabaseFile, Ended> {
    let mut database = DatabaseFile::open(path)?;
    let connection = &mut database.connection;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.authorizer(Some(allowed))?;
    Ok(database)
}

/// Says that a transaction was cut off amid its writes: what it wrote must be undone before anybody can read.
fn hot(path: &Path) -> Finding {
    left_behind(path, "-journal", "undoes what was not finished")
}

/// Says what a statement may do: look. Attaching another file, a transaction and most pragmas are not that, though SQLite
/// counts them among what only reads.
fn allowed(context: AuthContext<'_>) -> Authorization {
    let is_looking = match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => true,
        AuthAction::Function { function_name } => !function_name.eq_ignore_ascii_case("load_extension"),
        AuthAction::Pragma { pragma_name, pragma_value } => PRAGMAS.iter().any(|(name, takes_value)| {
            name.eq_ignore_ascii_case(pragma_name) && (*takes_value || pragma_value.is_none())
        }),
        _ => false,
    };
    if is_looking { Authorization::Allow } else { Authorization::Deny }
}

/// Says of an error whether trying again may help. None says that a claim holds.
fn told_of(error: &rusqlite::Error) -> Finding {
    // What the text itself says is wrong, or names what is not there.
    if let rusqlite::Error::SqlInputError { error: inner, .. } = error
        && inner.code == ErrorCode::Unknown
    {
        return Finding::failed(format!("it cannot be asked so: {error}"));
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Finding::unknown_yet(format!("it is in use: {error}"))
        }
        Some(ErrorCode::AuthorizationForStatementDenied) => rows::not_reading(),
        Some(ErrorCode::NotADatabase) => Finding::failed("it is no database"),
        _ => Finding::unknown(format!("it cannot be asked: {error}")),
    }
}

/// A finding in the place of an answer.
struct Ended {
    finding: Finding,
    /// A transaction was cut off, and has to be undone.
    is_hot: bool,
}

impl From<rusqlite::Error> for Ended {
    fn from(error: rusqlite::Error) -> Self {
        let code = error.sqlite_error().map(|error| error.extended_code);
        Self { finding: told_of(&error), is_hot: code == Some(SQLITE_READONLY_ROLLBACK) }
    }
}

impl From<Finding> for Ended {
    fn from(finding: Finding) -> Self {
        Self { finding, is_hot: false }
    }
}

fn looked(connection: &Connection, wanted: &Wanted) -> Result<Finding, Ended> {
    match wanted {
        Wanted::Query { text, equals } => {
            let mut statement = connection.prepare(text)?;
            if !statement.readonly() {
                return Err(rows::not_reading().into());
            }
            let mut found = statement.query([])?;
            let Some(row) = found.next()? else { return Err(rows::no_row().into()) };
            Ok(rows::judged(equals, &value_of(row.get_ref(0)?)?)?)
        }
        Wanted::Rows(rows) => {
            in_catalog(connection, rows)?;
            Ok(rows.judged(&rows_of(connection, rows)?)?)
        }
    }
}

/// Sees that a table and its columns are there: an unknown name in quotes would be a text to SQLite.
fn in_catalog(connection: &Connection, rows: &Rows) -> Result<(), Ended> {
    let mut tables = connection.prepare(
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name LIMIT 10000",
    )?;
    let known = tables.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    if !known.contains(&rows.table) {
        return Err(rows.no_table(&known).into());
    }
    let mut columns = connection.prepare("SELECT name FROM pragma_table_info(?1)")?;
    let known =
        columns.query_map([&rows.table], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    Ok(rows.in_columns(&known)?)
}

/// Reads the columns of which something is expected, of the rows that are meant.
fn rows_of(connection: &Connection, rows: &Rows) -> Result<Found, Ended> {
    // `IS`, as null is equal to nothing.
    let conditions: Vec<String> =
        rows.keys.keys().enumerate().map(|(at, name)| format!("{} IS ?{}", quoted(name), at + 1)).collect();
    let condition =
        if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
    let bound: Vec<Cell> = rows.keys.values().map(cell_of).collect();
    let table = quoted(&rows.table);
    let columns: Vec<String> = rows.read().map(|name| quoted(name)).collect();
    if columns.is_empty() {
        let text = format!("SELECT count(*) FROM {table}{condition}");
        let count: i64 = connection.query_row(&text, params_from_iter(bound), |row| row.get(0))?;
        return Ok(Found::Count(u64::try_from(count).unwrap_or_default()));
    }
    let text = format!("SELECT {} FROM {table}{condition} LIMIT {}", columns.join(", "), ROWS_MAX + 1);
    let mut statement = connection.prepare(&text)?;
    let mut found = statement.query(params_from_iter(bound))?;
    let mut gathered = Gathered::default();
    while let Some(row) = found.next()? {
        let (mut values, mut bytes) = (Vec::new(), 0);
        for at in 0..columns.len() {
            let value = row.get_ref(at)?;
            bytes += bytes_of(value);
            values.push(value_of(value)?);
        }
        gathered.push(values, bytes)?;
    }
    Ok(Found::Rows(gathered))
}

fn cell_of(value: &Value) -> Cell {
    match value {
        Value::Null => Cell::Null,
        Value::Bool(truth) => Cell::Integer((*truth).into()),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Cell::Integer(whole),
            None => Cell::Real(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Cell::Text(text.clone()),
        // Refused when it was read.
        Value::Array(_) | Value::Object(_) => Cell::Text(value.to_string()),
    }
}

/// How long a value is that would be copied.
fn bytes_of(value: ValueRef<'_>) -> usize {
    match value {
        ValueRef::Text(text) => text.len(),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) | ValueRef::Blob(_) => 8,
    }
}

/// Writes a value as JSON; of bytes, how many they are.
fn value_of(value: ValueRef<'_>) -> Result<Value, Finding> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(whole) => whole.into(),
        ValueRef::Real(real) => real.into(),
        ValueRef::Text(text) if text.len() > ROWS_BYTES_MAX => return Err(rows::too_long()),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(bytes) => json!({ "bytes": bytes.len() }),
    })
}
