//! Encodes records. Encoding happens before an append is queued, so that concurrent runs do not wait for each
//! other's compression.

use std::collections::HashMap;

use waypost::id::{BranchPath, Digest};
use waypost::record::Record;

use crate::frame::{self, Body, Frame};
use crate::header;
use crate::rows::{CODEC_DELTA, CODEC_FULL, CODEC_PLAIN};
use crate::squeeze::Contexts;
use crate::tips::{Chain, Frames, Tip};

/// Largest body stored as is; a frame would not pay.
const PLAIN_BYTES_MAX: usize = 256;

/// The stored form of a record.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) header: Vec<u8>,
    pub(crate) body: Kept,
}

/// The stored form of a body.
#[derive(Debug)]
pub(crate) enum Kept {
    /// The record has no body.
    Nothing,
    /// Stored as is.
    Plain,
    /// A full frame.
    Full(Vec<u8>),
    /// A delta frame, with seq and digest of its base record.
    Delta(Vec<u8>, u64, Digest),
}

impl Kept {
    pub(crate) fn codec(&self) -> Option<i64> {
        match self {
            Self::Nothing => None,
            Self::Plain => Some(CODEC_PLAIN),
            Self::Full(_) => Some(CODEC_FULL),
            Self::Delta(..) => Some(CODEC_DELTA),
        }
    }

    /// Returns codec and bytes; `plain` is the body itself.
    pub(crate) fn columns<'a>(&'a self, plain: Option<&'a [u8]>) -> (Option<i64>, Option<&'a [u8]>) {
        let bytes = match self {
            Self::Nothing => None,
            Self::Plain => plain,
            Self::Full(frame) | Self::Delta(frame, ..) => Some(frame.as_slice()),
        };
        (self.codec(), bytes)
    }
}

/// Encodes the records of a batch. The second value updates the cache after the write.
pub(crate) fn pack(frames: &Frames, records: &[Record]) -> (Vec<Packed>, Learned) {
    let mut contexts = frames.squeezer.lend();
    let mut learned = Learned::default();
    let packed = records.iter().map(|record| {
        let header = header::pack(&mut contexts, record.header_bytes());
        let body = pack_body(frames, &mut contexts, record, &mut learned);
        Packed { header, body }
    });
    (packed.collect(), learned)
}

fn pack_body(frames: &Frames, contexts: &mut Contexts, record: &Record, learned: &mut Learned) -> Kept {
    let Some(bytes) = record.body_bytes() else { return Kept::Nothing };
    let header = record.header();
    let position_bytes = position_bytes(record);
    let Some(body) = Body::new(bytes, position_bytes).filter(|_| bytes.len() > PLAIN_BYTES_MAX) else {
        return Kept::Plain;
    };
    let known = learned.tips.get(&header.branch).cloned();
    let known = known.or_else(|| frames.tip(&header.run, &header.branch)).filter(|tip| tip.seq < header.seq);
    let tried = known.as_ref().filter(|tip| tip.chain.may_grow()).and_then(|tip| {
        let before = Body::new(&tip.body, tip.position_bytes)?;
        frame::delta(contexts, header.seq, body, tip.seq, before).map(|frame| (tip, frame))
    });
    let mut learn = |frame: &Frame, chain| {
        let (seq, record) = (header.seq, record.digest());
        let tip = Tip { seq, record, check: frame.check(), body: bytes.clone(), position_bytes, chain };
        learned.tips.insert(header.branch.clone(), tip);
    };
    let mut in_vain = false;
    if let Some((tip, frame)) = tried {
        let grown = tip.chain.with(frame.bytes.len(), frame.moved);
        in_vain = !tip.chain.is_worth(frame.bytes.len());
        if !in_vain && !grown.is_due(bytes.len()) {
            learn(&frame, grown);
            return Kept::Delta(frame.bytes, tip.seq, tip.record);
        }
    }
    let Some(frame) = frame::full(contexts, header.seq, body) else { return Kept::Plain };
    let size = frame.bytes.len();
    learn(
        &frame,
        known.map_or(Chain::of_full(size, bytes.len()), |tip| tip.chain.anew(size, bytes.len(), in_vain)),
    );
    Kept::Full(frame.bytes)
}

/// Encodes a record as a full frame, because its delta base is no longer there.
pub(crate) fn pack_alone(frames: &Frames, record: &Record) -> Kept {
    let body = record.body_bytes().and_then(|bytes| Body::new(bytes, position_bytes(record)));
    let full = |body| frame::full(&mut frames.squeezer.lend(), record.header().seq, body);
    body.and_then(full).map_or(Kept::Plain, |frame| Kept::Full(frame.bytes))
}

/// Returns the end of the position in a body.
pub(crate) fn position_bytes(record: &Record) -> usize {
    record.header().body.as_ref().map_or(0, |body| body.position_bytes as usize)
}

/// The newest body of each branch after the write of a batch.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    tips: HashMap<BranchPath, Tip>,
}

impl Learned {
    /// Updates the cache after the write of the batch.
    pub(crate) fn keep(mut self, frames: &Frames, records: &[Record]) {
        for record in records {
            let header = record.header();
            if header.end.is_some() {
                self.tips.remove(&header.branch);
                frames.forget(&header.run, &header.branch);
            }
        }
        for (branch, tip) in self.tips {
            if let Some(record) = records.first() {
                frames.wrote(&record.header().run, &branch, tip);
            }
        }
    }
}
