//! Kinds of evidence in workflows: believed when the step ends, looked at by `verify` and before a resume.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::rig::{Rig, code_of, lives, wait_until};

const RUN: [&str; 5] = ["run", "flow.yaml", "--id", "r", "-q"];

fn script(rig: &Rig, name: &str, text: &str) {
    rig.write(name, &format!("#!/bin/sh\n{text}\n"));
    fs::set_permissions(rig.path(name), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn commands_and_programs_say_whether_a_step_is_done() {
    let flow = r#"
env: { WANT: "3" }
secrets: [API_TOKEN]
steps:
  - id: a
    run: echo a >> trace; cat given.txt > n.txt
    evidence:
      - command: test "$(cat n.txt)" = "$WANT"
      - { command: 'echo "got $API_TOKEN"; env | grep -c sesame', env: [API_TOKEN], stdout: "~ ^got open-" }
      - { command: 'env | grep sesame', exit: 1, stdout: '' }
      - { exec: ./says, with: { least: "${{ params.least }}" } }
  - run: test -e go
params: { least: { type: integer, default: 2 } }
"#;
    let rig = Rig::with(flow);
    script(
        &rig,
        "says",
        r#"read -r told; echo "$told" > told.txt; echo '{"n":'$(cat n.txt)'}'; test "$(cat n.txt)" -ge 2"#,
    );
    let call = |args: &[&str]| {
        let mut command = rig.command(args);
        command.env("API_TOKEN", "open-sesame").env("URL", "https://open-sesame@host/");
        rig.told(&command.output().unwrap())
    };
    rig.write("given.txt", "1\n");
    let failed = call(&RUN);
    assert!(failed.starts_with("exit 4\n"), "{failed}");
    assert!(failed.contains("exec ./says: expected with: {least: 2}, found n: 1"), "{failed}");

    rig.write("given.txt", "3\n");
    assert!(call(&["resume", "r", "-q"]).starts_with("exit 1\n"));
    assert!(rig.read("told.txt").contains(r#""kind":"exec","subject":"./says","with":{"least":2}"#));
    let verified = call(&["verify", "r"]);
    assert!(verified.starts_with("exit 0\n"), "{verified}");
    let shown = rig.json(&["show", "r", "--json"]);
    assert_eq!(shown["steps"][0]["evidence"][1]["found"]["stdout"], "got ***\n1", "{shown}");
    assert_eq!(shown["steps"][0]["evidence"][0]["expected"]["env"]["WANT"], "3", "{shown}");

    let unset = rig.waypost(&["verify", "r"]);
    assert!(
        unset.starts_with("exit 4\n") && unset.contains("the variable `API_TOKEN` in `env` is not set"),
        "{unset}"
    );
    rig.write("n.txt", "4");
    assert!(call(&["verify", "r"]).starts_with("exit 4\n"));
    rig.write("go", "");
    assert!(call(&["resume", "r", "-q"]).starts_with("exit 0\n"));
    assert_eq!(rig.read("trace"), "a\na\na\n", "it was done again");
}

#[test]
fn programs_of_another_file_run_in_its_folder() {
    let rig = Rig::with("steps: [{id: a, workflow: sub/inner.yaml}]\n");
    fs::create_dir(rig.path("sub")).unwrap();
    let inner = "steps: [{id: b, run: 'touch here', evidence: [{command: test -e here}, {exec: ./says}, {port: 1, listening: false}]}]\n";
    rig.write("sub/inner.yaml", inner);
    script(&rig, "sub/says", "test -e here");

    let told = rig.waypost(&RUN);

    assert!(told.starts_with("exit 0\n"), "{told}");
    assert_eq!(code_of(&rig, &["verify", "r"]), Some(0));
    fs::remove_file(rig.path("sub/here")).unwrap();
    assert_eq!(code_of(&rig, &["verify", "r"]), Some(4));
}

#[test]
fn a_command_ends_with_who_waits_for_it() {
    let flow = "steps: [{id: a, run: touch hold, evidence: [{command: 'test -e hold || { echo $$ > pid; exec sleep 600; }'}]}]";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &RUN), Some(0));
    fs::remove_file(rig.path("hold")).unwrap();

    for signal in [libc::SIGINT, libc::SIGKILL] {
        let verifying = rig.start(&["verify", "r"]);
        rig.wait_for("pid", |text| text.ends_with('\n'));
        verifying.signal(signal);
        verifying.end();

        let pid = rig.read("pid");
        wait_until("the command to end", || !lives(pid.trim()));
        fs::remove_file(rig.path("pid")).unwrap();
    }
}

#[test]
fn a_service_without_its_process_restarts_alone() {
    let flow = r#"
steps:
  - id: up
    service: echo up >> trace; echo $$ > up.pid; exec sleep 604811
    evidence:
      - { process: sleep, pid_file: up.pid, within: 20s }
      - { process: sleep, args: 604811, within: 20s }
  - { id: a, run: 'echo a >> trace', evidence: [{ process: "${{ steps.b.outputs.pid }}", at: commit, not: true }] }
  - { id: b, run: 'echo b >> trace; test -e go; echo "pid=$(cat up.pid)" >> "$WAYPOST_OUTPUT"', evidence: [{ process: "${{ steps.b.outputs.pid }}" }] }
"#;
    let flow = flow.replace("${{ steps.b.outputs.pid }}\", at", "no-such-program\", at");
    let rig = Rig::with(&flow);
    assert_eq!(code_of(&rig, &RUN), Some(1));
    rig.write("go", "");

    let told = rig.waypost(&["resume", "r", "-q"]);

    assert!(told.starts_with("exit 0\n"), "{told}");
    assert_eq!(rig.read("trace"), "up\na\nb\nup\nb\n");
    let shown = rig.json(&["show", "r", "--json"]);
    let pinned = &shown["steps"][2]["evidence"][0];
    assert!(pinned["expected"]["started"].as_str().unwrap().contains(" of boot "), "{shown}");

    let rig = Rig::with(&flow.replace("604811, within: 20s", "604812, within: 200ms"));
    assert_eq!(code_of(&rig, &RUN), Some(4));
}

#[test]
fn a_repository_that_moved_on_is_made_again() {
    let flow = r#"
steps:
  - id: a
    run: |
      echo a >> trace; rm -rf r; git init -qb main r
      git -C r -c user.name=a -c user.email=a@b commit -qm one --allow-empty
      cp extra r 2> none || true
    evidence: [ { git: r }, { git: r, head: main, clean: true } ]
  - run: test -e go
"#;
    let rig = Rig::with(flow);
    rig.write("extra", "");
    let told = rig.waypost(&RUN);
    assert!(told.starts_with("exit 4\n") && told.contains("clean: false, changes: 1"), "{told}");
    fs::remove_file(rig.path("extra")).unwrap();
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(1));
    assert_eq!(code_of(&rig, &["verify", "r"]), Some(0));
    let git =
        ["-c", "user.name=a", "-c", "user.email=a@b", "-C", "r", "commit", "-qm", "two", "--allow-empty"];
    let mut git = std::process::Command::new("git").args(git).current_dir(rig.path("")).spawn().unwrap();
    assert!(git.wait().unwrap().success());

    assert_eq!(code_of(&rig, &["verify", "r"]), Some(4));
    rig.write("go", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));

    assert_eq!(rig.read("trace"), "a\na\na\n");
    assert_eq!(code_of(&rig, &["verify", "r"]), Some(0));
}

#[test]
fn files_folders_and_absolute_paths_are_verified_again() {
    let elsewhere = tempfile::tempdir().unwrap();
    let flow = r#"
allow_paths: [ELSE]
steps:
  - id: a
    run: |
      echo a >> trace; mkdir -p out/sub; printf '{"n":3}' > out/a.json; chmod 640 out/a.json
      echo b > out/sub/b; echo here > ELSE/x.txt
    evidence:
      - { file: out/a.json, mode: "0640", json: { $.n: "> 2" }, newer_than: flow.yaml }
      - { file: "out/**", count: 3 }
      - { sha256: out, fast: true }
      - { file: ELSE/x.txt, contains: here }
      - { sha256: ELSE/x.txt }
  - run: test -e go
"#;
    let flow = flow.replace("ELSE", elsewhere.path().to_str().unwrap());
    let rig = Rig::with(&flow.replace("count: 3", "count: 4"));
    let told = rig.waypost(&RUN);
    assert!(told.starts_with("exit 4\n") && told.contains("expected count: 4, found count: 3"), "{told}");

    let rig = Rig::with(&flow);
    assert_eq!(code_of(&rig, &RUN), Some(1));
    assert_eq!(code_of(&rig, &["verify", "r"]), Some(0));
    let shown = rig.json(&["show", "r", "--json"]);
    let digest = shown["steps"][0]["evidence"][2]["expected"].as_str().unwrap().to_owned();
    assert!(digest.starts_with("tree:"), "{shown}");
    fs::write(elsewhere.path().join("x.txt"), "there").unwrap();
    assert_eq!(code_of(&rig, &["verify", "r"]), Some(4));
    fs::write(elsewhere.path().join("x.txt"), "here\n").unwrap();
    assert_eq!(code_of(&rig, &["verify", "r"]), Some(0));
    rig.write("out/sub/b", "c\n");
    assert_eq!(code_of(&rig, &["verify", "r"]), Some(4));
    rig.write("go", "");

    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));

    assert_eq!(rig.read("trace"), "a\na\n", "it was done again");
    assert_eq!(code_of(&rig, &["verify", "r"]), Some(0));
    let shown = rig.json(&["show", "r", "--json"]);
    assert_eq!(shown["steps"][0]["evidence"][2]["expected"], digest, "what was made again is the same");
}

// Bug: evidence without an expectation, or not checked, was told with an empty or useless `expected`. Fix: only a comparison is.
#[test]
fn evidence_tells_expectations_that_were_compared() {
    let rig = Rig::with(
        "steps:\n  - {id: a, run: 'true', evidence: [{exec: ./chk}, {command: ./gone, stdout: '', exit: 0}]}\n",
    );
    for (exit, said) in [("1", "the program reported a failure"), ("2", "could not be checked: the program")]
    {
        script(&rig, "chk", &format!("exit {exit}"));

        let told = rig.waypost(&["run", "flow.yaml"]);

        assert!(told.contains(&format!("exec ./chk: {said}")), "{told}");
        assert!(!told.contains("expected :"), "{told}");
    }
}
