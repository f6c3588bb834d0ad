//! Rows of a PostgreSQL database, with a server of the tests' own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waypost::evidence::{Limits, Site, Verifier};
use waypost::record::{Claim, Pack, Terms, Verdict};
use waypost_evidence::{DB_ROW, Environment, RowProbe, verifier};
use waypost_testing::postgres::{LOCKED, PASSWORD, USER, cluster};

use crate::{Case, FAILED, OK, UNKNOWN, assert_verdicts, checked, runtime, tls};

const TABLES: &str = r#"
CREATE TYPE mood AS ENUM ('calm', 'busy');
CREATE TABLE jobs (id bigint, state text, note text, done boolean, price numeric, mood mood, code char(4), short varchar(3),
    at timestamptz, key uuid, more jsonb, bytes bytea, many int[], zip text DEFAULT '02134');
INSERT INTO jobs VALUES
    (1, 'done', NULL, true, 12.50, 'calm', 'ab', 'abc', '2026-01-02 03:04:05Z', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
        '{"n": 1}', '\xff', '{1,2}'),
    (2, 'open', 'x', false, 12345678901234567890.123, 'busy', 'cd', 'xyz', NULL, NULL, '"text"', NULL, NULL);
CREATE TABLE "odd "" name" ("a b" int, "x"";--" int);
INSERT INTO "odd "" name" VALUES (1, 2);
CREATE SCHEMA other;
CREATE TABLE other.jobs (id int);
CREATE VIEW view AS SELECT id FROM jobs;
CREATE TABLE plain (data json);
INSERT INTO plain VALUES ('{}');
CREATE TABLE kept (secret text);
CREATE TABLE hidden (id int);
INSERT INTO hidden VALUES (1), (2);
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;
ALTER TABLE hidden FORCE ROW LEVEL SECURITY;
CREATE POLICY higher ON hidden USING (id > 1);
CREATE SEQUENCE counter;
CREATE FUNCTION writing() RETURNS int LANGUAGE plpgsql AS 'BEGIN INSERT INTO jobs (id) VALUES (9); RETURN 1; END';
"#;

/// Makes a database for a test, and returns the subject of claims about it.
fn database(name: &str) -> String {
    cluster().database(name, TABLES);
    format!("postgres:{}", cluster().connection(USER, name))
}

fn cases(subject: &str) -> Vec<Case> {
    let row = |expect: Value, verdict| (DB_ROW, subject.to_owned(), expect, verdict);
    let query = |text: &str, equals: Value, verdict| {
        (DB_ROW, subject.to_owned(), json!({ "query": text, "equals": equals }), verdict)
    };
    let of = |subject: &str, verdict| (DB_ROW, subject.to_owned(), json!({ "table": "jobs" }), verdict);
    let one = |values: Value, verdict| {
        row(json!({ "table": "jobs", "where": { "id": 1 }, "values": values }), verdict)
    };
    let by = |keys: Value, verdict| row(json!({ "table": "jobs", "where": keys }), verdict);
    let cluster = cluster();
    vec![
        row(json!({ "table": "jobs" }), OK),
        by(json!({ "id": 1 }), OK),
        by(json!({ "id": "1" }), OK),
        by(json!({ "id": 9 }), FAILED),
        by(json!({ "id": 1.5 }), FAILED),
        by(json!({ "id": "one" }), FAILED),
        by(json!({ "note": null }), OK),
        by(json!({ "state": null }), FAILED),
        by(json!({ "done": true, "id": 1 }), OK),
        by(json!({ "price": 12.5 }), OK),
        by(json!({ "price": "12.50" }), OK),
        by(json!({ "price": "012.5" }), FAILED),
        by(json!({ "id": "01" }), FAILED),
        by(json!({ "zip": 2134 }), FAILED),
        by(json!({ "zip": "02134" }), OK),
        by(json!({ "price": "12345678901234567890.123" }), OK),
        by(json!({ "mood": "busy" }), OK),
        by(json!({ "mood": "glad" }), FAILED),
        by(json!({ "code": "ab" }), OK),
        // What is longer than the column is not cut to what fits.
        by(json!({ "short": "abcd" }), FAILED),
        by(json!({ "code": "abcde" }), FAILED),
        by(json!({ "at": "2026-01-02T03:04:05Z" }), OK),
        by(json!({ "key": "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11" }), OK),
        by(json!({ "id": [1, 2] }), OK),
        by(json!({ "id": [] }), FAILED),
        by(json!({ "id": "> many" }), FAILED),
        by(json!({ "id": "> 1" }), OK),
        by(json!({ "id": "> 2" }), FAILED),
        by(json!({ "price": "> 12", "id": 1 }), OK),
        by(json!({ "state": "!= x' OR 1=1 --", "id": 9 }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": "> 1" }, "count": 0 }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": "> 1" }, "count": 1 }), OK),
        row(json!({ "table": "jobs", "where": { "id": "<= 1" }, "values": { "state": "open" } }), FAILED),
        by(json!({}), FAILED),
        one(json!({ "state": "done" }), OK),
        one(json!({ "state": "open" }), FAILED),
        one(json!({ "state": ["open", "done"], "id": "< 2" }), OK),
        one(json!({ "note": null, "done": true }), OK),
        one(json!({ "note": "" }), FAILED),
        one(json!({ "price": 12.5, "mood": "calm" }), OK),
        one(json!({ "price": "12.50" }), OK),
        one(json!({ "price": "012.5" }), FAILED),
        one(json!({ "id": "01" }), FAILED),
        one(json!({ "zip": 2134 }), FAILED),
        one(json!({ "zip": "02134" }), OK),
        query("SELECT 12345678901234567.00::numeric(30, 2)", json!(12_345_678_901_234_567_u64), OK),
        query("SELECT 12345678901234567.50::numeric(30, 2)", json!(12_345_678_901_234_567_u64), FAILED),
        one(json!({ "price": "> 12" }), OK),
        one(json!({ "at": "~ ^2026-01-02T" }), OK),
        one(json!({ "more": "x" }), FAILED),
        one(json!({ "many": 1 }), FAILED),
        one(json!({ "state": [] }), FAILED),
        one(json!({ "state": "> many" }), FAILED),
        row(json!({ "table": "jobs", "values": { "price": "12345678901234567890.123" } }), OK),
        row(json!({ "table": "jobs", "values": { "price": "12345678901234567890.124" } }), FAILED),
        row(json!({ "table": "jobs", "values": { "more": "text" } }), OK),
        row(json!({ "table": "jobs", "count": 2 }), OK),
        row(json!({ "table": "jobs", "count": "> 2" }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": 9 }, "count": 0 }), OK),
        row(json!({ "table": "jobs", "values": { "id": "> 1" }, "count": 1 }), OK),
        row(json!({ "table": "jobs", "count": [] }), FAILED),
        row(json!({ "table": "view", "count": 2 }), OK),
        row(json!({ "table": "other.jobs" }), FAILED),
        row(json!({ "table": "other.jobs", "count": 0 }), OK),
        row(json!({ "table": "public.jobs", "count": 2 }), OK),
        row(json!({ "table": "none" }), FAILED),
        row(json!({ "table": "Jobs" }), FAILED),
        row(json!({ "table": "jobs", "where": { "none": "none" } }), FAILED),
        row(json!({ "table": "jobs", "values": { "none": null } }), FAILED),
        row(json!({ "table": "plain", "where": { "data": "{}" } }), FAILED),
        // Names are names, and values are values, whatever stands in them.
        row(json!({ "table": "odd \" name", "where": { "a b": 1 }, "values": { "x\";--": 2 } }), OK),
        row(json!({ "table": "jobs\" WHERE 1=1; DROP TABLE jobs; --" }), FAILED),
        row(json!({ "table": "jobs; DROP TABLE jobs" }), FAILED),
        row(json!({ "table": "pg_catalog.pg_authid\" --" }), FAILED),
        row(json!({ "table": "(SELECT 1) AS jobs" }), FAILED),
        row(json!({ "table": "" }), FAILED),
        by(json!({ "id\" OR 1=1 --": 9 }), FAILED),
        by(json!({ "state": "x' OR '1'='1" }), FAILED),
        by(json!({ "state": "x'); DROP TABLE jobs; --" }), FAILED),
        by(json!({ "id": "9 OR 1=1" }), FAILED),
        by(json!({ "ctid": "(0,1)" }), FAILED),
        query("SELECT count(*) FROM jobs", json!(2), OK),
        query("SELECT count(*) FROM jobs;", json!("< 2"), FAILED),
        query("select state, id from jobs order by id -- newest last", json!("done"), OK),
        query("SELECT id, id FROM jobs ORDER BY id DESC", json!(2), OK),
        query("WITH n AS (SELECT max(id) AS id FROM jobs) SELECT id FROM n", json!(2), OK),
        query("VALUES (7)", json!(7), OK),
        query("/* one */ (SELECT 1)", json!(1), OK),
        query("SELECT NULL", json!(null), OK),
        query("SELECT NULL", json!("null"), FAILED),
        query("SELECT true", json!(true), OK),
        query("SELECT id FROM jobs WHERE id > 5", json!(6), FAILED),
        query("SELECT none FROM jobs", json!(1), FAILED),
        query("SELECT id FROM nowhere", json!(1), FAILED),
        query("SELECT 1/0", json!(1), FAILED),
        query("SELECT $1::int", json!(1), FAILED),
        query("SELECT 1 WHERE", json!(1), UNKNOWN),
        query("SELECT 1", json!([]), FAILED),
        // What writes is refused, whatever it looks like.
        query("DELETE FROM jobs", json!(0), FAILED),
        query("  \n-- SELECT\nDROP TABLE jobs", json!(0), FAILED),
        query("/* SELECT */ UPDATE jobs SET id = 1", json!(0), FAILED),
        query("SET TRANSACTION READ WRITE", json!(0), FAILED),
        query("COMMIT", json!(0), FAILED),
        query("COPY jobs TO PROGRAM 'touch /tmp/x'", json!(0), FAILED),
        query("DO 'BEGIN END'", json!(0), FAILED),
        query("WITH gone AS (DELETE FROM jobs RETURNING id) SELECT count(*) FROM gone", json!(2), FAILED),
        query("SELECT writing()", json!(1), FAILED),
        query("SELECT nextval('counter')", json!(1), FAILED),
        query("SELECT id FROM jobs FOR UPDATE", json!(1), FAILED),
        query("SELECT 1; DROP TABLE jobs", json!(1), UNKNOWN),
        query("SELECT 1) AS q; DROP TABLE jobs; --", json!(1), UNKNOWN),
        query("SELECT * INTO copied FROM jobs", json!(1), UNKNOWN),
        query("SELECT set_config('transaction_read_only', 'off', false)", json!("off"), UNKNOWN),
        row(json!({ "query": "SELECT 1" }), FAILED),
        row(json!({ "query": "SELECT 1", "equals": 1, "table": "jobs" }), FAILED),
        row(json!({}), FAILED),
        row(json!(null), FAILED),
        row(json!({ "table": "jobs", "limit": 1 }), UNKNOWN),
        of(&format!("postgres:{}", cluster.connection(USER, "nowhere")), FAILED),
        of(&format!("postgres:{}", cluster.connection("nobody_knows", "kinds")), UNKNOWN),
        of(&format!("postgres:{}", cluster.connection(LOCKED, "kinds")), UNKNOWN),
        of(&format!("postgres:host={} port=1", cluster.folder().display()), UNKNOWN),
        of("postgres://127.0.0.1:1/kinds", UNKNOWN),
        of("postgres:env:WAYPOST_TEST_IS_NOT_SET", UNKNOWN),
        of("postgres:env:A B", FAILED),
        of("postgres://me:pass@127.0.0.1/kinds", FAILED),
        of("postgres:dbname=kinds", FAILED),
    ]
}

/// A verifier that does not wait long for what never comes.
fn impatient() -> Verifier {
    verifier(Environment::inherited())
        .with_limits(Limits { claim: Duration::from_millis(700), ..Limits::default() })
}

#[test]
fn each_row_comes_to_its_verdict_and_nothing_is_written() {
    let subject = database("kinds");
    let before = contents("kinds");

    let (unknown, known): (Vec<Case>, Vec<Case>) =
        cases(&subject).into_iter().partition(|(_, _, _, wanted)| *wanted == UNKNOWN);
    assert_verdicts(&verifier(Environment::inherited()), &Site::nowhere(), known);
    assert_verdicts(&impatient(), &Site::nowhere(), unknown);

    assert_eq!(contents("kinds"), before);
}

/// Everything that a check could have changed.
fn contents(database: &str) -> Value {
    let text = "SELECT md5(string_agg(t, '|')) FROM (SELECT jobs::text AS t FROM jobs UNION ALL SELECT relname::text FROM \
        pg_class UNION ALL SELECT last_value::text FROM counter ORDER BY 1) AS all_of_it";
    let subject = format!("postgres:{}", cluster().connection(USER, database));
    let claim = Claim::new(DB_ROW, subject).expecting(json!({ "query": text, "equals": "~ ^[0-9a-f]{32}$" }));
    let found = checked(&verifier(Environment::inherited()), claim);
    assert_eq!(found.verdict, Verdict::Ok, "{found:?}");
    found.found
}

#[test]
fn what_is_not_there_is_told_with_what_is() {
    let subject = database("names");
    let why = |expect: Value| {
        checked(&verifier(Environment::inherited()), Claim::new(DB_ROW, &subject).expecting(expect))
            .error
            .unwrap()
    };

    let table = why(json!({ "table": "jbos" }));
    assert_eq!(
        table,
        "the database has no table `jbos`: it has `hidden`, `jobs`, `kept`, `odd \" name`, `plain`, `view`"
    );
    let column = why(json!({ "table": "plain", "values": { "date": 1 } }));
    assert_eq!(column, "table `plain` has no column `date`: it has `data`");
    let query = why(json!({ "query": "SELECT nme FROM jobs", "equals": 1 }));
    assert_eq!(query, r#"column "nme" does not exist"#);
    let down = checked(
        &verifier(Environment::inherited()),
        Claim::new(DB_ROW, "postgres://127.0.0.1:1/x").expecting(json!({ "table": "a" })),
    );
    assert!(down.error.as_deref().unwrap().contains("cannot reach the server"), "{down:?}");
}

#[test]
fn what_takes_too_long_or_is_too_much_is_not_known() {
    let subject = database("limits");
    cluster().sql(
        "limits",
        "CREATE TABLE many AS SELECT n FROM generate_series(1, 100001) AS n;
         CREATE TABLE long AS SELECT repeat('x', 1000000) AS text FROM generate_series(1, 20);",
    );
    let look = |expect: Value, timeout_ms| {
        let terms = Terms { timeout_ms, ..Terms::default() };
        checked(
            &verifier(Environment::inherited()),
            Claim::new(DB_ROW, &subject).expecting(expect).on_terms(terms),
        )
    };
    let query = |text: &str| json!({ "query": text, "equals": 1 });

    assert_eq!(
        look(json!({ "table": "many", "count": 100_001 }), None).verdict,
        Verdict::Ok,
        "counted where it is"
    );
    for too_much in [
        json!({ "table": "many", "values": { "n": 1 } }),
        json!({ "table": "long", "values": { "text": "x" } }),
        query("SELECT repeat('x', 20000000)"),
    ] {
        let found = look(too_much, None);
        assert_eq!(found.verdict, Verdict::Unknown, "{found:?}");
        assert!(found.found.is_null(), "{found:?}");
    }
    let begun = Instant::now();
    let slow = look(query("SELECT 1 FROM pg_sleep(60)"), Some(500));
    assert_eq!(slow.verdict, Verdict::Unknown, "{slow:?}");
    assert!(begun.elapsed() < Duration::from_secs(30));
    // The server does not go on with it either.
    let running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND state = 'active' \
        AND pid <> pg_backend_pid()";
    let ended = Claim::new(DB_ROW, &subject).expecting(json!({ "query": running, "equals": 0 }));
    let ended = ended.on_terms(Terms { within_ms: Some(20_000), ..Terms::default() });
    assert_eq!(checked(&verifier(Environment::inherited()), ended).verdict, Verdict::Ok);
}

fn probe(variables: &[(&str, &str)]) -> Verifier {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Verifier::new().with_probe(Arc::new(RowProbe::with_variables(variables)))
}

fn verdict(verifier: &Verifier, subject: &str) -> Claim {
    checked(verifier, Claim::new(DB_ROW, subject).expecting(json!({ "query": "SELECT 1", "equals": 1 })))
}

#[test]
fn a_password_comes_from_the_environment_and_is_not_recorded() {
    database("passwords");
    let (folder, port) = (cluster().folder().to_str().unwrap(), cluster().port());
    let plain = cluster().connection(LOCKED, "passwords");
    let subject = format!("postgres:{plain}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let passes = |text: &str, mode: u32| {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        verdict(&probe(&[("PGPASSFILE", path)]), &subject)
    };

    assert_eq!(verdict(&probe(&[]), &subject).verdict, Verdict::Unknown);
    assert_eq!(verdict(&probe(&[("PGPASSWORD", PASSWORD)]), &subject).verdict, Verdict::Ok);
    let refused = verdict(&probe(&[("PGPASSWORD", "another one")]), &subject);
    assert_eq!(refused.verdict, Verdict::Unknown);
    assert!(refused.error.as_deref().unwrap().contains("refused the login"), "{refused:?}");

    assert_eq!(
        passes(&format!("# mine\nother:*:*:*:x\nlocalhost:*:passwords:locked:{PASSWORD}\n"), 0o600).verdict,
        Verdict::Ok
    );
    assert_eq!(passes(&format!("{folder}:{port}:*:*:{PASSWORD}\n"), 0o600).verdict, Verdict::Ok);
    assert_eq!(passes(&format!("*:*:other:*:{PASSWORD}\n"), 0o600).verdict, Verdict::Unknown);
    let open = passes(&format!("*:*:*:*:{PASSWORD}\n"), 0o644);
    assert_eq!(open.verdict, Verdict::Unknown);
    assert!(open.error.as_deref().unwrap().contains("readable by other users"), "{open:?}");
    let home = tempfile::tempdir().unwrap();
    let pgpass = home.path().join(".pgpass");
    fs::write(&pgpass, format!("*:*:*:*:{PASSWORD}\n")).unwrap();
    fs::set_permissions(&pgpass, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(verdict(&probe(&[("HOME", home.path().to_str().unwrap())]), &subject).verdict, Verdict::Ok);

    // In a variable there may be a password: only the name of the variable is recorded.
    let url = format!("postgres://locked:{PASSWORD}@{}:{port}/passwords", folder.replace('/', "%2F"));
    let found = verdict(&probe(&[("DB", &url)]), "postgres:env:DB");
    assert_eq!(found.verdict, Verdict::Ok, "{found:?}");
    assert!(!serde_json::to_string(&found).unwrap().contains(PASSWORD));
    for wrong in [&*format!("postgres://locked:{PASSWORD}@a,b/passwords"), &*format!("{PASSWORD}=x"), "a b"] {
        let found = verdict(&probe(&[("DB", wrong)]), "postgres:env:DB");
        assert_eq!(found.verdict, Verdict::Unknown);
        assert!(!found.error.as_deref().unwrap().contains(PASSWORD), "{found:?}");
    }
}

#[test]
fn what_a_role_may_not_read_is_not_known() {
    database("rights");
    let subject = format!("postgres:{}", cluster().connection(LOCKED, "rights"));
    let claim = Claim::new(DB_ROW, subject).expecting(json!({ "table": "kept" }));

    let found = checked(&probe(&[("PGPASSWORD", PASSWORD)]), claim);

    assert_eq!(found.verdict, Verdict::Unknown, "{found:?}");
    assert_eq!(found.error.as_deref(), Some("the `query` failed: permission denied for table kept"));
}

#[test]
fn rows_that_a_policy_hides_are_not_said_to_be_missing() {
    database("policies");
    cluster().sql("policies", "GRANT SELECT ON hidden TO PUBLIC");
    let subject = format!("postgres:{}", cluster().connection(LOCKED, "policies"));
    for expect in [
        json!({ "table": "hidden", "where": { "id": 1 }, "count": 0 }),
        json!({ "table": "hidden", "count": 1 }),
        json!({ "query": "SELECT count(*) FROM hidden", "equals": 1 }),
    ] {
        let found =
            checked(&probe(&[("PGPASSWORD", PASSWORD)]), Claim::new(DB_ROW, &subject).expecting(expect));

        assert_eq!(found.verdict, Verdict::Unknown, "{found:?}");
        assert!(found.error.as_deref().unwrap().contains("row-level security"), "{found:?}");
    }
}

#[test]
fn required_tls_needs_a_trusted_server() {
    const CHILD: &str = "WAYPOST_TEST_PG_PORT";
    let subject = |host: &str, port: &str, mode: &str| {
        format!("postgres:host={host} port={port} user=waypost sslmode={mode}")
    };
    let asks = probe(&[("PGPASSWORD", PASSWORD)]);
    let is_safe = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let safe = |subject: String, equals: bool| {
        checked(&asks, Claim::new(DB_ROW, subject).expecting(json!({ "query": is_safe, "equals": equals })))
    };
    if let Ok(port) = std::env::var(CHILD) {
        let trusted = safe(format!("{} dbname=postgres", subject("localhost", &port, "require")), true);
        assert_eq!(trusted.verdict, Verdict::Ok, "{trusted:?}");
        let other = safe(format!("{} dbname=postgres", subject("127.0.0.3", &port, "require")), true);
        assert_eq!(other.verdict, Verdict::Unknown, "{other:?}");
        return;
    }
    let port = cluster().port().to_string();

    let here = safe(format!("{} dbname=postgres", subject("127.0.0.1", &port, "prefer")), false);
    let untrusted = safe(format!("{} dbname=postgres", subject("localhost", &port, "require")), true);
    let socket = cluster().folder().to_str().unwrap();
    let impossible = safe(format!("{} dbname=postgres", subject(socket, &port, "require")), true);
    tls::trusting("postgres::required_tls_needs_a_trusted_server", (CHILD, &port));

    assert_eq!(here.verdict, Verdict::Ok, "it does not leave this machine: {here:?}");
    assert_eq!(untrusted.verdict, Verdict::Unknown, "{untrusted:?}");
    assert_eq!(impossible.verdict, Verdict::Unknown, "{impossible:?}");
}

#[test]
fn only_a_database_of_this_machine_is_of_this_machine() {
    let subject = database("hosts");
    let expect = json!({ "table": "jobs" });
    let pack = Pack::all([
        Claim::new(DB_ROW, &subject).expecting(expect.clone()),
        Claim::new(DB_ROW, "postgres:env:DB").expecting(expect),
    ]);
    let plain = cluster().connection(USER, "hosts");
    let asks = probe(&[("DB", &plain)]);
    let made = runtime().block_on(asks.commit(&pack, &Site::nowhere().on_host("one")));

    let found = runtime().block_on(asks.verify(&made, &Site::nowhere().on_host("two")));

    let verdicts: Vec<Verdict> = found.claims.iter().map(|claim| claim.verdict).collect();
    assert_eq!(verdicts, [Verdict::Unknown, Verdict::Ok], "{found:?}");
    assert!(Path::new(cluster().folder()).exists());
}
