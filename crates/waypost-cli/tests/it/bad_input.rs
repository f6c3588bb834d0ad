//! All kinds of invalid input.

use std::io::{Seek as _, SeekFrom, Write as _};

use crate::rig::{FLOW, Rig, check, code_of};

#[test]
fn a_workflow_file_that_is_not_there() {
    check("file_missing", &Rig::new().waypost(&["run", "none.yaml"]));
    check("file_missing_default", &Rig::new().waypost(&["run"]));
    check("file_missing_json", &Rig::new().waypost(&["check", "none.yaml", "--json"]));
    check("file_is_a_folder", &Rig::new().waypost(&["run", "."]));
}

#[test]
fn a_workflow_file_that_is_wrong() {
    let rig = Rig::with("version: 1\nsteps:\n  - id: ../x\n    rum: echo\n    timeout: 5\n");
    check("file_wrong", &rig.waypost(&["run", "flow.yaml"]));
    check("file_wrong_json", &rig.waypost(&["check", "flow.yaml", "--json"]));
    assert!(!rig.path(".waypost").exists(), "nothing is made for it");
}

#[test]
fn json_has_each_problem_of_a_file_with_place_and_line() {
    let rig =
        Rig::with("version: 1\nsteps:\n  - { id: a, rum: echo }\n  - { id: b, workflow: below.yaml }\n");
    rig.write("below.yaml", "version: 1\nsteps:\n  - id: c\n    timeout: 5\n    run: echo\n");

    let told = rig.json(&["check", "flow.yaml", "--json"]);

    let problems = told["error"]["problems"].as_array().unwrap();
    let own = problems.iter().find(|problem| problem["hint"] == "run").unwrap();
    assert_eq!(own["file"], "flow.yaml");
    assert_eq!((&own["line"], &own["column"], &own["end_column"]), (&3.into(), &14.into(), &17.into()));
    assert_eq!(own["snippet"], "  - { id: a, rum: echo }");
    let is_below = |file: &serde_json::Value| file.as_str().unwrap().ends_with("below.yaml");
    let below = problems.iter().find(|problem| is_below(&problem["file"])).unwrap();
    assert_eq!(below["line"], 4);
    assert_eq!(below["snippet"], "    timeout: 5");
    assert_eq!(below["help"], "a duration needs a unit: `5s`, `5m`, `5h`");

    rig.write("flow.yaml", "version: 1\nsteps: [{ id: b, workflow: below.yaml }]\n");
    rig.write(
        "below.yaml",
        "version: 1\nparams: { x: { default: a } }\nsteps:\n  - run: echo ${{ params.x }}\n",
    );
    let warned = rig.json(&["check", "flow.yaml", "--json"]);
    assert_eq!(warned["warnings"][0]["snippet"], "  - run: echo ${{ params.x }}");
    assert!(is_below(&warned["warnings"][0]["file"]), "{warned}");
    rig.write("outer.yaml", "version: 1\nsteps: [{ id: a, workflow: flow.yaml }]\n");
    let warned = rig.json(&["check", "outer.yaml", "--json"]);
    assert_eq!(warned["warnings"].as_array().unwrap().len(), 1, "once, however deep: {warned}");
}

#[test]
fn params_that_do_not_fit() {
    let rig = Rig::with("version: 1\nparams:\n  count: { type: integer }\nsteps: [{ run: 'true' }]\n");
    check("param_missing", &rig.waypost(&["run", "flow.yaml"]));
    check("param_type", &rig.waypost(&["run", "flow.yaml", "-p", "count=x"]));
    check("param_unknown", &rig.waypost(&["run", "flow.yaml", "-p", "count=1", "-p", "cuont=2"]));
}

#[test]
fn names_that_are_not_allowed() {
    let rig = Rig::with(FLOW);
    check("id_wrong", &rig.waypost(&["run", "flow.yaml", "--id", "../x"]));
    check("dir_missing", &rig.waypost(&["run", "flow.yaml", "--dir", "none"]));
    check("dir_is_a_file", &rig.waypost(&["run", "flow.yaml", "--dir", "flow.yaml"]));
    check("store_wrong", &rig.waypost(&["list", "--store", "mysql:x"]));
    check("store_missing", &rig.waypost(&["list", "--store", "sqlite:none.db"]));
}

#[test]
fn runs_that_are_not_there() {
    let rig = Rig::failed();
    let calls: [&[&str]; 10] = [
        &["show", "x"],
        &["show", "r-1@99"],
        &["show", "r-1/each:a@1"],
        &["show", "r-1@x"],
        &["show", "r-1", "--step", "five"],
        &["checkpoints", "r-1", "--scope", "each:a"],
        &["resume", "x"],
        &["delete", "x", "--yes"],
        &["verify", "r-1@99"],
        &["events", "r-1", "--after", "x"],
    ];
    let texts: Vec<String> =
        calls.iter().map(|args| format!("$ waypost {}\n{}", args.join(" "), rig.waypost(args))).collect();
    check("not_found", &texts.join("\n"));
    check("not_found_json", &rig.waypost(&["show", "x", "--json"]));
    check("no_store", &Rig::new().waypost(&["show", "x"]));
}

#[test]
fn a_beginning_that_several_runs_have() {
    let rig = Rig::with(FLOW);
    for index in 0..12 {
        rig.call(&["run", "flow.yaml", "--id", &format!("r-{index:02}"), "--until", "one", "-q"]);
    }
    check("ambiguous", &rig.waypost(&["show", "r-0"]));
    check("ambiguous_many", &rig.waypost(&["show", "r", "--json"]));
}

#[test]
fn a_folder_that_cannot_be_made() {
    let rig = Rig::with(FLOW);
    rig.write(".waypost", "a file");
    check("cannot_create", &rig.waypost(&["run", "flow.yaml"]));
    check("cannot_create_json", &rig.waypost(&["run", "flow.yaml", "--json"]));
}

#[test]
fn a_store_that_is_none() {
    let rig = Rig::with(FLOW);
    rig.write("none.db", "this is not a database, only some text that is long enough to be looked at\n");
    check("not_a_database", &rig.waypost(&["list", "--store", "sqlite:none.db"]));
}

#[test]
fn a_store_of_another_version_is_refused() {
    let rig = Rig::failed();
    let mut file = std::fs::OpenOptions::new().write(true).open(rig.path(".waypost/waypost.db")).unwrap();
    // `user_version` in the header of an SQLite file, offset 60.
    file.seek(SeekFrom::Start(60)).unwrap();
    file.write_all(&99_u32.to_be_bytes()).unwrap();

    check("newer", &rig.waypost(&["list"]));
    check("newer_resume", &rig.waypost(&["resume"]));

    file.seek(SeekFrom::Start(60)).unwrap();
    file.write_all(&4_u32.to_be_bytes()).unwrap();
    drop(file);

    check("older", &rig.waypost(&["list"]));
    check("older", &rig.waypost(&["run", "flow.yaml"]));
    check("older", &rig.waypost(&["store", "upgrade"]));
}

/// Flips a bit of the newest record of `r-1`, past the store.
fn damage(rig: &Rig) {
    let tables = rusqlite::Connection::open(rig.path(".waypost/waypost.db")).unwrap();
    let newest = "FROM records ORDER BY key DESC LIMIT 1";
    let (key, mut digest): (i64, Vec<u8>) = tables
        .query_row(&format!("SELECT key, digest {newest}"), [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    digest[7] ^= 1;
    let changed = tables.execute("UPDATE records SET digest = ?1 WHERE key = ?2", (digest, key)).unwrap();
    assert_eq!(changed, 1);
}

#[test]
fn damage_is_seen() {
    let rig = Rig::failed();
    damage(&rig);

    check("damaged_verify", &rig.waypost(&["verify"]));
    check("damaged_verify_json", &rig.waypost(&["verify", "--json"]));
    check("damaged_verify_all", &rig.waypost(&["verify", "--all"]));
    check("damaged_show", &rig.waypost(&["show"]));
    check("damaged_show_at", &rig.waypost(&["show", "@@4"]));
    check("damaged_checkpoints", &rig.waypost(&["checkpoints", "--json"]));
    check("damaged_plan", &rig.waypost(&["plan"]));
    rig.write("ok", "");
    check("damaged_resume", &rig.waypost(&["resume"]));
    check("damaged_verify_after", &rig.waypost(&["verify"]));
}

#[test]
fn a_step_that_prints_much_and_anything() {
    let rig = Rig::with(
        "version: 1\nsteps:\n  - id: much\n    run: head -c 30000000 /dev/zero | tr '\\0' 'x'; printf '\\377\\376\\033[2J\\n'\n",
    );

    let run = rig.call(&["run", "flow.yaml", "--id", "r-1"]);

    assert_eq!(run.status.code(), Some(0), "{}", rig.told(&run));
    assert!(
        !run.stderr.contains(&0x1b) && !run.stdout.contains(&0x1b),
        "what it prints does not reach the screen"
    );
    let logs = rig.call(&["logs", "r-1"]);
    assert!(logs.stdout.ends_with(b"\xff\xfe\x1b[2J\n"), "byte for byte");
    assert!(logs.stdout.len() < 10 << 20, "the middle is dropped");
    let json = rig.json(&["logs", "r-1", "--json"]);
    assert!(json["logs"][0]["text"].as_str().unwrap().ends_with("\u{fffd}\u{fffd}\u{1b}[2J\n"));
}

#[test]
fn control_characters_of_a_failure_do_not_move_the_cursor() {
    let rig = Rig::with("version: 1\nsteps:\n  - id: bad\n    run: printf 'a\\033[2Jb\\rc\\n' >&2; exit 1\n");
    check("control_characters", &rig.waypost(&["run", "flow.yaml", "--id", "r-1"]));
}

#[test]
fn a_limit_on_the_size_of_files_is_told() {
    // Bug: beyond `ulimit -f` the command died silently by a signal. Cause: SIGXFSZ, unless ignored. Fix: the
    // command ignores the signal, its steps do not; the failed write is reported.
    let flow = "version: 1\nsteps:\n  - run: echo \"x=$(head -c 2500 /dev/zero | tr '\\0' x)\" >> \"$WAYPOST_OUTPUT\"\n";
    for (url, code, words) in [
        ("sqlite:kept/waypost.db", 73, "cannot create a store"),
        ("file:kept", 74, "cannot write checkpoint r-1@2"),
    ] {
        let rig = Rig::with(flow).at(url);
        let mut shell = std::process::Command::new("sh");
        // Blocks of 512 bytes: enough for the output of the step, but not for a checkpoint with this output.
        shell.args(["-c", "ulimit -f 6; exec \"$0\" --store \"$1\" run flow.yaml --id r-1"]);
        let output =
            shell.args([env!("CARGO_BIN_EXE_waypost"), url]).current_dir(rig.path("")).output().unwrap();

        assert_eq!(output.status.code(), Some(code), "{}", rig.told(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(words), "{}", rig.told(&output));
        if code == 74 {
            assert_eq!(rig.call(&["resume", "r-1"]).status.code(), Some(0));
        }
    }
}

#[test]
fn a_params_file_that_is_no_map_is_a_wrong_param() {
    let rig = Rig::with("params: { p: { type: json } }\nsteps:\n  - run: 'true'\n");
    rig.write("params.yaml", "- 1\n");

    let told = rig.waypost(&["run", "flow.yaml", "--params-file", "params.yaml"]);

    assert!(told.starts_with("exit 2\n") && told.contains("a params file is a map, not a list"), "{told}");
}

#[test]
fn a_step_that_is_misspelled_is_named() {
    let rig = Rig::with("steps:\n  - {id: fetch, run: 'true'}\n");

    let told = rig.waypost(&["run", "flow.yaml", "--until", "fetsh"]);

    assert!(told.starts_with("exit 5\n") && told.contains("did you mean `fetch`?"), "{told}");
}

#[test]
fn a_store_variable_that_is_empty_names_no_store() {
    let rig = Rig::with("steps:\n  - run: 'true'\n");

    let ran = rig.command(&["run", "flow.yaml", "-q"]).env("WAYPOST_STORE", "").output().unwrap();

    assert_eq!(ran.status.code(), Some(0), "{}", rig.told(&ran));
    assert!(rig.path(".waypost/waypost.db").exists());
    assert_eq!(rig.call(&["list", "--store", ""]).status.code(), Some(2));
}

#[test]
fn too_few_descriptors_are_an_error_and_no_panic() {
    // Bug: with 6 descriptors (`ulimit -n 6`) the command panicked. Cause: the runtime panics without a
    // descriptor for its signals. Fix: the runtime is created only with enough descriptors, and a lack is
    // reported.
    let rig = Rig::with("steps:\n  - run: 'true'\n");
    for limit in 4..=24 {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" list"), env!("CARGO_BIN_EXE_waypost")]);

        let output = shell.current_dir(rig.path("")).output().unwrap();

        let told = rig.told(&output);
        assert_ne!(output.status.code(), Some(101), "{limit}: {told}");
        assert!(output.status.code().is_some_and(|code| code != 127), "{limit}: {told}");
        assert!(!told.contains("panicked"), "{limit}: {told}");
    }
}

// Bug: a file name that is not UTF-8 in the output of `ls` became an item without a file. Cause: such bytes are
// replaced in the output of a command, also for items. Fix: the bytes are checked first.
#[test]
fn items_are_not_made_of_what_is_no_text() {
    let rig = Rig::with(
        r#"steps:
  - id: each
    foreach: {items: {run: 'printf "ok\na\377b\n"'}, steps: [{id: one, run: echo done >> done.txt}]}
"#,
    );

    let told = rig.waypost(&["run", "flow.yaml", "--id", "r-1"]);

    assert!(told.starts_with("exit 1\n"), "{told}");
    assert!(told.contains("the command output: not valid UTF-8 after byte 4"), "{told}");
    assert!(!rig.path("done.txt").exists());
}

// Bug: `--from each:zz/p` for an unknown item printed three possible reasons. Fix: an unknown scope is refused
// by its name.
#[test]
fn a_scope_that_is_not_there_is_not_gone_on_from() {
    let rig = Rig::with("steps:\n  - {id: each, foreach: {items: [x], steps: [{id: p, run: 'true'}]}}\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    for args in
        [&["resume", "r", "--from", "each:zz/p"][..], &["resume", "r", "--from", "each:zz/p", "--dry-run"]]
    {
        let told = rig.waypost(args);
        assert!(told.starts_with("exit 5\n"), "{told}");
        assert!(told.contains("there is no scope `each:zz` in run r\n"), "{told}");
    }
    assert_eq!(code_of(&rig, &["resume", "r", "--from", "each:x/p", "-q"]), Some(0));
}

#[test]
fn a_run_until_an_inner_step_is_refused_with_the_step_around_it() {
    let rig = Rig::with("steps: [{id: grp, steps: [{id: one, run: echo}]}]\n");
    for (until, hint) in [("grp/one", "name `grp`, the step"), ("one", "name the step")] {
        let refused = rig.waypost(&["run", "flow.yaml", "--until", until]);
        let expected =
            format!("there is no step `{until}` in the workflow\nhint: {hint} of the main scope around it");
        assert!(refused.starts_with("exit 5\n") && refused.contains(&expected), "{refused}");
    }
    assert!(!rig.path(".waypost").exists(), "nothing is made for it");
}
