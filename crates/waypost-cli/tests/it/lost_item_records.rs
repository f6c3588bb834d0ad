//! Commands report damaged and missing records of items like those of the main scope.

use std::fs;
use std::path::PathBuf;

use rusqlite::Connection;
use serde_json::Value;

use crate::rig::{Rig, code_of};

/// Two items of two steps; the second step fails on `y` until the file `go` exists.
const ITEMS: &str = r#"steps:
  - id: f
    foreach:
      items: [x, y]
      max_parallel: 1
      on_item_failure: stop
      steps:
        - { id: p, run: 'true' }
        - { id: s, run: '[ $I = x ] || test -e go', env: { I: "${{ item }}" } }
"#;

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Damaged,
    Missing,
}

/// Makes a run that has failed on item `y`, and damages one of its records.
fn harmed(url: &str, item: &str, seq: u64, harm: Harm) -> Rig {
    let rig = Rig::with(ITEMS).at(url);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    harm_record(&rig, url, (item, seq), harm);
    rig
}

fn harm_record(rig: &Rig, url: &str, (item, seq): (&str, u64), harm: Harm) {
    if url.starts_with("file:") {
        harm_file(rig, item, seq, harm);
    } else {
        let database = Connection::open(rig.path("kept/waypost.db")).unwrap();
        let sql = match harm {
            Harm::Damaged => {
                "UPDATE records SET header = zeroblob(length(header)) WHERE key = ?2 + (SELECT id << 32 FROM scopes WHERE path = ?1)"
            }
            Harm::Missing => {
                "DELETE FROM records WHERE key = ?2 + (SELECT id << 32 FROM scopes WHERE path = ?1)"
            }
        };
        assert_eq!(database.execute(sql, (item, i64::try_from(seq).unwrap())).unwrap(), 1);
    }
}

fn harm_file(rig: &Rig, item: &str, seq: u64, harm: Harm) {
    let has_it = |path: &PathBuf| {
        let Ok(commit) = serde_json::from_slice::<Value>(&fs::read(path).unwrap()) else { return false };
        let is_it = |record: &Value| record["header"]["scope"] == item && record["header"]["seq"] == seq;
        commit["records"].as_array().unwrap().iter().any(is_it)
    };
    let files = fs::read_dir(rig.path("kept/runs/r/history")).unwrap().map(|entry| entry.unwrap().path());
    let path = files.filter(|path| path.extension().is_some_and(|end| end == "json")).find(has_it).unwrap();
    match harm {
        Harm::Damaged => {
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        }
        Harm::Missing => fs::remove_file(path).unwrap(),
    }
}

/// Asserts the exit code and the text of a command.
fn expect(rig: &Rig, args: &[&str], code: i32, words: &str) {
    let output = rig.call(args);
    let told = rig.told(&output);
    assert!(output.status.code() == Some(code) && told.contains(words), "{args:?} without `{words}`: {told}");
}

fn every_harm(mut check: impl FnMut(&str, Harm)) {
    for url in STORES {
        for harm in [Harm::Damaged, Harm::Missing] {
            check(url, harm);
        }
    }
}

#[test]
fn list_doctor_and_check_see_the_newest_record_of_an_item() {
    every_harm(|url, harm| {
        for (item, seq) in [("f:x", 3), ("f:y", 4)] {
            let rig = harmed(url, item, seq, harm);

            expect(&rig, &["list"], 0, "newer checkpoints of run r are damaged or missing");
            expect(&rig, &["doctor"], 7, "newer checkpoints of run r are damaged or missing");
            expect(&rig, &["store", "check"], 7, "run r: newer checkpoints are damaged or missing");
            for args in [&["show", "r"], &["why", "r"], &["plan", "r"]] {
                expect(&rig, args, 0, &format!("checkpoint r/{item}@{seq} is "));
            }
        }
    });
}

// Bug: `show`, `why` and `plan` named a damaged record of the main scope, and not a damaged record of an ended
// item. Cause: only the history of open scopes was read. Fix: the commands read the records of all items.
#[test]
fn show_why_and_plan_name_any_damaged_record_of_an_item() {
    every_harm(|url, harm| {
        let rig = harmed(url, "f:x", 2, harm);

        for args in [&["show", "r"][..], &["why", "r"], &["plan", "r"], &["why", "r", "f:x/p"]] {
            let told = rig.waypost(args);
            assert_eq!(told.matches("warning: checkpoint r/f:x@2 is ").count(), 1, "{url}: {args:?}: {told}");
        }
        assert_eq!(rig.json(&["show", "r", "--json"])["damaged"], serde_json::json!(["r/f:x@2"]), "{url}");
        expect(&rig, &["verify", "r"], 7, "r/f:x@2");
    });
}

// What happened: `why` of a step of an ended item exited 5 if the step's records were damaged, and `plan` warned.
// Why: without a record, the step counted as unknown. What stops it now: the workflow says whether there is such a step.
#[test]
fn why_tells_of_a_step_of_an_item_whose_records_are_lost() {
    every_harm(|url, harm| {
        let rig = harmed(url, "f:x", 1, harm);
        harm_record(&rig, url, ("f:x", 2), harm);

        let told = rig.waypost(&["why", "r", "f:x/p"]);

        assert!(told.starts_with("exit 0\n") && told.contains("warning: checkpoint r/f:x@2 is "), "{told}");
        assert!(told.contains("step f:x/p: reuse the result"), "{told}");
        expect(&rig, &["why", "r", "f:x/f"], 5, "there is no step `f`");
    });
}

#[test]
fn a_resume_stops_where_a_file_with_the_end_of_an_item_is_gone() {
    let rig = harmed("file:kept", "f:x", 3, Harm::Missing);
    rig.write("go", "");

    expect(&rig, &["resume", "r"], 7, "checkpoint r/f:x@3 is damaged");
    expect(&rig, &["resume", "r", "--from", "f"], 0, "is completed");
}

/// Three finished items of two steps; `$1` is the key `idempotent` of the second step.
fn finished(idempotent: bool, evidence: &str) -> Rig {
    let rig = Rig::with(&format!(
        r#"steps:
  - id: f
    foreach:
      items: [x, y, z]
      max_parallel: 1
      steps:
        - {{ id: p, run: 'echo p$I >> trace; touch out-$I', env: {{ I: "${{{{ item }}}}" }}{evidence} }}
        - {{ id: s, run: 'echo s$I >> trace', env: {{ I: "${{{{ item }}}}" }}, idempotent: {idempotent} }}
"#
    ))
    .at(STORES[0]);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    rig.write("trace", "");
    rig
}

/// Zeroes the newest bodies of item `y`.
fn harm_bodies(rig: &Rig, count: u32) {
    let database = Connection::open(rig.path("kept/waypost.db")).unwrap();
    let sql = "UPDATE records SET body = zeroblob(length(body)) WHERE key IN (SELECT key FROM records
        WHERE key >> 32 = (SELECT id FROM scopes WHERE path = 'f:y') ORDER BY key DESC LIMIT ?1)";
    assert_eq!(database.execute(sql, [count]).unwrap(), count as usize);
}

// Bug: a finished step with `idempotent: false` ran again without a question. Cause: the body of the newest record of
// a finished item was damaged, and the item restarted when another item made the foreach run again. Fix: the item is
// entered again with its sound results, and its lost steps are in doubt.
#[test]
fn lost_steps_of_a_finished_item_do_not_run_again_unasked() {
    let evidence = ", evidence: [{ file: 'out-${{ item }}' }]";
    for (evidence, count) in [(evidence, 1), (evidence, 2), (evidence, 5), ("", 1), ("", 2)] {
        let rig = finished(false, evidence);
        harm_bodies(&rig, count);
        let args = match evidence {
            "" => &["resume", "r", "--from", "f:z/s", "-q"][..],
            _ => &["resume", "r", "-q"],
        };
        fs::remove_file(rig.path("out-x")).unwrap();

        assert_eq!(code_of(&rig, args), Some(8), "{count} {evidence}: {}", rig.read("trace"));
        assert!(!rig.read("trace").contains("sy"), "{count} {evidence}: {}", rig.read("trace"));
        assert_eq!(code_of(&rig, &["resume", "r", "--treat-as", "done", "-q"]), Some(0));
        assert!(!rig.read("trace").contains("sy"), "{count} {evidence}: {}", rig.read("trace"));
    }
}

#[test]
fn sound_results_of_a_damaged_item_are_reused() {
    let rig = finished(true, ", evidence: [{ file: 'out-${{ item }}' }]");
    harm_bodies(&rig, 1);
    fs::remove_file(rig.path("out-x")).unwrap();

    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));
    assert_eq!(rig.read("trace"), "px\nsy\n", "only the lost step and the step without evidence");
}

// Bug: if the end of a finished item was damaged, a resume did not look at the evidence of the item, and completed. Cause: scopes
// without a sound end were left out. Fix: their opener joins again, which reports and repairs them.
#[test]
fn a_damaged_end_of_a_finished_item_hides_no_lost_file() {
    let flow = "steps:
  - id: f
    foreach:
      items: [x, y]
      max_parallel: 1
      steps:
        - {id: s, run: 'echo s$I >> trace; touch f$I', env: {I: '${{ item }}'}, evidence: [{file: 'f${{ item }}'}]}
        - {id: q, run: 'echo q$I >> trace', env: {I: '${{ item }}'}}
  - {id: b, run: 'test -e ok'}
";
    for store in STORES {
        let rig = Rig::with(flow).at(store);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        harm_record(&rig, store, ("f:y", 4), Harm::Damaged);
        fs::remove_file(rig.path("fy")).unwrap();
        rig.write("ok", "");
        rig.write("trace", "");

        expect(&rig, &["resume", "r"], 0, "checkpoint r/f:y@4 was damaged");

        let mut ran: Vec<String> = rig.read("trace").lines().map(str::to_owned).collect();
        ran.sort();
        assert_eq!(ran, ["qy", "sy"], "{store}");
        assert!(rig.path("fy").exists());
    }
}

#[test]
fn a_step_with_a_damaged_older_record_reruns_alone() {
    for url in STORES {
        let rig = Rig::with(
            r#"steps:
  - id: f
    foreach:
      items: [x, y]
      max_parallel: 1
      steps:
        - { id: s, run: 'echo s$I >> trace; echo 1 > file$I', env: { I: "${{ item }}" }, evidence: [{ sha256: "file${{ item }}" }] }
        - { id: q, run: 'echo q$I >> trace', env: { I: "${{ item }}" } }
  - { id: b, run: '[ -e ok ]' }
"#,
        )
        .at(url);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
        harm_record(&rig, url, ("f:y", 3), Harm::Damaged);
        rig.write("ok", "");

        expect(&rig, &["resume", "r"], 7, "reruns step `f:y/s` and all steps downstream");

        rig.waypost(&["resume", "r", "--from", "f:y/s"]);
        assert_eq!(rig.read("trace"), "sx\nqx\nsy\nqy\nsy\nqy\n", "{url}");
        expect(&rig, &["resume", "r"], 0, "Nothing to do");
    }
}
