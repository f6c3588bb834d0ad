//! Imported workflows of Prodigy at work: validations, commits, changes and variables, also after a `kill -9`.

use std::process::Command;

use crate::prodigy::with_agent;
use crate::rig::{Rig, Running, code_of};

/// A rig with an agent whose folder is a git repository with one commit, and the import of `source` in `w.yaml`.
fn imported_in_git(source: &str) -> Rig {
    let rig = with_agent(source);
    rig.write(
        "gitconfig",
        "[user]\n\tname = t\n\temail = t@example.invalid\n[init]\n\tdefaultBranch = main\n",
    );
    for args in [&["init", "-q"][..], &["add", "stub"], &["commit", "-q", "-m", "begin"]] {
        git(&rig, args);
    }
    assert_eq!(code_of(&rig, &["import", "workflow", "p.yml", "-o", "w.yaml", "-q"]), Some(0));
    rig
}

fn git(rig: &Rig, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(args).current_dir(rig.path("")).env("GIT_CONFIG_GLOBAL", rig.path("gitconfig"));
    let output = command.env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Calls `waypost` with the identity of the repository.
fn waypost(rig: &Rig, args: &[&str]) -> (Option<i32>, String) {
    let output = rig.command(args).env("GIT_CONFIG_GLOBAL", rig.path("gitconfig")).output().unwrap();
    (output.status.code(), rig.told(&output))
}

/// Prints as many percent as `done` has lines, times 40.
const REPORT: &str =
    r#"n=$(wc -l < done); echo "{\"completion_percentage\": $((n * 40)), \"gaps\": [\"part $((n + 1))\"]}""#;

#[test]
fn a_validation_repairs_until_the_work_is_complete() {
    let source = "- id: build\n  shell: echo built >> done\n  validate:\n    shell: ./report\n    threshold: 100\n    \
                  on_incomplete: {claude: '/fill ${validation.gaps}', max_attempts: 3}\n- shell: echo end >> out\n";
    let rig = imported_in_git(source);
    rig.write("report", &format!("#!/bin/sh\n{REPORT}\n"));
    rig.write("stub", "#!/bin/sh\ncat >> prompts; echo >> prompts; echo filled >> done\n");
    assert!(
        Command::new("chmod").args(["+x", "report"]).current_dir(rig.path("")).status().unwrap().success()
    );

    let ran = rig.waypost(&["run", "w.yaml", "--id", "r", "-q"]);

    assert!(ran.starts_with("exit 0\n"), "{ran}");
    assert_eq!(rig.read("prompts"), "/fill [\"part 2\"]\n/fill [\"part 3\"]\n");
    assert_eq!(
        (rig.read("done"), rig.read("out")),
        ("built\nfilled\nfilled\n".to_owned(), "end\n".to_owned())
    );
}

#[test]
fn work_that_stays_incomplete_fails_the_run() {
    for (keys, code, end) in [("", 1, false), (", fail_workflow: false", 0, true)] {
        let source = format!(
            "- id: build\n  shell: echo built >> done\n  validate:\n    shell: 'echo checked >> checks; exit 1'\n    \
             on_incomplete: {{shell: 'echo again >> done', max_attempts: 2{keys}}}\n- shell: touch end\n"
        );
        let rig = imported_in_git(&source);

        let ran = rig.waypost(&["run", "w.yaml", "--id", "r", "-q"]);

        let tolerated = if code == 0 { 3 } else { code };
        assert!(ran.starts_with(&format!("exit {tolerated}\n")), "{ran}");
        assert_eq!(rig.read("checks"), "checked\nchecked\nchecked\n");
        assert_eq!(rig.read("done"), "built\nagain\nagain\n");
        assert_eq!(rig.path("end").exists(), end);
    }
}

#[test]
fn a_check_that_prints_no_report_counts_by_its_exit_code() {
    let source = "- id: build\n  shell: ':'\n  validate:\n    shell: 'echo look; test -e mended'\n    \
                  on_incomplete: {shell: 'touch mended'}\n";
    let rig = imported_in_git(source);

    let ran = rig.waypost(&["run", "w.yaml", "--id", "r", "-q"]);

    assert!(ran.starts_with("exit 3\n"), "the first check failed: {ran}");
    assert!(rig.path("mended").exists());
    let show = rig.json(&["show", "r", "--json"]);
    assert_eq!(show["status"], "completed_with_failures", "{show}");
}

#[test]
fn a_step_fails_without_its_commit_and_is_resumed() {
    let rig = imported_in_git("- id: fix\n  claude: /fix\n  commit_required: true\n- shell: touch end\n");
    rig.write(
        "stub",
        "#!/bin/sh\ncat > prompt; echo x >> tries; test ! -e commits || git commit -q --allow-empty -m fix\n",
    );

    let (code, told) = waypost(&rig, &["run", "w.yaml", "--id", "r", "-q"]);

    assert_eq!(code, Some(4), "{told}");
    assert!(told.contains("a new commit"), "{told}");
    assert!(!rig.path("end").exists());
    rig.write("commits", "");
    let (code, told) = waypost(&rig, &["resume", "r", "-q"]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(rig.read("tries"), "x\nx\n");
    assert!(rig.path("end").exists());
}

// A commit that was made before a crash counts: the commit before the step is in the checkpoint.
#[test]
fn a_commit_before_a_kill_counts_after_the_resume() {
    let rig = imported_in_git("- id: fix\n  claude: /fix\n  commit_required: true\n- shell: touch end\n");
    rig.write(
        "stub",
        "#!/bin/sh\ncat > prompt; test ! -e committed || exit 0\n\
         git commit -q --allow-empty -m fix; touch committed; echo $$ >> begun; sleep 1000\n",
    );
    let mut command = rig.command(&["run", "w.yaml", "--id", "r"]);
    let running = Running::of(command.env("GIT_CONFIG_GLOBAL", rig.path("gitconfig")));
    rig.wait_for("begun", |text| text.ends_with('\n'));
    running.signal(libc::SIGKILL);
    running.end();

    let (code, told) = waypost(&rig, &["resume", "r", "-q"]);

    assert_eq!(code, Some(0), "{told}");
    assert_eq!(git(&rig, &["log", "--format=%s"]), "fix\nbegin\n");
    assert!(rig.path("end").exists());
}

#[test]
fn a_kill_amid_a_validation_repeats_no_finished_pass() {
    let source = "- id: build\n  shell: echo built >> done\n  validate:\n    shell: 'n=$(wc -l < done); echo \"{\\\"completion_percentage\\\": $((n * 50 - 50))}\"'\n    \
                  on_incomplete: {shell: 'echo x >> begun; while [ ! -e go ] && [ $(wc -l < begun) = 2 ]; do sleep 0.02; done; echo more >> done', max_attempts: 5}\n";
    let rig = imported_in_git(source);
    let running = rig.start(&["run", "w.yaml", "--id", "r"]);
    rig.wait_for("begun", |text| text == "x\nx\n");
    running.signal(libc::SIGKILL);
    running.end();
    rig.write("go", "");

    let ran = rig.waypost(&["resume", "r", "-q"]);

    assert!(ran.starts_with("exit 0\n"), "{ran}");
    assert_eq!(rig.read("done"), "built\nmore\nmore\n");
    assert_eq!(rig.read("begun"), "x\nx\nx\n", "only the repair that was cut ran twice");
}

#[test]
fn the_changes_of_a_step_are_what_git_says() {
    let source = "- shell: 'echo 1 > old; git add old; git commit -q -m old'\n\
                  - shell: 'echo 1 > a.txt; echo 2 > b.rs; echo 3 >> old; git add .; git commit -q -m new; echo 4 > c.txt'\n\
                  - shell: 'echo \"${step.files_added}|${step.files_modified}|${step.commit_count}|${step.insertions}|${step.files_added:*.rs}|${step.files_added:json}\" > out'\n\
                  - shell: 'echo \"${workflow.commit_count}\" > all'\n";
    let rig = imported_in_git(source);
    rig.write(".gitignore", "w.yaml\np.yml\ngitconfig\n.gitignore\n.waypost\nout\nall\n");

    let (code, told) = waypost(&rig, &["run", "w.yaml", "--id", "r", "-q"]);

    assert_eq!(code, Some(0), "{told}");
    assert_eq!(rig.read("out"), "a.txt b.rs c.txt|old|1|3|b.rs|[\"a.txt\",\"b.rs\",\"c.txt\"]\n");
    assert_eq!(rig.read("all"), "2\n");
}

#[test]
fn a_computed_variable_is_in_the_environment_of_every_step() {
    let source = "env: {WHO: {command: 'echo x >> asked; echo me'}}\ncommands:\n  - shell: sh script\n  \
                  - {shell: 'exit 1', on_failure: {shell: sh script, max_attempts: 1}}\n  - foreach: {input: [1, 2], do: [{shell: sh script}]}\n";
    let rig = imported_in_git(source);
    rig.write("script", "echo \"$WHO\" >> out\n");

    let ran = rig.waypost(&["run", "w.yaml", "--id", "r", "-q"]);

    assert!(ran.starts_with("exit 3\n"), "{ran}");
    assert_eq!((rig.read("out"), rig.read("asked")), ("me\nme\nme\nme\n".to_owned(), "x\n".to_owned()));
}
