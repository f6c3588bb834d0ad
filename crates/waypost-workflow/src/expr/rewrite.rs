//! Rewrites the tokens of an expression for minijinja, and collects the names in use.
//!
//! Five changes:
//!
//! - `&&`, `||`, `!` and `null` become minijinja's words.
//! - A name with hyphens becomes a subscript.
//! - `skipped(fetch)` gets the step as text.
//! - Every comparison calls [`COMPARE`]. minijinja orders values of different types by type: the text `"0"`
//!   would silently be greater than the number 5.
//! - The input of every filter, and the operands of `+`, `~` and `*`, pass [`MEASURED`], [`APPEND`] or [`FACTOR`]: these
//!   limit the memory and the time of an expression.

use std::ops::Range;

use super::SyntaxError;
use super::lex::{Token, TokenKind};
use super::names::{self, Call, Uses};

/// Name of the comparison function; cannot be written in an expression.
pub(crate) const COMPARE: &str = "__compare";

/// Name of the filter that counts the size of a value; cannot be written in an expression.
pub(crate) const MEASURED: &str = "__measured";

/// Name of the filter that counts the operands of `+` and `~`; cannot be written in an expression.
pub(crate) const APPEND: &str = "__append";

/// Name of the filter that refuses all but numbers in a product; cannot be written in an expression.
pub(crate) const FACTOR: &str = "__factor";

/// Expression ready to compile.
#[derive(Debug)]
pub(crate) struct Rewritten {
    /// Source for minijinja.
    pub(crate) source: String,
    /// For each token: offset in `source`, and place in the original.
    pub(crate) places: Vec<(usize, Range<usize>)>,
    /// Names and calls of the expression.
    pub(crate) uses: Uses,
}

impl Rewritten {
    /// Returns the original place of byte `offset` of the rewritten source.
    pub(crate) fn original(&self, offset: usize) -> Option<Range<usize>> {
        let after = self.places.partition_point(|(start, _)| *start <= offset);
        self.places.get(after.checked_sub(1)?).map(|(_, range)| range.clone())
    }

    /// Returns whether a token of the original begins at byte `offset` of the rewritten source.
    pub(crate) fn is_token(&self, offset: usize) -> bool {
        self.places.binary_search_by_key(&offset, |(start, _)| *start).is_ok()
    }
}

/// Rewrites `tokens`, with `locals` in scope.
///
/// # Errors
/// Unknown names, functions, filters and tests, chained comparisons, and `=` instead of `==`.
pub(crate) fn rewrite(tokens: &[Token<'_>], locals: &[String]) -> Result<Rewritten, Vec<SyntaxError>> {
    let uses = names::collect(tokens, locals)?;
    let mut wraps = vec![Wrap::default(); tokens.len()];
    wrap_comparisons(tokens, &mut wraps).map_err(|error| vec![error])?;
    measure(tokens, &mut wraps);
    let mut source = String::new();
    let mut places = Vec::with_capacity(tokens.len());
    for (index, token) in tokens.iter().enumerate() {
        source.push_str(&wraps[index].before);
        places.push((source.len(), token.range.clone()));
        source.push_str(&spelled(tokens, index, &wraps[index], &uses));
        source.push_str(&wraps[index].filters);
        source.push_str(wraps[index].after);
        source.push(' ');
    }
    Ok(Rewritten { source, places, uses })
}

/// Text around a token, for the calls that replace comparisons.
#[derive(Debug, Clone, Default)]
struct Wrap {
    before: String,
    is_comma: bool,
    /// Filters of the operand that ends with the token.
    filters: String,
    after: &'static str,
}

fn spelled(tokens: &[Token<'_>], index: usize, wrap: &Wrap, uses: &Uses) -> String {
    let token = &tokens[index];
    if wrap.is_comma {
        return ",".to_owned();
    }
    let subscript = |name: &Token<'_>| name.kind == TokenKind::Name && name.text.contains('-');
    if token.is(".") && tokens.get(index + 1).is_some_and(subscript) {
        return String::new();
    }
    if token.kind == TokenKind::Name && index > 0 && tokens[index - 1].is(".") {
        // Only a name after a dot can have a hyphen; other words stay unchanged.
        return match subscript(token) {
            true => format!("[\"{}\"]", token.text),
            false => token.text.to_owned(),
        };
    }
    if uses.calls.iter().any(|call| matches!(call, Call::Skipped { range, .. } if *range == token.range))
        && token.kind == TokenKind::Name
    {
        return format!("\"{}\"", token.text);
    }
    match token.text {
        "&&" => "and",
        "||" => "or",
        "!" => "not",
        "null" if token.kind == TokenKind::Name => "none",
        text => text,
    }
    .to_owned()
}

/// Returns whether `token` is a comparison operator.
fn is_comparison(token: &Token<'_>) -> bool {
    token.kind == TokenKind::Mark && matches!(token.text, "==" | "!=" | "<" | "<=" | ">" | ">=")
}

/// Returns whether the token at `index` ends an operand of a comparison: an operator that binds looser.
fn ends_operand(tokens: &[Token<'_>], index: usize) -> bool {
    let token = &tokens[index];
    if token.is("not") && index > 0 && tokens[index - 1].is("is") {
        return false;
    }
    let after_dot = index > 0 && tokens[index - 1].is(".");
    match token.kind {
        TokenKind::Mark => matches!(token.text, "," | ":" | "=" | "&&" | "||" | "!") || is_comparison(token),
        TokenKind::Name => matches!(token.text, "and" | "or" | "not" | "in" | "if" | "else") && !after_dot,
        TokenKind::Text | TokenKind::Number => false,
    }
}

/// Marks the start, the comma and the end of each comparison's call, at every depth of brackets.
fn wrap_comparisons(tokens: &[Token<'_>], wraps: &mut [Wrap]) -> Result<(), SyntaxError> {
    for index in (0..tokens.len()).filter(|index| is_comparison(&tokens[*index])) {
        let left = operand_start(tokens, index);
        let right = operand_end(tokens, index);
        let token = &tokens[index];
        if left == index || right == index {
            let side = if left == index { "left" } else { "right" };
            return Err(SyntaxError::new(
                token.range.clone(),
                format!("`{}` has no operand on its {side}", token.text),
            )
            .help("put an operand that begins with `!` in parentheses"));
        }
        let neighbours = [left.checked_sub(1), (right + 1 < tokens.len()).then_some(right + 1)];
        let chained = |neighbour: usize| {
            is_comparison(&tokens[neighbour])
                || tokens[neighbour].is("in")
                || (tokens[neighbour].is("not")
                    && tokens.get(neighbour + 1).is_some_and(|next| next.is("in")))
        };
        if neighbours.into_iter().flatten().any(chained) {
            return Err(SyntaxError::new(token.range.clone(), "comparisons cannot be chained")
                .help("combine two comparisons with `&&`, or add parentheses"));
        }
        wraps[left].before.insert_str(0, &format!("{COMPARE}(\"{}\", ", token.text));
        wraps[index].is_comma = true;
        wraps[right].after = ")";
    }
    Ok(())
}

/// Adds the filters that measure: after the token before each filter, and after operands of operators that copy texts.
fn measure(tokens: &[Token<'_>], wraps: &mut [Wrap]) {
    for (index, token) in tokens.iter().enumerate().filter(|(_, token)| token.kind == TokenKind::Mark) {
        let filter = match token.text {
            "*" => FACTOR,
            "+" | "~" => APPEND,
            "|" => MEASURED,
            _ => continue,
        };
        let Some(left) = index.checked_sub(1).filter(|left| ends_value(&tokens[*left])) else { continue };
        wraps[left].filters.push_str(&format!("|{filter}"));
        if token.text != "|" {
            let right = value_end(tokens, index + 1);
            wraps[right].filters.push_str(&format!("|{filter}"));
        }
    }
}

/// Returns whether a value can end with the token. An operator after any other token has one operand.
fn ends_value(token: &Token<'_>) -> bool {
    match token.kind {
        TokenKind::Mark => matches!(token.text, ")" | "]" | "}"),
        TokenKind::Name => !matches!(token.text, "and" | "or" | "not" | "in" | "if" | "else" | "is"),
        TokenKind::Text | TokenKind::Number => true,
    }
}

/// Returns the index of the last token of the value that begins at `start`: signs, a name, literal or bracket, then
/// attributes, subscripts, calls and filters.
fn value_end(tokens: &[Token<'_>], start: usize) -> usize {
    let is_mark = |index: usize, marks: &[&str]| {
        tokens.get(index).is_some_and(|token| token.kind == TokenKind::Mark && marks.contains(&token.text))
    };
    let mut end = start;
    while is_mark(end, &["-", "+"]) {
        end += 1;
    }
    end = bracket_end(tokens, end);
    loop {
        end = match () {
            () if is_mark(end + 1, &[".", "|"]) && end + 2 < tokens.len() => end + 2,
            () if is_mark(end + 1, &["(", "["]) => bracket_end(tokens, end + 1),
            () => return end.min(tokens.len() - 1),
        };
    }
}

/// Returns the index of the closing bracket of the bracket at `start`; `start` for any other token.
fn bracket_end(tokens: &[Token<'_>], start: usize) -> usize {
    let mut depth = 0usize;
    for (index, token) in tokens.iter().enumerate().skip(start) {
        match token.text {
            "(" | "[" | "{" if token.kind == TokenKind::Mark => depth += 1,
            ")" | "]" | "}" if token.kind == TokenKind::Mark => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return index;
        }
    }
    start
}

/// Returns the index of the first token of the operand that ends before `index`.
fn operand_start(tokens: &[Token<'_>], index: usize) -> usize {
    let mut depth = 0usize;
    let mut start = index;
    while let Some(before) = start.checked_sub(1) {
        let token = &tokens[before];
        match token.text {
            ")" | "]" | "}" if token.kind == TokenKind::Mark => depth += 1,
            "(" | "[" | "{" if token.kind == TokenKind::Mark => match depth {
                0 => break,
                _ => depth -= 1,
            },
            _ if depth == 0 && ends_operand(tokens, before) => break,
            _ => {}
        }
        start = before;
    }
    start
}

/// Returns the index of the last token of the operand after `index`; `index` without an operand.
fn operand_end(tokens: &[Token<'_>], index: usize) -> usize {
    let mut depth = 0usize;
    let mut end = index;
    while let Some(token) = tokens.get(end + 1) {
        match token.text {
            "(" | "[" | "{" if token.kind == TokenKind::Mark => depth += 1,
            ")" | "]" | "}" if token.kind == TokenKind::Mark => match depth {
                0 => break,
                _ => depth -= 1,
            },
            _ if depth == 0 && ends_operand(tokens, end + 1) => break,
            _ => {}
        }
        end += 1;
    }
    end
}
