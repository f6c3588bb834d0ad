//! Finds defects of the database outside of records.

use rusqlite::Connection;
use waypost::disk::RealDisk;
use waypost::folder::has_log;
use waypost::id::RunId;

use crate::database::error::{Failure, SqliteError};
use crate::database::heads::RunRow;
use crate::database::open::Place;
use crate::tables::counters;
use crate::tables::read::View;
use crate::tables::tail_check::folder_of;

/// Most reported findings of SQLite: a damaged page causes many similar findings.
const FINDINGS_MAX: u32 = 10;

/// Checks the data of a run outside of its records.
pub(crate) fn run(view: View<'_>, run: &RunId) -> Result<Vec<String>, Failure> {
    let id = RunRow::get(view.connection, run)?.id;
    let mut found = view.frozen_findings(id, run)?;
    found.extend(view.summary_finding(id)?);
    match counters::findings(view, id) {
        // Records on damaged pages are reported individually.
        Err(Failure::Sqlite(fault)) if fault.is_corrupt() => found.push(fault.to_string()),
        counted => found.extend(counted?),
    }
    Ok(found)
}

/// Runs SQLite's integrity check and looks for lost runs.
///
/// Reads the whole file: about a second per GiB in memory.
pub(crate) fn database(connection: &Connection, place: &Place) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    match integrity(connection) {
        Err(Failure::Sqlite(fault)) if fault.is_corrupt() => found.push(fault.to_string()),
        checked => found.extend(checked?),
    }
    for run in lost(connection, place, logged_runs(place)) {
        found.push(format!("run {run} has an event log, but no row in the database"));
    }
    Ok(found)
}

fn integrity(connection: &Connection) -> Result<Vec<String>, Failure> {
    let mut statement = connection.prepare(&format!("PRAGMA integrity_check({FINDINGS_MAX})"))?;
    let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
    let found: Vec<String> = rows.collect::<Result<_, _>>()?;
    let lines = found.iter().flat_map(|text| text.lines());
    Ok(lines.filter(|line| *line != "ok" && !line.is_empty()).map(str::to_owned).collect())
}

/// Returns the runs with a folder next to the database. Such a run with a log but without rows is lost, if
/// this call precedes the database query: a run gets its rows before its log.
pub(crate) fn logged_runs(place: &Place) -> Vec<RunId> {
    let entries = std::fs::read_dir(place.folder.join("runs")).into_iter().flatten().flatten();
    let named = |entry: std::fs::DirEntry| RunId::new(entry.file_name().to_str()?).ok();
    entries.filter_map(named).collect()
}

/// Counts the entries of the `runs` folder.
pub(crate) fn count_folders(place: &Place) -> usize {
    std::fs::read_dir(place.home.join("runs")).into_iter().flatten().flatten().count()
}

/// Counts the runs; returns the maximum if counting fails, so that no run seems lost.
pub(crate) fn count_runs(connection: &Connection) -> usize {
    let count = connection.query_row("SELECT count(*) FROM runs", [], |row| row.get::<_, i64>(0));
    count.ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX)
}

/// Returns the runs that the index contains but table `runs` does not: an emptied page looks as if its runs
/// never existed.
///
/// # Errors
/// If table and index are empty but another table shows that runs existed.
pub(crate) fn lost_rows(connection: &Connection) -> Result<Vec<RunId>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT name FROM (SELECT id, name FROM runs INDEXED BY sqlite_autoindex_runs_1) AS known
         WHERE NOT EXISTS (SELECT 1 FROM runs NOT INDEXED WHERE runs.id = known.id) ORDER BY known.id DESC",
    )?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    let is_emptied = "SELECT NOT EXISTS (SELECT 1 FROM runs NOT INDEXED) AND EXISTS (SELECT 1 FROM frozen)";
    if names.is_empty() && connection.prepare_cached(is_emptied)?.query_row([], |row| row.get(0))? {
        return Err(SqliteError::corrupt("table `runs` is empty, but table `frozen` is not").into());
    }
    Ok(names.iter().filter_map(|name| RunId::new(name).ok()).collect())
}

/// Returns the runs with a log but without a row, sorted. An unreadable row counts as present and is reported
/// elsewhere.
pub(crate) fn lost(connection: &Connection, place: &Place, mut logged: Vec<RunId>) -> Vec<RunId> {
    logged.retain(|run| {
        matches!(RunRow::find(connection, run), Ok(None)) && has_log(&RealDisk, &folder_of(place, run))
    });
    logged.sort_unstable();
    logged
}
