//! Path patterns: syntax and matching.
//!
//! `*` matches any part of a name, `?` a letter, and `**` any folders. `[*]`, `[?]` and `[[]` are the literal
//! characters, so that every name can be written.

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

/// Escapes of special characters.
const WRITTEN: [(&str, u8); 3] = [("[*]", b'*'), ("[?]", b'?'), ("[[]", b'[')];

/// A piece of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// Any part of a name.
    Any,
    /// A single letter.
    Letter,
    /// A literal byte.
    Byte(u8),
}

fn pieces(text: &str) -> impl Iterator<Item = (usize, Piece)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = &text.as_bytes()[at..];
        let written = WRITTEN.iter().find(|(written, _)| rest.starts_with(written.as_bytes()));
        let (length, piece) = match (written, rest.first()?) {
            (Some((written, sign)), _) => (written.len(), Piece::Byte(*sign)),
            (None, b'*') => (1, Piece::Any),
            (None, b'?') => (1, Piece::Letter),
            (None, byte) => (1, Piece::Byte(*byte)),
        };
        at += length;
        Some((at - length, piece))
    })
}

/// Returns the offset of the first wildcard.
fn first_sign(text: &str) -> Option<usize> {
    pieces(text).find(|(_, piece)| !matches!(piece, Piece::Byte(_))).map(|(at, _)| at)
}

/// Returns whether a subject is a pattern: `*` and `?` match within a name, `**` matches any folders; `[*]`
/// is a literal.
pub fn is_pattern(subject: &str) -> bool {
    first_sign(subject).is_some()
}

/// Escapes a path as a subject that means exactly this path.
pub fn literal_path(path: &str) -> Cow<'_, str> {
    if !path.contains(['*', '?', '[']) {
        return Cow::Borrowed(path);
    }
    let mut written = String::with_capacity(path.len());
    for (at, letter) in path.char_indices() {
        let rest = &path[at + letter.len_utf8()..];
        match letter {
            '*' => written.push_str("[*]"),
            '?' => written.push_str("[?]"),
            // Most brackets need no escape: `a[1]` stays as is.
            '[' if rest.is_empty() || rest.starts_with('[') => written.push_str("[[]"),
            other => written.push(other),
        }
    }
    Cow::Owned(written)
}

/// Returns the path of a subject that is not a pattern, without escapes.
pub fn named_by(subject: &str) -> Cow<'_, str> {
    if !WRITTEN.iter().any(|(written, _)| subject.contains(written)) {
        return Cow::Borrowed(subject);
    }
    let bytes = pieces(subject).map(|(_, piece)| match piece {
        Piece::Any => b'*',
        Piece::Letter => b'?',
        Piece::Byte(byte) => byte,
    });
    Cow::Owned(String::from_utf8(bytes.collect()).expect("only ASCII was replaced"))
}

/// Most parts of a pattern. Paths are hardly longer, and each `**` may search the whole subtree again.
const PARTS_MAX: usize = 128;

/// Checks that a pattern has not too many parts; consecutive `**` count as one part.
///
/// # Errors
/// The pattern has too many parts.
pub fn check_pattern(subject: &str) -> Result<(), String> {
    let count = if is_pattern(subject) { parts_of(subject).len() } else { 0 };
    match count > PARTS_MAX {
        true => Err(format!("the pattern has {count} parts, the maximum is {PARTS_MAX}")),
        false => Ok(()),
    }
}

/// Returns the parts of a pattern, with consecutive `**` merged.
fn parts_of(pattern: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    parts.dedup_by(|one, other| *one == "**" && *other == "**");
    parts
}

/// Splits a pattern before the first part with a wildcard.
pub(super) fn split(pattern: &str) -> (&str, Vec<&str>) {
    let sign = first_sign(pattern).unwrap_or(pattern.len());
    let start = pattern[..sign].rfind('/').map_or(0, |slash| slash + 1);
    let literal = match &pattern[..start] {
        "" => ".",
        literal => literal,
    };
    (literal, parts_of(&pattern[start..]))
}

/// Returns whether a pattern matches a path, written as a subject, or a parent folder of the path.
pub fn reaches(pattern: &str, path: &str) -> bool {
    let parts = parts_of(pattern);
    let names: Vec<&str> = path.split('/').collect();
    // By offset into the names: whether the parts from `place` on match the names from there on. An empty
    // rest matches all.
    let mut reach = vec![true; names.len() + 1];
    for (place, part) in parts.iter().enumerate().rev() {
        let is_last = place + 1 == parts.len();
        let mut next = vec![false; names.len() + 1];
        for (at, name) in names.iter().enumerate().rev() {
            next[at] = match *part {
                "**" => is_last || reach[at] || next[at + 1],
                part => reach[at + 1] && fits(part, named_by(name).as_bytes()),
            };
        }
        reach = next;
    }
    reach[0]
}

/// Returns whether a name matches a part of a pattern. `?` matches a UTF-8 character, `*` any bytes.
pub(super) fn fits(pattern: &str, name: &[u8]) -> bool {
    let pattern: Vec<Piece> = pieces(pattern).map(|(_, piece)| piece).collect();
    if name.first() == Some(&b'.') && pattern.first() != Some(&Piece::Byte(b'.')) {
        return false;
    }
    let (mut at, mut next) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    let letter = |at: usize| 1 + name[at + 1..].iter().take_while(|byte| (**byte & 0xC0) == 0x80).count();
    while at < name.len() {
        match pattern.get(next) {
            Some(Piece::Any) => {
                star = Some((next, at));
                next += 1;
            }
            Some(Piece::Letter) => {
                at += letter(at);
                next += 1;
            }
            Some(Piece::Byte(byte)) if *byte == name[at] => {
                at += 1;
                next += 1;
            }
            _ => {
                let Some((before, from)) = star else { return false };
                star = Some((before, from + 1));
                (at, next) = (from + 1, before + 1);
            }
        }
    }
    pattern[next..].iter().all(|piece| *piece == Piece::Any)
}

/// Normalizes the spelling of a path: `./a//b` becomes `a/b`.
pub(crate) fn resolved(subject: &str) -> String {
    let parts: PathBuf = Path::new(subject).components().filter(|part| *part != Component::CurDir).collect();
    parts.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_can_be_written_and_means_only_itself() {
        let names = ["a", "*", "a?b", "[", "[*]", "[[]", "a[1]", "[[", "**", "[?", "?]", "ä*[", "x]"];
        for name in names {
            let written = literal_path(name);
            assert!(!is_pattern(&written), "{name} as {written}");
            assert_eq!(named_by(&written), name, "as {written}");
            for other in names {
                assert_eq!(fits(&written, other.as_bytes()), name == other, "{other} by {written}");
            }
        }
    }

    #[test]
    fn what_is_written_around_a_name_stays_a_pattern() {
        let pattern = format!("out/*-{}.csv", literal_path("a?["));
        assert!(is_pattern(&pattern));
        let (folder, parts) = split(&pattern);
        assert_eq!((folder, parts.len()), ("out/", 1));
        assert!(fits(parts[0], b"1-a?[.csv"));
        assert!(!fits(parts[0], b"1-ab[.csv"));
    }

    #[test]
    fn a_pattern_reaches_what_it_names_and_what_is_in_that() {
        for (pattern, path, reaches_it) in [
            ("out", "out/a", true),
            ("out/*", "out/a/b", true),
            ("out/*.csv", "out/a.txt", false),
            ("**/a", "x/y/a", true),
            ("**/a", "a", true),
            ("**/a/b", "x/a/c/a/b", true),
            ("**/a/b", "x/a/c", false),
            ("out/**", "out/a", true),
            ("out/**", "out", false),
            ("**/**/./**/a", "x/a", true),
            ("**", "a", true),
        ] {
            assert_eq!(reaches(pattern, path), reaches_it, "{pattern} and {path}");
        }
        let (pattern, path) = ("**/a/".repeat(60) + "zz", "a/".repeat(200) + "y");
        assert!(!reaches(&pattern, &path), "in no time that grows with each part");
    }

    #[test]
    fn adjacent_folder_wildcards_merge_and_long_patterns_fail() {
        assert_eq!(split(&("**/".repeat(9_000) + "x")).1, ["**", "x"]);
        assert!(check_pattern(&("**/".repeat(9_000) + "x")).is_ok());
        assert!(check_pattern(&("*/".repeat(128) + "x")).is_err());
        assert!(check_pattern(&"a/".repeat(500)).is_ok(), "a path has its own limit");
    }
}
