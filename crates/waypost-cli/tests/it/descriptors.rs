//! Too few file descriptors, at every limit below the need of a run.

use std::process::Output;

use crate::rig::Rig;

/// Below this limit, the shell cannot start a program.
const STARTS: u32 = 8;
/// More than the need of a run with one step.
const ENOUGH: u32 = 64;

fn with_descriptors(rig: &Rig, count: u32) -> Output {
    let run = rig.command(&["run", "flow.yaml", "--id", &format!("r-{count}"), "-q"]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {count}; exec \"$@\""), "sh"]);
    limited.arg(run.get_program()).args(run.get_args()).current_dir(rig.path("")).output().unwrap()
}

// Bug: with too few descriptors, `run` exited with an internal error (70), or reported a removed database (73).
// Cause: only errors of the supervisor were inspected. Fix: the causes of every error are inspected.
#[test]
fn too_few_descriptors_are_told_at_every_limit() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with("steps:\n  - {id: a, run: 'true'}\n").at(store);
        let mut lacked = 0;

        for count in STARTS..=ENOUGH {
            let ended = with_descriptors(&rig, count);
            let told = rig.told(&ended);
            match ended.status.code() {
                Some(0) => {}
                Some(71) => {
                    lacked = count;
                    assert!(told.contains("descriptors (`ulimit -n`)"), "{store}, {count}: {told}");
                }
                _ => panic!("{store}, {count} descriptors: {told}"),
            }
        }

        assert!((STARTS..ENOUGH).contains(&lacked), "{store}: {lacked}");
    }
}
