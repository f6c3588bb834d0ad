//! Narrow screens, colours, readers that go away, and names that are not text.

use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;

use crate::rig::{FLOW, Rig, check};

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
