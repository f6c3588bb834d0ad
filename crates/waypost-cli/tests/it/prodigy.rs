//! `waypost import workflow`: converted Prodigy workflows pass `check`, run, and list their differences.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::rig::{Rig, check};

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

/// Makes a rig with an agent that logs its prompts, and fails as often as the file `bad` has lines.
pub(crate) fn with_agent(source: &str) -> Rig {
    let rig = Rig::new();
    rig.write("p.yml", source);
    std::fs::create_dir_all(rig.path(".waypost")).unwrap();
    rig.write(".waypost/config.yaml", &format!("agents: {{claude: [{}]}}\n", rig.path("stub").display()));
    rig.write(
        "stub",
        "#!/bin/sh\nprompt=$(cat)\nprintf '%s\\n' \"$prompt\" >> prompts\n\
         case \"$prompt\" in /mend*) touch mended ;; esac\nprintf 'answer to %s' \"$prompt\"\n",
    );
    std::fs::set_permissions(rig.path("stub"), std::fs::Permissions::from_mode(0o755)).unwrap();
    rig
}

#[test]
fn an_imported_list_runs() {
    let rig = with_agent(
        r#"
- id: info
  shell: |
    false
    echo '{"name": "it'"'"'s \"x\" $(touch hacked)", "n": 3}'
  capture: info
  capture_format: json
- claude: /plan ${info.name} $ARG
  capture: plan
- shell: echo '${info.name}' "${plan}" ${info.n} > out
- shell: echo broken; echo "also this"; test -e mended
  on_failure: {claude: "/mend ${shell.output}", max_attempts: 3, fail_workflow: true}
- write_file: {path: "deep/${info.n}.txt", content: "n is ${info.n}\n", create_dirs: true}
- shell: exit 3
  on_exit_code: {3: {shell: echo three >> out}}
  on_failure: "echo failed with ${shell.output}done >> out"
- shell: echo never >> out
  when: ${info.n} > 3
- shell: echo ${last.exit_code} end >> out
  when: ${info.n} == 3
"#,
    );
    assert_eq!(code(&rig, &["import", "workflow", "p.yml", "-o", "w.yaml", "-q"]), Some(0));

    let ran = rig.waypost(&["run", "w.yaml", "--id", "r", "-p", "arg=now", "-q"]);

    assert!(ran.starts_with("exit 3\n"), "failures were tolerated: {ran}");
    assert!(!rig.path("hacked").exists());
    let name = "it's \"x\" $(touch hacked)";
    assert_eq!(
        rig.read("prompts"),
        format!("/plan {name} now\n/mend broken\nalso this\n"),
        "the step was done again after it was mended, once"
    );
    let out = rig.read("out");
    let first = format!("{name} answer to /plan {name} now 3\n");
    assert!(out.starts_with(&first), "{out}");
    let mut rest: Vec<&str> = out[first.len()..].lines().collect();
    assert_eq!(rest.pop(), Some("3 end"), "{out}");
    rest.sort_unstable();
    assert_eq!(rest, ["failed with done", "three"]);
    assert_eq!(rig.read("deep/3.txt"), "n is 3\n");
}

#[test]
fn an_imported_map_reduce_workflow_runs() {
    let rig = with_agent(
        r#"
name: fix
mode: mapreduce
env: {OUT: out}
setup:
  - shell: |
      mkdir -p $OUT
      echo '{"items": [
        {"id": 1, "name": "a", "rank": 1}, {"id": 2, "name": "b b", "rank": 5, "owner": {"name": "me"}},
        {"id": 3, "name": "c", "rank": 9}, {"id": 4, "name": "d"}, {"id": 5, "name": "b b", "rank": 4}]}' > items.json
  - {shell: echo mark, capture: mark}
map:
  input: items.json
  json_path: $.items[*]
  filter: rank >= 1 && owner.name != 'you'
  sort_by: rank DESC
  distinct: name
  max_parallel: 1
  agent_template:
    - {claude: "/do ${item.name} ${mark}", capture: done}
    - {shell: "test ${item.id} != 3 && echo '${done}' > \"$OUT/${item.name}\""}
reduce:
  - {shell: "echo ${map.successful}/${map.total}, ${map.failed} failed > $OUT/sum"}
  - write_file: {path: "${OUT}/results.json", content: "${map.results}"}
error_policy: {on_item_failure: dlq}
"#,
    );
    assert_eq!(code(&rig, &["import", "workflow", "p.yml", "-o", "w.yaml", "-q"]), Some(0));

    let ran = rig.waypost(&["run", "w.yaml", "--id", "r", "-q"]);

    assert!(ran.starts_with("exit 3\n"), "one item is a dead letter: {ran}");
    assert_eq!(rig.read("prompts"), "/do c mark\n/do b b mark\n/do a mark\n");
    assert_eq!(rig.read("out/sum"), "2/3, 1 failed\n");
    assert_eq!(rig.read("out/b b"), "answer to /do b b mark\n");
    let results: Value = serde_json::from_str(&rig.read("out/results.json")).unwrap();
    let results: Vec<Value> =
        results.as_array().unwrap().iter().map(|item| json!([item["item"]["id"], item["status"]])).collect();
    assert_eq!(results, [json!([3, "failed"]), json!([2, "completed"]), json!([1, "completed"])]);
    let letters = rig.json(&["dead-letters", "list", "r", "--json"]);
    assert_eq!(letters["items"].as_array().unwrap().len(), 1, "{letters}");
}

#[test]
fn what_cannot_be_imported_is_told_with_its_place() {
    let rig = Rig::new();
    let files: [(&str, &[u8]); 14] = [
        ("empty.yml", b""),
        ("binary.yml", b"- shell: a\0b\n"),
        ("latin.yml", b"- shell: \xe4\n"),
        ("yaml.yml", b"commands:\n  - shell: a: b\n"),
        ("twice.yml", b"name: a\nname: b\ncommands: [{shell: a}]\n"),
        ("text.yml", b"just words\n"),
        ("other.yml", b"name: x\non: push\njobs: {}\n"),
        ("ours.yml", b"steps:\n  - run: echo\n"),
        ("ours-items.yml", b"steps:\n  - foreach: {items: [1], steps: [{run: echo}]}\n"),
        ("none.yml", b"commands: []\n"),
        ("nothing.yml", b"commands:\n  - {title: a}\n"),
        ("no-map.yml", b"name: x\nmode: mapreduce\nreduce: []\n"),
        ("no-input.yml", b"name: x\nmap:\n  agent_template: []\n"),
        ("tag.yml", b"- shell: !x y\n"),
    ];
    for (name, bytes) in files {
        std::fs::write(rig.path(name), bytes).unwrap();
    }
    std::fs::write(rig.path("huge.yml"), vec![b'#'; (4 << 20) + 1]).unwrap();
    rig.write("list.yml", "- shell: a\n");
    std::fs::create_dir(rig.path("folder")).unwrap();
    let mut calls: Vec<Vec<&str>> = files.iter().map(|(name, _)| vec!["import", "workflow", *name]).collect();
    calls.extend([
        vec!["import", "workflow", "huge.yml"],
        vec!["import", "workflow", "missing.yml"],
        vec!["import", "workflow", "folder"],
        vec!["import", "workflow", "/dev/null"],
        vec!["import", "workflow"],
        vec!["import", "workflow", "list.yml", "--force"],
        vec!["import", "workflow", "list.yml", "--trust"],
        vec!["import", "workflow", "list.yml", "-o", "no/such/folder.yaml"],
        vec!["import", "workflow", "list.yml", "-o", "folder", "--force"],
        vec!["import", "workflow", "list.yml", "-o", "text.yml"],
        vec!["import", "workflow", "text.yml", "--json"],
        vec!["import"],
    ]);
    let said = calls.iter().map(|args| format!("$ waypost {}\n{}\n", args.join(" "), rig.waypost(args)));

    check("prodigy_wrong", &said.collect::<String>());
    assert_eq!(rig.read("text.yml"), "just words\n", "it is as it was");
}

#[test]
fn it_is_printed_or_written_or_told_in_json() {
    let rig = Rig::new();
    rig.write("p.yml", "- shell: make\n  output_file: out\n- {shell: a, output_file: b}\n");

    check("prodigy_printed", &rig.waypost(&["import", "workflow", "p.yml"]));
    check("prodigy_written", &rig.waypost(&["import", "workflow", "p.yml", "-o", "w.yaml"]));

    let made = rig.read("w.yaml");
    assert_eq!(String::from_utf8(rig.call(&["import", "workflow", "p.yml"]).stdout).unwrap(), made);
    assert_eq!(code(&rig, &["import", "workflow", "p.yml", "-o", "w.yaml"]), Some(2));
    rig.write("w.yaml", "mine\n");
    assert_eq!(code(&rig, &["import", "workflow", "p.yml", "-o", "w.yaml", "--force"]), Some(0));
    assert_eq!(rig.read("w.yaml"), made);
    assert_eq!(std::fs::read_dir(rig.path("")).unwrap().count(), 2, "nothing else is left");
    let document = rig.json(&["import", "workflow", "p.yml", "--json"]);
    assert_eq!(
        document,
        json!({
            "v": 1, "file": null, "workflow": "p", "from": "p.yml", "steps": ["make", "a"], "text": made,
            "notes": [{
                "line": 2, "also": [3], "key": "output_file", "message": "the output is only in the log",
                "help": "end the command with `> FILE`",
            }],
        })
    );
    let document = rig.json(&["--json", "import", "workflow", "p.yml", "-o", "x.yaml"]);
    assert_eq!((&document["file"], &document["text"]), (&json!("x.yaml"), &Value::Null));
}

#[test]
fn a_checkpoint_in_a_file_of_that_name_is_still_imported() {
    let flow = "name: flow\nsteps: [{id: a, run: 'echo a'}, {id: b, run: 'test -e ok'}]\n";
    let rig = Rig::with(flow);
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    assert_eq!(code(&rig, &["export", "r", "workflow"]), Some(0));
    rig.write("ok", "");

    assert_eq!(code(&rig, &["import", "./workflow", "--trust", "--id", "again", "-q"]), Some(0));
    assert_eq!(code(&rig, &["import", "--show", "./workflow"]), Some(0));
    check(
        "prodigy_help",
        &[&["import", "--help"][..], &["import", "workflow", "--help"]]
            .map(|args| rig.waypost(args))
            .join("\n"),
    );
}
