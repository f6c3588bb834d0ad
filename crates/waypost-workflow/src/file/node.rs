//! YAML of a file as a tree of values with places.
//!
//! The tree is read with serde-saphyr, which enforces the limits. Keys stay in order, and duplicate keys stay
//! in the tree, to report all at once. Does not know workflows.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Location, Spanned};

use super::problem::{Problem, Problems, SourceText};
use crate::expr::{NumberError, exact_number};

/// Deepest nesting of lists and maps.
///
/// A workflow has about ten levels. The reader is recursive and takes up to 40 KB of stack per level without
/// optimisation. Therefore 32 levels fit into the 2 MiB of a test's or a runtime's thread.
const DEPTH_MAX: usize = 32;
/// Most values in a file, including values repeated by aliases; a step has about ten.
const NODES_MAX: usize = 500_000;
/// Most aliases in a file.
const ALIASES_MAX: usize = 1_000;
/// Most values repeated by aliases: the limit for an alias bomb.
const ALIAS_NODES_MAX: usize = 100_000;

/// Value with its place.
#[derive(Debug, Clone)]
pub struct Node {
    pub(crate) kind: Kind,
    /// Place of use: for an aliased value, the alias.
    pub(crate) span: Range<usize>,
    /// Place of the text; `None` for an aliased value.
    pub(crate) own_text: Option<Range<usize>>,
    /// Spelling of a scalar that is not text.
    pub(crate) spelling: Option<String>,
}

/// Type and content of a node.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// Returns whether the nested keys of `path` exist.
    pub(crate) fn has_key(&self, path: &[&str]) -> bool {
        let Some((first, rest)) = path.split_first() else { return true };
        let Kind::Map(entries) = &self.kind else { return false };
        let found = entries.iter().find(|(key, _)| key.key_text() == *first);
        found.is_some_and(|(_, value)| value.has_key(rest))
    }

    /// Returns the node for a sentence: "a list", "the number 5".
    #[must_use]
    pub fn described(&self) -> String {
        match &self.kind {
            Kind::Null => "nothing".to_owned(),
            Kind::Bool(_) => format!("`{}`", self.spelling.as_deref().unwrap_or("true or false")),
            Kind::Number(number) => {
                format!("the number {}", self.spelling.as_deref().unwrap_or(&number.to_string()))
            }
            Kind::Text(text) => format!("the text `{}`", crate::expr::shown(text)),
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a map".to_owned(),
        }
    }

    /// Returns a scalar as text, spelled as in the file: `1.10` stays `1.10`.
    #[must_use]
    pub fn spelled(&self) -> Option<&str> {
        match &self.kind {
            Kind::Text(text) => Some(text),
            Kind::Bool(_) | Kind::Number(_) => self.spelling.as_deref(),
            Kind::Null | Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// Returns the node as JSON. Of duplicate keys the last counts; keys that are not text have their
    /// spelling.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Bool(truth) => Value::Bool(*truth),
            Kind::Number(number) => Value::Number(number.clone()),
            Kind::Text(text) => Value::String(text.clone()),
            Kind::List(items) => items.iter().map(Self::to_json).collect(),
            Kind::Map(entries) => {
                let pairs = entries.iter().map(|(key, value)| (key.key_text().to_owned(), value.to_json()));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }

    /// Returns a key as text; keys that are lists or maps were rejected before.
    #[must_use]
    pub fn key_text(&self) -> &str {
        match &self.kind {
            Kind::Text(text) => text,
            _ => self.spelling.as_deref().unwrap_or_default(),
        }
    }
}

/// Reads the YAML of `source`.
///
/// Returns the tree, with a problem for every duplicate key and every key that is not a word.
///
/// # Errors
/// The place where the text is not valid YAML, or exceeds a limit.
pub(crate) fn read(source: &SourceText) -> Result<(Node, Problems), Box<Problem>> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_events: 2 * NODES_MAX,
            max_aliases: ALIASES_MAX,
            max_anchors: ALIASES_MAX,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: ALIAS_NODES_MAX },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    let raw: Raw = serde_saphyr::from_str_with_options(&source.text, options)
        .map_err(|error| Box::new(super::syntax::explain(source, &error)))?;
    let mut problems = Problems::default();
    let node = place(source, raw, &mut problems);
    refuse_tags(source, &mut problems);
    Ok((node, problems))
}

/// Rejects standard YAML tags, which the reader ignores; it has rejected all others.
fn refuse_tags(source: &SourceText, problems: &mut Problems) {
    if !source.text.contains('!') {
        return;
    }
    // A parse error was reported before; aliases are not expanded here.
    for (_, span) in granit_parser::Parser::new_from_str(&source.text).map_while(Result::ok) {
        let Some(range) = span.tag_span().and_then(|tag| tag.byte_range()) else { continue };
        let tag = source.text.get(range.clone()).unwrap_or_default();
        let message = format!("the tag `{}` is not supported", crate::expr::shown(tag));
        let problem = source.problem(&range, message);
        problems.push(problem.help("remove the tag; to write text, quote the value"));
    }
}

struct Raw(Spanned<RawKind>);

enum RawKind {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Raw>),
    Map(Vec<(Raw, Raw)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Spanned::deserialize(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for RawKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = RawKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<RawKind, E> {
        Ok(RawKind::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<RawKind, E> {
        Ok(RawKind::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<RawKind, E> {
        Ok(RawKind::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<RawKind, E> {
        Ok(RawKind::Number(number.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<RawKind, E> {
        Number::from_f64(number).map(RawKind::Number).ok_or_else(|| E::custom("the number is not finite"))
    }

    fn visit_str<E>(self, text: &str) -> Result<RawKind, E> {
        Ok(RawKind::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<RawKind, E> {
        Ok(RawKind::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<RawKind, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(RawKind::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawKind, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(RawKind::Map(map))
    }
}

/// Returns the byte range of `location` in the source; empty if the reader knows only the start.
pub(super) fn span_of(source: &SourceText, location: &Location) -> Range<usize> {
    let span = location.span();
    if let (Some(start), Some(len)) = (span.byte_offset(), span.byte_len()) {
        let start = usize::try_from(start).unwrap_or(usize::MAX).min(source.text.len());
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        return start..start.saturating_add(len).min(source.text.len());
    }
    let characters = usize::try_from(span.offset()).unwrap_or(usize::MAX);
    let start = source.text.char_indices().nth(characters).map_or(source.text.len(), |(at, _)| at);
    let len = source.text[start..].chars().next().map_or(0, char::len_utf8);
    start..start + len
}

fn place(source: &SourceText, raw: Raw, problems: &mut Problems) -> Node {
    let Spanned { value, referenced, defined } = raw.0;
    let defined_span = span_of(source, &defined);
    let own = referenced == defined;
    let mut span = if own { defined_span.clone() } else { span_of(source, &referenced) };
    let scalar = |text: &str| Some(text.trim_end().to_owned());
    let spelling = source.text.get(defined_span.clone()).and_then(scalar);
    let (kind, spelling) = match value {
        RawKind::Null => (Kind::Null, spelling),
        RawKind::Bool(truth) => (Kind::Bool(truth), spelling),
        RawKind::Number(number) => {
            let is_whole =
                |text: &str| text.trim_start_matches(['-', '+']).bytes().all(|byte| byte.is_ascii_digit());
            let changes = |text: &str| is_whole(text) || exact_number(text) == Err(NumberError::Changes);
            if number.is_f64() && spelling.as_deref().is_some_and(changes) {
                let message = "the number has too many digits";
                problems.push(
                    source.problem(&span, message).help("put the number in quotes: text keeps every digit"),
                );
            }
            (Kind::Number(number), spelling)
        }
        RawKind::Text(text) => (Kind::Text(text), None),
        RawKind::List(items) => {
            (Kind::List(items.into_iter().map(|item| place(source, item, problems)).collect()), None)
        }
        RawKind::Map(entries) => {
            let entries = entries.into_iter();
            let entries =
                entries.map(|(key, value)| (place(source, key, problems), place(source, value, problems)));
            let entries: Vec<_> = entries.collect();
            check_keys(source, &entries, problems);
            // A block map has no text of its own; its first key marks the place.
            if let (true, Some((key, _))) = (span.is_empty(), entries.first()) {
                span = key.span.clone();
            }
            (Kind::Map(entries), None)
        }
    };
    Node { kind, span, own_text: own.then_some(defined_span), spelling }
}

fn check_keys(source: &SourceText, entries: &[(Node, Node)], problems: &mut Problems) {
    let mut seen: std::collections::HashMap<&str, &Node> = std::collections::HashMap::new();
    for (key, _) in entries {
        if matches!(key.kind, Kind::List(_) | Kind::Map(_)) {
            let problem = source.problem(&key.span, format!("a key must be a word, not {}", key.described()));
            problems.push(problem.help("write a word; quote a value that begins with `{` or `[`"));
            continue;
        }
        if let Some(first) = seen.insert(key.key_text(), key) {
            let message = format!("duplicate key `{}` in this map", key.key_text());
            problems.push(
                source
                    .problem(&key.span, message)
                    .related(source, &first.span, "first here")
                    .help("remove one"),
            );
        }
    }
}
