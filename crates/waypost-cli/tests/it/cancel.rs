//! `waypost cancel`: final, whole, and nothing of the run lives on.

use serde_json::json;

use crate::rig::{FLOW, Rig, check, lives, wait_until};

const LONG: &str = "steps:\n  - {id: a, run: echo a >> trace}\n  - {id: b, run: 'echo $$ > pid; sleep 1000'}\n  - {id: c, run: echo c >> trace}\n";

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

#[test]
fn a_live_run_is_stopped_and_cancelled_for_good() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(LONG).at(store);
        let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
        rig.wait_for("pid", |text| text.ends_with('\n'));
        let pid = rig.read("pid");

        let cancelled = rig.json(&["cancel", "r", "--json"]);

        assert_eq!(
            cancelled,
            json!({"v": 1, "run": "r", "status": "cancelled", "cancelled": true, "stopped": true, "branches": 0})
        );
        assert!(!lives(&pid), "nothing of it lives on");
        let output = running.end();
        assert_eq!(output.status.code(), Some(130), "its process was stopped");
        let said = rig.told(&output);
        assert!(said.contains("Run r was stopped by waypost cancel, and cannot be resumed"), "{said}");
        assert!(said.contains("waypost resume r --store") && said.contains(" --restart"), "{said}");
        assert!(!said.contains("Resume with"), "{said}");
        let shown = rig.json(&["show", "r", "--json"]);
        assert_eq!((&shown["status"], &shown["waiting"]), (&json!("cancelled"), &json!([])));
        let listed = rig.json(&["list", "--json"]);
        assert_eq!(listed["runs"][0]["resumable"], false);
        let last = rig.json(&["checkpoints", "r", "--json"])["checkpoints"].clone();
        assert_eq!(last.as_array().unwrap().last().unwrap()["reason"], "cancel");
        assert!(rig.waypost(&["events", "r"]).contains("run_cancelled"));
        assert_eq!(code(&rig, &["verify", "r"]), Some(0));
        assert_eq!(code(&rig, &["resume", "r"]), Some(2), "no resume goes on with it");
        assert_eq!(code(&rig, &["resume", "--all"]), Some(0));
        assert_eq!(code(&rig, &["resume", "r", "--from", "b"]), Some(2));
        assert_eq!(code(&rig, &["rollback", "r@1"]), Some(2));
        assert_eq!(rig.read("trace"), "a\n");
        let again = rig.json(&["cancel", "r", "--json"]);
        assert_eq!(again["cancelled"], false);
        rig.write("flow.yaml", "name: flow\nsteps:\n  - {id: a, run: echo over >> trace}\n");
        assert_eq!(code(&rig, &["resume", "r", "--restart", "-q"]), Some(0), "but it can be started over");
        assert_eq!(rig.read("trace"), "a\nover\n");
    }
}

#[test]
fn what_a_killed_run_left_behind_dies_with_it() {
    let rig = Rig::with(LONG);
    let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
    rig.wait_for("pid", |text| text.ends_with('\n'));
    let pid = rig.read("pid");
    running.signal(libc::SIGKILL);

    assert_eq!(code(&rig, &["cancel", "r"]), Some(0));

    assert!(!lives(&pid));
    assert_eq!(rig.json(&["show", "r", "--json"])["status"], "cancelled");
}

#[test]
fn a_run_that_waits_or_failed_or_is_in_doubt_is_cancelled_too() {
    let rig = Rig::with("steps:\n  - {id: ok, approve: Sure?}\n");
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "waits", "-q"]), Some(75));
    assert_eq!(code(&rig, &["cancel", "waits"]), Some(0));
    assert_eq!(code(&rig, &["answer", "waits", "yes"]), Some(2), "nothing is asked any more");
    assert_eq!(code(&rig, &["signal", "waits", "x"]), Some(2));
    assert_eq!(rig.json(&["show", "waits", "--json"])["waiting"], json!([]));

    rig.write("doubt.yaml", "steps:\n  - {id: once, idempotent: false, run: 'echo > began; sleep 1000'}\n");
    let running = rig.start(&["run", "doubt.yaml", "--id", "doubt"]);
    wait_until("it began", || rig.path("began").exists());
    running.signal(libc::SIGKILL);
    drop(running);
    wait_until("it is in doubt", || rig.json(&["show", "doubt", "--json"])["status"] == "in_doubt");
    assert_eq!(code(&rig, &["cancel", "doubt"]), Some(0));
    assert_eq!(code(&rig, &["resume", "doubt", "--treat-as", "done"]), Some(2));
}

#[test]
fn screens_of_cancelling() {
    let rig = Rig::failed();
    let said = [
        &["cancel", "x"][..],
        &["cancel", "r-1"],
        &["cancel", "r-1"],
        &["resume", "r-1"],
        &["resume", "r-1", "--json"],
        &["plan", "r-1"],
        &["show", "r-1"],
        &["list"],
    ]
    .map(|args| format!("$ waypost {}\n{}", args.join(" "), rig.waypost(args)));
    check("cancel", &said.join("\n"));

    let rig = Rig::with(FLOW);
    rig.write("ok", "");
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "done", "-q"]), Some(0));
    check("cancel_completed", &rig.waypost(&["cancel", "done"]));
    assert_eq!(rig.json(&["show", "done", "--json"])["status"], "completed");
}
