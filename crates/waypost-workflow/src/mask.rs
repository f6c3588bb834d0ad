//! Keeps declared secrets out of all stored and displayed text.
//!
//! Owns the detection of secrets in bytes, and the replacement by [`MASK`] in a stream, for any chunk
//! boundaries. A [`Mask`] is made once per run from the values of the secrets, and never exposes these. See
//! `forms.rs` for the encoded forms. Deliberately does not know the source of secrets, nor the use of the
//! results.
//!
//! Limits, also documented for users. Not detected are:
//!
//! - Other encodings: hex, gzip, or two nested encodings.
//! - A secret in pieces, or with optional escapes for some characters only.
//! - Single lines of a secret with several lines.
//! - Base64 wrapped at widths other than 64 and 76, or indented, or of a text around a secret beyond 4 KiB.
//! - Up to four bits of the secret's first and last byte, where base64 mixes them with adjacent bytes.

mod forms;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// Replacement for a secret.
pub const MASK: &str = "***";

/// Shortest secret. A shorter value occurs in ordinary text by chance: masking would garble the log and
/// reveal the value.
pub const SECRET_BYTES_MIN: usize = 8;

/// Longest secret. Longer than any key or token file (a 16,384-bit RSA key in PEM has 13 KB). Small enough
/// for the forms of a hundred secrets in memory. A stream is held back by at most a screenful.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;

/// Why a value cannot be a secret. The error does not contain the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// Too short to be masked; surrounding white space does not count.
    #[error("cannot mask secret `{name}`: it has {bytes} bytes, the minimum is {SECRET_BYTES_MIN}")]
    TooShort {
        /// Name of the secret.
        name: String,
        /// Length of the value.
        bytes: usize,
    },
    /// Too long to be masked.
    #[error("cannot mask secret `{name}`: it has {bytes} bytes, the maximum is {SECRET_BYTES_MAX}")]
    TooLong {
        /// Name of the secret.
        name: String,
        /// Length of the value.
        bytes: usize,
    },
}

/// Secrets of a run in all their forms. Cheap to clone.
#[derive(Clone, Default)]
pub struct Mask {
    patterns: Arc<Patterns>,
}

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Number of forms only: debug output ends up in logs.
        f.debug_struct("Mask").field("forms", &self.patterns.sorted.len()).finish_non_exhaustive()
    }
}

impl Mask {
    /// Makes a mask for secrets, given by name and value.
    ///
    /// # Errors
    /// - [`MaskError::TooShort`] and [`MaskError::TooLong`]: the first value that cannot be masked.
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Self, MaskError> {
        let mut forms = Vec::new();
        for (name, value) in secrets {
            // A line end after a secret is not part of it, as programs print it or not. Every form of the
            // full value contains a form of the trimmed value, so nothing is lost.
            let value = value.trim_ascii();
            let bytes = value.len();
            match bytes {
                ..SECRET_BYTES_MIN => return Err(MaskError::TooShort { name: name.to_owned(), bytes }),
                SECRET_BYTES_MIN..=SECRET_BYTES_MAX => forms.extend(forms::of(value)),
                _ => return Err(MaskError::TooLong { name: name.to_owned(), bytes }),
            }
        }
        Ok(Self { patterns: Arc::new(Patterns::new(forms)) })
    }

    /// Returns whether there is nothing to mask.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.sorted.is_empty()
    }

    /// Returns whether `bytes` contains a secret, in any form.
    #[must_use]
    pub fn contains(&self, bytes: &[u8]) -> bool {
        self.patterns.find(bytes, 0).is_some()
    }

    /// Returns whether a text, key or number in `value` contains a secret, unescaped and not only in JSON
    /// form.
    pub(crate) fn is_within(&self, value: &serde_json::Value) -> bool {
        use serde_json::Value;
        match value {
            Value::String(text) => self.contains(text.as_bytes()),
            Value::Array(items) => items.iter().any(|item| self.is_within(item)),
            Value::Object(map) => {
                map.iter().any(|(key, item)| self.contains(key.as_bytes()) || self.is_within(item))
            }
            // A number has several spellings: with and without an exponent.
            Value::Number(number) => {
                let plain = number.as_f64().filter(|_| number.is_f64()).map(|float| float.to_string());
                self.contains(number.to_string().as_bytes())
                    || plain.is_some_and(|plain| self.contains(plain.as_bytes()))
            }
            Value::Null | Value::Bool(_) => false,
        }
    }

    /// Masks the texts and numbers of a value, keys of maps included.
    pub(crate) fn mask_value(&self, value: &mut serde_json::Value) {
        use serde_json::Value;
        match value {
            Value::String(text) => *text = self.mask_str(text).into_owned(),
            Value::Array(items) => items.iter_mut().for_each(|item| self.mask_value(item)),
            Value::Object(map) => {
                for (key, mut item) in std::mem::take(map) {
                    self.mask_value(&mut item);
                    map.insert(self.mask_str(&key).into_owned(), item);
                }
            }
            Value::Number(_) if self.is_within(value) => *value = Value::from(MASK),
            Value::Number(_) | Value::Null | Value::Bool(_) => {}
        }
    }

    /// Returns the start of the first secret in `bytes`, in any form.
    #[must_use]
    pub fn find(&self, bytes: &[u8]) -> Option<usize> {
        self.patterns.find(bytes, 0).map(|(start, _)| start)
    }

    /// Masks a complete text.
    #[must_use]
    pub fn mask_str<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !self.contains(text.as_bytes()) {
            return Cow::Borrowed(text);
        }
        let masked = self.mask_bytes(text.as_bytes());
        // A secret that is not UTF-8 may begin or end inside a character.
        Cow::Owned(String::from_utf8_lossy(&masked).into_owned())
    }

    /// Masks complete bytes.
    #[must_use]
    pub fn mask_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.stream();
        let mut out = Vec::with_capacity(bytes.len());
        stream.push(bytes, &mut out);
        stream.finish(&mut out);
        out
    }

    /// Starts masking a stream of chunks.
    #[must_use]
    pub fn stream(&self) -> MaskStream {
        MaskStream { patterns: Arc::clone(&self.patterns), held: Vec::new(), covered: 0 }
    }
}

/// Masks one stream. The total output equals the masking of all bytes at once, for any chunk boundaries.
#[derive(Clone)]
pub struct MaskStream {
    patterns: Arc<Patterns>,
    /// End of the stream so far, possibly the beginning of a form: shorter than the longest form.
    held: Vec<u8>,
    /// Number of held bytes in a form that was already replaced by [`MASK`].
    covered: usize,
}

impl std::fmt::Debug for MaskStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the held bytes, which may be the beginning of a secret.
        f.debug_struct("MaskStream").field("held_bytes", &self.held.len()).finish_non_exhaustive()
    }
}

impl MaskStream {
    /// Takes the next chunk, and appends the decided bytes to `out`.
    ///
    /// Holds back only an end that may continue as a form of a secret: nothing in ordinary text.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        if self.patterns.sorted.is_empty() {
            out.extend_from_slice(chunk);
            return;
        }
        if self.held.is_empty() {
            let certain = self.emit(chunk, chunk.len() - self.patterns.open_end(chunk), out);
            self.held.extend_from_slice(&chunk[certain..]);
            return;
        }
        let mut buffer = std::mem::take(&mut self.held);
        buffer.extend_from_slice(chunk);
        let certain = self.emit(&buffer, buffer.len() - self.patterns.open_end(&buffer), out);
        buffer.drain(..certain);
        self.held = buffer;
    }

    /// Ends the stream, and appends the held bytes to `out`.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let buffer = std::mem::take(&mut self.held);
        self.emit(&buffer, buffer.len(), out);
        self.covered = 0;
    }

    /// Appends the first `certain` bytes of `buffer`, masked, to `out`. No form that begins there extends
    /// beyond the buffer.
    ///
    /// Returns `certain`. Overlapping forms become one mask, adjacent forms two.
    fn emit(&mut self, buffer: &[u8], certain: usize, out: &mut Vec<u8>) -> usize {
        // All bytes before `done` are written or masked; a form that begins earlier belongs to the last mask.
        let mut done = self.covered;
        let mut from = 0;
        while let Some((start, end)) = self.patterns.find(buffer, from).filter(|(start, _)| *start < certain)
        {
            if start >= done {
                out.extend_from_slice(&buffer[done..start]);
                out.extend_from_slice(MASK.as_bytes());
            }
            done = done.max(end);
            from = start + 1;
        }
        if done < certain {
            out.extend_from_slice(&buffer[done..certain]);
            done = certain;
        }
        self.covered = done - certain;
        certain
    }
}

/// All forms of all secrets, with an index for fast search.
///
/// Windows of eight bytes are compared from the end, and skipped as far as no form can begin.
///
/// # Source
/// Wu and Manber, "A fast algorithm for multi-pattern searching" (1994).
#[derive(Default)]
struct Patterns {
    /// Without duplicates; no form is shorter than a window.
    sorted: Vec<Vec<u8>>,
    longest: usize,
    /// Per pair of bytes: safe move of a window that ends with the pair. After the move, the pair may be in
    /// the first eight bytes of a form.
    shift: Vec<u8>,
    /// Forms with these first eight bytes: a range of `sorted`.
    by_window: HashMap<[u8; WINDOW], (usize, usize)>,
    /// Whether a form begins with this byte.
    first: Vec<bool>,
}

/// Size of a window: the length of the shortest form.
const WINDOW: usize = SECRET_BYTES_MIN;

/// Move of a window whose last two bytes are in no form's first eight bytes.
const SHIFT_MAX: u8 = WINDOW as u8 - 1;

impl Patterns {
    fn new(mut forms: Vec<Vec<u8>>) -> Self {
        forms.sort_unstable();
        forms.dedup();
        if forms.is_empty() {
            return Self::default();
        }
        let mut shift = vec![SHIFT_MAX; 1 << 16];
        let mut first = vec![false; 256];
        let mut by_window: HashMap<[u8; WINDOW], (usize, usize)> = HashMap::new();
        for (index, form) in forms.iter().enumerate() {
            let window: [u8; WINDOW] = form[..WINDOW].try_into().expect("no form is shorter than a window");
            first[usize::from(window[0])] = true;
            by_window.entry(window).or_insert((index, index)).1 = index + 1;
            for (distance, pair) in window.windows(2).rev().enumerate() {
                let slot = &mut shift[pair_index(pair[0], pair[1])];
                *slot = (*slot).min(distance as u8);
            }
        }
        let longest = forms.iter().map(Vec::len).max().unwrap_or_default();
        Self { sorted: forms, longest, shift, by_window, first }
    }

    /// Returns start and end of the longest form at the first match from `from` on.
    fn find(&self, buffer: &[u8], from: usize) -> Option<(usize, usize)> {
        if self.sorted.is_empty() {
            return None;
        }
        let mut last = from + WINDOW - 1;
        while last < buffer.len() {
            let shift = self.shift[pair_index(buffer[last - 1], buffer[last])];
            if shift > 0 {
                last += usize::from(shift);
                continue;
            }
            let start = last + 1 - WINDOW;
            if let Some(end) = self.longest_at(&buffer[start..]) {
                return Some((start, start + end));
            }
            last += 1;
        }
        None
    }

    /// Returns the length of the longest form at the start of `bytes`, which has at least the size of a
    /// window.
    fn longest_at(&self, bytes: &[u8]) -> Option<usize> {
        let window: &[u8; WINDOW] = bytes.first_chunk()?;
        let (first, end) = *self.by_window.get(window)?;
        let forms = self.sorted[first..end].iter();
        forms.filter(|form| bytes.starts_with(form)).map(Vec::len).max()
    }

    /// Returns the length of the longest end of `buffer` that is the beginning of a form, but not the whole
    /// form.
    fn open_end(&self, buffer: &[u8]) -> usize {
        let begin = buffer.len().saturating_sub(self.longest - 1);
        let open = (begin..buffer.len()).find(|start| {
            let end = &buffer[*start..];
            // Forms that begin with `end` come after it in the order; an equal form is complete.
            self.first[usize::from(end[0])] && {
                let next = self.sorted.partition_point(|form| form.as_slice() <= end);
                self.sorted.get(next).is_some_and(|form| form.starts_with(end))
            }
        });
        open.map_or(0, |start| buffer.len() - start)
    }
}

fn pair_index(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}
