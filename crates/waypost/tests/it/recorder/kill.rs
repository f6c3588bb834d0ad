//! A program killed inside a step. The program is this test binary, selected by an environment variable.

#![expect(clippy::print_stdout, reason = "the other process speaks by its stdout")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use waypost::file::FileStore;
use waypost::record::RunStatus;
use waypost::recorder::{Commit, Error, Options, Recorder, run_record};
use waypost::store::{Store, StoreError};

use super::*;

const FOLDER: &str = "WAYPOST_TEST_RECORD_IN";

fn store(folder: &Path) -> Arc<dyn Store> {
    Arc::new(FileStore::open(folder.join("store")).unwrap())
}

fn options(folder: &Path) -> Options {
    Options::new().with_base(folder)
}

/// Starts a recording program and waits until it reports the middle of its second step.
fn recording(folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["recorder::kill::other_process", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(FOLDER, folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("in the middle") {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the other process did not get so far");
    }
    child.stdout = Some(output.into_inner());
    child
}

/// Not a separate test: the code of the other process.
#[tokio::test]
async fn other_process() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let record = run_record(run(), "loop");
    let recorder =
        Recorder::open_or_create(store(&folder), record, &json!({ "n": 0 }), options(&folder)).await.unwrap();
    let begun = recorder.begin_step(begin("first")).await.unwrap();
    fs::write(folder.join("out"), "done").unwrap();
    let commit = Commit::with(keeps("out")).state(&json!({ "n": 1 })).external("first");
    recorder.commit_step(&begun, commit).await.unwrap();
    recorder.begin_step(begin("second").state(&json!({ "n": 2 }))).await.unwrap();
    println!("in the middle");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[tokio::test]
async fn a_step_that_was_begun_survives_kill_9_and_is_known_to_be_cut() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut child = recording(folder);

    let refused = Recorder::open(store(folder), &run(), options(folder)).await.unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    let status = store(folder).run(&run()).await.unwrap().summary.status;
    let recorder = Recorder::open(store(folder), &run(), options(folder)).await.unwrap();

    let Error::Store(StoreError::Held { holder: Some(holder), .. }) = refused else { panic!("{refused}") };
    assert_eq!(holder.pid, child.id());
    assert_eq!(status, RunStatus::Interrupted);
    assert_eq!(cut(&recorder).await, ["second(1)"]);
    assert_eq!(state(&recorder, recorder.cut().await.unwrap()[0].since()).await, json!({ "n": 2 }));
    let last = recorder.last_verified_checkpoint(None).await.unwrap().checkpoint.unwrap();
    assert_eq!(recorder.rollback_to_checkpoint::<Value>(&last.reference()).await.unwrap(), json!({ "n": 1 }));
    recorder.close().await.unwrap();

    // And once more: committed steps are not committed again, and the cut step is cut again.
    let mut child = recording(folder);
    child.kill().unwrap();
    child.wait().unwrap();
    let recorder = Recorder::open(store(folder), &run(), options(folder)).await.unwrap();
    assert_eq!(cut(&recorder).await, ["second(1)"]);
    let last = recorder.last_verified_checkpoint(None).await.unwrap().checkpoint.unwrap();
    assert_eq!(last.external(), Some("first"));
}

#[test]
fn what_is_recorded_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mut child = recording(folder.path());
    child.kill().unwrap();
    child.wait().unwrap();

    let mut folders = vec![folder.path().join("store")];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            let expect = if entry.path().is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode, expect, "{}", entry.path().display());
            seen += 1;
            if entry.path().is_dir() {
                folders.push(entry.path());
            }
        }
    }
    assert!(seen > 5, "there was something to look at");
}
