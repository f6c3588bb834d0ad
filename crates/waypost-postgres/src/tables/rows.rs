//! Records by scope and seq. The `newest` of the scope shows a missing row.

use std::collections::HashMap;
use std::convert::Infallible;

use tokio_postgres::Row;
use waypost::id::RunId;
use waypost::record::{Flaw, Record};
use waypost::store::{Damage, StoreError};
use waypost_codec::decode::{self, frame_of};
use waypost_codec::delta_cache::CHAIN_FRAMES_MAX;
use waypost_codec::row::{ReadBody, RowPlace, StoredRow};

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::statement::Statement;
use crate::database::values::int;
use crate::tables::scopes::Scope;

/// The content at a seq.
#[derive(Debug)]
pub(crate) enum Found {
    /// A record, verified as far as read.
    Sound(Box<Record>),
    /// A damaged record outside the quarantine.
    Damaged(Box<Damage>),
    /// Nothing, or a quarantined record.
    Absent,
}

/// Reads a whole record of a scope, with the frames of the body; `seq` is at most the newest.
///
/// # Errors
/// [`StoreError::Version`] if a newer version wrote the record.
pub(crate) async fn fetch(
    database: &Database,
    run: &RunId,
    scope: &Scope,
    seq: u64,
) -> Result<Found, Failure> {
    // A row has the base of the frame, so a single statement reads the whole chain.
    const CHAIN: &str = "WITH RECURSIVE chain AS (
            SELECT seq, codec, base, digest, header, body, 1 AS frames FROM waypost.records
            WHERE scope = $1 AND seq = $2
            UNION ALL
            SELECT r.seq, r.codec, r.base, NULL, NULL, r.body, c.frames + 1
            FROM chain c JOIN waypost.records r ON r.scope = $1 AND r.seq = c.base WHERE c.frames < $3)
        SELECT codec, digest, header, body IS NOT NULL, body, seq FROM chain ORDER BY frames";
    let chain = Statement::new(CHAIN).int(scope.id).int(int(seq)).int(i64::from(CHAIN_FRAMES_MAX));
    let answer = database.run(&chain).await?;
    let Some((own, below)) = answer.rows.split_first() else {
        return missing(database, run, scope, seq).await;
    };
    let flaw = match open_whole(database, run, scope, seq, own, below) {
        Ok(record) => return Ok(Found::Sound(Box::new(record))),
        Err(flaw) => flaw,
    };
    damaged(damage_at(database, run, scope, seq, flaw))
}

/// Returns the record of a row without the body: `codec, digest, header, body IS NOT NULL` from the column `at` on.
pub(crate) fn open_header(
    database: &Database,
    run: &RunId,
    scope: &Scope,
    seq: u64,
    (row, at): (&Row, usize),
) -> Result<Found, Failure> {
    let opened = stored_row(row, at).and_then(|stored| {
        stored.open(&database.delta_cache, RowPlace { run, scope: &scope.path, seq }, Ok(ReadBody::Nothing))
    });
    match opened {
        Ok(record) => Ok(Found::Sound(Box::new(record))),
        Err(flaw) => damaged(damage_at(database, run, scope, seq, flaw)),
    }
}

fn open_whole(
    database: &Database,
    run: &RunId,
    scope: &Scope,
    seq: u64,
    own: &Row,
    below: &[Row],
) -> Result<Record, Flaw> {
    let stored = stored_row(own, 0)?;
    let body: Option<Vec<u8>> = own.get(4);
    let body = match (stored.codec.and_then(decode::kind), body) {
        (Some(kind), Some(bytes)) => {
            let frame = |row: &Row| (row.get::<_, i64>(5) as u64, frame_of(row.get(0), row.get(4)));
            let mut frames: HashMap<u64, _> = below.iter().map(frame).collect();
            let frame_at = |base: u64| {
                let frame = frames.remove(&base);
                Ok::<_, Infallible>(frame.unwrap_or_else(|| Err("the record is missing".to_owned())))
            };
            let Ok(frames) = decode::follow(seq, (kind, bytes), frame_at);
            let decoded =
                frames.and_then(|frames| decode::decode(&database.delta_cache, run, &scope.path, &frames));
            decoded.map(ReadBody::Decoded)
        }
        (_, body) => Ok(body.map_or(ReadBody::Nothing, ReadBody::Plain)),
    };
    stored.open(&database.delta_cache, RowPlace { run, scope: &scope.path, seq }, body)
}

fn stored_row(row: &Row, at: usize) -> Result<StoredRow, Flaw> {
    let digest: &[u8] = row.get(at + 1);
    let digest = digest.try_into().map_err(|_| {
        Flaw::Malformed(format!("the digest in the row has {} bytes, expected 32", digest.len()))
    })?;
    Ok(StoredRow { codec: row.get(at), digest, header: row.get(at + 2), has_body: row.get(at + 3) })
}

/// Judges a seq without a row: quarantined, or lost.
pub(crate) async fn missing(
    database: &Database,
    run: &RunId,
    scope: &Scope,
    seq: u64,
) -> Result<Found, Failure> {
    if quarantined(database, scope, seq, seq).await?.is_empty() {
        return damaged(lost(database, run, scope, seq));
    }
    Ok(Found::Absent)
}

/// Returns the damage of a lost record.
pub(crate) fn lost(database: &Database, run: &RunId, scope: &Scope, seq: u64) -> Damage {
    damage_at(database, run, scope, seq, Flaw::Malformed("the record is missing".to_owned()))
}

/// Returns the seqs in quarantine of a range.
pub(crate) async fn quarantined(
    database: &Database,
    scope: &Scope,
    low: u64,
    high: u64,
) -> Result<Vec<u64>, Failure> {
    const QUARANTINED: &str = "SELECT seq FROM waypost.quarantine WHERE scope = $1 AND seq BETWEEN $2 AND $3";
    let find = Statement::new(QUARANTINED).int(scope.id).int(int(low)).int(int(high));
    Ok(database.run(&find).await?.rows.iter().map(|row| row.get::<_, i64>(0) as u64).collect())
}

fn damage_at(database: &Database, run: &RunId, scope: &Scope, seq: u64, flaw: Flaw) -> Damage {
    let place = format!("{}, table `records`, scope {} seq {seq}", database.name, scope.id);
    Damage { run: run.clone(), scope: scope.path.clone(), seq, place, flaw }
}

/// Returns damage as found; a newer format is an error instead.
fn damaged(damage: Damage) -> Result<Found, Failure> {
    match damage.flaw {
        Flaw::Format { .. } => Err(StoreError::of_damage(damage, None).into()),
        _ => Ok(Found::Damaged(Box::new(damage))),
    }
}
