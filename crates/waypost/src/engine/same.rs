//! Whether two states are the same, whatever the order in which their maps were written.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// Says whether two JSON texts have the same members, items and scalars. Scalars are compared as they were written, so
/// that no digit is lost; what is no JSON is the same as nothing.
///
/// Both come from the same writer, without space between their parts. Their depth is limited by
/// [`STATE_DEPTH_MAX`](crate::record::STATE_DEPTH_MAX).
pub(super) fn same_json(one: &[u8], other: &[u8]) -> bool {
    let read = |bytes| serde_json::from_slice::<&RawValue>(bytes).ok();
    match (read(one), read(other)) {
        (Some(one), Some(other)) => same(one, other),
        _ => false,
    }
}

fn same(one: &RawValue, other: &RawValue) -> bool {
    let (one, other) = (one.get(), other.get());
    if one == other {
        return true;
    }
    match (one.as_bytes().first(), other.as_bytes().first()) {
        (Some(b'{'), Some(b'{')) => match (members(one), members(other)) {
            (Some(one), Some(other)) => {
                one.len() == other.len()
                    && one.iter().zip(&other).all(|(one, other)| one.0 == other.0 && same(one.1, other.1))
            }
            _ => false,
        },
        (Some(b'['), Some(b'[')) => match (items(one), items(other)) {
            (Some(one), Some(other)) => {
                one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| same(one, other))
            }
            _ => false,
        },
        _ => false,
    }
}

fn members(text: &str) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_str(text).ok()
}

fn items(text: &str) -> Option<Vec<&RawValue>> {
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::same_json;

    #[test]
    fn order_of_members_makes_no_other_state_and_digits_do() {
        let same = |one: &str, other: &str| same_json(one.as_bytes(), other.as_bytes());

        assert!(same(r#"{"a":1,"b":[{"c":null,"d":"x"}]}"#, r#"{"b":[{"d":"x","c":null}],"a":1}"#));
        assert!(!same(
            r#"{"a":340282366920938463463374607431768211455}"#,
            r#"{"a":340282366920938463463374607431768211454}"#
        ));
        assert!(!same(r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#));
        assert!(!same(r#"{"a":1}"#, r#"{"a":1,"b":2}"#));
        assert!(!same(r#"{"a":"1"}"#, r#"{"a":1}"#));
    }
}
