//! Positions and quotes of variables in a shell command.
//!
//! Prodigy pastes values into the text of a command. A converted command reads shell variables instead, and the
//! quotes around a variable decide its spelling. Unknown syntax counts as unquoted.

use std::ops::Range;

/// The quotes around a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// No quotes.
    Bare,
    Double,
    Single,
    /// A here-document or an arithmetic expression: variables are expanded, quotes are text.
    Inner,
    /// A quoted here-document: variables are text.
    Verbatim,
}

/// A variable in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) range: Range<usize>,
    /// The text after `$`, without braces.
    pub(crate) inner: String,
    pub(crate) place: Place,
}

/// Finds the variables of a shell command.
pub(crate) fn in_command(command: &str) -> Vec<Found> {
    let mut found = Vec::new();
    scan(command, 0..command.len(), Level::Command, &mut found);
    found
}

/// Finds the variables of a text other than a command.
pub(crate) fn in_text(text: &str) -> Vec<Found> {
    let mut found = Vec::new();
    plain(text, 0..text.len(), Place::Bare, &mut found);
    found
}

/// The construct around the position of the scanner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Command,
    /// `$( )`, `( )`: a command that ends at a parenthesis.
    Parenthesis,
    Backtick,
    Double,
    Arithmetic,
    Here,
}

impl Level {
    fn is_command(self) -> bool {
        matches!(self, Self::Command | Self::Parenthesis | Self::Backtick)
    }

    fn place(self) -> Place {
        match self {
            Self::Double => Place::Double,
            Self::Arithmetic | Self::Here => Place::Inner,
            _ => Place::Bare,
        }
    }
}

/// A here-document that begins on the next line.
struct Pending {
    end: String,
    strips_tabs: bool,
    is_quoted: bool,
}

fn scan(text: &str, range: Range<usize>, base: Level, found: &mut Vec<Found>) {
    let bytes = text.as_bytes();
    let mut levels = vec![base];
    let mut pending: Vec<Pending> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let level = levels.last().copied().unwrap_or(base);
        let rest = &bytes[at..range.end];
        match rest[0] {
            b'\\' => at += 2,
            b'\'' if level.is_command() => {
                let begin = at + 1;
                let end = text[begin..range.end].find('\'').map_or(range.end, |end| begin + end);
                plain(text, begin..end, Place::Single, found);
                at = end + 1;
            }
            b'"' if level == Level::Double => {
                levels.pop();
                at += 1;
            }
            b'"' if level.is_command() => {
                levels.push(Level::Double);
                at += 1;
            }
            b'`' if level == Level::Backtick => {
                levels.pop();
                at += 1;
            }
            b'`' => {
                levels.push(Level::Backtick);
                at += 1;
            }
            b'$' if rest.starts_with(b"$((") => {
                levels.push(Level::Arithmetic);
                at += 3;
            }
            b'$' if rest.starts_with(b"$(") => {
                levels.push(Level::Parenthesis);
                at += 2;
            }
            b'$' => match variable(text, at, range.end) {
                Some((end, inner)) => {
                    found.push(Found { range: at..end, inner, place: level.place() });
                    at = end;
                }
                None => at += 1,
            },
            b'(' if level.is_command() => {
                levels.push(Level::Parenthesis);
                at += 1;
            }
            b')' if level == Level::Parenthesis => {
                levels.pop();
                at += 1;
            }
            b')' if level == Level::Arithmetic && rest.starts_with(b"))") => {
                levels.pop();
                at += 2;
            }
            b'#' if level.is_command() && (at == range.start || bytes[at - 1].is_ascii_whitespace()) => {
                at = text[at..range.end].find('\n').map_or(range.end, |end| at + end);
            }
            // A here-string: an ordinary word follows.
            b'<' if level.is_command() && rest.starts_with(b"<<<") => at += 3,
            b'<' if level.is_command() && rest.starts_with(b"<<") => {
                let (next, document) = here(text, at + 2, range.end);
                pending.extend(document);
                at = next;
            }
            b'\n' if level.is_command() && !pending.is_empty() => {
                at += 1;
                for document in pending.drain(..) {
                    at = body(text, at..range.end, &document, found);
                }
            }
            _ => at += 1,
        }
    }
}

/// Reads the delimiter of a here-document, from the position after `<<`.
fn here(text: &str, begin: usize, end: usize) -> (usize, Option<Pending>) {
    let rest = &text[begin..end];
    let strips_tabs = rest.starts_with('-');
    let word = rest.trim_start_matches('-').trim_start_matches([' ', '\t']);
    let from = end - word.len();
    let is_end = |c: char| c.is_whitespace() || matches!(c, ';' | '|' | '&' | '<' | '>' | '(' | ')');
    let length = word.find(is_end).unwrap_or(word.len());
    let word = &word[..length];
    let is_quoted = word.contains(['\'', '"', '\\']);
    let name: String = word.chars().filter(|c| !matches!(c, '\'' | '"' | '\\')).collect();
    let document = (!name.is_empty()).then_some(Pending { end: name, strips_tabs, is_quoted });
    (from + length, document)
}

/// Finds the variables in a here-document, and returns the position after the here-document.
fn body(text: &str, range: Range<usize>, document: &Pending, found: &mut Vec<Found>) -> usize {
    let mut at = range.start;
    let mut next = range.end;
    for line in text[range.clone()].split_inclusive('\n') {
        let bare = line.trim_end_matches('\n');
        let bare = if document.strips_tabs { bare.trim_start_matches('\t') } else { bare };
        if bare == document.end {
            next = at + line.len();
            break;
        }
        at += line.len();
    }
    match document.is_quoted {
        true => plain(text, range.start..at, Place::Verbatim, found),
        false => scan(text, range.start..at, Level::Here, found),
    }
    next
}

fn plain(text: &str, range: Range<usize>, place: Place, found: &mut Vec<Found>) {
    let mut at = range.start;
    while let Some(next) = text[at..range.end].find('$') {
        at += next;
        match variable(text, at, range.end) {
            Some((end, inner)) => {
                found.push(Found { range: at..end, inner, place });
                at = end;
            }
            None => at += 1,
        }
    }
}

/// Reads the variable at the `$` at `at`; returns the end and the text of the variable.
fn variable(text: &str, at: usize, end: usize) -> Option<(usize, String)> {
    let rest = &text[at + 1..end];
    if let Some(inner) = rest.strip_prefix('{') {
        // `${{` is not a variable of Prodigy.
        let length = inner.find('}').filter(|_| !inner.starts_with('{'))?;
        return (length > 0).then(|| (at + 2 + length + 1, inner[..length].to_owned()));
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    let name = &rest[..length];
    (!name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()))
        .then(|| (at + 1 + length, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(command: &str) -> Vec<(String, Place)> {
        in_command(command).into_iter().map(|found| (found.inner, found.place)).collect()
    }

    #[test]
    fn the_place_of_a_variable_is_known_by_its_quotes() {
        let command = r#"a ${a} "${b} $(f '${c}' ${d} "$e")" '${g}' # it's ${none}
x=$((${h} + 1)) \${i} `$j`; cat <<E <<'F' | sort ${k}
l ${l} "${m}" $(f ${n})
E
${o} 'x
F
echo ${p}"#;
        let expect = [
            ("a", Place::Bare),
            ("b", Place::Double),
            ("c", Place::Single),
            ("d", Place::Bare),
            ("e", Place::Double),
            ("g", Place::Single),
            ("h", Place::Inner),
            ("j", Place::Bare),
            ("k", Place::Bare),
            ("l", Place::Inner),
            ("m", Place::Inner),
            ("n", Place::Bare),
            ("o", Place::Verbatim),
            ("p", Place::Bare),
        ];
        assert_eq!(places(command), expect.map(|(name, place)| (name.to_owned(), place)));
    }

    #[test]
    fn a_here_string_is_no_here_document() {
        let command = "cat <<< \"${a}\" <<<${b} <<<'${c}'; cat <<E <<<$d\n${e}\nE\necho \"${f}\"";
        let expect = [
            ("a", Place::Double),
            ("b", Place::Bare),
            ("c", Place::Single),
            ("d", Place::Bare),
            ("e", Place::Inner),
            ("f", Place::Double),
        ];
        assert_eq!(places(command), expect.map(|(name, place)| (name.to_owned(), place)));
    }

    #[test]
    fn what_has_no_end_and_what_is_no_name_stays() {
        assert_eq!(places("${a"), []);
        assert_eq!(places("$1 ${} $ $(x) ${{ y }}"), []);
        assert_eq!(places("'${a}"), [("a".to_owned(), Place::Single)]);
        assert_eq!(places("cat <<E\n${a}"), [("a".to_owned(), Place::Inner)]);
        assert_eq!(places("ü${ä}\\"), [("ä".to_owned(), Place::Bare)]);
    }
}
