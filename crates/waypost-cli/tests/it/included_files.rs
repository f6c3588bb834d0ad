//! `submit --include`: any worker runs the steps, with a private copy of the files.

use waypost_testing::postgres::{USER, cluster};

use crate::archive::entries;
use crate::postgres::address;
use crate::rig::{Rig, Running, expect, wait_until};

const FLOW: &str = "distribute: true
steps:
  - {id: a, run: './tool.sh data/in/x.txt; pwd >> $HOME_OF_TEST/folders; echo mine > made.txt', env: {HOME_OF_TEST: '${{ params.home }}'}, capture: text}
  - {id: child, workflow: more/child.yaml}
params: {home: {}}
";

fn rig(database: &str) -> Rig {
    cluster().database(database, "SELECT 1");
    let rig = Rig::with(FLOW).at(&address(USER, database));
    expect(&rig, &["store", "init"], 0, &["Made store"]);
    for folder in ["more", "data/in", "elsewhere"] {
        std::fs::create_dir_all(rig.path(folder)).unwrap();
    }
    rig.write("more/child.yaml", "steps: [{id: b, run: 'cat beside.txt', capture: text}]\n");
    rig.write("more/beside.txt", "beside");
    rig.write("data/in/x.txt", "submitted");
    rig.write("tool.sh", "#!/bin/sh\ncat \"$1\"\n");
    std::process::Command::new("chmod").arg("+x").arg(rig.path("tool.sh")).status().unwrap();
    rig
}

fn submit<'a>(home: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let words = ["submit", "flow.yaml", "--id", "r", "-p", home, "--include", "data", "--include", "tool.sh"];
    [&words, more].concat()
}

fn worker(rig: &Rig) -> Running {
    Running::of(rig.command(&["worker"]).current_dir(rig.path("elsewhere")))
}

#[test]
fn any_worker_runs_included_files() {
    let rig = rig("included");
    let home = format!("home={}", rig.path("").display());
    let words = submit(&home, &["--include", "more/*.txt"]);
    expect(&rig, &words, 0, &["Run r is queued", "3 files included", "pass results as outputs"]);
    expect(&rig, &words, 0, &["Nothing to submit, because run r exists: queued"]);
    rig.write("data/in/x.txt", "changed");
    expect(&rig, &words, 2, &["it exists with included files "]);
    for name in ["tool.sh", "more/child.yaml", "more/beside.txt"] {
        std::fs::remove_file(rig.path(name)).unwrap();
    }

    let _workers = [worker(&rig), worker(&rig)];
    wait_until("the end of the run", || rig.json(&["show", "r", "--json"])["status"] == "completed");

    expect(&rig, &["show", "r", "--json"], 0, &["\"result\": \"submitted\"", "\"result\": \"beside\""]);
    let folder = rig.read("folders");
    assert!(!std::path::Path::new(folder.trim()).exists(), "{folder} is left");
    assert!(!rig.path("made.txt").exists());
}

#[test]
fn a_submission_refuses_what_it_cannot_include() {
    let rig = rig("not_included");
    let refused = |include: &str, why: &str| {
        expect(
            &rig,
            &["submit", "flow.yaml", "-p", "home=x", "--include", include],
            2,
            &["cannot include", why],
        );
    };
    refused("none*", "no file has such a path");
    std::os::unix::fs::symlink("/etc/passwd", rig.path("data/link")).unwrap();
    refused("data", "it is a link or a special file");
    std::fs::File::create(rig.path("large")).unwrap().set_len(65 << 20).unwrap();
    refused("large", "all files together exceed 64 MiB");
    expect(&rig, &["submit", "flow.yaml", "--base", "x", "--include", "y"], 2, &["--include"]);
}

/// A step that reads an included file, before and after a gate.
const GATED: &str = "steps:
  - {id: a, run: 'cat data/in/x.txt', capture: text}
  - {id: gate, run: 'test -e $HOME_OF_TEST/go', env: {HOME_OF_TEST: '${{ params.home }}'}}
  - {id: b, run: 'cat data/in/x.txt; pwd >> $HOME_OF_TEST/folders', env: {HOME_OF_TEST: '${{ params.home }}'}, capture: text}
params: {home: {}}
";

#[test]
fn copies_of_a_run_carry_included_files() {
    let rig = rig("carried");
    rig.write("flow.yaml", GATED);
    let home = format!("home={}", rig.path("").display());
    expect(&rig, &submit(&home, &[]), 0, &["Run r is queued"]);
    let _worker = worker(&rig);
    wait_until("the gate", || rig.json(&["show", "r", "--json"])["status"] == "failed");

    std::fs::remove_dir_all(rig.path("data")).unwrap();
    rig.write("go", "");
    expect(&rig, &["fork", "r", "--id", "forked", "--queue"], 0, &["Run forked is queued"]);
    expect(&rig, &["export", "r", "r.json"], 0, &["Exported r@"]);
    expect(&rig, &["archive", "r", "r.tar.zst"], 0, &["Archived run r"]);
    expect(&rig, &["delete", "r", "--yes"], 0, &["Deleted run r"]);
    for (file, run) in [("r.json", "imported"), ("r.tar.zst", "restored")] {
        expect(
            &rig,
            &["import", file, "--trust", "--id", run, "--queue"],
            0,
            &[&format!("Run {run} is queued")],
        );
    }

    for run in ["forked", "imported", "restored"] {
        wait_until("the end of the copy", || rig.json(&["show", run, "--json"])["status"] == "completed");
        let shown = rig.json(&["show", run, "--json"]).to_string();
        assert_eq!(shown.matches("\"submitted\"").count(), 2, "{shown}");
    }
    assert!(rig.read("folders").lines().all(|folder| folder.contains("waypost-files-")));
    let archived = entries(&rig, "r.tar.zst");
    assert_eq!(archived["files/logs/a.1.log"], b"submitted");
    assert!(archived.contains_key("files/blobs/blobs/submitted-files"), "{:?}", archived.keys());

    // Here, the steps run in a folder without the files.
    expect(&rig, &["import", "r.json", "--trust"], 1, &["not with the included files; `--queue`"]);
    expect(&rig, &["import", "r.json", "--trust", "--queue", "--store", "sqlite:x.db"], 2, &["has no queue"]);
}

#[test]
fn a_worker_that_cannot_unpack_leaves_the_run_to_others() {
    let rig = rig("not_unpacked");
    let home = format!("home={}", rig.path("").display());
    let words = submit(&home, &["--include", "more/*.txt"]);
    expect(&rig, &words, 0, &["Run r is queued"]);
    let without_room = || {
        let mut command = rig.command(&["worker"]);
        Running::of(command.env("TMPDIR", rig.path("none")).current_dir(rig.path("elsewhere")))
    };
    let queue = || rig.json(&["show", "r", "--json"])["queue"].clone();

    let first = without_room();
    wait_until("the report", || queue()["missing"].is_string());
    expect(
        &rig,
        &["show", "r"],
        0,
        &["queued", "no worker has the included files (", "No such file", "since 20"],
    );
    let since = queue()["since"].clone();
    let not_before = queue()["not_before"].clone();
    assert!(not_before.is_string(), "a pause precedes the next claim");

    // The worker claims nothing for a while. The claim of the next one fails too: the lack is as old as the first report.
    let second = without_room();
    let due = "UPDATE waypost.ready SET not_before = NULL";
    cluster().sql("not_unpacked", due);
    wait_until("the second claim", || queue()["not_before"] != not_before && queue()["missing"].is_string());
    assert_eq!(queue()["since"], since);
    for worker in [first, second] {
        worker.signal(libc::SIGTERM);
        worker.end_soon();
    }

    let _other = worker(&rig);
    cluster().sql("not_unpacked", due);
    wait_until("the end of the run", || rig.json(&["show", "r", "--json"])["status"] == "completed");
}
