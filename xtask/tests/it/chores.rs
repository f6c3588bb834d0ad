//! The command `cargo xtask` as it is called.

use std::fs;
use std::process::{Command, Output};

fn xtask(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(args).output().unwrap()
}

#[test]
fn tidy_prints_each_breach_on_stdout_and_fails() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("page.md"), "[gone](nothing.md)\n").unwrap();

    let output = xtask(&["tidy", "--root", dir.path().to_str().unwrap()]);

    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "page.md:1: the link `nothing.md` leads to no file\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn tidy_of_a_tidy_folder_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("page.md"), "Nothing to see.\n").unwrap();

    let output = xtask(&["tidy", "--root", dir.path().to_str().unwrap()]);

    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn bench_refuses_a_topic_that_there_is_not() {
    let dir = tempfile::tempdir().unwrap();

    let output = xtask(&["bench", "--short", "--only", "no-such", "--dir", dir.path().to_str().unwrap()]);

    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no topic `no-such`"), "{output:?}");
}
