//! The examples of the repository, run as a reader would, and killed on the way.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rig::Rig;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        // What a run made is not part of the example.
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

/// Four crates that each print a line in two halves, all first halves before any second one when there are four jobs.
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

// What happened: the audit's fingerprint of one tree differed from run to run.
// Why: several jobs wrote into one pipe, and the lines of two crates ended up inside each other.
// What stops it now: each crate has a file of its own, and they are put together when all are whole.
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
    rig.wait_for(".waypost/runs/audit/events.jsonl", |events| {
        events.lines().any(|line| line.contains("\"hashes\"") && line.contains("step_started"))
    });
    running.signal(libc::SIGKILL);
    running.end();
    let resumed = rig.call(&["resume", "audit"]);

    assert_eq!(resumed.status.code(), Some(0), "{}", rig.told(&resumed));
    let shown = rig.json(&["show", "audit", "--json"]);
    let attempts = |id: &str| {
        let steps = shown["steps"].as_array().unwrap();
        steps.iter().find(|step| step["id"] == id).unwrap()["attempts"].as_u64().unwrap()
    };
    assert_eq!((attempts("crates"), attempts("hashes"), attempts("report")), (1, 2, 1));
    let report = rig.read("out/report.md");
    assert!(report.contains("serde") && report.contains("tokio"), "{report}");
    assert_eq!(rig.call(&["verify", "audit"]).status.code(), Some(0));
}
