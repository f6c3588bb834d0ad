//! Evidence of steps: checked at their end, and before a resume trusts them.

use std::fs;

use crate::rig::{Rig, wait_until};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

fn trace(rig: &Rig) -> Vec<String> {
    fs::read_to_string(rig.path("trace")).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Three steps in order, each writing a file, and one that waits for a file.
const CHAIN: &str = r#"
steps:
  - id: a
    run: echo a >> trace; echo one > a.txt; echo "n=${N:-1}" >> "$WAYPOST_OUTPUT"
    evidence: [ { sha256: a.txt } ]
  - id: b
    run: echo b >> trace; cat a.txt > b.txt
    evidence:
      - { file: b.txt, size: "> 0" }
      - { sha256: b.txt }
  - id: c
    run: echo c >> trace
  - id: d
    run: echo d >> trace; while [ ! -e go ]; do sleep 0.02; done
"#;

#[test]
fn a_step_whose_evidence_does_not_hold_has_failed() {
    for store in STORES {
        let flow = "steps:\n  - id: a\n    run: echo hi > out.txt\n    evidence: [ { file: out.txt, size: '> 9' }, { file: gone.txt } ]\n  - run: touch ran\n";
        let rig = Rig::with(flow).at(store);

        let told = rig.waypost(&["run", "flow.yaml", "--id", "r", "-q"]);

        assert!(told.starts_with("exit 4\n"), "{told}");
        assert!(told.contains("evidence of step `a` failed"), "{told}");
        assert!(told.contains("expected size: > 9, found type: file, size: 3"), "{told}");
        assert!(told.contains("artifact_exists gone.txt: the file does not exist"), "{told}");
        assert!(!rig.path("ran").exists());
        let shown = rig.json(&["show", "r", "--json"]);
        let claims = &shown["steps"][0]["evidence"];
        assert_eq!(claims[0]["verdict"], "failed", "{claims}");
        assert_eq!(claims[0]["expected"]["size"], "> 9");
        assert_eq!(claims[0]["found"]["size"], 3);
        let events = rig.waypost(&["events", "r", "--json"]);
        assert!(events.contains(r#""event":"evidence_checked","total":2,"ok":0,"failed":2"#), "{events}");
        let report = rig.waypost(&["report", "r"]);
        assert!(report.contains("Evidence: 0 ok, all of 2 needed."), "{report}");

        fs::write(rig.path("gone.txt"), "x").unwrap();
        rig.write("flow.yaml", &flow.replace("> 9", "> 1"));
        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0), "{store}");
        let shown = rig.json(&["show", "r", "--json"]);
        assert_eq!(shown["steps"][0]["evidence"][1]["verdict"], "ok");
    }
}

#[test]
fn a_resume_after_kill_reruns_only_changed_results() {
    for store in STORES {
        let rig = Rig::with(CHAIN).at(store);
        let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
        rig.wait_for("trace", |text| text.contains('d'));
        running.signal(libc::SIGKILL);
        running.end();
        wait_until("the run to be free", || code(&rig, &["resume", "r", "--dry-run"]) == Some(0));
        rig.write("a.txt", "somebody was here");
        rig.write("go", "");

        let told = rig.waypost(&["resume", "r", "-q"]);

        assert!(told.starts_with("exit 0\n"), "{told}");
        assert_eq!(trace(&rig), ["a", "b", "c", "d", "a", "d"], "{store}: what gave the same is used again");
        assert_eq!(rig.read("a.txt"), "one\n");
        let checkpoints = rig.waypost(&["checkpoints", "r"]);
        assert!(checkpoints.contains("restored"), "{checkpoints}");
        assert_eq!(code(&rig, &["verify", "r"]), Some(0));
        let told = rig.waypost(&["resume", "r"]);
        assert!(told.contains("Nothing to do"), "{told}");
    }
}

#[test]
fn what_a_step_gave_otherwise_is_taken_up_by_the_steps_after_it() {
    for store in STORES {
        let rig = Rig::with(CHAIN).at(store);
        rig.write("go", "");
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        fs::remove_file(rig.path("a.txt")).unwrap();

        let mut command = rig.command(&["resume", "r", "-q"]);
        let told = rig.told(&command.env("N", "2").output().unwrap());

        assert!(told.starts_with("exit 0\n"), "{told}");
        // Step `a` has another output, so `b` runs. Step `b` pins the same file and has the same output, so `c`
        // and `d` are reused.
        assert_eq!(trace(&rig), ["a", "b", "c", "d", "a", "b"], "{store}");
    }
}

#[test]
fn only_what_comes_after_a_step_is_looked_at_again_in_a_graph() {
    let flow = r#"
max_parallel: 1
steps:
  - id: a
    run: echo a >> trace; echo one > a.txt; echo "n=${N:-1}" >> "$WAYPOST_OUTPUT"
    evidence: [ { sha256: a.txt } ]
  - {id: other, needs: [], run: 'echo other >> trace; echo x > other.txt', evidence: [ { sha256: other.txt } ]}
  - {id: b, needs: [a], run: 'echo b >> trace; echo y > b.txt', evidence: [ { file: b.txt } ]}
  - {id: c, needs: [b], run: 'echo c >> trace'}
  - {id: end, needs: [c, other], run: 'echo end >> trace; test -e go'}
"#;
    for store in STORES {
        let rig = Rig::with(flow).at(store);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        let before = trace(&rig);
        assert_eq!(before.len(), 5);
        rig.write("a.txt", "changed");
        rig.write("go", "");

        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0), "{store}");

        assert_eq!(trace(&rig)[5..], ["a", "end"], "{store}");

        rig.write("a.txt", "changed");
        let mut command = rig.command(&["resume", "r", "-q"]);
        let told = rig.told(&command.env("N", "2").output().unwrap());
        assert!(told.starts_with("exit 0\n"), "{told}");
        assert_eq!(trace(&rig)[7..], ["a", "b"], "{store}");
    }
}

#[test]
fn items_groups_and_files_are_trusted_by_their_evidence() {
    let flow = r#"
checkpoints: { retention: 100 }
steps:
  - id: each
    foreach:
      items: [x, y]
      as: name
      steps:
        - id: make
          run: echo "make $NAME" >> trace; echo "$NAME" > "$NAME.txt"
          env: { NAME: "${{ name }}" }
          evidence: [ { sha256: "${{ name }}.txt" } ]
        - {id: after, run: 'echo after >> trace'}
  - id: file
    workflow: parts/inner.yaml
  - id: loop
    repeat: { until: "iteration >= 2", max: 3 }
    steps:
      - id: pass
        run: echo pass >> trace; echo "$I" > loop.txt
        env: { I: "${{ iteration }}" }
        evidence: [ { sha256: loop.txt } ]
  - id: last
    run: echo last >> trace; test -e go
"#;
    for store in STORES {
        let rig = Rig::with(flow).at(store);
        fs::create_dir(rig.path("parts")).unwrap();
        rig.write("parts/inner.yaml", "steps:\n  - {id: in, run: 'echo in >> ../trace; echo in > in.txt', evidence: [ { sha256: in.txt } ]}\n  - {id: then, run: 'echo then >> ../trace'}\n");
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        let count = trace(&rig).len();

        rig.write("y.txt", "changed");
        rig.write("parts/in.txt", "changed");
        let told = rig.waypost(&["resume", "r", "-q"]);
        assert!(told.starts_with("exit 1\n"), "{told}");
        assert_eq!(trace(&rig)[count..], ["make y", "in", "last"], "{store}");

        rig.write("go", "");
        let count = trace(&rig).len();
        fs::remove_file(rig.path("loop.txt")).unwrap();
        let told = rig.waypost(&["resume", "r", "-q"]);
        assert!(told.starts_with("exit 0\n"), "{told}");
        assert!(trace(&rig)[count..].contains(&"pass".to_owned()), "{:?}", trace(&rig));
        assert_eq!(rig.read("loop.txt"), "2\n");
    }
}

#[test]
fn looking_tells_what_a_resume_would_go_by() {
    let flow = "steps:\n  - id: a\n    run: mkdir -p box; echo x > box/a.txt\n    evidence: [ { sha256: box/a.txt, name: the box } ]\n  - run: test -e go\n";
    for store in STORES {
        let rig = Rig::with(flow).at(store);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        assert_eq!(code(&rig, &["verify", "r"]), Some(0));

        rig.write("box/a.txt", "y");

        let plan = rig.json(&["plan", "r", "--json"]);
        assert_eq!(plan["decisions"][0]["action"], "rerun", "{plan}");
        assert_eq!(plan["decisions"][0]["cause"]["text"], "evidence no longer holds: the box");
        let told = rig.waypost(&["why", "r", "a"]);
        assert!(told.contains("evidence no longer holds: the box"), "{told}");
        let told = rig.waypost(&["verify", "r"]);
        assert!(told.starts_with("exit 4\n"), "{told}");
        assert!(told.contains("EVIDENCE FAILED: the box: expected"), "{told}");
        let verified = rig.json(&["verify", "r", "--json"]);
        let checkpoint = verified["checkpoints"].as_array().unwrap();
        let checkpoint = checkpoint.iter().find(|found| found["verdict"] == "failed").unwrap();
        assert_eq!(checkpoint["summary"]["failed"], 1, "{checkpoint}");
        assert_eq!(checkpoint["summary"]["satisfied"], false);
        assert_eq!(checkpoint["evidence"][0]["verdict"], "failed");
        assert_eq!(verified["sound"], true);
        let told = rig.waypost(&["show", "r", "--step", "a"]);
        assert!(told.contains("ok the box"), "what was found when it ended: {told}");
    }
}

#[test]
fn unknown_evidence_stops_a_resume_before_any_step() {
    let flow = "steps:\n  - {id: a, run: echo x > a.txt, evidence: [ { sha256: a.txt, timeout: 200ms } ]}\n  - {id: b, run: echo b >> trace; test -e go}\n";
    for store in STORES {
        let rig = Rig::with(flow).at(store);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        // A file too large for any check within its timeout.
        fs::remove_file(rig.path("a.txt")).unwrap();
        let sparse = fs::File::create(rig.path("a.txt")).unwrap();
        sparse.set_len(1 << 40).unwrap();

        let told = rig.waypost(&["resume", "r", "-q"]);

        assert!(told.starts_with("exit 4\n"), "{told}");
        assert!(told.contains("evidence could not be checked"), "{told}");
        assert_eq!(trace(&rig), ["b"], "{store}");
    }
}

#[test]
fn a_failure_of_evidence_is_tried_again_where_that_is_said() {
    let flow = r#"
steps:
  - id: a
    run: echo x >> trace; test "$(wc -l < trace)" -lt 3 || echo done > out.txt
    retry: { max: 5, delay: 10ms, when: [evidence] }
    evidence: [ { file: out.txt } ]
  - id: b
    run: echo y >> trace; exit 7
    retry: { max: 5, delay: 10ms, when: [evidence] }
    evidence: [ { exit: 0 } ]
"#;
    let rig = Rig::with(flow);

    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));

    assert_eq!(trace(&rig), ["x", "x", "x", "y"], "an exit code is not evidence");
}

#[test]
fn terms_say_how_and_when_a_claim_is_checked() {
    let flow = r#"
steps:
  - id: a
    run: (sleep 0.4; echo late > late.txt) & echo secret-word > kept.txt
    evidence:
      - { file: late.txt, within: 20s }
      - { file: gone.txt, not: true }
      - { file: kept.txt, size: 1, severity: warn, name: a hint, metadata: { ticket: OPS-7 } }
      - { file: kept.txt, size: "> 3", sensitive: true }
      - { sha256: kept.txt, at: verify }
  - run: test -e go
"#;
    for store in STORES {
        let rig = Rig::with(flow).at(store);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1), "the second step failed");
        let shown = rig.json(&["show", "r", "--json"]);
        let claims = shown["steps"][0]["evidence"].as_array().unwrap().clone();
        let verdicts: Vec<&str> = claims.iter().map(|claim| claim["verdict"].as_str().unwrap()).collect();
        assert_eq!(verdicts, ["ok", "ok", "failed", "ok", "ok"], "{claims:?}");
        assert_eq!(claims[2]["metadata"]["ticket"], "OPS-7");
        assert!(claims[3]["expected"].is_null() && claims[3]["found"].is_null(), "{claims:?}");

        // A change that only an explicit check finds.
        rig.write("kept.txt", "changed");
        rig.write("go", "");
        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0), "{store}");
        assert_eq!(code(&rig, &["verify", "r"]), Some(4), "{store}");
    }
}

#[test]
fn a_service_is_reused_by_evidence_and_restarts_alone() {
    let flow = r#"
steps:
  - id: api
    service: echo up >> trace; echo ready > ready.txt; while :; do sleep 0.05; done
    evidence: [ { file: ready.txt, within: 20s } ]
  - {id: a, run: 'test -e ready.txt; echo a >> trace'}
  - {id: b, run: 'test -e ready.txt; echo b >> trace; test -e go'}
"#;
    for store in STORES {
        let rig = Rig::with(flow).at(store);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        fs::remove_file(rig.path("ready.txt")).unwrap();
        rig.write("go", "");

        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0), "{store}");

        assert_eq!(trace(&rig), ["up", "a", "b", "up", "b"], "{store}");
    }
    let rig = Rig::with(&flow.replace("echo ready > ready.txt; ", "").replace("20s", "300ms"));
    let told = rig.waypost(&["run", "flow.yaml", "--id", "r", "-q"]);
    assert!(told.starts_with("exit 4\n"), "{told}");
}

#[test]
fn evidence_settles_what_must_not_be_repeated_and_was_cut() {
    let flow = r#"
steps:
  - id: publish
    idempotent: false
    run: echo publish >> trace; echo 7 > count.txt; echo done > done.txt; while [ ! -e go ]; do sleep 0.02; done
    outputs: { count: { from: count.txt } }
    evidence: [ { file: done.txt } ]
  - id: after
    run: echo "after ${{ steps.publish.outputs.count }}" >> trace
"#;
    for store in STORES {
        for (flow, settles) in [
            (flow.to_owned(), true),
            (flow.replace("{ file: done.txt }", "{ sha256: done.txt }"), false),
            (flow.replace("{ file: done.txt }", "{ file: other.txt }"), false),
            (flow.replace("from: count.txt", "from: gone.txt"), false),
            (flow.replace("{ file: done.txt }", "{ file: done.txt }, { exit: 0 }"), false),
        ] {
            let rig = Rig::with(&flow).at(store);
            let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
            rig.wait_for("done.txt", |text| text == "done\n");
            running.signal(libc::SIGKILL);
            running.end();
            wait_until("the run to be free", || code(&rig, &["plan", "r"]) == Some(0));

            let plan = rig.json(&["plan", "r", "--json"]);
            let told = rig.waypost(&["resume", "r", "-q"]);

            if settles {
                assert_eq!(plan["decisions"][0]["action"], "reuse", "{plan}");
                assert!(told.starts_with("exit 0\n"), "{told}");
                assert_eq!(trace(&rig), ["publish", "after 7"], "{store}");
                let shown = rig.json(&["show", "r", "--json"]);
                assert_eq!(shown["steps"][0]["evidence"][0]["verdict"], "ok", "{shown}");
            } else {
                assert_eq!(plan["decisions"][0]["action"], "ask", "{plan}");
                assert!(told.starts_with("exit 8\n"), "{flow}: {told}");
                assert_eq!(trace(&rig), ["publish"], "{store}");
            }
        }
    }
}

#[test]
fn other_kinds_are_told_by_what_is_there() {
    let flow = r#"
steps:
  - id: a
    run: printf '{"n":3}' > a.json; printf 'one\ntwo\n' > a.txt
    evidence:
      - { json: a.json, path: $.n, value: "> 2" }
      - { file: a.txt, lines: 2, contains: [one, two] }
      - { file: gone.txt, absent: true }
      - { port: 1, listening: false }
  - run: test -e go
"#;
    let rig = Rig::with(flow);
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    assert_eq!(code(&rig, &["verify", "r"]), Some(0));

    rig.write("a.json", r#"{"n":1}"#);
    assert_eq!(code(&rig, &["verify", "r"]), Some(4));
    rig.write("go", "");
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));
    assert_eq!(rig.read("a.json"), r#"{"n":3}"#, "it was done again");
}
