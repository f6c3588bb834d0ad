//! Store files that are replaced, removed during use, or next to files of another store.

use std::fs;
use std::path::Path;

use crate::rig::{Rig, wait_until};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

/// Runs the program; checks that it ends, its exit code, and its output.
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

// Bug: with a pipe in place of a database, a log or a lock, every command hung. Cause: an open or a read of a
// pipe waits for the other end. Fix: the file type is checked first, or the open does not wait; anything except a
// regular file is refused by name.
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
            // A replaced file with an effect is named.
            let name = file.file_name().unwrap().to_str().unwrap().to_owned();
            if name.starts_with("waypost.db") || ["run.json", "r.lock"].contains(&name.as_str()) {
                let output = rig.start(&["resume", "r", "-q"]).end_soon();
                let told = rig.told(&output);
                assert!(matches!(output.status.code(), Some(7 | 74)), "{told}");
                assert!(told.contains(&name) && told.contains("found a pipe"), "{told}");
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
// it now: before each commit the names of database and log are looked up (file_identity.rs).
#[test]
fn a_store_that_a_step_removes_is_missed_at_the_next_commit() {
    let of_sqlite = [
        "rm kept/waypost.db-wal",
        "rm kept/waypost.db-shm",
        "cp kept/waypost.db new; mv new kept/waypost.db",
    ];
    let of_all = ["rm -rf kept", "mv kept elsewhere"];
    for (url, harms) in STORES.iter().zip([&[&of_sqlite[..], &of_all].concat()[..], &of_all]) {
        let why = if url.starts_with("sqlite:") { "removed or replaced while in use" } else { "" };
        for harm in harms {
            let rig = Rig::with(&format!("steps:\n  - run: {harm}\n  - run: touch second\n")).at(url);

            let hint = "the store was removed while in use, perhaps by a step";
            expect(&rig, &["run", "flow.yaml", "--id", "r"], 74, &["cannot write", why, hint]);
            assert!(!rig.path("second").exists(), "{url}: {harm}");
        }
    }
}

// What happened: the shared memory of a database was removed while a run was under way, another run was begun and said to
// be completed, and nothing of it was there afterwards. Why: each of the two had a shared memory of its own and did not
// know of the other; they wrote the same places of the log, and the one that ended last removed what the other had
// written. What stops it now: the one whose shared memory is gone writes no more and leaves the log as it is (file_identity.rs).
#[test]
fn two_runs_that_stop_sharing_memory_lose_nothing() {
    // The affected run ends its step before the other run, or after, or is killed.
    for (goes_on, killed) in [("at once", false), ("after", false), ("after", true)] {
        let rig = Rig::with(
            "steps:\n  - run: touch begun; while ! test -e go; do sleep 0.02; done\n  - run: echo second >> second\n",
        )
        .at("sqlite:kept/waypost.db");
        rig.write("other.yaml", "steps:\n  - run: echo 1\n  - run: sleep 0.3\n  - run: echo 3\n");
        let behind = rig.start(&["run", "flow.yaml", "--id", "behind", "-q"]);
        wait_until("the step", || rig.path("begun").exists());
        fs::remove_file(rig.path("kept/waypost.db-shm")).unwrap();

        let other = rig.start(&["run", "other.yaml", "--id", "other", "-q"]);
        if goes_on == "after" {
            assert_eq!(other.end_soon().status.code(), Some(0));
            if killed {
                behind.signal(libc::SIGKILL);
            }
            rig.write("go", "");
        } else {
            rig.write("go", "");
            assert_eq!(other.end_soon().status.code(), Some(0));
        }
        let output = behind.end_soon();
        if !killed {
            let told = rig.told(&output);
            assert_eq!(output.status.code(), Some(74), "{goes_on}: {told}");
            assert!(told.contains("waypost.db-shm") && told.contains("while in use"), "{told}");
        }

        assert!(!rig.path("second").exists());
        expect(&rig, &["verify", "--all"], 0, &["other", "behind"]);
        let other = rig.json(&["show", "other", "--json"]);
        assert_eq!(other["status"], "completed", "{goes_on}: {other}");
        expect(&rig, &["resume", "behind", "-q"], 0, &[]);
        assert_eq!(rig.read("second"), "second\n");
    }
}

// Bug: two databases in a folder shared the locks and logs of their runs, so a run of one database counted as a
// lost run of the other. Cause: these files were named by run, next to the database. Fix: a database has a folder
// with its own name, unless it is called `waypost.db`.
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

// The same for the leftovers of a missing database.
#[test]
fn what_a_lost_database_left_is_found_in_its_own_folder() {
    let rig = Rig::with("steps:\n  - run: echo hello\n").at("sqlite:kept/a.db");
    expect(&rig, &["run", "flow.yaml", "--id", "r"], 0, &[]);
    fs::remove_file(rig.path("kept/a.db")).unwrap();

    expect(&rig, &["list"], 7, &["a.db", "r"]);
    expect(&rig, &["list", "--store", "sqlite:kept/b.db"], 5, &[]);
}

// Bug: with a socket, a link or a device in place of a run's lock, `list` printed only this error for the whole
// store; with SQLite also for a pipe or a folder. Cause: the error counted as an error of the store. Fix: a run
// with an unknown holder is listed as damaged, next to the others.
#[test]
fn something_else_in_the_place_of_one_lock_hides_no_other_run() {
    type Put = fn(&Path);
    let things: [(Put, &str); 4] = [
        (put_pipe, "found a pipe"),
        (|path| drop(std::os::unix::net::UnixListener::bind(path).unwrap()), "found a socket"),
        (|path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap(), "found a symbolic link"),
        (|path| fs::create_dir(path).unwrap(), "found a folder"),
    ];
    for url in STORES {
        let rig = Rig::with("steps:\n  - run: touch begun; sleep 60\n").at(url);
        rig.write("quick.yaml", "steps:\n  - run: exit 3\n");
        let running = rig.start(&["run", "flow.yaml", "--id", "cut", "-q"]);
        wait_until("the step", || rig.path("begun").exists());
        running.signal(libc::SIGKILL);
        running.end_soon();
        expect(&rig, &["stop", "cut"], 0, &[]);
        expect(&rig, &["run", "quick.yaml", "--id", "failed"], 1, &[]);
        let lock = rig.path("kept/locks/cut.lock");
        for (put, what) in things {
            fs::remove_file(&lock).unwrap();
            put(&lock);

            expect(&rig, &["list"], 0, &["failed", "run cut cannot be listed", "cut.lock", what]);
            expect(&rig, &["show", "cut"], 7, &["cut.lock", what]);

            if lock.is_dir() {
                fs::remove_dir(&lock).unwrap()
            } else {
                fs::remove_file(&lock).unwrap()
            }
            fs::write(&lock, "").unwrap();
        }
        expect(&rig, &["list"], 0, &["failed", "cut"]);
    }
}

// A resume with a folder in place of a run's record. Expected: the error names the folder, and nothing changes.
#[test]
fn a_folder_in_place_of_a_run_record_is_named() {
    let rig = Rig::with("steps:\n  - run: echo one\n  - run: test -e ok\n").at("file:kept");
    expect(&rig, &["run", "flow.yaml", "--id", "r"], 1, &[]);
    let record = rig.path("kept/runs/r/run.json");
    fs::rename(&record, rig.path("aside")).unwrap();
    fs::create_dir(&record).unwrap();

    expect(
        &rig,
        &["resume", "r"],
        7,
        &["kept/runs/r/run.json", "found a folder", "restore the original file or folder"],
    );

    fs::remove_dir(&record).unwrap();
    fs::rename(rig.path("aside"), &record).unwrap();
    rig.write("ok", "");
    expect(&rig, &["verify", "r"], 0, &[]);
    expect(&rig, &["resume", "r"], 0, &["is completed"]);
}

// Bug: a run in a folder with a name that is not UTF-8 continued, after a crash, in the folder of the store.
// Cause: the path was left out of the record, and a missing path means the store's own folder. Fix: refused
// before anything runs.
#[test]
fn an_unrecordable_folder_is_refused_before_any_step() {
    use std::os::unix::ffi::OsStrExt as _;

    let rig = Rig::with("steps: [{id: a, run: touch ran}]\n");
    let odd = rig.path(".").join(std::ffi::OsStr::from_bytes(b"e\xff"));
    fs::create_dir(&odd).unwrap();
    fs::copy(rig.path("flow.yaml"), odd.join("flow.yaml")).unwrap();

    for args in [&["run", "flow.yaml"][..], &["run", "../flow.yaml", "--dir", "."]] {
        let refused =
            rig.command(args).current_dir(&odd).env("WAYPOST_STORE", "sqlite:../kept.db").output().unwrap();

        assert_eq!(refused.status.code(), Some(2), "{}", rig.told(&refused));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("not UTF-8"), "{}", rig.told(&refused));
        assert!(!odd.join("ran").exists() && !rig.path("ran").exists());
    }
}
