//! `db_row` in SQLite files.
//!
//! The database is opened read-only, and sidecar files are not written. Names are looked up in the catalog
//! and quoted, and values are bound. Only a `query` becomes statement text; SQLite must classify the
//! statement as read-only.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::ffi::SQLITE_READONLY_ROLLBACK;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Value as Cell, ValueRef};
use rusqlite::{Connection, ErrorCode, InterruptHandle, params_from_iter};
use serde_json::{Value, json};
use waypost::evidence::{FileGuard, Finding, Site, find_file_guard};
use waypost::record::Claim;

use crate::databases::database_file::{DatabaseFile, unfinished_write};
use crate::databases::rows::{
    self, ROWS_BYTES_MAX, ROWS_MAX, ReadRows, RowExpectation, SelectedRows, TableExpectation, quoted,
};
use crate::fits;

/// How long to wait for a writer, within the timeout of the check.
const BUSY: Duration = Duration::from_secs(2);
/// Read-only pragmas. The flag permits a value; the other pragmas would change a setting with a value.
const PRAGMAS: [(&str, bool); 28] = [
    ("application_id", false),
    ("auto_vacuum", false),
    ("cache_size", false),
    ("collation_list", false),
    ("compile_options", false),
    // Full-text search reads `data_version` and `page_size` internally.
    ("data_version", false),
    ("database_list", false),
    ("encoding", false),
    ("foreign_key_check", true),
    ("foreign_key_list", true),
    ("foreign_keys", false),
    ("freelist_count", false),
    ("function_list", false),
    ("index_info", true),
    ("index_list", true),
    ("index_xinfo", true),
    ("integrity_check", true),
    ("journal_mode", false),
    ("max_page_count", false),
    ("module_list", false),
    ("page_count", false),
    ("page_size", false),
    ("quick_check", true),
    ("schema_version", false),
    ("table_info", true),
    ("table_list", true),
    ("table_xinfo", true),
    ("user_version", false),
];

/// Largest intermediate value. SQLite's default is 1 GB, and eight checks run at once.
const VALUE_BYTES_MAX: i32 = 64 << 20;
/// Number of SQLite instructions between checks for cancellation: a few microseconds.
const INSTRUCTIONS: i32 = 10_000;

/// Checks a claim about an SQLite file.
pub(crate) async fn check(claim: &Claim, wanted: RowExpectation, site: &Site) -> Result<Finding, Finding> {
    let guard = find_file_guard(site, &claim.subject).await.map_err(Finding::either_way)?;
    let (answer, found) = tokio::sync::oneshot::channel();
    // Dropping the check interrupts the statement.
    let asking = CheckGuard::default();
    let check = asking.0.clone();
    // A dedicated thread: a hung file system must not block other checks.
    let thread = std::thread::Builder::new().name("sqlite".to_owned()).spawn(move || {
        let _ = answer.send(check_database(guard, in_numbers(wanted), &check));
    });
    thread.map_err(|error| Finding::unknown_yet(format!("cannot start a thread for the check: {error}")))?;
    found.await.map_err(|_| Finding::unknown("the check was interrupted"))
}

/// A pending check; dropping it cancels the statement.
#[derive(Default)]
struct CheckGuard(Arc<CheckState>);

#[derive(Default)]
struct CheckState {
    is_over: AtomicBool,
    /// Interrupts a single long instruction.
    handle: Mutex<Option<InterruptHandle>>,
}

impl Drop for CheckGuard {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        if let Some(handle) = &*self.0.handle.lock().unwrap_or_else(PoisonError::into_inner) {
            handle.interrupt();
        }
    }
}

/// Checks a database until the result is known or the check is cancelled.
fn check_database(guard: FileGuard, wanted: RowExpectation, check: &Arc<CheckState>) -> Finding {
    let database = match open(guard, check) {
        Ok(database) => database,
        Err(ended) => return ended.finding(&wanted),
    };
    let found = query_finding(&database.connection, &wanted);
    if let Some(changed) = database.changed() {
        return changed;
    }
    found.unwrap_or_else(|ended| {
        if ended.is_interrupted_write() { interrupted_write(database.path()) } else { ended.finding(&wanted) }
    })
}

fn open(guard: FileGuard, check: &Arc<CheckState>) -> Result<DatabaseFile, SqliteQueryError> {
    let mut database = DatabaseFile::open(guard)?;
    let connection = &mut database.connection;
    let seen = Arc::clone(check);
    connection.progress_handler(INSTRUCTIONS, Some(move || seen.is_over.load(Ordering::SeqCst)))?;
    *check.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.get_interrupt_handle());
    if check.is_over.load(Ordering::SeqCst) {
        return Err(Finding::unknown("the receiver waits until the deadline").into());
    }
    connection.busy_timeout(BUSY)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.authorizer(Some(authorize))?;
    if let Some(changed) = database.changed() {
        return Err(changed.into());
    }
    Ok(database)
}

/// Returns the finding for an interrupted transaction, which must be rolled back before any read.
fn interrupted_write(path: &Path) -> Finding {
    unfinished_write(path, "-journal", "rolls back unfinished transactions")
}

/// Authorizes the actions of a statement: reads only. `ATTACH`, transactions and most pragmas are denied,
/// although SQLite classifies them as read-only. Virtual tables such as R*Tree prepare writing statements on
/// open, so writes are permitted here. The file is read-only, and a writing `query` is rejected as a whole.
fn authorize(context: AuthContext<'_>) -> Authorization {
    let is_read = match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => true,
        AuthAction::Insert { .. } | AuthAction::Update { .. } | AuthAction::Delete { .. } => true,
        AuthAction::Function { function_name } => !function_name.eq_ignore_ascii_case("load_extension"),
        AuthAction::Pragma { pragma_name, pragma_value } => PRAGMAS.iter().any(|(name, takes_value)| {
            name.eq_ignore_ascii_case(pragma_name) && (*takes_value || pragma_value.is_none())
        }),
        _ => false,
    };
    if is_read { Authorization::Allow } else { Authorization::Deny }
}

/// Returns the finding for an SQLite error: transient or not, but never `ok`.
fn error_finding(error: &rusqlite::Error, wanted: &RowExpectation) -> Finding {
    let is_query = matches!(wanted, RowExpectation::Query { .. });
    // The query text is wrong or names an unknown object. A missing module is a limit of this SQLite instead.
    if let rusqlite::Error::SqlInputError { error: inner, msg, .. } = error
        && inner.code == ErrorCode::Unknown
        && is_query
        && !msg.contains("no such module")
    {
        return Finding::failed(format!("invalid query: {error}"));
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Finding::unknown_yet(format!("the database is locked: {error}"))
        }
        Some(ErrorCode::AuthorizationForStatementDenied) if is_query => rows::not_reading(),
        Some(ErrorCode::NotADatabase) => Finding::failed("the file is not a database"),
        _ => Finding::unknown(format!("cannot query the database: {error}")),
    }
}

/// The reason for an early end of a check.
enum SqliteQueryError {
    Finding(Finding),
    Error(rusqlite::Error),
}

impl SqliteQueryError {
    fn finding(self, wanted: &RowExpectation) -> Finding {
        match self {
            Self::Finding(finding) => finding,
            Self::Error(error) => error_finding(&error, wanted),
        }
    }

    /// Returns whether an interrupted transaction must be rolled back.
    fn is_interrupted_write(&self) -> bool {
        let Self::Error(error) = self else { return false };
        error.sqlite_error().is_some_and(|error| error.extended_code == SQLITE_READONLY_ROLLBACK)
    }
}

impl From<rusqlite::Error> for SqliteQueryError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Error(error)
    }
}

impl From<Finding> for SqliteQueryError {
    fn from(finding: Finding) -> Self {
        Self::Finding(finding)
    }
}

/// Replaces booleans in the expectation by 1 and 0.
fn in_numbers(wanted: RowExpectation) -> RowExpectation {
    fn number(value: &mut Value) {
        match value {
            Value::Bool(truth) => *value = u8::from(*truth).into(),
            Value::Array(items) => items.iter_mut().for_each(number),
            Value::Null | Value::Number(_) | Value::String(_) | Value::Object(_) => {}
        }
    }
    match wanted {
        RowExpectation::Query { text, mut equals } => {
            number(&mut equals);
            RowExpectation::Query { text, equals }
        }
        RowExpectation::Rows(mut rows) => {
            for map in [&mut rows.keys, &mut rows.conditions, &mut rows.values] {
                map.values_mut().for_each(number);
            }
            RowExpectation::Rows(rows)
        }
    }
}

fn query_finding(connection: &Connection, wanted: &RowExpectation) -> Result<Finding, SqliteQueryError> {
    match wanted {
        RowExpectation::Query { text, equals } => {
            let mut statement = connection.prepare(text)?;
            if !statement.readonly() {
                return Err(rows::not_reading().into());
            }
            let mut found = statement.query([])?;
            let Some(row) = found.next()? else { return Err(rows::no_row().into()) };
            Ok(rows::compared_finding(equals, &value_of(row.get_ref(0)?)?)?)
        }
        RowExpectation::Rows(rows) => {
            check_names(connection, rows)?;
            Ok(rows.compared_finding(&rows_of(connection, rows)?)?)
        }
    }
}

/// Checks that the table and its columns exist, ignoring case. SQLite would read an unknown quoted name as a
/// text.
fn check_names(connection: &Connection, rows: &TableExpectation) -> Result<(), SqliteQueryError> {
    let mut tables = connection.prepare(
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name LIMIT 10000",
    )?;
    let known = tables.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    if !known.iter().any(|known| known.eq_ignore_ascii_case(&rows.table)) {
        return Err(rows.no_table(&known).into());
    }
    // Includes generated and hidden columns.
    let mut columns = connection.prepare("SELECT name FROM pragma_table_xinfo(?1)")?;
    let known =
        columns.query_map([&rows.table], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    Ok(rows.in_columns(&known, str::eq_ignore_ascii_case)?)
}

/// Returns an SQL condition for a column value with the semantics of the row-by-row comparison. Column
/// affinity does not convert texts to numbers, and collations do not equate letters.
fn condition(column: &str, value: &Value, bound: &mut Vec<Cell>) -> String {
    let mut place = |cell: Cell| {
        bound.push(cell);
        bound.len()
    };
    let number = match value {
        Value::Null => return format!("{column} IS NULL"),
        Value::Number(number) => Some(number.clone()),
        Value::String(text) => serde_json::from_str(text).ok(),
        // Rejected or converted to a number earlier.
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let number = number.filter(|number| fits(value, &Value::Number(number.clone())) == Ok(true));
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let at = place(Cell::Text(text));
    let mut condition = format!(
        "{column} = ?{at} AND typeof({column}) = 'text' AND CAST({column} AS BLOB) = CAST(?{at} AS BLOB)"
    );
    if let Some(number) = number {
        let at = place(match number.as_i64() {
            Some(whole) => Cell::Integer(whole),
            None => Cell::Real(number.as_f64().unwrap_or(f64::NAN)),
        });
        condition += &format!(" OR {column} = ?{at} AND typeof({column}) IN ('integer', 'real')");
    }
    format!("({condition})")
}

/// Reads the compared columns of the selected rows.
fn rows_of(connection: &Connection, rows: &TableExpectation) -> Result<SelectedRows, SqliteQueryError> {
    let mut bound = Vec::new();
    let conditions: Vec<String> =
        rows.keys.iter().map(|(name, value)| condition(&quoted(name), value, &mut bound)).collect();
    let condition =
        if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
    let table = quoted(&rows.table);
    let columns: Vec<String> = rows.read().map(|name| quoted(name)).collect();
    if columns.is_empty() {
        let text = format!("SELECT count(*) FROM {table}{condition}");
        let count: i64 = connection.query_row(&text, params_from_iter(bound), |row| row.get(0))?;
        return Ok(SelectedRows::Count(u64::try_from(count).unwrap_or_default()));
    }
    let text = format!("SELECT {} FROM {table}{condition} LIMIT {}", columns.join(", "), ROWS_MAX + 1);
    let mut statement = connection.prepare(&text)?;
    let mut found = statement.query(params_from_iter(bound))?;
    let mut gathered = ReadRows::default();
    while let Some(row) = found.next()? {
        let (mut values, mut bytes) = (Vec::new(), 0);
        for at in 0..columns.len() {
            let value = row.get_ref(at)?;
            bytes += bytes_of(value);
            values.push(value_of(value)?);
        }
        gathered.push(values, bytes)?;
    }
    Ok(SelectedRows::Rows(gathered))
}

/// Returns the number of bytes that a copy of the value needs.
fn bytes_of(value: ValueRef<'_>) -> usize {
    match value {
        ValueRef::Text(text) => text.len(),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) | ValueRef::Blob(_) => 8,
    }
}

/// Converts a value to JSON. A blob, and a text that is not UTF-8, becomes its length.
fn value_of(value: ValueRef<'_>) -> Result<Value, Finding> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(whole) => whole.into(),
        // JSON would turn infinity into null.
        ValueRef::Real(real) if real.is_infinite() && real > 0.0 => "Infinity".into(),
        ValueRef::Real(real) if real.is_infinite() => "-Infinity".into(),
        ValueRef::Real(real) => real.into(),
        ValueRef::Text(text) if text.len() > ROWS_BYTES_MAX => return Err(rows::too_long()),
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => text.into(),
            Err(_) => json!({ "bytes": text.len() }),
        },
        ValueRef::Blob(bytes) => json!({ "bytes": bytes.len() }),
    })
}
