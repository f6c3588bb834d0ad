//! Messages to runs.

use waypost::Digest;
use waypost::id::RunId;
use waypost::store::{Signal, Signalled, StoreError};

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::statement::Statement;
use crate::database::values::main_key;
use crate::tables::lease::with_claimable;

/// Returns the key of a signal: an id may have any length and any characters.
pub(crate) fn key_of(id: &str) -> Vec<u8> {
    Digest::of(id.as_bytes()).as_bytes().to_vec()
}

/// Adds a signal. A submitted run with work left is ready then: a holder consumes the signal, or the next worker does after the release.
pub(crate) async fn add(database: &Database, run: &RunId, signal: &Signal) -> Result<Signalled, Failure> {
    const ADD: &str = "WITH run AS (SELECT id FROM waypost.runs WHERE name = $1),
        added AS (INSERT INTO waypost.signals (run, key, message) SELECT id, $2, $3 FROM run
            ON CONFLICT (run, key) DO NOTHING RETURNING id),
        woken AS (INSERT INTO waypost.ready (scope, run, priority)
            SELECT m.id, m.run, j.priority FROM run JOIN waypost.jobs j ON j.run = run.id
            JOIN waypost.scopes m ON m.run = run.id AND m.key = $4 WHERE EXISTS (SELECT 1 FROM added) AND {CLAIMABLE}
            ON CONFLICT (scope) DO UPDATE SET not_before = NULL)
        SELECT (SELECT count(*) FROM run), (SELECT count(*) FROM added)";
    let message = serde_json::to_vec(signal).map_err(|error| StoreError::Invalid(error.to_string()))?;
    let add = Statement::new(with_claimable(ADD))
        .text(run.as_str())
        .bytes(key_of(&signal.id))
        .bytes(message)
        .bytes(main_key());
    let answer = database.run(&add).await?;
    let row = answer.row()?;
    match (row.get::<_, i64>(0), row.get::<_, i64>(1)) {
        (0, _) => Err(StoreError::no_run(&database.name, run).into()),
        (_, 0) if !answer.repeated => Ok(Signalled::Before),
        _ => Ok(Signalled::Now),
    }
}

/// Returns the pending signals, oldest first.
pub(crate) async fn pending(database: &Database, run: &RunId) -> Result<Vec<Signal>, Failure> {
    const PENDING: &str = "SELECT s.message FROM waypost.runs r
        LEFT JOIN waypost.signals s ON s.run = r.id AND NOT s.consumed WHERE r.name = $1 ORDER BY s.id";
    let answer = database.run(&Statement::new(PENDING).text(run.as_str())).await?;
    if answer.rows.is_empty() {
        return Err(StoreError::no_run(&database.name, run).into());
    }
    answer.rows.iter().filter_map(|row| row.get::<_, Option<&[u8]>>(0)).map(parse).collect()
}

/// Parses a stored message.
pub(crate) fn parse(message: &[u8]) -> Result<Signal, Failure> {
    serde_json::from_slice(message).map_err(|error| {
        StoreError::Invalid(format!("table `signals` has an unreadable message: {error}")).into()
    })
}
