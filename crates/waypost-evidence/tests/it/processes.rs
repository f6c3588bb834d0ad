//! Processes: those of this machine, and those of a folder like `/proc` that is made up.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use serde_json::{Value, json};
use waypost::Verifier;
use waypost::evidence::Site;
use waypost::record::{Claim, Pack, Verdict};
use waypost_evidence::{Environment, PROCESS_EXISTS, ProcessProbe, verifier};

use crate::runtime;

/// A process that ends with its test.
struct Sleeper(Child);

impl Sleeper {
    fn new(seconds: &str) -> Self {
        Self(Command::new("sleep").arg(seconds).spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn claim(subject: &str, expect: Value) -> Claim {
    Claim { expect, ..Claim::new(PROCESS_EXISTS, subject) }
}

fn found(verifier: &Verifier, claim: Claim, folder: &Path) -> Claim {
    let (pack, site) = (Pack::all([claim]), Site::beneath(folder));
    runtime().block_on(verifier.verify(&pack, &site)).claims.remove(0)
}

fn real(claim: Claim, folder: &Path) -> Claim {
    found(&verifier(Environment::inherited()), claim, folder)
}

#[test]
fn a_process_is_found_by_name_number_file_and_words() {
    let folder = tempfile::tempdir().unwrap();
    let sleeper = Sleeper::new("604801");
    let pid = sleeper.pid();
    fs::write(folder.path().join("s.pid"), format!("{pid}\n")).unwrap();
    fs::write(folder.path().join("no.pid"), "none\n").unwrap();
    fs::write(folder.path().join("other.pid"), std::process::id().to_string()).unwrap();
    let cases = [
        (claim("sleep", json!({ "args": 604_801 })), Verdict::Ok),
        (claim("sleep", json!({ "args": "~ ^60480[12]$", "count": 1 })), Verdict::Ok),
        (claim("sleep", json!({ "args": 604_801, "count": "> 1" })), Verdict::Failed),
        (claim("sleep", json!({ "args": "604809" })), Verdict::Failed),
        (claim("sleep", json!({ "args": "604809", "count": 0 })), Verdict::Ok),
        (claim("no-such-program", json!(null)), Verdict::Failed),
        (claim(&pid, json!(null)), Verdict::Ok),
        (claim(&pid, json!({ "args": "604801" })), Verdict::Ok),
        (claim(&pid, json!({ "args": "5" })), Verdict::Failed),
        (claim("4194999", json!(null)), Verdict::Failed),
        (claim("sleep", json!({ "pid_file": "s.pid" })), Verdict::Ok),
        (claim("cat", json!({ "pid_file": "s.pid" })), Verdict::Failed),
        (claim("sleep", json!({ "pid_file": "other.pid" })), Verdict::Failed),
        (claim("sleep", json!({ "pid_file": "gone.pid" })), Verdict::Failed),
        (claim("sleep", json!({ "pid_file": "no.pid" })), Verdict::Failed),
        (claim("sleep", json!({ "pid_file": "../s.pid" })), Verdict::Failed),
        (claim(&pid, json!({ "pid_file": "s.pid" })), Verdict::Failed),
        (claim("sleep", json!({ "user": "no-such-user" })), Verdict::Unknown),
        (claim("sleep", json!({ "user": 4_000_000_000_u32 })), Verdict::Failed),
        (claim("sleep", json!({ "user": "" })), Verdict::Failed),
        (claim("sleep", json!({ "count": null })), Verdict::Failed),
        (claim("sleep", json!({ "count": "> many" })), Verdict::Failed),
        (claim("sleep", json!({ "colour": "red" })), Verdict::Unknown),
        (claim("sleep", json!("sleep")), Verdict::Failed),
        (claim("bin/sleep", json!(null)), Verdict::Failed),
        (claim("", json!(null)), Verdict::Failed),
    ];

    for (claim, wanted) in cases {
        let found = real(claim, folder.path());
        assert_eq!(found.verdict, wanted, "{found:?}");
    }
}

#[test]
fn a_process_is_pinned_with_the_time_of_its_start() {
    let folder = tempfile::tempdir().unwrap();
    let sleeper = Sleeper::new("604802");
    let (verifier, site) = (verifier(Environment::inherited()), Site::beneath(folder.path()));
    let pack = |subject: &str| Pack::all([Claim::new(PROCESS_EXISTS, subject).pinning()]);
    let commit = |subject: &str| runtime().block_on(verifier.commit(&pack(subject), &site)).claims.remove(0);

    let pinned = commit(&sleeper.pid());

    assert!(pinned.live && pinned.verdict == Verdict::Ok, "{pinned:?}");
    assert_eq!(real(pinned.clone(), folder.path()).verdict, Verdict::Ok);
    let other = json!({ "started": format!("1{}", pinned.expect["started"].as_str().unwrap()) });
    let reused = Claim { expect: other, ..pinned.clone() };
    assert_eq!(real(reused, folder.path()).verdict, Verdict::Failed);
    drop(sleeper);
    assert_eq!(real(pinned, folder.path()).verdict, Verdict::Failed);
    assert_eq!(commit("sleep").verdict, Verdict::Failed);
}

/// Makes a folder like `/proc` as a user of number 1000 sees it.
fn proc(folder: &Path, mount: &str) -> PathBuf {
    let proc = folder.join("proc");
    fs::create_dir_all(proc.join("self")).unwrap();
    fs::write(proc.join("self/status"), "Name:\twaypost\nUid:\t1000\t1000\t1000\t1000\n").unwrap();
    let mount = format!("22 1 0:20 / /proc rw - proc proc rw{mount}\n");
    fs::write(proc.join("self/mountinfo"), mount).unwrap();
    fs::write(proc.join("stat"), "cpu 1\nbtime 1000000\n").unwrap();
    add(&proc, 7, ("worker (a) b", 'S', 1000, 100), "/opt/bin/worker\0--port\08089\0");
    add(&proc, 8, ("worker (a) b", 'Z', 1000, 100), "");
    add(&proc, 9, ("kthreadd", 'S', 0, 0), "");
    proc
}

fn add(proc: &Path, pid: u32, (name, state, user, ticks): (&str, char, u32, u64), words: &str) {
    let folder = proc.join(pid.to_string());
    fs::create_dir_all(&folder).unwrap();
    let zeros = "0 ".repeat(18);
    fs::write(folder.join("stat"), format!("{pid} ({name}) {state} {zeros}{ticks} 0 0\n")).unwrap();
    fs::write(folder.join("status"), format!("Name:\tx\nUid:\t5\t{user}\t5\t5\n")).unwrap();
    fs::write(folder.join("cmdline"), words).unwrap();
}

#[test]
fn what_may_be_hidden_is_not_taken_to_be_gone() {
    let verdict = |mount: &str, subject: &str, expect: Value| {
        let folder = tempfile::tempdir().unwrap();
        let proc = proc(folder.path(), mount);
        let verifier = Verifier::new().with_probe(Arc::new(ProcessProbe::at(proc)));
        found(&verifier, claim(subject, expect), folder.path()).verdict
    };

    for hidden in [",hidepid=2", ",gid=4,hidepid=invisible"] {
        assert_eq!(verdict(hidden, "worker", json!(null)), Verdict::Ok);
        assert_eq!(verdict(hidden, "nginx", json!(null)), Verdict::Unknown);
        assert_eq!(verdict(hidden, "12345", json!(null)), Verdict::Unknown);
        assert_eq!(verdict(hidden, "worker", json!({ "count": 1 })), Verdict::Unknown);
        assert_eq!(verdict(hidden, "nginx", json!({ "user": 1000 })), Verdict::Failed);
        assert_eq!(verdict(hidden, "nginx", json!({ "user": 1001 })), Verdict::Unknown);
    }
    assert_eq!(verdict("", "nginx", json!(null)), Verdict::Failed);
    assert_eq!(verdict("", "worker", json!({ "count": 1 })), Verdict::Ok);
    assert_eq!(verdict("", "worker (a) b", json!({ "args": "--port 8089", "user": 1000 })), Verdict::Ok);
    assert_eq!(verdict("", "worker", json!({ "user": 0 })), Verdict::Failed);
    assert_eq!(verdict("", "kthreadd", json!({ "args": "" })), Verdict::Ok);
}

#[test]
fn a_process_younger_than_its_pid_file_is_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let proc = proc(folder.path(), "");
    fs::write(folder.path().join("w.pid"), "7").unwrap();
    let verifier = Verifier::new().with_probe(Arc::new(ProcessProbe::at(&proc)));
    let verdict = || found(&verifier, claim("worker", json!({ "pid_file": "w.pid" })), folder.path()).verdict;

    assert_eq!(verdict(), Verdict::Ok);
    add(&proc, 7, ("worker", 'S', 1000, 400_000_000_000), "worker\0");
    assert_eq!(verdict(), Verdict::Failed);
    fs::write(proc.join("7/stat"), "7 (worker").unwrap();
    assert_eq!(verdict(), Verdict::Unknown);
}
