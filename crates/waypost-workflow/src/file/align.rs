//! Maps a range of a value to its range in the file.
//!
//! YAML folds lines, drops indentation and has escapes, so an offset in a value is not an offset in the file.
//! Value and source text are walked in parallel. Equal letters advance both sides; white space on one side
//! only, and escape marks, are skipped. On any other difference the result is `None`, and the caller reports
//! the whole value.

use std::ops::Range;

/// Position in a value and in its source text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Walk {
    /// Byte offset in the value.
    pub(super) text_at: usize,
    /// Byte offset in the source text.
    raw_at: usize,
}

impl Walk {
    /// Returns the position at the start of a value with source text `raw`.
    pub(super) fn new(raw: &str) -> Self {
        Self { text_at: 0, raw_at: usize::from(raw.starts_with(['"', '\''])) }
    }

    /// Returns the range in `raw` of bytes `range` of `text`; advances to the start of the range.
    pub(super) fn find(&mut self, raw: &str, text: &str, range: &Range<usize>) -> Option<Range<usize>> {
        self.go_to(raw, text, range.start)?;
        let first = text.get(range.start..)?.chars().next();
        let start = first.map_or(Some(self.raw_at), |letter| place_of(raw, self.raw_at, letter))?;
        let mut end = self.clone();
        end.go_to(raw, text, range.end)?;
        Some(start..end.raw_at.max(start))
    }

    fn go_to(&mut self, raw: &str, text: &str, target: usize) -> Option<()> {
        for letter in text.get(self.text_at..target)?.chars() {
            let found = place_of(raw, self.raw_at, letter)?;
            let is_there = raw[found..].starts_with(letter);
            // Folded white space: the source position stays.
            self.raw_at = if is_there { found + letter.len_utf8() } else { found };
            self.text_at += letter.len_utf8();
        }
        Some(())
    }
}

/// Returns the offset of `letter` in `raw` from `at` on. For white space without a match, the offset where it
/// would be.
fn place_of(raw: &str, at: usize, letter: char) -> Option<usize> {
    let mut found = at;
    for next in raw[at..].chars() {
        if next == letter || (letter.is_whitespace() && !next.is_whitespace()) {
            return Some(found);
        }
        let is_passed_over = next.is_whitespace() || matches!(next, '\\' | '\'');
        if !is_passed_over {
            return None;
        }
        found += next.len_utf8();
    }
    letter.is_whitespace().then_some(found)
}
