//! Services: processes that run concurrently with later steps.

use crate::rig::{Rig, check, code_of, expect, lives, wait_until};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

const FLOW: &str = r#"
steps:
  - id: api
    service: 'echo "$$" >> pids; echo "serving for $WAYPOST_STEP"; trap "echo bye >> ends; exit 0" TERM; while :; do touch alive; sleep 0.05; done'
    grace: 5s
  - id: use
    run: 'rm -f alive; while [ ! -e alive ]; do sleep 0.02; done; echo used >> trace; while [ -e hold ]; do sleep 0.02; done'
  - id: each
    foreach:
      items: [1, 2]
      steps: [{run: 'rm -f alive; while [ ! -e alive ]; do sleep 0.02; done; echo item >> trace'}]
"#;

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

fn pids(rig: &Rig) -> Vec<String> {
    rig.read("pids").lines().map(str::to_owned).collect()
}

#[test]
fn a_service_lives_during_later_steps_and_ends_with_its_run() {
    for store in STORES {
        let rig = Rig::with(FLOW).at(store);

        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0), "{store}");

        assert_eq!(rig.read("trace"), "used\nitem\nitem\n");
        assert_eq!(pids(&rig).len(), 1, "it was started once");
        assert_eq!(rig.read("ends"), "bye\n", "it was asked to end");
        assert!(!lives(&pids(&rig)[0]));
        assert!(rig.waypost(&["logs", "r", "api"]).contains("serving for api"));
        // Bug: the event was a `custom` event of that name. Cause: all notes of records counted as events of
        // steps. Fix: the event has its own kind and names its service.
        let events = rig.waypost(&["events", "r", "--json"]);
        let started = r#""step":"api","attempt":null,"event":"service_started","had_ended":false"#;
        assert!(events.contains(started), "{events}");
        assert_eq!(code(&rig, &["verify", "r"]), Some(0));
    }
}

#[test]
fn a_resume_starts_it_again_for_what_is_left() {
    for store in STORES {
        let rig = Rig::with(FLOW).at(store);
        rig.write("hold", "");
        let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
        rig.wait_for("trace", |text| text.contains("used"));
        running.signal(libc::SIGKILL);
        running.end();
        wait_until("it to die with its run", || !lives(&pids(&rig)[0]));
        std::fs::remove_file(rig.path("hold")).unwrap();

        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0), "{store}");

        assert_eq!(rig.read("trace"), "used\nused\nitem\nitem\n", "{store}");
        assert_eq!(pids(&rig).len(), 2);
        assert!(pids(&rig).iter().all(|pid| !lives(pid)));
        let shown = rig.json(&["show", "r", "--json"]);
        assert_eq!(shown["steps"][0]["attempts"], 1, "its step was not done again");
    }
}

#[test]
fn an_ended_service_restarts_and_one_that_cannot_serve_fails() {
    let flow = "steps:\n  - {id: api, service: 'echo x >> pids; sleep 0.5'}\n  - {id: a, run: 'sleep 0.5'}\n  - {id: b, run: 'true'}\n";
    let rig = Rig::with(flow);
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    assert_eq!(pids(&rig).len(), 2, "the last step found it ended");

    let rig = Rig::with(
        "steps:\n  - {id: api, service: 'echo no port >&2; exit 4'}\n  - {id: a, run: 'touch ran'}\n",
    );
    let ended = rig.call(&["run", "flow.yaml", "--id", "r"]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(rig.told(&ended).contains("the service exited at its start: exit code 4"));
    assert!(!rig.path("ran").exists());
    assert!(rig.waypost(&["logs", "r", "api"]).contains("no port"));
}

#[test]
fn ctrl_c_ends_it_too() {
    let rig = Rig::with(FLOW);
    rig.write("hold", "");
    let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
    rig.wait_for("trace", |text| text.contains("used"));
    running.signal(libc::SIGINT);
    assert_eq!(running.end().status.code(), Some(130));
    assert!(!lives(&pids(&rig)[0]));
}

#[test]
fn services_that_cannot_be_are_refused() {
    for (name, flow) in [
        (
            "keys",
            "steps:\n  - {id: a, service: x, timeout: 5s, capture: text, repeat: {until: 'true', max: 2}}\n",
        ),
        ("inner", "steps:\n  - {id: a, foreach: {items: [1], steps: [{service: x}]}}\n"),
        (
            "read",
            "steps:\n  - {id: a, service: 'true'}\n  - {id: b, run: 'true', env: {A: '${{ steps.a.outputs.port }}'}}\n",
        ),
    ] {
        check(&format!("service_wrong_{name}"), &Rig::with(flow).waypost(&["check", "flow.yaml"]));
    }
}

// A resume printed no line of a service that it restarted, or not the first lines: the reader began after the
// start of the service. Now the reader begins at the end of the log before the session. A log is stored every
// 200 ms: the pause at the end of `use` is longer.
#[test]
fn the_lines_of_a_restarted_service_are_printed() {
    let rig = Rig::with(
        "steps:\n  - {id: api, service: 'echo serving $(wc -l < pids); echo >> pids; exec sleep 1000'}\n  \
         - {id: use, run: 'test -e ok; while [ $(wc -l < pids) -lt 2 ]; do sleep 0.02; done; sleep 1'}\n",
    );
    rig.write("pids", "");
    let first = rig.waypost(&["run", "flow.yaml", "--id", "r"]);
    assert!(first.starts_with("exit 1\n") && first.contains("\napi | serving 0\n"), "{first}");
    rig.write("ok", "");

    let second = rig.waypost(&["resume", "r"]);

    assert!(second.starts_with("exit 0\n") && second.contains("\napi | serving 1\n"), "{second}");
    assert!(!second.contains("serving 0"), "{second}");
}

// Bug: after a failure, a run with evidence about its own service asked for a decision at each resume. Cause: the evidence
// was checked before the service ran again. Fix: a claim about the address of a service counts at the commit.
#[test]
fn evidence_about_a_service_counts_while_it_runs() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let flow = format!(
        "steps:
  - {{id: server, service: 'exec python3 -m http.server {port} --bind 127.0.0.1', evidence: [{{port: {port}, within: 20s}}]}}
  - {{id: call, run: 'echo call >> trace', evidence: [{{http: 'http://localhost:{port}/', status: 200}}, {{file: trace}}]}}
  - {{id: pause, sleep: 1s}}
  - {{id: last, run: 'echo last >> trace; test -e go'}}
"
    );
    let rig = Rig::with(&flow);
    expect(&rig, &["run", "flow.yaml", "--id", "r"], 1, &["step last failed"]);
    rig.write("go", "");
    expect(&rig, &["resume", "r"], 0, &["4 of 4 steps are done"]);
    assert_eq!(rig.read("trace"), "call\nlast\nlast\n");

    // Other evidence of the step counts as always.
    std::fs::remove_file(rig.path("trace")).unwrap();
    expect(&rig, &["resume", "r"], 0, &["4 of 4 steps are done"]);
    assert_eq!(rig.read("trace"), "call\n");
}

// A service that exited at its restart was not noticed: only the first start waited for an early exit. The next step ran
// without its service.
#[test]
fn a_step_does_not_run_without_its_restarted_service() {
    let rig = Rig::with(
        "steps:
  - {id: s, service: 'test ! -e broken || exit 3; sleep 1000'}
  - {id: b, needs: [s], run: 'test -e ok; echo b >> trace'}
",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig.write("ok", "");
    rig.write("broken", "");

    let failed = rig.call(&["resume", "r"]);

    assert_eq!(failed.status.code(), Some(1), "{}", rig.told(&failed));
    assert!(rig.told(&failed).contains("cannot restart service `s`"), "{}", rig.told(&failed));
    assert!(!rig.path("trace").exists());
    std::fs::remove_file(rig.path("broken")).unwrap();
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));
}
