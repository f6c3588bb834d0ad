//! Pages that nothing is on, given back to the file system a slice at a time.
//!
//! `auto_vacuum` is INCREMENTAL: the database keeps a map of what refers to each page, so that the last pages of the
//! file can be moved into free ones, and the file be cut, in as small steps as wanted. `VACUUM` would write the whole
//! database anew, with everybody else waiting, to free however little.

use rusqlite::Connection;

use crate::fault::Failure;

/// Pages that are given back in one transaction: 4 MiB, a few milliseconds, for which other writers wait.
const SLICE_PAGES: u32 = 512;
/// A trim gives pages back where so many of a hundred are free; fewer are there for what comes next.
const FREE_PERCENT: i64 = 25;

/// When pages are given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shrink {
    /// All that are free.
    All,
    /// All, if many are.
    IfMany,
}

/// Gives one slice back, and says whether more is to be given.
pub(crate) fn slice(connection: &Connection, shrink: Shrink) -> Result<bool, Failure> {
    let free = number(connection, "PRAGMA freelist_count")?;
    let pages = number(connection, "PRAGMA page_count")?;
    let enough = match shrink {
        Shrink::All => free > 0,
        Shrink::IfMany => free * 100 >= pages * FREE_PERCENT,
    };
    if !enough {
        return Ok(false);
    }
    // Each row is a page; the statement is done when there are no more.
    let mut statement = connection.prepare(&format!("PRAGMA incremental_vacuum({SLICE_PAGES})"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    let left = number(connection, "PRAGMA freelist_count")?;
    Ok(left > 0 && left < free)
}

fn number(connection: &Connection, sql: &str) -> Result<i64, Failure> {
    Ok(connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}
