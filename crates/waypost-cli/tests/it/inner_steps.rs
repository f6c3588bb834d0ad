//! Steps of items, groups and hooks in `show` and `plan`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::rig::{Rig, code_of, ran, resume, run, wait_until};

const ITEMS: &str = r#"steps:
  - id: f
    foreach:
      items: [1, 2]
      max_parallel: 1
      steps:
        - {id: i1, run: 'true'}
        - {id: i2, idempotent: false, run: 'echo > begun; [ -e go ] || sleep 1000'}
        - {id: i3, run: 'true'}
"#;

const HOOKS: &str = r#"on_failure: [{id: top, run: 'true'}]
steps:
  - id: a
    run: '[ -e ok ]'
    on_failure: [{id: h1, run: 'true'}, {id: h2, run: 'echo > begun; [ -e go ] || sleep 1000'}, {id: h3, run: exit 4}]
"#;

/// Returns the steps that a document lists, as `SCOPE/STEP WORD`.
fn listed(document: &Value, list: &str, word: &str) -> Vec<String> {
    let steps = document[list].as_array().unwrap().iter();
    let text = |step: &Value, name: &str| step[name].as_str().unwrap().to_owned();
    let name = if list == "steps" { "id" } else { "step" };
    steps.map(|step| format!("{}/{} {}", text(step, "scope"), text(step, name), text(step, word))).collect()
}

/// Runs until the file `begun` exists. Returns the steps shown before and after a kill.
fn looked_at(rig: &Rig) -> [Vec<String>; 2] {
    let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
    rig.wait_for("begun", |_| true);
    let live = listed(&rig.json(&["show", "r", "--json"]), "steps", "status");
    running.signal(libc::SIGKILL);
    drop(running);
    wait_until("the run is free", || rig.json(&["show", "r", "--json"])["status"] != "running");
    [live, listed(&rig.json(&["show", "r", "--json"]), "steps", "status")]
}

// Bug: `show` left out the running or cut step of an item, a group or a hook, except the first step of its
// scope. Cause: only steps with a record were listed, and the start of a later step is a mark in the record of
// the step before. Fix: starts and the steps of the position are listed as well.
#[test]
fn the_step_under_way_of_a_scope_is_shown() {
    let rig = Rig::with(ITEMS);

    let [live, cut] = looked_at(&rig);

    assert_eq!(live[..3], ["main/f running", "f:1/i1 completed", "f:1/i2 running"]);
    assert_eq!(cut[..3], ["main/f waiting", "f:1/i1 completed", "f:1/i2 in_doubt"]);
    assert!(rig.waypost(&["show", "r"]).contains("i2"));
    let one = |step: &str| listed(&rig.json(&["show", "r", "--step", step, "--json"]), "steps", "status");
    assert_eq!(one("f:1/i2"), ["f:1/i2 in_doubt"]);
    assert_eq!(one("f:1/i3"), ["f:1/i3 pending"], "a step of that scope, as in the plan");
    assert_eq!(code_of(&rig, &["show", "r", "--step", "f:1/i4"]), Some(5));
}

#[test]
fn hooks_are_shown_under_way_and_after_the_failure() {
    let rig = Rig::with(HOOKS);

    let [live, cut] = looked_at(&rig);

    assert_eq!(live[..2], ["main/a running", "main/on_failure pending"]);
    assert_eq!(live[2..], ["a:on_failure/h1 completed", "a:on_failure/h2 running"]);
    assert_eq!(cut[2..], ["a:on_failure/h1 completed", "a:on_failure/h2 cut"]);
    rig.write("go", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(1));
    let show = rig.json(&["show", "r", "--json"]);
    let after = listed(&show, "steps", "status");
    let hooks = ["h1 completed", "h2 completed", "h3 failed"].map(|step| format!("a:on_failure/{step}"));
    assert_eq!(after[..2], ["main/a failed", "main/on_failure completed"]);
    assert_eq!(after[2..5], hooks);
    assert_eq!(after[5], "on_failure:run/top completed");
    assert_eq!((&show["failed_step"], &show["error"]["exit_code"]), (&"a".into(), &1.into()));
    // Hooks of the failed attempt are no longer shown.
    rig.write("ok", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));
    assert_eq!(
        listed(&rig.json(&["show", "r", "--json"]), "steps", "status")[..2],
        ["main/a completed", "main/on_failure skipped"]
    );
}

// Bug: after a kill inside hooks, `plan` listed the steps of each hook in the scope of each other hook. Cause:
// the hooks of a step are one graph. Fix: the scope of a hook lists only the line of that hook.
#[test]
fn a_plan_lists_the_steps_of_a_hook_on_its_own_scope() {
    let rig = Rig::with(HOOKS);
    looked_at(&rig);

    let plan = listed(&rig.json(&["plan", "r", "--json"]), "decisions", "action");

    let own = ["h1 reuse", "h2 run", "h3 run"].map(|step| format!("a:on_failure/{step}"));
    assert_eq!(plan[..2], ["main/a wait", "main/on_failure run"]);
    assert_eq!(plan[2..], own);
}

// Bug: for a running step, `why --json` and `plan --json` asked for a decision, as for a cut step, and did not report that
// the run is running. Fix: a running run is among the reasons that stop a resume.
#[test]
fn what_looks_ahead_says_that_the_run_is_under_way() {
    let rig = Rig::with(ITEMS);
    let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
    rig.wait_for("begun", |_| true);
    let looks = [&["why", "r", "f:1/i2"][..], &["plan", "r"]];

    for look in looks {
        let stops = rig.json(&[look, &["--json"]].concat())["stops"].clone();
        let words = stops[0].as_str().unwrap_or_default().to_owned();
        assert!(words.starts_with("run r is held by process "), "{look:?}: {stops}");
        assert!(rig.waypost(look).contains(&words), "{look:?}");
    }

    running.signal(libc::SIGKILL);
    running.end();
    wait_until("the run is free", || rig.json(&["show", "r", "--json"])["status"] != "running");
    for look in looks {
        assert_eq!(rig.json(&[look, &["--json"]].concat())["stops"], serde_json::json!([]), "{look:?}");
    }
}

#[test]
fn skipped_steps_are_counted_apart_from_done_steps() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'true'}
  - {id: s, if: 'false', run: 'true'}
  - {id: t, needs: [s], run: 'true'}
  - {id: u, needs: [a], run: 'test -e ok'}
  - {id: v, needs: [u], run: 'true'}
",
    );
    let failed = rig.waypost(&["run", "flow.yaml", "--id", "r"]);
    assert!(failed.contains("Run r failed at step u: 1 of 5 steps are done, 2 skipped.\n"), "{failed}");
    rig.write("ok", "");

    let completed = rig.waypost(&["resume", "r"]);

    assert!(completed.contains("Run r is completed: 3 of 5 steps are done, 2 skipped.\n"), "{completed}");
    let show = rig.waypost(&["show", "r"]);
    assert!(show.contains("  steps       3 of 5 done, 2 skipped\n"), "{show}");
    assert_eq!(rig.json(&["list", "--json"])["runs"][0]["progress"]["done"], 5);
}

// Bug: `list` named a failed step of an item or group by its id alone, which no command takes. Cause: the summary had no
// scope. Fix: the summary has the scope of the failed step.
#[test]
fn the_failed_step_of_a_scope_is_listed_by_its_path() {
    let flows = [
        (
            "steps: [{id: each, foreach: {items: [x], on_item_failure: stop, steps: [{id: k, run: exit 1}]}}]\n",
            "each:x/k",
        ),
        ("steps: [{id: g, steps: [{id: k, run: exit 1}]}]\n", "g/k"),
    ];
    for (flow, path) in flows {
        for store in ["sqlite:kept/waypost.db", "file:kept"] {
            let rig = Rig::with(flow).at(store);
            rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);

            assert_eq!(rig.json(&["list", "--json"])["runs"][0]["step"], path);

            assert_eq!(rig.json(&["show", "r", "--json"])["failed_step"], "k");
            assert!(rig.waypost(&["why", "r", path]).starts_with("exit 0\n"));
        }
    }
}

#[test]
fn the_key_of_an_item_is_proposed_with_its_step() {
    let rig = Rig::with("steps: [{id: each, foreach: {items: [x], steps: [{id: k, run: 'true'}]}}]\n");
    rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);

    for command in ["logs", "why"] {
        let told = rig.waypost(&[command, "r", "x"]);
        assert!(told.contains("hint: the key of an item needs its step: name each:x\n"), "{told}");
    }
    assert!(rig.waypost(&["logs", "r", "each:x"]).starts_with("exit 0\n"));
}

// Bug: `resume --until` ran steps of other open groups and items. Cause: only the steps of the main scope were limited.
// Fix: a step within a scope is wanted with its opener.
#[test]
fn until_starts_no_step_of_other_open_scopes() {
    let rig = Rig::with(
        "steps:
  - { id: a, needs: [], run: 'echo a >> trace; test -e ok' }
  - id: g
    needs: []
    steps:
      - { id: charge, run: 'echo charge >> trace; test -e ok' }
      - { id: ship, run: 'echo ship >> trace' }
  - id: each
    needs: []
    foreach: { items: [1, 2], steps: [{ id: f, run: 'echo f >> trace; test -e ok' }] }
",
    );
    assert_eq!(run(&rig), Some(1));
    assert_eq!(ran(&rig).split(' ').collect::<BTreeSet<_>>(), BTreeSet::from(["a", "charge", "f"]));
    rig.write("ok", "");

    let (code, steps) = (resume(&rig, &["--until", "a"]), ran(&rig));
    assert_eq!((code, steps.as_str()), (Some(0), "a"));
    assert_eq!(resume(&rig, &[]), Some(0));
    let mut rest: Vec<String> = ran(&rig).split(' ').map(str::to_owned).collect();
    rest.sort();
    assert_eq!(rest, ["charge", "f", "f", "ship"]);
}
