//! Traps for claims about SQLite databases.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rusqlite::Connection;
use serde_json::{Value, json};
use waypost::evidence::Site;
use waypost::record::{Claim, Pack, Terms, Verdict};
use waypost_evidence::{DB_ROW, Environment, verifier};

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
    ]
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
        CREATE TABLE long AS SELECT hex(zeroblob(500000)) AS text FROM many LIMIT 20;";
    connection.execute_batch(text).unwrap();
    drop(connection);
    let before = fs::read(&path).unwrap();

    assert_verdicts(&verifier(Environment::inherited()), &Site::beneath(folder.path()), cases());

    assert_eq!(fs::read(&path).unwrap(), before, "a check changes nothing");
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
    let begun = Instant::now();

    // The runtime waits for the thread that asks: it ends only if the statement was.
    let runtime = runtime();
    let found =
        runtime.block_on(verifier(Environment::inherited()).verify(&pack, &Site::beneath(folder.path())));
    drop(runtime);

    assert_eq!(found.verdict(), Verdict::Unknown, "{found:?}");
    assert!(begun.elapsed() < Duration::from_secs(30));
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
        table.starts_with("it has no table `t`: it has `t00`, `t01`,") && table.ends_with("`t09`, others"),
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
