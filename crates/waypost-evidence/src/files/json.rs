//! `json_value`: a value in a JSON file.

use std::fmt;

use async_trait::async_trait;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site, read_file};
use waypost::record::{Claim, Verdict};

use crate::expectations::expected::Expected;
use crate::expectations::observed::recorded;
use crate::fits;

/// Recorded kind of claims about a value in a JSON file.
pub const JSON_VALUE: &str = "json_value";
/// Largest JSON file; the parsed tree needs ten times its size.
pub(crate) const JSON_BYTES_MAX: usize = 16 << 20;

/// Checks `json_value`: the value at `path` in a file fits `value`.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonProbe;

#[async_trait]
impl Probe for JsonProbe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(JSON_VALUE, Cost::Reading).local()
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let expect = Expected::read(&claim.expect, "a JSON file", &["path", "value"])?;
        let (Some(path), Some(wanted)) = (expect.get("path").and_then(Value::as_str), expect.get("value"))
        else {
            return Err(Finding::failed("the claim needs `path` and `value`"));
        };
        check_path(path).map_err(Finding::failed)?;
        let bytes = read_file(site, &claim.subject, JSON_BYTES_MAX).await.map_err(Finding::either_way)?;
        let value = read_json(&bytes, "it")?;
        let absent = || Finding::absent(format!("the file has no value at `{path}`"));
        let found = at(&value, path).map_err(Finding::failed)?.ok_or_else(absent)?;
        let finding = Finding::compared(fits(wanted, found)?, recorded(found));
        let is_null = finding.verdict() == Verdict::Failed && found.is_null();
        Ok(if is_null { finding.because("the value is null") } else { finding })
    }
}

/// Prefixes of parser errors about limits of this parser rather than invalid JSON.
const LIMITS: [&str; 2] = ["recursion limit exceeded", "number out of range"];

/// Parses JSON and rejects duplicate keys, because parsers disagree on the winner. An error is a finding
/// about `what`.
pub(crate) fn read_json(bytes: &[u8], what: &str) -> Result<Value, Finding> {
    serde_json::from_slice(bytes).map(|Once(value)| value).map_err(|error| {
        let why = error.to_string();
        match error.is_data() {
            true => Finding::failed(format!("{what} {why}")),
            false if LIMITS.iter().any(|limit| why.starts_with(limit)) => {
                Finding::unknown(format!("cannot read the JSON of {what}: {why}"))
            }
            false => Finding::failed(format!("{what} is not JSON: {why}")),
        }
    })
}

/// A value without duplicate keys.
struct Once(Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(truth.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Once(item)) = list.next_element()? {
            items.push(item);
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Map::new();
        while let Some((key, Once(value))) = map.next_entry::<String, Once>()? {
            if entries.contains_key(&key) {
                let why = format!("the key `{key}` is there twice");
                return Err(A::Error::custom(why));
            }
            entries.insert(key, value);
        }
        Ok(entries.into())
    }
}

/// Returns the value at a path, if present.
pub(crate) fn at<'v>(value: &'v Value, path: &str) -> Result<Option<&'v Value>, String> {
    Ok(parts_of(path)?.iter().try_fold(value, |value, part| part.of(value)))
}

/// A segment of a path.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Name(String),
    Index(usize),
}

impl Part {
    fn of<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        match self {
            Self::Name(name) => value.get(name),
            Self::Index(index) => value.get(index),
        }
    }
}

/// Checks that a path is well-formed.
///
/// # Errors
/// The reason as text.
pub fn check_path(path: &str) -> Result<(), String> {
    parts_of(path).map(drop)
}

/// Parses `$.meta.items[0].name`; names contain neither dots nor brackets.
fn parts_of(path: &str) -> Result<Vec<Part>, String> {
    let wrong = || format!("`{path}` is not a path, such as `$.meta.count` or `$.items[0].name`");
    let mut rest = path.strip_prefix('$').ok_or_else(wrong)?;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (name, next) = after.split_at(end);
            if name.is_empty() {
                return Err(wrong());
            }
            parts.push(Part::Name(name.to_owned()));
            rest = next;
        } else {
            let (index, next) =
                rest.strip_prefix('[').and_then(|after| after.split_once(']')).ok_or_else(wrong)?;
            parts.push(Part::Index(index.parse().map_err(|_| wrong())?));
            rest = next;
        }
    }
    Ok(parts)
}
