//! Redundant values next to the records: ends of scopes, and counts of records and scopes.
//!
//! These columns save reading records, but are not covered by a digest. So they never decide alone. The end
//! of a scope is decided by its rows; `newest` counts beyond them only as far as rows are really lost. An
//! append that finds another end rechecks and writes the correct end. The other values are compared with the
//! records on request ([`findings`]) and corrected when a lease is acquired ([`repair`]).

use rusqlite::{Connection, OptionalExtension};
use waypost::id::ScopePath;

use crate::database::error::{Failure, SqliteError};
use crate::database::values::int;
use crate::tables::read::View;
use crate::tables::rows::{SEQ_MAX, is_in_quarantine, key, seq_of};
use crate::tables::scope::Scope;

/// Most records of a run that are always recounted at a resume: a few pages.
const RECOUNT_ALWAYS_MAX: i64 = 200;
/// Most records of a run to recount if the ends of scopes contradict the count: a few
/// milliseconds.
const RECOUNT_MAX: i64 = 10_000;
/// Most rows of a scope to look up individually if the end is missing: a few milliseconds.
const LOOKED_UP_MAX: usize = 1_000;
/// Scopes read from the table per query.
const SCOPES_AT_ONCE: usize = 256;

/// Finds records of missing scopes, with a single lookup per scope.
const ORPHANS: &str = "WITH RECURSIVE ids (id) AS (
         SELECT min(key) >> 32 FROM records
         UNION ALL
         SELECT (SELECT min(key) >> 32 FROM records WHERE key > ((ids.id << 32) | 4294967295))
         FROM ids WHERE ids.id IS NOT NULL
     ) SELECT 1 FROM ids WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM scopes)";

const COUNTED: &str = "SELECT count(*), ifnull(sum(length(header) + ifnull(length(body), 0)), 0)
     FROM scopes JOIN records ON key BETWEEN (scopes.id << 32) + 1 AND ((scopes.id << 32) | 4294967295)
     WHERE scopes.run = ?1";

/// Counts the records of a run up to the stored ends of its scopes.
const WITHIN: &str = "SELECT count(*)
     FROM scopes JOIN runs ON runs.id = scopes.run
     JOIN records ON key BETWEEN (scopes.id << 32) + 1 AND ((scopes.id << 32) | ifnull(scopes.newest, runs.main_newest))
     WHERE runs.id = ?1";

/// Lowers `newest` if it exceeds the rows by more than the lost rows.
///
/// The number of lost rows comes from the run's record count. A flipped bit in `newest` alone would imply
/// millions of lost rows.
pub(crate) fn checked_newest(connection: &Connection, run: i64, scope: Scope) -> Result<Scope, Failure> {
    let newest = key(scope.id, scope.newest);
    let there = connection.prepare_cached("SELECT 1 FROM records WHERE key = ?1")?.exists([newest]);
    match there.map_err(SqliteError::from) {
        Ok(true) => return Ok(scope),
        Ok(false) if is_in_quarantine(connection, newest)? => return Ok(scope),
        Ok(false) => {}
        Err(fault) if fault.is_corrupt() => return Ok(scope),
        Err(fault) => return Err(fault.into()),
    }
    match lowered(connection, run, scope.clone()) {
        // Pages are damaged, so lost rows cannot be distinguished from rows that never existed.
        Err(Failure::Sqlite(fault)) if fault.is_corrupt() => Ok(scope),
        lowered => lowered,
    }
}

fn lowered(connection: &Connection, run: i64, mut scope: Scope) -> Result<Scope, Failure> {
    if is_out_of_order(connection, &scope)? {
        // Rows exist but are not found, so the rows do not show what is lost.
        let (expected, _) = kept(connection, run)?;
        scope.newest = scope.newest.min(u64::try_from(expected).unwrap_or(0));
        return Ok(scope);
    }
    let mut last = 0;
    for table in ["records", "quarantine"] {
        let sql = format!("SELECT max(key) FROM {table} WHERE key BETWEEN ?1 AND ?2");
        let found: Option<i64> = connection
            .prepare_cached(&sql)?
            .query_row([key(scope.id, 0), key(scope.id, scope.newest)], |row| row.get(0))?;
        last = last.max(found.map_or(0, seq_of));
    }
    scope.newest = scope.newest.min(last + missed(connection, run)?);
    Ok(scope)
}

/// Returns whether rows of a scope are out of order, because a key was changed.
fn is_out_of_order(connection: &Connection, scope: &Scope) -> Result<bool, Failure> {
    let sql = "SELECT key FROM records WHERE key BETWEEN ?1 AND ?2";
    let mut rows = connection.prepare_cached(sql)?;
    let mut found = connection.prepare_cached("SELECT 1 FROM records WHERE key = ?1")?;
    let mut rows = rows.query([key(scope.id, 0), key(scope.id, SEQ_MAX)])?;
    let (mut before, mut asked) = (i64::MIN, 0);
    while let Some(row) = rows.next()? {
        let key: i64 = row.get(0)?;
        if key <= before || (asked < LOOKED_UP_MAX && !found.exists([key])?) {
            return Ok(true);
        }
        (before, asked) = (key, asked + 1);
    }
    Ok(false)
}

/// Returns the number of lost records of a run, by its stored count.
pub(crate) fn missed(connection: &Connection, run: i64) -> Result<u64, Failure> {
    let (expected, _) = kept(connection, run)?;
    // A row with a changed key may be among the rows of another scope, but does not belong to it.
    let there: i64 = connection.prepare_cached(WITHIN)?.query_row([run], |row| row.get(0))?;
    Ok(u64::try_from(expected - there).unwrap_or(0))
}

/// Finds a row after the end of a scope: its key was changed, and the row does not belong to a record.
fn out_of_place(connection: &Connection, scope: &Scope) -> Result<Option<i64>, Failure> {
    let sql = "SELECT min(key) FROM records WHERE key > ?1 AND key <= ?2";
    let bounds = [key(scope.id, scope.newest), key(scope.id, SEQ_MAX)];
    Ok(connection.prepare_cached(sql)?.query_row(bounds, |row| row.get(0))?)
}

/// Counts the records of a run and their bytes.
fn counted(connection: &Connection, run: i64) -> Result<(i64, i64), Failure> {
    Ok(connection.prepare_cached(COUNTED)?.query_row([run], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

/// Returns the stored counts of records and bytes of a run.
fn kept(connection: &Connection, run: i64) -> Result<(i64, i64), Failure> {
    Ok(connection
        .prepare_cached("SELECT checkpoints, bytes FROM runs WHERE id = ?1")?
        .query_row([run], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

/// Returns the stored and the actual number of scopes of a run.
fn scope_counts(connection: &Connection, run: i64) -> Result<(i64, i64), Failure> {
    Ok(connection
        .prepare_cached(
            "SELECT scopes, (SELECT count(*) FROM scopes WHERE run = ?1) FROM runs WHERE id = ?1",
        )?
        .query_row([run], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

/// Returns the id of the main scope, as stored in the run's row and in the scope's row.
fn main_ids(connection: &Connection, run: i64) -> Result<Option<(i64, i64)>, Failure> {
    let sql = "SELECT main, scopes.id FROM runs JOIN scopes ON run = runs.id WHERE runs.id = ?1 AND scopes.path = 'main'";
    let ids = connection.prepare_cached(sql)?.query_row([run], |row| Ok((row.get(0)?, row.get(1)?)));
    Ok(ids.optional()?)
}

/// Checks that all scopes of a run exist: the main scope is found, and a shortfall has no orphaned
/// records.
pub(crate) fn check_scopes(connection: &Connection, run: i64) -> Result<(), Failure> {
    let main = "SELECT 1 FROM scopes WHERE run = ?1 AND path = 'main'";
    if !connection.prepare_cached(main)?.exists([run])? {
        return Err(SqliteError::corrupt("the run has no main scope".to_owned()).into());
    }
    let (opened, found) = scope_counts(connection, run)?;
    if opened <= found {
        return Ok(());
    }
    let sql = "SELECT count(*) FROM scopes NOT INDEXED WHERE run = ?1";
    let all: i64 = connection.prepare_cached(sql)?.query_row([run], |row| row.get(0))?;
    if all > found {
        return Err(SqliteError::corrupt(format!("an index of table `scopes` lacks {}", all - found)).into());
    }
    if !connection.prepare_cached(ORPHANS)?.exists([])? {
        return Ok(());
    }
    Err(SqliteError::corrupt(format!("scopes opened: {opened}, scopes found: {found}")).into())
}

/// Returns the contradictions between a run's columns and its records, a sentence each.
pub(crate) fn findings(view: View<'_>, id: i64) -> Result<Vec<String>, Failure> {
    let kept = kept(view.connection, id)?;
    let (checkpoints, bytes) = counted(view.connection, id)?;
    let mut found = Vec::new();
    let mut missed = 0;
    each_scope(view.connection, id, |scope| {
        let settled = scope.clone().settled(view.connection, id)?;
        if settled.newest != scope.newest {
            let (path, kept, newest) = (&scope.path, scope.newest, settled.newest);
            let table = if path.is_main() { "runs" } else { "scopes" };
            found.push(format!("table `{table}` ends {path} at {kept}, its records end at {newest}"));
        }
        missed += absent(view.connection, &settled)?;
        if let Some(out_of_place) = out_of_place(view.connection, &settled)? {
            found.push(format!(
                "table `records` has a row {out_of_place} of {}, after its end {}",
                settled.path, settled.newest
            ));
        }
        Ok(())
    })?;
    if kept.0 != checkpoints + missed {
        found.push(format!("table `runs` counts {} checkpoints, found {}", kept.0, checkpoints + missed));
    } else if missed == 0 && kept.1 != bytes {
        found.push(format!("table `runs` counts {} bytes of records, found {bytes}", kept.1));
    }
    if let Some((kept, main)) = main_ids(view.connection, id)?
        && kept != main
    {
        found.push(format!("table `runs` has main scope {kept}, found {main}"));
    }
    let scopes = scope_counts(view.connection, id)?;
    if scopes.0 != scopes.1 {
        found.push(format!("table `runs` counts {} scopes, found {}", scopes.0, scopes.1));
    }
    Ok(found)
}

/// Corrects the counts of a run from its records, if nothing is lost.
pub(crate) fn repair(connection: &Connection, id: i64) -> Result<(), Failure> {
    let (opened, found) = scope_counts(connection, id)?;
    check_scopes(connection, id)?;
    if opened != found {
        connection.prepare_cached("UPDATE runs SET scopes = ?2 WHERE id = ?1")?.execute((id, found))?;
    }
    repair_main(connection, id)?;
    let kept = kept(connection, id)?;
    if !(0..=RECOUNT_ALWAYS_MAX).contains(&kept.0) {
        let most = most(connection, id)?;
        if kept.0 == most || most > RECOUNT_MAX {
            return Ok(());
        }
    }
    let counted = counted(connection, id)?;
    if kept == counted {
        return Ok(());
    }
    let mut missed = 0;
    each_scope(connection, id, |scope| {
        missed += absent(connection, &scope.settled(connection, id)?)?;
        Ok(())
    })?;
    if missed == 0 {
        connection
            .prepare_cached("UPDATE runs SET checkpoints = ?2, bytes = ?3 WHERE id = ?1")?
            .execute((id, counted.0, counted.1))?;
    }
    Ok(())
}

/// Corrects the main scope's values in the row of a run from the scope and its records.
fn repair_main(connection: &Connection, id: i64) -> Result<(), Failure> {
    let Some((kept, main)) = main_ids(connection, id)? else { return Ok(()) };
    if kept != main {
        connection.prepare_cached("UPDATE runs SET main = ?2 WHERE id = ?1")?.execute((id, main))?;
    }
    let Some(scope) = Scope::find(connection, id, &ScopePath::main())? else { return Ok(()) };
    let settled = scope.clone().settled(connection, id)?;
    if settled.newest != scope.newest {
        connection
            .prepare_cached("UPDATE runs SET main_newest = ?2 WHERE id = ?1")?
            .execute((id, int(settled.newest)))?;
    }
    Ok(())
}

/// Corrects the byte count of a run from its records, if there are few enough to count.
pub(crate) fn repair_bytes(connection: &Connection, id: i64) -> Result<(), Failure> {
    if most(connection, id)? > RECOUNT_MAX {
        return Ok(());
    }
    let (_, bytes) = counted(connection, id)?;
    connection.prepare_cached("UPDATE runs SET bytes = ?2 WHERE id = ?1")?.execute((id, bytes))?;
    Ok(())
}

/// Returns an upper bound for the records of a run, by the ends of its scopes.
fn most(connection: &Connection, run: i64) -> Result<i64, Failure> {
    let sql = "SELECT main_newest + ifnull((SELECT sum(newest) FROM scopes WHERE run = ?1), 0) FROM runs WHERE id = ?1";
    Ok(connection.prepare_cached(sql)?.query_row([run], |row| row.get(0))?)
}

/// Returns the number of records of a scope that are neither present nor in quarantine.
fn absent(connection: &Connection, scope: &Scope) -> Result<i64, Failure> {
    let sql = "SELECT ?3 - (SELECT count(*) FROM records WHERE key BETWEEN ?1 AND ?2)
         - (SELECT count(DISTINCT key) FROM quarantine WHERE key BETWEEN ?1 AND ?2
            AND key NOT IN (SELECT key FROM records WHERE key BETWEEN ?1 AND ?2))";
    let bounds = (key(scope.id, 1), key(scope.id, scope.newest), int(scope.newest));
    let absent: i64 = connection.prepare_cached(sql)?.query_row(bounds, |row| row.get(0))?;
    Ok(absent.max(0))
}

fn each_scope(
    connection: &Connection,
    run: i64,
    mut with: impl FnMut(Scope) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut from = 0;
    loop {
        let scopes = Scope::list(connection, run, from, SCOPES_AT_ONCE)?;
        let Some(last) = scopes.last() else { return Ok(()) };
        from = last.id + 1;
        scopes.into_iter().try_for_each(&mut with)?;
    }
}
