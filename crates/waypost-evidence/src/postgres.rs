//! `db_row` in PostgreSQL.
//!
//! All is asked in one transaction that only reads. Names are checked against the catalog and quoted, values are bound:
//! nothing of a claim is ever part of the text of a statement, but for a `query`, which is asked as a part of a `SELECT`.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use serde_json::{Number, Value};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, NoTls, Row};
use waypost::evidence::{Cost, Finding, Limits, Probe, Site};
use waypost::record::Claim;

use crate::decimal::{Decimal, is_plain};
use crate::login::{Login, Variables, is_here};
use crate::rows::{self, DB_ROW, Found, Gathered, ROWS_BYTES_MAX, ROWS_MAX, Rows, Wanted, quoted};
use crate::tls::ForPostgres;

/// How long a machine is called that does not answer.
const CONNECT: Duration = Duration::from_secs(5);
/// Most tables that are looked through for what there is instead of the one that was named.
const TABLES_MAX: usize = 100;
/// Digits that a fraction keeps; a number with more of them stays a text, so that none is lost.
const DIGITS_MAX: usize = 15;
/// Types of columns that have numbers, as the server calls them.
const NUMBERS: [&str; 6] = ["smallint", "integer", "bigint", "numeric", "real", "double precision"];
/// Words that a query which only reads begins with.
const READING: [&str; 4] = ["SELECT", "WITH", "VALUES", "TABLE"];

/// Checks `db_row` in a PostgreSQL database: a row of `table` where `where` holds has `values`, or `count` rows do; or the
/// first value that `query` gives `equals`.
///
/// The subject is a URL (`postgres://user@host/database`), `postgres:` and `key=value` pairs, or `postgres:env:NAME`, the
/// variable that has one of them when it is checked. Only in such a variable there may be a password; otherwise that
/// comes from `PGPASSWORD`, or `PGPASSFILE`, or `~/.pgpass`. A connection to another machine is encrypted if the server
/// can do that, and with `sslmode=require` only then; its certificate must be trusted by this machine. One that stays on
/// this machine is not, unless that is required.
///
/// - `ok`: it has, or does.
/// - `failed`: it has not; there is no such database, table or column; the query does not only read, or names what is
///   not there.
/// - `unknown`: the server is down or refuses the login, something may not be read, the time is over, the query is not
///   understood, more than 100,000 rows or 16 MiB would have to be looked at.
///
/// A function that a query calls does what it does, as far as that can be done in a transaction that only reads: give
/// who asks a role that may do no more.
#[derive(Debug, Clone, Default)]
pub struct PostgresProbe {
    variables: Variables,
}

impl PostgresProbe {
    /// Makes a probe with these variables in the place of those of the process.
    pub fn with_variables(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { variables: Variables::Given(variables.into_iter().collect()) }
    }

    async fn looked(&self, claim: &Claim) -> Result<Finding, Finding> {
        let wanted = Wanted::read(&claim.expect)?;
        let (subject, variables) = (claim.subject.clone(), self.variables.clone());
        let login = tokio::task::spawn_blocking(move || Login::of(&subject, &variables)).await;
        let login = login.unwrap_or_else(|_| Err(Finding::unknown("the check was cut short")))?;
        let (client, connection) = connect(login).await?;
        let time = claim.terms.timeout_ms.map_or(Limits::default().claim, Duration::from_millis);
        // The connection is driven beside the check, and ends with it.
        let drive = async {
            connection.await;
            pending::<Infallible>().await
        };
        tokio::select! {
            looked = looked(&client, &wanted, time) => looked,
            never = drive => match never {},
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Probe for PostgresProbe {
    fn kind(&self) -> &str {
        DB_ROW
    }

    fn cost(&self) -> Cost {
        Cost::Waiting
    }

    fn is_live(&self) -> bool {
        false
    }

    fn is_local(&self, claim: &Claim) -> bool {
        is_here(&claim.subject)
    }

    fn glance(&self, _: &Claim, _: &Site) -> Option<Finding> {
        None
    }

    async fn check(&self, claim: &Claim, _: &Site) -> Finding {
        self.looked(claim).await.unwrap_or_else(|finding| finding)
    }

    async fn pin(&self, _: &Claim, _: &Site) -> Finding {
        Finding::failed("a row is expected, not pinned")
    }
}

/// What drives a connection until it ends.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn connect(login: Login) -> Result<(Client, Driver), Finding> {
    let is_plain = login.is_plain();
    let Login { mut config, note } = login;
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
            Some(&SqlState::INVALID_CATALOG_NAME) => Finding::failed(told(&error)),
            Some(code) if !is_passing(code) => {
                Finding::unknown(format!("the server refuses the login: {}{note}", told(&error)))
            }
            Some(_) => Finding::unknown_yet(format!("the server gives no answer: {}", told(&error))),
            // A password that is missing, or TLS that is, comes to no answer either.
            None if std::error::Error::source(&error).is_some_and(|cause| cause.is::<std::io::Error>()) => {
                Finding::unknown_yet(format!("the server cannot be reached: {}", told(&error)))
            }
            None => Finding::unknown(format!("cannot connect: {}{note}", told(&error))),
        }
    })
}

/// Says what the server said, or what is in the way.
fn told(error: &Error) -> String {
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

/// Says whether what a server says may be otherwise in a moment.
fn is_passing(code: &SqlState) -> bool {
    let code = code.code();
    ["08", "40", "53", "55", "57", "58"].iter().any(|class| code.starts_with(class))
}

/// A finding in the place of an answer.
struct Ended(Finding);

impl From<Finding> for Ended {
    fn from(finding: Finding) -> Self {
        Self(finding)
    }
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        let what = told(&error);
        Self(match error.code() {
            Some(&SqlState::QUERY_CANCELED) => Finding::unknown(format!("it takes too long: {what}")),
            Some(&SqlState::READ_ONLY_SQL_TRANSACTION | &SqlState::FEATURE_NOT_SUPPORTED) => {
                rows::not_reading().because(format!("the `query` does not only read: {what}"))
            }
            Some(code) if is_passing(code) => {
                Finding::unknown_yet(format!("the server gives no answer: {what}"))
            }
            // What the claim names is not there, or cannot be compared.
            Some(
                &SqlState::UNDEFINED_TABLE
                | &SqlState::UNDEFINED_COLUMN
                | &SqlState::UNDEFINED_FUNCTION
                | &SqlState::DATATYPE_MISMATCH
                | &SqlState::CANNOT_COERCE,
            ) => Finding::failed(what),
            Some(code) if code.code().starts_with("22") => Finding::failed(what),
            Some(_) => Finding::unknown(format!("it cannot be asked: {what}")),
            None => Finding::unknown_yet(format!("the connection broke: {what}")),
        })
    }
}

async fn looked(client: &Client, wanted: &Wanted, time: Duration) -> Result<Finding, Finding> {
    let looked = async {
        // The server ends what nobody waits for any more.
        let time_ms = time.as_millis().clamp(1, 86_400_000);
        // Of rows that are hidden from who asks, the server is to say so.
        let begin = format!(
            "START TRANSACTION READ ONLY; SET LOCAL statement_timeout = {time_ms}; SET LOCAL row_security = off"
        );
        client.batch_execute(&begin).await?;
        match wanted {
            Wanted::Query { text, equals } => asked(client, text, equals).await,
            Wanted::Rows(rows) => {
                let types = in_catalog(client, rows).await?;
                Ok(rows.judged(&rows_of(client, rows, &types).await?)?)
            }
        }
    };
    looked.await.map_err(|Ended(finding)| finding)
}

/// Asks a query within another, which only a query that reads can be part of, and takes its first value.
async fn asked(client: &Client, text: &str, equals: &Value) -> Result<Finding, Ended> {
    check_query(text).map_err(|_| rows::not_reading())?;
    let text = text.trim().trim_end_matches(';');
    // The end of a line ends a comment, too.
    let text =
        format!("SELECT pg_catalog.to_json(q.\"?first?\")::text FROM (\n{text}\n) AS q(\"?first?\") LIMIT 1");
    let statement = client.prepare(&text).await?;
    if !statement.params().is_empty() {
        return Err(Finding::failed("the `query` has parameters, and nothing is bound to them").into());
    }
    let Some(row) = client.query_opt(&statement, &[]).await? else { return Err(rows::no_row().into()) };
    Ok(rows::judged(equals, &value_of(&row, 0)?.0)?)
}

/// Sees that a query begins as one that reads.
///
/// # Errors
/// It does not.
pub fn check_query(text: &str) -> Result<(), String> {
    let mut rest = text.trim_start();
    loop {
        rest = match rest {
            line if line.starts_with("--") => line.split_once('\n').map_or("", |(_, rest)| rest),
            block if block.starts_with("/*") => block.split_once("*/").map_or("", |(_, rest)| rest),
            open if open.starts_with('(') => &open[1..],
            _ => break,
        }
        .trim_start();
    }
    let word = rest.split(|letter: char| !letter.is_ascii_alphabetic()).next().unwrap_or_default();
    match READING.iter().any(|known| known.eq_ignore_ascii_case(word)) {
        true => Ok(()),
        false => Err(format!("a query that only reads begins with {}", READING.join(", "))),
    }
}

/// A table, and the types of its columns.
struct Types {
    /// Schema and name, quoted.
    table: String,
    columns: Vec<(String, String)>,
}

/// Looks for a table and its columns.
async fn in_catalog(client: &Client, rows: &Rows) -> Result<Types, Ended> {
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
    // With a length, what is longer would be cut, and then be the same.
    let text = "SELECT a.attname::text, pg_catalog.format_type(a.atttypid, -1) FROM pg_catalog.pg_attribute a \
        WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
    let columns = client.query(text, &[&oid]).await?;
    let columns = columns.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let columns = columns.collect::<Result<Vec<(String, String)>, Error>>()?;
    let known: Vec<String> = columns.iter().map(|(name, _)| name.clone()).collect();
    rows.in_columns(&known, |one, other| one == other)?;
    Ok(Types { table: format!("{}.{}", quoted(&schema), quoted(&name)), columns })
}

/// Reads the columns of which something is expected, of the rows that are meant.
async fn rows_of(client: &Client, rows: &Rows, types: &Types) -> Result<Found, Ended> {
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
        return Ok(Found::Count(u64::try_from(count).unwrap_or_default()));
    }
    let text = format!("SELECT {} FROM {table}{condition} LIMIT {}", columns.join(", "), ROWS_MAX + 1);
    let mut found = std::pin::pin!(client.query_raw(&text, bound).await?);
    let mut gathered = Gathered::default();
    while let Some(row) = found.try_next().await? {
        let (mut values, mut bytes) = (Vec::new(), 0);
        for at in 0..columns.len() {
            let (value, length) = value_of(&row, at)?;
            bytes += length;
            values.push(value);
        }
        gathered.push(values, bytes)?;
    }
    Ok(Found::Rows(gathered))
}

/// Says whether a text is a number in a spelling that is equal to none: the server would read `007` as 7.
fn is_odd_number(value: &Value) -> bool {
    value.as_str().is_some_and(|text| Decimal::read(text.trim()).is_some() && !is_plain(text))
}

/// Writes a scalar so that the server reads it as what the column has; nothing for null.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Reads a value that the server has written as JSON, and how long that is.
fn value_of(row: &Row, at: usize) -> Result<(Value, usize), Ended> {
    let Some(text) = row.try_get::<_, Option<&str>>(at)? else { return Ok((Value::Null, 4)) };
    if text.len() > ROWS_BYTES_MAX {
        return Err(rows::too_long().into());
    }
    let length = text.len();
    let text = without_end(text);
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let value = serde_json::from_str(text);
    let value = value
        .map_err(|error| Finding::unknown(format!("what the server gives is not understood: {error}")))?;
    Ok((
        match value {
            Value::Number(number) if is_inexact(&number, digits) => text.into(),
            value => value,
        },
        length,
    ))
}

/// Takes the zeros at the end of a fraction, which say nothing of a number, from one that is too long to be read exactly.
fn without_end(text: &str) -> &str {
    match text.len() > DIGITS_MAX && is_plain(text) && text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text,
    }
}

fn is_inexact(number: &Number, digits: usize) -> bool {
    !number.is_i64() && !number.is_u64() && digits > DIGITS_MAX
}
