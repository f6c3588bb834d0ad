//! Steps that run another workflow file.

use serde_json::json;

use crate::rig::{Rig, check, code_of};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

const OUTER: &str = r#"
params: {day: {type: string, default: monday}, regions: {type: json, default: [eu, us]}}
on_failure: [{run: 'echo "run failed at $S on $D" >> trace', env: {S: "${{ run.failed_step }}", D: "${{ params.day }}"}}]
steps:
  - {id: first, run: echo first >> trace}
  - id: load
    workflow: jobs/load.yaml
    params: {day: "on ${{ params.day }}", regions: "${{ params.regions }}", tries: 2}
  - id: last
    run: 'echo "$ROWS rows" >> trace'
    env: {ROWS: "${{ steps.load.outputs.count.rows }}"}
"#;

const INNER: &str = r#"
params: {day: {type: string}, regions: {type: json}, tries: {type: integer}, more: {type: bool, default: true}}
env: {NAME: "${{ params.day }}"}
on_failure: [{run: 'echo "file failed at $S" >> ../trace', env: {S: "${{ run.failed_step }}"}}]
steps:
  - {id: first, run: 'echo "$NAME $WAYPOST_SCOPE" >> ../trace; touch here'}
  - {id: hold, run: 'echo holding >> ../trace; while [ -e hold ]; do sleep 0.02; done; [ ! -e bad ]'}
  - id: count
    run: 'echo "rows=$N" >> "$WAYPOST_OUTPUT"'
    env: {N: "${{ params.regions | length * params.tries }}"}
"#;

fn rig(store: &str) -> Rig {
    let rig = Rig::with(OUTER).at(store);
    std::fs::create_dir(rig.path("jobs")).unwrap();
    rig.write("jobs/load.yaml", INNER);
    rig
}

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

const ALL: &str = "first\non monday load:workflow\nholding\n4 rows\n";

#[test]
fn another_file_is_run_in_its_own_folder_with_its_own_params() {
    for store in STORES {
        let rig = rig(store);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0), "{store}");
        assert_eq!(rig.read("trace"), ALL, "{store}");
        assert!(rig.path("jobs/here").exists());
        assert_eq!(code(&rig, &["verify", "r"]), Some(0));
        let show = rig.json(&["show", "r", "--json"]);
        let load = show["steps"].as_array().unwrap().iter().find(|step| step["id"] == "load").unwrap();
        assert_eq!(load["outputs"]["count"], json!({ "rows": "4" }), "{show}");
        check("child_show", &rig.waypost(&["show", "r"]));
        check("child_check", &rig.waypost(&["check", "flow.yaml"]));
    }
}

#[test]
fn killed_within_another_file_only_what_was_cut_is_done_again() {
    for store in STORES {
        let rig = rig(store);
        rig.write("jobs/hold", "");
        let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
        rig.wait_for("trace", |text| text.contains("holding"));
        running.signal(libc::SIGKILL);
        running.end();
        std::fs::remove_file(rig.path("jobs/hold")).unwrap();
        check("child_plan", &rig.waypost(&["plan", "r"]));
        // The run keeps its own copy of both files.
        std::fs::remove_file(rig.path("jobs/load.yaml")).unwrap();

        assert_eq!(code(&rig, &["resume", "r", "-q", "--keep-definition"]), Some(0), "{store}");

        assert_eq!(rig.read("trace"), ALL.replace("holding\n", "holding\nholding\n"), "{store}");
        assert_eq!(code(&rig, &["verify", "r"]), Some(0));
    }
}

#[test]
fn a_failure_within_another_file_is_one_of_both() {
    for store in STORES {
        let rig = rig(store);
        rig.write("jobs/bad", "");
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1), "{store}");
        let hooks = "file failed at hold\nrun failed at hold on monday\n";
        let begin = "first\non monday load:workflow\nholding\n";
        assert_eq!(rig.read("trace"), format!("{begin}{hooks}"), "{store}");
        assert_eq!(rig.json(&["show", "r", "--json"])["failed_step"], "hold");

        std::fs::remove_file(rig.path("jobs/bad")).unwrap();
        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0), "{store}");
        assert_eq!(rig.read("trace"), format!("{begin}{hooks}holding\n4 rows\n"), "{store}");
    }
}

#[test]
fn a_change_of_another_file_is_one_of_the_step_that_runs_it() {
    for store in STORES {
        let rig = rig(store);
        rig.write("jobs/bad", "");
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        std::fs::remove_file(rig.path("jobs/bad")).unwrap();
        rig.write("jobs/load.yaml", &format!("# A comment changes nothing.\n{INNER}"));
        assert_eq!(code(&rig, &["resume", "r", "--dry-run"]), Some(0), "{store}");
        let unfinished = INNER.replace("rows=$N", "rows=1$N");
        rig.write("jobs/load.yaml", &unfinished);
        let plan = rig.call(&["resume", "r", "--dry-run"]);
        assert_eq!(plan.status.code(), Some(0), "{store}");
        let said = rig.told(&plan);
        assert!(
            said.contains("load has another definition in unfinished steps; it runs jobs/load.yaml"),
            "{said}"
        );
        rig.write("jobs/load.yaml", &unfinished.replace("echo \"$NAME", "echo \"new $NAME"));

        let refused = rig.call(&["resume", "r"]);

        assert_eq!(refused.status.code(), Some(9), "{store}");
        let said = rig.told(&refused);
        assert!(said.contains("load has another definition in load/first"), "{said}");
        std::fs::remove_file(rig.path("trace")).unwrap();
        assert_eq!(code(&rig, &["resume", "r", "--with", "flow.yaml", "-q"]), Some(0));
        let again = "new on monday load:workflow\nholding\n14 rows\n";
        assert_eq!(rig.read("trace"), again, "{store}");
    }
}

#[test]
fn an_edited_file_reruns_in_items_passes_and_nested_files() {
    let rig = Rig::with(
        r#"
secrets: []
steps:
  - id: each
    foreach:
      items: [a, b]
      max_parallel: 1
      steps: [{id: outer, workflow: lib/outer.yaml, params: {name: "${{ item }}"}}]
  - id: passes
    workflow: lib/pass.yaml
    repeat: {until: steps.passes.outputs.count.n == 3, max: 5}
"#,
    );
    std::fs::create_dir_all(rig.path("lib/deep")).unwrap();
    let outer = r#"
params: {name: {type: string}}
steps: [{id: in, workflow: deep/inner.yaml, params: {name: "x${{ params.name }}"}}]
"#;
    rig.write("lib/outer.yaml", outer);
    let inner = r#"
params: {name: {type: string}}
secrets: [TOKEN]
steps: [{run: 'echo "$NAME ${PWD##*/} $WAYPOST_SCOPE" >> ../../trace; echo "$TOKEN"', env: {NAME: "${{ params.name }}"}}]
"#;
    rig.write("lib/deep/inner.yaml", inner);
    let pass = r#"steps: [{id: count, run: 'echo x >> n; echo "n=$(wc -l < n)" >> "$WAYPOST_OUTPUT"'}]"#;
    rig.write("lib/pass.yaml", pass);

    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "no", "-q"]), Some(2), "its secret is missing");
    let run =
        rig.command(&["run", "flow.yaml", "--id", "r"]).env("TOKEN", "hunter2-of-old").output().unwrap();

    assert_eq!(run.status.code(), Some(0), "{}", rig.told(&run));
    let scope = |item: &str| format!("x{item} deep each:{item}/outer:workflow/in:workflow\n");
    assert_eq!(rig.read("trace"), scope("a") + &scope("b"));
    assert_eq!(rig.read("lib/n"), "x\nx\nx\n");
    let logs = rig.waypost(&["logs", "r"]);
    assert!(!logs.contains("hunter2"), "{logs}");
}

#[test]
fn a_run_that_is_taken_elsewhere_takes_its_files_along() {
    let rig = rig(STORES[0]);
    rig.write("jobs/bad", "");
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    assert_eq!(code(&rig, &["export", "r", "r.waypost"]), Some(0));

    let other = Rig::new();
    std::fs::create_dir(other.path("jobs")).unwrap();
    std::fs::copy(rig.path("r.waypost"), other.path("r.waypost")).unwrap();

    let imported = other.waypost(&["import", "r.waypost", "--trust", "--id", "s", "-q"]);
    assert!(imported.starts_with("exit 0\n"), "{imported}");
    assert!(other.read("trace").ends_with("4 rows\n"), "{}", other.read("trace"));
}

#[test]
fn files_that_cannot_be_run_are_refused_before_anything_is() {
    let rig = Rig::new();
    let load =
        "params: {day: {type: string}, n: {type: integer, default: 1}}\nsteps: [{id: a, run: 'true'}]\n";
    rig.write("load.yaml", load);
    rig.write("wrong.yaml", "steps:\n  - {id: a, runn: 'true'}\n  - {id: a, run: 'true', needs: [x]}\n");
    rig.write("serves.yaml", "steps: [{id: api, service: sleep 100}]\n");
    rig.write("circle.yaml", "steps: [{workflow: ./sub/../round.yaml}]\n");
    rig.write("round.yaml", "steps: [{workflow: circle.yaml}]\n");
    rig.write("many.yaml", "steps: [{id: a, workflow: load.yaml, params: {day: x}}]\n");
    let steps = [
        "{workflow: none.yaml}",
        "{workflow: wrong.yaml}",
        "{workflow: serves.yaml}",
        "{workflow: circle.yaml}",
        "{workflow: flow.yaml}",
        "{workflow: '${{ params.file }}'}",
        "{workflow: ''}",
        "{workflow: load.yaml}",
        "{workflow: load.yaml, params: {day: 3, n: x, dya: a}}",
        "{workflow: load.yaml, params: [day]}",
        "{workflow: load.yaml, params: {day: ['${{ run.id }}']}}",
        "{workflow: load.yaml, params: {day: '${{ steps.none.outputs.x }}'}}",
        "{workflow: load.yaml, params: {day: x}, env: {A: b}, retry: 2, on_failure: [{run: 'true'}]}",
        "{run: 'true', params: {day: x}}",
        "{run: 'true', workflow: load.yaml}",
        "{id: l, workflow: load.yaml, params: {day: x}}\n  - {run: 'echo ${{ steps.l.outputs.b.x }} ${{ steps.l.stdout }}'}",
    ];
    let mut told = String::new();
    for step in steps {
        rig.write("flow.yaml", &format!("steps:\n  - {step}\n"));
        told.push_str(&format!("## {step}\n{}\n", rig.waypost(&["check", "flow.yaml"])));
    }
    check("child_errors", &told);
    let comment = format!("{}\n", "# long".repeat(400 << 10));
    rig.write("load.yaml", &format!("{comment}{load}"));
    rig.write("flow.yaml", &format!("{comment}steps:\n  - {{workflow: load.yaml, params: {{day: x}}}}\n"));
    let large = rig.waypost(&["check", "flow.yaml"]);
    assert!(large.contains("exceed 4 MiB in total"), "{large}");
    // Each file names the next a dozen times: 12 to the power of 7 steps below `level-1.yaml`.
    for level in 0..8 {
        let steps = format!("  - {{workflow: level-{}.yaml}}\n", level + 1).repeat(12);
        rig.write(&format!("level-{level}.yaml"), &format!("steps:\n{steps}"));
    }
    rig.write("level-8.yaml", "steps: [{run: 'true'}]\n");
    let many = rig.waypost(&["check", "level-1.yaml"]);
    assert!(many.starts_with("exit 78") && many.contains("exceed 1000 steps"), "{many}");
    rig.write("load.yaml", load);
    rig.write("flow.yaml", "steps:\n  - {workflow: load.yaml, params: {day: x, n: '1${{ run.id }}'}}\n");
    check("child_param_at_run_time", &rig.waypost(&["run", "flow.yaml", "--id", "r"]));
}

// Bug: a pipe or a device in the place of a workflow file hung `check` and `run`. Cause: any file was opened and
// read. Fix: the file is checked first, opened without waiting, and refused unless regular.
#[test]
fn a_pipe_in_place_of_a_workflow_file_hangs_nothing() {
    let rig = Rig::with("steps: [{id: a, run: 'true'}, {id: kid, workflow: pipe.yaml}]\n");
    rig.write("device.yaml", "steps: [{id: kid, workflow: ../../../../../../../../dev/zero}]\n");
    rustix::fs::mkfifoat(rustix::fs::CWD, rig.path("pipe.yaml"), rustix::fs::Mode::RWXU).unwrap();
    let calls = [
        ["check", "flow.yaml"],
        ["run", "flow.yaml"],
        ["check", "pipe.yaml"],
        ["run", "pipe.yaml"],
        ["check", "/dev/zero"],
        ["check", "device.yaml"],
    ];

    let said = calls.iter().map(|args| {
        let told = rig.told(&rig.start(args).end_soon());
        format!("$ waypost {}\n{told}\n", args.join(" "))
    });

    check("children_pipes", &said.collect::<String>());
}

// Bug: after a change of a file that the workflow names, the error named only the workflow. A missing file
// stopped a resume, without a hint at the run's own copy. Fix: the error names the file and the option.
#[test]
fn a_file_that_changed_or_is_gone_is_named() {
    let rig = Rig::with("steps:\n  - {id: w, workflow: child.yaml}\n  - {id: z, run: test -e ok}\n");
    rig.write("child.yaml", "steps: [{id: c, run: 'true'}]\n");
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));
    rig.write("ok", "");

    rig.write("child.yaml", "steps: [{id: c, run: ':'}]\n");
    let told = rig.waypost(&["resume", "r"]);
    assert!(told.starts_with("exit 9\n"), "{told}");
    assert!(
        told.contains("  ~ step w has another definition in w/c; it runs child.yaml  1 step finished, "),
        "{told}"
    );

    std::fs::remove_file(rig.path("child.yaml")).unwrap();
    let told = rig.waypost(&["resume", "r"]);
    assert!(told.starts_with("exit 78\n") && told.contains("child.yaml"), "{told}");
    assert!(told.contains("the run's own copy: `waypost resume r --keep-definition`"), "{told}");
    assert_eq!(rig.call(&["resume", "r", "--keep-definition", "-q"]).status.code(), Some(0));
}

// Bug: `--from` refused the failed step of an item or a group, though the failed step of the main scope is accepted. Cause: only
// finished steps had an end to rerun. Fix: the end of the failure counts.
#[test]
fn a_failed_inner_step_is_run_again_by_name() {
    let inner = "- {id: a, run: 'echo a >> trace'}\n        - {id: b, run: 'echo b >> trace; test -e ok'}";
    for (opener, path) in [("foreach:\n      items: [x]\n      ", "w:x/b"), ("", "w~1/b")] {
        let rig = Rig::with(&format!("steps:\n  - id: w\n    {opener}steps:\n        {inner}\n"));
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1), "{path}");
        rig.write("ok", "");
        rig.write("trace", "");

        assert_eq!(code_of(&rig, &["resume", "r", "--from", path, "-q"]), Some(0), "{path}");

        assert_eq!(rig.read("trace"), "b\n", "{path}");
        let why = rig.waypost(&["why", "r", path]);
        assert!(why.contains("requested"), "{why}");
    }
}
