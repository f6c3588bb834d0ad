//! Scopes of a run and their ends.
//!
//! The end of a scope is stored apart from its records, so that a lost record is detected. It is a row of
//! `scopes`, except for the main scope. Every commit updates the row of the run anyway, so the end of the
//! main scope is there (`main`, `main_*`). This saves a page write per commit.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row};
use waypost::id::{Digest, RunId, ScopePath};

use crate::database::error::{Failure, SqliteError};
use crate::database::heads::RunRow;
use crate::database::heads::{HeadEnd, Newest};
use crate::database::values::{count, int};
use crate::tables::counters;
use crate::tables::rows::{SCOPE_ID_MAX, SEQ_BITS, SEQ_MAX, key, seq_of};
use crate::tables::tail_check::Loss;
use waypost_codec::encode::{CODEC_DELTA, CODEC_FULL};

/// A scope of a run.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pub(crate) id: i64,
    pub(crate) path: ScopePath,
    pub(crate) open: bool,
    /// The highest seq ever used.
    pub(crate) newest: u64,
    /// The seq above which records are lost, if any are.
    pub(crate) loss: Option<(u64, Arc<Loss>)>,
}

/// A row of `scopes`; for the main scope the missing values are in the row of the run.
struct ScopeRow {
    id: i64,
    path: String,
    open: Option<bool>,
    newest: Option<i64>,
}

impl ScopeRow {
    const COLUMNS: &str = "id, path, open, newest";

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { id: row.get(0)?, path: row.get(1)?, open: row.get(2)?, newest: row.get(3)? })
    }

    fn scope(self, connection: &Connection, run: i64) -> Result<Scope, Failure> {
        let path = ScopePath::new(&self.path).map_err(|error| SqliteError::corrupt(error.to_string()))?;
        let (open, newest) = match (self.open, self.newest) {
            (Some(open), Some(newest)) => (open, newest),
            _ => connection
                .prepare_cached("SELECT main_open, main_newest FROM runs WHERE id = ?1")?
                .query_row([run], |row| Ok((row.get(0)?, row.get(1)?)))?,
        };
        let (id, newest) = (self.id, count(newest)?);
        if !(1..=SCOPE_ID_MAX).contains(&id) || newest > SEQ_MAX {
            return Err(SqliteError::corrupt(format!("scope {path} has id {id} and ends at {newest}")).into());
        }
        Ok(Scope { id, path, open, newest, loss: None })
    }
}

impl Scope {
    pub(crate) fn find(connection: &Connection, run: i64, path: &ScopePath) -> Result<Option<Self>, Failure> {
        let columns = ScopeRow::COLUMNS;
        let row = connection
            .prepare_cached(&format!("SELECT {columns} FROM scopes WHERE run = ?1 AND path = ?2"))?
            .query_row((run, path.as_str()), ScopeRow::read)
            .optional()?;
        row.map(|row| row.scope(connection, run)).transpose()
    }

    /// Finds a scope for a reader. If the index lacks the scope, a table scan checks that the index is
    /// intact.
    pub(crate) fn get(connection: &Connection, run: i64, path: &ScopePath) -> Result<Option<Self>, Failure> {
        let found = Self::find(connection, run, path)?;
        let sql = "SELECT 1 FROM scopes NOT INDEXED WHERE run = ?1 AND path = ?2";
        if found.is_none() && connection.prepare_cached(sql)?.exists((run, path.as_str()))? {
            return Err(SqliteError::corrupt(format!("the index of table `scopes` lacks {path}")).into());
        }
        Ok(found)
    }

    /// Lists scopes in opening order, starting with the first id of at least `from`.
    pub(crate) fn list(
        connection: &Connection,
        run: i64,
        from: i64,
        limit: usize,
    ) -> Result<Vec<Self>, Failure> {
        let columns = ScopeRow::COLUMNS;
        let sql = format!("SELECT {columns} FROM scopes WHERE run = ?1 AND id >= ?2 ORDER BY id LIMIT ?3");
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query((run, from, int(limit as u64)))?;
        let mut scopes = Vec::new();
        while let Some(row) = rows.next()? {
            scopes.push(ScopeRow::read(row)?.scope(connection, run)?);
        }
        Ok(scopes)
    }

    /// Lists the main scope and the most recently opened scopes.
    pub(crate) fn newest(connection: &Connection, run: i64, limit: usize) -> Result<Vec<Self>, Failure> {
        let mut scopes: Vec<_> = Self::find(connection, run, &ScopePath::main())?.into_iter().collect();
        let from: Option<i64> = connection
            .prepare_cached(
                "SELECT min(id) FROM (SELECT id FROM scopes WHERE run = ?1 ORDER BY id DESC LIMIT ?2)",
            )?
            .query_row((run, int(limit as u64)), |row| row.get(0))?;
        let last = Self::list(connection, run, from.unwrap_or(0), limit)?;
        scopes.extend(last.into_iter().filter(|scope| !scope.path.is_main()));
        Ok(scopes)
    }

    /// Corrects a damaged `newest` from the records; `run` is the row of the run.
    pub(crate) fn settled(self, connection: &Connection, run: i64) -> Result<Self, Failure> {
        counters::checked_newest(connection, run, self.look_beyond(connection, run)?)
    }

    /// Extends `newest` by records beyond it.
    fn look_beyond(mut self, connection: &Connection, run: i64) -> Result<Self, Failure> {
        let beyond = connection
            .prepare_cached("SELECT max(key), count(*) FROM records WHERE key > ?1 AND key <= ?2")?
            .query_row([key(self.id, self.newest), key(self.id, SEQ_MAX)], |row| {
                Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, i64>(1)?))
            });
        match beyond.map_err(SqliteError::from) {
            Ok((None, _)) => {}
            Ok((Some(last), rows)) if int(seq_of(last)) == int(self.newest) + rows => {
                self.newest = seq_of(last)
            }
            Ok(_) => self.newest = self.reached_from(connection, counters::missed(connection, run)?)?,
            // The page is damaged; reading the rows reports the damage.
            Err(fault) if fault.is_corrupt() => {}
            Err(fault) => return Err(fault.into()),
        }
        Ok(self)
    }

    /// Returns the end of the rows beyond `newest`, with at most as many gaps as the run lacks rows. A
    /// flipped bit in a key turns a row into a nonexistent record millions of seqs later.
    fn reached_from(&self, connection: &Connection, mut missed: u64) -> Result<u64, Failure> {
        let sql = "SELECT min(key) FROM records WHERE key > ?1 AND key <= ?2";
        let mut next = connection.prepare_cached(sql)?;
        let mut newest = self.newest;
        loop {
            let bounds = [key(self.id, newest), key(self.id, SEQ_MAX)];
            let Some(row) = next.query_row(bounds, |row| row.get::<_, Option<i64>>(0))? else { break };
            // Out-of-order rows are found at the wrong place.
            let gap = seq_of(row).checked_sub(newest + 1);
            let Some(rest) = gap.and_then(|gap| missed.checked_sub(gap)) else { break };
            (newest, missed) = (seq_of(row), rest);
        }
        Ok(newest)
    }

    /// Records that the scope once had record `seq`, even if it is lost.
    pub(crate) fn reach(&self, connection: &Connection, run: i64, seq: u64) -> Result<(), Failure> {
        if self.path.is_main() {
            connection
                .prepare_cached("UPDATE runs SET main_newest = max(main_newest, ?2) WHERE id = ?1")?
                .execute((run, int(seq)))?;
        } else {
            connection
                .prepare_cached("UPDATE scopes SET newest = max(newest, ?2) WHERE id = ?1")?
                .execute((self.id, int(seq)))?;
        }
        Ok(())
    }

    /// Subtracts dropped bodies from the count.
    pub(crate) fn drop_bodies(&self, connection: &Connection, run: i64, count: i64) -> Result<(), Failure> {
        if self.path.is_main() {
            connection
                .prepare_cached("UPDATE runs SET main_bodies = max(main_bodies - ?2, 0) WHERE id = ?1")?
                .execute((run, count))?;
        } else {
            connection
                .prepare_cached("UPDATE scopes SET bodies = max(bodies - ?2, 0) WHERE id = ?1")?
                .execute((self.id, count))?;
        }
        Ok(())
    }
}

impl Newest {
    pub(crate) fn new(digest: Digest, codec: Option<i64>) -> Self {
        Self { digest, codec }
    }

    /// Returns whether the body is stored as a frame, so that the next body may be a delta of it.
    pub(crate) fn is_framed(&self) -> bool {
        matches!(self.codec, Some(CODEC_FULL | CODEC_DELTA))
    }
}

// An append looks up each end with a single statement.
const _: () = assert!(SEQ_BITS == 32, "the statements below make keys");

impl HeadEnd {
    /// Finds a run and the end of its main scope; the end is `None` if the stored values are impossible.
    pub(crate) fn of_main(
        connection: &Connection,
        run: &RunId,
    ) -> Result<Option<(RunRow, Option<Self>)>, Failure> {
        let mut statement = connection.prepare_cached(
            "SELECT id, token, leased, batch_token, batch_count, main, main_newest,
                 (SELECT digest FROM records WHERE key = (main << 32 | main_newest)),
                 (SELECT codec FROM records WHERE key = (main << 32 | main_newest))
             FROM runs WHERE name = ?1",
        )?;
        let mut rows = statement.query([run.as_str()])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        Ok(Some((RunRow::read(row)?, Self::read(row, 5)?)))
    }

    /// Finds the end of a child scope.
    pub(crate) fn of_child(
        connection: &Connection,
        run: i64,
        path: &ScopePath,
    ) -> Result<Option<Self>, Failure> {
        let mut statement = connection.prepare_cached(
            "SELECT id, newest, (SELECT digest FROM records WHERE key = (id << 32 | newest)),
                 (SELECT codec FROM records WHERE key = (id << 32 | newest))
             FROM scopes WHERE run = ?1 AND path = ?2",
        )?;
        let mut rows = statement.query((run, path.as_str()))?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let end = Self::read(row, 0)?;
        Ok(Some(end.ok_or_else(|| SqliteError::corrupt(format!("the end of scope {path} is out of range")))?))
    }

    /// Reads the columns from index `at`.
    fn read(row: &Row<'_>, at: usize) -> Result<Option<Self>, Failure> {
        let (scope, newest) = (row.get::<_, i64>(at)?, row.get::<_, i64>(at + 1)?);
        let newest = u64::try_from(newest).ok().filter(|newest| *newest <= SEQ_MAX);
        let Some(newest) = newest.filter(|_| (1..=SCOPE_ID_MAX).contains(&scope)) else { return Ok(None) };
        let digest = row.get::<_, Option<[u8; 32]>>(at + 2)?;
        let codec = row.get(at + 3)?;
        let record = digest.map(|digest| Newest { digest: Digest::from_bytes(digest), codec });
        Ok(Some(Self { scope, newest, record }))
    }
}

/// Returns seq and digest of the newest row of a scope with this stored end.
pub(crate) fn newest_row(
    connection: &Connection,
    scope: i64,
    newest: u64,
) -> Result<Option<(u64, Digest)>, Failure> {
    // Usually the row is at the stored end.
    let mut at = connection.prepare_cached("SELECT digest FROM records WHERE key = ?1")?;
    let mut rows = at.query([key(scope, newest)])?;
    if let Some(row) = rows.next()? {
        return Ok(Some((newest, Digest::from_bytes(row.get(0)?))));
    }
    let mut below = connection.prepare_cached(
        "SELECT key, digest FROM records WHERE key > ?1 AND key < ?2 ORDER BY key DESC LIMIT 1",
    )?;
    let mut rows = below.query([key(scope, 0), key(scope, newest)])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(Some((seq_of(row.get(0)?), Digest::from_bytes(row.get(1)?))))
}
