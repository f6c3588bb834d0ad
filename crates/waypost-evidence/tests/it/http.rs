//! What an API answers.

use std::time::Duration;

use serde_json::{Value, json};
use waypost::evidence::{Limits, Site, Verifier};
use waypost::record::{Claim, Terms, Verdict};
use waypost_evidence::{API_RESPONSE, Environment, verifier};
use waypost_testing::{Reply, Server};

use crate::{Case, FAILED, OK, UNKNOWN, assert_verdicts, checked, tls};

const JSON: &str = r#"{"status": "ok", "count": 3, "none": null, "items": [{"name": "a"}]}"#;

/// Answers by path.
fn server() -> Server {
    let says = |head: &str| {
        let to = |status, location: &str| Reply::http(status, &[("location", location)], "moved");
        match head.split([' ', '?']).nth(1).unwrap_or_default() {
            "/" if head.starts_with("HEAD") => Reply::http(200, &[("x-kind", "none")], ""),
            "/" => {
                Reply::http(200, &[("content-type", "application/json"), ("x-a", "1"), ("x-a", "2")], JSON)
            }
            "/text" => Reply::http(200, &[], "all is well\n"),
            "/made" => Reply::http(201, &[], ""),
            "/method" => Reply::http(200, &[], head.split(' ').next().unwrap_or_default()),
            "/gzip" => Reply::http(200, &[("content-encoding", "gzip")], "\u{1f}\u{8b}"),
            "/long" => Reply::http(200, &[], vec![b'x'; (8 << 20) + 1]),
            "/longest" => Reply::http(200, &[], vec![b'x'; 8 << 20]),
            "/endless" => {
                Reply::Silence(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n".to_vec())
            }
            "/silent" => Reply::Silence(Vec::new()),
            "/half" => Reply::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_vec()),
            "/broken" => Reply::Bytes(Vec::new()),
            "/other" => Reply::Bytes(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()),
            "/many-headers" => Reply::http(200, &[("x", "y"); 2_000], ""),
            "/moved" => to(301, "/text"),
            "/moved-far" => to(302, "http://other.example/"),
            "/moved-near" => to(302, "http://127.0.0.2/"),
            "/moved-to-file" => to(302, "file:///etc/passwd"),
            "/moved-on" => to(302, "text?from=http://other.example/"),
            "/loop" => to(307, "loop"),
            "/nowhere" => Reply::http(302, &[], ""),
            path => match path.trim_start_matches('/').parse() {
                Ok(status) => Reply::http(status, &[], ""),
                Err(_) => Reply::http(404, &[], "nothing here"),
            },
        }
    };
    Server::tcp(says).unwrap()
}

fn cases(server: &Server, closed: u16) -> Vec<Case> {
    let at = |path: &str, expect: Value, verdict| (API_RESPONSE, server.url(path), expect, verdict);
    let url = |url: &str, expect: Value, verdict| (API_RESPONSE, url.to_owned(), expect, verdict);
    vec![
        at("/", json!(null), OK),
        at("/made", json!(null), OK),
        at("/404", json!(null), FAILED),
        at("/500", json!(null), FAILED),
        at("/304", json!(null), FAILED),
        at("/", json!({ "status": 200 }), OK),
        at("/made", json!({ "status": 200 }), FAILED),
        at("/made", json!({ "status": [200, 201] }), OK),
        at("/made", json!({ "status": "< 300" }), OK),
        at("/404", json!({ "status": 404 }), OK),
        at("/404", json!({ "status": 200 }), FAILED),
        at("/404", json!({ "status": "~ ^2" }), FAILED),
        at("/", json!({ "status": [] }), FAILED),
        at("/", json!({ "status": "> many" }), FAILED),
        // Whoever does not answer has not said what it would be.
        at("/401", json!(null), UNKNOWN),
        at("/403", json!({ "status": 200 }), UNKNOWN),
        at("/429", json!(null), UNKNOWN),
        at("/503", json!(null), UNKNOWN),
        at("/403", json!({ "status": 403 }), OK),
        at("/503", json!({ "status": [200, 503] }), OK),
        at("/", json!({ "headers": { "content-type": "~ json" } }), OK),
        at("/", json!({ "headers": { "Content-Type": "application/json" } }), OK),
        at("/", json!({ "headers": { "content-type": "text/html" } }), FAILED),
        at("/", json!({ "headers": { "x-a": "1, 2" } }), OK),
        at("/", json!({ "headers": { "x-none": null } }), OK),
        at("/", json!({ "headers": { "x-none": "a" } }), FAILED),
        at("/", json!({ "headers": {} }), FAILED),
        at("/", json!({ "headers": { "a b": null } }), FAILED),
        at("/", json!({ "headers": { "x-a": [] } }), FAILED),
        at("/text", json!({ "body": "all is well" }), OK),
        at("/text", json!({ "body": "all is" }), FAILED),
        at("/text", json!({ "body": ["a", "~ well$"] }), OK),
        at("/made", json!({ "body": "" }), OK),
        at("/text", json!({ "contains": "is" }), OK),
        at("/text", json!({ "contains": ["all", "well"] }), OK),
        at("/text", json!({ "contains": ["all", "lost"] }), FAILED),
        at("/text", json!({ "contains": "" }), FAILED),
        at("/text", json!({ "contains": [] }), FAILED),
        at("/text", json!({ "contains": [1] }), FAILED),
        at("/", json!({ "json": { "$.status": "ok", "$.count": "> 2" } }), OK),
        at("/", json!({ "json": { "$.items[0].name": "a" } }), OK),
        at("/", json!({ "json": { "$.status": "ok", "$.count": 4 } }), FAILED),
        at("/", json!({ "json": { "$.missing": null } }), FAILED),
        at("/", json!({ "json": { "$.none": null } }), OK),
        at("/", json!({ "json": { "status": "ok" } }), FAILED),
        at("/", json!({ "json": {} }), FAILED),
        at("/text", json!({ "json": { "$.status": "ok" } }), FAILED),
        at("/404", json!({ "json": { "$.status": "ok" } }), FAILED),
        at("/", json!({ "status": 200, "json": { "$.count": 3 }, "contains": "items" }), OK),
        at("/", json!({ "method": "HEAD" }), OK),
        at("/", json!({ "method": "HEAD", "headers": { "x-kind": "none" } }), OK),
        at("/", json!({ "method": "HEAD", "body": "" }), FAILED),
        at("/method", json!({ "method": "POST", "body": "POST" }), OK),
        at("/method", json!({ "method": "OPTIONS", "body": "OPTIONS" }), OK),
        at("/method", json!({ "body": "GET" }), OK),
        at("/method", json!({ "method": "DELETE" }), FAILED),
        at("/method", json!({ "method": "get" }), FAILED),
        at("/moved", json!({ "body": "all is well" }), OK),
        at("/moved", json!({ "status": 301 }), OK),
        at("/moved", json!({ "method": "POST" }), FAILED),
        at("/moved-on", json!({ "body": "all is well" }), OK),
        at("/moved-far", json!(null), FAILED),
        at("/moved-far", json!({ "status": 302, "headers": { "location": "~ ^http://other" } }), OK),
        at("/moved-near", json!(null), FAILED),
        at("/moved-to-file", json!(null), FAILED),
        at("/loop", json!(null), FAILED),
        at("/nowhere", json!(null), FAILED),
        at("/gzip", json!(null), OK),
        at("/gzip", json!({ "contains": "x" }), UNKNOWN),
        at("/long", json!(null), OK),
        at("/long", json!({ "contains": "x" }), UNKNOWN),
        at("/longest", json!({ "contains": "x" }), OK),
        at("/endless", json!(null), OK),
        at("/endless", json!({ "contains": "x" }), UNKNOWN),
        at("/silent", json!(null), UNKNOWN),
        at("/half", json!({ "contains": "half" }), UNKNOWN),
        at("/broken", json!(null), UNKNOWN),
        at("/other", json!(null), FAILED),
        at("/many-headers", json!(null), UNKNOWN),
        at("/", json!({ "colour": "red" }), UNKNOWN),
        at("/", json!("up"), FAILED),
        at("/", json!({ "private": "yes" }), FAILED),
        url(&format!("http://localhost:{}/", server.port()), json!(null), OK),
        url(&format!("http://127.0.0.1:{closed}/"), json!(null), UNKNOWN),
        url("http://name.invalid/", json!(null), UNKNOWN),
        url("127.0.0.1", json!(null), FAILED),
        url("ftp://127.0.0.1/", json!(null), FAILED),
        url(&format!("http://me:pass@127.0.0.1:{}/", server.port()), json!(null), FAILED),
        // Other spellings of an address are names: what they lead to is looked at.
        url(&format!("http://2130706433:{}/", server.port()), json!(null), UNKNOWN),
        url(&format!("http://127.1:{}/", server.port()), json!(null), UNKNOWN),
        url(&format!("http://2130706433:{}/", server.port()), json!({ "private": true }), OK),
        url(&format!("http://2130706433:{}/", server.port()), json!({ "private": false }), UNKNOWN),
        // No TLS is spoken there.
        url(&format!("https://127.0.0.1:{}/", server.port()), json!(null), UNKNOWN),
    ]
}

/// A verifier that does not wait long for what never comes.
fn impatient() -> Verifier {
    verifier(Environment::inherited())
        .with_limits(Limits { claim: Duration::from_millis(500), ..Limits::default() })
}

#[test]
fn each_answer_comes_to_its_verdict() {
    let server = server();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = free.local_addr().unwrap().port();
    drop(free);

    let (unknown, known): (Vec<Case>, Vec<Case>) =
        cases(&server, closed).into_iter().partition(|(_, _, _, wanted)| *wanted == UNKNOWN);
    assert_verdicts(&verifier(Environment::inherited()), &Site::nowhere(), known);
    assert_verdicts(&impatient(), &Site::nowhere(), unknown);

    assert!(!server.heads().iter().any(|head| head.starts_with("DELETE") || head.contains("authorization")));
}

#[test]
fn nothing_is_sent_that_the_claim_does_not_name() {
    let server = server();

    assert_eq!(
        checked(&verifier(Environment::inherited()), Claim::new(API_RESPONSE, server.url("/text?a=b#c")))
            .verdict,
        Verdict::Ok
    );

    let version = env!("CARGO_PKG_VERSION");
    let port = server.port();
    let expect = format!(
        "GET /text?a=b HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nuser-agent: waypost/{version}\r\naccept: */*\r\n\
         accept-encoding: identity\r\nconnection: close\r\n\r\n"
    );
    assert_eq!(server.heads(), [expect]);
}

#[test]
fn what_was_found_says_what_was_looked_at() {
    let server = server();
    let claim = |path: &str, expect: Value| Claim::new(API_RESPONSE, server.url(path)).expecting(expect);
    let found = |claim: Claim| {
        let checked = checked(&verifier(Environment::inherited()), claim);
        (checked.found, checked.error)
    };

    let expect = json!({ "headers": { "x-a": "1" }, "json": { "$.items": 1, "$.gone": 2 } });
    let why = Some("the response has no value at `$.gone`".to_owned());
    let whole = json!({ "status": 200, "headers": { "x-a": "1, 2" }, "json": { "$.items": { "items": 1 } } });
    assert_eq!(found(claim("/", expect)), (whole, why));
    let long = json!({ "status": 200, "body": { "chars": 8 << 20 } });
    assert_eq!(found(claim("/longest", json!({ "body": "x" }))), (long, None));
    let (led, why) = found(claim("/moved-far", json!(null)));
    assert_eq!(led, json!({ "status": 302, "location": "http://other.example/" }));
    assert_eq!(
        why.as_deref(),
        Some("the redirect leads to another site, and is not followed: write a claim for that URL")
    );
    let (_, why) = found(Claim::new(API_RESPONSE, "http://127.1:1/"));
    let why = why.unwrap();
    assert!(
        why.contains("`127.1` resolves to the private address 127.0.0.1") && why.contains("private: true"),
        "{why}"
    );
}

#[test]
fn the_opposite_of_what_was_not_looked_at_does_not_hold() {
    let server = server();
    let not = |path: &str, expect: Value| {
        let claim = Claim::new(API_RESPONSE, server.url(path)).expecting(expect);
        checked(&impatient(), claim.on_terms(Terms { not: true, ..Terms::default() })).verdict
    };
    assert_eq!(not("/404", json!(null)), Verdict::Ok);
    assert_eq!(not("/text", json!({ "contains": "lost" })), Verdict::Ok);
    for (path, expect) in [
        ("/404", json!({ "contains": "error" })),
        ("/500", json!({ "json": { "$.errors": "> 0" } })),
        ("/text", json!({ "json": { "$.errors": "> 0" } })),
        ("/moved-far", json!(null)),
        ("/loop", json!(null)),
        ("/other", json!(null)),
    ] {
        assert_eq!(not(path, expect), Verdict::Failed, "{path}");
    }
    assert_eq!(not("/503", json!(null)), Verdict::Unknown);
}

#[test]
fn a_certificate_of_an_untrusted_signer_is_refused() {
    const CHILD: &str = "WAYPOST_TEST_TLS_PORT";
    let url = |port: &str, host: &str| format!("https://{host}:{port}/");
    if let Ok(port) = std::env::var(CHILD) {
        let trusted = checked(&impatient(), Claim::new(API_RESPONSE, url(&port, "localhost")));
        assert_eq!(trusted.verdict, Verdict::Ok, "{trusted:?}");
        let other = checked(&impatient(), Claim::new(API_RESPONSE, url(&port, "127.0.0.3")));
        assert_eq!(other.verdict, Verdict::Unknown, "it is for another name: {other:?}");
        return;
    }
    let server = tls::serve();
    let port = server.port.to_string();

    let untrusted = checked(&impatient(), Claim::new(API_RESPONSE, url(&port, "localhost")));
    tls::trusting("http::a_certificate_of_an_untrusted_signer_is_refused", (CHILD, &port));

    assert_eq!(untrusted.verdict, Verdict::Unknown, "{untrusted:?}");
}
