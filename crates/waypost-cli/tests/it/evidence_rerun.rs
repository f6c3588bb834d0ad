//! Evidence of rerun steps, and questions about evidence.

use crate::rig::{Rig, code_of};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

fn resume(rig: &Rig) -> Option<i32> {
    code_of(rig, &["resume", "r", "-q"])
}

fn remove(rig: &Rig, files: &[&str]) {
    files.iter().for_each(|file| std::fs::remove_file(rig.path(file)).unwrap());
}

// Bug: after the rerun of an item for its evidence, no item evidence was checked any more, and a run with a dead
// letter was completed without its failure. Cause: a join that need not run again did not know its scopes. Fix:
// the position keeps the joined scopes and their failure count.
#[test]
fn items_are_looked_at_again_after_one_was_done_again() {
    let flow = "steps:
  - id: each
    foreach: {failure_rate: 1, items: [a, b, c], as: i, max_parallel: 1, steps: [{id: mk, run: 'echo $I >> trace; test $I != c; echo v > o.$I', env: {I: '${{ i }}'}, evidence: [{sha256: 'o.${{ i }}'}]}]}
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

// Bug: non-idempotent steps of items and groups were repeated when the evidence of their opener or of a sibling
// failed. Cause: all scopes restarted. Fix: a person is asked.
#[test]
fn a_careful_step_is_not_rerun_for_evidence_of_its_opener() {
    let items = "steps: [{id: s, evidence: [{file: out}], foreach: {items: [1], as: i, steps: [{id: pay, idempotent: false, run: 'echo pay >> trace; touch out'}]}}]";
    let group = "steps:
  - id: s
    repeat: {until: iteration == 1, max: 2}
    evidence: [{file: out}]
    steps: [{id: pay, idempotent: false, run: 'echo pay >> trace; touch out'}]
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

// Bug: a step in doubt after an upstream rerun was settled by its old evidence in the next resume. Fix: evidence
// settles only interrupted steps.
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

// Bug: a non-idempotent step with missing evidence was asked about forever: "done" was refused. Fix: the decision
// is recorded and stays in force.
#[test]
fn a_person_says_that_a_step_is_done_whose_evidence_is_gone() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        for pay in ["", "foreach: {items: [x], steps: [", "repeat: {until: iteration >= 1, max: 1}, steps: ["]
        {
            let inner =
                "{id: pay, idempotent: false, run: 'echo pay >> trace; touch ev', evidence: [{file: ev}]}";
            let flow = match pay {
                "" => format!("steps:\n  - {inner}\n  - {{id: z, run: 'echo z >> trace; test -e go'}}\n"),
                _ if pay.starts_with("foreach") => {
                    format!(
                        "steps:\n  - {{id: o, {pay}{inner}]}}}}\n  - {{id: z, run: 'echo z >> trace; test -e go'}}\n"
                    )
                }
                _ => format!(
                    "steps:\n  - {{id: o, {pay}{inner}]}}\n  - {{id: z, run: 'echo z >> trace; test -e go'}}\n"
                ),
            };
            let rig = Rig::with(&flow).at(store);
            assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1), "{flow}");
            std::fs::remove_file(rig.path("ev")).expect("the step made it");
            rig.write("go", "");
            assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(8), "{flow}");

            let told = rig.call(&["resume", "r", "--treat-as", "done", "-q"]);

            assert_eq!(told.status.code(), Some(0), "{store} {flow}: {}", rig.told(&told));
            assert_eq!(rig.read("trace"), "pay\nz\nz\n", "{store} {flow}");
            assert_eq!(
                rig.call(&["resume", "r", "-q"]).status.code(),
                Some(0),
                "it is believed from then on"
            );
            assert_eq!(rig.call(&["verify", "r", "-q"]).status.code(), Some(0), "{flow}");
        }
    }
}

// `accept` pins a changed file; a fixed expectation is not changed by `accept`.
#[test]
fn evidence_is_accepted_as_it_is_found() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(
            "steps:\n  - {id: a, run: 'echo a >> trace; echo one > out', evidence: [{sha256: out}, {file: said}]}\n  - {id: b, run: echo b >> trace}\n",
        )
        .at(store);
        rig.write("said", "");
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(0));
        rig.write("out", "two\n");
        assert_eq!(rig.call(&["verify", "r", "-q"]).status.code(), Some(4));

        let accepted = rig.json(&["evidence", "accept", "r", "a", "--json"]);

        assert_eq!((&accepted["step"], &accepted["accepted"]), (&"a".into(), &1.into()));
        assert_eq!(rig.call(&["verify", "r", "-q"]).status.code(), Some(0), "{store}");
        assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(0));
        assert_eq!((rig.read("trace"), rig.read("out")), ("a\nb\n".to_owned(), "two\n".to_owned()));
        let settled = rig.json(&["show", "r", "--json"])["steps"][0]["settled"].clone();
        let settled = settled.as_str().unwrap();
        assert!(settled.starts_with("accepted by "), "{settled}");
        assert!(rig.waypost(&["show", "r"]).contains(&format!("Step a: {settled}")), "{store}");
        let person = settled.trim_start_matches("accepted by ");
        let report = rig.waypost(&["report", "r"]);
        assert!(
            report.contains("## `a`: completed") && report.contains("## `a`: evidence accepted"),
            "{report}"
        );
        assert!(report.contains(&format!("accepted by `{person}`")), "{report}");
        assert!(rig.waypost(&["report", "r", "--html"]).contains(settled), "{store}");
        let again = rig.told(&rig.call(&["evidence", "accept", "r", "a"]));
        assert!(again.contains("Nothing to accept"), "{again}");
        std::fs::remove_file(rig.path("said")).expect("it was written");
        let refused = rig.call(&["evidence", "accept", "r", "a"]);
        assert_eq!(refused.status.code(), Some(2), "{}", rig.told(&refused));
        assert!(rig.told(&refused).contains("said"), "{}", rig.told(&refused));
        let nobody = rig.call(&["evidence", "accept", "r", "nobody"]);
        assert_eq!(nobody.status.code(), Some(5));
        let nobody = rig.told(&nobody);
        assert!(
            nobody.contains("there is no step `nobody` in run r") && !nobody.contains("no there is"),
            "{nobody}"
        );
    }
}

// An item is named by its scope, as in other commands; other items are unaffected.
#[test]
fn evidence_of_one_item_is_suggested_and_accepted() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(
            "steps:\n  - id: each\n    foreach: {items: [a/1, b], steps: [{id: w, run: 'sleep 0.05; echo ${{ item }} >> trace; \
             mkdir -p out/a; echo one > out/${{ item }}; sleep 0.05', evidence: [{sha256: 'out/${{ item }}'}]}]}\n",
        )
        .at(store);
        let ran = rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);
        assert_eq!(ran.status.code(), Some(0), "{}", rig.told(&ran));

        let suggested = rig.json(&["evidence", "suggest", "r", "each:a/1/w", "--json"]);
        rig.write("out/a/1", "two\n");
        rig.write("out/b", "two\n");
        let accepted = rig.json(&["evidence", "accept", "r", "each:a/1/w", "--json"]);

        assert_eq!(suggested["step"], "each:a%2F1/w");
        assert_eq!(accepted["accepted"], 1);
        assert!(
            suggested["evidence"].as_array().unwrap().contains(&serde_json::json!({"sha256": "out/a/1"}))
        );
        assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(0));
        assert_eq!(rig.read("trace").matches("a/1").count(), 1, "{store}");
        assert_eq!(rig.read("trace").matches('b').count(), 2, "{store}: its evidence was not accepted");
        for (missing, code) in [("each:c/w", 5), ("each:b/x", 5), ("each:b", 2)] {
            let refused = rig.call(&["evidence", "accept", "r", missing]);
            assert_eq!(refused.status.code(), Some(code), "{}", rig.told(&refused));
        }
    }
}

// The command suggests evidence for the files of a step, and the suggestion works in the workflow file.
#[test]
fn evidence_is_suggested_by_what_a_step_wrote() {
    const FLOW: &str = "steps:\n  - {id: a, run: 'sleep 0.1; mkdir -p out; echo x > out/a.txt; : > empty; sleep 0.1'}\n  - {id: b, run: 'sleep 0.1; echo b > b.txt'}\n";
    // Files of the store are not files of the step, wherever the store is.
    for store in ["sqlite:.waypost/waypost.db", "sqlite:x.db", "file:d", "file:."] {
        let rig = Rig::with(FLOW).at(store);
        rig.write("before", "x");
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(0));

        let told = rig.call(&["evidence", "suggest", "r", "a"]);

        let text = String::from_utf8_lossy(&told.stdout).into_owned();
        assert_eq!(
            text, "evidence:\n  - file: \"empty\"  # 0 B\n  - sha256: \"out/a.txt\"  # 2 B\n",
            "{store}"
        );
        let json = rig.json(&["evidence", "suggest", "r", "b", "--json"]);
        assert_eq!(json["evidence"], serde_json::json!([{"sha256": "b.txt"}]), "{store}");
        rig.write(
            "other.yaml",
            &format!("steps:\n  - id: a\n    run: echo\n    {}", text.replace('\n', "\n    ")),
        );
        assert_eq!(rig.call(&["check", "other.yaml"]).status.code(), Some(0));
    }
}

// A path with a secret is not shown, and gets no claim; pattern characters in a path are escaped.
#[test]
fn what_is_suggested_holds_no_secret_and_is_no_pattern() {
    let rig = Rig::with(
        "secrets: [TOK]\nsteps:\n  - {id: a, run: 'sleep 0.1; mkdir \"$TOK\"; echo x > \"$TOK/f\"; echo x > \"a*\"; echo x > \"b$\"\"{{c\"; sleep 0.1'}\n",
    );
    let call = |args: &[&str]| rig.command(args).env("TOK", "supersecretvalue").output().unwrap();
    assert_eq!(call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(0));

    let told = call(&["evidence", "suggest", "r", "a"]);
    let json = call(&["evidence", "suggest", "r", "a", "--json"]);

    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    // An expression escapes text that would begin an expression.
    let odd = "b${{ '${{' }}c";
    let odd_line = format!("  - sha256: \"{odd}\"  # 2 B");
    let lines =
        ["evidence:", "  - sha256: \"a[*]\"  # 2 B", &odd_line, "  # omitted, path contains a secret: 1\n"];
    assert_eq!(text, lines.join("\n"));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["evidence"], serde_json::json!([{"sha256": "a[*]"}, {"sha256": odd}]));
    let flow = format!("steps:\n  - {{id: a, run: 'echo x', evidence: [{{sha256: \"{odd}\"}}]}}\n");
    rig.write("pasted.yaml", &flow);
    assert_eq!(rig.call(&["run", "pasted.yaml", "--id", "s", "-q"]).status.code(), Some(0));
    assert_eq!(json["secret"], 1);
}

// An exit code listed in the evidence is a success; later steps run, and a resume trusts the step.
#[test]
fn a_step_has_ended_well_with_a_code_that_its_evidence_names() {
    let flow = "steps:\n  - {id: a, run: 'echo a >> trace; echo n=1 >> $WAYPOST_OUTPUT; exit CODE', evidence: [{exit: [0, 3]}]}\n  - {id: b, run: 'echo ${{ steps.a.outputs.n }} >> trace; test -e go'}\n";
    let rig = Rig::with(&flow.replace("CODE", "3"));
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));
    let shown = rig.json(&["show", "r", "--json"]);
    assert_eq!(shown["steps"][0]["evidence"][0]["found"], 3, "{shown}");
    rig.write("go", "");
    assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(0));
    assert_eq!(rig.read("trace"), "a\n1\n1\n");

    for (code, exit, ends) in [("4", "[0, 3]", 1), ("3", "3", 0), ("0", "3", 4)] {
        let rig = Rig::with(&flow.replace("CODE", code).replace("[0, 3]", exit));
        rig.write("go", "");
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(ends), "{code}");
    }
}

// Bug: a retry of dead letters asked a person about an idempotent step, and "done" ran the step. Fix: the step with
// failed evidence reruns first.
#[test]
fn items_are_tried_again_after_what_is_not_believed() {
    let rig = Rig::with(
        "steps:\n  - {id: a, run: 'echo a >> trace; touch ev', evidence: [{file: ev}]}\n  - {id: e, foreach: {failure_rate: 1, items: [x], steps: [{id: b, run: 'echo b >> trace; test -e go'}]}}\n",
    );
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(3));
    std::fs::remove_file(rig.path("ev")).expect("the step made it");
    rig.write("go", "");

    assert_eq!(rig.call(&["dead-letters", "retry", "r", "-q"]).status.code(), Some(0));

    assert_eq!(rig.read("trace"), "a\nb\na\nb\n");
}

#[test]
fn what_a_verification_came_to_is_recorded_and_changes_nothing() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(
            "steps: [{id: a, run: 'echo a >> trace; echo 1 > f', evidence: [{sha256: f}]}, {id: b, run: 'true'}]\n",
        );
        let rig = rig.at(store);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        let before = rig.json(&["show", "r", "--json"]);

        let told = rig.json(&["verify", "r", "--record", "--json"]);
        let at = told["recorded"].as_str().unwrap().to_owned();
        rig.write("f", "other");
        let told = rig.waypost(&["verify", "r", "--record"]);
        assert!(told.starts_with("exit 4\n") && told.contains("Recorded as"), "{told}");

        let events = rig.waypost(&["events", "r"]);
        let checked: Vec<&str> = events.lines().filter(|line| line.contains("evidence_checked")).collect();
        assert_eq!(checked.len(), 3, "{events}");
        assert!(checked[1].ends_with(": 1 ok") && checked[2].ends_with(": 1 failed"), "{events}");
        let after = rig.json(&["show", "r", "--json"]);
        assert_eq!(
            (&after["status"], &after["steps"][0]["status"]),
            (&before["status"], &before["steps"][0]["status"])
        );
        assert!(rig.waypost(&["checkpoints", "r"]).contains(&at), "{store}");
        rig.write("f", "1\n");
        assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));
        assert_eq!(rig.read("trace"), "a\n", "{store}");
    }
    let rig = Rig::with("steps: [{id: a, run: 'true'}]\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    assert!(rig.waypost(&["verify", "r", "--record"]).contains("Nothing to record"));
}

// Bug: a rerun step with reused downstream steps was shown without evidence and times. Cause: the note about the
// reuse counted as its end. Fix: only a finishing record is an end.
#[test]
fn a_step_that_was_done_again_shows_its_evidence_and_times() {
    let one = |id: &str| format!("  - {{id: {id}, run: 'echo {id} > {id}', evidence: [{{sha256: {id}}}]}}\n");
    let flow = format!("steps:\n{}{}{}", one("a"), one("b"), one("c"));
    for store in STORES {
        let rig = Rig::with(&flow).at(store);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        remove(&rig, &["b"]);
        assert_eq!(resume(&rig), Some(0), "{store}");

        let shown = rig.json(&["show", "r", "--json"]);

        for step in shown["steps"].as_array().unwrap() {
            assert_eq!(step["evidence"][0]["verdict"], "ok", "{store}: {step}");
            assert!(step["started_at"].is_string() && step["ended_at"].is_string(), "{store}: {step}");
        }
    }
}

// Bug: a checkpoint with the verdicts of a verification was `skipped`. Cause: the checkpoint itself was never
// verified. Fix: its verdict is that of its claims, at the time of the verification.
#[test]
fn what_a_look_came_to_has_the_verdict_of_its_claims() {
    let flow = "steps: [{id: a, run: 'echo a > a', evidence: [{sha256: a}]}]\n";
    for store in STORES {
        let rig = Rig::with(flow).at(store);
        let verdicts = || {
            let verified = rig.json(&["verify", "r", "--json"]);
            let found = verified["checkpoints"].as_array().unwrap().iter();
            let verdict = |one: &serde_json::Value| one["verdict"].as_str().unwrap_or("none").to_owned();
            found.map(verdict).filter(|verdict| verdict != "none").collect::<Vec<_>>()
        };
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        assert_eq!(code_of(&rig, &["verify", "r", "--record", "-q"]), Some(0));
        assert_eq!(verdicts(), ["ok", "ok"], "{store}");
        remove(&rig, &["a"]);
        assert_eq!(code_of(&rig, &["verify", "r", "--record", "-q"]), Some(4));
        assert_eq!(verdicts(), ["failed", "ok", "failed"], "{store}");

        assert_eq!(resume(&rig), Some(0), "{store}");

        let all = verdicts();
        assert!(all.iter().filter(|verdict| *verdict == "failed").count() >= 2, "{store}: {all:?}");
        assert_eq!(
            code_of(&rig, &["verify", "r", "-q"]),
            Some(0),
            "what was found before counts no more: {store}"
        );
    }
}

// Bug: a resume of a completed run with an edited comment checked lost evidence twice before the rerun.
#[test]
fn an_edited_comment_adds_no_check_of_evidence() {
    let rig = Rig::with(
        "steps: [{id: p, run: touch p.txt, evidence: [{command: 'echo check >> checks; test -e p.txt'}]}]\n",
    );
    assert_eq!(crate::rig::run(&rig), Some(0));
    let checks = |edit: &str| {
        rig.write("flow.yaml", &(rig.read("flow.yaml") + edit));
        crate::rig::remove(&rig, "p.txt");
        rig.write("checks", "");
        assert_eq!(crate::rig::resume(&rig, &[]), Some(0));
        rig.read("checks").lines().count()
    };
    assert_eq!(checks(""), checks("# a comment\n"));
}

// After a rerun in a group whose steps have another order in the file, the steps downstream ran again: the output of a group
// listed its steps by position. The order of steps changes no result.
#[test]
fn the_order_of_steps_in_a_group_reruns_nothing() {
    let one =
        "      - {id: one, needs: [], run: 'echo one >> trace; echo 1 > one', evidence: [{sha256: one}]}\n";
    let two = "      - {id: two, needs: [], run: 'echo two >> trace; echo v=2 >> $WAYPOST_OUTPUT'}\n";
    let flow = |steps: [&str; 2]| {
        let steps = steps.concat();
        format!(
            "steps:\n  - id: group\n    needs: []\n    steps:\n{steps}  - {{id: end, needs: [group], run: echo end >> trace}}\n"
        )
    };
    let rig = Rig::with(&flow([one, two]));
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    rig.write("flow.yaml", &flow([two, one]));
    rig.write("trace", "");
    std::fs::remove_file(rig.path("one")).unwrap();

    assert_eq!(code_of(&rig, &["resume", "r", "-q", "-j", "1"]), Some(0));

    assert_eq!(rig.read("trace"), "one\n");
}
