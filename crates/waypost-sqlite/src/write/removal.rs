//! Quarantine and deletion; `trim` implements pruning.

use rusqlite::{Connection, params};
use waypost::id::RunId;
use waypost::store::{Damage, StoreError};

use crate::database::error::{Failure, SqliteError};
use crate::database::heads::RunRow;
use crate::database::open::Place;
use crate::database::values::time_text;
use crate::tables::counters;
use crate::tables::read::View;
use crate::tables::rows::{Found, SEQ_MAX, Want, fetch, key};
use crate::tables::scope::Scope;
use crate::tables::tail_check::{Lost, acknowledged};
use crate::write::trim::{Freed, add_bytes, bases};

/// Moves a damaged record to quarantine, byte for byte.
///
/// A record on an unreadable page stays in place; only a note is added, so that the damage is known from now
/// on.
pub(crate) fn quarantine(
    connection: &Connection,
    place: &Place,
    token: u64,
    damage: &Damage,
    now: jiff::Timestamp,
) -> Result<(), Failure> {
    let run = RunRow::leased(connection, &damage.run, token)?.id;
    let scope = Scope::get(connection, run, &damage.scope)?
        .ok_or_else(|| StoreError::no_scope(&damage.run, &damage.scope))?
        .settled(connection, run)?;
    // Other workers cannot append, so every record of the log is in this snapshot.
    let lost = Lost::of(View { connection, place }, &damage.run, run, acknowledged(place, &damage.run))?;
    let scope = lost.extend(scope);
    let found = match damage.seq {
        seq @ 1.. if seq <= scope.newest => fetch(connection, place, &damage.run, &scope, seq, Want::Whole)?,
        _ => Found::Absent,
    };
    let Found::Damaged(found) = found else {
        let (run, seq) = (&damage.run, damage.seq);
        return Err(StoreError::Invalid(format!("run {run} has no damaged record {seq} to move")).into());
    };
    let key = key(scope.id, damage.seq);
    let (why, now) = (found.flaw.to_string(), time_text(now));
    let moved = connection
        .prepare_cached(
            "INSERT INTO quarantine
             SELECT NULL, ?2, key, ?3, ?4, codec, digest, header, body FROM records WHERE key = ?1",
        )?
        .execute(params![key, run, why, now])
        .map_err(SqliteError::from);
    match moved {
        Ok(1) => {
            free_dependants(connection, place, &damage.run, run, &scope, damage.seq)?;
            remove(connection, run, &scope, key)
        }
        Err(fault) if !fault.is_corrupt() => Err(fault.into()),
        _ => {
            connection
                .prepare_cached(
                    "INSERT INTO quarantine VALUES (NULL, ?2, ?1, ?3, ?4, NULL, NULL, NULL, NULL)",
                )?
                .execute(params![key, run, why, now])?;
            note(connection, run, &scope, damage.seq, moved.is_ok())
        }
    }
}

/// Marks a record as lost: its seq is never reused, and the count excludes the record.
fn note(connection: &Connection, run: i64, scope: &Scope, seq: u64, had_no_row: bool) -> Result<(), Failure> {
    scope.reach(connection, run, seq)?;
    // A record that only the log knows was never counted here.
    if had_no_row && scope.loss(seq).is_none() {
        connection
            .prepare_cached("UPDATE runs SET checkpoints = max(checkpoints - 1, 0) WHERE id = ?1")?
            .execute([run])?;
        // The number of its bytes is unknown.
        return counters::repair_bytes(connection, run);
    }
    Ok(())
}

/// Rewrites bodies with record `seq` as delta base as full frames before `seq` is removed. They are sound as
/// long as its frame is.
fn free_dependants(
    connection: &Connection,
    place: &Place,
    run: &RunId,
    run_row: i64,
    scope: &Scope,
    seq: u64,
) -> Result<(), Failure> {
    for (above, base) in bases(connection, scope, seq)? {
        if base != seq {
            continue;
        }
        if let Found::Sound(record) = fetch(connection, place, run, scope, above, Want::Whole)? {
            let freed = Freed::of(place, &record);
            let grown = freed.write(connection, scope)?;
            add_bytes(connection, run_row, grown)?;
        }
    }
    Ok(())
}

fn remove(connection: &Connection, run: i64, scope: &Scope, key: i64) -> Result<(), Failure> {
    let (bytes, bodies): (i64, i64) = connection
        .prepare_cached(
            "DELETE FROM records WHERE key = ?1
             RETURNING length(header) + ifnull(length(body), 0), body IS NOT NULL",
        )?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))?;
    scope.drop_bodies(connection, run, bodies)?;
    connection
        .prepare_cached(
            "UPDATE runs SET checkpoints = max(checkpoints - 1, 0), bytes = max(bytes - ?2, 0) WHERE id = ?1",
        )?
        .execute((run, bytes))?;
    Ok(())
}

/// Deletes all rows of a run; returns whether the run existed.
pub(crate) fn delete(connection: &Connection, run: &RunId) -> Result<bool, Failure> {
    let Some(RunRow { id, .. }) = RunRow::find(connection, run)? else { return Ok(false) };
    let mut from = 0;
    loop {
        let scopes = scope_ids(connection, id, from)?;
        let Some(last) = scopes.last() else { break };
        from = last + 1;
        for scope in scopes {
            connection
                .prepare_cached("DELETE FROM records WHERE key BETWEEN ?1 AND ?2")?
                .execute([key(scope, 0), key(scope, SEQ_MAX)])?;
        }
    }
    for table in ["scopes", "signals", "quarantine", "frozen", "frozen_copies"] {
        connection.execute(&format!("DELETE FROM {table} WHERE run = ?1"), [id])?;
    }
    connection.execute("DELETE FROM runs WHERE id = ?1", [id])?;
    Ok(true)
}

/// Returns a page of scope ids in ascending order; other columns may be damaged.
fn scope_ids(connection: &Connection, run: i64, from: i64) -> Result<Vec<i64>, Failure> {
    const AT_ONCE: i64 = 1_000;
    let mut statement = connection
        .prepare_cached("SELECT id FROM scopes WHERE run = ?1 AND id >= ?2 ORDER BY id LIMIT ?3")?;
    let ids = statement.query_map([run, from, AT_ONCE], |row| row.get(0))?;
    Ok(ids.collect::<Result<_, _>>()?)
}
