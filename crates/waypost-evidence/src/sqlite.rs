//! `db_row` in SQLite files.
//!
//! The database is opened for reading only, and nothing is written beside it. Names are checked against its catalog and quoted, values are bound: nothing of
//! a claim is ever part of the text of a statement, but for a `query`, which must be one that only reads.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::ffi::SQLITE_READONLY_ROLLBACK;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Value as Cell, ValueRef};
use rusqlite::{Connection, ErrorCode, InterruptHandle, params_from_iter};
use serde_json::{Value, json};
use waypost::evidence::{Cost, Finding, Probe, Site, Spot, find_spot};
use waypost::record::Claim;

use crate::database_file::{DatabaseFile, left_behind};
use crate::fits;
use crate::rows::{self, DB_ROW, Found, Gathered, ROWS_BYTES_MAX, ROWS_MAX, Rows, Wanted, quoted};

/// How long a writer is waited for, within the time of the check.
const BUSY: Duration = Duration::from_secs(2);
/// Pragmas that look at something and change nothing. With a value, some of them would: those may have none.
const PRAGMAS: [(&str, bool); 28] = [
    ("application_id", false),
    ("auto_vacuum", false),
    ("cache_size", false),
    ("collation_list", false),
    ("compile_options", false),
    // Full-text search looks at this and at `page_size` itself.
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

/// Largest value on the way to an answer; SQLite alone would take 1 GB, and eight checks run at once.
const VALUE_BYTES_MAX: i32 = 64 << 20;
/// After how many of its instructions SQLite asks whether anybody still waits: some microseconds.
const INSTRUCTIONS: i32 = 10_000;

/// Checks `db_row` in an SQLite file: a row of `table` where `where` holds has `values`, or `count` rows do; or the first
/// value that `query` gives `equals`.
///
/// - `ok`: it has, or does.
/// - `failed`: it has not; there is no such file, table or column; the query does not only read.
/// - `unknown`: it cannot be opened, another file is put in its place, who wrote to it was cut off, the query is not
///   understood, the table is of a kind that this SQLite does not have, more than 100,000 rows or 16 MiB would have to be
///   looked at.
///
/// SQLite has no truth: `true` means 1, and `false` 0.
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
        let spot = match find_spot(site, &claim.subject).await {
            Ok(spot) => spot,
            Err(finding) => return finding.either_way(),
        };
        let (answer, found) = tokio::sync::oneshot::channel();
        // Who is not waited for any more ends its statement.
        let asking = Asking::default();
        let asked = asking.0.clone();
        // A thread of its own: one that hangs in the system keeps nobody else from coming to an end.
        let thread = std::thread::Builder::new().name("sqlite".to_owned()).spawn(move || {
            let _ = answer.send(answered(spot, in_numbers(wanted), &asked));
        });
        match thread {
            Ok(_) => found.await.unwrap_or_else(|_| Finding::unknown("the check was cut short")),
            Err(error) => Finding::unknown_yet(format!("there is no thread for it: {error}")),
        }
    }

    async fn pin(&self, _: &Claim, _: &Site) -> Finding {
        Finding::failed("a row is expected, not pinned")
    }
}

/// A question that somebody waits for; dropped, it ends what is done for it.
#[derive(Default)]
struct Asking(Arc<Asked>);

#[derive(Default)]
struct Asked {
    is_over: AtomicBool,
    /// Ends what is one long instruction.
    handle: Mutex<Option<InterruptHandle>>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        if let Some(handle) = &*self.0.handle.lock().unwrap_or_else(PoisonError::into_inner) {
            handle.interrupt();
        }
    }
}

/// Looks into a database, as long as somebody waits for that.
fn answered(spot: Spot, wanted: Wanted, asked: &Arc<Asked>) -> Finding {
    let database = match open(spot, asked) {
        Ok(database) => database,
        Err(ended) => return ended.finding(&wanted),
    };
    let found = looked(&database.connection, &wanted);
    if let Some(changed) = database.changed() {
        return changed;
    }
    found.unwrap_or_else(|ended| if ended.is_hot() { hot(database.path()) } else { ended.finding(&wanted) })
}

fn open(spot: Spot, asked: &Arc<Asked>) -> Result<DatabaseFile, Ended> {
    let mut database = DatabaseFile::open(spot)?;
    let connection = &mut database.connection;
    let seen = Arc::clone(asked);
    connection.progress_handler(INSTRUCTIONS, Some(move || seen.is_over.load(Ordering::SeqCst)))?;
    *asked.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.get_interrupt_handle());
    if asked.is_over.load(Ordering::SeqCst) {
        return Err(Finding::unknown("nobody waits for it").into());
    }
    connection.busy_timeout(BUSY)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.authorizer(Some(allowed))?;
    if let Some(changed) = database.changed() {
        return Err(changed.into());
    }
    Ok(database)
}

/// Says that a transaction was cut off amid its writes: what it wrote must be undone before anybody can read.
fn hot(path: &Path) -> Finding {
    left_behind(path, "-journal", "undoes what was not finished")
}

/// Says what a statement may do: look. Attaching another file, a transaction and most pragmas are not that, though SQLite
/// counts them among what only reads. Tables that are programs, as those of R*Trees, prepare statements that write as soon as
/// they are opened; the file is open for reading only, and a `query` of such a kind is refused as a whole.
fn allowed(context: AuthContext<'_>) -> Authorization {
    let is_looking = match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => true,
        AuthAction::Insert { .. } | AuthAction::Update { .. } | AuthAction::Delete { .. } => true,
        AuthAction::Function { function_name } => !function_name.eq_ignore_ascii_case("load_extension"),
        AuthAction::Pragma { pragma_name, pragma_value } => PRAGMAS.iter().any(|(name, takes_value)| {
            name.eq_ignore_ascii_case(pragma_name) && (*takes_value || pragma_value.is_none())
        }),
        _ => false,
    };
    if is_looking { Authorization::Allow } else { Authorization::Deny }
}

/// Says of an error whether trying again may help. None says that a claim holds.
fn told_of(error: &rusqlite::Error, wanted: &Wanted) -> Finding {
    let is_query = matches!(wanted, Wanted::Query { .. });
    // What the text itself says is wrong, or names what is not there; not what this SQLite has not learnt.
    if let rusqlite::Error::SqlInputError { error: inner, msg, .. } = error
        && inner.code == ErrorCode::Unknown
        && is_query
        && !msg.contains("no such module")
    {
        return Finding::failed(format!("it cannot be asked so: {error}"));
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Finding::unknown_yet(format!("it is in use: {error}"))
        }
        Some(ErrorCode::AuthorizationForStatementDenied) if is_query => rows::not_reading(),
        Some(ErrorCode::NotADatabase) => Finding::failed("it is no database"),
        _ => Finding::unknown(format!("it cannot be asked: {error}")),
    }
}

/// What stands in the place of an answer.
enum Ended {
    Finding(Finding),
    Error(rusqlite::Error),
}

impl Ended {
    fn finding(self, wanted: &Wanted) -> Finding {
        match self {
            Self::Finding(finding) => finding,
            Self::Error(error) => told_of(&error, wanted),
        }
    }

    /// Says whether a transaction was cut off, and has to be undone.
    fn is_hot(&self) -> bool {
        let Self::Error(error) = self else { return false };
        error.sqlite_error().is_some_and(|error| error.extended_code == SQLITE_READONLY_ROLLBACK)
    }
}

impl From<rusqlite::Error> for Ended {
    fn from(error: rusqlite::Error) -> Self {
        Self::Error(error)
    }
}

impl From<Finding> for Ended {
    fn from(finding: Finding) -> Self {
        Self::Finding(finding)
    }
}

/// Makes numbers of what is true or not, as SQLite has them.
fn in_numbers(wanted: Wanted) -> Wanted {
    fn number(value: &mut Value) {
        match value {
            Value::Bool(truth) => *value = u8::from(*truth).into(),
            Value::Array(items) => items.iter_mut().for_each(number),
            Value::Null | Value::Number(_) | Value::String(_) | Value::Object(_) => {}
        }
    }
    match wanted {
        Wanted::Query { text, mut equals } => {
            number(&mut equals);
            Wanted::Query { text, equals }
        }
        Wanted::Rows(mut rows) => {
            for map in [&mut rows.keys, &mut rows.conditions, &mut rows.values] {
                map.values_mut().for_each(number);
            }
            Wanted::Rows(rows)
        }
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

/// Sees that a table and its columns are there, in whatever case: an unknown name in quotes would be a text to SQLite.
fn in_catalog(connection: &Connection, rows: &Rows) -> Result<(), Ended> {
    let mut tables = connection.prepare(
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name LIMIT 10000",
    )?;
    let known = tables.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    if !known.iter().any(|known| known.eq_ignore_ascii_case(&rows.table)) {
        return Err(rows.no_table(&known).into());
    }
    // With those that are calculated, or that only searches have.
    let mut columns = connection.prepare("SELECT name FROM pragma_table_xinfo(?1)")?;
    let known =
        columns.query_map([&rows.table], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    Ok(rows.in_columns(&known, str::eq_ignore_ascii_case)?)
}

/// Writes that a column has this value, just as it would be compared row by row: a text is another value than the number that
/// a column would make of it, and no other letters are the same.
fn condition(column: &str, value: &Value, bound: &mut Vec<Cell>) -> String {
    let mut place = |cell: Cell| {
        bound.push(cell);
        bound.len()
    };
    let number = match value {
        Value::Null => return format!("{column} IS NULL"),
        Value::Number(number) => Some(number.clone()),
        Value::String(text) => serde_json::from_str(text).ok(),
        // Refused, or made a number, when it was read.
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

/// Reads the columns of which something is expected, of the rows that are meant.
fn rows_of(connection: &Connection, rows: &Rows) -> Result<Found, Ended> {
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

/// How long a value is that would be copied.
fn bytes_of(value: ValueRef<'_>) -> usize {
    match value {
        ValueRef::Text(text) => text.len(),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) | ValueRef::Blob(_) => 8,
    }
}

/// Writes a value as JSON; of bytes, and of a text that is none, how many they are.
fn value_of(value: ValueRef<'_>) -> Result<Value, Finding> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(whole) => whole.into(),
        // To JSON it would be null.
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
