//! Quarantine and deletion.

use waypost::id::RunId;
use waypost::record::Flaw;
use waypost::store::{Damage, StoreError};
use waypost_codec::encode::encode_full;

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::statement::Statement;
use crate::database::values::{int, main_key};
use crate::tables::lease::{LeaseRow, with_lease};
use crate::tables::rows::{Found, fetch, quarantined};
use crate::tables::scopes::{self, Scope};

/// Moves a damaged record to quarantine, byte for byte. Dependent bodies get full frames in the
/// same statement: the damaged record may have a sound frame.
pub(crate) async fn quarantine(database: &Database, token: u64, damage: &Damage) -> Result<(), Failure> {
    const MOVE: &str = "WITH locked AS MATERIALIZED (
            SELECT m.id FROM waypost.scopes m JOIN waypost.scopes s ON s.run = m.run
            WHERE s.id = $1 AND m.key = $3 AND m.token = $4 AND m.held FOR NO KEY UPDATE OF m),
        freed AS (
            UPDATE waypost.records r SET codec = f.codec, base = NULL, body = f.body
            FROM unnest($6::bigint[], $7::bigint[], $8::bytea[]) AS f (seq, codec, body)
            WHERE r.scope = $1 AND r.seq = f.seq AND EXISTS (SELECT 1 FROM locked)
            RETURNING length(f.body) - $9[array_position($6::bigint[], f.seq)] AS grown),
        gone AS (
            DELETE FROM waypost.records r WHERE r.scope = $1 AND r.seq = $2 AND EXISTS (SELECT 1 FROM locked)
            RETURNING r.*),
        aside AS (
            INSERT INTO waypost.quarantine (run, scope, seq, why, codec, base, digest, header, body)
            SELECT s.run, $1, $2, $5, g.codec, g.base, g.digest, g.header, g.body
            FROM waypost.scopes s LEFT JOIN gone g ON true
            WHERE s.id = $1 AND EXISTS (SELECT 1 FROM locked) RETURNING 1),
        counted AS (
            UPDATE waypost.scopes s SET
                tip = CASE WHEN s.newest = $2 THEN NULL ELSE s.tip END,
                records = s.records - (SELECT count(*) FROM gone),
                bodies = s.bodies - (SELECT count(body) FROM gone),
                bytes = s.bytes + (SELECT coalesce(sum(grown), 0) FROM freed)
                    - (SELECT coalesce(sum(length(header) + coalesce(length(body), 0)), 0) FROM gone)
            WHERE s.id = $1 AND EXISTS (SELECT 1 FROM locked) RETURNING 1)
        SELECT (SELECT count(*) FROM locked), (SELECT count(*) FROM aside), (SELECT count(*) FROM counted)";
    let run = &damage.run;
    let lease = LeaseRow::get(database, run).await?;
    if !(lease.held && lease.token == token) {
        return Err(lease.fenced(run, token).into());
    }
    let scope = scopes::find(database, run, &damage.scope).await?;
    let scope = scope.ok_or_else(|| StoreError::no_scope(run, &damage.scope))?;
    let found = match damage.seq {
        seq @ 1.. if seq <= scope.newest => fetch(database, run, &scope, seq).await?,
        _ => Found::Absent,
    };
    let Found::Damaged(found) = found else {
        let seq = damage.seq;
        return Err(StoreError::Invalid(format!("run {run} has no damaged record {seq} to move")).into());
    };
    let freed = dependants(database, run, &scope, damage.seq).await?;
    let why = match &found.flaw {
        Flaw::Malformed(why) => why.clone(),
        flaw => flaw.to_string(),
    };
    let quarantine = Statement::new(MOVE)
        .int(scope.id)
        .int(int(damage.seq))
        .bytes(main_key())
        .int(int(token))
        .text(why.replace('\0', "\u{fffd}"))
        .ints(freed.iter().map(|freed| Some(freed.seq)).collect())
        .ints(freed.iter().map(|freed| freed.codec).collect())
        .bytes_list(freed.iter().map(|freed| freed.body.clone()).collect())
        .ints(freed.iter().map(|freed| Some(freed.bytes_before)).collect());
    let answer = database.run(&quarantine).await?;
    if answer.row()?.get::<_, i64>(0) == 1 {
        return Ok(());
    }
    match answer.repeated && !quarantined(database, &scope, damage.seq, damage.seq).await?.is_empty() {
        true => Ok(()),
        false => Err(LeaseRow::get(database, run).await?.fenced(run, token).into()),
    }
}

/// A body with a new full frame.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) seq: i64,
    pub(crate) codec: Option<i64>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) bytes_before: i64,
}

/// Returns the sound records with record `seq` as delta base, with full frames.
pub(crate) async fn dependants(
    database: &Database,
    run: &RunId,
    scope: &Scope,
    seq: u64,
) -> Result<Vec<Freed>, Failure> {
    const ABOVE: &str =
        "SELECT seq, length(body)::bigint FROM waypost.records WHERE scope = $1 AND seq > $2 AND base = $2";
    let above = Statement::new(ABOVE).int(scope.id).int(int(seq));
    let mut freed = Vec::new();
    for row in database.run(&above).await?.rows {
        let (seq, bytes_before) = (row.get::<_, i64>(0), row.get::<_, Option<i64>>(1).unwrap_or_default());
        if let Found::Sound(record) = fetch(database, run, scope, seq as u64).await? {
            let stored = encode_full(&database.delta_cache, &record);
            let (codec, body) = stored.columns(record.body_bytes().map(|body| body.as_slice()));
            freed.push(Freed { seq, codec, body: body.map(<[u8]>::to_vec), bytes_before });
        }
    }
    Ok(freed)
}

/// Deletes a run with all rows, while the lease is free.
pub(crate) async fn delete(database: &Database, run: &RunId) -> Result<(), Failure> {
    const DELETE: &str = "WITH free AS MATERIALIZED (
            SELECT m.run FROM waypost.runs r JOIN waypost.scopes m ON m.run = r.id AND m.key = $2
            WHERE r.name = $1 AND (NOT {HELD} OR m.token = $3)
            FOR UPDATE OF m)
        DELETE FROM waypost.runs r USING free WHERE r.id = free.run RETURNING r.id";
    let mut dead = None;
    for _ in 0..2 {
        let delete =
            Statement::new(with_lease(DELETE)).text(run.as_str()).bytes(main_key()).int(dead.map(int));
        let answer = database.run(&delete).await?;
        if !answer.rows.is_empty() {
            return Ok(());
        }
        let row = match LeaseRow::get(database, run).await {
            Err(Failure::Store(StoreError::NotFound { .. })) if answer.repeated => return Ok(()),
            row => row?,
        };
        dead = row.token_of_dead();
        if let Some(held) = row.held_error(run).filter(|_| dead.is_none()) {
            return Err(held.into());
        }
    }
    let held = LeaseRow::get(database, run).await?.held_error(run);
    Err(held.unwrap_or(StoreError::Held { run: run.clone(), holder: None, until: None }).into())
}
