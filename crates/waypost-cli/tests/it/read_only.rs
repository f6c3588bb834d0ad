//! Read-only commands: every byte of the store stays the same, even without write permission.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use crate::rig::{Rig, Running, code_of, expect, wait_until};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

/// The second step waits for the file `go`, and then fails.
const FLOW: &str = r#"
name: flow
steps:
  - id: one
    run: echo one
  - id: two
    run: |
      touch begun
      while ! test -e go; do sleep 0.02; done
      exit 1
"#;

/// All read-only commands.
const READERS: [&[&str]; 24] = [
    &["config"],
    &["doctor"],
    &["stats"],
    &["store", "check"],
    &["list"],
    &["list", "--json"],
    &["list", "--resumable"],
    &["show"],
    &["show", "r"],
    &["show", "r@1"],
    &["show", "r", "--step", "one", "--json"],
    &["checkpoints", "r"],
    &["events", "r"],
    &["events", "r", "--json"],
    &["logs", "r"],
    &["logs", "r", "one"],
    &["plan", "r"],
    &["why", "r"],
    &["why", "r", "two"],
    &["verify", "r"],
    &["verify", "--all"],
    &["resume", "r", "--dry-run"],
    &["prune", "r", "--keep", "2", "--dry-run"],
    &["prune", "--keep", "2", "--keep-runs", "0", "--dry-run"],
];

/// Makes a run that was killed in its second step, then lets the step fail; tests both states.
fn stores(mut test: impl FnMut(&Rig)) {
    for url in STORES {
        let rig = Rig::with(FLOW).at(url);
        let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
        wait_until("the second step", || rig.path("begun").exists());
        running.signal(libc::SIGKILL);
        running.end();
        wait_until("the lock to be let go", || {
            rig.json(&["list", "--json"])["runs"][0]["status"] == "interrupted"
        });
        test(&rig);

        rig.write("go", "");
        assert_eq!(rig.call(&["resume", "r"]).status.code(), Some(1));
        test(&rig);
    }
}

fn looks(rig: &Rig, call: impl Fn(&[&str]) -> Output) {
    let before = picture(&rig.path("kept"));

    for args in READERS {
        let read = call(args);
        assert_eq!(read.status.code(), Some(0), "{args:?}: {}", rig.told(&read));
        assert_eq!(differences(&before, &picture(&rig.path("kept"))), [""; 0], "{args:?}");
    }
}

#[test]
fn checks_change_nothing() {
    stores(|rig| looks(rig, |args| rig.call(args)));
}

#[test]
fn checks_work_where_nothing_may_be_written() {
    // Permissions do not restrict root, so root runs the program as another user with access to the program.
    let root = rustix::process::geteuid().is_root();
    stores(|rig| {
        let program = rig.path("program");
        // Copied by another process: child processes of other tests inherit files open for writing until their
        // exec, and a file open for writing cannot be executed.
        let mut copy = std::process::Command::new("cp");
        assert!(copy.arg(env!("CARGO_BIN_EXE_waypost")).arg(&program).status().unwrap().success());
        let modes = [(0o755, rig.path("")), (0o755, program.clone())];
        modes.iter().for_each(|(mode, path)| set_mode(path, *mode));
        set_modes(&rig.path("kept"), 0o555, 0o444);

        looks(rig, |args| {
            let template = rig.command(args);
            let mut command = std::process::Command::new(&program);
            command.args(template.get_args()).current_dir(rig.path(""));
            if root {
                command.uid(65534).gid(65534);
            }
            command.output().unwrap()
        });

        set_modes(&rig.path("kept"), 0o700, 0o600);
    });
}

#[test]
fn a_run_under_way_is_sound_at_every_moment() {
    // Bug: `verify` reported a running run as damaged: `its state is missing`. Cause: the state of the newest
    // checkpoint was pruned between the read of the header and the read of the state. Fix: the read is repeated
    // if there is a newer checkpoint.
    let steps = "  - run: \"true\"\n".repeat(150);
    for url in STORES {
        let rig = Rig::with(&format!("version: 1\ncheckpoints: {{ retention: 2 }}\nsteps:\n{steps}")).at(url);
        let mut running = rig.command(&["run", "flow.yaml", "--id", "r", "-q"]).spawn().unwrap();
        wait_until("the run", || rig.call(&["show", "r"]).status.success());

        let mut looked = 0;
        while running.try_wait().unwrap().is_none() || looked == 0 {
            for args in [["verify", "r"], ["show", "r"], ["plan", "r"]] {
                let read = rig.call(&args);
                let told = rig.told(&read);
                assert_eq!(read.status.code(), Some(0), "{args:?}: {told}");
                assert!(!told.contains("damaged") && !told.contains("missing"), "{args:?}: {told}");
            }
            looked += 1;
        }
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn set_modes(folder: &Path, of_folders: u32, of_files: u32) {
    set_mode(folder, 0o700);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { set_modes(&path, of_folders, of_files) } else { set_mode(&path, of_files) }
    }
    set_mode(folder, of_folders);
}

/// Returns all files with their bytes, and all folders. Excludes SQLite's own files for readers: the shared
/// memory, and an empty log next to a closed database.
pub(crate) fn picture(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_string_lossy().into_owned();
            if path.is_dir() {
                files.insert(format!("{name}/"), Vec::new());
                folders.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                let of_sqlite = name.ends_with("-shm") || (name.ends_with("-wal") && bytes.is_empty());
                if !of_sqlite {
                    files.insert(name, bytes);
                }
            }
        }
    }
    files
}

/// Returns the names of new, missing and changed files.
fn differences(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let names = before.keys().chain(after.keys().filter(|name| !before.contains_key(*name)));
    names.filter(|name| before.get(*name) != after.get(*name)).cloned().collect()
}

// Bug: `show --json` named a step with a tolerated failure as the failed step of the run. Cause: the first failed
// step of the file was used. Fix: only an untolerated failure counts, and `list` and `plan` name the same step.
#[test]
fn the_failed_step_is_the_one_that_ended_the_run() {
    let rig = Rig::with(
        "steps:\n  - {id: a, run: exit 3, continue_on_error: true}\n  - {id: b, run: 'true'}\n  - {id: c, run: exit 7}\n",
    );

    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));

    let shown = rig.json(&["show", "r", "--json"]);
    assert_eq!((&shown["failed_step"], &shown["error"]["exit_code"]), (&"c".into(), &7.into()), "{shown}");
    assert_eq!(rig.json(&["list", "--json"])["runs"][0]["step"], "c");
    let plan = rig.json(&["plan", "r", "--json"]);
    let retried = plan["decisions"].as_array().unwrap().iter().find(|of| of["action"] == "retry").unwrap();
    assert_eq!(retried["step"], "c");
    let text = rig.waypost(&["show", "r"]);
    assert!(text.contains("step a failed, tolerated by the workflow: exit code 3"), "{text}");
}

#[test]
fn a_run_with_tolerated_failures_only_has_no_failed_step() {
    let rig = Rig::with("steps:\n  - {id: a, run: exit 3, continue_on_error: true}\n");

    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(3));

    let shown = rig.json(&["show", "r", "--json"]);
    assert_eq!(
        (&shown["failed_step"], &shown["error"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    assert_eq!(shown["steps"][0]["status"], "failed");
}

#[test]
fn what_is_not_there_is_told_by_its_name() {
    let rig = Rig::failed();

    for scope in ["zz", "f:1"] {
        let said = rig.waypost(&["checkpoints", "r-1", "--scope", scope]);
        assert!(said.starts_with("exit 5"), "{said}");
        assert!(said.contains(&format!("there is no scope `{scope}` in run r-1")), "{said}");
    }
    let said = rig.waypost(&["logs", "r-1", "one"]);
    assert!(said.contains("hello"), "{said}");
    rig.write("quiet.yaml", "steps:\n  - {id: a, run: echo a}\n  - {id: load, run: 'true'}\n");
    assert_eq!(code_of(&rig, &["run", "quiet.yaml", "--id", "q", "-q"]), Some(0));
    let said = rig.waypost(&["logs", "q", "load"]);
    assert!(said.contains("Nothing to print, because `load` printed nothing."), "{said}");
    assert!(rig.waypost(&["list", "--since", "2020-01-01"]).contains("r-1"));
    assert!(!rig.waypost(&["list", "--since", "9000-01-01"]).contains("r-1"));
}

#[test]
fn who_watches_a_run_is_told_whenever_its_evidence_changes() {
    let rig = Rig::with("steps: [{id: a, run: 'echo x > out.txt', evidence: [{sha256: out.txt}]}]\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    assert_eq!(code_of(&rig, &["verify", "r", "--watch=10ms"]), Some(2), "too often");
    assert_eq!(code_of(&rig, &["verify", "--all", "--watch"]), Some(2), "too much");
    let told = fs::File::create(rig.path("told")).unwrap();
    let mut command = rig.command(&["verify", "r", "--watch=100ms", "--json"]);
    let mut watching = Running::of(command.stdout(told));
    let verdicts = || -> Vec<String> {
        let lines = rig.read("told");
        let looks = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        looks.map(|look| look["checkpoints"][1]["verdict"].as_str().unwrap_or("none").to_owned()).collect()
    };

    wait_until("the first look", || verdicts() == ["ok"]);
    // Several checks without a change.
    std::thread::sleep(Duration::from_millis(350));
    fs::rename(rig.path("out.txt"), rig.path("kept.txt")).unwrap();
    wait_until("what is gone", || verdicts() == ["ok", "failed"]);
    fs::rename(rig.path("kept.txt"), rig.path("out.txt")).unwrap();
    wait_until("what is back", || verdicts() == ["ok", "failed", "ok"]);

    watching.signal(libc::SIGINT);
    assert_ne!(watching.code(), Some(0));
}

#[test]
fn show_names_the_program_of_a_run_of_a_graph() {
    let rig = Rig::new().at("file:kept");
    let broken = async |_: u32, _: waypost::Context| Err(waypost::StepError::fatal("no ok here"));
    let graph =
        waypost::Graph::<u32>::builder("trip").step("measure", broken).start("measure").build().unwrap();
    let engine =
        waypost::Engine::new(std::sync::Arc::new(waypost::FileStore::open(rig.path("kept")).unwrap()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(async { engine.run(&graph, "trip-1", 0).await }).unwrap();
    assert_eq!(outcome.status, waypost::record::RunStatus::Failed);

    let show = rig.waypost(&["show", "trip-1"]);
    let resume = rig.waypost(&["resume", "trip-1"]);

    assert!(show.contains("\nTo resume, start `it-") && !show.contains("waypost resume"), "{show}");
    assert!(resume.starts_with("exit 2\n") && resume.contains("hint: to resume, start `it-"), "{resume}");
}

// Bug: `why` and `dead-letters list` refused runs of programs with `cannot resume run`, and `show --step` listed no items.
// Cause: they planned a resume, and looked for joined fan-outs in the position, which a graph without evidence does not keep.
// Fix: they read the records.
#[test]
fn executions_and_items_of_a_graph_are_shown() {
    let rig = Rig::new().at("file:kept");
    let work = async |item: u32, _: waypost::Context| match item {
        2 => Err(waypost::StepError::fatal("two is bad")),
        item => Ok(item),
    };
    let join = async |state: u32, _: waypost::ItemEnds<u32, u32>, _: waypost::Context| {
        Ok::<_, waypost::StepError>(state)
    };
    let graph = waypost::Graph::<u32>::builder("trip")
        .each("legs", |_: &u32| vec![1, 2], |leg: &u32| leg.to_string(), work)
        .collect()
        .join(join)
        .start("legs")
        .build()
        .unwrap();
    let engine =
        waypost::Engine::new(std::sync::Arc::new(waypost::FileStore::open(rig.path("kept")).unwrap()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(async { engine.run(&graph, "trip-1", 0).await }).unwrap();
    assert_eq!(outcome.status, waypost::record::RunStatus::CompletedWithFailures);

    let why = rig.json(&["why", "trip-1", "legs:1", "--json"]);
    assert_eq!((&why["step"], &why["scope"]), (&"item".into(), &"legs:1".into()), "{why}");
    assert_eq!(why["executions"][0]["cause"]["code"], "first", "{why}");
    expect(&rig, &["why", "trip-1", "legs"], 0, &["run at trip-1@2: first execution"]);
    expect(&rig, &["why", "trip-1", "nope"], 5, &["there is no step `nope` in run trip-1"]);
    expect(&rig, &["why", "trip-1"], 2, &["no step given", "waypost why trip-1 STEP"]);
    expect(&rig, &["dead-letters", "list", "trip-1"], 0, &["two is bad", "To resume, start `it-"]);
    expect(&rig, &["show", "trip-1", "--step", "legs"], 0, &["2     failed", "1     completed"]);
    expect(&rig, &["plan", "trip-1"], 2, &["run trip-1 has no workflow file: it belongs to a program"]);
}

// Bug: a failed group had no attempts and no start in `show`. Cause: only its join counted as a start. Fix: a group starts
// when its children are opened.
#[test]
fn a_failed_group_has_one_attempt_and_a_start() {
    let rig = Rig::with("steps: [{id: g, steps: [{id: s, run: 'false'}]}]");
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));

    let group = &rig.json(&["show", "r", "--json"])["steps"][0];

    assert_eq!((&group["id"], &group["attempts"]), (&serde_json::json!("g"), &serde_json::json!(1)));
    assert!(group["started_at"].is_string() && group["ended_at"].is_string(), "{group}");
}

// Bug: `show` said `in_doubt` of a run whose resume asks nothing, since the evidence of the cut step holds. Cause: the status on
// record. Fix: `show` and `list` check the evidence of a run in doubt.
#[test]
fn a_cut_step_with_valid_evidence_is_not_in_doubt() {
    let rig = Rig::with(
        "steps:
  - {id: p, idempotent: false, run: 'echo done > out.txt; test -e go || kill -9 $PPID $$; true', evidence: [{file: out.txt}]}
  - {id: q, run: echo q}
",
    );
    rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);

    let holds = rig.json(&["show", "r", "--json"]);
    assert_eq!(holds["status"], "interrupted", "{holds}");
    assert_eq!(holds["steps"][0]["status"], "cut", "{holds}");
    let text = rig.waypost(&["show", "r"]);
    assert!(text.contains("waypost resume r") && !text.contains("needs a decision"), "{text}");
    let listed = |args: &[&str]| {
        let runs = rig.json(&[&["list", "--json"], args].concat())["runs"].clone();
        runs.as_array()
            .unwrap()
            .iter()
            .map(|run| run["status"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]), ["interrupted"]);
    assert_eq!(listed(&["--status", "interrupted"]), ["interrupted"]);
    assert_eq!(listed(&["--status", "in_doubt"]), [""; 0]);

    fs::remove_file(rig.path("out.txt")).unwrap();
    let lost = rig.json(&["show", "r", "--json"]);
    assert_eq!(lost["status"], "in_doubt", "{lost}");
    assert_eq!(lost["steps"][0]["status"], "in_doubt", "{lost}");
    assert_eq!(listed(&[]), ["in_doubt"]);
}

// Bug: the time of an item lacked its groups and had the time between two attempts, that of a loop had its last pass only, and a
// skipped step had the time of its failed attempt. Fix: times of work, from the first pass on.
#[test]
fn times_are_those_of_the_work() {
    let rig = Rig::with(
        "steps:
  - id: each
    foreach:
      items: [x]
      steps: [{id: g, steps: [{id: one, run: sleep 0.3}]}, {id: two, run: test -e go}]
  - {id: loop, repeat: {until: iteration == 2, max: 2}, steps: [{id: w, run: sleep 0.3}]}
  - {id: bad, run: sleep 0.3; exit 1}
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    let item =
        |rig: &Rig| rig.json(&["show", "r", "--step", "each", "--json"])["items"][0]["duration_ms"].as_u64();
    assert!(item(&rig) >= Some(300), "{:?}", item(&rig));
    rig.write("go", "");
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(1));
    assert_eq!(code_of(&rig, &["resume", "r", "-q", "--skip", "bad"]), Some(0));

    let shown = rig.json(&["show", "r", "--json"]);

    assert!(shown["steps"][1]["duration_ms"].as_u64() >= Some(600), "{shown}");
    assert!(shown["steps"][2]["duration_ms"].is_null(), "{shown}");
    assert!(item(&rig) >= Some(300), "{:?}", item(&rig));
}
