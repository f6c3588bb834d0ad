//! Hooks: steps that run after another step, by its result.

use crate::rig::{Rig, check};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

const FLOW: &str = r#"
on_failure:
  - {run: 'echo "run failed at $S" >> trace', env: {S: "${{ run.failed_step }}"}}
steps:
  - id: good
    run: 'echo "n=1" >> "$WAYPOST_OUTPUT"'
    on_success: [{run: 'echo "good gave $N" >> trace', env: {N: "${{ steps.good.outputs.n }}"}}]
    on_failure: [{run: 'echo never >> trace'}]
  - id: bad
    run: 'echo "try $WAYPOST_ATTEMPT" >> trace; [ -e ok ] || exit 3'
    retry: {max: 1, delay: 10ms}
    on_exit_code: {3: [{run: 'echo "three is $C" >> trace', env: {C: "${{ steps.bad.exit_code }}"}}], 4: [{run: 'echo never >> trace'}]}
    on_failure:
      - {run: 'echo "clean $WAYPOST_SCOPE" >> trace; while [ -e hold ]; do sleep 0.02; done'}
      - {run: 'echo cleaner >> trace'}
  - {id: end, run: 'echo end >> trace'}
"#;

const FAILED: &str =
    "good gave 1\ntry 1\ntry 2\nthree is 3\nclean bad:on_failure\ncleaner\nrun failed at bad\n";

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

#[test]
fn hooks_are_done_once_and_the_step_again_by_a_resume() {
    for store in STORES {
        let rig = Rig::with(FLOW).at(store);

        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1), "{store}");

        assert_eq!(rig.read("trace"), FAILED, "{store}");
        let show = rig.json(&["show", "r", "--json"]);
        assert_eq!((&show["failed_step"], &show["error"]["exit_code"]), (&"bad".into(), &3.into()));
        assert_eq!(show["steps"][1]["attempts"], 2, "what came after it is no try");
        // The step fails again, and its hooks run again.
        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(1));
        let again = "try 3\ntry 4\nthree is 3\nclean bad:on_failure\ncleaner\nrun failed at bad\n";
        assert_eq!(rig.read("trace"), format!("{FAILED}{again}"), "{store}");
        rig.write("ok", "");
        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));
        assert_eq!(rig.read("trace"), format!("{FAILED}{again}try 5\nend\n"), "{store}");
        assert_eq!(code(&rig, &["verify", "r"]), Some(0));
        assert!(
            rig.waypost(&["events", "r"]).contains("bad:on_failure@"),
            "recorded steps of their own scope"
        );
    }
}

// Bug: a fork of a failed run, or an import of its last checkpoint, failed at once in the same way. Cause: the
// copy kept the finished hooks of the failed step, so only the failure was left. Fix: as in a resume, the failed
// step and its hooks run again.
#[test]
fn what_begins_where_a_step_had_failed_does_it_again() {
    for store in STORES {
        let rig = Rig::with(FLOW).at(store);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1), "{store}");
        let newest = rig.json(&["export", "r", "r.json", "--json"])["checkpoint"].clone();
        rig.write("ok", "");
        for begin in [["fork", newest.as_str().unwrap()], ["import", "r.json"]] {
            std::fs::remove_file(rig.path("trace")).unwrap();
            let mut args = begin.to_vec();
            args.extend(["-q", "--id", begin[0]]);
            args.extend(Some("--trust").filter(|_| begin[0] == "import"));
            assert_eq!(code(&rig, &args), Some(0), "{store}: {begin:?}");
            assert_eq!(rig.read("trace"), "try 1\nend\n", "{store}: {begin:?}");
            assert_eq!(code(&rig, &["verify", begin[0]]), Some(0));
        }
    }
}

#[test]
fn a_crash_amid_hooks_costs_the_hook_that_was_cut() {
    for store in STORES {
        let rig = Rig::with(FLOW).at(store);
        rig.write("hold", "");
        let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
        rig.wait_for("trace", |text| text.contains("clean"));
        running.signal(libc::SIGKILL);
        running.end();
        std::fs::remove_file(rig.path("hold")).unwrap();

        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(1), "the step has failed, {store}");

        let expected =
            FAILED.replace("clean bad:on_failure\n", "clean bad:on_failure\nclean bad:on_failure\n");
        assert_eq!(rig.read("trace"), expected, "{store}");
        assert_eq!(rig.json(&["show", "r", "--json"])["status"], "failed");
    }
}

#[test]
fn ctrl_c_does_no_hooks() {
    let rig = Rig::with(
        "on_failure: [{run: 'echo hook >> trace'}]\nsteps:\n  - {id: a, run: 'echo a >> trace; sleep 60', on_failure: [{run: 'echo hook >> trace'}]}\n",
    );
    let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
    rig.wait_for("trace", |text| text.contains('a'));
    running.signal(libc::SIGINT);
    assert_eq!(running.end().status.code(), Some(130));
    assert_eq!(rig.read("trace"), "a\n");
}

#[test]
fn a_hook_that_fails_hides_nothing() {
    let flow = "steps:\n  - id: a\n    run: exit 7\n    continue_on_error: true\n    on_failure: [{run: 'exit 9'}]\n  - {id: b, run: 'echo \"b after $C\" >> trace', env: {C: '${{ steps.a.exit_code }}'}}\n  - {id: c, run: 'true', on_success: [{run: 'exit 5'}, {run: 'echo never >> trace'}]}\n";
    let rig = Rig::with(flow);

    let ended = rig.call(&["run", "flow.yaml", "--id", "r"]);

    assert_eq!(ended.status.code(), Some(3), "{}", rig.told(&ended));
    assert_eq!(rig.read("trace"), "b after 7\n");
    let told = rig.told(&ended);
    assert!(told.contains("its `on_failure` failed: exit code 9"), "{told}");
    assert!(told.contains("its `on_success` failed: exit code 5"), "{told}");
}

#[test]
fn a_hook_that_fails_makes_no_failure_of_what_was_done() {
    for store in STORES {
        let rig = Rig::with("steps: [{id: c, run: 'true', on_success: [{run: exit 5}]}]").at(store);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0), "{store}");
        assert_eq!(rig.json(&["show", "r", "--json"])["status"], "completed");

        let each = "{items: [a, b], steps: [{id: c, run: 'true', on_success: [{run: exit 5}]}]}";
        rig.write("flow.yaml", &format!("steps: [{{id: each, foreach: {each}}}]"));
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "s", "-q"]), Some(0), "{store}");
        let letters = rig.json(&["dead-letters", "list", "s", "--json"]);
        assert_eq!(letters["items"], serde_json::json!([]), "{store}");
    }
}

#[test]
fn the_hook_of_a_run_is_for_what_fails_the_run() {
    let rig = Rig::with(
        r#"
on_failure: [{run: 'echo "failed: $S" >> trace', env: {S: "${{ run.failed_step }}"}}]
steps:
  - {id: fine, run: 'exit 1', continue_on_error: true}
  - id: letters
    foreach: {items: [a], failure_rate: 1, steps: [{id: dead, run: 'exit 1'}]}
  - id: strict
    foreach: {items: [a], on_item_failure: stop, steps: [{id: inner, run: 'exit 1'}]}
"#,
    );

    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));

    assert_eq!(rig.read("trace"), "failed: inner\n");
}

#[test]
fn hooks_that_cannot_be_are_refused() {
    for (name, flow) in [
        ("needs", "steps:\n  - {id: a, run: x, on_failure: [{id: b, run: y}, {run: z, needs: [b]}]}\n"),
        ("code", "steps:\n  - {id: a, run: x, on_exit_code: {many: [{run: y}]}}\n"),
        ("list", "steps:\n  - {id: a, run: x, on_failure: ./notify.sh}\n"),
        (
            "foreach",
            "steps:\n  - {id: a, foreach: {items: [x], steps: [{run: y}]}, on_exit_code: {3: [{run: z}]}}\n",
        ),
        (
            "later",
            "steps:\n  - {id: a, run: x, on_success: [{run: 'true', env: {B: '${{ steps.b.status }}', F: '${{ run.failed_step }}'}}]}\n  - {id: b, run: y}\n",
        ),
        (
            "run",
            "on_failure: [{run: 'true', env: {B: '${{ steps.b.status }}'}}]\non_success: [{run: y}]\nsteps:\n  - {id: a, run: x}\n",
        ),
        ("double", "on_failure: [{id: a, run: y}]\nsteps:\n  - {id: a, run: x}\n"),
    ] {
        let rig = Rig::with(flow);
        check(&format!("hooks_wrong_{name}"), &rig.waypost(&["check", "flow.yaml"]));
    }
}

// Bug: with evidence in the file, the hook of a second failure did not run; with `idempotent: false` the hook was in doubt.
// Cause: the hook of the first failure counted as the same execution. Fix: each failure runs its hooks.
#[test]
fn each_failure_runs_its_hooks() {
    for rest in ["", ", evidence: [{exit: 0}]", ", idempotent: false"] {
        let rig = Rig::with(&format!(
            "steps: [{{id: a, run: 'false', on_failure: [{{run: 'echo hook >> trace'{rest}}}]}}]\n"
        ));

        for call in
            [&["run", "flow.yaml", "--id", "r", "-q"][..], &["resume", "r", "-q"], &["resume", "r", "-q"]]
        {
            assert_eq!(code(&rig, call), Some(1), "{rest}");
        }

        assert_eq!(rig.read("trace"), "hook\nhook\nhook\n", "{rest}");
    }
}

// Bug: hooks removed from the file while they ran were adopted in words, and refused without a way out. Fix: the refusal says why.
#[test]
fn begun_hooks_that_are_removed_are_told() {
    let rig = Rig::with("steps: [{id: a, run: 'true', on_success: [{id: h, approve: 'ok?'}]}]\n");
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]), Some(75));
    rig.write("flow.yaml", "steps: [{id: a, run: 'true'}]\n");

    let said = rig.waypost(&["resume", "r", "-q"]);

    assert!(said.starts_with("exit 9\n") && said.contains("the hooks of step `a` have begun"), "{said}");
    assert!(said.contains("--keep-definition"), "{said}");
}

// Bug: after a success, a failure and its mending, the hooks of the success did not run: their earlier results were reused. Fix: a
// failure in between ends their reuse.
#[test]
fn a_mended_failure_runs_the_hooks_of_success() {
    let rig = Rig::with(
        "on_success: [{run: 'echo run fine >> trace'}]
on_failure: [{run: 'echo run failed >> trace'}]
steps:
  - {id: b, run: 'touch b; test ! -e bad', evidence: [{file: b}], on_success: [{run: 'echo b fine >> trace'}]}
",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    std::fs::remove_file(rig.path("b")).unwrap();
    rig.write("bad", "");
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(1));
    std::fs::remove_file(rig.path("bad")).unwrap();

    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));

    assert_eq!(rig.read("trace"), "b fine\nrun fine\nrun failed\nb fine\nrun fine\n");
}

// Bug: `--from` with a finished step of a hook said that the step had not finished. Fix: the step with the hook is named.
#[test]
fn a_step_of_a_hook_does_not_rerun_alone() {
    let rig = Rig::with(
        "steps: [{id: g, steps: [{id: a, run: 'true', on_success: [{id: h, run: 'echo h >> trace'}]}]}]\n",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    let said = rig.waypost(&["resume", "r", "--from", "g/a:on_success/h"]);

    assert!(said.contains("cannot rerun a step of a hook: a hook runs with its step\n"), "{said}");
    assert!(said.contains("hint: `waypost resume r --from g/a` reruns the step, with its hooks\n"), "{said}");
    assert_eq!(code(&rig, &["resume", "r", "--from", "g/a", "-q"]), Some(0));
    assert_eq!(rig.read("trace"), "h\nh\n");
}

// Bug: after a rollback, the plan listed hooks that did not run, also when the run was completed. Cause: the abandoned scopes
// of the hooks. Fix: only open hooks are listed.
#[test]
fn a_plan_after_a_rollback_lists_no_hooks() {
    let rig = Rig::with(
        "on_failure: [{id: wf, run: 'echo wf >> trace'}]
steps:
  - {id: a, on_failure: [{id: hf, run: 'true'}], on_success: [{id: hs, run: 'true'}], run: test -e ok}
",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig.write("ok", "");
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));

    let rolled_back = rig.waypost(&["rollback", "r@1"]);
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));
    let plan = rig.waypost(&["plan", "r"]);

    for rows in [rolled_back, plan] {
        assert!(
            rows.contains("\na ") && !rows.contains("on_success/") && !rows.contains("on_failure/"),
            "{rows}"
        );
    }
}

// Bug: the hook of a failed step could not read the outputs of the step. Cause: only those of tolerated failures were read.
#[test]
fn hooks_and_later_steps_read_the_outputs_of_a_failed_step() {
    let rig = Rig::with(
        "steps:
  - id: b
    run: 'echo v=7 >> $WAYPOST_OUTPUT; exit 3'
    on_failure: [{id: h, run: 'echo hook $V >> trace', env: {V: '${{ steps.b.outputs.v }}'}}]
  - {id: t, if: failure(), run: 'echo later $V >> trace', env: {V: '${{ steps.b.outputs.v }}'}}
",
    );

    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));

    assert_eq!(rig.read("trace"), "hook 7\nlater 7\n");
}

// Bug: a plan continued after a failed step with open hooks. Cause: in a dry run, the result of the hooks was the result of
// the step.
#[test]
fn a_plan_amid_the_hooks_of_a_failure_ends_the_failure() {
    let rig = Rig::with(
        "on_success: [{run: 'true'}]
steps:
  - {id: b, run: 'false', on_failure: [{id: h, approve: 'tried?'}]}
  - {id: c, run: 'true'}
  - {id: d, run: 'true', if: failure()}
",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]), Some(75));
    assert_eq!(code(&rig, &["answer", "r", "yes", "-q"]), Some(0));

    let plan = rig.waypost(&["plan", "r"]);

    for row in [
        "\nc               skip    upstream `b` failed\n",
        "\nd               run ",
        "\non_success      skip ",
    ] {
        assert!(plan.contains(row), "{row}: {plan}");
    }
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(1));
}

// Bug: a failed item of a hook was shown with the commands of dead letters, which know no item of a hook.
#[test]
fn a_failed_item_of_a_hook_is_no_dead_letter() {
    let hook = "on_success: [{id: f, foreach: {items: [x], steps: [{id: s, run: exit 3}]}}]";
    for flow in [
        format!("steps:\n  - id: a\n    run: 'true'\n    {hook}\n"),
        format!("{hook}\nsteps: [{{id: a, run: 'true'}}]\n"),
    ] {
        let rig = Rig::with(&flow);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0), "{flow}");

        let shown = rig.waypost(&["show", "r"]);

        assert!(shown.contains("exit code 3") && !shown.contains("dead-letters"), "{shown}");
    }
}
