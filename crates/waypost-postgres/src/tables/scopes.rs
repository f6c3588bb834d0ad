//! Runs by name, and the scopes of a run: a row for each scope, with the end of the scope.

use tokio_postgres::Row;
use waypost::id::{RunId, ScopePath};
use waypost::store::StoreError;

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::statement::Statement;
use crate::database::values::{count, int, key_of};

/// The row of a scope.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pub(crate) id: i64,
    pub(crate) path: ScopePath,
    /// A hint; the newest sound header decides.
    pub(crate) open: bool,
    /// The highest seq ever.
    pub(crate) newest: u64,
}

impl Scope {
    /// Reads `id, path, open, newest` from the column `at` on.
    fn read(row: &Row, at: usize) -> Result<Self, Failure> {
        let path: String = row.get(at + 1);
        let path = ScopePath::new(&path).map_err(|error| {
            StoreError::Invalid(format!("table `scopes`, row {}: {error}", row.get::<_, i64>(at)))
        })?;
        let newest = count(row.get(at + 3));
        Ok(Self { id: row.get(at), path, open: row.get(at + 2), newest })
    }
}

/// Returns the id of a run.
///
/// # Errors
/// [`StoreError::NotFound`]: the run does not exist.
pub(crate) async fn run_id(database: &Database, run: &RunId) -> Result<i64, Failure> {
    let find = Statement::new("SELECT id FROM waypost.runs WHERE name = $1").text(run.as_str());
    let answer = database.run(&find).await?;
    let row = answer.rows.first().ok_or_else(|| StoreError::no_run(&database.name, run))?;
    Ok(row.get(0))
}

/// Returns a scope of a run; `None` without records.
///
/// # Errors
/// [`StoreError::NotFound`]: the run does not exist.
pub(crate) async fn find(
    database: &Database,
    run: &RunId,
    scope: &ScopePath,
) -> Result<Option<Scope>, Failure> {
    const FIND: &str = "SELECT s.id, s.path, s.open, s.newest FROM waypost.runs r
        LEFT JOIN waypost.scopes s ON s.run = r.id AND s.key = $2 AND s.newest > 0 WHERE r.name = $1";
    let find = Statement::new(FIND).text(run.as_str()).bytes(key_of(scope));
    let answer = database.run(&find).await?;
    let row = answer.rows.first().ok_or_else(|| StoreError::no_run(&database.name, run))?;
    row.get::<_, Option<i64>>(0).map(|_| Scope::read(row, 0)).transpose()
}

/// Returns scopes of a run from the id `from` on, in order of opening.
pub(crate) async fn list(
    database: &Database,
    run: i64,
    from: i64,
    limit: usize,
) -> Result<Vec<Scope>, Failure> {
    const LIST: &str = "SELECT id, path, open, newest FROM waypost.scopes
        WHERE run = $1 AND id >= $2 AND newest > 0 ORDER BY id LIMIT $3";
    let list = Statement::new(LIST).int(run).int(from).int(int(limit as u64));
    database.run(&list).await?.rows.iter().map(|row| Scope::read(row, 0)).collect()
}
