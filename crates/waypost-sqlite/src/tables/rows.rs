//! Verified conversion of rows to records: bytes that do not match their digest never leave this module.
//!
//! Every lookup is by key, so a damaged page affects only its own rows. A missing row is detected by the
//! branch's `newest`, which is on another page.

use rusqlite::{Connection, OptionalExtension, Row};
use waypost::id::{Digest, RunId};
use waypost::record::{Flaw, HEADER_BYTES_MAX, Record};
use waypost::store::{Damage, StoreError};

use crate::codec::delta_cache::CachedBody;
use crate::codec::encode;
use crate::codec::encode::{CODEC_DELTA, CODEC_FULL, CODEC_PLAIN, CODEC_TRIMMED};
use crate::codec::header;
use crate::database::error::{Failure, SqliteError};
use crate::database::heads::RunRow;
use crate::database::open::Place;
use crate::database::values::count;
use crate::tables::branch::Branch;
use crate::tables::decode::{self, Decoded};

/// Bits of a key for the seq.
pub(crate) const SEQ_BITS: u32 = 32;
/// Largest seq: 136 years with a checkpoint per second.
pub(crate) const SEQ_MAX: u64 = (1 << SEQ_BITS) - 1;
/// Largest branch id: the remaining bits of a positive 64-bit key.
pub(crate) const BRANCH_ID_MAX: i64 = (1 << (63 - SEQ_BITS)) - 1;
/// Returns the key of a record.
pub(crate) fn key(branch: i64, seq: u64) -> i64 {
    assert!((1..=BRANCH_ID_MAX).contains(&branch) && seq <= SEQ_MAX, "ids are checked at creation");
    branch << SEQ_BITS | seq as i64
}

/// Returns the seq of a key.
pub(crate) fn seq_of(key: i64) -> u64 {
    key as u64 & SEQ_MAX
}

impl RunRow {
    pub(crate) fn find(connection: &Connection, run: &RunId) -> Result<Option<Self>, Failure> {
        let row = connection
            .prepare_cached("SELECT id, token, leased, batch_token, batch_count FROM runs WHERE name = ?1")?
            .query_row([run.as_str()], |row| Ok(Self::read(row)))
            .optional()?;
        row.transpose()
    }

    /// Reads the leading columns of a row: `id, token, leased, batch_token, batch_count`.
    pub(crate) fn read(row: &Row<'_>) -> Result<Self, Failure> {
        let batch = (count(row.get(3)?)?, count(row.get(4)?)?);
        Ok(Self { id: row.get(0)?, token: count(row.get(1)?)?, leased: row.get(2)?, batch })
    }

    /// Finds a run that should exist. Before it reports a missing run, a table scan checks that the index is
    /// intact: a run that seems missing would be recreated.
    pub(crate) fn get(connection: &Connection, run: &RunId) -> Result<Self, Failure> {
        if let Some(row) = Self::find(connection, run)? {
            return Ok(row);
        }
        let sql = "SELECT 1 FROM runs NOT INDEXED WHERE name = ?1";
        if connection.prepare_cached(sql)?.exists([run.as_str()])? {
            return Err(SqliteError::corrupt(format!("the index of table `runs` lacks run {run}")).into());
        }
        Err(Failure::NoRun(run.clone()))
    }

    /// Finds the run and checks that `token` is its current lease.
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

/// The part of a record to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Header,
    Whole,
}

/// The content at a key.
#[derive(Debug)]
pub(crate) enum Found {
    /// A record, verified as far as it was read.
    Sound(Box<Record>),
    /// A damaged record that is not in quarantine.
    Damaged(Box<Damage>),
    /// Nothing, or a quarantined record.
    Absent,
}

/// Reads record `seq` of a branch; `seq` is at most its newest.
///
/// # Errors
/// [`StoreError::Version`] if a newer version wrote the record: this is not damage, and an older record must
/// not replace it.
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
        Ok(None) => match branch.loss(seq) {
            Some((flaw, place)) => {
                at = place;
                flaw
            }
            None => Flaw::Malformed("the record is missing".to_owned()),
        },
        Err(Failure::Sqlite(fault)) if fault.is_corrupt() => Flaw::Malformed(fault.to_string()),
        Err(failure) => return Err(failure),
    };
    if is_in_quarantine(connection, key)? {
        return Ok(Found::Absent);
    }
    let damage = Damage { run: run.clone(), branch: branch.path.clone(), seq, place: at, flaw };
    match damage.flaw {
        Flaw::Format { .. } => Err(StoreError::of_damage(damage, None).into()),
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
    /// Returns the record, with its body if read.
    ///
    /// # Errors
    /// The inner error is the defect of the record.
    fn open(
        self,
        connection: &Connection,
        place: &Place,
        run: &RunId,
        branch: &Branch,
        seq: u64,
    ) -> Result<Result<Record, Flaw>, Failure> {
        let digest = Digest::from_bytes(self.digest);
        let header =
            match header::decode(&mut place.delta_cache.compressor.contexts(), self.header, HEADER_BYTES_MAX)
            {
                Ok(header) => header,
                Err(why) => return Ok(Err(Flaw::Malformed(format!("cannot read the header: {why}")))),
            };
        let frame_kind = self.codec.and_then(decode::kind);
        let (body, made) = match (frame_kind, self.body) {
            (Some(kind), Some(bytes)) => {
                match decode::decode(connection, place, run, branch, seq, (kind, bytes))? {
                    Ok(Decoded { body, chain, check }) => (Some(body), Some((chain, check))),
                    // A defect of the header takes precedence.
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
            return Ok(Err(Flaw::Malformed(format!("codec {codec:?} does not match header and body"))));
        }
        if let Some(((chain, check), body)) = made.zip(record.body_bytes()) {
            let position_bytes = encode::position_bytes(&record);
            let (record, body) = (record.digest(), body.clone());
            place.delta_cache.insert_read(
                run,
                &branch.path,
                CachedBody { seq, record, check, body, position_bytes, chain },
            );
        }
        Ok(Ok(record))
    }
}

/// Returns a message if the record belongs to another place.
fn misplaced(record: &Record, run: &RunId, branch: &Branch, seq: u64) -> Option<String> {
    let header = record.header();
    let is_here = header.run == *run && header.branch == branch.path && header.seq == seq;
    (!is_here).then(|| format!("the header belongs to {}", header.reference()))
}
