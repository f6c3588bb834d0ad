//! Rows to records, verified: nothing leaves this module whose bytes do not match their digest.
//!
//! Every lookup is by key, so that a damaged page makes only what is on it unreadable: the rows beside it are still
//! reached, and a missing row is noticed by the branch's `newest`, which stands on another page.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension};
use waypost::id::{BranchPath, Digest, RunId};
use waypost::record::{Flaw, HEADER_BYTES_MAX, Record};
use waypost::store::{Damage, StoreError};

use crate::fault::{Failure, Fault};
use crate::open::Place;
use crate::tips::Tip;
use crate::unpack::{self, Unpacked};
use crate::witness::Gone;
use crate::{counters, header, pack};

/// Bits of a key that hold the seq.
const SEQ_BITS: u32 = 32;
/// Largest seq: 136 years of a checkpoint a second.
pub(crate) const SEQ_MAX: u64 = (1 << SEQ_BITS) - 1;
/// Largest branch id: what a positive 64-bit key leaves.
pub(crate) const BRANCH_ID_MAX: i64 = (1 << (63 - SEQ_BITS)) - 1;
/// The body's bytes are kept as they are.
pub(crate) const CODEC_PLAIN: i64 = 0;
/// The body is kept in a frame that stands alone.
pub(crate) const CODEC_FULL: i64 = 1;
/// The body is kept in a frame that tells how it differs from that of an earlier record of the branch.
pub(crate) const CODEC_DELTA: i64 = 2;
/// The body was dropped by retention.
pub(crate) const CODEC_TRIMMED: i64 = -1;

/// Makes the key of a record.
pub(crate) fn key(branch: i64, seq: u64) -> i64 {
    assert!((1..=BRANCH_ID_MAX).contains(&branch) && seq <= SEQ_MAX, "ids are checked when they are made");
    branch << SEQ_BITS | seq as i64
}

/// Returns the seq of a key.
pub(crate) fn seq_of(key: i64) -> u64 {
    key as u64 & SEQ_MAX
}

/// Counts that SQLite keeps signed; none of ours comes near the edge.
pub(crate) fn int(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Reads a count back.
pub(crate) fn count(value: i64) -> Result<u64, Fault> {
    u64::try_from(value).map_err(|_| Fault::corrupt(format!("a count is {value}")))
}

/// Writes a time so that text order is time order.
pub(crate) fn time_text(time: Timestamp) -> String {
    format!("{time:.9}")
}

/// Reads a time back.
pub(crate) fn time_of(text: &str) -> Result<Timestamp, Fault> {
    text.parse().map_err(|error| Fault::corrupt(format!("`{text}` is no time: {error}")))
}

/// What an append must know of a run.
#[derive(Debug)]
pub(crate) struct RunRow {
    pub(crate) id: i64,
    pub(crate) token: u64,
    pub(crate) leased: bool,
    pub(crate) batch: (u64, u64),
}

impl RunRow {
    pub(crate) fn find(connection: &Connection, run: &RunId) -> Result<Option<Self>, Failure> {
        let row = connection
            .prepare_cached("SELECT id, token, leased, batch_token, batch_count FROM runs WHERE name = ?1")?
            .query_row([run.as_str()], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get::<_, i64>(3)?, row.get::<_, i64>(4)?))
            })
            .optional()?;
        let Some((id, token, leased, batch_token, batch_count)) = row else { return Ok(None) };
        let batch = (count(batch_token)?, count(batch_count)?);
        Ok(Some(Self { id, token: count(token)?, leased, batch }))
    }

    /// Finds a run that should be there. Before it says that there is none, it makes sure that not the index is at
    /// fault: a run that seems gone would be begun anew.
    pub(crate) fn get(connection: &Connection, run: &RunId) -> Result<Self, Failure> {
        if let Some(row) = Self::find(connection, run)? {
            return Ok(row);
        }
        let sql = "SELECT 1 FROM runs NOT INDEXED WHERE name = ?1";
        if connection.prepare_cached(sql)?.exists([run.as_str()])? {
            return Err(Fault::corrupt(format!("the index of table `runs` has lost run {run}")).into());
        }
        Err(Failure::NoRun(run.clone()))
    }

    /// Finds the run and sees that `token` is its newest lease, still held.
    pub(crate) fn leased(connection: &Connection, run: &RunId, token: u64) -> Result<Self, Failure> {
        let row = Self::get(connection, run)?;
        row.fence(run, token)?;
        Ok(row)
    }

    pub(crate) fn fence(&self, run: &RunId, token: u64) -> Result<(), StoreError> {
        if self.leased && self.token == token {
            return Ok(());
        }
        Err(StoreError::Fenced { run: run.clone(), token, newest: self.token })
    }
}

/// What an append must know of the record that a branch ends with.
#[derive(Debug)]
pub(crate) struct Newest {
    pub(crate) digest: Digest,
    codec: Option<i64>,
}

impl Newest {
    /// Says whether its body is kept in a frame, so that the next one may be a delta of it.
    pub(crate) fn is_framed(&self) -> bool {
        matches!(self.codec, Some(CODEC_FULL | CODEC_DELTA))
    }
}

/// A branch of a run.
#[derive(Debug, Clone)]
pub(crate) struct Branch {
    pub(crate) id: i64,
    pub(crate) path: BranchPath,
    pub(crate) open: bool,
    /// The highest seq that it ever had.
    pub(crate) newest: u64,
    /// Records above this seq are missed, if any are.
    pub(crate) gone: Option<(u64, Arc<Gone>)>,
}

impl Branch {
    pub(crate) fn find(
        connection: &Connection,
        run: i64,
        path: &BranchPath,
    ) -> Result<Option<Self>, Failure> {
        let row = connection
            .prepare_cached("SELECT id, open, newest FROM branches WHERE run = ?1 AND path = ?2")?
            .query_row((run, path.as_str()), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        let Some((id, open, newest)) = row else { return Ok(None) };
        Self::of(id, path.clone(), open, newest).map(Some)
    }

    /// As [`find`](Self::find), with the record that the branch says to end with; none if it is not there.
    pub(crate) fn find_with_newest(
        connection: &Connection,
        run: i64,
        path: &BranchPath,
    ) -> Result<Option<(Self, Option<Newest>)>, Failure> {
        // No join, and no parameter in the inner ones: SQLite would prepare the statement anew for each value.
        const _: () = assert!(SEQ_BITS == 32, "the statement below makes a key");
        let row = connection
            .prepare_cached(
                "SELECT id, open, newest, (SELECT digest FROM records WHERE key = (id << 32 | newest)),
                     (SELECT codec FROM records WHERE key = (id << 32 | newest))
                 FROM branches WHERE run = ?1 AND path = ?2",
            )?
            .query_row((run, path.as_str()), |row| {
                let (digest, codec) = (row.get::<_, Option<[u8; 32]>>(3)?, row.get(4)?);
                let newest = digest.map(|digest| Newest { digest: Digest::from_bytes(digest), codec });
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, newest))
            })
            .optional()?;
        let Some((id, open, seq, newest)) = row else { return Ok(None) };
        Ok(Some((Self::of(id, path.clone(), open, seq)?, newest)))
    }

    /// As [`find`](Self::find), for readers: makes sure that it is not the index that has lost the branch.
    pub(crate) fn get(connection: &Connection, run: i64, path: &BranchPath) -> Result<Option<Self>, Failure> {
        let found = Self::find(connection, run, path)?;
        let sql = "SELECT 1 FROM branches NOT INDEXED WHERE run = ?1 AND path = ?2";
        if found.is_none() && connection.prepare_cached(sql)?.exists((run, path.as_str()))? {
            return Err(Fault::corrupt(format!("the index of table `branches` has lost {path}")).into());
        }
        Ok(found)
    }

    /// Lists branches in the order in which they were opened, beginning with the first whose id is at least `from`.
    pub(crate) fn list(
        connection: &Connection,
        run: i64,
        from: i64,
        limit: usize,
    ) -> Result<Vec<Self>, Failure> {
        let mut statement = connection.prepare_cached(
            "SELECT id, path, open, newest FROM branches WHERE run = ?1 AND id >= ?2 ORDER BY id LIMIT ?3",
        )?;
        let mut rows = statement.query((run, from, int(limit as u64)))?;
        let mut branches = Vec::new();
        while let Some(row) = rows.next()? {
            let path: String = row.get(1)?;
            let path = BranchPath::new(&path).map_err(|error| Fault::corrupt(error.to_string()))?;
            branches.push(Self::of(row.get(0)?, path, row.get(2)?, row.get(3)?)?);
        }
        Ok(branches)
    }

    /// Lists the main branch, and the branches that were opened last.
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

    fn of(id: i64, path: BranchPath, open: bool, newest: i64) -> Result<Self, Failure> {
        let newest = count(newest)?;
        if !(1..=BRANCH_ID_MAX).contains(&id) || newest > SEQ_MAX {
            return Err(Fault::corrupt(format!("branch {path} has id {id} and ends at {newest}")).into());
        }
        Ok(Self { id, path, open, newest, gone: None })
    }

    /// Makes `newest` what the records say, in case that it was damaged; `run` is the row of the run.
    pub(crate) fn settled(self, connection: &Connection, run: i64) -> Result<Self, Failure> {
        counters::believed(connection, run, self.look_beyond(connection)?)
    }

    /// Looks for records beyond `newest`.
    fn look_beyond(mut self, connection: &Connection) -> Result<Self, Failure> {
        let beyond = connection
            .prepare_cached("SELECT max(key) FROM records WHERE key > ?1 AND key <= ?2")?
            .query_row([key(self.id, self.newest), key(self.id, SEQ_MAX)], |row| row.get(0));
        match beyond.map_err(Fault::from) {
            Ok(None) => {}
            Ok(Some(key)) => self.newest = seq_of(key),
            // The page is damaged; the rows themselves will say so.
            Err(fault) if fault.is_corrupt() => {}
            Err(fault) => return Err(fault.into()),
        }
        Ok(self)
    }
}

/// How much of a record is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Header,
    Whole,
}

/// What is at a key.
#[derive(Debug)]
pub(crate) enum Found {
    /// A record, every byte of it checked as far as it was read.
    Sound(Box<Record>),
    /// Something else, and nobody has moved it aside.
    Damaged(Box<Damage>),
    /// Nothing, or what was there is in quarantine.
    Absent,
}

/// Reads the record `seq` of a branch; `seq` is at most its newest.
///
/// # Errors
/// [`StoreError::Version`] if it was written by a newer version: that is no damage, and nothing older may stand in.
pub(crate) fn fetch(
    connection: &Connection,
    place: &Place,
    run: &RunId,
    branch: &Branch,
    seq: u64,
    want: Want,
) -> Result<Found, Failure> {
    let key = key(branch.id, seq);
    let mut at = format!("{}, table `records`, row {key}", place.file.display());
    let flaw = match columns(connection, key, want) {
        Ok(Some(columns)) => match columns.open(connection, place, run, branch, seq)? {
            Ok(record) => return Ok(Found::Sound(Box::new(record))),
            Err(flaw) => flaw,
        },
        Ok(None) => match branch.gone(seq) {
            Some((flaw, told)) => {
                at = told;
                flaw
            }
            None => Flaw::Malformed("it is not there any more".to_owned()),
        },
        Err(Failure::Sqlite(fault)) if fault.is_corrupt() => Flaw::Malformed(fault.to_string()),
        Err(failure) => return Err(failure),
    };
    if is_in_quarantine(connection, key)? {
        return Ok(Found::Absent);
    }
    let damage = Damage { run: run.clone(), branch: branch.path.clone(), seq, place: at, flaw };
    match damage.flaw {
        Flaw::Newer { .. } => Err(StoreError::of_damage(damage, None).into()),
        _ => Ok(Found::Damaged(Box::new(damage))),
    }
}

pub(crate) fn is_in_quarantine(connection: &Connection, key: i64) -> Result<bool, Failure> {
    Ok(connection.prepare_cached("SELECT 1 FROM quarantine WHERE key = ?1")?.exists([key])?)
}

struct Columns {
    codec: Option<i64>,
    digest: [u8; 32],
    header: Vec<u8>,
    has_body: bool,
    body: Option<Vec<u8>>,
}

fn columns(connection: &Connection, key: i64, want: Want) -> Result<Option<Columns>, Failure> {
    let sql = match want {
        Want::Header => "SELECT codec, digest, header, body IS NOT NULL FROM records WHERE key = ?1",
        Want::Whole => "SELECT codec, digest, header, body IS NOT NULL, body FROM records WHERE key = ?1",
    };
    let columns = connection.prepare_cached(sql)?.query_row([key], |row| {
        Ok(Columns {
            codec: row.get(0)?,
            digest: row.get(1)?,
            header: row.get(2)?,
            has_body: row.get(3)?,
            body: if want == Want::Whole { row.get(4)? } else { None },
        })
    });
    Ok(columns.optional()?)
}

impl Columns {
    /// Makes the record, with its body if that was read.
    ///
    /// # Errors
    /// The inner one says what is wrong with it.
    fn open(
        self,
        connection: &Connection,
        place: &Place,
        run: &RunId,
        branch: &Branch,
        seq: u64,
    ) -> Result<Result<Record, Flaw>, Failure> {
        let digest = Digest::from_bytes(self.digest);
        let header = match header::unpack(&mut place.frames.squeezer.lend(), self.header, HEADER_BYTES_MAX) {
            Ok(header) => header,
            Err(why) => return Ok(Err(Flaw::Malformed(format!("its header: {why}")))),
        };
        let frame_kind = self.codec.and_then(unpack::kind);
        let (body, made) = match (frame_kind, self.body) {
            (Some(kind), Some(bytes)) => {
                match unpack::unpack(connection, place, run, branch, seq, (kind, bytes))? {
                    Ok(Unpacked { body, chain, check }) => (Some(body), Some((chain, check))),
                    // What the header says of itself goes before.
                    Err(why) => {
                        let header = Record::open(digest, header, None);
                        return Ok(Err(header.err().unwrap_or(Flaw::Malformed(why))));
                    }
                }
            }
            (_, body) => (body, None),
        };
        let record = match Record::open(digest, header, body) {
            Ok(record) => record,
            Err(flaw) => return Ok(Err(flaw)),
        };
        if let Some(why) = misplaced(&record, run, branch, seq) {
            return Ok(Err(Flaw::Malformed(why)));
        }
        let fits = match self.codec {
            None => record.header().body.is_none() && !self.has_body,
            Some(CODEC_PLAIN | CODEC_FULL | CODEC_DELTA) => record.header().body.is_some() && self.has_body,
            Some(CODEC_TRIMMED) => record.header().body.is_some() && !self.has_body,
            Some(_) => false,
        };
        if !fits {
            let codec = self.codec;
            return Ok(Err(Flaw::Malformed(format!("codec {codec:?} does not fit its header and body"))));
        }
        if let Some(((chain, check), body)) = made.zip(record.body_bytes()) {
            let position_bytes = pack::position_bytes(&record);
            let (record, body) = (record.digest(), body.clone());
            place.frames.read(run, &branch.path, Tip { seq, record, check, body, position_bytes, chain });
        }
        Ok(Ok(record))
    }
}

/// Says that a record stands in the place of another, if it does.
fn misplaced(record: &Record, run: &RunId, branch: &Branch, seq: u64) -> Option<String> {
    let header = record.header();
    let is_here = header.run == *run && header.branch == branch.path && header.seq == seq;
    (!is_here).then(|| format!("it says that it is {}", header.reference()))
}
