//! The live region of a terminal: a few lines below the scrolling text, redrawn in place.
//!
//! Every line ends before the last columns, and the cursor stays at the end of the last line. The terminal's
//! own output, the echo of a Ctrl-C, then starts no new line that nothing would remove. Libraries for
//! progress bars fill their lines up to the edge, and are therefore not used.

use std::fmt::Write as _;
use std::io::{self, Write as _};

/// Columns of the echo of a Ctrl-C, `^C`, plus a spare column, to keep the echo within the line.
pub(super) const ECHO_COLUMNS: usize = 3;
/// The assumed width of a terminal of unknown size.
const COLUMNS_ASSUMED: usize = 80;

/// The lines on the screen.
#[derive(Debug, Default)]
pub(super) struct Region {
    drawn: usize,
}

impl Region {
    /// Returns the longest allowed line.
    pub(super) fn columns() -> usize {
        super::columns_of(&io::stderr()).unwrap_or(COLUMNS_ASSUMED).saturating_sub(ECHO_COLUMNS).max(1)
    }

    /// Draws `lines` in place of the previous lines, after the permanent, possibly empty text `above`.
    pub(super) fn draw(&mut self, above: &str, lines: &[String]) {
        let text = self.redrawn(above, lines, Self::columns());
        let mut stderr = io::stderr().lock();
        // The terminal is gone.
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }

    fn redrawn(&mut self, above: &str, lines: &[String], columns: usize) -> String {
        let mut text = String::new();
        if self.drawn > 0 {
            text.push('\r');
            text.push_str(&"\x1b[1A".repeat(self.drawn - 1));
            // Clears all lines below, and the echo at the end.
            text.push_str("\x1b[J");
        }
        for line in above.lines() {
            let _ = writeln!(text, "{line}");
        }
        for (index, line) in lines.iter().enumerate() {
            let end = if index > 0 { "\n" } else { "" };
            let _ = write!(text, "{end}{}", line.chars().take(columns).collect::<String>());
        }
        self.drawn = lines.len();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Region;

    #[test]
    fn lines_end_before_the_edge_and_are_taken_away_whole() {
        let mut region = Region::default();
        let lines = ["| build 3s".to_owned(), "1/3 steps; Ctrl-C stops, resumable".to_owned()];

        let first = region.redrawn("", &lines, 17);
        let second = region.redrawn("done build", &lines[1..], 17);
        let last = region.redrawn("", &[], 17);

        assert_eq!(first, "| build 3s\n1/3 steps; Ctrl-C");
        assert_eq!(second, "\r\x1b[1A\x1b[Jdone build\n1/3 steps; Ctrl-C");
        assert_eq!(last, "\r\x1b[J");
        assert_eq!(region.redrawn("", &[], 17), "", "nothing is there any more");
    }
}
