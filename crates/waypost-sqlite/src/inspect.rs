//! What is wrong with the database beside its records.

use rusqlite::Connection;
use waypost::disk::RealDisk;
use waypost::folder::has_told;
use waypost::id::RunId;

use crate::counters;
use crate::fault::{Failure, Fault};
use crate::open::Place;
use crate::read::View;
use crate::rows::RunRow;
use crate::witness::folder_of;

/// Most findings of SQLite that are told: a damaged page has many, and each says the same.
const FINDINGS_MAX: u32 = 10;

/// Looks over what is kept of a run beside its records.
pub(crate) fn run(view: View<'_>, run: &RunId) -> Result<Vec<String>, Failure> {
    let id = RunRow::get(view.connection, run)?.id;
    let mut found = view.frozen_findings(id, run)?;
    found.extend(view.summary_finding(id)?);
    match counters::findings(view, id) {
        // The records that are on the damaged pages are told one by one.
        Err(Failure::Sqlite(fault)) if fault.is_corrupt() => found.push(fault.to_string()),
        counted => found.extend(counted?),
    }
    Ok(found)
}

/// Lets SQLite compare all its pages and indexes, and looks for runs that it does not know.
///
/// Reads the whole file: about a second for each GiB that is in memory.
pub(crate) fn database(connection: &Connection, place: &Place) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    match integrity(connection) {
        Err(Failure::Sqlite(fault)) if fault.is_corrupt() => found.push(fault.to_string()),
        checked => found.extend(checked?),
    }
    for run in lost(connection, place, told_runs(place)) {
        found.push(format!("run {run} has left its log, and the database does not know it"));
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

/// Returns the runs that have a folder beside the database. Those of them that have left a log and are not in it are
/// lost, as long as this was asked before the database was: a run has its rows before it has a log.
pub(crate) fn told_runs(place: &Place) -> Vec<RunId> {
    let entries = std::fs::read_dir(place.folder.join("runs")).into_iter().flatten().flatten();
    let named = |entry: std::fs::DirEntry| RunId::new(entry.file_name().to_str()?).ok();
    entries.filter_map(named).collect()
}

/// Counts what is beside the database where runs have their folders.
pub(crate) fn count_folders(place: &Place) -> usize {
    std::fs::read_dir(place.home.join("runs")).into_iter().flatten().flatten().count()
}

/// Counts the runs; none can be told to be too few if they cannot be counted.
pub(crate) fn count_runs(connection: &Connection) -> usize {
    let count = connection.query_row("SELECT count(*) FROM runs", [], |row| row.get::<_, i64>(0));
    count.ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX)
}

/// Returns the runs whose names the index has, and whose rows table `runs` has not: a page of it that was emptied looks
/// as if they had never been.
///
/// # Errors
/// If the table is empty, and so is its index, and others say that there were runs.
pub(crate) fn lost_rows(connection: &Connection) -> Result<Vec<RunId>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT name FROM (SELECT id, name FROM runs INDEXED BY sqlite_autoindex_runs_1) AS known
         WHERE NOT EXISTS (SELECT 1 FROM runs NOT INDEXED WHERE runs.id = known.id) ORDER BY known.id DESC",
    )?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    let is_emptied = "SELECT NOT EXISTS (SELECT 1 FROM runs NOT INDEXED) AND EXISTS (SELECT 1 FROM frozen)";
    if names.is_empty() && connection.prepare_cached(is_emptied)?.query_row([], |row| row.get(0))? {
        return Err(Fault::corrupt("table `runs` is empty, and table `frozen` is not").into());
    }
    Ok(names.iter().filter_map(|name| RunId::new(name).ok()).collect())
}

/// Keeps those that the database does not know and that have left a log. What is wrong with a row that cannot be read,
/// others say; it is there.
pub(crate) fn lost(connection: &Connection, place: &Place, mut told: Vec<RunId>) -> Vec<RunId> {
    told.retain(|run| {
        matches!(RunRow::find(connection, run), Ok(None)) && has_told(&RealDisk, &folder_of(place, run))
    });
    told.sort_unstable();
    told
}
