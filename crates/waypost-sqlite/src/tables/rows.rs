//! Verified conversion of rows to records: bytes that do not match their digest never leave this module.
//!
//! Every lookup is by key, so a damaged page affects only its own rows. A missing row is detected by the
//! scope's `newest`, which is on another page.

use rusqlite::{Connection, OptionalExtension, Row};
use waypost::id::RunId;
use waypost::record::{Flaw, Record};
use waypost::store::{Damage, StoreError};
use waypost_codec::decode;
use waypost_codec::row::{ReadBody, RowPlace, StoredRow};

use crate::database::error::{Failure, SqliteError};
use crate::database::heads::RunRow;
use crate::database::open::Place;
use crate::database::values::count;
use crate::tables::frames;
use crate::tables::scope::Scope;

/// Bits of a key for the seq.
pub(crate) const SEQ_BITS: u32 = 32;
/// Largest seq: 136 years with a checkpoint per second.
pub(crate) const SEQ_MAX: u64 = (1 << SEQ_BITS) - 1;
/// Largest scope id: the remaining bits of a positive 64-bit key.
pub(crate) const SCOPE_ID_MAX: i64 = (1 << (63 - SEQ_BITS)) - 1;
/// Returns the key of a record.
pub(crate) fn key(scope: i64, seq: u64) -> i64 {
    assert!((1..=SCOPE_ID_MAX).contains(&scope) && seq <= SEQ_MAX, "ids are checked at creation");
    scope << SEQ_BITS | seq as i64
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

/// Reads record `seq` of a scope; `seq` is at most its newest.
///
/// # Errors
/// [`StoreError::Version`] if a newer version wrote the record: this is not damage, and an older record must
/// not replace it.
pub(crate) fn fetch(
    connection: &Connection,
    place: &Place,
    run: &RunId,
    scope: &Scope,
    seq: u64,
    want: Want,
) -> Result<Found, Failure> {
    let key = key(scope.id, seq);
    let mut at = format!("{}, table `records`, row {key}", place.file.display());
    let flaw = match columns(connection, key, want) {
        Ok(Some(columns)) => match columns.open(connection, place, run, scope, seq)? {
            Ok(record) => return Ok(Found::Sound(Box::new(record))),
            Err(flaw) => flaw,
        },
        Ok(None) => match scope.loss(seq) {
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
    let damage = Damage { run: run.clone(), scope: scope.path.clone(), seq, place: at, flaw };
    match damage.flaw {
        Flaw::Format { .. } => Err(StoreError::of_damage(damage, None).into()),
        _ => Ok(Found::Damaged(Box::new(damage))),
    }
}

pub(crate) fn is_in_quarantine(connection: &Connection, key: i64) -> Result<bool, Failure> {
    Ok(connection.prepare_cached("SELECT 1 FROM quarantine WHERE key = ?1")?.exists([key])?)
}

struct Columns {
    row: StoredRow,
    body: Option<Vec<u8>>,
}

fn columns(connection: &Connection, key: i64, want: Want) -> Result<Option<Columns>, Failure> {
    let sql = match want {
        Want::Header => "SELECT codec, digest, header, body IS NOT NULL FROM records WHERE key = ?1",
        Want::Whole => "SELECT codec, digest, header, body IS NOT NULL, body FROM records WHERE key = ?1",
    };
    let columns = connection.prepare_cached(sql)?.query_row([key], |row| {
        Ok(Columns {
            row: StoredRow {
                codec: row.get(0)?,
                digest: row.get(1)?,
                header: row.get(2)?,
                has_body: row.get(3)?,
            },
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
        scope: &Scope,
        seq: u64,
    ) -> Result<Result<Record, Flaw>, Failure> {
        let Self { row, body } = self;
        let body = match (row.codec.and_then(decode::kind), body) {
            (Some(kind), Some(bytes)) => {
                let decoded = frames::decode(connection, place, run, scope, seq, (kind, bytes))?;
                decoded.map(ReadBody::Decoded)
            }
            (_, body) => Ok(body.map_or(ReadBody::Nothing, ReadBody::Plain)),
        };
        Ok(row.open(&place.delta_cache, RowPlace { run, scope: &scope.path, seq }, body))
    }
}
