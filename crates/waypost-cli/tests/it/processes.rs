//! Too few processes and threads, at every limit below the need of a run.

use std::process::{Command, Output};

use crate::rig::Rig;

/// More than a run with one item under way needs.
const ENOUGH: u32 = 16;
/// A user without any process: the limit counts all processes of a user, and does not hold for root.
const NOBODY: u32 = 64_313;

fn with_processes(rig: &Rig, count: u32) -> Output {
    let run = rig.command(&["run", "flow.yaml", "--id", &format!("r-{count}"), "-q"]);
    let user = format!("--reuid={NOBODY}");
    let mut limited = Command::new("bash");
    limited.args(["-c", &format!("ulimit -u {count}; exec setpriv {user} \"$@\""), "bash"]);
    limited.arg(run.get_program()).args(run.get_args()).current_dir(rig.path("")).output().unwrap()
}

// What happened: with too few processes, a `foreach` panicked (exit 101), and a start was an internal error (70).
// Why: the runtime panics if the system refuses its first thread, and only the engine's errors were looked into.
// What stops it now: the runtime has one thread from the start, and causes of a refused start are looked into.
#[test]
fn too_few_processes_are_told_at_every_limit() {
    let is_root = rustix::process::geteuid().is_root();
    // Without root, the limit counts all processes of the user of the tests.
    let able = is_root && Command::new("setpriv").arg("--version").output().is_ok();
    for store in ["sqlite:kept/waypost.db", "file:kept"].into_iter().filter(|_| able) {
        let rig = Rig::with("steps: [{id: each, foreach: {items: [a, b], steps: [{id: w, run: 'true'}]}}]\n");
        let rig = rig.at(store);
        std::os::unix::fs::chown(rig.path(""), Some(NOBODY), None).unwrap();
        let mut codes = Vec::new();

        for count in 1..=ENOUGH {
            let ended = with_processes(&rig, count);
            let (told, code) = (rig.told(&ended), ended.status.code());
            assert!(matches!(code, Some(0 | 71)), "{store}, {count} processes: {told}");
            assert_eq!(
                code == Some(71),
                told.contains("(`ulimit -u`)"),
                "{store}, {count} processes: {told}"
            );
            codes.extend(code);
        }

        assert_eq!((codes[0], codes.last()), (71, Some(&0)), "{store}: {codes:?}");
    }
}
