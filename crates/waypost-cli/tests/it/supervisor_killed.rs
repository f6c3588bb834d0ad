//! Runs after a kill of the supervisor and the reaper.

use crate::rig::{Rig, lives, send, wait_until};

/// Returns the descendants of a process that `ps` shows with this name.
fn below(pid: i32, name: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(of) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let (begin, rest) = stat.rsplit_once(')').unwrap();
        let parent: i32 = rest.split_whitespace().nth(1).unwrap().parse().unwrap();
        if parent == pid && begin.ends_with(&format!("({name}")) {
            found.push(of);
        }
    }
    found
}

// Bug: supervisor and reaper were killed together while the command lived. The command ended the run as cut, and
// processes of the step lived on. Cause: supervisor and reaper each end the processes that the other leaves, and
// the command ended none. Fix: the command ends all processes with the mark of the run before it reports the cut.
#[test]
fn kill_of_supervisor_and_reaper_leaves_no_process() {
    for _ in 0..3 {
        let flow = "steps:\n  - id: a\n    run: |\n      (setsid sleep 1000 & echo $! >> pids)\n      echo $$ >> pids\n      sleep 1000\n";
        let rig = Rig::with(flow);
        let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
        rig.wait_for("pids", |text| text.lines().count() == 2);
        let supervisor = below(running.pid(), "wp-supervisor")[0];
        let reaper = below(supervisor, "wp-reaper")[0];

        send(supervisor, libc::SIGSTOP);
        send(reaper, libc::SIGKILL);
        send(supervisor, libc::SIGKILL);
        let ended = running.end();

        assert_eq!(ended.status.code(), Some(1), "{}", rig.told(&ended));
        for pid in rig.read("pids").lines() {
            assert!(!lives(pid), "process {pid} of the step lives: {}", rig.told(&ended));
        }
        wait_until("the run to be free", || rig.call(&["resume", "r", "--dry-run"]).status.code() == Some(0));
    }
}

// A deleted report comes back with the finished steps of earlier sessions, also after a kill of the last session.
#[test]
fn a_report_that_is_gone_comes_back_after_a_kill() {
    let flow = "steps:\n  - {id: a, run: echo}\n  - {id: b, run: 'echo x >> begun; while [ ! -e go ]; do sleep 0.02; done'}\n";
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(flow).at(store);
        let report = || {
            ["kept/runs/r/report.md", "kept/waypost.db.waypost/runs/r/report.md"]
                .map(|name| rig.path(name))
                .into_iter()
                .find(|path| path.exists())
        };
        for (count, args) in [(1, &["run", "flow.yaml", "--id", "r"][..]), (2, &["resume", "r"])] {
            let running = rig.start(args);
            rig.wait_for("begun", |text| text.lines().count() == count);
            // Kills the supervisor too, so that no process attests the end of the run's processes.
            running.signal(libc::SIGSTOP);
            send(below(running.pid(), "wp-supervisor")[0], libc::SIGKILL);
            running.signal(libc::SIGKILL);
            running.end();
        }
        std::fs::remove_file(report().expect("there is one")).unwrap();
        rig.write("go", "");

        assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(0), "{store}");

        let text = std::fs::read_to_string(report().unwrap()).unwrap();
        assert!(text.contains("## `a`: completed") && text.contains("## `b`: completed"), "{store}: {text}");
    }
}
