//! `waypost import workflow`: variables, and values too large for a workflow file.

use crate::rig::{Rig, check};

// Bug: the import silently dropped `secrets` in a list, an `env` that is not a map, and `error_collection:
// aggregate`. It also dropped a `continue_on_failure` that is not a boolean or that contradicts `on_item_failure:
// stop`. Cause: the import read only the usual shape. Fix: a list of secrets is imported, and each other case
// gets a note.
#[test]
fn nothing_of_secrets_and_failures_is_lost_without_a_word() {
    let import = |top: &str| {
        let rig = Rig::new();
        let text = format!(
            "mode: mapreduce\n{top}\nmap:\n  input: items.json\n  agent_template:\n    - shell: 'echo ${{API_TOKEN}} ${{item}}'\n"
        );
        rig.write("p.yml", &text);
        let told = rig.json(&["import", "workflow", "p.yml", "-o", "w.yaml", "--json"]);
        let notes: Vec<String> = told["notes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|note| note["key"] != "map")
            .map(|note| format!("{}: {}", note["key"].as_str().unwrap(), note["message"].as_str().unwrap()))
            .collect();
        (rig.read("w.yaml"), notes)
    };

    for list in ["secrets: [API_TOKEN]", "secrets: API_TOKEN", "secrets: ['${API_TOKEN}', API_TOKEN]"] {
        let (made, notes) = import(list);
        assert!(made.contains("\nsecrets: [API_TOKEN]\n"), "{made}");
        assert_eq!(notes, [""; 0], "{list}");
    }
    let (made, notes) = import("secrets: ['hunter2 of old']");
    assert!(notes[0].starts_with("secrets: cannot carry over a secret"), "{notes:?}");
    assert!(!made.contains("hunter2") && !format!("{notes:?}").contains("hunter2"), "{made}");
    assert!(import("env: [A=1]").1[0].starts_with("env: cannot carry over `env`"));
    for (policy, what) in [
        (
            "error_policy: { error_collection: aggregate }",
            "error_collection: every failure is recorded at once",
        ),
        (
            "error_policy: { continue_on_failure: maybe }",
            "continue_on_failure: cannot carry over the value: neither",
        ),
        (
            "error_policy: { continue_on_failure: true, on_item_failure: stop }",
            "continue_on_failure: cannot carry over the value: `on_item_failure: stop` contradicts it",
        ),
    ] {
        let (_, notes) = import(policy);
        assert!(notes.iter().any(|note| note.starts_with(what)), "{policy}: {notes:?}");
    }
    let (made, notes) = import("error_policy: { continue_on_failure: false }");
    assert!(made.contains("max_failures: 0"), "{made}");
    assert_eq!(notes, [""; 0]);
}

// Bug: `${item.prio:-5}` became `${{ item.prio }}`, so items without the field failed. Cause: defaults were read
// only for outputs of steps. Fix: an item field with a default becomes an optional field.
#[test]
fn a_default_of_a_variable_is_carried_over_or_told_to_be_lost() {
    let rig = Rig::new();
    rig.write(
        "items.json",
        r#"[{"k": "a"}, {"k": "b", "prio": 0, "m": {"n": "x y"}}, {"k": "c", "prio": null, "m": 3}]"#,
    );
    rig.write(
        "p.yml",
        r#"
mode: mapreduce
map:
  input: items.json
  json_path: $[*]
  max_parallel: 1
  agent_template:
    - shell: "echo ${item.k} ${item.prio:-5} '${item.m.n:-it is none}' ${item.x|default:no} ${ARG:-there} ${item:-y} >> out"
    - shell: "echo ${item.k} >> some; : ${item.x:-$HOME} '${item.x:-$HOME}'"
      when: "${item.prio:-1} == 0"
"#,
    );

    let said = rig.waypost(&["import", "workflow", "p.yml", "-o", "w.yaml"]);

    check("prodigy_defaults", &format!("{said}---\n{}", rig.read("w.yaml")));
    let ran = rig.waypost(&["run", "w.yaml", "-p", "arg=here", "-q"]);
    assert!(ran.starts_with("exit 0\n"), "{ran}");
    assert_eq!(
        rig.read("out"),
        "a 5 it is none no here {\"k\":\"a\"}\n\
         b 0 x y no here {\"k\":\"b\",\"prio\":0,\"m\":{\"n\":\"x y\"}}\n\
         c 5 it is none no here {\"k\":\"c\",\"prio\":null,\"m\":3}\n"
    );
    assert_eq!(rig.read("some"), "b\n");
}

// Bug: `env: {GH: {secret: true, value: "ghp_..."}}` was printed and written as `GH="$ghp_..."`. Cause: a value
// in the form of a variable name was read as a variable. Fix: only `$NAME` and `${NAME}` are references; any
// other value is never printed.
#[test]
fn the_value_of_a_secret_is_neither_told_nor_written() {
    let rig = Rig::new();
    let literal = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    rig.write(
        "p.yml",
        &r#"
env:
  GH: {secret: true, value: "LITERAL"}
  ODD: {secret: true, value: "${ODD:-LITERAL}"}
  DASH: {secret: true, value: "LITERAL-x"}
  COMMAND: {secret: true, command: "echo LITERAL"}
  OTHER: {secret: true, value: "$MINE"}
  SAME: {secret: true, value: "${SAME}"}
secrets:
  TOKEN: LITERAL
  PIN: {provider: env, key: "LITERAL-y"}
  KEY: "${env:THE_KEY}"
commands:
  - shell: "echo $GH ${TOKEN}"
"#
        .replace("LITERAL", literal),
    );

    let said = rig.waypost(&["import", "workflow", "p.yml", "-o", "w.yaml"]);

    let made = rig.read("w.yaml");
    let json = rig.waypost(&["import", "workflow", "p.yml", "--json"]);
    for text in [&said, &made, &json] {
        assert!(!text.contains(literal), "{text}");
    }
    check("prodigy_secrets", &format!("{said}---\n{made}"));
    assert!(rig.waypost(&["check", "w.yaml"]).starts_with("exit 0\n"));
}

#[test]
fn an_oversized_workflow_is_refused_and_leaves_no_file() {
    let rig = Rig::new();
    let many = |count: usize| (0..count).map(|_| "    - shell: a\n").collect::<String>();
    rig.write("many.yml", &format!("name: many\ncommands:\n{}", many(10_001)));
    rig.write("items.yml", &format!("map:\n  input: a.json\n  agent_template:\n{}", many(10_001)));
    // Just below 4 MiB, and above the limit with the import's additions.
    let step = format!("- shell: \"{}\"\n", "x".repeat(83_850));
    rig.write("long.yml", &step.repeat(50));
    let calls = [
        vec!["import", "workflow", "many.yml", "-o", "w.yaml"],
        vec!["import", "workflow", "many.yml"],
        vec!["import", "workflow", "items.yml", "-o", "w.yaml"],
        vec!["import", "workflow", "long.yml", "-o", "w.yaml"],
    ];

    let said = calls.iter().map(|args| format!("$ waypost {}\n{}\n", args.join(" "), rig.waypost(args)));

    check("prodigy_too_much", &said.collect::<String>());
    assert!(!rig.path("w.yaml").exists());
}
