//! Verified conversion of a row to a record: bytes that do not match their digest never leave this module.

use waypost::id::{Digest, RunId, ScopePath};
use waypost::record::{Flaw, HEADER_BYTES_MAX, Record};

use crate::decode::Decoded;
use crate::delta_cache::{CachedBody, DeltaCache};
use crate::encode::{self, CODEC_DELTA, CODEC_FULL, CODEC_PLAIN, CODEC_TRIMMED};
use crate::header;

/// The place of a row: where its record must belong.
#[derive(Debug, Clone, Copy)]
pub struct RowPlace<'a> {
    /// The run.
    pub run: &'a RunId,
    /// The scope.
    pub scope: &'a ScopePath,
    /// The seq.
    pub seq: u64,
}

/// The stored columns of a record, without its body.
#[derive(Debug)]
pub struct StoredRow {
    /// The form of the body.
    pub codec: Option<i64>,
    /// The digest of the header.
    pub digest: [u8; 32],
    /// The header in its stored form.
    pub header: Vec<u8>,
    /// Whether the row has a body.
    pub has_body: bool,
}

/// The body of a row, as far as it was read.
#[derive(Debug)]
pub enum ReadBody {
    /// Not read, or not there.
    Nothing,
    /// Stored as is.
    Plain(Vec<u8>),
    /// Decoded from frames.
    Decoded(Decoded),
}

impl StoredRow {
    /// Returns the record with the body that was read; caches a decoded body.
    ///
    /// # Errors
    /// The flaw of the record. A flaw of the header takes precedence over the reason for an unreadable `body`.
    pub fn open(
        self,
        delta_cache: &DeltaCache,
        place: RowPlace<'_>,
        body: Result<ReadBody, String>,
    ) -> Result<Record, Flaw> {
        let digest = Digest::from_bytes(self.digest);
        let header = header::decode(&mut delta_cache.compressor.contexts(), self.header, HEADER_BYTES_MAX);
        let header = header.map_err(|why| Flaw::Malformed(format!("cannot read the header: {why}")))?;
        let (body, made) = match body {
            Ok(ReadBody::Nothing) => (None, None),
            Ok(ReadBody::Plain(bytes)) => (Some(bytes), None),
            Ok(ReadBody::Decoded(Decoded { body, chain, check })) => (Some(body), Some((chain, check))),
            Err(why) => return Err(Record::open(digest, header, None).err().unwrap_or(Flaw::Malformed(why))),
        };
        let record = Record::open(digest, header, body)?;
        if let Some(why) = misplaced(&record, place) {
            return Err(Flaw::Malformed(why));
        }
        let fits = match self.codec {
            None => record.header().body.is_none() && !self.has_body,
            Some(CODEC_PLAIN | CODEC_FULL | CODEC_DELTA) => record.header().body.is_some() && self.has_body,
            Some(CODEC_TRIMMED) => record.header().body.is_some() && !self.has_body,
            Some(_) => false,
        };
        if !fits {
            let codec = self.codec;
            return Err(Flaw::Malformed(format!("codec {codec:?} does not match header and body")));
        }
        if let Some(((chain, check), body)) = made.zip(record.body_bytes()) {
            let position_bytes = encode::position_bytes(&record);
            let (seq, digest, body) = (place.seq, record.digest(), body.clone());
            let cached = CachedBody { seq, record: digest, check, body, position_bytes, chain };
            delta_cache.insert_read(place.run, place.scope, cached);
        }
        Ok(record)
    }
}

/// Returns a message if the record belongs to another place.
fn misplaced(record: &Record, place: RowPlace<'_>) -> Option<String> {
    let header = record.header();
    let is_here = header.run == *place.run && header.scope == *place.scope && header.seq == place.seq;
    (!is_here).then(|| format!("the header belongs to {}", header.reference()))
}
