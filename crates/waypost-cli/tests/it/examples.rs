//! The examples of the repository, run as a reader would, and killed on the way.

use std::fs;
use std::path::Path;

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

#[test]
fn the_audit_survives_a_kill_and_reports_on_this_project() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
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
