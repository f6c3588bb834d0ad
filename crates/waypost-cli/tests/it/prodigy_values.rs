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
    - shell: "echo ${item.k} >> some"
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
