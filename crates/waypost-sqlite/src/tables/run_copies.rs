//! Run records, each stored twice: a whole run depends on its record, which is written only once.
//!
//! The copies are in separate tables, and so on different pages. Reads use any sound copy. Acquiring the
//! lease restores a damaged copy from the other copy, and moves the damaged bytes to quarantine.

use rusqlite::{Connection, OptionalExtension, params};
use waypost::id::{Digest, RunId, ScopePath};
use waypost::record::{Flaw, SealedRun};
use waypost::store::{Damage, StoreError};

use crate::database::error::{Failure, SqliteError};
use crate::database::open::Place;
use crate::database::values::time_text;
use crate::tables::read::View;
use waypost_codec::header::{self, RUN_BYTES_MAX};

/// The tables with run records.
const TABLES: [&str; 2] = ["frozen", "frozen_copies"];

/// Writes both copies of a run record.
pub(crate) fn insert(
    connection: &Connection,
    place: &Place,
    id: i64,
    run: &SealedRun,
) -> Result<(), Failure> {
    let kept = header::encode(&mut place.delta_cache.compressor.contexts(), run.bytes());
    for table in TABLES {
        connection.prepare_cached(&format!("INSERT INTO {table} VALUES (?1, ?2, ?3)"))?.execute(params![
            id,
            run.digest().as_bytes(),
            kept
        ])?;
    }
    place.run_cache.insert(*run.digest().as_bytes(), kept, run);
    Ok(())
}

/// The copies of a run record as found.
type Found = [Result<SealedRun, Flaw>; 2];

impl View<'_> {
    /// Returns the verified record of a run.
    pub(crate) fn frozen(&self, id: i64, run: &RunId) -> Result<SealedRun, Failure> {
        let flaw = match found_in(*self, TABLES[0], id, run)? {
            Ok(sealed) => return Ok(sealed),
            Err(flaw) => flaw,
        };
        if let [_, Ok(sealed)] = found(*self, id, run)? {
            return Ok(sealed);
        }
        let place = place_of(self.place, TABLES[0], id);
        let damage = Damage { run: run.clone(), scope: ScopePath::main(), seq: 0, place, flaw };
        Err(StoreError::of_damage(damage, None).into())
    }

    /// Returns a finding if exactly one copy is damaged.
    pub(crate) fn frozen_findings(&self, id: i64, run: &RunId) -> Result<Vec<String>, Failure> {
        Ok(match found(*self, id, run)? {
            [Err(flaw), Ok(_)] => vec![finding(self.place, TABLES[0], id, &flaw)],
            [Ok(_), Err(flaw)] => vec![finding(self.place, TABLES[1], id, &flaw)],
            _ => Vec::new(),
        })
    }
}

/// Restores a damaged copy from the sound copy.
pub(crate) fn repair(view: View<'_>, id: i64, run: &RunId, now: jiff::Timestamp) -> Result<(), Failure> {
    let View { connection, place } = view;
    let (table, flaw, sealed) = match found(view, id, run)? {
        [Err(flaw), Ok(sealed)] => (TABLES[0], flaw, sealed),
        [Ok(sealed), Err(flaw)] => (TABLES[1], flaw, sealed),
        _ => return Ok(()),
    };
    // Key 0 marks a run record. Bytes on an unreadable page stay there.
    let moved = format!(
        "INSERT INTO quarantine SELECT NULL, ?1, 0, ?2, ?3, NULL, digest, record, NULL FROM {table} WHERE run = ?1"
    );
    let why = format!("the run record in table `{table}`: {flaw}");
    connection.execute(&moved, params![id, why, time_text(now)])?;
    connection.execute(
        &format!(
            "INSERT INTO {table} VALUES (?1, ?2, ?3)
             ON CONFLICT (run) DO UPDATE SET digest = excluded.digest, record = excluded.record"
        ),
        params![
            id,
            sealed.digest().as_bytes(),
            header::encode(&mut place.delta_cache.compressor.contexts(), sealed.bytes())
        ],
    )?;
    Ok(())
}

fn place_of(place: &Place, table: &str, id: i64) -> String {
    format!("{}, table `{table}`, row {id}", place.file.display())
}

fn finding(place: &Place, table: &str, id: i64, flaw: &Flaw) -> String {
    format!("one of the two run records is damaged ({}): {flaw}", place_of(place, table, id))
}

fn found(view: View<'_>, id: i64, run: &RunId) -> Result<Found, Failure> {
    Ok([found_in(view, TABLES[0], id, run)?, found_in(view, TABLES[1], id, run)?])
}

fn found_in(view: View<'_>, table: &str, id: i64, run: &RunId) -> Result<Result<SealedRun, Flaw>, Failure> {
    let columns = view
        .connection
        .prepare_cached(&format!("SELECT digest, record FROM {table} WHERE run = ?1"))?
        .query_row([id], |row| Ok((row.get::<_, [u8; 32]>(0)?, row.get::<_, Vec<u8>>(1)?)))
        .optional();
    Ok(match columns.map_err(SqliteError::from) {
        Ok(Some((digest, kept))) => match open(view.place, digest, kept) {
            Ok(sealed) if sealed.record().run != *run => {
                Err(Flaw::Malformed(format!("the record belongs to run {}", sealed.record().run)))
            }
            opened => opened,
        },
        Ok(None) => Err(Flaw::Malformed("the record is missing".to_owned())),
        Err(fault) if fault.is_corrupt() => Err(Flaw::Malformed(fault.to_string())),
        Err(fault) => return Err(fault.into()),
    })
}

fn open(place: &Place, digest: [u8; 32], kept: Vec<u8>) -> Result<SealedRun, Flaw> {
    if let Some(sealed) = place.run_cache.get(digest, &kept) {
        return Ok(sealed);
    }
    let bytes = header::decode(&mut place.delta_cache.compressor.contexts(), kept.clone(), RUN_BYTES_MAX)
        .map_err(Flaw::Malformed)?;
    let sealed = SealedRun::open(Digest::from_bytes(digest), bytes)?;
    place.run_cache.insert(digest, kept, &sealed);
    Ok(sealed)
}
