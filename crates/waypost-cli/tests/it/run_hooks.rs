//! Hooks of a run: steps at its end and when it waits.

use crate::rig::{Rig, code_of};

const HOOKS: &str = r#"
on_success: [{run: 'echo "success $A" >> trace', env: {A: "${{ steps.a.outputs.n }}"}}]
on_failure: [{run: 'echo "failure at $S" >> trace', env: {S: "${{ run.failed_step }}"}}]
on_finish:
  - {run: 'echo finish >> trace; if [ -e hold ]; then touch held; sleep 1000; fi'}
  - {run: 'echo finished >> trace; exit 3'}
on_waiting: [{run: 'echo "$S waits" >> trace', env: {S: "${{ run.waiting }}"}}]
"#;
const A: &str = "{id: a, run: 'echo n=1 >> \"$WAYPOST_OUTPUT\"; echo a >> trace; test ! -e bad'}";

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

/// Runs a command, and returns the lines of `on_failure`.
fn failures(rig: &Rig, args: &[&str]) -> Vec<String> {
    rig.write("trace", "");
    rig.call(args);
    rig.read("trace").lines().filter(|line| line.starts_with("failure")).map(str::to_owned).collect()
}

/// Runs the steps of a list, and the same steps as a graph.
fn flows(steps: &str) -> [String; 2] {
    let list = format!("{HOOKS}steps: [{A}, {steps}]\n");
    let graph = list.replace("{id: b,", "{id: b, needs: [a],").replace("{id: c,", "{id: c, needs: [b],");
    [list, graph]
}

#[test]
fn a_run_ends_with_its_hooks() {
    for flow in flows("{id: b, run: echo b >> trace}") {
        let rig = Rig::with(&flow);
        assert_eq!(
            code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]),
            Some(0),
            "a failed hook fails no run"
        );
        assert_eq!(rig.read("trace"), "a\nb\nsuccess 1\nfinish\nfinished\n");
        assert!(rig.waypost(&["events", "r"]).contains("on_finish@"), "recorded steps of their own scope");
        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));
        assert_eq!(rig.read("trace").lines().count(), 5, "{flow}");
        assert_eq!(code(&rig, &["verify", "r"]), Some(0));
    }
}

#[test]
fn a_failed_run_finishes_too_and_again_after_a_resume() {
    for flow in flows("{id: b, run: echo b >> trace}") {
        let rig = Rig::with(&flow);
        rig.write("bad", "");
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        assert_eq!(rig.read("trace"), "a\nfailure at a\nfinish\nfinished\n", "{flow}");
        std::fs::remove_file(rig.path("bad")).unwrap();
        std::fs::remove_file(rig.path("trace")).unwrap();

        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));

        assert_eq!(rig.read("trace"), "a\nb\nsuccess 1\nfinish\nfinished\n", "{flow}");
    }
}

// Bug: `on_failure` of a workflow ran for each failed step. Cause: it was a hook of each step. Fix: the hook runs once, at
// the end of a run with failures, with the first failed step in `run.failed_step`.
#[test]
fn on_failure_runs_once_for_each_failed_end() {
    let steps = "{id: g, needs: [], steps: [{id: b, run: test -e good}]}, \
                 {id: c, needs: [a], run: 'true'}, {id: d, needs: [], run: 'echo d >> trace'}";
    let flow = format!("max_parallel: 1\n{HOOKS}steps: [{A}, {steps}]\n");
    let rig = Rig::with(&flow.replace("test ! -e bad", "test -e fine"));
    assert_eq!(failures(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), ["failure at a"]);
    assert_eq!(failures(&rig, &["resume", "r", "-q"]), ["failure at a"], "again after a resume");
    rig.write("fine", "");
    assert_eq!(failures(&rig, &["resume", "r", "-q"]), ["failure at b"], "the step within a group");
    rig.write("good", "");
    assert_eq!(failures(&rig, &["resume", "r", "-q"]), [""; 0]);
    assert!(rig.waypost(&["why", "r", "on_failure"]).contains("runs only after a failure"));
}

#[test]
fn skipped_and_tolerated_steps_are_a_success() {
    for flow in
        flows("{id: b, if: 'false', run: a}, {id: c, if: 'always()', run: exit 1, continue_on_error: true}")
    {
        let rig = Rig::with(&flow);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(3));
        assert_eq!(rig.read("trace"), "a\nsuccess 1\nfinish\nfinished\n", "{flow}");
    }
}

#[test]
fn a_hook_tells_of_each_wait_beside_it() {
    for flow in flows("{id: b, approve: Go?}, {id: c, run: echo c >> trace}") {
        let rig = Rig::with(&flow);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(75));
        assert_eq!(rig.read("trace"), "a\nb waits\n", "{flow}");
        // A resume without an answer says nothing again.
        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(75));
        assert_eq!(code(&rig, &["answer", "r", "b", "yes"]), Some(0));
        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));
        assert_eq!(rig.read("trace"), "a\nb waits\nc\nsuccess 1\nfinish\nfinished\n", "{flow}");
    }
}

#[test]
fn each_item_that_waits_has_its_hook() {
    let each = "{id: each, foreach: {items: [x, y], steps: [{id: ask, approve: 'Go ${{ item }}?'}]}}";
    let rig = Rig::with(&format!("{HOOKS}steps: [{A}, {each}]\n"));

    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(75));

    assert_eq!(rig.read("trace"), "a\nask waits\nask waits\n");
}

#[test]
fn ctrl_c_runs_no_hook_and_a_killed_hook_goes_on() {
    let rig = Rig::with(&format!("{HOOKS}steps: [{A}, {{id: b, run: 'touch begun; sleep 1000'}}]\n"));
    let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
    rig.wait_for("begun", |_| true);
    running.signal(libc::SIGINT);
    running.end();
    assert_eq!(rig.read("trace"), "a\n");

    rig.write("flow.yaml", &format!("{HOOKS}steps: [{A}, {{id: b, run: 'true'}}]\n"));
    rig.write("hold", "");
    let running = rig.start(&["resume", "r"]);
    rig.wait_for("held", |_| true);
    running.signal(libc::SIGKILL);
    running.end();
    std::fs::remove_file(rig.path("hold")).unwrap();

    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));

    assert_eq!(rig.read("trace"), "a\nsuccess 1\nfinish\nfinish\nfinished\n");
}

#[test]
fn a_wrong_hook_of_a_run_is_refused() {
    for (top, wanted) in [
        ("on_waiting: [{id: x, run: a}]", "a step of `on_waiting` cannot have an id"),
        (
            "on_finish: [{run: 'echo ${{ run.waiting }}'}]",
            "`run.waiting` exists only in the steps of `on_waiting`",
        ),
        ("on_finish: [{run: 'echo ${{ steps.b.exit_code }}'}]", "there is no step `b`"),
        ("on_success: x", "`on_success` must be a list"),
    ] {
        let rig = Rig::with(&format!("{top}\nsteps: [{A}, {{id: ask, approve: Go?}}]\n"));
        let told = rig.waypost(&["check", "flow.yaml"]);
        assert!(told.starts_with("exit 78") && told.contains(wanted), "{top}: {told}");
    }
}

// Bug: an id in `on_waiting` was reported as a duplicate of itself, too. Cause: each waiting step has a copy of the hook.
// Fix: a refused hook has no copies.
#[test]
fn an_id_in_on_waiting_is_one_error() {
    let rig = Rig::with("on_waiting: [{id: x, run: a}]\nsteps: [{id: q, approve: Go?}, {id: w, wait: go}]\n");

    let told = rig.waypost(&["check", "flow.yaml"]);

    assert_eq!(told.matches("error:").count(), 1, "{told}");
}

#[test]
fn steps_of_hooks_are_not_counted() {
    let rig = Rig::with(&format!("{HOOKS}steps: [{A}, {{id: ask, approve: Go?}}]\n"));
    let waits = rig.waypost(&["run", "flow.yaml", "--id", "r"]);
    assert!(waits.contains("Run r waits: 1 of 2 steps are done."), "{waits}");
    assert_eq!(code(&rig, &["answer", "r", "yes"]), Some(0));

    let told = rig.waypost(&["resume", "r"]);

    assert!(told.contains("Run r is completed: 2 of 2 steps are done."), "{told}");
    assert!(rig.waypost(&["show", "r@1"]).contains("0 of 2 done"));
    let checked = rig.waypost(&["check", "flow.yaml"]);
    assert!(checked.contains("has 2 steps") && checked.contains("  on_finish (hooks)\n"), "{checked}");
    assert!(
        checked.contains("  on_success (hooks)\n") && checked.contains("  on_failure (hooks)\n"),
        "{checked}"
    );
}

// Bug: each plan ran the hooks of a failure, and a hook of an earlier failure stayed in doubt on the screen of a completed run.
#[test]
fn plans_expect_no_failure() {
    let rig = Rig::with(
        "steps: [{id: b, run: test -e ok}]
on_failure: [{run: 'echo hook >> trace', idempotent: false}]
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    let expect = "\non_failure  skip    runs only after a failure\n";
    for args in [&["plan", "r"][..], &["resume", "r", "--dry-run"], &["run", "flow.yaml", "--dry-run"]] {
        let plan = rig.waypost(args);
        assert!(plan.contains(expect), "{args:?}: {plan}");
    }

    rig.write("ok", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));
    std::fs::remove_file(rig.path("ok")).unwrap();
    assert_eq!(code_of(&rig, &["resume", "r", "-q", "--from", "b"]), Some(1));
    rig.write("ok", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));

    let shown = rig.waypost(&["show", "r"]);
    assert!(shown.contains("\non_failure  skipped") && !shown.contains("in_doubt"), "{shown}");
}

// Bug: a non-idempotent hook of a failed run was in doubt after the next failure, and the printed answer `--treat-as done` settled the
// failed step. Fix: each failure has hooks of its own.
#[test]
fn each_failure_of_a_run_has_hooks_of_its_own() {
    for kills in ["", "; test -e k || { touch k; kill -9 $(ps -o ppid= -p $PPID); sleep 3; }"] {
        let flow = format!(
            "on_failure: [{{id: n, idempotent: false, run: 'echo mail >> trace{kills}'}}]
steps: [{{id: b, run: 'test -e ok'}}]
"
        );
        let rig = Rig::with(&flow);
        for _ in 0..2 {
            let told = rig.waypost(&["run", "flow.yaml", "--id", "r", "--or-resume"]);
            assert!(told.starts_with("exit 1\n") && !told.contains("in doubt"), "{told}");
        }
        rig.write("ok", "");
        assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(0));

        assert_eq!(rig.read("trace"), "mail\nmail\n");
    }
}
