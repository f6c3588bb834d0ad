//! Files that hold together, and what they mean.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};
use waypost_workflow::expr::{Scope, StepView};
use waypost_workflow::file::{
    Backoff, Durability, GivenParams, Mode, OnCheckpointFailure, Parallel, ReadError, Retry, RetryCause,
    Shell, Step, Tolerance, Workflow, parse_duration, parse_params,
};
use waypost_workflow::output::Capture;

use crate::assert_text;

fn workflow(text: &str) -> Workflow {
    Workflow::parse(text, Path::new("flows/nightly.yaml")).unwrap_or_else(|error| panic!("{error}"))
}

fn only_step(text: &str) -> Step {
    workflow(text).steps()[0].clone()
}

fn ids<'w>(steps: impl Iterator<Item = &'w Step>) -> Vec<&'w str> {
    steps.map(|step| step.id.as_str()).collect()
}

const EVERYTHING: &str = r#"
version: 1
name: nightly-report
description: Fetch sales and load them.
params:
  date: { type: string, default: "2026-11-20", pattern: '^\d{4}-\d{2}-\d{2}$' }
  regions: { type: json, default: [eu, us, apac] }
  limit: { type: integer, required: false, description: how many }
env: { DB: data/sales.db, DAY: "${{ params.date }}" }
secrets: [API_TOKEN]
defaults:
  shell: [bash, -euo, pipefail, -c]
  timeout: 10m
  retry: { max: 2, delay: 2s, backoff: exponential, max_delay: 30s, jitter: true, when: [timeout, exit 75] }
  env: { MODE: nightly, DB: "${{ env.DB }}.new" }
  dir: work
max_parallel: 4
timeout: 6h
labels: { team: sales, tier: 1 }
checkpoints: { retention: 20, durability: async, on_failure: tolerate }
steps:
  - id: fetch
    name: Fetch the data
    run: |
      mkdir -p data
      curl -o data/raw.json "https://example.invalid/sales?date=$DATE"
    env: { DATE: "${{ params.date }}", MODE: "${{ env.MODE }}-fetch" }
    retry: 5
    outputs:
      rows: { from: data/raw.json, json: $.meta.count }
      text: { from: "data/${{ params.date }}.txt" }
  - id: load
    needs: [fetch]
    if: steps.fetch.outputs.rows > 0 && steps.fetch.stdout != ''
    run: ./load.sh data/raw.json "$DB"
    dir: loader
    shell: sh
    timeout: 1h30m
    retry: 0
    capture: json
    stdin: ${{ params.regions }}
    continue_on_error: [3, 1, 3]
    idempotent: false
    grace: 500ms
    report: Loaded ${{ steps.fetch.outputs.rows }} rows.
  - id: report
    needs: load
    run: "true"
    continue_on_error: true
    retry: { delay: 5m }
"#;

#[test]
fn every_key_has_its_effect() {
    let workflow = workflow(EVERYTHING);
    let [fetch, load, report] = workflow.steps() else { panic!("three steps") };

    assert_eq!(
        (workflow.name(), workflow.description()),
        ("nightly-report", Some("Fetch sales and load them."))
    );
    assert_eq!(workflow.timeout(), Some(Duration::from_secs(6 * 3600)));
    assert_eq!(workflow.secrets(), ["API_TOKEN"]);
    assert_eq!(workflow.labels()["tier"], "1");
    let checkpoints = workflow.checkpoints();
    assert_eq!(checkpoints.retention, Some(20));
    assert_eq!(checkpoints.durability, Durability::Async);
    assert_eq!(checkpoints.on_failure, OnCheckpointFailure::Tolerate);
    let retry = Retry {
        max: 5,
        delay: Duration::from_secs(2),
        backoff: Backoff::Exponential,
        max_delay: Duration::from_secs(30),
        jitter: true,
        when: vec![RetryCause::Timeout, RetryCause::Exit(75)],
    };
    assert_eq!(fetch.retry, retry);
    assert_eq!((fetch.name.as_deref(), fetch.line), (Some("Fetch the data"), 22));
    assert_eq!(fetch.timeout, Some(Duration::from_secs(600)));
    assert_eq!(fetch.dir.as_ref().map(|dir| dir.as_str()), Some("work"));
    assert_eq!(fetch.continue_on_error, Tolerance::Nothing);
    assert!(fetch.idempotent && fetch.keeps_stdout && !load.keeps_stdout);
    assert_eq!(load.retry.max, 0);
    assert_eq!(load.timeout, Some(Duration::from_secs(5400)));
    assert_eq!(load.shell, Shell::Command(vec!["sh".into(), "-eu".into(), "-c".into()]));
    assert_eq!(load.continue_on_error, Tolerance::ExitCodes(vec![1, 3]));
    assert_eq!((load.capture, load.idempotent), (Some(Capture::Json), false));
    assert_eq!(load.grace, Duration::from_millis(500));
    assert_eq!(
        load.condition.as_ref().unwrap().as_str(),
        "steps.fetch.outputs.rows > 0 && steps.fetch.stdout != ''"
    );
    assert_eq!((report.retry.max, report.retry.delay), (2, Duration::from_secs(300)));
    assert_eq!(report.continue_on_error, Tolerance::Everything);
    assert!(workflow.warnings().is_empty());
}

#[test]
fn a_bare_list_runs_in_order() {
    let workflow = workflow("- run: a\n- run: b\n- {id: last, run: c}\n");

    assert_eq!(ids(workflow.steps().iter()), ["step-1", "step-2", "last"]);
    assert_eq!((workflow.mode(), workflow.name()), (Mode::Sequence, "nightly"));
    let eight = Parallel::Processors(NonZeroUsize::new(8).unwrap());
    assert_eq!(workflow.max_parallel(eight).get(), 1);
    let last = workflow.step("last").unwrap();
    assert_eq!(ids(workflow.upstream(last)), ["step-2"]);
    assert!(ids(workflow.upstream(&workflow.steps()[0])).is_empty());
}

#[test]
fn one_need_makes_a_graph() {
    let text = "steps:\n- {id: a, run: x}\n- {id: b, run: x}\n- {id: c, run: x, needs: [b, a]}\n";
    let free = workflow(text);
    let bound = workflow(&format!("max_parallel: 2\n{text}"));

    let eight = Parallel::Processors(NonZeroUsize::new(8).unwrap());
    assert_eq!(free.mode(), Mode::Graph);
    assert_eq!((free.max_parallel(eight).get(), bound.max_parallel(eight).get()), (8, 2));
    assert!(ids(free.upstream(free.step("b").unwrap())).is_empty());
    assert_eq!(ids(free.upstream(free.step("c").unwrap())), ["b", "a"]);
}

#[test]
fn needs_of_needs_may_be_read() {
    workflow(
        "steps:\n- {id: c, run: x, needs: [b], if: steps.a.exit_code == 0}\n- {id: b, run: x, needs: [a]}\n- {id: a, run: x}\n",
    );
}

#[test]
fn values_of_env_are_spelled_as_in_the_file() {
    let step = only_step(
        "- run: x\n  env:\n    A: 1.10\n    B: 007\n    C: yes\n    D: 0x1F\n    E: 1_000\n    F: true\n    G: 2026-11-20\n    H: ''\n    I: 1e3\n    J: '#'\n    K: -0\n",
    );

    let env = step.resolve_env(&Scope::new("r", &Map::new())).unwrap();

    let spelled = ["1.10", "007", "yes", "0x1F", "1_000", "true", "2026-11-20", "", "1e3", "#", "-0"];
    assert_eq!(env.into_values().collect::<Vec<_>>(), spelled);
}

#[test]
fn layers_of_env_see_those_before_them() {
    let workflow = workflow(EVERYTHING);
    let params = workflow.resolve_params(&GivenParams::default()).unwrap();
    let scope = Scope::new("r-1", &params);

    let fetch = workflow.step("fetch").unwrap();
    let env = fetch.resolve_env(&scope).unwrap();
    let shared = fetch.resolve_shared_env(&scope).unwrap();

    let expect = [
        ("DATE", "2026-11-20"),
        ("DAY", "2026-11-20"),
        ("DB", "data/sales.db.new"),
        ("MODE", "nightly-fetch"),
    ];
    assert_eq!(env, expect.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    assert_eq!((shared["MODE"].as_str(), shared.get("DATE")), ("nightly", None));
    assert_eq!(workflow.env_names().into_iter().collect::<Vec<_>>(), ["DATE"]);
}

#[test]
fn rendering_names_the_step() {
    let workflow = workflow("- {id: a, run: x}\n- {id: b, run: 'echo ${{ steps.a.outputs.rows }}'}\n");
    let mut scope = Scope::new("r", &Map::new());
    let ended = StepView {
        status: "completed".into(),
        exit_code: Some(0),
        stdout: None,
        outputs: Some(Map::new()),
        items: None,
    };
    scope.insert_step("a", &ended);

    let step = workflow.step("b").unwrap();
    let error = step.work.command().unwrap().render(&scope.for_step("b", &BTreeMap::new())).unwrap_err();

    let expect =
        "step `b`: cannot evaluate `steps.a.outputs.rows`: `steps.a.outputs` has no `rows`: the map is empty";
    assert_eq!(error.to_string(), expect);
}

#[test]
fn secrets_that_are_not_set_are_found() {
    let workflow = workflow("secrets: [A_TOKEN, B_TOKEN]\nsteps: [{run: x}]\n");

    assert_eq!(workflow.missing_secrets(|name| name == "A_TOKEN"), ["B_TOKEN"]);
    assert!(workflow.missing_secrets(|_| true).is_empty());
}

#[test]
fn shells_are_what_they_are_called() {
    let words = |text: &str, has_bash| only_step(text).shell.command(has_bash).join(" ");

    assert_eq!(words("- run: x", true), "bash -euo pipefail -c");
    assert_eq!(words("- run: x", false), "sh -eu -c");
    assert_eq!(words("- {run: x, shell: bash}", false), "bash -euo pipefail -c");
    assert_eq!(words("- {run: x, shell: [python3, -c]}", true), "python3 -c");
}

/// The fingerprint of the last step.
fn fingerprint(text: &str) -> String {
    workflow(text).steps().last().expect("a step").fingerprint.clone()
}

#[test]
fn changes_that_touch_nothing_keep_the_fingerprint() {
    let original = "steps:\n  - {id: a, run: x}\n  - id: b\n    run: \"echo hi\"\n    env: {A: x, B: y}\n    needs: [a]\n";
    let same = [
        "# a comment\nsteps:\n  - {id: a, run: x}\n  - id: b\n    run: \"echo hi\" # more\n    env: {A: x, B: y}\n    needs: [a]\n",
        "steps:\n  - {id: a, run: x}\n  - needs: a\n    env:\n      B: y\n      A: 'x'\n    run: echo hi\n    id: b\n",
        "name: other\ndescription: d\nlabels: {a: b}\ntimeout: 5h\nmax_parallel: 7\nsteps:\n  - {id: a, run: x}\n  - {id: b, run: echo hi, env: {A: x, B: y}, needs: [a], name: N, timeout: 5s, retry: 3, grace: 1s, report: r, idempotent: false}\n",
        "env: {A: x}\ndefaults: {timeout: 5s, retry: 2}\nsteps:\n  - {id: a, run: other}\n  - {id: b, run: echo hi, env: {B: y}, needs: [a]}\n",
        "steps:\r\n  - {id: a, run: x}\r\n  - id: b\r\n    run: \"echo hi\"\r\n    env: {A: x, B: y}\r\n    needs: [a]\r\n",
    ];

    for text in same {
        assert_eq!(fingerprint(text), fingerprint(original), "{text}");
    }
}

#[test]
fn changes_of_meaning_change_the_fingerprint() {
    let with = |more: &str| format!("steps:\n  - {{id: a, run: x}}\n  - id: b\n    run: echo hi\n{more}");
    let changes = [
        "",
        "    env: {A: x}\n",
        "    env: {A: y}\n",
        "    env: {B: x}\n",
        "    dir: x\n",
        "    shell: sh\n",
        "    if: 'true'\n",
        "    outputs: {a: {from: x}}\n",
        "    outputs: {a: {from: y}}\n",
        "    outputs: {a: {from: x, json: $.a}}\n",
        "    capture: text\n",
        "    capture: lines\n",
        "    stdin: x\n",
        "    stdin: ''\n",
        "    needs: [a]\n",
        "    continue_on_error: true\n",
        "    continue_on_error: [1]\n",
    ];

    let mut prints: Vec<String> = changes.iter().map(|more| fingerprint(&with(more))).collect();
    prints.push(fingerprint("steps:\n  - {id: a, run: x}\n  - {id: b, run: echo ho}\n"));
    prints.push(fingerprint("defaults: {dir: y}\nsteps:\n  - {id: a, run: x}\n  - {id: b, run: echo hi}\n"));
    let count = prints.len();
    prints.sort();
    prints.dedup();

    assert_eq!(prints.len(), count);
}

#[test]
fn the_recipe_of_the_fingerprint_is_frozen() {
    let expect = "6d6408";

    assert_eq!(&fingerprint("- {id: b, run: echo hi}")[..6], expect);
}

#[test]
fn aliases_within_the_budget_are_understood() {
    let text = "env: &env {A: &a x}\nsteps:\n  - {run: x, env: *env}\n  - {run: *a, env: {B: *a}}\n";
    // The anchors' own key is read like any other.
    let second = workflow(text).steps()[1].clone();

    assert_eq!(second.work.command().unwrap().as_str(), "x");
}

#[test]
fn json_is_yaml_and_so_is_a_file_with_a_byte_order_mark() {
    let json = r#"{"version": 1, "steps": [{"id": "a", "run": "echo \"hi\" \u00e9"}]}"#;

    assert_eq!(only_step(json).work.command().unwrap().as_str(), "echo \"hi\" \u{e9}");
    assert_eq!(only_step("\u{feff}- run: x\n").work.command().unwrap().as_str(), "x");
    assert_eq!(only_step("%YAML 1.2\n---\n- run: x\n...\n").work.command().unwrap().as_str(), "x");
    assert_eq!(only_step("- run: |\r\n    a\r\n    b\r\n").work.command().unwrap().as_str(), "a\nb\n");
}

#[test]
fn plain_truth_is_a_condition_and_a_command() {
    let step = only_step("- {run: true, if: false}");

    assert_eq!((step.work.command().unwrap().as_str(), step.condition.unwrap().as_str()), ("true", "false"));
}

#[test]
fn the_text_is_kept_as_it_was_read() {
    let text = "# mine\n- run: x # twice\n";

    assert_eq!(workflow(text).text(), text);
}

/// The params as resolved, or everything that is wrong with what was given.
fn params_of(given: &[(&str, &str)], file: &Value) -> String {
    let text = "params:\n  date: {pattern: '^\\d{4}-\\d{2}-\\d{2}$', description: the day}\n  n: {type: integer, default: 3}\n  x: {type: number, default: 0.5}\n  on: {type: bool, default: false}\n  tree: {type: json, default: {b: [1, null], a: x}}\n  maybe: {type: integer, required: false}\nsteps: [{run: x}]\n";
    let text_given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let file = file.as_object().cloned().unwrap_or_default();
    match workflow(text).resolve_params(&GivenParams { file, text: text_given.collect() }) {
        Ok(params) => Value::Object(params).to_string(),
        Err(error) => error.problems().iter().fold(String::new(), |mut out, problem| {
            let hint = problem.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            let _ = write!(out, "{}{hint}; ", problem.message);
            out
        }),
    }
}

#[test]
fn params_are_converted_and_checked() {
    let day = ("date", "2026-11-20");
    let none = &json!({});
    let answers = [
        params_of(&[day], none),
        params_of(
            &[day, ("n", "-7"), ("x", "1e3"), ("on", "true"), ("tree", "[1, {\"a\": null}]"), ("maybe", "1")],
            none,
        ),
        params_of(&[("n", "1"), day, ("n", "2")], &json!({"n": 9, "x": 7})),
        params_of(&[], &json!({"date": "2026-01-02", "tree": "text", "n": 18_446_744_073_709_551_615_u64})),
        params_of(&[], none),
        params_of(&[("dat", "x"), ("zzz", "y"), day], &json!({"dat": 5})),
        params_of(&[("date", "today")], none),
        params_of(&[day, ("n", "1.5"), ("x", "inf"), ("on", "yes"), ("tree", "{"), ("maybe", "")], none),
        params_of(&[], &json!({"date": 5, "n": "5", "x": "1", "on": 1})),
        params_of(&[day, ("x", "NaN"), ("n", "+1"), ("on", "True")], none),
        params_of(&[day, ("n", "007"), ("x", "-01.50"), ("maybe", "-007")], none),
        params_of(&[day, ("n", "0"), ("x", "1."), ("maybe", "-7")], none),
        params_of(&[day, ("n", "0"), ("x", "-0.5E+1"), ("maybe", "-7")], none),
    ];

    assert_text("params_resolved", &answers.join("\n"));
}

#[test]
fn params_files_are_maps() {
    let read = |text: &str| match parse_params(text.as_bytes(), Path::new("params.yaml")) {
        Ok(params) => Value::Object(params).to_string(),
        Err(error) => error.to_string(),
    };

    assert_eq!(
        read("date: 2026-11-20\nn: 5\nlist: [a, {b: c}]\n"),
        r#"{"date":"2026-11-20","n":5,"list":["a",{"b":"c"}]}"#
    );
    assert_eq!(read(r#"{"a": 1.5, "b": null}"#), r#"{"a":1.5,"b":null}"#);
    assert_eq!(read("# nothing\n"), "{}");
    assert_text("params_file_wrong", &[read("- a\n"), read("a: 1\na: 2\n"), read("a: [\n")].join("\n\n"));
}

#[test]
fn files_that_cannot_be_read_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Workflow::read(&folder.path().join("nope.yaml")).unwrap_err();
    let directory = Workflow::read(folder.path()).unwrap_err();
    let path = folder.path().join("good.yaml");
    std::fs::write(&path, "- run: x\n").unwrap();

    assert!(matches!(missing, ReadError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound));
    assert!(
        matches!(directory, ReadError::Io { source, .. } if source.kind() == std::io::ErrorKind::IsADirectory)
    );
    assert_eq!(Workflow::read(&path).unwrap().name(), "good");
}

#[test]
fn durations_are_read() {
    let millis = |text: &str| parse_duration(text).map(|duration| duration.as_millis());

    for (text, expect) in [
        ("500ms", 500),
        ("2s", 2_000),
        ("10m", 600_000),
        ("6h", 21_600_000),
        ("1d", 86_400_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("0s", 0),
        ("1d 2h", 93_600_000),
        ("5 m", 300_000),
        ("1m500ms", 60_500),
        ("3650d", 315_360_000_000),
    ] {
        assert_eq!(millis(text), Ok(expect), "{text}");
    }
    for text in
        ["", "5", "s", "1.2.3s", "5M", "1h5", "3651d", "1e3s", "\u{665}s", "999999999999999999999999d", "."]
    {
        assert!(millis(text).is_err(), "{text}");
    }
}

#[test]
fn ten_thousand_steps_are_checked_at_once() {
    let mut text = "steps:\n".to_owned();
    for index in 0..10_000 {
        let needs = if index == 0 { String::new() } else { format!(", needs: [s{}]", index - 1) };
        let _ = writeln!(text, "- {{id: s{index}, run: x{needs}, if: steps.s0.exit_code == 0}}");
    }
    let text = text.replacen(", if: steps.s0.exit_code == 0", "", 1);

    assert_eq!(workflow(&text).steps().len(), 10_000);
}

#[test]
fn the_full_example_is_understood() {
    let workflow = workflow(include_str!("files/nightly-report.yaml"));

    let publish = workflow.step("publish").unwrap();
    assert_eq!(publish.undo.as_ref().unwrap().as_str(), "./unpublish.sh");
    assert!(workflow.warnings().is_empty());
}
