//! Non-idempotent steps that exited with 0 and whose evidence failed.

use crate::rig::{Rig, code_of, remove, wait_until};

const RUN: [&str; 5] = ["run", "flow.yaml", "--id", "r", "-q"];
const RESUME: [&str; 3] = ["resume", "r", "-q"];

/// Makes a run whose first step exited with 0 and left no `ok`.
fn charged(more: &str) -> (Rig, Option<i32>) {
    let rig = Rig::with(&format!(
        "steps:
  - {{id: charge, idempotent: false, run: 'echo charged >> trace', evidence: [{{file: ok}}]{more}}}
  - {{id: after, run: 'echo after >> trace'}}
"
    ));
    let code = code_of(&rig, &RUN);
    (rig, code)
}

#[test]
fn it_is_asked_about_and_not_repeated() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let (rig, code) = charged("");
        assert_eq!(code, Some(4), "{store}");

        assert_eq!(code_of(&rig, &RESUME), Some(8), "{store}");
        assert!(rig.waypost(&["plan", "r"]).contains("attempt 1 ended without accepted evidence"), "{store}");
        assert_eq!(rig.read("trace"), "charged\n", "{store}");

        assert_eq!(code_of(&rig, &["resume", "r", "-q", "--treat-as", "done"]), Some(0), "{store}");
        assert_eq!(rig.read("trace"), "charged\nafter\n", "{store}");
    }
}

#[test]
fn a_person_may_want_it_done_again() {
    let (rig, _) = charged("");
    assert_eq!(code_of(&rig, &["resume", "r", "-q", "--treat-as", "retry"]), Some(4));
    assert_eq!(rig.read("trace"), "charged\ncharged\n");
    assert_eq!(code_of(&rig, &RESUME), Some(8), "and then it is in question again");
    assert_eq!(rig.read("trace"), "charged\ncharged\n");
}

#[test]
fn evidence_that_holds_by_now_settles_it() {
    let (rig, _) = charged("");
    rig.write("ok", "");

    let plan = rig.waypost(&["plan", "r"]);
    assert!(plan.contains("its evidence holds"), "{plan}");
    assert_eq!(code_of(&rig, &RESUME), Some(0));

    assert_eq!(rig.read("trace"), "charged\nafter\n");
}

#[test]
fn its_retry_does_not_repeat_it_unless_that_names_evidence() {
    assert_eq!(charged(", retry: {max: 2, delay: 1ms}").0.read("trace"), "charged\n");
    let (rig, code) = charged(", retry: {max: 2, delay: 1ms, when: [evidence]}");
    assert_eq!((rig.read("trace"), code), ("charged\n".repeat(3), Some(4)));
}

#[test]
fn one_without_the_outputs_that_it_declares_is_asked_about_too() {
    let rig = Rig::with(
        "steps: [{id: charge, idempotent: false, run: 'echo charged >> trace', outputs: {bill: {from: bill.txt}}}]\n",
    );
    assert_eq!(code_of(&rig, &RUN), Some(1));

    assert_eq!(code_of(&rig, &RESUME), Some(8));

    assert_eq!(rig.read("trace"), "charged\n");
}

#[test]
fn one_that_said_itself_that_it_failed_is_tried_again() {
    let rig = Rig::with("steps: [{id: a, idempotent: false, run: 'echo a >> trace; test -e ok'}]\n");
    assert_eq!(code_of(&rig, &RUN), Some(1));
    rig.write("ok", "");

    assert_eq!(code_of(&rig, &RESUME), Some(0));

    assert_eq!(rig.read("trace"), "a\na\n");
}

#[test]
fn on_an_item_it_is_asked_about_when_the_item_is_tried_again() {
    let rig = Rig::with(
        "steps:
  - id: each
    foreach:
      failure_rate: 1
      items: [a, b]
      steps: [{id: charge, idempotent: false, run: 'echo ${{ item }} >> trace', evidence: [{file: 'ok-${{ item }}'}]}]
",
    );
    rig.write("ok-a", "");
    assert_ne!(code_of(&rig, &RUN), Some(0));
    for verb in [["dead-letters", "retry", "r", "-q"].as_slice(), &["resume", "r", "-q", "--retry-failed"]] {
        let told = rig.waypost(verb);
        let way = "  waypost resume r --retry-failed --treat-as retry=each:b/charge  # run it again";
        assert!(told.starts_with("exit 8\n") && told.contains(way), "{verb:?}: {told}");
    }
    let again = ["resume", "r", "-q", "--retry-failed", "--treat-as", "retry=each:b/charge"];
    assert_eq!(code_of(&rig, &again), Some(3), "a person may want it done again");
    assert_eq!(rig.read("trace").matches('b').count(), 2);
    assert_eq!(code_of(&rig, &["resume", "r", "-q", "--retry-failed", "--treat-as", "done"]), Some(0));
    let mut lines: Vec<String> = rig.read("trace").lines().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a", "b", "b"]);
}

// Bug: a stop waited for evidence as long as the step's grace time, and so did the timeout of the run. Fix: after
// a stop the evidence is checked once (program/evidence.rs).
#[test]
fn a_stop_waits_for_no_evidence_that_is_still_to_come() {
    let flow = "timeout: 1s\nsteps: [{id: a, run: 'echo a >> trace', grace: 1h, evidence: [{file: ready, within: 1h}]}]\n";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &RUN), Some(124));
    rig.write("ready", "");
    assert_eq!(code_of(&rig, &RESUME), Some(0), "it was cut and is done again");
    assert_eq!(rig.read("trace"), "a\na\n");
}

#[test]
fn a_rollback_or_fork_before_a_careful_step_asks_at_its_turn() {
    for back_to in ["r@1", "r@2", "r@3"] {
        let (rig, _) = {
            let rig = Rig::with(
                "steps:
  - {id: a, run: 'echo a >> trace'}
  - {id: charge, idempotent: false, run: 'echo charged >> trace', evidence: [{file: ok}]}
",
            );
            let code = code_of(&rig, &RUN);
            (rig, code)
        };
        assert_eq!(code_of(&rig, &["rollback", back_to, "-q"]), Some(0), "{back_to}");
        assert_eq!(code_of(&rig, &RESUME), Some(8), "{back_to}");
        assert_eq!(rig.read("trace").matches("charged").count(), 1, "{back_to}");
        assert_eq!(code_of(&rig, &["resume", "r", "-q", "--treat-as", "done"]), Some(0), "{back_to}");
        assert_eq!(rig.read("trace").matches("charged").count(), 1, "{back_to}");
    }
    let rig = Rig::with(
        "steps: [{id: charge, idempotent: false, run: 'echo charged >> trace', evidence: [{file: ok}]}]\n",
    );
    assert_eq!(code_of(&rig, &RUN), Some(4));
    assert_eq!(code_of(&rig, &["fork", "r@2", "-q"]), Some(8));
    assert_eq!(rig.read("trace"), "charged\n");
}

#[test]
fn neither_a_change_nor_what_is_done_again_before_it_repeats_it() {
    for (before, after) in [("--with", "other.yaml"), ("", ""), ("--until", "a")] {
        let flow = "steps:
  - {id: a, run: 'echo a >> trace; cp src a.out', evidence: [{sha256: a.out}]}
  - {id: p, run: 'echo p >> trace', idempotent: false, evidence: [{file: made}]}
  - {id: z, run: 'echo z >> trace'}
";
        let rig = Rig::with(flow);
        rig.write("src", "1");
        rig.write("other.yaml", &flow.replace("cp src", "cp  src"));
        assert_eq!(code_of(&rig, &RUN), Some(4));
        rig.write("made", "");
        if before != "--with" {
            rig.write("a.out", "other");
        }
        let args: Vec<&str> =
            ["resume", "r", "-q", before, after].into_iter().filter(|arg| !arg.is_empty()).collect();
        let code = code_of(&rig, &args);
        assert!(matches!(code, Some(0 | 8 | 130)), "{before}: {code:?}");
        let _ = code_of(&rig, &RESUME);
        assert_eq!(rig.read("trace").matches('p').count(), 1, "{before}");
        let _ = code_of(&rig, &["resume", "r", "-q", "--treat-as", "done"]);
        assert_eq!(rig.json(&["show", "r", "--json"])["status"], "completed", "{before}");
        assert_eq!(rig.read("trace").matches('p').count(), 1, "{before}");
    }
}

// Bug: a kill of all processes while the evidence of such a step was pending lost the end of the step. The step
// was reported as cut, its outputs were lost, and no evidence could settle the doubt. Cause: the end was recorded
// together with the evidence. Fix: exit code and outputs are recorded before the evidence is checked.
#[test]
fn its_end_is_recorded_before_its_evidence_is_asked() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(
            "steps:\n  - {id: pay, idempotent: false, run: 'echo pay >> trace; echo x=1 >> $WAYPOST_OUTPUT', evidence: [{file: late, within: 10m}, {exit: 0}]}\n  \
             - {id: b, run: 'echo \"b $X\" >> trace', env: {X: '${{ steps.pay.outputs.x }}'}}\n",
        )
        .at(store);
        let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
        let told = || rig.told(&rig.call(&["events", "r", "--json"]));
        wait_until("its end is recorded", || told().contains("\"exited\""));
        running.signal(libc::SIGKILL);
        running.end();
        rig.write("late", "");

        let why = rig.told(&rig.call(&["why", "r", "pay"]));
        let resumed = rig.call(&["resume", "r", "-q"]);

        assert!(why.contains("its evidence holds"), "{why}");
        assert_eq!(resumed.status.code(), Some(0), "{}", rig.told(&resumed));
        assert_eq!(rig.read("trace"), "pay\nb 1\n", "{store}");
        let steps = rig.json(&["show", "r", "--json"]);
        assert_eq!(steps["steps"][0]["exit_code"], 0, "{steps}");
    }
}

// Bug: the death by a signal of a step with `idempotent: false` and `continue_on_error` was told as any other failure. Fix: the
// failure says that the effect is unknown.
#[test]
fn a_tolerated_failure_with_an_unknown_effect_says_so() {
    let rig = Rig::with("steps: [{id: a, idempotent: false, continue_on_error: true, run: 'kill -9 $$'}]\n");

    let told = rig.waypost(&["run", "flow.yaml", "--id", "r"]);

    assert!(told.starts_with("exit 3\n") && told.contains("whether it took effect is unknown"), "{told}");
    assert!(rig.waypost(&["show", "r"]).contains("whether it took effect is unknown"));
}

#[test]
fn an_answer_about_an_item_is_about_no_other_item() {
    let flow = "steps:
  - id: each
    foreach:
      items: [p, r]
      as: i
      steps:
        - id: s
          run: 'echo $I >> trace; echo $I > $I.txt'
          env: {I: \"${{ i }}\"}
          idempotent: false
          evidence: [{file: \"${{ i }}.txt\"}]
";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &RUN), Some(0));
    ["p.txt", "r.txt", "trace"].iter().for_each(|file| remove(&rig, file));

    let answers = ["--treat-as", "done=each:p/s", "--treat-as", "retry=each:r/s"];
    assert_eq!(code_of(&rig, &[&RESUME[..], &answers].concat()), Some(0));

    assert_eq!(rig.read("trace"), "r\n");
    assert!(!rig.path("p.txt").exists());
}
