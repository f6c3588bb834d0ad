//! The record: what is written at every step boundary, and nothing else is.
//!
//! A checkpoint is a [`Header`] and a body. The body is the [`Position`] (what is unfinished) and the state. Both are
//! JSON text made once, by [`Record::seal`], kept to the byte by every store, and checked by [`Record::open`]:
//!
//! ```text
//!   header  {"v":2,"run":"r-1","branch":"main","seq":3,"prev":"9f…","body":{"digest":"c4…",…},…}
//!              digest of a record = SHA-256 of these bytes          |
//!   body    {"frontier":[…],"ledger":{…}}\n{…the state…}  <--------+ digest of the body = SHA-256 of these
//! ```
//!
//! So a header vouches for its body, and `prev` vouches for the whole past. One record decides what is to be done
//! next; nothing is folded over history. This module is the only place whose types are serialised to disk.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Digest;
use crate::path::FieldPath;

mod evidence;
mod header;
mod position;
mod run;
mod strict;
mod trace;
mod usage;
mod wait;

pub use evidence::{Claim, Occasion, Pack, Severity, Terms, Verdict};
pub use header::{
    BodyRef, End, Ending, FAILURE_CAUSES_MAX, FAILURE_TEXT_BYTES_MAX, FailedStep, Failure, FailureKind,
    Header, MARK, Note, Phase, Printed, Reason, Repeated, SkipCause, Start, StepBelow, Try, WAIT_AFTER,
};
pub use position::{
    Choice, Fan, FrontierEntry, FrozenItems, PassEnd, Position, Reusable, ReusableChain, SettleBy, Settled,
    Status,
};
pub use run::{Definition, Durability, Parent, RETENTION_MIN, RunRecord, RunStatus, StepPrint};
pub use strict::{STATE_DEPTH_MAX, check_state, encode};
pub(crate) use strict::{check_written, to_value};
pub use trace::{EndDigests, Trace};
pub use usage::Usage;
pub use wait::{Taken, TakenSignal, Wait, WaitKind};

/// The newest format of records this library reads, and the one it writes.
pub const FORMAT: u32 = 2;
/// Largest state: beyond it a checkpoint a step is the wrong tool; keep a hash and a file instead.
pub const STATE_BYTES_MAX: usize = 64 << 20;
/// State size at which the engine warns: every step writes and hashes it again.
pub const STATE_BYTES_WARN: usize = 1 << 20;
/// Largest header: notes, labels and error chains are cut or refused well before it.
pub const HEADER_BYTES_MAX: usize = 2 << 20;
/// Outputs up to this size stand in the header too, where they outlive a trimmed state.
pub const OUTPUTS_INLINE_BYTES_MAX: usize = 512;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Bytes shared between engine and store without a copy.
pub type Bytes = Arc<Vec<u8>>;

/// A checkpoint as stores keep it: exact bytes, and the header read from them. Clones share all of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    header: Arc<Header>,
    digest: Digest,
    header_bytes: Bytes,
    body: Option<Bytes>,
}

/// The frozen run as stores keep it.
#[derive(Debug, Clone, PartialEq)]
pub struct SealedRun {
    record: RunRecord,
    digest: Digest,
    bytes: Bytes,
}

/// Why bytes are not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The bytes are not those that were written.
    #[error("its {part} has digest {actual}, recorded was {expect}")]
    Digest {
        /// `header`, `body` or `run record`.
        part: &'static str,
        /// The digest recorded.
        expect: Digest,
        /// The digest of the bytes found.
        actual: Digest,
    },
    /// The digest may be right, but it is not a record.
    #[error("it cannot be read: {0}")]
    Malformed(String),
    /// It was there once, as something else tells, and is not there any more.
    #[error("it is missing")]
    Missing,
    /// Another version wrote it: a newer one, or one from before the first release.
    #[error("it {}", other_format(*found, *supported))]
    Format {
        /// The format found.
        found: u32,
        /// The format read by this version.
        supported: u32,
    },
    /// A field of a state would not come back as it is, when written.
    #[error("{path}: {why}")]
    Unkept {
        /// The field.
        path: FieldPath,
        /// What is wrong with it.
        why: String,
    },
    /// A size or a field beyond its limit, when written.
    #[error("{0}")]
    Limit(String),
}

/// A body before it is sealed: position and state in the bytes they will keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    bytes: Vec<u8>,
    position_bytes: usize,
    codec: Cow<'static, str>,
    schema: u32,
}

impl Body {
    /// Encodes a position and a state that is serialised as JSON.
    ///
    /// # Errors
    /// [`Flaw::Unkept`] names the field that JSON would change or cannot hold; [`Flaw::Limit`] when it is too large,
    /// noticed while it is written. See [`encode`].
    pub fn json<S: Serialize>(position: &Position, state: &S, schema: u32) -> Result<Self, Flaw> {
        Self::with(position, schema, |bytes| encode(state, bytes))
    }

    /// Encodes a position and a state that `write` puts as JSON behind what is there.
    ///
    /// # Errors
    /// Those of `write`; [`Flaw::Limit`] when it is too large.
    pub fn with(
        position: &Position,
        schema: u32,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), Flaw>,
    ) -> Result<Self, Flaw> {
        let mut body = Self::begin(position, Cow::Borrowed("json"), schema)?;
        write(&mut body.bytes)?;
        body.check()
    }

    /// Encodes a position and a state whose bytes a foreign client chose.
    ///
    /// # Errors
    /// [`Flaw::Limit`] when it is too large.
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
                "the state has {state_bytes} bytes, {STATE_BYTES_MAX} are allowed: keep large data in files and their hashes in the state"
            )));
        }
        Ok(self)
    }
}

impl Record {
    /// Makes the bytes of a checkpoint, once and for all.
    ///
    /// `header.body` is filled in here.
    ///
    /// # Errors
    /// [`Flaw::Limit`] if the header is larger than [`HEADER_BYTES_MAX`]; [`Flaw::Unkept`] names the field of it that
    /// would not come back as it is, such as a value that is nested too deep.
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
            return Err(Flaw::Limit(format!("the header has {found} bytes, {HEADER_BYTES_MAX} are allowed")));
        }
        // A store may keep them as they are, and many of them.
        bytes.shrink_to_fit();
        let digest = Digest::of(&bytes);
        let body = body.map(|mut body| {
            body.bytes.shrink_to_fit();
            Arc::new(body.bytes)
        });
        Ok(Self { header: Arc::new(header), digest, header_bytes: Arc::new(bytes), body })
    }

    /// Reads a checkpoint back and checks every byte of it.
    ///
    /// `digest` is the one that the store kept beside it. Without `body`, only the header is read, and the record has
    /// none.
    ///
    /// # Errors
    /// [`Flaw`]: not what was written, or not for this version. Nothing of the bytes may be used.
    pub fn open(digest: Digest, header_bytes: Vec<u8>, body: Option<Vec<u8>>) -> Result<Self, Flaw> {
        Self::open_shared(digest, Arc::new(header_bytes), body.map(Arc::new))
    }

    /// As [`open`](Self::open), of bytes that somebody else keeps, too.
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
                .ok_or_else(|| Flaw::Malformed("it has a body that its header does not name".into()))?;
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

    /// Returns the body's exact bytes, if the record has its own and it was loaded.
    pub fn body_bytes(&self) -> Option<&Bytes> {
        self.body.as_ref()
    }

    /// Returns the size of header and body, whether or not the body was loaded.
    pub fn bytes(&self) -> u64 {
        self.header_bytes.len() as u64 + self.header.body.as_ref().map_or(0, |body| body.bytes)
    }

    /// Returns the record without its body, as retention leaves it.
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
    /// [`Flaw::Malformed`] if the record has no body or the position is none.
    pub fn position(&self) -> Result<Position, Flaw> {
        let (position, _) =
            self.split().ok_or_else(|| Flaw::Malformed("it has no state of its own".into()))?;
        serde_json::from_slice(position).map_err(|error| Flaw::Malformed(error.to_string()))
    }

    /// Returns the state's exact bytes; `None` without a body.
    pub fn state_bytes(&self) -> Option<&[u8]> {
        self.split().map(|(_, state)| state)
    }
}

impl SealedRun {
    /// Makes the bytes of a run record, once and for all.
    ///
    /// # Errors
    /// [`Flaw`] if it cannot be written, or asks for a retention below [`RETENTION_MIN`].
    pub fn seal(record: RunRecord) -> Result<Self, Flaw> {
        if let Some(keep) = record.retention.filter(|keep| *keep < RETENTION_MIN) {
            return Err(Flaw::Limit(format!(
                "a retention of {keep} is asked for, and at least {RETENTION_MIN} states are kept: the newest, and one in case that it is damaged"
            )));
        }
        let mut bytes = Vec::new();
        encode(&record, &mut bytes)?;
        Ok(Self { record, digest: Digest::of(&bytes), bytes: Arc::new(bytes) })
    }

    /// Reads a run record back and checks every byte of it.
    ///
    /// # Errors
    /// [`Flaw`]: not what was written, or not for this version.
    pub fn open(digest: Digest, bytes: Vec<u8>) -> Result<Self, Flaw> {
        check_digest("run record", digest, &bytes)?;
        Ok(Self { record: parse(&bytes)?, digest, bytes: Arc::new(bytes) })
    }

    /// Returns the record.
    pub fn record(&self) -> &RunRecord {
        &self.record
    }

    /// Returns its digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns its exact bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

fn check_digest(part: &'static str, expect: Digest, bytes: &[u8]) -> Result<(), Flaw> {
    let actual = Digest::of(bytes);
    if actual == expect { Ok(()) } else { Err(Flaw::Digest { part, expect, actual }) }
}

/// Returns the description of a format outside the reach of this version.
pub(crate) fn other_format(found: u32, supported: u32) -> String {
    match found > supported {
        true => format!("has format {found}, this version reads up to {supported}"),
        false => format!("has format {found} of before the first release, this version reads {supported}"),
    }
}

/// How what this version writes begins: then its format need not be looked for.
const BEGIN: &[u8] = b"{\"v\":2,";
const _: () = assert!(FORMAT == 2, "what is written begins with its format");

/// Reads JSON of this format; a newer format is told apart before its fields can confuse.
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
