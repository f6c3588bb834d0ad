//! Containers, as engines know them.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use waypost::evidence::{Site, Verifier};
use waypost::record::{Claim, Terms, Verdict};
use waypost_evidence::{CONTAINER_RUNNING, ContainerProbe};
use waypost_testing::{Reply, Server};

use crate::{Case, FAILED, OK, UNKNOWN, assert_verdicts, checked};

const DIGEST: &str = "sha256:aaaa";

fn container(name: &str, state: Value) -> Value {
    json!({ "Id": "c0ffee0123456789", "Name": format!("/{name}"), "State": state, "Image": DIGEST, "Config": { "Image": "nginx:1.27" } })
}

/// Says what an engine says of the containers that it has.
fn says(head: &str) -> Reply {
    let first = head.lines().next().unwrap_or_default();
    let asked = first.split('/').nth(2).unwrap_or_default();
    // The beginning of an id is enough to engines.
    let name = if asked.starts_with("c0") { "other" } else { asked };
    let running = |more: Value| {
        let mut state = json!({ "Status": "running", "Running": true, "Paused": false, "Restarting": false });
        state.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        container(name, state)
    };
    let known = match first {
        "GET /containers/web/json HTTP/1.1" => running(json!({ "Health": { "Status": "healthy" } })),
        "GET /containers/c0ffee0123456789/json HTTP/1.1"
        | "GET /containers/c0ffee012345/json HTTP/1.1"
        | "GET /containers/c0ffee01234/json HTTP/1.1" => running(json!({})),
        "GET /containers/nameless/json HTTP/1.1" => json!({ "State": { "Running": true } }),
        "GET /containers/sick/json HTTP/1.1" => running(json!({ "Health": { "Status": "unhealthy" } })),
        "GET /containers/new/json HTTP/1.1" => running(json!({ "Health": { "Status": "starting" } })),
        "GET /containers/unasked/json HTTP/1.1" => running(json!({ "Health": { "Status": "none" } })),
        "GET /containers/pod/json HTTP/1.1" => running(json!({ "Healthcheck": { "Status": "healthy" } })),
        "GET /containers/held/json HTTP/1.1" => running(json!({ "Status": "paused", "Paused": true })),
        "GET /containers/again/json HTTP/1.1" => {
            running(json!({ "Status": "restarting", "Restarting": true }))
        }
        "GET /containers/ended/json HTTP/1.1" => {
            container(name, json!({ "Status": "exited", "Running": false, "ExitCode": 137 }))
        }
        "GET /containers/odd/json HTTP/1.1" => json!({ "State": { "Up": 1 } }),
        "GET /containers/list/json HTTP/1.1" => json!([]),
        "GET /containers/text/json HTTP/1.1" => return Reply::http(200, &[], "running"),
        "GET /containers/broken/json HTTP/1.1" => return Reply::http(500, &[], "{}"),
        "GET /containers/silent/json HTTP/1.1" => return Reply::Bytes(Vec::new()),
        _ => return Reply::http(404, &[], r#"{"message":"No such container"}"#),
    };
    Reply::http(200, &[("content-type", "application/json")], known.to_string())
}

fn cases() -> Vec<Case> {
    let at = |name: &str, expect: Value, verdict| (CONTAINER_RUNNING, name.to_owned(), expect, verdict);
    vec![
        at("web", json!(null), OK),
        at("c0ffee0123456789", json!(null), OK),
        at("c0ffee012345", json!(null), OK),
        at("c0ffee01234", json!(null), FAILED),
        at("c0ffee01234", json!({ "running": false }), FAILED),
        at("nameless", json!(null), UNKNOWN),
        at("web", json!({ "running": true }), OK),
        at("web", json!({ "running": false }), FAILED),
        at("ended", json!(null), FAILED),
        at("ended", json!({ "running": false }), OK),
        at("held", json!(null), FAILED),
        at("again", json!(null), FAILED),
        at("gone", json!(null), FAILED),
        at("gone", json!({ "running": false }), FAILED),
        at("web", json!({ "healthy": true }), OK),
        at("web", json!({ "healthy": false }), FAILED),
        at("sick", json!({ "healthy": true }), FAILED),
        at("sick", json!({ "healthy": false }), OK),
        at("new", json!({ "healthy": true }), FAILED),
        at("new", json!({ "healthy": false }), UNKNOWN),
        at("pod", json!({ "healthy": true }), OK),
        at("c0ffee0123456789", json!({ "healthy": true }), FAILED),
        at("c0ffee0123456789", json!({ "healthy": false }), FAILED),
        at("unasked", json!({ "healthy": false }), FAILED),
        at("web", json!({ "image": "nginx:1.27" }), OK),
        at("web", json!({ "image": "nginx" }), FAILED),
        at("web", json!({ "image": "~ ^nginx:" }), OK),
        at("web", json!({ "image": "!= nginx:1.27" }), FAILED),
        at("web", json!({ "image": DIGEST }), OK),
        at("web", json!({ "image": "sha256:bbbb" }), FAILED),
        at("web", json!({ "image": [] }), FAILED),
        at("web", json!({ "healthy": true, "image": "nginx:1.27", "engine": "docker" }), OK),
        at("ended", json!({ "image": "nginx:1.27" }), FAILED),
        at("web", json!({ "engine": "auto" }), OK),
        at("web", json!({ "engine": "podman" }), UNKNOWN),
        at("web", json!({ "engine": "lxc" }), FAILED),
        at("web", json!({ "running": "yes" }), FAILED),
        at("web", json!({ "healthy": 1 }), FAILED),
        at("web", json!({ "colour": "red" }), UNKNOWN),
        at("web", json!("running"), FAILED),
        at("odd", json!(null), UNKNOWN),
        at("list", json!(null), UNKNOWN),
        at("text", json!(null), UNKNOWN),
        at("broken", json!(null), UNKNOWN),
        at("silent", json!(null), UNKNOWN),
        at("../images/x", json!(null), FAILED),
        at("web/json?a=b#", json!(null), FAILED),
        at("web\r\nx: y", json!(null), FAILED),
        at("", json!(null), FAILED),
        at("-web", json!(null), FAILED),
    ]
}

fn verifier(docker: &Path, podman: &Path) -> Verifier {
    Verifier::new().with_probe(Arc::new(ContainerProbe::at([docker.to_owned()], [podman.to_owned()])))
}

#[test]
fn each_container_comes_to_its_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let (docker, podman) = (folder.path().join("docker.sock"), folder.path().join("podman.sock"));
    let engine = Server::unix(&docker, says).unwrap();

    assert_verdicts(&verifier(&docker, &podman), &Site::nowhere(), cases());

    let known =
        |head: &String| head.starts_with("GET /containers/") && head.contains("\r\nhost: localhost\r\n");
    assert!(engine.heads().iter().all(known), "nothing else is asked: {:?}", engine.heads());
}

#[test]
fn every_engine_that_is_there_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let (docker, podman) = (folder.path().join("docker.sock"), folder.path().join("podman.sock"));
    let claim = |name: &str| Claim::new(CONTAINER_RUNNING, name);
    let verdict = |claim: Claim| checked(&verifier(&docker, &podman), claim).verdict;

    let nobody = checked(&verifier(&docker, &podman), claim("web"));
    assert_eq!(nobody.verdict, Verdict::Unknown);
    assert_eq!(nobody.error.as_deref(), Some("neither docker nor podman is running"));

    let has_none = Server::unix(&docker, |_| Reply::http(404, &[], "{}")).unwrap();
    let has_it = Server::unix(&podman, says).unwrap();
    assert_eq!(verdict(claim("web")), Verdict::Ok);
    assert_eq!(verdict(claim("web").expecting(json!({ "engine": "docker" }))), Verdict::Failed);
    assert_eq!(verdict(claim("gone").on_terms(Terms { not: true, ..Terms::default() })), Verdict::Ok);
    // One that gives no answer may have it.
    assert_eq!(verdict(claim("broken")), Verdict::Unknown);
    drop(has_it);
    assert_eq!(verdict(claim("web")), Verdict::Unknown, "nobody listens at its socket any more");
    assert_eq!(verdict(claim("web").on_terms(Terms { not: true, ..Terms::default() })), Verdict::Unknown);

    std::fs::remove_file(&podman).unwrap();
    std::fs::create_dir(&podman).unwrap();
    drop(has_none);
    let strange = checked(&verifier(&docker, &podman), claim("web"));
    assert_eq!(strange.verdict, Verdict::Unknown, "{strange:?}");
}

#[test]
fn an_engine_without_http_gives_unknown_for_containers() {
    let folder = tempfile::tempdir().unwrap();
    let (docker, podman) = (folder.path().join("docker.sock"), folder.path().join("podman.sock"));
    let variables = [("DOCKER_HOST", &docker), ("CONTAINER_HOST", &podman)];
    let variables = variables.map(|(name, path)| (name.to_owned(), format!("unix://{}", path.display())));
    let verifier = Verifier::new().with_probe(Arc::new(ContainerProbe::with_variables(variables)));
    let not = || Claim::new(CONTAINER_RUNNING, "gone").on_terms(Terms { not: true, ..Terms::default() });
    let _has_none = Server::unix(&docker, |_| Reply::http(404, &[], "{}")).unwrap();

    assert_eq!(checked(&verifier, not()).verdict, Verdict::Unknown, "podman is named, and is not there");

    let other = Server::unix(&podman, |_| Reply::Bytes(b"SSH-2.0-x\r\n".to_vec())).unwrap();
    assert_eq!(checked(&verifier, not()).verdict, Verdict::Unknown, "it speaks no HTTP");
    drop(other);
    std::fs::remove_file(&podman).unwrap();
    let _has_none_either = Server::unix(&podman, |_| Reply::http(404, &[], "{}")).unwrap();
    assert_eq!(checked(&verifier, not()).verdict, Verdict::Ok);
}
