//! Limits of a run, and its events while it runs.

use serde_json::{Value, json};

use crate::rig::{Rig, check, code_of, wait_until};

const PAID: &str = r#"
name: paid
budget: {cost: 1.00, tokens: 1k}
steps:
  - {id: a, run: 'echo usage.cost=0.6 >> "$WAYPOST_OUTPUT"'}
  - {id: b, run: 'echo usage.cost=0.6 >> "$WAYPOST_OUTPUT"; echo usage.tokens_in=900 >> "$WAYPOST_OUTPUT"'}
  - {id: c, run: 'touch c; echo usage.tokens_out=200 >> "$WAYPOST_OUTPUT"', idempotent: false}
  - {id: d, run: touch d}
"#;

#[test]
fn a_run_above_its_budget_stops_and_resumes_with_more() {
    let rig = Rig::with(PAID);

    check("budget_passed", &rig.waypost(&["run", "flow.yaml", "--id", "r"]));
    assert!(!rig.path("c").exists());
    check("budget_still_passed", &rig.waypost(&["resume", "r"]));
    assert_eq!(rig.json(&["resume", "r", "--json"])["error"]["code"], "budget");
    assert_eq!(rig.json(&["list", "--json"])["runs"][0]["status"], "interrupted");

    // By tokens now; finished steps stay.
    rig.write("flow.yaml", &PAID.replace("cost: 1.00", "cost: 1.20"));
    let ended = rig.waypost(&["resume", "r", "-q"]);
    assert!(ended.starts_with("exit 124\n"), "{ended}");
    assert!(ended.contains("stopped by its budget (1100 of 1000 tokens): 3 of 4 steps"), "{ended}");
    assert!(rig.path("c").exists() && !rig.path("d").exists());
    rig.write("more.yaml", &PAID.replace("cost: 1.00, tokens: 1k", "cost: 1.20, tokens: 1.1k"));
    assert_eq!(rig.call(&["resume", "r", "--with", "more.yaml", "-q"]).status.code(), Some(0));
    assert!(rig.path("d").exists());
    // An ended run needs no budget.
    rig.write("flow.yaml", PAID);
    assert_eq!(rig.call(&["resume", "r", "--with", "flow.yaml", "-q"]).status.code(), Some(0));
}

// Bug: `plan` and dry runs of a run over its budget listed the next step, although a resume stops at once. Fix:
// the budget is among the reasons that stop a resume.
#[test]
fn a_plan_says_that_the_budget_is_passed() {
    let rig = Rig::with(PAID);
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(124));
    let words = "cannot start a step of run r: the budget is exceeded (cost 1.20 of 1.00)";

    for looks in [&["plan", "r"][..], &["why", "r"]] {
        assert!(rig.waypost(looks).contains(words), "{looks:?}: {}", rig.waypost(looks));
        if looks[0] != "why" {
            assert_eq!(rig.json(&[looks, &["--json"]].concat())["stops"], json!([words]), "{looks:?}");
        }
    }
    rig.write("more.yaml", &PAID.replace("cost: 1.00", "cost: 9.00"));
    let more = rig.json(&["resume", "r", "--with", "more.yaml", "--dry-run", "--json"]);
    assert_eq!(more["stops"], json!([]));
}

#[test]
fn what_is_under_way_is_stopped_and_tries_that_failed_count() {
    let rig = Rig::with(
        r#"
budget: {tokens: 15}
steps:
  - {id: long, needs: [], run: 'echo $$ > pid; sleep 1000'}
  - {id: dear, needs: [], run: 'until [ -s pid ]; do sleep 0.01; done; echo usage.tokens_in=10 >> "$WAYPOST_OUTPUT"; exit 1', retry: {max: 9, delay: 10ms}}
"#,
    );

    let ended = rig.call(&["run", "flow.yaml", "--id", "r"]);

    assert_eq!(ended.status.code(), Some(124), "{}", rig.told(&ended));
    assert!(rig.told(&ended).contains("its budget (20 of 15 tokens): 0 of 2 steps are done"));
    wait_until("the step to be gone", || !crate::rig::lives(&rig.read("pid")));
    let why = rig.waypost(&["why", "r", "long"]);
    assert!(why.contains("its budget"), "{why}");
}

#[test]
fn what_a_killed_session_used_counts() {
    let rig = Rig::with(
        r#"
budget: {cost: 1}
steps:
  - {id: a, run: 'echo usage.cost=0.9 >> "$WAYPOST_OUTPUT"'}
  - {id: b, run: 'echo usage.cost=0.2 >> "$WAYPOST_OUTPUT"; [ -e go ] || { touch begun; sleep 1000; }'}
  - {id: c, run: touch c}
"#,
    );
    let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
    rig.wait_for("begun", |_| true);
    running.signal(libc::SIGKILL);
    running.end();
    rig.write("go", "");

    let ended = rig.call(&["resume", "r"]);

    assert_eq!(ended.status.code(), Some(124), "{}", rig.told(&ended));
    assert!(rig.told(&ended).contains("(cost 1.10 of 1.00): 2 of 3"), "{}", rig.told(&ended));
    assert!(!rig.path("c").exists());
}

#[test]
fn the_last_step_may_pass_the_budget() {
    let rig =
        Rig::with("budget: {cost: 1}\nsteps: [{id: a, run: 'echo usage.cost=1.5 >> \"$WAYPOST_OUTPUT\"'}]\n");

    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(0));
    let resumed = rig.waypost(&["resume", "r"]);
    assert!(resumed.starts_with("exit 0\n--- stdout\nNothing to do"), "{resumed}");
}

const SLOW: &str = r#"
checkpoints: {interval: 1s}
steps:
  - id: a
    run: |
      echo begun
      until [ -e go ]; do sleep 0.01; done
"#;

/// Returns the events of step `a` while it ran.
fn told(rig: &Rig) -> Vec<Value> {
    let events = String::from_utf8(rig.call(&["events", "r", "--json"]).stdout).unwrap();
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == "progress").collect()
}

#[test]
fn a_step_that_runs_long_is_checkpointed_meanwhile() {
    let rig = Rig::with(SLOW);
    let running = rig.start(&["run", "flow.yaml", "--id", "r"]);

    wait_until("two checkpoints within the step", || told(&rig).len() >= 2);
    rig.write("go", "");
    let ended = running.end();

    assert_eq!(ended.status.code(), Some(0), "{}", rig.told(&ended));
    let told = told(&rig);
    assert_eq!((&told[0]["step"], &told[0]["key"]), (&json!("a"), &json!("running")));
    assert_eq!(told[0]["value"]["log_bytes"], 6);
    let elapsed = |at: usize| told[at]["value"]["elapsed_ms"].as_u64().unwrap();
    assert!(elapsed(0) >= 1000 && elapsed(1) >= 2000, "{told:?}");
    let listed = rig.json(&["checkpoints", "r", "--json"]);
    assert_eq!(
        (&listed["checkpoints"][1]["phase"], &listed["checkpoints"][1]["reason"]),
        (&json!("progress"), &json!("interval"))
    );
}

#[test]
fn a_step_that_is_killed_behind_such_a_checkpoint_runs_again() {
    let rig = Rig::with(SLOW);
    let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
    wait_until("a checkpoint within the step", || !told(&rig).is_empty());
    running.signal(libc::SIGKILL);
    running.end();
    rig.write("go", "");

    let ended = rig.call(&["resume", "r"]);

    assert_eq!(ended.status.code(), Some(0), "{}", rig.told(&ended));
    assert_eq!(rig.json(&["show", "r", "--json"])["steps"][0]["attempts"], 2);
}

// Bug: two plain resumes got past a step with more failed items than its limit allows. Cause: each session
// counted its own failures. Fix: the join of the items counts all failures.
#[test]
fn no_number_of_resumes_gets_past_the_failures_that_may_be() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        for (limit, text) in [
            ("max_failures: 1", "2 of 6 items failed, the maximum is 1"),
            ("failure_rate: 0.2", "2 of 6 items failed, over the maximum rate of 0.2"),
        ] {
            let flow = "steps:
  - id: f
    foreach: {items: [1, 2, 3, 4, 5, 6], as: i, max_parallel: 1, LIMIT, steps: [{id: g, run: 'echo g$I >> trace; test -e go || test $I -gt 4', env: {I: '${{ i }}'}}]}
  - {id: z, run: 'echo z$N >> trace', env: {N: '${{ steps.f.failed }}'}}
";
            let rig = Rig::with(&flow.replace("LIMIT", limit)).at(store);
            assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));
            assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(1), "{store}");

            for _ in 0..2 {
                let resumed = rig.call(&["resume", "r"]);

                assert_eq!(resumed.status.code(), Some(1), "{store} {limit}: {}", rig.told(&resumed));
                assert!(rig.told(&resumed).contains(text), "{store}: {}", rig.told(&resumed));
                assert!(rig.told(&resumed).contains("retry with: waypost dead-letters retry r"));
            }
            assert_eq!(rig.read("trace"), "g1\ng2\n".repeat(4), "{store}: each resume tries those again");
            rig.write("go", "");
            let retried = rig.call(&["resume", "r", "--retry-failed", "-q"]);
            assert_eq!(retried.status.code(), Some(0), "{store} {limit}: {}", rig.told(&retried));
            assert!(rig.read("trace").ends_with("z0\n"), "{store}");
        }
    }
}

/// Runs the command in a shell with other limits.
fn limited(rig: &Rig, limits: &str, args: &str) -> std::process::Output {
    let waypost = env!("CARGO_BIN_EXE_waypost");
    let mut command = std::process::Command::new("bash");
    command.args(["-c", &format!("ulimit {limits} && exec {waypost} {args}")]).current_dir(rig.path(""));
    command.env_remove("WAYPOST_STORE").output().unwrap()
}

const MANY: &str = "steps:
  - id: each
    foreach:
      items: {run: 'seq 1 60'}
      as: i
      max_parallel: 60
      steps: [{id: w, env: {I: '${{ i }}'}, run: 'sleep 0.2; echo $I >> done; ulimit -Sn >> soft'}]
";

#[test]
fn no_more_steps_start_than_there_are_descriptors_for() {
    let rig = Rig::with(MANY);

    let ended = limited(&rig, "-n 128", "run flow.yaml --id r -q");

    assert_eq!(ended.status.code(), Some(0), "{}", rig.told(&ended));
    assert_eq!(rig.read("done").lines().count(), 60);
}

#[test]
fn the_soft_descriptor_limit_is_raised_but_not_for_steps() {
    let rig = Rig::with(MANY);

    let ended = limited(&rig, "-Sn 100", "run flow.yaml --id r -q");

    assert_eq!(ended.status.code(), Some(0), "{}", rig.told(&ended));
    assert_eq!(rig.read("soft"), "100\n".repeat(60));
}

#[test]
fn a_lack_of_descriptors_interrupts_the_run_and_fails_no_item() {
    let rig = Rig::with(&MANY.replace("as: i", "on_item_failure: dead_letter\n      as: i"));
    let careful = rig.read("flow.yaml").replace("{id: w,", "{id: w, idempotent: false,");
    rig.write("flow.yaml", &careful.replace("seq 1 60", "seq 1 12"));

    // The number of descriptors that the command needs depends on the machine.
    let (run, stopped) = (20..=36)
        .rev()
        .map(|limit| {
            rig.write("done", "");
            let run = format!("r{limit}");
            let ended = limited(&rig, &format!("-n {limit}"), &format!("run flow.yaml --id {run} -q"));
            (run, ended)
        })
        .find(|(_, ended)| !ended.status.success())
        .expect("20 descriptors are too few");

    assert_eq!(stopped.status.code(), Some(71), "{}", rig.told(&stopped));
    let told = rig.told(&stopped);
    assert!(
        told.contains("descriptors (`ulimit -n`)") && told.contains(&format!("waypost resume {run}")),
        "{told}"
    );
    assert_eq!(rig.json(&["list", "--json"])["runs"][0]["status"], "interrupted");
    assert_eq!(rig.call(&["resume", &run, "-q"]).status.code(), Some(0));
    let done = rig.read("done");
    assert_eq!(
        (done.lines().count(), done.lines().collect::<std::collections::BTreeSet<_>>().len()),
        (12, 12)
    );
}

#[test]
fn a_value_too_large_for_a_process_fails_once_with_a_hint() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo a >> tries; head -c 200000 /dev/zero | tr \"\\0\" x', capture: text}
  - {id: b, retry: {max: 3, delay: 1h}, env: {X: '${{ steps.a.outputs.result }}'}, run: 'true'}
",
    );

    let ended = rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);

    assert_eq!(ended.status.code(), Some(1), "{}", rig.told(&ended));
    let told = rig.told(&ended);
    assert!(told.contains("`stdin:`") && told.contains("`items_file`"), "{told}");
}

// Only root can make a PID namespace.
#[test]
fn a_live_run_in_another_container_is_running() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let rig = Rig::with("steps:\n  - {id: a, run: 'touch up; while ! test -e down; do sleep 0.05; done'}\n");
    let waypost = env!("CARGO_BIN_EXE_waypost");
    let in_container = |args: &[&str]| {
        let mut command = std::process::Command::new("unshare");
        command.args(["-pf", "--mount-proc", "--kill-child", waypost]).args(args).current_dir(rig.path(""));
        command
    };
    let mut running = in_container(&["run", "flow.yaml", "--id", "r", "-q"]).spawn().unwrap();
    rig.wait_for("up", |_| true);

    assert_eq!(rig.json(&["list", "--json"])["runs"][0]["status"], "running");
    let other = in_container(&["list", "--json"]).output().unwrap();
    let other: Value = serde_json::from_slice(&other.stdout).unwrap();
    assert_eq!(other["runs"][0]["status"], "running");
    assert_eq!(rig.call(&["delete", "r", "--yes"]).status.code(), Some(6));

    rig.write("down", "");
    assert!(running.wait().unwrap().success());
    assert_eq!(rig.json(&["list", "--json"])["runs"][0]["status"], "completed");
}

// Bug: with a stack limit of 64 KiB the command died of a stack overflow. Cause: the main thread has the stack of the
// caller's limit. Fix: the command works on a thread with a stack of its own size.
#[test]
fn a_small_stack_limit_is_no_obstacle() {
    let rig = Rig::with("steps: [{ id: a, run: 'true' }]\n");

    for args in ["run flow.yaml --id r", "list", "show r", "resume r", "--help"] {
        let ended = limited(&rig, "-s 64", args);
        assert_eq!(ended.status.code(), Some(0), "{args}: {}", rig.told(&ended));
    }
}

// Bug: `--from` of an ended run over its budget dropped results before the refusal, the dry run said nothing, and a rollback was
// refused. Fix: every resume that would start a step is refused first, and a rollback never.
#[test]
fn an_ended_run_over_its_budget_keeps_its_results() {
    let rig = Rig::with(
        "budget: {cost: 5}
steps:
  - {id: a, run: 'echo usage.cost=3 >> $WAYPOST_OUTPUT'}
  - {id: b, run: 'echo usage.cost=3 >> $WAYPOST_OUTPUT'}
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    assert_eq!(code_of(&rig, &["resume", "r", "--from", "b", "--dry-run"]), Some(124));
    assert_eq!(code_of(&rig, &["resume", "r", "--from", "b", "-q"]), Some(124));
    assert_eq!(rig.json(&["show", "r", "--json"])["status"], "completed");
    assert_eq!(code_of(&rig, &["rollback", "r@1", "-q"]), Some(0));
}
