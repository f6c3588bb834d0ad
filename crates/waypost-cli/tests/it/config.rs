//! Configuration files: the value in force, its source, and the errors of an invalid file.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::rig::{Rig, check};

const FLOW: &str = "steps:\n  - {id: a, run: echo a}\n  - {id: go, wait: go}\n";

/// A project with a folder `sub`, and a user with a separate home.
struct Place(Rig);

impl Place {
    fn new(project: &str, user: &str) -> Self {
        let rig = Rig::with(FLOW);
        for folder in [".waypost", "sub", "user/.config/waypost"] {
            fs::create_dir_all(rig.path(folder)).unwrap();
        }
        rig.write(".waypost/config.yaml", project);
        rig.write("user/.config/waypost/config.yaml", user);
        Self(rig)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.0.command(args);
        command.env("HOME", self.0.path("user"));
        command
    }

    fn call(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn told(&self, args: &[&str]) -> String {
        self.0.told(&self.call(args))
    }

    /// Returns the value of a key with its source, from `config --json`.
    fn value(&self, command: &mut Command, key: &str) -> (Value, String) {
        let output = command.args(["config", "--json"]).output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["v"], 1);
        let settings = document["settings"].as_array().unwrap();
        let setting = settings.iter().find(|setting| setting["key"] == key).unwrap();
        (setting["value"].clone(), setting["source"].as_str().unwrap().to_owned())
    }
}

#[test]
fn the_configuration_is_told_with_its_sources() {
    let place = Place::new(
        "store: sqlite:kept/runs.db\nwait: 90s\nagents:\n  mine: [./agent, -p]\n",
        "color: never\nwait: 1h\nmax_parallel: 3\nagents: { mine: other, claude: claude -p }\n",
    );

    check("config", &place.told(&["config"]));
    check("config_json", &place.told(&["config", "--json"]));
}

#[test]
fn what_is_nearer_counts() {
    let place = Place::new("store: file:project\n", "store: file:/user\ncolor: always\n");
    let call = || place.command(&[]);

    assert_eq!(
        place.value(call().args(["--store", "file:flag"]).env("WAYPOST_STORE", "file:env"), "store"),
        (json!("file:flag"), "flag".to_owned())
    );
    assert_eq!(
        place.value(call().env("WAYPOST_STORE", "file:env"), "store"),
        (json!("file:env"), "environment".to_owned())
    );
    assert_eq!(place.value(&mut call(), "store").1, "project");
    assert!(place.value(&mut call(), "store").0.as_str().unwrap().ends_with("/project"));
    assert_eq!(place.value(call().args(["--color", "never"]), "color"), (json!("never"), "flag".to_owned()));
    assert_eq!(place.value(&mut call(), "color"), (json!("always"), "user".to_owned()));
    assert_eq!(place.value(&mut call(), "wait"), (json!("5m"), "default".to_owned()));
    place.0.write(".waypost/config.yaml", "# nothing\n");
    assert_eq!(place.value(&mut call(), "store"), (json!("file:/user"), "user".to_owned()));
    let elsewhere = place.0.path("user/.config");
    assert_eq!(place.value(call().env("XDG_CONFIG_HOME", elsewhere).env("HOME", "/none"), "store").1, "user");
    assert_eq!(place.value(call().env("XDG_CONFIG_HOME", "relative"), "store").1, "user", "it is ignored");
    assert_eq!(place.value(call().env_remove("HOME"), "store").1, "default", "no home is no error");
}

#[test]
fn a_run_is_made_where_the_configuration_says() {
    let place = Place::new("store: sqlite:kept/runs.db\nwait: 0s\n", "");
    let waits = place.told(&["run", "flow.yaml", "--id", "r"]);

    assert!(waits.starts_with("exit 75\n"), "it does not stay: {waits}");
    assert!(
        waits.contains("waypost resume r\n"),
        "who calls from here needs no words for the store: {waits}"
    );
    assert!(place.0.path("kept/runs.db").exists());
    assert!(!place.0.path(".waypost/waypost.db").exists());
    let from_below =
        place.command(&["show", "r", "--json"]).current_dir(place.0.path("sub")).output().unwrap();
    assert_eq!(from_below.status.code(), Some(0), "{}", place.0.told(&from_below));
    let flow = place.0.path("flow.yaml");
    let from_afar =
        place.command(&["run", flow.to_str().unwrap(), "--id", "r2"]).current_dir("/").output().unwrap();
    let from_afar = place.0.told(&from_afar);
    assert!(from_afar.contains("waypost resume r2 --store sqlite:[DIR]/kept/runs.db\n"), "{from_afar}");
    let longer = place.0.start(&["run", "flow.yaml", "--id", "r3", "--wait", "1h", "-q"]);
    crate::rig::wait_until("the option goes before the file", || {
        place.call(&["signal", "r3", "go"]).status.code() == Some(0)
    });
    assert_eq!(longer.end().status.code(), Some(0));
}

#[test]
fn as_many_steps_run_at_once_as_the_configuration_says() {
    let place = Place::new("max_parallel: 1\n", "");
    place.0.write(
        "flow.yaml",
        "steps:\n  - {id: a, needs: [], run: 'mkdir x; sleep 0.2; rmdir x'}\n  - {id: b, needs: [], run: 'mkdir x; sleep 0.2; rmdir x'}\n  - {id: c, needs: [], run: 'mkdir x; sleep 0.2; rmdir x'}\n",
    );

    assert_eq!(place.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(0), "one at a time");
}

#[test]
fn a_wrong_configuration_is_shown_with_its_places() {
    let place = Place::new("stoer: sqlite:x\nwait: 5\nwait: 6s\n", "");
    check("config_wrong", &place.told(&["list"]));
    check("config_wrong_json", &place.told(&["config", "--json"]));

    for (project, user) in
        [("store: mysql:x\n", ""), ("", "store: sqlite:runs.db\n"), ("steps: []\n", ""), ("", "- x\n")]
    {
        let place = Place::new(project, user);
        let told = place.told(&["run", "flow.yaml"]);
        assert!(told.starts_with("exit 78\n"), "{told}");
        assert!(told.contains("/config.yaml:1:"), "{told}");
        assert!(!place.0.path(".waypost/waypost.db").exists(), "nothing is made");
    }
}
