//! Hash sets and hash maps, in an order of their own: equal states are equal bytes.
//!
//! The order of a hash set differs from one value to the next, also where both have the same elements. Elements are
//! written in the order of their texts, and entries in the order of their keys.
//!
//! A serialiser sees a set as a list; only `collect_seq` and `collect_map` get the type. A set that is serialised
//! through a buffer, as in a flattened enum, or by a custom function keeps its order. A state that is read and written
//! again may then have other bytes, and more steps rerun than necessary.

use std::any::type_name;
use std::ops::Range;

use serde::ser::{Serialize, SerializeMap as _};

use super::key::Entries;
use super::{List, Refusal, Text};

/// Where the types of the standard library are, with their iterators.
const STD: &str = "std::collections::hash::";
/// The names of unordered types elsewhere, as in `hashbrown`.
const NAMES: [&str; 2] = ["HashSet", "HashMap"];

/// Says whether a collection, or an iterator of one, has no order.
pub(super) fn is_unordered<I>() -> bool {
    let name = type_name::<I>().trim_start_matches('&').trim_start_matches("mut ");
    let name = name.split_once('<').map_or(name, |(name, _)| name);
    name.starts_with(STD) || name.rsplit("::").next().is_some_and(|last| NAMES.contains(&last))
}

/// Writes the elements of a set.
pub(super) fn set<I>(mut list: List<'_, '_>, elements: I) -> Result<(), Refusal>
where
    I: IntoIterator<Item: Serialize>,
{
    let begin = list.text.bytes.len();
    let mut parts = Vec::new();
    for element in elements {
        let begin = list.text.bytes.len() + usize::from(!list.first);
        list.element(&element)?;
        parts.push(begin..list.text.bytes.len());
    }
    sort(list.text, begin, parts);
    list.finish()
}

/// Writes the entries of a map.
pub(super) fn map<K: Serialize, V: Serialize>(
    text: &mut Text<'_>,
    entries: impl IntoIterator<Item = (K, V)>,
) -> Result<(), Refusal> {
    let mut map = Entries::open(text)?;
    let begin = map.text().bytes.len();
    let mut parts = Vec::new();
    for (key, value) in entries {
        let begin = map.text().bytes.len() + usize::from(!parts.is_empty());
        map.serialize_entry(&key, &value)?;
        parts.push(begin..map.text().bytes.len());
    }
    // The keys are looked at where they were written.
    map.end()?;
    sort(text, begin, parts);
    Ok(())
}

/// Puts the parts of a list that begins at `begin` in the order of their texts.
fn sort(text: &mut Text<'_>, begin: usize, mut parts: Vec<Range<usize>>) {
    let Some(end) = parts.last().map(|last| last.end) else { return };
    if parts.is_sorted_by(|one, other| text.bytes[one.clone()] <= text.bytes[other.clone()]) {
        return;
    }
    let unsorted = text.bytes[begin..end].to_vec();
    let of = |part: &Range<usize>| &unsorted[part.start - begin..part.end - begin];
    parts.sort_unstable_by(|one, other| of(one).cmp(of(other)));
    let mut at = begin;
    for (count, part) in parts.iter().enumerate() {
        if count > 0 {
            text.bytes[at] = b',';
            at += 1;
        }
        text.bytes[at..at + part.len()].copy_from_slice(of(part));
        at += part.len();
    }
}
