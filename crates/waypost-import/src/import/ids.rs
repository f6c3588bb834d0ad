//! Unique ids for the steps of the converted file.

use std::collections::{BTreeMap, BTreeSet};

/// The longest id of a step, without a number at the end.
const ID_CHARACTERS_MAX: usize = 40;

/// Unique ids of steps.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    given: BTreeSet<String>,
    /// The highest number at the end of an id, by word.
    counts: BTreeMap<String, usize>,
}

impl Ids {
    /// Returns a new id derived from a word, or from the line number if the word has no letters.
    pub(crate) fn take(&mut self, word: &str, line: usize) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let slug: String = word.chars().map(plain).take(ID_CHARACTERS_MAX).collect();
        // Expressions read two hyphens in a row as an operator.
        let slug = slug.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-");
        let is_word = matches!(slug.to_ascii_lowercase().as_str(), "true" | "false" | "null");
        let is_sound = slug.starts_with(|c: char| c.is_ascii_alphabetic()) && !is_word;
        let base = if is_sound { slug } else { format!("line-{line}") };
        let mut id = base.clone();
        let count = self.counts.entry(base.clone()).or_insert(1);
        while !self.given.insert(id.clone()) {
            *count += 1;
            id = format!("{base}-{count}");
        }
        id
    }
}
