//! Custom events of steps.

use serde_json::{Value, json};

use crate::rig::{Rig, check};

/// Makes steps that call the program itself, as `$W`.
fn rig(steps: &str) -> Rig {
    let program = env!("CARGO_BIN_EXE_waypost");
    Rig::with(&format!("secrets: [TOKEN]\nenv: {{W: '{program}'}}\nsteps:\n{steps}"))
}

/// Runs the workflow and returns the custom events of its steps.
fn own_events(rig: &Rig, code: i32) -> Vec<Value> {
    let ended =
        rig.command(&["run", "flow.yaml", "--id", "r"]).env("TOKEN", "hunter2-hunter2").output().unwrap();
    assert_eq!(ended.status.code(), Some(code), "{}", rig.told(&ended));
    let events = String::from_utf8(rig.call(&["events", "r", "--json"]).stdout).unwrap();
    assert!(!events.contains("hunter2"), "{events}");
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == "custom").collect()
}

#[test]
fn a_step_adds_events_to_its_run() {
    let rig = rig(
        "  - id: a\n    capture: text\n    run: |\n      echo got\n      $W event loaded rows=12 file='a b.csv'\n      $W event done\n      $W event told token=\"$TOKEN\"\n  - {id: b, run: '$W event more; exit 3'}\n",
    );

    let events = own_events(&rig, 1);

    let told: Vec<_> = events.iter().map(|event| (&event["step"], &event["name"], &event["data"])).collect();
    let (a, b) = (json!("a"), json!("b"));
    assert_eq!(
        told,
        [
            (&a, &json!("loaded"), &json!({"rows": "12", "file": "a b.csv"})),
            (&a, &json!("done"), &json!({})),
            (&a, &json!("told"), &json!({"token": "***"})),
            (&b, &json!("more"), &json!({})),
        ]
    );
    // The command prints nothing, so the output stays unchanged.
    assert_eq!(rig.json(&["show", "r", "--json"])["steps"][0]["outputs"], json!({"result": "got"}));
    assert!(rig.waypost(&["events", "r"]).contains("custom a: loaded, file=a b.csv, rows=12"));
}

#[test]
fn many_at_once_are_all_kept_and_what_cannot_be_is_told() {
    let rig = rig(
        "  - {id: a, run: 'for i in 1 2 3 4 5 6 7 8; do $W event e n=$i & done; wait'}\n  - {id: b, run: 'echo nonsense >> \"$WAYPOST_EVENTS\"'}\n  - {id: c, run: 'rm \"$WAYPOST_EVENTS\"; ! $W event late'}\n",
    );

    let events = own_events(&rig, 0);

    let mut seen: Vec<&str> = events.iter().filter_map(|event| event["data"]["n"].as_str()).collect();
    seen.sort_unstable();
    assert_eq!(seen, ["1", "2", "3", "4", "5", "6", "7", "8"]);
    let last = events.last().unwrap();
    assert_eq!((&last["step"], &last["name"]), (&json!("b"), &json!("warning")));
    assert!(rig.waypost(&["logs", "r", "c"]).contains("has ended, and accepts no more events"));
}

#[test]
fn an_event_that_cannot_be_added_is_refused() {
    let rig = Rig::new();
    check("event_outside", &rig.waypost(&["event", "x"]));
    rig.write("events", "");
    let inside = |args: &[&str]| {
        let mut command = rig.command(args);
        rig.told(&command.env("WAYPOST_EVENTS", rig.path("events")).output().unwrap())
    };
    let texts = [
        inside(&["event", "two words"]),
        inside(&["event", "warning"]),
        inside(&["event", "x", "novalue"]),
        inside(&["event", "x", "a=1", "a=2"]),
        inside(&[
            "event",
            "x",
            &format!("a={}", "y".repeat(100_000)),
            &format!("b={}", "y".repeat(120_000)),
            &format!("c={}", "y".repeat(60_000)),
        ]),
        inside(&["event", "x", "a=1", "--json"]),
    ];
    check("event_refused", &texts.join("\n"));
    assert_eq!(rig.read("events"), "{\"name\":\"x\",\"data\":{\"a\":\"1\"}}\n");
}
