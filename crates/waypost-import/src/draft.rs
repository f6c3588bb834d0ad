//! Step ids and YAML values for the workflow file under construction.

use std::collections::{BTreeMap, BTreeSet};

/// The longest id of a step, without a number at the end.
const ID_CHARACTERS_MAX: usize = 40;
/// The delimiter of a value in the file of outputs.
pub(crate) const END: &str = "WAYPOST_END_OF_VALUE";

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

/// Returns a text as a YAML scalar.
pub(crate) fn scalar(text: &str) -> String {
    // JSON strings are valid YAML strings.
    serde_json::Value::from(text).to_string()
}

/// Escapes `${{` in a text, so that no expression begins.
pub(crate) fn literal(text: &str) -> String {
    text.replace("${{", "${{ '${{' }}")
}

/// Returns true if a YAML block preserves the text.
pub(crate) fn fits_block(text: &str) -> bool {
    let odd = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
    };
    !text.contains(odd) && !text.trim().is_empty()
}

/// Returns a text for a comment, without control characters.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns true if a text is a valid name of a shell variable.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
