//! Reads the frames of a body.

use rusqlite::{Connection, OptionalExtension};
use waypost::id::RunId;
use waypost_codec::decode::{self, Decoded, frame_of};
use waypost_codec::frame::Kind;

use crate::database::error::{Failure, SqliteError};
use crate::database::open::Place;
use crate::tables::rows::key;
use crate::tables::scope::Scope;

/// Decodes the body of record `seq` from its frame.
///
/// # Errors
/// The inner error is the defect of this frame or of a required frame.
pub(crate) fn decode(
    connection: &Connection,
    place: &Place,
    run: &RunId,
    scope: &Scope,
    seq: u64,
    frame: (Kind, Vec<u8>),
) -> Result<Result<Decoded, String>, Failure> {
    let frames = decode::follow(seq, frame, |base| frame_at(connection, key(scope.id, base)))?;
    Ok(frames.and_then(|frames| decode::decode(&place.delta_cache, run, &scope.path, &frames)))
}

/// Reads the frame at a key.
///
/// # Errors
/// The inner error is the reason for a missing frame.
fn frame_at(connection: &Connection, key: i64) -> Result<Result<(Kind, Vec<u8>), String>, Failure> {
    let row = connection
        .prepare_cached("SELECT codec, body FROM records WHERE key = ?1")?
        .query_row([key], |row| Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<Vec<u8>>>(1)?)))
        .optional();
    Ok(match row.map_err(SqliteError::from) {
        Ok(Some((codec, body))) => frame_of(codec, body),
        Ok(None) => Err("the record is missing".to_owned()),
        Err(fault) if fault.is_corrupt() => Err(fault.to_string()),
        Err(fault) => return Err(fault.into()),
    })
}
