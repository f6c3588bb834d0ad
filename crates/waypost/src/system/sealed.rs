//! Sealed text: JSON with its own hash at the beginning, and with exact bytes of records.
//!
//! A sealed text begins with the member `integrity_hash`, always at the same offset: SHA-256 of the text with
//! the 64 characters of the hash replaced by zeros (the character `0`). The next member is `format`. The text
//! is plain JSON, and a change of any byte is detected before any use.
//!
//! The file store and portable checkpoints use this format, and define the remaining members.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::id::Digest;
use crate::record::{Flaw, Record};

const HASH_PREFIX: &[u8] = b"{\"integrity_hash\":\"";
const HASH_CHARS: usize = 64;
/// The offset after the hash; a quotation mark follows.
pub(crate) const HASH_END: usize = HASH_PREFIX.len() + HASH_CHARS;
const ZEROS: [u8; HASH_CHARS] = [b'0'; HASH_CHARS];

/// Begins a text; members follow, each preceded by a comma.
pub(crate) fn begin(capacity: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(capacity + 256);
    text.extend_from_slice(HASH_PREFIX);
    text.extend_from_slice(&ZEROS);
    text.push(b'"');
    text
}

/// Ends a text and fills in the hash.
pub(crate) fn finish(mut text: Vec<u8>) -> Vec<u8> {
    text.extend_from_slice(b"}\n");
    let hash = integrity(&text);
    text[HASH_PREFIX.len()..HASH_END].copy_from_slice(hash.to_string().as_bytes());
    text
}

fn integrity(text: &[u8]) -> Digest {
    let mut hash = Sha256::new();
    hash.update(HASH_PREFIX);
    hash.update(ZEROS);
    hash.update(&text[HASH_END..]);
    Digest::from_bytes(hash.finalize().into())
}

/// Checks the hash of a text, and compares the format with `supported`.
pub(crate) fn check(text: &[u8], supported: u32) -> Result<(), Flaw> {
    let hash = text
        .strip_prefix(HASH_PREFIX)
        .and_then(|rest| rest.get(..HASH_CHARS))
        .and_then(|hash| std::str::from_utf8(hash).ok())
        .and_then(|hash| hash.parse().ok())
        .ok_or_else(|| Flaw::Malformed("no integrity hash at the beginning".to_owned()))?;
    let actual = integrity(text);
    if actual != hash {
        return Err(Flaw::Digest { part: "file", expect: hash, actual });
    }
    match format_of(text) {
        Some(found) if found == supported => Ok(()),
        Some(found) => Err(Flaw::Format { found, supported }),
        None => Err(Flaw::Malformed("no format at the beginning".to_owned())),
    }
}

/// Reads the member after the hash: `format` is the first in every format, and readable without the rest.
fn format_of(text: &[u8]) -> Option<u32> {
    let rest = text[HASH_END..].strip_prefix(b"\",\n\"format\":")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// Parses JSON whose bytes were checked.
pub(crate) fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, Flaw> {
    serde_json::from_slice(text).map_err(|error| Flaw::Malformed(error.to_string()))
}

/// Adds a member.
pub(crate) fn member(text: &mut Vec<u8>, name: &str, value: &impl Serialize) {
    text.extend_from_slice(b",\n\"");
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b"\":");
    serde_json::to_writer(text, value).expect("plain values have JSON");
}

/// Adds the members of a record to a begun object: `digest`, `header`, and the parts of the body.
pub(crate) fn push_record_members(text: &mut Vec<u8>, record: &Record) {
    text.extend_from_slice(format!("\"digest\":\"{}\"", record.digest()).as_bytes());
    text.extend_from_slice(b",\n\"header\":");
    text.extend_from_slice(record.header_bytes());
    if let (Some(info), Some(body)) = (&record.header().body, record.body_bytes()) {
        let (position, state) = body.split_at(info.position_bytes as usize);
        // Skip the newline between position and state.
        let state = &state[1..];
        text.extend_from_slice(b",\n\"position\":");
        text.extend_from_slice(position);
        if json_to_the_byte(state).is_some() {
            text.extend_from_slice(b",\n\"state\":");
            text.extend_from_slice(state);
        } else {
            member(text, "state_base64", &BASE64.encode(state));
        }
    }
}

/// Returns the bytes as a single JSON value, if a JSON reader returns exactly these bytes.
pub(crate) fn json_to_the_byte(bytes: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice::<&RawValue>(bytes).ok().filter(|value| value.get().len() == bytes.len())
}

/// A record as parsed from a text, before the check.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordText<'a> {
    /// The index of the scope in order of opening, if present in the file.
    #[serde(default)]
    pub(crate) opened: Option<u64>,
    digest: Digest,
    #[serde(borrow)]
    header: &'a RawValue,
    #[serde(borrow, default, deserialize_with = "present")]
    position: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    state: Option<&'a RawValue>,
    #[serde(default)]
    state_base64: Option<String>,
}

/// Reads a present member of any value: a state may be `null`.
fn present<'de, D: serde::Deserializer<'de>>(member: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(member).map(Some)
}

impl RecordText<'_> {
    /// Checks header and body against their digests.
    pub(crate) fn open(self) -> Result<Record, Flaw> {
        let state = match (self.state, self.state_base64) {
            (Some(state), None) => Some(state.get().as_bytes().to_vec()),
            (None, Some(text)) => {
                Some(BASE64.decode(text).map_err(|error| Flaw::Malformed(error.to_string()))?)
            }
            (None, None) => None,
            (Some(_), Some(_)) => return Err(Flaw::Malformed("it has two states".to_owned())),
        };
        let body = match (self.position, state) {
            (Some(position), Some(state)) => {
                let mut body = position.get().as_bytes().to_vec();
                body.push(b'\n');
                body.extend_from_slice(&state);
                Some(body)
            }
            (None, None) => None,
            _ => return Err(Flaw::Malformed("it has half a body".to_owned())),
        };
        let header = self.header.get().as_bytes().to_vec();
        Record::open(self.digest, header, body)
    }
}
