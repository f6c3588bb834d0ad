//! `db_row`: expectations of rows, independent of the database.

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site};
use waypost::record::Claim;

use crate::check;
use crate::check_count;
use crate::databases::subject::{PgVariables, is_postgres};
use crate::databases::{postgres, sqlite};
use crate::expectations::expected::Expected;
use crate::expectations::observed::recorded;
use crate::fits;
use crate::sign_of;

/// Recorded kind of claims about rows.
pub const DB_ROW: &str = "db_row";
/// Most rows that are compared individually; a claim is about a single row or a count.
pub(crate) const ROWS_MAX: usize = 100_000;
/// Most bytes of values that are compared. They are held in memory, and up to eight checks run at once.
pub(crate) const ROWS_BYTES_MAX: usize = 16 << 20;
/// Most tables or columns that a message lists as alternatives.
const NAMED_MAX: usize = 10;

/// Checks `db_row`: in PostgreSQL if the subject is a PostgreSQL database, else in an SQLite file.
///
/// A row of `table` that matches `where` has `values`, or `count` rows match. With `query`, the first value
/// `equals` the expectation.
///
/// - `ok`: the expectation fits.
/// - `failed`: the expectation differs, the database, table or column does not exist, or the query is not
///   read-only or names an unknown object.
/// - `unknown`: the database cannot be opened or reached, refuses the login, or was replaced; permissions are
///   missing; the check timed out; or more than 100,000 rows or 16 MiB would be read.
///
/// SQLite lacks booleans: `true` means 1, and `false` means 0.
///
/// A PostgreSQL database is a URL (`postgres://user@host/database`), `postgres:` and `key=value` pairs, or
/// `postgres:env:NAME`. The variable `NAME` is read at the check and may contain a password. Other passwords
/// come from `PGPASSWORD`, `PGPASSFILE` or `~/.pgpass`.
///
/// A connection to another machine is encrypted if the server supports encryption; `sslmode=require` makes
/// encryption mandatory. This machine must trust the certificate of the server. A local connection is
/// encrypted only with `sslmode=require`.
///
/// A function in a PostgreSQL query can still have side effects that a read-only transaction permits. Use a
/// role with minimal permissions.
#[derive(Debug, Clone, Default)]
pub struct RowProbe {
    variables: PgVariables,
}

impl RowProbe {
    /// Returns a probe that reads these variables for PostgreSQL instead of the process environment.
    pub fn with_variables(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { variables: PgVariables::Given(variables.into_iter().collect()) }
    }
}

#[async_trait]
impl Probe for RowProbe {
    fn kind(&self) -> ProbeKind {
        let is_local = |claim: &Claim| !is_postgres(&claim.subject) || postgres::is_here(&claim.subject);
        ProbeKind::new(DB_ROW, Cost::Waiting).local_if(is_local)
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let wanted = RowExpectation::read(&claim.expect)?;
        match is_postgres(&claim.subject) {
            true => postgres::check(claim, wanted, self.variables.clone()).await,
            false => sqlite::check(claim, wanted, site).await,
        }
    }
}

/// The parsed expectation of a claim.
#[derive(Debug)]
pub(crate) enum RowExpectation {
    Rows(Box<TableExpectation>),
    Query { text: String, equals: Value },
}

/// Expectations of the rows of a table.
#[derive(Debug)]
pub(crate) struct TableExpectation {
    pub(crate) table: String,
    /// `where` entries with a plain value: the SQL statement selects by them.
    pub(crate) keys: Map<String, Value>,
    /// `where` entries with a comparison: they are evaluated row by row.
    pub(crate) conditions: Map<String, Value>,
    pub(crate) values: Map<String, Value>,
    pub(crate) count: Option<Value>,
}

/// The selected rows of a table.
#[derive(Debug)]
pub(crate) enum SelectedRows {
    /// The number of rows; the claim expects no values.
    Count(u64),
    /// The values in the [columns that are read](Rows::read).
    Rows(ReadRows),
}

/// Rows read so far, within the limits.
#[derive(Debug, Default)]
pub(crate) struct ReadRows {
    rows: Vec<Vec<Value>>,
    bytes: usize,
}

impl ReadRows {
    /// Adds a row whose values have `bytes` bytes, or returns a finding if a limit is exceeded.
    pub(crate) fn push(&mut self, row: Vec<Value>, bytes: usize) -> Result<(), Finding> {
        self.bytes += bytes;
        if self.rows.len() == ROWS_MAX {
            return Err(Finding::unknown(format!("the claim matches more than {ROWS_MAX} rows")));
        }
        if self.bytes > ROWS_BYTES_MAX {
            return Err(too_long());
        }
        self.rows.push(row);
        Ok(())
    }
}

pub(crate) fn too_long() -> Finding {
    Finding::unknown(format!("the result exceeds {} MiB", ROWS_BYTES_MAX >> 20))
}

impl RowExpectation {
    pub(crate) fn read(expect: &Value) -> Result<Self, Finding> {
        let failed = |why: &str| Err(Finding::failed(why));
        let known = ["table", "where", "values", "count", "query", "equals"];
        let expect = Expected::read(expect, "rows", &known)?;
        let map = |name: &str| expect.map(name, "columns");
        let count = expect.checked("count", check_count)?;
        let equals = expect.value("equals")?;
        match (expect.get("table"), expect.get("query")) {
            (Some(Value::String(table)), None) if equals.is_none() => {
                let (conditions, keys) =
                    map("where")?.into_iter().partition(|(_, value)| is_condition(value));
                let rows = TableExpectation {
                    table: table.clone(),
                    keys,
                    conditions,
                    values: map("values")?,
                    count: count.cloned(),
                };
                Ok(Self::Rows(Box::new(rows.checked()?)))
            }
            (None, Some(Value::String(text))) if expect.len() == 2 => match equals {
                Some(equals) => Ok(Self::Query { text: text.clone(), equals: equals.clone() }),
                None => failed("a `query` needs `equals`"),
            },
            _ => failed("the claim needs a `table`, or a `query` with `equals`"),
        }
    }
}

impl TableExpectation {
    fn checked(self) -> Result<Self, Finding> {
        for (key, map) in [("where", &self.conditions), ("values", &self.values)] {
            for (name, value) in map {
                let wrong = |error| Finding::failed(format!("`{key}`: column `{name}`: {error}"));
                check(value).map_err(wrong)?;
            }
        }
        for (name, value) in &self.keys {
            // A rounded number cannot be compared even with itself.
            let wrong = |error| Finding::failed(format!("`where`: column `{name}`: {error}"));
            fits(value, value).map_err(wrong)?;
        }
        Ok(self)
    }

    /// Returns the columns that are compared row by row.
    pub(crate) fn read(&self) -> impl Iterator<Item = &String> {
        self.conditions.keys().chain(self.values.keys())
    }

    /// Returns all columns that the claim names.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &String> {
        self.keys.keys().chain(self.read())
    }

    /// Returns the finding for the selected rows.
    pub(crate) fn compared_finding(&self, found: &SelectedRows) -> Result<Finding, Finding> {
        let mut meant = 0_usize;
        // Without a match, the finding shows the row with the most matching values.
        let mut nearest: Option<(usize, &[Value])> = None;
        let number = match found {
            SelectedRows::Count(count) => *count,
            SelectedRows::Rows(gathered) => {
                let mut number = 0;
                for row in &gathered.rows {
                    let (keys, values) = row.split_at(self.conditions.len());
                    if fitting(&self.conditions, keys)? == keys.len() {
                        let fits = fitting(&self.values, values)?;
                        number += u64::from(fits == values.len());
                        meant += 1;
                        if nearest.is_none_or(|(most, _)| fits > most) {
                            nearest = Some((fits, values));
                        }
                    }
                }
                number
            }
        };
        let holds = match &self.count {
            Some(count) => fits(count, &json!(number))?,
            None => number > 0,
        };
        let nearest = nearest.filter(|_| self.count.is_none() && !self.values.is_empty());
        let found = match nearest {
            Some((_, nearest)) => {
                let columns = self.values.keys().cloned().zip(nearest.iter().map(recorded));
                json!({ "rows": meant, "values": columns.collect::<Map<_, _>>() })
            }
            None => json!({ "rows": number }),
        };
        Ok(Finding::compared(holds, found))
    }

    /// Returns a finding for a missing table that lists the existing tables.
    pub(crate) fn no_table(&self, known: &[String]) -> Finding {
        Finding::failed(format!("the database has no table `{}`{}", self.table, but(known)))
    }

    /// Checks that the table has every column of the claim; `is_same` compares column names.
    pub(crate) fn in_columns(
        &self,
        known: &[String],
        is_same: impl Fn(&str, &str) -> bool,
    ) -> Result<(), Finding> {
        match self.columns().find(|column| !known.iter().any(|known| is_same(known, column))) {
            Some(column) => {
                Err(Finding::failed(format!("table `{}` has no column `{column}`{}", self.table, but(known))))
            }
            None => Ok(()),
        }
    }
}

/// Returns whether a `where` value is a comparison. Comparisons are evaluated row by row, outside the SQL
/// statement.
fn is_condition(value: &Value) -> bool {
    match value {
        Value::String(text) => sign_of(text).is_some(),
        Value::Array(_) | Value::Object(_) => true,
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Counts the values of a row that match. A value that cannot be compared is an error only if all values
/// before it match.
fn fitting(expect: &Map<String, Value>, found: &[Value]) -> Result<usize, Finding> {
    let mut count = 0;
    for (place, (wanted, found)) in expect.values().zip(found).enumerate() {
        match fits(wanted, found) {
            Ok(fits) => count += usize::from(fits),
            Err(error) if count == place => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(count)
}

/// Formats the list of existing names for a message.
fn but(known: &[String]) -> String {
    let mut names: Vec<String> = known.iter().take(NAMED_MAX).map(|name| format!("`{name}`")).collect();
    match known.len() {
        0 => return ": no column".to_owned(),
        count if count > NAMED_MAX => names.push("others".to_owned()),
        _ => {}
    }
    format!(": it has {}", names.join(", "))
}

/// Returns the finding for the first value of a query.
pub(crate) fn compared_finding(wanted: &Value, found: &Value) -> Result<Finding, Finding> {
    Ok(Finding::compared(fits(wanted, found)?, recorded(found)))
}

/// Returns the finding for a query without a row.
pub(crate) fn no_row() -> Finding {
    Finding::absent("the `query` returned no row")
}

/// Returns the finding for a query that could write.
pub(crate) fn not_reading() -> Finding {
    Finding::failed("the `query` is not read-only")
}

/// Quotes an SQL identifier.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
