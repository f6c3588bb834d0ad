//! Random workflows of Prodigy: each becomes a workflow file that passes the check.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

/// Texts with variables of all kinds, in commands and prompts.
fn text() -> impl Strategy<Value = String> {
    let words = [
        "echo",
        "git",
        "${item}",
        "${item.a}",
        "${foreach.item}",
        "$ARG",
        "${step.files_added}",
        "${workflow.commits:json}",
        "${shell.output}",
        "${cap}",
        "${CORES}",
        "${validation.gaps}",
        "${map.total}",
        "${x:-y}",
        "${s1.output}",
        "${step.files_changed:*.rs}",
        "${index}/${total}",
        "\"q\"",
        "'s'",
        "${map.results}",
        "${env.Z}",
        "${env.Z:-q}",
        "${unknown.z}",
        "${SECRET}",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 1..4).prop_map(|words| words.join(" "))
}

/// What a step does, without steps of its own.
fn work() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => text().prop_map(|text| json!({ "shell": text })),
        4 => text().prop_map(|text| json!({ "claude": format!("/{text}") })),
        1 => text().prop_map(|text| json!({ "write_file": { "path": "a", "content": text, "create_dirs": true } })),
        1 => text().prop_map(|text| json!({ "test": { "command": text } })),
    ]
}

/// Keys of a step, some of which exclude each other.
fn keys() -> impl Strategy<Value = Vec<(String, Value)>> {
    let keys = [
        ("id", json!("s1")),
        ("id", json!("a b")),
        ("commit_required", json!(true)),
        ("auto_commit", json!(true)),
        ("retry_config", json!({ "max_attempts": 4, "backoff": { "fixed": { "delay": "2s" } } })),
        ("when", json!("${cap} == 'a'")),
        ("when", json!("exists(${x})")),
        ("when", json!("${s1.exit_code == 0 && CORES}")),
        ("capture", json!("cap")),
        ("capture_output", json!("password")),
        ("capture_format", json!("json")),
        ("timeout", json!(5)),
        ("working_dir", json!("${CORES}")),
        ("env", json!({ "A": "${cap}", "CORES": "2" })),
        ("outputs", json!({ "spec": { "file_pattern": "*.md" } })),
        ("continue_on_error", json!(true)),
    ];
    let keys = keys.map(|(key, value)| (key.to_owned(), value)).to_vec();
    prop::sample::subsequence(keys, 0..5)
}

fn with(mut step: Value, keys: Vec<(String, Value)>) -> Value {
    if let Some(map) = step.as_object_mut() {
        map.extend(keys);
    }
    step
}

/// Steps, with steps inside them to a depth of three.
fn step() -> impl Strategy<Value = Value> {
    let leaf = (work(), keys()).prop_map(|(work, keys)| with(work, keys));
    leaf.prop_recursive(3, 24, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 1..3);
        let validate = (list.clone(), list.clone(), any::<bool>(), any::<bool>()).prop_map(
            |(check, repair, file, fails)| {
                let mut validate = json!({ "commands": check, "threshold": 80, "timeout": 9 });
                validate["on_incomplete"] =
                    json!({ "commands": repair, "max_attempts": 2, "fail_workflow": fails });
                if file {
                    validate["result_file"] = json!("r-${item_id}.json");
                }
                json!({ "shell": "x", "validate": validate })
            },
        );
        prop_oneof![
            list.clone()
                .prop_map(|list| json!({ "foreach": { "input": ["a", "b"], "do": list, "parallel": 3 } })),
            list.clone()
                .prop_map(|list| json!({ "foreach": { "input": { "command": "ls ${cap}" }, "do": list } })),
            (inner.clone(), keys())
                .prop_map(|(inner, keys)| with(json!({ "shell": "x", "on_success": inner }), keys)),
            (inner.clone(), 0..3_u8, any::<bool>()).prop_map(|(repair, count, fails)| {
                let keys = vec![
                    ("max_attempts".to_owned(), json!(count)),
                    ("fail_workflow".to_owned(), json!(fails)),
                ];
                json!({ "shell": "x", "on_failure": with(repair, keys) })
            }),
            (list, keys()).prop_map(|(list, keys)| with(
                json!({ "claude": "/x", "on_failure": { "commands": list } }),
                keys
            )),
            inner.prop_map(|inner| json!({ "shell": "x", "on_exit_code": { "3": inner } })),
            (validate, keys()).prop_map(|(validate, keys)| with(validate, keys)),
        ]
    })
}

fn workflow() -> impl Strategy<Value = Value> {
    let list = || prop::collection::vec(step(), 1..4);
    let env = json!({ "A": "1", "CORES": { "command": "nproc" } });
    let plain = (list(), any::<bool>()).prop_map(|(list, retries)| {
        let mut file = json!({ "commands": list });
        if retries {
            file["retry_defaults"] = json!({ "attempts": 2 });
        }
        file
    });
    let inputs = prop::sample::select(vec!["a.json", "./list.sh ${CORES}"]);
    let map = (inputs, list(), list(), list()).prop_map(|(input, setup, template, reduce)| {
        let policy = json!({ "on_item_failure": "retry", "retry_config": { "max_attempts": 2 } });
        let map = json!({ "input": input, "json_path": "$.items[*]", "agent_template": template, "max_parallel": 5 });
        json!({ "name": "n", "setup": setup, "map": map, "reduce": reduce, "error_policy": policy, "merge": ["x"] })
    });
    prop_oneof![plain, map].prop_map(move |file| {
        with(file, vec![("env".to_owned(), env.clone()), ("secrets".to_owned(), json!(["SECRET"]))])
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_made_file_passes_the_check(workflow in workflow()) {
        // A document of JSON is one of YAML, too.
        let text = serde_json::to_string_pretty(&workflow).unwrap();
        let imported = waypost_import::prodigy(text.as_bytes(), Path::new("p.yml"));
        if let Err(error) = &imported {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            return Err(TestCaseError::fail(format!("{error}: {}", cause.unwrap_or_default())));
        }
    }
}
