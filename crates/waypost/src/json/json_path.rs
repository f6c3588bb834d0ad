//! JSON paths for one value, or for every item of a list or map.
//!
//! `$`, `.name`, `['name']`, `[0]`, `[-1]`, `[*]` and `.*`. Without filters, slices and `..`: a value should
//! have a clear source, and a step can compute the rest.

use std::fmt;
use std::ops::Range;

use serde_json::Value;

/// Most parts of a path; documents are parsed to a depth of 128.
const PARTS_MAX: usize = 128;

/// Valid JSON path.
///
/// ```
/// use serde_json::json;
/// use waypost::json_path::JsonPath;
///
/// let state = json!({ "items": [{ "name": "a" }, { "name": "b" }] });
/// assert_eq!(JsonPath::parse("$.items[-1].name").unwrap().find(&state).unwrap(), "b");
/// assert_eq!(JsonPath::parse("$.items[*].name").unwrap().find(&state).unwrap(), json!(["a", "b"]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JsonPath {
    text: String,
    parts: Vec<PathPart>,
}

/// A part of a [`JsonPath`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathPart {
    /// A member of a map.
    Name(String),
    /// An item of a list, from 0; negative from the end.
    Index(i64),
    /// Every item of a list, or every value of a map.
    Every,
}

/// Syntax error in a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PathSyntaxError {
    /// Place in the path, in bytes.
    pub range: Range<usize>,
    /// Error text.
    pub message: String,
}

/// The first part of a path that a document does not have.
#[derive(Debug, Clone, PartialEq)]
pub struct MissingPart<'a> {
    /// The path above the part, such as `$.items`.
    pub above: String,
    /// The missing part.
    pub part: &'a PathPart,
    /// The value that does not have the part.
    pub value: &'a Value,
}

impl JsonPath {
    /// Reads a path.
    ///
    /// # Errors
    /// The place of the syntax error.
    pub fn parse(text: &str) -> Result<Self, PathSyntaxError> {
        let fail =
            |range: Range<usize>, message: &str| PathSyntaxError { range, message: message.to_owned() };
        if !text.starts_with('$') {
            return Err(fail(0..text.len(), "a JSON path begins with `$`"));
        }
        let mut parts = Vec::new();
        let mut at = 1;
        while at < text.len() {
            let rest = &text[at..];
            let (part, len) = if rest.starts_with("..") {
                return Err(fail(at..at + 2, "`..` is not supported; write every part of the path"));
            } else if let Some(rest) = rest.strip_prefix('.') {
                dotted(rest).map(|(part, len)| (part, len + 1))
            } else if let Some(rest) = rest.strip_prefix('[') {
                bracketed(rest).map(|(part, len)| (part, len + 1))
            } else {
                Err("expected `.name` or `[...]`")
            }
            .map_err(|message| fail(at..text.len(), message))?;
            if parts.len() == PARTS_MAX {
                return Err(fail(at..text.len(), "the path has too many parts"));
            }
            parts.push(part);
            at += len;
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// Returns whether the path names several values, by `[*]` or `.*`.
    pub fn is_list(&self) -> bool {
        self.parts.contains(&PathPart::Every)
    }

    /// Returns the value at the path; with `[*]` or `.*`, the list of all values there.
    ///
    /// # Errors
    /// The first part that does not exist.
    pub fn find<'a>(&'a self, document: &'a Value) -> Result<Value, MissingPart<'a>> {
        let mut found = vec![document];
        for (index, part) in self.parts.iter().enumerate() {
            let mut next = Vec::new();
            for value in found {
                let values = part.of(value);
                next.extend(values.ok_or_else(|| MissingPart { above: self.prefix(index), part, value })?);
            }
            found = next;
        }
        match (self.is_list(), found.as_slice()) {
            (false, [value]) => Ok((*value).clone()),
            _ => Ok(found.into_iter().cloned().collect()),
        }
    }

    fn prefix(&self, parts: usize) -> String {
        let mut prefix = "$".to_owned();
        for part in &self.parts[..parts] {
            match part {
                PathPart::Name(name) => prefix.push_str(&format!(".{name}")),
                PathPart::Index(index) => prefix.push_str(&format!("[{index}]")),
                PathPart::Every => prefix.push_str("[*]"),
            }
        }
        prefix
    }
}

impl PathPart {
    /// Returns the values at the part; `None` if the value does not have the part.
    fn of<'a>(&self, value: &'a Value) -> Option<Vec<&'a Value>> {
        match (self, value) {
            (Self::Name(name), Value::Object(map)) => Some(vec![map.get(name)?]),
            (Self::Index(index), Value::Array(items)) => {
                let position = if *index < 0 { index.saturating_add(items.len() as i64) } else { *index };
                Some(vec![items.get(usize::try_from(position).ok()?)?])
            }
            (Self::Every, Value::Array(items)) => Some(items.iter().collect()),
            (Self::Every, Value::Object(map)) => Some(map.values().collect()),
            _ => None,
        }
    }
}

impl TryFrom<String> for JsonPath {
    type Error = PathSyntaxError;

    fn try_from(text: String) -> Result<Self, PathSyntaxError> {
        Self::parse(&text)
    }
}

impl From<JsonPath> for String {
    fn from(path: JsonPath) -> Self {
        path.text
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn dotted(rest: &str) -> Result<(PathPart, usize), &'static str> {
    if rest.starts_with('*') {
        return Ok((PathPart::Every, 1));
    }
    let len = rest.find(['.', '[', ']', '\'', '"', ' ', '*', '?', '(']).unwrap_or(rest.len());
    match len {
        0 => Err("a name is missing after `.`; write names with special characters as `['name']`"),
        _ => Ok((PathPart::Name(rest[..len].to_owned()), len)),
    }
}

fn bracketed(rest: &str) -> Result<(PathPart, usize), &'static str> {
    if let Some(quote @ ('\'' | '"')) = rest.chars().next() {
        let end = rest[1..].find(quote).ok_or("the quoted name in brackets is not closed")?;
        let name = &rest[1..1 + end];
        if name.contains('\\') {
            return Err("names in brackets have no escapes; use the other kind of quotes");
        }
        return match rest[end + 2..].starts_with(']') {
            true => Ok((PathPart::Name(name.to_owned()), end + 3)),
            false => Err("`]` is missing after the name"),
        };
    }
    let end = rest.find(']').ok_or("`[` is not closed")?;
    match &rest[..end] {
        "*" => Ok((PathPart::Every, end + 1)),
        index => {
            let index = index.parse().map_err(|_| "brackets contain a number, `*` or a quoted name")?;
            Ok((PathPart::Index(index), end + 1))
        }
    }
}
