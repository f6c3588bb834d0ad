//! Parts of HTML pages.

use std::fmt::Write as _;

/// Most rows of an unfolded list: the height of a phone.
const ROWS_OPEN_MAX: usize = 20;

/// Escapes text for HTML and its attributes, and removes bidirectional marks.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(c),
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                escaped.push('\u{fffd}')
            }
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Opens a list of rows, folded if it is long.
pub(crate) fn folded(text: &mut String, rows: usize, what: &str) {
    let open = if rows > ROWS_OPEN_MAX { "" } else { " open" };
    let _ = writeln!(text, "<details{open}><summary>{rows} {what}</summary>");
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn what_comes_from_a_run_is_no_markup() {
        assert_eq!(
            escaped("<script>\"x\" & 'y'</script>\u{1b}[2J\u{202e}"),
            "&lt;script&gt;&quot;x&quot; &amp; &#39;y&#39;&lt;/script&gt;\u{fffd}[2J\u{fffd}"
        );
    }
}
