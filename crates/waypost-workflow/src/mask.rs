//! Keeping declared secrets out of everything that is stored or shown.
//!
//! This owns which bytes betray a secret, and replacing them by [`MASK`] in a stream, whatever its chunks. A [`Mask`]
//! is made once for a run from the values of its secrets; it never shows them again. See `forms.rs` for the encoded
//! forms that count. It deliberately does not know where secrets come from, nor what is done with what it finds.
//!
//! What it does not find, and the user's documentation says so: other encodings (hex, gzip, two encodings one in the
//! other), a secret in pieces or of which a program escapes some characters that it need not and others not, single lines
//! of one that has several, base64 broken into lines of other widths than 64 and 76, or indented, or of a text around a
//! secret beyond 4 KiB, and up to four bits of the secret's first and last byte where base64 mixes them with what stands
//! beside it.

mod forms;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// What stands in place of a secret.
pub const MASK: &str = "***";

/// The shortest secret. Anything shorter stands in ordinary text by chance, and masking it would both garble the log
/// and tell what it is.
pub const SECRET_BYTES_MIN: usize = 8;

/// The longest secret: above any key or token file (a 16,384-bit RSA key in PEM has 13 KB), and small enough that the
/// forms of a hundred such fit in memory and a stream is held back for no more than a screenful.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;

/// Why a value cannot be a secret. The value itself is not in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// It is too short to be masked; white space around it does not count.
    #[error("secret `{name}` has {bytes} bytes, fewer than the {SECRET_BYTES_MIN} that can be masked")]
    TooShort {
        /// The name of the secret.
        name: String,
        /// The length of the value.
        bytes: usize,
    },
    /// It is too long to be masked.
    #[error("secret `{name}` has {bytes} bytes, more than the {SECRET_BYTES_MAX} that can be masked")]
    TooLong {
        /// The name of the secret.
        name: String,
        /// The length of the value.
        bytes: usize,
    },
}

/// The secrets of a run, ready to be found in any of their forms. Cheap to clone.
#[derive(Clone, Default)]
pub struct Mask {
    patterns: Arc<Patterns>,
}

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Their number only: what is printed for a developer lands in logs.
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
            // A line end after a secret is not a part of it: it is printed with or without. What is inside of a
            // value is also inside of all its forms, so nothing is lost.
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

    /// Says whether there is nothing to mask.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.sorted.is_empty()
    }

    /// Says whether a secret is in `bytes`, in any form.
    #[must_use]
    pub fn contains(&self, bytes: &[u8]) -> bool {
        self.patterns.find(bytes, 0).is_some()
    }

    /// Looks for secrets in the text of every value and key, in the form it has there and not only in its JSON.
    pub(crate) fn is_within(&self, value: &serde_json::Value) -> bool {
        use serde_json::Value;
        match value {
            Value::String(text) => self.contains(text.as_bytes()),
            Value::Array(items) => items.iter().any(|item| self.is_within(item)),
            Value::Object(map) => {
                map.iter().any(|(key, item)| self.contains(key.as_bytes()) || self.is_within(item))
            }
            // A number is written in more than one way: with an exponent, and without.
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

    /// Returns where the first secret in `bytes` begins, in whatever form.
    #[must_use]
    pub fn find(&self, bytes: &[u8]) -> Option<usize> {
        self.patterns.find(bytes, 0).map(|(start, _)| start)
    }

    /// Masks a text that is whole.
    #[must_use]
    pub fn mask_str<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !self.contains(text.as_bytes()) {
            return Cow::Borrowed(text);
        }
        let masked = self.mask_bytes(text.as_bytes());
        // A secret that is no text may begin or end inside a character.
        Cow::Owned(String::from_utf8_lossy(&masked).into_owned())
    }

    /// Masks bytes that are whole.
    #[must_use]
    pub fn mask_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.stream();
        let mut out = Vec::with_capacity(bytes.len());
        stream.push(bytes, &mut out);
        stream.finish(&mut out);
        out
    }

    /// Begins to mask a stream that comes in chunks.
    #[must_use]
    pub fn stream(&self) -> MaskStream {
        MaskStream { patterns: Arc::clone(&self.patterns), held: Vec::new(), covered: 0 }
    }
}

/// One stream being masked. What it puts out, all in all, is what masking the whole at once would give, however
/// the stream is cut into chunks.
#[derive(Clone)]
pub struct MaskStream {
    patterns: Arc<Patterns>,
    /// The end of the stream so far, as it may be the beginning of a form: at most the longest form less one byte.
    held: Vec<u8>,
    /// How many of the held bytes belong to a form that was already put out as [`MASK`].
    covered: usize,
}

impl std::fmt::Debug for MaskStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the held bytes: they may be the beginning of a secret.
        f.debug_struct("MaskStream").field("held_bytes", &self.held.len()).finish_non_exhaustive()
    }
}

impl MaskStream {
    /// Takes the next chunk, and appends to `out` what is certain by now.
    ///
    /// Held back is only an end that could go on to be a form of a secret: nothing at all in ordinary text.
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

    /// Ends the stream, and appends to `out` what was held back.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let buffer = std::mem::take(&mut self.held);
        self.emit(&buffer, buffer.len(), out);
        self.covered = 0;
    }

    /// Puts out the first `certain` bytes of `buffer`, masked: no form that begins among them goes on behind the
    /// buffer. Returns `certain`. Forms that overlap are one mask; forms that only touch are two.
    fn emit(&mut self, buffer: &[u8], certain: usize, out: &mut Vec<u8>) -> usize {
        // Before `done` everything is put out or masked; a form that begins before it belongs to the last mask.
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

/// All forms of all secrets, and what is needed to find them fast: windows of eight bytes, compared from their end and
/// skipped as far as no form can begin (Wu and Manber, "A fast algorithm for multi-pattern searching", 1994).
#[derive(Default)]
struct Patterns {
    /// Without repetitions; no form is shorter than a window.
    sorted: Vec<Vec<u8>>,
    longest: usize,
    /// For each two bytes: how far a window that ends with them can move before its last two could be those of the
    /// first eight bytes of a form.
    shift: Vec<u8>,
    /// The forms that begin with these eight bytes: a range of `sorted`.
    by_window: HashMap<[u8; WINDOW], (usize, usize)>,
    /// Which bytes begin a form.
    first: Vec<bool>,
}

/// The bytes that are looked at in one go: as many as the shortest form has.
const WINDOW: usize = SECRET_BYTES_MIN;

/// How far a window moves when its last two bytes are in no form's first eight.
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

    /// Finds the first place from `from` on where a form is, and the longest form there, as start and end.
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

    /// Returns the length of the longest form that `bytes`, at least a window long, begin with.
    fn longest_at(&self, bytes: &[u8]) -> Option<usize> {
        let window: &[u8; WINDOW] = bytes.first_chunk()?;
        let (first, end) = *self.by_window.get(window)?;
        let forms = self.sorted[first..end].iter();
        forms.filter(|form| bytes.starts_with(form)).map(Vec::len).max()
    }

    /// Returns the length of the longest end of `buffer` that a form begins with, but is not all of that form.
    fn open_end(&self, buffer: &[u8]) -> usize {
        let begin = buffer.len().saturating_sub(self.longest - 1);
        let open = (begin..buffer.len()).find(|start| {
            let end = &buffer[*start..];
            // The forms that begin with `end` follow it in the order; the one equal to it is not open.
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
