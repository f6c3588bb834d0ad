//! What is moved aside, dropped and deleted.

use rusqlite::{Connection, params};
use waypost::id::RunId;
use waypost::store::{Damage, StoreError, TrimMode, Trimmed};

use crate::fault::{Failure, Fault};
use crate::open::Place;
use crate::rows::{
    Branch, CODEC_TRIMMED, Found, RunRow, SEQ_MAX, Want, count, fetch, int, key, seq_of, time_text,
};

/// Fewest checkpoints that keep their body: the newest, and one to fall back to.
const KEEP_MIN: u32 = 2;

/// Moves a damaged record aside, byte for byte.
///
/// One that SQLite cannot read, since its page is damaged, stays where it is; only a note is made, so that it is known
/// from now on.
pub(crate) fn quarantine(
    connection: &Connection,
    place: &Place,
    token: u64,
    damage: &Damage,
    now: jiff::Timestamp,
) -> Result<(), Failure> {
    let run = RunRow::leased(connection, place, &damage.run, token)?.id;
    let branch = Branch::get(connection, run, &damage.branch)?
        .ok_or_else(|| StoreError::no_branch(&damage.run, &damage.branch))?
        .look_beyond(connection)?;
    let found = match damage.seq {
        seq @ 1.. if seq <= branch.newest => {
            fetch(connection, place, &damage.run, &branch, seq, Want::Whole)?
        }
        _ => Found::Absent,
    };
    let Found::Damaged(found) = found else {
        let (run, seq) = (&damage.run, damage.seq);
        return Err(StoreError::Invalid(format!("run {run} has no damaged record {seq} to move")).into());
    };
    let key = key(branch.id, damage.seq);
    let (why, now) = (found.flaw.to_string(), time_text(now));
    let moved = connection
        .prepare_cached(
            "INSERT INTO quarantine
             SELECT NULL, ?2, key, ?3, ?4, codec, digest, header, body FROM records WHERE key = ?1",
        )?
        .execute(params![key, run, why, now])
        .map_err(Fault::from);
    match moved {
        Ok(1) => remove(connection, run, &branch, key),
        Err(fault) if !fault.is_corrupt() => Err(fault.into()),
        _ => {
            connection
                .prepare_cached(
                    "INSERT INTO quarantine VALUES (NULL, ?2, ?1, ?3, ?4, NULL, NULL, NULL, NULL)",
                )?
                .execute(params![key, run, why, now])?;
            Ok(())
        }
    }
}

fn remove(connection: &Connection, run: i64, branch: &Branch, key: i64) -> Result<(), Failure> {
    let (bytes, bodies): (i64, i64) = connection
        .prepare_cached(
            "DELETE FROM records WHERE key = ?1
             RETURNING length(header) + ifnull(length(body), 0), body IS NOT NULL",
        )?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))?;
    connection
        .prepare_cached("UPDATE branches SET bodies = max(bodies - ?2, 0) WHERE id = ?1")?
        .execute((branch.id, bodies))?;
    connection
        .prepare_cached(
            "UPDATE runs SET checkpoints = max(checkpoints - 1, 0), bytes = max(bytes - ?2, 0) WHERE id = ?1",
        )?
        .execute((run, bytes))?;
    Ok(())
}

/// Drops the bodies of all but the newest `keep` sound checkpoints of each branch.
///
/// Looks at no branch that has not more than that, and within one only down to the first that was dropped before.
pub(crate) fn trim(
    connection: &Connection,
    place: &Place,
    run: &RunId,
    token: u64,
    keep: u32,
    mode: TrimMode,
) -> Result<Trimmed, Failure> {
    let id = RunRow::leased(connection, place, run, token)?.id;
    let keep = keep.max(KEEP_MIN);
    let mut trimmed = Trimmed::default();
    for branch in full_branches(connection, id, keep)? {
        let mut kept = 0;
        let mut dropped = 0;
        for (seq, bytes) in bodies(connection, &branch)? {
            // Damaged ones are neither counted nor touched: quarantine is for them.
            let Found::Sound(_) = fetch(connection, place, run, &branch, seq, Want::Whole)? else { continue };
            if kept < keep {
                kept += 1;
                continue;
            }
            dropped += 1;
            trimmed.bytes += bytes;
            if mode == TrimMode::Apply {
                connection
                    .prepare_cached("UPDATE records SET body = NULL, codec = ?2 WHERE key = ?1")?
                    .execute((key(branch.id, seq), CODEC_TRIMMED))?;
            }
        }
        trimmed.checkpoints += dropped;
        if mode == TrimMode::Apply && dropped > 0 {
            connection
                .prepare_cached("UPDATE branches SET bodies = max(bodies - ?2, 0) WHERE id = ?1")?
                .execute((branch.id, int(dropped)))?;
        }
    }
    if mode == TrimMode::Apply && trimmed.bytes > 0 {
        connection
            .prepare_cached("UPDATE runs SET bytes = max(bytes - ?2, 0) WHERE id = ?1")?
            .execute((id, int(trimmed.bytes)))?;
    }
    Ok(trimmed)
}

/// Returns the branches with more bodies than are to be kept.
fn full_branches(connection: &Connection, run: i64, keep: u32) -> Result<Vec<Branch>, Failure> {
    let mut statement =
        connection.prepare_cached("SELECT id FROM branches WHERE run = ?1 AND bodies > ?2 ORDER BY id")?;
    let ids = statement.query_map((run, keep), |row| row.get::<_, i64>(0))?;
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    let mut branches = Vec::with_capacity(ids.len());
    for id in ids {
        branches.extend(Branch::list(connection, run, id, 1)?);
    }
    Ok(branches)
}

/// Returns seq and size of the bodies of a branch, newest first, down to the first that was dropped.
fn bodies(connection: &Connection, branch: &Branch) -> Result<Vec<(u64, u64)>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT key, codec, length(body) FROM records
         WHERE key > ?1 AND key <= ?2 AND codec IS NOT NULL ORDER BY key DESC",
    )?;
    let mut rows = statement.query([key(branch.id, 0), key(branch.id, SEQ_MAX)])?;
    let mut bodies = Vec::new();
    while let Some(row) = rows.next()? {
        if row.get::<_, i64>(1)? == CODEC_TRIMMED {
            break;
        }
        if let Some(bytes) = row.get::<_, Option<i64>>(2)? {
            bodies.push((seq_of(row.get(0)?), count(bytes)?));
        }
    }
    Ok(bodies)
}

/// Deletes all rows of a run; says whether there was one.
pub(crate) fn delete(connection: &Connection, run: &RunId) -> Result<bool, Failure> {
    let Some(RunRow { id, .. }) = RunRow::find(connection, run)? else { return Ok(false) };
    let mut from = 0;
    loop {
        let branches = branch_ids(connection, id, from)?;
        let Some(last) = branches.last() else { break };
        from = last + 1;
        for branch in branches {
            connection
                .prepare_cached("DELETE FROM records WHERE key BETWEEN ?1 AND ?2")?
                .execute([key(branch, 0), key(branch, SEQ_MAX)])?;
        }
    }
    for table in ["branches", "signals", "quarantine", "frozen"] {
        connection.execute(&format!("DELETE FROM {table} WHERE run = ?1"), [id])?;
    }
    connection.execute("DELETE FROM runs WHERE id = ?1", [id])?;
    Ok(true)
}

/// Returns some ids of branches, by rising id; their other columns may be damaged.
fn branch_ids(connection: &Connection, run: i64, from: i64) -> Result<Vec<i64>, Failure> {
    const AT_ONCE: i64 = 1_000;
    let mut statement = connection
        .prepare_cached("SELECT id FROM branches WHERE run = ?1 AND id >= ?2 ORDER BY id LIMIT ?3")?;
    let ids = statement.query_map([run, from, AT_ONCE], |row| row.get(0))?;
    Ok(ids.collect::<Result<_, _>>()?)
}
