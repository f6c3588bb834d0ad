//! `renamed_from`: a step with another id keeps the result.

use crate::rig::{Rig, code_of};

const BEFORE: &str = "steps:
  - {id: get, run: 'echo get >> trace; echo 7', capture: text}
  - {id: use, needs: [get], run: 'echo \"use $N\" >> trace; test -e go', env: {N: \"${{ steps.get.outputs.result }}\"}}
  - {id: each, needs: [get], foreach: {items: [x, y], as: i, steps: [{id: k, run: 'echo k >> trace'}]}}
";
const AFTER: &str = "steps:
  - id: fetch
    renamed_from: get
    run: 'echo get >> trace; echo 7'
    capture: text
  - {id: use, needs: [fetch], run: 'echo \"use $N\" >> trace; test -e go', env: {N: \"${{ steps.fetch.outputs.result }}\"}}
  - {id: items, renamed_from: each, needs: [fetch], foreach: {items: [x, y], as: i, steps: [{id: k, run: 'echo k >> trace'}]}}
";

fn trace(rig: &Rig) -> String {
    rig.read("trace").lines().collect::<Vec<_>>().join(", ")
}

#[test]
fn renamed_steps_keep_their_results_and_readers_stay_the_same() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(BEFORE).at(store);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1), "{store}");
        rig.write("trace", "");
        rig.write("flow.yaml", AFTER);
        rig.write("go", "");

        assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0), "{store}: nothing finished has changed");

        assert_eq!(trace(&rig), "use 7", "{store}");
        let show = rig.json(&["show", "r", "--json"]);
        assert_eq!(show["steps"][0]["id"], "get", "{store}: records name it by its first id");
        assert_eq!(show["steps"][0]["name"], "fetch", "{store}");
        assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0), "{store}");
        assert_eq!(trace(&rig), "use 7", "{store}: the second resume has nothing to do");

        // Without the key it is a removed and an added step, and a choice.
        let rig = Rig::with(BEFORE).at(store);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1), "{store}");
        rig.write("flow.yaml", &AFTER.replace("renamed_from: get\n    ", ""));
        assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(9), "{store}");
    }
}

// Bug: `why`, `show --step`, `logs`, `--from` and `--skip` refused the new id of a renamed step. Cause: only the id in the
// records was known. Fix: the new id is replaced by the id in the run.
#[test]
fn commands_take_the_new_id_of_a_renamed_step() {
    for is_adopted in [false, true] {
        let rig = Rig::with(BEFORE);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        rig.write("flow.yaml", AFTER);
        rig.write("go", "");
        if is_adopted {
            assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));
        }
        let calls: [&[&str]; 6] = [
            &["why", "r", "fetch"],
            &["why", "r", "items:x/k"],
            &["show", "r", "--step", "fetch"],
            &["logs", "r", "fetch"],
            &["resume", "r", "--from", "fetch", "--dry-run"],
            &["resume", "r", "--from", "items:x/k"],
        ];
        for call in calls {
            assert_eq!(code_of(&rig, call), Some(0), "{call:?}, adopted: {is_adopted}");
        }
        assert_eq!(rig.json(&["why", "r", "fetch", "--json"])["step"], "get");
        assert_eq!(code_of(&rig, &["why", "r", "nobody"]), Some(5));
    }
    let rig = Rig::with(BEFORE);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig.write("flow.yaml", &AFTER.replace("id: use,", "id: last, renamed_from: use,"));
    assert_eq!(code_of(&rig, &["resume", "r", "--skip", "last", "-q"]), Some(0));
}

const INCLUDED: &str = "steps:
  - {id: a, run: 'echo a >> trace; echo v=1 >> $WAYPOST_OUTPUT'}
  - {id: b, run: 'echo b >> trace; test -e go'}
";

/// Runs a file that includes `part.yaml` until step `b` fails, and renames a step of `part.yaml`.
fn renamed_in_included(id: &str, to: &str) -> Rig {
    let rig = Rig::with(
        "steps:
  - {id: part, workflow: part.yaml}
  - {id: use, run: 'echo use $V >> trace', env: {V: '${{ steps.part.outputs.a.v }}'}}
",
    );
    rig.write("part.yaml", INCLUDED);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    assert_eq!(trace(&rig), "a, b");
    rig.write("trace", "");
    rig.write("go", "");
    rig.write(
        "part.yaml",
        &INCLUDED.replace(&format!("id: {id},"), &format!("id: {to}, renamed_from: {id},")),
    );
    let flow = rig.read("flow.yaml");
    rig.write("flow.yaml", &flow.replace(&format!("outputs.{id}."), &format!("outputs.{to}.")));
    rig
}

// A renamed step of an included file counted as a removed and an added step. Cause: only the ids of the main file were
// replaced. Fix: the first ids of each file replace the new ones, also in expressions of the including file.
#[test]
fn renamed_steps_of_an_included_file_keep_their_results() {
    for choice in [None, Some("--keep-finished"), Some("--rerun-changed")] {
        for (id, to) in [("a", "a2"), ("b", "b2")] {
            let rig = renamed_in_included(id, to);
            let args = [&["resume", "r", "-q"][..], choice.as_slice()].concat();

            assert_eq!(code_of(&rig, &args), Some(0), "{id} {choice:?}");

            assert_eq!(trace(&rig), "b, use 1", "{id} {choice:?}");
            assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));
            assert_eq!(trace(&rig), "b, use 1", "{id}: the second resume has nothing to do");
        }
    }
}

// Bug: a step with `idempotent: false` and another id, without `renamed_from`, took effect again after `--keep-finished`,
// and the table only said `is new`. Fix: the table says that the step runs, at every level.
#[test]
fn the_table_warns_of_a_new_step_that_must_not_repeat() {
    let pay = "{id: pay, idempotent: false, run: 'echo pay >> trace'}";
    let flows = [
        (format!("steps: [{pay}, {{id: bad, run: exit 1}}]\n"), ""),
        (format!("steps: [{{id: g, steps: [{pay}, {{id: bad, run: exit 1}}]}}]\n"), "g/"),
        (
            format!(
                "steps: [{{id: g, foreach: {{items: [x], steps: [{pay}, {{id: bad, run: exit 1}}]}}}}]\n"
            ),
            "g/",
        ),
    ];
    for (flow, path) in flows {
        let rig = Rig::with(&flow);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        rig.write("flow.yaml", &flow.replace("id: pay", "id: charge"));

        let told = rig.waypost(&["resume", "r"]);

        assert!(told.starts_with("exit 9\n"), "{told}");
        let warning = format!(
            "  ! step {path}charge is NOT IDEMPOTENT and WILL RUN; if it is pay, write `renamed_from: pay` in it\n"
        );
        assert!(told.contains(&warning), "{told}");
        rig.write("flow.yaml", &flow.replace("id: pay", "id: charge, renamed_from: pay"));
        assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(1));
        assert_eq!(trace(&rig), "pay");
    }
}

#[test]
fn a_freed_id_is_of_a_new_step() {
    let pay = |id: &str| format!("  - {{{id}, needs: [], run: 'echo pay >> trace', idempotent: false}}\n");
    let z = "  - {id: z, needs: [], run: 'test -e ok'}\n";
    let rig = Rig::with(&format!("steps:\n{}{z}", pay("id: pay")));
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig.write("flow.yaml", &format!("steps:\n{}{z}", pay("id: charge, renamed_from: pay")));
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(1));
    let fee = "  - {id: pay, needs: [], run: 'echo fee >> trace'}\n";
    rig.write("flow.yaml", &format!("steps:\n{}{z}{fee}", pay("id: charge")));
    rig.write("ok", "");

    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));

    assert_eq!(rig.read("trace"), "pay\nfee\n");
    let show = rig.waypost(&["show", "r"]);
    assert!(show.contains("pay-2"), "{show}");
}

// Bug: no command took the path of an inner step with the new id of its group. Cause: the new id was translated after the
// search for the scope. Fix: the translated path is searched, too.
#[test]
fn a_path_may_begin_with_the_new_id_of_a_group() {
    let rig = Rig::with("steps:\n  - {id: g, steps: [{id: s, run: 'echo s >> trace'}]}\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    rig.write(
        "flow.yaml",
        "steps:\n  - {id: new, renamed_from: g, steps: [{id: s, run: 'echo s >> trace'}]}\n",
    );
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));

    for command in [&["why", "r", "new/s"][..], &["logs", "r", "new/s"], &["show", "r", "--step", "new/s"]] {
        assert_eq!(code_of(&rig, command), Some(0), "{command:?}");
    }
    assert_eq!(code_of(&rig, &["resume", "r", "--from", "new/s", "-q"]), Some(0));
    assert_eq!(trace(&rig).matches('s').count(), 2);
}
