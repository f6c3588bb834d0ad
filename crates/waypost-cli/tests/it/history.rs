//! Older checkpoints that are damaged, or whose state is not kept any more: what is shown of the run is right all the same.

use std::fs;

use serde_json::{Value, json};

use crate::rig::Rig;

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

/// The second step fails, which is tolerated; the fourth fails until there is a file `go`.
const FLOW: &str = r#"
steps:
  - id: s1
    run: echo v=one >> "$WAYPOST_OUTPUT"
  - id: s2
    run: echo v=two >> "$WAYPOST_OUTPUT"; exit 3
    continue_on_error: true
  - id: s3
    run: echo v=three >> "$WAYPOST_OUTPUT"
  - id: s4
    run: test -e go
  - id: s5
    run: echo ${{ steps.s3.outputs.v }}
"#;

/// Makes run `r-1` of [`FLOW`], which has failed at step four with its fifth record.
fn failed(url: &str) -> Rig {
    let rig = Rig::with(FLOW).at(url);
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r-1", "-q"]).status.code(), Some(1));
    rig
}

/// Changes a bit of a record.
fn spoil(rig: &Rig, url: &str, seq: u64) {
    if url == "file:kept" {
        let path = rig.path(&format!("kept/runs/r-1/history/checkpoint_{seq:010}.json"));
        let mut bytes = fs::read(&path).unwrap();
        bytes[300] ^= 1;
        fs::write(&path, bytes).unwrap();
        return;
    }
    let database = rusqlite::Connection::open(rig.path("kept/waypost.db")).unwrap();
    let sql = "UPDATE records SET header = zeroblob(9) WHERE key & 4294967295 = ?1";
    assert_eq!(database.execute(sql, [i64::try_from(seq).unwrap()]).unwrap(), 1);
}

/// What is shown of steps, without times.
fn steps(shown: &Value) -> Vec<Value> {
    let of = |step: &Value| {
        json!([step["id"], step["status"], step["attempts"], step["exit_code"], step["outputs"]])
    };
    shown["steps"].as_array().unwrap_or_else(|| panic!("{shown}")).iter().map(of).collect()
}

// What happened: with a bit of an older record changed, `show` called the step that it had finished `pending`, without its
// outputs, for ever, and neither `show` nor `events` nor `why` said a word. Why: the walk through the history passes over
// what is damaged, and nobody asked what that was; what the newest state has of the step was not looked at. What stops it
// now: the walk gives the damage, too, and the state tells of a finished step whose record does not (show/steps.rs).
#[test]
fn damage_is_seen() {
    for (url, seq, step) in
        STORES.into_iter().flat_map(|url| [(url, 2, "s1"), (url, 3, "s2"), (url, 4, "s3")])
    {
        let rig = failed(url);
        let sound = steps(&rig.json(&["show", "r-1", "--json"]));
        let statuses: Vec<&str> = sound.iter().map(|step| step[1].as_str().unwrap()).collect();
        assert_eq!(statuses, ["completed", "failed", "completed", "failed", "skipped"]);
        spoil(&rig, url, seq);

        let at = format!("r-1@{seq}");
        let told = format!("warning: checkpoint {at} is damaged");
        let shown = rig.json(&["show", "r-1", "--json"]);
        assert_eq!(steps(&shown), sound, "{url} {seq}");
        assert_eq!(shown["damaged"], json!([at]), "{url} {seq}");
        let says = |args: &[&str]| {
            let said = rig.waypost(args);
            assert!(
                said.starts_with("exit 0\n") && said.matches(&told).count() == 1,
                "{url} {args:?}: {said}"
            );
        };
        says(&["show", "r-1"]);
        says(&["why", "r-1", step]);
        says(&["events", "r-1"]);
        let events = rig.call(&["events", "r-1", "--json"]);
        let events = String::from_utf8(events.stdout).unwrap();
        let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(events.iter().all(|event| event["seq"] != seq), "{url} {seq}: {events:?}");
        rig.write("go", "");
        assert_eq!(rig.call(&["resume", "r-1", "-q"]).status.code(), Some(3), "a failure was tolerated");
        let after = rig.json(&["show", "r-1", "--json"]);
        assert_eq!(steps(&after)[..3], sound[..3], "{url} {seq}");
        assert_eq!(
            (&steps(&after)[4][1], &after["damaged"]),
            (&json!("completed"), &json!([at])),
            "{url} {seq}"
        );
        says(&["show", "r-1"]);
        assert_eq!(rig.call(&["verify", "r-1"]).status.code(), Some(7), "{url} {seq}");
    }
}

// What happened: `show RUN@SEQ` called a step under way `pending` where the state of the checkpoint had been dropped, so that
// the two stores told two things of one run. Why: only the state was asked what is under way. What stops it now: where there
// is none, the last word of the headers about each step counts (show/steps.rs).
#[test]
fn a_checkpoint_without_its_state_shows_the_same_steps() {
    let flow = r#"
steps:
  - id: first
    run: echo v=1 >> "$WAYPOST_OUTPUT"
  - id: again
    retry: { max: 2, delay: 300ms }
    run: echo >> tries; test $(wc -l < tries) -ge 2
  - id: tolerated
    run: exit 3
    continue_on_error: true
  - id: passed
    if: "false"
    run: "true"
  - id: pay
    idempotent: false
    run: test -e go
  - id: last
    run: "true"
"#;
    let all = |url: &str, retention: &str| {
        let rig = Rig::with(&format!("{retention}{flow}")).at(url);
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r-1", "-q"]).status.code(), Some(1));
        rig.write("go", "");
        assert_eq!(rig.call(&["resume", "r-1", "-q"]).status.code(), Some(3));
        let checkpoints =
            rig.json(&["checkpoints", "r-1", "--json"])["checkpoints"].as_array().unwrap().len();
        let mut dropped = 0;
        let mut shown = Vec::new();
        for seq in 1..=checkpoints {
            let at = format!("r-1@{seq}");
            shown.push(steps(&rig.json(&["show", &at, "--json"])));
            let told = rig.waypost(&["show", &at]);
            dropped += usize::from(told.contains("The state of this checkpoint is not kept any more"));
            shown.push(told.lines().filter(|line| line.starts_with("  steps ")).map(Value::from).collect());
        }
        (shown, dropped)
    };

    let (with_states, none) = all(STORES[0], "");

    assert!(with_states.len() > 16 && none == 0, "{with_states:?}");
    for url in STORES {
        let (without, dropped) = all(url, "checkpoints: { retention: 2 }");
        assert!(dropped > 4, "{url}: {dropped} states were dropped");
        for (seq, (with, without)) in with_states.chunks(2).zip(without.chunks(2)).enumerate() {
            assert_eq!(without, with, "{url}: r-1@{}", seq + 1);
        }
    }
}
