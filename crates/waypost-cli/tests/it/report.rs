//! `waypost report`: Markdown as the store keeps it, and one page of HTML that nothing in a run can break out of.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use crate::rig::{FLOW, Rig, check, wait_until};

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

/// A graph with a step over items, a retry, a skipped step, a report and outputs.
const GRAPH: &str = r#"name: graph
params: { who: { type: string, default: "<b>you</b>" } }
labels: { team: "a & b" }
steps:
  - id: list
    run: |
      echo 'html=<script>alert("out")</script>' >> "$WAYPOST_OUTPUT"
      echo '# Found <img src=x onerror=alert(1)>' >> "$WAYPOST_SUMMARY"
  - id: each
    needs: [list]
    foreach:
      items: [good, "<bad>"]
      max_parallel: 1
      failure_rate: 1
      as: word
      steps:
        - { id: work, run: 'test "$WORD" = good', env: { WORD: "${{ word }}" } }
  - { id: never, needs: [list], if: "false", run: "true" }
  - id: last
    needs: [each]
    run: |
      printf '<script>alert("log")</script>\033[31mred\n\342\200\256\n' >&2; test -e ok
"#;

fn ran() -> Rig {
    let rig = Rig::with(GRAPH);
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig
}

#[test]
fn markdown_is_that_which_the_store_keeps() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(FLOW).at(store);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));

        let told = rig.call(&["report", "r"]);

        let kept = rig.read("kept/runs/r/report.md");
        let kept: Vec<&str> = kept.lines().filter(|line| !line.starts_with("<!-- section ")).collect();
        assert_eq!(String::from_utf8(told.stdout).unwrap().trim_end(), kept.join("\n").trim_end());
        assert_eq!(code(&rig, &["report"]), Some(0), "the newest run is meant");
        assert_eq!(code(&rig, &["report", "x"]), Some(5));
        let document = rig.json(&["report", "r", "--json"]);
        assert_eq!((&document["v"], &document["format"]), (&json!(1), &json!("markdown")));
        assert_eq!(document["status"], "failed");
        assert!(document["text"].as_str().unwrap().starts_with("# flow\n"));
    }
}

#[test]
fn a_page_has_all_of_it_and_needs_nothing() {
    let rig = ran();

    let said = rig.waypost(&["report", "r", "--html", "--out", "r.html"]);

    assert_eq!(said, "exit 0\n--- stdout\nWrote the report of run r to r.html\n--- stderr\n");
    let page = rig.read("r.html");
    assert_eq!(page, String::from_utf8(rig.call(&["report", "r", "--html"]).stdout).unwrap());
    for part in [
        "<title>graph: r</title>",
        "Content-Security-Policy\" content=\"default-src 'none'",
        "<title>each: completed</title>",
        "<title>never: skipped</title>",
        "<title>last: failed</title>",
        "✗ step last failed",
        "each:%3Cbad%3E/work",
        "2 items: 1 done, 1 failed",
        "# Found &lt;img src=x onerror=alert(1)&gt;",
        "&lt;script&gt;alert(&quot;out&quot;)&lt;/script&gt;",
        "&lt;script&gt;alert(&quot;log&quot;)&lt;/script&gt;\u{fffd}[31mred",
        "&lt;b&gt;you&lt;/b&gt;",
        "team=a &amp; b",
        "title=\"each: completed, ",
        "title=\"each:%3Cbad%3E/work: failed, ",
        "<a href=\"#dead-letters\">",
        "<h2 id=\"dead-letters\">Dead letters</h2>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let markdown = String::from_utf8(rig.call(&["report", "r"]).stdout).unwrap();
    assert!(markdown.contains("red\n\u{fffd}\n") && !markdown.contains('\u{202e}'), "{markdown}");
    assert_eq!(page.matches("class=\"edge\"").count(), 3);
    assert!(!page.contains("unfinished,"), "a step over items is one bar: {page}");
    for foreign in [
        "<script", "<img", "http://", "https://", "src=\"", "href=\"h", "@import", "url(", "\u{1b}",
        "\u{202e}",
    ] {
        assert!(!page.contains(foreign), "{foreign}: {page}");
    }
    assert_eq!(page.matches("<details").count(), page.matches("</details>").count());
    let here = rig.path("flow.yaml").canonicalize().unwrap();
    let page = page.replace(&*here.to_string_lossy(), "[DIR]/flow.yaml");
    let times = [
        (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "[TIME]"),
        (r"[\d.]+(ms|s)\b", "[TOOK]"),
        (r"(left|width):[\d.]+%", "$1:[N]%"),
    ];
    insta::with_settings!({ filters => times, omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("report_page", page);
    });
}

#[test]
fn a_page_of_what_is_under_way_or_was_killed() {
    let rig = Rig::with(
        "steps:\n  - {id: a, run: 'true'}\n  - {id: b, run: 'echo > began; sleep 1000'}\n  - {id: c, run: 'true'}\n",
    );
    let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
    wait_until("b to begin", || rig.path("began").exists());
    let page = || String::from_utf8(rig.call(&["report", "r", "--html"]).stdout).unwrap();

    let live = page();
    running.signal(libc::SIGKILL);
    drop(running);
    wait_until("it is known to be cut", || rig.json(&["show", "r", "--json"])["status"] == "interrupted");

    assert!(
        live.contains("<title>b: running</title>") && live.contains("<title>c: pending</title>"),
        "{live}"
    );
    let cut = page();
    assert!(cut.contains("<title>b: cut</title>") && cut.contains("title=\"b: cut, "), "{cut}");
}

/// A run that waits in its first session, and fails in the second: a step, and an item of a step over items.
fn waited_and_failed() -> Rig {
    let rig = Rig::with(
        "name: two\nsteps:\n  - {id: ask, approve: 'Go on?'}\n  - id: each\n    needs: []\n    foreach:\n      items: [good, bad]\n      \
         as: it\n      steps:\n        - {id: work, run: 'echo oops; test $IT = good', env: {IT: '${{ it }}'}}\n  \
         - {id: last, needs: [ask], run: 'echo broken >&2; exit 3'}\n",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]), Some(75));
    std::thread::sleep(IDLE);
    assert_eq!(code(&rig, &["answer", "r", "ask", "yes", "-q"]), Some(0));
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(1));
    rig
}

/// The least idle time between the sessions.
const IDLE: Duration = Duration::from_secs(1);

#[test]
fn dead_letters_and_failures_are_marked_with_their_logs() {
    let rig = waited_and_failed();

    let page = String::from_utf8(rig.call(&["report", "r", "--html"]).stdout).unwrap();

    for part in [
        "<p class=\"failed\"><b>✗ failed</b></p>",
        "<p class=\"failed\"><b>✗ step each failed:</b> 1 of 2 items failed</p>",
        "<p class=\"failed\"><b>✗ step last failed:</b> exit code 3</p>",
        "<p class=\"failed\"><b>✗ 1 failed item</b> (dead letters)",
        "<g class=\"failed box\"><title>each: failed</title>",
        "<g class=\"failed\"><title>last: failed</title>",
        "<summary class=\"failed\"><b>✗ each:bad/work</b> exit code 1</summary>",
        "<pre>oops",
        "<pre>broken",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn idle_time_between_sessions_is_not_work() {
    let rig = Rig::with(
        "steps:\n  - id: each\n    foreach:\n      items: { run: echo eu }\n      as: it\n      \
         steps: [{ id: ask, approve: 'Go on?' }]\n",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]), Some(75));
    std::thread::sleep(IDLE);
    assert_eq!(code(&rig, &["answer", "r", "each:eu/ask", "yes", "-q"]), Some(0));
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));

    let show = rig.json(&["show", "r", "--json"]);
    let page = String::from_utf8(rig.call(&["report", "r", "--html"]).stdout).unwrap();

    let each = show["steps"].as_array().unwrap().iter().find(|step| step["id"] == "each").unwrap();
    // The item too: its table showed the pause between the sessions as work.
    let item = &rig.json(&["show", "r", "--step", "each", "--json"])["items"][0];
    for view in [each, item] {
        let started: Timestamp = view["started_at"].as_str().unwrap().parse().unwrap();
        let ended: Timestamp = view["ended_at"].as_str().unwrap().parse().unwrap();
        let worked = i128::from(view["duration_ms"].as_u64().unwrap());
        let idle = ended.duration_since(started).as_millis() - worked;
        assert!(idle >= IDLE.as_millis() as i128 - 1, "{view}");
    }
    let logs = rig.waypost(&["logs", "r"]);
    let heading = logs.lines().find(|line| line.starts_with("==> each (attempt 1)")).unwrap();
    assert!(heading.contains(", took 0.") || heading.contains("ms, "), "less than the idle time: {heading}");
    assert!(page.contains("title=\"each:eu/ask: waiting, "), "{page}");
    assert!(page.contains("<p class=\"dim\">Not drawn: "), "{page}");
    let events = String::from_utf8(rig.call(&["events", "r", "--json"]).stdout).unwrap();
    let resumed = events.lines().find(|line| line.contains("\"run_resumed\"")).unwrap();
    assert!(resumed.contains("\"idle_since\":\"20"), "{resumed}");
}

// Bug: the work of a retried item counted as idle time. Cause: the first record of the resume was in the scope of
// the item, and the pause lasted until the join. Fix: a resume begins with a record of the main scope.
#[test]
fn a_resume_of_an_item_ends_the_idle_time_at_once() {
    let rig = Rig::with(
        "steps:\n  - id: each\n    foreach:\n      items: [eu]\n      steps: [{ id: load, run: test -e ok }]\n",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig.write("ok", "");
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));

    let events = String::from_utf8(rig.call(&["events", "r"]).stdout).unwrap();

    let mut after = events.lines().skip_while(|line| !line.contains(" run_failed ")).skip(1);
    let resumed = after.next().unwrap();
    assert!(resumed.contains(" run_resumed: idle since 20") && !resumed.contains('.'), "{events}");
    assert!(after.any(|line| line.contains(" step_started load: attempt 2")), "{events}");
}

#[test]
fn runs_of_scripts_and_damaged_ones_have_a_page_too() {
    let rig = Rig::new();
    assert_eq!(code(&rig, &["once", "--id", "s", "a b", "--", "echo", "<hi>"]), Some(0));
    let page = String::from_utf8(rig.call(&["report", "s", "--html"]).stdout).unwrap();
    assert!(page.contains("&lt;hi&gt;"), "{page}");

    let rig = Rig::failed();
    let database = rusqlite::Connection::open(rig.path(".waypost/waypost.db")).unwrap();
    let sql = "UPDATE records SET header = zeroblob(9) WHERE key & 4294967295 = 2";
    assert_eq!(database.execute(sql, ()).unwrap(), 1);
    drop(database);
    let told = rig.waypost(&["report", "r-1", "--html"]);
    assert!(told.contains("warning: checkpoint r-1@2 is damaged"), "{told}");
    assert!(told.contains("Damaged: r-1@2"), "{told}");
}

#[test]
fn wrong_calls_of_report() {
    let rig = Rig::failed();
    let said = [
        &["report", "nothing"][..],
        &["report", "r-1", "--out", "no/such/folder.html"],
        &["report", "r-1", "more"],
        &["report", "r-1", "--html", "--out", "page.html", "--json"],
    ]
    .map(|args| format!("$ waypost {}\n{}", args.join(" "), rig.waypost(args)));
    check("report_wrong", &said.join("\n"));
}

// Bug: the report had marks of its sections, times of nanoseconds, `children` as a wait, no dead letters, raw names of
// scopes, and `interrupted` for a step in doubt. Cause: the sections were those of the report that grows with the run.
#[test]
fn the_report_of_a_doubt_is_for_a_reader() {
    let rig = Rig::with(
        "max_parallel: 4
steps:
  - id: each
    foreach:
      items: [x y, z]
      on_item_failure: dead_letter
      max_failures: 2
      steps: [{id: a_b, steps: [{id: f_f, run: 'exit 7'}]}]
  - id: g
    steps: [{id: pay, idempotent: false, run: 'echo pay > trace; sleep 60'}]
",
    );
    let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
    rig.wait_for("trace", |text| text == "pay\n");
    running.signal(libc::SIGTERM);
    running.end();

    let report = rig.waypost(&["report", "r"]);

    for raw in ["<!--", "children", "~", ": interrupted", "\n\n\n"] {
        assert!(!report.contains(raw), "{raw}: {report}");
    }
    for told in [
        "\n## `g/pay`: in doubt\n",
        "\n## Dead letters: 2\n",
        "- `each:x%20y/a_b/f_f`: `exit code 7`\n",
        "step \\`each:x%20y/a\\_b/f\\_f\\` failed",
    ] {
        assert!(report.contains(told), "{told}: {report}");
    }
    let at = report.lines().find_map(|line| line.strip_prefix("| at | ")).unwrap();
    assert!(at.ends_with("Z |") && !at.contains('.'), "{at}");
}

#[test]
fn the_stored_report_names_steps_of_groups_as_show_does() {
    let rig = Rig::with(
        "steps:
  - {id: g, steps: [{id: in, steps: [{id: k, run: 'true'}]}]}
  - {id: loop, repeat: {until: iteration >= 2, max: 3}, steps: [{id: n, run: 'true'}]}
",
    );
    rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);

    let report = rig.read(".waypost/runs/r/report.md");

    for heading in ["## `g/in/k`: completed\n", "## `loop~2/n` [2]: completed\n"] {
        assert!(report.contains(heading), "{report}");
    }
}
