//! `waypost resume`: after failures, after `kill -9`, and after the workflow file changed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use crate::rig::{FLOW, Rig, check, code_of, lives, remove, wait_until};

/// Four steps with a trace; the third step waits for the file `go`.
const TRACED: &str = r#"version: 1
steps:
  - id: s1
    run: echo s1 >> trace
  - id: s2
    run: echo s2 >> trace; echo "v=kept" >> "$WAYPOST_OUTPUT"
  - id: s3
    run: |
      echo s3 >> trace
      (setsid sleep 1000 & echo $! >> pids)
      echo $$ >> pids
      while ! test -e go; do sleep 0.05; done
  - id: s4
    run: echo "s4 $V" >> trace
    env: { V: "${{ steps.s2.outputs.v }}" }
"#;

fn killed_twice_then_resumed(rig: &Rig) {
    let lines = |count: usize| move |text: &str| text.matches("s3\n").count() == count;
    let mut all = Vec::new();
    for (index, args) in [&["run", "flow.yaml", "--id", "r-1"][..], &["resume"]].iter().enumerate() {
        let running = rig.start(args);
        rig.wait_for("trace", lines(index + 1));
        rig.wait_for("pids", |text| text.lines().count() == 2 * (index + 1));
        running.signal(libc::SIGKILL);
        running.end();
        all = rig.read("pids").lines().map(str::to_owned).collect();
        wait_until("the run to be free", || {
            rig.json(&["list", "--json"])["runs"][0]["status"] == "interrupted"
        });
        assert!(all.iter().all(|pid| !lives(pid)), "no process outlives its run");
    }
    rig.write("go", "");

    let resumed = rig.call(&["resume"]);

    assert_eq!(resumed.status.code(), Some(0), "{}", rig.told(&resumed));
    assert_eq!(rig.read("trace"), "s1\ns2\ns3\ns3\ns3\ns4 kept\n");
    assert_eq!(all.len(), 4);
    assert_eq!(rig.call(&["verify"]).status.code(), Some(0));
}

#[test]
fn kill_9_twice_then_resume_on_sqlite() {
    killed_twice_then_resumed(&Rig::with(TRACED));
}

#[test]
fn nothing_outlives_its_run() {
    let rig = Rig::with(TRACED);
    let running = rig.start(&["run", "flow.yaml", "--id", "r-1"]);
    rig.wait_for("pids", |text| text.lines().count() == 2);

    running.signal(libc::SIGKILL);
    running.end();

    let pids: Vec<String> = rig.read("pids").lines().map(str::to_owned).collect();
    wait_until("its processes to be dead", || pids.iter().all(|pid| !lives(pid)));
}

#[test]
fn a_cut_run_is_shown_as_it_is() {
    let rig = Rig::with(TRACED);
    let running = rig.start(&["run", "flow.yaml", "--id", "r-1"]);
    rig.wait_for("trace", |text| text.contains("s3"));
    check("running_show", &rig.waypost(&["show"]));
    check("running_resume", &rig.waypost(&["resume", "r-1"]));
    check("running_delete", &rig.waypost(&["delete", "r-1", "--yes"]));
    check("running_plan", &rig.waypost(&["plan"]));

    running.signal(libc::SIGKILL);
    running.end();
    wait_until("the run to be free", || rig.json(&["list", "--json"])["runs"][0]["status"] == "interrupted");

    check("cut_show", &rig.waypost(&["show"]));
    check("cut_plan", &rig.waypost(&["plan"]));
    check("cut_why", &rig.waypost(&["why", "@"]));
}

#[test]
fn a_step_that_must_not_be_repeated_is_in_doubt() {
    let rig = Rig::with(&TRACED.replace("  - id: s3\n", "  - id: s3\n    idempotent: false\n"));
    let running = rig.start(&["run", "flow.yaml", "--id", "r-1"]);
    rig.wait_for("trace", |text| text.contains("s3"));
    running.signal(libc::SIGKILL);
    running.end();
    wait_until("the run to be free", || rig.json(&["list", "--json"])["runs"][0]["status"] == "in_doubt");

    check("doubt_show", &rig.waypost(&["show"]));
    check("doubt_resume", &rig.waypost(&["resume"]));
    check("doubt_plan", &rig.waypost(&["plan"]));
    assert_eq!(rig.read("trace"), "s1\ns2\ns3\n");
}

/// A run with an interrupted non-idempotent step `pay`.
fn in_doubt(last: &str) -> Rig {
    let flow = format!(
        "steps:\n  - id: pay\n    idempotent: false\n    run: echo pay >> trace; test -e go || kill -9 $PPID; echo x=1 > $WAYPOST_OUTPUT\n  - id: ship\n    \
         env: {{ X: \"{last}\" }}\n    run: echo ship $X >> trace\n"
    );
    let rig = Rig::with(&flow);
    rig.call(&["run", "flow.yaml", "--id", "r-1"]);
    rig.write("go", "");
    rig
}

#[test]
fn a_person_settles_a_step_in_doubt() {
    // Bug: a run in doubt could only be restarted; a person could not decide about the step. Cause: `resume` had
    // no `--treat-as`. Fix: `done` settles the step, `retry` reruns the step, and both decisions are recorded.
    let rig = in_doubt("-");
    check("treat_as_none", &rig.waypost(&["resume"]));
    check("treat_as_dry", &rig.waypost(&["resume", "--treat-as", "done", "--dry-run"]));
    check("treat_as_retry_dry", &rig.waypost(&["resume", "--treat-as", "retry", "--dry-run"]));
    check("treat_as_done", &rig.waypost(&["resume", "--treat-as", "done"]));
    check("treat_as_done_checkpoints", &rig.waypost(&["checkpoints"]));
    assert_eq!(rig.read("trace"), "pay\nship -\n");
    check("treat_as_again", &rig.waypost(&["resume", "--treat-as", "done"]));

    let rig = in_doubt("${{ steps.pay.outputs.x }}");
    check("treat_as_done_read", &rig.waypost(&["resume", "--treat-as", "done"]));
    check("treat_as_retry", &rig.waypost(&["resume", "--treat-as", "retry"]));
    check("treat_as_retry_show", &rig.waypost(&["show"]));
    assert_eq!(rig.read("trace"), "pay\npay\nship 1\n");
}

#[test]
fn what_was_started_as_not_to_be_repeated_stays_in_doubt() {
    // Bug: after `idempotent: false` was removed from the file, the step in doubt ran again unasked. Cause:
    // `idempotent` is in no fingerprint, and the changed file decided. Fix: the definition at the start of the
    // step decides.
    let rig = in_doubt("-");
    rig.write("flow.yaml", &rig.read("flow.yaml").replace("    idempotent: false\n", ""));

    check("doubt_stays_plan", &rig.waypost(&["plan"]));
    check("doubt_stays", &rig.waypost(&["resume"]));
    assert_eq!(rig.read("trace"), "pay\n");
}

#[test]
fn a_change_of_what_is_finished_is_adopted_when_it_is_named() {
    // Bug: `resume --with FILE` refused every change of a finished step. Cause: a position with finished steps to
    // rerun could not be carried over. Fix: changed steps rerun, with all downstream steps, in a new epoch.
    let rig = Rig::failed();
    rig.write("flow.yaml", &FLOW.replace("echo hello", "test -e again"));
    assert_eq!(rig.call(&["resume", "--with", "flow.yaml"]).status.code(), Some(1), "step one fails now");
    check("changed_redo_fails_show", &rig.waypost(&["show"]));

    let rig = Rig::failed();
    rig.write("ok", "");
    rig.write("flow.yaml", &FLOW.replace("echo hello", "echo other"));

    check("changed_redo_dry", &rig.waypost(&["resume", "--with", "flow.yaml", "--dry-run"]));
    check("changed_redo", &rig.waypost(&["resume", "--with", "flow.yaml"]));
    check("changed_redo_show", &rig.waypost(&["show"]));
    check("changed_redo_checkpoints", &rig.waypost(&["checkpoints"]));
    assert_eq!(rig.call(&["verify", "r-1"]).status.code(), Some(0));
}

#[test]
fn a_failed_run_goes_on_at_the_failed_step() {
    let rig = Rig::failed();
    check("resume_fails_again", &rig.waypost(&["resume"]));
    rig.write("ok", "");
    check("resume", &rig.waypost(&["resume"]));
    check("resume_nothing", &rig.waypost(&["resume"]));
    check("resume_nothing_json", &rig.waypost(&["resume", "--json"]));
}

#[test]
fn a_dry_resume_does_nothing() {
    let rig = Rig::failed();
    check("resume_dry", &rig.waypost(&["resume", "--dry-run"]));
}

#[test]
fn all_interrupted_runs_are_resumed_oldest_first() {
    let rig = Rig::failed();
    for id in ["a", "b"] {
        rig.call(&["run", "flow.yaml", "--id", id, "--until", "one"]);
    }
    rig.write("ok", "");

    check("resume_all", &rig.waypost(&["resume", "--all"]));

    assert_eq!(
        rig.json(&["list", "--json", "--status", "failed"])["runs"][0]["run"],
        "r-1",
        "failed ones stay"
    );
    check("resume_all_nothing", &rig.waypost(&["resume", "--all"]));
    check("resume_all_nothing_json", &rig.waypost(&["resume", "--all", "--json"]));
}

#[test]
fn a_change_that_no_step_means_is_adopted_without_a_question() {
    let rig = Rig::failed();
    rig.write("ok", "");
    rig.write("flow.yaml", &FLOW.replace("  - id: three\n", "  # why not\n  - id: three\n    timeout: 9m\n"));

    check("changed_nothing", &rig.waypost(&["resume"]));
}

#[test]
fn a_change_of_what_is_not_finished_is_adopted() {
    let rig = Rig::failed();
    let flow = FLOW.replace("test -e ok ||", "true ||") + "  - id: five\n    run: echo five > five.txt\n";
    rig.write("flow.yaml", &flow);

    check("changed_pending_plan", &rig.waypost(&["plan"]));
    check("changed_pending", &rig.waypost(&["resume"]));

    assert_eq!(rig.read("five.txt"), "five\n");
    check("changed_pending_show", &rig.waypost(&["show"]));
}

#[test]
fn a_change_of_what_is_finished_needs_a_choice() {
    let rig = Rig::failed();
    rig.write("ok", "");
    rig.write("flow.yaml", &FLOW.replace("echo hello", "echo other"));

    check("changed_finished", &rig.waypost(&["resume"]));
    check("changed_finished_json", &rig.waypost(&["resume", "--json"]));
    check("changed_finished_plan", &rig.waypost(&["plan"]));
    check("changed_keep", &rig.waypost(&["resume", "--keep-definition"]));
    check("changed_after_end", &rig.waypost(&["resume"]));
}

#[test]
fn another_file_is_adopted_where_it_fits() {
    let rig = Rig::failed();
    rig.write("other.yaml", &FLOW.replace("test -e ok ||", "true ||"));
    check("changed_with", &rig.waypost(&["resume", "--with", "other.yaml"]));
    assert_eq!(rig.read("four.txt"), "world\n");
}

#[test]
fn a_restart_starts_over_and_keeps_what_was() {
    let rig = Rig::failed();
    rig.write("ok", "");
    rig.write("flow.yaml", &FLOW.replace("echo hello", "echo other"));

    check("restart", &rig.waypost(&["resume", "r-1", "--restart"]));

    check("restart_checkpoints", &rig.waypost(&["checkpoints", "r-1"]));
    assert_eq!(rig.call(&["verify", "r-1"]).status.code(), Some(0));
}

#[test]
fn a_file_that_is_gone_or_broken_is_told() {
    let rig = Rig::failed();
    rig.write("flow.yaml", "version: 1\nsteps: [{ rum: x }]\n");
    check("changed_broken", &rig.waypost(&["resume"]));
    rig.write("ok", "");
    fs::remove_file(rig.path("flow.yaml")).unwrap();
    check("changed_gone", &rig.waypost(&["resume"]));
}

#[test]
fn a_store_that_was_moved_resumes() {
    let rig = Rig::failed();
    let moved = Rig::new();
    for name in ["flow.yaml", ".waypost"] {
        fs::rename(rig.path(name), moved.path(name)).unwrap();
    }
    moved.write("ok", "");

    let resumed = moved.call(&["resume"]);

    assert_eq!(resumed.status.code(), Some(0), "{}", moved.told(&resumed));
    assert_eq!(moved.read("four.txt"), "world\n");
}

#[test]
fn a_different_environment_is_told() {
    let rig = Rig::with("version: 1\nsteps: [{ run: test -e ok }, { run: \"true\", env: { A: x } }]\n");
    let call = |args: &[&str], b: &str| rig.told(&rig.command(args).env("A", b).output().unwrap());
    call(&["run", "flow.yaml", "--id", "r-1"], "1");
    rig.write("ok", "");
    check("environment_differs", &call(&["resume"], "2"));
}

/// A non-idempotent step, interrupted by its own timeout.
const DOUBTFUL: &str = "steps:\n  - {id: pay, idempotent: false, timeout: 200ms, grace: 100ms, run: echo paid >> trace; sleep 1000}\n";

// Bug: `resume --all` reported nothing to resume, although a run waited for a decision. Cause: only runs that can
// continue at once were listed. Fix: runs in doubt are listed with the next command, and the exit code shows
// these.
#[test]
fn resuming_all_names_the_runs_that_wait_for_a_decision() {
    let rig = Rig::with(DOUBTFUL).at("file:kept");
    let ran = rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);
    assert_eq!(ran.status.code(), Some(8), "{}", rig.told(&ran));

    let all = rig.waypost(&["resume", "--all"]);
    let one = rig.waypost(&["resume", "r"]);
    let json = rig.json(&["resume", "--all", "--json"]);

    let list = "\n  waypost resume r --treat-as done=pay --store file:kept   # keep it as done\n  \
                waypost resume r --treat-as retry=pay --store file:kept  # run it again\n";
    let told = format!(
        "exit 8\n--- stdout\n--- stderr\nwarning: Run r is unchanged, because a step is in doubt: see \
         `waypost why r --store file:kept`, then decide:{list}"
    );
    assert_eq!(all, told);
    assert!(one.ends_with(list), "{one}");
    assert_eq!((&json["run"], &json["status"]), (&"r".into(), &"in_doubt".into()));
    assert_eq!(json.get("event"), None, "{json}");
    assert_eq!(rig.read("trace"), "paid\n");
}

// Bug: of several concurrent `run --id R --or-resume`, some reported that R exists and recommended `--or-resume`.
// Cause: another process created the run between the check and the creation. Fix: the command then resumes the
// run.
#[test]
fn or_resume_never_says_that_the_run_exists() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with("steps:\n  - {id: a, run: sleep 0.3; echo a >> trace}\n").at(store);
        let args = ["run", "flow.yaml", "--id", "same", "--or-resume"];

        let running: Vec<_> = (0..8).map(|_| rig.start(&args)).collect();
        let ended: Vec<_> = running.into_iter().map(|running| running.end()).collect();

        for ended in &ended {
            assert!(matches!(ended.status.code(), Some(0 | 6)), "{store}: {}", rig.told(ended));
        }
        assert_eq!(rig.read("trace"), "a\n", "{store}");
    }
}

#[test]
fn hints_about_a_run_that_is_held_find_its_store() {
    let rig = Rig::with("steps:\n  - {id: a, run: touch began; sleep 1000}\n").at("file:kept");
    let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
    rig.wait_for("began", |_| true);

    let held = rig.waypost(&["resume", "r"]);
    let again = rig.waypost(&["run", "flow.yaml", "--id", "r"]);
    running.signal(libc::SIGTERM);
    running.end();

    assert!(
        held.starts_with("exit 6") && held.contains("stop the run: `waypost stop r --store file:kept`"),
        "{held}"
    );
    assert!(
        again.starts_with("exit 2") && again.contains("`waypost show r --store file:kept` shows the run"),
        "{again}"
    );
}

#[test]
fn every_finished_step_of_a_plan_names_its_checkpoint() {
    let rig = Rig::failed();

    let plan = rig.json(&["plan", "r-1", "--json"]);

    let causes: Vec<_> = plan["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| found["cause"]["text"].as_str().unwrap())
        .collect();
    assert_eq!(causes[..2], ["completed at @2", "completed at @3"]);
}

#[test]
fn a_variable_that_every_step_sets_itself_is_not_told() {
    let flow =
        |steps: &str| format!("env: {{ A: file }}\nsteps:\n{steps}  - {{id: last, run: test -e ok}}\n");
    let rig = Rig::with(&flow("  - {id: own, env: { B: file }, run: 'true'}\n"));
    let with = |value: &str, args: &[&str]| {
        let output = rig.command(args).env("A", value).env("B", value).output().unwrap();
        rig.told(&output)
    };
    with("before", &["run", "flow.yaml", "--id", "r", "-q"]);

    let told = with("after", &["resume", "r"]);

    assert!(told.contains("environment variables changed since the run was created: `B`\n"), "{told}");
}

// Bug: a change of the file after the end of its run was ignored; `resume`, `plan` and `run --or-resume` reported
// nothing to do. Cause: the file of an ended run was not compared. Fix: the file is always compared; a change of
// a finished step needs a choice, other changes are reported.
#[test]
fn a_later_change_is_reported_and_finished_work_needs_choice() {
    let one = "  - {id: a, run: echo a >> trace}\n  - {id: b, run: echo b >> trace}\n";
    let flow = |steps: &str| format!("version: 1\nsteps:\n{steps}");
    let rig = Rig::with(&flow(one));
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(0));
    let or_resume = ["run", "flow.yaml", "--id", "r", "--or-resume"];
    let nothing = "Nothing to do for run r, because the run is completed.\n";

    rig.write("flow.yaml", &format!("# why\n{}", flow(one)));
    for args in [&["resume", "r"][..], &or_resume] {
        let told = rig.waypost(args);
        let words = "flow.yaml changed, without effect on any step.\n";
        assert!(told.starts_with("exit 0") && told.contains(nothing) && told.contains(words), "{told}");
    }

    rig.write("flow.yaml", &flow(&(one.to_owned() + "  - {id: c, run: echo c >> trace}\n")));
    for args in [&["resume", "r"][..], &or_resume, &["plan", "r"]] {
        let told = rig.waypost(args);
        assert!(told.starts_with("exit 0") && told.contains("  + step c is new\n"), "{told}");
        assert_eq!(told.contains(nothing), args[0] != "plan", "{told}");
    }
    let before = rig.json(&["checkpoints", "r", "--json"])["checkpoints"].as_array().unwrap().len();

    rig.write("flow.yaml", &flow(&one.replace("echo b ", "echo bb ")));
    for args in [&["resume", "r"][..], &or_resume] {
        let told = rig.waypost(args);
        let words = "  ~ step b has another definition  finished, ";
        assert!(told.starts_with("exit 9") && told.contains(words), "{told}");
    }
    let plan = rig.waypost(&["plan", "r"]);
    assert!(plan.starts_with("exit 0") && plan.contains("so a resume asks first"), "{plan}");
    let kept = rig.waypost(&["resume", "r", "--keep-definition"]);
    assert!(kept.starts_with("exit 0") && kept.contains(nothing), "{kept}");
    assert_eq!(rig.read("trace"), "a\nb\n");
    assert_eq!(rig.json(&["checkpoints", "r", "--json"])["checkpoints"].as_array().unwrap().len(), before);
}

#[test]
fn a_completed_run_adopts_another_file_when_asked() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(
            "steps:\n  - {id: a, run: echo a >> trace}\n  - {id: b, run: echo b >> trace}\n  - {id: c, run: echo c >> trace}\n",
        )
        .at(store);
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(0));
        rig.write("flow.yaml", &(rig.read("flow.yaml").replace("echo b ", "echo bb ")));

        let adopted = rig.waypost(&["resume", "r", "--with", "flow.yaml"]);
        let again = rig.waypost(&["resume", "r"]);
        rig.write("flow.yaml", &(rig.read("flow.yaml") + "  - {id: d, run: echo d >> trace}\n"));
        let added = rig.waypost(&["resume", "r", "--with", "flow.yaml"]);

        assert!(adopted.starts_with("exit 0") && adopted.contains("Run r is completed"), "{adopted}");
        assert!(again.contains("Nothing to do for run r, because the run is completed.\n"), "{again}");
        assert!(added.starts_with("exit 0") && added.contains("4 of 4 steps are done"), "{added}");
        assert_eq!(rig.read("trace"), "a\nb\nc\nbb\nc\nd\n", "{store}");
        let verified = rig.waypost(&["verify", "r"]);
        assert!(verified.starts_with("exit 0"), "{verified}");
    }
}

// Bug: after an edit that is not a valid workflow, `resume` of a completed run went on with the run's own copy and exit 0.
// Cause: an ended run took any error of reading the file as no change. Fix: the refusal of a failed run.
#[test]
fn an_invalid_file_is_refused_after_any_end() {
    for end in ["true", "false"] {
        let rig = Rig::with(&format!("steps:\n  - {{id: a, run: 'echo a >> trace; {end}'}}\n"));
        let code = if end == "true" { 0 } else { 1 };
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(code));
        rig.write("flow.yaml", "steps: [{ rum: x }]\n");

        for choice in [&[][..], &["--rerun-changed"], &["--from", "a"]] {
            let told = rig.waypost(&[&["resume", "r"], choice].concat());

            assert!(told.starts_with("exit 78") && told.contains("rum"), "{end} {choice:?} {told}");
        }
        for reader in [&["why", "r", "a"][..], &["plan", "r"]] {
            let told = rig.waypost(reader);
            assert!(told.starts_with("exit 0") && told.contains("a resume is refused"), "{end} {told}");
        }
        assert_eq!(rig.read("trace"), "a\n", "{end}");
        assert_eq!(rig.call(&["resume", "r", "--keep-definition", "-q"]).status.code(), Some(code));
    }
}

#[test]
fn damage_of_the_record_that_adopted_a_file_costs_nothing() {
    // Bug: after a flipped byte in an old record, a run that had been resumed with another file could not be
    // shown, planned or resumed. Cause: only that record had the text of the file. Fix: the next record repeats
    // the text.
    let rig = Rig::with("steps:\n  - {id: a, run: echo a >> trace}\n  - {id: b, run: test -e go}\n")
        .at("file:kept");
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));
    rig.write("flow.yaml", &(rig.read("flow.yaml").replace("-e go}", "-e go && echo b >> trace}")));
    assert_eq!(rig.call(&["resume", "r", "--with", "flow.yaml", "-q"]).status.code(), Some(1));
    assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(1));
    // The position names the record by seq.
    let adopted = |path: &PathBuf| fs::read_to_string(path).unwrap().contains(r#""definition":{"#);
    let history = fs::read_dir(rig.path("kept/runs/r/history")).unwrap().map(|entry| entry.unwrap().path());
    let path = history.filter(|path| path.extension().is_some_and(|kind| kind == "json"));
    let path = path.filter(adopted).min().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, bytes).unwrap();
    rig.write("go", "");

    let resumed = rig.waypost(&["resume", "r"]);

    assert!(resumed.starts_with("exit 0"), "{resumed}");
    assert_eq!(rig.read("trace"), "a\nb\n");
    assert!(rig.waypost(&["verify", "r"]).starts_with("exit 7"), "it is told all the same");
}

const ITEMS: &str = r#"steps:
  - {id: list, run: 'echo list >> trace'}
  - id: each
    foreach:
      items: [eu, us]
      as: region
      steps:
        - {id: ask, run: 'echo "ask $R" >> trace; echo "n=$(cat in)" >> "$WAYPOST_OUTPUT"', env: {R: "${{ region }}"}}
        - {id: check, run: 'echo "check $R $N" >> trace', env: {R: "${{ region }}", N: "${{ steps.ask.outputs.n }}"}}
  - {id: sum, run: 'echo "sum $N" >> trace', env: {N: "${{ steps.each.succeeded }}"}}
"#;

#[test]
fn a_step_of_an_item_runs_again_with_what_comes_of_it() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(ITEMS).at(store);
        rig.write("in", "1\n");
        let code = |args: &[&str]| rig.call(args).status.code();
        assert_eq!(code(&["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        rig.write("in", "2\n");
        rig.write("trace", "");

        let again = rig.call(&["resume", "r", "--from", "each:us/ask", "-q"]);

        assert_eq!(again.status.code(), Some(0), "{}", rig.told(&again));
        assert_eq!(rig.read("trace"), "ask us\ncheck us 2\nsum 2\n", "{store}: the other item stays");
        // Outputs equal to the earlier outputs do not limit the requested rerun.
        rig.write("trace", "");
        assert_eq!(code(&["resume", "r", "--from", "each:us/ask", "-q"]), Some(0));
        assert_eq!(rig.read("trace"), "ask us\ncheck us 2\nsum 2\n", "{store}");
        rig.write("trace", "");
        assert_eq!(code(&["resume", "r", "--from", "each:eu/check", "-q"]), Some(0));
        assert_eq!(rig.read("trace"), "check eu 1\nsum 2\n", "{store}");
        assert_eq!(code(&["verify", "r"]), Some(0));
        let shown = rig.json(&["show", "r", "--json"]);
        assert_eq!(shown["status"], "completed");
        assert_eq!(code(&["resume", "r", "-q"]), Some(0));
        assert_eq!(rig.read("trace"), "check eu 1\nsum 2\n", "nothing is left");

        assert_eq!(code(&["resume", "r", "--from", "main/sum", "-q"]), Some(0));
        assert_eq!(rig.read("trace"), "check eu 1\nsum 2\nsum 2\n");
    }
}

#[test]
fn a_step_in_nested_items_and_groups_reruns_after_a_kill() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(
            r#"steps:
  - id: outer
    foreach:
      items: [x, y]
      as: a
      steps:
        - id: inner
          foreach:
            items: [1, 2]
            as: b
            steps:
              - {id: work, run: 'echo "work $A$B" >> trace; test ! -e hang || sleep 1000', env: {A: "${{ a }}", B: "${{ b }}"}}
              - {id: tell, run: 'echo "tell $A$B" >> trace', env: {A: "${{ a }}", B: "${{ b }}"}}
        - {id: count, run: 'echo "count $A" >> trace', env: {A: "${{ a }}"}}
  - {id: end, run: 'echo end >> trace'}
"#,
        )
        .at(store);
        let code = |args: &[&str]| rig.call(args).status.code();
        assert_eq!(code(&["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        rig.write("trace", "");
        rig.write("hang", "");

        let running = rig.start(&["resume", "r", "--from", "outer:y/inner:2/work"]);
        rig.wait_for("trace", |text| text.contains("work y2"));
        running.signal(libc::SIGKILL);
        running.end();
        fs::remove_file(rig.path("hang")).unwrap();
        rig.write("trace", "");

        assert_eq!(code(&["resume", "r", "-q"]), Some(0));
        assert_eq!(rig.read("trace"), "work y2\ntell y2\ncount y\nend\n", "{store}");
        assert_eq!(code(&["verify", "r"]), Some(0));
        assert_eq!(code(&["resume", "r", "--from", "outer:x/count", "-q"]), Some(0));
        assert!(rig.read("trace").ends_with("end\ncount x\nend\n"), "{store}: {}", rig.read("trace"));
    }
}

#[test]
fn places_that_cannot_be_gone_on_from_are_named() {
    let rig = Rig::with(ITEMS);
    rig.write("in", "1\n");
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(0));
    for (name, from) in [
        ("from_no_scope", "each:asia/ask"),
        ("from_no_step", "each:eu/sum"),
        ("from_scope_alone", "each:eu"),
        ("from_inner", "ask"),
    ] {
        check(name, &rig.waypost(&["resume", "r", "--from", from]));
    }
    check("from_scope_only", &rig.waypost(&["resume", "r", "--from", "each:eu/ask", "--only"]));
}

// Bug: a run resumed with another file by `--with` was refused by the next plain resume, and by cron: the file
// was compared with the original file. Cause: only the original file was in the run record. Fix: a resume stores
// the new file together with its definition.
#[test]
fn the_file_of_with_is_the_file_of_the_run_from_then_on() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let flow = |word: &str, hang: &str| {
            format!(
                "name: one\nsteps:\n  - {{id: a, run: 'echo {word} >> trace'}}\n  - {{id: b, run: 'echo b >> trace; {hang}'}}\n"
            )
        };
        let rig = Rig::with(&flow("first", "test -e go")).at(store);
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));
        rig.write("other.yaml", &flow("second", "test -e go"));
        assert_eq!(rig.call(&["resume", "r", "--with", "other.yaml", "-q"]).status.code(), Some(1));
        assert!(rig.json(&["show", "r", "--json"])["path"].as_str().unwrap().ends_with("/other.yaml"));
        rig.write("trace", "");
        rig.write("go", "");

        assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(0), "{store}");

        assert_eq!(rig.read("trace"), "b\n", "{store}: what is finished stays");
        let same = rig.call(&["run", "other.yaml", "--id", "r", "--or-resume", "-q"]);
        assert_eq!(same.status.code(), Some(0), "{store}: {}", rig.told(&same));
        let first = rig.call(&["run", "flow.yaml", "--id", "r", "--or-resume", "-q"]);
        assert_eq!(first.status.code(), Some(2), "{store}: {}", rig.told(&first));
        // An edit of the new file is detected.
        rig.write("other.yaml", &flow("third", "true"));
        assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(9), "{store}");
    }
}

// Bug: the text of a doubt listed all possible causes. Cause: the position does not have the cause. Fix: the cause is read
// from the records of the scope.
#[test]
fn a_doubt_names_the_cause_that_holds() {
    let flow =
        "steps: [{id: a, run: 'true'}, {id: pay, idempotent: false, run: 'true'}, {id: z, run: 'true'}]\n";
    for (args, cause) in [
        (&["resume", "r", "--from", "a"][..], "upstream `a` changed after it completed"),
        (&["rollback", "r@1"], "the run was rolled back after it completed"),
        (&["resume", "r", "--restart"], "the run was restarted after it completed"),
        (&["fork", "r", "--from", "a", "--id", "s"], "the run was forked after it completed"),
    ] {
        let rig = Rig::with(flow);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        rig.call(args);
        let run = if args[0] == "fork" { "s" } else { "r" };
        let said = rig.waypost(&["resume", run]);
        let doubt = format!("not idempotent, and {cause}");
        assert!(said.starts_with("exit 8") && said.contains(&doubt), "{args:?}: {said}");
        for command in ["plan", "why"] {
            let said = rig.waypost(&[command, run]);
            assert!(said.contains(&doubt), "{args:?} {command}: {said}");
        }
    }
}

// Bug: `--rerun-changed=grp/one` was refused, and `--keep-finished=grp/one --rerun-changed=grp/two`. Cause: the choice knew
// only top-level steps, and a group was decided as a whole. Fix: each changed step of a group has a decision.
#[test]
fn a_choice_names_a_changed_step_by_its_path() {
    let flow = "steps:
  - {id: g, steps: [{id: one, run: 'echo one >> out'}, {id: two, run: 'echo two >> out'}]}
  - {id: each, foreach: {items: [x], steps: [{id: e1, run: 'echo e1 >> out'}]}}
  - {id: bad, needs: [g, each], run: 'test -e ok'}
";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    let resume = |args: &[&str]| rig.waypost(&[&["resume", "r", "-q"], args].concat());
    rig.write("flow.yaml", &flow.replace("echo ", "echo new "));
    let in_part = resume(&["--rerun-changed=g/two", "--keep-finished=each"]);
    assert!(in_part.starts_with("exit 9"), "{in_part}");
    let both = resume(&["--rerun-changed=g/two", "--keep-finished=g/two"]);
    assert!(both.contains("step `g/two` is in both"), "{both}");
    rig.write("out", "");
    let parted = resume(&["--rerun-changed=g/two", "--keep-finished=g/one,each"]);
    assert!(parted.starts_with("exit 1\n"), "{parted}");
    assert_eq!(rig.read("out"), "new two\n");
}

// Bug: `--rerun-changed=STEP` and `--keep-finished=STEP` of an unchanged file had no effect and no message. Cause: only a
// changed file was compared with the choice. Fix: a choice about an unchanged step is refused in each case.
#[test]
fn a_choice_about_an_unchanged_file_is_refused() {
    let rig = Rig::with("steps: [{id: a, run: 'true'}, {id: b, run: 'false'}]\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));

    for choice in ["--rerun-changed=a", "--keep-finished=a"] {
        let told = rig.waypost(&["resume", "r", choice]);
        assert!(told.starts_with("exit 2\n"), "{told}");
        assert!(told.contains("step `a` has no finished result that the file changes"), "{told}");
        assert!(told.contains("`--from STEP` reruns a step"), "{told}");
    }
    assert_eq!(code_of(&rig, &["resume", "r", "-q", "--rerun-changed"]), Some(1));
}

#[test]
fn a_step_with_another_id_is_proposed_as_renamed() {
    let flow = "steps: [{id: a, run: 'true'}, {id: b, run: 'false'}]\n";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));

    rig.write("flow.yaml", &flow.replace("id: a,", "id: first,"));
    let told = rig.waypost(&["resume", "r"]);

    assert!(told.starts_with("exit 9\n"), "{told}");
    assert!(told.contains("+ step first is new; if it is a, write `renamed_from: a`\n"), "{told}");
    rig.write("flow.yaml", &flow.replace("id: a,", "id: first, renamed_from: a,"));
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(1));
    let no_step = rig.waypost(&["fork", "r", "--from", "2"]);
    assert!(no_step.contains("hint: name a step by its id; step 2 of the file is `b`\n"), "{no_step}");
    let place = rig.waypost(&["rollback", "r", "a"]);
    assert!(place.contains("tip: name a checkpoint as `RUN@SEQ`"), "{place}");
    let from = rig.waypost(&["resume", "r", "a"]);
    assert!(from.contains("tip: `--from a` names a step"), "{from}");
}

#[test]
fn a_choice_names_the_steps_that_the_file_changes() {
    let flow = "steps:
  - {id: g, steps: [{id: one, run: 'echo one >> out'}, {id: two, run: 'echo two >> out'}]}
  - {id: each, foreach: {items: [x], steps: [{id: e1, run: 'echo e1 >> out'}]}}
  - {id: bad, needs: [g, each], run: 'test -e ok'}
";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    let resume = |args: &[&str]| rig.waypost(&[&["resume", "r", "-q"], args].concat());
    rig.write("flow.yaml", &flow.replace("echo two", "echo new two").replace("echo e1", "echo new e1"));
    let unchanged = resume(&["--rerun-changed=g/one", "--keep-finished"]);
    assert!(unchanged.contains("step `g/one` has no finished result that the file changes"), "{unchanged}");
    rig.write("ok", "");
    rig.write("out", "");

    let ended = resume(&["--rerun-changed=g/two", "--keep-finished=each/x/e1"]);

    assert!(ended.starts_with("exit 0\n"), "{ended}");
    assert_eq!(rig.read("out"), "new two\n");
}

// Bug: the table of a changed file said `not finished, 0ms` of a group with finished steps, `another definition` of a group
// without a removed step, and named the outer file after an edit of an included file. Cause: only ended scopes counted.
#[test]
fn the_table_of_a_changed_file_counts_the_steps_of_groups() {
    let flow = "steps:
  - {id: g, steps: [{id: one, run: echo one}, {id: two, run: echo two}, {id: bad, run: exit 1}]}
";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig.write("flow.yaml", &flow.replace("echo one", "echo new"));
    let altered = rig.waypost(&["resume", "r"]);
    assert!(altered.contains("~ step g has another definition in g/one  2 steps finished, "), "{altered}");
    rig.write("flow.yaml", &flow.replace("{id: two, run: echo two}, ", ""));
    let removed = rig.waypost(&["resume", "r"]);
    assert!(removed.contains("~ step g removes g/two  1 step finished, "), "{removed}");

    let rig = Rig::with("steps: [{id: sub, workflow: sub.yaml}, {id: end, run: exit 1}]\n");
    rig.write("sub.yaml", "steps: [{id: s, run: echo s}]\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig.write("sub.yaml", "steps: [{id: s, run: echo new}]\n");
    let included = rig.waypost(&["resume", "r"]);
    assert!(included.contains("error: sub.yaml changes finished results of run r"), "{included}");
    assert!(included.contains("`--keep-definition` ignores sub.yaml"), "{included}");
}

#[test]
fn the_table_of_a_changed_file_counts_only_affected_results() {
    let flow = "steps:
  - {id: g, steps: [{id: one, run: echo 1}, {id: two, run: sleep 0.2; echo 2}, {id: three, run: echo 3}]}
  - {id: bad, run: exit 1}
";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));

    rig.write("flow.yaml", &flow.replace("echo 3", "echo 4"));
    let last = rig.waypost(&["resume", "r"]);
    rig.write("flow.yaml", &flow.replace("echo 1", "echo 4"));
    let first = rig.waypost(&["resume", "r"]);

    assert!(last.contains("~ step g has another definition in g/three  1 step finished, "), "{last}");
    assert!(first.contains("~ step g has another definition in g/one  3 steps finished, "), "{first}");
}

#[test]
fn a_resume_without_a_record_of_the_run_hints_how_to_start() {
    let rig = Rig::with("steps: [{id: a, run: 'true'}]\n");
    let start = "`waypost run FILE --id r --or-resume` starts a run without a record";

    let no_store = rig.waypost(&["resume", "r"]);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "other", "-q"]), Some(0));
    let no_run = rig.waypost(&["resume", "r"]);

    for told in [no_store, no_run] {
        assert!(told.starts_with("exit 5\n") && told.contains(start), "{told}");
    }
}

#[test]
fn two_decisions_in_one_option_are_two_options_in_the_hint() {
    let rig = Rig::with("steps: [{id: a, run: 'true'}]\n");

    let told = rig.waypost(&["resume", "r", "--treat-as", "done=a,b,retry=c"]);

    assert!(told.contains("`--treat-as done=a,b --treat-as retry=c`"), "{told}");
}

// Bug: a completed run adopted no edit outside the fingerprints, although steps ran again: a new `timeout` and an added
// `idempotent: false` were ignored. Cause: the end was taken for nothing to run. Fix: the file is adopted if a step runs.
#[test]
fn a_rerun_after_the_end_adopts_timeouts_and_idempotence() {
    for body in ["STEP", "steps: [{id: x, STEP}]", "foreach: {items: [i], steps: [{id: x, STEP}]}"] {
        let before =
            "run: 'echo x >> trace; touch made; test ! -e slow || sleep 1000', evidence: [{file: made}]";
        let flow =
            format!("steps:\n  - {{id: g, {}}}\n  - {{id: z, run: 'true'}}\n", body.replace("STEP", before));
        let changed = |key: &str| {
            let rig = Rig::with(&flow);
            assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(0));
            rig.write("flow.yaml", &flow.replace("run: 'echo x", &format!("{key}, run: 'echo x")));
            rig
        };
        let rig = changed("timeout: 100ms");
        let count =
            |rig: &Rig| rig.json(&["checkpoints", "r", "--json"])["checkpoints"].as_array().unwrap().len();
        let checkpoints = count(&rig);
        rig.write("slow", "");

        let idle = rig.waypost(&["resume", "r"]);
        assert!(idle.starts_with("exit 0") && idle.contains("without effect on any step.\n"), "{idle}");
        assert_eq!(count(&rig), checkpoints, "nothing is written: {body}");
        let rerun = rig.waypost(&["resume", "r", "--from", "g"]);
        assert!(rerun.starts_with("exit 1") && rerun.contains("timed out after 100ms"), "{body} {rerun}");
        assert!(rerun.contains("adopting the file"), "{rerun}");

        let rig = changed("idempotent: false");
        remove(&rig, "made");
        assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(8), "{body}");
        assert_eq!(rig.read("trace"), "x\n", "{body}");
        assert_eq!(rig.call(&["resume", "r", "-q", "--treat-as", "retry"]).status.code(), Some(0), "{body}");
        assert_eq!(rig.read("trace"), "x\nx\n", "{body}");
    }
}
