//! Logs and large lists, in chunks.

use waypost::folder::is_log;
use waypost::id::RunId;
use waypost::store::{BLOB_CHUNK_BYTES, Lease, StoreError, check_blob_name};

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::statement::Statement;
use crate::database::values::{count, int, main_key};
use crate::tables::lease::LeaseRow;

/// Returns a statement with the table of a blob: a log is in the partition of the month of its run `r`.
fn in_table(text: &str, name: &str) -> String {
    let (table, month, value, condition) = match is_log(name) {
        true => ("waypost.logs", "month, ", "left(r.created_at, 7), ", "AND b.month = left(r.created_at, 7)"),
        false => ("waypost.blobs", "", "", ""),
    };
    text.replace("{TABLE}", table)
        .replace("{MONTH}", month)
        .replace("{VALUE}", value)
        .replace("{IN_MONTH}", condition)
}

/// Returns the size of a blob of a run.
pub(crate) async fn size(database: &Database, run: &RunId, name: &str) -> Result<u64, Failure> {
    const SIZE: &str = "SELECT b.at + length(b.bytes) FROM waypost.runs r
        JOIN {TABLE} b ON b.run = r.id AND b.name = $2 {IN_MONTH} WHERE r.name = $1 ORDER BY b.at DESC LIMIT 1";
    let size = Statement::new(in_table(SIZE, name)).text(run.as_str()).text(name);
    Ok(database.run(&size).await?.rows.first().map_or(0, |row| count(row.get(0))))
}

/// Adds a chunk at the end of a blob; returns the new end. `end` is the expected end: a repetition after a
/// lost answer adds no second chunk. A `worker` with a task of the run needs no lease of the run.
///
/// The chunk is not yet on disk: a later synced commit makes the chunk durable.
pub(crate) async fn append(
    database: &Database,
    lease: &Lease,
    name: &str,
    (end, worker): (Option<u64>, Option<i64>),
    bytes: &[u8],
) -> Result<u64, Failure> {
    const APPEND: &str = "WITH asynchronous AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)),
        locked AS MATERIALIZED (
            SELECT m.run, r.created_at FROM waypost.runs r JOIN waypost.scopes m ON m.run = r.id AND m.key = $2
            WHERE r.name = $1 AND (m.token = $3 AND m.held OR EXISTS (
                SELECT 1 FROM waypost.tasks t WHERE t.run = m.run AND t.worker = $7 AND t.result IS NULL))
            FOR SHARE OF m),
        put AS (
            INSERT INTO {TABLE} ({MONTH}run, name, at, bytes) SELECT {VALUE}r.run, $4, $5, $6 FROM locked r
            WHERE $5 = coalesce((SELECT b.at + length(b.bytes) FROM {TABLE} b
                WHERE b.run = r.run AND b.name = $4 {IN_MONTH} ORDER BY b.at DESC LIMIT 1), 0) RETURNING 1)
        SELECT (SELECT count(*) FROM locked), (SELECT count(*) FROM put), (SELECT count(*) FROM asynchronous)";
    let (run, token) = (lease.run(), lease.token());
    let mut at = match end {
        Some(end) => end,
        None => size(database, run, name).await?,
    };
    let after = |at: u64| at + bytes.len() as u64;
    // The second attempt follows a crash of the server with a loss of the last chunks.
    for _ in 0..2 {
        let append = Statement::new(in_table(APPEND, name))
            .text(run.as_str())
            .bytes(main_key())
            .int(int(token))
            .text(name)
            .int(int(at))
            .bytes(bytes.to_vec())
            .int(worker);
        let answer = database.run(&append).await?;
        let row = answer.row()?;
        if row.get::<_, i64>(0) == 0 {
            return Err(LeaseRow::get(database, run).await?.fenced(run, token).into());
        }
        let found = match row.get::<_, i64>(1) {
            0 => size(database, run, name).await?,
            _ => return Ok(after(at)),
        };
        if answer.repeated && found == after(at) {
            return Ok(found);
        }
        at = found;
    }
    Err(StoreError::Invalid(format!("blob `{name}` of run {run} has another writer")).into())
}

/// Checks that a lease, or a `worker` with a task of the run, may write logs of the run.
///
/// # Errors
/// [`StoreError::Fenced`]: another lease is newer.
pub(crate) async fn check_writer(
    database: &Database,
    lease: &Lease,
    worker: Option<i64>,
) -> Result<(), Failure> {
    const WRITER: &str = "SELECT 1 FROM waypost.runs r JOIN waypost.scopes m ON m.run = r.id AND m.key = $2
        WHERE r.name = $1 AND (m.token = $3 AND m.held OR EXISTS (
            SELECT 1 FROM waypost.tasks t WHERE t.run = m.run AND t.worker = $4 AND t.result IS NULL))";
    let (run, token) = (lease.run(), lease.token());
    let writer = Statement::new(WRITER).text(run.as_str()).bytes(main_key()).int(int(token)).int(worker);
    match database.run(&writer).await?.rows.is_empty() {
        true => Err(LeaseRow::get(database, run).await?.fenced(run, token).into()),
        false => Ok(()),
    }
}

/// Checks name and size of a chunk.
///
/// # Errors
/// [`StoreError::Invalid`]: the name is invalid, or the chunk is too large.
pub(crate) fn check(name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    check_blob_name(name)?;
    match bytes.len() > BLOB_CHUNK_BYTES {
        true => Err(StoreError::Invalid(format!("{} bytes are more than one chunk", bytes.len()))),
        false => Ok(()),
    }
}

/// Reads the rest of the chunk at `offset`; empty at the end and for a missing blob.
pub(crate) async fn read(
    database: &Database,
    run: &RunId,
    name: &str,
    offset: u64,
) -> Result<Vec<u8>, Failure> {
    // Several small chunks, as of a log, are read together.
    const READ: &str = "SELECT b.at, b.bytes FROM waypost.runs r
        JOIN {TABLE} b ON b.run = r.id AND b.name = $2 {IN_MONTH} AND b.at >= coalesce((
            SELECT b.at FROM {TABLE} b WHERE b.run = r.id AND b.name = $2 {IN_MONTH} AND b.at <= $3
            ORDER BY b.at DESC LIMIT 1), 0)
        WHERE r.name = $1 ORDER BY b.at LIMIT 64";
    let Ok(from) = i64::try_from(offset) else { return Ok(Vec::new()) };
    if check_blob_name(name).is_err() {
        return Ok(Vec::new());
    }
    let read = Statement::new(in_table(READ, name)).text(run.as_str()).text(name).int(from);
    let mut found = Vec::new();
    for row in database.run(&read).await?.rows {
        let (at, bytes): (i64, &[u8]) = (row.get(0), row.get(1));
        // After a gap, the rest of the blob is unknown.
        let Some(skip) = offset.checked_add(found.len() as u64).and_then(|next| next.checked_sub(count(at)))
        else {
            break;
        };
        found.extend_from_slice(bytes.get(skip as usize..).unwrap_or_default());
        if found.len() >= BLOB_CHUNK_BYTES {
            break;
        }
    }
    found.truncate(BLOB_CHUNK_BYTES);
    Ok(found)
}
