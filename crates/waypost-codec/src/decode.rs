//! Decodes a body: follows its delta bases down to a full frame, verifies each frame, and rebuilds the body
//! upwards.
//!
//! Every frame is verified, even if an intermediate body is cached, so that damage in the database is reported
//! early.

use waypost::id::{RunId, ScopePath};

use crate::delta_cache::{CHAIN_FRAMES_MAX, CachedChain, DeltaCache};
use crate::encode::{CODEC_DELTA, CODEC_FULL, CODEC_TRIMMED};
use crate::frame::{Body, BodyBuilder, Kind, ParsedFrame};

/// A decoded body.
#[derive(Debug)]
pub struct Decoded {
    /// The bytes.
    pub body: Vec<u8>,
    /// The cost of the frames.
    pub chain: CachedChain,
    /// The check of the body's own frame.
    pub check: [u8; 8],
}

/// Returns the frame kind of a codec.
pub fn kind(codec: i64) -> Option<Kind> {
    match codec {
        CODEC_FULL => Some(Kind::Full),
        CODEC_DELTA => Some(Kind::Delta),
        _ => None,
    }
}

/// Returns the frame in the columns of a record that a delta is based on.
///
/// # Errors
/// The reason for a missing frame.
pub fn frame_of(codec: Option<i64>, body: Option<Vec<u8>>) -> Result<(Kind, Vec<u8>), String> {
    match (codec, body) {
        (Some(codec), Some(bytes)) => kind(codec)
            .map(|kind| (kind, bytes))
            .ok_or_else(|| format!("the record has no frame, but codec {codec}")),
        (Some(CODEC_TRIMMED), None) => Err("its body was dropped".to_owned()),
        _ => Err("the record has no frame".to_owned()),
    }
}

/// The delta chain of a body, newest frame first. Each frame has the seq of its record.
pub type Frames = Vec<(u64, ParsedFrame)>;

/// Returns the frames of the body of record `seq`. `frame_at` reads the frame of another record of the scope, or
/// returns the reason for a missing frame.
///
/// # Errors
/// The outer error is that of `frame_at`, the inner error the defect of this frame or of a required frame.
pub fn follow<E>(
    seq: u64,
    frame: (Kind, Vec<u8>),
    mut frame_at: impl FnMut(u64) -> Result<Result<(Kind, Vec<u8>), String>, E>,
) -> Result<Result<Frames, String>, E> {
    let (mut kind, mut bytes) = frame;
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
        (kind, bytes) = match frame_at(base)? {
            Ok(frame) => frame,
            Err(why) => return Ok(Err(needed(seq, base, why))),
        };
        at = base;
    }
}

/// Decodes a body from its frames.
///
/// # Errors
/// The defect of a frame.
///
/// # Panics
/// Without a frame, or if the last frame is a delta: [`follow`] returns neither.
pub fn decode(
    delta_cache: &DeltaCache,
    run: &RunId,
    scope: &ScopePath,
    frames: &[(u64, ParsedFrame)],
) -> Result<Decoded, String> {
    let (seq, own) = frames.first().expect("a body has a frame");
    let known = delta_cache.cached(run, scope).into_iter().filter_map(|cached| {
        let is_it = |(seq, frame): &(u64, ParsedFrame)| *seq == cached.seq && frame.check() == cached.check;
        frames.iter().position(is_it).map(|at| (at, cached))
    });
    let from = known.min_by_key(|(at, _)| *at);
    let mut contexts = delta_cache.compressor.contexts();
    let (mut builder, mut chain, above) = match &from {
        Some((at, cached)) => {
            let body = Body::new(&cached.body, cached.position_bytes).expect("a decoded body has a position");
            (BodyBuilder::of(body), cached.chain, &frames[..*at])
        }
        None => {
            let (_, full) = frames.last().expect("a body has a frame");
            let body_bytes = full.body_bytes().expect("the chain was followed to a full frame");
            (BodyBuilder::default(), CachedChain::of_full(full.bytes(), body_bytes), frames)
        }
    };
    for (of, frame) in above.iter().rev() {
        match builder.apply(&mut contexts, frame) {
            Ok(moved) if frame.base().is_some() => chain = chain.with(frame.bytes(), moved),
            Ok(_) => {}
            Err(why) => return Err(needed(*seq, *of, why)),
        }
    }
    Ok(Decoded { body: builder.finish(), chain, check: own.check() })
}

/// Attributes a defect to the record of the frame.
fn needed(seq: u64, of: u64, why: String) -> String {
    if of == seq { why } else { format!("cannot decode the body, based on record {of}: {why}") }
}
