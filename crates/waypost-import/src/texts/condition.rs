//! Conditions and orders: `when` of steps, `filter`, `sort_by` and `distinct` of items.

use waypost_workflow::file::Node;

use crate::import::context::Import;
use crate::variables::names::{Format, is_path, parts, text_literal};

/// A token of a condition.
#[derive(Debug, Clone, PartialEq)]
enum Token {
    /// A variable, or a field of the item.
    Operand(String),
    Text(String),
    /// A number, a truth value or null.
    Plain(String),
    Compare(&'static str),
    And,
    Or,
    Not,
    In,
    Matches,
    Open,
    Close,
    Comma,
}

/// The meaning of a name without braces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Variables,
    Fields,
}

impl Import<'_> {
    /// Returns the condition of a step. A condition without an equivalent becomes a param.
    pub(crate) fn when(&mut self, node: &Node) -> String {
        let text = node.spelled().unwrap_or_default();
        if let Some(condition) = self.condition(node, "when", Names::Variables) {
            return condition;
        }
        let line = self.line(node);
        let name = self
            .param(&format!("when_line_{line}"), &format!("Whether the step of line {line} runs: {text}"));
        let message =
            format!("replaced `{text}` by param `{name}`: unknown syntax, or a value without a step");
        self.note(node, "when", message, format!("`waypost run FILE -p {name}=true`, or write an `if`"));
        format!("params.{name} == 'true'")
    }

    /// Returns the filter of the items; `None`, with a note, without an equivalent.
    pub(crate) fn filter(&mut self, node: &Node) -> Option<String> {
        let text = node.spelled().unwrap_or_default();
        let made = self.condition(node, "filter", Names::Fields);
        if made.is_none() {
            let message = format!("all items are worked on: cannot carry over `{text}`: unknown syntax");
            self.note(node, "filter", message, "write an expression: `filter: item.score >= 10`");
        }
        made
    }

    fn condition(&mut self, node: &Node, key: &str, names: Names) -> Option<String> {
        let text = node.spelled().unwrap_or_default().trim();
        // Braces may enclose a whole condition: `${a == 'b'}`.
        let whole = text.strip_prefix("${").and_then(|text| text.strip_suffix('}'));
        let text = whole.filter(|text| text.contains(' ') && !text.contains("${")).unwrap_or(text);
        Parser { import: self, node, key, names, tokens: tokens(text)?, at: 0 }.all()
    }

    /// Returns `sort_by` of the items; `None`, with a note, without an equivalent.
    pub(crate) fn order(&mut self, node: &Node) -> Option<String> {
        let text = node.spelled().unwrap_or_default();
        let mut keys = Vec::new();
        let mut falls = false;
        for part in text.split(',') {
            let words: Vec<String> = part.split_whitespace().map(str::to_ascii_uppercase).collect();
            let name = part.split_whitespace().next()?;
            let path = format!(".{}", name.strip_prefix("item.").unwrap_or(name));
            let known = |word: &String| {
                matches!(
                    word.as_str(),
                    "ASC" | "ASCENDING" | "DESC" | "DESCENDING" | "NULLS" | "FIRST" | "LAST"
                )
            };
            if !is_path(&path) || !words[1..].iter().all(known) {
                let help = "write an expression: `sort_by: '[item.a, -item.b]'`";
                self.note(
                    node,
                    "sort_by",
                    format!("the items keep their order: cannot carry over `{text}`: unknown syntax"),
                    help,
                );
                return None;
            }
            let is_falling = words[1..].iter().any(|word| word.starts_with("DESC"));
            let nulls_first = words.iter().any(|word| word == "FIRST");
            falls |= is_falling;
            let value = field_value(&path);
            let lacks = if nulls_first { format!("{value} is not none") } else { format!("{value} is none") };
            let sign = if is_falling { "-" } else { "" };
            keys.push(lacks);
            keys.push(format!("{sign}({} | default(0, true))", field(&path)));
        }
        if falls {
            let message = "a descending order needs numbers";
            self.note(node, "sort_by", message, "`ASC` orders texts");
        }
        Some(format!("[{}]", keys.join(", ")))
    }

    /// Returns `distinct` of the items; `None`, with a note, without an equivalent.
    pub(crate) fn distinct(&mut self, node: &Node) -> Option<String> {
        let text = node.spelled().unwrap_or_default().trim();
        let path = format!(".{}", text.strip_prefix("item.").unwrap_or(text));
        if is_path(&path) {
            return Some(field_value(&path));
        }
        let help = "write an expression: `distinct: item.name`";
        self.note(
            node,
            "distinct",
            format!("equal items are not dropped: cannot carry over `{text}`: unknown syntax"),
            help,
        );
        None
    }
}

/// Returns the expression of a field; only the last part of the path may be missing.
fn field(path: &str) -> String {
    let end = path[1..].find(['.', '[']).map_or(path.len(), |end| end + 1);
    parts(&format!("item{}", &path[..end]), &path[end..])
}

/// Returns the expression of a field; null if the item lacks the field.
fn field_value(path: &str) -> String {
    format!("({} | default(none))", field(path))
}

struct Parser<'i, 'd> {
    import: &'i mut Import<'d>,
    node: &'i Node,
    key: &'i str,
    names: Names,
    tokens: Vec<Token>,
    at: usize,
}

impl Parser<'_, '_> {
    fn all(mut self) -> Option<String> {
        let made = self.either()?;
        (self.at == self.tokens.len()).then_some(made)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    fn takes(&mut self, wanted: &Token) -> bool {
        let is_it = self.tokens.get(self.at) == Some(wanted);
        self.at += usize::from(is_it);
        is_it
    }

    fn either(&mut self) -> Option<String> {
        let mut made = self.both()?;
        while self.takes(&Token::Or) {
            made = format!("{made} or {}", self.both()?);
        }
        Some(made)
    }

    fn both(&mut self) -> Option<String> {
        let mut made = self.one()?;
        while self.takes(&Token::And) {
            made = format!("{made} and {}", self.one()?);
        }
        Some(made)
    }

    fn one(&mut self) -> Option<String> {
        if self.takes(&Token::Not) {
            return Some(format!("not ({})", self.one()?));
        }
        if self.takes(&Token::Open) {
            let inner = self.either()?;
            return self.takes(&Token::Close).then(|| format!("({inner})"));
        }
        match self.next()? {
            Token::Operand(name) => {
                if self.tokens.get(self.at) == Some(&Token::Open) {
                    return self.call(&name);
                }
                self.compared(&name)
            }
            Token::Plain(value) => self.after(&value).or(Some(value)),
            Token::Text(text) => self.after(&text_literal(&text)),
            _ => None,
        }
    }

    /// Parses a variable or a field, alone or in a comparison.
    fn compared(&mut self, name: &str) -> Option<String> {
        let (value, format) = self.value(name)?;
        match self.after(&value) {
            Some(compared) => Some(compared),
            None if matches!(
                self.tokens.get(self.at),
                None | Some(Token::And | Token::Or | Token::Close)
            ) =>
            {
                Some(truthy(&value, format))
            }
            None => None,
        }
    }

    /// Parses an operator and the second operand.
    fn after(&mut self, value: &str) -> Option<String> {
        let begin = self.at;
        let made = match self.next() {
            Some(Token::Compare(operator)) => self.second().map(|second| {
                let ordered = !matches!(operator, "==" | "!=");
                let guard = match second.as_bytes().first() {
                    Some(b'0'..=b'9' | b'-') => "number",
                    _ => "string",
                };
                match ordered && self.names == Names::Fields {
                    true => format!("({value} is {guard} and {value} {operator} {second})"),
                    false => format!("{} {operator} {second}", in_parentheses(value)),
                }
            }),
            Some(Token::In) => self.list().map(|list| format!("{} in {list}", in_parentheses(value))),
            Some(Token::Matches) => match self.next() {
                Some(Token::Text(pattern)) => matched(value, &pattern),
                _ => None,
            },
            _ => None,
        };
        if made.is_none() {
            self.at = begin;
        }
        made
    }

    fn second(&mut self) -> Option<String> {
        match self.next()? {
            Token::Text(text) => Some(text_literal(&text)),
            Token::Plain(value) => Some(value),
            Token::Operand(name) => Some(in_parentheses(&self.value(&name)?.0)),
            _ => None,
        }
    }

    fn list(&mut self) -> Option<String> {
        let mut values = Vec::new();
        if !self.takes(&Token::Open) {
            return None;
        }
        while !self.takes(&Token::Close) {
            values.push(self.second()?);
            if !self.takes(&Token::Comma) && self.tokens.get(self.at) != Some(&Token::Close) {
                return None;
            }
        }
        Some(format!("[{}]", values.join(", ")))
    }

    /// Parses the call of a function with a field as the first argument.
    fn call(&mut self, function: &str) -> Option<String> {
        self.at += 1;
        let Some(Token::Operand(name)) = self.next() else { return None };
        let (value, _) = self.value(&name)?;
        let argument = match self.takes(&Token::Comma) {
            true => Some(self.second()?),
            false => None,
        };
        if !self.takes(&Token::Close) {
            return None;
        }
        let text = |test: &str| {
            argument
                .as_ref()
                .map(|argument| format!("({value} is string and {})", test.replace("ARGUMENT", argument)))
        };
        match (function, &argument) {
            ("is_null", None) => Some(format!("{value} is none")),
            ("is_not_null", None) => Some(format!("{value} is not none")),
            ("is_number" | "is_string", None) => Some(format!("{value} is {}", &function[3..])),
            ("is_bool", None) => Some(format!("{value} is boolean")),
            ("is_object", None) => Some(format!("{value} is mapping")),
            ("contains", Some(_)) => text(&format!("ARGUMENT in {value}")),
            ("starts_with", Some(_)) => text(&format!("{value} is startingwith ARGUMENT")),
            ("ends_with", Some(_)) => text(&format!("{value} is endingwith ARGUMENT")),
            ("length", Some(argument)) => {
                Some(format!("({value} | default('', true) | length) == {argument}"))
            }
            ("matches", Some(argument)) => {
                matched(&value, &argument.trim_matches('\'').replace("\\\\", "\\"))
            }
            _ => None,
        }
    }

    fn value(&mut self, name: &str) -> Option<(String, Format)> {
        match self.names {
            Names::Variables => self.import.operand(self.node, self.key, name),
            Names::Fields => {
                let path = format!(".{}", name.strip_prefix("item.").unwrap_or(name));
                let value = if name == "item" { "item".to_owned() } else { field_value(&path) };
                (name == "item" || is_path(&path)).then_some((value, Format::Json))
            }
        }
    }
}

/// Returns the condition under which Prodigy treats a value as true.
fn truthy(value: &str, format: Format) -> String {
    match format {
        Format::Number => format!("{} != 0", in_parentheses(value)),
        Format::Truth if value.ends_with("== 'completed')") => value.to_owned(),
        Format::Truth => format!("{} == true", in_parentheses(value)),
        _ => format!("{} not in ['', 'false', '0', 0, false, none]", in_parentheses(value)),
    }
}

fn in_parentheses(value: &str) -> String {
    match value.contains(' ') && !(value.starts_with('(') && value.ends_with(')')) {
        true => format!("({value})"),
        false => value.to_owned(),
    }
}

/// Returns the test for a pattern of plain text with optional anchors; `None` for any other pattern.
fn matched(value: &str, pattern: &str) -> Option<String> {
    let (from_begin, rest) = pattern.strip_prefix('^').map_or((false, pattern), |rest| (true, rest));
    let (to_end, rest) = rest.strip_suffix('$').map_or((false, rest), |rest| (true, rest));
    let mut plain = String::new();
    let mut characters = rest.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => plain.push(characters.next().filter(|c| !c.is_alphanumeric())?),
            '.' | '*' | '+' | '?' | '[' | ']' | '(' | ')' | '{' | '}' | '|' | '^' | '$' => return None,
            c => plain.push(c),
        }
    }
    let plain = text_literal(&plain);
    let test = match (from_begin, to_end) {
        (true, true) => format!("{value} == {plain}"),
        (true, false) => format!("{value} is startingwith {plain}"),
        (false, true) => format!("{value} is endingwith {plain}"),
        (false, false) => format!("{plain} in {value}"),
    };
    Some(format!("({value} is string and {test})"))
}

/// Splits a condition into tokens; `None` if a token is unknown.
fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '$' if rest.starts_with("${") => {
                let end = rest.find('}')?;
                (Token::Operand(rest[2..end].to_owned()), end + 1)
            }
            '\'' | '"' => {
                let end = rest[1..].find(first)?;
                (Token::Text(rest[1..=end].replace("\\\\", "\\")), end + 2)
            }
            '(' | '[' => (Token::Open, 1),
            ')' | ']' => (Token::Close, 1),
            ',' => (Token::Comma, 1),
            '$' => {
                let end = rest[1..].find(|c: char| !is_part(c)).map_or(rest.len(), |end| end + 1);
                (Token::Operand(rest[1..end].to_owned()), end)
            }
            '0'..='9' | '-' => {
                let is_digit = |c: char| c.is_ascii_digit() || c == '.';
                let end = rest[1..].find(|c| !is_digit(c)).map_or(rest.len(), |end| end + 1);
                rest[..end].parse::<f64>().ok()?;
                (Token::Plain(rest[..end].to_owned()), end)
            }
            c if c.is_ascii_alphabetic() || c == '_' => word(rest),
            _ => sign(rest)?,
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    (!tokens.is_empty()).then_some(tokens)
}

fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn word(rest: &str) -> (Token, usize) {
    let end = rest.find(|c: char| !(is_part(c) || matches!(c, '.' | '-'))).unwrap_or(rest.len());
    // An index belongs to the preceding field.
    let mut end = end;
    while let Some(index) = rest[end..].strip_prefix('[') {
        let Some(close) = index.find(']').filter(|close| index[..*close].bytes().all(|b| b.is_ascii_digit()))
        else {
            break;
        };
        end += close + 2;
        end += rest[end..].find(|c: char| !(is_part(c) || c == '.')).unwrap_or(rest.len() - end);
    }
    let word = &rest[..end];
    let token = match word.to_ascii_lowercase().as_str() {
        "and" => Token::And,
        "or" => Token::Or,
        "not" => Token::Not,
        "in" => Token::In,
        "matches" if !rest[end..].trim_start().starts_with('(') => Token::Matches,
        "true" | "false" => Token::Plain(word.to_ascii_lowercase()),
        "null" | "none" => Token::Plain("none".to_owned()),
        _ => Token::Operand(word.to_owned()),
    };
    (token, end)
}

fn sign(rest: &str) -> Option<(Token, usize)> {
    let signs = [
        ("&&", Token::And),
        ("||", Token::Or),
        ("==", Token::Compare("==")),
        ("!=", Token::Compare("!=")),
        (">=", Token::Compare(">=")),
        ("<=", Token::Compare("<=")),
        ("=~", Token::Matches),
        (">", Token::Compare(">")),
        ("<", Token::Compare("<")),
        ("!", Token::Not),
        ("=", Token::Compare("==")),
    ];
    signs.into_iter().find(|(sign, _)| rest.starts_with(sign)).map(|(sign, token)| (token, sign.len()))
}
