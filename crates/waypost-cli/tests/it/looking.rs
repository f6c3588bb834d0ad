//! What only looks changes nothing: every byte of the store is as before, also where nothing may be written.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Output;

use crate::rig::{Rig, wait_until};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

/// The second step waits until there is a file `go`, and fails then.
const FLOW: &str = r#"
name: flow
steps:
  - id: one
    run: echo one
  - id: two
    run: |
      touch begun
      while ! test -e go; do sleep 0.02; done
      exit 1
"#;

/// Everything that only looks.
const READERS: [&[&str]; 18] = [
    &["list"],
    &["list", "--json"],
    &["list", "--resumable"],
    &["show"],
    &["show", "r"],
    &["show", "r@1"],
    &["show", "r", "--step", "one", "--json"],
    &["checkpoints", "r"],
    &["events", "r"],
    &["events", "r", "--json"],
    &["logs", "r"],
    &["logs", "r", "one"],
    &["plan", "r"],
    &["why", "r"],
    &["why", "r", "two"],
    &["verify", "r"],
    &["verify", "--all"],
    &["resume", "r", "--dry-run"],
];

/// Makes a run that was killed in its second step, and lets it fail there then; looks at both.
fn stores(mut test: impl FnMut(&Rig)) {
    for url in STORES {
        let rig = Rig::with(FLOW).at(url);
        let running = rig.start(&["run", "flow.yaml", "--id", "r"]);
        wait_until("the second step", || rig.path("begun").exists());
        running.signal(libc::SIGKILL);
        running.end();
        wait_until("the lock to be let go", || {
            rig.json(&["list", "--json"])["runs"][0]["status"] == "interrupted"
        });
        test(&rig);

        rig.write("go", "");
        assert_eq!(rig.call(&["resume", "r"]).status.code(), Some(1));
        test(&rig);
    }
}

fn looks(rig: &Rig, call: impl Fn(&[&str]) -> Output) {
    let before = picture(&rig.path("kept"));

    for args in READERS {
        let read = call(args);
        assert_eq!(read.status.code(), Some(0), "{args:?}: {}", rig.told(&read));
        assert_eq!(differences(&before, &picture(&rig.path("kept"))), [""; 0], "{args:?}");
    }
}

#[test]
fn checks_change_nothing() {
    stores(|rig| looks(rig, |args| rig.call(args)));
}

#[test]
fn checks_work_where_nothing_may_be_written() {
    // Permissions do not hold root back, so that it calls the program as somebody else, who must be able to reach it.
    let root = rustix::process::geteuid().is_root();
    stores(|rig| {
        let program = rig.path("program");
        fs::copy(env!("CARGO_BIN_EXE_waypost"), &program).unwrap();
        let modes = [(0o755, rig.path("")), (0o755, program.clone())];
        modes.iter().for_each(|(mode, path)| set_mode(path, *mode));
        set_modes(&rig.path("kept"), 0o555, 0o444);

        looks(rig, |args| {
            let template = rig.command(args);
            let mut command = std::process::Command::new(&program);
            command.args(template.get_args()).current_dir(rig.path(""));
            if root {
                command.uid(65534).gid(65534);
            }
            command.output().unwrap()
        });

        set_modes(&rig.path("kept"), 0o700, 0o600);
    });
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn set_modes(folder: &Path, of_folders: u32, of_files: u32) {
    set_mode(folder, 0o700);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { set_modes(&path, of_folders, of_files) } else { set_mode(&path, of_files) }
    }
    set_mode(folder, of_folders);
}

/// Every file with its bytes and every folder with none. Excepted is what SQLite itself makes for its readers: its shared
/// memory, and beside a database that was closed a log with not one byte in it.
pub(crate) fn picture(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_string_lossy().into_owned();
            if path.is_dir() {
                files.insert(format!("{name}/"), Vec::new());
                folders.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                let of_sqlite = name.ends_with("-shm") || (name.ends_with("-wal") && bytes.is_empty());
                if !of_sqlite {
                    files.insert(name, bytes);
                }
            }
        }
    }
    files
}

/// Names what is new, gone or another.
fn differences(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let names = before.keys().chain(after.keys().filter(|name| !before.contains_key(*name)));
    names.filter(|name| before.get(*name) != after.get(*name)).cloned().collect()
}
