//! The live region of a terminal: a few lines below the scrolling text, redrawn in place.
//!
//! Every line ends before the last columns, and the cursor stays at the end of the last line. The terminal's
//! own output, the echo of a Ctrl-C, then starts no new line that nothing would remove. Libraries for
//! progress bars fill their lines up to the edge, and are therefore not used.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Columns of the echo of a Ctrl-C, `^C`, plus a spare column, to keep the echo within the line.
pub(super) const ECHO_COLUMNS: usize = 3;
/// The assumed columns and rows of a terminal of unknown size.
const SIZE_ASSUMED: (usize, usize) = (80, 24);

/// The lines on the screen.
#[derive(Debug, Default)]
pub(super) struct Region {
    /// The columns of each drawn line.
    drawn: Vec<usize>,
}

/// The size of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    columns: usize,
    rows: usize,
}

impl Size {
    /// Returns the present size of the terminal on stderr.
    pub(super) fn now() -> Self {
        let (columns, rows) = crate::format::terminal::size_of(&io::stderr()).unwrap_or(SIZE_ASSUMED);
        Self { columns, rows }
    }

    /// Returns the longest allowed line.
    pub(super) fn line_columns(self) -> usize {
        self.columns.saturating_sub(ECHO_COLUMNS).max(1)
    }

    /// Returns the number of lines in a region that leaves a line of the scrolling text visible.
    pub(super) fn lines(self) -> usize {
        self.rows.saturating_sub(1).max(1)
    }
}

impl Region {
    /// Draws `lines` in place of the previous lines, after the permanent, possibly empty text `above`.
    pub(super) fn draw(&mut self, above: &str, lines: &[String]) {
        let text = self.redrawn(above, lines, Size::now());
        let mut stderr = io::stderr().lock();
        // The terminal is gone.
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }

    fn redrawn(&mut self, above: &str, lines: &[String], size: Size) -> String {
        let mut text = String::new();
        if !self.drawn.is_empty() {
            text.push('\r');
            // A terminal that became narrower has wrapped the drawn lines.
            let rows: usize = self.drawn.iter().map(|line| line.div_ceil(size.columns).max(1)).sum();
            text.push_str(&"\x1b[1A".repeat(rows - 1));
            // Clears all lines below, and the echo at the end.
            text.push_str("\x1b[J");
        }
        for line in above.lines() {
            let _ = writeln!(text, "{line}");
        }
        self.drawn.clear();
        for (index, line) in lines.iter().enumerate() {
            let line = cut(line, size.line_columns());
            let end = if index > 0 { "\n" } else { "" };
            let _ = write!(text, "{end}{line}");
            self.drawn.push(line.width());
        }
        text
    }
}

/// Returns the beginning of a line that fits into columns.
pub(crate) fn cut(line: &str, columns: usize) -> &str {
    let mut used = 0;
    for (at, c) in line.char_indices() {
        used += c.width().unwrap_or_default();
        if used > columns {
            return &line[..at];
        }
    }
    line
}

/// Returns whether a line fits into columns.
pub(super) fn fits(line: &str, columns: usize) -> bool {
    line.width() <= columns
}

/// Returns the end of a line that fits into columns.
fn cut_left(line: &str, columns: usize) -> &str {
    let mut used = 0;
    for (at, c) in line.char_indices().rev() {
        used += c.width().unwrap_or_default();
        if used > columns {
            return &line[at + c.len_utf8()..];
        }
    }
    line
}

/// Returns a name between `before` and `rest`. Of a name that leaves no room for the rest, the end stays: the last part of a
/// path.
pub(super) fn fitted(before: &str, name: &str, rest: &str, columns: usize) -> String {
    let room = columns.saturating_sub(before.width() + rest.width());
    if fits(name, room) {
        return format!("{before}{name}{rest}");
    }
    format!("{before}\u{2026}{}{rest}", cut_left(name, room.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::{Region, Size, cut, fitted};

    const SIZE: Size = Size { columns: 20, rows: 24 };

    #[test]
    fn lines_end_before_the_edge_and_are_taken_away_whole() {
        let mut region = Region::default();
        let lines = ["| build 3s".to_owned(), "1/3 steps; Ctrl-C stops, resumable".to_owned()];

        let first = region.redrawn("", &lines, SIZE);
        let second = region.redrawn("done build", &lines[1..], SIZE);
        let last = region.redrawn("", &[], SIZE);

        assert_eq!(first, "| build 3s\n1/3 steps; Ctrl-C");
        assert_eq!(second, "\r\x1b[1A\x1b[Jdone build\n1/3 steps; Ctrl-C");
        assert_eq!(last, "\r\x1b[J");
        assert_eq!(region.redrawn("", &[], SIZE), "", "nothing is there any more");
    }

    #[test]
    fn lines_wrapped_by_a_narrower_terminal_are_taken_away_whole() {
        let mut region = Region::default();
        region.redrawn("", &["0123456789".to_owned(), "0123456789".to_owned()], SIZE);

        let narrow = region.redrawn("", &["0123456789".to_owned()], Size { columns: 6, ..SIZE });

        assert_eq!(narrow, "\r\x1b[1A\x1b[1A\x1b[1A\x1b[J012");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(cut("\u{65e5}\u{672c}\u{8a9e}", 5), "\u{65e5}\u{672c}");
        assert_eq!(cut("e\u{301}a\u{301}", 1), "e\u{301}");
        assert_eq!(fitted("", "build", " 3s", 8), "build 3s");
        assert_eq!(fitted("", "\u{65e5}\u{672c}\u{8a9e}", " 3s", 8), "\u{2026}\u{672c}\u{8a9e} 3s");
        assert_eq!(fitted("| ", "each:a/build", " 3s", 12), "| \u{2026}/build 3s");
    }
}
