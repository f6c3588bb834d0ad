//! `db_row`: rows of an SQLite database are as expected.
//!
//! The database is opened for reading only. Names are checked against its catalog and quoted, values are bound: nothing of
//! a claim is ever part of the text of a statement, but for a `query`, which must be one that only reads.

use async_trait::async_trait;
use rusqlite::types::{Value as Cell, ValueRef};
use rusqlite::{Connection, ErrorCode, InterruptHandle, OpenFlags, params_from_iter};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::Duration;
use waypost::evidence::{Cost, Finding, Probe, Site, find_file};
use waypost::record::Claim;

use crate::fits;

/// Recorded kind of claims about rows.
pub const DB_ROW: &str = "db_row";
/// How long a writer is waited for, within the time of the check.
const BUSY: Duration = Duration::from_secs(2);
/// Most rows that are looked at: a claim is about one, or about how many there are.
const ROWS_MAX: usize = 100_000;

/// Checks `db_row` in an SQLite file: a row of `table` where `where` holds has `values`, or `count` rows do; or the first
/// value that `query` gives `equals`.
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
            let connection = match open(&path) {
                Ok(connection) => connection,
                Err(error) => return told_of(&error),
            };
            let _ = told.send(connection.get_interrupt_handle());
            wanted.check(&connection).unwrap_or_else(|error| error.0)
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

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Says of an error whether trying again may help. None says that a claim holds.
fn told_of(error: &rusqlite::Error) -> Finding {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Finding::unknown_yet(format!("it is in use: {error}"))
        }
        _ => Finding::unknown(format!("it cannot be asked: {error}")),
    }
}

/// A finding in the place of an answer.
struct Ended(Finding);

impl From<rusqlite::Error> for Ended {
    fn from(error: rusqlite::Error) -> Self {
        Self(told_of(&error))
    }
}

#[derive(Debug)]
enum Wanted {
    Rows { table: String, keys: Map<String, Value>, values: Map<String, Value>, count: Option<Value> },
    Query { text: String, equals: Value },
}

impl Wanted {
    fn read(expect: &Value) -> Result<Self, Finding> {
        let failed = |why: &str| Err(Finding::failed(why));
        let Value::Object(expect) = expect else { return failed("no row is expected") };
        let known = ["table", "where", "values", "count", "query", "equals"];
        if let Some(other) = expect.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(Finding::unknown(format!("the expectation `{other}` cannot be checked here")));
        }
        let map = |name: &str| match expect.get(name) {
            None => Ok(Map::new()),
            Some(Value::Object(map)) if !map.is_empty() => Ok(map.clone()),
            Some(_) => Err(Finding::failed(format!("`{name}` is a map of columns and values"))),
        };
        match (expect.get("table"), expect.get("query")) {
            (Some(Value::String(table)), None) if !expect.contains_key("equals") => {
                let (keys, values) = (map("where")?, map("values")?);
                Ok(Self::Rows { table: table.clone(), keys, values, count: expect.get("count").cloned() })
            }
            (None, Some(Value::String(text))) if expect.len() == 2 => match expect.get("equals") {
                Some(equals) => Ok(Self::Query { text: text.clone(), equals: equals.clone() }),
                None => failed("a `query` needs what it `equals`"),
            },
            _ => failed("a row is told by a `table`, or by a `query` and what it `equals`"),
        }
    }

    fn check(&self, connection: &Connection) -> Result<Finding, Ended> {
        match self {
            Self::Query { text, equals } => {
                let mut statement = connection.prepare(text)?;
                if !statement.readonly() {
                    return Err(Ended(Finding::failed("the `query` does not only read")));
                }
                let mut rows = statement.query([])?;
                let Some(row) = rows.next()? else {
                    return Err(Ended(Finding::absent("the `query` gives no row")));
                };
                compared(equals, value_of(row.get_ref(0)?))
            }
            Self::Rows { table, keys, values, count } => {
                let columns: Vec<&str> = keys.keys().chain(values.keys()).map(String::as_str).collect();
                in_catalog(connection, table, &columns)?;
                let rows = rows_of(connection, table, (keys, values))?;
                counted(&rows, values, count.as_ref())
            }
        }
    }
}

/// Sees that a table and its columns are there: an unknown name in quotes would be a text to SQLite.
fn in_catalog(connection: &Connection, table: &str, columns: &[&str]) -> Result<(), Ended> {
    let absent = |what: String| Err(Ended(Finding::failed(what)));
    let mut tables =
        connection.prepare("SELECT 1 FROM sqlite_schema WHERE type IN ('table', 'view') AND name = ?1")?;
    if !tables.exists([table])? {
        return absent(format!("it has no table `{table}`"));
    }
    let mut known = connection.prepare("SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2")?;
    for column in columns {
        if !known.exists([table, column])? {
            return absent(format!("table `{table}` has no column `{column}`"));
        }
    }
    Ok(())
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Reads the columns that are expected of the rows that are meant.
fn rows_of(
    connection: &Connection,
    table: &str,
    (keys, values): (&Map<String, Value>, &Map<String, Value>),
) -> Result<Vec<Vec<Value>>, Ended> {
    let columns: Vec<String> = values.keys().map(|name| quoted(name)).collect();
    let columns = if columns.is_empty() { "1".to_owned() } else { columns.join(", ") };
    // `IS`, as null is equal to nothing.
    let conditions: Vec<String> =
        keys.keys().enumerate().map(|(at, name)| format!("{} IS ?{}", quoted(name), at + 1)).collect();
    let condition =
        if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
    let text = format!("SELECT {columns} FROM {}{condition} LIMIT {}", quoted(table), ROWS_MAX + 1);
    let bound = keys.iter().map(|(name, value)| cell_of(name, value)).collect::<Result<Vec<_>, _>>()?;
    let mut statement = connection.prepare(&text)?;
    let mut found = statement.query(params_from_iter(bound))?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        rows.push(
            (0..values.len()).map(|at| Ok(value_of(row.get_ref(at)?))).collect::<rusqlite::Result<_>>()?,
        );
    }
    if rows.len() > ROWS_MAX {
        return Err(Ended(Finding::unknown(format!("more than {ROWS_MAX} rows are meant"))));
    }
    Ok(rows)
}

fn counted(
    rows: &[Vec<Value>],
    values: &Map<String, Value>,
    count: Option<&Value>,
) -> Result<Finding, Ended> {
    let fitting = |row: &&Vec<Value>| -> Result<bool, Ended> {
        for (wanted, found) in values.values().zip(row.iter()) {
            let fit = fits(wanted, found).map_err(|error| Ended(Finding::failed(error.to_string())))?;
            if !fit {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let mut number = 0_u64;
    for row in rows {
        number += u64::from(fitting(&row)?);
    }
    let found = match (rows.first(), count) {
        (Some(row), None) if !values.is_empty() => {
            let columns = values.keys().cloned().zip(row.iter().cloned());
            json!({ "rows": rows.len(), "values": columns.collect::<Map<_, _>>() })
        }
        _ => json!({ "rows": number }),
    };
    let holds = match count {
        Some(count) => fits(count, &json!(number))
            .map_err(|error| Ended(Finding::failed(format!("`count`: {error}"))))?,
        None => number > 0,
    };
    Ok(if holds { Finding::ok(found) } else { Finding::differs(found) })
}

fn compared(wanted: &Value, found: Value) -> Result<Finding, Ended> {
    match fits(wanted, &found) {
        Ok(true) => Ok(Finding::ok(found)),
        Ok(false) => Ok(Finding::differs(found)),
        Err(error) => Err(Ended(Finding::failed(error.to_string()))),
    }
}

fn cell_of(name: &str, value: &Value) -> Result<Cell, Ended> {
    Ok(match value {
        Value::Null => Cell::Null,
        Value::Bool(truth) => Cell::Integer((*truth).into()),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Cell::Integer(whole),
            None => Cell::Real(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Cell::Text(text.clone()),
        Value::Array(_) | Value::Object(_) => {
            return Err(Ended(Finding::failed(format!(
                "`where`: column `{name}` is compared with one value"
            ))));
        }
    })
}

/// Writes a value as JSON; of bytes, how many they are.
fn value_of(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(whole) => whole.into(),
        ValueRef::Real(real) => real.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(bytes) => json!({ "bytes": bytes.len() }),
    }
}
