//! Pairs of features that meet in the decision what a resume runs again: the result is that of a clean run.

use crate::rig::{Rig, code_of, ran, remove, resume, run};

/// Starts run `r`, and kills it in the hook `h`.
fn killed_in_hook(rig: &Rig) {
    let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
    rig.wait_for("trace", |text| text.contains('h'));
    running.signal(libc::SIGKILL);
    running.end();
}

/// Writes the workflow with another command text.
fn edit(rig: &Rig, old: &str, new: &str) {
    rig.write("flow.yaml", &rig.read("flow.yaml").replace(old, new));
}

#[test]
fn a_retry_of_a_failed_item_looks_at_its_finished_steps() {
    let rig = Rig::with(
        "steps:
  - id: f
    foreach:
      items: [x]
      steps:
        - {id: p, run: 'echo p >> trace; cat in > p.txt', evidence: [{sha256: p.txt}]}
        - {id: q, run: 'echo q >> trace; test -e ok; cp p.txt q.txt'}
",
    );
    rig.write("in", "old");
    assert_eq!(run(&rig), Some(1));
    rig.write("ok", "");
    rig.write("in", "new");
    rig.write("p.txt", "damaged");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!((ran(&rig).as_str(), rig.read("q.txt").as_str()), ("p q", "new"));
}

#[test]
fn a_kill_in_a_hook_hides_no_failed_evidence_of_items() {
    let rig = Rig::with(
        "steps:
  - id: f
    foreach: {items: [x], steps: [{id: p, run: 'echo p >> trace; cat in > p.txt', evidence: [{sha256: p.txt}]}]}
    on_success: [{run: 'echo h >> trace; test -e ok || sleep 60'}]
  - {id: z, run: 'cp p.txt z.txt'}
",
    );
    rig.write("in", "old");
    killed_in_hook(&rig);
    rig.write("ok", "");
    rig.write("in", "new");
    rig.write("p.txt", "damaged");

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!(rig.read("z.txt"), "new");
}

#[test]
fn a_changed_file_of_an_item_reaches_the_hook_and_the_next_step() {
    let rig = Rig::with(
        "steps:
  - id: f
    foreach: {items: [x], steps: [{id: p, run: 'echo p >> trace; cat in > p.txt', evidence: [{sha256: p.txt}]}]}
    on_success: [{run: 'echo h >> trace'}]
  - {id: z, run: 'echo z >> trace; cp p.txt z.txt'}
",
    );
    rig.write("in", "old");
    assert_eq!(run(&rig), Some(0));
    rig.write("in", "new");
    remove(&rig, "p.txt");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!((ran(&rig).as_str(), rig.read("z.txt").as_str()), ("p h z", "new"));
}

#[test]
fn a_rollback_repeats_no_effect_without_a_question() {
    let rig = Rig::with(
        "steps:\n  - {id: a, run: echo a >> trace}\n  - {id: pay, idempotent: false, run: echo pay >> trace}\n",
    );
    assert_eq!(run(&rig), Some(0));
    assert_eq!(code_of(&rig, &["rollback", "r@2"]), Some(0));
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(8));
    assert_eq!(ran(&rig), "");
    assert_eq!(resume(&rig, &["--treat-as", "retry"]), Some(0));
    assert_eq!(ran(&rig), "pay");

    assert_eq!(code_of(&rig, &["rollback", "r@2"]), Some(0));
    assert_eq!(resume(&rig, &["--treat-as", "retry"]), Some(0), "straight after the rollback");
    assert_eq!(ran(&rig), "pay");
    assert_eq!(code_of(&rig, &["rollback", "r@2"]), Some(0));
    assert_eq!(resume(&rig, &["--treat-as", "done"]), Some(0), "straight after the rollback");
    assert_eq!(ran(&rig), "");
}

#[test]
fn a_changed_effect_in_an_item_is_asked_about() {
    let rig = Rig::with(
        "steps:
  - id: f
    foreach: {items: [x], steps: [{id: pay, idempotent: false, run: 'echo pay >> trace'}]}
",
    );
    assert_eq!(run(&rig), Some(0));
    edit(&rig, "echo pay", "echo  pay");
    ran(&rig);

    assert_eq!(resume(&rig, &["--rerun-changed"]), Some(8));

    assert_eq!(ran(&rig), "");
}

#[test]
fn a_changed_step_reruns_in_failed_items_too() {
    let rig = Rig::with(
        "steps:
  - id: f
    foreach:
      items: [x, y]
      as: i
      max_parallel: 1
      steps:
        - {id: p, run: 'echo p$I >> trace; echo old > p$I.txt', env: {I: '${{ i }}'}}
        - {id: q, run: 'echo q$I >> trace; test $I = y || test -e ok', env: {I: '${{ i }}'}}
",
    );
    assert_eq!(run(&rig), Some(1));
    rig.write("ok", "");
    edit(&rig, "echo old", "echo new");
    ran(&rig);

    assert_eq!(resume(&rig, &["--rerun-changed"]), Some(0));

    assert_eq!(ran(&rig), "px qx py qy");
    assert_eq!(rig.read("px.txt"), "new\n");
}

const PASSES: &str = "steps:
  - id: g
    repeat: {until: 'iteration >= 2', max: 2}
    steps:
      - {id: p, run: 'echo p$I >> trace; cat in$I > p$I.txt', env: {I: '${{ iteration }}'}}
  - {id: z, run: 'echo z >> trace; cat p1.txt p2.txt > z.txt'}
";

fn passes() -> Rig {
    let rig = Rig::with(PASSES);
    rig.write("in1", "1");
    rig.write("in2", "2");
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    rig
}

#[test]
fn a_changed_step_of_a_group_reruns_in_every_pass() {
    let rig = passes();
    edit(&rig, "cat in", "cat  in");

    assert_eq!(resume(&rig, &["--rerun-changed"]), Some(0));

    assert_eq!(ran(&rig), "p1 p2 z");
}

#[test]
fn a_named_step_of_an_earlier_pass_runs_in_that_pass() {
    let rig = passes();

    assert_eq!(resume(&rig, &["--from", "g~1/p"]), Some(0));

    assert_eq!(ran(&rig), "p1 p2 z");
}

#[test]
fn a_file_edited_in_place_is_made_again_from_the_first_step() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo a >> trace; echo 1 > d', evidence: [{sha256: d}]}
  - {id: b, run: 'echo b >> trace; echo 2 >> d', evidence: [{sha256: d}]}
",
    );
    assert_eq!(run(&rig), Some(0));
    remove(&rig, "d");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!((ran(&rig).as_str(), rig.read("d").as_str()), ("a b", "1\n2\n"));
}

#[test]
fn a_resume_until_a_step_ends_where_evidence_failed() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo a >> trace; cat in > a.txt', evidence: [{sha256: a.txt}]}
  - {id: b, run: echo b >> trace}
  - {id: c, run: echo c >> trace}
",
    );
    rig.write("in", "1");
    assert_eq!(run(&rig), Some(0));
    rig.write("in", "2");
    remove(&rig, "a.txt");
    ran(&rig);

    assert_eq!(resume(&rig, &["--until", "b"]), Some(0));
    assert_eq!(ran(&rig), "a b");
    assert_eq!(resume(&rig, &[]), Some(0));
    assert_eq!(ran(&rig), "c");
}

const ITEMS: &str = "steps:
  - {id: a, run: 'echo a >> trace; echo 1 > a.txt', evidence: [{sha256: a.txt}]}
  - id: f
    foreach:
      items: [x, y]
      as: i
      max_parallel: 1
      steps:
        - {id: p, run: 'echo p$I >> trace', env: {I: '${{ i }}'}}
        - {id: q, run: 'echo q$I >> trace; test -e ok', env: {I: '${{ i }}'}}
";

#[test]
fn a_request_below_a_rerun_step_reruns_no_other_item() {
    let rig = Rig::with(ITEMS);
    rig.write("ok", "");
    assert_eq!(run(&rig), Some(0));
    remove(&rig, "a.txt");
    ran(&rig);

    assert_eq!(resume(&rig, &["--from", "f:x/q"]), Some(0));
    assert_eq!(ran(&rig), "a qx");

    edit(&rig, "echo q", "echo  q");
    remove(&rig, "a.txt");
    assert_eq!(resume(&rig, &["--rerun-changed"]), Some(0));
    assert_eq!(ran(&rig), "a qx qy");
}

#[test]
fn failed_items_are_retried_after_a_rerun_upstream() {
    let rig = Rig::with(ITEMS);
    assert_eq!(run(&rig), Some(1));
    rig.write("ok", "");
    remove(&rig, "a.txt");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!(ran(&rig), "a qx qy");
}

#[test]
fn an_edit_of_a_step_with_a_pending_hook_runs_the_step() {
    let rig = Rig::with(
        "steps:
  - {id: b, run: 'echo b >> trace; echo old > b.txt', on_success: [{run: 'echo h >> trace; test -e ok || sleep 60'}]}
",
    );
    killed_in_hook(&rig);
    rig.write("ok", "");
    edit(&rig, "echo old", "echo new");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!((ran(&rig).as_str(), rig.read("b.txt").as_str()), ("b h", "new\n"));
}

#[test]
fn a_step_added_to_an_open_group_runs() {
    let rig = Rig::with(
        "steps:
  - id: g
    steps:
      - {id: p, run: 'echo p >> trace'}
      - {id: q, run: 'echo q >> trace; test -e ok'}
",
    );
    assert_eq!(run(&rig), Some(1));
    rig.write("ok", "");
    edit(&rig, "      - {id: q", "      - {id: m, run: 'echo m >> trace'}\n      - {id: q");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!(ran(&rig), "m q");
}

#[test]
fn a_step_added_to_finished_items_runs_alone() {
    let rig =
        Rig::with("steps:\n  - id: f\n    foreach: {items: [x], steps: [{id: p, run: 'echo p >> trace'}]}\n");
    assert_eq!(run(&rig), Some(0));
    edit(&rig, "steps: [{id: p", "steps: [{id: m, run: 'echo m >> trace'}, {id: p");
    ran(&rig);

    assert_eq!(resume(&rig, &["--keep-finished"]), Some(0));

    assert_eq!(ran(&rig), "m");
}

#[test]
fn another_list_of_items_runs_the_hook_once_more() {
    let rig = Rig::with(
        "steps:
  - id: f
    foreach: {items: [x], as: i, steps: [{id: p, run: 'echo p$I >> trace', env: {I: '${{ i }}'}}]}
    on_success: [{run: echo h >> trace}]
",
    );
    assert_eq!(run(&rig), Some(0));
    edit(&rig, "items: [x]", "items: [x, y]");
    ran(&rig);

    assert_eq!(resume(&rig, &["--rerun-changed"]), Some(0));

    assert_eq!(ran(&rig).split_whitespace().last(), Some("h"));
}

#[test]
fn an_answer_counts_when_a_step_before_it_reruns() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo a >> trace; echo 1 > a.txt', evidence: [{sha256: a.txt}]}
  - {id: ok, approve: 'Go on?'}
  - {id: z, run: echo z >> trace}
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]), Some(75));
    assert_eq!(code_of(&rig, &["answer", "r", "yes"]), Some(0));
    remove(&rig, "a.txt");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!(ran(&rig), "a z");
}

#[test]
fn a_changed_param_and_failed_evidence_meet() {
    let rig = Rig::with(
        "params: {k: {default: '1'}}
steps:
  - {id: a, run: 'echo a >> trace; echo 1 > a.txt', evidence: [{sha256: a.txt}]}
  - {id: b, run: 'echo b$K >> trace', env: {K: '${{ params.k }}'}}
",
    );
    assert_eq!(run(&rig), Some(0));
    remove(&rig, "a.txt");
    ran(&rig);

    assert_eq!(resume(&rig, &["--from", "b", "--set", "k=2"]), Some(0));

    assert_eq!(ran(&rig), "a b2");
}

#[test]
fn an_output_of_a_nested_item_counts_outside_of_the_outer_items() {
    let rig = Rig::with(
        "steps:
  - id: a
    foreach:
      items: [x]
      steps:
        - id: b
          foreach:
            items: [y]
            steps:
              - {id: p, run: 'echo p >> trace; echo 1 > p.txt; echo v=$(cat in) >> $WAYPOST_OUTPUT', evidence: [{sha256: p.txt}]}
              - {id: q, run: 'echo q >> trace'}
        - {id: s, needs: [b], run: 'echo s >> trace'}
  - {id: d, needs: [a], run: 'echo d >> trace'}
",
    );
    rig.write("in", "1");
    assert_eq!(run(&rig), Some(0));
    rig.write("in", "2");
    remove(&rig, "p.txt");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(0));
    assert_eq!(ran(&rig), "p q s d");
    remove(&rig, "p.txt");

    assert_eq!(resume(&rig, &[]), Some(0));
    assert_eq!(ran(&rig), "p", "the same output and file rerun nothing");
}

const TOLERATED: &str = "steps:
  - {id: a, run: 'echo a >> trace; test -e ok', continue_on_error: true}
  - {id: b, run: 'echo b${{ steps.a.exit_code }} >> trace', needs: [a]}
  - {id: c, run: echo c >> trace}
  - id: each
    needs: [c]
    foreach:
      items: [x, y]
      as: it
      steps:
        - {id: f, run: 'echo f${{ it }} >> trace; test -e ok || test ${{ it }} = y', continue_on_error: true}
        - {id: g, run: 'echo g${{ it }} >> trace', evidence: [{exit: 0}]}
  - {id: d, needs: [each], run: echo d >> trace, evidence: [{exit: 0}]}
";

#[test]
fn a_retry_of_failures_runs_tolerated_steps_and_their_readers() {
    let rig = Rig::with(TOLERATED);
    assert_eq!(run(&rig), Some(3));
    rig.write("ok", "");
    ran(&rig);
    assert_eq!(resume(&rig, &[]), Some(3), "a plain resume retries no tolerated failure");
    assert_eq!(ran(&rig), "");

    assert_eq!(resume(&rig, &["--retry-failed"]), Some(0));

    let mut again: Vec<String> = ran(&rig).split(' ').map(ToOwned::to_owned).collect();
    again.sort();
    assert_eq!(again, ["a", "b0", "d", "fx", "gx"]);
    assert_eq!(resume(&rig, &["--retry-failed"]), Some(0), "no failure is left");
    assert_eq!(ran(&rig), "");
}

// The result of a step beyond a rerun one stayed that of the later execution: `a.txt` was 1 and `b.txt` was 2. Step `c`
// has not begun since: its result is reused if its input is equal.
#[test]
fn a_rollback_runs_again_what_has_run_since() {
    for (value, runs) in [("1", "a b"), ("3", "a b c")] {
        let rig = Rig::with(
            "steps:
  - {id: a, run: 'echo a >> trace; cat in > a.txt', evidence: [{sha256: a.txt}]}
  - {id: b, run: 'echo b >> trace; cp a.txt b.txt'}
  - {id: c, run: 'echo c >> trace; cp b.txt c.txt'}
",
        );
        rig.write("in", "1");
        assert_eq!(run(&rig), Some(0));
        rig.write("in", "2");
        remove(&rig, "a.txt");
        assert_eq!(resume(&rig, &["--until", "b"]), Some(0));
        rig.write("in", value);
        ran(&rig);

        assert_eq!(code_of(&rig, &["rollback", "r@4", "--redo", "-q"]), Some(0));
        assert_eq!(resume(&rig, &[]), Some(0));

        assert_eq!(ran(&rig), runs);
        assert_eq!(["a.txt", "b.txt", "c.txt"].map(|file| rig.read(file)), [value; 3]);
    }
}

#[test]
fn a_rollback_keeps_what_was_out_of_force_and_has_not_run_since() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo a >> trace; test ! -e stop && echo 1 > a.txt', evidence: [{sha256: a.txt}]}
  - {id: b, run: 'echo b >> trace'}
",
    );
    assert_eq!(run(&rig), Some(0));
    remove(&rig, "a.txt");
    rig.write("stop", "");
    assert_eq!(resume(&rig, &[]), Some(1));
    assert_eq!(code_of(&rig, &["checkpoint", "r", "--label", "f"]), Some(0));
    remove(&rig, "stop");
    assert_eq!(resume(&rig, &[]), Some(0));
    ran(&rig);

    assert_eq!(code_of(&rig, &["rollback", "r@f", "-q"]), Some(0));
    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!(ran(&rig), "a");
}

#[test]
fn a_failed_rerun_keeps_the_results_below_it() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo a >> trace; test -e ok; echo 1 > a.txt', evidence: [{sha256: a.txt}]}
  - {id: b, run: echo b >> trace}
",
    );
    rig.write("ok", "");
    assert_eq!(run(&rig), Some(0));
    remove(&rig, "a.txt");
    remove(&rig, "ok");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(1));
    assert_eq!(ran(&rig), "a");
    rig.write("ok", "");
    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!(ran(&rig), "a");
}

#[test]
fn a_failure_counts_for_steps_beyond_its_readers() {
    let rig = Rig::with(
        "steps:
  - {id: a, needs: [], run: 'echo a >> trace; test -e ok'}
  - {id: b, needs: [a], if: always(), run: echo b >> trace}
  - {id: c, needs: [b], if: always(), run: echo c >> trace}
  - {id: z, needs: [], run: echo z > z.txt, evidence: [{sha256: z.txt}]}
",
    );
    assert_eq!(run(&rig), Some(1));
    assert_eq!(ran(&rig), "a b c");
    rig.write("ok", "");

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!(ran(&rig), "a b c");
}

#[test]
fn an_added_item_below_lost_evidence_runs_alone() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo a >> trace; echo 1 > a.txt', evidence: [{sha256: a.txt}]}
  - id: f
    foreach: {items: [x, y], as: i, steps: [{id: p, run: 'echo p$I >> trace', env: {I: '${{ i }}'}}]}
",
    );
    assert_eq!(run(&rig), Some(0));
    remove(&rig, "a.txt");
    edit(&rig, "items: [x, y]", "items: [x, y, z]");
    ran(&rig);

    assert_eq!(resume(&rig, &["--rerun-changed"]), Some(0));

    assert_eq!(ran(&rig), "a pz");
}

/// The retry of a tolerated failure repeats no effect `b` unasked, and the answer of a person counts.
#[track_caller]
fn asks_about_the_effect(flow: &str) {
    let rig = Rig::with(flow);
    assert_eq!(run(&rig), Some(3));
    rig.write("ok", "");
    ran(&rig);

    assert_eq!(resume(&rig, &["--retry-failed"]), Some(8), "{flow}");
    assert_eq!(ran(&rig), "a", "{flow}");
    assert_eq!(resume(&rig, &["--treat-as", "done"]), Some(0), "{flow}");
    assert_eq!(ran(&rig), "", "{flow}");
}

const FAILS_ONCE: &str = "{id: a, run: 'echo a >> trace; test -e ok', continue_on_error: true}";
const EFFECT: &str = "{id: b, idempotent: false, run: 'echo b >> trace'}";

#[test]
fn a_retried_failure_asks_about_a_finished_effect() {
    asks_about_the_effect(&format!("steps:\n  - {FAILS_ONCE}\n  - {EFFECT}\n"));
    asks_about_the_effect(&format!(
        "steps:\n  - {FAILS_ONCE}\n  - {{id: b, needs: [a], idempotent: false, run: 'echo b >> trace'}}\n"
    ));
    asks_about_the_effect(&format!(
        "steps:\n  - id: g\n    steps:\n      - {FAILS_ONCE}\n      - {EFFECT}\n"
    ));
    asks_about_the_effect(&format!(
        "steps:\n  - id: f\n    foreach:\n      items: [x]\n      steps:\n        - {FAILS_ONCE}\n        - {EFFECT}\n"
    ));
}

#[test]
fn a_retried_failure_asks_about_effects_in_scopes() {
    asks_about_the_effect(&format!("steps:\n  - {FAILS_ONCE}\n  - id: g\n    steps:\n      - {EFFECT}\n"));
    asks_about_the_effect(&format!(
        "steps:\n  - {FAILS_ONCE}\n  - id: f\n    foreach:\n      items: [x]\n      steps:\n        - {EFFECT}\n"
    ));
}

#[test]
fn a_retried_failure_asks_about_earlier_passes() {
    let rig = Rig::with(&format!(
        "steps:\n  - {FAILS_ONCE}\n  - id: b\n    idempotent: false\n    repeat: {{until: iteration == 2, max: 2}}\n    \
         run: 'echo b >> trace'\n"
    ));
    assert_eq!(run(&rig), Some(3));
    rig.write("ok", "");
    ran(&rig);

    assert_eq!(resume(&rig, &["--retry-failed"]), Some(8));

    assert_eq!(ran(&rig), "a");
}

#[test]
fn a_failed_retry_of_a_tolerated_failure_repeats_no_effect() {
    let rig = Rig::with(&format!("steps:\n  - {FAILS_ONCE}\n  - {EFFECT}\n"));
    assert_eq!(run(&rig), Some(3));
    ran(&rig);

    assert_eq!(resume(&rig, &["--retry-failed"]), Some(8));

    assert_eq!(ran(&rig), "a");
}

/// Lets step `p` write another value than before the acceptance.
fn accept_another_value(rig: &Rig, step: &str) {
    rig.write("p.txt", "2\n");
    assert_eq!(code_of(rig, &["evidence", "accept", "r", step]), Some(0));
}

const PINNED: &str = "{id: p, run: 'echo p >> trace; echo 1 > p.txt', evidence: [{sha256: p.txt}]}";
const READER: &str = "{id: d, run: 'echo d >> trace; cat p.txt > d.txt; test -e ok'}";

#[test]
fn a_reader_of_an_accepted_file_reruns_for_another_file() {
    let rig = Rig::with(&format!("steps:\n  - {PINNED}\n  - {READER}\n"));
    assert_eq!(run(&rig), Some(1));
    accept_another_value(&rig, "p");
    rig.write("ok", "");
    assert_eq!(resume(&rig, &[]), Some(0));
    assert_eq!(rig.read("d.txt"), "2\n");
    remove(&rig, "p.txt");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!((ran(&rig).as_str(), rig.read("d.txt").as_str()), ("p d", "1\n"));
}

#[test]
fn a_rerun_with_the_accepted_file_reuses_its_reader() {
    let rig = Rig::with(&format!("steps:\n  - {}\n  - {READER}\n", PINNED.replace("echo 1 >", "cat in >")));
    rig.write("in", "1\n");
    assert_eq!(run(&rig), Some(1));
    accept_another_value(&rig, "p");
    rig.write("ok", "");
    assert_eq!(resume(&rig, &[]), Some(0));
    rig.write("in", "2\n");
    remove(&rig, "p.txt");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!((ran(&rig).as_str(), rig.read("d.txt").as_str()), ("p", "2\n"));
}

#[test]
fn an_accepted_file_of_an_item_reaches_later_steps() {
    let rig = Rig::with(&format!(
        "steps:\n  - id: f\n    foreach:\n      items: [x]\n      steps:\n        - {PINNED}\n  - {READER}\n"
    ));
    rig.write("ok", "");
    assert_eq!(run(&rig), Some(0));
    accept_another_value(&rig, "f:x/p");
    assert_eq!(resume(&rig, &["--from", "d"]), Some(0));
    assert_eq!(rig.read("d.txt"), "2\n");
    remove(&rig, "p.txt");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!((ran(&rig).as_str(), rig.read("d.txt").as_str()), ("p d", "1\n"));
}

#[test]
fn an_accepted_file_reaches_open_items() {
    let rig = Rig::with(&format!(
        "steps:\n  - {PINNED}\n  - id: f\n    foreach:\n      items: [x]\n      steps:\n        - {READER}\n"
    ));
    assert_eq!(run(&rig), Some(1));
    accept_another_value(&rig, "p");
    rig.write("ok", "");
    assert_eq!(resume(&rig, &[]), Some(0));
    assert_eq!(rig.read("d.txt"), "2\n");
    remove(&rig, "p.txt");
    ran(&rig);

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!((ran(&rig).as_str(), rig.read("d.txt").as_str()), ("p d", "1\n"));
}

#[test]
fn an_acceptance_names_the_person() {
    let rig = Rig::with(&format!("steps:\n  - {PINNED}\n"));
    assert_eq!(run(&rig), Some(0));

    accept_another_value(&rig, "p");

    let why = rig.waypost(&["why", "r", "p", "--json"]);
    assert!(why.contains(r#""text": "accepted by "#), "{why}");
    let events = rig.waypost(&["events", "r", "--json"]);
    assert!(events.contains(r#""event":"step_settled","how":"accepted""#), "{events}");
}

const NESTED_GROUPS: &str = "steps:
  - id: o
    steps:
      - id: g
        steps:
          - {id: p, run: 'echo p >> trace; echo 1 > p.txt', evidence: [{sha256: p.txt}]}
          - {id: q, run: 'echo q >> trace'}
";

#[test]
fn a_requested_group_reruns_whole_beside_lost_evidence() {
    let rig = Rig::with(NESTED_GROUPS);
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    remove(&rig, "p.txt");

    assert_eq!(resume(&rig, &["--from", "o~1/g"]), Some(0));

    let mut both: Vec<String> = ran(&rig).split(' ').map(ToOwned::to_owned).collect();
    both.sort();
    assert_eq!(both, ["p", "q"]);
}

const THREE_PASSES: &str = "steps:
  - id: b
    repeat: {max: 3, until: 'iteration >= 3'}
    steps:
      - {id: p, run: 'echo p$I >> trace; echo 1 > p.$I', env: {I: '${{ iteration }}'}, evidence: [{sha256: 'p.${{ iteration }}'}]}
  - {id: c, needs: [b], run: 'echo c >> trace'}
";

#[test]
fn a_requested_pass_runs_with_all_later_passes() {
    let rig = Rig::with(THREE_PASSES);
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    remove(&rig, "p.1");

    assert_eq!(resume(&rig, &["--from", "b~2/p"]), Some(0));

    assert_eq!(ran(&rig), "p1 p2 p3 c");
}

#[test]
fn a_pass_after_a_requested_one_is_compared_as_before() {
    let rig = Rig::with(THREE_PASSES);
    assert_eq!(run(&rig), Some(0));
    assert_eq!(resume(&rig, &["--from", "b~3/p"]), Some(0));
    ran(&rig);
    remove(&rig, "p.1");

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!(ran(&rig), "p1");
}

#[test]
fn lost_evidence_of_a_pass_leaves_earlier_results_in_force() {
    let rig = Rig::with(THREE_PASSES);
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    remove(&rig, "p.1");

    assert_eq!(resume(&rig, &["--from", "b~3/p"]), Some(0));

    assert_eq!(ran(&rig), "p1 p3 c");
}

// A tolerated failure had no trace, so that each rerun upstream ran the step again, or asked about its effect.
#[test]
fn a_tolerated_failure_counts_again_if_its_input_is_equal() {
    for effect in ["", "idempotent: false, "] {
        let rig = Rig::with(&format!(
            "steps:\n  - {{id: a, run: 'echo a >> trace; echo 1 > a.txt', evidence: [{{sha256: a.txt}}]}}\n  - {{id: b, {effect}continue_on_error: true, run: 'echo b >> trace; false'}}\n  - {{id: c, run: 'echo c >> trace'}}\n"
        ));
        assert_eq!(run(&rig), Some(3));
        ran(&rig);
        remove(&rig, "a.txt");

        assert_eq!(resume(&rig, &[]), Some(3), "{effect}");

        assert_eq!(ran(&rig), "a", "{effect}");
    }
}

// Cause: the end of a step was looked for in the history of its scope, which begins anew when the scope is reentered.
// Fix: the ledger names the end.
#[test]
fn a_step_reused_in_a_reentered_item_can_be_named() {
    let rig = Rig::with(
        "steps:
  - id: a
    foreach: {items: [x], steps: [{id: w, run: 'echo > a.txt', evidence: [{file: a.txt}]}]}
  - id: b
    foreach:
      items: [x]
      as: outer
      steps:
        - id: c
          foreach:
            items: [x]
            steps:
              - {id: v, run: 'echo > v.txt', evidence: [{file: v.txt}]}
              - {id: u, run: echo u >> trace}
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    remove(&rig, "a.txt");
    remove(&rig, "v.txt");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));
    assert_eq!(rig.read("trace"), "u\n");

    assert_eq!(code_of(&rig, &["resume", "r", "--from", "b:x/c:x/u", "-q"]), Some(0));
    assert_eq!(rig.read("trace"), "u\nu\n");
}

// Cause: a request in a later pass removed the open group from the state, so that the passes counted from 1 again.
// Fix: a request drops results from its pass on, and the open group continues in its state.
#[test]
fn a_requested_pass_after_a_lost_one_keeps_its_number() {
    let rig = Rig::with(THREE_PASSES);
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    remove(&rig, "p.2");

    assert_eq!(resume(&rig, &["--from", "b~3/p"]), Some(0));

    assert_eq!(ran(&rig), "p2 p3 c");
}

// Cause: the end of a pass and the reuse of the next pass shared a record, with the state after the next pass.
// Fix: the end has a record of its own.
#[test]
fn a_pass_reused_after_a_rerun_keeps_the_next_number() {
    let rig = Rig::with(THREE_PASSES);
    assert_eq!(run(&rig), Some(0));
    remove(&rig, "p.2");
    assert_eq!(resume(&rig, &[]), Some(0));
    ran(&rig);
    remove(&rig, "p.1");

    assert_eq!(resume(&rig, &["--from", "b~3/p"]), Some(0));

    assert_eq!(ran(&rig), "p1 p3 c");
}

// Cause: a scope with the steps of two hooks had no digest, as the steps of the other hook have no end.
// Fix: steps without an end have no part in the digest.
#[test]
fn reused_hooks_of_both_kinds_rerun_nothing_downstream() {
    let rig = Rig::with(
        "steps:
  - id: g
    steps:
      - id: a
        run: 'echo a >> trace; echo > a.txt'
        evidence: [{sha256: a.txt}]
        on_success: [{run: echo h >> trace}]
        on_failure: [{run: echo k >> trace}]
  - {id: b, run: echo b >> trace}
",
    );
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    remove(&rig, "a.txt");

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!(ran(&rig), "a");
}

// Cause: the input of a hook was that of its step. Fix: the input of a hook is the result of the work.
#[test]
fn a_hook_is_reused_after_a_rerun_with_the_same_result() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo a >> trace; cat in; cat in > a.txt', capture: text, evidence: [{file: a.txt}]}
  - id: b
    run: 'echo b >> trace; echo > b.txt'
    evidence: [{sha256: b.txt}]
    on_success: [{run: echo h >> trace}]
",
    );
    rig.write("in", "old");
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    rig.write("in", "new");
    remove(&rig, "a.txt");

    assert_eq!(resume(&rig, &[]), Some(0));

    assert_eq!(ran(&rig), "a b");
}

const ITEMS_OF_TWO_PASSES: &str = "steps:
  - {id: b, run: 'echo b >> trace; echo > b.txt', evidence: [{sha256: b.txt}]}
  - id: c
    repeat: {until: iteration == 2, max: 2}
    steps:
      - id: f
        foreach: {items: [x, y], as: i, max_parallel: 1, max_failures: 1, steps: [{id: p, run: 'echo $I$P >> trace; test -e ok || test $I$P = x1', env: {I: '${{ i }}', P: '${{ iteration }}'}}]}
";

// Cause: the retry was refused until a resume without it. Fix: the request is applied when the items are entered.
#[test]
fn items_are_retried_together_with_lost_evidence() {
    let rig = Rig::with(ITEMS_OF_TWO_PASSES);
    assert_eq!(run(&rig), Some(1));
    assert_eq!(ran(&rig), "b x1 y1 x2 y2");
    rig.write("ok", "");
    remove(&rig, "b.txt");

    assert_eq!(resume(&rig, &["--retry-failed"]), Some(0));

    assert_eq!(ran(&rig), "b y1 x2 y2");
}

#[test]
fn an_item_is_not_replaced_before_lost_evidence_reruns() {
    let rig = Rig::with(
        "steps:
  - {id: b, run: 'echo b >> trace; echo > b.txt', evidence: [{sha256: b.txt}]}
  - {id: f, foreach: {items: [x], as: i, max_failures: 1, steps: [{run: 'echo $I >> trace; test $I = y', env: {I: '${{ i }}'}}]}}
",
    );
    assert_eq!(run(&rig), Some(3));
    remove(&rig, "b.txt");
    let retry = ["dead-letters", "retry", "r", "x", "--item", "\"y\"", "-q"];
    assert_eq!(code_of(&rig, &retry), Some(2));
    assert_eq!(resume(&rig, &[]), Some(3));
    ran(&rig);

    assert_eq!(code_of(&rig, &retry), Some(0));

    assert_eq!(ran(&rig), "y");
}

// Cause: a list changed upstream, and the scopes of the changed step were opened as if there were none.
// Fix: after an adoption, scopes may have records.
#[test]
fn another_list_upstream_of_a_changed_inner_step_is_adopted() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo > a.txt', evidence: [{file: a.txt}]}
  - {id: c, foreach: {items: [x], steps: [{run: echo c >> trace}]}}
  - {id: d, foreach: {items: [1, 2], steps: [{id: e, foreach: {items: [z], steps: [{run: echo e >> trace}]}}]}}
",
    );
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    edit(&rig, "[x]", "[x, y]");
    edit(&rig, "echo e", "echo  e");

    assert_eq!(resume(&rig, &["--rerun-changed"]), Some(0));

    assert_eq!(ran(&rig), "c e e");
}

// Cause: a kept result stayed with any input. Fix: only its definition is accepted.
#[test]
fn a_kept_result_is_compared_after_another_list_upstream() {
    let flow = "steps:
  - {id: a, run: 'echo > a.txt', evidence: [{file: a.txt}]}
  - {id: c, foreach: {items: [x], as: i, steps: [{id: n, run: 'echo c >> trace; echo $I > n-$I', env: {I: '${{ i }}'}, evidence: [{sha256: 'n-${{ i }}'}]}]}}
  - {id: d, run: echo d >> trace}
";
    let rig = Rig::with(flow);
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    edit(&rig, "[x]", "[x, y]");
    edit(&rig, "echo d", "echo  d");

    assert_eq!(resume(&rig, &["--rerun-changed=c", "--keep-finished"]), Some(0));

    assert_eq!(ran(&rig), "c d");
}

// Cause: the end of a passed-over step removed the request. Fix: the request stays until the step has run.
#[test]
fn a_request_outlasts_a_failure_upstream() {
    for from in ["b", "g", "g/h"] {
        let rig = Rig::with(
            "steps:
  - {id: a, run: 'echo a >> trace; echo > a.txt; test ! -e fail', evidence: [{sha256: a.txt}]}
  - {id: b, run: echo b >> trace}
  - {id: g, steps: [{id: h, run: echo h >> trace}]}
",
        );
        assert_eq!(run(&rig), Some(0));
        remove(&rig, "a.txt");
        rig.write("fail", "");
        assert_eq!(resume(&rig, &["--from", from]), Some(1), "{from}");
        ran(&rig);
        remove(&rig, "fail");

        assert_eq!(resume(&rig, &[]), Some(0), "{from}");

        assert_eq!(ran(&rig), if from == "b" { "a b h" } else { "a h" }, "{from}");
    }
}

// Cause: a changed step with hooks counted as an opener of another form. Fix: only steps with children are openers.
#[test]
fn a_changed_step_with_hooks_reruns_alone_in_its_item() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo > a.txt', evidence: [{file: a.txt}]}
  - id: f
    foreach:
      items: [x]
      steps:
        - {id: p, run: echo p >> trace}
        - {id: q, run: echo q >> trace, on_success: [{run: echo h >> trace}]}
",
    );
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    edit(&rig, "echo q", "echo  q");

    assert_eq!(resume(&rig, &["--rerun-changed"]), Some(0));

    assert_eq!(ran(&rig), "q h");
}

// Cause: a rerun after an edit excluded only the results of children from reuse. Fix: the results of hooks, too.
#[test]
fn the_hooks_of_a_step_that_follows_a_changed_one_run_again() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: echo a >> trace}
  - id: d
    run: 'echo d >> trace; echo > d.txt'
    evidence: [{sha256: d.txt}]
    on_success: [{run: echo h >> trace}]
",
    );
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    edit(&rig, "echo a", "echo  a");

    assert_eq!(resume(&rig, &["--rerun-changed"]), Some(0));

    assert_eq!(ran(&rig), "a d h");
}

// Cause: a request below an opener reached the steps that follow the opener, and not its hooks.
#[test]
fn a_request_below_an_opener_reruns_its_hooks() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo > a.txt', evidence: [{file: a.txt}]}
  - id: f
    foreach: {items: [x, y], steps: [{id: p, run: echo p >> trace}]}
    on_success: [{run: echo h >> trace}]
  - {id: z, run: echo z >> trace}
",
    );
    assert_eq!(run(&rig), Some(0));
    for is_lost in [false, true] {
        ran(&rig);
        if is_lost {
            remove(&rig, "a.txt");
        }

        assert_eq!(resume(&rig, &["--from", "f:x/p"]), Some(0));

        assert_eq!(ran(&rig), "p h z", "{is_lost}");
    }
}

// Cause: the evidence of finished steps was verified by the old definition first, also of a step that is gone.
#[test]
fn lost_evidence_of_a_removed_step_asks_nothing() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: echo a >> trace}
  - {id: b, needs: [a], idempotent: false, run: 'echo > b.txt; echo b >> trace', evidence: [{file: b.txt}]}
",
    );
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    remove(&rig, "b.txt");
    rig.write("flow.yaml", "steps: [{id: a, run: echo a >> trace}]");

    assert_eq!(resume(&rig, &["--keep-finished"]), Some(0));

    assert_eq!(ran(&rig), "");
}

// Cause: a plan from the records had a rerun in the scope of an item that another list drops.
#[test]
fn a_plan_is_silent_about_a_dropped_item() {
    let rig = Rig::with(
        "steps:
  - id: f
    foreach:
      items: [x, y]
      steps:
        - id: p
          run: 'echo > p-$I; echo p-$I >> trace'
          env: {I: '${{ item }}'}
          evidence: [{file: 'p-${{ item }}'}]
",
    );
    assert_eq!(run(&rig), Some(0));
    ran(&rig);
    remove(&rig, "p-x");
    edit(&rig, "[x, y]", "[y, z]");

    let plan = rig.json(&["resume", "r", "--rerun-changed", "--dry-run", "--json"]);

    let scopes: Vec<&str> =
        plan["decisions"].as_array().unwrap().iter().map(|row| row["scope"].as_str().unwrap()).collect();
    assert!(!scopes.contains(&"f:x"), "{plan}");
    assert_eq!(resume(&rig, &["--rerun-changed"]), Some(0));
    assert_eq!(ran(&rig), "p-z");
}

// Bug: after an edit of the order or of the needs of steps without evidence, a rerun with equal bytes reran everything
// downstream. Cause: the digest of the pins had the shape of the graph. Fix: it is a set of pins.
#[test]
fn steps_without_pins_change_no_digest_of_pins() {
    let first = "steps:
  - {id: d, needs: [], run: 'echo d >> trace'}
  - {id: e, needs: [], run: 'echo e >> trace'}
  - {id: c, needs: [d], run: 'echo c >> trace; echo 1 > c.txt', evidence: [{sha256: c.txt}]}
  - {id: l, needs: [c], run: 'echo l >> trace'}
  - {id: z, needs: [l], run: 'echo z >> trace; test -e ok'}
";
    let order = first
        .replace(", needs: [d]", "")
        .replace(", needs: []", "")
        .replace(", needs: [c]", "")
        .replace(", needs: [l]", "");
    let swapped = {
        let mut lines: Vec<&str> = order.lines().collect();
        lines.swap(1, 2);
        lines.join("\n")
    };
    for (before, after) in [(first, &first.replace("needs: [d]", "needs: [d, e]")), (&order, &swapped)] {
        let rig = Rig::with(before);
        rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);
        rig.write("flow.yaml", after);
        rig.call(&["resume", "r", "--keep-finished", "-q"]);
        std::fs::remove_file(rig.path("c.txt")).unwrap();
        rig.write("ok", "");
        rig.write("trace", "");

        assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));

        assert_eq!(rig.read("trace"), "c\nz\n", "{after}");
    }
}
