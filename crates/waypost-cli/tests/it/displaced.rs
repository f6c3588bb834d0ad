//! Files of a store that something else stands in the place of, that are taken away while they are in use, or that lie
//! beside those of another store.

use std::fs;
use std::path::Path;

use crate::rig::{Rig, wait_until};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

/// Calls the program, which must end by itself, so, and say all of this.
fn expect(rig: &Rig, args: &[&str], code: i32, said: &[&str]) {
    let output = rig.start(args).end_soon();
    let told = rig.told(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {told}");
    for words in said {
        assert!(told.contains(words), "{args:?} does not say `{words}`: {told}");
    }
}

fn files_below(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files_below(&path, found) } else { found.push(path) }
    }
}

fn put_pipe(path: &Path) {
    let _ = fs::remove_file(path);
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
}

// What happened: with a pipe in the place of a database, of its log, or of a lock, every command hung. Why: to open or
// read a pipe waits for its other end. What stops it now: what is opened is looked at first, or opened without waiting,
// and anything but a regular file is refused by name.
#[test]
fn a_pipe_in_place_of_any_file_hangs_nothing() {
    const COMMANDS: [&[&str]; 5] =
        [&["list"], &["show", "r"], &["verify", "r"], &["logs", "r"], &["resume", "r", "-q"]];
    for url in STORES {
        let rig = Rig::with("steps:\n  - run: echo hello\n  - run: exit 3\n").at(url);
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r", "-q"]).status.code(), Some(1));
        let mut files = Vec::new();
        files_below(&rig.path("kept"), &mut files);
        if url.starts_with("sqlite:") {
            files
                .extend(["-wal", "-shm", "-journal"].map(|name| rig.path(&format!("kept/waypost.db{name}"))));
        }
        for file in files {
            let kept = fs::read(&file).ok();
            put_pipe(&file);
            for args in COMMANDS {
                rig.start(args).end_soon();
            }
            // Where it decides something, it is named.
            let name = file.file_name().unwrap().to_str().unwrap().to_owned();
            if name.starts_with("waypost.db") || ["run.json", "r.lock"].contains(&name.as_str()) {
                let output = rig.start(&["resume", "r", "-q"]).end_soon();
                let told = rig.told(&output);
                assert!(matches!(output.status.code(), Some(7 | 74)), "{told}");
                assert!(told.contains(&name) && told.contains("it is a pipe"), "{told}");
            }
            fs::remove_file(&file).unwrap();
            if let Some(bytes) = kept {
                fs::write(&file, bytes).unwrap();
            }
        }
    }
}

// What happened: a step removed the folder of an SQLite store, the run went on to its end as if nothing were amiss, and
// all of its checkpoints were gone with it. Why: what is open can be written although it has no name any more. What stops
// it now: before each commit the names of database and log are looked up (present.rs).
#[test]
fn a_store_that_a_step_removes_is_missed_at_the_next_commit() {
    let of_sqlite = ["rm kept/waypost.db-wal", "cp kept/waypost.db new; mv new kept/waypost.db"];
    let of_all = ["rm -rf kept", "mv kept elsewhere"];
    for (url, harms) in STORES.iter().zip([&[of_sqlite, of_all].concat()[..], &of_all]) {
        let why = if url.starts_with("sqlite:") { "removed or replaced while it was in use" } else { "" };
        for harm in harms {
            let rig = Rig::with(&format!("steps:\n  - run: {harm}\n  - run: touch second\n")).at(url);

            let hint = "something took the store away while it was in use, perhaps a step";
            expect(&rig, &["run", "flow.yaml", "--id", "r"], 74, &["cannot write", why, hint]);
            assert!(!rig.path("second").exists(), "{url}: {harm}");
        }
    }
}

// What happened: two databases in one folder shared the locks and the logs of their runs, so that a run of one was taken
// for a lost one of the other. Why: these were named by run and lay in the folder around the database. What stops it now:
// a database has a folder for them that is named after it, unless it is called `waypost.db`.
#[test]
fn two_databases_in_one_folder_keep_their_runs_apart() {
    let rig = Rig::with("steps:\n  - run: touch begun; while ! test -e go; do sleep 0.02; done\n");
    rig.write("quick.yaml", "steps:\n  - run: echo quick\n");
    let [a, b] = ["sqlite:kept/a.db", "sqlite:kept/b.db"];
    let of_a = rig.start(&["run", "flow.yaml", "--id", "r", "-q", "--store", a]);
    wait_until("the step", || rig.path("begun").exists());

    expect(&rig, &["run", "quick.yaml", "--id", "r", "--store", b], 0, &["is completed"]);
    rig.write("go", "");
    assert_eq!(of_a.end().status.code(), Some(0));

    for store in [a, b] {
        expect(&rig, &["verify", "--all", "--store", store], 0, &[]);
        let listed = rig.json(&["list", "--json", "--store", store]);
        assert_eq!(listed["runs"].as_array().unwrap().len(), 1, "{store}: {listed}");
    }
    expect(&rig, &["logs", "r", "--store", b], 0, &["quick"]);
    expect(&rig, &["delete", "r", "--yes", "--store", a], 0, &[]);
    expect(&rig, &["logs", "r", "--store", b], 0, &["quick"]);
    assert_eq!(rig.read("kept/b.db.waypost/.gitignore"), "*\n");
    assert!(rig.path("kept/b.db.waypost/runs/r/report.md").exists() && !rig.path("kept/runs").exists());
    assert!(!rig.path("kept/a.db.waypost/runs/r").exists());
}

// The same for what is left of a database that is gone.
#[test]
fn what_a_lost_database_left_is_found_in_its_own_folder() {
    let rig = Rig::with("steps:\n  - run: echo hello\n").at("sqlite:kept/a.db");
    expect(&rig, &["run", "flow.yaml", "--id", "r"], 0, &[]);
    fs::remove_file(rig.path("kept/a.db")).unwrap();

    expect(&rig, &["list"], 7, &["a.db", "r"]);
    expect(&rig, &["list", "--store", "sqlite:kept/b.db"], 5, &[]);
}
