//! Answers, choices and requested reruns in one `resume`: all apply, the answers first.

use crate::in_doubt::{STORES, ran};
use crate::rig::{Rig, code_of, expect};

/// Dead letters of a joined step, and a step in doubt downstream.
const FLOW: &str = "steps:
  - id: each
    foreach:
      items: [x, y]
      max_failures: 5
      max_parallel: 1
      steps:
        - {id: s1, run: 'echo s1 >> trace'}
        - {id: s2, run: 'echo s2 >> trace; test -e ok'}
  - {id: join, if: always(), idempotent: false, run: 'echo join >> trace; test -e ok2 || kill -9 $PPID $$; true'}
";

/// Returns the steps that a resume runs, with `join` in doubt.
fn ran_by(store: &str, change: bool, args: &[&str]) -> String {
    let rig = Rig::with(FLOW).at(store);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(8));
    ran(&rig);
    rig.write("ok2", "");
    if change {
        rig.write("flow.yaml", &FLOW.replace("echo s1", "echo new"));
    }

    let args = [&["resume", "r", "-q"], args].concat();
    let planned = rig.waypost(&[&args[..], &["--dry-run"]].concat());
    assert!(planned.starts_with("exit 0"), "{planned}");
    let resumed = rig.waypost(&args);
    assert!(resumed.starts_with("exit 3"), "{store} {args:?}: {resumed}");
    ran(&rig).join(" ")
}

// Bug: `--skip` or `--retry-failed` together with `--treat-as done` was refused with an internal message, also where Waypost
// had printed the command. Cause: with a question open, the requested reruns were not found. Fix: the answers are recorded
// first.
#[test]
fn answers_apply_before_requested_reruns() {
    for store in STORES {
        let done =
            |args: &[&'static str]| ran_by(store, false, &[args, &["--treat-as", "done=join"]].concat());
        let retry =
            |args: &[&'static str]| ran_by(store, false, &[args, &["--treat-as", "retry=join"]].concat());

        assert_eq!(done(&["--retry-failed"]), "s2 s2", "{store}");
        assert_eq!(retry(&["--retry-failed"]), "s2 s2 join", "{store}");
        assert_eq!(done(&["--skip", "each:y/s2"]), "", "{store}");
        assert_eq!(retry(&["--skip", "each:y/s2"]), "join", "{store}");
        assert_eq!(done(&["--treat-as", "done=each:y/s2"]), "", "{store}");
        assert_eq!(done(&["--from", "each:y/s1"]), "s1 s2", "{store}");
    }
}

// Bug: with an answer, `--rerun-changed` adopted the file, and reran nothing in items. Cause and fix as above.
#[test]
fn answers_apply_before_reruns_of_changed_steps() {
    for store in STORES {
        let by = |args: &[&str]| ran_by(store, true, &[&["--rerun-changed"], args].concat());

        assert_eq!(by(&["--treat-as", "done=join"]), "new s2 new s2", "{store}");
        assert_eq!(by(&["--treat-as", "retry"]), "new s2 new s2 join", "{store}");
        assert_eq!(by(&["--retry-failed", "--treat-as", "done=join"]), "new s2 new s2", "{store}");
        assert_eq!(by(&["--skip", "each:y/s2", "--treat-as", "done=join"]), "new s2 new", "{store}");
    }
}

// Bug: `--from` with a step in an item, and `--rerun-changed` of the list of items or of an upstream step, ended as "the step
// has not finished". Cause: the change had invalidated the step with the items. Fix: the rerun follows when the items are
// entered.
#[test]
fn a_step_reruns_in_an_item_of_a_changed_step() {
    for store in STORES {
        for (from, to, expect) in [
            ("[x, y]", "[x, y, z]", "s2 s1 s2"),
            ("[x, y]", "[x]", "s2"),
            ("  - id: each", "  - {id: new, run: echo new >> trace}\n  - id: each", "new s1 s2 s1 s2"),
            (
                "        - {id: s2",
                "        - {id: new, run: echo new >> trace}\n        - {id: s2",
                "new s2 new s2",
            ),
        ] {
            let rig = Rig::with(FLOW).at(store);
            rig.write("ok", "");
            rig.write("ok2", "");
            assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
            ran(&rig);
            rig.write("flow.yaml", &FLOW.replace(from, to));

            let args = ["resume", "r", "-q", "--from", "each:x/s2", "--rerun-changed"];
            assert_eq!(code_of(&rig, &args), Some(8), "{store} {to}");
            assert_eq!(ran(&rig).join(" "), expect, "{store} {to}");
        }
    }
}

// Bug: `--skip` of a step in a failed item left the other failed items failed. Cause: the named item counted as the only one
// to retry. Fix: a choice names no retry.
#[test]
fn a_skip_in_an_item_retries_the_other_failed_items() {
    for store in STORES {
        for args in [["--skip", "m:w/s"], ["--treat-as", "done=m:w/s"]] {
            let rig = Rig::with(
                "steps:
  - {id: m, foreach: {items: [v, w], max_parallel: 1, steps: [{id: s, run: 'echo s >> trace; test -e ok'}]}}
",
            );
            let rig = rig.at(store);
            assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
            ran(&rig);
            rig.write("ok", "");

            let planned = rig.waypost(&[&["resume", "r", "--dry-run"][..], &args].concat());
            assert_eq!(code_of(&rig, &[&["resume", "r", "-q"][..], &args].concat()), Some(0), "{store}");

            assert!(planned.contains("\nm:v/s  retry "), "{planned}");
            assert_eq!(ran(&rig), ["s"], "{store} {args:?}");
        }
    }
}

// A refused `--from` or `--skip` left the answer of the same command on record: the next resume ran the step without a
// question. Cause: the answers were recorded before the request was checked. Now a dry run checks the request first, also
// before the hints of a question repeat the request.
#[test]
fn a_refused_request_records_no_answer() {
    let flow = "steps:
  - id: e
    foreach:
      items: [y]
      steps:
        - { id: a, run: echo a >> trace }
        - { id: pay, idempotent: false, run: echo pay >> trace }
        - { id: in, foreach: { items: [p], steps: [{ id: t, run: echo t >> trace }] } }
  - { id: last, run: echo last >> trace }
";
    for store in STORES {
        let rig = Rig::with(flow).at(store);
        expect(&rig, &["run", "flow.yaml", "--id", "r", "-q"], 0, &[]);
        expect(&rig, &["resume", "r", "--from", "e:y/a", "-q"], 8, &["e:y/pay"]);
        ran(&rig);

        for (request, code) in [
            (&["--from", "nope"][..], 5),
            (&["--from", "e:y/nope"], 5),
            (&["--from", "e:y/in"], 5),
            (&["--from", "last"], 5),
            (&["--skip", "e:y/a"], 2),
        ] {
            for answer in ["done", "retry"] {
                expect(&rig, &[&["resume", "r", "--treat-as", answer], request].concat(), code, &[]);
            }
            // Without an answer, the hints of the question would repeat the request.
            expect(&rig, &[&["resume", "r"], request].concat(), code, &[]);
        }

        expect(&rig, &["plan", "r"], 0, &["e:y/pay  ask"]);
        assert_eq!(ran(&rig), [""; 0], "{store}");
        expect(&rig, &["resume", "r", "--treat-as", "done", "-q"], 0, &[]);
        assert_eq!(ran(&rig), ["t", "last"], "{store}");
    }
}

// `--retry-failed` beside a question upstream of the failed items printed a command that was refused. Cause: items of an
// invalid opener counted as failed. The opener opens them again.
#[test]
fn a_retry_waits_for_the_rerun_of_its_opener() {
    let rig = Rig::with(
        "steps:
  - { id: a, run: echo a >> trace }
  - { id: pay, idempotent: false, run: echo pay >> trace }
  - id: e
    foreach: { items: [x], steps: [{ id: l, run: 'echo l >> trace; test -e up' }] }
",
    );
    expect(&rig, &["run", "flow.yaml", "--id", "r", "-q"], 1, &[]);
    expect(&rig, &["resume", "r", "--from", "a", "-q"], 8, &[]);
    rig.write("up", "");
    ran(&rig);

    expect(&rig, &["resume", "r", "--retry-failed"], 8, &["resume r --retry-failed --treat-as done=pay"]);
    expect(&rig, &["resume", "r", "--retry-failed", "--treat-as", "done=pay", "-q"], 0, &[]);
    assert_eq!(ran(&rig), ["l"]);
}
