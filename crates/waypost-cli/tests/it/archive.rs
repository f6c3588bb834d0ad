//! A run as one file: complete or absent, and usable as the start of a new run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;

use serde_json::{Value, json};
use waypost::Digest;

use crate::rig::{Rig, check, wait_until};

const FLOW: &str = r#"name: nightly
steps:
  - {id: one, run: 'echo one >> trace; echo "n=1" >> "$WAYPOST_OUTPUT"; echo printed'}
  - id: each
    foreach: {items: [a, b], steps: [{id: i, run: 'echo "$I" >> trace', env: {I: "${{ item }}"}}]}
  - {id: two, run: 'test -e go; echo "two $N" >> trace', env: {N: "${{ steps.one.outputs.n }}"}}
"#;

pub(crate) fn entries(rig: &Rig, name: &str) -> BTreeMap<String, Vec<u8>> {
    let decoder = zstd::Decoder::new(File::open(rig.path(name)).unwrap()).unwrap();
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(decoder).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        assert!(found.insert(name.clone(), bytes).is_none(), "{name} is there once");
    }
    found
}

#[test]
fn an_archive_is_complete_and_another_run_resumes_from_it() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(FLOW).at(store);
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));
        let listed = rig.json(&["checkpoints", "r", "--json", "--limit", "1000"]);
        let listed = listed["checkpoints"].as_array().unwrap().clone();

        let told = rig.json(&["archive", "r", "r.tar.zst", "--json"]);

        let bytes = fs::metadata(rig.path("r.tar.zst")).unwrap().len();
        assert_eq!(
            told,
            json!({"v": 1, "run": "r", "file": "r.tar.zst", "bytes": bytes, "checkpoints": listed.len()}),
            "{store}"
        );
        let found = entries(&rig, "r.tar.zst");
        let manifest: Value = serde_json::from_slice(&found["manifest.json"]).unwrap();
        assert_eq!((&manifest["run"], &manifest["status"]), (&json!("r"), &json!("failed")));
        let named = manifest["files"].as_array().unwrap();
        assert_eq!(named.len(), found.len() - 1);
        for file in named {
            let bytes = &found[file["name"].as_str().unwrap()];
            assert_eq!(file["bytes"], bytes.len());
            assert_eq!(file["sha256"], Digest::of(bytes).to_string());
        }
        let lines = String::from_utf8(found["checkpoints/000001.jsonl"].clone()).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let digests = |of: &[Value]| of.iter().map(|one| one["digest"].clone()).collect::<Vec<_>>();
        assert_eq!(digests(&lines), digests(&listed), "{store}: every checkpoint, in its order");
        assert!(lines.iter().any(|line| line["body"]["state"]["steps"]["one"].is_object()), "{lines:?}");
        assert!(String::from_utf8_lossy(&found["workflow.yaml"]).starts_with("name: nightly"));
        assert!(found["files/events.jsonl"].starts_with(b"{") && found.contains_key("files/report.md"));
        let log = found.iter().find(|(name, _)| name.starts_with("files/logs/one")).unwrap();
        assert_eq!(log.1, b"printed\n");

        assert_eq!(rig.call(&["delete", "r", "--yes"]).status.code(), Some(0));
        rig.write("go", "");
        rig.write("trace", "");
        let refused = rig.call(&["import", "r.tar.zst", "--id", "s"]);
        assert_eq!(refused.status.code(), Some(77), "{}", rig.told(&refused));
        assert_eq!(rig.call(&["import", "r.tar.zst", "--trust", "--id", "s", "-q"]).status.code(), Some(0));
        assert_eq!(rig.read("trace"), "two 1\n", "{store}: only what was left");
    }
}

#[test]
fn a_partial_archive_is_refused_and_writes_nothing() {
    let rig = Rig::with("steps: [{id: a, run: 'echo a >> trace; sleep 1000'}]\n").at("file:kept");
    let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
    rig.wait_for("trace", |text| !text.is_empty());
    assert_eq!(rig.call(&["archive", "r", "x"]).status.code(), Some(6), "it is under way");
    running.signal(libc::SIGINT);
    running.end();

    assert_eq!(rig.call(&["archive", "r", "x"]).status.code(), Some(0));
    let before = fs::read(rig.path("x")).unwrap();
    check("archive_exists", &rig.waypost(&["archive", "r", "x"]));
    assert_eq!(rig.call(&["archive", "r", "x", "--replace"]).status.code(), Some(0));
    check("archive_nowhere", &rig.waypost(&["archive", "r", "no/such/folder/x"]));
    check("archive_of_nobody", &rig.waypost(&["archive", "nobody", "y"]));

    let commits = rig.path("kept/runs/r");
    let file = fs::read_dir(commits.join("main")).or_else(|_| fs::read_dir(&commits)).unwrap();
    let newest = file
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "json") && !path.ends_with("run.json"))
        .max()
        .unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    let at = bytes.len() - 40;
    bytes[at] ^= 1;
    fs::write(&newest, bytes).unwrap();
    check("archive_damaged", &rig.waypost(&["archive", "r", "y"]));
    assert!(!rig.path("y").exists());
    let left = || fs::read_dir(rig.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(
        left().all(|name| !name.to_string_lossy().starts_with(".waypost-unfinished-")),
        "nothing is left behind"
    );

    // A truncated or changed file is not an archive.
    fs::write(rig.path("x"), &before[..before.len() / 2]).unwrap();
    wait_until("it is written", || rig.path("x").exists());
    assert_eq!(rig.call(&["import", "x", "--trust"]).status.code(), Some(7));
}

// Bug: an answer or signal that no session had read was lost when its run was archived and deleted. Cause: only
// checkpoints and files were archived. Fix: the archive has them, and the import reports them.
#[test]
fn what_was_given_to_a_run_is_archived_and_told() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with("steps:\n  - {id: ok, approve: Sure?}\n  - {id: go, wait: go}\n").at(store);
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(75));
        assert_eq!(rig.call(&["archive", "r", "none"]).status.code(), Some(0));
        assert!(!entries(&rig, "none").contains_key("signals.jsonl"), "nothing was given");
        assert_eq!(rig.call(&["answer", "r", "yes"]).status.code(), Some(0));
        assert_eq!(rig.call(&["signal", "r", "go", "7"]).status.code(), Some(0));

        let told = rig.waypost(&["archive", "r", "x"]);

        assert!(told.starts_with("exit 0") && !told.contains("not inherited"), "{store}: {told}");
        let lines = String::from_utf8(entries(&rig, "x")["signals.jsonl"].clone()).unwrap();
        let given: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(given.len(), 2, "{lines}");
        assert_eq!(given[0]["kind"]["answer"]["value"], true, "{lines}");
        assert_eq!(given[1]["kind"]["named"]["name"], "go", "{lines}");
        assert_eq!(given[1]["kind"]["named"]["value"], 7, "{lines}");
        let told = rig.waypost(&["import", "x", "--trust", "--id", "s"]);
        let said = "signal `go`, sent after the last session of run r";
        assert!(told.starts_with("exit 75") && told.contains(said), "{store}: {told}");
        assert!(told.contains("warning: not inherited: answer true to step `ok`"), "{told}");
        let told = rig.waypost(&["export", "r", "e"]);
        assert!(told.contains("signals not exported: `go`"), "{told}");
        let told = rig.waypost(&["fork", "r", "--id", "f"]);
        assert!(
            told.contains("warning: not inherited: answer true to") && !told.contains("signal `go`, sent"),
            "{told}"
        );
    }
}
