//! The JSON Schema for editors: it takes what the reader takes, and it is the one that is checked in.

#![expect(clippy::unwrap_used, reason = "these are tests")]

use std::path::{Path, PathBuf};

use serde_json::Value;
use waypost_workflow::file::{read_params_file, schema};

/// Keywords that say nothing about what is allowed.
const SILENT: [&str; 5] = ["$schema", "$defs", "title", "description", "maxLength"];

/// Says what of `value` a schema refuses: as much of the language of schemas as ours is written in.
fn refused(root: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (keyword, wanted) in schema.as_object().unwrap() {
        let mut no = || wrong.push(format!("{at}: {value} is not {keyword} {wanted}"));
        let number = value.as_f64();
        match keyword.as_str() {
            "$ref" => {
                let found = root.pointer(wanted.as_str().unwrap().trim_start_matches('#')).unwrap();
                wrong.extend(refused(root, found, value, at));
            }
            "anyOf" => {
                let every = wanted.as_array().unwrap().iter().map(|one| refused(root, one, value, at));
                let every: Vec<_> = every.collect();
                if every.iter().all(|one| !one.is_empty()) {
                    wrong.extend(every.into_iter().min_by_key(Vec::len).unwrap());
                }
            }
            "type" => {
                let is = |kind: &Value| match kind.as_str().unwrap() {
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "number" => value.is_number(),
                    "integer" => value.is_u64() || value.is_i64(),
                    "array" => value.is_array(),
                    "object" => value.is_object(),
                    other => panic!("{other}"),
                };
                if !wanted.as_array().map_or_else(|| is(wanted), |kinds| kinds.iter().any(is)) {
                    no();
                }
            }
            "const" if value != wanted => no(),
            "enum" if !wanted.as_array().unwrap().contains(value) => no(),
            "minimum" if number.is_some_and(|number| number < wanted.as_f64().unwrap()) => no(),
            "exclusiveMinimum" if number.is_some_and(|number| number <= wanted.as_f64().unwrap()) => no(),
            "maximum" if number.is_some_and(|number| number > wanted.as_f64().unwrap()) => no(),
            "minItems" if value.as_array().is_some_and(Vec::is_empty) => no(),
            "pattern" => {
                let pattern = regex_lite::Regex::new(wanted.as_str().unwrap()).unwrap();
                if value.as_str().is_some_and(|text| !pattern.is_match(text)) {
                    no();
                }
            }
            "required" => {
                let absent = |key: &Value| value.is_object() && value.get(key.as_str().unwrap()).is_none();
                if wanted.as_array().unwrap().iter().any(absent) {
                    no();
                }
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    wrong.extend(refused(root, wanted, item, &format!("{at}[{index}]")));
                }
            }
            "properties" | "additionalProperties" => {
                for (key, item) in value.as_object().into_iter().flatten() {
                    let own = schema.get("properties").and_then(|known| known.get(key));
                    let at = format!("{at}.{key}");
                    match (keyword.as_str(), own) {
                        ("properties", Some(own)) => wrong.extend(refused(root, own, item, &at)),
                        ("additionalProperties", None) if wanted == false => {
                            wrong.push(format!("{at} is not known"));
                        }
                        ("additionalProperties", None) => wrong.extend(refused(root, wanted, item, &at)),
                        _ => {}
                    }
                }
            }
            "const" | "enum" | "minimum" | "exclusiveMinimum" | "maximum" | "minItems" => {}
            silent => assert!(SILENT.contains(&silent), "the test does not know `{silent}`"),
        }
    }
    wrong
}

fn check(value: &Value) -> Vec<String> {
    let schema = schema();
    refused(&schema, &schema, value, "file")
}

/// Reads YAML as a value.
fn yaml(text: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.yaml");
    std::fs::write(&file, text).unwrap();
    Value::Object(read_params_file(&file).unwrap())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_schema_that_is_checked_in_is_that_of_the_reader() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/workflow.schema.json");
    let expected = serde_json::to_string_pretty(&schema()).unwrap() + "\n";

    let found = std::fs::read_to_string(&file).unwrap_or_default();

    assert!(
        found == expected,
        "it is another: `cargo run -p waypost-cli -- schema > crates/waypost-workflow/schema/workflow.schema.json`"
    );
}

#[test]
fn the_schema_takes_the_files_that_the_reader_takes() {
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let file = entry.unwrap().path().join("waypost.yaml");
        if let Ok(text) = std::fs::read_to_string(&file) {
            assert_eq!(check(&yaml(&text)), Vec::<String>::new(), "{}", file.display());
            count += 1;
        }
    }
    assert!(count > 0, "there are examples");
    let all = r#"
version: 1
name: x
params: {a: {type: integer, default: 3}, b: {required: false, pattern: "^x"}}
env: {A: 1, B: yes}
secrets: [T]
defaults: {shell: [sh, -c], timeout: 5m, retry: {max: 2, delay: 500ms, when: [timeout, exit 75]}}
budget: {cost: 0.5, tokens: 2M}
checkpoints: {retention: 3, durability: async, on_failure: tolerate, interval: 1h30m}
on_failure: [{run: a}]
steps:
  - {id: a, run: "true", retry: 5, continue_on_error: [1, 3], outputs: {x: {from: y, json: $.a}}, if: always()}
  - {approve: {question: ok?, choices: [a, b]}}
  - {sleep: 5s}
  - {run: a, repeat: {until: "true", max: 3}, on_exit_code: {3: [{run: b}]}, needs: a}
  - foreach: {items: {run: ls}, as: f, key: "${{ f }}", distinct: true, failure_rate: 0.5, steps: [{run: a}]}
"#;
    assert_eq!(check(&yaml(all)), Vec::<String>::new());
    assert_eq!(check(&yaml(all)["steps"]), Vec::<String>::new(), "a list of steps alone is a workflow");
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
    for wrong in [
        "name: x",
        "steps: []",
        "stepz: [{run: a}]\nsteps: [{run: a}]",
        "steps: [{rn: a}]",
        "steps: [{run: a, timeout: 5}]",
        "steps: [{run: a, timeout: 5x}]",
        "steps: [{run: a, retry: {mx: 3}}]",
        "steps: [{run: a, capture: yaml}]",
        "steps: [{run: a, idempotent: yes}]",
        "version: 2\nsteps: [{run: a}]",
        "budget: {cost: 0}\nsteps: [{run: a}]",
        "steps: [{foreach: {as: x, steps: [{run: a}]}}]",
        "steps: [{foreach: {items: [1], steps: [{rn: a}]}}]",
    ] {
        assert!(!check(&yaml(wrong)).is_empty(), "{wrong}");
    }
}
