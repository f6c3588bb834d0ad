//! Encodes records. Encoding happens before an append is queued, so that concurrent runs do not wait for each
//! other's compression.

use std::collections::HashMap;

use waypost::id::{Digest, ScopePath};
use waypost::record::Record;

use crate::compression::Contexts;
use crate::delta_cache::{CachedBody, CachedChain, DeltaCache};
use crate::frame::{self, Body, Frame};
use crate::header;

/// The body is stored as is.
pub const CODEC_PLAIN: i64 = 0;
/// The body is stored as a full frame.
pub const CODEC_FULL: i64 = 1;
/// The body is stored as a delta frame of an earlier record of the scope.
pub const CODEC_DELTA: i64 = 2;
/// The body was dropped by retention.
pub const CODEC_TRIMMED: i64 = -1;
/// Largest body stored as is; a frame would not pay.
const PLAIN_BYTES_MAX: usize = 256;

/// The stored form of a record.
#[derive(Debug)]
pub struct Encoded {
    /// The packed header.
    pub header: Vec<u8>,
    /// The body.
    pub body: StoredBody,
}

/// The stored form of a body.
#[derive(Debug)]
pub enum StoredBody {
    /// The record has no body.
    Nothing,
    /// Stored as is.
    Plain,
    /// A full frame.
    Full(Vec<u8>),
    /// A delta frame, with seq and digest of its base record.
    Delta(Vec<u8>, u64, Digest),
}

impl StoredBody {
    /// Returns the codec; `None` without a body.
    pub fn codec(&self) -> Option<i64> {
        match self {
            Self::Nothing => None,
            Self::Plain => Some(CODEC_PLAIN),
            Self::Full(_) => Some(CODEC_FULL),
            Self::Delta(..) => Some(CODEC_DELTA),
        }
    }

    /// Returns codec and bytes; `plain` is the body itself.
    pub fn columns<'a>(&'a self, plain: Option<&'a [u8]>) -> (Option<i64>, Option<&'a [u8]>) {
        let bytes = match self {
            Self::Nothing => None,
            Self::Plain => plain,
            Self::Full(frame) | Self::Delta(frame, ..) => Some(frame.as_slice()),
        };
        (self.codec(), bytes)
    }
}

/// Encodes the records of a batch. The second value updates the cache after the write.
pub fn encode(delta_cache: &DeltaCache, records: &[Record]) -> (Vec<Encoded>, CacheUpdate) {
    let mut contexts = delta_cache.compressor.contexts();
    let mut update = CacheUpdate::default();
    let encoded = records.iter().map(|record| {
        let header = header::encode(&mut contexts, record.header_bytes());
        let body = encode_body(delta_cache, &mut contexts, record, &mut update);
        Encoded { header, body }
    });
    (encoded.collect(), update)
}

fn encode_body(
    delta_cache: &DeltaCache,
    contexts: &mut Contexts,
    record: &Record,
    update: &mut CacheUpdate,
) -> StoredBody {
    let Some(bytes) = record.body_bytes() else { return StoredBody::Nothing };
    let header = record.header();
    let position_bytes = position_bytes(record);
    let Some(body) = Body::new(bytes, position_bytes).filter(|_| bytes.len() > PLAIN_BYTES_MAX) else {
        return StoredBody::Plain;
    };
    let known = update.bodies.get(&header.scope).cloned();
    let known =
        known.or_else(|| delta_cache.newest(&header.run, &header.scope)).filter(|base| base.seq < header.seq);
    let tried = known.as_ref().filter(|base| base.chain.may_grow()).and_then(|base| {
        let before = Body::new(&base.body, base.position_bytes)?;
        frame::delta(contexts, header.seq, body, base.seq, before).map(|frame| (base, frame))
    });
    let mut cache = |frame: &Frame, chain| {
        let (seq, record) = (header.seq, record.digest());
        let base =
            CachedBody { seq, record, check: frame.check(), body: bytes.clone(), position_bytes, chain };
        update.bodies.insert(header.scope.clone(), base);
    };
    let mut wasted = false;
    if let Some((base, frame)) = tried {
        let grown = base.chain.with(frame.bytes.len(), frame.moved);
        wasted = !base.chain.is_worth(frame.bytes.len());
        if !wasted && !grown.is_due(bytes.len()) {
            cache(&frame, grown);
            return StoredBody::Delta(frame.bytes, base.seq, base.record);
        }
    }
    let Some(frame) = frame::full(contexts, header.seq, body) else { return StoredBody::Plain };
    let size = frame.bytes.len();
    cache(
        &frame,
        known.map_or(CachedChain::of_full(size, bytes.len()), |base| {
            base.chain.restarted(size, bytes.len(), wasted)
        }),
    );
    StoredBody::Full(frame.bytes)
}

/// Encodes a record as a full frame, because its delta base is no longer there.
pub fn encode_full(delta_cache: &DeltaCache, record: &Record) -> StoredBody {
    let body = record.body_bytes().and_then(|bytes| Body::new(bytes, position_bytes(record)));
    let full = |body| frame::full(&mut delta_cache.compressor.contexts(), record.header().seq, body);
    body.and_then(full).map_or(StoredBody::Plain, |frame| StoredBody::Full(frame.bytes))
}

/// Returns the end of the position in a body.
pub fn position_bytes(record: &Record) -> usize {
    record.header().body.as_ref().map_or(0, |body| body.position_bytes as usize)
}

/// The newest body of each scope after the write of a batch.
#[derive(Debug, Default)]
pub struct CacheUpdate {
    bodies: HashMap<ScopePath, CachedBody>,
}

impl CacheUpdate {
    /// Updates the cache after the write of the batch.
    pub fn keep(mut self, delta_cache: &DeltaCache, records: &[Record]) {
        for record in records {
            let header = record.header();
            if header.end.is_some() {
                self.bodies.remove(&header.scope);
                delta_cache.remove_scope(&header.run, &header.scope);
            }
        }
        for (scope, base) in self.bodies {
            if let Some(record) = records.first() {
                delta_cache.insert_written(&record.header().run, &scope, base);
            }
        }
    }
}
