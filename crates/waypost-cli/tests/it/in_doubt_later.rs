//! Questions to a person, continued: passes, parked steps, and other failures at the same time.

use crate::in_doubt::{STORES, flows, has_ended, ran, rig_of};
use crate::rig::{Rig, code_of};

/// A run with a non-idempotent repeated step that failed in its second pass.
const PASSES: &str = "steps:
  - {id: a, run: 'echo a >> trace; echo $RANDOM$RANDOM > ev; echo v=$(cat ev) >> $WAYPOST_OUTPUT', evidence: [{file: ev}]}
  - {id: g, idempotent: false, repeat: {until: iteration == 3, max: 4}, run: 'echo g$I >> trace; test $I != 2 || test -e go', env: {I: '${{ iteration }}'}}
  - {id: z, run: 'echo z >> trace'}
";

// Bug: after a failure in a later pass, finished passes were silently repeated, or the remaining passes were
// dropped. Cause: a failed step counted as a step without effects. Fix: its passes count.
#[test]
fn finished_careful_passes_are_in_doubt_and_others_rerun() {
    for store in STORES {
        for by in ["evidence", "from", "with"] {
            for (answer, expect) in [("done", &["g2", "g3", "z"][..]), ("retry", &["g1", "g2", "g3", "z"])] {
                let rig = Rig::with(PASSES).at(store);
                has_ended(&rig, &["run", "flow.yaml", "--id", "r", "-q"], 1, store);
                assert_eq!(ran(&rig), ["a", "g1", "g2"]);
                rig.write("go", "");
                let how: &[&str] = match by {
                    "evidence" => &[],
                    "from" => &["--from", "a"],
                    _ => &["--with", "flow.yaml"],
                };
                if by == "evidence" {
                    std::fs::remove_file(rig.path("ev")).expect("it was made");
                }
                if by == "with" {
                    rig.write("flow.yaml", &PASSES.replace("echo a >>", "echo a  >>"));
                }
                has_ended(&rig, &[&["resume", "r", "-q"], how].concat(), 8, by);
                assert_eq!(ran(&rig), ["a"], "{store} {by}");

                has_ended(&rig, &["resume", "r", "--treat-as", answer, "-q"], 0, answer);

                assert_eq!(ran(&rig), expect, "{store} {answer} {by}");
            }
        }
    }
}

/// A run with a failed `q`, and a rerun of `a`, so that the downstream steps are asked about.
fn asked(flow: &str, store: &str) -> Rig {
    let rig = rig_of(flow, store);
    rig.write("fail-q", "");
    code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]);
    std::fs::remove_file(rig.path("fail-q")).expect("it was made");
    has_ended(&rig, &["resume", "r", "--from", "a", "-q"], 8, flow);
    rig
}

// Bug: a started `foreach` was declared done in a fork, or after a change of its own steps: its remaining work
// was dropped. Fix: refused, with the reason.
#[test]
fn what_cannot_be_gone_on_with_is_not_done() {
    for store in STORES {
        for flow in flows() {
            let rig = asked(&flow, store);
            has_ended(&rig, &["fork", "r", "--id", "f", "-q"], 8, &flow);
            ran(&rig);

            let refused = rig.call(&["resume", "f", "--treat-as", "done"]);

            assert_ne!(refused.status.code(), Some(0), "{flow}");
            assert!(rig.told(&refused).contains("it can only restart"), "{}", rig.told(&refused));
            assert_eq!(ran(&rig), [""; 0], "{store} {flow}");
            has_ended(&rig, &["resume", "r", "--treat-as", "done", "-q"], 0, &flow);
            assert_eq!(ran(&rig), ["q", "z"], "{store} {flow}");
        }
    }
}

// Bug: after a rollback to before it, a parked and restarted step was restored with abandoned scopes, and paid
// again. Fix: a parked step is restored only with existing scopes.
#[test]
fn who_goes_back_does_not_take_up_what_was_begun_anew() {
    for store in STORES {
        for flow in flows() {
            let rig = asked(&flow, store);
            has_ended(&rig, &["checkpoint", "r", "--label", "asked", "-q"], 0, &flow);
            has_ended(&rig, &["resume", "r", "--treat-as", "retry", "-q"], 0, &flow);
            ran(&rig);
            has_ended(&rig, &["rollback", "r@asked", "-q"], 0, &flow);
            // After a rollback, the question is asked again.
            has_ended(&rig, &["resume", "r", "-q"], 8, &flow);

            let refused = rig.call(&["resume", "r", "--treat-as", "done"]);

            assert_ne!(refused.status.code(), Some(0), "{flow}");
            assert!(rig.told(&refused).contains("it can only restart"), "{}", rig.told(&refused));
            assert_eq!(ran(&rig), [""; 0], "{store} {flow}");
        }
    }
}

// Bug: such a rollback into open items was accepted after a rerun, and paid again. Cause: the question about the
// items was kept, but not its items. Fix: refused, as without a rerun.
#[test]
fn nobody_goes_back_amid_items_while_they_are_asked_about() {
    for store in STORES {
        let rig = asked(&flows()[0], store);
        ran(&rig);

        for seq in 3..=4 {
            let at = format!("r@{seq}");
            let back = rig.call(&["rollback", &at, "-q"]);
            if back.status.code() == Some(0) && seq > 2 {
                rig.call(&["resume", "r", "-q"]);
            }
            assert!(!ran(&rig).contains(&"pay".to_owned()), "{store} {at}: {}", rig.told(&back));
        }
    }
}

// Bug: with a step in doubt and missing evidence of another step, the same question was asked forever. Cause: a
// decision was refused while there was another question. Fix: the decision is recorded first.
#[test]
fn a_decision_is_taken_although_something_else_does_not_hold() {
    for store in STORES {
        for (answer, expect) in [("done", &["a"][..]), ("retry", &["a", "b"])] {
            let rig = Rig::with(
                "steps:
  - {id: a, run: 'echo a >> trace; touch ev', evidence: [{file: ev}]}
  - {id: b, idempotent: false, run: 'echo b >> trace; test -e go || sleep 1000'}
",
            )
            .at(store);
            let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
            rig.wait_for("trace", |text| text.contains('b'));
            running.signal(libc::SIGKILL);
            running.end();
            rig.write("go", "");
            std::fs::remove_file(rig.path("ev")).expect("a made it");
            ran(&rig);
            has_ended(&rig, &["resume", "r", "-q"], 8, answer);

            has_ended(&rig, &["resume", "r", "--treat-as", answer, "-q"], 0, answer);

            let mut all = ran(&rig);
            all.sort_unstable();
            assert_eq!(all, expect, "{store} {answer}");
        }
    }
}

// Bug: an interrupted non-idempotent step was silently rerun after the file renamed the step or its opener.
// Cause: only the steps of the new file were asked about. Fix: abandoned steps of the old file are asked about
// too.
#[test]
fn a_careful_cut_step_is_in_doubt_after_its_removal() {
    const CUT: &str = "{id: p, idempotent: false, run: 'echo p >> trace; test -e go || kill -9 $PPID'}";
    let on_item = format!(
        "steps:\n  - id: e\n    foreach: {{items: [1], steps: [{CUT}]}}\n  - {{id: z, run: echo z >> trace}}\n"
    );
    let on_main = format!(
        "steps:\n  - {{id: a, run: echo a >> trace}}\n  - {CUT}\n  - {{id: z, run: echo z >> trace}}\n"
    );
    let edits = [
        (&on_item, "id: e\n", "id: ee\n", &["--with", "flow.yaml"][..], &["p", "z"][..]),
        (&on_item, "id: p, idempotent: false", "id: pp", &["--with", "flow.yaml"], &["p", "z"]),
        (&on_item, "idempotent: false, run: 'echo", "run: 'echo ", &["--with", "flow.yaml"], &["p", "z"]),
        (&on_main, "id: p,", "id: pp,", &["--from", "a"], &["p", "z"]),
        (&on_main, "id: p,", "id: pp,", &[], &["p", "z"]),
        (&on_main, CUT, "{id: b, run: 'true'}", &[], &["z"]),
        (&on_main, "  - {id: p", "  - {id: n, run: 'true'}\n  - {id: p", &[], &["p", "z"]),
    ];
    for store in STORES {
        for (flow, from, to, how, then) in edits {
            let rig = Rig::with(flow).at(store);
            has_ended(&rig, &["run", "flow.yaml", "--id", "r", "-q"], 8, flow);
            ran(&rig);
            rig.write("go", "");
            rig.write("flow.yaml", &flow.replace(from, to));

            let plan = rig.json(&["plan", "r", "--json"]);
            let asks = |decision: &&serde_json::Value| decision["action"] == "ask" && decision["step"] == "p";
            assert_eq!(plan["decisions"].as_array().unwrap().iter().filter(asks).count(), 1, "{to}: {plan}");
            let resume = [&["resume", "r", "-q"], how].concat();
            has_ended(&rig, &resume, 8, to);
            assert_eq!(ran(&rig), [""; 0], "{store} {to}");

            // A rollback to a step decides first.
            let how = if how.contains(&"--from") { &[][..] } else { how };
            has_ended(&rig, &[&["resume", "r", "-q", "--treat-as", "retry"], how].concat(), 0, to);
            assert_eq!(ran(&rig), then, "{store} {to}");
        }
    }
}

// Bug: after an added item, each answer about a cut step of an earlier item was refused: the changed list abandons the
// scopes of the items. Cause: the answer was not recorded in the definition in force first. Fix: it is.
#[test]
fn a_cut_step_of_an_item_is_decided_after_a_change_of_the_list() {
    const FLOW: &str = "steps:\n  - id: e\n    foreach: {items: [x], steps: [{id: p, idempotent: false, run: 'echo $I >> trace; test -e go || kill -9 $PPID', env: {I: '${{ item }}'}}]}\n";
    for (list, answer, then) in [
        ("[x, k]", "done=e:x/p", &["k"][..]),
        ("[x, k]", "retry=e:x/p", &["k", "x"]),
        ("[x, k]", "done", &["k"]),
        ("[k]", "done=e:x/p", &["k"]),
        ("[k]", "retry=e:x/p", &["k"]),
    ] {
        let rig = Rig::with(FLOW);
        has_ended(&rig, &["run", "flow.yaml", "--id", "r", "-q"], 8, list);
        ran(&rig);
        rig.write("go", "");
        rig.write("flow.yaml", &FLOW.replace("[x]", list));
        has_ended(&rig, &["resume", "r", "-q"], 8, list);

        has_ended(&rig, &["resume", "r", "-q", "--treat-as", answer], 0, answer);

        let mut ran = ran(&rig);
        ran.sort_unstable();
        assert_eq!(ran, then, "{list} {answer}");
    }
}

// Bug: `plan` and `why` asked about a step of an item that a resume settled by its evidence, and `why` of the
// whole run named the step that waits for the items. Fix: the evidence of scopes is verified, and questions
// come first.
#[test]
fn steps_of_items_that_were_cut_are_planned_by_their_evidence() {
    const FLOW: &str = "steps:\n  - id: e\n    foreach: {items: [1], steps: [{id: p, idempotent: false, run: 'echo p >> trace; echo 1 > made; kill -9 $PPID', evidence: [{file: made}]}]}\n";
    for store in STORES {
        let rig = Rig::with(FLOW).at(store);
        has_ended(&rig, &["run", "flow.yaml", "--id", "r", "-q"], 8, store);
        let action = || {
            let plan = rig.json(&["plan", "r", "--json"]);
            let of_p =
                plan["decisions"].as_array().unwrap().iter().find(|found| found["step"] == "p").cloned();
            of_p.expect("it is open")["action"].clone()
        };

        std::fs::rename(rig.path("made"), rig.path("aside")).expect("it was made");
        assert_eq!(action(), "ask");
        let told = rig.waypost(&["why", "r"]);
        assert!(told.contains("step e:1/p: needs a decision"), "{told}");
        has_ended(&rig, &["resume", "r", "-q"], 8, store);

        std::fs::rename(rig.path("aside"), rig.path("made")).expect("it is there");
        assert_eq!(action(), "reuse");
        assert!(rig.waypost(&["why", "r"]).contains("step e: it waits"));
        has_ended(&rig, &["resume", "r", "-q"], 0, store);
        assert_eq!(ran(&rig), ["p"]);
    }
}
