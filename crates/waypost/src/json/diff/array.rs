//! Arrays: matches unchanged elements, and pairs the elements between matches.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;

use imara_diff::{Algorithm, Diff, InternedInput};
use serde_json::Value;

use super::{Change, ValueDiff};

/// Members for the identity of list elements, if present in both.
const IDENTITIES: [&str; 3] = ["id", "key", "name"];

impl<'a> ValueDiff<'a> {
    pub(super) fn arrays(&mut self, before: &'a [Value], after: &'a [Value]) {
        if before == after {
            return;
        }
        let mut prints = InternedInput::default();
        prints.update_before(before.iter().map(print));
        prints.update_after(after.iter().map(print));
        let (mut x, mut y) = (0, 0);
        for hunk in Diff::compute(Algorithm::Myers, &prints).hunks() {
            let (first, second) = (in_places(hunk.before), in_places(hunk.after));
            // Elements with equal hashes are compared, too: different values can have one hash.
            self.place_by_place(before, after, x..first.start, y..second.start);
            (x, y) = (first.end, second.end);
            self.gap(before, after, first, second);
        }
        self.place_by_place(before, after, x..before.len(), y..after.len());
    }

    /// Compares the elements between two matches.
    fn gap(&mut self, before: &'a [Value], after: &'a [Value], x: Range<usize>, y: Range<usize>) {
        let mut known = HashMap::new();
        for at in y.clone() {
            if let Some(identity) = identity(&after[at]) {
                // An identity that occurs twice is not used.
                known.entry(identity).and_modify(|place| *place = None).or_insert(Some(at));
            }
        }
        let (mut x_from, mut y_from) = (x.start, y.start);
        for at in x.clone() {
            let place = identity(&before[at]).and_then(|identity| known.remove(&identity)).flatten();
            // Only in order: an element that changed places is a removal and an addition.
            if let Some(place) = place.filter(|place| *place >= y_from) {
                self.place_by_place(before, after, x_from..at, y_from..place);
                self.within(place, |walk| walk.compare(&before[at], &after[place]));
                (x_from, y_from) = (at + 1, place + 1);
            }
        }
        self.place_by_place(before, after, x_from..x.end, y_from..y.end);
    }

    fn place_by_place(&mut self, before: &'a [Value], after: &'a [Value], x: Range<usize>, y: Range<usize>) {
        let both = x.len().min(y.len());
        let (x_rest, y_rest) = (x.start + both..x.end, y.start + both..y.end);
        for (at, place) in x.zip(y) {
            if belong_together(&before[at], &after[place]) {
                self.within(place, |walk| walk.compare(&before[at], &after[place]));
            } else {
                self.note(at, Change::Removed { before: &before[at] });
                self.note(place, Change::Added { after: &after[place] });
            }
        }
        for at in x_rest {
            self.note(at, Change::Removed { before: &before[at] });
        }
        for place in y_rest {
            self.note(place, Change::Added { after: &after[place] });
        }
    }
}

fn in_places(range: Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

/// Returns whether two elements may be versions of one thing: not if their identities differ.
fn belong_together(before: &Value, after: &Value) -> bool {
    match (identity(before), identity(after)) {
        (Some(before), Some(after)) => before == after,
        _ => true,
    }
}

/// Returns the identifying member of an element, and its value.
fn identity(element: &Value) -> Option<(&'static str, String)> {
    let members = element.as_object()?;
    IDENTITIES.iter().find_map(|name| match members.get(*name)? {
        Value::String(text) => Some((*name, text.clone())),
        Value::Number(number) => Some((*name, number.to_string())),
        _ => None,
    })
}

/// Returns a hash that separates most different values; equal values have equal hashes.
fn print(value: &Value) -> u64 {
    let mut hash = DefaultHasher::new();
    std::mem::discriminant(value).hash(&mut hash);
    match value {
        Value::Null => {}
        Value::Bool(value) => value.hash(&mut hash),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(whole), _, _) => whole.hash(&mut hash),
            (_, Some(whole), _) => whole.hash(&mut hash),
            // Positive and negative zero are equal.
            (_, _, Some(float)) => (float + 0.0).to_bits().hash(&mut hash),
            _ => {}
        },
        Value::String(text) => text.hash(&mut hash),
        Value::Array(elements) => elements.iter().for_each(|element| print(element).hash(&mut hash)),
        Value::Object(members) => {
            // Independent of the order of members.
            let mut sum = 0_u64;
            for (key, value) in members {
                let mut hash = DefaultHasher::new();
                key.hash(&mut hash);
                print(value).hash(&mut hash);
                sum = sum.wrapping_add(hash.finish());
            }
            sum.hash(&mut hash);
        }
    }
    hash.finish()
}
