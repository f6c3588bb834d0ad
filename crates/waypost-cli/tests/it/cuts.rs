//! Steps that kill the process that runs them.

use crate::rig::{Rig, code_of};

/// Runs the command in a shell that writes its process id to `runner`, so that a step can kill it.
fn killed(rig: &Rig, args: &str) -> Option<i32> {
    let mut command = std::process::Command::new("bash");
    let waypost = env!("CARGO_BIN_EXE_waypost");
    command.args(["-c", &format!("echo $$ > runner && exec {waypost} {args}")]).current_dir(rig.path(""));
    command.env_remove("WAYPOST_STORE").output().unwrap().status.code()
}

/// Makes items of which the second kills the runner.
fn poisoned(more: &str) -> Rig {
    Rig::with(&format!(
        "steps:
  - id: each
    foreach:
      items: [1, 2, 3, 4, 5, 6]
      as: i
      {more}
      steps:
        - id: w
          max_cuts: 2
          env: {{I: '${{{{ i }}}}'}}
          run: |
            echo begin $I >> trace
            if [ $I = 2 ] && ! test -e cured; then kill -9 $(cat runner); sleep 5; fi
            sleep 0.05
            echo end $I >> trace
"
    ))
}

fn count(rig: &Rig, line: &str) -> usize {
    rig.read("trace").lines().filter(|found| *found == line).count()
}

#[test]
fn other_items_come_first_and_the_item_fails_in_the_end() {
    let rig = poisoned("max_parallel: 1");
    assert_eq!(killed(&rig, "run flow.yaml --id r -q"), None, "killed");
    assert_eq!((count(&rig, "begin 2"), count(&rig, "end 6")), (1, 0));

    assert_eq!(killed(&rig, "resume --all -q"), None);
    assert_eq!((count(&rig, "begin 2"), count(&rig, "end 6")), (2, 1), "the others first");
    assert_eq!(killed(&rig, "resume --all -q"), None);
    assert_eq!(count(&rig, "begin 2"), 3);
    // Two cuts, and a third while the step ran alone.
    let failed = rig.call(&["resume", "--all"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(rig.told(&failed).contains("cut 3 times"), "{}", rig.told(&failed));
    assert_eq!(count(&rig, "begin 2"), 3, "it does not start once more");
    for item in [1, 3, 4, 5, 6] {
        assert_eq!((count(&rig, &format!("begin {item}")), count(&rig, &format!("end {item}"))), (1, 1));
    }
    let letters = rig.json(&["dead-letters", "list", "r", "--json"]);
    assert_eq!(letters["items"].as_array().unwrap().len(), 1);

    // A resume by a person resets the count.
    assert_eq!(killed(&rig, "resume r -q"), None);
    rig.write("cured", "");
    assert_eq!(code_of(&rig, &["resume", "--all", "-q"]), Some(0));
    assert_eq!(count(&rig, "end 2"), 1);
}

#[test]
fn a_suspect_starts_only_alone() {
    let rig = poisoned("max_parallel: 6");
    assert_eq!(killed(&rig, "run flow.yaml --id r -q"), None);
    assert_eq!(killed(&rig, "resume --all -q"), None);
    rig.write("cured", "");
    rig.write("trace", "");

    assert_eq!(code_of(&rig, &["resume", "--all", "-q"]), Some(0));
    let trace = rig.read("trace");
    let lines: Vec<&str> = trace.lines().collect();
    let begin = lines.iter().position(|line| *line == "begin 2").unwrap();
    assert_eq!(lines[begin + 1], "end 2", "{trace}");
    let begun = |line: &&str| line.starts_with("begin");
    let ended = lines[..begin].iter().filter(|line| !begun(line)).count();
    assert_eq!(lines[..begin].iter().filter(|line| begun(line)).count(), ended, "{trace}");
}

#[test]
fn a_stop_is_no_cut() {
    let rig =
        Rig::with("max_cuts: 1\nsteps:\n  - {id: a, run: 'echo a >> trace; test -e go || sleep 100'}\n");
    for tries in 1..=3 {
        let args: &[&str] =
            if tries == 1 { &["run", "flow.yaml", "--id", "r"] } else { &["resume", "--all"] };
        let running = rig.start(args);
        rig.wait_for("trace", |text| text.lines().count() == tries);
        running.signal(libc::SIGTERM);
        assert_eq!(running.end_soon().status.code(), Some(143));
    }
    rig.write("go", "");
    assert_eq!(code_of(&rig, &["resume", "--all", "-q"]), Some(0));
}

// A step that killed its reaper or its supervisor was interrupted without end: only a kill of the command counted.
#[test]
fn a_step_that_kills_its_supervisor_is_counted() {
    let kills = [
        ("the reaper", "kill -9 $PPID"),
        ("the supervisor", "kill -9 $(ps -o ppid= -p $PPID)"),
        ("both", "kill -9 $(ps -o ppid= -p $PPID) $PPID"),
    ];
    for (what, kill) in kills {
        let flow = format!("max_cuts: 1\nsteps:\n  - {{id: a, run: 'echo a >> trace; {kill}; sleep 5'}}\n");
        let rig = Rig::with(&flow);
        assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1), "{what}");
        assert_eq!(code_of(&rig, &["resume", "--all", "-q"]), Some(1), "{what}");

        let failed = rig.call(&["resume", "--all"]);

        assert!(rig.told(&failed).contains("cut 2 times"), "{what}: {}", rig.told(&failed));
        assert_eq!(count(&rig, "a"), 2, "{what}");
    }
}
