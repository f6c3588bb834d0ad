//! `@`, and commands without a RUN.

use std::fs;
use std::process::Output;

use crate::rig::Rig;

const ASKS: &str = "steps:\n  - {id: ask, approve: 'Delete the old files?'}\n";

/// Makes one store above the folders `a` and `b`, each with a waiting run.
fn rig() -> Rig {
    let rig = Rig::new();
    for folder in ["a", "b"] {
        fs::create_dir_all(rig.path(folder)).unwrap();
        rig.write(&format!("{folder}/flow.yaml"), ASKS);
    }
    fs::create_dir(rig.path(".waypost")).unwrap();
    for folder in ["a", "b"] {
        let id = format!("run-{folder}");
        let ran = call(&rig, folder, &["run", "flow.yaml", "--id", &id, "--wait", "0s", "-q"]);
        assert_eq!(ran.status.code(), Some(75), "{}", rig.told(&ran));
    }
    rig
}

fn call(rig: &Rig, folder: &str, args: &[&str]) -> Output {
    rig.command(args).current_dir(rig.path(folder)).output().unwrap()
}

#[test]
fn the_run_of_the_current_folder_is_meant_first() {
    let rig = rig();

    for (folder, run) in [("a", "run-a"), ("b", "run-b")] {
        let shown = call(&rig, folder, &["show", "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(shown["run"], run);
    }
    let answered = call(&rig, "a", &["answer", "@", "yes"]);
    assert_eq!(answered.status.code(), Some(0), "{}", rig.told(&answered));
    let told = rig.told(&answered);
    assert!(told.contains("Delete the old files?") && told.contains("run run-a"), "{told}");
    assert_eq!(call(&rig, "a", &["resume", "-q"]).status.code(), Some(0), "the run of this folder");
    assert_eq!(call(&rig, "", &["show", "run-b", "--json"]).status.code(), Some(0));
    assert_eq!(call(&rig, "b", &["resume", "--wait", "0s", "-q"]).status.code(), Some(75));
}

#[test]
fn what_decides_or_removes_refuses_a_choice() {
    let rig = rig();
    for args in [
        &["answer", "@", "yes"][..],
        &["cancel", "@"],
        &["rollback", "@@1"],
        &["delete", "@", "--yes"],
        &["prune", "@", "--keep", "3"],
        &["answer", "yes"],
        &["cancel"],
        &["rollback", "--to", "verified"],
        &["delete", "--yes"],
    ] {
        let refused = call(&rig, "", args);
        let told = rig.told(&refused);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains("run-a") && told.contains("run-b"), "{args:?}: {told}");
    }
    for (args, why) in [
        (&["stop", "@"][..], "there is no live run"),
        (&["stop"], "there is no live run"),
        (&["dead-letters", "drop", "--all"], "there is no run with dead letters"),
        (&["dead-letters", "drop", "@", "--all"], "there is no run with dead letters"),
    ] {
        let refused = call(&rig, "", args);
        let told = rig.told(&refused);
        assert_eq!(refused.status.code(), Some(5), "{args:?}: {told}");
        assert!(told.contains(why), "{args:?}: {told}");
    }

    // A single candidate is no ambiguity.
    assert_eq!(call(&rig, "", &["answer", "run-b", "no"]).status.code(), Some(0));
    assert_eq!(call(&rig, "", &["answer", "@", "yes"]).status.code(), Some(0));
    let none = call(&rig, "", &["approve"]);
    assert!(rig.told(&none).contains("there is no run with an open question"), "{}", rig.told(&none));
    assert_eq!(call(&rig, "", &["resume", "run-a", "-q"]).status.code(), Some(0));
    assert_eq!(call(&rig, "a", &["delete", "@", "--yes"]).status.code(), Some(0));
    assert_eq!(call(&rig, "", &["show", "run-a"]).status.code(), Some(5));
}

#[test]
fn readers_take_the_newest_run_if_none_is_named() {
    let rig = rig();
    rig.write(
        "letters.yaml",
        "steps:\n  - id: each\n    foreach: {items: [x], max_failures: 1, steps: [{id: s, run: 'echo lost >&2; exit 3'}]}\n",
    );
    assert_eq!(call(&rig, "", &["run", "letters.yaml", "--id", "newest", "-q"]).status.code(), Some(3));

    for args in [
        &["show", "--json"][..],
        &["logs", "--json"],
        &["why", "--json"],
        &["events", "--json"],
        &["plan", "--json"],
        &["checkpoints", "--json"],
        &["report", "--json"],
        &["dead-letters", "list", "--json"],
    ] {
        let read = call(&rig, "", args);
        let told = rig.told(&read);
        assert_eq!(read.status.code(), Some(0), "{args:?}: {told}");
        assert!(told.contains("newest"), "{args:?}: {told}");
    }
    let letters = call(&rig, "", &["dead-letters", "show"]);
    assert!(rig.told(&letters).contains("| lost"), "{}", rig.told(&letters));
    let of_folder = call(&rig, "a", &["why", "--json"]);
    assert!(rig.told(&of_folder).contains("run-a"), "{}", rig.told(&of_folder));
}

#[test]
fn stop_without_a_name_needs_a_single_live_run() {
    let rig = rig();
    rig.write("a/long.yaml", "steps:\n  - {id: long, run: 'touch \"$WAYPOST_RUN_ID\"; sleep 60'}\n");
    let start = |id: &str| {
        let run = crate::rig::Running::of(
            rig.command(&["run", "long.yaml", "--id", id, "-q"]).current_dir(rig.path("a")),
        );
        rig.wait_for(&format!("a/{id}"), |_| true);
        run
    };
    let (_one, _two) = (start("one"), start("two"));

    let refused = call(&rig, "a", &["stop"]);
    let told = rig.told(&refused);
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("one") && told.contains("two"), "{told}");
    assert_eq!(call(&rig, "a", &["stop", "one"]).status.code(), Some(0));
    let stopped = call(&rig, "a", &["stop"]);
    assert_eq!(stopped.status.code(), Some(0));
    assert!(rig.told(&stopped).contains("Run two stopped"), "{}", rig.told(&stopped));
}

#[test]
fn commands_about_dead_letters_find_their_run() {
    let rig = Rig::with(
        "steps:\n  - id: each\n    foreach: {items: [x, y], max_failures: 1, steps: [{id: go, run: 'test -e ok || test \"$I\" \
         = x', env: {I: '${{ item }}'}}]}\n",
    );
    rig.write("fine.yaml", "steps: [{run: 'true'}]\n");
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(3));
    for args in [&["dead-letters", "list"][..], &["dead-letters", "show"]] {
        assert!(rig.waypost(args).contains("exit code 1"), "{args:?}: {}", rig.waypost(args));
    }
    assert_eq!(rig.call(&["dead-letters", "retry", "-q"]).status.code(), Some(3));
    assert_eq!(rig.call(&["run", "fine.yaml", "--id", "s", "-q"]).status.code(), Some(0));
    // The newest run has none; a single run has some.
    assert!(rig.waypost(&["dead-letters", "retry"]).contains("run s has no dead letters"));
    assert_eq!(rig.call(&["dead-letters", "drop", "--all"]).status.code(), Some(0));
    assert_eq!(rig.call(&["dead-letters", "drop", "--all"]).status.code(), Some(5));
}

#[test]
fn a_workflow_a_file_or_a_step_names_its_runs() {
    let rig = Rig::with("name: nightly\nsteps: [{id: fetch, run: 'true'}]\n");
    for run in ["r1", "r2"] {
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", run, "-q"]).status.code(), Some(0));
    }
    for (given, what) in [("nightly", "workflow"), ("flow.yaml", "file"), ("fetch", "step")] {
        for command in ["show", "logs", "resume"] {
            let said = rig.waypost(&[command, given]);
            assert!(said.starts_with("exit 5\n"), "{command} {given}: {said}");
            assert!(said.contains(&format!("hint: `{given}` is a {what} of these runs: r2, r1\n")), "{said}");
        }
    }
    // No run of the workflow is live.
    assert!(rig.waypost(&["stop", "nightly"]).contains("hint: `waypost list` lists the runs"));
    assert!(rig.waypost(&["show", "other"]).contains("hint: `waypost list` lists the runs"));
    assert!(rig.waypost(&["show", "latest"]).contains("hint: `@` is the newest run; `waypost list`"));
}
