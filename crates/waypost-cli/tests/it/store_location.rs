//! `store` of a workflow file: the commands that use it, its place, and errors.

use std::fs;

use serde_json::Value;

use crate::rig::{FLOW, Rig, check};

fn with_store(store: &str) -> String {
    format!("store: {store}\n{FLOW}")
}

/// Returns the value of `store` with its source and line.
fn store_of(config: &Value) -> String {
    let settings = config["settings"].as_array().unwrap();
    let store = settings.iter().find(|setting| setting["key"] == "store").unwrap();
    let value = store["value"].as_str().unwrap().rsplit('/').next().unwrap();
    format!("{value} {} {}", store["source"].as_str().unwrap(), store["line"])
}

#[test]
fn runs_of_a_file_are_where_it_says() {
    let rig = Rig::new();
    fs::create_dir(rig.path("flows")).unwrap();
    rig.write("flows/flow.yaml", &with_store("sqlite:kept.db"));

    let dry = rig.waypost(&["run", "flows/flow.yaml", "--dry-run"]);
    assert!(dry.starts_with("exit 0\n"), "{dry}");
    assert!(!rig.path("flows/kept.db").exists(), "nothing is made");
    let failed = rig.waypost(&["run", "flows/flow.yaml", "--id", "r-1"]);

    assert!(rig.path("flows/kept.db").exists());
    assert!(!rig.path(".waypost").exists() && !rig.path("flows/.waypost").exists(), "nor anywhere else");
    let words = "--store sqlite:[DIR]/flows/kept.db";
    assert!(failed.contains(&format!("waypost resume r-1 {words}\n")), "{failed}");
    let elsewhere = rig.waypost(&["list"]);
    assert!(!elsewhere.contains("r-1"), "only `waypost.yaml` counts unasked: {elsewhere}");
    fs::write(rig.path("flows/ok"), "").unwrap();
    let again = rig.waypost(&["run", "flows/flow.yaml", "--id", "r-1", "--or-resume"]);
    assert!(again.contains("4 of 4 steps are done"), "its own copy names the store too: {again}");
}

#[test]
fn commands_without_a_file_go_by_waypost_yaml() {
    let rig = Rig::new();
    rig.write("waypost.yaml", &with_store("file:kept"));

    let failed = rig.waypost(&["run", "--id", "r-1"]);

    assert!(failed.contains("waypost resume r-1\n"), "no words are needed: {failed}");
    assert!(rig.path("kept").is_dir());
    assert!(rig.waypost(&["list"]).contains("r-1"));
    let config = rig.waypost(&["config"]);
    assert!(config.contains("file:[DIR]/kept  [DIR]/waypost.yaml:1\n"), "{config}");
    assert!(config.contains("precedence first:\n  [DIR]/waypost.yaml\n"), "{config}");
    rig.write("ok", "");
    // Other errors in the file do not hide its runs.
    rig.write("waypost.yaml", "store: file:kept\nstesp: []\n");
    assert!(rig.waypost(&["show", "r-1"]).starts_with("exit 0\n"));
    rig.write("waypost.yaml", &format!("# Edited.\n{}", with_store("file:kept")));
    let resumed = rig.waypost(&["resume"]);
    assert!(resumed.starts_with("exit 0\n"), "{resumed}");
    // A second file without `store` uses the store of its folder and prints that store.
    rig.write("other.yaml", "steps: [{run: exit 1}]\n");
    let other = rig.waypost(&["run", "other.yaml", "--id", "o"]);
    assert!(other.contains("waypost resume o --store sqlite:[DIR]/.waypost/waypost.db\n"), "{other}");
}

#[test]
fn a_known_store_ranks_after_environment_before_config() {
    let rig = Rig::new();
    fs::create_dir(rig.path(".waypost")).unwrap();
    rig.write(".waypost/config.yaml", "store: file:project\n");
    rig.write("waypost.yaml", &with_store("file:workflow"));
    let config = |words: &[&str], env: &str| {
        let mut command = rig.command(words);
        if !env.is_empty() {
            command.env("WAYPOST_STORE", env);
        }
        let output = command.args(["config", "--json"]).output().unwrap();
        store_of(&serde_json::from_slice(&output.stdout).unwrap())
    };

    assert_eq!(config(&["--store", "file:flag"], "file:env"), "file:flag flag null");
    assert_eq!(config(&[], "file:env"), "file:env environment null");
    assert_eq!(config(&[], ""), "workflow workflow 1");
    rig.write("waypost.yaml", FLOW);
    assert_eq!(config(&[], ""), "project project 1");
}

#[test]
fn a_wrong_store_stops_its_own_file_and_no_reader() {
    let rig = Rig::failed();
    rig.write("waypost.yaml", &with_store("mysql:x"));

    check("storing_wrong", &rig.waypost(&["check"]));
    let run = rig.waypost(&["run", "--id", "w"]);
    assert!(run.starts_with("exit 78\n"), "{run}");
    let list = rig.waypost(&["list", "--json"]);
    assert!(list.starts_with("exit 0\n") && list.contains("r-1"), "{list}");
    assert!(list.contains("ignored the store address in waypost.yaml: "), "{list}");
    let named = rig.waypost(&["list", "--store", "sqlite:.waypost/waypost.db"]);
    assert!(!named.contains("waypost.yaml"), "nobody asked it: {named}");
    for text in ["store: [", "store: [a]\n", "\0", "- run: a\n"] {
        rig.write("waypost.yaml", text);
        let list = rig.waypost(&["list"]);
        assert!(list.starts_with("exit 0\n") && list.contains("r-1"), "{text}: {list}");
    }
    fs::remove_file(rig.path("waypost.yaml")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, rig.path("waypost.yaml"), rustix::fs::Mode::RWXU).unwrap();
    assert!(rig.waypost(&["list"]).starts_with("exit 0\n"), "nobody waits for its other end");
}

// Bug: `--store sqlite:FOLDER` was reported as damage (exit 7), with advice to restore the earlier content.
// Cause: SQLite's error counted as damage of an existing store. Fix: the kind of the place is checked before it
// is opened.
#[test]
fn a_place_of_another_kind_is_no_damage() {
    let rig = Rig::failed();
    fs::create_dir(rig.path("folder")).unwrap();
    rig.write("text", "no database\n");
    let cases = [
        ("sqlite:folder", "is a folder, not the file of a database", "give `file:folder`"),
        ("sqlite:.waypost", "is a folder, not the file of a database", "is `sqlite:.waypost/waypost.db`"),
        ("file:text", "is a file, not a folder", "name the folder of a store"),
        ("file:.waypost/waypost.db", "is a file, not a folder", "give `sqlite:.waypost/waypost.db`"),
    ];
    for (store, is, hint) in cases {
        let run = ["--store", store, "run", "flow.yaml", "--id", "r-2"];
        for args in [&["--store", store, "list"][..], &["--store", store, "delete", "r-1", "--yes"], &run] {
            let said = rig.waypost(args);
            assert!(said.starts_with("exit 69\n"), "{args:?}: {said}");
            assert!(said.contains(&format!("the store `{store}` {is}")) && said.contains(hint), "{said}");
        }
    }
    assert_eq!(rig.read("text"), "no database\n");
    check("storing_other_kind", &rig.waypost(&["list", "--store", "sqlite:folder", "--json"]));
}

#[test]
fn a_missing_relative_store_is_explained() {
    let rig = Rig::with("steps: [{ id: a, run: 'true' }]\n");
    assert_eq!(
        rig.call(&["run", "flow.yaml", "--id", "r", "--store", "sqlite:kept/w.db"]).status.code(),
        Some(0)
    );

    let mut command = rig.command(&["show", "r", "--store", "sqlite:kept/w.db"]);
    let elsewhere = rig.told(&command.current_dir(rig.path("kept")).output().unwrap());

    assert!(elsewhere.starts_with("exit 5\n"), "{elsewhere}");
    assert!(elsewhere.contains("hint: the path is relative to the current folder"), "{elsewhere}");
    assert!(elsewhere.contains("`--store`"), "{elsewhere}");
}

#[test]
fn a_rerun_from_a_step_not_started_is_refused() {
    let rig = Rig::failed();

    let refused = rig.waypost(&["resume", "r-1", "--from", "four"]);

    assert!(refused.starts_with("exit 5\n"), "{refused}");
    assert!(refused.contains("cannot rerun step `four` of run r-1: the step has not finished"), "{refused}");
    assert!(refused.contains("hint: `waypost resume r-1` runs the step when"), "{refused}");
}

#[test]
fn a_bare_path_as_a_store_is_answered_with_its_url() {
    let rig = Rig::with(FLOW);
    rig.waypost(&["--store", "sqlite:kept/waypost.db", "run", "flow.yaml"]);
    fs::create_dir(rig.path("folder")).unwrap();
    for (text, url) in
        [("x.db", "sqlite:x.db"), ("kept", "sqlite:kept/waypost.db"), ("folder", "file:folder")]
    {
        let told = rig.waypost(&["--store", text, "list"]);
        let expected = format!("error: the store `{text}` is not a URL\nhint: did you mean `{url}`?\n");
        assert!(told.contains(&expected), "{told}");
    }

    assert!(!rig.waypost(&["--store", "host=h password=s3cret", "list"]).contains("s3cret"));
}
