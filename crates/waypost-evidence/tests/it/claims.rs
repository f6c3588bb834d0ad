//! Claims in Rust, and the example that uses them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Value, json};
use waypost::record::{Claim, Occasion, Severity, Terms, Verdict};
use waypost_evidence::claims;

#[test]
fn a_claim_says_what_was_written() {
    let expect = |claim: Claim| (claim.kind, claim.subject, claim.expect);
    let all: Vec<(String, String, Value)> = claims::pack()
        .and(claims::file("a").contains("x").contains("y").matches("z").lines(3).size("> 1"))
        .and(claims::json("a", "$.n", 3))
        .and(claims::port(8089))
        .and(
            claims::http("http://a/")
                .status(201)
                .method("POST")
                .header("x", json!(null))
                .json("$.a", 1)
                .json("$.b", "c"),
        )
        .and(claims::http("http://a/").body("b").contains("c").private())
        .and(claims::http("http://a/"))
        .and(claims::container("web").healthy().image("nginx").engine("podman"))
        .and(claims::container("web").stopped())
        .and(claims::sqlite("a.db", "t").whose("id", 1).whose("b", "c").value("v", 2).count(1))
        .and(claims::postgres("env:DB", "t"))
        .all()
        .claims
        .into_iter()
        .map(expect)
        .collect();
    let wanted = [
        (
            "artifact_exists",
            "a",
            json!({ "contains": ["x", "y"], "matches": "z", "lines": 3, "size": "> 1" }),
        ),
        ("json_value", "a", json!({ "path": "$.n", "value": 3 })),
        ("network_reachable", "8089", json!(null)),
        (
            "api_response",
            "http://a/",
            json!({ "status": 201, "method": "POST", "headers": { "x": null }, "json": { "$.a": 1, "$.b": "c" } }),
        ),
        ("api_response", "http://a/", json!({ "body": "b", "contains": ["c"], "private": true })),
        ("api_response", "http://a/", json!(null)),
        ("container_running", "web", json!({ "healthy": true, "image": "nginx", "engine": "podman" })),
        ("container_running", "web", json!({ "running": false })),
        (
            "db_row",
            "a.db",
            json!({ "table": "t", "where": { "id": 1, "b": "c" }, "values": { "v": 2 }, "count": 1 }),
        ),
        ("db_row", "postgres:env:DB", json!({ "table": "t" })),
    ];
    let wanted = wanted.map(|(kind, subject, expect)| (kind.to_owned(), subject.to_owned(), expect));
    assert_eq!(all, wanted);
}

#[test]
fn every_kind_of_workflow_files_can_be_claimed() {
    let digest = waypost::Digest::of(b"x");
    let all = claims::pack()
        .and(claims::sha256("a"))
        .and(claims::sha256("a").is(digest))
        .and(claims::command("make").exit(2).stdout("a").stderr("b"))
        .and(claims::exec("./check").with("min", 3))
        .and(claims::git("."))
        .and(claims::git(".").head("main").clean())
        .and(claims::process("x").pid_file("x.pid").args("-v").user("me").count(1))
        .all();

    let said = |claim: &Claim| (claim.kind.clone(), claim.expect.clone(), claim.pinned);
    let wanted = [
        ("file_sha256", json!(null), true),
        ("file_sha256", json!(digest.to_string()), false),
        ("command", json!({ "exit": 2, "stdout": "a", "stderr": "b" }), false),
        ("exec", json!({ "with": { "min": 3 } }), false),
        ("git", json!(null), true),
        ("git", json!({ "head": "main", "clean": true }), false),
        ("process_exists", json!({ "pid_file": "x.pid", "args": "-v", "user": "me", "count": 1 }), false),
    ];
    let wanted = wanted.map(|(kind, expect, pinned)| (kind.to_owned(), expect, pinned));
    assert_eq!(all.claims.iter().map(said).collect::<Vec<_>>(), wanted);
}

#[test]
fn what_every_claim_may_have_follows_what_it_says() {
    let claim = claims::file("a")
        .contains("x")
        .not()
        .warns()
        .within(Duration::from_secs(2))
        .timeout(Duration::from_millis(300))
        .at([Occasion::Verify])
        .sensitive()
        .named("the file");

    assert_eq!((claim.name.as_deref(), &claim.expect), (Some("the file"), &json!({ "contains": ["x"] })));
    let terms = Terms {
        not: true,
        severity: Severity::Warn,
        within_ms: Some(2_000),
        timeout_ms: Some(300),
        at: [Occasion::Verify].into(),
        sensitive: true,
        ..Terms::default()
    };
    assert_eq!(claim.terms, terms);
}

#[test]
fn a_pack_has_the_rule_that_was_asked_for() {
    let two = || claims::pack().and(claims::port(1)).and(claims::port(2));
    assert_eq!(two().all().at_least, None);
    assert_eq!(two().any().at_least, Some(1));
    assert_eq!(two().at_least(2).unwrap().at_least, Some(2));
    assert!(two().at_least(3).is_err());
    assert_eq!(claims::pack().all().verdict(), Verdict::Failed, "nothing is shown by no claim");
}

/// Runs the example as a user does. `cargo test` has built it beside this program; asked for this binary only, it has not, or
/// left an old one.
fn releases(folder: &Path) -> String {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built =
        std::env::current_exe().unwrap().parent().and_then(Path::parent).unwrap().join("examples/releases");
    let source = [
        "src/lib.rs",
        "src/claims.rs",
        "src/databases/rows.rs",
        "src/databases/sqlite.rs",
        "examples/releases.rs",
    ];
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let newest = source.iter().map(|name| changed(&package.join(name)).unwrap()).max().unwrap();
    if changed(&built).is_none_or(|built| built < newest) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-q", "-p", "waypost-evidence", "--example", "releases"]).current_dir(package);
        assert!(cargo.status().unwrap().success(), "{cargo:?}");
    }
    let output = Command::new(built).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_example_does_again_what_is_not_there_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();

    assert_eq!(releases(folder), "loading two rows\npublishing v1.0\nthe release is completed\nnoted: Ok\n");
    assert_eq!(releases(folder), "nothing to do\nnoted: Ok\n");
    Connection::open(folder.join("sales.db")).unwrap().execute_batch("DELETE FROM sales").unwrap();
    assert_eq!(releases(folder), "loading two rows\nthe release is completed\nnoted: Ok\n");
    fs::remove_file(folder.join("published/v1.0")).unwrap();
    assert_eq!(releases(folder), "publishing v1.0\nthe release is completed\nnoted: Ok\n");
}
