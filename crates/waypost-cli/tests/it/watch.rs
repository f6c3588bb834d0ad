//! A run under way, seen by other commands: `watch`, `logs`, `show`.

use serde_json::json;

use crate::rig::{Rig, Running, code_of, expect, wait_until};
use crate::terminal::Terminal;

/// A finished step, a step until the file `go` exists, and items; the second of them fails.
const FLOW: &str = r#"
name: flow
max_parallel: 4
steps:
  - { id: first, needs: [], run: echo one }
  - { id: slow, needs: [first], run: 'echo begun; while ! test -e go; do sleep 0.05; done; echo ended' }
  - id: each
    needs: [first]
    foreach:
      items: [a, b c, d]
      as: x
      max_parallel: 1
      max_failures: 3
      steps: [ { id: ask, retry: { max: 1, delay: 10ms }, run: 'echo "item $X"; test "$X" != "b c"', env: { X: "${{ x }}" } } ]
"#;

/// Starts the run as `r`, and waits until the items are done and `slow` has printed a line.
fn started(rig: &Rig, more: &[&str]) -> Running {
    let running = rig.start(&[&["run", "flow.yaml", "--id", "r", "-q"], more].concat());
    rig.wait_for(".waypost/runs/r/logs/slow.1.log", |text| text == "begun\n");
    wait_until("the end of the items", || {
        let view = rig.json(&["show", "r", "--json"]);
        view["steps"]
            .as_array()
            .unwrap()
            .iter()
            .any(|step| step["id"] == "each" && step["status"] == "completed")
            || view["steps"][2]["items"]["failed"] == 1
    });
    running
}

#[test]
fn a_run_is_watched_from_another_terminal() {
    for columns in [40, 80, 120] {
        let rig = Rig::with(FLOW);
        let running = started(&rig, &[]);
        let terminal = Terminal::new(columns, 24);
        let watching = Running::of(&mut terminal.command(&rig, &["watch"]));

        terminal.wait_for("Run r of workflow flow\n");
        terminal.wait_for(" slow ");
        terminal.wait_for("        | begun\n");
        terminal.wait_for("Ctrl-C ends only the watching");
        assert!(!terminal.screen().contains("done first"), "the past is not shown: {}", terminal.screen());
        // Ctrl-C ends the watching, and not the run.
        watching.signal(libc::SIGINT);
        terminal.wait_for("Run r continues. Watch again");
        assert_eq!(watching.end_soon_on_terminal(), Some(130));

        let terminal = Terminal::new(columns, 24);
        let watching = Running::of(&mut terminal.command(&rig, &["watch", "r"]));
        terminal.wait_for("        | begun\n");
        rig.write("go", "");
        terminal.wait_for("done slow (");
        assert_eq!(watching.end_soon_on_terminal(), Some(3));
        let shown = terminal.screen().replace('\n', "");
        assert!(
            shown.contains("Run r is completed with tolerated failures: 3 of 3 steps are done."),
            "{shown}"
        );
        assert!(!shown.contains("Ctrl-C"), "{shown}");
        assert_eq!(running.end().status.code(), Some(3));
    }
}

#[test]
fn a_watched_run_is_printed_like_its_events() {
    let rig = Rig::with(FLOW);
    let running = started(&rig, &[]);
    let watch = |args: &[&str], name: &str| {
        let file = std::fs::File::create(rig.path(name)).unwrap();
        Running::of(rig.command(args).stdout(file))
    };
    let (mut watching, mut json) = (watch(&["watch", "r"], "told"), watch(&["watch", "r", "--json"], "json"));
    wait_until("both watch", || ["told", "json"].iter().all(|name| !rig.read(name).is_empty()));

    rig.write("go", "");
    assert_eq!((watching.code(), json.code()), (Some(3), Some(3)));
    let told = rig.read("told");
    let place = |words: &str| told.find(words).unwrap_or_else(|| panic!("no `{words}`: {told}"));
    assert!(place("step_started first") < place("\nfirst | one\n"));
    assert!(place("\nfirst | one\n") < place("step_completed first"));
    assert!(place("\nslow | begun\nslow | ended\n") < place("step_completed slow"));
    assert_eq!(told.matches("\neach:b%20c/ask | item b c\n").count(), 2, "{told}");
    assert!(
        told.contains("\nRun r is completed with tolerated failures: 3 of 3 steps are done.\n"),
        "{told}"
    );
    assert!(told.ends_with("\nRetry with: waypost dead-letters retry r\n"), "{told}");
    // Each event is printed once, as by `events`.
    let events = rig.waypost(&["events", "r", "--json"]).matches("\"v\":1").count();
    assert_eq!(rig.read("json").matches("\"v\":1").count(), events);
    assert_eq!(running.end().status.code(), Some(3));
    // A finished run is not watched.
    expect(
        &rig,
        &["watch", "r"],
        3,
        &[
            "Nothing to watch, because no process works on run r.",
            "Run r is completed with tolerated failures",
        ],
    );
}

#[test]
fn a_watched_run_that_fails_says_so() {
    let rig = Rig::with("steps:\n  - {id: a, run: 'echo why; exit 3'}\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));

    let said = [
        "step a failed: exit code 3",
        "| why",
        "Run r failed at step a: 0 of 1",
        "Resume with: waypost resume r",
    ];
    expect(&rig, &["watch"], 1, &said);
    expect(&rig, &["watch", "nobody"], 5, &[]);
}

#[test]
fn logs_are_in_the_order_of_starts_under_their_names() {
    let rig = Rig::with(FLOW);
    let running = started(&rig, &[]);

    let told = String::from_utf8(rig.call(&["logs", "r"]).stdout).unwrap();

    let headings: Vec<&str> = told.lines().filter(|line| line.starts_with("==> ")).collect();
    let names: Vec<&str> = headings.iter().map(|line| line[4..].split(',').next().unwrap()).collect();
    assert_eq!(names[0], "first (attempt 1)");
    assert_eq!(names[1], "slow (attempt 1)");
    let items = [
        "each:a/ask (attempt 1)",
        "each:b%20c/ask (attempt 1)",
        "each:b%20c/ask (attempt 2)",
        "each:d/ask (attempt 1)",
    ];
    assert_eq!(names[2..], items);
    assert!(headings[0].ends_with(", 4 B <==") && headings[0].contains(", started 2"), "{told}");
    assert!(headings[1].contains(", running for ") && headings[1].ends_with(", 6 B <=="), "{told}");
    for name in ["first", "each:b%20c/ask", "each:d/ask"] {
        assert_eq!(code_of(&rig, &["logs", "r", name]), Some(0), "{name}");
    }
    // The logs of a step with items are those of its items.
    let each = String::from_utf8(rig.call(&["logs", "r", "each"]).stdout).unwrap();
    assert!(each.contains("==> each:a/ask (attempt 1)") && !each.contains("==> first"), "{each}");
    // Running steps have a duration and a size.
    let shown = rig.waypost(&["show", "r"]);
    let slow = shown.lines().find(|line| line.starts_with("slow ")).unwrap();
    let cells: Vec<&str> = slow.split_whitespace().collect();
    assert_eq!((cells[1], &cells[3..]), ("running", &["6", "B"][..]), "{shown}");
    assert!(cells[2].ends_with('s'), "{shown}");
    rig.write("go", "");
    assert_eq!(running.end().status.code(), Some(3));
}

#[test]
fn show_lists_the_items_of_a_step_by_pages() {
    let rig = Rig::with(FLOW);
    rig.write("go", "");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(3));

    let told = rig.waypost(&["show", "r", "--step", "each"]);
    let row = |key: &str| -> Vec<&str> {
        let line = told.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{told}"));
        line.split_whitespace().collect()
    };
    assert_eq!(row("ITEM"), ["ITEM", "STATUS", "ATTEMPTS", "TOOK", "ERROR"]);
    assert_eq!(row("a ")[..3], ["a", "completed", "1"]);
    assert_eq!(row("b c ")[2..4], ["failed", "2"]);
    assert_eq!(row("b c ")[5..], ["exit", "code", "1"]);

    let failed = rig.json(&["show", "r", "--step", "each", "--status", "failed", "--json"]);
    assert_eq!(failed["items"].as_array().unwrap().len(), 1);
    let item = &failed["items"][0];
    assert_eq!((&item["key"], &item["scope"]), (&json!("b c"), &json!("each:b%20c")));
    assert_eq!((&item["status"], &item["attempts"]), (&json!("failed"), &json!(2)));
    assert_eq!((&item["error"], &failed["next"]), (&json!(["exit code 1"]), &json!(null)));

    let mut after = Vec::new();
    for key in ["a", "b c", "d"] {
        let mut args = vec!["show", "r", "--step", "each", "--limit", "1", "--json"];
        args.extend(after.iter().flat_map(|after: &String| ["--after", after.as_str()]));
        let page = rig.json(&args);
        assert_eq!(page["items"][0]["key"], json!(key));
        assert_eq!(page["items"].as_array().unwrap().len(), 1);
        after = page["next"].as_str().map(ToOwned::to_owned).into_iter().collect();
    }
    assert!(after.is_empty());
    expect(
        &rig,
        &["show", "r", "--step", "each", "--limit", "2"],
        0,
        &["\nMore items: waypost show r --step each --limit 2 --after each:b%20c\n"],
    );
    expect(
        &rig,
        &["show", "r", "--step", "first", "--status", "failed"],
        2,
        &["step `first` of run r has no items"],
    );
    expect(&rig, &["show", "r", "--step", "each", "--status", "cut"], 0, &["no further item is cut"]);
    expect(&rig, &["show", "r", "--limit", "2"], 2, &["--step"]);
}

// Bug: `watch` of a run that waits showed no cause. Cause: waits ended the line of their step. Fix: the live region has a
// line for each wait.
#[test]
fn the_waits_of_a_live_run_are_watched() {
    let rig = Rig::with("steps: [{id: nap, needs: [], sleep: 1h}, {id: go, needs: [], wait: ok}]\n");
    let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q", "--wait", "2h"]);
    wait_until("both waits", || {
        rig.json(&["show", "r", "--json"])["waiting"].as_array().is_some_and(|waits| waits.len() == 2)
    });
    let terminal = Terminal::new(80, 24);
    let watching = Running::of(&mut terminal.command(&rig, &["watch", "r"]));

    terminal.wait_for("  waits go for signal ok\n");
    terminal.wait_for("  waits nap until 2");

    watching.signal(libc::SIGINT);
    assert_eq!(watching.end_soon_on_terminal(), Some(130));
    running.signal(libc::SIGINT);
    running.end_soon();
}

// Bug: `run` at a terminal showed nothing while only a time was left. Cause: the live region ended with the last step.
// Fix: the region stays open during the wait.
#[test]
fn a_terminal_shows_what_a_run_waits_for() {
    let rig = Rig::with("steps: [{id: first, run: 'true'}, {id: nap, sleep: 1h}]\n");
    let terminal = Terminal::new(80, 24);
    let running =
        Running::of(&mut terminal.command(&rig, &["run", "flow.yaml", "--id", "r", "--wait", "2h"]));

    terminal.wait_for("  waits nap until 2");
    terminal.wait_for("1/2 steps");

    running.signal(libc::SIGINT);
    terminal.wait_for("Run r waits: 1 of 2 steps are done.");
    assert!(!terminal.screen().contains("  waits nap"), "{}", terminal.screen());
    assert_eq!(running.end_soon_on_terminal(), Some(130));
}
