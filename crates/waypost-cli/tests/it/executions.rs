//! `waypost why`: the executions of a step, with their causes.

use crate::rig::{Rig, code_of};

const FLOW: &str = "params: {x: {type: string, default: go}}
steps:
  - {id: a, run: 'cat k > a.txt', evidence: [{sha256: a.txt}]}
  - {id: b, run: 'cp a.txt b.txt; test ! -e fail', evidence: [{sha256: b.txt}]}
  - {id: c, if: \"params.x == 'go'\", run: 'true'}
";

/// Returns the executions of a step as `action code`.
fn executions(rig: &Rig, step: &str) -> Vec<String> {
    let why = rig.json(&["why", "r", step, "--json"]);
    let executions = why["executions"].as_array().unwrap();
    let word = |one: &serde_json::Value| {
        format!("{} {}", one["action"].as_str().unwrap(), one["cause"]["code"].as_str().unwrap())
    };
    executions.iter().map(word).collect()
}

#[test]
fn why_lists_each_execution_of_a_step_with_its_cause() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(FLOW).at(store);
        let resume = |expect: i32| {
            assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(expect), "{store}");
        };
        rig.write("k", "1");
        rig.write("fail", "");
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        std::fs::remove_file(rig.path("fail")).unwrap();
        resume(0);
        std::fs::remove_file(rig.path("a.txt")).unwrap();
        resume(0);
        rig.write("k", "2");
        std::fs::remove_file(rig.path("a.txt")).unwrap();
        resume(0);

        assert_eq!(executions(&rig, "a"), ["run first", "rerun evidence_failed", "rerun evidence_failed"]);
        let of_b = ["run first", "retry retry", "reuse reused", "rerun upstream_changed"];
        assert_eq!(executions(&rig, "b"), of_b, "{store}");
        let why = rig.json(&["why", "r", "b", "--json"]);
        assert_eq!(why["executions"][3]["cause"]["step"], "a", "{store}");
        let why = rig.json(&["why", "r", "a", "--json"]);
        assert_eq!(why["executions"][1]["cause"]["claims"][0], "file_sha256 a.txt", "{store}");
        assert!(rig.waypost(&["why", "r", "b"]).contains("rerun at r@13: upstream changed: `a`"), "{store}");
    }
}

#[test]
fn why_tells_what_was_cut_skipped_and_passed_over() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'test -e go || kill -9 $PPID $$; true', retry: 0}
  - {id: b, if: 'false', run: 'true'}
  - {id: c, needs: [a], run: 'false'}
  - {id: d, needs: [c], run: 'true'}
",
    );
    rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);
    rig.write("go", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(1));

    assert_eq!(executions(&rig, "b"), ["skip condition_false"]);
    assert_eq!(executions(&rig, "c"), ["run first"]);
    assert_eq!(executions(&rig, "d"), ["skip upstream_failed"]);
}

#[test]
fn an_execution_by_choice_has_the_cause_and_the_person() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'true'}
  - {id: b, needs: [a], run: 'true'}
  - {id: c, needs: [b], run: 'true'}
  - {id: e, needs: [a], foreach: {items: [x], as: i, steps: [{id: k, run: 'true'}]}}
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    let flow = rig.read("flow.yaml");
    rig.write("flow.yaml", &flow.replace("id: b, needs: [a], run: 'true'", "id: b, needs: [a], run: ':'"));
    assert_eq!(code_of(&rig, &["resume", "r", "-q", "--rerun-changed"]), Some(0));
    let flow = rig.read("flow.yaml");
    rig.write("flow.yaml", &flow.replace("id: a, run: 'true'", "id: a, run: ':'"));
    assert_eq!(code_of(&rig, &["resume", "r", "-q", "--keep-finished"]), Some(0));
    assert_eq!(code_of(&rig, &["resume", "r", "-q", "--from", "c"]), Some(0));
    assert_eq!(code_of(&rig, &["resume", "r", "-q", "--from", "e/x/k"]), Some(0), "a path of a step");

    let why = |step: &str| {
        let why = rig.json(&["why", "r", step, "--json"]);
        let executions = why["executions"].as_array().unwrap().iter();
        let told = executions.map(|one| {
            let by = if one["by"].is_string() { " by" } else { "" };
            format!("{} {}{by}", one["action"].as_str().unwrap(), one["cause"]["code"].as_str().unwrap())
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(why("a"), ["run first", "reuse settled by"]);
    assert_eq!(why("b"), ["run first", "rerun definition_changed"]);
    assert_eq!(why("c"), ["run first", "rerun upstream_changed", "rerun requested by"]);
    assert_eq!(why("e:x/k"), ["run first", "rerun requested by"]);
    assert_eq!(why("e"), ["run first"], "a join executes nothing");
}
