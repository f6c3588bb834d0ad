//! `run --or-resume` without the name of a run.

use crate::rig::{Rig, Running, wait_until};

const FLOW: &str = "params: {who: {type: string, default: me}}\nsteps:\n  - {id: a, run: echo a >> trace}\n  - {id: b, run: test -e ok}\n";

fn runs(rig: &Rig) -> usize {
    rig.json(&["list", "--json"])["runs"].as_array().unwrap().len()
}

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(&[&["run", "flow.yaml", "--or-resume", "-q"], args].concat()).status.code()
}

#[test]
fn an_unfinished_run_goes_on_and_a_finished_one_does_not() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(FLOW).at(store);

        assert_eq!(code(&rig, &[]), Some(1), "a new run");
        assert_eq!(code(&rig, &["-p", "who=me"]), Some(1), "the resolved params are the same");
        assert_eq!((runs(&rig), rig.read("trace").as_str()), (1, "a\n"), "{store}");
        assert_eq!(code(&rig, &["-p", "who=you"]), Some(1), "other params are another run");
        assert_eq!(runs(&rig), 2);
        rig.write("ok", "");
        assert_eq!(code(&rig, &[]), Some(0));
        assert_eq!(runs(&rig), 2, "the run with these params went on");
        assert_eq!(code(&rig, &[]), Some(0));
        assert_eq!(runs(&rig), 3, "a finished run is not resumed");
    }
}

#[test]
fn a_live_run_is_exit_6_and_no_second_one_starts() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig =
            Rig::with("steps:\n  - {id: a, run: 'echo a >> trace; until test -e ok; do sleep 0.05; done'}\n")
                .at(store);
        let args = ["run", "flow.yaml", "--or-resume"];

        let mut running: Vec<_> = (0..6).map(|_| rig.start(&args)).collect();
        rig.wait_for("trace", |_| true);
        assert_eq!(code(&rig, &[]), Some(6), "{store}");
        // One of them works, the others end.
        wait_until("five refusals", || running.iter_mut().filter_map(Running::ended).count() == 5);
        let refused = running.iter_mut().filter_map(Running::ended).filter(|code| *code == Some(6)).count();
        rig.write("ok", "");

        assert_eq!(refused, 5, "{store}");
        assert!(running.into_iter().any(|running| running.end().status.success()), "{store}");
        assert_eq!((runs(&rig), rig.read("trace").as_str()), (1, "a\n"), "{store}");
    }
}

#[test]
fn a_detached_run_is_resumed_detached() {
    let rig = Rig::with(FLOW);
    let detached = ["run", "flow.yaml", "--or-resume", "--detach", "--json"];

    let first = rig.json(&detached);
    rig.wait_for("trace", |_| true);
    wait_until("the failure", || rig.json(&["show", "--json"])["status"] == "failed");
    rig.write("ok", "");
    let second = rig.json(&detached);

    assert_eq!(first["run"], second["run"]);
    wait_until("the end", || rig.json(&["show", "--json"])["status"] == "completed");
    assert_eq!(rig.read("trace"), "a\n");
}
