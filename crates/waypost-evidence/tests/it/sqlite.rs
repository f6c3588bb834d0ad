//! Traps for claims about SQLite databases.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rusqlite::Connection;
use serde_json::{Value, json};
use waypost::evidence::{Limits, Probe as _, Site};
use waypost::record::{Claim, Pack, Terms, Verdict};
use waypost_evidence::{DB_ROW, Environment, RowProbe, verifier};

use crate::{Case, FAILED, OK, UNKNOWN, assert_verdicts, runtime};

fn cases() -> Vec<Case> {
    let row = |expect: Value, verdict| (DB_ROW, "a.db".to_owned(), expect, verdict);
    let query = |text: &str, equals: Value, verdict| row(json!({ "query": text, "equals": equals }), verdict);
    vec![
        query("SELECT count(*) FROM jobs -- all of them", json!(2), OK),
        query(
            "WITH n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 9) SELECT max(x) FROM n",
            json!(9),
            OK,
        ),
        query("VALUES (7)", json!(7), OK),
        query("PRAGMA user_version", json!(3), OK),
        query("PRAGMA integrity_check", json!("ok"), OK),
        query("SELECT name FROM pragma_table_info('jobs')", json!("id"), OK),
        query("SELECT NULL", json!(null), OK),
        query("SELECT x'ff'", json!("x"), FAILED),
        query("SELECT nme FROM jobs", json!("id"), FAILED),
        query("SELECT 1; DROP TABLE jobs", json!(1), FAILED),
        query("", json!(1), UNKNOWN),
        query("DELETE FROM jobs", json!(0), FAILED),
        query("INSERT INTO jobs VALUES (9, 'x') RETURNING id", json!(9), FAILED),
        query("WITH n AS (SELECT 1) UPDATE jobs SET id = 1", json!(0), FAILED),
        query("CREATE TABLE more (x)", json!(0), FAILED),
        query("CREATE TEMP TABLE more (x)", json!(0), FAILED),
        query("DROP TABLE jobs", json!(0), FAILED),
        query("BEGIN IMMEDIATE", json!(0), FAILED),
        query("VACUUM", json!(0), FAILED),
        query("VACUUM INTO 'copy.db'", json!(0), FAILED),
        query("ATTACH 'other.db' AS other", json!(0), FAILED),
        query("ATTACH '/etc/passwd' AS other", json!(0), FAILED),
        query("DETACH main", json!(0), FAILED),
        query("REINDEX", json!(0), FAILED),
        query("ANALYZE", json!(0), FAILED),
        query("PRAGMA user_version = 9", json!(9), FAILED),
        query("PRAGMA journal_mode = wal", json!("wal"), FAILED),
        query("PRAGMA wal_checkpoint", json!(0), FAILED),
        query("PRAGMA optimize", json!(0), FAILED),
        query("PRAGMA writable_schema = on", json!(0), FAILED),
        query("PRAGMA query_only = off", json!(0), FAILED),
        query("SELECT load_extension('libc.so.6')", json!(0), FAILED),
        row(json!({ "table": "(SELECT 1)" }), FAILED),
        row(json!({ "table": "jobs; DROP TABLE jobs" }), FAILED),
        row(json!({ "table": "sqlite_schema", "where": { "name": "jobs" } }), FAILED),
        row(json!({ "table": "jobs", "where": { "id = 1 OR 1": 9 } }), FAILED),
        row(json!({ "table": "jobs", "where": { "state": "x'); DROP TABLE jobs; --" } }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": "1 OR 1=1" } }), FAILED),
        row(json!({ "table": "jobs", "where": { "rowid": 1 } }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": [1, 2] }, "count": 2 }), OK),
        row(json!({ "table": "jobs", "where": { "id": [] } }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": { "a": 1 } } }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": "> many" } }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": "> 1" }, "count": 0 }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": "> 1" }, "count": 1 }), OK),
        row(json!({ "table": "jobs", "where": { "id": "> 1" } }), OK),
        row(json!({ "table": "jobs", "where": { "id": "> 2" } }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": "> 1", "state": "~ ^o" }, "values": { "id": 2 } }), OK),
        row(json!({ "table": "jobs", "where": { "id": "> 1" }, "values": { "state": "done" } }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": 1, "state": "!= done" }, "count": 0 }), OK),
        row(json!({ "table": "jobs", "where": { "state": "= done" }, "count": 1 }), OK),
        row(json!({ "table": "jobs", "where": { "state": "!= x' OR 1=1 --" }, "count": 2 }), OK),
        row(json!({ "table": "many", "where": { "n": "> 5" } }), UNKNOWN),
        row(json!({ "table": "many", "where": { "n": 5 }, "count": "> 0" }), OK),
        row(json!({ "table": "jobs", "values": { "id": "> many" }, "where": { "id": 9 } }), FAILED),
        row(json!({ "table": "many", "count": 100_001 }), OK),
        row(json!({ "table": "many", "values": { "n": 1 } }), UNKNOWN),
        row(json!({ "table": "many", "where": { "n": 5 }, "values": { "n": 5 } }), OK),
        row(json!({ "table": "long", "values": { "text": "x" } }), UNKNOWN),
        query(
            "SELECT text || text || text || text FROM (SELECT group_concat(text) AS text FROM long)",
            json!("x"),
            UNKNOWN,
        ),
        query("SELECT length(hex(zeroblob(40000000)))", json!(80_000_000), UNKNOWN),
        query("SELECT count(*) FROM docs WHERE docs MATCH 'well'", json!(1), OK),
        query("SELECT id FROM boxes WHERE x1 > 5", json!(3), OK),
        query("INSERT INTO boxes VALUES (9, 1, 2)", json!(0), FAILED),
        query("PRAGMA page_size", json!(4096), OK),
        query("SELECT 9e999", json!(null), FAILED),
        query("SELECT CAST(x'ff' AS TEXT)", json!("\u{fffd}"), FAILED),
        query("SELECT 1 = 1", json!(true), OK),
        query("SELECT x FROM lost", json!(1), UNKNOWN),
    ]
}

/// Tables that are programs, columns that are calculated, and values that are like others.
fn cases_of_tables() -> Vec<Case> {
    let row = |expect: Value, verdict| (DB_ROW, "a.db".to_owned(), expect, verdict);
    let meant = |column: &str, value: Value| json!({ "table": "odd", "where": { column: value } });
    let holds = |column: &str, value: Value| json!({ "table": "odd", "values": { column: value } });
    let mut cases = vec![
        row(json!({ "table": "docs", "where": { "title": "one" }, "values": { "body": "all is well" } }), OK),
        row(json!({ "table": "docs", "count": 1 }), OK),
        row(json!({ "table": "boxes", "where": { "id": 3 }, "values": { "x1": 9 } }), OK),
        row(json!({ "table": "made", "where": { "twice": 6 }, "values": { "next": 4 } }), OK),
        row(json!({ "table": "MADE", "where": { "A": 3 } }), OK),
        row(json!({ "table": "made", "values": { "b": 3 } }), FAILED),
        row(json!({ "table": "lost" }), UNKNOWN),
    ];
    // By `where` and by `values` the same is meant.
    for (column, value, verdict) in [
        ("zip", json!("02134"), OK),
        ("zip", json!(2134), FAILED),
        ("zip", json!("2134"), FAILED),
        ("any", json!(7), OK),
        ("any", json!("7"), OK),
        ("any", json!("007"), FAILED),
        ("n", json!("7"), OK),
        ("n", json!("007"), FAILED),
        ("n", json!(7.0), OK),
        ("n", json!(true), FAILED),
        ("truth", json!(true), OK),
        ("truth", json!(false), FAILED),
        ("real", json!("5.50"), OK),
        ("real", json!(5.5), OK),
        ("name", json!("Ann"), OK),
        ("name", json!("ann"), FAILED),
        ("name", json!(null), FAILED),
        ("n", json!(9_007_199_254_740_994.0), FAILED),
    ] {
        cases.push(row(meant(column, value.clone()), verdict));
        cases.push(row(holds(column, value), verdict));
    }
    cases
}

#[test]
fn nothing_in_a_claim_gets_out_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let connection = Connection::open(&path).unwrap();
    let text = "PRAGMA user_version = 3;
        CREATE TABLE jobs (id INTEGER, state TEXT);
        INSERT INTO jobs VALUES (1, 'done'), (2, 'open');
        CREATE TABLE many AS WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 100001) SELECT n FROM n;
        CREATE TABLE long AS SELECT hex(zeroblob(500000)) AS text FROM many LIMIT 20;
        CREATE VIRTUAL TABLE docs USING fts5(title, body);
        INSERT INTO docs VALUES ('one', 'all is well');
        CREATE VIRTUAL TABLE boxes USING rtree(id, x0, x1);
        INSERT INTO boxes VALUES (3, 1, 9);
        CREATE TABLE made (a INTEGER, twice GENERATED ALWAYS AS (a * 2) STORED, next AS (a + 1));
        INSERT INTO made VALUES (3);
        CREATE TABLE odd (zip TEXT, any, n INTEGER, truth BOOLEAN, real REAL, name TEXT COLLATE NOCASE);
        INSERT INTO odd VALUES ('02134', '7', 7, TRUE, 5.5, 'Ann');
        PRAGMA writable_schema = on;
        INSERT INTO sqlite_schema VALUES ('table', 'lost', 'lost', 0, 'CREATE VIRTUAL TABLE lost USING nowhere(x)');";
    connection.execute_batch(text).unwrap();
    drop(connection);
    let before = fs::read(&path).unwrap();

    let cases = cases().into_iter().chain(cases_of_tables()).collect();
    assert_verdicts(&verifier(Environment::inherited()), &Site::beneath(folder.path()), cases);

    assert_eq!(fs::read(&path).unwrap(), before, "evidence checks must not modify data");
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a.db"], "and makes nothing");
}

#[test]
fn a_query_without_an_end_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    Connection::open(folder.path().join("a.db")).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n";
    let claim = Claim::new(DB_ROW, "a.db").expecting(json!({ "query": endless, "equals": 1 }));
    let pack = Pack::all([claim.on_terms(Terms { timeout_ms: Some(300), ..Terms::default() })]);
    let runtime = runtime();
    let found =
        runtime.block_on(verifier(Environment::inherited()).verify(&pack, &Site::beneath(folder.path())));
    drop(runtime);

    assert_eq!(found.verdict(), Verdict::Unknown, "{found:?}");
    assert_no_thread_asks();
}

#[test]
fn a_check_that_nobody_waits_for_asks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    Connection::open(folder.path().join("a.db")).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n";
    let claim = Claim::new(DB_ROW, "a.db").expecting(json!({ "query": endless, "equals": 1 }));
    let site = Site::beneath(folder.path());

    let probe = RowProbe::default();
    runtime().block_on(async {
        for wait_us in (0..40).map(|place| place * 50) {
            let check = probe.check(&claim, &site);
            let _ = tokio::time::timeout(Duration::from_micros(wait_us), check).await;
        }
    });

    assert_no_thread_asks();
}

/// Waits until no thread of this process looks into a database.
fn assert_no_thread_asks() {
    let begun = Instant::now();
    let asks = || {
        let threads = fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
        threads.into_iter().any(|thread| fs::read(thread.join("comm")).is_ok_and(|name| name == b"sqlite\n"))
    };
    while asks() {
        assert!(begun.elapsed() < Duration::from_secs(30), "a statement is not ended");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_beside_a_database_and_no_file_is_not_waited_for() {
    for name in ["a.db-journal", "a.db-wal", "a.db-shm"] {
        let folder = tempfile::tempdir().unwrap();
        drop(logged(&folder.path().join("a.db")));
        for other in ["a.db-wal", "a.db-shm"].into_iter().filter(|other| *other != name) {
            fs::write(folder.path().join(other), "x").unwrap();
        }
        let made = Command::new("mkfifo").arg(folder.path().join(name)).status().unwrap();
        assert!(made.success());
        let pack = Pack::all([Claim::new(DB_ROW, "a.db").expecting(json!({ "table": "t" }))]);

        let verifier = verifier(Environment::inherited());
        let found = runtime().block_on(verifier.verify(&pack, &Site::beneath(folder.path())));

        let error = found.claims[0].error.clone().unwrap_or_default();
        assert_eq!(found.verdict(), Verdict::Unknown, "{found:?}");
        assert!(error.contains("is not a regular file"), "{error}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_swapped_for_a_link_meanwhile_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("base/in")).unwrap();
    fs::create_dir(at("out")).unwrap();
    for (path, row) in [("base/in/a.db", 1), ("out/a.db", 2)] {
        let text = format!("CREATE TABLE t (a); INSERT INTO t VALUES ({row})");
        Connection::open(at(path)).unwrap().execute_batch(&text).unwrap();
    }
    std::os::unix::fs::symlink("../../out/a.db", at("base/in/link")).unwrap();
    let over = AtomicBool::new(false);
    let swap = |one: PathBuf, other: PathBuf| {
        while !over.load(Ordering::Relaxed) {
            let here = rustix::fs::CWD;
            rustix::fs::renameat_with(here, &one, here, &other, rustix::fs::RenameFlags::EXCHANGE).unwrap();
        }
    };
    let pack =
        Pack::all([Claim::new(DB_ROW, "in/a.db").expecting(json!({ "table": "t", "where": { "a": 2 } }))]);
    let site = Site::beneath(at("base"));

    std::thread::scope(|scope| {
        scope.spawn(|| swap(at("base/in/a.db"), at("base/in/link")));
        for _ in 0..200 {
            let limits = Limits { claim: Duration::from_millis(30), ..Limits::default() };
            let verifier = verifier(Environment::inherited()).with_limits(limits);
            let found = runtime().block_on(verifier.verify(&pack, &site));
            if found.verdict() == Verdict::Ok {
                over.store(true, Ordering::Relaxed);
                panic!("{found:?}");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_is_not_there_is_told_with_what_is() {
    let folder = tempfile::tempdir().unwrap();
    let tables: String = (0..12).map(|n| format!("CREATE TABLE t{n:02} (a, b);")).collect();
    Connection::open(folder.path().join("a.db")).unwrap().execute_batch(&tables).unwrap();
    let why = |expect: Value| {
        let pack = Pack::all([Claim::new(DB_ROW, "a.db").expecting(expect)]);
        let found = runtime()
            .block_on(verifier(Environment::inherited()).verify(&pack, &Site::beneath(folder.path())));
        found.claims[0].error.clone().unwrap()
    };

    let table = why(json!({ "table": "t" }));
    assert!(
        table.starts_with("the database has no table `t`: it has `t00`, `t01`,")
            && table.ends_with("`t09`, others"),
        "{table}"
    );
    assert_eq!(
        why(json!({ "table": "t00", "where": { "c": 1 } })),
        "table `t00` has no column `c`: it has `a`, `b`"
    );
}

/// What is in a folder, with when it was last written. Of an index only that it is there: within one process all share it, and
/// this test has the database open itself.
fn listed(folder: &Path) -> Vec<(String, Vec<u8>, SystemTime)> {
    let look = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let entry = |path: PathBuf| {
        let name = path.to_string_lossy().into_owned();
        match name.ends_with("-shm") {
            true => (name, Vec::new(), SystemTime::UNIX_EPOCH),
            false => (name, fs::read(&path).unwrap_or_default(), look(&path)),
        }
    };
    let mut all: Vec<_> = fs::read_dir(folder).unwrap().map(|found| entry(found.unwrap().path())).collect();
    all.push((String::new(), Vec::new(), look(folder)));
    all.sort();
    all
}

/// A database with a log, still open, of which one row is in the log alone.
fn logged(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    let text = "PRAGMA journal_mode = wal; CREATE TABLE t (a); INSERT INTO t VALUES (1);
        PRAGMA wal_checkpoint(TRUNCATE); INSERT INTO t VALUES (2);";
    connection.execute_batch(text).unwrap();
    connection
}

#[test]
fn a_check_writes_nothing_beside_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["closed", "open", "cut", "torn", "hot"] {
        fs::create_dir(at(name)).unwrap();
    }
    drop(logged(&at("closed/a?#%.db")));
    let open = logged(&at("open/a.db"));
    for (source, target) in
        [("a.db", "cut"), ("a.db-wal", "cut"), ("a.db-shm", "cut"), ("a.db", "torn"), ("a.db-wal", "torn")]
    {
        fs::copy(at("open").join(source), at(target).join(source)).unwrap();
    }
    let within = Connection::open(at("hot.db")).unwrap();
    let text = "CREATE TABLE t (a); INSERT INTO t VALUES (1); PRAGMA cache_size = 1; BEGIN;
        INSERT INTO t SELECT hex(zeroblob(9000)) FROM (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9));";
    within.execute_batch(text).unwrap();
    fs::copy(at("hot.db"), at("hot/a.db")).unwrap();
    fs::copy(at("hot.db-journal"), at("hot/a.db-journal")).unwrap();

    let cases: [(&str, &str, Verdict, Option<&str>); 5] = [
        ("closed", "a[?]#%.db", Verdict::Ok, None),
        ("open", "a.db", Verdict::Ok, None),
        ("cut", "a.db", Verdict::Ok, None),
        ("torn", "a.db", Verdict::Unknown, Some("left `a.db-wal`")),
        ("hot", "a.db", Verdict::Unknown, Some("left `a.db-journal`")),
    ];
    for (name, file, verdict, why) in cases {
        let before = listed(&at(name));
        let claim = Claim::new(DB_ROW, format!("{name}/{file}"));
        let pack = Pack::all([claim.expecting(json!({ "table": "t", "where": { "a": 2 } }))]);

        let verified = verifier(Environment::inherited());
        let found = runtime().block_on(verified.verify(&pack, &Site::beneath(folder.path())));

        assert_eq!(found.verdict(), verdict, "{name}: {found:?}");
        let error = found.claims[0].error.clone().unwrap_or_default();
        assert!(why.is_none_or(|why| error.contains(why)), "{name}: {error}");
        assert!(listed(&at(name)) == before, "{name}: a check writes nothing");
    }
    drop((open, within));
}
