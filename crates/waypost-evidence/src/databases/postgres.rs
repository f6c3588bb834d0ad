//! `db_row` in PostgreSQL.
//!
//! A check uses a single read-only transaction. Names are looked up in the catalog and quoted, and values are
//! bound. Only a `query` becomes statement text, as a subquery of a `SELECT`.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use serde_json::{Number, Value};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, NoTls, Row};
use waypost::evidence::{Finding, Limits};
use waypost::record::Claim;

use crate::databases::pg_config::PgConfig;
use crate::databases::pg_tls::ForPostgres;
use crate::databases::rows::{
    self, ROWS_BYTES_MAX, ROWS_MAX, ReadRows, RowExpectation, SelectedRows, TableExpectation, quoted,
};
use crate::databases::subject::{PgVariables, check_query};
use crate::expectations::decimal::{Decimal, is_plain};

pub(crate) use crate::databases::pg_config::{check_subject, is_here};

/// Default connect timeout.
const CONNECT: Duration = Duration::from_secs(5);
/// Most tables read from the catalog for the message about a missing table.
const TABLES_MAX: usize = 100;
/// Digits that `f64` keeps. A fraction with more digits stays a text to avoid rounding.
const DIGITS_MAX: usize = 15;
/// Numeric column types, as named by the server.
const NUMBERS: [&str; 6] = ["smallint", "integer", "bigint", "numeric", "real", "double precision"];

/// Checks a claim about a PostgreSQL database.
pub(crate) async fn check(
    claim: &Claim,
    wanted: RowExpectation,
    variables: PgVariables,
) -> Result<Finding, Finding> {
    let subject = claim.subject.clone();
    let login = tokio::task::spawn_blocking(move || PgConfig::of(&subject, &variables)).await;
    let login = login.unwrap_or_else(|_| Err(Finding::unknown("the check was interrupted")))?;
    let (client, connection) = connect(login).await?;
    let time = claim.terms.timeout_ms.map_or(Limits::default().claim, Duration::from_millis);
    // The connection is polled with the check and dropped with it.
    let drive = async {
        connection.await;
        pending::<Infallible>().await
    };
    tokio::select! {
        query_finding = query_finding(&client, &wanted, time) => query_finding,
        never = drive => match never {},
    }
}

/// A future that drives a connection until its end.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn connect(login: PgConfig) -> Result<(Client, Driver), Finding> {
    let is_plain = login.is_plain();
    let PgConfig { mut config, note } = login;
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT);
    }
    config.application_name("waypost");
    let connected: Result<(Client, Driver), Error> = if is_plain {
        let connected = config.connect(NoTls).await;
        connected.map(|(client, connection)| (client, Box::pin(async { drop(connection.await) }) as Driver))
    } else {
        let connected = config.connect(ForPostgres).await;
        connected.map(|(client, connection)| (client, Box::pin(async { drop(connection.await) }) as Driver))
    };
    connected.map_err(|error| {
        let note = note.map(|note| format!(" ({note})")).unwrap_or_default();
        match error.code() {
            Some(&SqlState::INVALID_CATALOG_NAME) => Finding::failed(error_text(&error)),
            Some(code) if !is_transient(code) => {
                Finding::unknown(format!("the server refused the login: {}{note}", error_text(&error)))
            }
            Some(_) => Finding::unknown_yet(format!("no response from the server: {}", error_text(&error))),
            // A missing password or missing TLS support also has no SQLSTATE.
            None if std::error::Error::source(&error).is_some_and(|cause| cause.is::<std::io::Error>()) => {
                Finding::unknown_yet(format!("cannot reach the server: {}", error_text(&error)))
            }
            None => Finding::unknown(format!("cannot connect: {}{note}", error_text(&error))),
        }
    })
}

/// Returns the message of the server, or the chain of causes.
fn error_text(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        return error.message().to_owned();
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        let _ = write!(text, ": {next}");
        cause = next.source();
    }
    text
}

/// Returns whether an SQLSTATE is transient.
fn is_transient(code: &SqlState) -> bool {
    let code = code.code();
    ["08", "40", "53", "55", "57", "58"].iter().any(|class| code.starts_with(class))
}

/// A finding that ends a check early.
struct PgQueryError(Finding);

impl From<Finding> for PgQueryError {
    fn from(finding: Finding) -> Self {
        Self(finding)
    }
}

impl From<Error> for PgQueryError {
    fn from(error: Error) -> Self {
        let what = error_text(&error);
        Self(match error.code() {
            Some(&SqlState::QUERY_CANCELED) => Finding::unknown(format!("the `query` timed out: {what}")),
            Some(&SqlState::READ_ONLY_SQL_TRANSACTION | &SqlState::FEATURE_NOT_SUPPORTED) => {
                rows::not_reading().because(format!("the `query` is not read-only: {what}"))
            }
            Some(code) if is_transient(code) => {
                Finding::unknown_yet(format!("no response from the server: {what}"))
            }
            // The claim names an unknown object, or types that cannot be compared.
            Some(
                &SqlState::UNDEFINED_TABLE
                | &SqlState::UNDEFINED_COLUMN
                | &SqlState::UNDEFINED_FUNCTION
                | &SqlState::DATATYPE_MISMATCH
                | &SqlState::CANNOT_COERCE,
            ) => Finding::failed(what),
            Some(code) if code.code().starts_with("22") => Finding::failed(what),
            Some(_) => Finding::unknown(format!("the `query` failed: {what}")),
            None => Finding::unknown_yet(format!("the connection was closed: {what}")),
        })
    }
}

async fn query_finding(client: &Client, wanted: &RowExpectation, time: Duration) -> Result<Finding, Finding> {
    let query_finding = async {
        // The server cancels the statement when the check's time is over.
        let time_ms = time.as_millis().clamp(1, 86_400_000);
        // The server must report rows hidden by row security instead of omitting them.
        let begin = format!(
            "START TRANSACTION READ ONLY; SET LOCAL statement_timeout = {time_ms}; SET LOCAL row_security = off"
        );
        client.batch_execute(&begin).await?;
        match wanted {
            RowExpectation::Query { text, equals } => query_value(client, text, equals).await,
            RowExpectation::Rows(rows) => {
                let types = look_up_types(client, rows).await?;
                Ok(rows.compared_finding(&rows_of(client, rows, &types).await?)?)
            }
        }
    };
    query_finding.await.map_err(|PgQueryError(finding)| finding)
}

/// Runs a query as a subquery, which only a reading query can be, and compares its first value.
async fn query_value(client: &Client, text: &str, equals: &Value) -> Result<Finding, PgQueryError> {
    check_query(text).map_err(|_| rows::not_reading())?;
    let text = text.trim().trim_end_matches(';');
    // The line break ends a trailing comment in the query.
    let text =
        format!("SELECT pg_catalog.to_json(q.\"?first?\")::text FROM (\n{text}\n) AS q(\"?first?\") LIMIT 1");
    let statement = client.prepare(&text).await?;
    if !statement.params().is_empty() {
        return Err(Finding::failed("the `query` has parameters, which are not supported").into());
    }
    let Some(row) = client.query_opt(&statement, &[]).await? else { return Err(rows::no_row().into()) };
    Ok(rows::compared_finding(equals, &value_of(&row, 0)?.0)?)
}

/// A table and its column types.
struct Types {
    /// Quoted schema and name.
    table: String,
    columns: Vec<(String, String)>,
}

/// Looks up a table and its columns in the catalog.
async fn look_up_types(client: &Client, rows: &TableExpectation) -> Result<Types, PgQueryError> {
    let (schema, name) = rows.table.split_once('.').unwrap_or_default();
    let text = "SELECT n.nspname::text, c.relname::text, c.oid \
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND (c.relname::text = $1 AND pg_catalog.pg_table_is_visible(c.oid) \
        OR n.nspname::text = $2 AND c.relname::text = $3) ORDER BY c.relname::text = $1 DESC LIMIT 1";
    let Some(found) = client.query_opt(text, &[&rows.table, &schema, &name]).await? else {
        let text = "SELECT c.relname::text \
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
            WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND pg_catalog.pg_table_is_visible(c.oid) \
            AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1 LIMIT $1";
        let known = client.query(text, &[&(TABLES_MAX as i64)]).await?;
        let known = known.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, Error>>()?;
        return Err(rows.no_table(&known).into());
    };
    let (schema, name): (String, String) = (found.try_get(0)?, found.try_get(1)?);
    let oid: u32 = found.try_get(2)?;
    // A type with a length would truncate longer values, which would then compare equal.
    let text = "SELECT a.attname::text, pg_catalog.format_type(a.atttypid, -1) FROM pg_catalog.pg_attribute a \
        WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
    let columns = client.query(text, &[&oid]).await?;
    let columns = columns.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let columns = columns.collect::<Result<Vec<(String, String)>, Error>>()?;
    let known: Vec<String> = columns.iter().map(|(name, _)| name.clone()).collect();
    rows.in_columns(&known, |one, other| one == other)?;
    Ok(Types { table: format!("{}.{}", quoted(&schema), quoted(&name)), columns })
}

/// Reads the compared columns of the selected rows.
async fn rows_of(
    client: &Client,
    rows: &TableExpectation,
    types: &Types,
) -> Result<SelectedRows, PgQueryError> {
    let (mut conditions, mut bound) = (Vec::new(), Vec::new());
    for (name, value) in &rows.keys {
        let Some(text) = text_of(value) else {
            conditions.push(format!("{} IS NULL", quoted(name)));
            continue;
        };
        let of_column = types.columns.iter().find(|(known, _)| known == name).map_or("text", |(_, of)| of);
        if NUMBERS.contains(&of_column) && is_odd_number(value) {
            conditions.push("false".to_owned());
            continue;
        }
        bound.push(text);
        conditions.push(format!("{} = CAST(${}::text AS {of_column})", quoted(name), bound.len()));
    }
    let condition =
        if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
    let table = &types.table;
    let bound: Vec<&(dyn ToSql + Sync)> = bound.iter().map(|text| text as &(dyn ToSql + Sync)).collect();
    let columns: Vec<String> =
        rows.read().map(|name| format!("pg_catalog.to_json({})::text", quoted(name))).collect();
    if columns.is_empty() {
        let text = format!("SELECT count(*) FROM {table}{condition}");
        let count: i64 = client.query_one(&text, &bound).await?.try_get(0)?;
        return Ok(SelectedRows::Count(u64::try_from(count).unwrap_or_default()));
    }
    let text = format!("SELECT {} FROM {table}{condition} LIMIT {}", columns.join(", "), ROWS_MAX + 1);
    let mut found = std::pin::pin!(client.query_raw(&text, bound).await?);
    let mut gathered = ReadRows::default();
    while let Some(row) = found.try_next().await? {
        let (mut values, mut bytes) = (Vec::new(), 0);
        for at in 0..columns.len() {
            let (value, length) = value_of(&row, at)?;
            bytes += length;
            values.push(value);
        }
        gathered.push(values, bytes)?;
    }
    Ok(SelectedRows::Rows(gathered))
}

/// Returns whether a text is a number in a non-canonical spelling, which fits no number. The server would
/// read `007` as 7.
fn is_odd_number(value: &Value) -> bool {
    value.as_str().is_some_and(|text| Decimal::read(text.trim()).is_some() && !is_plain(text))
}

/// Formats a scalar as text that the server casts to the column type; `None` for null.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Parses a value that the server formatted as JSON; returns the value and its length in bytes.
fn value_of(row: &Row, at: usize) -> Result<(Value, usize), PgQueryError> {
    let Some(text) = row.try_get::<_, Option<&str>>(at)? else { return Ok((Value::Null, 4)) };
    if text.len() > ROWS_BYTES_MAX {
        return Err(rows::too_long().into());
    }
    let length = text.len();
    let text = without_end(text);
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let value = serde_json::from_str(text);
    let value = value
        .map_err(|error| Finding::unknown(format!("cannot decode the response of the server: {error}")))?;
    Ok((
        match value {
            Value::Number(number) if is_inexact(&number, digits) => text.into(),
            value => value,
        },
        length,
    ))
}

/// Strips trailing zeros from a fraction that is too long for an exact `f64`.
fn without_end(text: &str) -> &str {
    match text.len() > DIGITS_MAX && is_plain(text) && text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text,
    }
}

fn is_inexact(number: &Number, digits: usize) -> bool {
    !number.is_i64() && !number.is_u64() && digits > DIGITS_MAX
}
