//! Finds a part of a value in the way the file writes it.
//!
//! YAML folds lines, drops indentation and has escapes, so a place in a value is not a place in the file.
//! The two are walked side by side: equal letters go together, white space that only one has is passed over,
//! and so are the marks of an escape. Where they part, there is no answer, and the caller names the value.

use std::ops::Range;

/// How far a value and its writing were walked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Walk {
    /// Byte of the value.
    pub(super) text_at: usize,
    /// Byte of its writing.
    raw_at: usize,
}

impl Walk {
    /// At the beginning of a value that is written as `raw`.
    pub(super) fn new(raw: &str) -> Self {
        Self { text_at: 0, raw_at: usize::from(raw.starts_with(['"', '\''])) }
    }

    /// Where bytes `range` of `text` are in `raw`; stops at their beginning.
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
            // White space that was folded away: the writing stays.
            self.raw_at = if is_there { found + letter.len_utf8() } else { found };
            self.text_at += letter.len_utf8();
        }
        Some(())
    }
}

/// Where `letter` of the value stands in `raw` from `at` on; where it would stand, if it is white space.
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
