//! Decodes a body: follows its delta bases down to a full frame, verifies each frame, and rebuilds the body
//! upwards.
//!
//! Every frame is verified, even if an intermediate body is cached, so that damage on disk is reported early.

use rusqlite::{Connection, OptionalExtension};
use waypost::id::RunId;

use crate::codec::delta_cache::{CHAIN_FRAMES_MAX, CachedChain};
use crate::codec::encode::{CODEC_DELTA, CODEC_FULL, CODEC_TRIMMED};
use crate::codec::frame::{Body, BodyBuilder, Kind, ParsedFrame};
use crate::database::error::{Failure, SqliteError};
use crate::database::open::Place;
use crate::tables::branch::Branch;
use crate::tables::rows::key;

/// A decoded body.
pub(crate) struct Decoded {
    pub(crate) body: Vec<u8>,
    pub(crate) chain: CachedChain,
    pub(crate) check: [u8; 8],
}

/// Returns the frame kind of a codec.
pub(crate) fn kind(codec: i64) -> Option<Kind> {
    match codec {
        CODEC_FULL => Some(Kind::Full),
        CODEC_DELTA => Some(Kind::Delta),
        _ => None,
    }
}

/// Decodes the body of record `seq` from its frame.
///
/// # Errors
/// The inner error is the defect of this frame or of a required frame.
pub(crate) fn decode(
    connection: &Connection,
    place: &Place,
    run: &RunId,
    branch: &Branch,
    seq: u64,
    (kind, bytes): (Kind, Vec<u8>),
) -> Result<Result<Decoded, String>, Failure> {
    let frames = match follow(connection, branch, seq, kind, bytes)? {
        Ok(frames) => frames,
        Err(why) => return Ok(Err(why)),
    };
    let known = place.delta_cache.cached(run, &branch.path).into_iter().filter_map(|cached| {
        let is_it = |(seq, frame): &(u64, ParsedFrame)| *seq == cached.seq && frame.check() == cached.check;
        frames.iter().position(is_it).map(|at| (at, cached))
    });
    let from = known.min_by_key(|(at, _)| *at);
    let mut contexts = place.delta_cache.compressor.contexts();
    let (mut builder, mut chain, above) = match &from {
        Some((at, cached)) => {
            let body = Body::new(&cached.body, cached.position_bytes).expect("a decoded body has a position");
            (BodyBuilder::of(body), cached.chain, &frames[..*at])
        }
        None => {
            let (_, full) = frames.last().expect("a body has a frame");
            let body_bytes = full.body_bytes().expect("the chain was followed to a full frame");
            (BodyBuilder::default(), CachedChain::of_full(full.len(), body_bytes), &frames[..])
        }
    };
    for (of, frame) in above.iter().rev() {
        match builder.apply(&mut contexts, frame) {
            Ok(moved) if frame.base().is_some() => chain = chain.with(frame.len(), moved),
            Ok(_) => {}
            Err(why) => return Ok(Err(needed(seq, *of, why))),
        }
    }
    let check = frames[0].1.check();
    Ok(Ok(Decoded { body: builder.finish(), chain, check }))
}

/// Returns the frames of a body, its own frame first, each with the seq of its record.
fn follow(
    connection: &Connection,
    branch: &Branch,
    seq: u64,
    mut kind: Kind,
    mut bytes: Vec<u8>,
) -> Result<Result<Vec<(u64, ParsedFrame)>, String>, Failure> {
    let mut frames = Vec::new();
    let mut at = seq;
    loop {
        let frame = match ParsedFrame::new(bytes, at, kind) {
            Ok(frame) => frame,
            Err(why) => return Ok(Err(needed(seq, at, why))),
        };
        let base = frame.base();
        frames.push((at, frame));
        let Some(base) = base else { return Ok(Ok(frames)) };
        if frames.len() as u32 >= CHAIN_FRAMES_MAX {
            return Ok(Err(format!("the body is a chain of more than {CHAIN_FRAMES_MAX} frames")));
        }
        (kind, bytes) = match frame_at(connection, key(branch.id, base))? {
            Ok(frame) => frame,
            Err(why) => return Ok(Err(needed(seq, base, why))),
        };
        at = base;
    }
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
        Ok(Some((Some(codec), Some(bytes)))) => kind(codec)
            .map(|kind| (kind, bytes))
            .ok_or_else(|| format!("the record has no frame, but codec {codec}")),
        Ok(Some((Some(CODEC_TRIMMED), None))) => Err("its body was dropped".to_owned()),
        Ok(Some(_)) => Err("the record has no frame".to_owned()),
        Ok(None) => Err("the record is missing".to_owned()),
        Err(fault) if fault.is_corrupt() => Err(fault.to_string()),
        Err(fault) => return Err(fault.into()),
    })
}

/// Attributes a defect to the record of the frame.
fn needed(seq: u64, of: u64, why: String) -> String {
    if of == seq { why } else { format!("cannot decode the body, based on record {of}: {why}") }
}
