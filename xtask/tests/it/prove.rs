//! The rig that kills, seen from outside: it kills where it says, and it sees what it must.

use std::process::{Command, Output, Stdio};

fn prove(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).arg("prove").args(args).output().unwrap()
}

/// Kills a toy at a moment, and tells all about it.
fn story(mistake: &str, moment: &str) -> String {
    let output = prove(&["--store", "toy", "--op", "save", "--mistake", mistake, "--kill", moment]);
    String::from_utf8(output.stdout).unwrap()
}

/// The number of the nth call of that kind on a file of that name.
fn number_of(story: &str, call: &str, file: &str, nth: usize) -> u64 {
    let mut lines =
        story.lines().filter(|line| line.contains(&format!("`{call}` of engine on")) && line.contains(file));
    lines.nth(nth).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// What was there right after the kill, without the calls that led to it.
fn after_kill(story: &str) -> String {
    let first = story.split("start 1").next().unwrap();
    first.lines().filter(|line| line.starts_with("  ") && !line.contains('`')).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_rig_sees_every_planted_mistake_and_no_other() {
    let output = prove(&["--self", "--short"]);

    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.starts_with("toy: Save (kills Engine): "), "{stdout}");
    assert!(stdout.contains("nothing lost"), "{stdout}");
    for mistake in ["InPlace", "AcknowledgedFirst", "RecordedLate", "RecordedEarly", "Orphan"] {
        assert!(stdout.contains(&format!("planted, and seen: {mistake}")), "{stdout}");
    }
}

#[test]
fn a_kill_before_a_call_prevents_it_and_a_kill_after_does_not() {
    let whole = story("none", "999:before");
    // The first rename makes the run; the second one records its first step.
    let rename = number_of(&whole, "rename", "run.tmp", 1);
    let write = number_of(&whole, "write", "trace", 1);

    let [not_renamed, renamed] =
        ["before", "after"].map(|when| after_kill(&story("none", &format!("{rename}:{when}"))));
    let [not_written, written] =
        ["before", "after"].map(|when| after_kill(&story("none", &format!("{write}:{when}"))));

    assert!(
        !not_renamed.contains("Checkpoint") && renamed.contains("Checkpoint"),
        "{not_renamed}\n{renamed}"
    );
    assert!(
        not_written.contains("trace [\"s1\"]") && written.contains("trace [\"s1\", \"s2\"]"),
        "{written}"
    );
    assert!(!renamed.contains("(\"main\", 1)"), "nothing was acknowledged yet: {renamed}");
}

#[test]
fn a_program_is_killed_after_its_start_and_after_a_start_by_it() {
    let whole = story("orphan", "999:before");
    let clone = whole.lines().find(|line| line.contains("`clone3`") || line.contains("`vfork`")).unwrap();
    let number = clone.split_whitespace().next().unwrap();

    assert!(story("none", "1:after").contains("<- killed After"));
    assert!(story("orphan", &format!("{number}:after")).contains("<- killed After"));
}

#[test]
fn the_count_of_calls_is_the_same_each_time() {
    let calls = |story: &str| story.split("  acknowledged").next().unwrap().lines().count();

    assert_eq!(calls(&story("none", "999:before")), calls(&story("none", "999:after")));
}

#[test]
fn a_resume_is_killed_too() {
    let story = story("none", "20:after");
    assert!(story.contains("<- killed After"), "{story}");

    let output = prove(&["--store", "toy", "--op", "twice", "--kill", "20:after", "--kill", "9:before"]);

    let twice = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{twice}");
    assert!(twice.contains("<- killed After") && twice.contains("<- killed Before"), "{twice}");
    assert!(twice.contains("start 2"), "{twice}");
}

#[test]
fn a_broken_promise_fails_and_is_told() {
    let whole = story("acknowledged-first", "999:before");
    let printed = number_of(&whole, "write", "stdout", 0);
    let moment = format!("{printed}:after");

    let output =
        prove(&["--store", "toy", "--op", "save", "--mistake", "acknowledged-first", "--kill", &moment]);

    assert_eq!(output.status.code(), Some(1));
    let story = String::from_utf8(output.stdout).unwrap();
    assert!(story.contains("start 0 acknowledged main@1, and it is gone"), "{story}");
}

// What happened: the whole of `cargo xtask ci` failed in a fresh clone with "no such file", and passed here.
// Why: its `cargo test` linked another xtask in the place of the running one, which then started itself by its path.
// What stops it now: on Linux a program starts itself by the link that the system keeps to it.
#[test]
fn a_rig_whose_program_was_replaced_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("xtask");
    // By another process: what this one has open for writing, children of other tests have too until they are another
    // program, and a file that somebody writes cannot be executed.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_xtask")).arg(&copy).status().unwrap();
    assert!(copied.success());

    let child = Command::new(&copy)
        .args(["prove", "--store", "toy", "--op", "save", "--mistake", "none", "--kill", "5:before"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::fs::remove_file(&copy).unwrap();
    let output = child.wait_with_output().unwrap();

    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("start 1"), "{stderr}");
}
