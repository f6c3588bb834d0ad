//! `--treat-as done=STEP` and `--treat-as retry=STEP`: decisions about named steps in doubt.

use crate::in_doubt::{STORES, ran};
use crate::rig::{Rig, code_of, expect};

const FLOW: &str = "max_parallel: 4
steps:
  - {id: pay, idempotent: false, run: 'echo pay >> trace; test -e ok || sleep 60'}
  - id: grp
    steps: [{id: ship, idempotent: false, run: 'echo ship >> trace; test -e ok || sleep 60'}]
  - id: each
    needs: []
    foreach:
      items: [x]
      steps: [{id: mail, idempotent: false, run: 'echo mail >> trace; test -e ok || sleep 60'}]
  - {id: last, needs: [pay, grp, each], run: 'echo last$REF >> trace', env: {REF: \"${{ steps.pay.outputs.ref }}\"}}
";

const NAMED: [&str; 6] =
    ["--treat-as", "done=pay,grp/ship", "--output", "pay.ref=7", "--treat-as", "retry=each"];

/// Returns a killed run with three steps in doubt.
fn in_doubt(rig: Rig) -> Rig {
    let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
    rig.wait_for("trace", |text| text.lines().count() == 3);
    running.signal(libc::SIGKILL);
    running.end();
    rig.write("ok", "");
    rig.write("trace", "");
    rig
}

#[test]
fn steps_in_doubt_are_settled_by_name() {
    for store in STORES {
        let rig = in_doubt(Rig::with(FLOW).at(store));

        let plan = rig.json(&[&["resume", "r", "--dry-run", "--json"], &NAMED[..]].concat());
        let ended = code_of(&rig, &[&["resume", "r", "-q"], &NAMED[..]].concat());

        let action = |step: &str| {
            let decisions = plan["decisions"].as_array().unwrap();
            let decision = decisions.iter().find(|decision| decision["step"] == step).unwrap();
            decision["action"].as_str().unwrap().to_owned()
        };
        assert_eq!(["pay", "ship", "mail"].map(action), ["reuse", "reuse", "rerun"], "{store}");
        assert_eq!(ended, Some(0), "{store}");
        assert_eq!(ran(&rig), ["mail", "last7"], "{store}");
    }
}

#[test]
fn a_bare_decision_is_about_the_other_steps() {
    let rig = in_doubt(Rig::with(FLOW));
    let named = ["--treat-as", "done=pay", "--output", "pay.ref=7"];

    let open = rig.waypost(&[&["resume", "r"], &named[..]].concat());
    let ended = code_of(&rig, &[&["resume", "r", "-q", "--treat-as", "retry"], &named[..]].concat());

    assert!(open.starts_with("exit 8"), "{open}");
    assert!(!open.contains("step `pay`") && open.contains("step `grp/ship`"), "{open}");
    let rest = "  waypost resume r --treat-as done=pay --output pay.ref=7 --treat-as done=grp/ship --treat-as retry=each:x/mail  # ";
    assert!(open.contains(rest), "{open}");
    assert_eq!(ended, Some(0));
    let mut ran = ran(&rig);
    ran[..2].sort();
    assert_eq!(ran, ["mail", "ship", "last7"]);
}

#[test]
fn a_wrong_name_changes_nothing() {
    let rig = in_doubt(Rig::with(FLOW));
    let refused = |args: &[&str]| rig.waypost(&[&["resume", "r"], args].concat());

    let unasked = refused(&["--treat-as", "done=last"]);
    let twice = refused(&["--treat-as", "done=pay", "--treat-as", "retry=pay"]);
    let other = refused(&["--treat-as", "done=grp/ship", "--output", "pay.ref=7"]);
    let word = refused(&["--treat-as", "skip=pay"]);

    assert!(
        unasked.starts_with("exit 2") && unasked.contains("hint: in doubt: `pay`, `grp/ship`"),
        "{unasked}"
    );
    assert!(twice.starts_with("exit 2"), "{twice}");
    assert!(other.starts_with("exit 2") && other.contains("`--output pay.ref`"), "{other}");
    assert!(word.starts_with("exit 2") && word.contains("expected `done` or `retry`"), "{word}");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(8));
    assert_eq!(rig.read("trace"), "");
}

#[test]
fn a_failed_step_is_done_by_name() {
    let rig = Rig::with(
        "max_parallel: 4
steps:
  - {id: a, needs: [], run: 'false'}
  - {id: b, needs: [], run: 'test -e ok'}
  - {id: c, needs: [a, b], run: 'echo c >> trace'}
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig.write("ok", "");

    assert_eq!(code_of(&rig, &["resume", "r", "-q", "--treat-as", "done=a"]), Some(0));

    let ran_b = rig.json(&["why", "r", "b", "--json"])["executions"].as_array().unwrap().len();
    assert_eq!((ran(&rig), ran_b), (vec!["c".to_owned()], 2));
}

// Bug: the proposed `retry` also answered later questions of the resume, and `why STEP` named another step. Cause: the
// commands named the first step, or no step. Fix: each command names the steps of its questions.
#[test]
fn every_screen_of_doubt_has_the_commands_that_answer() {
    let rig = in_doubt(Rig::with(FLOW));
    let others = "--treat-as retry=grp/ship,each:x/mail";
    let named = format!("waypost resume r --treat-as done=pay --output pay.ref=VALUE {others}");
    let all = "waypost resume r --treat-as retry=pay,grp/ship,each:x/mail";

    for args in [&["resume", "r"][..], &["show", "r"], &["report", "r"], &["report", "r", "--html"]] {
        let told = rig.waypost(args);
        assert!(told.contains(&named), "{args:?}: {told}");
        assert!(told.contains(all), "{args:?}: {told}");
    }
    for step in ["pay", "grp/ship", "each:x/mail"] {
        let told = rig.waypost(&["why", "r", step]);
        assert!(told.contains(&format!("  waypost resume r --treat-as retry={step}")), "{told}");
        assert!(!told.contains("retry=pay,"), "{told}");
    }
}

#[test]
fn the_commands_of_a_doubt_are_a_list_with_the_store() {
    let rig = in_doubt(Rig::with(FLOW).at("file:kept"));

    let refused = rig.waypost(&["resume", "r"]);
    let shown = rig.waypost(&["show", "r"]);

    let list = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("  waypost resume")).map(str::to_owned).collect()
    };
    assert_eq!(list(&refused).len(), 3, "{refused}");
    assert!(list(&refused).iter().all(|line| line.contains(" --store file:kept")), "{refused}");
    for (line, words) in list(&refused).iter().zip(list(&shown)) {
        assert_eq!(line.rsplit_once("# ").unwrap().1, words.rsplit_once("# ").unwrap().1);
    }
    assert!(!refused.contains("--retry-failed"), "{refused}");
}

// Bug: `--treat-as done=STEP` of a failed step in an item was refused. Cause: only failed steps of groups and files were
// candidates. Fix: the failed steps of the named item are candidates too.
#[test]
fn a_failed_step_in_an_item_is_done_by_name() {
    let flow = "steps:
  - id: each
    foreach:
      items: [us east, eu]
      steps:
        - {id: f, run: 'test -e ok', outputs: {n: {from: stdout}}}
        - {id: h, run: 'echo h$N >> trace', env: {N: \"${{ steps.f.outputs.n }}\"}}
  - {id: last, run: 'echo last >> trace'}
";
    for (store, named) in STORES.iter().zip(["each:us east/f", "each:us%20east/f"]) {
        let rig = Rig::with(flow).at(store);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        let done =
            |step: &str| ["resume", "r", "-q", "--treat-as", &format!("done={step}")].map(str::to_owned);
        let output = |step: &str| ["--output".to_owned(), format!("{step}.n=7")];

        let first = [done(named).as_slice(), &output(named)].concat();
        let other = rig.waypost(&["resume", "r", "-q", "--treat-as", "retry=each:eu/f"]);
        code_of(&rig, &first.iter().map(String::as_str).collect::<Vec<_>>());
        let second = [done("each:eu").as_slice(), &output("each:eu/f")].concat();
        let ended = code_of(&rig, &second.iter().map(String::as_str).collect::<Vec<_>>());

        assert!(other.starts_with("exit 2") && other.contains("retries failed steps"), "{store}: {other}");
        assert_eq!(
            (ended, ran(&rig)),
            (Some(0), ["h7", "h7", "last"].map(str::to_owned).to_vec()),
            "{store}"
        );
        let shown = rig.waypost(&["show", "r"]);
        assert!(shown.contains("\nStep each:us%20east/f: done by "), "{shown}");
        assert!(shown.contains("\nStep each:eu/f: done by "), "{shown}");
    }
}

const MAIL: &str = "steps:
  - {id: b, run: 'echo b >> trace; test -e ok'}
  - {id: mail, if: failure(), idempotent: false, run: 'echo mail >> trace'}
";

#[test]
fn a_doubt_after_a_failure_is_answered_by_name_at_its_turn() {
    for (answer, repeated) in [("done=mail", false), ("retry=mail", true)] {
        let rig = Rig::with(MAIL);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));

        let asked = rig.waypost(&["resume", "r"]);
        let bare = rig.waypost(&["resume", "r", "--treat-as", "done"]);
        rig.write("trace", "");
        let ended = code_of(&rig, &["resume", "r", "-q", "--treat-as", answer]);

        assert!(asked.starts_with("exit 8") && asked.contains("in doubt at step mail"), "{asked}");
        assert!(bare.starts_with("exit 2") && bare.contains("done=STEP"), "{bare}");
        assert_eq!(ended, Some(1), "b failed again");
        assert_eq!(ran(&rig), if repeated { vec!["b", "mail"] } else { vec!["b"] }, "{answer}");
    }
}

#[test]
fn a_rerun_from_an_item_follows_the_answer() {
    let flow = "steps:
  - {id: a, run: 'true'}
  - id: each
    foreach: {items: [x, y], as: i, steps: [{id: s, run: 'echo $I >> trace', env: {I: \"${{ i }}\"}}]}
  - {id: b, idempotent: false, run: 'echo b >> trace'}
";
    for (answer, expected) in [("done=b", vec!["x"]), ("retry=b", vec!["x", "b"])] {
        let rig = Rig::with(flow);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        assert_eq!(code_of(&rig, &["resume", "r", "--from", "a", "-q"]), Some(8));
        rig.write("trace", "");

        let ended = code_of(&rig, &["resume", "r", "--from", "each:x/s", "--treat-as", answer, "-q"]);

        assert_eq!(ended, Some(0), "{answer}");
        assert_eq!(ran(&rig), expected, "{answer}");
    }
}

// After a rollback or a restart, `--treat-as done` was accepted without the outputs of the step, and every later resume failed
// at their reader. Cause: outputs of an earlier execution counted as kept, also by a state before that execution.
#[test]
fn a_step_done_before_a_rollback_needs_its_outputs() {
    let flow = "steps:
  - { id: a, idempotent: false, run: 'echo a >> trace; echo v=7 >> $WAYPOST_OUTPUT' }
  - { id: b, run: 'echo $V >> trace', env: { V: '${{ steps.a.outputs.v }}' } }
";
    for back in [&["rollback", "r@1", "-q"][..], &["resume", "r", "--restart", "-q"]] {
        let rig = Rig::with(flow);
        expect(&rig, &["run", "flow.yaml", "--id", "r", "-q"], 0, &[]);
        rig.call(back);

        expect(&rig, &["resume", "r"], 8, &["--treat-as done=a --output a.v=VALUE"]);
        for done in ["done", "done=a"] {
            let hint = ["outputs that `b` reads are missing", "`--output a.v=VALUE` gives the output"];
            expect(&rig, &["resume", "r", "--treat-as", done], 2, &hint);
        }
        expect(&rig, &["resume", "r", "--treat-as", "done=a", "--output", "a.v=7", "-q"], 0, &[]);
        assert_eq!(rig.read("trace"), "a\n7\n7\n", "{back:?}");
    }
}

#[test]
fn a_doubt_in_any_scope_takes_outputs() {
    let pay = "{id: pay, idempotent: false, run: 'echo pay >> trace; kill -9 $$'}";
    let tell = "{id: tell, run: 'echo $REF >> trace', env: {REF: \"${{ steps.pay.outputs.ref }}\"}}";
    let group = format!("steps: [{{id: in, steps: [{pay}, {tell}]}}]\n");
    let items = format!("steps: [{{id: in, foreach: {{items: [x], steps: [{pay}, {tell}]}}}}]\n");
    let passes =
        format!("steps: [{{id: in, repeat: {{until: \"true\", max: 2}}, steps: [{pay}, {tell}]}}]\n");
    for (flow, step) in [(group, "in/pay"), (items, "in:x/pay"), (passes, "in~1/pay")] {
        let rig = Rig::with(&flow);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(8), "{flow}");

        assert!(rig.waypost(&["resume", "r"]).contains(&format!("{step}.ref=VALUE")), "{flow}");
        let (done, output) = (format!("done={step}"), format!("{step}.ref=7"));
        let given = ["resume", "r", "-q", "--treat-as", &done, "--output", &output];
        assert_eq!(code_of(&rig, &given), Some(0), "{flow}");

        assert_eq!(ran(&rig), ["pay", "7"], "{flow}");
    }
}

// An answer that was applied at the turn of its step was recorded without the person.
#[test]
fn an_answer_at_the_turn_of_a_step_names_the_person() {
    let flow = "steps:
  - {id: a, run: 'echo $RANDOM$RANDOM > ev; echo v=$(cat ev) >> $WAYPOST_OUTPUT', evidence: [{file: ev}]}
  - {id: pay, needs: [a], idempotent: false, run: 'echo $V', env: {V: '${{ steps.a.outputs.v }}'}}
";
    for (answer, event) in [("done=pay", "step_settled"), ("retry=pay", "step_invalidated")] {
        let rig = Rig::with(flow);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

        assert_eq!(code_of(&rig, &["resume", "r", "-q", "--from", "a", "--treat-as", answer]), Some(0));

        let events = String::from_utf8(rig.call(&["events", "r", "--json"]).stdout).unwrap();
        let decided = events.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let decided: Vec<_> =
            decided.filter(|told| told["event"] == event && told["step"] == "pay").collect();
        assert!(decided.iter().any(|told| told["cause"]["by"].is_string()), "{answer}: {decided:?}");
    }
}

// Bug: after a failure, the question about a step of a group named the step. The answer was without effect: the next resume asked
// about the group. Fix: the question names the group.
#[test]
fn a_doubt_in_a_group_after_a_failure_is_about_the_group() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo a >> trace; test -e ok'}
  - id: g
    if: failure()
    steps: [{id: n, idempotent: false, run: 'echo n >> trace; kill -9 $(ps -o ppid= -p $PPID); sleep 3'}]
",
    );

    let asked = rig.waypost(&["run", "flow.yaml", "--id", "r"]);
    let answered = code_of(&rig, &["resume", "r", "-q", "--treat-as", "done=g"]);

    assert!(asked.starts_with("exit 8") && asked.contains("waypost resume r --treat-as done=g "), "{asked}");
    assert_eq!(answered, Some(1), "a failed again");
    assert_eq!(ran(&rig), ["a", "n", "a"]);
}
