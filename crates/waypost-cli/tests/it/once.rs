//! `waypost once`: each command runs once, whatever is killed when.

use std::fmt::Write as _;
use std::process::Command;

use serde_json::json;

use crate::rig::{Rig, check, lives, wait_until};

/// Runs `once` in the run `s`.
fn once(rig: &Rig, key: &str, script: &str) -> String {
    rig.waypost(&["once", "--id", "s", key, "--", "sh", "-c", script])
}

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

/// Returns a script of ten slow numbered commands, in its own process group.
fn script(rig: &Rig, name: &str) -> Command {
    let mut text = "export WAYPOST_SCRIPT_RUN=ten\nset -e\n".to_owned();
    for number in 0..10 {
        let _ = writeln!(
            text,
            "\"$WAYPOST\" once step-{number} -- sh -c 'echo begin-{number} >> trace; sleep 0.1; echo end-{number} >> trace; echo out-{number}'"
        );
    }
    rig.write(name, &text);
    let mut command = Command::new("sh");
    command.arg(name).current_dir(rig.path("")).env("WAYPOST", env!("CARGO_BIN_EXE_waypost"));
    command.env_remove("WAYPOST_STORE");
    command
}

#[test]
fn what_is_done_is_not_done_again_and_says_the_same() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::new().at(store);
        let print = "echo out; echo err >&2; printf '\\377\\0'; echo x >> trace";

        let first = once(&rig, "a", print);
        let second = once(&rig, "a", print);

        assert_eq!(first, second);
        assert!(first.starts_with("exit 0\n--- stdout\nout\n"), "{first}");
        assert!(first.ends_with("--- stderr\nerr\n"), "{first}");
        assert_eq!(rig.read("trace"), "x\n");
        assert_eq!(code(&rig, &["verify", "s"]), Some(0));
        let raw = rig.call(&["once", "--id", "s", "a", "--", "sh", "-c", print]).stdout;
        assert_eq!(raw, b"out\n\xff\0", "bytes stay as they are");
    }
}

#[test]
fn large_output_stays_whole() {
    let rig = Rig::new();
    let args = ["once", "--id", "s", "a", "--", "sh", "-c", "seq 1 100000; seq 1 50000 >&2"];

    let (first, second) = (rig.call(&args), rig.call(&args));

    assert!(first.stdout.ends_with(b"\n99999\n100000\n"));
    assert_eq!(first.stdout, second.stdout);
    assert_eq!(first.stderr, second.stderr);
    let document = rig.json(&["once", "--id", "s", "--json", "a", "--", "sh", "-c", args[7]]);
    assert_eq!(document["stdout_bytes"], first.stdout.len());
    assert_eq!(code(&rig, &["prune", "s", "--keep", "2"]), Some(0));
    assert_eq!(rig.call(&args).stdout, first.stdout, "retention lets go of no result");
}

#[test]
fn what_was_printed_and_is_damaged_is_not_given() {
    let rig = Rig::new();
    let args = ["once", "--id", "s", "a", "--", "sh", "-c", "seq 1 100000; echo x >> trace"];
    assert_eq!(code(&rig, &args), Some(0));
    let log = rig.path(".waypost/runs/s/blobs/once/a.i1.1.stdout");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&log, bytes).unwrap();

    let told = rig.waypost(&args);

    assert!(told.starts_with("exit 7\n--- stdout\n--- stderr\nerror: cannot replay the output"), "{told}");
    assert_eq!(rig.read("trace"), "x\n");
    let redone = rig.call(&["once", "--id", "s", "--redo", "a", "--", "sh", "-c", args[7]]);
    assert!(redone.status.success());
    assert_eq!(code(&rig, &args), Some(0));
    assert_eq!(rig.read("trace"), "x\nx\n");
}

#[test]
fn exit_codes_are_reported_and_failures_rerun_on_request() {
    let rig = Rig::new();

    assert!(once(&rig, "a", "echo x >> trace; exit 3").starts_with("exit 3\n"));
    let again = once(&rig, "a", "echo x >> trace; exit 3");
    assert!(again.starts_with("exit 3\n"), "{again}");
    assert!(again.contains("a ended with exit code 3 before, replayed here"), "{again}");
    assert_eq!(rig.read("trace"), "x\n");
    let retry = ["once", "--id", "s", "--retry-failed", "a", "--", "sh", "-c", "echo x >> trace; test -e ok"];
    assert_eq!(code(&rig, &retry), Some(1));
    rig.write("ok", "");
    let by_variable = |args: &[&str]| rig.command(args).env("WAYPOST_RETRY_FAILED", "1").output().unwrap();
    let args: Vec<&str> = retry.iter().filter(|arg| **arg != "--retry-failed").copied().collect();
    assert_eq!(by_variable(&args).status.code(), Some(0));
    assert_eq!(code(&rig, &retry), Some(0), "what went well is not done again");
    assert_eq!(rig.read("trace"), "x\nx\nx\n");
    let killed = ["once", "--id", "s", "k", "--", "sh", "-c", "echo k >> trace; kill -9 $$"];
    assert_eq!(code(&rig, &killed), Some(137));
    assert_eq!(code(&rig, &killed), Some(137), "who was killed has not ended by itself");
    assert_eq!(rig.read("trace"), "x\nx\nx\nk\nk\n");
}

#[test]
fn a_script_goes_on_after_kill_9_at_any_moment() {
    let rig = Rig::new();
    for turn in 0..12_u64 {
        let mut running = script(&rig, "ten.sh").stdout(std::process::Stdio::null()).spawn().unwrap();
        // The kill comes between two commands, inside a command, or inside a commit.
        std::thread::sleep(std::time::Duration::from_millis(60 + turn * 37 % 190));
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            let parent = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().to_owned();
            if parent == running.id().to_string() {
                send_if_there(pid);
            }
        }
        running.kill().unwrap();
        running.wait().unwrap();
    }

    let output = script(&rig, "ten.sh").output().unwrap();

    assert!(output.status.success(), "{}", rig.told(&output));
    let lines: Vec<String> = (0..10).map(|number| format!("out-{number}")).collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), lines.join("\n") + "\n");
    let trace = rig.read("trace");
    for number in 0..10 {
        let ended: Vec<&str> = trace.lines().filter(|line| *line == format!("end-{number}")).collect();
        assert!(!ended.is_empty(), "{trace}");
    }
    let before = trace.len();
    assert!(script(&rig, "ten.sh").output().unwrap().status.success());
    assert_eq!(rig.read("trace").len(), before, "nothing is done again");
    assert_eq!(code(&rig, &["verify", "ten"]), Some(0));
}

fn send_if_there(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    // The process may have ended already.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

#[test]
fn what_was_told_as_done_is_never_done_again() {
    let rig = Rig::new();
    rig.write("two.sh", "export WAYPOST_SCRIPT_RUN=two\nset -e\n\"$WAYPOST\" once a -- sh -c 'echo a >> trace'\necho told >> told\n\"$WAYPOST\" once b -- sh -c 'echo b >> trace; echo $$ > pid; sleep 1000'\n");
    let start = || {
        let mut command = Command::new("sh");
        command.arg("two.sh").current_dir(rig.path("")).env("WAYPOST", env!("CARGO_BIN_EXE_waypost"));
        command
    };
    for turn in 1..=3 {
        let mut running = start().spawn().unwrap();
        rig.wait_for("trace", |text| text.lines().filter(|line| *line == "b").count() == turn);
        rig.wait_for("pid", |text| text.ends_with('\n'));
        let pid = rig.read("pid");
        let shell = i32::try_from(running.id()).unwrap();
        for child in children_of(shell) {
            send_if_there(child);
        }
        send_if_there(shell);
        running.wait().unwrap();

        wait_until("the command to die with its once", || !lives(&pid));
        std::fs::remove_file(rig.path("pid")).unwrap();
    }
    let trace = rig.read("trace");
    assert_eq!(trace.lines().filter(|line| *line == "a").count(), 1, "{trace}");
}

fn children_of(parent: i32) -> Vec<i32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[test]
fn a_signal_ends_the_command_and_then_once_by_that_signal() {
    use std::os::unix::process::ExitStatusExt as _;

    for number in [libc::SIGINT, libc::SIGTERM] {
        let rig = Rig::new();
        let running = rig.start(&["once", "--id", "s", "a", "--", "sh", "-c", "echo $$ > pid; sleep 1000"]);
        rig.wait_for("pid", |text| text.ends_with('\n'));

        running.signal(number);
        let ended = running.end_soon();

        assert_eq!(ended.status.signal(), Some(number), "{}", rig.told(&ended));
        assert!(!lives(&rig.read("pid")));
        assert!(once(&rig, "a", "echo done").contains("done"), "it is begun anew");
    }
}

#[test]
fn one_key_twice_at_once_waits_or_is_refused() {
    let rig = Rig::new();
    let held = "echo a >> trace; while ! test -e go; do sleep 0.01; done";
    let held = ["once", "--id", "s", "a", "--", "sh", "-c", held];
    let first = rig.start(&held);
    rig.wait_for("trace", |text| text == "a\n");

    let mut refused = vec!["once", "--id", "s", "--wait", "0s"];
    refused.extend(&held[3..]);
    let refused = rig.waypost(&refused);
    assert!(
        refused.starts_with("exit 6\n") && refused.contains("`a` of run s is running, held by"),
        "{refused}"
    );
    let same = rig.start(&held);
    rig.write("go", "");

    for ended in [first.end_soon(), same.end_soon()] {
        assert_eq!(ended.status.code(), Some(0), "{}", rig.told(&ended));
    }
    assert_eq!(rig.read("trace"), "a\n");
    let nested = [
        "once",
        "--id",
        "s",
        "c",
        "--",
        env!("CARGO_BIN_EXE_waypost"),
        "once",
        "--id",
        "s",
        "d",
        "--",
        "true",
    ];
    assert_eq!(code(&rig, &nested), Some(6), "one within the other would wait for ever");
}

#[test]
fn what_a_command_leaves_in_the_background_ends_with_it() {
    let rig = Rig::new();

    let ended = rig
        .start(&["once", "--id", "s", "a", "--", "sh", "-c", "sleep 1000 & echo $! > pid; echo hi"])
        .end_soon();

    assert_eq!(ended.status.code(), Some(0), "{}", rig.told(&ended));
    assert_eq!(ended.stdout, b"hi\n");
    assert!(!lives(&rig.read("pid")));
}

#[test]
fn its_reader_may_go_and_its_input_comes_from_outside() {
    let rig = Rig::new();
    rig.write("in.txt", "given\n");
    let mut command = rig.command(&["once", "--id", "s", "in", "--", "cat"]);
    command.stdin(std::fs::File::open(rig.path("in.txt")).unwrap());
    assert_eq!(command.output().unwrap().stdout, b"given\n");

    let mut shell = Command::new("sh");
    shell.current_dir(rig.path("")).env("WAYPOST", env!("CARGO_BIN_EXE_waypost"));
    shell.args(["-c", "\"$WAYPOST\" once --id s many -- seq 1 100000 | head -n 1"]);
    assert_eq!(shell.output().unwrap().stdout, b"1\n");
    let whole = rig.call(&["once", "--id", "s", "many", "--", "seq", "1", "100000"]).stdout;
    assert!(whole.ends_with(b"\n100000\n"), "all of it was kept");
}

#[test]
fn runs_of_scripts_are_looked_at_like_others() {
    let rig = Rig::new();
    assert!(once(&rig, "a", "echo hello").starts_with("exit 0"));
    assert!(once(&rig, "b c", "echo no >&2; exit 3").starts_with("exit 3"));

    let said = [
        &["show", "s"][..],
        &["logs", "s", "a"],
        &["verify", "s"],
        &["list"],
        &["resume", "s"],
        &["resume", "--all"],
        &["once", "--id", "s", "--finish"],
        &["once", "--id", "s", "--finish"],
        &["once", "--id", "s", "a", "--", "sh", "-c", "echo hello"],
        &["once", "--id", "s", "z", "--", "true"],
        &["list"],
        &["delete", "s", "--yes"],
    ]
    .map(|args| format!("$ waypost {}\n{}", args.join(" "), rig.waypost(args)));
    check("once_looked_at", &said.join("\n"));
}

#[test]
fn wrong_calls_of_once() {
    let rig = Rig::with(crate::rig::FLOW);
    assert!(once(&rig, "a", "true").starts_with("exit 0"));
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "flow", "-q"]), Some(1));
    let said = [
        &["once", "a", "--", "true"][..],
        &["once"],
        &["once", "a"],
        &["once", "a", "true"],
        &["once", "--id", "s", "--", "true"],
        &["once", "--id", "s", "", "--", "true"],
        &["once", "--id", "s/x", "a", "--", "true"],
        &["once", "--id", "s", "a", "--", "false"],
        &["once", "--id", "s", "a", "--keep", "--", "false"],
        &["once", "--id", "s", "nothing", "--", "no-such-command"],
        &["once", "--id", "s", "folder", "--", "/tmp"],
        &["once", "--id", "flow", "a", "--", "true"],
        &["once", "--id", "none", "--finish"],
        &["once", "--json", "a", "--", "true"],
    ]
    .map(|args| format!("$ waypost {}\n{}", args.join(" "), rig.waypost(args)));
    check("once_wrong", &said.join("\n"));
}

#[test]
fn a_run_that_the_store_lost_is_not_begun_anew() {
    let rig = Rig::new();
    assert!(once(&rig, "a", "echo x >> trace").starts_with("exit 0"));
    let database = rig.path(".waypost/waypost.db");
    for suffix in ["", "-wal", "-shm"] {
        let mut name = database.clone().into_os_string();
        name.push(suffix);
        let _ = std::fs::remove_file(name);
    }

    assert!(once(&rig, "a", "echo x >> trace").starts_with("exit 7\n"));
    assert_eq!(rig.read("trace"), "x\n");
}

#[test]
fn once_as_json() {
    let rig = Rig::new();
    let call = || rig.json(&["once", "--id", "s", "--json", "a", "--", "sh", "-c", "echo out; echo err >&2"]);
    let document = |replayed: bool| {
        json!({
            "v": 1, "run": "s", "key": "a", "step": "a", "replayed": replayed, "remembered": true, "exit_code": 0,
            "stdout": "out\n", "stderr": "err\n", "stdout_bytes": 4, "stderr_bytes": 4,
        })
    };

    assert_eq!(call(), document(false));
    assert_eq!(call(), document(true));
    let finished = rig.json(&["once", "--id", "s", "--finish", "--json"]);
    assert_eq!(finished, json!({"v": 1, "run": "s", "finished": true}));
}

// Bug: `waypost stop` waited for a command of a script until its timeout, and left an unread message. Cause: only
// runs of workflows read such messages. Fix: a command of a script reads them, too.
#[test]
fn a_command_of_a_script_is_stopped_from_afar() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::new().at(store);
        let slow = "echo $$ > pid; test -e go || sleep 1000";
        for _ in 0..2 {
            let running = rig.start(&["once", "--id", "s", "a", "--", "sh", "-c", slow]);
            rig.wait_for("pid", |text| text.ends_with('\n'));
            let told = rig.waypost(&["stop", "s"]);
            assert!(told.starts_with("exit 0\n"), "{store}: {told}");
            assert!(told.contains("Run s stopped (interrupted); to resume, call the script again"), "{told}");
            let ended = running.end();
            assert_eq!(ended.status.code(), Some(130), "{store}: {}", rig.told(&ended));
            assert!(!lives(&rig.read("pid")), "{store}");
            std::fs::remove_file(rig.path("pid")).unwrap();
        }

        // A stop of one command does not stop the next.
        rig.write("go", "");
        assert_eq!(
            code(&rig, &["once", "--id", "s", "a", "--", "sh", "-c", "sleep 1; exit 0"]),
            Some(0),
            "{store}"
        );
    }
}

// `show` listed each command of a script with 0 ms. The record of the end is the first of a recorder, and the time before
// such a record counted as idle.
#[test]
fn the_duration_of_a_command_is_its_work() {
    let rig = Rig::new();

    assert_eq!(code(&rig, &["once", "k", "--id", "r", "--", "sleep", "0.2"]), Some(0));

    let shown = rig.json(&["show", "r", "--json"]);
    assert!(shown["steps"][0]["duration_ms"].as_u64().unwrap() >= 200, "{}", shown["steps"]);
}

#[test]
fn a_cancelled_script_starts_over_after_a_deletion() {
    let rig = Rig::new();
    assert_eq!(rig.call(&["once", "--id", "s", "a", "--", "true"]).status.code(), Some(0));

    let told = rig.waypost(&["cancel", "s"]);

    assert!(told.contains("To start over: waypost delete s"), "{told}");
}
