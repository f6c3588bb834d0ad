//! States of older programs: migrated on read, additive by default; newer states are refused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use waypost::ScopePath;
use waypost::record::{Body, Position, Record};
use waypost::schema::{ChainError, Migrations, SchemaError, decode};
use waypost_testing::records::{Links, run_id};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct State {
    topic: String,
    queries: Vec<String>,
    budget: u32,
}

/// Version 0 had only `topic`, version 1 added `queries`, and version 2 `budget`.
fn migrations() -> Migrations {
    Migrations::builder()
        .add(1, |state| {
            state["budget"] = json!(10);
            Ok(())
        })
        .add(0, |state| {
            state["queries"] = json!([]);
            Ok(())
        })
        .build()
        .unwrap()
}

fn one(change: impl Fn(&mut Value) + Send + Sync + 'static) -> Migrations {
    let change = move |state: &mut Value| {
        change(state);
        Ok(())
    };
    Migrations::builder().add(0, change).build().unwrap()
}

fn state(topic: &str, queries: &[&str], budget: u32) -> State {
    State { topic: topic.to_owned(), queries: queries.iter().map(ToString::to_string).collect(), budget }
}

#[test]
fn a_state_of_any_older_version_is_read_as_the_current_one() {
    let migrations = migrations();

    assert_eq!(migrations.current(), 2);
    let read = |version, text: &str| migrations.read::<State>(version, text.as_bytes()).unwrap();
    assert_eq!(read(0, r#"{"topic":"tea"}"#), state("tea", &[], 10));
    assert_eq!(read(1, r#"{"topic":"tea","queries":["q"]}"#), state("tea", &["q"], 10));
    assert_eq!(read(2, r#"{"topic":"tea","queries":["q"],"budget":1}"#), state("tea", &["q"], 1));
}

#[test]
fn a_state_that_was_written_without_a_version_is_version_0() {
    // Given a record as written by a program without a schema.
    let mut links = Links::of(&run_id("r"));
    let record = links.seal(links.header(&ScopePath::main()), &json!({"topic": "tea"}));
    assert!(!String::from_utf8_lossy(record.header_bytes()).contains("schema"));

    let read: State = migrations().state(&record).unwrap();

    assert_eq!(read, state("tea", &[], 10));
}

#[test]
fn a_newer_state_is_refused_with_versions_and_not_relabelled() {
    let links = Links::of(&run_id("r"));
    let newer = Body::json(&Position::default(), &state("tea", &[], 1), 99).unwrap();
    let record = Record::seal(links.header(&ScopePath::main()), Some(newer)).unwrap();

    let refused = migrations().state::<State>(&record).unwrap_err();

    assert!(matches!(refused, SchemaError::Newer { found: 99, supported: 2 }));
    assert_eq!(refused.to_string(), "the state has schema version 99, this program reads up to 2");
    // Even without migrations, and for a compatible state.
    assert!(Migrations::default().read::<Value>(1, b"{}").is_err());
    assert!(migrations().migrate(3, json!({})).is_err());
}

#[test]
fn the_current_version_is_read_without_a_detour() {
    let calls = Arc::new(AtomicU32::new(0));
    let counter = calls.clone();
    let migrations = one(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });

    // A value that a conversion through `Value` would change.
    let wide: i128 = migrations.read(1, b"123456789012345678901234567890").unwrap();

    assert_eq!(wide, 123_456_789_012_345_678_901_234_567_890);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[test]
fn a_migrated_state_reads_like_one_that_was_not() {
    // A 128-bit field can be read from text, but not from a `Value`.
    let wide: (i128, f32) = one(|_| ()).read(0, b"[5,0.1]").unwrap();

    assert_eq!(wide, (5, 0.1));
}

#[test]
fn a_hole_in_the_chain_and_a_second_way_are_errors_when_built() {
    let nothing = |_: &mut Value| Ok(());

    let hole = Migrations::builder().add(0, nothing).add(2, nothing).add(4, nothing).build().unwrap_err();
    let begin = Migrations::builder().add(1, nothing).build().unwrap_err();
    let twice = Migrations::builder().add(0, nothing).lossy(0, "all", nothing).build().unwrap_err();

    assert_eq!(hole, ChainError::Missing { missing: 1, newest: 4 });
    assert_eq!(hole.to_string(), "there is a migration from schema version 4, but none from 1");
    assert_eq!(begin, ChainError::Missing { missing: 0, newest: 1 });
    assert_eq!(twice, ChainError::Twice { from: 0 });
    assert_eq!(Migrations::builder().build().unwrap().current(), 0);
}

#[test]
fn a_migration_may_add_and_nothing_else() {
    let old = json!({"a": 1, "list": [{"x": 1}, 2], "none": null, "zero": 0.0});
    let refused = |change: fn(&mut Value)| one(change).migrate(0, old.clone()).unwrap_err().to_string();
    let message =
        |what: &str| format!("the migration from schema version 0 {what}, and is not marked as lossy");

    let added = one(|state| {
        state["b"] = json!(2);
        state["list"][0]["y"] = json!(2);
        state["list"].as_array_mut().unwrap().push(json!(3));
    });
    assert_eq!(
        added.migrate(0, old.clone()).unwrap(),
        json!({"a": 1, "list": [{"x": 1, "y": 2}, 2, 3], "none": null, "zero": 0.0, "b": 2})
    );

    let remove = |state: &mut Value| drop(state.as_object_mut().unwrap().remove("a"));
    assert_eq!(refused(remove), message("removes a"));
    assert_eq!(refused(|state| state["a"] = json!(2)), message("changes a"));
    assert_eq!(refused(|state| state["a"] = json!(1.0)), message("changes a"));
    assert_eq!(refused(|state| state["a"] = json!("1")), message("changes a"));
    assert_eq!(refused(|state| state["zero"] = json!(-0.0)), message("changes zero"));
    assert_eq!(refused(|state| state["none"] = json!([])), message("changes none"));
    assert_eq!(
        refused(|state| state["list"][0].as_object_mut().unwrap().clear()),
        message("removes list[0].x")
    );
    assert_eq!(
        refused(|state| state["list"].as_array_mut().unwrap().insert(0, json!(0))),
        message("changes list[0]")
    );
    assert_eq!(
        refused(|state| state["list"].as_array_mut().unwrap().truncate(1)),
        message("removes list[1]")
    );
    assert_eq!(refused(|state| *state = json!([state.take()])), message("changes the state"));
}

#[test]
fn a_lossy_migration_says_what_it_loses() {
    let migrations = Migrations::builder()
        .add(0, |_| Ok(()))
        .lossy(1, "the old list", |state| {
            *state = json!({"new": true});
            Ok(())
        })
        .add(2, |_| Ok(()))
        .build()
        .unwrap();

    assert_eq!(migrations.migrate(0, json!({"old": [1]})).unwrap(), json!({"new": true}));
    assert_eq!(migrations.losses(0).collect::<Vec<_>>(), [(1, "the old list")]);
    assert_eq!(migrations.losses(2).count(), 0);
    assert_eq!(migrations.losses(9).count(), 0);
}

#[test]
fn a_migration_that_fails_says_from_where_and_why() {
    let migrations =
        Migrations::builder().add(0, |_| Ok(())).add(1, |_| Err("there is no topic".into())).build().unwrap();

    let failed = migrations.read::<Value>(0, b"{}").unwrap_err();

    assert_eq!(failed.to_string(), "cannot migrate the state from schema version 1 to 2");
    assert_eq!(std::error::Error::source(&failed).unwrap().to_string(), "there is no topic");
    assert!(matches!(failed, SchemaError::Step { from: 1, .. }));
}

#[test]
fn a_migration_that_panics_leaves_everything_as_it_was() {
    let mut links = Links::of(&run_id("r"));
    let record = links.seal(links.header(&ScopePath::main()), &json!([1]));
    let before = record.clone();
    // A member of an array cannot be set: serde_json panics.
    let migrations = one(|state| state["member"] = json!(1));

    let panicked = catch_unwind(AssertUnwindSafe(|| migrations.state::<Value>(&record).is_ok()));

    assert!(panicked.is_err());
    assert_eq!(record, before);
    assert_eq!(migrations.read::<Value>(0, b"{}").unwrap(), json!({"member": 1}));
}

#[test]
fn a_migration_that_makes_too_much_of_a_state_is_refused() {
    let deep = one(|state| {
        for _ in 0..200 {
            *state = json!({"state": state.take()});
        }
    });
    let lossy = Migrations::builder()
        .lossy(0, "its place", |state| {
            for _ in 0..200 {
                *state = json!([state.take()]);
            }
            Ok(())
        })
        .build()
        .unwrap();

    assert!(matches!(deep.read::<Value>(0, b"1").unwrap_err(), SchemaError::NotAdditive { .. }));
    assert!(matches!(lossy.read::<Value>(0, b"1").unwrap_err(), SchemaError::Step { from: 0, .. }));
}

#[test]
fn a_state_that_does_not_fit_its_type_is_refused_by_field() {
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Deep {
        steps: Vec<Step>,
        ids: std::collections::BTreeMap<String, waypost::RunId>,
    }
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    enum Step {
        Run { attempts: u8 },
    }
    let refused = |text: &str| {
        let error = decode::<Deep>(text.as_bytes()).unwrap_err();
        (error.path.to_string(), error.why.split(" at line").next().unwrap().to_owned())
    };

    let (path, why) = refused(r#"{"steps":[{"Run":{"attempts":1}},{"Run":{"attempts":300}}],"ids":{}}"#);
    assert_eq!(
        (path.as_str(), why.as_str()),
        ("steps[1].Run.attempts", "invalid value: integer `300`, expected u8")
    );
    assert_eq!(refused(r#"{"steps":[{"Run":{}}],"ids":{}}"#).1, "missing field `attempts`");
    assert_eq!(refused(r#"{"steps":[{"Run":{}}],"ids":{}}"#).0, "steps[0].Run");
    assert_eq!(refused(r#"{"steps":[],"ids":{"a b":"../up"}}"#).0, r#"ids["a b"]"#);
    assert_eq!(refused(r#"{"steps":[],"#).0, "the state");
    assert_eq!(
        refused(r#"{"steps":[],"ids":{}} x"#),
        ("the state".to_owned(), "trailing characters".to_owned())
    );

    let unread = migrations().read::<State>(1, br#"{"topic":"tea","queries":[1]}"#).unwrap_err();
    assert!(unread.to_string().starts_with("queries[0]: invalid type"), "{unread}");
}

#[test]
fn a_foreign_state_and_a_dropped_one_have_two_errors() {
    let mut links = Links::of(&run_id("r"));
    let foreign = links.seal_opaque(links.header(&ScopePath::main()), b"\x80\x04pickle");
    let dropped = links.record(&ScopePath::main()).without_body();

    let refused = |record| migrations().state::<Value>(record).unwrap_err();

    assert!(matches!(refused(&foreign), SchemaError::Foreign { .. }));
    assert_eq!(refused(&dropped).to_string(), "retention dropped the state of checkpoint r@2");
}
