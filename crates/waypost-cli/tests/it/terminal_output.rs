//! Narrow terminals, colours, closed readers, and names that are not text.

use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;

use crate::rig::{FLOW, Rig, Running, check, code_of};
use crate::terminal::{Terminal, on_terminal};

#[test]
fn forty_columns_are_enough() {
    let rig = Rig::failed();
    let mut texts = Vec::new();
    for args in [&["list"][..], &["show"], &["checkpoints"], &["plan"], &["why", "@"]] {
        let output = rig.command(args).env("COLUMNS", "40").output().unwrap();
        texts.push(format!("$ waypost {}\n{}", args.join(" "), rig.told(&output)));
    }
    check("narrow", &texts.join("\n"));
}

#[test]
fn no_table_breaks_what_is_copied_from_it() {
    let rig = Rig::with("name: nightly-sales-report\nsteps: [{ id: fetch-the-sales, run: 'true' }]\n");
    assert_eq!(
        rig.call(&["run", "flow.yaml", "--id", "nightly-sales-report-1", "-q"]).status.code(),
        Some(0)
    );
    for columns in ["40", "72", "80", "100", "140"] {
        for (args, whole) in [
            (&["list"][..], &["nightly-sales-report-1"][..]),
            (&["checkpoints"], &["nightly-sales-report-1@1", "fetch-the-sales"]),
        ] {
            let output = rig.command(args).env("COLUMNS", columns).output().unwrap();
            let told = String::from_utf8(output.stdout).unwrap();
            for name in whole {
                assert!(told.split_whitespace().any(|word| word == *name), "{columns}: {told}");
            }
            let widest = told.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
            assert!(widest <= columns.parse().unwrap(), "{columns}: {told}");
        }
    }
}

#[test]
fn colour_is_used_where_it_is_wanted() {
    let rig = Rig::failed();
    let coloured = |args: &[&str], no_color: bool| {
        let mut command = rig.command(args);
        if no_color {
            command.env("NO_COLOR", "1");
        }
        let output = command.output().unwrap();
        output.stdout.contains(&0x1b) || output.stderr.contains(&0x1b)
    };

    assert!(!coloured(&["show"], false), "not a terminal");
    assert!(coloured(&["show", "--color", "always"], false));
    assert!(coloured(&["show", "--color", "always"], true), "the flag goes before the environment");
    assert!(!coloured(&["show", "--color", "never"], false));
    assert!(coloured(&["show", "x", "--color", "always"], false));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let rig = Rig::failed();
    for args in
        [&["list"][..], &["show"], &["events"], &["logs", "@"], &["checkpoints", "--json"], &["--help"]]
    {
        let mut command = rig.command(args);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(Stdio::from(writer)).output().unwrap();

        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn a_run_does_not_end_because_its_reader_goes_away() {
    let rig = Rig::with(FLOW);
    rig.write("ok", "");
    let mut command = rig.command(&["run", "flow.yaml", "--json"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);

    let output = command.stdout(Stdio::from(writer)).output().unwrap();

    assert_eq!(output.status.code(), Some(0), "{}", rig.told(&output));
    assert_eq!(rig.read("four.txt"), "world\n");
}

#[test]
fn quiet_says_only_what_went_wrong() {
    let rig = Rig::with(FLOW);
    check("quiet", &rig.waypost(&["run", "flow.yaml", "--id", "r-1", "-q"]));
}

#[test]
fn quiet_says_nothing_on_success() {
    let rig = Rig::with("steps: [{ id: a, run: 'echo a' }, { id: b, run: 'echo b' }]\n");
    for args in [
        &["run", "flow.yaml", "--id", "r"][..],
        &["resume", "r"],
        &["rollback", "r@2"],
        &["resume", "r"],
        &["checkpoint", "r", "--label", "l"],
        &["report", "r", "--out", "r.md"],
        &["check", "flow.yaml"],
        &["verify", "r"],
        &["verify", "--all"],
        &["store", "check"],
        &["export", "r", "r.json"],
        &["archive", "r", "r.zst"],
        &["prune", "r", "--keep", "2"],
        &["delete", "r", "--yes"],
        &["run", "flow.yaml", "--id", "away", "--detach"],
    ] {
        let said = rig.waypost(&[args, &["-q"]].concat());
        assert_eq!(said, "exit 0\n--- stdout\n--- stderr\n", "{args:?}");
    }
}

#[test]
fn a_folder_whose_name_is_not_text() {
    let rig = Rig::new();
    let folder = rig.path("").join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("w.yaml"), "version: 1\nsteps: [{ run: 'true' }]\n").unwrap();

    let mut command = rig.command(&["run", "w.yaml", "--id", "r-1"]);
    let output = command.current_dir(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", rig.told(&output));
    let output = rig.command(&["show", "--json"]).current_dir(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", rig.told(&output));
}

// Bug: `logs` on a terminal printed the raw output of a step, so a log could clear the screen. Fix: on a terminal
// the output is escaped, as in the log tail of a failed step; elsewhere the output stays byte for byte.
#[test]
fn a_log_cannot_move_the_cursor_of_a_terminal() {
    let rig = Rig::with("steps:\n  - {id: a, run: 'printf \"gr\\303\\274n\\033[2J\\r\\nend\"'}\n");
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(0));
    assert_eq!(rig.call(&["logs", "r"]).stdout, "gr\u{fc}n\u{1b}[2J\r\nend".as_bytes());

    let shown = on_terminal(|ours| {
        assert_eq!(rig.command(&["logs", "r"]).stdout(ours).status().unwrap().code(), Some(0));
    });

    assert_eq!(shown, "gr\u{fc}n\\u{1b}[2J\nend");
}

// Some CI services run jobs on a terminal without a viewer, and keep the drawn output as a log.
#[test]
fn a_job_with_a_terminal_gets_a_line_an_event() {
    let rig = Rig::with("steps:\n  - {id: a, run: sleep 0.3}\n  - {id: b, run: 'false'}\n");
    let shown = |env: &[(&str, &str)]| {
        on_terminal(|ours| {
            let mut command = rig.command(&["run", "flow.yaml"]);
            command.env("TERM", "xterm").envs(env.iter().copied());
            assert_eq!(command.stderr(ours).status().unwrap().code(), Some(1));
        })
    };
    let moves =
        |shown: &str| shown.contains('\r') || shown.contains("\u{1b}[1A") || shown.contains("\u{1b}[J");

    let (of_person, not_ci, of_job) = (shown(&[]), shown(&[("CI", "false")]), shown(&[("CI", "true")]));
    let of_actions = shown(&[("CI", "true"), ("GITHUB_ACTIONS", "true")]);

    assert!(moves(&of_person) && moves(&not_ci), "{of_person:?} {not_ci:?}");
    assert!(!moves(&of_job) && of_job.contains("step_started a"), "{of_job:?}");
    assert!(!moves(&of_actions) && of_actions.contains("::error"), "{of_actions:?}");
}

#[test]
fn names_of_steps_are_beside_their_ids() {
    let rig = Rig::with("steps:\n  - {id: a, name: First <step>, run: 'true'}\n  - {id: b, run: 'true'}\n");
    let shown = on_terminal(|screen| {
        let mut command = rig.command(&["run", "flow.yaml", "--id", "r"]);
        command.env("TERM", "xterm");
        assert!(command.stderr(Stdio::from(screen)).status().unwrap().success());
    });
    assert!(shown.contains("done a (First <step>) (") || shown.contains(" a (First <step>) ("), "{shown}");
    assert!(rig.waypost(&["show", "r"]).contains("a (First <step>)"));
    let page = String::from_utf8(rig.call(&["report", "r", "--html"]).stdout).unwrap();
    assert!(page.contains("✓ a</b> First &lt;step&gt; completed"), "{page}");
}

// Bug: long params and labels broke words at the edge of a narrow terminal. Cause: the heads of screens were not wrapped.
// Fix: values continue on indented lines; words stay whole, to be copied.
#[test]
fn values_above_the_table_wrap_at_words() {
    let flow = "name: f\nlabels: {purpose: one purpose in more than forty columns of words}\n\
                params: {day: {type: string, default: a value of a param with many words in it}}\n\
                steps: [{id: a, run: 'echo \"v=words of an output, more than one line of them\" >> $WAYPOST_OUTPUT'}]\n";
    let rig = Rig::with(flow);
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
    for args in [&["show"][..], &["show", "--step", "a"], &["stats"], &["doctor"]] {
        for columns in [40, 80] {
            let output = rig.command(args).env("COLUMNS", columns.to_string()).output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let fits = |line: &str| line.chars().count() <= columns || line.split_whitespace().count() <= 3;
            assert!(said.lines().all(fits), "{args:?} {columns}: {said}");
        }
    }
    let output = rig.command(&["show"]).env("COLUMNS", "40").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let wrapped = "  labels      purpose=one purpose in\n              more than forty columns of\n              words\n";
    assert!(said.contains(wrapped), "{said}");
}

// Bug: at 40 columns, the terminal broke words of events, errors and hints, and `why` took six lines for a checkpoint.
// Fix: sentences break at spaces and never within a command, and `why` has a line for each checkpoint.
#[test]
fn sentences_break_at_spaces_on_a_narrow_terminal() {
    let rig = Rig::with("steps: [{id: prepare, run: exit 3}]\n");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "nightly", "-q"]), Some(1));
    let screen = |args: &[&str], last: &str| {
        let terminal = Terminal::new(40, 60);
        Running::of(&mut terminal.command(&rig, args)).end_soon_on_terminal();
        terminal.wait_for(last);
        terminal.screen()
    };

    let events = screen(&["events", "nightly"], "run_failed prepare");
    let why = screen(&["why", "nightly"], "nightly@2 failed");
    let refused = screen(&["resume", "nightly", "--from", "nope/x"], "  steps");

    assert!(events.contains("  @2\n  step_failed prepare: exit code 3\n"), "{events}");
    assert!(why.contains("\nnightly@1 started prepare\nnightly@2 failed prepare\n"), "{why}");
    assert!(why.starts_with("step prepare: retry, because attempt 1\n  failed\n"), "{why}");
    assert!(
        refused.contains("in the\n  workflow\nhint: `waypost check FILE` lists the\n  steps\n"),
        "{refused}"
    );
}

// Bug: a resume on a terminal had no first line, and showed no wait before the first record. Fix: the line names the
// first open step, and the open waits are shown at once.
#[test]
fn a_resume_says_where_it_continues_and_what_it_waits_for() {
    let rig = Rig::with(
        "steps: [{id: a, run: echo}, {id: grp, steps: [{id: b, run: test -e fine}]}, {id: nap, sleep: 1h}]\n",
    );
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(1));
    rig.write("fine", "");

    let failed = Terminal::new(80, 24);
    Running::of(&mut failed.command(&rig, &["resume", "r"])).end_soon_on_terminal();
    let waiting = Terminal::new(80, 24);
    let resumed = Running::of(&mut waiting.command(&rig, &["resume", "r", "--wait", "2h"]));

    waiting.wait_for("  waits nap until 2");
    waiting.wait_for("2/3 steps; Ctrl-C stops");
    resumed.signal(libc::SIGINT);
    resumed.end_soon_on_terminal();
    let screen = failed.screen();
    assert!(screen.starts_with("Run r continues at step grp/b: 1 of 3 steps are done.\n"), "{screen}");
}
