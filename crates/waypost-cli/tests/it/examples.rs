//! The examples of the repository, run as by a reader, and killed in the middle.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rig::Rig;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        // Output of a run is not part of the example.
        if name == "out" || name == ".waypost" {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(&name));
        } else {
            fs::copy(entry.path(), to.join(&name)).unwrap();
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Four crates that each print a line in two halves. With four jobs, all first halves come before any second
/// half.
const HALVES: &str = r#"
. "$1/common.sh"
halves() {
    printf 'first half of %s, ' "$1"
    touch "$3/$1.began"
    while [ "$AUDIT_JOBS" -gt 1 ] && [ "$(ls "$3" | wc -l)" -lt 4 ]; do sleep 0.01; done
    printf 'second half of %s\n' "$1"
}
mkdir "$OUT/began"
for crate in a b c d; do printf '%s\t1.0.0\tregistry\t%s\n' "$crate" "$OUT/began"; done >"$OUT/crates.tsv"
each_crate halves "$OUT/crates.tsv"
ls "$OUT" >&2
"#;

// Bug: the audit's fingerprint of one tree differed from run to run. Cause: several jobs wrote into one pipe, and
// the lines of two crates mixed. Fix: each crate has its own file, and complete files are concatenated.
#[test]
fn the_audit_finds_the_same_with_any_number_of_jobs() {
    let rig = Rig::new();
    let found_with = |jobs: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", HALVES, "halves"]).arg(repository().join("examples/audit/steps"));
        command.env("AUDIT_JOBS", jobs).env("AUDIT_OUT", rig.path(jobs)).output().unwrap()
    };

    let alone = found_with("1");
    let together = found_with("4");

    let lines: Vec<_> =
        ["a", "b", "c", "d"].map(|name| format!("first half of {name}, second half of {name}\n")).into();
    assert_eq!(
        rig.told(&alone),
        format!("exit 0\n--- stdout\n{}--- stderr\nbegan\ncrates.tsv\n", lines.concat())
    );
    assert_eq!(rig.told(&together), rig.told(&alone));
}

#[test]
fn the_audit_survives_a_kill_and_reports_on_this_project() {
    let repository = repository();
    let rig = Rig::new();
    copy(&repository.join("examples/audit"), &rig.path("."));
    let project = format!("project={}", repository.display());

    let running = rig.start(&["run", "--id", "audit", "-p", &project]);
    let hashed = |events: &str| events.lines().filter(|line| line.contains("\"item_completed\"")).count();
    rig.wait_for(".waypost/runs/audit/events.jsonl", |events| hashed(events) >= 5);
    running.signal(libc::SIGKILL);
    running.end();
    let resumed = rig.call(&["resume", "audit"]);

    assert_eq!(resumed.status.code(), Some(0), "{}", rig.told(&resumed));
    let shown = rig.json(&["show", "audit", "--json"]);
    let attempts = |id: &str| {
        let steps = shown["steps"].as_array().unwrap();
        steps.iter().find(|step| step["id"] == id).unwrap()["attempts"].as_u64().unwrap()
    };
    assert_eq!((attempts("crates"), attempts("hashes"), attempts("report")), (1, 1, 1));
    let crates: usize =
        rig.json(&["show", "audit", "--step", "crates", "--json"])["steps"][0]["outputs"]["count"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
    assert_eq!(hashed(&rig.waypost(&["events", "audit", "--json"])), crates, "each is finished once");
    let files: Vec<_> = rig.read("out/audit/files.tsv").lines().map(str::to_owned).collect();
    assert!(files.len() > 1_000 && files.iter().any(|line| line.contains("\tserde\t")), "{}", files.len());
    let report = rig.read("out/report.md");
    assert!(report.contains("serde") && report.contains("tokio"), "{report}");
    assert_eq!(rig.call(&["verify", "audit"]).status.code(), Some(0));
}

#[test]
fn the_research_survives_kills_and_reads_no_document_twice() {
    let repository = repository();
    let rig = Rig::new();
    copy(&repository.join("examples/research"), &rig.path("."));
    // A copy leaves out the output of runs; the configuration is copied separately.
    fs::create_dir_all(rig.path(".waypost")).unwrap();
    fs::copy(repository.join("examples/research/.waypost/config.yaml"), rig.path(".waypost/config.yaml"))
        .unwrap();
    let folder = format!("folder={}", repository.join("docs").display());
    let read = |events: &str| events.lines().filter(|line| line.contains("\"item_completed\"")).count();

    let mut command = vec!["run", "--id", "q", "-q", "-p", &folder];
    for documents in [1, 4] {
        let running = rig.start(&command);
        rig.wait_for(".waypost/runs/q/events.jsonl", |events| read(events) >= documents);
        running.signal(libc::SIGKILL);
        running.end();
        command = vec!["resume", "q", "-q"];
    }
    let resumed = rig.call(&command);

    assert_eq!(resumed.status.code(), Some(0), "{}", rig.told(&resumed));
    let answer = rig.read("out/answer.md");
    assert_eq!(answer.matches("\n- `").count(), 8, "{answer}");
    assert!(answer.split("## Sources").next().unwrap().len() > 200, "{answer}");
    let events = rig.waypost(&["events", "q", "--json"]);
    assert_eq!(read(&events), 8, "each document is finished once");
    assert!(rig.read(".waypost/runs/q/report.md").contains(" hits): "));
    assert_eq!(rig.call(&["verify", "q"]).status.code(), Some(0));
}

#[test]
fn the_release_asks_before_it_publishes_and_can_go_back() {
    let rig = Rig::new();
    copy(&repository().join("examples/release"), &rig.path("."));
    let code = |args: &[&str]| rig.call(args).status.code();

    assert_eq!(code(&["run", "--id", "rel", "-p", "version=1.2.0", "-q"]), Some(75));
    assert!(!rig.path("registry").exists(), "nothing is out before somebody says so");
    assert_eq!(code(&["answer", "rel", "yes"]), Some(0));
    assert_eq!(code(&["resume", "rel", "-q"]), Some(0));
    assert!(rig.path("registry/stable/release-1.2.0.tar.gz").exists());
    assert_eq!(rig.read("registry/news"), "release 1.2.0 is out\n");

    // A resume from the step before the question, with the answer no: a reported failure.
    assert_eq!(code(&["resume", "rel", "--from", "ask", "-q"]), Some(75));
    assert_eq!(code(&["answer", "rel", "no"]), Some(0));
    assert_eq!(code(&["resume", "rel", "-q"]), Some(1));
    assert_eq!(rig.read("registry/log"), "published 1.2.0\n", "it was published once");
    assert!(rig.read("registry/news").ends_with("release 1.2.0 failed at ask\n"));
    assert_eq!(code(&["run", "-p", "version=1.2", "-q"]), Some(2), "no version");
}

#[test]
fn tables_have_each_file_once_after_kills_and_repair() {
    let rig = Rig::new();
    copy(&repository().join("examples/etl"), &rig.path("."));
    let mut command = vec!["run", "--id", "etl", "-q"];
    for done in [1, 2] {
        let running = rig.start(&command);
        rig.wait_for(".waypost/runs/etl/events.jsonl", |events| {
            events.lines().filter(|line| line.contains("\"step_completed\"")).count() >= 2 * done
        });
        running.signal(libc::SIGKILL);
        running.end();
        command = vec!["resume", "etl", "-q"];
    }
    let resumed = rig.call(&command);
    // After a kill behind its last step, the run has no step left.
    assert_eq!(resumed.status.code(), Some(3), "{}", rig.told(&resumed));
    assert!(rig.read("out/report.md").contains("120 rows"), "{}", rig.read("out/report.md"));
    let letters = rig.json(&["dead-letters", "list", "etl", "--json"]);
    assert_eq!(letters["items"].as_array().unwrap().len(), 1);
    assert_eq!(letters["items"][0]["key"], "turin.csv");

    rig.write("data/turin.csv", &rig.read("data/turin.csv").replace(",many,", ",3,"));
    let retried = rig.call(&["dead-letters", "retry", "etl", "-q"]);

    assert_eq!(retried.status.code(), Some(0), "{}", rig.told(&retried));
    assert!(rig.read("out/report.md").contains("160 rows"), "{}", rig.read("out/report.md"));
    assert_eq!(rig.call(&["verify", "etl"]).status.code(), Some(0));
}
