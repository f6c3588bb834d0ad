//! `waypost why`: the executions of a step, with their causes.

use crate::rig::{Rig, code_of, wait_until};

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
        let claim = &why["executions"][1]["cause"]["evidence"][0];
        assert_eq!(claim["error"], "the file does not exist", "{store}");
        assert_eq!(claim["expected"].as_str().map(str::len), Some(64), "{store}: {claim}");
        let told = rig.waypost(&["why", "r", "a"]);
        assert!(
            told.contains("file_sha256 a.txt: expected 6b86b273ff34…: the file does not exist"),
            "{store}: {told}"
        );
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

// Bug: `why` listed no execution of a group or of a step after a join. Cause: each start in the record of a join was left
// out. Fix: only the start of the join itself is left out, and a group begins with the opening of its scope.
#[test]
fn why_lists_executions_of_groups_and_after_joins() {
    let rig = Rig::with(
        "steps:
  - {id: p, run: 'cat k > p.txt', evidence: [{sha256: p.txt}]}
  - {id: g, steps: [{id: a, run: 'true'}]}
  - {id: f, foreach: {items: [x], steps: [{id: i, run: 'test -e ok'}]}}
  - {id: d, run: 'true'}
",
    );
    rig.write("k", "1");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig.write("ok", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));
    assert_eq!(executions(&rig, "f"), ["run first", "retry retry"]);
    assert_eq!(executions(&rig, "f:x/i"), ["run first", "retry retry"]);
    assert_eq!(executions(&rig, "d"), ["skip upstream_failed", "run first"]);
    rig.write("k", "2");
    std::fs::remove_file(rig.path("p.txt")).unwrap();

    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));

    assert_eq!(executions(&rig, "g"), ["run first", "rerun upstream_changed"]);
    assert_eq!(executions(&rig, "g~1/a"), ["run first", "rerun upstream_changed"]);
    assert_eq!(executions(&rig, "f"), ["run first", "retry retry", "rerun upstream_changed"]);
    assert_eq!(executions(&rig, "d"), ["skip upstream_failed", "run first", "rerun upstream_changed"]);
}

#[test]
fn why_lists_each_pass_of_a_loop() {
    let rig = Rig::with("steps:\n  - {id: a, repeat: {until: iteration == 3, max: 3}, run: 'true'}\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    assert_eq!(executions(&rig, "a"), ["run first", "run first", "run first"]);

    assert!(rig.waypost(&["why", "r", "a"]).contains("run at r@3: first execution in iteration 3"));
}

// Bug: the reruns downstream of `--from` had no event, and `why` did not know the cause. Cause: only the named step had a
// note. Fix: each finished step that must run again has a note.
#[test]
fn reruns_downstream_of_a_requested_one_have_a_cause() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'true'}
  - {id: f, foreach: {items: [x], steps: [{id: k, run: 'true'}, {id: m, run: 'true'}]}}
  - {id: g, steps: [{id: i, run: 'true'}]}
  - {id: b, run: 'true'}
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    assert_eq!(code_of(&rig, &["resume", "r", "--from", "f:x/k", "-q"]), Some(0));

    assert_eq!(executions(&rig, "f:x/k"), ["run first", "rerun requested"]);
    assert_eq!(executions(&rig, "f:x/m"), ["run first", "rerun upstream_changed"]);
    assert_eq!(executions(&rig, "g~1/i"), ["run first", "rerun upstream_changed"]);
    assert_eq!(executions(&rig, "b"), ["run first", "rerun upstream_changed"]);
    assert_eq!(code_of(&rig, &["resume", "r", "--from", "a", "-q"]), Some(0));
    assert_eq!(executions(&rig, "a"), ["run first", "rerun requested"]);
    assert_eq!(executions(&rig, "b"), ["run first", "rerun upstream_changed", "rerun upstream_changed"]);
    assert_eq!(rig.json(&["why", "r", "b", "--json"])["executions"][2]["cause"]["step"], "a");
    assert!(rig.json(&["why", "r", "a", "--json"])["executions"][1]["by"].is_string());
    assert!(rig.waypost(&["why", "r", "f:x/k"]).contains("upstream changed: `a`"));
    assert_eq!(rig.waypost(&["events", "r"]).matches("step_invalidated b").count(), 2);
}

// Bug: a step downstream of a changed step was said to have a changed definition itself, and a requested step whose rerun was
// deferred, too. Cause: all reruns of a scope had the first cause. Fix: each request is kept with its cause.
#[test]
fn only_the_changed_step_has_a_changed_definition() {
    let flow = "steps:
  - {id: a, run: 'date +%N > a.txt', evidence: [{sha256: a.txt}]}
  - {id: g, steps: [{id: i, run: 'true'}, {id: j, run: 'true'}]}
";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    rig.write("flow.yaml", &flow.replace("id: i, run: 'true'", "id: i, run: 'true x'"));
    assert_eq!(code_of(&rig, &["resume", "r", "--rerun-changed", "-q"]), Some(0));
    assert_eq!(executions(&rig, "g~1/i"), ["run first", "rerun definition_changed"]);
    assert_eq!(executions(&rig, "g~1/j"), ["run first", "rerun upstream_changed"]);

    std::fs::remove_file(rig.path("a.txt")).unwrap();
    assert_eq!(code_of(&rig, &["resume", "r", "--from", "g~1/i", "-q"]), Some(0));
    assert_eq!(executions(&rig, "g~1/i")[2..], ["rerun requested"]);
    assert_eq!(executions(&rig, "g~1/j")[2..], ["rerun upstream_changed"]);
    assert_eq!(rig.json(&["why", "r", "g~1/j", "--json"])["executions"][2]["cause"]["step"], "i");
}

// Bug: an answered question was listed as a second execution, after an attempt that "was cut". Cause: the second start has no
// cause of its own. Fix: an answer, a signal or a time continues the execution.
#[test]
fn an_answer_continues_the_execution_of_its_step() {
    let rig = Rig::with(
        "steps:
  - {id: ask, approve: 'go on?'}
  - {id: pause, sleep: 3s}
  - {id: last, run: 'touch begun; test -e go || sleep 100'}
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(75));
    assert_eq!(code_of(&rig, &["answer", "r", "ask", "yes", "-q"]), Some(0));
    assert_eq!(code_of(&rig, &["resume", "r", "-q", "--wait", "0s"]), Some(75));
    let mut running = rig.start(&["resume", "r", "-q"]);
    wait_until("the last step", || rig.path("begun").exists());
    running.signal(libc::SIGINT);
    assert_eq!(running.code(), Some(130));
    rig.write("go", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));

    assert_eq!(executions(&rig, "ask"), ["run first"]);
    assert_eq!(executions(&rig, "pause"), ["run first"]);
    assert_eq!(executions(&rig, "last"), ["run first", "rerun cut"]);
    assert!(rig.waypost(&["why", "r", "last"]).contains("was stopped before its end (SIGINT)"));
}

// Bug: a decision about a step in doubt was in no event and no execution. Cause: only choices about other steps had a note.
// Fix: both have the same note.
#[test]
fn a_decision_about_a_step_in_doubt_has_the_person() {
    let rig = Rig::with("steps: [{id: a, idempotent: false, run: 'test -e go || kill -9 $PPID $$'}]\n");
    for (run, decision) in [("r", "done"), ("s", "retry")] {
        rig.call(&["run", "flow.yaml", "--id", run, "-q"]);
        if decision == "retry" {
            rig.write("go", "");
        }
        assert_eq!(code_of(&rig, &["resume", run, "--treat-as", decision, "-q"]), Some(0), "{decision}");
    }

    assert_eq!(executions(&rig, "a"), ["run first", "reuse settled"]);
    assert!(rig.waypost(&["events", "r"]).contains("step_settled a: done by "));
    assert!(rig.waypost(&["report", "r"]).contains("| settled | done by "));
    let why = rig.json(&["why", "s", "a", "--json"]);
    assert_eq!(why["executions"][1]["cause"]["code"], "requested");
    assert!(why["executions"][1]["by"].is_string());
}

// Bug: items of an earlier pass counted as abandoned, and reused items as ended without a result. Cause: only the last pass, and
// only records of completed steps counted. Fix: all joined passes, and the ends of the position.
#[test]
fn steps_of_earlier_passes_and_reused_items_are_done() {
    let flow = "steps:
  - id: loop
    repeat: {until: iteration == 2, max: 2}
    steps: [{id: each, foreach: {items: [x], steps: [{id: a, run: 'true'}]}}]
  - id: list
    foreach: {items: [x, y], steps: [{id: b, run: 'echo > b.txt', evidence: [{file: b.txt}]}]}
";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    rig.write("flow.yaml", &flow.replace("[x, y]", "[x, z]"));
    assert_eq!(code_of(&rig, &["resume", "r", "--rerun-changed", "-q"]), Some(0));

    for step in ["loop~1/each:x/a", "loop~2/each:x/a", "list:x/b", "list:z/b"] {
        let why = rig.waypost(&["why", "r", step]);
        assert!(why.contains("reuse the result, because completed at @"), "{step}: {why}");
    }
    assert!(rig.waypost(&["why", "r", "list:y/b"]).contains("its scope was abandoned"));
}

// Bug: a rerun after a rollback was said to be requested by a person for its step, and a fork in doubt named no cause. Fix: the
// record of the rollback is the cause, and the plan has the cause of a doubt.
#[test]
fn a_rerun_after_a_rollback_has_the_rollback_as_cause() {
    let rig = Rig::with(
        "steps: [{id: a, run: 'true'}, {id: b, run: 'true'}, {id: c, idempotent: false, run: 'true'}]\n",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    assert_eq!(code_of(&rig, &["rollback", "r@2", "-q"]), Some(0));

    let told = rig.waypost(&["resume", "r"]);

    assert!(
        told.contains("is in doubt at step c: not idempotent, and the run was rolled back after it"),
        "{told}"
    );
    assert!(rig.waypost(&["why", "r", "b"]).contains(": the run was rolled back"));
}

// Bug: the retry of a failed foreach or group was not listed, and a hook's rerun was called requested by a person.
#[test]
fn why_lists_retries_of_openers_and_reruns_of_hooks() {
    let rig = Rig::with(
        "steps:
  - {id: g, steps: [{id: s, run: 'test -e ok'}]}
  - {id: each, foreach: {items: [a, b], as: it, steps: [{id: w, run: 'test -e fine || test $IT = a', env: {IT: '${{ it }}'}}]}}
on_finish: [{run: echo bye}]
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig.write("ok", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(1));
    rig.write("fine", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));

    assert_eq!(executions(&rig, "g"), ["run first", "retry retry"]);
    assert_eq!(executions(&rig, "each"), ["skip upstream_failed", "run first", "retry retry"]);
    let of_hooks = ["run first", "rerun upstream_changed", "rerun upstream_changed"];
    assert_eq!(executions(&rig, "on_finish"), of_hooks);
    // Without a step, the answer is about the last step of the workflow, not about its hooks.
    assert_eq!(rig.json(&["why", "r", "--json"])["step"], "each");
}

// Bug: after a rollback, a step of a group named its own group as the changed upstream step. Cause: the child took its
// opener for the cause. Fix: the cause is that of the opener: its invalidation, a rollback or a restart.
#[test]
fn a_step_of_a_group_has_the_cause_of_its_group() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'true'}
  - {id: g, steps: [{id: s1, run: 'true'}, {id: inner, steps: [{id: s2, run: 'true'}]}]}
on_finish: [{run: echo bye}]
on_failure: [{run: echo no}]
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    let causes = || {
        let last = |step: &str| {
            let why = rig.waypost(&["why", "r", step]);
            let executions: Vec<&str> = why.lines().filter(|line| line.contains("Z rerun at ")).collect();
            executions
                .last()
                .and_then(|line| line.split_once(": "))
                .map_or(String::new(), |at| at.1.to_owned())
        };
        ["g/s1", "g/inner/s2", "on_finish/on_finish-1"].map(last)
    };

    assert_eq!(code_of(&rig, &["rollback", "r@2", "-q"]), Some(0));
    let plan = rig.waypost(&["plan", "r"]);
    assert!(!plan.contains("upstream `g` reruns"), "{plan}");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));
    assert_eq!(causes(), ["the run was rolled back"; 3]);
    let events = rig.waypost(&["events", "r"]);
    assert!(events.contains("step_invalidated s1: the run was rolled back"), "{events}");
    assert!(!events.contains("step_invalidated on_failure-1"), "{events}");

    assert_eq!(code_of(&rig, &["resume", "r", "--from", "a", "-q"]), Some(0));
    assert_eq!(causes(), ["upstream changed: `a`"; 3]);
    assert_eq!(code_of(&rig, &["resume", "r", "--from", "g", "-q"]), Some(0));
    assert!(causes()[..2].iter().all(|cause| cause.starts_with("rerun requested by ")), "{:?}", causes());
    assert_eq!(causes()[2], "upstream changed: `g`");
    assert_eq!(code_of(&rig, &["resume", "r", "--restart", "-q"]), Some(0));
    assert!(causes().iter().all(|cause| cause.starts_with("rerun requested by ")), "{:?}", causes());
    assert!(rig.waypost(&["why", "r", "g"]).contains(": the run was restarted"));
}

// Bug: the failure of an item with later steps was told twice, and a repeated step of a group without its iteration. Cause:
// the end of the scope repeats the failure, and every group counted as a pass. Fix: the end names the record of the
// failure, and only the passes in the path are left out.
#[test]
fn events_tell_a_failure_once_and_the_iteration_in_a_group() {
    let rig = Rig::with(
        r#"steps:
  - {id: each, foreach: {items: [x], max_failures: 1, steps: [{id: s, run: 'false'}, {id: t, run: 'true'}]}}
  - id: g
    steps:
      - id: r
        run: 'echo x >> count; echo "n=$(wc -l < count)" >> "$WAYPOST_OUTPUT"'
        repeat: {until: "steps.r.outputs.n == '2'", max: 3}
"#,
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(3));

    let events = rig.waypost(&["events", "r"]);

    assert_eq!(events.matches("step_failed s").count(), 1, "{events}");
    assert_eq!(events.matches("step_completed r: iteration ").count(), 2, "{events}");
}

/// Returns the executions of a step as `action: cause`.
fn causes(rig: &Rig, run: &str, step: &str) -> Vec<String> {
    let why = rig.json(&["why", run, step, "--json"]);
    let executions = why["executions"].as_array().unwrap();
    let text = |one: &serde_json::Value| {
        format!("{}: {}", one["action"].as_str().unwrap(), one["cause"]["text"].as_str().unwrap())
    };
    executions.iter().map(text).collect()
}

// Bug: a rerun of a later pass named a step upstream of the loop. Cause: only the first pass has a recorded cause. Fix: the
// cause is the loop, since the input of a later pass is the pass before.
#[test]
fn a_rerun_of_a_later_pass_names_its_loop() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'true'}
  - {id: l, repeat: {until: iteration >= 2, max: 2}, steps: [{id: p, run: 'true'}]}
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    assert_eq!(code_of(&rig, &["resume", "r", "--from", "l", "-q"]), Some(0));

    assert_eq!(causes(&rig, "r", "l~2/p"), ["run: first execution", "rerun: upstream changed: `l`"]);
}

// Bug: a step added to a finished group was told to rerun. Cause: the request of its first run was taken for the cause of a
// rerun. Fix: a new step has no such cause.
#[test]
fn an_added_step_of_a_finished_group_runs_for_the_first_time() {
    let flow = "steps:
  - {id: g, steps: [{id: x, run: 'true'}]}
  - {id: z, run: 'true'}
";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    rig.write("flow.yaml", &flow.replace("'true'}]}", "'true'}, {id: y, run: 'true'}]}"));

    assert_eq!(code_of(&rig, &["resume", "r", "--rerun-changed", "-q"]), Some(0));

    assert_eq!(causes(&rig, "r", "g/y"), ["run: first execution"]);
    assert_eq!(causes(&rig, "r", "g"), ["run: first execution", "rerun: the definition of the step changed"]);
}

// Bug: `why` of a fork told the step of `--from` as its first execution. Cause: the new run had no record of the request.
// Fix: the first record of the fork has the cause.
#[test]
fn a_fork_from_a_step_has_the_cause_of_its_reruns() {
    let rig = Rig::with(
        "steps: [{id: a, run: 'true', evidence: [{file: flow.yaml}]}, {id: b, run: 'true'}, {id: c, run: 'true'}]",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    assert_eq!(code_of(&rig, &["fork", "r", "--id", "f", "--from", "b", "-q"]), Some(0));

    assert_eq!(causes(&rig, "f", "a"), [""; 0]);
    assert_eq!(causes(&rig, "f", "b"), ["rerun: rerun requested by a person"]);
    assert_eq!(causes(&rig, "f", "c"), ["rerun: an upstream step ran again"]);
}

// Bug: a `foreach` with another list of items told that an upstream step ran again. Cause: its rerun had no recorded cause.
// Fix: the adoption records that the definition changed.
#[test]
fn another_list_of_items_is_a_changed_definition() {
    let flow = "steps:
  - {id: s, run: 'true'}
  - {id: f, foreach: {items: [x], steps: [{id: w, run: 'true'}]}}
";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    rig.write("flow.yaml", &flow.replace("[x]", "[x, y]"));

    assert_eq!(code_of(&rig, &["resume", "r", "--rerun-changed", "-q"]), Some(0));

    assert_eq!(causes(&rig, "r", "f"), ["run: first execution", "rerun: the definition of the step changed"]);
    assert_eq!(causes(&rig, "r", "f:x/w"), ["run: first execution"]);
    assert_eq!(causes(&rig, "r", "f:y/w"), ["run: first execution"]);
}

// Bug: `why` of a step in an item or a group named no upstream step, no kept result, and no record after a rollback.
#[test]
fn why_tells_causes_from_outside_of_a_scope() {
    let flow = "steps:
  - {id: a, run: 'test -e ok', continue_on_error: true}
  - id: each
    foreach: {items: [x], steps: [{id: e1, run: 'true'}]}
";
    let rig = Rig::with(flow);
    rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);
    rig.write("ok", "");
    let planned = rig.waypost(&["resume", "r", "--retry-failed", "--dry-run"]);
    assert!(planned.contains("\neach  recheck  upstream `a` reruns\n"), "{planned}");
    rig.call(&["resume", "r", "-q", "--retry-failed"]);
    let upstream = rig.waypost(&["why", "r", "each:x/e1"]);
    rig.write("flow.yaml", &flow.replace("run: 'true'", "run: echo"));
    rig.call(&["resume", "r", "-q", "--keep-finished"]);
    let kept = rig.waypost(&["why", "r", "each:x/e1"]);
    rig.call(&["rollback", "r@1", "-q"]);
    let rolled_back = rig.waypost(&["why", "r", "each"]);

    assert!(upstream.contains(": upstream changed: `a`\n"), "{upstream}");
    assert!(kept.contains(": kept by ") && kept.contains(", with `each`\n"), "{kept}");
    assert!(rolled_back.contains(": first execution") && !rolled_back.contains("No record"), "{rolled_back}");
}

// Bug: `why` told of a second execution of a step that started beside a group. Cause: the record of the opening repeated the
// start. Fix: a start that has a record is not listed again.
#[test]
fn a_start_beside_a_group_is_one_execution() {
    let rig = Rig::with(
        "steps:
  - {id: a, needs: [], run: 'sleep 0.2'}
  - {id: g, needs: [], steps: [{id: s, run: 'true'}]}
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    assert_eq!(executions(&rig, "a"), ["run first"]);
}
