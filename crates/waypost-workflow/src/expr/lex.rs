//! Splits an expression into tokens with places.
//!
//! The language is minijinja's, with additions known from GitHub: `&&`, `||`, `!` and `null`, and hyphens in
//! names after a dot. Knows spelling only; `rewrite` knows the meaning of tokens.

use std::ops::Range;

use super::SyntaxError;

/// Type of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Name, or a word such as `and`.
    Name,
    /// Number literal.
    Number,
    /// String literal, quotes included.
    Text,
    /// Operator or bracket.
    Mark,
}

/// Token of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: TokenKind,
    pub(crate) text: &'a str,
    pub(crate) range: Range<usize>,
}

impl Token<'_> {
    /// Returns whether the token is the mark or word `text`; false for a string literal.
    pub(crate) fn is(&self, text: &str) -> bool {
        self.kind != TokenKind::Text && self.text == text
    }

    /// Returns the content of a string literal without escapes.
    pub(crate) fn plain_text(&self) -> Option<&str> {
        (self.kind == TokenKind::Text && !self.text.contains('\\'))
            .then(|| &self.text[1..self.text.len() - 1])
    }
}

/// End of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// At the closing `}}`.
    Close,
    /// At the end of the text.
    End,
}

/// Marks of two characters, tried before marks of one character.
const MARKS_LONG: [&str; 9] = ["&&", "||", "==", "!=", "<=", ">=", "//", "**", "}}"];
/// Marks of one character.
const MARKS_SHORT: &str = "!<>+-*/%.,:~|=()[]{}";

/// Splits `source` from byte `start` on; returns the tokens and the end of the expression.
///
/// With [`Until::Close`] the end is the offset of the closing `}}`.
///
/// # Errors
/// The place of an unknown character, or of an unclosed string or `${{`.
pub(crate) fn lex(source: &str, start: usize, until: Until) -> Result<(Vec<Token<'_>>, usize), SyntaxError> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let mut depth = 0usize;
    let mut at = start;
    loop {
        let rest = &source[at..];
        let Some(first) = rest.chars().next() else { break };
        if first.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        if until == Until::Close && depth == 0 && rest.starts_with("}}") {
            return Ok((tokens, at));
        }
        let (kind, len) = match first {
            '"' | '\'' => (TokenKind::Text, text_len(rest, at)?),
            '0'..='9' => (TokenKind::Number, number_len(rest, at)?),
            'A'..='Z' | 'a'..='z' | '_' => (TokenKind::Name, name_len(rest, hyphens_belong(&tokens, at))),
            _ => (TokenKind::Mark, mark_len(rest, depth, at)?),
        };
        let token = Token { kind, text: &rest[..len], range: at..at + len };
        depth = depth_after(depth, &token);
        tokens.push(token);
        at += len;
    }
    match until {
        Until::End => Ok((tokens, at)),
        Until::Close => Err(SyntaxError::new(start.saturating_sub(3)..start, "`${{` is not closed")
            .help("close the expression with `}}`, and check the quotes of strings")),
    }
}

fn depth_after(depth: usize, token: &Token<'_>) -> usize {
    if token.kind != TokenKind::Mark {
        return depth;
    }
    match token.text {
        "(" | "[" | "{" => depth + 1,
        ")" | "]" | "}" => depth.saturating_sub(1),
        _ => depth,
    }
}

fn text_len(rest: &str, at: usize) -> Result<usize, SyntaxError> {
    let quote = rest.as_bytes()[0];
    let mut escaped = false;
    for (index, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if byte == quote => return Ok(index + 1),
            _ => {}
        }
    }
    Err(SyntaxError::new(at..at + 1, "the string is not closed")
        .help(format!("add the closing quote: `{}`", char::from(quote))))
}

fn number_len(rest: &str, at: usize) -> Result<usize, SyntaxError> {
    let bytes = rest.as_bytes();
    let digits = |mut from: usize| {
        while bytes.get(from).is_some_and(|byte| byte.is_ascii_digit() || *byte == b'_') {
            from += 1;
        }
        from
    };
    let mut len = digits(0);
    if bytes.get(len) == Some(&b'.') && bytes.get(len + 1).is_some_and(u8::is_ascii_digit) {
        len = digits(len + 1);
    }
    if matches!(bytes.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(len + 1), Some(b'+' | b'-')));
        if bytes.get(len + 1 + sign).is_some_and(u8::is_ascii_digit) {
            len = digits(len + 1 + sign);
        }
    }
    let end = len + name_len(&rest[len..], false);
    if end > len {
        return Err(SyntaxError::new(at..at + end, format!("`{}` is not a number", &rest[..end]))
            .help("quote text; numbers in expressions have no units"));
    }
    Ok(len)
}

/// Returns the length of the name at the start of `rest`; `hyphens` allows hyphens inside the name.
fn name_len(rest: &str, hyphens: bool) -> usize {
    let bytes = rest.as_bytes();
    let word = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let mut len = 0;
    while word(bytes.get(len))
        || (hyphens && len > 0 && bytes[len..].first() == Some(&b'-') && word(bytes.get(len + 1)))
    {
        len += 1;
    }
    len
}

/// Returns whether a name at `at` may have hyphens: after a dot, and as the argument of `skipped(STEP)`.
fn hyphens_belong(tokens: &[Token<'_>], at: usize) -> bool {
    match tokens {
        [.., name, open] if open.is("(") => name.is("skipped"),
        [.., dot] => dot.is(".") && dot.range.end == at,
        [] => false,
    }
}

fn mark_len(rest: &str, depth: usize, at: usize) -> Result<usize, SyntaxError> {
    let long = MARKS_LONG.iter().find(|mark| rest.starts_with(**mark));
    match long {
        // Inside brackets, two braces close two maps.
        Some(mark) if *mark != "}}" || depth == 0 => return Ok(mark.len()),
        _ => {}
    }
    let first = rest.chars().next().expect("the caller checks for empty text");
    if MARKS_SHORT.contains(first) {
        return Ok(1);
    }
    let error = SyntaxError::new(at..at + first.len_utf8(), format!("unexpected `{first}` in an expression"));
    Err(match first {
        '&' => error.help("write `&&` or `and`"),
        '$' => error.help("write names in `${{ }}` without `$`; shell variables cannot be read here"),
        '`' | '\u{2018}' | '\u{2019}' | '\u{201c}' | '\u{201d}' => error.help("quote strings with ' or \""),
        _ => error,
    })
}
