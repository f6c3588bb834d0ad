//! The record: the only data that a run writes at a step boundary.
//!
//! A checkpoint is a [`Header`] and a body. The body is the [`Position`] (unfinished steps) and the state.
//! Both are JSON text. [`Record::seal`] encodes both once, every store keeps the exact bytes, and
//! [`Record::open`] checks the bytes:
//!
//! ```text
//!   header  {"v":3,"run":"r-1","scope":"main","seq":3,"prev":"9f..","body":{"digest":"c4..",..},..}
//!              digest of a record = SHA-256 of these bytes         |
//!   body    {"frontier":[..],"ledger":{..}}\n{..the state..}  <----+ digest of the body = SHA-256 of these
//! ```
//!
//! A header authenticates its body, and `prev` authenticates the whole history. One record decides the next
//! steps; nothing is folded over history. Only types of this module are serialised to disk.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Digest;
use crate::json::path::FieldPath;

mod choice;
mod evidence;
mod evidence_copies;
mod header;
mod ledger;
mod position;
mod run;
mod strict;
mod trace;
mod usage;
mod wait;

pub use choice::{Choice, RequestCause, RerunKind, RerunRequest, SettleBy};
pub(crate) use evidence::ACCEPTED_LABEL;
pub use evidence::{Claim, Occasion, Pack, Severity, Terms, Verdict};
pub use evidence_copies::{EvidenceCopies, PinCopy};
pub use header::{
    BodyRef, End, Ending, FAILURE_CAUSES_MAX, FAILURE_TEXT_BYTES_MAX, FailedStep, Failure, FailureKind,
    Header, MARK, Note, Phase, Printed, Reason, Repeated, SkipCause, Start, StepBelow, Try, WAIT_HOOKS,
};
pub use ledger::{Ledger, Settled, SettledAs};
pub use position::{Fan, FrontierEntry, FrozenItems, PassEnd, Position, Reusable, ReusableChain, Status};
pub use run::{Definition, Durability, Parent, RETENTION_MIN, RunRecord, RunStatus, StepPrint};
pub(crate) use strict::to_value;
pub use strict::{STATE_DEPTH_MAX, encode};
pub(crate) use trace::pin_set;
pub use trace::{EndDigests, Trace};
pub use usage::Usage;
pub use wait::{Taken, TakenSignal, Wait, WaitKind};

/// The newest record format: the library writes it, and reads nothing newer.
pub const FORMAT: u32 = 3;
/// Largest state. A step boundary is the wrong place for more data: keep a file, and its hash in the state.
pub const STATE_BYTES_MAX: usize = 64 << 20;
/// State size at which the engine warns, as each step writes and hashes the whole state.
pub const STATE_BYTES_WARN: usize = 1 << 20;
/// Largest header. Notes, labels and error chains are cut or refused far below this limit.
pub const HEADER_BYTES_MAX: usize = 2 << 20;
/// Largest outputs copied into the header, where they outlive a trimmed state.
pub const OUTPUTS_INLINE_BYTES_MAX: usize = 512;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Bytes shared between engine and store without a copy.
pub type Bytes = Arc<Vec<u8>>;

/// A checkpoint as stores keep it: exact bytes, and the parsed header. Clones share the bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    header: Arc<Header>,
    digest: Digest,
    header_bytes: Bytes,
    body: Option<Bytes>,
}

/// A run record as stores keep it: exact bytes, and the parsed record. Clones share both.
#[derive(Debug, Clone, PartialEq)]
pub struct SealedRun {
    record: Arc<RunRecord>,
    digest: Digest,
    bytes: Bytes,
}

/// The reason why bytes are not a valid record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The bytes differ from the bytes written.
    #[error("{part} has digest {actual}, expected {expect}")]
    Digest {
        /// `header`, `body` or `run record`.
        part: &'static str,
        /// The recorded digest.
        expect: Digest,
        /// The digest of the bytes found.
        actual: Digest,
    },
    /// The bytes do not parse as a record; the digest may be right.
    #[error("cannot be read: {0}")]
    Malformed(String),
    /// The record is missing, although other data proves its existence.
    #[error("it is missing")]
    Missing,
    /// Another version wrote the record: a newer version, or a version from before the first release.
    #[error("it {}", other_format(*found, *supported))]
    Format {
        /// The format found.
        found: u32,
        /// The format read by this version.
        supported: u32,
    },
    /// Writing: JSON would change or lose a field of the state.
    #[error("{path}: {why}")]
    Unkept {
        /// The field.
        path: FieldPath,
        /// The reason.
        why: String,
    },
    /// Writing: a size or a field exceeds its limit.
    #[error("{0}")]
    Limit(String),
}

/// An encoded body before sealing: position and state in their final bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    bytes: Vec<u8>,
    position_bytes: usize,
    codec: Cow<'static, str>,
    schema: u32,
}

impl Body {
    /// Encodes a position, and a state as JSON.
    ///
    /// # Errors
    /// [`Flaw::Unkept`] names the field that JSON would change or cannot hold. [`Flaw::Limit`]: the state is
    /// too large, as found while writing. See [`encode`].
    pub fn json<S: Serialize>(position: &Position, state: &S, schema: u32) -> Result<Self, Flaw> {
        Self::with(position, schema, |bytes| encode(state, bytes))
    }

    /// Encodes a position, and the JSON that `write` appends as the state.
    ///
    /// # Errors
    /// The errors of `write`. [`Flaw::Limit`]: the state is too large.
    pub fn with(
        position: &Position,
        schema: u32,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), Flaw>,
    ) -> Result<Self, Flaw> {
        let mut body = Self::begin(position, Cow::Borrowed("json"), schema)?;
        write(&mut body.bytes)?;
        body.check()
    }

    /// Encodes a position, and the opaque state bytes of a foreign client.
    ///
    /// # Errors
    /// [`Flaw::Limit`]: the state is too large.
    pub fn opaque(position: &Position, state: &[u8], codec: &str, schema: u32) -> Result<Self, Flaw> {
        let mut body = Self::begin(position, Cow::Owned(codec.to_owned()), schema)?;
        body.bytes.extend_from_slice(state);
        body.check()
    }

    /// Returns the size of the state in bytes.
    pub fn state_bytes(&self) -> usize {
        self.bytes.len() - self.position_bytes - 1
    }

    fn begin(position: &Position, codec: Cow<'static, str>, schema: u32) -> Result<Self, Flaw> {
        let mut bytes = Vec::with_capacity(256);
        encode(position, &mut bytes)?;
        let position_bytes = bytes.len();
        bytes.push(b'\n');
        Ok(Self { bytes, position_bytes, codec, schema })
    }

    fn check(self) -> Result<Self, Flaw> {
        let state_bytes = self.state_bytes();
        if state_bytes > STATE_BYTES_MAX {
            return Err(Flaw::Limit(format!(
                "the state has {state_bytes} bytes, the maximum is {STATE_BYTES_MAX}: keep large data in \
                 files and their hashes in the state"
            )));
        }
        Ok(self)
    }
}

impl Record {
    /// Encodes a header and an optional body as a record with final bytes; fills in `header.body`.
    ///
    /// # Errors
    /// [`Flaw::Limit`]: the header exceeds [`HEADER_BYTES_MAX`]. [`Flaw::Unkept`] names a header field that JSON would
    /// change, such as a value with too deep nesting.
    pub fn seal(mut header: Header, body: Option<Body>) -> Result<Self, Flaw> {
        header.body = body.as_ref().map(|body| BodyRef {
            digest: Digest::of(&body.bytes),
            bytes: body.bytes.len() as u64,
            position_bytes: body.position_bytes as u64,
            codec: body.codec.clone().into_owned(),
            schema: body.schema,
        });
        let mut bytes = Vec::with_capacity(640);
        encode(&header, &mut bytes)?;
        if bytes.len() > HEADER_BYTES_MAX {
            let found = bytes.len();
            return Err(Flaw::Limit(format!(
                "the header has {found} bytes, the maximum is {HEADER_BYTES_MAX}"
            )));
        }
        // A store may keep many of these buffers.
        bytes.shrink_to_fit();
        let digest = Digest::of(&bytes);
        let body = body.map(|mut body| {
            body.bytes.shrink_to_fit();
            Arc::new(body.bytes)
        });
        Ok(Self { header: Arc::new(header), digest, header_bytes: Arc::new(bytes), body })
    }

    /// Reads a checkpoint back and checks every byte.
    ///
    /// `digest` comes from the store. Without `body`, only the header is read, and the record has no body.
    ///
    /// # Errors
    /// [`Flaw`]: the bytes changed since the write, or another version wrote them. Do not use any part of the bytes.
    pub fn open(digest: Digest, header_bytes: Vec<u8>, body: Option<Vec<u8>>) -> Result<Self, Flaw> {
        Self::open_shared(digest, Arc::new(header_bytes), body.map(Arc::new))
    }

    /// As [`open`](Self::open), for bytes shared with another owner.
    pub(crate) fn open_shared(
        digest: Digest,
        header_bytes: Bytes,
        body: Option<Bytes>,
    ) -> Result<Self, Flaw> {
        check_digest("header", digest, &header_bytes)?;
        let header: Header = parse(&header_bytes)?;
        if let Some(bytes) = &body {
            let info = header
                .body
                .as_ref()
                .ok_or_else(|| Flaw::Malformed("unexpected body: the header names none".into()))?;
            check_digest("body", info.digest, bytes)?;
            if bytes.get(info.position_bytes as usize) != Some(&b'\n') {
                return Err(Flaw::Malformed("its body has no position".into()));
            }
        }
        Ok(Self { header: Arc::new(header), digest, header_bytes, body })
    }

    /// Returns the header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the digest: SHA-256 of the header's bytes.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the header's exact bytes.
    pub fn header_bytes(&self) -> &Bytes {
        &self.header_bytes
    }

    /// Returns the body's exact bytes, if the record has a body and the body was loaded.
    pub fn body_bytes(&self) -> Option<&Bytes> {
        self.body.as_ref()
    }

    /// Returns the size of header and body, also if the body was not loaded.
    pub fn bytes(&self) -> u64 {
        self.header_bytes.len() as u64 + self.header.body.as_ref().map_or(0, |body| body.bytes)
    }

    /// Returns the record without its body, as after retention.
    pub fn without_body(&self) -> Self {
        Self { body: None, ..self.clone() }
    }

    fn split(&self) -> Option<(&[u8], &[u8])> {
        let at = self.header.body.as_ref()?.position_bytes as usize;
        let bytes = self.body.as_ref()?;
        Some((bytes.get(..at)?, bytes.get(at + 1..)?))
    }

    /// Decodes the position.
    ///
    /// # Errors
    /// [`Flaw::Malformed`]: the record has no body, or the position does not parse.
    pub fn position(&self) -> Result<Position, Flaw> {
        self.decode_position()
    }

    fn decode_position<T: for<'de> Deserialize<'de>>(&self) -> Result<T, Flaw> {
        let (position, _) =
            self.split().ok_or_else(|| Flaw::Malformed("it has no state of its own".into()))?;
        serde_json::from_slice(position).map_err(|error| Flaw::Malformed(error.to_string()))
    }

    /// Returns the record with the definition in force, without the rest of the position.
    ///
    /// # Errors
    /// As [`position`](Self::position).
    pub(crate) fn definition(&self) -> Result<Option<u64>, Flaw> {
        #[derive(Deserialize)]
        struct InForce {
            #[serde(default)]
            definition: Option<u64>,
        }
        self.decode_position().map(|in_force: InForce| in_force.definition)
    }

    /// Returns the state's exact bytes; `None` without a body.
    pub fn state_bytes(&self) -> Option<&[u8]> {
        self.split().map(|(_, state)| state)
    }
}

impl SealedRun {
    /// Encodes a run record with final bytes.
    ///
    /// # Errors
    /// [`Flaw`]: the record cannot be encoded, or its retention is below [`RETENTION_MIN`].
    pub fn seal(record: RunRecord) -> Result<Self, Flaw> {
        if let Some(keep) = record.retention.filter(|keep| *keep < RETENTION_MIN) {
            return Err(Flaw::Limit(format!(
                "retention of {keep} states is below the minimum of {RETENTION_MIN}: the newest state and \
                 a spare"
            )));
        }
        let mut bytes = Vec::new();
        encode(&record, &mut bytes)?;
        Ok(Self { record: Arc::new(record), digest: Digest::of(&bytes), bytes: Arc::new(bytes) })
    }

    /// Reads a run record back and checks every byte.
    ///
    /// # Errors
    /// [`Flaw`]: the bytes changed since the write, or another version wrote them.
    pub fn open(digest: Digest, bytes: Vec<u8>) -> Result<Self, Flaw> {
        check_digest("run record", digest, &bytes)?;
        Ok(Self { record: Arc::new(parse(&bytes)?), digest, bytes: Arc::new(bytes) })
    }

    /// Returns the record.
    pub fn record(&self) -> &RunRecord {
        &self.record
    }

    /// Returns the digest of the record.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the exact bytes of the record.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

fn check_digest(part: &'static str, expect: Digest, bytes: &[u8]) -> Result<(), Flaw> {
    let actual = Digest::of(bytes);
    if actual == expect { Ok(()) } else { Err(Flaw::Digest { part, expect, actual }) }
}

/// Returns the description of a format that this version cannot read.
pub(crate) fn other_format(found: u32, supported: u32) -> String {
    match found > supported {
        true => format!("has format {found}, this version reads up to {supported}"),
        false => format!("has format {found} of a prerelease, this version reads {supported}"),
    }
}

/// The first bytes of every record of this version: with them, the format needs no separate parse.
const BEGIN: &[u8] = b"{\"v\":3,";
const _: () = assert!(FORMAT == 3, "a record begins with its format");

/// Parses JSON of this format. A newer format is detected before its fields can cause other errors.
fn parse<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, Flaw> {
    #[derive(Deserialize)]
    struct Versioned {
        v: u32,
    }
    let malformed = |error: serde_json::Error| Flaw::Malformed(error.to_string());
    if bytes.starts_with(BEGIN) {
        return serde_json::from_slice(bytes).map_err(malformed);
    }
    match serde_json::from_slice::<Versioned>(bytes).map_err(malformed)?.v {
        FORMAT => serde_json::from_slice(bytes).map_err(malformed),
        found => Err(Flaw::Format { found, supported: FORMAT }),
    }
}
