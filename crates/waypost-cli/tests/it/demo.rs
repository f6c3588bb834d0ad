//! `waypost demo`: it shows what it says, and leaves nothing.

use serde_json::json;

use crate::rig::{Rig, wait_until};

fn left(rig: &Rig) -> Vec<String> {
    let entries = std::fs::read_dir(rig.path("tmp")).unwrap().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn rig() -> Rig {
    let rig = Rig::new();
    std::fs::create_dir(rig.path("tmp")).unwrap();
    rig
}

#[test]
fn it_is_killed_and_goes_on_and_leaves_nothing() {
    let rig = rig();
    let mut command = rig.command(&["demo", "--fast"]);
    command.env("TMPDIR", rig.path("tmp")).env("WAYPOST_STORE", "file:elsewhere");

    let told = rig.told(&command.output().unwrap());

    assert!(told.starts_with("exit 0\n"), "{told}");
    for words in [
        "$ waypost run demo.yaml --id demo",
        "$ kill -9 ",
        "$ waypost why demo load",
        "$ waypost resume demo",
        "Starts per step: fetch once, load 2 times, report once, publish once.",
        "Finished steps did not run again",
        "Run demo is completed: 4 of 4 steps are done.",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(left(&rig), Vec::<String>::new());
    assert!(!rig.path("elsewhere").exists(), "no other store is touched");
    assert!(!rig.path(".waypost").exists());
}

#[test]
fn it_is_one_document_and_may_be_kept() {
    let rig = rig();
    let mut command = rig.command(&["demo", "--fast", "--keep", "--json"]);
    command.env("TMPDIR", rig.path("tmp"));

    let output = command.output().unwrap();

    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["v"], &document["ok"]), (&json!(1), &json!(true)), "{document}");
    assert_eq!(document["steps"][1], json!({"step": "load", "begun": 2, "cut": true}));
    assert_eq!(
        document["commands"][0],
        json!({"command": "waypost run demo.yaml --id demo", "exit_code": null})
    );
    assert!(output.stderr.is_empty(), "{}", rig.told(&output));
    let kept = left(&rig);
    assert_eq!(kept.len(), 1);
    let store = format!("sqlite:tmp/{}/demo.db", kept[0]);
    assert!(rig.call(&["show", "demo", "--store", &store]).status.success(), "what is kept can be looked at");
}

#[test]
fn a_signal_ends_it_and_nothing_is_left() {
    use std::os::unix::process::ExitStatusExt as _;
    let rig = rig();
    let mut command = rig.command(&["demo"]);
    let mut running = command.env("TMPDIR", rig.path("tmp")).spawn().unwrap();
    wait_until("the run to begin", || {
        left(&rig).first().is_some_and(|folder| rig.path(&format!("tmp/{folder}/trace")).exists())
    });

    crate::rig::send(i32::try_from(running.id()).unwrap(), libc::SIGTERM);

    assert_eq!(running.wait().unwrap().signal(), Some(libc::SIGTERM));
    assert_eq!(left(&rig), Vec::<String>::new());
}
