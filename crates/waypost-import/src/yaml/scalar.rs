//! Scalars of YAML, and texts with a meaning for the converted file.

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
