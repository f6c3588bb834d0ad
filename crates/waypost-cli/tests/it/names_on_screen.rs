//! The words of the user in outputs: groups by their ids, items by their keys, waits that are no work.

use crate::rig::{Rig, code_of};

const EACH: &str = "name: each
steps:
  - id: big
    foreach:
      items: [x, y, z]
      as: it
      steps: [{id: w, run: 'test -e ok || test $IT = x', env: {IT: '${{ it }}'}}]
  - {id: end, run: 'true'}
";

// Bug: outputs named a group by the scope of its only pass, `big~1`. Fix: the step path without the pass.
#[test]
fn a_group_is_named_by_its_id() {
    let rig =
        Rig::with("steps: [{id: big, steps: [{id: one, run: 'true'}, {id: two, run: 'echo 2; exit 3'}]}]\n");

    let said = rig.waypost(&["run", "flow.yaml", "--id", "r"]);

    assert!(said.contains("\nbig/two | 2\n"), "{said}");
    assert!(said.contains("error: step big/two failed: exit code 3"), "{said}");
    assert!(said.contains("step_failed big: step `big/two` failed: exit code 3"), "{said}");
    let shown = rig.waypost(&["show", "r", "--step", "big"]);
    assert!(shown.contains("step big failed: step `big/two` failed\n  cause: exit code 3"), "{shown}");
    assert_eq!(code_of(&rig, &["logs", "r", "big/two"]), Some(0));
}

#[test]
fn a_group_of_an_item_is_named_by_item_and_id() {
    let rig = Rig::with(
        "steps: [{id: each, foreach: {items: [a], steps: [{id: big, steps: [{id: two, run: 'echo 2'}]}]}}]\n",
    );

    let said = rig.waypost(&["run", "flow.yaml", "--id", "r"]);

    assert!(said.contains("\neach:a/big/two | 2\n"), "{said}");
    assert_eq!(rig.call(&["logs", "r", "each:a/big/two"]).status.code(), Some(0));
}

// Bug: `show` counted no items of a failed step.
#[test]
fn a_failed_foreach_counts_its_items() {
    let rig = Rig::with(EACH);
    let said = rig.waypost(&["run", "flow.yaml", "--id", "r"]);
    assert!(said.contains("retry with: waypost dead-letters retry r"), "{said}");
    assert!(said.contains(" progress big: 3 items\n"), "{said}");

    let shown = rig.waypost(&["show", "r"]);

    assert!(shown.contains("3 items: 1 done, 2 failed"), "{shown}");
}

#[test]
fn show_names_the_tolerated_items() {
    let rig = Rig::with(&EACH.replace("as: it", "max_failures: 2\n      as: it"));
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(3));

    let shown = rig.waypost(&["show", "r"]);

    assert!(shown.contains("\nItem y of step big failed: exit code 1\n"), "{shown}");
    assert!(shown.contains("\nRetry with: waypost dead-letters retry r\n"), "{shown}");
}

// Bug: the time of a retry was beside another step in `list`, and missing in `show`.
#[test]
fn a_retry_is_shown_with_its_step() {
    let rig = Rig::with(
        "steps:\n  - {id: long, needs: [], run: sleep 1000}\n  - {id: flaky, needs: [], retry: {max: 1, delay: 1h}, \
         run: exit 1}\n",
    );
    let mut running = rig.start(&["run", "flow.yaml", "--id", "r", "-j", "2"]);
    running.wait_for_line("step_retried flaky");

    let (listed, shown) = (rig.waypost(&["list"]), rig.waypost(&["show", "r"]));

    assert!(listed.contains("  WAITS UNTIL") && !listed.contains("long until"), "{listed}");
    assert!(shown.contains("\nStep flaky: next try at 20"), "{shown}");
    running.signal(libc::SIGTERM);
    running.end_soon();
}

// Bug: the time of work had the time of sleeps and questions; a step with an answer had two attempts.
#[test]
fn a_wait_is_no_attempt_and_no_work() {
    let rig = Rig::with("steps: [{id: nap, sleep: 1500ms}, {id: ask, approve: 'Go on?'}]\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(75));
    assert_eq!(code_of(&rig, &["answer", "r", "ask", "yes", "-q"]), Some(0));
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));

    let shown = rig.json(&["show", "r", "--json"]);
    let page = String::from_utf8(rig.call(&["report", "r", "--html"]).stdout).unwrap();

    assert_eq!(shown["steps"][1]["attempts"], 1, "{shown}");
    let work = page.split("<th>time of work</th><td>").nth(1).unwrap().split('<').next().unwrap();
    let seconds = work.strip_suffix('s').and_then(|work| work.parse::<f64>().ok());
    assert!(work.ends_with("ms") || seconds.is_some_and(|work| work < 1.5), "{work}");
}

#[test]
fn the_supervisor_is_not_started_by_hand() {
    let said = Rig::new().waypost(&["supervise"]);

    assert!(said.starts_with("exit 2") && said.contains("`waypost supervise` is internal"), "{said}");
}

#[test]
fn a_quiet_stop_at_the_wished_step_prints_nothing() {
    let rig = Rig::with("steps: [{id: a, run: 'true'}, {id: b, run: 'true'}]\n");

    let said = rig.waypost(&["run", "flow.yaml", "--id", "r", "--until", "a", "-q"]);

    assert_eq!(said, "exit 0\n--- stdout\n--- stderr\n");
}

const SCOPES: &str = "steps:
  - id: big
    steps: [{id: one, run: echo 1}, {id: two, name: Second, run: 'echo 2; test -e ok'}]
  - id: loop
    repeat: {until: iteration >= 2, max: 3}
    steps: [{id: x, run: echo x}]
  - id: each
    foreach: {items: [a, b], as: it, steps: [{id: w, run: 'echo $IT; test -e fine || test $IT = a', env: {IT: '${{ it }}'}}]}
on_finish: [{run: echo bye}]
";

/// A run of `SCOPES` whose group failed, then an item, and that completed.
fn of_scopes() -> Rig {
    let rig = Rig::with(SCOPES);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig.write("ok", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(1));
    rig.write("fine", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));
    rig
}

// Bug: texts showed `big~1`, `c:workflow` and `on_finish:run`, and `logs` called the first execution after a resume a redo.
#[test]
fn a_scope_that_is_alone_has_no_key_in_texts() {
    let rig = of_scopes();

    let logs = rig.waypost(&["logs", "r"]);
    let events = rig.waypost(&["events", "r"]);
    let shown = rig.waypost(&["show", "r"]);

    assert!(logs.contains("==> big/two (attempt 2), started"), "{logs}");
    assert!(logs.contains("==> loop~2/x (attempt 1, iteration 2), started"), "{logs}");
    assert!(logs.contains("==> each:a/w (attempt 1), started"), "{logs}");
    assert!(logs.contains("==> on_finish/on_finish-1 (attempt 1, rerun 2), started"), "{logs}");
    assert!(events.contains("big@3      step_failed two (Second): exit code 1, log 2 B\n"), "{events}");
    assert!(events.contains("  item_dead each: b\n") && events.contains("each:b@"), "{events}");
    assert!(events.contains("run_failed big/two (Second): exit code 1\n"), "{events}");
    assert!(!events.contains("until 20"), "{events}");
    assert!(shown.contains("\non_finish/on_finish-1 "), "{shown}");
    let raw = ["big~1", ":run", "exit_code", "kind=", "key=", "SCOPE"];
    for text in [&logs, &events, &shown] {
        assert!(raw.iter().all(|raw| !text.contains(raw)), "{text}");
    }
}

#[test]
fn show_lists_the_steps_of_a_group_and_the_iterations() {
    let rig = of_scopes();

    let group = rig.waypost(&["show", "r", "--step", "big"]);
    let passes = rig.waypost(&["show", "r", "--step", "loop"]);

    assert!(group.contains("\nbig/two (Second)  completed  2         0 "), "{group}");
    assert!(passes.contains("\nITERATION  STATUS     TOOK\n1          completed  "), "{passes}");
    assert_eq!(rig.json(&["show", "r", "--step", "loop", "--json"])["items"][1]["key"], "2");
}

#[test]
fn a_checkpoint_of_an_only_scope_is_named_without_its_key() {
    let rig = of_scopes();

    let of_group = rig.json(&["show", "r/big@3", "--json"]);

    assert_eq!(of_group["checkpoint"]["ref"], "r/big~1@3");
    // Two iterations: which one is unclear.
    assert_eq!(code_of(&rig, &["show", "r/loop@1"]), Some(2));
    assert_eq!(code_of(&rig, &["show", "r/loop~2@1"]), Some(0));
}

const WITHIN: &str = "steps:
  - {id: grp, steps: [{id: one, run: echo 1}, {id: two, run: test -e fine}], on_failure: [{id: cry, run: echo}]}
  - {id: inc, workflow: sub.yaml, on_failure: [{id: sob, run: echo}]}
  - {id: each, foreach: {items: [a, b], steps: [{id: do, run: echo}]}}
on_failure: [{id: warn, run: echo}]
on_finish: [{id: tell, run: echo}]
";

// Bug: `checkpoints`, the report, `why` and errors showed `grp~1/two`, `inc:workflow` and `grp-hooks:run.on_failure`, and
// spoke of scopes without a fork. Fix: all texts take the path of a step from `step_names`.
#[test]
fn every_text_names_a_step_by_its_path() {
    let rig = Rig::with(WITHIN);
    rig.write("sub.yaml", "steps: [{id: s1, run: echo}, {id: s2, run: test -e sound}]\n");

    let failed = rig.waypost(&["run", "flow.yaml", "--id", "r"]);
    rig.write("fine", "");
    let again = rig.waypost(&["resume", "r"]);
    let looks = [
        rig.waypost(&["checkpoints", "r"]),
        rig.waypost(&["report", "r"]),
        rig.waypost(&["report", "r", "--html"]),
        rig.waypost(&["events", "r"]),
        rig.waypost(&["why", "r", "cry"]),
        rig.waypost(&["show", "r"]),
        rig.waypost(&["show", "r", "--step", "inc/none"]),
        rig.waypost(&["plan", "r"]),
    ];

    assert!(failed.contains("error: step grp/two failed: exit code 1\n"), "{failed}");
    assert!(again.contains("error: step inc/s2 failed: exit code 1\n"), "{again}");
    let [checkpoints, report, html, events, why, shown, none, _] = &looks;
    assert!(
        checkpoints.contains("\nr/grp@1 ") && checkpoints.contains("\nr/inc:on_failure@1 "),
        "{checkpoints}"
    );
    assert!(report.contains("\n## `grp/two`: completed\n"), "{report}");
    assert!(html.contains("<td>inc:on_failure</td>"), "{html}");
    assert!(events.contains(" item_started grp: on_failure\n"), "{events}");
    assert!(events.contains(" step_failed inc: step `inc/s2` failed: exit code 1\n"), "{events}");
    assert!(why.contains("\nstep grp:on_failure/cry: "), "{why}");
    assert!(shown.contains("\nstep inc failed: step `inc/s2` failed\n"), "{shown}");
    assert!(none.contains("no step `none` in scope `inc` of run r"), "{none}");
    for text in looks.iter().chain([&failed, &again]) {
        let text =
            text.lines().filter(|line| !line.starts_with("<!-- section ")).collect::<Vec<_>>().join("\n");
        for raw in ["grp~1", ":workflow", "-hooks", "run.on", " branch"] {
            assert!(!text.contains(raw), "{raw}: {text}");
        }
    }
    assert_eq!(rig.call(&["logs", "r", "grp:on_failure/cry"]).stdout, b"\n");
    assert_eq!(code_of(&rig, &["show", "r/grp:on_failure@1"]), Some(0));
    assert_eq!(code_of(&rig, &["checkpoints", "r", "--scope", "inc:on_failure"]), Some(0));
}

// Bug: `why RUN tell` and `show --step tell` were refused where `logs RUN tell` works. Fix: the bare id of a step with
// records in one scope is that step, for all commands.
#[test]
fn a_bare_id_is_the_step_of_its_only_scope() {
    let rig = Rig::with(WITHIN);
    rig.write("sub.yaml", "steps: [{id: s1, run: echo}]\n");
    rig.write("fine", "");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    for (id, path) in [("tell", "on_finish/tell"), ("two", "grp/two"), ("s1", "inc/s1")] {
        assert!(rig.waypost(&["why", "r", id]).contains(&format!("step {path}: ")), "{id}");
        assert!(
            rig.waypost(&["show", "r", "--step", id]).contains(&format!("\n{path}  completed\n")),
            "{id}"
        );
        assert_eq!(code_of(&rig, &["logs", "r", id]), Some(0));
    }
    let several = rig.waypost(&["why", "r", "do"]);
    assert!(several.contains("name one of each:a/do, each:b/do\n"), "{several}");
    let resumed = rig.waypost(&["resume", "r", "--from", "s1"]);
    assert!(resumed.contains(" step_invalidated s1: rerun requested"), "{resumed}");
}
