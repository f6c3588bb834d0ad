//! A run written by a newer version: the command names the run, and other runs are unaffected.

use std::fs;
use std::path::Path;

use waypost::Digest;

use crate::rig::Rig;

/// The first step fails until the file `go` exists.
const FLOW: &str =
    "steps:\n  - id: a\n    run: test -e go\n  - id: b\n    run: echo $WAYPOST_RUN_ID >> trace\n";
const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];
/// The parts of a run written by a newer version.
const PARTS: [Part; 2] = [Part::NewestCheckpoint, Part::RunRecord];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    NewestCheckpoint,
    RunRecord,
}

/// Makes three runs, interrupted after their first step.
fn three(url: &str) -> Rig {
    let rig = Rig::with(FLOW).at(url);
    rig.write("go", "");
    for run in ["r-1", "r-2", "r-3"] {
        let args = ["run", "flow.yaml", "--id", run, "--until", "a", "-q"];
        assert_eq!(rig.call(&args).status.code(), Some(0));
    }
    rig
}

/// Rewrites a part of run `r-2` in a newer format, undamaged.
fn make_newer(rig: &Rig, url: &str, part: Part) {
    if url != "file:kept" {
        let database = rusqlite::Connection::open(rig.path("kept/waypost.db")).unwrap();
        let text = br#"{"v":4}"#;
        let digest = Digest::of(text);
        let newest = "UPDATE records SET header = ?1, digest = ?2
                      WHERE key = (SELECT max(key) FROM records WHERE key >> 32 = 2)";
        let frozen = [
            "UPDATE frozen SET record = ?1, digest = ?2 WHERE run = 2",
            "UPDATE frozen_copies SET record = ?1, digest = ?2 WHERE run = 2",
        ];
        let statements = if part == Part::RunRecord { &frozen[..] } else { &[newest] };
        for sql in statements {
            assert_eq!(database.execute(sql, rusqlite::params![text, digest.as_bytes()]).unwrap(), 1);
        }
        return;
    }
    let folder = rig.path("kept/runs/r-2");
    match part {
        Part::NewestCheckpoint => {
            let mut names: Vec<_> =
                fs::read_dir(folder.join("history")).unwrap().map(|e| e.unwrap().path()).collect();
            names.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
            names.sort();
            make_file_newer(names.last().unwrap());
        }
        Part::RunRecord => {
            ["run.json", "run.copy.json"].iter().for_each(|name| make_file_newer(&folder.join(name)))
        }
    }
}

fn make_file_newer(path: &Path) {
    const MEMBER: &[u8] = b"\"format\":3";
    let mut text = fs::read(path).unwrap();
    let at = text.windows(MEMBER.len()).position(|window| window == MEMBER).unwrap();
    text[at + MEMBER.len() - 1] = b'4';
    text[19..83].fill(b'0');
    let digest = Digest::of(&text).to_string();
    text[19..83].copy_from_slice(digest.as_bytes());
    fs::write(path, text).unwrap();
}

/// Runs the program; checks its exit code and its output, and returns the output.
fn expect(rig: &Rig, args: &[&str], code: i32, said: &[&str]) -> String {
    let output = rig.call(args);
    let told = rig.told(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {told}");
    for words in said {
        assert!(told.contains(words), "{args:?} does not say `{words}`: {told}");
    }
    told
}

const NEWER: &str = "has format 4, this version reads up to 3";

// Bug: `resume --all` silently skipped a run of a newer version with exit 0, `verify --all` reported damage,
// `list` reported the run as resumable, and `delete` removed the run. Cause: the reason of an unlistable run was
// dropped, and the two stores detect the version at different places. Fix: each command checks the run itself
// (standing.rs, commands/delete.rs).
#[test]
fn newer_is_refused() {
    for (url, part) in STORES.into_iter().flat_map(|url| PARTS.map(|part| (url, part))) {
        let rig = three(url);
        make_newer(&rig, url, part);

        let listed = rig.json(&["list", "--json"]);
        let names = |member: &str| -> Vec<String> {
            let runs = listed[member].as_array().into_iter().flatten();
            runs.map(|run| run["run"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(
            (names("runs"), names("damaged")),
            (vec!["r-3".into(), "r-1".into()], vec!["r-2".into()]),
            "{url}"
        );
        expect(&rig, &["list"], 0, &["run r-2 cannot be listed", NEWER]);
        for args in
            [["checkpoints", "r-2"], ["events", "r-2"], ["show", "r-2"], ["plan", "r-2"], ["logs", "r-2"]]
        {
            expect(&rig, &args, 76, &[NEWER]);
        }
        let told = expect(
            &rig,
            &["verify", "--all"],
            76,
            &["r-1: sound", "r-3: sound", "r-2: not verified: ", NEWER],
        );
        assert!(!told.contains("DAMAGED"), "{url} {part:?}: {told}");
        let verified = rig.json(&["verify", "--all", "--json"]);
        assert_eq!(
            (&verified["sound"], &verified["newer"][0]["run"]),
            (&false.into(), &"r-2".into()),
            "{url}"
        );
        expect(&rig, &["resume", "--all", "--dry-run"], 76, &["Run r-1:", "Run r-3:", NEWER]);
        assert!(!rig.path("trace").exists());
        expect(&rig, &["resume", "--all"], 76, &["Run r-1 is completed", "Run r-3 is completed", NEWER]);
        assert_eq!(rig.read("trace"), "r-1\nr-3\n", "{url} {part:?}");
        // Also if no other run is due.
        let again = rig.call(&["resume", "--all", "--json"]);
        let line = String::from_utf8(again.stdout).unwrap();
        assert!(
            again.status.code() == Some(76) && line.contains(r#""code":"newer""#),
            "{url} {part:?}: {line}"
        );
        expect(&rig, &["delete", "r-2", "--yes"], 76, &[NEWER]);
        expect(&rig, &["prune", "--keep-runs", "0", "--yes"], 0, &["Deleted run r-1", "Deleted run r-3"]);
        expect(&rig, &["list"], 76, &["run r-2 cannot be listed"]);
    }
}

// Bug: `list` printed a run with two damaged run records as a normal run: without a workflow, begun in 1970, and
// wrongly resumable. Cause: its newest checkpoint has a summary, and the rest was not checked. Fix: a run with an
// unreadable record is listed as unreadable only (standing.rs).
#[test]
fn a_run_with_a_damaged_record_is_not_listed_as_sound() {
    for url in STORES {
        let rig = three(url);
        if url == "file:kept" {
            for name in ["run.json", "run.copy.json"] {
                let file =
                    fs::OpenOptions::new().write(true).open(rig.path("kept/runs/r-2").join(name)).unwrap();
                file.set_len(100).unwrap();
            }
        } else {
            let database = rusqlite::Connection::open(rig.path("kept/waypost.db")).unwrap();
            for table in ["frozen", "frozen_copies"] {
                let sql = format!("UPDATE {table} SET record = zeroblob(9) WHERE run = 2");
                assert_eq!(database.execute(&sql, []).unwrap(), 1);
            }
        }

        let listed = rig.json(&["list", "--json"]);
        assert_eq!(listed["runs"].as_array().unwrap().len(), 2, "{url}: {listed}");
        assert_eq!(listed["damaged"][0]["run"], "r-2", "{url}: {listed}");
        expect(&rig, &["list"], 0, &["run r-2 cannot be listed: the run record of r-2 is damaged"]);
        expect(
            &rig,
            &["resume", "--all"],
            7,
            &["Run r-1 is completed", "Run r-3 is completed", "run record of r-2"],
        );
        expect(&rig, &["delete", "r-2", "--yes"], 0, &["Deleted run r-2"]);
    }
}
