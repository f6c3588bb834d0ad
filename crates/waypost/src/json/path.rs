//! Paths of values in a state, as errors and differences name them.
//!
//! A path has two notations: `steps[3].price` for people, and the JSON pointer (RFC 6901) `/steps/3/price`
//! for programs. This module writes paths, and reads a path off an unfinished JSON text; it does not know
//! what a state is.

use std::fmt::{self, Write as _};

use serde::{Serialize, Serializer};

/// Longest displayed key; longer keys are clipped, as keys are arbitrary text.
const KEY_CHARS_SHOWN_MAX: usize = 80;
/// Most displayed parts: a longer path shows its beginning and end.
const SEGMENTS_SHOWN_MAX: usize = 24;

/// The path from the root of a state to a value.
///
/// `Display` is for people and clips long parts. [`FieldPath::pointer`], also the serialised form, is exact.
///
/// ```
/// use waypost::path::{FieldPath, Segment};
///
/// let path = FieldPath::from([Segment::from("steps"), Segment::from(3), Segment::from("net price")]);
/// assert_eq!(path.to_string(), r#"steps[3]["net price"]"#);
/// assert_eq!(path.pointer(), "/steps/3/net price");
/// assert_eq!(FieldPath::default().to_string(), "the state");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(Vec<Segment>);

/// A part of a [`FieldPath`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Segment {
    /// A member of an object.
    Key(String),
    /// An element of an array, counted from 0.
    Index(usize),
}

impl From<&str> for Segment {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for Segment {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

impl<T: Into<Vec<Segment>>> From<T> for FieldPath {
    fn from(segments: T) -> Self {
        Self(segments.into())
    }
}

impl FieldPath {
    /// Returns the parts from the root; empty for the root itself.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Appends a part.
    pub fn push(&mut self, segment: impl Into<Segment>) {
        self.0.push(segment.into());
    }

    /// Removes the last part; the root stays the root.
    pub fn pop(&mut self) {
        self.0.pop();
    }

    /// Returns the path as a JSON pointer; empty for the root.
    ///
    /// # Source
    /// RFC 6901, section 3.
    pub fn pointer(&self) -> String {
        let mut text = String::new();
        for segment in &self.0 {
            text.push('/');
            match segment {
                Segment::Key(key) => text.push_str(&key.replace('~', "~0").replace('/', "~1")),
                Segment::Index(index) => write!(text, "{index}").expect("a String takes all"),
            }
        }
        text
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("the state");
        }
        let hidden = match self.0.len().checked_sub(SEGMENTS_SHOWN_MAX) {
            Some(more) => SEGMENTS_SHOWN_MAX / 2..SEGMENTS_SHOWN_MAX / 2 + more,
            None => 0..0,
        };
        for (place, segment) in self.0.iter().enumerate() {
            match segment {
                _ if hidden.contains(&place) => {
                    f.write_str(if place == hidden.start { "…" } else { "" })?
                }
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) if is_plain(key) && place == 0 => f.write_str(key)?,
                Segment::Key(key) if is_plain(key) => write!(f, ".{key}")?,
                Segment::Key(key) => write!(f, "[{}]", quoted(key))?,
            }
        }
        Ok(())
    }
}

impl Serialize for FieldPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.pointer())
    }
}

/// Returns whether a key is unambiguous between dots.
fn is_plain(key: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    key.len() <= KEY_CHARS_SHOWN_MAX
        && key.bytes().next().is_some_and(letter)
        && key.bytes().all(|byte| letter(byte) || byte.is_ascii_digit() || byte == b'-')
}

/// Returns the key as a JSON string, clipped.
pub(crate) fn quoted(key: &str) -> String {
    let mut shown: String = key.chars().take(KEY_CHARS_SHOWN_MAX).collect();
    if shown.len() < key.len() {
        shown.push('…');
    }
    serde_json::to_string(&shown).expect("text has JSON")
}

/// An object or array that is not closed yet.
struct Open {
    /// The key or index of the newest value; `None` in an object before its first key.
    at: Option<Segment>,
    /// The newest value is complete, or the container is empty.
    whole: bool,
}

/// Returns the path of the value being written at the end of an unfinished JSON text.
///
/// The text is the beginning of a valid text. If the newest value of a container is complete, the path is the
/// container's.
pub(crate) fn unfinished(text: &[u8]) -> FieldPath {
    let mut open: Vec<Open> = Vec::new();
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let mut end = at + 1;
        match byte {
            b'{' => open.push(Open { at: None, whole: true }),
            b'[' => open.push(Open { at: Some(Segment::Index(0)), whole: false }),
            b'}' | b']' => {
                open.pop();
                complete(&mut open);
            }
            b',' => next(&mut open),
            b':' => open.iter_mut().last().into_iter().for_each(|last| last.whole = false),
            b'"' => {
                let Some(close) = end_of_string(text, at) else { break };
                end = close;
                match open.last_mut() {
                    Some(last) if last.at.is_none() => last.at = key(&text[at..end]),
                    _ => complete(&mut open),
                }
            }
            _ if byte.is_ascii_whitespace() => {}
            _ => {
                let mark = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
                end = text[at..].iter().position(mark).map_or(text.len(), |length| at + length);
                complete(&mut open);
            }
        }
        at = end;
    }
    if open.last().is_some_and(|last| last.whole) {
        // The newest value is complete, so the path ends at the container.
        open.iter_mut().last().into_iter().for_each(|last| last.at = None);
    }
    FieldPath(open.into_iter().filter_map(|open| open.at).collect())
}

fn complete(open: &mut [Open]) {
    if let Some(last) = open.last_mut() {
        last.whole = true;
    }
}

/// Handles the comma between two values.
fn next(open: &mut [Open]) {
    let Some(last) = open.last_mut() else { return };
    match &mut last.at {
        Some(Segment::Index(index)) => {
            *index += 1;
            last.whole = false;
        }
        at => *at = None,
    }
}

fn key(text: &[u8]) -> Option<Segment> {
    serde_json::from_slice(text).ok().map(Segment::Key)
}

/// Returns the offset after the string that begins at `begin`, if the string ends.
fn end_of_string(text: &[u8], begin: usize) -> Option<usize> {
    let mut at = begin + 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_shows_its_begin_and_its_end() {
        let path =
            |length: usize| FieldPath::from((0..length).map(Segment::from).collect::<Vec<_>>()).to_string();

        assert_eq!(path(24), (0..24).map(|index| format!("[{index}]")).collect::<String>());
        assert!(path(100).contains("[10][11]…[88][89]"), "{}", path(100));
    }

    #[test]
    fn an_unfinished_text_names_the_value_that_was_being_written() {
        let cases = [
            ("", ""),
            ("[", "/0"),
            ("[1,", "/1"),
            ("[1", ""),
            ("{", ""),
            (r#"{"a":"#, "/a"),
            (r#"{"a":1"#, ""),
            (r#"{"a":1,"#, ""),
            (r#"{"a":1,"b"#, ""),
            (r#"{"a":[{"b":[[],"#, "/a/0/b/1"),
            (r#"{"a":"}]\"","b\"c":["#, "/b\"c/0"),
            (r#"{"a":"not ended"#, "/a"),
            (r#"{"a":"not ended \"#, "/a"),
            (r#"{"a":{"b":null},"c":-1.5e3,"d":true,"e/~":"#, "/e~1~0"),
        ];

        for (text, pointer) in cases {
            assert_eq!(unfinished(text.as_bytes()).pointer(), pointer, "{text}");
        }
    }
}
