//! `waypost new`: the file passes `check` and runs.

use serde_json::json;

use crate::rig::{Rig, check};

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

#[test]
fn a_file_to_begin_with_passes_check_and_runs() {
    let rig = Rig::new();

    check("new", &rig.waypost(&["new", "--name", "first"]));

    check("new_file", &rig.read("waypost.yaml"));
    assert_eq!(code(&rig, &["check"]), Some(0));
    assert_eq!(code(&rig, &["run", "-q", "--id", "r", "-p", "who=you"]), Some(0));
    assert_eq!(rig.read("out/greeting.txt"), "Hello, you\n");
    check("new_exists", &rig.waypost(&["new"]));
    let made = rig.json(&["new", "other.yaml", "--json"]);
    assert_eq!(made["v"], 1);
    assert_eq!(made["steps"], json!(["prepare", "greet", "publish"]));
}

#[test]
fn nothing_is_overwritten_and_nothing_wrong_is_made() {
    let rig = Rig::new();
    std::os::unix::fs::symlink("nowhere", rig.path("link.yaml")).unwrap();

    let said = [&["new", "link.yaml"][..], &["new", "no/such/folder.yaml"], &["new", "a.yaml", "b.yaml"]]
        .map(|args| format!("$ waypost {}\n{}", args.join(" "), rig.waypost(args)));

    check("new_wrong", &said.join("\n"));
    assert!(!rig.path("waypost.yaml").exists());
    assert!(!rig.path("nowhere").exists());
}
