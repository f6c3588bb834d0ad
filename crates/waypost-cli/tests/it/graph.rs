//! `graph`: pictures of workflow files and runs.

use crate::rig::Rig;

const FLOW: &str = r#"name: "a <b> & c"
steps:
  - {id: fetch, name: '</text><script>"x"', run: 'true'}
  - id: each
    needs: [fetch]
    foreach:
      items: [x, y, z]
      failure_rate: 1
      steps: [{id: go, run: 'test "$I" != y', env: {I: "${{ item }}"}}, {id: tell, run: 'true'}]
  - id: group
    needs: [fetch]
    steps: [{id: one, needs: [], run: 'true'}, {id: ask, needs: [one], approve: Go?}]
  - {id: last, needs: [each, group, fetch], run: 'true'}
"#;

fn graph(rig: &Rig, args: &[&str]) -> String {
    let drawn = rig.call(&[&["graph"], args].concat());
    assert_eq!(drawn.status.code(), Some(0), "{}", rig.told(&drawn));
    String::from_utf8(drawn.stdout).unwrap()
}

fn lines(picture: &str) -> usize {
    picture.matches("class=\"edge\"").count()
}

#[test]
fn a_file_is_drawn_with_boxes_and_without_markup() {
    let rig = Rig::with(FLOW);

    let picture = graph(&rig, &["flow.yaml"]);

    assert!(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""), "{picture}");
    for part in [
        "<title>a &lt;b&gt; &amp; c</title>",
        "&lt;/text&gt;&lt;script&gt;",
        "class=\"box\"",
        ">go</text>",
        ">approve</text>",
    ] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    assert!(!picture.contains("<script"), "{picture}");
    // A need that follows from another is not drawn.
    assert_eq!(lines(&picture), 4 + 2, "{picture}");
    assert!(!rig.path(".waypost").exists());
    assert_eq!(rig.json(&["graph", "flow.yaml", "--json"])["format"], "svg");
}

#[test]
fn a_run_is_drawn_with_the_status_of_each_step() {
    let rig = Rig::with(FLOW);
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(75));

    let picture = graph(&rig, &["r"]);

    for part in [
        "<title>a &lt;b&gt; &amp; c: r is waiting</title>",
        "<g class=\"completed\"><title>fetch: &lt;/text&gt;&lt;script&gt;&quot;x&quot;: completed</title>",
        ">✓ &lt;/text&gt;&lt;script&gt;",
        "<title>go: 1 failed, 2 completed</title>",
        "<g class=\"waiting box\"><title>group: waiting</title>",
        "‖ ask",
        "<g class=\"pending\"><title>last: pending</title>",
    ] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    assert_eq!(graph(&rig, &["@"]), picture);
    let text = graph(&rig, &["r", "--mermaid"]);
    for part in [
        "flowchart TD",
        "subgraph n2[\"each<br/>foreach<br/>✓ completed\"]",
        "n1 --> n2",
        "✗ 1 failed, 2 completed\"]:::failed",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("#60;/text#62;#60;script#62;#34;x#34;"), "{text}");
}

#[test]
fn without_a_name_the_file_here_or_the_newest_run_is_drawn() {
    let rig = Rig::with(FLOW);
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(75));
    assert!(graph(&rig, &[]).contains("r is waiting"));
    rig.write("waypost.yaml", "steps: [{id: here, run: a}, {id: there, run: b}]\n");
    assert!(graph(&rig, &[]).contains(">there</text>"));
    assert_eq!(lines(&graph(&rig, &[])), 1);
    assert_eq!(rig.call(&["graph", "nope"]).status.code(), Some(5));
    assert_eq!(rig.call(&["graph", "nope.yaml"]).status.code(), Some(2));
}

#[test]
fn many_steps_are_drawn_in_rows() {
    let rig = Rig::new();
    let steps: Vec<String> = (0..300)
        .map(|step| match step % 30 {
            0 => format!("  - {{id: s{step}, needs: [], run: a}}\n"),
            _ => format!("  - {{id: s{step}, needs: [s{}], run: a}}\n", step - 1),
        })
        .collect();
    rig.write("many.yaml", &format!("steps:\n{}", steps.concat()));

    let picture = graph(&rig, &["many.yaml"]);

    assert_eq!(picture.matches("<g class").count(), 300);
    let width = picture.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse::<u32>().unwrap();
    assert!(width < 1_800, "{width}");
}

// Bug: the graph showed ids where steps have names. Cause: with a status, the second line was the status. Fix: the name
// is the first line, and the id is in the title.
#[test]
fn named_steps_show_their_names() {
    let rig = Rig::with("steps: [{id: a, name: Fetch all, run: exit 3}, {id: b, run: 'true'}]\n");
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));

    let (file, run) = (rig.waypost(&["graph", "flow.yaml"]), rig.waypost(&["graph", "r"]));

    assert!(file.contains(">Fetch all</text>") && file.contains(">a</text>"), "{file}");
    assert!(
        run.contains(">✗ Fetch all</text>") && run.contains("<title>a: Fetch all: failed</title>"),
        "{run}"
    );
    assert_eq!(rig.call(&["report", "r", "--html", "--out", "r.html"]).status.code(), Some(0));
    assert!(rig.read("r.html").contains(">✗ Fetch all</text>"));
}
