//! `submit --include`: any worker runs the steps, with a private copy of the files.

use waypost_testing::postgres::{USER, cluster};

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
