//! Concurrent steps: their limit, and the effect of a failure on the others.

use std::time::Duration;

use crate::rig::{Rig, code_of};

#[test]
fn no_more_steps_are_at_work_than_the_workflow_allows() {
    for most in [1, 2, 3] {
        let rig = Rig::with(&format!(
            "max_parallel: {most}
steps:
  - {{id: a, needs: [], run: 'echo + >> trace; sleep 0.05; echo - >> trace'}}
  - {{id: b, needs: [], idempotent: false, run: 'echo + >> trace; sleep 0.05; echo - >> trace'}}
  - id: e
    needs: []
    foreach:
      items: [1, 2, 3, 4]
      max_parallel: 3
      steps:
        - {{id: s, run: 'echo + >> trace; sleep 0.05; echo - >> trace'}}
        - {{id: g, repeat: {{until: 'iteration == 2', max: 3}}, steps: [{{id: t, run: 'echo + >> trace; sleep 0.02; echo - >> trace'}}]}}
  - {{id: z, needs: [a, e], run: 'true'}}
"
        ));
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

        let trace = rig.read("trace");
        let (mut now, mut highest) = (0, 0);
        for line in trace.lines() {
            now += if line == "+" { 1 } else { -1 };
            highest = highest.max(now);
        }
        assert_eq!((trace.lines().count(), now), (28, 0));
        assert!(highest <= most, "{highest} of {most}");
    }
}

// Bug: one item failed, the others were stopped inside a non-idempotent step, and the run was in doubt.
#[test]
fn a_careful_step_ends_although_another_item_fails() {
    let rig = Rig::with(
        "steps:
  - id: e
    foreach: {items: [1, 2, 3], as: x, max_parallel: 2, max_failures: 0, steps: [{id: pay, idempotent: false, env: {X: '${{ x }}'}, run: 'test $X != 1 || { sleep 0.3; exit 1; }; echo begin$X >> trace; sleep 0.6; echo end$X >> trace'}]}
",
    );

    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));

    assert_eq!(rig.read("trace"), "begin2\nend2\n");
    assert_eq!(rig.json(&["show", "r", "--json"])["status"], "failed");
}

// Bug: an open question ended the session, although a timer was due soon.
#[test]
fn what_is_due_soon_is_waited_for_beside_an_open_question() {
    let rig = Rig::with(
        "steps:
  - {id: ok, needs: [], approve: 'Go on?'}
  - {id: nap, needs: [], sleep: 1500ms}
  - {id: after, needs: [nap], run: 'echo after >> trace'}
",
    );

    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "30s"]), Some(75));

    assert_eq!(rig.read("trace"), "after\n");
}

// Bug: under `resume --all` the timeout of a run had no effect.
#[test]
fn the_time_of_a_run_counts_also_where_all_are_resumed() {
    let rig = Rig::with("timeout: 1s\nsteps:\n  - {id: a, run: 'test -e go; echo a >> trace; sleep 30'}\n");
    for run in ["r-1", "r-2"] {
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", run, "-q"]), Some(1));
        rig.call(&["resume", run, "-q", "--until", "a"]);
    }
    rig.write("go", "");
    let stopped = |run: &str| code_of(&rig, &["resume", run, "-q"]);
    assert_eq!((stopped("r-1"), stopped("r-2")), (Some(124), Some(124)));

    assert_eq!(code_of(&rig, &["resume", "--all", "-q"]), Some(124));

    assert_eq!(rig.read("trace"), "a\n".repeat(4), "both of them");
}

// Bug: waypost was stopped by Ctrl-Z while a step ended. After the wake-up it handled the expired timeout first
// and ran the step again. Fix: ended steps are read before the timeout is applied.
#[test]
fn a_step_that_ends_during_a_stop_has_no_timeout() {
    let rig = Rig::with(
        "steps:\n  - {id: a, timeout: 2s, retry: 1, run: 'echo a >> trace; sleep 0.7; echo end >> trace'}\n",
    );
    let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
    while !rig.path("trace").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    running.signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(2_600));
    running.signal(libc::SIGCONT);

    assert_eq!(running.end_soon().status.code(), Some(0));
    assert_eq!(rig.read("trace"), "a\nend\n");
}
