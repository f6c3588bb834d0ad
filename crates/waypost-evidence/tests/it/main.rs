//! The kinds of evidence: what is claimed, what the world is like, and what comes of it.

#![expect(clippy::unwrap_used, reason = "a test that cannot make its world fails")]

mod claims;
mod container;
mod http;
mod postgres;
mod sqlite;
mod tls;

use std::fs;
use std::path::Path;

use rusqlite::Connection;
use serde_json::{Value, json};
use waypost::evidence::{ARTIFACT_EXISTS, FILE_SHA256, Site, Verifier};
use waypost::record::{Claim, Pack, Terms, Verdict};
use waypost_evidence::{DB_ROW, Environment, JSON_VALUE, NETWORK_REACHABLE, fits, verifier};

mod files;
mod processes;
mod programs;
mod repositories;

/// Kind, subject, expectation, verdict.
type Case = (&'static str, String, Value, &'static str);

const OK: &str = "ok";
const FAILED: &str = "failed";
const UNKNOWN: &str = "unknown";

/// Expectation, what is found, and whether it fits; none for what is no expectation.
fn expectations() -> Vec<(Value, Value, Option<bool>)> {
    vec![
        (json!(5), json!(5), Some(true)),
        (json!(5), json!(5.0), Some(true)),
        (json!(5), json!("5"), Some(true)),
        (json!(7), json!("007"), Some(false)),
        (json!("007"), json!(7), Some(false)),
        (json!(2134), json!("02134"), Some(false)),
        (json!(100_000), json!("1e5"), Some(false)),
        (json!("1e5"), json!(100_000), Some(false)),
        (json!(1.1), json!("1.10"), Some(false)),
        (json!(1.1), json!("1.1"), Some(true)),
        (json!("5.50"), json!(5.5), Some(true)),
        (json!("5"), json!(5.0), Some(true)),
        (json!("= 007"), json!(7), Some(false)),
        (json!("2 KiB"), json!(2048), Some(false)),
        (json!("= 2 KiB"), json!(2048), Some(true)),
        (json!("= 7"), json!("007"), Some(false)),
        (json!("!= 7"), json!("007"), Some(true)),
        (json!("!= 3"), json!("abc"), Some(true)),
        (json!("!= 3"), json!(""), Some(true)),
        (json!("!= 3"), json!("3"), Some(false)),
        (json!("!= 3"), json!(true), Some(true)),
        (json!("> 6"), json!("007"), Some(true)),
        // What was rounded is equal to nothing, and the other way round neither.
        (json!(9_007_199_254_740_994.0), json!(9_007_199_254_740_994.0), None),
        (json!("9007199254740994"), json!(9_007_199_254_740_994.0), None),
        (json!("!= 9007199254740994"), json!(9_007_199_254_740_994.0), None),
        (json!("> 9007199254740994"), json!(9_007_199_254_740_994.0), None),
        (json!("> 9007199254740994"), json!("9007199254740994.5"), Some(true)),
        (json!("<= 9007199254740994"), json!("9007199254740994.5"), Some(false)),
        (json!("> 5"), json!(6.02e23), Some(true)),
        (json!(u64::MAX), json!(u64::MAX), Some(true)),
        (json!("~ "), json!("x"), None),
        (json!("~"), json!("x"), None),
        (json!("5"), json!(5), Some(true)),
        (json!(5), json!(null), Some(false)),
        (json!(null), json!(null), Some(true)),
        (json!(null), json!(0), Some(false)),
        (json!(true), json!(true), Some(true)),
        (json!(true), json!(1), Some(false)),
        (json!("true"), json!(true), Some(true)),
        (json!("a"), json!("a"), Some(true)),
        (json!("a"), json!("b"), Some(false)),
        (json!("a"), json!(null), Some(false)),
        (json!(""), json!(null), Some(false)),
        (json!(""), json!(""), Some(true)),
        (json!("> 5"), json!(6), Some(true)),
        (json!("> 5"), json!(5), Some(false)),
        (json!(">= 5"), json!(5), Some(true)),
        (json!("< 5"), json!(4.5), Some(true)),
        (json!("<= -1"), json!(-1), Some(true)),
        (json!("!= 5"), json!(5), Some(false)),
        (json!("!= 5"), json!(null), Some(false)),
        (json!("== 5"), json!(5), Some(true)),
        (json!("= done"), json!("done"), Some(true)),
        (json!("!= done"), json!("open"), Some(true)),
        (json!("> 5"), json!("seven"), Some(false)),
        (json!("> 5"), json!(null), Some(false)),
        (json!(">= 2 KiB"), json!(2048), Some(true)),
        (json!(">= 2B"), json!(1), Some(false)),
        (json!("> 9007199254740992"), json!(9_007_199_254_740_993_u64), Some(true)),
        (json!("~ ^a+$"), json!("aaa"), Some(true)),
        (json!("~ ^a+$"), json!("ab"), Some(false)),
        (json!("~ ^4"), json!(42), Some(true)),
        (json!("~ x"), json!(null), Some(false)),
        (json!([1, 2]), json!(2), Some(true)),
        (json!([1, "> 5"]), json!(9), Some(true)),
        (json!([1, 2]), json!(3), Some(false)),
        (json!([1, null]), json!(null), Some(true)),
        (json!([]), json!(1), None),
        (json!({}), json!({}), None),
        (json!("> many"), json!(9), None),
        (json!("> "), json!(9), None),
        (json!("~ ("), json!("("), None),
        (json!([1, "~ ("]), json!(1), None),
    ]
}

#[test]
fn an_expectation_is_a_value_a_comparison_a_pattern_or_a_list() {
    for (expect, found, wanted) in expectations() {
        assert_eq!(fits(&expect, &found).ok(), wanted, "{found} as {expect}");
    }
}

/// What is claimed of files, databases and ports.
fn claims(port: u16, closed: u16) -> Vec<Case> {
    let file = |expect: Value, verdict| (ARTIFACT_EXISTS, "a.txt".to_owned(), expect, verdict);
    let gone = |expect: Value, verdict| (ARTIFACT_EXISTS, "gone.txt".to_owned(), expect, verdict);
    let json_at = |path: &str, value: Value, verdict| {
        (JSON_VALUE, "a.json".to_owned(), json!({ "path": path, "value": value }), verdict)
    };
    let row = |expect: Value, verdict| (DB_ROW, "a.db".to_owned(), expect, verdict);
    let net = |subject: String, expect: Value, verdict| (NETWORK_REACHABLE, subject, expect, verdict);
    vec![
        file(json!(null), OK),
        file(json!({ "type": "file", "contains": "two" }), OK),
        file(json!({ "contains": "four" }), FAILED),
        file(json!({ "contains": ["one", "three"] }), OK),
        file(json!({ "contains": ["one", "four"] }), FAILED),
        file(json!({ "contains": "" }), FAILED),
        file(json!({ "contains": [] }), FAILED),
        file(json!({ "contains": 1 }), FAILED),
        file(json!({ "contains": null }), FAILED),
        file(json!({ "matches": "t.o\n" }), OK),
        file(json!({ "matches": "^x" }), FAILED),
        file(json!({ "matches": "(" }), FAILED),
        file(json!({ "lines": 3 }), OK),
        file(json!({ "lines": "> 3" }), FAILED),
        file(json!({ "lines": [2, 3] }), OK),
        file(json!({ "lines": [] }), FAILED),
        file(json!({ "lines": ">= 0" }), FAILED),
        file(json!({ "lines": 3, "contains": "four" }), FAILED),
        file(json!({ "size": "> 99", "contains": "two" }), FAILED),
        file(json!({ "size": null }), FAILED),
        file(json!({ "colour": "red" }), UNKNOWN),
        file(json!({ "absent": true }), FAILED),
        file(json!({ "absent": false }), FAILED),
        file(json!("file"), FAILED),
        gone(json!(null), FAILED),
        gone(json!({ "contains": "x" }), FAILED),
        gone(json!({ "absent": true }), OK),
        gone(json!({ "absent": true, "type": "file" }), FAILED),
        (ARTIFACT_EXISTS, "../a.txt".to_owned(), json!({ "absent": true }), FAILED),
        (ARTIFACT_EXISTS, "/etc/passwd".to_owned(), json!({ "contains": "root" }), FAILED),
        (ARTIFACT_EXISTS, "out".to_owned(), json!({ "contains": "root" }), FAILED),
        (ARTIFACT_EXISTS, "folder".to_owned(), json!({ "type": "directory" }), OK),
        (ARTIFACT_EXISTS, "folder".to_owned(), json!({ "contains": "x" }), FAILED),
        json_at("$.n", json!(3), OK),
        json_at("$.n", json!("> 3"), FAILED),
        json_at("$.list[1].name", json!("b"), OK),
        json_at("$.list[2].name", json!("b"), FAILED),
        json_at("$.none", json!(null), OK),
        json_at("$.missing", json!(null), FAILED),
        json_at("$.list", json!("x"), FAILED),
        json_at("n", json!(3), FAILED),
        json_at("$.", json!(3), FAILED),
        json_at("$[x]", json!(3), FAILED),
        json_at("$.n", json!([]), FAILED),
        (JSON_VALUE, "twice.json".to_owned(), json!({ "path": "$.n", "value": 4 }), FAILED),
        (JSON_VALUE, "twice.json".to_owned(), json!({ "path": "$.n", "value": 3 }), FAILED),
        (ARTIFACT_EXISTS, "twice.json".to_owned(), json!({ "json": { "$.n": 4 } }), FAILED),
        (JSON_VALUE, "deep.json".to_owned(), json!({ "path": "$.n", "value": 3 }), UNKNOWN),
        (JSON_VALUE, "huge.json".to_owned(), json!({ "path": "$.n", "value": "> 3" }), UNKNOWN),
        (ARTIFACT_EXISTS, "huge.json".to_owned(), json!({ "json": { "$.n": "> 3" } }), UNKNOWN),
        (JSON_VALUE, "a.json".to_owned(), json!({ "path": "$.n" }), FAILED),
        (JSON_VALUE, "a.json".to_owned(), json!({ "value": 3 }), FAILED),
        (JSON_VALUE, "a.json".to_owned(), json!(null), FAILED),
        (JSON_VALUE, "a.json".to_owned(), json!({ "path": "$.n", "value": 3, "more": 1 }), UNKNOWN),
        (JSON_VALUE, "a.txt".to_owned(), json!({ "path": "$.n", "value": 3 }), FAILED),
        (ARTIFACT_EXISTS, "*.csv".to_owned(), json!(null), FAILED),
        (ARTIFACT_EXISTS, "*.csv".to_owned(), json!({ "count": 0 }), OK),
        (ARTIFACT_EXISTS, "*.csv".to_owned(), json!({ "count": "< 1" }), OK),
        (ARTIFACT_EXISTS, "*.csv".to_owned(), json!({ "count": "<= 12" }), FAILED),
        (ARTIFACT_EXISTS, "*.csv".to_owned(), json!({ "count": "!= 5" }), FAILED),
        (ARTIFACT_EXISTS, "*.csv".to_owned(), json!({ "count": [0, 3] }), FAILED),
        (ARTIFACT_EXISTS, "*.csv".to_owned(), json!({ "count": "<= 12", "size": "> 0" }), FAILED),
        (ARTIFACT_EXISTS, "a*.json".to_owned(), json!({ "count": "<= 12" }), OK),
        (JSON_VALUE, "gone.json".to_owned(), json!({ "path": "$.n", "value": 3 }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": 1 } }), OK),
        row(json!({ "table": "jobs", "where": { "id": 9 } }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": 1 }, "values": { "state": "done" } }), OK),
        row(json!({ "table": "jobs", "where": { "id": 2 }, "values": { "state": "done" } }), FAILED),
        row(json!({ "table": "jobs", "where": { "note": null } }), OK),
        row(json!({ "table": "jobs", "where": { "id": 1 }, "values": { "note": null } }), OK),
        row(json!({ "table": "jobs", "values": { "id": "> 1", "state": ["open", "done"] } }), OK),
        row(json!({ "table": "jobs", "count": 2 }), OK),
        row(json!({ "table": "jobs", "count": "> 2" }), FAILED),
        row(json!({ "table": "jobs", "where": { "id": 9 }, "count": 0 }), OK),
        row(json!({ "table": "jobs", "count": [] }), FAILED),
        row(json!({ "table": "jobs", "count": ">= 0" }), FAILED),
        row(json!({ "table": "jobs", "count": [7, "> -1"] }), FAILED),
        row(json!({ "table": "jobs", "where": {} }), FAILED),
        row(json!({ "table": "none" }), FAILED),
        row(json!({ "table": "jobs", "where": { "none": "none" } }), FAILED),
        row(json!({ "table": "jobs\" WHERE 1; DROP TABLE jobs; --" }), FAILED),
        row(json!({ "table": "jobs", "where": { "id\" OR 1=1 --": 9 } }), FAILED),
        row(json!({ "table": "jobs", "where": { "state": "x' OR '1'='1" } }), FAILED),
        row(json!({ "table": "odd \" name", "where": { "a b": 1 } }), OK),
        row(json!({ "query": "SELECT count(*) FROM jobs", "equals": 2 }), OK),
        row(json!({ "query": "SELECT count(*) FROM jobs", "equals": "> 2" }), FAILED),
        row(json!({ "query": "SELECT id FROM jobs WHERE id > 5", "equals": 6 }), FAILED),
        row(json!({ "query": "DELETE FROM jobs", "equals": 0 }), FAILED),
        row(json!({ "query": "SELEC 1", "equals": 1 }), FAILED),
        row(json!({ "query": "SELECT none FROM jobs", "equals": 1 }), FAILED),
        row(json!({ "query": "SELECT 1" }), FAILED),
        row(json!({ "query": "SELECT 1", "equals": 1, "table": "jobs" }), FAILED),
        row(json!({}), FAILED),
        row(json!(null), FAILED),
        row(json!({ "table": "jobs", "limit": 1 }), UNKNOWN),
        (DB_ROW, "a.txt".to_owned(), json!({ "table": "jobs" }), FAILED),
        (DB_ROW, "gone.db".to_owned(), json!({ "table": "jobs" }), FAILED),
        (DB_ROW, "../a.db".to_owned(), json!({ "table": "jobs" }), FAILED),
        net(port.to_string(), json!(null), OK),
        net(format!("127.0.0.1:{port}"), json!(null), OK),
        net(port.to_string(), json!({ "listening": false }), FAILED),
        net(closed.to_string(), json!(null), FAILED),
        net(closed.to_string(), json!({ "listening": false }), OK),
        net("0".to_owned(), json!(null), FAILED),
        net("http".to_owned(), json!(null), FAILED),
        net(format!("http://127.0.0.1:{port}"), json!(null), FAILED),
        net(":80".to_owned(), json!(null), FAILED),
        net("70000".to_owned(), json!({ "listening": false }), FAILED),
        net(port.to_string(), json!({ "listening": "yes" }), FAILED),
        net(port.to_string(), json!("open"), FAILED),
        ("no such kind", "a.txt".to_owned(), json!(1), UNKNOWN),
    ]
}

fn world(folder: &Path) {
    fs::write(folder.join("a.txt"), "one\ntwo\nthree\n").unwrap();
    fs::write(folder.join("a.json"), r#"{"n": 3, "none": null, "list": [{"name": "a"}, {"name": "b"}]}"#)
        .unwrap();
    fs::write(folder.join("twice.json"), r#"{"n": 3, "in": [{"a": 1, "a": 2}], "n": 4}"#).unwrap();
    let deep = format!("{{\"n\": 3, \"in\": {}{}}}", "[".repeat(500), "]".repeat(500));
    fs::write(folder.join("deep.json"), deep).unwrap();
    fs::write(folder.join("huge.json"), r#"{"n": 1e999}"#).unwrap();
    fs::create_dir(folder.join("folder")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("out")).unwrap();
    let connection = Connection::open(folder.join("a.db")).unwrap();
    let text = "CREATE TABLE jobs (id INTEGER, state TEXT, note TEXT);
        INSERT INTO jobs VALUES (1, 'done', NULL), (2, 'open', 'x');
        CREATE TABLE \"odd \"\" name\" (\"a b\" INTEGER);
        INSERT INTO \"odd \"\" name\" VALUES (1);";
    connection.execute_batch(text).unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Checks each claim, and its opposite: only what the world is like can be reversed.
fn assert_verdicts(verifier: &Verifier, site: &Site, cases: Vec<Case>) {
    runtime().block_on(async {
        for (kind, subject, expect, wanted) in cases {
            let mut claim = Claim::new(kind, subject);
            claim.expect = expect;
            let word = |verdict: Verdict| serde_json::to_value(verdict).unwrap().as_str().unwrap().to_owned();
            let found = verifier.verify(&Pack::all([claim.clone()]), site).await.claims.remove(0);
            let told = || format!("{} {} {}: {found:?}", claim.kind, claim.subject, claim.expect);
            assert_eq!(word(found.verdict), wanted, "{}", told());

            let not = claim.clone().on_terms(Terms { not: true, ..Terms::default() });
            let other = verifier.verify(&Pack::all([not]), site).await.claims.remove(0);
            match found.verdict {
                Verdict::Ok => assert_eq!(other.verdict, Verdict::Failed, "{}", told()),
                // What was found, or that nothing was there: else the claim itself is wrong, and so is its opposite.
                Verdict::Failed => assert!(other.verdict != Verdict::Unknown, "{}", told()),
                _ => assert_eq!(other.verdict, found.verdict, "{}", told()),
            }
        }
    });
}

/// Checks one claim as it stands.
fn checked(verifier: &Verifier, claim: Claim) -> Claim {
    runtime().block_on(verifier.verify(&Pack::all([claim]), &Site::nowhere())).claims.remove(0)
}

#[test]
fn each_claim_has_a_verdict_and_only_facts_are_negated() {
    let folder = tempfile::tempdir().unwrap();
    world(folder.path());
    programs::world(folder.path());
    files::world(folder.path());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = free.local_addr().unwrap().port();
    drop(free);
    let before = fs::read(folder.path().join("a.db")).unwrap();

    let cases = claims(port, closed).into_iter().chain(programs::cases()).chain(files::cases()).collect();
    assert_verdicts(&verifier(Environment::inherited()), &Site::beneath(folder.path()), cases);

    assert_eq!(fs::read(folder.path().join("a.db")).unwrap(), before, "evidence checks must not modify data");
}

#[test]
fn the_opposite_of_what_can_never_hold_does_not_hold() {
    let folder = tempfile::tempdir().unwrap();
    world(folder.path());
    let not = |kind: &str, subject: &str, expect: Value| {
        let terms = Terms { not: true, ..Terms::default() };
        Claim { expect, ..Claim::new(kind, subject) }.on_terms(terms)
    };
    let pack = Pack::all([
        not(ARTIFACT_EXISTS, "../a.txt", json!(null)),
        not(ARTIFACT_EXISTS, "a.txt", json!({ "contains": "" })),
        not(JSON_VALUE, "a.json", json!({ "path": "$.n" })),
        not(DB_ROW, "a.db", json!({ "query": "DELETE FROM jobs", "equals": 0 })),
        not(NETWORK_REACHABLE, "http", json!(null)),
        // What is not there, or no such thing, says nothing of what would be in it.
        not(JSON_VALUE, "gone.json", json!({ "path": "$.errors", "value": "> 0" })),
        not(JSON_VALUE, "a.txt", json!({ "path": "$.errors", "value": "> 0" })),
        not(DB_ROW, "gone.db", json!({ "table": "jobs", "where": { "id": 1 } })),
        not(DB_ROW, "a.db", json!({ "table": "jbos", "where": { "id": 1 } })),
        not(DB_ROW, "a.db", json!({ "table": "jobs", "where": { "di": 1 } })),
        not(ARTIFACT_EXISTS, "gone.txt", json!({ "contains": "x" })),
        not(ARTIFACT_EXISTS, "gone.txt", json!({ "matches": "x" })),
        not(ARTIFACT_EXISTS, "gone.txt", json!({ "lines": 0 })),
        not(ARTIFACT_EXISTS, "gone.txt", json!({ "size": 0 })),
        not(ARTIFACT_EXISTS, "gone.txt", json!({ "mode": "0644" })),
        not(ARTIFACT_EXISTS, "gone.txt", json!({ "json": { "$.n": 3 } })),
        not(ARTIFACT_EXISTS, "gone.txt", json!({ "newer_than": "a.txt" })),
        not(ARTIFACT_EXISTS, "gone/*.txt", json!({ "contains": "x" })),
        not(ARTIFACT_EXISTS, "folder", json!({ "type": "file", "contains": "x" })),
        not(ARTIFACT_EXISTS, "folder", json!({ "size": 3 })),
        not(JSON_VALUE, "twice.json", json!({ "path": "$.n", "value": 5 })),
        not(FILE_SHA256, "gone.txt", json!("0".repeat(64))),
        not(FILE_SHA256, "gone/*.txt", json!("0".repeat(64))),
    ]);

    let checked = verified(&pack, folder.path());

    assert_eq!(verdicts_of(&checked), [Verdict::Failed; 23], "{checked:?}");
}

fn verified(pack: &Pack, folder: &Path) -> Pack {
    runtime().block_on(verifier(Environment::inherited()).verify(pack, &Site::beneath(folder)))
}

fn verdicts_of(pack: &Pack) -> Vec<Verdict> {
    pack.claims.iter().map(|claim| claim.verdict).collect()
}

#[test]
fn the_opposite_of_being_there_holds_where_nothing_is() {
    let folder = tempfile::tempdir().unwrap();
    world(folder.path());
    let not = |kind: &str, subject: &str, expect: Value| {
        let terms = Terms { not: true, ..Terms::default() };
        Claim { expect, ..Claim::new(kind, subject) }.on_terms(terms)
    };
    let pack = Pack::all([
        not(ARTIFACT_EXISTS, "gone.txt", json!(null)),
        not(ARTIFACT_EXISTS, "gone/*.txt", json!(null)),
        not(ARTIFACT_EXISTS, "gone.txt", json!({ "type": "file" })),
        not(ARTIFACT_EXISTS, "folder", json!({ "type": "file" })),
        not(ARTIFACT_EXISTS, "a.txt", json!({ "size": 0, "contains": "one" })),
        not(ARTIFACT_EXISTS, "a.txt", json!({ "mode": "7777", "lines": 3 })),
        not(FILE_SHA256, "a.txt", json!("0".repeat(64))),
    ]);

    let checked = verified(&pack, folder.path());

    assert_eq!(verdicts_of(&checked), [Verdict::Ok; 7], "{checked:?}");
}

#[test]
fn whoever_listens_at_any_address_of_this_machine_is_seen() {
    // Not every machine has IPv6; all of this network is here.
    for address in ["127.0.0.1:0", "127.8.0.9:0", "[::1]:0"] {
        let Ok(listener) = std::net::TcpListener::bind(address) else { continue };
        let port = listener.local_addr().unwrap().port();
        let claim = |expect: Value| Claim { expect, ..Claim::new(NETWORK_REACHABLE, port.to_string()) };
        let verifier = verifier(Environment::inherited());
        let verdict = |expect: Value| checked(&verifier, claim(expect)).verdict;

        assert_eq!(verdict(json!(null)), Verdict::Ok, "{address}");
        assert_eq!(verdict(json!({ "listening": false })), Verdict::Failed, "{address}");
        drop(listener);
        assert_eq!(verdict(json!(null)), Verdict::Failed, "{address}");
        assert_eq!(verdict(json!({ "listening": false })), Verdict::Ok, "{address}");
    }
}

#[test]
fn a_key_that_stands_twice_is_named() {
    let folder = tempfile::tempdir().unwrap();
    world(folder.path());
    let claim = Claim::new(JSON_VALUE, "twice.json").expecting(json!({ "path": "$.n", "value": 4 }));

    let checked = verifier(Environment::inherited());
    let checked = runtime().block_on(checked.verify(&Pack::all([claim]), &Site::beneath(folder.path())));

    let why = checked.claims[0].error.clone().unwrap();
    assert!(why.contains("duplicate key `a` in a map"), "{why}");
}

#[test]
fn a_null_that_is_found_is_told() {
    let folder = tempfile::tempdir().unwrap();
    world(folder.path());
    let claim = Claim::new(JSON_VALUE, "a.json").expecting(json!({ "path": "$.none", "value": 3 }));

    let checked = verifier(Environment::inherited());
    let checked = runtime().block_on(checked.verify(&Pack::all([claim]), &Site::beneath(folder.path())));

    assert_eq!(checked.claims[0].error.as_deref(), Some("the value is null"));
}

#[test]
fn what_no_number_and_no_status_can_be_is_no_expectation_of_one() {
    for good in [json!(0), json!("3"), json!("> 0"), json!(">= 1K"), json!("~ ^1"), json!([1, "> 5"])] {
        assert!(waypost_evidence::check_count(&good).is_ok(), "{good}");
    }
    for bad in [
        json!("lots"),
        json!(""),
        json!(-1),
        json!(1.5),
        json!("!= lots"),
        json!("> "),
        json!([1, "x"]),
        json!(null),
    ] {
        assert!(waypost_evidence::check_count(&bad).is_err(), "{bad}");
    }
    for good in [json!(200), json!("200"), json!("< 400"), json!([200, 404]), json!("~ ^2")] {
        assert!(waypost_evidence::check_status(&good).is_ok(), "{good}");
    }
    for bad in [json!("ok"), json!("2xx"), json!(2000), json!("> 599"), json!([200, 99]), json!(null)] {
        assert!(waypost_evidence::check_status(&bad).is_err(), "{bad}");
    }
}

#[test]
fn the_opposite_of_what_is_said_of_all_is_true_of_each() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("a.log", "fine"), ("b.log", "ERROR: no"), ("c.log", "fine")] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let of = |pattern: &str, expect: Value, wanted: Verdict| {
        let not = Terms { not: true, ..Terms::default() };
        let claim = Claim { expect, ..Claim::new(ARTIFACT_EXISTS, pattern) }.on_terms(not);
        let site = Site::beneath(folder.path());
        let verify = verifier(Environment::inherited());
        let found = runtime().block_on(verify.verify(&Pack::all([claim]), &site)).claims.remove(0);
        assert_eq!(found.verdict, wanted, "{found:?}");
        found.found
    };

    assert_eq!(of("*.log", json!({ "contains": "ERROR" }), Verdict::Failed), json!({ "file": "b.log" }));
    of("*.log", json!({ "contains": "PANIC" }), Verdict::Ok);
    of("*.log", json!({ "type": "directory" }), Verdict::Ok);
    // With a count, it is the whole that is reversed.
    of("*.log", json!({ "contains": "ERROR", "count": 3 }), Verdict::Ok);
    of("*.log", json!({ "count": 3 }), Verdict::Failed);
    of("*.log", json!({ "contains": "" }), Verdict::Failed);
    fs::remove_file(folder.path().join("b.log")).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("b.log")).unwrap();
    of("*.log", json!({ "contains": "ERROR" }), Verdict::Ok);
}
