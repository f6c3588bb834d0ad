//! A run that starts from an imported checkpoint, in another place.

use crate::rig::{Rig, check};

const FLOW: &str = r#"
name: flow
params: { who: { default: world } }
steps:
  - {id: a, run: 'echo n=1 >> "$WAYPOST_OUTPUT"; echo a >> out'}
  - {id: b, run: 'echo b >> out; test -e ok'}
  - {id: c, run: 'echo "c $N $WHO" >> out', env: {N: "${{ steps.a.outputs.n }}", WHO: "${{ params.who }}"}}
"#;

/// Makes two rigs: in the first a run failed at its second step, and its export is `x.json` in the second.
fn rigs() -> (Rig, Rig) {
    let (from, to) = (Rig::with(FLOW), Rig::new());
    assert_eq!(from.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));
    let file = to.path("x.json");
    assert_eq!(from.call(&["export", "r", &file.to_string_lossy()]).status.code(), Some(0));
    (from, to)
}

#[test]
fn nothing_of_an_import_runs_before_somebody_says_so() {
    let (_from, to) = rigs();

    check("import_not_trusted", &to.waypost(&["import", "x.json"]));
    assert_eq!(to.json(&["import", "x.json", "--json"])["error"]["code"], "not_trusted");
    let shown = to.json(&["import", "x.json", "--show", "--json"]);
    assert_eq!((&shown["workflow"], &shown["text"]), (&"flow".into(), &FLOW.into()));
    assert!(to.waypost(&["import", "x.json", "--show"]).contains("test -e ok"));

    assert!(!to.path(".waypost").exists() && !to.path("out").exists());
}

#[test]
fn an_imported_run_goes_on_where_the_other_stood() {
    let (from, to) = rigs();
    drop(from);
    to.write("ok", "");

    let ran = to.waypost(&["import", "x.json", "--trust", "--id", "again", "-p", "who=moon"]);

    assert!(ran.starts_with("exit 0\n"), "{ran}");
    assert_eq!(to.read("out"), "b\nc 1 moon\n");
    let show = to.json(&["show", "again", "--json"]);
    assert_eq!((&show["params"]["who"], &show["status"]), (&"moon".into(), &"completed".into()));
    assert!(show["parent"].as_str().unwrap().starts_with("r@"), "{show}");
    assert!(to.waypost(&["verify", "again"]).starts_with("exit 0\n"));
    // The name is taken now; an import under another name works.
    check("import_exists", &to.waypost(&["import", "x.json", "--trust", "--id", "again"]));
    assert!(to.waypost(&["import", "x.json", "--trust"]).starts_with("exit 0\n"));
}

#[test]
fn an_imported_run_that_fails_or_is_killed_is_resumed() {
    let (_from, to) = rigs();
    std::fs::create_dir(to.path("work")).unwrap();

    let ran = to.waypost(&["import", "x.json", "--trust", "--id", "i", "--dir", "work", "-q"]);

    assert!(ran.starts_with("exit 1\n") && ran.contains("waypost resume i"), "{ran}");
    to.write("work/ok", "");
    assert_eq!(to.call(&["resume", "i", "-q"]).status.code(), Some(0));
    assert_eq!(to.read("work/out"), "b\nb\nc 1 world\n");
}

#[test]
fn what_is_no_sound_checkpoint_is_refused() {
    let (_from, to) = rigs();
    let text = to.read("x.json");
    to.write("damaged.json", &text.replace("test -e ok", "test -e no"));
    to.write("newer.json", &text.replacen("\"format\":4", "\"format\":99", 1));
    to.write("other.json", "{}");
    let of = |file: &str| {
        let output = to.call(&["import", file, "--trust"]);
        (output.status.code().unwrap(), to.told(&output))
    };

    let codes = ["absent.json", "damaged.json", "other.json", "."].map(|file| of(file).0);
    assert_eq!(codes, [5, 7, 7, 2], "{}", of("damaged.json").1);
    assert!([7, 76].contains(&of("newer.json").0), "{}", of("newer.json").1);
    assert_eq!(to.call(&["import", "x.json", "--trust", "-p", "nobody=1"]).status.code(), Some(2));
    assert_eq!(to.call(&["import", "x.json", "--trust", "--dir", "absent"]).status.code(), Some(2));
    assert!(!to.path(".waypost").exists());
}

#[test]
fn a_session_of_prodigy_is_refused_with_what_to_do() {
    let rig = Rig::new();
    rig.write(
        "checkpoint.json",
        r#"{"workflow_id": "wf-1", "execution_state": {}, "completed_steps": [{}], "total_steps": 3, "workflow_path": "a.yml"}"#,
    );

    for args in [&["import", "checkpoint.json", "--trust"][..], &["import", "workflow", "checkpoint.json"]] {
        let said = rig.waypost(args);
        let expect = "exit 78\n--- stdout\n--- stderr\n\
             error: cannot import the checkpoint `wf-1` of Prodigy: the file has finished steps by number only, without \
             definitions and file digests\n\
             hint: `waypost import workflow a.yml -o waypost.yaml`; 1 of 3 steps are finished: delete them from \
             `waypost.yaml`; `waypost run waypost.yaml --dir WORKTREE`\n";
        assert_eq!(said, expect);
    }
    assert!(!rig.path(".waypost").exists());
}
