//! The runs of all stores that a user has used.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use serde_json::Value;

use crate::rig::Rig;

/// Makes a rig with stores in two projects and a file store, each with a run. Temporary files are elsewhere.
fn rig() -> Rig {
    let rig = Rig::with("steps: [{run: echo hello}]\n");
    for project in ["one", "two"] {
        fs::create_dir_all(rig.path(project).join(".waypost")).unwrap();
        fs::copy(rig.path("flow.yaml"), rig.path(project).join("flow.yaml")).unwrap();
        let ran = call(&rig, &["run", &format!("{project}/flow.yaml"), "--id", project]);
        assert_eq!(ran.status.code(), Some(0), "{}", rig.told(&ran));
    }
    call(&rig, &["run", "flow.yaml", "--id", "three", "--store", "file:three"]);
    rig
}

fn call(rig: &Rig, args: &[&str]) -> Output {
    fs::create_dir_all(rig.path("tmp")).unwrap();
    rig.command(args)
        .env("XDG_STATE_HOME", rig.path("state"))
        .env("TMPDIR", rig.path("tmp"))
        .output()
        .unwrap()
}

fn listed(rig: &Rig, more: &[&str]) -> Vec<(String, String)> {
    let output = call(rig, &[&["list", "--everywhere", "--json"], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", rig.told(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |run: &Value, key: &str| run[key].as_str().unwrap().to_owned();
    document["runs"].as_array().unwrap().iter().map(|run| (text(run, "run"), text(run, "store"))).collect()
}

#[test]
fn the_runs_of_all_stores_are_listed_newest_first() {
    let rig = rig();
    let here = rig.path(".").canonicalize().unwrap();
    let at = |store: &str| store.replacen(':', &format!(":{}/", here.display()), 1);

    let expected = [
        ("three".to_owned(), at("file:three")),
        ("two".to_owned(), at("sqlite:two/.waypost/waypost.db")),
        ("one".to_owned(), at("sqlite:one/.waypost/waypost.db")),
    ];
    assert_eq!(listed(&rig, &[]), expected);
    assert_eq!(listed(&rig, &["--limit", "1"]), expected[..1]);
    assert_eq!(listed(&rig, &["--path", "two/flow.yaml"]), expected[1..2]);
    assert_eq!(listed(&rig, &["--resumable"]), []);
    let told = rig.told(&call(&rig, &["list", "--everywhere"]));
    assert!(told.contains("STORE") && told.contains("file:[DIR]/three"), "{told}");

    // A missing store is forgotten; an unreadable store is reported.
    fs::remove_dir_all(rig.path("two")).unwrap();
    fs::write(rig.path("one/.waypost/waypost.db"), "nonsense").unwrap();
    assert_eq!(listed(&rig, &[]), expected[..1]);
    let told = rig.told(&call(&rig, &["list", "--everywhere"]));
    assert!(told.contains("one/.waypost/waypost.db cannot be listed: "), "{told}");
}

#[test]
fn the_unfinished_runs_of_all_stores_are_resumed() {
    let rig = rig();
    rig.write("flow.yaml", "steps: [{id: ask, approve: 'Go on?'}, {run: test -e ok}]\n");
    fs::copy(rig.path("flow.yaml"), rig.path("two/flow.yaml")).unwrap();
    for (file, store) in [("two/flow.yaml", "sqlite:two/.waypost/waypost.db"), ("flow.yaml", "file:three")] {
        let of = |args: &[&str]| call(&rig, &[args, &["--store", store]].concat()).status.code();
        assert_eq!(of(&["run", file, "--id", "late", "--wait", "0s"]), Some(75));
        assert_eq!(of(&["answer", "late", "ask", "yes"]), Some(0));
    }
    rig.write("two/ok", "");
    let resumed = || rig.told(&call(&rig, &["resume", "--all", "--everywhere", "--store", "sqlite:none.db"]));

    // The failed run of one store does not keep the others from their resume.
    let told = resumed();
    assert!(told.starts_with("exit 1\n") && told.contains("Run late is completed"), "{told}");
    assert!(told.contains("Resume with: waypost resume late --store file:"), "{told}");
    assert!(resumed().contains("Nothing to resume, because no run is interrupted or due."));

    // The search for a store ends at the home folder.
    fs::create_dir(rig.path("home")).unwrap();
    let mut command = rig.command(&["resume", "--all"]);
    let nowhere = command.current_dir(rig.path("home")).env("HOME", rig.path("home")).output().unwrap();
    let nowhere = rig.told(&nowhere);
    assert!(
        nowhere.starts_with("exit 2\n") && nowhere.contains("`waypost resume --all --everywhere`"),
        "{nowhere}"
    );
}

#[test]
fn a_store_that_cannot_be_noted_works_all_the_same() {
    let rig = Rig::with("steps: [{run: echo hello}]\n");
    // A file in the place of the folder, and an invalid list.
    rig.write("state", "");
    assert_eq!(call(&rig, &["run", "flow.yaml", "--id", "a"]).status.code(), Some(0));
    fs::remove_file(rig.path("state")).unwrap();
    fs::create_dir_all(rig.path("state/waypost")).unwrap();
    fs::write(rig.path("state/waypost/stores"), [0xff, b'\n']).unwrap();
    fs::set_permissions(rig.path("state/waypost"), fs::Permissions::from_mode(0o500)).unwrap();

    let ran = call(&rig, &["run", "flow.yaml", "--id", "b"]);

    assert_eq!(ran.status.code(), Some(0), "{}", rig.told(&ran));
    // The default store of this folder is always listed.
    assert_eq!(listed(&rig, &[]).len(), 2);
    fs::set_permissions(rig.path("state/waypost"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn temporary_stores_are_not_noted() {
    let rig = Rig::with("steps: [{run: echo hello}]\n");

    // The folder of the rig is below the temporary folder.
    let mut command = rig.command(&["run", "flow.yaml"]);
    assert!(command.env("XDG_STATE_HOME", rig.path("state")).output().unwrap().status.success());

    assert!(!rig.path("state").exists());
}
