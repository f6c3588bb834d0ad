//! Pruning of bodies, and full frames for dependent bodies.
//!
//! Reads make the plan: under the lease, no other process changes the run, and this process writes a single batch at a
//! time. The applying statement compares the token.

use std::collections::BTreeSet;

use waypost::id::RunId;
use waypost::record::RETENTION_MIN;
use waypost::store::Trimmed;
use waypost::store::retention::{self, Mark};
use waypost_codec::encode::{CODEC_TRIMMED, encode_full};

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::statement::Statement;
use crate::database::values::{count, int, main_key};
use crate::tables::lease::LeaseRow;
use crate::tables::rows::{Found, fetch};
use crate::tables::scopes::{self, Scope};
use crate::write::removal::Freed;

/// The plan for a scope.
#[derive(Debug)]
struct ScopePlan {
    scope: i64,
    drop: Vec<i64>,
    freed: Vec<Freed>,
    /// Removed bytes, less the bytes of new full frames.
    bytes: i64,
}

/// Drops the bodies of all sound checkpoints of each scope except [`retention::kept`]. Without a token, only counts
/// the bodies.
pub(crate) async fn trim(
    database: &Database,
    run: &RunId,
    token: Option<u64>,
    keep: u32,
) -> Result<Trimmed, Failure> {
    let id = scopes::run_id(database, run).await?;
    if let Some(token) = token {
        let lease = LeaseRow::get(database, run).await?;
        if !(lease.held && lease.token == token) {
            return Err(lease.fenced(run, token).into());
        }
    }
    let keep = keep.max(RETENTION_MIN);
    let mut trimmed = Trimmed::default();
    for scope in full_scopes(database, id, keep).await? {
        let Some(plan) = plan(database, run, &scope, keep).await? else { continue };
        trimmed.checkpoints += plan.drop.len() as u64;
        trimmed.bytes += count(plan.bytes);
        if let Some(token) = token {
            apply(database, run, token, plan).await?;
        }
    }
    Ok(trimmed)
}

/// Returns the scopes with more than `keep` bodies.
async fn full_scopes(database: &Database, run: i64, keep: u32) -> Result<Vec<Scope>, Failure> {
    const FULL: &str = "SELECT id FROM waypost.scopes WHERE run = $1 AND bodies > $2 ORDER BY id";
    let full = Statement::new(FULL).int(run).int(i64::from(keep));
    let mut scopes = Vec::new();
    for row in database.run(&full).await?.rows {
        scopes.extend(scopes::list(database, run, row.get(0), 1).await?);
    }
    Ok(scopes)
}

async fn plan(
    database: &Database,
    run: &RunId,
    scope: &Scope,
    keep: u32,
) -> Result<Option<ScopePlan>, Failure> {
    const BODIES: &str = "SELECT seq, length(body)::bigint, base FROM waypost.records
        WHERE scope = $1 AND body IS NOT NULL ORDER BY seq DESC";
    let rows = database.run(&Statement::new(BODIES).int(scope.id)).await?.rows;
    let (mut marks, mut sound) = (Vec::new(), BTreeSet::new());
    for row in &rows {
        let seq = count(row.get(0));
        // Damaged records are neither counted nor changed.
        if let Found::Sound(record) = fetch(database, run, scope, seq).await? {
            marks.push(if marks.is_empty() { Mark::of_newest(&record) } else { Mark::of(record.header()) });
            sound.insert(seq);
        }
    }
    let stays = retention::kept(&marks, keep);
    let drop: BTreeSet<u64> = sound.difference(&stays).copied().collect();
    if drop.is_empty() {
        return Ok(None);
    }
    let (mut freed, mut bytes) = (Vec::new(), 0);
    for row in &rows {
        let (seq, size) = (count(row.get(0)), row.get::<_, i64>(1));
        if drop.contains(&seq) {
            bytes += size;
            continue;
        }
        let base = row.get::<_, Option<i64>>(2).map(count);
        if base.is_some_and(|base| drop.contains(&base))
            && let Found::Sound(record) = fetch(database, run, scope, seq).await?
        {
            let stored = encode_full(&database.delta_cache, &record);
            let (codec, body) = stored.columns(record.body_bytes().map(|body| body.as_slice()));
            bytes -= body.map_or(0, |body| int(body.len() as u64)) - size;
            let body = body.map(<[u8]>::to_vec);
            freed.push(Freed { seq: int(seq), codec, body, bytes_before: size });
        }
    }
    Ok(Some(ScopePlan { scope: scope.id, drop: drop.into_iter().map(int).collect(), freed, bytes }))
}

async fn apply(database: &Database, run: &RunId, token: u64, plan: ScopePlan) -> Result<(), Failure> {
    // A repetition finds no body to drop, and writes the same frames.
    const APPLY: &str = "WITH locked AS MATERIALIZED (
            SELECT m.id FROM waypost.runs r JOIN waypost.scopes m ON m.run = r.id AND m.key = $2
            WHERE r.name = $1 AND m.token = $3 AND m.held FOR NO KEY UPDATE OF m),
        freed AS (
            UPDATE waypost.records r SET codec = f.codec, base = NULL, body = f.body
            FROM unnest($6::bigint[], $7::bigint[], $8::bytea[]) AS f (seq, codec, body)
            WHERE r.scope = $4 AND r.seq = f.seq AND EXISTS (SELECT 1 FROM locked) RETURNING 1),
        dropped AS (
            UPDATE waypost.records r SET codec = $9, base = NULL, body = NULL
            WHERE r.scope = $4 AND r.seq = ANY($5) AND r.body IS NOT NULL AND EXISTS (SELECT 1 FROM locked)
            RETURNING 1),
        counted AS (
            UPDATE waypost.scopes s SET bodies = s.bodies - (SELECT count(*) FROM dropped),
                bytes = s.bytes - CASE WHEN EXISTS (SELECT 1 FROM dropped) THEN $10 ELSE 0 END
            WHERE s.id = $4 AND EXISTS (SELECT 1 FROM locked) RETURNING 1)
        SELECT (SELECT count(*) FROM locked), (SELECT count(*) FROM counted), (SELECT count(*) FROM freed)";
    let ScopePlan { scope, drop, freed, bytes } = plan;
    let apply = Statement::new(APPLY)
        .text(run.as_str())
        .bytes(main_key())
        .int(int(token))
        .int(scope)
        .ints(drop.into_iter().map(Some).collect())
        .ints(freed.iter().map(|freed| Some(freed.seq)).collect())
        .ints(freed.iter().map(|freed| freed.codec).collect())
        .bytes_list(freed.into_iter().map(|freed| freed.body).collect())
        .int(CODEC_TRIMMED)
        .int(bytes);
    let answer = database.run(&apply).await?;
    match answer.row()?.get::<_, i64>(0) {
        0 => Err(LeaseRow::get(database, run).await?.fenced(run, token).into()),
        _ => Ok(()),
    }
}
