//! Damage of SQLite files that SQLite does not detect, and full disks.

use std::fs;
use std::process::Command;

use crate::rig::{Rig, expect, wait_until};

const STORE: &str = "sqlite:kept/waypost.db";
const FLOW: &str = "steps:\n  - {id: a, run: echo a >> t}\n  - {id: b, run: echo b >> t}\n";
const ENDLESS: &str = "steps:\n  - {id: a, run: echo a >> t}\n  - {id: b, run: echo b >> t; sleep 99}\n";

fn change(rig: &Rig, sql: &str) {
    let database = rusqlite::Connection::open(rig.path("kept/waypost.db")).unwrap();
    database.execute_batch(&format!("PRAGMA ignore_check_constraints = 1; {sql}")).unwrap();
}

/// Makes a folder with run `r`, killed in its second step.
fn killed() -> Rig {
    let rig = Rig::with(ENDLESS).at(STORE);
    let run = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
    wait_until("the second step", || fs::read_to_string(rig.path("t")).is_ok_and(|text| text.contains('b')));
    run.signal(libc::SIGKILL);
    run.end();
    wait_until("the end of its steps", || rig.waypost(&["show", "r"]).contains("r  interrupted"));
    rig
}

// Bug: after a kill and a flipped byte early in SQLite's log, every reader reported an empty store. Cause: the
// tables existed only in the log, and SQLite drops the log from the damage on. Fix: new tables are copied into
// the database at once.
#[test]
fn a_log_that_is_damaged_early_hides_no_run() {
    let rig = killed();
    let log = rig.path("kept/waypost.db-wal");
    let mut bytes = fs::read(&log).unwrap();
    bytes[5_000] ^= 0xff;
    fs::write(&log, bytes).unwrap();

    expect(&rig, &["list"], 7, &["run r cannot be listed: the run has an event log"]);
    expect(&rig, &["verify", "--all"], 7, &["run r has an event log"]);
    for command in ["show", "plan", "verify", "resume"] {
        expect(&rig, &[command, "r"], 7, &["but no records in the store"]);
    }
    expect(&rig, &["run", "flow.yaml", "--id", "r"], 7, &["but no records in the store"]);
    assert_eq!(rig.read("t"), "a\nb\n", "nothing was done again");
}

// The same for a database with tables only in the log.
#[test]
fn a_database_without_tables_hides_no_run() {
    let rig = Rig::with(FLOW).at(STORE);
    expect(&rig, &["run", "flow.yaml", "--id", "r"], 0, &[]);
    let database = rig.path("kept/waypost.db");
    fs::remove_file(&database).unwrap();
    let empty = rusqlite::Connection::open(&database).unwrap();
    empty
        .execute_batch("PRAGMA page_size = 8192; PRAGMA auto_vacuum = 2; PRAGMA journal_mode = WAL;")
        .unwrap();
    drop(empty);
    assert!(fs::metadata(&database).unwrap().len() > 0);

    for args in [&["list"][..], &["show", "r"], &["verify", "--all"], &["resume", "r"], &["run", "flow.yaml"]]
    {
        expect(&rig, args, 7, &["is empty, but the event log of run r is beside it"]);
    }
}

// Bug: with a damaged body in its last record, a completed run could be neither shown nor resumed, and the hint
// named the failed command. Cause: only headers of ended scopes were verified. Fix: the whole end record of the
// main scope must be sound, or the previous record is in force.
#[test]
fn a_damaged_result_of_a_completed_run_is_done_again() {
    for harm in ["body = x'7b7d'", "body = substr(body, 1, 20)", "codec = 1 - codec", "header = x'00'"] {
        let rig = Rig::with(FLOW).at(STORE);
        expect(&rig, &["run", "flow.yaml", "--id", "r"], 0, &[]);
        change(&rig, &format!("UPDATE records SET {harm} WHERE key = (SELECT max(key) FROM records)"));

        expect(&rig, &["list"], 0, &["newer checkpoints of run r are damaged", "interrupted"]);
        expect(&rig, &["show", "r"], 0, &["r  interrupted", "1 of 2 done", "r@3 is damaged"]);
        expect(&rig, &["verify", "r"], 7, &["r@3"]);
        expect(&rig, &["resume", "r"], 0, &["quarantined", "is completed"]);
        expect(&rig, &["verify", "r"], 0, &["r: sound"]);
        assert_eq!(rig.read("t"), "a\nb\nb\n", "{harm}");
    }
}

// Bug: a resume turned a completed run with an unreadable row into `interrupted` for good, with the exit code of
// Ctrl-C; a wrong end of its main scope was never repaired. Cause: the row was rewritten as if the run had not
// ended. Fix: the newest record has the end.
#[test]
fn a_damaged_row_of_a_completed_run_is_mended_by_its_records() {
    let harms = [
        "status = 'zzz'",
        "done = -1",
        "updated_at = 'now'",
        "labels = '['",
        "main = 99",
        "main_newest = 99",
    ];
    let rig = Rig::with(FLOW).at(STORE);
    expect(&rig, &["run", "flow.yaml", "--id", "r"], 0, &[]);
    for harm in harms {
        change(&rig, &format!("UPDATE runs SET {harm}"));
        expect(&rig, &["verify", "r"], 7, &["table `runs`"]);

        expect(&rig, &["resume", "r"], 0, &["Nothing to do for run r, because the run is completed."]);

        expect(&rig, &["verify", "r"], 0, &["r: sound"]);
        expect(&rig, &["list"], 0, &["r    completed  2/2"]);
    }
    assert_eq!(rig.read("t"), "a\nb\n");
}

// Bug: after a resume past a removed row, `verify` reported a wrong byte count. Cause: the bytes of the row were
// still counted. Fix: the bytes are recounted when the loss is noted.
#[test]
fn what_a_lost_row_had_is_counted_no_more() {
    let rig = Rig::with(FLOW).at(STORE);
    expect(&rig, &["run", "flow.yaml", "--id", "r"], 0, &[]);
    change(&rig, "DELETE FROM records WHERE key = (SELECT max(key) FROM records)");

    expect(&rig, &["resume", "r"], 0, &["is completed"]);

    expect(&rig, &["verify", "r"], 0, &["r: sound"]);
}

// Bug: on a full disk every reading command failed with "disk I/O error". Cause: SQLite creates 32 KiB of shared
// memory next to the database before a read. Fix: without room, a database without a log is opened as immutable,
// and a database with a log is opened exclusively.
#[test]
fn a_full_disk_hides_no_run() {
    let completed = Rig::with(FLOW).at(STORE);
    expect(&completed, &["run", "flow.yaml", "--id", "r"], 0, &[]);
    for rig in [completed, killed()] {
        let files = |rig: &Rig| {
            ["waypost.db", "waypost.db-wal"]
                .map(|name| fs::read(rig.path("kept").join(name)).ok().filter(|bytes| !bytes.is_empty()))
        };
        let before = files(&rig);
        for args in [
            "list",
            "show r",
            "plan r",
            "verify r",
            "events r",
            "logs r",
            "checkpoints r",
            "resume r --dry-run",
        ] {
            let mut shell = Command::new("sh");
            // No file may grow: SQLite treats the resulting error like a full disk.
            shell.args([
                "-c",
                "ulimit -f 0; exec \"$0\" --store \"$@\"",
                env!("CARGO_BIN_EXE_waypost"),
                STORE,
            ]);
            let output = shell.args(args.split(' ')).current_dir(rig.path("")).output().unwrap();

            let told = rig.told(&output);
            assert_eq!(output.status.code(), Some(0), "{args}: {told}");
            assert!(!told.contains("error"), "{args}: {told}");
            assert!(files(&rig) == before, "{args} changed the store");
        }
    }
}

// Bug: near the end of the space, preallocated zeros used the room needed by commits, and a file size limit ended
// the process. Fix: no preallocation there.
#[test]
fn room_in_the_log_is_made_only_where_there_is_plenty() {
    const FRAME: u64 = 24 + 8192;
    let length_of_log = |limit: &str| {
        let rig = Rig::with("steps: [{id: a, run: 'wc -c < kept/waypost.db-wal > length'}]\n").at(STORE);
        // The log of a new store is long enough for a while; the next log begins empty.
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r-0", "-q"]).status.code(), Some(0));
        let mut shell = Command::new("bash");
        let script = format!("ulimit -f {limit}; exec \"$0\" --store {STORE} run flow.yaml --id r -q");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_waypost")]).current_dir(rig.path("."));
        assert!(shell.status().unwrap().success(), "{limit}");
        rig.read("length").trim().parse::<u64>().unwrap()
    };

    let (made, needed) = (length_of_log("unlimited"), length_of_log("1000000"));
    assert!(needed > FRAME && made >= needed + 4 * FRAME, "{made} bytes where {needed} are needed");
}
