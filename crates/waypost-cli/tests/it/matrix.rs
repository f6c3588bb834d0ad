//! `matrix`: items as all combinations of values.

use serde_json::json;

use crate::rig::Rig;

const FLOW: &str = r#"
params: {systems: {type: json, default: [linux, mac]}}
steps:
  - id: test
    foreach:
      items:
        matrix: {os: [linux, mac], python: [3.10, "3.11"]}
        exclude: [{os: mac, python: 3.10}]
        include: [{python: "4", os: linux, beta: true}]
      as: matrix
      steps:
        - id: go
          run: echo "$OS $PYTHON $BETA" >> ran; test -e ok || test "$OS" != mac
          env: {OS: "${{ matrix.os }}", PYTHON: "${{ matrix.python }}", BETA: "${{ matrix.beta | default(false) }}"}
  - id: each
    foreach:
      items: {matrix: {os: "${{ params.systems }}", number: [1, 2]}}
      steps: [{id: say, run: 'echo "$OS $N" >> said', env: {OS: "${{ item.os }}", N: "${{ item.number }}"}}]
"#;

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn a_matrix_makes_items_with_readable_keys() {
    let rig = Rig::with(FLOW);

    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));

    // A number stays as spelled, and an entry of `exclude` matches by its value.
    assert_eq!(
        sorted(&rig.read("ran")),
        ["linux 3.10 false", "linux 3.11 false", "linux 4 true", "mac 3.11 false"]
    );
    let letters = rig.json(&["dead-letters", "list", "r", "--json"])["items"].clone();
    assert_eq!(
        (&letters[0]["key"], &letters[0]["item"]),
        (&json!("mac-3.11"), &json!({"os": "mac", "python": "3.11"}))
    );
    rig.write("ok", "");
    assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(0));
    assert_eq!(rig.read("ran").lines().count(), 5, "only the failed item ran again");
    assert_eq!(sorted(&rig.read("said")), ["linux 1", "linux 2", "mac 1", "mac 2"]);
    assert!(rig.waypost(&["logs", "r", "test:linux-4-true/go"]).starts_with("exit 0"));
}

#[test]
fn values_from_params_are_checked_when_the_step_runs() {
    let rig = Rig::with(FLOW);
    rig.write("ok", "");

    let ended = rig.waypost(&["run", "flow.yaml", "-p", "systems={}", "-q"]);

    assert!(ended.contains("`os` must be a list, and `${{ params.systems }}` is a map"), "{ended}");
}

#[test]
fn an_edited_matrix_runs_only_added_combinations() {
    let rig = Rig::with(FLOW);
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));
    rig.write("ok", "");
    rig.write("flow.yaml", &FLOW.replace("[linux, mac], python", "[linux, mac, bsd], python"));

    assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(0));

    let ran = rig.read("ran");
    let again: Vec<&str> = ran.lines().skip(4).collect();
    assert_eq!(sorted(&again.join("\n")), ["bsd 3.10 false", "bsd 3.11 false", "mac 3.11 false"]);
}

#[test]
fn check_refuses_a_wrong_matrix() {
    for (items, wanted) in [
        ("matrix: {}", "`matrix` is empty"),
        ("matrix: [a]", "must be a map of lists"),
        ("matrix: {os: a}", "`os` must be a list"),
        ("matrix: {os: []}", "`os` has no values"),
        ("matrix: {os: [a], include: [{os: b}]}", "move `include` beside `matrix`"),
        ("matrix: {os: [a]}, exclude: [{oss: a}]", "did you mean `os`?"),
        ("matrix: {os: [a]}, exclude: [{os: b}]", "matches no combination"),
        ("matrix: {os: [a], n: [1]}, include: [{os: b}]", "has no `n`"),
        ("matrix: {os: ['${{ params.x }}']}", "a single expression for the whole list"),
        ("matrix: {os: '${{ params.x }}'}", "there is no param `x`"),
        ("matrix: {os: [a]}, run: ls", "`run` has no effect beside `matrix`"),
        ("exclude: [{os: a}]", "a command, a file or a matrix"),
    ] {
        let rig = Rig::with(&format!("steps: [{{foreach: {{items: {{{items}}}, steps: [{{run: a}}]}}}}]\n"));
        let told = rig.waypost(&["check", "flow.yaml"]);
        assert!(told.contains(wanted), "{items}: {told}");
    }
    let values = (0..101).map(|number| number.to_string()).collect::<Vec<_>>().join(", ");
    let items = format!("{{matrix: {{a: [{values}], b: [{values}]}}}}");
    let rig = Rig::with(&format!("steps: [{{foreach: {{items: {items}, steps: [{{run: a}}]}}}}]\n"));
    assert!(rig.waypost(&["check", "flow.yaml"]).contains("101 × 101 combinations, the maximum is 10000"));
}
