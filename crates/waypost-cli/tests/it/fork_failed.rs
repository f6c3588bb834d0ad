//! Forks of runs that failed within a loop or a group: the earlier work stays in the other run.

use crate::rig::Rig;

const LOOP: &str = r#"
params: {p: {default: "1"}}
steps:
  - id: g
    repeat: {max: 3, until: 'iteration == 3'}
    steps:
      - {id: s, run: 'echo s$I.$P >> trace; echo > s$I', env: {I: '${{ iteration }}', P: '${{ params.p }}'}, evidence: [{file: 's${{ iteration }}'}]}
      - {id: t, run: 'echo t$I >> trace; test $I != 2 -o -e ok', env: {I: '${{ iteration }}'}}
"#;

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

/// Returns a rig with the run `r` that failed in the second pass, and the fork `f` of it. The trace is empty.
fn failed_in_the_second_pass() -> Rig {
    let rig = Rig::with(LOOP);
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    assert_eq!(code(&rig, &["fork", "r", "--id", "f", "-q"]), Some(1));
    rig.write("ok", "");
    rig.write("trace", "");
    rig
}

fn ran(rig: &Rig) -> String {
    rig.read("trace").split_whitespace().collect::<Vec<_>>().join(" ")
}

// Bug: a request about a loop in a fork was refused: "run f has no checkpoint @4". Cause: the ends of earlier passes kept their
// numbers in the other run. Fix: the ends are copied.
#[test]
fn a_fork_amid_a_loop_accepts_requests() {
    for (request, expected) in [
        (&["--from", "g~2/s"][..], "s2.1 t2 s3.1 t3"),
        (&["--skip", "g~2/t"], "s3.1 t3"),
        (&["--treat-as", "done=g~2/t"], "s3.1 t3"),
        (&["--from", "g", "--set", "p=2"], "s1.2 t1 s2.2 t2 s3.2 t3"),
    ] {
        let rig = failed_in_the_second_pass();

        assert_eq!(code(&rig, &[&["resume", "f", "-q"], request].concat()), Some(0), "{request:?}");

        assert_eq!(ran(&rig), expected, "{request:?}");
    }
    let rig = failed_in_the_second_pass();
    std::fs::remove_file(rig.path("s2")).unwrap();
    assert_eq!(code(&rig, &["resume", "f", "-q"]), Some(0), "lost evidence");
    assert_eq!(ran(&rig), "s2.1 t2 s3.1 t3");
}

#[test]
fn a_fork_amid_a_loop_names_the_command_for_an_edit() {
    let rig = failed_in_the_second_pass();
    rig.write("flow.yaml", &LOOP.replace("echo s$I", "echo S$I"));

    let told = rig.waypost(&["resume", "f", "--rerun-changed"]);

    assert!(told.starts_with("exit 9\n") && told.contains("waypost fork RUN --with FILE"), "{told}");
    assert_eq!(code(&rig, &["fork", "r", "--with", "flow.yaml", "--id", "h", "-q"]), Some(0));
    assert_eq!(ran(&rig), "S1.1 t1 S2.1 t2 S3.1 t3");
}

// Bug: `--from g --set` in the second pass repeated this pass only, although the first had read the param, too. Cause: with an
// edit of the state, the rerun began at the newest start of the step. Fix: one way for all reruns.
#[test]
fn a_rerun_of_a_loop_with_another_param_repeats_all_passes() {
    let refused = failed_in_the_second_pass();
    let told = refused.waypost(&["resume", "r", "--set", "p=2"]);
    assert!(told.starts_with("exit 2\n") && told.contains("waypost resume r --from g --set"), "{told}");
    for from in ["g", "g~1/s"] {
        let rig = failed_in_the_second_pass();

        assert_eq!(code(&rig, &["resume", "r", "--from", from, "--set", "p=2", "-q"]), Some(0), "{from}");

        assert_eq!(ran(&rig), "s1.2 t1 s2.2 t2 s3.2 t3", "{from}");
    }
}

// Bug: with lost evidence before a failed group of an item, the fork failed the item again and ran nothing. Cause: the failed group
// was copied as one that waits for its steps. Fix: copied as failed.
#[test]
fn a_failed_group_of_an_item_runs_again_after_lost_evidence() {
    let rig = Rig::with(
        "steps:
  - id: f
    foreach:
      items: [x]
      steps:
        - {id: a, run: 'echo a >> trace; echo > a', evidence: [{file: a}]}
        - id: g
          steps:
            - {id: s, run: 'echo s >> trace'}
            - {id: t, run: 'echo t >> trace; test -e ok'}
",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    assert_eq!(code(&rig, &["fork", "r", "--id", "f", "-q"]), Some(1));
    std::fs::remove_file(rig.path("a")).unwrap();
    rig.write("ok", "");
    rig.write("trace", "");

    assert_eq!(code(&rig, &["resume", "f", "-q"]), Some(0));

    assert_eq!(ran(&rig), "a s t");
}
