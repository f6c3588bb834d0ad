//! Statements of what a run made, for tools that know no runs.

use serde_json::Value;
use waypost::Digest;

use crate::rig::{Rig, code_of};

const FLOW: &str = "name: release
steps:
  - {id: build, run: 'mkdir -p out/d; echo app > out/app; echo x > out/d/x; echo x > out/x', evidence: [{sha256: out/app}, {sha256: out/d}]}
  - {id: later, run: 'echo again > out/app', evidence: [{sha256: out/app}, {file: out/x}]}
  - {id: last, run: 'test -e go', evidence: [{sha256: out/x}]}
";

fn hex(bytes: &[u8]) -> String {
    Digest::of(bytes).to_string()
}

#[test]
fn a_completed_run_is_attested_by_what_it_made() {
    let rig = Rig::with(FLOW);
    let call = |args: &[&str]| code_of(&rig, args);
    assert_eq!(call(&["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    assert_eq!(call(&["export", "r", "not-yet.json", "--attest"]), Some(2), "it is not completed");
    rig.write("go", "");
    assert_eq!(call(&["resume", "r", "-q"]), Some(0));

    assert_eq!(call(&["export", "r", "made.json", "--attest"]), Some(0));

    let made: Value = serde_json::from_str(&rig.read("made.json")).unwrap();
    assert_eq!(made["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(made["predicateType"], "https://in-toto.io/attestation/link/v0.3");
    let names: Vec<_> = made["subject"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["out/app", "out/d", "out/x"], "each once, however many steps claim it");
    assert_eq!(made["subject"][0]["digest"]["sha256"], hex(b"again\n"), "as the newest of them left it");
    assert_eq!(made["subject"][2]["digest"]["sha256"], hex(b"x\n"));
    assert_eq!(made["subject"][1]["digest"]["waypostTree"].as_str().map(str::len), Some(64));
    let said = &made["predicate"];
    assert_eq!(said["materials"][0]["digest"]["sha256"], hex(FLOW.as_bytes()));
    assert_eq!(said["materials"][0]["name"], "flow.yaml");
    let steps = &said["byproducts"]["steps"];
    assert_eq!(steps[1]["command"], "echo again > out/app");
    assert_eq!(steps[2]["exit_code"], 0);
    let kept = rig.json(&["checkpoints", "r", "--json"]);
    let newest = kept["checkpoints"].as_array().and_then(|all| all.last()).unwrap();
    assert_eq!(said["byproducts"]["checkpoint"], newest["ref"]);

    assert_eq!(call(&["export", "r", "made.json", "--attest"]), Some(2), "it is there");
    assert_eq!(call(&["export", "r@2", "older.json", "--attest"]), Some(2), "a run is attested as it stands");
    rig.write("out/x", "y\n");
    assert_eq!(
        call(&["export", "r", "made.json", "--attest", "--replace"]),
        Some(4),
        "it is not as it was made"
    );
    assert_eq!(serde_json::from_str::<Value>(&rig.read("made.json")).unwrap(), made);
    for name in ["not-yet.json", "older.json"] {
        assert!(!rig.path(name).exists(), "{name}");
    }
}

#[test]
fn a_run_that_pins_nothing_is_not_attested() {
    let rig = Rig::with("steps: [{id: a, run: 'echo x > out.txt', evidence: [{file: out.txt}]}]\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    let told = rig.waypost(&["export", "r", "made.json", "--attest"]);

    assert!(told.contains("exit 2") && told.contains("sha256: FILE"), "{told}");
    assert!(!rig.path("made.json").exists());
}

#[test]
fn each_file_of_a_workflow_is_a_material_by_itself() {
    let main = "steps:\n  - {id: inner, workflow: parts/child.yaml}\n  - {id: made, run: 'echo 1 > f', evidence: [{sha256: f}]}\n";
    let child = "steps:\n  - {id: c, run: 'true'}\n";
    let rig = Rig::with(main);
    std::fs::create_dir(rig.path("parts")).unwrap();
    rig.write("parts/child.yaml", child);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));

    assert_eq!(code_of(&rig, &["export", "r", "made.json", "--attest"]), Some(0));

    let made: Value = serde_json::from_str(&rig.read("made.json")).unwrap();
    let materials = made["predicate"]["materials"].as_array().unwrap();
    let found: Vec<_> = materials.iter().map(|one| (&one["name"], &one["digest"]["sha256"])).collect();
    let expect = [("flow.yaml", main), ("parts/child.yaml", child)]
        .map(|(name, text)| (Value::from(name), Value::from(hex(text.as_bytes()))));
    assert_eq!(found, expect.each_ref().map(|(name, digest)| (name, digest)));
}
