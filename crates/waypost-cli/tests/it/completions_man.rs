//! Completion in shells and manual pages.

use std::process::Command;

use crate::rig::{Rig, check};

/// What a shell is offered for the last of these words, one a line.
fn offered(command: Command) -> Vec<String> {
    let mut command = command;
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(ToOwned::to_owned).collect()
}

fn asking(rig: &Rig, words: &[&str]) -> Command {
    let words: Vec<&str> = ["--", "waypost"].iter().chain(words).copied().collect();
    let mut command = rig.command(&words);
    command.env("WAYPOST_COMPLETE", "bash").env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_INDEX", (words.len() - 2).to_string()).env("_CLAP_COMPLETE_COMP_TYPE", "9");
    command
}

fn completed(rig: &Rig, words: &[&str]) -> Vec<String> {
    offered(asking(rig, words)).into_iter().filter(|word| !word.starts_with('-')).collect()
}

#[test]
fn runs_and_steps_are_offered_as_commands_are() {
    let rig = Rig::failed();
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "other", "-q"]).status.code(), Some(1));

    assert_eq!(completed(&rig, &["ro"]), ["rollback"]);
    assert_eq!(completed(&rig, &["resume", ""]), ["other", "r-1"], "the newest first");
    assert_eq!(completed(&rig, &["show", "r"]), ["r-1"]);
    assert_eq!(completed(&rig, &["delete", "r-1", "o"]), ["other"]);
    assert_eq!(completed(&rig, &["logs", "r-1", "t"]), ["two", "three"]);
    assert_eq!(completed(&rig, &["resume", "r-1", "--from", "o"]), ["one"]);
    assert_eq!(completed(&rig, &["resume", "--from", "fo"]), ["four"], "of the newest run");
    assert_eq!(completed(&rig, &["run", "flow.yaml", "--until", "th"]), ["three"], "of the file");
    assert_eq!(completed(&rig, &["list", "--after", ""]), Vec::<String>::new());
    assert!(offered(asking(&rig, &["logs", "--la"])).contains(&"--last".to_owned()));
    let url = format!("sqlite:{}", rig.path(".waypost/waypost.db").display());
    let mut elsewhere = asking(&rig, &["--store", &url, "show", ""]);
    elsewhere.current_dir("/");
    assert!(offered(elsewhere).contains(&"r-1".to_owned()), "the store of the line counts");
}

#[test]
fn nothing_that_is_wrong_disturbs_the_shell() {
    let empty = Rig::new();
    assert_eq!(completed(&empty, &["show", ""]), Vec::<String>::new());
    assert_eq!(completed(&empty, &["run", "--until", ""]), Vec::<String>::new());
    assert!(!empty.path(".waypost").exists(), "nothing is made");
    let rig = Rig::failed();
    rig.write(".waypost/config.yaml", "stor: x\n");
    assert_eq!(completed(&rig, &["show", "r"]), ["r-1"]);
    rig.write(".waypost/waypost.db", "no database");
    assert_eq!(completed(&rig, &["show", ""]), Vec::<String>::new());
    let mut unknown = rig.command(&["--", "waypost", ""]);
    assert_eq!(unknown.env("WAYPOST_COMPLETE", "tcsh").output().unwrap().status.code(), Some(2));
}

#[test]
fn params_checkpoints_and_dead_letters_are_offered() {
    let rig = Rig::with(
        "name: flow\nparams:\n  who: { default: you, description: Whom to greet }\n  when: { default: now }\n  loud: { type: bool, default: false }\nsteps:\n  - { id: one, run: 'true' }\n  - id: each\n    foreach: {failure_rate: 1,  items: [eu, us, apac], steps: [{ id: w, run: 'test \"$I\" = us', env: { I: '${{ item }}' } }] }\n",
    );
    assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r-1", "-q"]).status.code(), Some(3));
    assert_eq!(rig.call(&["checkpoint", "r-1", "--label", "before-lunch"]).status.code(), Some(0));

    assert_eq!(completed(&rig, &["run", "flow.yaml", "-p", "w"]), ["who=", "when="]);
    assert_eq!(completed(&rig, &["run", "-p", "who=me", "flow.yaml", "--param", "l"]), ["loud="]);
    assert_eq!(completed(&rig, &["run", "flow.yaml", "-p", "loud="]), ["loud=false", "loud=true"]);
    assert_eq!(completed(&rig, &["resume", "r-1", "--set", "who"]), ["who="], "of the run");
    assert_eq!(completed(&rig, &["fork", "r-1@2", "-p", "whe"]), ["when="]);
    let newest = completed(&rig, &["rollback", "r-1@"]);
    assert!(
        newest.contains(&"r-1@1".to_owned()) && newest.contains(&"r-1@before-lunch".to_owned()),
        "{newest:?}"
    );
    assert!(newest.iter().position(|one| one == "r-1@1") > newest.iter().position(|one| one == "r-1@2"));
    assert_eq!(completed(&rig, &["show", "r-1@be"]), ["r-1@before-lunch"]);
    assert_eq!(completed(&rig, &["verify", "r-1/each:us@"]).last().unwrap(), "r-1/each:us@1");
    assert_eq!(completed(&rig, &["diff", "r-1@1", "@@2"]), ["@@2"], "of the newest run");
    assert_eq!(completed(&rig, &["rollback", "r"]), ["r-1"]);
    assert_eq!(completed(&rig, &["dead-letters", "list", "r"]), ["r-1"]);
    assert_eq!(completed(&rig, &["dead-letters", "show", "r-1", ""]), ["apac", "eu"]);
    assert_eq!(completed(&rig, &["dead-letters", "retry", "r-1", "eu", ""]), ["apac"], "each once");
    assert_eq!(completed(&rig, &["dead-letters", "drop", "r-1", "x"]), Vec::<String>::new());
}

#[test]
fn a_script_for_each_shell_calls_this_program() {
    let rig = Rig::new();
    rig.write("waypost.yaml", "");
    std::fs::create_dir(rig.path(".waypost")).unwrap();
    rig.write(".waypost/config.yaml", "wrong: yes\n");
    for shell in ["bash", "zsh", "fish"] {
        let script = rig.waypost(&["completions", shell]);
        assert!(script.starts_with("exit 0\n"), "also where the configuration is wrong: {script}");
        assert!(script.contains("WAYPOST_COMPLETE"), "{script}");
        assert!(script.contains(env!("CARGO_BIN_EXE_waypost")), "{script}");
        let document = rig.json(&["completions", shell, "--json"]);
        assert_eq!((&document["v"], &document["shell"]), (&1.into(), &shell.into()));
    }
    let syntax = Command::new("bash")
        .args(["-c", r#"source <("$0" completions bash) && complete -p waypost"#])
        .arg(env!("CARGO_BIN_EXE_waypost"))
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&syntax.stdout).contains("_clap_complete_waypost"), "{syntax:?}");
    check("completions_wrong", &rig.waypost(&["completions", "tcsh"]));
}

#[test]
fn manual_pages_are_made_of_every_command() {
    let rig = Rig::new();
    let main = rig.waypost(&["man"]);
    assert!(main.contains(".SH \"EXIT CODES\"") && main.contains("\\fBwaypost\\-resume\\fR(1)"), "{main}");
    check("man_stop", &rig.waypost(&["man", "stop"]));
    check("man_unknown", &rig.waypost(&["man", "halt"]));
    assert_eq!(rig.json(&["man", "--json"])["v"], 1);

    assert!(rig.waypost(&["man", "--dir", "pages/man1"]).starts_with("exit 0\n"));
    let pages: Vec<_> = std::fs::read_dir(rig.path("pages/man1")).unwrap().collect();
    let commands = String::from_utf8(rig.call(&["--help"]).stdout).unwrap();
    let commands = commands.lines().skip_while(|line| *line != "Run:").take_while(|line| *line != "Options:");
    assert_eq!(pages.len(), 1 + commands.filter(|line| line.starts_with("  ")).count());
    assert!(!rig.path("pages/man1/waypost-supervise.1").exists());
    rig.write("file", "");
    assert_eq!(rig.call(&["man", "--dir", "file/pages"]).status.code(), Some(73));
}
