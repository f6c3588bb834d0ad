//! Evidence over a network connection.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;
use waypost_testing::postgres::{PASSWORD, USER, cluster};
use waypost_testing::{Reply, Server};

use crate::rig::{Rig, code_of};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

/// Serves a file of the rig as JSON; 404 if the file is missing, 503 while a file `down` exists.
fn server(rig: &Rig) -> Server {
    let folder = rig.path("");
    let says = move |head: &str| {
        if folder.join("down").exists() {
            return Reply::http(503, &[], "");
        }
        let path = head.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
        match fs::read(folder.join(path)) {
            Ok(body) => Reply::http(200, &[("content-type", "application/json")], body),
            Err(_) => Reply::http(404, &[], ""),
        }
    };
    Server::tcp(says).unwrap()
}

#[test]
fn what_an_api_answers_is_evidence() {
    for store in STORES {
        let rig = Rig::new().at(store);
        let server = server(&rig);
        let flow = format!(
            r#"
steps:
  - id: publish
    run: echo publish >> trace; echo "{{\"state\":\"${{S:-live}}\",\"n\":3}}" > item.json
    evidence:
      - {{ http: "{}", headers: {{ content-type: "~ json" }}, json: {{ $.state: live, $.n: "> 2" }} }}
  - run: test -e go
"#,
            server.url("/item.json")
        );
        rig.write("flow.yaml", &flow);

        let mut draft = rig.command(&["run", "flow.yaml", "--id", "r", "-q"]);
        let told = rig.told(&draft.env("S", "draft").output().unwrap());
        assert!(told.starts_with("exit 4\n"), "{told}");
        assert!(told.contains("json: {$.state: draft, $.n: 3}"), "{told}");
        assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(1), "{store}: it is done again, and holds");
        assert_eq!(code_of(&rig, &["verify", "r"]), Some(0));

        fs::remove_file(rig.path("item.json")).unwrap();
        let told = rig.waypost(&["verify", "r"]);
        assert!(told.starts_with("exit 4\n") && told.contains("found status: 404"), "{told}");

        // A server error is not evidence, so no step reruns.
        rig.write("down", "");
        let told = rig.waypost(&["resume", "r", "-q"]);
        assert!(told.starts_with("exit 4\n"), "{told}");
        assert!(told.contains("evidence could not be checked"), "{told}");
        assert_eq!(rig.read("trace"), "publish\npublish\n");

        fs::remove_file(rig.path("down")).unwrap();
        rig.write("go", "");
        assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0), "{store}");
        assert_eq!(rig.read("trace"), "publish\npublish\npublish\n", "what was gone was made again");
    }
}

#[test]
fn an_api_is_waited_for_and_its_private_address_must_be_named() {
    let rig = Rig::new();
    let server = server(&rig);
    let flow = |claim: &str| {
        format!(
            r#"
steps:
  - id: serve
    run: (sleep 0.3; echo up > up.json) & echo "url={}" >> "$WAYPOST_OUTPUT"
    evidence: [ {{ {claim}, within: 20s }} ]
"#,
            server.url("/up.json")
        )
    };
    rig.write("flow.yaml", &flow("http: \"${{ steps.serve.outputs.url }}\""));
    let told = rig.waypost(&["run", "flow.yaml", "--id", "r", "-q"]);
    assert!(told.starts_with("exit 4\n"), "{told}");
    assert!(told.contains("an expression selects a private address"), "{told}");
    assert!(server.heads().is_empty(), "nobody was asked");

    rig.write("flow.yaml", &flow("http: \"${{ steps.serve.outputs.url }}\", private: true"));
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "s", "-q"]), Some(0));
    let port = server.port();
    rig.write("flow.yaml", &flow(&format!("http: \"http://localhost:{port}/${{{{ 'up' }}}}.json\"")));
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "t", "-q"]), Some(0));
}

#[test]
fn no_proxy_is_asked_and_no_secret_is_recorded() {
    let rig = Rig::new();
    let (server, proxy) = (server(&rig), Server::tcp(|_| Reply::http(200, &[], "")).unwrap());
    let flow = format!(
        r#"
secrets: [TOKEN]
params: {{ one: {{ default: sesame- }}, two: {{ default: open-up }} }}
steps:
  - id: a
    run: echo "{{\"t\":\"$TOKEN\"}}" > a.json
    evidence: [ {{ http: "{url}", json: {{ $.t: "~ ^s" }} }} ]
  - id: b
    run: echo b
    evidence: [ {{ http: "{url}?${{{{ params.one }}}}${{{{ params.two }}}}" }} ]
    continue_on_error: true
  - id: c
    run: echo c
    evidence: [ {{ http: "{url}", json: {{ $.t: "${{{{ params.one }}}}${{{{ params.two }}}}" }} }} ]
    continue_on_error: true
  - id: d
    run: echo d
    evidence: [ {{ http: "{url}", json: {{ $.t: "${{{{ params.one }}}}${{{{ params.two }}}}" }}, sensitive: true }} ]
"#,
        url = server.url("/a.json")
    );
    rig.write("flow.yaml", &flow);

    let mut run = rig.command(&["run", "flow.yaml", "--id", "r"]);
    for name in ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"] {
        run.env(name, proxy.url(""));
    }
    let told = rig.told(&run.env("TOKEN", "sesame-open-up").output().unwrap());

    assert!(told.starts_with("exit 3\n"), "{told}");
    assert!(told.contains("the subject contains a secret"), "{told}");
    assert!(
        told.contains("the expectation contains a secret, which must not be recorded: add `sensitive"),
        "{told}"
    );
    assert!(proxy.heads().is_empty());
    let shown = rig.json(&["show", "r", "--json"]);
    assert_eq!(shown["steps"][0]["evidence"][0]["found"]["json"]["$.t"], "***", "{shown}");
    assert_eq!(shown["steps"][3]["evidence"][0]["verdict"], "ok", "{shown}");
    assert_untold(&rig, &["sesame-open-up"]);
}

#[test]
fn no_store_keeps_a_secret_as_text_or_as_number() {
    for store in STORES {
        let rig = Rig::new().at(store);
        rig.write(
            "flow.yaml",
            r#"
secrets: [TOKEN, PIN]
steps:
  - id: a
    run: echo "{\"text\":\"$TOKEN\",\"number\":$PIN}" > a.json
    evidence:
      - { json: a.json, path: $.text, value: "~ ^s" }
      - { json: a.json, path: $.number, value: "> 5" }
      - { file: a.json, json: { $.text: "~ ^s", $.number: "> 5" } }
      - { exec: ./says }
"#,
        );
        rig.write("says", "#!/bin/sh\ncat a.json\n");
        fs::set_permissions(rig.path("says"), fs::Permissions::from_mode(0o755)).unwrap();

        let mut run = rig.command(&["run", "flow.yaml", "--id", "r"]);
        let told = rig.told(&run.env("TOKEN", "sesame-open-up").env("PIN", "84421973").output().unwrap());

        assert!(told.starts_with("exit 0\n"), "{store}: {told}");
        let shown = rig.json(&["show", "r", "--json"]);
        let found = |place: usize| &shown["steps"][0]["evidence"][place]["found"];
        assert_eq!((found(0), found(1)), (&json!("***"), &json!("***")), "{store}: {shown}");
        let both = json!({ "text": "***", "number": "***" });
        assert_eq!(found(2)["json"], json!({ "$.text": "***", "$.number": "***" }), "{store}: {shown}");
        assert_eq!(*found(3), both, "{store}: {shown}");
        assert_untold(&rig, &["sesame-open-up", "84421973"]);
    }
}

/// Asserts that no command prints a secret from the store, and that no file contains a secret in plain text. The
/// store is compressed, so a search of its bytes alone proves nothing.
fn assert_untold(rig: &Rig, secrets: &[&str]) {
    for args in [
        &["show", "r", "--json"][..],
        &["show", "r"],
        &["verify", "r", "--json"],
        &["report", "r"],
        &["events", "r"],
        &["events", "r", "--json"],
        &["logs", "r"],
    ] {
        // A new check is masked by the command that knows the secrets.
        let mut command = rig.command(args);
        let command = command.env("TOKEN", secrets[0]).env("PIN", secrets.last().unwrap_or(&"0000"));
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(told.len() > 20, "{args:?}: {told}");
        for secret in secrets {
            assert!(!told.contains(secret), "{args:?}: {told}");
        }
    }
    for folder in [".waypost", "kept"].map(|name| rig.path(name)).into_iter().filter(|path| path.exists()) {
        for entry in walk(&folder) {
            let bytes = fs::read(&entry).unwrap();
            for secret in secrets {
                let is_it = |window: &[u8]| window == secret.as_bytes();
                assert!(!bytes.windows(secret.len()).any(is_it), "{}", entry.display());
            }
        }
    }
}

#[test]
fn a_secret_is_known_however_an_expression_has_to_spell_it() {
    let step = |id: &str, claim: &str| {
        format!("  - {{id: {id}, run: 'echo x > x', continue_on_error: true, evidence: [{claim}]}}\n")
    };
    let given = "${{ params.one }}${{ params.two }}";
    let rig = Rig::with(&format!(
        "secrets: [TOKEN]\nparams: {{one: {{default: 'se*sa'}}, two: {{default: 'me.open'}}}}\nsteps:\n{}{}{}",
        step("a", &format!("{{file: '{given}'}}")),
        step("b", &format!("{{file: x, matches: '{given}'}}")),
        step("c", &format!("{{file: x, newer_than: '{given}'}}")),
    ));

    let told = rig.told(
        &rig.command(&["run", "flow.yaml", "--id", "r"]).env("TOKEN", "se*same.open").output().unwrap(),
    );

    for step in ["a", "b", "c"] {
        let failed = told.lines().find(|line| line.contains(&format!("step_failed {step}: ")));
        let is_told = |line: &str| line.contains("contains a secret, which must not be recorded");
        assert!(failed.is_some_and(is_told), "{told}");
    }
    assert_untold(&rig, &["se[*]same.open", "se\\*same\\.open", "se\\\\*same\\\\.open"]);
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

// Bug: the claim of a step in a file of another folder was about `parts/8089`. Cause: every subject counted as a
// path. Fix: each kind of evidence says whether its subject is a path.
#[test]
fn what_is_no_path_does_not_begin_at_the_folder_of_a_file() {
    let rig = Rig::with("steps:\n  - {id: in, workflow: parts/inner.yaml}\n");
    let server = server(&rig);
    fs::create_dir(rig.path("parts")).unwrap();
    rig.write("a.json", "{}");
    let (port, url) = (server.port(), server.url("/a.json"));
    rig.write(
        "parts/inner.yaml",
        &format!(
            "steps:\n  - {{id: a, run: echo a, evidence: [ {{ port: {port} }}, {{ http: '{url}' }} ]}}\n"
        ),
    );

    assert_eq!(code_of(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(0));
}

#[test]
fn a_container_that_runs_is_evidence() {
    for store in STORES {
        let rig = Rig::with(
            r#"
steps:
  - id: up
    run: echo up >> trace; echo "${H:-healthy}" > web
    evidence: [ { container: web, healthy: true, image: "~ ^nginx:", engine: docker } ]
  - run: test -e go
"#,
        )
        .at(store);
        let folder = rig.path("");
        let says = move |head: &str| match fs::read_to_string(folder.join("web")) {
            Ok(health) if head.starts_with("GET /containers/web/json ") => {
                let known = serde_json::json!({
                    "Name": "/web",
                    "State": { "Running": true, "Health": { "Status": health.trim() } },
                    "Config": { "Image": "nginx:1.27" },
                });
                Reply::http(200, &[], known.to_string())
            }
            _ => Reply::http(404, &[], "{}"),
        };
        let socket = rig.path("engine.sock");
        let host = format!("unix://{}", socket.display());
        let told = |args: &[&str], health: &str| {
            let mut command = rig.command(args);
            rig.told(&command.env("DOCKER_HOST", &host).env("H", health).output().unwrap())
        };

        let told_without = told(&["run", "flow.yaml", "--id", "none", "-q"], "healthy");
        assert!(
            told_without.starts_with("exit 4\n") && told_without.contains("cannot reach the engine at"),
            "{told_without}"
        );
        let engine = Server::unix(&socket, says).unwrap();
        let sick = told(&["run", "flow.yaml", "--id", "r", "-q"], "unhealthy");
        assert!(sick.starts_with("exit 4\n") && sick.contains("health: unhealthy"), "{sick}");
        assert!(told(&["resume", "r", "-q"], "healthy").starts_with("exit 1\n"));
        assert!(told(&["verify", "r"], "").starts_with("exit 0\n"));

        fs::remove_file(rig.path("web")).unwrap();
        let gone = told(&["verify", "r"], "");
        assert!(gone.starts_with("exit 4\n") && gone.contains("the container does not exist"), "{gone}");
        rig.write("go", "");
        assert!(told(&["resume", "r", "-q"], "healthy").starts_with("exit 0\n"), "{store}");
        assert_eq!(
            rig.read("trace"),
            "up\nup\nup\nup\n",
            "one of the first run, and one for each that failed"
        );

        drop(engine);
        assert!(told(&["verify", "r"], "").starts_with("exit 4\n"), "nobody can be asked");
    }
}

#[test]
fn rows_of_postgres_are_evidence() {
    let cluster = cluster();
    for store in STORES {
        let rig = Rig::new().at(store);
        cluster.database("flow", "CREATE TABLE jobs (id int, state text)");
        let psql = format!(
            "{} -X -q -h {} -p {} -U {USER} -d flow -c",
            cluster.psql().display(),
            cluster.folder().display(),
            cluster.port()
        );
        let flow = format!(
            r#"
steps:
  - id: load
    run: echo load >> trace; {psql} "INSERT INTO jobs VALUES (${{N:-1}}, 'done')"
    evidence:
      - {{ postgres: "env:JOBS_URL", table: jobs, where: {{ id: 1 }}, values: {{ state: done }} }}
      - {{ postgres: "{}", query: "SELECT count(*) FROM jobs WHERE state = 'done'", equals: ">= 1" }}
  - run: test -e go
"#,
            cluster.connection(USER, "flow")
        );
        rig.write("flow.yaml", &flow);
        let folder = cluster.folder().display().to_string().replace('/', "%2F");
        let url = |user: &str| format!("postgres://{user}@{folder}:{}/flow", cluster.port());
        let call = |args: &[&str], user: &str, number: &str| {
            let mut command = rig.command(args);
            rig.told(&command.env("JOBS_URL", url(user)).env("N", number).output().unwrap())
        };

        let wrong = call(&["run", "flow.yaml", "--id", "r", "-q"], USER, "7");
        assert!(wrong.starts_with("exit 4\n"), "{wrong}");
        assert!(wrong.contains("db_row postgres:env:JOBS_URL: expected table: jobs"), "{wrong}");
        let right = call(&["resume", "r", "-q"], &format!("locked:{PASSWORD}"), "1");
        assert!(
            right.starts_with("exit 4\n") && right.contains("permission denied for table jobs"),
            "{right}"
        );
        assert!(call(&["resume", "r", "-q"], USER, "1").starts_with("exit 1\n"), "{store}");
        assert!(call(&["verify", "r"], USER, "").starts_with("exit 0\n"), "{store}");

        cluster.sql("flow", "DELETE FROM jobs WHERE id = 1");
        assert!(call(&["verify", "r"], USER, "").starts_with("exit 4\n"), "{store}");
        rig.write("go", "");
        let refused = call(&["resume", "r", "-q"], "nobody_knows", "1");
        assert!(refused.starts_with("exit 4\n") && refused.contains("could not be checked"), "{refused}");
        assert!(call(&["resume", "r", "-q"], USER, "1").starts_with("exit 0\n"), "{store}");
        assert_eq!(rig.read("trace"), "load\n".repeat(4), "{store}");
        for entry in walk(&rig.path("kept")) {
            let bytes = fs::read(&entry).unwrap();
            assert!(
                !bytes.windows(PASSWORD.len()).any(|window| window == PASSWORD.as_bytes()),
                "{}",
                entry.display()
            );
        }
    }
}
