//! Names of runs, steps and scopes, and digests of bytes.
//!
//! The constructor checks every name once; the rest of the library relies on the check. Names are never used
//! as unescaped paths: [`ScopePath::file_name`] is the only form that reaches a folder.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher as _, Hasher as _};
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// Longest run id: a file name with room for suffixes on every known file system (255 bytes).
pub const RUN_ID_BYTES_MAX: usize = 128;
/// Longest step id: long enough for a sentence, short enough for a terminal line.
pub const STEP_ID_BYTES_MAX: usize = 64;
/// Longest scope key before encoding: a URL or a path fits; a document does not.
pub const SCOPE_KEY_BYTES_MAX: usize = 1024;
/// Deepest nesting of scopes: forks in forks, far beyond human comprehension.
pub const SCOPE_DEPTH_MAX: usize = 16;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} `{name}` is not allowed: {rule}")]
pub struct InvalidName {
    /// The kind of name: `run id`, `step id` or `scope`.
    pub kind: &'static str,
    /// The name as given, clipped.
    pub name: String,
    /// The rule for valid names.
    pub rule: &'static str,
}

fn refuse(kind: &'static str, name: &str, rule: &'static str) -> InvalidName {
    InvalidName { kind, name: name.chars().take(80).collect(), rule }
}

/// Parses a name from its text.
struct Named<T>(PhantomData<T>);

impl<T: FromStr<Err = InvalidName>> Visitor<'_> for Named<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// Serialises a name as its text, without an intermediate copy: a header has a dozen names.
macro_rules! serde_as_text {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.text().as_ref())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Named(PhantomData))
            }
        }
    };
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $check:path, $canonical:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        serde_as_text!($name);

        impl $name {
            /// Checks `text` and creates a name.
            ///
            /// # Errors
            /// [`InvalidName`] has the rule for valid names.
            pub fn new(text: &str) -> Result<Self, InvalidName> {
                let text = $canonical(text);
                $check(&text)?;
                Ok(Self(text.into()))
            }

            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            fn text(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "`{}`", self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;
            fn from_str(text: &str) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.as_ref().to_owned()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        // Equal text, equal hash, equal order: a map with id keys can be queried with plain text.
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

text_id! {
    /// The name of a run: letters, digits, `.`, `_`, `-`; starts with a letter or digit.
    RunId, check_run_id, Cow::Borrowed
}
text_id! {
    /// The name of a step: letters, digits, `_`, `-`; starts with a letter or `_`.
    StepId, check_step_id, Cow::Borrowed
}
text_id! {
    /// A line of execution in a run, as displayed: `main`, or `summarise:eu`, nested with `/`.
    ///
    /// A key is arbitrary text; all bytes except letters, digits, `.`, `_`, `-` are percent-encoded. Letters outside
    /// ASCII are accepted as they are, and shown by [`ScopePath::readable`].
    ScopePath, check_scope, canonical_scope
}

/// Letters of the random suffix of an id: Crockford's base 32, without ambiguous letters.
const BASE_32: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Most characters of a name in a generated id, for readable lists.
const NAME_CHARACTERS_MAX: usize = 40;

impl RunId {
    /// Generates an id from a name and four random characters; two ids of one name collide once in a million.
    pub fn random(name: &str) -> Self {
        let mut slug = String::new();
        for c in name.chars() {
            let c = if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') { c } else { '-' };
            if slug.len() < NAME_CHARACTERS_MAX
                && (c.is_ascii_alphanumeric() || !slug.is_empty())
                && !(c == '-' && slug.ends_with('-'))
            {
                slug.push(c);
            }
        }
        let slug =
            Some(slug.trim_end_matches(['-', '.', '_'])).filter(|slug| !slug.is_empty()).unwrap_or("run");
        // The keys of std's hash maps come from the system's randomness.
        let random = RandomState::new().build_hasher().finish();
        let end = |place: u32| char::from(BASE_32[(random >> (5 * place)) as usize & 31]);
        let end: String = (0..4).map(end).collect();
        Self::new(&format!("{slug}-{end}")).expect("a slug begins with a letter or digit")
    }
}

fn check_run_id(text: &str) -> Result<(), InvalidName> {
    let mut bytes = text.bytes();
    let sound = bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && text.len() <= RUN_ID_BYTES_MAX;
    if sound {
        return Ok(());
    }
    Err(refuse("run id", text, "1 to 128 letters, digits, `.`, `_` or `-`, the first a letter or digit"))
}

fn check_step_id(text: &str) -> Result<(), InvalidName> {
    let mut bytes = text.bytes();
    let sound = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
        && text.len() <= STEP_ID_BYTES_MAX;
    if sound {
        return Ok(());
    }
    Err(refuse("step id", text, "1 to 64 letters, digits, `_` or `-`, the first a letter or `_`"))
}

fn check_scope(text: &str) -> Result<(), InvalidName> {
    if text == MAIN {
        return Ok(());
    }
    let mut depth = 0;
    for segment in text.split('/') {
        depth += 1;
        let Some((step, key)) = segment.split_once(':') else {
            let pass = segment.split_once('~').filter(|(_, pass)| is_pass(pass));
            let wrong = || refuse("scope", text, "`main`, `STEP:KEY` or `STEP~PASS`, nested with `/`");
            check_step_id(pass.ok_or_else(wrong)?.0)?;
            continue;
        };
        check_step_id(step)?;
        if key.len() <= SCOPE_KEY_BYTES_MAX && key.bytes().all(is_plain) {
            continue;
        }
        let decoded = decode_key(key)
            .ok_or_else(|| refuse("scope", text, "keys are percent-encoded UTF-8, as they are shown"))?;
        let mut encoded = String::with_capacity(key.len());
        encode_key(&decoded, &mut encoded);
        if encoded != key || decoded.len() > SCOPE_KEY_BYTES_MAX {
            return Err(refuse(
                "scope",
                text,
                "keys are percent-encoded as they are shown, up to 1024 bytes",
            ));
        }
    }
    if depth > SCOPE_DEPTH_MAX {
        return Err(refuse("scope", text, "scopes nest at most 16 deep"));
    }
    Ok(())
}

/// Encodes the characters of a scope path outside ASCII, which keys may have in text from a person.
fn canonical_scope(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let mut encoded = String::with_capacity(text.len() * 3);
    for found in text.chars() {
        if found.is_ascii() {
            encoded.push(found);
        } else {
            encode_key(found.encode_utf8(&mut [0; 4]), &mut encoded);
        }
    }
    Cow::Owned(encoded)
}

/// Returns the text of scope paths for a person: encoded letters outside ASCII are decoded. Control characters, marks
/// that change the direction of text, and white space stay encoded. [`ScopePath::new`] accepts the result.
pub fn readable(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let (mut readable, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('%') {
        readable.push_str(&rest[..at]);
        rest = &rest[at..];
        let (taken, decoded) = encoded_letter(rest).map_or((1, '%'), |(taken, letter)| (taken, letter));
        readable.push(decoded);
        rest = &rest[taken..];
    }
    readable.push_str(rest);
    Cow::Owned(readable)
}

/// Decodes the letter outside ASCII at the start of `text`, with the length of its code.
fn encoded_letter(text: &str) -> Option<(usize, char)> {
    for bytes in 2..=4 {
        let code = text.get(..3 * bytes).filter(|code| code.bytes().step_by(3).all(|byte| byte == b'%'))?;
        let Some(decoded) = decode_key(code) else { continue };
        let letter = decoded.chars().next()?;
        let is_hidden = letter.is_control()
            || letter.is_whitespace()
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        return (decoded.chars().count() == 1 && !letter.is_ascii() && !is_hidden)
            .then_some((code.len(), letter));
    }
    None
}

const MAIN: &str = "main";

impl ScopePath {
    /// Returns the main scope, which every run has.
    pub fn main() -> Self {
        Self(MAIN.into())
    }

    /// Says whether this is the main scope.
    pub fn is_main(&self) -> bool {
        &*self.0 == MAIN
    }

    /// Returns the path for a person: see [`readable`].
    pub fn readable(&self) -> Cow<'_, str> {
        readable(&self.0)
    }

    /// Returns the number of ancestors: 0 for the main scope.
    pub fn depth(&self) -> usize {
        if self.is_main() { 0 } else { self.0.bytes().filter(|byte| *byte == b'/').count() + 1 }
    }

    /// Returns the path of the child that `step` opens for `key` in this scope.
    ///
    /// # Errors
    /// [`InvalidName`]: the key is too long or the nesting too deep.
    pub fn child(&self, step: &StepId, key: &str) -> Result<Self, InvalidName> {
        let mut text = String::with_capacity(self.0.len() + step.0.len() + key.len() + 2);
        if !self.is_main() {
            text.push_str(&self.0);
            text.push('/');
        }
        text.push_str(&step.0);
        text.push(':');
        encode_key(key, &mut text);
        // All other rules hold by construction.
        if key.len() > SCOPE_KEY_BYTES_MAX || self.depth() == SCOPE_DEPTH_MAX {
            check_scope(&text)?;
        }
        Ok(Self(text.into()))
    }

    /// Returns the path of a pass of `step` in this scope: `improve~2`.
    ///
    /// # Errors
    /// [`InvalidName`]: the nesting is too deep.
    pub fn pass(&self, step: &StepId, pass: u32) -> Result<Self, InvalidName> {
        let above = if self.is_main() { String::new() } else { format!("{}/", self.0) };
        Self::new(&format!("{above}{step}~{pass}"))
    }

    /// Returns the parent scope, or `None` for the main scope.
    pub fn parent(&self) -> Option<Self> {
        if self.is_main() {
            return None;
        }
        Some(self.0.rsplit_once('/').map_or_else(Self::main, |(parent, _)| Self(parent.into())))
    }

    /// Returns the step and the decoded key that opened this scope, or `None` for the main scope. The key
    /// of a pass is its number.
    pub fn opened_by(&self) -> Option<(StepId, String)> {
        if self.is_main() {
            return None;
        }
        let last = self.0.rsplit('/').next().unwrap_or(&self.0);
        match last.split_once(':') {
            Some((step, key)) => Some((StepId::new(step).ok()?, decode_key(key)?)),
            None => {
                last.split_once('~').and_then(|(step, pass)| Some((StepId::new(step).ok()?, pass.to_owned())))
            }
        }
    }

    /// Returns the pass of this scope, from 1; `None` for the main scope and for the scope of an item.
    pub fn pass_number(&self) -> Option<u32> {
        let last = self.0.rsplit('/').next()?;
        if last.contains(':') { None } else { last.split_once('~')?.1.parse().ok() }
    }

    /// Returns a name that is safe in a folder: `main`, or a hash, since keys may be longer than a file name.
    pub fn file_name(&self) -> String {
        if self.is_main() {
            return MAIN.to_owned();
        }
        Digest::of(self.0.as_bytes()).to_string()[..32].to_owned()
    }
}

/// Returns whether a text is the number of a pass: from 1, without leading zeros.
fn is_pass(text: &str) -> bool {
    !text.starts_with('0') && text.parse::<u32>().is_ok_and(|pass| pass.to_string() == text)
}

/// Returns whether a byte of a key is not encoded.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Appends an encoded key to `text`.
fn encode_key(key: &str, text: &mut String) {
    for byte in key.bytes() {
        if is_plain(byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
}

fn decode_key(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let pair = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// The SHA-256 of exact bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

serde_as_text!(Digest);

/// A digest as text.
struct Hex([u8; 64]);

impl AsRef<str> for Hex {
    fn as_ref(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits are ASCII")
    }
}

impl Digest {
    /// Hashes `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Hashes several pieces, each preceded by its length, so that lists with an equal concatenation differ.
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// Hashes a list of digests to the root of a Merkle tree. Each inner node hashes its two children; a node
    /// without a neighbour moves up unchanged. A first byte separates leaves from inner nodes. An empty list
    /// gives the digest of empty input.
    ///
    /// # Source
    /// RFC 6962, section 2.1, for the first bytes.
    pub fn merkle(leaves: &[Self]) -> Self {
        let joined = |first: u8, one: &[u8], other: &[u8]| {
            let mut hash = Sha256::new();
            hash.update([first]);
            hash.update(one);
            hash.update(other);
            Self(hash.finalize().into())
        };
        let mut row: Vec<Self> = leaves.iter().map(|leaf| joined(0, &leaf.0, &[])).collect();
        while row.len() > 1 {
            let above = |pair: &[Self]| match pair {
                [one, other] => joined(1, &one.0, &other.0),
                rest => rest[0],
            };
            row = row.chunks(2).map(above).collect();
        }
        row.first().copied().unwrap_or_else(|| Self::of(&[]))
    }

    /// Creates a digest from its stored bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    fn text(&self) -> Hex {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0_u8; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        Hex(text)
    }

    /// Returns the 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Hashes bytes piece by piece.
#[derive(Debug, Clone, Default)]
pub struct Digester(Sha256);

impl Digester {
    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all pieces.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().as_ref())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let wrong = || refuse("digest", text, "64 lower-case hexadecimal digits");
        let mut bytes = [0_u8; 32];
        if text.len() != 64 {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte =
                nibble(pair[0]).zip(nibble(pair[1])).map(|(high, low)| high << 4 | low).ok_or_else(wrong)?;
        }
        Ok(Self(bytes))
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidName;
    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

/// The place of a checkpoint: `RUN@SEQ`, or `RUN/SCOPE@SEQ` outside the main scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CheckpointRef {
    /// The run.
    pub run: RunId,
    /// The scope of the run.
    pub scope: ScopePath,
    /// The 1-based position in the scope.
    pub seq: u64,
}

impl CheckpointRef {
    /// Creates the reference to a checkpoint of the main scope.
    pub fn main(run: RunId, seq: u64) -> Self {
        Self { run, scope: ScopePath::main(), seq }
    }
}

impl FromStr for CheckpointRef {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let wrong = || refuse("checkpoint", text, "`RUN@SEQ`, or `RUN/SCOPE@SEQ` outside the main scope");
        let (path, seq) = text.rsplit_once('@').ok_or_else(wrong)?;
        let seq = seq.parse().ok().filter(|seq| *seq > 0).ok_or_else(wrong)?;
        let (run, scope) = match path.split_once('/') {
            Some((run, scope)) => (run, ScopePath::new(scope)?),
            None => (path, ScopePath::main()),
        };
        Ok(Self { run: RunId::new(run)?, scope, seq })
    }
}

impl fmt::Display for CheckpointRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scope.is_main() {
            write!(f, "{}@{}", self.run, self.seq)
        } else {
            write!(f, "{}/{}@{}", self.run, self.scope, self.seq)
        }
    }
}
