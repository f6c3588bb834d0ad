//! Promises that only the real program can show, a test per promise, on both local stores.
//!
//! The other promises of the list are tested elsewhere: `finished_is_not_repeated`, `unfinished_is_not_skipped`,
//! `cut_is_known`, `damage_is_seen`, `no_silent_fresh_start` with the engine (crates/waypost/tests/it/engine.rs),
//! `verdicts_are_earned` with the plan (crates/waypost/tests/it/plan.rs), `nothing_outlives_its_run` in
//! resuming.rs, `checks_change_nothing` in looking.rs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::read_only::picture;
use crate::rig::{Rig, wait_until};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

/// Three steps; the second step waits for the file `go`.
const FLOW: &str = r#"
name: flow
steps:
  - id: one
    run: echo one >> trace
  - id: two
    run: |
      echo two >> trace
      while ! test -e go; do sleep 0.02; done
  - id: three
    run: echo three >> trace
"#;

fn on_each_store(flow: &str, test: impl Fn(Rig)) {
    for url in STORES {
        test(Rig::with(flow).at(url));
    }
}

fn kill_in_step_two(rig: &Rig, args: &[&str], trace: &str) {
    let running = rig.start(args);
    rig.wait_for("trace", |text| text == trace);
    running.signal(libc::SIGKILL);
    running.end();
}

fn checkpoints(rig: &Rig) -> Vec<Value> {
    rig.json(&["checkpoints", "r", "--json"])["checkpoints"].as_array().unwrap().clone()
}

#[test]
fn acknowledged_is_durable() {
    on_each_store(FLOW, |rig| {
        let running = rig.start(&["run", "flow.yaml", "--id", "r", "--json"]);
        rig.wait_for("trace", |text| text == "one\ntwo\n");
        running.signal(libc::SIGKILL);
        let told = String::from_utf8(running.end().stdout).unwrap();

        let lines = told.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let told: Vec<u64> = lines.filter_map(|event| event["seq"].as_u64()).collect();
        let kept: Vec<u64> = checkpoints(&rig).iter().map(|kept| kept["seq"].as_u64().unwrap()).collect();
        assert!(told.contains(&2), "the end of step one was told: {told:?}");
        assert!(told.iter().all(|seq| kept.contains(seq)), "told {told:?}, kept {kept:?}");
    });
}

#[test]
fn one_writer() {
    on_each_store(FLOW, |rig| {
        let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
        rig.wait_for("trace", |text| text == "one\ntwo\n");

        let second = rig.call(&["resume", "r"]);
        let deleted = rig.call(&["delete", "r", "--yes"]);
        rig.write("go", "");

        assert_eq!(second.status.code(), Some(6), "{}", rig.told(&second));
        assert_eq!(deleted.status.code(), Some(6), "{}", rig.told(&deleted));
        let error = String::from_utf8(second.stderr).unwrap();
        assert!(error.contains(&running.pid().to_string()), "the holder is named: {error}");
        assert_eq!(running.end().status.code(), Some(0));
        assert_eq!(rig.read("trace"), "one\ntwo\nthree\n");
    });
}

#[test]
fn resume_is_a_run() {
    on_each_store(FLOW, |rig| {
        let mut trace = "one\ntwo\n".to_owned();
        kill_in_step_two(&rig, &["run", "flow.yaml", "--id", "r"], &trace);
        for _ in 0..4 {
            trace.push_str("two\n");
            kill_in_step_two(&rig, &["resume", "r"], &trace);
        }
        rig.write("go", "");

        let resumed = rig.call(&["resume", "r"]);

        assert_eq!(resumed.status.code(), Some(0), "{}", rig.told(&resumed));
        assert_eq!(rig.read("trace"), trace + "two\nthree\n");
        assert_eq!(rig.call(&["verify", "r"]).status.code(), Some(0));
    });
}

#[test]
fn history_only_grows() {
    on_each_store(FLOW, |rig| {
        kill_in_step_two(&rig, &["run", "flow.yaml", "--id", "r"], "one\ntwo\n");
        let before = checkpoints(&rig);
        kill_in_step_two(&rig, &["resume", "r"], "one\ntwo\ntwo\n");
        rig.write("go", "");
        assert_eq!(rig.call(&["resume", "r", "--restart"]).status.code(), Some(0));

        let after = checkpoints(&rig);

        let digest = |kept: &Value| (kept["seq"].clone(), kept["digest"].clone(), kept["prev"].clone());
        assert_eq!(
            before.iter().map(digest).collect::<Vec<_>>(),
            after.iter().take(before.len()).map(digest).collect::<Vec<_>>()
        );
        assert!(after.len() > before.len());
    });
}

#[test]
fn newer_is_refused() {
    let rig = Rig::with("version: 2\nsteps:\n  - run: \"true\"\n");
    let newer_file = rig.call(&["check", "flow.yaml"]);
    assert_ne!(newer_file.status.code(), Some(0), "{}", rig.told(&newer_file));

    let rig = Rig::with(FLOW).at(STORES[0]);
    rig.write("go", "");
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r"]).status.code(), Some(0));
    // The version of a database is at byte 60 of its file, big-endian.
    let path = rig.path("kept/waypost.db");
    let mut bytes = fs::read(&path).unwrap();
    bytes[60..64].copy_from_slice(&99_u32.to_be_bytes());
    fs::write(&path, &bytes).unwrap();

    for args in [["list", "-q"], ["show", "r"], ["resume", "r"]] {
        let refused = rig.call(&args);
        assert_eq!(refused.status.code(), Some(76), "{args:?}: {}", rig.told(&refused));
    }
    assert_eq!(fs::read(&path).unwrap(), bytes, "nothing was changed");
}

#[test]
fn loading_runs_nothing() {
    let flow = r#"
name: $(touch pwned)
params:
  p: { default: "$(touch pwned)" }
steps:
  - id: a
    name: "`touch pwned`"
    env: { X: "$(touch pwned)" }
    run: test "$X" = '$(touch pwned)'; echo '$(touch pwned)'; exit 1
"#;
    on_each_store(flow, |rig| {
        rig.call(&["check", "flow.yaml"]);
        rig.call(&["run", "flow.yaml", "--id", "r"]);

        for command in ["show", "plan", "why", "verify", "logs", "events", "checkpoints"] {
            rig.call(&[command, "r"]);
        }

        assert!(!rig.path("pwned").exists());
    });
}

#[test]
fn a_lost_database_is_no_fresh_start() {
    // Bug: with the database gone, `--or-resume` started over and reran finished steps. Cause: the store did not
    // know the run. Fix: the event log next to the store is checked first.
    let rig = Rig::with(FLOW).at(STORES[0]);
    kill_in_step_two(&rig, &["run", "flow.yaml", "--id", "r"], "one\ntwo\n");
    wait_until("the lock to be let go", || {
        rig.json(&["list", "--json"])["runs"][0]["status"] == "interrupted"
    });
    for name in ["waypost.db", "waypost.db-wal", "waypost.db-shm"] {
        let _ = fs::remove_file(rig.path("kept").join(name));
    }

    let again = rig.call(&["run", "flow.yaml", "--id", "r", "--or-resume"]);

    assert_eq!(again.status.code(), Some(7), "{}", rig.told(&again));
    assert_eq!(rig.read("trace"), "one\ntwo\n");
}

#[test]
fn what_steps_hand_over_is_not_left_behind() {
    // Bug: after `kill -9`, output files of steps, with secrets, stayed in the temporary folder of the system.
    // Cause: no process knew these files. Fix: the files are in the run's folder, where the next process finds
    // these.
    let flow = r#"
steps:
  - id: one
    run: |
      echo "token=not to be left" > "$WAYPOST_OUTPUT"
      mkdir "$WAYPOST_OUTPUT.d"
      echo "$WAYPOST_OUTPUT" >> trace
      while ! test -e go; do sleep 0.02; done
"#;
    on_each_store(flow, |rig| {
        fs::create_dir(rig.path("tmp")).unwrap();
        let command = |args: &[&str]| {
            let mut command = rig.command(args);
            command.env("TMPDIR", rig.path("tmp"));
            command
        };
        let mut running = command(&["run", "flow.yaml", "--id", "r"]).spawn().unwrap();
        rig.wait_for("trace", |text| text.lines().count() == 1);
        running.kill().unwrap();
        running.wait().unwrap();
        let scratch = rig.path("kept/runs/r/scratch");
        let told = fs::canonicalize(rig.read("trace").trim()).unwrap();
        assert!(told.starts_with(scratch.canonicalize().unwrap()), "{told:?}");
        assert_eq!(fs::metadata(&scratch).unwrap().permissions().mode() & 0o777, 0o700);

        rig.write("go", "");
        let resumed = command(&["resume", "r"]).output().unwrap();

        assert_eq!(resumed.status.code(), Some(0), "{}", rig.told(&resumed));
        assert!(!scratch.exists());
        assert_eq!(fs::read_dir(rig.path("tmp")).unwrap().count(), 0);
        // The scratch folder was replaced by a link: the link is removed, and its target stays.
        fs::create_dir(rig.path("precious")).unwrap();
        rig.write("precious/file", "");
        std::os::unix::fs::symlink(rig.path("precious"), &scratch).unwrap();
        assert_eq!(rig.call(&["resume", "r"]).status.code(), Some(0));
        assert!(rig.path("precious/file").exists() && fs::symlink_metadata(&scratch).is_err());
        fs::write(&scratch, "").unwrap();
        assert_eq!(rig.call(&["resume", "r", "--restart"]).status.code(), Some(0));
        // A kill after the last checkpoint leaves the folder too.
        fs::create_dir(&scratch).unwrap();
        fs::write(scratch.join("one.1.output"), "secret").unwrap();
        assert_eq!(rig.call(&["resume", "r"]).status.code(), Some(0));
        assert!(!scratch.exists());
    });
}

#[test]
fn errors_about_outputs_do_not_quote_secrets() {
    // Bug: an error about a malformed output quoted a secret, which was recorded and printed. Cause: only the
    // printed output of steps was masked. Fix: such errors are masked, or not shown at all.
    const SECRET: &str = "Zq9secretvalue77";
    let steps = [
        r#"- run: echo "$TOKEN" >> "$WAYPOST_OUTPUT""#,
        r#"- run: echo "x<<$TOKEN" >> "$WAYPOST_OUTPUT""#,
        "- capture: number\n    run: echo \"$TOKEN\"",
        "- outputs: { x: { from: f.json, json: $.a } }\n    run: |\n      printf '{\"%s\": 1}' \"$TOKEN\" > f.json",
    ];
    for step in steps {
        on_each_store(&format!("secrets: [TOKEN]\nsteps:\n  {step}\n"), |rig| {
            let output =
                rig.command(&["run", "flow.yaml", "--id", "r"]).env("TOKEN", SECRET).output().unwrap();

            assert_eq!(output.status.code(), Some(1), "{step}: {}", rig.told(&output));
            let mut places = picture(&rig.path("kept"));
            places.insert("stdout".to_owned(), output.stdout);
            places.insert("stderr".to_owned(), output.stderr);
            for (place, bytes) in places {
                assert!(!String::from_utf8_lossy(&bytes).contains(SECRET), "{step}: {place} has the secret");
            }
        });
    }
}

#[test]
fn a_step_whose_reaper_is_killed_is_cut_and_not_failed() {
    // Bug: a non-idempotent step was retried after the kill of its reaper. Cause: the kill counted as a failure
    // of the step. Fix: without its runner, the step counts as interrupted.
    let flow = r#"
steps:
  - id: pay
    idempotent: false
    retry: { max: 1, delay: 10ms }
    run: |
      echo paid >> trace
      sleep 1000
"#;
    on_each_store(flow, |rig| {
        let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
        rig.wait_for("trace", |text| text == "paid\n");
        let engine = running.pid().to_string();
        let reaper = wait_for_reaper(&engine);
        let pid = rustix::process::Pid::from_raw(reaper).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();

        let ended = running.end();

        assert_eq!(ended.status.code(), Some(8), "{}", rig.told(&ended));
        assert_eq!(rig.call(&["resume", "r"]).status.code(), Some(8));
        assert_eq!(rig.read("trace"), "paid\n");
    });
}

/// Returns the reaper below a process: the grandchild with this name.
fn wait_for_reaper(engine: &str) -> i32 {
    let find = || {
        let stats = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let stat = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
            let (pid, rest) = stat.split_once(" (")?;
            let (name, rest) = rest.rsplit_once(") ")?;
            let parent = rest.split(' ').nth(1)?;
            Some((pid.to_owned(), name.to_owned(), parent.to_owned()))
        });
        let stats: Vec<_> = stats.collect();
        let below = |parent: &str, name: &str| {
            stats.iter().find(|(_, n, p)| p == parent && n == name).map(|(pid, ..)| pid.clone())
        };
        below(&below(engine, "wp-supervisor")?, "wp-reaper")
    };
    wait_until("the reaper", || find().is_some());
    find().unwrap().parse().unwrap()
}

#[test]
fn secrets_stay_out() {
    const SECRET: &str = "hunter2-is-long-enough";
    const BASE64: &str = "aHVudGVyMi1pcy1sb25nLWVub3VnaA==";
    let flow = r#"
name: flow
secrets: [TOKEN]
steps:
  - id: a
    run: |
      echo "$TOKEN"; printf %s "$TOKEN" | base64; echo "$TOKEN" >&2; echo "said $TOKEN" > "$WAYPOST_SUMMARY"
  - id: b
    run: echo "$TOKEN"; exit 1
"#;
    on_each_store(flow, |rig| {
        let missing = rig.call(&["run", "flow.yaml", "--id", "r"]);
        assert_eq!(missing.status.code(), Some(2), "{}", rig.told(&missing));

        let output =
            rig.command(&["run", "flow.yaml", "--id", "r", "-v"]).env("TOKEN", SECRET).output().unwrap();

        assert_eq!(output.status.code(), Some(1), "{}", rig.told(&output));
        let mut places = picture(&rig.path("kept"));
        places.insert("stdout".to_owned(), output.stdout);
        places.insert("stderr".to_owned(), output.stderr);
        for (place, bytes) in places {
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains(SECRET) && !text.contains(BASE64), "{place} has the secret");
        }
    });
}
