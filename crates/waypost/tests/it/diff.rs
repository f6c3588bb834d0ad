//! The differences of two states: complete, at the right place, in bounded time.

use proptest::prelude::*;
use serde_json::{Value, json};
use waypost::diff::{Change, Difference, diff};
use waypost::path::Segment;

fn lines(before: &Value, after: &Value) -> Vec<String> {
    diff(before, after).iter().map(ToString::to_string).collect()
}

#[test]
fn members_are_added_removed_and_changed() {
    let before = json!({"same": [1], "gone": {"a": 1}, "price": 1, "kind": "x", "deep": {"a b": {"c": 1}}});
    let after = json!({"deep": {"a b": {"c": 2}}, "kind": ["x"], "new": null, "same": [1], "price": 2.5});

    assert_eq!(
        lines(&before, &after),
        [
            r#"- gone: {"a":1}"#,
            "~ price: 1 -> 2.5",
            r#"~ kind: "x" -> ["x"]"#,
            r#"~ deep["a b"].c: 1 -> 2"#,
            "+ new: null",
        ]
    );
}

#[test]
fn the_order_of_members_is_no_difference() {
    assert_eq!(
        lines(&json!({"a": 1, "b": [{"c": 1, "d": 2}]}), &json!({"b": [{"d": 2, "c": 1}], "a": 1})),
        [""; 0]
    );
}

#[test]
fn the_whole_state_may_differ() {
    assert_eq!(lines(&json!(1), &json!([1])), ["~ the state: 1 -> [1]"]);
    assert_eq!(lines(&json!(null), &json!({})), ["~ the state: null -> {}"]);
    assert_eq!(lines(&json!(1), &json!(1.0)), ["~ the state: 1 -> 1.0"]);
}

#[test]
fn an_insertion_is_one_difference_wherever_it_is() {
    let before: Vec<Value> = (0..100).map(|n| json!({"n": n, "text": "x".repeat(10)})).collect();
    for at in [0, 1, 50, 99, 100] {
        let mut after = before.clone();
        after.insert(at, json!("new"));

        assert_eq!(lines(&json!(before), &json!(after)), [format!(r#"+ [{at}]: "new""#)]);
        assert_eq!(lines(&json!(after), &json!(before)), [format!(r#"- [{at}]: "new""#)]);
    }
}

#[test]
fn elements_that_changed_are_looked_into() {
    let before = json!({"steps": [{"id": "a", "n": 1}, {"id": "b", "n": 1}, {"id": "c", "n": 1}]});
    let after = json!({"steps": [{"id": "new", "n": 0}, {"id": "a", "n": 1}, {"id": "c", "n": 2}]});

    assert_eq!(
        lines(&before, &after),
        [r#"+ steps[0]: {"id":"new","n":0}"#, r#"- steps[1]: {"id":"b","n":1}"#, "~ steps[2].n: 1 -> 2",]
    );
    assert_eq!(lines(&json!([1, 2, 3]), &json!([1, 5, 3])), ["~ [1]: 2 -> 5"]);
    assert_eq!(
        lines(&json!([{"id": 1, "x": 0}]), &json!([{"id": 2, "x": 0}])),
        [r#"- [0]: {"id":1,"x":0}"#, r#"+ [0]: {"id":2,"x":0}"#]
    );
    assert_eq!(
        lines(
            &json!([{"id": 1, "x": 0}, {"id": 2, "x": 0}]),
            &json!([{"id": 0}, {"id": 1, "x": 1}, {"id": 2, "x": 1}])
        ),
        [r#"+ [0]: {"id":0}"#, "~ [1].x: 0 -> 1", "~ [2].x: 0 -> 1"]
    );
}

#[test]
fn what_cannot_be_aligned_in_time_is_compared_place_by_place() {
    // Two lists without a common value, and two with few values in many places.
    let count = 50_000;
    let first: Vec<Value> = (0..count).map(|n| json!(n)).collect();
    let second: Vec<Value> = (0..count).map(|n| json!(n + count)).collect();
    let mixed = |seed: u64| -> Vec<Value> {
        let mut random = seed;
        (0..count)
            .map(|_| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                json!(random >> 63)
            })
            .collect()
    };

    assert_eq!(diff(&json!(first), &json!(second)).len(), first.len());
    let (before, after) = (json!([mixed(1), mixed(3)]), json!([mixed(2), mixed(4)]));
    assert_eq!(patched(&before, &diff(&before, &after)), after);
}

#[test]
fn long_values_are_clipped_for_people_only() {
    let before = json!({"text": "short"});
    let after = json!({"text": "ä".repeat(1_000)});
    let differences = diff(&before, &after);

    let line = differences[0].to_string();
    assert!(line.len() < 200 && line.ends_with('…'), "{line}");
    let told = serde_json::to_value(&differences).unwrap();
    assert_eq!(
        told,
        json!([{"path": "/text", "change": "changed", "before": "short", "after": "ä".repeat(1_000)}])
    );
}

#[test]
fn what_was_added_and_removed_is_told_to_programs() {
    let (before, after) = (json!({"a/b": 1}), json!({"c": null}));

    assert_eq!(
        serde_json::to_value(diff(&before, &after)).unwrap(),
        json!([{"path": "/a~1b", "change": "removed", "before": 1}, {"path": "/c", "change": "added", "after": null}])
    );
}

/// Rebuilds the second state from the first and the differences alone.
fn patched(before: &Value, differences: &[Difference<'_>]) -> Value {
    let mut state = before.clone();
    let depth = |difference: &Difference<'_>| difference.path.segments().len();
    // Removals first, by places of the first state, deepest and last first; then the rest by places of the second
    // state.
    let removed = differences.iter().filter(|d| matches!(d.change, Change::Removed { .. }));
    let mut removed: Vec<_> = removed.collect();
    removed.sort_by(|a, b| depth(b).cmp(&depth(a)).then(b.path.cmp(&a.path)));
    for difference in removed {
        let (last, parents) = difference.path.segments().split_last().unwrap();
        match (last, place(&mut state, parents)) {
            (Segment::Key(key), Value::Object(members)) => drop(members.shift_remove(key).unwrap()),
            (Segment::Index(index), Value::Array(elements)) => drop(elements.remove(*index)),
            _ => panic!("{difference} leads nowhere"),
        }
    }
    let mut added: Vec<_> = differences.iter().filter(|d| matches!(d.change, Change::Added { .. })).collect();
    added.sort_by(|a, b| depth(a).cmp(&depth(b)).then(a.path.cmp(&b.path)));
    for difference in added {
        let Change::Added { after } = difference.change else { continue };
        let (last, parents) = difference.path.segments().split_last().unwrap();
        match (last, place(&mut state, parents)) {
            (Segment::Key(key), Value::Object(members)) => drop(members.insert(key.clone(), after.clone())),
            (Segment::Index(index), Value::Array(elements)) => elements.insert(*index, after.clone()),
            _ => panic!("{difference} leads nowhere"),
        }
    }
    for difference in differences {
        if let Change::Changed { after, .. } = difference.change {
            *place(&mut state, difference.path.segments()) = after.clone();
        }
    }
    state
}

fn place<'a>(state: &'a mut Value, path: &[Segment]) -> &'a mut Value {
    path.iter().fold(state, |value, segment| match segment {
        Segment::Key(key) => &mut value[key],
        Segment::Index(index) => &mut value[index],
    })
}

/// Whether one path has indices of both states, a case beyond `patched`.
fn lists_move(differences: &[Difference<'_>]) -> bool {
    let is_index = |segment: &Segment| matches!(segment, Segment::Index(_));
    differences.iter().any(|difference| {
        let parents = difference.path.segments().split_last().map_or(&[][..], |(_, parents)| parents);
        let within = parents.iter().any(is_index);
        let removed = matches!(difference.change, Change::Removed { .. });
        within && (removed || difference.path.segments().last().is_some_and(is_index))
    })
}

fn states() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..4_i64).prop_map(Value::from),
        "[ab]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 60, 8, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            proptest::collection::btree_map("[a-d]|id", inner, 0..5).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn nothing_differs_if_and_only_if_the_states_are_equal(before in states(), after in states()) {
        prop_assert!(diff(&before, &before).is_empty());
        prop_assert_eq!(diff(&before, &after).is_empty(), before == after);
    }

    #[test]
    fn the_differences_turn_one_state_into_the_other(before in states(), after in states()) {
        let differences = diff(&before, &after);

        prop_assume!(!lists_move(&differences));
        prop_assert_eq!(patched(&before, &differences), after);
    }
}
