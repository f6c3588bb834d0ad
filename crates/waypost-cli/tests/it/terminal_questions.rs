//! Questions of a run at the terminal of `run` and `resume`.

use crate::rig::{Rig, Running, expect, wait_until};
use crate::terminal::Terminal;

const FLOW: &str = "
steps:
  - { id: build, run: echo built }
  - { id: ok, approve: Publish 1.2? }
  - { id: where, approve: { question: Where to?, choices: [staging, production] } }
  - { id: publish, run: 'echo published >> trace' }
";

#[test]
fn a_question_is_asked_at_once_on_a_terminal() {
    let rig = Rig::with(FLOW);
    let mut terminal = Terminal::new(80, 24);
    let running = Running::of(&mut terminal.command(&rig, &["run", "flow.yaml", "--id", "r"]));

    terminal.wait_for("Step ok asks: Publish 1.2?\nAnswer `yes` or `no`:");
    terminal.type_keys("perhaps\n");
    terminal.wait_for("error: `perhaps` is not a valid answer");
    terminal.type_keys("yes\n");
    terminal.wait_for("Step where asks: Where to?\nAnswer one of `staging` and `production`:");
    terminal.type_keys("staging\n");
    terminal.wait_for("Run r is completed: 4 of 4 steps are done.");

    assert_eq!(running.end_soon_on_terminal(), Some(0));
    assert_eq!(rig.read("trace"), "published\n");
    expect(&rig, &["show", "r", "--step", "where"], 0, &["answer=staging"]);
    let shown = terminal.screen();
    assert!(shown.ends_with("Run r is completed: 4 of 4 steps are done.\n"), "{shown}");
}

#[test]
fn a_question_is_asked_while_other_steps_run() {
    let rig = Rig::with(
        "max_parallel: 2
steps:
  - { id: slow, needs: [], run: 'while ! test -e go; do sleep 0.05; done; echo end of slow' }
  - { id: ok, needs: [], approve: Sure? }
  - { id: next, needs: [ok], run: touch next }
",
    );
    let mut terminal = Terminal::new(80, 24);
    let running = Running::of(&mut terminal.command(&rig, &["run", "flow.yaml", "--id", "r"]));

    terminal.wait_for("Step ok asks: Sure?\nAnswer `yes` or `no`:");
    terminal.type_keys("yes\n");
    rig.wait_for("next", |_| true);
    rig.write("go", "");
    terminal.wait_for("Run r is completed: 3 of 3 steps are done.");

    assert_eq!(running.end_soon_on_terminal(), Some(0));
}

// A resume asked only after its last step: an open question has no record of its own in the new session. The first
// commit of a session makes the terminal ask now.
#[test]
fn a_resume_asks_while_other_steps_run() {
    let rig = Rig::with(
        "max_parallel: 2
steps:
  - { id: slow, needs: [], run: 'test -e again; while ! test -e go; do sleep 0.05; done' }
  - { id: ok, needs: [], approve: Sure? }
  - { id: next, needs: [ok], run: touch next }
",
    );
    expect(&rig, &["run", "flow.yaml", "--id", "r"], 75, &["step ok asks: Sure?"]);
    rig.write("again", "");
    let mut terminal = Terminal::new(80, 24);
    let running = Running::of(&mut terminal.command(&rig, &["resume", "r"]));

    terminal.wait_for("Step ok asks: Sure?\nAnswer `yes` or `no`:");
    terminal.type_keys("yes\n");
    rig.wait_for("next", |_| true);
    rig.write("go", "");
    terminal.wait_for("Run r is completed: 3 of 3 steps are done.");

    assert_eq!(running.end_soon_on_terminal(), Some(0));
}

#[test]
fn an_unanswered_question_stays_open() {
    let rig = Rig::with(FLOW);
    let answer = "\nAnswer with: waypost answer r ok ANSWER\n";
    let mut terminal = Terminal::new(80, 24);
    let running = Running::of(&mut terminal.command(&rig, &["run", "flow.yaml", "--id", "r"]));
    terminal.wait_for("`no`:");
    terminal.type_keys("\u{4}");
    terminal.wait_for(answer);
    assert_eq!(running.end_soon_on_terminal(), Some(75));
    assert!(terminal.screen().ends_with(answer), "{}", terminal.screen());

    let terminal = Terminal::new(80, 24);
    let running = Running::of(&mut terminal.command(&rig, &["resume", "r"]));
    terminal.wait_for("`no`:");
    running.signal(libc::SIGINT);
    terminal.wait_for(answer);
    assert_eq!(running.end_soon_on_terminal(), Some(130));
    assert!(terminal.screen().ends_with(answer), "{}", terminal.screen());

    // An answer from elsewhere ends the question.
    let mut terminal = Terminal::new(80, 24);
    let running = Running::of(&mut terminal.command(&rig, &["resume", "r"]));
    terminal.wait_for("`no`:");
    expect(&rig, &["answer", "r", "yes"], 0, &["the process of the run continues"]);
    terminal.wait_for("`production`:");
    terminal.type_keys("production\n");
    terminal.wait_for("Run r is completed");
    assert_eq!(running.end_soon_on_terminal(), Some(0));
}

#[test]
fn without_a_terminal_the_last_line_is_the_answer() {
    let rig = Rig::with(FLOW);

    let output = rig.call(&["run", "flow.yaml", "--id", "r"]);

    assert_eq!(output.status.code(), Some(75));
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(
        told.ends_with("\nResume with: waypost resume r\nAnswer with: waypost answer r ok ANSWER\n"),
        "{told}"
    );
    expect(&rig, &["events", "r"], 0, &["interrupted ok: asks Publish 1.2?\n"]);
    // A person who wants no questions is not asked.
    for option in ["--json", "-q"] {
        let terminal = Terminal::new(80, 24);
        let running = Running::of(&mut terminal.command(&rig, &["resume", "r", option]));
        assert_eq!(running.end_soon_on_terminal(), Some(75), "{option}");
    }
    let mut terminal = Terminal::new(80, 24);
    let mut detached = terminal.command(&rig, &["run", "flow.yaml", "--id", "d", "--detach"]);
    assert_eq!(Running::of(&mut detached).end_soon_on_terminal(), Some(0));
    terminal.type_keys("yes\n");
    wait_until("the end of the detached run", || rig.json(&["show", "d", "--json"])["status"] == "waiting");
}

// Bug: the events of a declined approval had `told answer=true`, a mark of the program. Fix: the line says `declined`.
#[test]
fn a_declined_approval_is_told_as_declined() {
    let rig = Rig::with(FLOW);
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(75));
    assert_eq!(rig.call(&["answer", "r", "no", "-q"]).status.code(), Some(0));

    let resumed = rig.waypost(&["resume", "r"]);
    let events = rig.waypost(&["events", "r"]);

    assert!(resumed.contains("error: step ok failed: not approved: the answer is `no`\n"), "{resumed}");
    assert!(events.contains(" progress ok: declined\n") && !events.contains("told"), "{events}");
}

// Bug: an approval that was answered once had attempt 2 in the events and checkpoints. Cause: the start after a wait counted
// as an attempt. Fix: the start after a wait continues the attempt.
#[test]
fn an_answered_approval_has_one_attempt() {
    let rig = Rig::with("steps: [{id: g, steps: [{id: ask, approve: 'ok?'}]}]");
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(75));
    assert_eq!(rig.call(&["answer", "r", "g/ask", "yes", "--resume", "-q"]).status.code(), Some(0));

    let events = rig.waypost(&["events", "r"]);

    assert!(events.contains("step_completed ask: answer=true"), "{events}");
    assert!(!events.contains("step_started ask: attempt"), "{events}");
    let events = rig.waypost(&["events", "r", "--json"]);
    assert!(events.contains("\"attempt\":1,") && !events.contains("\"attempt\":2,"), "{events}");
}
