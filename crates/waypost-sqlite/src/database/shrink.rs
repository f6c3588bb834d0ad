//! Returns free pages to the file system, a slice at a time.
//!
//! `auto_vacuum` is INCREMENTAL: the database has a map of references to each page. So the last pages can
//! move into free pages, and the file can be truncated in small steps. `VACUUM` would rewrite the whole
//! database and block all writers, however little it frees.

use rusqlite::Connection;

use crate::database::error::Failure;

/// Pages per transaction: 4 MiB, which block other writers for a few milliseconds.
const SLICE_PAGES: u32 = 512;
/// Percentage of free pages from which a trim returns pages; fewer are kept for later writes.
const FREE_PERCENT: i64 = 25;

/// When to return pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shrink {
    /// If any page is free.
    All,
    /// If many pages are free.
    IfMany,
}

/// Returns a slice of pages; the result says whether more can be returned.
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
    // Each row is a page; the statement ends when its slice is done.
    let mut statement = connection.prepare(&format!("PRAGMA incremental_vacuum({SLICE_PAGES})"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    let left = number(connection, "PRAGMA freelist_count")?;
    Ok(left > 0 && left < free)
}

fn number(connection: &Connection, sql: &str) -> Result<i64, Failure> {
    Ok(connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}
