//! Names of runs on the command line: never an empty word, and a prefix of the name. A prefix that cuts a number
//! is refused by commands that end a run without a question.

use crate::rig::{Rig, code_of};

const FLOW: &str = "name: nightly\nsteps: [{id: a, run: 'echo a; test -e ok'}]\n";

fn runs(rig: &Rig) -> Vec<String> {
    let listed = rig.json(&["list", "--json"]);
    listed["runs"].as_array().unwrap().iter().map(|run| run["run"].as_str().unwrap().to_owned()).collect()
}

// Bug: `waypost delete '' --yes` deleted the only run. Cause: every name begins with the empty word, such as the
// value of an unset variable. Fix: an empty word is refused before the search.
#[test]
fn an_empty_word_names_no_run() {
    let rig = Rig::with(FLOW);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    let calls: [&[&str]; 14] = [
        &["delete", "", "--yes"],
        &["delete", "r", "", "--yes"],
        &["cancel", ""],
        &["stop", ""],
        &["archive", "", "x"],
        &["export", "", "x"],
        &["fork", ""],
        &["show", ""],
        &["logs", ""],
        &["events", ""],
        &["resume", ""],
        &["plan", ""],
        &["prune", "", "--keep", "2"],
        &["checkpoint", ""],
    ];
    for args in calls {
        let said = rig.waypost(args);
        assert!(
            said.starts_with("exit 2\n") && said.contains("the name of the run is empty"),
            "{args:?}: {said}"
        );
    }
    assert_eq!(runs(&rig), ["r"]);
    assert!(!rig.path("x").exists());
}

// Bug: `waypost delete nightly-1 --yes`, called twice, deleted `nightly-10` the second time. Cause: no other run
// had this prefix. Fix: without a question, a number must match as a whole.
#[test]
fn what_ends_a_run_unasked_takes_no_number_for_another() {
    let rig = Rig::with(FLOW);
    for run in ["nightly-1", "nightly-10"] {
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", run, "-q"]), Some(1));
    }

    assert_eq!(code_of(&rig, &["delete", "nightly-1", "--yes"]), Some(0));
    for args in [&["delete", "nightly-1", "--yes"][..], &["delete", "nightly-1"], &["cancel", "nightly-1"]] {
        let said = rig.waypost(args);
        assert!(said.starts_with("exit 5\n") && said.contains("`nightly-10`"), "{args:?}: {said}");
    }

    assert_eq!(runs(&rig), ["nightly-10"]);
    assert_eq!(rig.json(&["show", "nightly-1", "--json"])["status"], "failed", "it was not cancelled");
    assert_eq!(code_of(&rig, &["cancel", "@"]), Some(0));
    assert_eq!(code_of(&rig, &["delete", "@", "--yes"]), Some(0));
    assert_eq!(runs(&rig), Vec::<String>::new());
}

#[test]
fn a_beginning_that_only_one_run_has_is_enough_to_end_it() {
    let rig = Rig::with(FLOW);
    for run in ["daily-a1", "nightly-ab12", "nightly-cd34"] {
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", run, "-q"]), Some(1));
    }

    for args in [&["delete", "night", "--yes"][..], &["delete", "night"], &["cancel", "night"]] {
        let said = rig.waypost(args);
        assert!(said.starts_with("exit 2\n"), "{args:?}: {said}");
        assert!(said.contains("`night` is ambiguous: nightly-cd34, nightly-ab12"), "{args:?}: {said}");
    }
    assert_eq!(runs(&rig).len(), 3, "nothing was ended");

    let unasked = rig.waypost(&["delete", "d"]);
    assert!(
        unasked.starts_with("exit 2\n") && unasked.contains("cannot ask for confirmation to delete daily-a1"),
        "{unasked}"
    );
    assert!(rig.waypost(&["cancel", "nightly-a"]).contains("Run nightly-ab12 is cancelled"));
    assert!(
        rig.waypost(&["delete", "nightly-a", "d", "--yes"])
            .contains("Deleted run nightly-ab12\nDeleted run daily-a1")
    );
    assert_eq!(runs(&rig), ["nightly-cd34"]);
}

// Bug: `o/g` named no step, and the hint for an inner step was a list without inner steps. Cause: a scope needs its pass.
// Fix: a step of the only scope of its opener needs no pass, and the hint names the scope.
#[test]
fn a_step_of_a_group_needs_no_pass() {
    let rig = Rig::with(
        "steps:
  - {id: o, steps: [{id: p, steps: [{id: g, run: 'echo g'}]}]}
  - {id: each, foreach: {items: [x, y], steps: [{id: a, run: 'echo a'}]}}
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    assert!(rig.waypost(&["why", "r", "o/p/g"]).contains("step o/p/g: reuse"));
    assert_eq!(rig.call(&["logs", "r", "o/p/g"]).stdout, b"g\n");
    assert_eq!(code_of(&rig, &["resume", "r", "--from", "o/p/g", "-q"]), Some(0));
    let said = rig.waypost(&["show", "r", "--step", "each/a"]);
    assert!(said.contains("`each/a` matches several scopes: each:x/a, each:y/a"), "{said}");
    let said = rig.waypost(&["show", "r", "--step", "o/p/nope"]);
    assert!(said.contains("no step `nope` in scope `o/p`") && said.contains("show r --step o/p`"), "{said}");
    let said = rig.waypost(&["why", "r", "o~2/p"]);
    assert!(said.contains("no scope `o~2`"), "{said}");
}

// Bug: `answer STEP ANSWER` listed finished runs. Cause: the runs of the step's workflow were listed with any status.
// Fix: commands that decide list only the runs that qualify.
#[test]
fn only_waiting_runs_are_named_for_an_answer() {
    let rig = Rig::with("name: ask\nsteps: [{id: ok, approve: 'Ship?'}, {id: b, run: 'true'}]\n");
    for run in ["w1", "w2", "done"] {
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", run, "-q", "--wait", "0s"]), Some(75));
    }
    assert_eq!(code_of(&rig, &["answer", "done", "yes", "--resume", "-q"]), Some(0));

    for args in [&["answer", "ok", "yes"][..], &["answer", "ok"], &["approve", "ok"]] {
        let said = rig.waypost(args);
        assert!(said.contains("name one of: w2, w1\n"), "{args:?}: {said}");
    }
    let said = rig.waypost(&["cancel", "ok"]);
    assert!(said.contains("`ok` is a step of these runs: w2, w1\n"), "{said}");
    let said = rig.waypost(&["show", "ok"]);
    assert!(said.contains("`ok` is a step of these runs: done, w2, w1\n"), "{said}");
}

// Bug: a path with the key of one scope and without that of another, as screens show it, was refused.
#[test]
fn a_shown_path_names_the_step_in_any_nesting() {
    let rig = Rig::with(
        "steps:
  - {id: inc, workflow: inner.yaml}
  - {id: grp, steps: [{id: rep, repeat: {until: iteration >= 2, max: 2}, steps: [{id: in, run: echo in}]}]}
",
    );
    rig.write(
        "inner.yaml",
        "steps: [{id: prep, steps: [{id: each, foreach: {items: ['c:d', 'e/f', 'g h'], as: it, steps: [{id: do, run: echo do}]}}]}]\n",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    let logs = rig.waypost(&["logs", "r"]);
    let paths: Vec<&str> = logs
        .lines()
        .filter_map(|line| line.strip_prefix("==> ")?.split_once(" (attempt"))
        .map(|(path, _)| path)
        .collect();

    assert_eq!(paths.len(), 5, "{logs}");
    for path in
        paths.into_iter().chain(["inc/prep/each:c:d/do", "inc/prep/each:e/f/do", "inc/prep/each:g h/do"])
    {
        for call in [&["logs", "r", path][..], &["why", "r", path], &["show", "r", "--step", path]] {
            assert_eq!(code_of(&rig, call), Some(0), "{call:?}");
        }
        let place = format!("r/{}@1", path.rsplit_once('/').unwrap().0);
        assert_eq!(code_of(&rig, &["show", &place]), Some(0), "{place}");
    }
}

// Bug: `answer` and `dead-letters` refused the path that `show` and `dead-letters list` print.
#[test]
fn a_shown_path_names_a_question_and_a_dead_letter() {
    let rig = Rig::with(
        "steps:
  - id: grp
    steps: [{id: each, foreach: {items: ['c:d', 'e f'], as: it, steps: [{id: ask, approve: 'Go on?'}, {id: do, run: 'exit 1'}]}}]
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(75));

    assert_eq!(code_of(&rig, &["answer", "r", "grp/each:c%3Ad/ask", "yes", "-q"]), Some(0));
    assert_eq!(code_of(&rig, &["answer", "r", "grp/each:e f/ask", "yes", "-q"]), Some(0));
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(1));
    for path in ["grp/each:c%3Ad", "grp/each:c:d", "c:d"] {
        assert_eq!(code_of(&rig, &["dead-letters", "show", "r", path]), Some(0), "{path}");
    }
    assert_eq!(code_of(&rig, &["dead-letters", "show", "r", "grp/each"]), Some(5), "no key");
}

// Bug: `--from` of a skipped step within a group hinted at checkpoints without a state. Fix: the hint of a step of the
// main scope.
#[test]
fn refusals_about_an_inner_step_name_the_way_on() {
    let rig = Rig::with(
        "steps: [{id: inc, workflow: sub.yaml}, {id: each, foreach: {items: [a], steps: [{id: do, run: echo}]}}]\n",
    );
    rig.write("sub.yaml", "steps: [{id: s, run: exit 1}, {id: end, run: echo}]\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));

    let from = rig.waypost(&["resume", "r", "--from", "inc/end"]);
    let item = rig.waypost(&["resume", "r", "--skip", "each:a/do"]);

    assert!(from.starts_with("exit 5\n"), "{from}");
    assert!(
        from.contains(
            "cannot rerun step `inc/end` of run r: the step has not finished, or a step upstream has not\n"
        ),
        "{from}"
    );
    assert!(from.contains("hint: `waypost resume r` runs the step when its needs are finished\n"), "{from}");
    assert!(item.contains("cannot skip `each:a/do`: no such scope of `each` has started\n"), "{item}");
    assert!(item.contains("hint: `--skip each` skips all of `each`\n"), "{item}");
}

// Bug: `checkpoints --scope` refused the scopes that its own table names, those of groups. Cause: the text was read as a step.
// Fix: `--scope` and `RUN/SCOPE@SEQ` take the same paths.
#[test]
fn checkpoints_takes_the_scopes_of_its_table() {
    let rig = Rig::with(
        "steps:
  - {id: g, repeat: {until: iteration >= 2, max: 3}, steps: [{id: deep, steps: [{id: k, run: 'true'}]}]}
  - {id: each, foreach: {items: [x y], steps: [{id: n, run: 'true'}]}}
",
    );
    rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);
    let table = rig.waypost(&["checkpoints", "r"]);

    for scope in ["main", "g~1", "g~2/deep", "each:x%20y", "each/x y"] {
        let told = rig.waypost(&["checkpoints", "r", "--scope", scope]);
        assert!(told.starts_with("exit 0\n"), "{scope}: {told}");
        let first = told.lines().nth(3).and_then(|line| line.split_whitespace().next()).unwrap();
        assert!(table.contains(first), "{scope}: {told}");
    }
    assert!(rig.waypost(&["checkpoints", "r", "--scope", "deep"]).starts_with("exit 5\n"));
}
