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

// Bug: outputs named a group by the branch of its only pass, `big~1`. Fix: the step path without the pass.
#[test]
fn a_group_is_named_by_its_id() {
    let rig =
        Rig::with("steps: [{id: big, steps: [{id: one, run: 'true'}, {id: two, run: 'echo 2; exit 3'}]}]\n");

    let said = rig.waypost(&["run", "flow.yaml", "--id", "r"]);

    assert!(said.contains("\nbig/two | 2\n"), "{said}");
    assert!(said.contains("error: step big/two failed: exit code 3"), "{said}");
    assert!(said.contains("error=step `two` failed: exit code 3"), "{said}");
    let shown = rig.waypost(&["show", "r", "--step", "big"]);
    assert!(shown.contains("step big failed: step `two` failed\n  cause: exit code 3"), "{shown}");
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
    assert!(said.contains(" progress big 3 items\n"), "{said}");

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
    assert!(work.ends_with("ms"), "{work}");
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
