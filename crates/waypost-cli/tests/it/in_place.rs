//! Edits in place: several steps claim one file, and each edits the result of the step before. At the turn of a step, the
//! step whose result it edits reruns first if that result is gone.

use crate::rig::{Rig, code_of, resume};

/// The steps `s1`, `s2`, `s3` append their numbers to the file `f`; `s1` begins the file.
fn step(number: u32, indent: &str) -> String {
    let redirect = if number == 1 { ">" } else { ">>" };
    let fails = if number == 2 { "; test ! -e fail" } else { "" };
    format!(
        "{indent}- {{id: s{number}, run: 'echo s{number} >> trace; echo {number} {redirect} f{fails}', \
         evidence: [{{sha256: f}}]}}\n"
    )
}

/// Returns a workflow: one word per step, and the steps of a scope after its kind and a colon.
fn flow(words: &str) -> String {
    let mut text = "steps:\n".to_owned();
    for word in words.split_whitespace() {
        let (scope, steps) = word.split_once(':').unwrap_or(("", word));
        let indent = match scope {
            "" => "  ",
            "item" => {
                text.push_str("  - id: each\n    foreach:\n      items: [x]\n      steps:\n");
                "        "
            }
            group => {
                text.push_str(&format!("  - id: {group}\n    steps:\n"));
                "      "
            }
        };
        let numbers = steps.split(',').map(|step| step.trim_start_matches('s').parse().unwrap());
        numbers.for_each(|number| text.push_str(&step(number, indent)));
    }
    text
}

/// Returns the words of a file, and empties the trace.
fn words(rig: &Rig, name: &str) -> String {
    let words = rig.read(name).split_whitespace().collect::<Vec<_>>().join(" ");
    if name == "trace" {
        rig.write("trace", "");
    }
    words
}

/// Returns the steps that the plan of a resume runs or checks again, sorted.
fn planned(rig: &Rig, args: &[&str]) -> String {
    let plan = rig.json(&[&["resume", "r", "--dry-run", "--json"], args].concat());
    let runs = |row: &&serde_json::Value| {
        row["action"].as_str() != Some("reuse") && row["action"].as_str() != Some("skip")
    };
    let rows = plan["decisions"].as_array().unwrap().iter();
    let steps = rows.filter(runs).filter_map(|row| row["step"].as_str());
    let mut steps: Vec<&str> = steps.filter(|step| step.starts_with('s')).collect();
    steps.sort_unstable();
    steps.join(" ")
}

#[test]
fn every_edit_of_a_lost_file_runs_again_across_scopes() {
    // A plan lists the finished steps of joined items only if their evidence failed.
    let flows = [
        ("s1 s2 s3", "s1 s2 s3"),
        ("g:s1 s2 s3", "s1 s2 s3"),
        ("s1 g:s2 s3", "s1 s2 s3"),
        ("g:s1,s2 h:s3", "s1 s2 s3"),
        ("item:s1,s2 s3", "s1 s2 s3"),
        ("s1 item:s2,s3", "s1 s3"),
    ];
    for (words_of_flow, plan) in flows {
        let rig = Rig::with(&flow(words_of_flow));
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        std::fs::remove_file(rig.path("f")).unwrap();
        words(&rig, "trace");

        assert_eq!(planned(&rig, &[]), plan, "{words_of_flow}");
        assert_eq!(resume(&rig, &[]), Some(0));

        assert_eq!(words(&rig, "trace"), "s1 s2 s3", "{words_of_flow}");
        assert_eq!(words(&rig, "f"), "1 2 3", "{words_of_flow}");
        assert_eq!(resume(&rig, &[]), Some(0));
        assert_eq!(words(&rig, "trace"), "", "{words_of_flow}");
    }
}

#[test]
fn an_edit_after_a_failure_begins_with_its_base() {
    let is_lost = [false, true];
    let cases: [(&[&str], &str, &str); 3] = [
        (&[], "s1 s2 s3", "1 2 3"),
        (&["--skip", "s2"], "s1 s3", "1 3"),
        (&["--treat-as", "done"], "s1 s3", "1 3"),
    ];
    for (args, runs, result) in cases {
        for lost in is_lost {
            let rig = Rig::with(&flow("s1 s2 s3"));
            rig.write("fail", "");
            assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
            std::fs::remove_file(rig.path("fail")).unwrap();
            if lost {
                std::fs::remove_file(rig.path("f")).unwrap();
            }
            words(&rig, "trace");

            assert_eq!(planned(&rig, args), runs, "{args:?} {lost}");
            assert_eq!(resume(&rig, args), Some(0));

            assert_eq!(words(&rig, "trace"), runs, "{args:?} {lost}");
            assert_eq!(words(&rig, "f"), result, "{args:?} {lost}");
        }
    }
}

#[test]
fn a_requested_rerun_of_an_edit_begins_with_its_base() {
    let cases = [
        ("s1 s2 s3", "s2", "s1 s2 s3"),
        ("item:s1,s2,s3", "each:x/s2", "s1 s2 s3"),
        ("g:s1,s2,s3", "g~1/s3", "s1 s2 s3"),
        ("item:s1 s2 s3", "s2", "s1 s2 s3"),
    ];
    for (words_of_flow, from, runs) in cases {
        let rig = Rig::with(&flow(words_of_flow));
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        words(&rig, "trace");

        assert_eq!(resume(&rig, &["--from", from]), Some(0), "{words_of_flow}");

        assert_eq!(words(&rig, "trace"), runs, "{words_of_flow}");
        assert_eq!(words(&rig, "f"), "1 2 3", "{words_of_flow}");
    }
}

#[test]
fn a_changed_edit_in_an_item_begins_with_its_base() {
    for words_of_flow in ["s1 s2", "item:s1,s2", "g:s1,s2"] {
        let rig = Rig::with(&flow(words_of_flow));
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        rig.write("flow.yaml", &rig.read("flow.yaml").replace("echo 2 ", "echo two "));
        words(&rig, "trace");

        assert_eq!(planned(&rig, &["--rerun-changed"]), "s1 s2", "{words_of_flow}");
        assert_eq!(resume(&rig, &["--rerun-changed"]), Some(0));

        assert_eq!(words(&rig, "trace"), "s1 s2", "{words_of_flow}");
        assert_eq!(words(&rig, "f"), "1 two", "{words_of_flow}");
    }
}

// A base whose evidence could not be checked counted as sound, and the edit ran on an unknown file.
#[test]
fn an_edit_stops_at_a_base_that_cannot_be_checked() {
    // The rerun of `p` makes the file too large for `contains`, which reads at most 64 MiB.
    let rig = Rig::with(
        "steps:
  - {id: s1, needs: [], run: 'echo s1 >> trace; echo 1 > f', evidence: [{file: f, contains: '1'}]}
  - {id: p, needs: [s1], run: 'cat in > p.txt; test ! -e large || truncate -s 65M f', evidence: [{sha256: p.txt}]}
  - {id: s2, needs: [s1, p], run: 'echo s2 >> trace; echo 2 >> f', evidence: [{file: f, contains: '2'}]}
",
    );
    rig.write("in", "1");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    rig.write("in", "2");
    rig.write("large", "");
    std::fs::remove_file(rig.path("p.txt")).unwrap();
    words(&rig, "trace");

    let output = rig.call(&["resume", "r"]);

    let said = rig.told(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("step `s1`: evidence could not be checked: artifact_exists f"), "{said}");
    assert_eq!(words(&rig, "trace"), "", "{said}");
    std::fs::remove_file(rig.path("large")).unwrap();
    std::fs::remove_file(rig.path("f")).unwrap();
    assert_eq!(resume(&rig, &[]), Some(0));
    assert_eq!((words(&rig, "trace"), words(&rig, "f")), ("s1 s2".to_owned(), "1 2".to_owned()));
}

// Bug: `--from s2` asked about its base `s1` whatever a person decided, and the named command lost `--from`. Cause: the decision
// was gone when the base was looked at. Fix: the decision answers questions about bases.
#[test]
fn a_base_in_doubt_is_settled_together_with_from() {
    for (treat_as, wanted) in [("done", "s2\ns3\n"), ("retry", "s1\ns2\ns3\n")] {
        let steps: String = (1..=3).map(|number| step(number, "  ")).collect();
        let rig = Rig::with(&format!("steps:\n{}", steps.replace("{id: s1,", "{id: s1, idempotent: false,")));
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
        rig.write("trace", "");

        let asked = rig.waypost(&["resume", "r", "--from", "s2"]);
        let named = format!("{treat_as}=s1");
        let done = code_of(&rig, &["resume", "r", "--from", "s2", "--treat-as", &named, "-q"]);

        let way = format!("  waypost resume r --from s2 --treat-as {named} ");
        assert!(asked.starts_with("exit 8\n") && asked.contains(&way), "{asked}");
        assert_eq!((done, rig.read("trace").as_str()), (Some(0), wanted), "{treat_as}");
    }
}
