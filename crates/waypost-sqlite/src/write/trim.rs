//! Pruning of bodies, and full frames for bodies that depend on pruned bodies.
//!
//! The plan is made while other writers continue: bodies are verified, and the new frames are encoded. The
//! transaction only checks that nothing has changed, and applies the plan.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension, params};
use waypost::id::RunId;
use waypost::record::{RETENTION_MIN, Record};
use waypost::store::Trimmed;
use waypost::store::retention::{self, Mark};

use crate::database::error::{Failure, SqliteError};
use crate::database::heads::RunRow;
use crate::database::open::Place;
use crate::database::values::{count, int};
use crate::tables::read::View;
use crate::tables::rows::{Found, SEQ_MAX, Want, fetch, key, seq_of};
use crate::tables::scope::Scope;
use waypost_codec::encode::{CODEC_DELTA, CODEC_TRIMMED};
use waypost_codec::encode::{StoredBody, encode_full};
use waypost_codec::frame;

/// The plan of a trim.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    scopes: Vec<ScopePlan>,
    checkpoints: u64,
    /// Removed bytes, less the bytes of new full frames.
    bytes: i64,
}

#[derive(Debug)]
struct ScopePlan {
    scope: Scope,
    drop: BTreeSet<u64>,
    /// Kept bodies that get a full frame.
    freed: Vec<Freed>,
    /// All kept records whose delta base is dropped, including damaged records.
    dependants: Vec<u64>,
    /// Records that keep their bodies, with digests.
    kept: Vec<(u64, [u8; 32])>,
}

/// A body with its new full frame.
#[derive(Debug)]
pub(crate) struct Freed {
    seq: u64,
    digest: [u8; 32],
    kept: StoredBody,
    plain: Option<waypost::record::Bytes>,
}

impl Plan {
    /// Returns the number of dropped bodies and bytes.
    pub(crate) fn trimmed(&self) -> Trimmed {
        Trimmed { checkpoints: self.checkpoints, bytes: u64::try_from(self.bytes).unwrap_or(0) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.scopes.is_empty()
    }
}

/// Plans to drop the bodies of all sound checkpoints of each scope except those of [`retention::kept`].
///
/// Skips scopes with at most `keep` bodies, and reads a scope only down to its oldest body. With a token,
/// the caller must hold the lease.
pub(crate) fn plan(view: View<'_>, run: &RunId, token: Option<u64>, keep: u32) -> Result<Plan, Failure> {
    let row = RunRow::get(view.connection, run)?;
    if let Some(token) = token {
        row.fence(run, token)?;
    }
    let id = row.id;
    let keep = keep.max(RETENTION_MIN);
    let mut plan = Plan::default();
    for scope in full_scopes(view.connection, id, keep)? {
        plan_scope(view, run, scope, keep, &mut plan)?;
    }
    Ok(plan)
}

fn plan_scope(
    view: View<'_>,
    run: &RunId,
    (scope, held): (Scope, u64),
    keep: u32,
    plan: &mut Plan,
) -> Result<(), Failure> {
    let sound = |seq| match fetch(view.connection, view.place, run, &scope, seq, Want::Whole)? {
        // Damaged records are neither counted nor changed; quarantine handles them.
        Found::Sound(record) => Ok::<_, Failure>(Some(record)),
        _ => Ok(None),
    };
    let bodies = bodies(view.connection, &scope, held)?;
    let (mut marks, mut digests) = (Vec::new(), Vec::new());
    for (seq, _) in &bodies {
        if let Some(record) = sound(*seq)? {
            marks.push(if marks.is_empty() { Mark::of_newest(&record) } else { Mark::of(record.header()) });
            digests.push((*seq, *record.digest().as_bytes()));
        }
    }
    let stays = retention::kept(&marks, keep);
    let (kept, loss): (Vec<_>, Vec<_>) = digests.into_iter().partition(|(seq, _)| stays.contains(seq));
    let drop: BTreeSet<u64> = loss.into_iter().map(|(seq, _)| seq).collect();
    if drop.is_empty() {
        return Ok(());
    }
    let dropped = bodies.iter().filter(|(seq, _)| drop.contains(seq));
    plan.bytes += dropped.map(|(_, bytes)| int(*bytes)).sum::<i64>();
    let dependants = dependants(view.connection, &scope, &drop)?;
    let mut freed = Vec::new();
    for &seq in &dependants {
        if let Some(record) = sound(seq)? {
            let one = Freed::of(view.place, &record);
            let size = bodies.iter().find(|(of, _)| *of == seq).map_or(0, |(_, bytes)| int(*bytes));
            plan.bytes -= one.bytes() - size;
            freed.push(one);
        }
    }
    plan.checkpoints += drop.len() as u64;
    plan.scopes.push(ScopePlan { scope, drop, freed, dependants, kept });
    Ok(())
}

/// Applies a plan. Returns `false` without a change if the records have changed since.
pub(crate) fn apply(connection: &Connection, run: &RunId, token: u64, plan: &Plan) -> Result<bool, Failure> {
    let id = RunRow::leased(connection, run, token)?.id;
    for ScopePlan { scope, drop, freed, dependants: known, kept, .. } in &plan.scopes {
        let is_there = |seq, digest: &[u8; 32]| -> Result<bool, Failure> {
            Ok(connection
                .prepare_cached("SELECT 1 FROM records WHERE key = ?1 AND digest = ?2 AND body IS NOT NULL")?
                .exists(params![key(scope.id, seq), digest])?)
        };
        let freed = freed.iter().map(|one| (one.seq, one.digest));
        for (seq, digest) in freed.chain(kept.iter().copied()) {
            if !is_there(seq, &digest)? {
                return Ok(false);
            }
        }
        // A record appended meanwhile may have a dropped body as delta base.
        if dependants(connection, scope, drop)?.iter().any(|seq| !known.contains(seq)) {
            return Ok(false);
        }
    }
    for ScopePlan { scope, drop, freed, .. } in &plan.scopes {
        for one in freed {
            one.write(connection, scope)?;
        }
        for seq in drop {
            drop_body(connection, key(scope.id, *seq))?;
        }
        scope.drop_bodies(connection, id, int(drop.len() as u64))?;
    }
    add_bytes(connection, id, -plan.bytes)?;
    Ok(true)
}

/// Rewrites a row without its body. SQLite merges emptied pages only when rows are deleted. Shrinking a row
/// in place would free almost nothing.
fn drop_body(connection: &Connection, key: i64) -> Result<(), Failure> {
    type Row = (Option<String>, Option<i64>, Vec<u8>, Vec<u8>);
    let (external, about, digest, header): Row = connection
        .prepare_cached("SELECT external, about, digest, header FROM records WHERE key = ?1")?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    connection.prepare_cached("DELETE FROM records WHERE key = ?1")?.execute([key])?;
    connection
        .prepare_cached("INSERT INTO records VALUES (?1, ?2, ?3, ?4, ?5, ?6, NULL)")?
        .execute(params![key, external, about, CODEC_TRIMMED, digest, header])?;
    Ok(())
}

impl Freed {
    /// Encodes a full frame for a record read with its body.
    pub(crate) fn of(place: &Place, record: &Record) -> Self {
        Self {
            seq: record.header().seq,
            digest: *record.digest().as_bytes(),
            kept: encode_full(&place.delta_cache, record),
            plain: record.body_bytes().cloned(),
        }
    }

    fn columns(&self) -> (Option<i64>, Option<&[u8]>) {
        self.kept.columns(self.plain.as_ref().map(|plain| plain.as_slice()))
    }

    fn bytes(&self) -> i64 {
        self.columns().1.map_or(0, |bytes| int(bytes.len() as u64))
    }

    /// Writes the frame to its row; returns the growth in bytes.
    pub(crate) fn write(&self, connection: &Connection, scope: &Scope) -> Result<i64, Failure> {
        let key = key(scope.id, self.seq);
        let before: Option<i64> = connection
            .prepare_cached("SELECT length(body) FROM records WHERE key = ?1")?
            .query_row([key], |row| row.get(0))
            .optional()?
            .flatten();
        let (codec, body) = self.columns();
        connection
            .prepare_cached("UPDATE records SET body = ?2, codec = ?3 WHERE key = ?1")?
            .execute(params![key, body, codec])?;
        Ok(self.bytes() - before.unwrap_or(0))
    }
}

/// Adds to the byte count of a run; `bytes` may be negative.
pub(crate) fn add_bytes(connection: &Connection, run: i64, bytes: i64) -> Result<(), Failure> {
    connection
        .prepare_cached("UPDATE runs SET bytes = max(bytes + ?2, 0) WHERE id = ?1")?
        .execute((run, bytes))?;
    Ok(())
}

/// Returns the scopes with more than `keep` bodies, each with its number of bodies.
fn full_scopes(connection: &Connection, run: i64, keep: u32) -> Result<Vec<(Scope, u64)>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT id, held FROM (SELECT id,
             ifnull(bodies, (SELECT main_bodies FROM runs WHERE runs.id = scopes.run)) AS held
             FROM scopes WHERE run = ?1) WHERE held > ?2 ORDER BY id",
    )?;
    let found = statement.query_map((run, keep), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
    let found = found.collect::<Result<Vec<_>, _>>()?;
    let mut scopes = Vec::with_capacity(found.len());
    for (id, held) in found {
        let held = count(held)?;
        scopes.extend(Scope::list(connection, run, id, 1)?.into_iter().map(|scope| (scope, held)));
    }
    Ok(scopes)
}

/// Returns seq and size of the bodies of a scope, newest first. The scope has `held` bodies; rows below the
/// last are not read.
fn bodies(connection: &Connection, scope: &Scope, held: u64) -> Result<Vec<(u64, u64)>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT key, length(body) FROM records
         WHERE key > ?1 AND key <= ?2 AND codec <> ?3 AND body IS NOT NULL ORDER BY key DESC LIMIT ?4",
    )?;
    let (from, to) = (key(scope.id, 0), key(scope.id, SEQ_MAX));
    let mut rows = statement.query((from, to, CODEC_TRIMMED, int(held)))?;
    let mut bodies = Vec::new();
    while let Some(row) = rows.next()? {
        bodies.push((seq_of(row.get(0)?), count(row.get(1)?)?));
    }
    Ok(bodies)
}

/// Returns the kept records whose delta base is dropped.
fn dependants(connection: &Connection, scope: &Scope, drop: &BTreeSet<u64>) -> Result<Vec<u64>, Failure> {
    let Some(first) = drop.first() else { return Ok(Vec::new()) };
    let deltas = bases(connection, scope, *first)?.into_iter();
    Ok(deltas.filter(|(seq, base)| drop.contains(base) && !drop.contains(seq)).map(|(seq, _)| seq).collect())
}

/// Returns the deltas above record `seq`, oldest first, each with its base record according to its row. A
/// damaged row may have any base or none.
pub(crate) fn bases(connection: &Connection, scope: &Scope, seq: u64) -> Result<Vec<(u64, u64)>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT key, substr(body, 1, ?4) FROM records
         WHERE key > ?1 AND key <= ?2 AND codec = ?3 ORDER BY key",
    )?;
    let begin = int(frame::BASE_BYTES_MAX as u64);
    let mut rows =
        statement.query(params![key(scope.id, seq), key(scope.id, SEQ_MAX), CODEC_DELTA, begin])?;
    let mut found = Vec::new();
    loop {
        match rows.next().map_err(SqliteError::from) {
            Ok(Some(row)) => {
                let above = seq_of(row.get(0)?);
                let begin = row.get::<_, Vec<u8>>(1).unwrap_or_default();
                found.extend(frame::base_of(&begin, above).map(|base| (above, base)));
            }
            Ok(None) => return Ok(found),
            // Rows on this page and above are damaged, or are found to be when read.
            Err(fault) if fault.is_corrupt() => return Ok(found),
            Err(fault) => return Err(fault.into()),
        }
    }
}
