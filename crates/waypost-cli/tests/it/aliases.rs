//! Other names of commands, and commands that shorten others.

use crate::rig::Rig;

const ASKS: &str = "steps:\n  - {id: ask, approve: 'Go?'}\n  - {id: go, run: echo gone > gone.txt}\n";

fn waiting() -> Rig {
    let rig = Rig::with(ASKS);
    let ran = rig.call(&["run", "flow.yaml", "--id", "r-1", "--wait", "0s", "-q"]);
    assert_eq!(ran.status.code(), Some(75), "{}", rig.told(&ran));
    rig
}

#[test]
fn an_alias_does_what_its_command_does() {
    let rig = Rig::failed();

    for (alias, command) in [("ps", "list"), ("status", "show")] {
        let [alias, command] = [alias, command].map(|name| rig.call(&[name, "--json"]));
        assert_eq!(alias.status.code(), Some(0), "{}", rig.told(&alias));
        assert_eq!(rig.told(&alias), rig.told(&command));
    }
    assert_eq!(rig.call(&["validate", "flow.yaml"]).status.code(), Some(0));
    assert_eq!(rig.call(&["rm", "r-1", "--yes"]).status.code(), Some(0));
    assert_eq!(rig.call(&["show", "r-1"]).status.code(), Some(5));
}

#[test]
fn retry_retries_tolerated_failures() {
    let rig = Rig::with("steps:\n  - {id: a, run: test -e ok, continue_on_error: true}\n");
    assert_eq!(rig.call(&["run", "flow.yaml", "-q"]).status.code(), Some(3));
    rig.write("ok", "");

    assert_eq!(
        rig.call(&["resume", "@", "-q"]).status.code(),
        Some(3),
        "resume retries no tolerated failure"
    );
    let retried = rig.call(&["retry", "@"]);
    assert_eq!(retried.status.code(), Some(0), "{}", rig.told(&retried));
    let refused = rig.waypost(&["retry", "@", "--from", "a"]);
    assert!(refused.starts_with("exit 2") && refused.contains("use `resume`"), "{refused}");
}

#[test]
fn approve_answers_yes_and_resumes_on_request() {
    let rig = waiting();

    let approved = rig.waypost(&["approve"]);
    assert!(approved.starts_with("exit 0") && approved.contains("Question: Go?"), "{approved}");
    assert!(!rig.path("gone.txt").exists(), "without --resume, nothing runs");
    let resumed = rig.waypost(&["resume", "-q"]);
    assert!(resumed.starts_with("exit 0"), "{resumed}");

    let rig = waiting();
    let approved = rig.waypost(&["approve", "r-1", "ask", "--resume"]);
    assert!(approved.starts_with("exit 0") && approved.contains("Run r-1 is completed"), "{approved}");
    assert_eq!(rig.read("gone.txt"), "gone\n");
}

#[test]
fn answer_with_resume_prints_one_object_a_line() {
    let rig = waiting();

    let answered = rig.call(&["answer", "r-1", "yes", "--resume", "--json"]);

    assert_eq!(answered.status.code(), Some(0), "{}", rig.told(&answered));
    let text = String::from_utf8(answered.stdout).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["step"], "ask");
    assert!(lines.iter().any(|line| line["event"] == "run_completed"), "{text}");
}
