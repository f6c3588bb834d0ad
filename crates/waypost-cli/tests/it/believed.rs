//! What is believed of steps that were done again for their evidence, and what is asked.

use crate::rig::{Rig, code_of};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

fn resume(rig: &Rig) -> Option<i32> {
    code_of(rig, &["resume", "r", "-q"])
}

fn remove(rig: &Rig, files: &[&str]) {
    files.iter().for_each(|file| std::fs::remove_file(rig.path(file)).unwrap());
}

// What happened: once an item had been done again for its evidence, nobody looked at that of any item any more; and a run with
// a dead letter was completed without one. Why: a join that need not run again was not known to have joined them. What stops
// it now: the position keeps which branches a step joined, and how many had failed.
#[test]
fn items_are_looked_at_again_after_one_was_done_again() {
    let flow = "steps:
  - id: each
    foreach: {items: [a, b, c], as: i, max_parallel: 1, steps: [{id: mk, run: 'echo $I >> trace; test $I != c; echo v > o.$I', env: {I: '${{ i }}'}, evidence: [{sha256: 'o.${{ i }}'}]}]}
  - {id: end, run: 'echo end >> trace'}
";
    for store in STORES {
        let rig = Rig::with(flow).at(store);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(3));
        remove(&rig, &["o.a"]);
        assert_eq!(resume(&rig), Some(3), "{store}: the dead letter is one still");
        assert_eq!(rig.json(&["show", "r", "--json"])["status"], "completed_with_failures", "{store}");
        remove(&rig, &["o.a", "o.b"]);

        assert_eq!(code_of(&rig, &["verify", "r", "-q"]), Some(4), "{store}");
        assert_eq!(resume(&rig), Some(3), "{store}");

        assert_eq!(rig.read("trace"), "a\nb\nc\nend\na\na\nb\n", "{store}");
        assert_eq!(code_of(&rig, &["verify", "r", "-q"]), Some(0));
    }
}

// What happened: steps of items, and of a group, that must not be repeated were, as the evidence of the step around them or of
// one beside them did not hold. Why: all of them were begun anew. What stops it now: a person is asked.
#[test]
fn what_must_not_be_repeated_is_not_for_the_evidence_of_what_is_around_it() {
    let items = "steps: [{id: s, evidence: [{file: out}], foreach: {items: [1], as: i, steps: [{id: pay, idempotent: false, run: 'echo pay >> trace; touch out'}]}}]";
    let group = "steps:
  - id: s
    repeat: {until: iteration == 1, max: 2}
    steps: [{id: pay, idempotent: false, run: 'echo pay >> trace'}, {id: b, run: 'touch out', evidence: [{file: out}]}]
";
    for flow in [items, group] {
        for store in STORES {
            let rig = Rig::with(flow).at(store);
            assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
            remove(&rig, &["out"]);

            assert_eq!(resume(&rig), Some(8), "{store}");

            assert_eq!(rig.read("trace"), "pay\n", "{store}");
            assert_eq!(code_of(&rig, &["resume", "r", "--treat-as", "retry", "-q"]), Some(0), "{store}");
            assert_eq!(rig.read("trace"), "pay\npay\n", "{store}");
        }
    }
}

// What happened: a step that was in doubt, as what it needs was done again, was settled by the next resume by evidence of
// before. What stops it now: only a step that was cut is settled so.
#[test]
fn evidence_of_before_settles_no_doubt() {
    for store in STORES {
        let rig = Rig::with(
            "steps:
  - {id: a, run: 'cat in > a.txt', evidence: [{sha256: a.txt}]}
  - {id: pay, idempotent: false, run: 'echo pay$(cat a.txt) >> trace; touch paid', evidence: [{file: paid}]}
",
        )
        .at(store);
        rig.write("in", "1");
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        rig.write("in", "2");
        remove(&rig, &["a.txt"]);

        for _ in 0..3 {
            assert_eq!(resume(&rig), Some(8), "{store}");
        }

        assert_eq!(rig.read("trace"), "pay1\n", "{store}");
        assert_eq!(code_of(&rig, &["resume", "r", "--treat-as", "retry", "-q"]), Some(0), "{store}");
        assert_eq!(rig.read("trace"), "pay1\npay2\n", "{store}");
    }
}
