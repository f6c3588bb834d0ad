//! Checks before a run: what is missing is told before any step, all at once.

use crate::rig::Rig;

const LACKING: &str = r#"
params: {day: {type: string}, where: {default: gone}}
secrets: [SOME_TOKEN]
steps:
  - {id: first, run: touch ran, dir: "${{ params.where }}", shell: [no-such-shell, -c]}
  - {id: later, run: 'true', dir: made}
"#;

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

#[test]
fn all_that_is_missing_is_refused_at_once() {
    let rig = Rig::with(LACKING);

    let told = rig.waypost(&["run", "flow.yaml"]);

    assert!(told.starts_with("exit 2\n"), "{told}");
    for part in
        ["param `day` is missing", "missing secrets: `SOME_TOKEN`", "program `no-such-shell` does not exist"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!rig.path(".waypost").exists() && !rig.path("ran").exists());
    let error = rig.json(&["run", "flow.yaml", "--json"])["error"].clone();
    assert_eq!(error["code"], "usage");
}

#[test]
fn a_step_with_nothing_before_it_needs_its_things() {
    for (step, wanted) in [
        ("{id: a, run: 'true', dir: gone}", "step a (line 2): folder `gone` does not exist"),
        ("{id: a, run: 'true', dir: flow.yaml}", "`flow.yaml` is not a folder"),
        ("{id: a, run: 'true', shell: [no-such, -c]}", "program `no-such` does not exist"),
        ("{id: a, agent: claude, prompt: x}", "program `claude` does not exist"),
        ("{id: a, run: no-such-program --help}", "program `no-such-program` does not exist"),
        (
            "{id: a, workflow: inner.yaml, params: {to: gone}}",
            "step a (line 2): step x of `inner.yaml` (line 2): folder `gone` does not exist",
        ),
        ("{id: g, steps: [{id: a, run: 'true', dir: gone}]}", "step a (line 2): folder `gone`"),
        ("{id: a, foreach: {items: {file: no.txt}, steps: [{run: a}]}}", "item file `no.txt` does not exist"),
    ] {
        let rig = Rig::with(&format!("steps:\n  - {step}\n"));
        let inner = "params: {to: {type: string}}\nsteps: [{id: x, run: 'true', dir: '${{ params.to }}'}]\n";
        rig.write("inner.yaml", inner);
        let told = rig.waypost(&["run", "flow.yaml"]);
        assert!(told.starts_with("exit 2\n") && told.contains(wanted), "{step}: {told}");
        assert!(
            rig.waypost(&["check", "flow.yaml"]).contains(wanted.trim_start_matches("step a (line 2): ")),
            "{step}"
        );
    }
}

// `check` said nothing about literals over 128 KiB, and the step failed at its start.
#[test]
fn check_names_literals_too_long_for_a_process() {
    for (step, wanted) in [
        ("{id: a, run: 'true LONG'}", "the command has 140005 bytes"),
        ("{id: a, run: 'true', env: {BIG: LONG}}", "variable `BIG` has 140004 bytes"),
    ] {
        let rig = Rig::with(&format!("steps:\n  - {}\n", step.replace("LONG", &"x".repeat(140_000))));

        for command in ["check", "run"] {
            let told = rig.waypost(&[command, "flow.yaml"]);
            assert!(told.contains(wanted) && told.contains("`stdin:`"), "{command}: {}", &told[..200]);
        }
        assert_eq!(code(&rig, &["run", "flow.yaml"]), Some(2));
    }
}

#[test]
fn what_an_earlier_step_may_make_is_a_warning() {
    let rig = Rig::with(
        "steps:\n  - {id: a, run: mkdir made; echo x > made/items}\n  - {id: b, run: pwd > ../where, dir: made}\n  - {id: c, \
         foreach: {items: {file: made/items}, steps: [{id: d, run: 'true'}]}}\n",
    );

    let told = rig.waypost(&["run", "flow.yaml", "--id", "r"]);

    assert!(told.starts_with("exit 0\n"), "{told}");
    assert!(
        told.contains("step b (line 3): folder `made` does not exist, unless an earlier step makes it"),
        "{told}"
    );
    assert!(told.contains("step c (line 4): item file `made/items` does not exist"), "{told}");
}

#[test]
fn steps_that_may_not_run_and_tolerated_ones_are_not_refused() {
    for step in [
        "{id: a, run: 'true', dir: gone, if: 'false'}",
        "{id: a, run: 'true', dir: gone, continue_on_error: true}",
    ] {
        let rig = Rig::with(&format!("steps:\n  - {step}\n"));
        assert!(matches!(code(&rig, &["run", "flow.yaml", "-q"]), Some(0 | 3)), "{step}");
    }
    let rig = Rig::with(
        "steps:\n  - {id: a, needs: [], run: 'true', dir: gone}\n  - {id: b, needs: [], run: touch b}\n",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--until", "b", "-q"]), Some(0));
}

#[test]
fn a_resume_looks_only_at_steps_that_will_run() {
    let rig = Rig::with("steps:\n  - {id: a, run: 'true', dir: first}\n  - {id: b, run: test -e ok}\n");
    std::fs::create_dir(rig.path("first")).unwrap();
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    std::fs::remove_dir(rig.path("first")).unwrap();
    rig.write("ok", "");

    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "--or-resume", "-q"]), Some(0));

    let told = rig.waypost(&["resume", "r", "--restart"]);
    assert!(told.starts_with("exit 2\n") && told.contains("folder `first` does not exist"), "{told}");
}

#[test]
fn check_warns_of_what_never_works_as_meant() {
    for (text, wanted) in [
        (
            "steps: [{run: a, env: {DIR: '$HOME/x'}}]",
            "nothing expands `$HOME` here: `DIR` is taken as written",
        ),
        ("steps: [{run: a, env: {DIR: '${HOME}'}}]", "nothing expands `$HOME`"),
        ("steps: [{run: a, if: 1 > 2}]", "the condition is never true"),
        (
            "steps: [{id: a, needs: [], agent: claude, prompt: x}, {id: b, needs: [], agent: claude, prompt: x}]",
            "the agents of `a` and `b` may work in one folder at once",
        ),
        (
            "steps: [{id: e, foreach: {items: [x, y], steps: [{agent: claude, prompt: x}]}}]",
            "the agents of several items of `e` may work in one folder at once",
        ),
    ] {
        let rig = Rig::with(&format!("{text}\n"));
        let told = rig.waypost(&["check", "flow.yaml"]);
        assert!(told.starts_with("exit 0\n") && told.contains(wanted), "{text}: {told}");
    }
    for text in [
        "steps: [{run: 'true', env: {PRICE: '$5', X: '${{ run.id }}'}}]",
        "steps: [{id: a, run: 'true'}, {run: 'true', if: 'steps.a.exit_code == 0'}]",
        "steps: [{id: e, foreach: {items: [x, y], max_parallel: 1, steps: [{run: 'true'}]}}]",
    ] {
        let rig = Rig::with(&format!("{text}\n"));
        let told = rig.waypost(&["check", "flow.yaml"]);
        assert!(!told.contains("warning"), "{text}: {told}");
    }
}

#[test]
fn a_command_is_refused_only_for_a_certain_lack() {
    for command in [
        "no-such-program || true",
        "if no-such-program; then true; fi",
        "no-such-program() { true; }; no-such-program",
        "./made.sh || true",
        "A=1 true",
        "# no-such-program\n      true",
        "time true",
    ] {
        let rig = Rig::with(&format!("steps:\n  - id: a\n    run: |\n      {command}\n"));
        let told = rig.waypost(&["run", "flow.yaml", "--id", "r"]);
        assert!(told.starts_with("exit 0\n"), "{command}: {told}");
    }
}

#[test]
fn the_programs_of_hooks_are_a_warning() {
    let rig = Rig::with(
        "on_finish: [{id: f, run: no-such-finish}]\nsteps:\n  - {id: a, run: 'true', on_failure: [{id: h, run: no-such-hook}]}\n  - {id: b, run: no-such-later, continue_on_error: true}\n",
    );

    let told = rig.waypost(&["run", "flow.yaml", "--id", "r"]);

    for program in ["no-such-finish", "no-such-hook", "no-such-later"] {
        assert!(told.contains(&format!("program `{program}` does not exist, unless")), "{program}: {told}");
    }
}

// Bug: the hint named `waypost check FILE` for params and secrets. Cause: one hint for all problems. Fix: each problem
// has its hint, and `check` is named with the file, for steps.
#[test]
fn the_hint_says_only_what_helps() {
    let rig =
        Rig::with("params: {day: {type: string}}\nsecrets: [SOME_TOKEN]\nsteps: [{id: a, run: 'true'}]\n");

    let said = rig.waypost(&["run", "flow.yaml", "-p", "dy=1"]);

    assert!(said.contains("hint: did you mean `day`?; set the secrets in the environment"), "{said}");
    assert!(!said.contains("waypost check"), "{said}");
    rig.write("flow.yaml", "steps: [{id: a, run: no-such-program-x}]\n");
    let said = rig.waypost(&["run", "flow.yaml"]);
    assert!(said.contains("hint: `waypost check flow.yaml` shows the places of the steps"), "{said}");
}

// Bug: `--from` dropped the results of a step before its missing folder was found. Cause: the check knew only the plan without
// the request. Fix: the named step and the steps downstream count as steps that run.
#[test]
fn a_named_rerun_refuses_a_missing_folder_first() {
    let rig = Rig::with("steps:\n  - {id: a, dir: x, run: 'true'}\n  - {id: b, run: 'true'}\n");
    std::fs::create_dir(rig.path("x")).unwrap();
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    std::fs::remove_dir(rig.path("x")).unwrap();

    for more in [&["--dry-run"][..], &[]] {
        let said = rig.waypost(&[&["resume", "r", "--from", "a"], more].concat());
        assert!(said.starts_with("exit 2\n") && said.contains("folder `x` does not exist"), "{said}");
    }

    assert_eq!(rig.json(&["show", "r", "--json"])["status"], "completed");
    assert_eq!(code(&rig, &["resume", "r", "--from", "b", "-q"]), Some(0));
}
