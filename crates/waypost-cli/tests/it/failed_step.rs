//! The reported failed step of a run, at any depth.

use crate::rig::{Rig, check};

/// Runs a file. Returns its failure report: the end of stderr, and stdout.
fn failure(rig: &Rig, file: &str) -> String {
    let output = rig.call(&["run", file, "--id", file.trim_end_matches(".yaml"), "-q"]);
    assert_eq!(output.status.code(), Some(1), "{file}");
    format!("$ waypost run {file}\n{}\n", rig.told(&output))
}

// Bug: for a failed step of an item, a group or a child workflow, the report had neither the item nor the place.
// Cause: only top-level steps were looked up, and the scope was dropped. Fix: the outcome names the scope, and
// the step is looked up along it.
#[test]
fn a_failed_step_is_reported_with_item_scope_and_line() {
    let rig = Rig::new();
    std::fs::create_dir(rig.path("jobs")).unwrap();
    let each = |name: &str, steps: &str| {
        format!(
            "steps:\n  - id: first\n    run: 'true'\n  - id: {name}\n    foreach:\n      items: ['a b']\n      \
             as: {name}_item\n      on_item_failure: stop\n      steps:\n{steps}"
        )
    };
    let work = "        - id: work\n          run: echo no; exit 3\n";
    rig.write("own.yaml", "steps:\n  - id: work\n    run: exit 3\n");
    rig.write("item.yaml", &each("each", work));
    let inner = "        - id: inner\n          foreach:\n            items: [1]\n            \
                 on_item_failure: stop\n            steps: [{id: work, run: exit 3}]\n";
    rig.write("items.yaml", &each("each", inner));
    let group = "  - id: group\n    repeat: {until: 'true', max: 1}\n    steps:\n";
    rig.write("group.yaml", &format!("steps:\n{group}      - id: work\n        run: exit 3\n"));
    rig.write("jobs/load.yaml", "steps:\n  - id: first\n    run: 'true'\n  - id: work\n    run: exit 3\n");
    rig.write("jobs/outer.yaml", "steps: [{id: below, workflow: ./load.yaml}]\n");
    rig.write("child.yaml", "steps: [{id: work, run: 'true'}, {id: kid, workflow: jobs/load.yaml}]\n");
    rig.write("deep.yaml", "steps: [{id: kid, workflow: jobs/../jobs/outer.yaml}]\n");
    rig.write("both.yaml", &each("each", "        - {id: kid, workflow: jobs/load.yaml}\n"));
    rig.write(
        "over.yaml",
        "steps: [{id: each, foreach: {items: [1], max_failures: 0, steps: [{run: exit 3}]}}]\n",
    );
    let files = [
        "own.yaml",
        "item.yaml",
        "items.yaml",
        "group.yaml",
        "child.yaml",
        "deep.yaml",
        "both.yaml",
        "over.yaml",
    ];

    let said: String = files.iter().map(|file| failure(&rig, file)).collect();
    let again = rig.waypost(&["resume", "child", "-q"]);
    let mut job = rig.command(&["resume", "both", "-q"]);
    let job = rig.told(&job.env("GITHUB_ACTIONS", "true").output().unwrap());

    check(
        "failed_at",
        &format!("{said}$ waypost resume child\n{again}\n$ waypost resume both, in a job\n{job}"),
    );
}

#[test]
fn exit_codes_of_shell_and_system_are_explained() {
    for (command, code, hint) in [
        (
            "true; no-such-program",
            127,
            "hint: the shell did not find a command: a step has the `PATH` in its `env`, ",
        ),
        ("./flow.yaml", 126, "hint: the shell found a command, but may not execute it"),
        ("yes | head -n 1; true", 141, "hint: a command wrote to a pipe without a reader, such as `| head`"),
        ("kill -SEGV $$", 139, "hint: the step was ended by SIGSEGV"),
    ] {
        let rig = Rig::with(&format!("steps: [{{ id: a, run: '{command}' }}]\n"));
        let told = failure(&rig, "flow.yaml");
        assert!(told.contains(hint), "{command}: {told}");
        let show = rig.waypost(&["show", "flow"]);
        assert!(show.contains(hint), "{command}: {show}");
        assert_eq!(rig.json(&["show", "flow", "--json"])["steps"][0]["exit_code"], code, "{command}");
    }

    let rig = Rig::with("steps: [{ id: a, run: 'exit 3' }]\n");
    assert!(!failure(&rig, "flow.yaml").contains("hint:"));
}

#[test]
fn of_a_line_with_carriage_returns_the_end_is_shown() {
    let rig = Rig::with(
        "steps: [{ id: a, run: 'for i in $(seq 3000); do printf \"$i of 3000\\r\"; done; echo; echo end; exit 1' }]\n",
    );

    let told = failure(&rig, "flow.yaml");

    assert!(told.contains("\n  | 3000 of 3000\n  | end\n"), "{told}");
}
