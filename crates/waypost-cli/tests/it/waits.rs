//! Steps that wait for a person, a signal or a time, and the commands that end these waits.

use serde_json::json;
use waypost::store::{Signal, SignalKind, Store as _};

use crate::rig::{Rig, check, code_of, wait_until};

const RELEASE: &str = r#"name: release
steps:
  - {id: build, run: 'echo "v=1.2" >> "$WAYPOST_OUTPUT"; echo build >> trace'}
  - {id: ok, approve: "Publish ${{ steps.build.outputs.v }}?"}
  - id: where
    approve: {question: Where to?, choices: [staging, production]}
  - id: publish
    run: echo "$TO $OK" >> trace
    env: {TO: "${{ steps.where.outputs.answer }}", OK: "${{ steps.ok.outputs.answer }}"}
"#;

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

#[test]
fn a_run_asks_is_answered_and_goes_on() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let rig = Rig::with(RELEASE).at(store);
        let waits = rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);
        assert_eq!(waits.status.code(), Some(75), "{}", rig.told(&waits));
        let shown = rig.json(&["show", "r", "--json"]);
        assert_eq!(shown["status"], "waiting");
        assert_eq!(shown["waiting"].as_array().unwrap().len(), 1);
        let waiting = &shown["waiting"][0];
        assert_eq!((&waiting["step"], &waiting["question"]), (&json!("ok"), &json!("Publish 1.2?")));
        let id = waiting["id"].as_str().unwrap();

        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(75), "nobody has answered");
        let before = rig.json(&["checkpoints", "r", "--json"])["checkpoints"].as_array().unwrap().len();
        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(75));
        let after = rig.json(&["checkpoints", "r", "--json"])["checkpoints"].as_array().unwrap().len();
        assert_eq!(before, after, "and to look changes nothing");
        assert_eq!(code(&rig, &["answer", "r", "perhaps"]), Some(2), "neither yes nor no");
        assert_eq!(code(&rig, &["answer", "r", "nobody", "yes"]), Some(5), "nobody asks so");
        let answered = rig.json(&["answer", "r", &id[..8], "yes", "--json"]);
        assert_eq!(
            answered,
            json!({"v": 1, "run": "r", "id": id, "scope": "main", "step": "ok", "value": true})
        );
        assert_eq!(code(&rig, &["answer", "r", "ok", "no"]), Some(2), "it has its answer");
        // `resume --all` continues with the answers.
        assert_eq!(code(&rig, &["resume", "--all", "-q"]), Some(75));
        let told = rig.waypost(&["show", "r"]);
        assert!(told.contains("    where ANSWER is one of `staging` and `production`\n"), "{told}");
        let waiting = &rig.json(&["show", "r", "--json"])["waiting"][0];
        assert_eq!(waiting["choices"], json!(["staging", "production"]));
        assert_eq!(code(&rig, &["answer", "r", "mars"]), Some(2), "no such choice");
        assert_eq!(code(&rig, &["answer", "r", "production"]), Some(0));
        assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));

        assert_eq!(rig.read("trace"), "build\nproduction true\n", "{store}");
        assert_eq!(code(&rig, &["answer", "r", "yes"]), Some(2), "it asks nothing any more");
        assert_eq!(code(&rig, &["signal", "r", "x"]), Some(2), "nor takes it signals");
        assert_eq!(code(&rig, &["verify", "r"]), Some(0));
    }
}

#[test]
fn screens_of_a_run_that_waits() {
    let rig = Rig::with(
        "name: three\nmax_parallel: 3\nsteps:\n  - {id: ask, needs: [], approve: Go on?}\n  - {id: nap, needs: [], sleep: 10h}\n  - {id: mail, needs: [], wait: mail has come}\n",
    );
    let told = rig.waypost(&["run", "flow.yaml", "--id", "r", "--wait", "0s"]);
    // The end time depends on the clock.
    let told = told
        .lines()
        .map(|line| match line.split_once("waits until ") {
            Some((begin, _)) => format!("{begin}waits until TIME"),
            None => line.to_owned(),
        })
        // The order of the waits is random.
        .filter(|line| !line.starts_with("[TIME]"))
        .collect::<Vec<_>>()
        .join("\n");
    check("waiting_run", &told);
    let shown = rig.json(&["show", "r", "--json"]);
    let waits = shown["waiting"].as_array().unwrap();
    assert!(waits.iter().all(|wait| wait["since"].is_string()), "{shown}");
    let ends = waits.iter().filter(|wait| wait["until"].is_string()).map(|wait| &wait["step"]);
    assert_eq!(ends.collect::<Vec<_>>(), ["nap"], "only a sleep has an end: {shown}");
    check("waiting_answer", &rig.waypost(&["answer", "r", "yes"]));
    check("waiting_signal", &rig.waypost(&["signal", "r", "mail has come", "7"]));
    check("waiting_answer_again", &rig.waypost(&["answer", "r", "ask", "no"]));
    check("waiting_answer_nobody", &rig.waypost(&["answer", "r", "nap", "no"]));
}

#[test]
fn who_says_no_fails_the_step_and_is_asked_anew() {
    let rig = Rig::with("steps:\n  - {id: ok, approve: Sure?}\n  - {id: go, run: echo go >> trace}\n");
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(75));
    assert_eq!(code(&rig, &["answer", "r", "no"]), Some(0));
    let refused = rig.call(&["resume", "r"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(rig.told(&refused).contains("not approved: the answer is `no`"), "{}", rig.told(&refused));

    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(75), "asked anew");
    assert_eq!(code(&rig, &["answer", "r", "yes"]), Some(0));
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));
    assert_eq!(rig.read("trace"), "go\n");
}

#[test]
fn a_pause_and_a_signal_are_waited_for_and_survive_a_kill() {
    let rig = Rig::with(
        "steps:\n  - {id: a, run: echo a >> trace}\n  - {id: nap, sleep: 3s}\n  - {id: go, wait: go}\n  - {id: b, run: 'echo \"b $V\" >> trace', env: {V: '${{ steps.go.outputs.value.n }}'}}\n",
    );
    // Longer than the allowed wait.
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "1s"]), Some(75));
    let status = |rig: &Rig| rig.json(&["show", "r", "--json"])["status"].as_str().unwrap().to_owned();
    assert_eq!(status(&rig), "waiting");
    assert_eq!(code(&rig, &["resume", "--all", "-q"]), Some(0), "it is not due");
    let running = rig.start(&["resume", "r"]);
    wait_until("the pause is over", || rig.json(&["show", "r", "--json"])["waiting"][0]["step"] == "go");
    running.signal(libc::SIGKILL);
    drop(running);
    assert_eq!(status(&rig), "waiting");

    let running = rig.start(&["resume", "r"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(
        code(&rig, &["signal", "r", "other"]),
        Some(0),
        "another one is left for whoever waits for it"
    );
    assert_eq!(code(&rig, &["signal", "r", "go", r#"{"n": 7}"#]), Some(0));

    assert_eq!(running.end().status.code(), Some(0));
    assert_eq!(rig.read("trace"), "a\nb 7\n");
}

#[test]
fn ctrl_c_ends_the_waiting_and_not_the_run() {
    let rig = Rig::with("steps:\n  - {id: go, wait: go}\n  - {id: b, run: echo b >> trace}\n");
    let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
    wait_until("it waits", || {
        rig.call(&["list", "--json"]).stdout.windows(9).any(|text| text == b"\"waiting\"")
    });

    running.signal(libc::SIGINT);

    assert_eq!(running.end().status.code(), Some(130));
    assert_eq!(code(&rig, &["signal", "r", "go"]), Some(0));
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));
    assert_eq!(rig.read("trace"), "b\n");
}

#[test]
fn what_is_answered_is_not_asked_for_again() {
    let rig = Rig::with(
        "max_parallel: 2\nsteps:\n  - {id: a, needs: [], approve: A?}\n  - {id: b, needs: [], approve: B?}\n",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(75));
    assert_eq!(code(&rig, &["answer", "r", "yes"]), Some(2), "which of the two");
    assert!(rig.waypost(&["answer", "r", "a", "yes"]).contains("one more question is open"));

    let last = rig.waypost(&["answer", "r", "yes"]);

    assert!(last.contains("Answered step b of run r; resume with: waypost resume r"), "{last}");
    assert!(rig.waypost(&["answer", "r", "yes"]).contains("every question of run r has an answer"));
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0));
}

#[test]
fn what_is_given_to_a_run_holds_no_secret() {
    let rig = Rig::with(
        "secrets: [TOKEN]\nsteps:\n  - {id: a, approve: {question: Who?, answer: text}}\n  - {id: b, wait: go}\n",
    );
    let call =
        |args: &[&str]| rig.command(args).env("TOKEN", "tell-nobody-9").output().unwrap().status.code();
    assert_eq!(call(&["run", "flow.yaml", "--id", "r", "-q"]), Some(75));

    assert_eq!(call(&["answer", "r", "it is tell-nobody-9"]), Some(2));
    assert_eq!(call(&["signal", "r", "go", "tell-nobody-9"]), Some(2));

    assert_eq!(call(&["answer", "r", "me"]), Some(0), "nothing was taken");
    assert_eq!(call(&["signal", "r", "go", "now"]), Some(0));
    assert_eq!(call(&["resume", "r", "-q"]), Some(0));
}

#[test]
fn a_question_of_an_item_is_answered_by_its_scope() {
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        let each = "{items: [a, b c], steps: [{id: ok, approve: 'Take ${{ item }}?'}]}";
        let rig = Rig::with(&format!("steps: [{{id: each, foreach: {each}}}]")).at(store);
        let asked = rig.call(&["run", "flow.yaml", "--id", "r", "--wait", "0s"]);
        assert_eq!(asked.status.code(), Some(75), "{store}");
        let said = rig.told(&asked);
        let commands: Vec<Vec<&str>> = said
            .lines()
            .filter_map(|line| line.strip_prefix("Answer with: waypost answer "))
            .map(|line| line.split(' ').take(2).collect())
            .collect();
        assert_eq!(commands.len(), 2, "{said}");
        assert_eq!(commands[0], ["r", "each:a/ok"], "{said}");
        for words in commands {
            let answered = rig.call(&["answer", words[0], words[1], "yes"]);
            assert_eq!(answered.status.code(), Some(0), "{}", rig.told(&answered));
        }
        assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(0), "{store}");
    }
}

// Bug: the time limit of a run stopped during a sleep or a wait for a signal, and then started over. Cause: only
// the sessions before and after were timed. Fix: a single deadline covers the whole run.
#[test]
fn the_time_of_a_run_goes_on_while_it_waits() {
    for step in ["sleep: 20s", "wait: go"] {
        let rig = Rig::with(&format!(
            "timeout: 700ms\nsteps:\n  - {{id: a, {step}}}\n  - {{id: b, run: 'echo b >> trace'}}\n"
        ));
        let began = std::time::Instant::now();

        let ended = rig.call(&["run", "flow.yaml", "--id", "r", "-q"]);

        assert_eq!(ended.status.code(), Some(124), "{step}: {}", rig.told(&ended));
        assert!(began.elapsed() < std::time::Duration::from_secs(15), "{step}: it did not wait it out");
        assert_eq!(rig.json(&["show", "r", "--json"])["status"], "waiting");
    }
    let rig = Rig::with("timeout: 1500ms\nsteps:\n  - {id: a, sleep: 1s}\n  - {id: b, run: 'sleep 10'}\n");
    let began = std::time::Instant::now();
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(124));
    assert!(began.elapsed() < std::time::Duration::from_secs(8), "the time before the sleep counts, too");
}

// Bug: `show` of a waiting run had neither the question nor the answer command, and offered a resume that exited
// 75. With the same question in two items, the hint of `answer` did not work. Fix: both print working commands,
// and a resume is offered only if there is work.
#[test]
fn who_looks_at_a_run_that_waits_is_told_what_to_give_it() {
    let rig = Rig::with(
        "max_parallel: 4\nsteps:\n  - {id: nap, needs: [], sleep: 10h}\n  - {id: mail, needs: [], wait: mail has come}\n  - id: f\n    needs: []\n    foreach: {items: [p, q], steps: [{id: ap, approve: 'Really?'}]}\n",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]), Some(75));

    let shown = rig.waypost(&["show", "r"]);

    for line in [
        "step f:p/ap asks: Really?\n    waypost answer r f:p/ap ANSWER\n",
        "step f:q/ap asks: Really?\n    waypost answer r f:q/ap ANSWER\n",
        "step mail waits for a signal\n    waypost signal r 'mail has come'\n",
        "step nap waits until ",
    ] {
        assert!(shown.contains(line), "{line}{shown}");
    }
    assert!(!shown.contains("waypost resume"), "it would only look: {shown}");
    let hints = "answer one: `waypost answer r f:p/ap ANSWER`, `waypost answer r f:q/ap ANSWER`";
    for asked in [&["answer", "r", "yes"][..], &["answer", "r", "ap", "yes"]] {
        let said = rig.waypost(asked);
        assert!(said.starts_with("exit 2") && said.contains(hints), "{said}");
    }
    assert_eq!(code(&rig, &["answer", "r", "f:p/ap", "yes"]), Some(0));
    let shown = rig.waypost(&["show", "r"]);
    assert!(shown.contains("step f:p/ap asks, already answered: Really?"), "{shown}");
    assert!(shown.contains("Resume with: waypost resume r\n"), "{shown}");
    let steps = |view: &serde_json::Value| -> Vec<String> {
        let waiting = view["waiting"].as_array().unwrap().iter();
        waiting.map(|wait| format!("{} {}", wait["scope"], wait["step"])).collect()
    };
    let asked = steps(&rig.json(&["show", "r", "--json"]));
    assert!(asked.contains(&r#""f:q" "ap""#.to_owned()) && !asked.join(",").contains("f:p"), "{asked:?}");
    let other = rig.waypost(&["answer", "r", "ap", "yes"]);
    assert!(other.starts_with("exit 0\n"), "only one question of that step is open: {other}");
    let none = rig.waypost(&["answer", "r", "ap", "yes"]);
    assert!(
        none.starts_with("exit 2\n")
            && none.contains("every question of run r that matches `ap` has an answer"),
        "{none}"
    );
}

// Bug: `plan` and `resume --dry-run` reported a waiting step although its answer, signal or time had come, and a
// resume continued. Cause: only the position was read. Fix: messages and the time are read too.
#[test]
fn a_plan_knows_what_has_come() {
    let flows = [
        (
            "{id: b, approve: 'Go on, all of you?'}",
            "an answer to `Go on, all of you?`",
            &["answer", "r", "yes"][..],
        ),
        ("{id: b, wait: go}", "signal `go`", &["signal", "r", "go"]),
        ("{id: b, sleep: 2s}", "20", &["list"]),
    ];
    for store in ["sqlite:kept/waypost.db", "file:kept"] {
        for (step, what, gives) in flows {
            let rig = Rig::with(&format!("steps:\n  - {step}\n")).at(store);
            assert_eq!(
                code(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]),
                Some(75),
                "{step}"
            );
            if what.starts_with("20") {
                wait_until("its time", || {
                    rig.json(&["plan", "r", "--json"])["decisions"][0]["action"] == "run"
                });
            } else {
                let plan = rig.waypost(&["plan", "r"]);
                assert!(plan.contains(&format!("waiting for {what}")), "{store} {step}: {plan}");
            }
            assert_eq!(code(&rig, gives), Some(0), "{store} {step}");

            for looks in [&["plan", "r", "--json"][..], &["resume", "r", "--dry-run", "--json"]] {
                let decision = rig.json(looks)["decisions"][0].clone();
                assert_eq!(decision["action"], "run", "{store} {step}: {looks:?}: {decision}");
                let cause = decision["cause"]["text"].as_str().unwrap();
                let verb = if what.starts_with("20") { "due since" } else { "received" };
                let has_come = cause.starts_with(&format!("{verb} {what}"));
                assert!(has_come, "{store} {step}: {cause}");
            }
            assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(0), "{store} {step}");
        }
    }
}

#[test]
fn the_events_of_a_run_tell_signals_from_answers() {
    let rig = Rig::with("steps: [{id: w, wait: go}, {id: ask, approve: 'Well?'}]\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]), Some(75));
    assert_eq!(code_of(&rig, &["signal", "r", "go", "5"]), Some(0));
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(75));
    assert_eq!(code_of(&rig, &["answer", "r", "yes"]), Some(0));
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));

    let events = String::from_utf8(rig.call(&["events", "r", "--json"]).stdout).unwrap();
    let of = |name: &str| {
        let mut lines = events.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.find(|event| event["event"] == name).unwrap_or_else(|| panic!("no {name} in {events}"))
    };
    assert_eq!((&of("signalled")["step"], &of("signalled")["value"]), (&"w".into(), &5.into()));
    assert_eq!(of("answered")["step"], "ask");
}

#[test]
fn a_waiting_run_is_stopped_and_not_deleted_under_its_worker() {
    for (store, waits) in [("sqlite:kept/waypost.db", "sleep: 60s"), ("file:kept", "wait: go")] {
        let rig =
            Rig::with(&format!("steps:\n  - {{id: a, {waits}}}\n  - run: echo done >> trace\n")).at(store);
        let stays = |run: &str| rig.path(&format!("kept/locks/{run}.waits")).exists();
        let run = |name: &'static str| {
            let running = rig.start(&["run", "flow.yaml", "--id", name, "-q"]);
            wait_until("it stays", || stays(name));
            running
        };

        let running = run("s");
        let stopped = rig.json(&["stop", "s", "--json"]);
        assert_eq!(stopped, json!({"v": 1, "run": "s", "status": "waiting", "stopped": true}));
        let ended = running.end();
        assert_eq!(ended.status.code(), Some(130), "{}", rig.told(&ended));
        assert!(!stays("s"));
        assert_eq!(rig.json(&["stop", "s", "--json"])["stopped"], false);
        // A message to the old process does not affect the next process.
        assert_eq!(code(&rig, &["resume", "s", "-q", "--wait", "1s"]), Some(75));

        let running = run("d");
        assert_eq!(code(&rig, &["delete", "d", "--yes"]), Some(6));
        assert_eq!(code(&rig, &["cancel", "d"]), Some(0));
        let ended = running.end();
        assert_eq!(ended.status.code(), Some(130), "{}", rig.told(&ended));
        assert_eq!(rig.json(&["show", "d", "--json"])["status"], "cancelled");
        assert_eq!(code(&rig, &["delete", "d", "--yes"]), Some(0));
        assert!(!rig.path("trace").exists());
    }
}

#[test]
fn an_answer_counts_only_for_the_question_that_was_asked() {
    let flow = |question: &str| format!("steps:\n  - {{id: ask, approve: '{question}'}}\n");
    let rig = Rig::with(&flow("Delete acme?"));
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(75));
    assert_eq!(rig.call(&["answer", "r", "yes"]).status.code(), Some(0));
    rig.write("flow.yaml", &flow("Delete evil corp?"));

    let asked = rig.call(&["resume", "r", "-q"]);

    assert_eq!(asked.status.code(), Some(75), "{}", rig.told(&asked));
    assert_eq!(rig.json(&["show", "r", "--json"])["waiting"][0]["question"], "Delete evil corp?");
    assert_eq!(rig.call(&["answer", "r", "yes"]).status.code(), Some(0));
    assert_eq!(rig.call(&["resume", "r", "-q"]).status.code(), Some(0));
}

// What happened: the file store kept a message in plain text if the run was killed between its last commit and the mark of
// the message. Why: only a commit marked messages, and an ended run has no other. What stops it now: a resume marks them too.
#[test]
fn a_resume_drops_messages_that_a_killed_session_had_taken_in() {
    let rig = Rig::with("steps:\n  - {id: go, wait: go}\n").at("file:kept");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]), Some(75));
    assert_eq!(code_of(&rig, &["signal", "r", "unused", "word"]), Some(0));
    let folder = rig.path("kept/runs/r/signals");
    let names = || std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let message = names().remove(0);
    let text = std::fs::read(&message).unwrap();
    assert_eq!(code_of(&rig, &["signal", "r", "go"]), Some(0));
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));
    assert!(!message.exists(), "dropped at the end");

    std::fs::write(&message, text).unwrap();
    std::fs::remove_file(message.with_extension("done")).unwrap();
    assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0));

    assert!(names().iter().all(|path| path.extension().is_some_and(|end| end == "done")), "{:?}", names());
}

// What happened: after the clock was set back, a resume that waited ended with exit 130 at once.
// Why: a stop request that a waiting process had obeyed stays, and its time was then later than the begin of the resume.
// What stops it now: a request with a time ahead of the clock is not for this process.
#[test]
fn a_stop_request_ahead_of_the_clock_stops_no_later_resume() {
    let rig = Rig::with("steps:\n  - {id: go, wait: go}\n").at("file:kept");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]), Some(75));
    let created_at = waypost::Clock::now(&waypost::SystemClock) + std::time::Duration::from_secs(3600);
    let (id, kind, sender) = ("stop-1".to_owned(), SignalKind::Stop, String::new());
    let stop = Signal { id, kind, scope: None, sender, created_at };
    let store = waypost::FileStore::open(rig.path("kept")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(store.signal(&"r".parse().unwrap(), &stop)).unwrap();

    assert_eq!(code_of(&rig, &["resume", "r", "-q", "--wait", "1s"]), Some(75));
}

// Bug: a signal or an answer during `run` repeated a failed step, even with `idempotent: false`. Cause: the session
// resumed the run, and a resume retries failed steps. Fix: after a failure, only a person resumes.
#[test]
fn after_a_failure_a_signal_resumes_no_run() {
    let rig = Rig::with(
        "max_parallel: 2\nsteps:\n  - {id: pay, needs: [], idempotent: false, run: 'echo paid >> trace; exit 1'}\n  - {id: mail, needs: [], wait: go}\n",
    );

    let told = rig.waypost(&["run", "flow.yaml", "--id", "r", "--wait", "5m"]);

    assert!(told.starts_with("exit 75\n"), "{told}");
    for part in ["error: step pay failed: exit code 1", "Run r waits: 0 of 2", "waypost signal r go"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(code(&rig, &["signal", "r", "go"]), Some(0));
    assert_eq!(rig.read("trace"), "paid\n");
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(1));
    assert_eq!(rig.read("trace"), "paid\npaid\n", "a resume by a person retries the step");
}

#[test]
fn a_signal_that_no_step_waits_for_is_remarked() {
    let rig = Rig::with("steps: [{id: g, steps: [{id: w, wait: go}]}]\n");
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]).status.code(), Some(75));

    let other = rig.waypost(&["signal", "r", "og"]);
    let meant = rig.waypost(&["signal", "r", "go"]);

    assert!(
        other.contains("Sent signal og to run r, although no step of the workflow waits for it; "),
        "{other}"
    );
    assert!(meant.contains("Sent signal go to run r; resume with"), "{meant}");
}

// Bug: an answer of type JSON kept the last of two equal keys. Fix: duplicate keys are refused, as in params.
#[test]
fn a_json_answer_has_no_duplicate_keys() {
    let rig = Rig::with("steps: [{id: q, approve: {question: what?, answer: json}}]\n");
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]), Some(75));

    let said = rig.waypost(&["answer", "r", r#"{"a": 1, "a": 2}"#]);

    assert!(said.starts_with("exit 2\n") && said.contains("duplicate key `a`"), "{said}");
    assert_eq!(code(&rig, &["answer", "r", r#"{"a": 2}"#]), Some(0));
}

// Bug: a rerun of two waits returned only the signal of the first, and the run waited for a signal that it had. Cause: free signals
// were read once a session. Fix: read again when a rerun step waits.
#[test]
fn a_rerun_of_several_waits_returns_their_signals_in_order() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'true'}
  - {id: s, wait: go}
  - {id: t, wait: go}
  - {id: b, run: 'echo $S $T >> trace', env: {S: '${{ steps.s.outputs.value }}', T: '${{ steps.t.outputs.value }}'}}
  - {id: c, run: 'test -e ok'}
",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "--wait", "0s", "-q"]), Some(75));
    for value in ["1", "2", "3"] {
        assert_eq!(code(&rig, &["signal", "r", "go", value, "-q"]), Some(0));
    }
    assert_eq!(code(&rig, &["resume", "r", "-q"]), Some(1), "c fails");

    assert_eq!(code(&rig, &["resume", "r", "--from", "a", "--wait", "0s", "-q"]), Some(1), "c fails again");

    assert_eq!(rig.read("trace"), "1 2\n1 2\n");
}

// Bug: a sleep made longer kept its old end. Cause: the edited step found the stored end of the old sleep. Fix: an edited wait has no
// stored results.
#[test]
fn an_edited_sleep_has_another_end() {
    let rig = Rig::with("steps:\n  - {id: z, sleep: 1h}\n");
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "--wait", "0s", "-q"]), Some(75));
    let end = |rig: &Rig| rig.json(&["show", "r", "--json"])["waiting"][0]["until"].to_string();
    let before = end(&rig);
    rig.write("flow.yaml", "steps:\n  - {id: z, sleep: 3h}\n");

    assert_eq!(code(&rig, &["resume", "r", "--wait", "0s", "-q"]), Some(75));

    assert!(end(&rig) > before, "{before}");
}

// Bug: after `--set`, a step went on with the old question or the old name of a signal. Fix: with another param the step asks again.
#[test]
fn a_waiting_step_reads_the_param_that_a_resume_sets() {
    let rig = Rig::with(
        "params: {n: {default: one}}
steps:
  - {id: q, approve: 'To ${{ params.n }}?'}
",
    );
    assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "--wait", "0s", "-q"]), Some(75));
    assert_eq!(code(&rig, &["resume", "r", "--set", "n=two", "--wait", "0s", "-q"]), Some(75));
    assert_eq!(rig.json(&["show", "r", "--json"])["waiting"][0]["question"], "To two?");
}

// Bug: a plan promised an answer, and a changed result upstream dropped the answer without a word.
#[test]
fn an_answer_before_a_changed_result_does_not_count() {
    let rig = Rig::with(
        "steps:
  - {id: a, run: 'echo x >> count; cat count > a', evidence: [{sha256: a}]}
  - {id: q, approve: 'ok?'}
  - {id: b, run: 'true'}
",
    );
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q", "--wait", "0s"]).status.code(), Some(75));
    assert_eq!(rig.call(&["answer", "r", "yes", "-q"]).status.code(), Some(0));
    std::fs::remove_file(rig.path("a")).unwrap();

    let plan = rig.waypost(&["plan", "r"]);
    let resumed = rig.waypost(&["resume", "r", "--wait", "0s"]);

    assert!(plan.contains("\nq     recheck  upstream `a` reruns\n"), "{plan}");
    let said = "the answer for step `q` does not count: an upstream result changed";
    assert!(resumed.starts_with("exit 75\n") && resumed.contains(said), "{resumed}");
}
