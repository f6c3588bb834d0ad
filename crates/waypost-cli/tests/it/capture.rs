//! Printed output of steps, read by later steps.

use crate::rig::Rig;

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

// Bug: a step that read the output of a tolerated failed step failed the run; with a default, the step read the
// default. Cause: printed output was kept only for completed steps. Fix: the output of the last attempt is kept,
// whatever its end.
#[test]
fn output_of_a_tolerated_step_is_read_downstream() {
    let flow = r#"
steps:
  - {id: test, run: 'echo "try $WAYPOST_ATTEMPT"; echo aside >&2; exit 3', continue_on_error: true, retry: {max: 1, delay: 1ms}}
  - {id: none, dir: not-there, run: 'true', continue_on_error: true}
  - {id: read, run: 'echo "$T/$N/$D" >> trace', env: {T: "${{ steps.test.stdout }}", N: "${{ steps.none.stdout }}", D: "${{ steps.test.stdout | default('', true) }}"}}
  - id: improve
    repeat: {until: steps.check.status == 'completed', max: 3}
    steps:
      - {id: edit, run: 'echo "edit $I after $B" >> trace', env: {I: "${{ iteration }}", B: "${{ steps.check.stdout | default('nothing', true) }}"}}
      - {id: check, run: 'echo "wrong $I"; [ "$I" = 3 ]', env: {I: "${{ iteration }}"}, continue_on_error: true}
"#;
    for store in STORES {
        let rig = Rig::with(flow).at(store);

        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(3), "{store}");

        let edits = "edit 1 after nothing\nedit 2 after wrong 1\nedit 3 after wrong 2\n";
        assert_eq!(rig.read("trace"), format!("try 2//try 2\n{edits}"), "{store}");
        assert_eq!(code(&rig, &["verify", "r"]), Some(0));
    }
}

#[test]
fn hooks_read_what_a_failed_step_printed_also_after_a_crash() {
    let flow = r#"
steps:
  - id: bad
    run: 'echo "is wrong"; exit 3'
    continue_on_error: [4]
    on_failure: [{run: 'echo "step: $P" >> trace; while [ ! -e go ]; do sleep 0.02; done', env: {P: "${{ steps.bad.stdout }}"}}]
"#;
    for store in STORES {
        let rig = Rig::with(flow).at(store);
        let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
        rig.wait_for("trace", |text| text.contains("step"));
        running.signal(libc::SIGKILL);
        running.end();
        rig.write("go", "");

        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(1), "{store}");

        assert_eq!(rig.read("trace"), "step: is wrong\nstep: is wrong\n", "{store}");
    }
}

#[test]
fn what_is_too_much_to_keep_of_a_failed_step_is_told() {
    let rig = Rig::with(
        r#"
steps:
  - {id: much, run: 'head -c 1100000 /dev/zero | tr "\0" x; exit 3', continue_on_error: true}
  - {id: read, run: 'echo "$P"', env: {P: "${{ steps.much.stdout | default('nothing', true) }}"}}
"#,
    );

    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(3));

    let events = rig.waypost(&["events", "r"]);
    assert!(events.contains("the recorded output is not kept: the step printed 1100000 bytes"), "{events}");
}

// Bug: an output with a NUL was accepted, and the step with that value in a variable failed with a system error.
// Cause: values were not checked before the start of a process. Fix: the error names the expression and a remedy.
#[test]
fn a_value_with_a_nul_is_refused_for_a_process() {
    for (key, with) in [
        ("env: {X: '${{ steps.a.outputs.result }}'}", "env"),
        ("dir: '${{ steps.a.outputs.result }}'", "dir"),
    ] {
        let flow = format!(
            "steps:\n  - {{id: a, run: \"printf 'x\\\\0y'\", capture: text}}\n  - {{id: b, run: 'true', {key}}}\n"
        );
        let rig = Rig::with(&flow);
        let told = rig.waypost(&["run", "flow.yaml", "--id", "r"]);
        assert!(told.starts_with("exit 1\n"), "{with}: {told}");
        assert!(told.contains("`steps.a.outputs.result`"), "{with}: {told}");
        assert!(
            told.contains("the value contains a NUL, which variables and commands cannot hold"),
            "{with}: {told}"
        );
        assert!(
            told.contains("encode the value in its step, or write the value to a file and pass the path"),
            "{with}: {told}"
        );
    }
}
