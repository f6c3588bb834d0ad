//! Branches of a run and their ends.
//!
//! The end of a branch is stored apart from its records, so that a lost record is detected. It is a row of
//! `branches`, except for the main branch. Every commit updates the row of the run anyway, so the end of the
//! main branch is there (`main`, `main_*`). This saves a page write per commit.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row};
use waypost::id::{BranchPath, Digest, RunId};

use crate::database::error::{Failure, SqliteError};
use crate::database::heads::RunRow;
use crate::database::heads::{HeadEnd, Newest};
use crate::database::values::{count, int};
use crate::tables::counters;
use crate::tables::rows::{BRANCH_ID_MAX, SEQ_BITS, SEQ_MAX, key, seq_of};
use crate::tables::tail_check::Loss;
use waypost_codec::encode::{CODEC_DELTA, CODEC_FULL};

/// A branch of a run.
#[derive(Debug, Clone)]
pub(crate) struct Branch {
    pub(crate) id: i64,
    pub(crate) path: BranchPath,
    pub(crate) open: bool,
    /// The highest seq ever used.
    pub(crate) newest: u64,
    /// The seq above which records are lost, if any are.
    pub(crate) loss: Option<(u64, Arc<Loss>)>,
}

/// A row of `branches`; for the main branch the missing values are in the row of the run.
struct BranchRow {
    id: i64,
    path: String,
    open: Option<bool>,
    newest: Option<i64>,
}

impl BranchRow {
    const COLUMNS: &str = "id, path, open, newest";

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { id: row.get(0)?, path: row.get(1)?, open: row.get(2)?, newest: row.get(3)? })
    }

    fn branch(self, connection: &Connection, run: i64) -> Result<Branch, Failure> {
        let path = BranchPath::new(&self.path).map_err(|error| SqliteError::corrupt(error.to_string()))?;
        let (open, newest) = match (self.open, self.newest) {
            (Some(open), Some(newest)) => (open, newest),
            _ => connection
                .prepare_cached("SELECT main_open, main_newest FROM runs WHERE id = ?1")?
                .query_row([run], |row| Ok((row.get(0)?, row.get(1)?)))?,
        };
        let (id, newest) = (self.id, count(newest)?);
        if !(1..=BRANCH_ID_MAX).contains(&id) || newest > SEQ_MAX {
            return Err(
                SqliteError::corrupt(format!("branch {path} has id {id} and ends at {newest}")).into()
            );
        }
        Ok(Branch { id, path, open, newest, loss: None })
    }
}

impl Branch {
    pub(crate) fn find(
        connection: &Connection,
        run: i64,
        path: &BranchPath,
    ) -> Result<Option<Self>, Failure> {
        let columns = BranchRow::COLUMNS;
        let row = connection
            .prepare_cached(&format!("SELECT {columns} FROM branches WHERE run = ?1 AND path = ?2"))?
            .query_row((run, path.as_str()), BranchRow::read)
            .optional()?;
        row.map(|row| row.branch(connection, run)).transpose()
    }

    /// Finds a branch for a reader. If the index lacks the branch, a table scan checks that the index is
    /// intact.
    pub(crate) fn get(connection: &Connection, run: i64, path: &BranchPath) -> Result<Option<Self>, Failure> {
        let found = Self::find(connection, run, path)?;
        let sql = "SELECT 1 FROM branches NOT INDEXED WHERE run = ?1 AND path = ?2";
        if found.is_none() && connection.prepare_cached(sql)?.exists((run, path.as_str()))? {
            return Err(SqliteError::corrupt(format!("the index of table `branches` lacks {path}")).into());
        }
        Ok(found)
    }

    /// Lists branches in opening order, starting with the first id of at least `from`.
    pub(crate) fn list(
        connection: &Connection,
        run: i64,
        from: i64,
        limit: usize,
    ) -> Result<Vec<Self>, Failure> {
        let columns = BranchRow::COLUMNS;
        let sql = format!("SELECT {columns} FROM branches WHERE run = ?1 AND id >= ?2 ORDER BY id LIMIT ?3");
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query((run, from, int(limit as u64)))?;
        let mut branches = Vec::new();
        while let Some(row) = rows.next()? {
            branches.push(BranchRow::read(row)?.branch(connection, run)?);
        }
        Ok(branches)
    }

    /// Lists the main branch and the most recently opened branches.
    pub(crate) fn newest(connection: &Connection, run: i64, limit: usize) -> Result<Vec<Self>, Failure> {
        let mut branches: Vec<_> = Self::find(connection, run, &BranchPath::main())?.into_iter().collect();
        let from: Option<i64> = connection
            .prepare_cached(
                "SELECT min(id) FROM (SELECT id FROM branches WHERE run = ?1 ORDER BY id DESC LIMIT ?2)",
            )?
            .query_row((run, int(limit as u64)), |row| row.get(0))?;
        let last = Self::list(connection, run, from.unwrap_or(0), limit)?;
        branches.extend(last.into_iter().filter(|branch| !branch.path.is_main()));
        Ok(branches)
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

    /// Records that the branch once had record `seq`, even if it is lost.
    pub(crate) fn reach(&self, connection: &Connection, run: i64, seq: u64) -> Result<(), Failure> {
        if self.path.is_main() {
            connection
                .prepare_cached("UPDATE runs SET main_newest = max(main_newest, ?2) WHERE id = ?1")?
                .execute((run, int(seq)))?;
        } else {
            connection
                .prepare_cached("UPDATE branches SET newest = max(newest, ?2) WHERE id = ?1")?
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
                .prepare_cached("UPDATE branches SET bodies = max(bodies - ?2, 0) WHERE id = ?1")?
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
    /// Finds a run and the end of its main branch; the end is `None` if the stored values are impossible.
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

    /// Finds the end of a child branch.
    pub(crate) fn of_child(
        connection: &Connection,
        run: i64,
        path: &BranchPath,
    ) -> Result<Option<Self>, Failure> {
        let mut statement = connection.prepare_cached(
            "SELECT id, newest, (SELECT digest FROM records WHERE key = (id << 32 | newest)),
                 (SELECT codec FROM records WHERE key = (id << 32 | newest))
             FROM branches WHERE run = ?1 AND path = ?2",
        )?;
        let mut rows = statement.query((run, path.as_str()))?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let end = Self::read(row, 0)?;
        Ok(Some(
            end.ok_or_else(|| SqliteError::corrupt(format!("the end of branch {path} is out of range")))?,
        ))
    }

    /// Reads the columns from index `at`.
    fn read(row: &Row<'_>, at: usize) -> Result<Option<Self>, Failure> {
        let (branch, newest) = (row.get::<_, i64>(at)?, row.get::<_, i64>(at + 1)?);
        let newest = u64::try_from(newest).ok().filter(|newest| *newest <= SEQ_MAX);
        let Some(newest) = newest.filter(|_| (1..=BRANCH_ID_MAX).contains(&branch)) else { return Ok(None) };
        let digest = row.get::<_, Option<[u8; 32]>>(at + 2)?;
        let codec = row.get(at + 3)?;
        let record = digest.map(|digest| Newest { digest: Digest::from_bytes(digest), codec });
        Ok(Some(Self { branch, newest, record }))
    }
}

/// Returns seq and digest of the newest row of a branch with this stored end.
pub(crate) fn newest_row(
    connection: &Connection,
    branch: i64,
    newest: u64,
) -> Result<Option<(u64, Digest)>, Failure> {
    // Usually the row is at the stored end.
    let mut at = connection.prepare_cached("SELECT digest FROM records WHERE key = ?1")?;
    let mut rows = at.query([key(branch, newest)])?;
    if let Some(row) = rows.next()? {
        return Ok(Some((newest, Digest::from_bytes(row.get(0)?))));
    }
    let mut below = connection.prepare_cached(
        "SELECT key, digest FROM records WHERE key > ?1 AND key < ?2 ORDER BY key DESC LIMIT 1",
    )?;
    let mut rows = below.query([key(branch, 0), key(branch, newest)])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(Some((seq_of(row.get(0)?), Digest::from_bytes(row.get(1)?))))
}
