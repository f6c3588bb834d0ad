//! `waypost import workflow`: what variables stand for, and what is too much for a file of ours.

use crate::rig::{Rig, check};

// What happened: `${item.prio:-5}` became `${{ item.prio }}`, so that items without it failed.
// Why: a default was only looked at for what a step gives.
// What stops it now: a field of an item with a default is read as one that may be missing.
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

// What happened: `env: {GH: {secret: true, value: "ghp_..."}}` was told as `GH="$ghp_..."`, and so written.
// Why: what looks like the name of a variable was taken for one.
// What stops it now: only `$NAME` and `${NAME}` are references; of any other value nothing is told.
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
fn what_is_too_much_for_a_workflow_is_refused_and_no_file_is_left() {
    let rig = Rig::new();
    let many = |count: usize| (0..count).map(|_| "    - shell: a\n").collect::<String>();
    rig.write("many.yml", &format!("name: many\ncommands:\n{}", many(10_001)));
    rig.write("items.yml", &format!("map:\n  input: a.json\n  agent_template:\n{}", many(10_001)));
    // Just below 4 MiB, and above with what ours needs beside it.
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
