//! `verify --workers`: evidence checked by several workers, or several times by one process.

use waypost_testing::postgres::{USER, cluster};

use crate::postgres::address;
use crate::rig::{Rig, Running, expect, wait_until};

const FLOW: &str = "steps: [{id: a, run: 'echo x > out.txt', evidence: [{sha256: out.txt}]}]\n";

/// Submits a run with base `data`, and executes it by a worker with folder `one`. Folders `two` and `three` are copies.
fn completed(database: &str) -> (Rig, Running) {
    cluster().database(database, "SELECT 1");
    let rig = Rig::with(FLOW).at(&address(USER, database));
    expect(&rig, &["store", "init"], 0, &["Made store"]);
    expect(&rig, &["submit", "flow.yaml", "--id", "r", "--base", "data"], 0, &["Run r is queued"]);
    for folder in ["one", "two", "three"] {
        std::fs::create_dir(rig.path(folder)).unwrap();
    }
    let first = worker(&rig, "one");
    wait_until("the end of the run", || rig.json(&["show", "r", "--json"])["status"] == "completed");
    for folder in ["two", "three"] {
        std::fs::copy(rig.path("one/out.txt"), rig.path(folder).join("out.txt")).unwrap();
    }
    (rig, first)
}

fn worker(rig: &Rig, folder: &str) -> Running {
    rig.start(&["worker", "--base", &format!("data={folder}")])
}

/// Returns the verdict of the quorum, and the votes.
fn votes(rig: &Rig, args: &[&str]) -> (String, Vec<String>) {
    let document = rig.json(&[&["verify", "r", "--json"], args].concat());
    let checkpoints = document["checkpoints"].as_array().unwrap();
    let claim = checkpoints.iter().find_map(|found| found["quorum"].get(0)).unwrap();
    let votes = claim["votes"].as_array().unwrap();
    let mut verdicts: Vec<String> =
        votes.iter().map(|vote| vote["verdict"].as_str().unwrap().to_owned()).collect();
    verdicts.sort();
    (claim["verdict"].as_str().unwrap().to_owned(), verdicts)
}

fn wait_for_workers(rig: &Rig, count: usize) {
    wait_until("the workers", || {
        let document = rig.json(&["verify", "r", "--json", "--workers", "9", "--wait", "3s"]);
        let claim = document["checkpoints"].as_array().unwrap().iter().find_map(|at| at["quorum"].get(0));
        claim.is_some_and(|claim| claim["votes"].as_array().unwrap().len() == count)
    });
}

#[test]
fn workers_verify_evidence_by_a_quorum() {
    let (rig, _one) = completed("quorum");
    let (_two, _three) = (worker(&rig, "two"), worker(&rig, "three"));
    wait_for_workers(&rig, 3);

    expect(&rig, &["verify", "r", "--workers", "3"], 0, &["file_sha256 out.txt: ok", "(process "]);
    assert_eq!(votes(&rig, &["--workers", "3"]), ("ok".into(), vec!["ok".into(); 3]));

    std::fs::write(rig.path("two/out.txt"), "y").unwrap();
    let dissent = || vec!["failed".into(), "ok".into(), "ok".into()];
    assert_eq!(votes(&rig, &["--workers", "3"]), ("ok".into(), dissent()));
    assert_eq!(votes(&rig, &["--workers", "3", "--quorum", "3"]), ("unknown".into(), dissent()));
    let says = ["evidence unknown", "fewer than 3 of 3 votes agree", "    failed   2"];
    expect(&rig, &["verify", "r", "--workers", "3", "--quorum", "3"], 4, &says);

    std::fs::remove_file(rig.path("three/out.txt")).unwrap();
    expect(&rig, &["verify", "r", "--workers", "3", "--record"], 4, &["EVIDENCE FAILED", "Recorded as"]);
    assert!(rig.json(&["show", "r", "--json"])["queue"]["tasks"].is_null(), "no task is left");
}

#[test]
fn absent_workers_have_no_vote() {
    let (rig, one) = completed("no_quorum");
    wait_for_workers(&rig, 1);
    let three = ["verify", "r", "--workers", "3", "--wait", "3s"];
    expect(&rig, &three, 4, &["1 of 3 workers answered", "fewer than 2 of 3 votes agree"]);

    one.signal(libc::SIGTERM);
    one.end_soon();
    expect(&rig, &three, 4, &["cannot verify run r: no worker answered", "start a worker with the needs"]);
}

/// In a local store one process checks several times, and finds evidence that changes from check to check.
#[test]
fn a_local_quorum_finds_flapping_evidence() {
    let flaps = "n=$(cat n 2> /dev/null || echo 0); echo $((n + 1)) > n; test $((n % 2)) = 0";
    let rig = Rig::with(&format!(
        "steps: [{{id: a, run: 'true', evidence: [{{exit: 0}}, {{command: '{flaps}', at: [verify]}}]}}]\n"
    ));
    expect(&rig, &["run", "flow.yaml", "--id", "r"], 0, &[]);

    expect(&rig, &["verify", "r", "--workers", "3"], 0, &["this process checks in turn"]);
    let says = ["evidence unknown", "fewer than 3 of 3 votes agree", "    ok       2", "    failed   2"];
    expect(&rig, &["verify", "r", "--workers", "3", "--quorum", "3"], 4, &says);
}

#[test]
fn a_quorum_is_a_majority() {
    let rig = Rig::with(FLOW);
    expect(&rig, &["run", "flow.yaml", "--id", "r"], 0, &[]);

    let says = ["cannot verify by a quorum of 2 of 4", "name a majority: `--quorum 3`, at most 4"];
    expect(&rig, &["verify", "r", "--workers", "4", "--quorum", "2"], 2, &says);
    expect(&rig, &["verify", "r", "--quorum", "2"], 2, &["--workers"]);
}

#[test]
fn a_killed_verification_leaves_no_tasks() {
    let (rig, worker) = completed("killed_quorum");
    wait_for_workers(&rig, 1);
    let tasks = || rig.json(&["show", "r", "--json"])["queue"]["tasks"].clone();
    // The worker cannot answer.
    worker.signal(libc::SIGSTOP);
    let verify = rig.start(&["verify", "r", "--workers", "1", "--wait", "2s"]);
    wait_until("the task", || !tasks().is_null());

    verify.signal(libc::SIGKILL);
    verify.end();

    wait_until("the end of the task", || tasks().is_null());
    worker.signal(libc::SIGCONT);
}
