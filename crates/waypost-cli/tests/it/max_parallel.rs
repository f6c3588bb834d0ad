//! `-j`: the limit of concurrent steps of a command.

use crate::rig::{Rig, check};

/// Each step notes how many steps run with it.
const COUNTED: &str = "mkdir -p at; touch at/$$; ls at | wc -l >> counts; sleep 0.3; rm at/$$";

fn most(rig: &Rig) -> u64 {
    rig.read("counts").lines().map(|line| line.trim().parse::<u64>().unwrap()).max().unwrap()
}

fn flow(top: &str, each: &str) -> String {
    format!(
        "{top}\nsteps:\n  - {{id: each, needs: [], foreach: {{items: [1, 2, 3, 4, 5, 6], {each} steps: [{{id: go, run: \
         '{COUNTED}'}}]}}}}\n  - {{id: a, needs: [], run: '{COUNTED}'}}\n  - {{id: b, needs: [], run: '{COUNTED}'}}\n"
    )
}

#[test]
fn a_limit_of_the_command_replaces_that_of_the_file() {
    for (top, each, jobs, wanted) in [
        ("max_parallel: 9", "max_parallel: 9,", "1", 1..=1),
        ("max_parallel: 1", "", "8", 4..=8),
        ("max_parallel: 1", "max_parallel: 1,", "8", 2..=3),
    ] {
        let rig = Rig::with(&flow(top, each));

        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q", "-j", jobs]).status.code(), Some(0));

        assert!(wanted.contains(&most(&rig)), "{top} {each} {jobs}: {}", most(&rig));
    }
}

#[test]
fn a_resume_takes_a_limit_of_its_own() {
    let failing = format!("test -e ok && {COUNTED}");
    let rig = Rig::with(&flow("max_parallel: 9", "max_parallel: 9,").replace(COUNTED, &failing));
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));
    rig.write("ok", "");

    assert_eq!(rig.call(&["resume", "r", "-q", "-j2"]).status.code(), Some(0));

    assert_eq!(most(&rig), 2);
}

#[test]
fn agents_have_a_default_limit_of_their_own() {
    let items = "steps:\n  - id: each\n    foreach:\n      items: [1, 2, 3, 4, 5, 6, 7]\n      steps: [{id: ask, agent: \
                 mine, prompt: go}]\n";
    let rig = Rig::with(items);
    std::fs::create_dir(rig.path(".waypost")).unwrap();
    rig.write(".waypost/config.yaml", &format!("agents: {{mine: [sh, -c, '{COUNTED}']}}\n"));

    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(0));
    assert_eq!(most(&rig), 4);

    rig.write("counts", "");
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "s", "-q", "-j6"]).status.code(), Some(0));
    assert!(most(&rig) > 4, "{}", most(&rig));
}

#[test]
fn a_wrong_limit_is_a_usage_error() {
    let rig = Rig::with("steps: [{run: touch ran}]\n");
    for (command, limit) in [("run", "0"), ("run", "-1"), ("run", "1001"), ("resume", "x"), ("resume", "1.5")]
    {
        let ended = rig.call(&[command, &format!("-j{limit}")]);
        assert_eq!(ended.status.code(), Some(2), "{command} {limit}");
        assert!(rig.told(&ended).contains("a whole number from 1 to 1000"), "{}", rig.told(&ended));
    }
    assert!(!rig.path("ran").exists());
    check("jobs_of_other_tools", &rig.waypost(&["run", "--jobs", "3"]));
}
