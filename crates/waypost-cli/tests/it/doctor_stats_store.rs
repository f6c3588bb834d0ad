//! `waypost stats`, `waypost doctor` and `waypost store`: the content of a store, and its problems.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::rig::{FLOW, Rig, check};

/// Returns the result of one check of `doctor`, with its message and its hint.
fn found(document: &Value, name: &str) -> (String, String, String) {
    let checks = document["checks"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let check = checks.iter().find(|check| check["check"] == name);
    let check = check.unwrap_or_else(|| panic!("`{name}` is not checked: {document:#}"));
    (text(&check["result"]), text(&check["message"]), text(&check["hint"]))
}

fn result(rig: &Rig, name: &str) -> String {
    found(&rig.json(&["doctor", "--json"]), name).0
}

/// Removes the parts that differ between machines.
fn of_any_machine(text: &str) -> String {
    let mut told = String::new();
    for line in text.lines() {
        let begin = line.find("boot id ").map(|at| &line[..at]);
        told.push_str(&begin.map_or(line.to_owned(), |begin| format!("{begin}boot id [BOOT]")));
        told.push('\n');
    }
    told
}

#[test]
fn the_store_is_counted_by_status_and_by_workflow() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(FLOW).at(store);
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "a", "-q"]).status.code(), Some(1));
        rig.write("ok", "");
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "b", "-q"]).status.code(), Some(0));
        rig.write("other.yaml", "steps:\n  - {id: ask, approve: Sure?}\n");
        assert_eq!(rig.call(&["run", "other.yaml", "--id", "c", "-q"]).status.code(), Some(75));

        let stats = rig.json(&["stats", "--json"]);

        assert_eq!(stats["v"], 1);
        assert_eq!(stats["by_status"], json!({"completed": 1, "failed": 1, "waiting": 1}));
        assert_eq!((&stats["runs"], &stats["resumable"]), (&json!(3), &json!(2)));
        assert_eq!(stats["steps"], json!({"done": 6, "total": 9}));
        let listed = rig.json(&["list", "--json"]);
        let sum = |key: &str| -> u64 {
            listed["runs"].as_array().unwrap().iter().map(|run| run[key].as_u64().unwrap()).sum()
        };
        assert_eq!(stats["checkpoints"], sum("checkpoints"));
        assert_eq!(stats["bytes"], sum("bytes"));
        assert_eq!(stats["database_bytes"].is_u64(), store.starts_with("sqlite"));
        assert_eq!(stats["workflows"].as_array().unwrap().len(), 2);
        assert!(stats["workflows"][0]["mean_completed_ms"].is_u64());
        assert_eq!(rig.json(&["stats", "--workflow", "other", "--json"])["runs"], 1);
        assert_eq!(rig.json(&["stats", "--since", "2100-01-01T00:00:00Z", "--json"])["runs"], 0);
    }
}

#[test]
fn screens_of_counting() {
    let rig = Rig::failed();
    check("stats", &rig.waypost(&["stats"]));
    check(
        "stats_json",
        &rig.waypost(&["stats", "--json"])
            .lines()
            .filter(|line| !line.contains("_ms") && !line.contains("_bytes"))
            .collect::<Vec<_>>()
            .join("\n"),
    );
    check("stats_nothing", &rig.waypost(&["stats", "--workflow", "x"]));
    check("stats_no_store", &Rig::new().waypost(&["stats"]));
    assert_eq!(Rig::new().json(&["stats", "--json"])["runs"], 0);
    assert_eq!(rig.call(&["stats", "--store", "sqlite:none.db"]).status.code(), Some(5));
}

#[test]
fn a_sound_store_has_nothing_wrong() {
    let rig = Rig::failed();
    check("doctor", &of_any_machine(&rig.waypost(&["doctor"])));
    let document = rig.json(&["doctor", "--json"]);
    assert_eq!((&document["v"], &document["ok"]), (&json!(1), &json!(true)));
    let rig = Rig::failed().at("file:kept");
    assert_eq!(rig.call(&["doctor"]).status.code(), Some(0), "there is no store, which is no failure");
    assert_eq!(result(&rig, "store"), "warn");
    assert!(!rig.path("kept").exists(), "nothing is made");
}

#[test]
fn what_is_damaged_fails_and_hides_nothing_else() {
    let rig = Rig::failed();
    rig.write(".waypost/config.yaml", "stor: x\n");
    let document = rig.json(&["doctor", "--json"]);
    assert_eq!(found(&document, "configuration").0, "fail");
    assert_eq!(found(&document, "runs").0, "ok", "the rest is looked at all the same");
    assert_eq!(rig.call(&["doctor"]).status.code(), Some(78));
    fs::remove_file(rig.path(".waypost/config.yaml")).unwrap();

    rusqlite::Connection::open(rig.path(".waypost/waypost.db"))
        .unwrap()
        .execute_batch("UPDATE frozen SET record = x'00'; UPDATE frozen_copies SET record = x'00';")
        .unwrap();
    let told = rig.call(&["doctor"]);
    assert_eq!(told.status.code(), Some(7), "{}", rig.told(&told));

    rig.write(".waypost/waypost.db", "no database at all");
    let document = rig.json(&["doctor", "--json"]);
    assert_eq!(found(&document, "store").0, "fail");
    assert_eq!(document["ok"], false);
    assert_eq!(rig.call(&["doctor"]).status.code(), Some(7));
}

#[test]
fn who_holds_a_run_is_told_and_what_nobody_watches() {
    let rig = Rig::with("steps:\n  - {id: a, run: 'echo $WAYPOST_RUN_MARK > mark; sleep 1000'}\n");
    let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
    rig.wait_for("mark", |text| text.ends_with('\n'));
    let document = rig.json(&["doctor", "--json"]);
    assert!(found(&document, "locks").1.starts_with("run r is held by process "), "{document:#}");
    assert_eq!(found(&document, "processes").0, "ok", "somebody watches over them");
    running.signal(libc::SIGTERM);
    running.end();
    assert_eq!(found(&rig.json(&["doctor", "--json"]), "locks").1, "no run is held");

    // Like a step whose supervisor and reaper were killed at once.
    let mut left = Command::new("sleep")
        .arg("1000")
        .env("WAYPOST_RUN_MARK", rig.read("mark").trim())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    crate::rig::wait_until("it is seen", || result(&rig, "processes") == "warn");
    let (_, message, hint) = found(&rig.json(&["doctor", "--json"]), "processes");
    assert!(message.ends_with(&format!(": {}", left.id())), "{message}");
    assert!(hint.contains("`waypost cancel r`"), "{hint}");
    assert_eq!(rig.call(&["doctor"]).status.code(), Some(0), "a warning is no failure");

    assert_eq!(rig.call(&["cancel", "r"]).status.code(), Some(0));

    assert!(!left.wait().unwrap().success(), "it was killed");
    assert_eq!(result(&rig, "processes"), "ok");
}

#[test]
fn warnings_for_a_clock_set_back_and_an_unwritable_store() {
    let rig = Rig::failed();
    rusqlite::Connection::open(rig.path(".waypost/waypost.db"))
        .unwrap()
        .execute_batch("UPDATE runs SET updated_at = '2199-01-01T00:00:00.000000000Z'")
        .unwrap();

    let document = rig.json(&["doctor", "--json"]);

    assert_eq!(found(&document, "clock").0, "warn", "{document:#}");
    assert!(found(&document, "clock").1.starts_with("run r-1 changed at 2199-"), "{document:#}");
    assert_eq!(rig.call(&["doctor"]).status.code(), Some(0));
}

#[test]
fn a_store_is_made_once() {
    for (store, path) in [("sqlite:kept/waypost.db", "kept/waypost.db"), ("file:kept", "kept")] {
        let rig = Rig::new().at(store);
        assert_eq!(rig.call(&["store", "check"]).status.code(), Some(5), "there is none");
        assert_eq!(rig.call(&["store", "upgrade"]).status.code(), Some(5));

        assert_eq!(rig.json(&["store", "init", "--json"]), json!({"v": 1, "store": store, "made": true}));

        assert!(rig.path(path).exists());
        assert_eq!(rig.json(&["store", "init", "--json"])["made"], false);
        assert_eq!(rig.json(&["list", "--json"])["runs"], json!([]));
        assert_eq!(rig.call(&["store", "check"]).status.code(), Some(0));
    }
    assert_eq!(Rig::new().call(&["store", "init", "--store", "memory:"]).status.code(), Some(2));
    assert_eq!(Rig::new().call(&["store"]).status.code(), Some(2));
    let rig = Rig::new();
    rig.write("file", "");
    let told = rig.waypost(&["store", "init", "--store", "sqlite:file/x.db"]);
    assert!(told.starts_with("exit 7\n"), "something else is in its place: {told}");
    assert!(rig.waypost(&["store", "init"]).contains("Made store sqlite:[DIR]/.waypost/waypost.db"));
}

#[test]
fn a_store_of_today_needs_no_upgrade() {
    let rig = Rig::failed();
    assert_eq!(result(&rig, "schema"), "ok");

    check("store_upgrade_again", &rig.waypost(&["store", "upgrade"]));

    let checked = rig.json(&["store", "check", "--json"]);
    assert_eq!((&checked["schema"], &checked["runs"]), (&json!(6), &json!(1)), "{checked:#}");
    assert!(rig.waypost(&["store", "upgrade", "--store", "file:x"]).starts_with("exit 5\n"));
}

#[test]
fn a_store_that_contradicts_itself_is_found() {
    let rig = Rig::failed();
    check("store_check", &rig.waypost(&["store", "check"]));
    rusqlite::Connection::open(rig.path(".waypost/waypost.db"))
        .unwrap()
        .execute_batch("UPDATE runs SET checkpoints = 77")
        .unwrap();

    let told = rig.waypost(&["store", "check"]);

    assert!(told.starts_with("exit 7\n"), "{told}");
    assert!(told.contains("DAMAGED run r-1: "), "{told}");
}

#[test]
fn a_local_store_has_counts_and_bytes() {
    let rig = Rig::failed();

    let stats = rig.json(&["store", "stats", "--json"]);

    assert_eq!((&stats["runs"], &stats["by_status"]), (&json!(1), &json!({"failed": 1})), "{stats:#}");
    assert_eq!((&stats["schema"], &stats["server"]), (&json!(6), &json!(null)), "{stats:#}");
    assert!(stats["bytes"].as_u64() > Some(0) && stats["database_bytes"].as_u64() > Some(0), "{stats:#}");
    let told = rig.waypost(&["store", "stats"]);
    assert!(told.contains("version 6\nruns         1 (1 failed)\nsize  "), "{told}");
    assert!(rig.waypost(&["store", "stats", "--store", "file:x"]).starts_with("exit 5\n"));
}
