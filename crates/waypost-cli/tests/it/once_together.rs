//! Concurrent commands of one script.

use std::process::{Command, Stdio};

use crate::rig::{Rig, Running, code_of, lives, send, wait_until};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

/// Returns a script in the folder of the rig, with `waypost` and its store in variables.
fn script(rig: &Rig, store: &str, text: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", text]).current_dir(rig.path("")).env("WAYPOST", env!("CARGO_BIN_EXE_waypost"));
    command.env("WAYPOST_STORE", store).env("WAYPOST_SCRIPT_RUN", "s");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Each command ends only after the start of the other.
const EACH_OTHER: &str = r#"
each() { "$WAYPOST" once "$1" -- sh -c "echo $1 >> trace; while ! grep -q $2 trace; do sleep 0.01; done; echo out-$1" || exit; }
each a b & one=$!
each b a & other=$!
wait $one && wait $other
"#;

// Bug: a key in the background blocked the next key until its end. Cause: the lease of the run was held while a
// command ran. Fix: the lease is held only while a record is appended.
#[test]
fn two_keys_in_the_background_run_side_by_side() {
    for store in STORES {
        let rig = Rig::new().at(store);
        for _ in 0..2 {
            let ended = Running::of(&mut script(&rig, store, EACH_OTHER)).end_soon();

            assert_eq!(ended.status.code(), Some(0), "{store}: {}", rig.told(&ended));
            let mut out: Vec<&str> = std::str::from_utf8(&ended.stdout).unwrap().lines().collect();
            out.sort_unstable();
            assert_eq!(out, ["out-a", "out-b"], "{store}");
        }
        assert_eq!(rig.read("trace").lines().count(), 2, "{store}: the second script repeats nothing");
        assert_eq!(code_of(&rig, &["verify", "s"]), Some(0), "{store}");
    }
}

#[test]
fn many_keys_at_once_are_all_remembered() {
    for store in STORES {
        let rig = Rig::new().at(store);
        let text =
            r#"for key in 1 2 3 4 5 6 7 8; do "$WAYPOST" once k$key -- sh -c "echo x >> trace" & done; wait"#;
        for _ in 0..2 {
            let ended = Running::of(&mut script(&rig, store, text)).end_soon();
            assert_eq!(rig.told(&ended), "exit 0\n--- stdout\n--- stderr\n", "{store}");
        }
        assert_eq!(rig.read("trace").lines().count(), 8, "{store}");
        assert_eq!(code_of(&rig, &["verify", "s"]), Some(0), "{store}");
    }
}

#[test]
fn a_run_with_commands_under_way_is_told_and_stopped() {
    let rig = Rig::new();
    let begin = |key: &str| {
        let command = format!("echo $$ >> pids; echo {key} >> trace; exec sleep 1000");
        rig.start(&["once", "--id", "s", key, "--", "sh", "-c", &command])
    };
    let running = [begin("a"), begin("b")];
    rig.wait_for("trace", |text| text.lines().count() == 2);

    assert_eq!(rig.json(&["list", "--json"])["runs"][0]["status"], "running");
    assert_eq!(rig.json(&["show", "s", "--json"])["status"], "running");
    let held = rig.waypost(&["doctor"]);
    let since = held.split_once("run s is held by process ").and_then(|(_, rest)| rest.split_once(" since "));
    let since = since.and_then(|(_, rest)| rest.split_once('Z')).map(|(time, _)| time.len());
    assert_eq!(since, Some("2026-11-29T16:00:00".len()), "{held}");
    assert_eq!(code_of(&rig, &["delete", "s", "--yes"]), Some(6));
    let told = rig.waypost(&["stop", "s"]);

    assert!(told.contains("Run s stopped (interrupted)"), "{told}");
    for ended in running.map(Running::end_soon) {
        assert_eq!(ended.status.code(), Some(130), "{}", rig.told(&ended));
    }
    assert!(rig.read("pids").lines().all(|pid| !lives(pid)));
    assert_eq!(rig.json(&["list", "--json"])["runs"][0]["status"], "interrupted");
    assert_eq!(code_of(&rig, &["delete", "s", "--yes"]), Some(0));
    assert!(!rig.path(".waypost/locks/s.once").exists());
}

#[test]
fn the_death_of_one_command_leaves_the_others_alone() {
    let rig = Rig::new();
    let wait = |key: &str| {
        format!("echo $$ >> {key}.pid; while ! test -e go; do sleep 0.01; done; echo {key} >> trace")
    };
    let (a, b) = (wait("a"), wait("b"));
    let killed = rig.start(&["once", "--id", "s", "a", "--", "sh", "-c", &a]);
    let other = rig.start(&["once", "--id", "s", "b", "--", "sh", "-c", &b]);
    for file in ["a.pid", "b.pid"] {
        rig.wait_for(file, |text| text.ends_with('\n'));
    }

    send(killed.pid(), libc::SIGKILL);
    drop(killed);
    let pid = rig.read("a.pid");
    wait_until("the command to die with its once", || !lives(&pid));
    let again = rig.start(&["once", "--id", "s", "a", "--", "sh", "-c", &a]);
    rig.wait_for("a.pid", |text| text.lines().count() == 2);
    assert!(lives(&rig.read("b.pid")), "the command of the other key goes on");
    rig.write("go", "");

    for ended in [again.end_soon(), other.end_soon()] {
        assert_eq!(ended.status.code(), Some(0), "{}", rig.told(&ended));
    }
    let trace = rig.read("trace");
    assert_eq!((trace.lines().count(), trace.contains('a'), trace.contains('b')), (2, true, true));
}
