//! `-` as FILE, and the default FILE.

use std::io::Write as _;
use std::process::{Output, Stdio};

use crate::rig::Rig;

const FLOW: &str = "steps:\n  - {id: a, run: pwd > folder}\n  - {id: b, run: test -e ok}\n";

fn with_stdin(rig: &Rig, args: &[&str], text: &str) -> Output {
    let mut child = rig.command(args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_workflow_from_stdin_runs_here_and_resumes() {
    let rig = Rig::new();
    let ended = with_stdin(&rig, &["run", "-", "--id", "r", "-q"], FLOW);
    assert_eq!(ended.status.code(), Some(1), "{}", rig.told(&ended));
    assert_eq!(rig.read("folder").trim(), rig.path("").canonicalize().unwrap().display().to_string());
    assert_eq!(rig.json(&["list", "--json"])["runs"][0]["path"], serde_json::Value::Null);
    // A file of this name is another workflow.
    for name in ["-", "stdin"] {
        rig.write(name, "steps: [{run: exit 9}]\n");
    }
    rig.write("ok", "");

    assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(0));

    let again = with_stdin(&rig, &["run", "-", "--id", "r", "--or-resume"], FLOW);
    assert_eq!((again.status.code(), rig.told(&again).contains("is completed")), (Some(0), true));
}

#[test]
fn a_wrong_workflow_from_stdin_is_shown_in_place() {
    let rig = Rig::new();
    for command in ["run", "check"] {
        let ended = with_stdin(&rig, &[command, "-"], "steps: [{run: a, bad: 1}]\n");
        assert_eq!(ended.status.code(), Some(78));
        assert!(rig.told(&ended).contains("stdin:1:18"), "{}", rig.told(&ended));
    }
    let checked = with_stdin(&rig, &["check", "-"], FLOW);
    assert!(rig.told(&checked).contains("workflow stdin has 2 steps"), "{}", rig.told(&checked));
}

#[test]
fn options_that_need_a_file_are_refused_with_stdin() {
    let rig = Rig::new();
    for option in ["--detach", "--or-resume"] {
        assert_eq!(with_stdin(&rig, &["run", "-", option], FLOW).status.code(), Some(2), "{option}");
    }
    assert!(!rig.path("folder").exists());
}

#[test]
fn the_other_extension_is_used_if_only_that_file_exists() {
    let rig = Rig::new();
    rig.write("waypost.yml", "steps: [{run: touch yml}]\n");
    assert_eq!(rig.call(&["run", "-q"]).status.code(), Some(0));
    assert!(rig.path("yml").exists() && rig.waypost(&["check"]).contains("waypost.yml:"));
    rig.write("waypost.yaml", "steps: [{run: touch yaml}]\n");
    assert_eq!(rig.call(&["run", "-q"]).status.code(), Some(0));
    assert!(rig.path("yaml").exists() && rig.waypost(&["check"]).contains("waypost.yaml:"));
    rig.write("other.yml", "steps: [{run: touch other}]\n");
    assert_eq!(rig.call(&["run", "other.yaml", "-q"]).status.code(), Some(0));
    assert!(rig.path("other").exists());
}
