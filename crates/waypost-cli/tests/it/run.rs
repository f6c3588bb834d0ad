//! `waypost run`: its effects, its output, its exit codes.

use crate::rig::{FLOW, Rig, check, wait_until};

#[test]
fn a_run_that_completes() {
    let rig = Rig::with(FLOW);
    rig.write("ok", "");

    check("run_completed", &rig.waypost(&["run", "flow.yaml", "--id", "r-1", "-p", "who=you"]));

    assert_eq!(rig.read("four.txt"), "you\n");
    assert_eq!(rig.read(".waypost/.gitignore"), "*\n!config.yaml\n");
}

#[test]
fn a_run_that_fails() {
    let rig = Rig::with(FLOW);
    check("run_failed", &rig.waypost(&["run", "flow.yaml", "--id", "r-1"]));
}

#[test]
fn a_run_as_json_lines() {
    let rig = Rig::with(FLOW);
    check("run_json", &rig.waypost(&["run", "flow.yaml", "--id", "r-1", "--json"]));
}

#[test]
fn the_file_defaults_to_waypost_yaml_and_the_id_is_made() {
    let rig = Rig::new();
    rig.write("waypost.yaml", "name: demo\nsteps: [{ run: 'true' }]\nversion: 1\n");
    check("run_made_id", &rig.waypost(&["run"]));
}

#[test]
fn steps_are_skipped_tried_again_and_tolerated() {
    let rig = Rig::with(
        r#"version: 1
steps:
  - id: maybe
    if: "false"
    run: echo never
  - id: again
    run: test -e tried || { touch tried; exit 75; }
    # Longer than a commit takes, so that the second start is not written with the end of the first.
    retry: { max: 2, delay: 2s, when: [exit 75] }
  - id: weak
    run: exit 4
    continue_on_error: [4]
  - id: last
    run: echo done
"#,
    );
    check("run_tolerated", &rig.waypost(&["run", "flow.yaml", "--id", "r-1"]));
    check("run_tolerated_show", &rig.waypost(&["show"]));
}

#[test]
fn until_stops_after_a_step() {
    let rig = Rig::with(FLOW);
    check("run_until", &rig.waypost(&["run", "flow.yaml", "--id", "r-1", "--until", "two"]));
    assert!(!rig.path("four.txt").exists());
    check("run_until_no_step", &rig.waypost(&["run", "flow.yaml", "--id", "r-2", "--until", "five"]));
}

#[test]
fn an_id_is_used_once_unless_the_run_may_be_resumed() {
    let rig = Rig::failed();
    check("run_exists", &rig.waypost(&["run", "flow.yaml", "--id", "r-1"]));
    rig.write("ok", "");
    check("run_or_resume", &rig.waypost(&["run", "flow.yaml", "--id", "r-1", "--or-resume"]));
    check("run_or_resume_done", &rig.waypost(&["run", "flow.yaml", "--id", "r-1", "--or-resume"]));
}

#[test]
fn what_a_resumed_run_cannot_be_given_is_refused() {
    // Bug: `run OTHER -p who=me --id r-1 --or-resume` resumed r-1, and silently ignored file and params. Cause:
    // with an existing run, only `--id` and `--until` were used. Fix: an argument that differs from the run is
    // named, and nothing runs.
    let rig = Rig::failed();
    rig.write("ok", "");
    rig.write("other.yaml", FLOW);
    let call = |args: &[&str]| rig.waypost(&[&["run", "--id", "r-1", "--or-resume"], args].concat());

    check("or_resume_file", &call(&["other.yaml"]));
    check(
        "or_resume_param",
        &call(&["flow.yaml", "-p", "who=me", "--label", "team=none", "--dir", ".waypost"]),
    );
    check("or_resume_same", &call(&["flow.yaml", "-p", "who=world", "--label", "team=sales", "--dir", "."]));
}

#[test]
fn a_run_beside_a_resumable_one_says_so() {
    let rig = Rig::failed();
    check("run_beside", &rig.waypost(&["run", "flow.yaml", "--id", "r-2", "--until", "one"]));
    let other = rig.waypost(&["run", "flow.yaml", "--id", "r-3", "--until", "one", "-p", "who=me"]);
    assert!(!other.contains("instead"), "{other}");
}

#[test]
fn a_dry_run_does_nothing() {
    let rig = Rig::with(FLOW);
    check("run_dry", &rig.waypost(&["run", "flow.yaml", "--dry-run"]));
    check("run_dry_json", &rig.waypost(&["run", "flow.yaml", "--dry-run", "--json"]));
    assert!(!rig.path(".waypost").exists());
}

#[test]
fn a_failed_run_in_memory_has_no_resume_hint() {
    // Bug: the last line was `waypost resume r-1 --store memory:`, an impossible command. Cause: the line was
    // made for every store address. Fix: no such line for a store that ends with its process.
    let rig = Rig::with(FLOW).at("memory:");

    let told = rig.waypost(&["run", "flow.yaml", "--id", "r-1"]);

    assert!(told.starts_with("exit 1\n") && !told.contains("waypost resume"), "{told}");
    assert!(
        told.contains("The run cannot be resumed: its store was in the memory of this process."),
        "{told}"
    );
}

#[test]
fn params_come_from_a_file_and_from_the_line() {
    let rig = Rig::with(FLOW);
    rig.write("ok", "");
    rig.write("params.yaml", "who: file\n");

    assert_eq!(rig.call(&["run", "flow.yaml", "--params-file", "params.yaml"]).status.code(), Some(0));
    assert_eq!(rig.read("four.txt"), "file\n");
    let args = ["run", "flow.yaml", "--params-file", "params.yaml", "-p", "who=line"];
    assert_eq!(rig.call(&args).status.code(), Some(0));
    assert_eq!(rig.read("four.txt"), "line\n");
}

#[test]
fn the_steps_run_in_the_folder_of_the_file_or_in_another() {
    let rig = Rig::new();
    std::fs::create_dir_all(rig.path("flows/deep")).unwrap();
    std::fs::create_dir_all(rig.path("work")).unwrap();
    rig.write("flows/deep/w.yaml", "version: 1\nsteps: [{ run: pwd > here.txt }]\n");

    assert_eq!(rig.call(&["run", "flows/deep/w.yaml"]).status.code(), Some(0));
    assert!(rig.path("flows/deep/here.txt").exists());
    assert!(rig.path("flows/deep/.waypost/waypost.db").exists(), "made beside the file");
    assert_eq!(rig.call(&["run", "flows/deep/w.yaml", "--dir", "work"]).status.code(), Some(0));
    assert!(rig.path("work/here.txt").exists());
}

#[test]
fn the_nearest_folder_upward_is_used() {
    let rig = Rig::with(FLOW);
    rig.call(&["run", "flow.yaml", "--until", "one", "--id", "r-1"]);
    std::fs::create_dir_all(rig.path("flows")).unwrap();
    rig.write("flows/w.yaml", "version: 1\nsteps: [{ run: exit 1 }]\n");

    rig.call(&["run", "flows/w.yaml", "--id", "r-2"]);

    assert!(!rig.path("flows/.waypost").exists());
    let mut below = rig.command(&["list", "--json"]);
    let listed = below.current_dir(rig.path("flows")).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("r-1") && listed.contains("r-2"), "{listed}");
}

#[test]
fn the_line_that_resumes_names_the_store_where_it_must() {
    let rig = Rig::new();
    std::fs::create_dir_all(rig.path("it's/flows")).unwrap();
    rig.write("it's/flows/w.yaml", "version: 1\nsteps: [{ run: test -e ok }]\n");

    let told = rig.waypost(&["run", "it's/flows/w.yaml", "--id", "r-1"]);
    check("run_far_store", &told);

    rig.write("it's/flows/ok", "");
    let line = told.lines().find_map(|line| line.strip_prefix("Resume with: ")).unwrap();
    let line = line.replace("[DIR]", &rig.path("").canonicalize().unwrap().to_string_lossy());
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_waypost")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let shell = std::process::Command::new("sh").args(["-c", &line]).env("PATH", path).output().unwrap();
    assert_eq!(shell.status.code(), Some(0), "{line}: {}", String::from_utf8_lossy(&shell.stderr));
}

#[test]
fn a_run_that_takes_too_long_exits_with_124() {
    let rig = Rig::with("version: 1\ntimeout: 300ms\nsteps: [{ id: slow, run: sleep 100 }]\n");
    check("run_timeout", &rig.waypost(&["run", "flow.yaml", "--id", "r-1"]));
}

#[test]
fn the_environment_selects_the_store_and_the_flag_wins() {
    let rig = Rig::with(FLOW);
    rig.command(&["run", "flow.yaml", "--id", "r-env", "--until", "one"])
        .env("WAYPOST_STORE", "sqlite:env.db")
        .output()
        .unwrap();
    assert!(rig.path("env.db").exists() && !rig.path(".waypost").exists());

    rig.command(&["run", "flow.yaml", "--id", "r-flag", "--until", "one", "--store", "sqlite:flag.db"])
        .env("WAYPOST_STORE", "sqlite:env.db")
        .output()
        .unwrap();

    assert!(rig.path("flag.db").exists());
    assert_eq!(
        rig.json(&["list", "--json", "--store", "sqlite:env.db"])["runs"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn a_run_in_memory_leaves_nothing() {
    let rig = Rig::with(FLOW).at("memory:");
    rig.write("ok", "");
    assert_eq!(rig.call(&["run", "flow.yaml"]).status.code(), Some(0));
    assert!(!rig.path(".waypost").exists());
}

#[test]
fn an_output_keeps_its_name_whatever_it_is() {
    // Bug: the members of a captured JSON object were printed like outputs. Cause: all maps were flattened, also
    // those of users. Fix: an output is printed under its name, as JSON unless it is a text.
    let rig = Rig::with("steps:\n  - id: a\n    capture: json\n    run: echo '{\"a\":[1],\"b\":null}'\n");

    let told = rig.waypost(&["run", "flow.yaml"]);

    assert!(told.contains(r#" result={"a":[1],"b":null}"#), "{told}");
}

#[test]
fn secrets_stay_out() {
    let rig = Rig::with(
        "version: 1\nsecrets: [TOKEN]\nsteps:\n  - id: leak\n    run: echo \"it is $TOKEN\"; echo \"$TOKEN\" | base64\n",
    );
    check("run_missing_secret", &rig.waypost(&["run", "flow.yaml", "--id", "r-1"]));
    assert!(!rig.path(".waypost").exists(), "nothing is made before");
    let run = |args: &[&str]| {
        let output = rig.command(args).env("TOKEN", "correct horse battery").output().unwrap();
        rig.told(&output)
    };
    check("run_secret", &run(&["run", "flow.yaml", "--id", "r-1"]));
    check("run_secret_label", &run(&["run", "flow.yaml", "--label", "x=correct horse battery"]));

    let mut found = Vec::new();
    let mut folders = vec![rig.path(".waypost")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                found.extend(bytes.windows(13).any(|window| window == b"correct horse").then_some(path));
            }
        }
    }
    assert_eq!(found, Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_secret_that_somebody_wrote_down_is_refused() {
    // Bug: a secret in the text of the workflow file, or in `--id`, was stored in clear text. Cause: only params
    // and labels were searched for secrets. Fix: all parts of the run record are searched.
    let rig = Rig::with("secrets: [TOKEN]\nsteps: [{ run: \"true\" }]\n");
    let call = |args: &[&str]| rig.told(&rig.command(args).env("TOKEN", "s3cr3t-value-42").output().unwrap());

    check("secret_in_id", &call(&["run", "flow.yaml", "--id", "r-s3cr3t-value-42"]));
    rig.write("flow.yaml", "secrets: [TOKEN]\nsteps: [{ run: \"echo s3cr3t-value-42\" }]\n");
    check("secret_in_file", &call(&["run", "flow.yaml", "--id", "r-1"]));
    rig.write(
        "flow.yaml",
        "secrets:\n  - OTHER\n  - TOKEN\nsteps:\n  - run: |\n      echo a\n      curl -u me:s3cr3t-value-42 host\n",
    );
    let output = rig
        .command(&["run", "flow.yaml"])
        .envs([("TOKEN", "s3cr3t-value-42"), ("OTHER", "unwritten")])
        .output();
    let told = rig.told(&output.unwrap());
    assert!(
        told.contains("the workflow file contains secret `TOKEN` in line 7") && !told.contains("s3cr3t"),
        "{told}"
    );
    assert_eq!(rig.json(&["list", "--json"])["runs"], serde_json::json!([]));
}

#[test]
fn a_job_of_github_has_groups_annotations_and_a_summary() {
    // Bug: the output in GitHub Actions was the same as in any other pipe. Cause: the environment was not
    // checked. Fix: `GITHUB_ACTIONS` is checked if the output is not a terminal.
    let flow = "secrets: [TOKEN]\nsteps:\n  - id: one\n    run: echo token $TOKEN; echo '::error::no'; echo '##[error]no'; echo '# Found '$TOKEN >> \
                $WAYPOST_SUMMARY\n  - id: two\n    run: echo 50% $TOKEN; exit 3\n";
    let rig = Rig::with(flow);
    rig.write("summary.md", "# Before\n");
    let call = |args: &[&str]| {
        let mut command = rig.command(args);
        command.env("TOKEN", "s3cr3t-value-42").env("GITHUB_ACTIONS", "true");
        command.env("GITHUB_WORKSPACE", rig.path(".")).env("GITHUB_STEP_SUMMARY", rig.path("summary.md"));
        rig.told(&command.output().unwrap())
    };

    check("actions_failed", &call(&["run", "flow.yaml", "--id", "r-1"]));
    check("actions_summary", &rig.read("summary.md"));
    rig.write("broken.yaml", "steps:\n  - rum: x\n");
    check("actions_file", &call(&["check", "broken.yaml"]));
    check("actions_error", &call(&["show", "nobody"]));
}

// Bug: the group of a successful step had only the last line of its log. Cause: the group was made from the
// record. Fix: the group is made from the log, or from the end of a long log.
#[test]
fn the_group_of_a_job_holds_the_log() {
    let flow = "steps:\n  - {id: short, run: 'echo one; echo two'}\n  - {id: long, run: seq 3000}\n  - {id: wide, run: 'yes 0123456789012345 | head -c 400000; echo end'}\n";
    let rig = Rig::with(flow);

    let mut command = rig.command(&["run", "flow.yaml", "--id", "r"]);
    let told = rig.told(&command.env("GITHUB_ACTIONS", "true").output().unwrap());

    assert!(told.contains("::group::short (took "), "{told}");
    assert!(told.contains(")\n  | one\n  | two\n::endgroup::"), "{told}");
    let long = told.split("::group::long").nth(1).unwrap().split("::endgroup::").next().unwrap();
    assert!(long.contains("earlier bytes are in [DIR]/") && long.contains("\n  | 2001\n"), "{long}");
    assert!(!long.contains("\n  | 2000\n") && long.ends_with("\n  | 3000\n"), "{long}");
    let wide = told.split("::group::wide").nth(1).unwrap();
    assert!(wide.contains("\n  | 0123456789012345\n"), "{wide}");
}

// Bug: `run --json` on a full disk exited 0, without a written line of its answer. Cause: unread output does not
// end a run, and a closed pipe and a full disk were treated the same. Fix: the run continues, and then the
// command reports the unwritten answer, as other commands do.
#[test]
fn an_answer_that_could_not_be_written_is_told() {
    let rig = Rig::with("steps:\n  - id: a\n    run: \"true\"\n");
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let calls: [&[&str]; 3] = [
        &["run", "flow.yaml", "--id", "r-1", "--json"],
        &["run", "flow.yaml", "--id", "r-2"],
        &["resume", "r-1", "--json"],
    ];
    for args in calls {
        let output = rig.command(args).stdout(full()).output().unwrap();

        let told = rig.told(&output);
        assert_eq!(output.status.code(), Some(74), "{args:?}: {told}");
        assert!(
            told.contains("cannot write the answer to stdout")
                && told.contains("No space left")
                && told.contains("the command itself completed"),
            "{args:?}: {told}"
        );
    }
    let listed = rig.json(&["list", "--json", "--status", "completed"]);
    assert_eq!(listed["runs"].as_array().unwrap().len(), 2, "{listed}");
    // A reader that closes the pipe early is not an error.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = rig.command(&["run", "flow.yaml", "--id", "r-3", "--json"]).stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", rig.told(&output));
}

#[test]
fn a_detached_run_goes_on_by_itself() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let flow = "secrets: [TOKEN]\nsteps:\n  - {id: a, run: 'echo \"$PPID\" > begun; while [ ! -e go ]; do sleep 0.02; done'}\n  - {id: b, run: 'echo \"${#TOKEN}\" > b.txt'}\n";
        let rig = Rig::with(flow).at(store);
        let run = |args: &[&str]| rig.command(args).env("TOKEN", "hunter2-of-old").output().unwrap();

        let begun = run(&["run", "flow.yaml", "--id", "r", "--detach", "--json"]);

        assert_eq!(begun.status.code(), Some(0), "{store}: {}", rig.told(&begun));
        let told: serde_json::Value = serde_json::from_slice(&begun.stdout).unwrap();
        assert_eq!((&told["v"], &told["run"]), (&1.into(), &"r".into()));
        rig.wait_for("begun", |text| !text.is_empty());
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", told["pid"])).unwrap();
        let session = stat.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap();
        assert_eq!(session, told["pid"].to_string(), "it leads a session of its own");
        assert_eq!(rig.json(&["show", "r", "--json"])["status"], "running");
        assert_eq!(rig.call(&["stop", "r", "-q"]).status.code(), Some(0), "{store}");
        assert_eq!(rig.json(&["show", "r", "--json"])["status"], "interrupted");
        rig.write("go", "");
        assert_eq!(run(&["resume", "r", "-q"]).status.code(), Some(0));
        assert_eq!(rig.read("b.txt"), "14\n");

        let named = run(&["run", "flow.yaml", "-v", "--detach"]);
        let said = rig.told(&named);
        assert!(said.contains("continues in process") && said.contains("waypost watch flow-"), "{said}");
        wait_until("the other run", || rig.json(&["list", "--json"])["runs"][0]["status"] == "completed");
        assert_eq!(rig.call(&["run", "flow.yaml", "--detach"]).status.code(), Some(2), "no secret");
        assert_eq!(run(&["run", "flow.yaml", "--id", "r", "--detach"]).status.code(), Some(2), "it is there");
    }
    let rig = Rig::with("steps: [{run: 'test -e go'}, {run: 'echo done > b.txt'}]");
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));
    rig.write("go", "");
    let again = ["run", "flow.yaml", "--id", "r", "--or-resume", "--detach"];
    let said = rig.waypost(&again);
    assert!(said.starts_with("exit 0") && said.contains("Run r continues in process"), "{said}");
    wait_until("it is completed", || rig.json(&["show", "r", "--json"])["status"] == "completed");
    let said = rig.waypost(&again);
    assert!(said.starts_with("exit 0") && said.contains("Nothing to do for run r"), "{said}");
    let rig = Rig::with("steps: [{run: 'true'}]").at("memory:");
    assert_eq!(rig.call(&["run", "flow.yaml", "--detach"]).status.code(), Some(2));
}

#[test]
fn a_resume_goes_on_by_itself_too() {
    let rig = Rig::with(
        "steps:\n  - {id: a, run: test -e ok}\n  - {id: b, run: 'echo b >> began; until [ -e go ]; do sleep 0.02; done'}\n",
    );
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));
    rig.write("ok", "");

    let resumes = [&["resume", "--detach"][..], &["resume", "r", "--from", "a", "--detach", "-q"]];
    for (before, args) in resumes.into_iter().enumerate() {
        let said = rig.waypost(args);
        assert!(said.starts_with("exit 0"), "{said}");
        assert!(said.contains("Run r continues in process") || said.ends_with("stderr\n"), "{said}");
        assert!(rig.waypost(&["resume", "r", "--detach"]).starts_with("exit 6"), "another process has it");
        rig.wait_for("began", |text| text.lines().count() == before + 1);
        assert_eq!(rig.call(&["stop", "r", "-q"]).status.code(), Some(0));
    }

    rig.write("go", "");
    rig.write("flow.yaml", "steps: [{id: a, run: 'true'}, {id: b, run: 'true'}]");
    assert!(rig.waypost(&["resume", "r", "--detach"]).starts_with("exit 9"), "errors are reported here");
    assert_eq!(rig.call(&["resume", "r", "--keep-definition", "-q"]).status.code(), Some(0));
    let said = rig.waypost(&["resume", "r", "--keep-definition", "--detach"]);
    assert!(said.starts_with("exit 0") && said.contains("Nothing to do for run r"), "{said}");
}

// Bug: of several concurrent `run --id X --detach`, most claimed that the run continues in their own process.
// Cause: each only checked that the run exists. Fix: each waits for its own process.
#[test]
fn only_who_made_a_detached_run_says_that_it_goes_on() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with("steps:\n  - {id: a, sleep: 1s}\n").at(store);
        let args = ["run", "flow.yaml", "--id", "x", "--detach"];
        let begun: Vec<_> = (0..5).map(|_| rig.start(&args)).collect();

        let told: Vec<_> = begun.into_iter().map(|running| rig.told(&running.end())).collect();

        let made = |told: &&String| told.starts_with("exit 0") && told.contains("Run x continues in process");
        let refused = |told: &&String| told.starts_with("exit 2") && told.contains("run x already exists");
        assert_eq!(told.iter().filter(made).count(), 1, "{store}: {told:#?}");
        assert_eq!(told.iter().filter(refused).count(), 4, "{store}: {told:#?}");
        wait_until("it is completed", || rig.json(&["show", "x", "--json"])["status"] == "completed");
    }
}

// Bug: a step with outputs that ran into its timeout crashed the command, and again in each resume. Cause: the
// expired timeout was awaited twice. Fix: after the expiry, only a stop is awaited.
#[test]
fn a_step_that_said_something_may_run_into_its_timeout() {
    let says = [
        "echo x=1 >> $WAYPOST_OUTPUT",
        "echo so far >> $WAYPOST_SUMMARY",
        concat!(env!("CARGO_BIN_EXE_waypost"), " event half done=5"),
        "rm $WAYPOST_OUTPUT; mkfifo $WAYPOST_OUTPUT",
    ];
    for say in says {
        let rig = Rig::with(&format!(
            "steps: [{{id: slow, run: '{say}; sleep 100', timeout: 300ms, grace: 200ms, retry: {{max: 1, delay: 10ms}}}}]\n"
        ));
        for args in [&["run", "flow.yaml", "--id", "r"][..], &["resume", "r"]] {
            let out = rig.call(args);
            assert_eq!(out.status.code(), Some(1), "{say}: {}", rig.told(&out));
            assert!(rig.told(&out).contains("timed out after 300ms"), "{say}: {}", rig.told(&out));
        }
    }
}

// Bug: a full disk during the creation of `.waypost` left an empty `.gitignore` for good; a store at another
// address had none. Fix: an empty file is written again, and every store in such a folder writes the file.
#[test]
fn git_ignores_a_named_store_and_a_store_of_a_full_disk() {
    for (store, folder, lines) in [
        (&[][..], ".waypost", "*\n!config.yaml\n"),
        (&["--store", "sqlite:.waypost/waypost.db"], ".waypost", "*\n!config.yaml\n"),
        (&["--store", "file:.waypost/here"], ".waypost", "*\n!config.yaml\n"),
        (&["--store", "sqlite:runs.db"], "runs.db.waypost", "*\n"),
    ] {
        let rig = Rig::with("steps: [{run: 'true'}]\n");
        std::fs::create_dir(rig.path(folder)).unwrap();
        rig.write(&format!("{folder}/.gitignore"), "");
        let ran = rig.call(&[store, &["run", "flow.yaml", "-q"]].concat());
        assert_eq!(ran.status.code(), Some(0), "{}", rig.told(&ran));
        assert_eq!(rig.read(&format!("{folder}/.gitignore")), lines, "{store:?}");
        rig.write(&format!("{folder}/.gitignore"), "*\n# mine\n");
        assert_eq!(rig.call(&[store, &["run", "flow.yaml", "-q"]].concat()).status.code(), Some(0));
        assert_eq!(rig.read(&format!("{folder}/.gitignore")), "*\n# mine\n", "{store:?}");
    }
}

// Bug: `waypost run | head -1` ended with 0 after a failed run. Cause: any write to a closed pipe ended the command with
// 0. Fix: a gone reader of the conclusion does not change the exit code of a run.
#[test]
fn a_closed_pipe_keeps_the_exit_code_of_a_run() {
    let rig = Rig::with("steps: [{id: a, run: 'false'}]\n");
    for args in [&["run", "flow.yaml", "--id", "r"][..], &["resume", "r"], &["resume", "r", "--json"]] {
        let mut command = rig.command(args);
        let mut child = command.spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));

        assert_eq!(child.wait().unwrap().code(), Some(1), "{args:?}");
    }
}
