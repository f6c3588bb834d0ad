//! Text in lines that fit a terminal.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

/// Columns of indent of a continued line, beyond the indent of the line.
const CONTINUED_COLUMNS: usize = 2;

/// Wraps lines at spaces. Words and commands stay whole, ready to copy. Command lines and lines of
/// a log, after `|`, are unchanged; the comment of a command moves to the line before.
pub(crate) fn fit(text: &str, columns: usize) -> String {
    let lines = text.split('\n').map(|line| match (width(line) <= columns, is_kept(line)) {
        (true, _) => line.to_owned(),
        (false, true) => above_command(line),
        (false, false) => fit_line(line, columns),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns a command with its comment on the line before; a line without a comment is unchanged.
fn above_command(line: &str) -> String {
    let command = line.trim_start();
    let indent = &line[..line.len() - command.len()];
    match command.split_once("  # ").filter(|_| command.starts_with("waypost ")) {
        Some((command, comment)) => format!("{indent}# {comment}\n{indent}{}", command.trim_end()),
        None => line.to_owned(),
    }
}

fn fit_line(line: &str, columns: usize) -> String {
    let indent = line.len() - line.trim_start().len();
    let continued = indent + CONTINUED_COLUMNS;
    let mut text = " ".repeat(indent);
    let mut column = indent;
    for unit in units(line.trim_start(), columns.saturating_sub(continued)) {
        let (gap, word) = unit.split_at(unit.len() - unit.trim_start_matches(' ').len());
        if column > continued && column + gap.len() + width(word) > columns {
            let _ = write!(text, "\n{:continued$}{word}", "");
            column = continued + width(word);
        } else {
            text.push_str(unit);
            column += gap.len() + width(word);
        }
    }
    text
}

/// Splits a line into words with the spaces before; a command between backticks is one word if it fits `columns`.
fn units(line: &str, columns: usize) -> Vec<&str> {
    let (mut units, mut start, mut quoted, mut in_word) = (Vec::new(), 0, false, false);
    let command = line.find(": waypost ").map(|at| at + 1);
    for (at, c) in line.char_indices() {
        if Some(at) == command {
            units.extend((start < at).then(|| &line[start..at]));
            start = at;
            break;
        }
        if c == '`' {
            let end = line[at + 1..].find('`').map(|length| at + length + 2);
            quoted = !quoted && end.is_some_and(|end| line[at..end].width() <= columns);
        }
        if c == ' ' && in_word && !quoted {
            units.push(&line[start..at]);
            start = at;
        }
        in_word = c != ' ' || quoted;
    }
    units.push(&line[start..]);
    units
}

/// Returns whether a line is of a log, or a command.
fn is_kept(line: &str) -> bool {
    ["| ", "waypost "].iter().any(|start| plain(line).trim_start().starts_with(start))
}

/// Returns the columns of a text; styles have none.
fn width(text: &str) -> usize {
    plain(text).width()
}

/// Returns a text without styles.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| plain.push_str(part.split_once('m').map_or(part, |(_, rest)| rest)));
    plain
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn lines_break_at_spaces_and_keep_commands_whole() {
        assert_eq!(
            fit("hint: `waypost show` lists the steps", 24),
            "hint: `waypost show`\n  lists the steps"
        );
        assert_eq!(fit("omit it: `waypost resume r --all`", 30), "omit it:\n  `waypost resume r --all`");
        assert_eq!(
            fit("  cause: it is a/very/long/path/name", 20),
            "  cause: it is\n    a/very/long/path/name"
        );
        assert_eq!(fit("\u{1b}[31merror:\u{1b}[0m it failed", 16), "\u{1b}[31merror:\u{1b}[0m it failed");
        assert_eq!(fit("  | a line of a log\nshort", 9), "  | a line of a log\nshort");
        assert_eq!(
            fit("To resume it: waypost resume r --from a", 16),
            "To resume it:\n  waypost resume r --from a"
        );
        assert_eq!(fit("  waypost resume r  # run it", 20), "  # run it\n  waypost resume r");
        assert_eq!(fit("time  @1         name of it", 22), "time  @1         name\n  of it");
    }
}
